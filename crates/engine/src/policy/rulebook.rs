//! The rules of all receivers, in a form in which decisions are fast even with a million receivers of a thousand
//! entries each.
//!
//! A receiver has a list of entries, each about one sender. Among the entries that match, the entry with the highest
//! priority decides. Among entries of equal priority, the latest entry decides (freshness). If the freshness is also
//! equal, an entry that denies decides. How specific entries and receivers are does not matter. Only priorities express
//! precedence.
//!
//! A clone is a snapshot and costs almost nothing. Readers keep a clone. The writer changes a clone of its own, and
//! then publishes this clone as a whole.

mod fetch;
mod few;
mod index;
mod list;

use crate::model::Service;
use crate::policy::{Action, Granularity, Scope, normal};
use few::Few;
use index::{Index, Seek};
use ipnet::IpNet;
use list::{List, Scattered};
use std::cell::Cell;
use std::cmp::Reverse;
use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroU16;
use wire::Destination;
use wire::grant::mask;

/// Number of steps of a decision that follow the first step.
const LATER_STEPS: usize = 3;

/// The sender whom an entry concerns: everyone, a subject (person, group or device tag), or an address or network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sender(u32);

/// A receiver's decision about one sender: an element of the receiver's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// Sender whom the entry concerns.
    pub sender: Sender,
    /// Whether the entry allows or denies.
    pub action: Action,
    /// Priority of the entry. Among the matching entries, the one with the highest priority decides.
    pub priority: u16,
    /// Number of the rule to which the entry belongs, or of the change that made the entry. Among entries of equal
    /// priority, the one with the highest number decides.
    pub revision: u64,
    /// Index of the terms of the grants that the entry allows, in the caller's table of terms.
    pub terms: u16,
    /// Index of the time window in which the entry applies, in the caller's table of windows; `None` if the entry
    /// always applies.
    pub window: Option<NonZeroU16>,
}

/// A protected prefix and range of services. Several receivers may have the same prefix and services; `number` tells
/// them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receiver {
    /// Protected addresses, host bits cleared.
    pub prefix: IpNet,
    /// Protected services at these addresses.
    pub service: Service,
    /// Number that the caller gave the receiver.
    pub number: u32,
    /// Number that the caller gave the verifier in front of the receiver.
    pub verifier: u32,
}

/// A request for a decision: a sender, and the destination to which it wants to send.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The person, the person's groups, and the tags of the device.
    pub subjects: &'a [Sender],
    /// Address that the request comes from. If it is unknown, no entry about addresses and networks matches.
    pub source: Option<IpAddr>,
    /// The destination to which the sender wants to send.
    pub to: Destination,
}

/// The rulebook's decision about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// No receiver covers the destination.
    NoReceiver,
    /// A receiver covers the destination, but no entry matches.
    DefaultDeny {
        /// The most specific receiver that covers the destination.
        receiver: Receiver,
    },
    /// A matching entry decides.
    Decided(Ruling),
}

/// An entry that decides about a request, and the receivers involved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ruling {
    /// The most specific receiver that covers the destination. The grant's key derives from the key of this receiver's
    /// verifier.
    pub receiver: Receiver,
    /// The receiver whose list contains the entry.
    pub of: Receiver,
    /// The entry that decides about the request.
    pub entry: Entry,
}

/// A decision, and the data from which it was made.
pub struct Evaluation<'b> {
    /// The decision that was made.
    pub decision: Decision,
    windows: Few<NonZeroU16, 8>,
    /// Whether another entry would have decided if its time window were open.
    closed: bool,
    to: Destination,
    /// All senders by which an entry can refer to the requester.
    senders: Few<Scattered, 16>,
    /// The receivers whose prefixes contain the destination.
    here: Few<Option<Here<'b>>, 4>,
}

