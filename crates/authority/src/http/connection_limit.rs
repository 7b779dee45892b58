//! Limits the number of connections, so that no single source or network can use all of them.
//!
//! When the limit is reached, a new connection displaces the oldest unauthenticated connection of the network that has
//! the most unauthenticated connections. So attackers displace each other, and not a person who connects from
//! elsewhere. An authenticated connection stays, unless its person or verifier has many connections: the holder of one
//! credential must not lock out all others.

use crate::http::peer::{Member, Peer};
use crate::http::throttle::Key;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use tokio::sync::Notify;

/// Number of connections that a person or verifier keeps even when the limit is reached: enough for browsers, and for
/// agents on several machines with up to two connections each.
const KEPT_BY_MEMBER: usize = 12;

/// The open connections, and the limits on their number.
pub struct ConnectionLimit {
    most: u32,
    most_of_source: u32,
    most_of_network: u32,
    taken: Mutex<Taken>,
    turned_away: AtomicU64,
}

#[derive(Default)]
struct Taken {
    next: u64,
    /// The connections by number. Numbers increase, so the oldest connection comes first.
    holders: BTreeMap<u64, Holder>,
    by_source: HashMap<IpAddr, u32>,
    by_network: HashMap<IpAddr, u32>,
}

struct Holder {
    source: IpAddr,
    network: IpAddr,
    member: Arc<OnceLock<Member>>,
    leave: Arc<Notify>,
}

/// The permit for one connection. Dropping it makes room for another connection.
pub struct ConnectionPermit {
    limit: Arc<ConnectionLimit>,
    number: u64,
    leave: Arc<Notify>,
}

impl ConnectionPermit {
    /// Waits until the connection must close, because another connection takes its place.
    pub async fn evicted(&self) {
        self.leave.notified().await;
    }
}

impl ConnectionLimit {
    /// Creates a limit of `most` connections. One source may have at most a quarter of these connections, and the
    /// source's network (see [`Key::network`]) at most half.
    pub fn new(most: u32) -> Self {
        let taken = Mutex::default();
        let (most_of_source, most_of_network) = (most.div_ceil(4), most.div_ceil(2));
        Self { most, most_of_source, most_of_network, taken, turned_away: AtomicU64::default() }
    }

    /// Returns a permit for a new connection of a peer. If a limit is reached, evicts an unauthenticated connection or,
    /// if there is none, a connection of a person or verifier that has many connections. If no connection can be
    /// evicted, returns `None`, and the caller must refuse the new connection.
    pub fn admit(self: &Arc<Self>, peer: &Peer) -> Option<ConnectionPermit> {
        let (source, network) = (Key::source(peer.address), Key::network(peer.address));
        let mut taken = self.lock();
        let own = |counts: &HashMap<IpAddr, u32>, key| counts.get(&key).copied().unwrap_or(0);
        let gives_way = if own(&taken.by_source, source) >= self.most_of_source {
            Some(taken.longest(|holder| holder.source == source, |holder| holder.source == source))
        } else if own(&taken.by_network, network) >= self.most_of_network {
            Some(taken.longest(|holder| holder.network == network, |holder| holder.network == network))
        } else if taken.holders.len() as u64 >= u64::from(self.most) {
            let crowd = taken.crowd();
            Some(taken.longest(|holder| Some(holder.network) == crowd, |_| true))
        } else {
            None
        };
        if let Some(gives_way) = gives_way {
            self.turn_away();
            taken.remove(gives_way?)?.leave.notify_one();
        }
        let (number, leave) = (taken.next, Arc::new(Notify::new()));
        taken.next += 1;
        *taken.by_source.entry(source).or_default() += 1;
        *taken.by_network.entry(network).or_default() += 1;
        let holder = Holder { source, network, member: peer.member.clone(), leave: leave.clone() };
        taken.holders.insert(number, holder);
        Some(ConnectionPermit { limit: self.clone(), number, leave })
    }

    /// Returns the numbers of connections: the authenticated ones, then the unauthenticated ones.
    pub fn count(&self) -> (u32, u32) {
        let taken = self.lock();
        let proven = taken.holders.values().filter(|holder| holder.is_proven()).count() as u32;
        (proven, taken.holders.len() as u32 - proven)
    }

    /// Returns the number of connections that were refused or evicted.
    pub fn turned_away(&self) -> u64 {
        self.turned_away.load(Ordering::Relaxed)
    }

