//! The controller's tables, which correspond to the maps of the agent's kernel program. Decides about each packet that
//! a switch sends up, and makes the switch rules for the packet's flow.

pub use super::fate::{Fate, Origin};
use super::logins::{FIRST_NONCE2, Logins, Realm, Sender};
use super::rules;
use crate::agent::Subject;
use crate::agent::frame::{Frame, datagram};
use crate::agent::insertion::{Action, Alone, Grant, Inserter, Used};
use crate::model::protected::{Protected, extended};
use crate::model::{Secret, Service};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddrV4;
use wire::map::{FlowKey, GrantEntry, GrantSlot};
use wire::packet::{Form, Packet, UDP};
use wire::shim::{self, SHIM_LEN};
use wire::{Carrier, Destination};

/// Maximum number of remembered UDP flows. If there are more, the controller forgets the flow that has been silent for
/// the longest time.
const CONVERSATIONS_MAX: usize = 16_384;
/// Maximum number of remembered UDP flows of one device whose person logged it in with a browser.
const CONVERSATIONS_OF_DEVICE_MAX: usize = 1024;
/// Maximum number of switch ports whose packets can be queued.
const ORIGINS_MAX: usize = 4096;
/// First interface index that stands for a switch port; the kernel assigns no index as high as this.
const PORTS_FROM: u32 = 0x8000_0000;

/// The subjects for which the agent adds tokens to the packets of a household's devices.
#[derive(Clone, Debug, Default)]
pub struct Household {
    /// Subjects by the hardware address of the device.
    pub devices: BTreeMap<[u8; 6], Subject>,
    /// Subject for all other devices, if any.
    pub others: Option<Subject>,
}

/// Counters of packets that switches sent up to the controller (packet-in), in total and by decision. [`Self::named`]
/// returns the names that users see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Number of packets that switches sent up.
    pub elevated: u64,
    /// Number of packets that got a token.
    pub tokens: u64,
    /// Number of packets before which the controller sent a separate datagram that contains only the token.
    pub tokens_alone: u64,
    /// Number of packets that were queued until their grant arrives.
    pub queued: u64,
    /// Number of packets that were sent without identity.
    pub plain: u64,
    /// Number of packets that needed no token.
    pub other: u64,
    /// Number of packets that were dropped because they had the address of another device, or would have travelled in a
    /// flow that belongs to another sender.
    pub rider: u64,
    /// Number of packets that could not be changed or queued.
    pub failed: u64,
    /// Number of packets between devices and the authorities at which their people log in.
    pub logins: u64,
}

impl Counts {
    /// Returns each count with its name.
    pub fn named(&self) -> [(&'static str, u64); 9] {
        let Self { elevated, tokens, tokens_alone, queued, plain, other, rider, failed, logins } = *self;
        [
            ("elevated", elevated),
            ("tokens", tokens),
            ("tokens_alone", tokens_alone),
            ("held", queued),
            ("plain", plain),
            ("other", other),
            ("rider", rider),
            ("failed", failed),
            ("logins", logins),
        ]
    }
}

/// The tables with which a controller of switches decides about packets.
#[derive(Default)]
pub struct Plane {
    inserter: Inserter,
    /// Devices whose people logged in with a browser.
    pub(super) logins: Logins,
    /// The protected prefixes, without the networks of realms.
    own_protected: Vec<Protected>,
    household: Household,
    /// Subjects that are logged in.
    present: BTreeSet<Subject>,
    origins: Vec<Origin>,
    counts: Counts,
    /// Whether to install only rules and to add no tokens. This measures the cost of the detour through the controller
    /// alone (LS, *pro forma*).
    pro_forma: bool,
}

impl Plane {
    /// Creates the tables of a household without sessions. The nonces of tokens start at `nonce`. If `pro_forma` is
    /// true, the controller installs rules but adds no tokens, to measure the cost of the detour.
    pub fn new(household: Household, nonce: u32, pro_forma: bool) -> Self {
        Self {
            household,
            pro_forma,
            inserter: Inserter { nonce, first_nonce2: FIRST_NONCE2, ..Inserter::default() },
            ..Self::default()
        }
    }

    /// Marks a subject as logged in.
    pub fn log_in(&mut self, subject: Subject) {
        self.present.insert(subject);
    }

    /// Marks a subject as logged out.
    pub fn log_out(&mut self, subject: Subject) {
        self.present.remove(&subject);
    }