/// A receiver whose prefix contains the destination, with what is known of it so far.
#[derive(Clone, Copy)]
struct Here<'b> {
    /// Length of the receiver's prefix.
    length: u8,
    /// Whether the receiver's services include the requested service.
    covers: bool,
    /// The bit set that [`List::look`] returned for the receiver's list.
    seen: u64,
    listed: &'b Listed,
}

/// The positions in the indexes at which the searches for one request begin.
struct Sought<'b> {
    receivers: Seek<'b, Listed>,
    networks: Seek<'b, Sender>,
}

/// The rules of all receivers.
#[derive(Clone, Default)]
pub struct Rulebook {
    receivers: Index<Listed>,
    networks: Index<Sender>,
}

/// A receiver's entries in the form in which a rulebook stores them. Packing is most of the work of loading a rulebook
/// and does not need the rulebook, so several threads can do it. A clone costs almost nothing.
#[derive(Clone)]
pub struct Packed(List);

/// A receiver with its list, as the index holds it.
#[derive(Clone)]
struct Listed {
    service: Service,
    /// Whether another receiver's prefix possibly lies inside this receiver's prefix.
    around_others: bool,
    number: u32,
    verifier: u32,
    list: List,
}

impl Sender {
    /// Every sender.
    pub const EVERYONE: Self = Self(0);
    /// The highest number that [`Self::subject`] accepts.
    pub const SUBJECT_MAX: u32 = Self::NETWORK - 1;
    const NETWORK: u32 = 1 << 31;

    /// Returns the subject with this number, which the caller assigned, from 1 to [`Self::SUBJECT_MAX`].
    pub const fn subject(number: u32) -> Option<Self> {
        if 0 < number && number <= Self::SUBJECT_MAX { Some(Self(number)) } else { None }
    }
}

impl Entry {
    /// Returns the key by which entries are ordered; among matching entries, the entry with the greatest key decides.
    fn rank(&self) -> impl Ord {
        (self.priority, self.revision, self.action == Action::Deny, self.terms, self.window)
    }
}

impl Packed {
    /// Packs entries; their order doesn't matter.
    pub fn new(entries: &[Entry]) -> Self {
        Self(List::pack(entries))
    }
}

impl Rulebook {
    /// Returns the sender that stands for an address or network. The sender's number is never reused. In an older
    /// snapshot, it stands for this network or for no network.
    ///
    /// # Panics
    ///
    /// Panics if there are more than 2³¹ - 1 networks.
    pub fn network(&mut self, prefix: IpNet) -> Sender {
        let prefix = prefix.trunc();
        if let Some(sender) = self.networks.find(prefix, |_| true) {
            return *sender;
        }
        let number = u32::try_from(self.networks.len()).ok().filter(|number| *number < Sender::NETWORK - 1);
        let sender = Sender(Sender::NETWORK | number.expect("memory ends long before 2^31 networks"));
        self.networks.add(prefix, sender);
        sender
    }

    /// Sets a receiver's list, replacing the list that the receiver had. Must be called for a wide receiver before the
    /// receivers inside it, because [`Evaluation::scope`] relies on this order.
    pub fn set(&mut self, receiver: Receiver, entries: &[Entry]) {
        self.set_packed(receiver, Packed::new(entries));
    }

    /// Sets a receiver's list as [`Self::set`] does, from entries that are packed already.
    pub fn set_packed(&mut self, receiver: Receiver, entries: Packed) {
        let Receiver { service, number, verifier, .. } = receiver;
        let prefix = receiver.prefix.trunc();
        let listed = Listed { service, number, verifier, around_others: false, list: entries.0 };
        if self.listed(&receiver).is_some() {
            let again = |known: &Listed| Some(Listed { around_others: known.around_others, ..listed });
            self.receivers.change(prefix, |known| known.is(&receiver), again);
            return;
        }
        let mut unmarked = Vec::new();
        let mut seek = Seek::NOTHING;
        self.receivers.seek(prefix.network(), &mut seek);
        self.receivers.around(&seek, |length, wider| {
            if length < prefix.prefix_len() && !wider.around_others {
                unmarked.push(wider.receiver(around(prefix.network(), length)));
            }
        });
        for wider in unmarked {
            let mark = |known: &Listed| Some(Listed { around_others: true, ..known.clone() });
            self.receivers.change(wider.prefix, |known| known.is(&wider), mark);
        }
        let around_others = self.receivers.has_longer(prefix);
        self.receivers.add(prefix, Listed { around_others, ..listed });
    }

