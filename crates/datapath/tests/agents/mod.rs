//! The Rust decision about outgoing packets and the kernel program, with the same tables.

use crate::table::agent::{Known, Row, SUBJECT};
use crate::table::{CLIENT_PORT, TRANSPORTS};
use crate::world::{self, NOW};
use datapath::agent::Agent as Kernel;
use datapath::clock;
use datapath::tc::Attachment;
use engine::agent::insertion::{Action, Grant, Inserter};
use engine::model::Secret;
use engine::model::protected;
use wire::ls;
use wire::map::{Conversation, FlowKey, GrantEntry, GrantSlot, Owner, agent_counter, owner};

/// Owner of the socket that packets belong to in a test run.
const ROOT: Owner = Owner { kind: owner::USER, reserved: 0, id: 0 };

const TC_ACT_UNSPEC: u32 = u32::MAX;
const TC_ACT_SHOT: u32 = 2;
const TC_ACT_STOLEN: u32 = 4;

pub struct Agents {
    model: Inserter,
    kernel: Kernel,
}

impl Agents {
    pub fn new() -> Self {
        let kernel = Kernel::load(14, false, Attachment::Clsact, None).unwrap_or_else(|error| panic!("{error:#}"));
        let protected = protected::entries(&world::receivers()).expect("few spans");
        let entries: Vec<_> =
            protected.iter().map(|entry| (entry.prefix.network(), entry.prefix.prefix_len(), entry.services)).collect();
        kernel.protect(&entries).expect("maps take prefixes");
        kernel.set_nonce(1000).expect("nonce");
        Self { model: Inserter { protected, nonce: 1000, ..Inserter::default() }, kernel }
    }

    /// Sets the tables of both to exactly the row's state.
    pub fn know(&mut self, row: &Row) {
        for key in self.kernel.grants.keys() {
            self.kernel.grants.remove(&key).expect("grants");
        }
        for key in self.kernel.conversations.keys() {
            self.kernel.conversations.remove(&key).expect("conversations");
        }
        for key in self.kernel.ls_nonces.keys() {
            self.kernel.ls_nonces.remove(&key).expect("nonces");
        }
        self.model.spent.clear();
        self.model.grants.clear();
        self.model.conversations.clear();
        self.model.subject = if matches!(row.known, Known::Nobody | Known::OthersUnowned(..)) { 0 } else { SUBJECT };
        match self.model.subject {
            0 => self.kernel.owners.remove(&ROOT),
            subject => self.kernel.owners.set(&ROOT, &subject),
        }
        .expect("owners");
        for transport in TRANSPORTS {
            let to = transport.destination(&row.family);
            let slot = GrantSlot::new(SUBJECT, &to);
            let mut entry = GrantEntry {
                until: NOW + 100,
                used: 0,
                plain: 0,
                suite: 0,
                carrier: row.carrier as u8,
                reserved: 0,
                skew: 0,
                header: [0; 16],
                key: [0; 32],
                spent: 0,
                reserved2: 0,
            };
            if let Known::Pair(pair, spent) = row.known {
                entry.suite = ls::SUITE;
                entry.header[..ls::PAIR_LEN].copy_from_slice(&pair.pair.bytes());
                entry.key[..ls::HASH_LEN].copy_from_slice(pair.key().bytes());
                let (handle, secret) = (pair.pair.handle(), Some(Secret::Pair(pair.pair, pair.key())));
                if spent > 0 {
                    self.kernel.ls_nonces.set(&handle.0, &spent).expect("nonces");
                    self.model.spent.insert(handle, spent);
                }
                self.kernel.grants.set(&slot, &entry).expect("grants");
                self.model.grants.insert(slot, Grant { until: entry.until, skew: 0, secret, carrier: row.carrier });
                continue;
            }
            let grant = match row.known {
                Known::Nothing | Known::Nobody => continue,
                Known::OthersPlain(..) | Known::OthersUnowned(..) | Known::Pair(..) => None,
                Known::Plain => None,
                Known::Grant(grant)
                | Known::Conversation(grant, ..)
                | Known::Stale(grant)
                | Known::Skewed(grant, _)
                | Known::Others(grant, _) => Some(grant),
            };
            if matches!(row.known, Known::Stale(_)) {
                entry.until = NOW;
            }
            if let Known::Skewed(_, skew) = row.known {
                entry.skew = skew;
            }
            match &grant {
                None => entry.plain = 1,
                Some(grant) => {
                    entry.suite = grant.suite as u8;
                    entry.header = grant.header().encode();
                    entry.key[..16].copy_from_slice(grant.key(&to).bytes());
                }
            }
            self.kernel.grants.set(&slot, &entry).expect("grants");
            let secret = grant.map(|grant| Secret::Grant(grant.header(), grant.key(&to)));
            self.model
                .grants
                .insert(slot, Grant { until: entry.until, skew: entry.skew, secret, carrier: row.carrier });
            let conversation = match row.known {
                Known::Conversation(_, conversation) => Some(conversation),
                Known::Others(_, age) | Known::OthersPlain(age) | Known::OthersUnowned(age) => Some(Conversation {
                    token: NOW - 95,
                    answered: 1,
                    sent: 1,
                    subject: SUBJECT + 1,
                    seen: NOW.wrapping_sub_signed(age),
                }),
                _ => None,
            };
            if let Some(conversation) = conversation {
                let key = FlowKey::new(row.family.client, CLIENT_PORT, to.address, to.port, to.protocol);
                self.kernel.conversations.set(&key, &conversation).expect("conversations");
                self.model.conversations.insert(key, conversation);
            }
        }
    }

