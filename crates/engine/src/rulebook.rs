//! All receivers' rules in the form that decisions are made from: a million receivers with a thousand entries each.
//!
//! A receiver has a list of entries, each about one sender. What decides is the entry of the highest priority among
//! those that match; among equal ones the freshest; where that is equal, too, one that denies. How specific entries and
//! receivers are doesn't matter for that: priorities are how receivers say what beats what.
//!
//! A clone is a snapshot and costs nothing: readers keep one while the writer changes its own and publishes it whole.

mod few;
mod index;
mod list;

use crate::api::Service;
use crate::policy::{Action, Granularity, Scope, normal};
use few::Few;
use index::Index;
use ipnet::IpNet;
use list::List;
use std::cmp::Reverse;
use std::hint::black_box;
use std::net::IpAddr;
use std::num::NonZeroU16;
use wire::Destination;
use wire::grant::mask;

/// Whom an entry is about: everyone, a subject (person, group or device tag), or an address or network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sender(u32);

/// One line of a receiver's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// Whom it is about.
    pub sender: Sender,
    /// What it says.
    pub action: Action,
    /// The highest one decides.
    pub priority: u16,
    /// Among equal priorities the highest one decides: the number of its rule, or of the change that made it.
    pub fresh: u64,
    /// The number of the terms of the grants that it allows, in the caller's table.
    pub terms: u16,
    /// The number of the time windows that it holds in, in the caller's table; always, where there is none.
    pub window: Option<NonZeroU16>,
}

/// What is protected: one prefix and one span of services. Its number tells receivers apart that share both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receiver {
    /// Its addresses, host bits cleared.
    pub prefix: IpNet,
    /// What of them is protected.
    pub service: Service,
    /// The caller's number of it.
    pub number: u32,
    /// The caller's number of the verifier in front of it.
    pub verifier: u32,
}

/// Who wants to send where.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The person, the person's groups, the tags of the device.
    pub subjects: &'a [Sender],
    /// The address that the request comes from. Where it is not known, no entry about addresses and networks matches.
    pub source: Option<IpAddr>,
    /// Where it is to go.
    pub to: Destination,
}

/// The answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Nothing is protected there.
    NoReceiver,
    /// Something is, and no entry matches.
    DefaultDeny {
        /// The most specific receiver there.
        receiver: Receiver,
    },
    /// An entry decides.
    Decided(Ruling),
}

/// An entry that decides, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ruling {
    /// The most specific receiver there: its verifier's key makes the grant.
    pub receiver: Receiver,
    /// The receiver in whose list the entry stands.
    pub of: Receiver,
    /// The entry.
    pub entry: Entry,
}

/// A decision, with what it was made from.
pub struct Judgement<'b> {
    /// The decision.
    pub decision: Decision,
    windows: Few<NonZeroU16, 8>,
    to: Destination,
    /// Everything that entries may call who asks.
    senders: Few<Sender, 16>,
    /// The receivers around the destination, for whatever services, with the lengths of their prefixes.
    here: Few<Option<(u8, &'b Listed)>, 4>,
}

/// The rules of all receivers.
#[derive(Clone, Default)]
pub struct Rulebook {
    receivers: Index<Listed>,
    networks: Index<Sender>,
}

/// A receiver's entries in the form that a rulebook holds. Packing them is most of the work of loading, and takes no
/// rulebook: several threads can do it. A clone costs nothing.
#[derive(Clone)]
pub struct Packed(List);

/// A receiver with its list, as the index holds it.
#[derive(Clone)]
struct Listed {
    service: Service,
    /// Whether another receiver's prefix may lie inside this one's.
    around_others: bool,
    number: u32,
    verifier: u32,
    list: List,
}

impl Sender {
    /// Whoever asks.
    pub const EVERYONE: Self = Self(0);
    /// The highest number of a subject.
    pub const SUBJECT_MAX: u32 = Self::NETWORK - 1;
    const NETWORK: u32 = 1 << 31;