    /// Removes a receiver. Returns whether the receiver existed.
    pub fn withdraw(&mut self, receiver: &Receiver) -> bool {
        self.receivers.change(receiver.prefix.trunc(), |listed| listed.is(receiver), |_| None)
    }

    /// Adds an entry to a receiver's list. Returns whether the receiver exists.
    pub fn insert(&mut self, receiver: &Receiver, entry: Entry) -> bool {
        self.edit(receiver, |list| {
            let packed = || List::pack(&list.entries().chain([entry]).collect::<Vec<_>>());
            Some(list.with(&entry).unwrap_or_else(packed))
        })
    }

    /// Removes an entry from a receiver's list. Returns whether the entry was present. Entries that the removed entry
    /// overrode are in force again.
    pub fn remove(&mut self, receiver: &Receiver, entry: &Entry) -> bool {
        self.edit(receiver, |list| list.without(entry))
    }

    /// Replaces an entry by another in one step. Returns whether the old entry was present.
    pub fn replace(&mut self, receiver: &Receiver, old: &Entry, new: Entry) -> bool {
        self.edit(receiver, |list| {
            let list = list.without(old)?;
            let packed = || List::pack(&list.entries().chain([new]).collect::<Vec<_>>());
            Some(list.with(&new).unwrap_or_else(packed))
        })
    }

    /// Returns the number of receivers.
    pub fn len(&self) -> usize {
        self.receivers.len()
    }

