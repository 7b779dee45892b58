//! The verifier's table of the flows in tunnels: the demands of their rules, and how their clients seal. Each account
//! has a share of the table. If an account opens more flows, it loses its own oldest flows, and not the flows of other
//! accounts.

use engine::model::Sealing;
use engine::tunnel::{Millis, TunnelId};
use std::collections::{BTreeSet, HashMap, VecDeque};
use wire::map::FlowKey;

use crate::end::Sealed;

/// Milliseconds without packets after which a flow is forgotten. Answers are then encrypted until the client sends
/// again.
const IDLE: Millis = 120_000;
/// Interval, in milliseconds, at which idle flows are removed.
const SWEEP: Millis = 5_000;
/// Intervals, in milliseconds, at which the verifier looks up the rule for a flow: the first while the rule is unknown,
/// and the second once it is known. The flow may belong to another grant by then.
const ASK: (Millis, Millis) = (100, 1_000);
/// Limits of an account for look-ups of the rules of flows that are not in the table yet: the maximum number of
/// look-ups at once, and the number of look-ups that the account regains in a millisecond.
const ASKS: (u64, u64) = (1024, 2);
/// Maximum number of flows that go back to the end of an account's queue before one flow is removed. A flow goes back
/// if it had a packet since it got its place in the queue.
const TURNS: usize = 8;

/// Maximum numbers of flows.
#[derive(Clone, Copy)]
pub(crate) struct Room {
    /// Maximum number of flows of all accounts together.
    pub all: usize,
    /// Maximum number of flows of one account.
    pub account: usize,
}

impl Default for Room {
    fn default() -> Self {
        Self { all: 65_536, account: 4_096 }
    }
}

/// A flow in a tunnel.
pub(crate) struct Flow {
    account: u32,
    /// The sealing that the rule demands; `None` while this is unknown.
    pub demand: Option<Sealing>,
    /// Time at which the rule was last looked up, and whether a token then named the grant.
    looked_up: (Millis, bool),
    /// Treatment, suite and compression of the client's last packet.
    pub sealed: Sealed,
    /// The tunnel into which answers go: the one out of which the client's last packet came. But if a tunnel's client
    /// is not confirmed (see [`Flows::came_through`]), the tunnel does not take the place of a newer one.
    pub tunnel: Option<TunnelId>,
    /// Whether the client compresses its packets.
    pub compresses: bool,
    /// Number of bytes of the flow's packets that were compressed: before compression, and after it. Both numbers are
    /// sums over the two directions.
    pub compressed: [u64; 2],
    pub seen: Millis,
    /// Time at which the flow got its place in its account's queue.
    queued: Millis,
}

/// An account's flows, in about the order in which they were used last, and the number of look-ups that [`ASKS`] leaves
/// the account.
struct Account {
    queue: VecDeque<FlowKey>,
    asks: (u64, Millis),
}

/// The flows of all accounts.
#[derive(Default)]
pub(crate) struct Flows {
    room: Room,
    flows: HashMap<FlowKey, Flow>,
    accounts: HashMap<u32, Account>,
    /// Accounts with flows, sorted by the number of their flows.
    lengths: BTreeSet<(usize, u32)>,
    swept: Millis,
}

impl Flow {
    /// Returns the compression ratio in hundredths; `None` if no packet was compressed.
    pub fn ratio(&self) -> Option<u32> {
        let [before, after] = self.compressed;
        let ratio = before.saturating_mul(100).checked_div(after)?;
        Some(u32::try_from(ratio).unwrap_or(u32::MAX))
    }
}

impl Flows {
    #[cfg(test)]
    fn with(room: Room) -> Self {
        Self { room, ..Self::default() }
    }

    /// Reports whether there are no flows.
    pub fn is_empty(&self) -> bool {
        self.flows.is_empty()
    }

    /// Returns a flow, if it had a packet in the last two minutes.
    pub fn get(&self, key: &FlowKey, now: Millis) -> Option<&Flow> {
        self.flows.get(key).filter(|flow| now.saturating_sub(flow.seen) < IDLE)
    }