    /// The subject with this number, which the caller gave it, from 1 to [`Self::SUBJECT_MAX`].
    pub const fn subject(number: u32) -> Option<Self> {
        if 0 < number && number <= Self::SUBJECT_MAX { Some(Self(number)) } else { None }
    }
}

impl Entry {
    /// Entries in order of what beats what, last the one that decides.
    fn rank(&self) -> impl Ord {
        (self.priority, self.fresh, self.action == Action::Deny, self.terms, self.window)
    }
}

impl Packed {
    /// Packs entries; their order doesn't matter.
    pub fn new(entries: &[Entry]) -> Self {
        Self(List::pack(entries))
    }
}

impl Rulebook {
    /// The sender that stands for an address or network. Numbers are never given out anew: a reader that knows one from
    /// an older snapshot must not find somebody else under it.
    ///
    /// # Panics
    /// Beyond 2³¹ - 1 networks.
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

    /// Gives a receiver this list, in the place of the one it had, if any. Load wider receivers before those inside them:
    /// see [`Judgement::scope`].
    pub fn set(&mut self, receiver: Receiver, entries: &[Entry]) {
        self.set_packed(receiver, Packed::new(entries));
    }

    /// [`Self::set`] with entries that are packed already.
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
        let seek = self.receivers.seek(prefix.network());
        self.receivers.around(prefix.network(), &seek, |length, wider| {
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

    /// Takes a receiver away; says whether it was there.
    pub fn withdraw(&mut self, receiver: &Receiver) -> bool {
        self.receivers.change(receiver.prefix.trunc(), |listed| listed.is(receiver), |_| None)
    }

    /// Adds an entry to a receiver's list; says whether there is such a receiver.
    pub fn insert(&mut self, receiver: &Receiver, entry: Entry) -> bool {
        self.edit(receiver, |entries| {
            entries.push(entry);
            true
        })
    }

    /// Removes an entry from a receiver's list; says whether it was there. What it beat is in force again.
    pub fn remove(&mut self, receiver: &Receiver, entry: &Entry) -> bool {
        self.edit(receiver, |entries| match entries.iter().position(|known| known == entry) {
            Some(place) => {
                entries.swap_remove(place);
                true
            }
            None => false,
        })
    }

    /// Puts an entry in the place of another in one step; says whether the other was there.
    pub fn replace(&mut self, receiver: &Receiver, old: &Entry, new: Entry) -> bool {
        self.edit(receiver, |entries| match entries.iter_mut().find(|known| *known == old) {
            Some(known) => {
                *known = new;
                true
            }
            None => false,
        })
    }

    /// How many receivers there are.
    pub fn len(&self) -> usize {
        self.receivers.len()
    }

    /// Whether there is no receiver.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Every receiver, in an order that means nothing.
    pub fn receivers(&self) -> impl Iterator<Item = Receiver> + '_ {
        self.receivers.all().map(|(prefix, listed)| listed.receiver(prefix))
    }

    /// A receiver's entries, in an order that means nothing.
    pub fn entries(&self, receiver: &Receiver) -> impl Iterator<Item = Entry> + '_ {
        self.listed(receiver).into_iter().flat_map(|listed| listed.list.entries())
    }