    /// Reports whether there are no receivers.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Iterates over every receiver, in no particular order.
    pub fn receivers(&self) -> impl Iterator<Item = Receiver> + '_ {
        self.receivers.all().map(|(prefix, listed)| listed.receiver(prefix))
    }

    /// Iterates over a receiver's entries, in no particular order.
    pub fn entries(&self, receiver: &Receiver) -> impl Iterator<Item = Entry> + '_ {
        self.listed(receiver).into_iter().flat_map(|listed| listed.list.entries())
    }

    /// Returns an entry of a receiver's list about one sender, if there is one.
    pub fn entry_about(&self, receiver: &Receiver, sender: Sender) -> Option<Entry> {
        let found = Cell::new(None);
        self.listed(receiver)?.list.any_about(&[sender.into()], |entry| {
            found.set(Some(*entry));
            true
        });
        found.get()
    }

    /// Decides a request. `open` reports whether the time window with a given index is open.
    pub fn decide(&self, request: &Request<'_>, open: impl Fn(NonZeroU16) -> bool) -> Evaluation<'_> {
        let mut evaluation = Evaluation::NOTHING;
        let mut sought = Sought::NOTHING;
        self.seek(request, &mut sought);
        self.find(request, &sought, &mut evaluation);
        evaluation.look();
        evaluation.conclude(open);
        evaluation
    }

    /// Decides several requests as [`Self::decide`] does, in their order. Calls `each` with the position and the
    /// evaluation of each request. `open` also receives the position of the request. The steps of different requests
    /// are interleaved, so that the processor fetches memory for one request while it works on others.
    pub fn decide_all<'b>(
        &'b self,
        requests: &[Request<'_>],
        open: impl Fn(usize, NonZeroU16) -> bool,
        mut each: impl FnMut(usize, &Evaluation<'b>),
    ) {
        let mut sought = Sought::NOTHING;
        let mut evaluations = [const { Evaluation::NOTHING }; LATER_STEPS];
        for turn in 0..requests.len() + LATER_STEPS {
            // The position of the request whose turn it is to perform this step.
            let at = |step| turn.checked_sub(step).filter(|place| *place < requests.len());
            if let Some(place) = at(3) {
                let evaluation = &mut evaluations[place % LATER_STEPS];
                evaluation.conclude(|window| open(place, window));
                each(place, evaluation);
            }
            if let Some(place) = at(2) {
                evaluations[place % LATER_STEPS].look();
            }
            if let Some(place) = at(1) {
                self.find(&requests[place], &sought, &mut evaluations[place % LATER_STEPS]);
            }
            if let Some(place) = at(0) {
                self.seek(&requests[place], &mut sought);
            }
        }
    }

    /// Performs the first step: prefetches the index entries that the request needs.
    #[inline]
    fn seek<'b>(&'b self, request: &Request<'_>, sought: &mut Sought<'b>) {
        self.receivers.seek(request.to.address, &mut sought.receivers);
        if let Some(source) = request.source {
            self.networks.seek(source, &mut sought.networks);
        }
    }

    /// Performs the second step: finds the senders that match the requester and the lists of the receivers that contain
    /// the destination, and prefetches the lines of these lists.
    #[inline]
    fn find<'b>(&'b self, request: &Request<'_>, sought: &Sought<'b>, evaluation: &mut Evaluation<'b>) {
        let Evaluation { to, senders, here, .. } = evaluation;
        *to = normal(&request.to);
        senders.clear();
        here.clear();
        if request.source.is_some() {
            self.networks.around(&sought.networks, |_, sender| senders.push((*sender).into()));
        }
        request.subjects.iter().for_each(|subject| senders.push((*subject).into()));
        senders.push(Scattered::EVERYONE);
        self.receivers.around(&sought.receivers, |length, listed| {
            let covers = listed.service.covers(to.protocol, to.port);
            if covers {
                listed.list.fetch(senders);
            }
            here.push(Some(Here { length, covers, seen: 0, listed }));
        });
    }

    fn listed(&self, receiver: &Receiver) -> Option<&Listed> {
        self.receivers.find(receiver.prefix.trunc(), |listed| listed.is(receiver))
    }

    fn edit(&mut self, receiver: &Receiver, change: impl FnOnce(&List) -> Option<List>) -> bool {
        let mut changed = false;
        let edit = |listed: &Listed| {
            let list = change(&listed.list);
            changed = list.is_some();
            Some(Listed { list: list.unwrap_or_else(|| listed.list.clone()), ..listed.clone() })
        };
        self.receivers.change(receiver.prefix.trunc(), |known| known.is(receiver), edit) && changed
    }
}

impl Sought<'_> {
    /// Value for a slot without a request.
    const NOTHING: Self = Self { receivers: Seek::NOTHING, networks: Seek::NOTHING };
}

impl<'b> Evaluation<'b> {
    /// Value for a slot without a request.
    const NOTHING: Self = Self {
        decision: Decision::NoReceiver,
        windows: Few::new(NonZeroU16::MIN),
        closed: false,
        to: Destination { address: IpAddr::V4(Ipv4Addr::UNSPECIFIED), protocol: 0, port: 0 },
        senders: Few::new(Scattered::EVERYONE),
        here: Few::new(None),
    };

    /// Performs the third step: determines for which senders the lists have entries.
    #[inline]
    fn look(&mut self) {
        let covering = self.here.iter_mut().flatten().filter(|here| here.covers);
        covering.for_each(|here| here.seen = here.listed.list.look(&self.senders));
    }

