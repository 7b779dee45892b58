//! The relay's open connections. Limits the number of connections in total and for each person. Ends each connection
//! whose flow has ended.

use crate::shared::Shared;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::{MissedTickBehavior, interval};
use wire::map::{Flow, FlowKey};

/// Maximum number of connections of all people together, and of one person.
const CONNECTIONS: (usize, usize) = (4096, 1024);
/// Maximum number of connections whose person the relay is still looking up: in total, and from one address. Their
/// person is not known yet, so they don't count towards a person's limit.
const ARRIVALS: (usize, usize) = (1024, 128);
/// Maximum number of connections of strangers to optional receivers: in total, and from one address.
const STRANGERS: (usize, usize) = (1024, 128);
/// Interval at which the relay checks whether the connections' flows have ended, so that a revocation takes effect
/// within a second.
const LOOK: Duration = Duration::from_millis(250);

/// The open connections of the relay.
#[derive(Default)]
pub struct Open {
    connections: Mutex<Connections>,
}

#[derive(Default)]
struct Connections {
    last: u64,
    all: HashMap<u64, Entry>,
    people: HashMap<String, usize>,
    /// The connections of strangers.
    strangers: Sites,
    /// Connections whose person the relay is still looking up.
    arrivals: Sites,
}

struct Entry {
    person: String,
    key: FlowKey,
    flow: Flow,
    /// Ends the connection when it is dropped.
    _end: oneshot::Sender<()>,
}

/// A connection's entry among the open connections. Dropping it removes the entry.
pub struct OpenConnection {
    /// Resolves when the relay has to end the connection.
    pub cut: oneshot::Receiver<()>,
    pub _registered: Registered,
}

/// Removes a connection's entry when it is dropped.
pub struct Registered {
    open: Arc<Open>,
    number: u64,
}

/// Numbers of connections, by the address that they come from.
#[derive(Default)]
struct Sites(HashMap<IpAddr, usize>);

impl Sites {
    /// Counts one more connection from this address, if there is room. Returns whether there was room. `most` is the
    /// maximum number of connections: in total, and from one address.
    fn add(&mut self, from: IpAddr, most: (usize, usize)) -> bool {
        let of_site = self.0.get(&from).copied().unwrap_or_default();
        let has_room = of_site < most.1 && self.0.values().sum::<usize>() < most.0;
        if has_room {
            self.0.insert(from, of_site + 1);
        }
        has_room
    }

    fn remove(&mut self, from: IpAddr) {
        if let Some(count) = self.0.get_mut(&from) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(&from);
            }
        }
    }
}

/// The room for a stranger's connection, or for a connection whose person the relay is still looking up. Dropping this
/// value frees the room.
pub struct Guest {
    open: Arc<Open>,
    from: IpAddr,
    sites: fn(&mut Connections) -> &mut Sites,
}

impl Drop for Guest {
    fn drop(&mut self) {
        (self.sites)(&mut self.open.connections()).remove(self.from);
    }
}

impl Open {
    fn connections(&self) -> MutexGuard<'_, Connections> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves room for a connection whose person the relay is about to look up. Returns `None` if the relay is
    /// already looking up too many connections, in total or from this address.
    pub fn arrive(self: &Arc<Self>, from: IpAddr) -> Option<Guest> {
        self.guest(from, ARRIVALS, |connections| &mut connections.arrivals)
    }

    fn guest(
        self: &Arc<Self>,
        from: IpAddr,
        most: (usize, usize),
        sites: fn(&mut Connections) -> &mut Sites,
    ) -> Option<Guest> {
        let from = site(from);
        sites(&mut self.connections()).add(from, most).then(|| Guest { open: self.clone(), from, sites })
    }

    /// Adds a connection of this person. Returns `None` if this person has too many connections, or if all people
    /// together have too many.
    pub fn take(self: &Arc<Self>, person: &str, key: FlowKey, flow: Flow) -> Option<OpenConnection> {
        let mut connections = self.connections();
        if connections.all.len() >= CONNECTIONS.0 {
            return None;
        }
        let count = connections.people.entry(person.to_owned()).or_default();
        if *count >= CONNECTIONS.1 {
            return None;
        }
        *count += 1;
        connections.last += 1;
        let (number, (_end, cut)) = (connections.last, oneshot::channel());
        connections.all.insert(number, Entry { person: person.to_owned(), key, flow, _end });
        Some(OpenConnection { cut, _registered: Registered { open: self.clone(), number } })
    }

    /// Reserves room for a connection of a stranger. Returns `None` if all strangers together have too many
    /// connections, or if the strangers at this address have.
    pub fn take_stranger(self: &Arc<Self>, from: IpAddr) -> Option<Guest> {
        self.guest(from, STRANGERS, |connections| &mut connections.strangers)
    }

    fn remove(&self, number: u64) {
        let mut connections = self.connections();
        let Some(Entry { person, .. }) = connections.all.remove(&number) else { return };
        if let Some(count) = connections.people.get_mut(&person) {
            *count -= 1;
            if *count == 0 {
                connections.people.remove(&person);
            }
        }
    }
}

/// Returns the address that stands for one sender: an IPv6 host can have every address of its /64.
fn site(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => Ipv6Addr::from(u128::from(address) >> 64 << 64).into(),
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.open.remove(self.number);
    }
}