    /// Decides a request, where `open` says whether it is time for a window.
    pub fn decide(&self, request: &Request<'_>, open: impl Fn(NonZeroU16) -> bool) -> Judgement<'_> {
        let to = normal(&request.to);
        let receivers = self.receivers.seek(to.address);
        let mut senders = Few::new(Sender::EVERYONE);
        if let Some(source) = request.source {
            let networks = self.networks.seek(source);
            self.networks.around(source, &networks, |_, sender| senders.push(*sender));
        }
        request.subjects.iter().for_each(|subject| senders.push(*subject));
        senders.push(Sender::EVERYONE);
        let mut here: Few<Option<(u8, &Listed)>, 4> = Few::new(None);
        let mut specific: Option<(u8, &Listed)> = None;
        self.receivers.around(to.address, &receivers, |length, listed| {
            here.push(Some((length, listed)));
            if listed.service.covers(to.protocol, to.port) {
                // As in the index: the memory fetches side by side what comparisons would have it fetch in turn.
                black_box(listed.list.touch(&senders));
                let more =
                    |(other, known): (u8, &Listed)| (length, Reverse(listed.number)) > (other, Reverse(known.number));
                if specific.is_none_or(more) {
                    specific = Some((length, listed));
                }
            }
        });
        let mut windows = Few::new(NonZeroU16::MIN);
        let Some(specific) = specific else {
            return Judgement { decision: Decision::NoReceiver, windows, to, senders, here };
        };
        let mut deciding: Option<(Entry, (u8, &Listed))> = None;
        for (length, listed) in here.iter().flatten() {
            if !listed.service.covers(to.protocol, to.port) {
                continue;
            }
            let opened = |window| {
                let open = open(window);
                if !open {
                    windows.push(window);
                }
                open
            };
            let Some(entry) = listed.list.deciding(&senders, opened) else { continue };
            // An entry that is in the lists of several receivers is the most specific one's.
            let more = |(other, (wider, known)): &(Entry, (u8, &Listed))| {
                (entry.rank(), length, Reverse(listed.number)) > (other.rank(), wider, Reverse(known.number))
            };
            if deciding.as_ref().is_none_or(more) {
                deciding = Some((entry, (*length, *listed)));
            }
        }
        let named = |(length, listed): (u8, &Listed)| listed.receiver(around(to.address, length));
        let receiver = named(specific);
        let decision = match deciding {
            None => Decision::DefaultDeny { receiver },
            Some((entry, of)) => {
                entry.window.iter().for_each(|window| windows.push(*window));
                let of = if std::ptr::eq(of.1, specific.1) { receiver } else { named(of) };
                Decision::Decided(Ruling { receiver, of, entry })
            }
        };
        Judgement { decision, windows, to, senders, here }
    }

    fn listed(&self, receiver: &Receiver) -> Option<&Listed> {
        self.receivers.find(receiver.prefix.trunc(), |listed| listed.is(receiver))
    }

    fn edit(&mut self, receiver: &Receiver, change: impl FnOnce(&mut Vec<Entry>) -> bool) -> bool {
        let mut changed = false;
        let edit = |listed: &Listed| {
            let mut entries: Vec<_> = listed.list.entries().collect();
            changed = change(&mut entries);
            let list = if changed { List::pack(&entries) } else { listed.list.clone() };
            Some(Listed { list, ..listed.clone() })
        };
        self.receivers.change(receiver.prefix.trunc(), |known| known.is(receiver), edit) && changed
    }
}

impl Judgement<'_> {
    /// The windows that the decision hangs on: the deciding entry's, and those of entries that would decide at their time.
    /// A grant has to end when the first of them opens or closes.
    pub fn windows(&self) -> &[NonZeroU16] {
        &self.windows
    }

    /// What a grant under the ruling may cover. A wide one is narrowed to the one application where an entry that beats the
    /// deciding one may say otherwise inside, at some time, or where another verifier stands; a network's, too, where
    /// other receivers may lie inside, without a look at what they say.
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
        let interferes = |(length, listed): &(u8, &Listed)| {
            let wide = granularity == Granularity::Network;
            let length = *length;
            let inside = length > prefix.prefix_len() || wide && length == prefix.prefix_len() && listed.around_others;
            let behind_another = length >= of.prefix.prefix_len() && listed.verifier != receiver.verifier;
            inside || behind_another || listed.list.any_about(&self.senders, beats)
        };
        let narrowed = of.service != Service::ALL
            || of.verifier != receiver.verifier
            || self.here.iter().flatten().any(interferes);
        if narrowed { narrow } else { Scope { prefix, service: None } }
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

/// The prefix of this length around an address.
fn around(address: IpAddr, length: u8) -> IpNet {
    IpNet::new(mask(address, length), length).unwrap_or(address.into())
}

#[cfg(test)]
mod tests;