    /// Marks every UDP flow as answered.
    pub fn answer(&mut self) {
        for (key, flow) in &mut self.model.conversations {
            flow.answered = 1;
            let flow = self.kernel.conversations.get(key).expect("conversations").expect("the kernel has the flow");
            self.kernel.conversations.set(key, &Conversation { answered: 1, ..flow }).expect("conversations");
        }
    }

    /// Reports whether both remember the same of each UDP flow.
    pub fn agree(&self) -> bool {
        let known = |key: &FlowKey| self.kernel.conversations.get(key).expect("conversations");
        self.kernel.conversations.keys().len() == self.model.conversations.len()
            && self.model.conversations.iter().all(|(key, flow)| known(key).as_ref() == Some(flow))
    }

    /// Returns the model's action and frame, and the kernel's; the kernel's action is the one counter that moved.
    pub fn insert(&mut self, frame: &[u8], now: u32) -> [(Action, Vec<u8>); 2] {
        self.kernel.set_clock(clock::boot_reading(now.into()).wrapping_add(200_000_000)).expect("clock");
        let mut modelled = frame.to_vec();
        let action = self.model.insert(&mut modelled, now);
        let before = self.kernel.counts().expect("counters");
        let ran = self.kernel.run(frame, 1).unwrap_or_else(|error| panic!("{error:#}: {}", hex::encode(frame)));
        let after = self.kernel.counts().expect("counters");
        let moved: Vec<u32> =
            (0..agent_counter::COUNT).filter(|index| after[*index as usize] != before[*index as usize]).collect();
        let (counted, code) = match (moved.as_slice(), &action) {
            ([agent_counter::OTHER], _) => (Action::Other, TC_ACT_UNSPEC),
            ([agent_counter::PLAIN], _) => (Action::Plain, TC_ACT_UNSPEC),
            ([agent_counter::TOKENS], _) => (Action::Token, TC_ACT_UNSPEC),
            ([agent_counter::ALONE], Action::Ahead(alone)) => (Action::Ahead(*alone), TC_ACT_UNSPEC),
            ([agent_counter::FAILED], _) => (Action::Failed, TC_ACT_SHOT),
            ([agent_counter::RIDER], _) => (Action::Rider, TC_ACT_SHOT),
            ([agent_counter::CONVERSATION], _) => (Action::Conversation, TC_ACT_UNSPEC),
            ([agent_counter::QUEUED], _) => (Action::Queued, TC_ACT_STOLEN),
            // This test opens no buffer: a packet to be queued has nowhere to go.
            ([agent_counter::QUEUE_FAILED], _) => (Action::Queued, TC_ACT_SHOT),
            _ => panic!("counters {moved:?} moved"),
        };
        assert_eq!(ran.code, code, "code and counter {counted:?} agree");
        [(action, modelled), (counted, ran.frame)]
    }
}
