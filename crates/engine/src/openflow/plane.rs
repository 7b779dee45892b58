//! What becomes of packets that switches send up: the tables that the kernel program keeps in maps, and rules for the
//! switch beside the packet.

use super::message::FlowMod;
use super::rules;
use crate::agent::Subject;
use crate::agent::frame::{Frame, datagram};
use crate::insertion::{Action, Alone, Grant, Inserter, Secret, Used};
use crate::protected::Protected;
use std::collections::{BTreeMap, BTreeSet};
use wire::map::{FlowKey, GrantEntry, GrantSlot};
use wire::packet::{Form, Packet, UDP};
use wire::shim::{self, SHIM_LEN};
use wire::{Carrier, Destination, ls};

/// The most UDP flows that are remembered; the one that was silent for longest makes room.
const CONVERSATIONS_MAX: usize = 16_384;
/// The most ports of switches that packets are held from.
const ORIGINS_MAX: usize = 4096;
/// The kernel program has the nonces of pairs below.
const FIRST_NONCE2: u16 = ls::SENDERS_NONCES as u16;
/// Numbers of interfaces that stand for switches' ports begin here: the kernel gives out none so high.
const PORTS_FROM: u32 = 0x8000_0000;

/// Whose identity the packets of a home's devices carry.
#[derive(Clone, Debug, Default)]
pub struct Household {
    /// Devices by their hardware address.
    pub devices: BTreeMap<[u8; 6], Subject>,
    /// Everybody else's, if anybody's.
    pub others: Option<Subject>,
}

/// Where a packet came up from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Origin {
    /// The switch.
    pub datapath: u64,
    /// Its port.
    pub port: u32,
}

/// What is done with a packet that came up.
#[derive(PartialEq, Eq)]
pub enum Fate {
    /// The rules, then the frames go down.
    Forward {
        /// Nothing where the flow has no ports.
        rules: Vec<FlowMod>,
        /// What leaves the switch, in order.
        frames: Vec<Vec<u8>>,
    },
    /// It waits for a grant.
    Hold(GrantSlot, Frame),
    /// It goes no further.
    Drop,
}

/// How many packets met which decision. But for the first, names are those of the kernel program's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Came up from a switch.
    pub elevated: u64,
    /// Got a token.
    pub tokens: u64,
    /// Were preceded by a datagram with a token alone.
    pub tokens_alone: u64,
    /// Had to wait for a grant.
    pub held: u64,
    /// Went without identity.
    pub plain: u64,
    /// Needed no token.
    pub other: u64,
    /// Would have ridden on somebody else's flow.
    pub rider: u64,
    /// Could not be changed, or not be held.
    pub failed: u64,
}

impl Counts {
    /// Each with its name.
    pub fn named(&self) -> [(&'static str, u64); 8] {
        let Self { elevated, tokens, tokens_alone, held, plain, other, rider, failed } = *self;
        [
            ("elevated", elevated),
            ("tokens", tokens),
            ("tokens_alone", tokens_alone),
            ("held", held),
            ("plain", plain),
            ("other", other),
            ("rider", rider),
            ("failed", failed),
        ]
    }
}

/// The tables.
#[derive(Default)]
pub struct Plane {
    inserter: Inserter,
    household: Household,
    /// Who is logged in.
    present: BTreeSet<Subject>,
    origins: Vec<Origin>,
    counts: Counts,
    /// Only rules, no tokens: what a controller costs by itself (LS, *pro forma*).
    pro_forma: bool,
}

impl Plane {
    /// Tables of a household, with nobody logged in. Tokens are numbered from `nonce`.
    pub fn new(household: Household, nonce: u32, pro_forma: bool) -> Self {
        Self {
            household,
            pro_forma,
            inserter: Inserter { nonce, first_nonce2: FIRST_NONCE2, ..Inserter::default() },
            ..Self::default()
        }
    }

    /// Somebody logged in.
    pub fn log_in(&mut self, subject: Subject) {
        self.present.insert(subject);
    }

    /// Somebody logged out.
    pub fn log_out(&mut self, subject: Subject) {
        self.present.remove(&subject);
    }

    /// What is protected from now on.
    pub fn protect(&mut self, entries: Vec<Protected>) {
        self.inserter.protected = entries;
    }

    /// What is protected.
    pub fn protected(&self) -> &[Protected] {
        &self.inserter.protected
    }

    /// What first packets to one destination get.
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

    /// What was made of an entry.
    pub fn used(&self, slot: &GrantSlot) -> Used {
        self.inserter.used.get(slot).copied().unwrap_or_default()
    }

    /// First packets to this destination wait from now on.
    pub fn remove(&mut self, slot: &GrantSlot) {
        self.inserter.grants.remove(slot);
        self.inserter.used.remove(slot);
    }

    /// What was decided so far.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Where a held frame came from, by the number that stands for its interface.
    pub fn origin(&self, frame: &Frame) -> Option<Origin> {
        let place = frame.interface.checked_sub(PORTS_FROM)?;
        self.origins.get(place as usize).copied()
    }

    /// Whether the frame came up from a switch.
    pub fn is_from_switch(frame: &Frame) -> bool {
        frame.interface >= PORTS_FROM
    }

    /// Decides on a packet that came up, at `now` (Unix seconds by this machine's clock).
    pub fn elevated(&mut self, origin: Origin, frame: &[u8], now: u32) -> Fate {
        self.counts.elevated += 1;
        let subject = self.subject_of(frame);
        self.judge(subject, origin, frame, now)
    }

    /// Decides on a frame that was held, now that something has changed for its subject.
    pub fn again(&mut self, subject: Subject, frame: &Frame, now: u32) -> Option<(Origin, Fate)> {
        let origin = self.origin(frame)?;
        let mut fate = Fate::Drop;
        for ready in frame.ready() {
            fate = self.judge(Some(subject), origin, &ready.bytes, now);
        }
        Some((origin, fate))
    }

    fn subject_of(&self, frame: &[u8]) -> Option<Subject> {
        let sender: &[u8; 6] = frame.get(6..)?.first_chunk()?;
        let subject = self.household.devices.get(sender).copied().or(self.household.others)?;
        Some(subject).filter(|subject| self.present.contains(subject))
    }

    fn judge(&mut self, subject: Option<Subject>, origin: Origin, frame: &[u8], now: u32) -> Fate {
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
            Action::Held => self.hold(subject, origin, frame, &packet).map(|(slot, frame)| Fate::Hold(slot, frame)),
            Action::Rider | Action::Failed => None,
        };
        let counts = &mut self.counts;
        let count = match action {
            Action::Rider => &mut counts.rider,
            _ if fate.is_none() => &mut counts.failed,
            Action::Token => &mut counts.tokens,
            Action::Ahead(_) => &mut counts.tokens_alone,
            Action::Held => &mut counts.held,
            Action::Plain => &mut counts.plain,
            _ => &mut counts.other,
        };
        *count += 1;
        fate.unwrap_or(Fate::Drop)
    }

    /// Whether this is not the first datagram of its flow.
    fn is_known(&self, packet: &Packet) -> bool {
        packet.protocol == UDP
            && FlowKey::to_server(packet).is_some_and(|key| self.inserter.conversations.contains_key(&key))
    }

    fn hold(
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
        let slot = crate::insertion::slot(subject?.number(), &to);
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

/// The datagram with the token alone that goes ahead of this one (wire.md §4.2).
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