    /// Replaces the protected prefixes.
    pub fn protect(&mut self, entries: Vec<Protected>) {
        self.own_protected = entries;
        self.extend();
    }

    /// Sets the authorities at which people behind switches log in with a browser, and their networks.
    pub fn set_realms(&mut self, realms: Vec<Realm>) {
        self.logins.set_realms(realms);
        self.extend();
    }

    fn extend(&mut self) {
        let (all, _) = extended(&self.own_protected, &self.logins.networks(), &[Service::ALL]);
        self.inserter.protected = all;
    }

    /// Returns the authorities at which people behind switches log in.
    pub fn authorities(&self) -> Vec<SocketAddrV4> {
        self.logins.ends()
    }

    /// Returns the devices whose people have logged in with a browser.
    pub const fn logins(&self) -> &Logins {
        &self.logins
    }

    /// Returns the protected prefixes: those of [`Self::protect`], and the networks of [`Self::set_realms`].
    pub fn protected(&self) -> &[Protected] {
        &self.inserter.protected
    }

    /// Sets the entry with which the controller handles first packets to one destination.
    pub fn write(&mut self, slot: GrantSlot, entry: &GrantEntry) {
        let secret = Secret::of_entry(entry);
        let carrier = Carrier::from_number(entry.carrier).unwrap_or_default();
        self.inserter.grants.insert(slot, Grant { until: entry.until, skew: entry.skew, secret, carrier });
        let Inserter { grants, spent, .. } = &mut self.inserter;
        if spent.len() > 2 * grants.len() {
            let live: BTreeSet<_> = grants.values().filter_map(Grant::pair).collect();
            spent.retain(|handle, _| live.contains(handle));
        }
    }

    /// Returns the record of the tokens made from an entry.
    pub fn used(&self, slot: &GrantSlot) -> Used {
        self.inserter.used.get(slot).copied().unwrap_or_default()
    }

    /// Removes the entry for a destination, so that first packets to this destination are queued from now on.
    pub fn remove(&mut self, slot: &GrantSlot) {
        self.inserter.grants.remove(slot);
        self.inserter.used.remove(slot);
    }

    /// Returns the counts so far.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Returns the origin of a queued frame, from its interface index.
    pub fn origin(&self, frame: &Frame) -> Option<Origin> {
        let place = frame.interface.checked_sub(PORTS_FROM)?;
        self.origins.get(place as usize).copied()
    }

    /// Reports whether the frame was sent up by a switch.
    pub fn is_from_switch(frame: &Frame) -> bool {
        frame.interface >= PORTS_FROM
    }

    /// Decides about a packet that a switch sent up, at `now` (Unix seconds by this machine's clock).
    pub fn elevated(&mut self, origin: Origin, frame: &[u8], now: u32) -> Fate {
        self.counts.elevated += 1;
        let subject = self.subject_of(frame);
        self.evaluate(subject, origin, frame, now)
    }

    /// Decides again about a queued frame, after an entry has changed or the frame's subject has logged in or out.
    /// Returns `None` if the switch port at which the frame arrived is not known.
    pub fn again(&mut self, subject: Subject, frame: &Frame, now: u32) -> Option<(Origin, Fate)> {
        let origin = self.origin(frame)?;
        let mut fate = Fate::Drop;
        for ready in frame.ready() {
            fate = self.evaluate(Some(subject), origin, &ready.bytes, now);
        }
        Some((origin, fate))
    }

    fn subject_of(&self, frame: &[u8]) -> Option<Subject> {
        let sender: &[u8; 6] = frame.get(6..)?.first_chunk()?;
        let subject = self.household.devices.get(sender).copied().or(self.household.others)?;
        Some(subject).filter(|subject| self.present.contains(subject))
    }