    /// Counts a connection that was refused before it requested a permit.
    pub fn turn_away(&self) {
        self.turned_away.fetch_add(1, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Holder {
    fn is_proven(&self) -> bool {
        self.member.get().is_some()
    }
}

impl Taken {
    /// Returns the number of the connection that must close: the oldest unauthenticated one that matches `strangers`.
    /// If there is none, it is the oldest connection of the person or verifier with the most connections among those
    /// that match `members`. If that member has no more than [`KEPT_BY_MEMBER`], the result is `None`.
    fn longest(&self, strangers: impl Fn(&Holder) -> bool, members: impl Fn(&Holder) -> bool) -> Option<u64> {
        let mut unproven = self.holders.iter().filter(|(_, holder)| !holder.is_proven() && strangers(holder));
        if let Some((number, _)) = unproven.next() {
            return Some(*number);
        }
        let mut counts: HashMap<&Member, (usize, u64)> = HashMap::new();
        for (number, holder) in self.holders.iter().filter(|(_, holder)| members(holder)) {
            // Numbers rise, so the first one found is the oldest connection.
            if let Some(member) = holder.member.get() {
                counts.entry(member).or_insert((0, *number)).0 += 1;
            }
        }
        let most = counts.into_values().max()?;
        (most.0 > KEPT_BY_MEMBER).then_some(most.1)
    }

    /// Returns the network with the most unauthenticated connections.
    fn crowd(&self) -> Option<IpAddr> {
        let mut counts: BTreeMap<IpAddr, u32> = BTreeMap::new();
        for holder in self.holders.values().filter(|holder| !holder.is_proven()) {
            *counts.entry(holder.network).or_default() += 1;
        }
        counts.into_iter().max_by_key(|(_, count)| *count).map(|(network, _)| network)
    }

    fn remove(&mut self, number: u64) -> Option<Holder> {
        let holder = self.holders.remove(&number)?;
        for (counts, key) in [(&mut self.by_source, holder.source), (&mut self.by_network, holder.network)] {
            if let Some(count) = counts.get_mut(&key) {
                *count -= 1;
                if *count == 0 {
                    counts.remove(&key);
                }
            }
        }
        Some(holder)
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.limit.lock().remove(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(address: [u8; 4]) -> Peer {
        Peer::new((address, 40_000).into(), None)
    }

    fn member(address: [u8; 4], person: &str) -> Peer {
        let peer = peer(address);
        peer.prove(|| Member::Person(person.into()));
        peer
    }

    async fn has_to_leave(permit: &ConnectionPermit) -> bool {
        tokio::time::timeout(std::time::Duration::ZERO, permit.evicted()).await.is_ok()
    }

    #[tokio::test]
    async fn strangers_push_out_their_own_kind() {
        let limit = Arc::new(ConnectionLimit::new(8));
        let crowd: Vec<_> = (0..4).map(|n| limit.admit(&peer([192, 0, 2, n])).expect("a permit")).collect();
        let others: Vec<_> = (0..4).map(|n| limit.admit(&peer([198, 51, n, 1])).expect("a permit")).collect();
        let newcomer = limit.admit(&peer([203, 0, 113, 1])).expect("the crowd makes room");
        assert!(has_to_leave(&crowd[0]).await);
        assert!(!has_to_leave(&crowd[1]).await && !has_to_leave(&others[0]).await && !has_to_leave(&newcomer).await);
        assert_eq!((limit.count(), limit.turned_away()), ((0, 8), 1));
        drop(crowd);
        assert_eq!(limit.count(), (0, 5), "whoever had to leave frees no second place");
    }

    #[tokio::test]
    async fn an_authenticated_connection_stays() {
        let limit = Arc::new(ConnectionLimit::new(4));
        let members: Vec<_> =
            (0..4).map(|n| limit.admit(&member([198, 51, n, 1], "alice")).expect("a permit")).collect();
        assert!(limit.admit(&peer([203, 0, 113, 1])).is_none(), "nobody has to leave");
        drop(members);
        assert!(limit.admit(&peer([203, 0, 113, 1])).is_some());
    }

    #[tokio::test]
    async fn one_member_does_not_keep_everybody_else_out() {
        let limit = Arc::new(ConnectionLimit::new(32));
        let bob = limit.admit(&member([203, 0, 113, 1], "bob")).expect("a permit");
        let eve: Vec<_> = (0..31).map(|n| limit.admit(&member([198, 51, n, 1], "eve")).expect("a permit")).collect();
        let newcomer = |n: usize| limit.admit(&member([203, 0, n as u8, 2], &format!("newcomer {n}")));
        let more = 31 - KEPT_BY_MEMBER;
        let newcomers: Vec<_> = (0..more).map(|n| newcomer(n).expect("eve makes room")).collect();
        assert!(has_to_leave(&eve[more - 1]).await && !has_to_leave(&eve[more]).await && !has_to_leave(&bob).await);
        assert!(newcomer(more).is_none(), "nobody holds many");
        drop(newcomers);
    }

    #[tokio::test]
    async fn one_member_does_not_keep_out_those_behind_the_same_address() {
        let limit = Arc::new(ConnectionLimit::new(64));
        let eve: Vec<_> = (0..15).map(|_| limit.admit(&member([192, 0, 2, 1], "eve")).expect("a permit")).collect();
        let bob = limit.admit(&member([192, 0, 2, 1], "bob")).expect("a permit");
        let _newcomer = limit.admit(&peer([192, 0, 2, 1])).expect("eve makes room");
        assert!(has_to_leave(&eve[0]).await && !has_to_leave(&bob).await);
    }

    #[tokio::test]
    async fn neither_a_source_nor_its_network_takes_all() {
        let limit = Arc::new(ConnectionLimit::new(16));
        let own: Vec<_> = (0..5).map(|_| limit.admit(&peer([192, 0, 2, 1])).expect("a permit")).collect();
        assert!(has_to_leave(&own[0]).await && !has_to_leave(&own[1]).await);
        let network: Vec<_> = (2..8).map(|n| limit.admit(&peer([192, 0, 2, n])).expect("a permit")).collect();
        assert_eq!(limit.count(), (0, 8));
        assert!(has_to_leave(&own[2]).await && !has_to_leave(&network[0]).await);
    }
}