    /// Returns a flow for changes, if there is one.
    pub fn get_mut(&mut self, key: &FlowKey) -> Option<&mut Flow> {
        self.flows.get_mut(key)
    }

    /// Returns the demand of the rule of an account's flow, as far as it is known. Also returns whether the caller has
    /// to look the rule up now. `has_token` says that a token in the flow's packet names the flow's grant.
    pub fn demand(&mut self, key: &FlowKey, account: u32, has_token: bool, now: Millis) -> (Option<Sealing>, bool) {
        if let Some(flow) = self.flows.get_mut(key).filter(|flow| flow.account == account) {
            let pause = if flow.demand.is_none() { ASK.0 } else { ASK.1 };
            let (last, had_token) = flow.looked_up;
            let is_due = now.saturating_sub(last) >= pause || flow.demand.is_none() && has_token && !had_token;
            if is_due {
                flow.looked_up = (now, has_token);
            }
            return (flow.demand, is_due);
        }
        let account = self.accounts.entry(account).or_insert_with(|| Account::new(now));
        (None, account.may_ask(now))
    }

    /// Records a packet of a flow that an account's client sealed as the flow's rule demands. If the account's share
    /// has no room for another flow, removes the account's oldest flow. If the whole table has no room, removes the
    /// oldest flow of the account with the most flows.
    pub fn note(
        &mut self,
        (key, account): (FlowKey, u32),
        demand: Option<Sealing>,
        (sealed, has_token): (Sealed, bool),
        now: Millis,
    ) {
        let is_its = self.flows.get(&key).map(|flow| flow.account == account);
        if is_its == Some(false) {
            // The inside address has another client now.
            self.remove(&key);
        }
        if is_its != Some(true) {
            self.make_room(account, now);
            let looked_up = (now, has_token);
            let (tunnel, compresses, compressed) = (None, false, [0; 2]);
            let flow =
                Flow { account, demand, looked_up, sealed, tunnel, compresses, compressed, seen: now, queued: now };
            self.flows.insert(key, flow);
            let of = self.accounts.entry(account).or_insert_with(|| Account::new(now));
            self.lengths.remove(&(of.queue.len(), account));
            of.queue.push_back(key);
            self.lengths.insert((of.queue.len(), account));
        }
        if let Some(flow) = self.flows.get_mut(&key) {
            (flow.demand, flow.sealed, flow.seen) = (demand, sealed, now);
            flow.compresses |= sealed.is_compressed;
        }
    }

    /// Records the tunnel out of which a packet of a flow came. The tunnel is confirmed if its client has shown that it
    /// has the tunnel's keys. Answers to the flow go into a confirmed tunnel at once. A packet out of an unconfirmed
    /// tunnel is possibly a copy that somebody else sent. Answers go into an unconfirmed tunnel only if it is newer
    /// than the tunnel recorded before, and only until a packet of the flow comes out of a confirmed tunnel.
    pub fn came_through(&mut self, key: &FlowKey, tunnel: TunnelId, is_confirmed: bool) {
        if let Some(flow) = self.flows.get_mut(key) {
            flow.tunnel = if is_confirmed { Some(tunnel) } else { flow.tunnel.max(Some(tunnel)) };
        }
    }

    /// Records the demand of the rule of an account's flow, after a packet of the flow was sealed more weakly than the
    /// rule demands. Does nothing if the table does not contain the flow.
    pub fn refused(&mut self, key: &FlowKey, account: u32, demand: Option<Sealing>) {
        if let Some(flow) = self.flows.get_mut(key).filter(|flow| flow.account == account) {
            flow.demand = demand;
        }
    }

    /// Removes flows that have had no packet for two minutes. Also removes accounts that then have no flow, and for
    /// which no rule of a new flow was looked up in the last 5 s. Does this at most once every 5 s.
    pub fn sweep(&mut self, now: Millis) {
        if now.saturating_sub(self.swept) < SWEEP {
            return;
        }
        self.swept = now;
        self.flows.retain(|_, flow| now.saturating_sub(flow.seen) < IDLE);
        let Self { flows, accounts, lengths, .. } = self;
        lengths.clear();
        accounts.retain(|number, account| {
            account.queue.retain(|key| flows.get(key).is_some_and(|flow| flow.account == *number));
            let length = account.queue.len();
            if length > 0 {
                lengths.insert((length, *number));
            }
            length > 0 || now.saturating_sub(account.asks.1) < SWEEP
        });
    }