    /// Performs the last step: finds the deciding entry.
    #[inline]
    fn conclude(&mut self, open: impl Fn(NonZeroU16) -> bool) {
        let covering = || self.here.iter().flatten().filter(|here| here.covers);
        self.windows.clear();
        let Some(specific) = covering().max_by_key(|here| here.specific()) else {
            self.decision = Decision::NoReceiver;
            return;
        };
        let mut deciding: Option<(Entry, &Here<'b>)> = None;
        for here in covering() {
            let opened = |window| {
                let open = open(window);
                if !open {
                    self.windows.push(window);
                }
                open
            };
            let Some(entry) = here.listed.list.deciding(&self.senders, here.seen, opened) else { continue };
            // If several receivers' lists contain the entry, the most specific of these receivers counts.
            let more = |(other, wider): &(Entry, &Here<'b>)| {
                (entry.rank(), here.specific()) > (other.rank(), wider.specific())
            };
            if deciding.as_ref().is_none_or(more) {
                deciding = Some((entry, here));
            }
        }
        self.closed = !self.windows.is_empty();
        let receiver = specific.receiver(self.to.address);
        self.decision = match deciding {
            None => Decision::DefaultDeny { receiver },
            Some((entry, of)) => {
                entry.window.iter().for_each(|window| self.windows.push(*window));
                let of = if std::ptr::eq(of.listed, specific.listed) { receiver } else { of.receiver(self.to.address) };
                Decision::Decided(Ruling { receiver, of, entry })
            }
        };
    }

    /// Returns the indices of the windows that the decision depends on: the window of the deciding entry, and the
    /// window of each entry that would decide if its window were open. A grant has to end when the first of these
    /// windows opens or closes.
    pub fn windows(&self) -> &[NonZeroU16] {
        &self.windows
    }

    /// Returns the scope of a grant under this ruling. A wide scope is narrowed to one protocol and port in three
    /// cases. In the first case, the receiver of the deciding entry does not protect all services. In the second case,
    /// a stronger entry could decide differently for a part of the scope or at some time. In the third case, another
    /// verifier protects a part of the scope. The scope of a whole network is also narrowed if it possibly contains
    /// other receivers, even if all these receivers have the same entries.
    pub fn scope(&self, ruling: &Ruling, granularity: Granularity) -> Scope {
        let host = IpNet::from(self.to.address);
        let narrow = Scope { prefix: host, service: Some((self.to.protocol, self.to.port)) };
        let prefix = match granularity {
            Granularity::Application => return narrow,
            Granularity::Host => host,
            Granularity::Network => ruling.of.prefix,
        };
        let Ruling { receiver, of, entry } = ruling;
        let beats =
            |other: &Entry| other.rank() > entry.rank() && (other.action == Action::Deny || other.terms != entry.terms);
        let interferes = |here: &Here<'_>| {
            let Here { length, covers, listed, .. } = *here;
            let wide = granularity == Granularity::Network;
            let inside = length > prefix.prefix_len() || wide && length == prefix.prefix_len() && listed.around_others;
            let behind_another = length >= of.prefix.prefix_len() && listed.verifier != receiver.verifier;
            // In a list that was searched, no entry is stronger than the deciding one, except for entries whose window
            // is closed.
            let may_beat = !covers || self.closed;
            inside || behind_another || may_beat && listed.list.any_about(&self.senders, beats)
        };
        let narrowed = of.service != Service::ALL
            || of.verifier != receiver.verifier
            || self.here.iter().flatten().any(interferes);
        if narrowed { narrow } else { Scope { prefix, service: None } }
    }
}

impl Here<'_> {
    /// Returns the key by which receivers are ordered, the most specific last.
    fn specific(&self) -> impl Ord {
        (self.length, Reverse(self.listed.number))
    }

    fn receiver(&self, address: IpAddr) -> Receiver {
        self.listed.receiver(around(address, self.length))
    }
}

impl Listed {
    fn is(&self, receiver: &Receiver) -> bool {
        (self.service, self.number) == (receiver.service, receiver.number)
    }

    fn receiver(&self, prefix: IpNet) -> Receiver {
        Receiver { prefix, service: self.service, number: self.number, verifier: self.verifier }
    }
}

/// Returns the prefix of this length that contains an address.
fn around(address: IpAddr, length: u8) -> IpNet {
    IpNet::new(mask(address, length), length).unwrap_or(address.into())
}

#[cfg(test)]
mod tests;
