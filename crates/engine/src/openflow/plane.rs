//! Decisions about packets that switches send up, with tables like the maps of the kernel program, and the switch rules
//! for the flow of such a packet.

use super::message::FlowMod;
use super::rules;
use crate::agent::Subject;
use crate::agent::frame::{Frame, datagram};
use crate::agent::insertion::{Action, Alone, Grant, Inserter, Used};
use crate::model::Secret;
use crate::model::protected::Protected;
use std::collections::{BTreeMap, BTreeSet};
use wire::map::{FlowKey, GrantEntry, GrantSlot};
use wire::packet::{Form, Packet, UDP};
use wire::shim::{self, SHIM_LEN};
use wire::{Carrier, Destination, ls};

/// Maximum number of remembered UDP flows. If there are more, the one that has been silent the longest is forgotten.
const CONVERSATIONS_MAX: usize = 16_384;
/// Maximum number of switch ports from which packets are queued.
const ORIGINS_MAX: usize = 4096;
/// The controller uses nonces of pairs from this one on; the kernel program uses those below.
const FIRST_NONCE2: u16 = ls::SENDERS_NONCES as u16;
/// Interface indices from this one on stand for ports of switches; the kernel assigns none that high.
const PORTS_FROM: u32 = 0x8000_0000;

/// Subjects whose identity the packets of a household's devices carry.
#[derive(Clone, Debug, Default)]
pub struct Household {
    /// Subjects by the hardware address of the device.
    pub devices: BTreeMap<[u8; 6], Subject>,
    /// Subject for all other devices, if any.
    pub others: Option<Subject>,
}

/// Switch and port from which a packet was sent up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Origin {
    /// The switch.
    pub datapath: u64,
    /// The port of the switch.
    pub port: u32,
}

/// The way to handle a packet that was sent up.
#[derive(PartialEq, Eq)]
pub enum Fate {
    /// Send the rules, then the frames, to the switch.
    Forward {
        /// Rules for the flow; empty unless it is TCP or UDP.
        rules: Vec<FlowMod>,
        /// Frames for the switch to send, in order.
        frames: Vec<Vec<u8>>,
    },
    /// Queue the frame until its grant arrives.
    Queue(GrantSlot, Frame),
    /// Drop the packet.
    Drop,
}

/// Numbers of packets: of all that a switch sent up, and of these by decision. [`Self::named`] has the names that users
/// see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets sent up by a switch.
    pub elevated: u64,
    /// Packets that got a token.
    pub tokens: u64,
    /// Packets preceded by a datagram that carries only the token.
    pub tokens_alone: u64,
    /// Packets queued for a grant.
    pub queued: u64,
    /// Packets sent without identity.
    pub plain: u64,
    /// Packets that needed no token.
    pub other: u64,
    /// Packets dropped because they would have used another sender's flow.
    pub rider: u64,
    /// Packets that could not be changed or queued.
    pub failed: u64,
}

impl Counts {
    /// Returns each count with its name.
    pub fn named(&self) -> [(&'static str, u64); 8] {
        let Self { elevated, tokens, tokens_alone, queued, plain, other, rider, failed } = *self;
        [
            ("elevated", elevated),
            ("tokens", tokens),
            ("tokens_alone", tokens_alone),
            ("held", queued),
            ("plain", plain),
            ("other", other),
            ("rider", rider),
            ("failed", failed),
        ]
    }
}

/// The tables of the controller.
#[derive(Default)]
pub struct Plane {
    inserter: Inserter,
    household: Household,
    /// Subjects that are logged in.
    present: BTreeSet<Subject>,
    origins: Vec<Origin>,
    counts: Counts,
    /// Whether to install only rules and add no tokens, to measure the cost of the detour to the controller alone (LS,
    /// *pro forma*).
    pro_forma: bool,
}

impl Plane {
    /// Creates the tables of a household without sessions. The nonces of tokens start at `nonce`.
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
        self.inserter.protected = entries;
    }

    /// Returns the protected prefixes.
    pub fn protected(&self) -> &[Protected] {
        &self.inserter.protected
    }

    /// Sets the entry for first packets to one destination.
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

    /// Returns how an entry has been used.
    pub fn used(&self, slot: &GrantSlot) -> Used {
        self.inserter.used.get(slot).copied().unwrap_or_default()
    }

    /// Removes the entry for a destination, so that its first packets are queued.
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

    /// Decides on a packet that was sent up, at `now` (Unix seconds by this machine's clock).
    pub fn elevated(&mut self, origin: Origin, frame: &[u8], now: u32) -> Fate {
        self.counts.elevated += 1;
        let subject = self.subject_of(frame);
        self.evaluate(subject, origin, frame, now)
    }

    /// Decides again on a queued frame after a change for its subject.
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
        let known = self.is_known(&packet);
        if self.pro_forma {
            self.counts.plain += 1;
            return forward(&packet, known, vec![frame.to_vec()]);
        }
        self.inserter.subject = subject.map_or(0, Subject::number);
        let mut changed = frame.to_vec();
        let action = self.inserter.insert(&mut changed, now);
        self.forget_old(now);
        let fate = match action {
            Action::Other | Action::Plain | Action::Conversation | Action::Token => {
                Some(forward(&packet, known, vec![changed]))
            }
            Action::Ahead(alone) => {
                ahead(frame, &packet, &alone).map(|alone| forward(&packet, known, vec![alone, frame.to_vec()]))
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

    /// Reports whether a datagram is not the first of its flow.
    fn is_known(&self, packet: &Packet) -> bool {
        packet.protocol == UDP
            && FlowKey::to_server(packet).is_some_and(|key| self.inserter.conversations.contains_key(&key))
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

    fn forget_old(&mut self, now: u32) {
        let conversations = &mut self.inserter.conversations;
        if conversations.len() <= CONVERSATIONS_MAX {
            return;
        }
        let oldest = conversations.iter().max_by_key(|(_, known)| now.wrapping_sub(known.seen)).map(|(key, _)| *key);
        oldest.map(|key| conversations.remove(&key));
    }
}

/// Builds the datagram that is sent ahead of this one and carries only the token (wire.md §4.2).
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

fn forward(packet: &Packet, known: bool, frames: Vec<Vec<u8>>) -> Fate {
    Fate::Forward { rules: rules::flow(packet, known).map(Vec::from).unwrap_or_default(), frames }
}