/// Ends connections whose flow has ended or belongs to somebody else, until the future is dropped.
pub async fn watch(open: Arc<Open>, shared: Arc<Shared>) {
    let mut looks = interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        looks.tick().await;
        let all: Vec<_> = open.connections().all.iter().map(|(number, one)| (*number, one.key, one.flow)).collect();
        if all.is_empty() {
            continue;
        }
        let look = move |shared: &Shared| {
            let kernel = shared.kernel();
            let lost =
                all.into_iter().filter(|(_, key, before)| !kernel.flow(key).is_some_and(|now| goes_on(before, &now)));
            Ok(lost.map(|(number, ..)| number).collect::<Vec<_>>())
        };
        match shared.clone().read(look).await {
            Ok(lost) => lost.into_iter().for_each(|number| open.remove(number)),
            Err(error) => tracing::error!("cannot check which relayed connections have to end: {error:#}"),
        }
    }
}

/// Reports whether a flow is still the same person's: the grant may be another one of the same holder.
fn goes_on(before: &Flow, now: &Flow) -> bool {
    now.by_grant() && (now.handle == before.handle || now.holder != 0 && now.holder == before.holder)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> FlowKey {
        let [client, server] = ["192.0.2.1", "192.0.2.2"].map(|text| text.parse().expect("an address"));
        FlowKey::new(client, 1, server, 2, 6)
    }

    #[test]
    fn one_person_takes_no_room_from_the_others() {
        let open = Arc::new(Open::default());
        let take = |person| open.take(person, key(), Flow::default());
        let mut places: Vec<_> = (0..CONNECTIONS.1).map(|_| take("alice").expect("room")).collect();
        assert!(take("alice").is_none() && take("bob").is_some());
        places.pop();
        assert!(take("alice").is_some());
        drop(places);
        assert!(open.connections().people.is_empty() && open.connections().all.is_empty());
    }

    #[test]
    fn strangers_leave_room_for_people_and_for_each_other() {
        let open = Arc::new(Open::default());
        let address = |number: usize| IpAddr::from([10, 0, (number >> 8) as u8, number as u8]);
        let one: Vec<_> = (0..STRANGERS.1).map(|_| open.take_stranger(address(1)).expect("room")).collect();
        assert!(open.take_stranger(address(1)).is_none() && open.take_stranger(address(2)).is_some());
        let more: Vec<_> = (0..STRANGERS.0).map_while(|number| open.take_stranger(address(number + 2))).collect();
        assert_eq!(one.len() + more.len(), STRANGERS.0);
        assert!(open.take("alice", key(), Flow::default()).is_some());
        drop((one, more));
        assert!(open.connections().strangers.0.is_empty());
        let six = ["2001:db8::1", "2001:db8::ffff:2", "2001:db8:0:1::1"].map(|text| site(text.parse().expect("one")));
        assert!(six[0] == six[1] && six[1] != six[2]);
    }

    #[test]
    fn a_sender_who_opens_many_connections_takes_no_room_before_they_are_looked_up() {
        let open = Arc::new(Open::default());
        let [hostile, other] = ["192.0.2.1", "192.0.2.2"].map(|text| text.parse().expect("an address"));
        let arrived: Vec<_> = (0..CONNECTIONS.0).map_while(|_| open.arrive(hostile)).collect();
        assert_eq!(arrived.len(), ARRIVALS.1);
        assert!(open.arrive(other).is_some() && open.take("alice", key(), Flow::default()).is_some());
        drop(arrived);
        assert!(open.connections().arrivals.0.is_empty());
    }

    #[test]
    fn all_people_together_have_a_limit() {
        let open = Arc::new(Open::default());
        let people = ["alice", "bob", "carol", "dave"];
        let take = |person: &str| open.take(person, key(), Flow::default());
        let all: Vec<_> = people.iter().flat_map(|person| (0..CONNECTIONS.1).map_while(|_| take(person))).collect();
        assert!(all.len() == CONNECTIONS.0 && take("eve").is_none());
        assert!(!open.connections().people.contains_key("eve"));
        assert!(open.take_stranger("192.0.2.1".parse().expect("an address")).is_some());
    }

    #[test]
    fn a_removed_connection_is_told_and_counts_no_more() {
        let open = Arc::new(Open::default());
        let mut connection = open.take("alice", key(), Flow::default()).expect("room");
        assert!(connection.cut.try_recv().is_err_and(|error| error == oneshot::error::TryRecvError::Empty));
        open.remove(1);
        assert!(connection.cut.try_recv().is_err_and(|error| error == oneshot::error::TryRecvError::Closed));
        assert!(open.connections().people.is_empty());
    }

    #[test]
    fn a_flow_goes_on_only_with_the_same_holder() {
        let flow = Flow { handle: 9, holder: 0x101, ..Flow::default() };
        assert!(goes_on(&flow, &Flow { handle: 10, ..flow }));
        assert!(!goes_on(&flow, &Flow { handle: 10, holder: 0x201, ..flow }));
        assert!(!goes_on(&Flow { holder: 0, ..flow }, &Flow { handle: 10, holder: 0, ..flow }));
        assert!(!goes_on(&flow, &Flow { origin: wire::map::origin::ENDED, ..flow }));
    }
}