    /// Forgets a flow if there is no room for another flow of this account.
    fn make_room(&mut self, account: u32, now: Millis) {
        let own = self.accounts.get(&account).map_or(0, |account| account.queue.len());
        let from = if own >= self.room.account {
            account
        } else if self.flows.len() < self.room.all {
            return;
        } else {
            match self.lengths.last() {
                Some((most, longest)) if *most > own + 1 || own == 0 => *longest,
                _ => account,
            }
        };
        self.forget_oldest(from, now);
    }

    fn forget_oldest(&mut self, account: u32, now: Millis) {
        let Some(of) = self.accounts.get_mut(&account) else { return };
        let before = of.queue.len();
        for turn in 0.. {
            let Some(key) = of.queue.pop_front() else { break };
            match self.flows.get_mut(&key) {
                Some(flow) if flow.seen > flow.queued && turn < TURNS => {
                    flow.queued = now;
                    of.queue.push_back(key);
                }
                _ => {
                    self.flows.remove(&key);
                    break;
                }
            }
        }
        self.counted(account, before);
    }

    fn remove(&mut self, key: &FlowKey) {
        let Some(Flow { account, .. }) = self.flows.remove(key) else { return };
        let Some(of) = self.accounts.get_mut(&account) else { return };
        let before = of.queue.len();
        of.queue.retain(|queued| queued != key);
        self.counted(account, before);
    }

    /// Updates `lengths` after the number of an account's flows has changed. `before` is the earlier number.
    fn counted(&mut self, account: u32, before: usize) {
        self.lengths.remove(&(before, account));
        let length = self.accounts.get(&account).map_or(0, |account| account.queue.len());
        if length > 0 {
            self.lengths.insert((length, account));
        }
    }
}

impl Account {
    fn new(now: Millis) -> Self {
        Self { queue: VecDeque::new(), asks: (ASKS.0, now) }
    }

