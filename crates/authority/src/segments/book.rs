//! What was given and has not ended, and what was withdrawn of it: in memory, bounded. What was given before a restart ends by
//! itself.

use crate::storage::{Session, TokenHash};
use engine::api::Withdrawal;
use engine::segment::{Given, Place};
use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use wire::{Destination, SegmentFlags, Vni};

/// Entries at a time: some 300 MB.
const MOST: usize = 1 << 20;
/// Of one session.
const MOST_OF_SESSION: usize = 1 << 16;

/// From where to where, in one network.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Pair {
    vni: Vni,
    sender: IpAddr,
    receiver: IpAddr,
}

/// What tells segments of one session and pair apart.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key {
    /// Who asked.
    pub token: TokenHash,
    /// Who sends.
    pub sender: IpAddr,
    /// The one service, or all.
    pub service: Option<(u8, u16)>,
    /// Which of SINGLE and REPLY it has.
    pub flags: SegmentFlags,
}

/// What a segment was given for.
#[derive(Clone)]
pub struct Entry {
    /// As it was then.
    pub session: Arc<Session>,
    /// The network's name.
    pub network: String,
    /// What was asked for.
    pub to: Destination,
    /// Where the receiver was.
    pub place: Place,
}

/// Of each pair what was given, with its latest end.
#[derive(Default)]
pub struct Book {
    given: HashMap<Pair, HashMap<Key, (Entry, u32)>>,
    count: usize,
    of_sessions: HashMap<TokenHash, usize>,
    withdrawn: HashMap<Pair, u32>,
}

/// There is no room.
pub struct Full;

impl Book {
    /// Takes down what was given.
    pub fn note(&mut self, token: TokenHash, given: &Given, entry: Entry, now: u64) -> Result<(), Full> {
        let segment = &given.segment;
        let pair = Pair { vni: given.vni, sender: given.ends.sender, receiver: given.ends.receiver };
        let service = segment.flags.has(SegmentFlags::PORT).then_some((segment.protocol, segment.port));
        let flags = SegmentFlags(segment.flags.0 & (SegmentFlags::SINGLE.0 | SegmentFlags::REPLY.0));
        let key = Key { token, sender: pair.sender, service, flags };
        let is_new = self.given.get(&pair).is_none_or(|of_pair| !of_pair.contains_key(&key));
        if is_new {
            if self.is_full(&token) {
                self.forget_ended(now);
            }
            if self.is_full(&token) {
                return Err(Full);
            }
            self.count += 1;
            *self.of_sessions.entry(token).or_default() += 1;
        }
        let kept = self.given.entry(pair).or_default().entry(key).or_insert_with(|| (entry, 0));
        kept.1 = kept.1.max(segment.expires);
        Ok(())
    }

    /// Until when segments may end that are void.
    pub fn withdrawn(&self, vni: Vni, sender: IpAddr, receiver: IpAddr) -> Option<u32> {
        self.withdrawn.get(&Pair { vni, sender, receiver }).copied()
    }

    /// All that was withdrawn and has not ended.
    pub fn all_withdrawn(&mut self, now: u64) -> Vec<Withdrawal> {
        self.withdrawn.retain(|_, until| u64::from(*until) >= now);
        let mut all: Vec<_> = self.withdrawn.iter().collect();
        all.sort_unstable();
        all.into_iter().map(|(pair, until)| statement(pair, *until)).collect()
    }

    /// Whether nothing was given.
    pub fn is_empty(&self) -> bool {
        self.given.is_empty()
    }

    /// Withdraws what may not live. Gives the statements and whose segments they make void.
    pub fn judge(
        &mut self,
        now: u64,
        may_live: impl Fn(&TokenHash, Vni, &Key, &Entry) -> bool,
    ) -> (Vec<Withdrawal>, BTreeSet<TokenHash>) {
        self.forget_ended(now);
        let mut void: HashMap<Pair, u32> = HashMap::new();
        for (pair, of_pair) in &self.given {
            let forbidden = of_pair.iter().filter(|(key, (entry, _))| !may_live(&key.token, pair.vni, key, entry));
            for (key, (_, expires)) in forbidden {
                let until = void.entry(*pair).or_default();
                *until = expires.max(until).to_owned();
                // Who may not send any more has no answers to expect.
                if key.flags.has(SegmentFlags::REPLY) {
                    let back = Pair { sender: pair.receiver, receiver: pair.sender, ..*pair };
                    let until = void.entry(back).or_default();
                    *until = expires.max(until).to_owned();
                }
            }
        }
        let mut sessions = BTreeSet::new();
        for (pair, until) in &void {
            let kept = self.withdrawn.entry(*pair).or_default();
            *kept = until.max(kept).to_owned();
            let Some(of_pair) = self.given.get_mut(pair) else { continue };
            of_pair.retain(|key, (_, expires)| {
                let lives = *expires > *until;
                if !lives {
                    sessions.insert(key.token);
                }
                lives
            });
        }
        self.count_anew();
        let mut void: Vec<_> = void.into_iter().collect();
        void.sort_unstable();
        (void.iter().map(|(pair, until)| statement(pair, *until)).collect(), sessions)
    }

    fn is_full(&self, token: &TokenHash) -> bool {
        self.count >= MOST || self.of_sessions.get(token).is_some_and(|count| *count >= MOST_OF_SESSION)
    }

    fn forget_ended(&mut self, now: u64) {
        for of_pair in self.given.values_mut() {
            of_pair.retain(|_, (_, expires)| u64::from(*expires) > now);
        }
        self.count_anew();
    }

    fn count_anew(&mut self) {
        self.given.retain(|_, of_pair| !of_pair.is_empty());
        self.of_sessions.clear();
        for key in self.given.values().flat_map(HashMap::keys) {
            *self.of_sessions.entry(key.token).or_default() += 1;
        }
        self.count = self.of_sessions.values().sum();
    }
}

fn statement(pair: &Pair, until: u32) -> Withdrawal {
    Withdrawal { vni: pair.vni.number(), receiver: pair.receiver, sender: Some(pair.sender), until }
}