    fn evaluate(&mut self, subject: Option<Subject>, origin: Origin, frame: &[u8], now: u32) -> Fate {
        let packet = Packet::parse(frame);
        if self.pro_forma {
            self.counts.plain += 1;
            return forward(&packet, is_known(&self.inserter, &packet), None, vec![frame.to_vec()]);
        }
        if let Some(fate) = self.logins.handle(origin, frame, &packet, now) {
            self.counts.logins += 1;
            return fate;
        }
        let mut changed = frame.to_vec();
        let (action, known, port) = match self.logins.sender(origin, frame, &packet, now) {
            Sender::Spoofed => (Action::Rider, false, None),
            Sender::LoggedIn(inserter) => {
                let known = is_known(inserter, &packet);
                let action = inserter.insert(&mut changed, now);
                forget_old(inserter, CONVERSATIONS_OF_DEVICE_MAX, now);
                // There is nobody to ask for another key: the person's browser brings the next one.
                let action = if action == Action::Queued { Action::Failed } else { action };
                (action, known, Some(origin.port))
            }
            Sender::Other => {
                let known = is_known(&self.inserter, &packet);
                self.inserter.subject = subject.map_or(0, Subject::number);
                let action = self.inserter.insert(&mut changed, now);
                forget_old(&mut self.inserter, CONVERSATIONS_MAX, now);
                (action, known, None)
            }
        };
        let fate = match action {
            Action::Other | Action::Plain | Action::Conversation | Action::Token => {
                Some(forward(&packet, known, port, vec![changed]))
            }
            Action::Ahead(alone) => {
                ahead(frame, &packet, &alone).map(|alone| forward(&packet, known, port, vec![alone, frame.to_vec()]))
            }
            Action::Queued => self.queue(subject, origin, frame, &packet).map(|(slot, frame)| Fate::Queue(slot, frame)),
            Action::Rider | Action::Failed => None,
        };
        let counts = &mut self.counts;
        let count = match action {
            Action::Rider => &mut counts.rider,
            _ if fate.is_none() => &mut counts.failed,
            Action::Token => &mut counts.tokens,
            Action::Ahead(_) => &mut counts.tokens_alone,
            Action::Queued => &mut counts.queued,
            Action::Plain => &mut counts.plain,
            _ => &mut counts.other,
        };
        *count += 1;
        fate.unwrap_or(Fate::Drop)
    }

    fn queue(
        &mut self,
        subject: Option<Subject>,
        origin: Origin,
        frame: &[u8],
        packet: &Packet,
    ) -> Option<(GrantSlot, Frame)> {
        const ETHERNET_LEN: u32 = 14;
        let to = Destination {
            address: packet.destination.filter(|_| packet.form == Form::Whole)?,
            protocol: packet.protocol,
            port: packet.destination_port,
        };
        let place = match self.origins.iter().position(|known| *known == origin) {
            Some(place) => place,
            None if self.origins.len() >= ORIGINS_MAX => return None,
            None => {
                self.origins.push(origin);
                self.origins.len() - 1
            }
        };
        let slot = GrantSlot::new(subject?.number(), &to);
        Some((slot, Frame::new(PORTS_FROM + u32::try_from(place).ok()?, ETHERNET_LEN, 0, frame)?))
    }
}

/// Reports whether the controller remembers the flow of a datagram.
fn is_known(inserter: &Inserter, packet: &Packet) -> bool {
    packet.protocol == UDP && FlowKey::to_server(packet).is_some_and(|key| inserter.conversations.contains_key(&key))
}

/// Forgets the UDP flow that has been silent for the longest time if there are more than `most`.
fn forget_old(inserter: &mut Inserter, most: usize, now: u32) {
    let conversations = &mut inserter.conversations;
    if conversations.len() <= most {
        return;
    }
    let oldest = conversations.iter().max_by_key(|(_, known)| now.wrapping_sub(known.seen)).map(|(key, _)| *key);
    oldest.map(|key| conversations.remove(&key));
}

/// Builds the datagram that carries only the token and is sent ahead of `frame` (wire.md §4.2).
fn ahead(frame: &[u8], packet: &Packet, alone: &Alone) -> Option<Vec<u8>> {
    match alone {
        Alone::Block(block) => datagram(frame, packet, block, 0),
        Alone::Shim(content) => {
            let mut empty = datagram(frame, packet, &[], 0)?;
            let packet = Packet::parse(&empty);
            empty.resize(packet.end + SHIM_LEN, 0);
            shim::insert(&mut empty, &packet, content)?;
            Some(empty)
        }
    }
}

/// Forwards frames, with rules for their flow. With `port`, the rule for the direction of `packet` matches only packets
/// from this port of the switch. The switch sends another device's packets with the same addresses up to the
/// controller.
fn forward(packet: &Packet, known: bool, port: Option<u32>, frames: Vec<Vec<u8>>) -> Fate {
    let mut rules = rules::flow(packet, known).map(Vec::from).unwrap_or_default();
    if let Some(there) = rules.first_mut() {
        there.matching.in_port = port;
    }
    Fate::Forward { rules, frames }
}