    fn may_ask(&mut self, now: Millis) -> bool {
        let (left, last) = self.asks;
        let left = left.saturating_add(now.saturating_sub(last).saturating_mul(ASKS.1)).min(ASKS.0);
        self.asks = (left.saturating_sub(1), now);
        left > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::seal::{Suite, Treatment};

    const SEALED: Sealed = Sealed { treatment: Treatment::Encrypt, suite: Suite::Aes128Gcm, is_compressed: false };
    const DEMAND: Option<Sealing> = Some(Sealing::UNKNOWN);

    fn key(account: u32, number: u32) -> FlowKey {
        let client = std::net::Ipv4Addr::from(0x6440_0000 | account << 8 | number >> 16).into();
        let server = "192.0.2.1".parse().expect("an address");
        FlowKey::new(client, number as u16, server, 443, 6).within(true)
    }

    fn note(flows: &mut Flows, account: u32, number: u32, now: Millis) {
        flows.note((key(account, number), account), DEMAND, (SEALED, true), now);
    }

    fn has(flows: &Flows, account: u32, number: u32) -> bool {
        flows.get(&key(account, number), 0).is_some()
    }

    /// Checks that queues, lengths and flows agree.
    fn check(flows: &Flows) {
        let queued: usize = flows.accounts.values().map(|account| account.queue.len()).sum();
        assert_eq!(queued, flows.flows.len());
        let with_flows = flows.accounts.iter().filter(|(_, account)| !account.queue.is_empty());
        let lengths: BTreeSet<_> = with_flows.map(|(number, account)| (account.queue.len(), *number)).collect();
        assert_eq!(lengths, flows.lengths);
    }

    #[test]
    fn an_account_that_floods_loses_its_own_oldest_flows_only() {
        let mut flows = Flows::with(Room { all: 64, account: 16 });
        note(&mut flows, 2, 1, 0);
        for number in 0..10_000 {
            note(&mut flows, 1, number, u64::from(number) / 100);
        }
        assert!(has(&flows, 2, 1));
        assert!(!has(&flows, 1, 0) && has(&flows, 1, 9_999) && has(&flows, 1, 9_984));
        assert_eq!(flows.flows.len(), 17);
        check(&flows);
    }

    #[test]
    fn when_the_table_is_full_those_with_the_most_flows_make_room() {
        let mut flows = Flows::with(Room { all: 64, account: 32 });
        for number in 0..100 {
            note(&mut flows, 1, number, 0);
            note(&mut flows, 2, number, 0);
        }
        assert_eq!(flows.flows.len(), 64);
        for account in 3..20 {
            for number in 0..3 {
                note(&mut flows, account, number, 1);
                assert!(has(&flows, account, number), "account {account}, flow {number}");
            }
        }
        assert!((3..20).all(|account| (0..3).all(|number| has(&flows, account, number))), "theirs stay");
        assert_eq!(flows.flows.len(), 64);
        check(&flows);
    }

    #[test]
    fn with_more_accounts_than_room_each_takes_its_own_place_only() {
        let mut flows = Flows::with(Room { all: 4, account: 4 });
        for account in 1..=4 {
            note(&mut flows, account, 0, 0);
        }
        note(&mut flows, 1, 1, 0);
        assert!(has(&flows, 1, 1) && !has(&flows, 1, 0) && (2..=4).all(|account| has(&flows, account, 0)));
        check(&flows);
    }

    #[test]
    fn a_flow_that_is_in_use_outlives_idle_ones_of_its_account() {
        let mut flows = Flows::with(Room { all: 64, account: 16 });
        for number in 0..1_000 {
            note(&mut flows, 1, 7, number.into());
            note(&mut flows, 1, 1_000 + number, number.into());
        }
        assert!(has(&flows, 1, 7));
        check(&flows);
    }

    #[test]
    fn a_rule_is_looked_up_at_intervals_and_once_more_for_a_token() {
        let mut flows = Flows::default();
        let one = key(1, 1);
        assert_eq!(flows.demand(&one, 1, false, 0), (None, true));
        flows.note((one, 1), None, (SEALED, false), 0);
        assert!(!flows.demand(&one, 1, false, 50).1);
        assert!(flows.demand(&one, 1, true, 50).1, "the packet with the token comes after one without");
        assert!((51..150).all(|now| !flows.demand(&one, 1, true, now).1), "tokens make it no faster");
        assert!(flows.demand(&one, 1, true, 150).1);
        flows.note((one, 1), DEMAND, (SEALED, true), 150);
        assert_eq!(flows.demand(&one, 1, true, 1_000), (DEMAND, false));
        assert_eq!(flows.demand(&one, 1, false, 1_150), (DEMAND, true));
    }

    #[test]
    fn many_new_flows_of_an_account_have_their_rules_looked_up_slowly_and_others_at_once() {
        let mut flows = Flows::default();
        let asked = (0..100_000).filter(|number| flows.demand(&key(1, *number), 1, true, 10).1).count();
        assert_eq!(asked as u64, ASKS.0);
        assert!(flows.demand(&key(2, 1), 2, true, 10).1);
        let asked = (0..100_000).filter(|number| flows.demand(&key(1, *number), 1, true, 20).1).count();
        assert_eq!(asked as u64, 10 * ASKS.1);
    }

    #[test]
    fn another_account_with_the_same_inside_address_inherits_nothing() {
        let mut flows = Flows::default();
        note(&mut flows, 1, 1, 0);
        assert_eq!(flows.demand(&key(1, 1), 2, false, 10), (None, true));
        flows.note((key(1, 1), 2), None, (SEALED, false), 10);
        assert_eq!(flows.get(&key(1, 1), 10).map(|flow| flow.demand), Some(None));
        check(&flows);
    }

    #[test]
    fn idle_flows_and_accounts_are_forgotten() {
        let mut flows = Flows::default();
        note(&mut flows, 1, 1, 0);
        flows.demand(&key(2, 1), 2, true, 0);
        flows.sweep(IDLE);
        assert!(flows.is_empty() && flows.accounts.is_empty());
        check(&flows);
    }
}
