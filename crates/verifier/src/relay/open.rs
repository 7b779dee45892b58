//! The relayed connections that are open: how many each person may have, and which of them have to end because their
//! flow has.

use crate::shared::Shared;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{MissedTickBehavior, interval};
use wire::map::{Flow, FlowKey};

/// Maximum number of connections, and of those of one person.
const CONNECTIONS: (usize, usize) = (4096, 1024);
/// Maximum number of connections of strangers to optional receivers, and of those from one address: the rest is for
/// people.
const STRANGERS: (usize, usize) = (1024, 128);
/// Interval at which the connections' flows are looked up: a revocation takes effect within a second.
const LOOK: Duration = Duration::from_millis(250);

/// The open connections.
pub struct Open {
    room: Arc<Semaphore>,
    connections: Mutex<Connections>,
}

#[derive(Default)]
struct Connections {
    last: u64,
    all: HashMap<u64, Entry>,
    people: HashMap<String, usize>,
    /// Number of strangers' connections, by address.
    strangers: HashMap<IpAddr, usize>,
}

struct Entry {
    person: String,
    key: FlowKey,
    flow: Flow,
    /// Ends the connection when it is dropped.
    _end: oneshot::Sender<()>,
}

/// A connection's entry. Dropping it removes the entry.
pub struct Place {
    /// Resolves when the connection has to end.
    pub cut: oneshot::Receiver<()>,
    pub _place: Registered,
}

/// Removes a connection's entry on drop.
pub struct Registered {
    open: Arc<Open>,
    number: u64,
}

/// A place for a stranger's connection. Dropping it makes room.
pub struct Stranger {
    open: Arc<Open>,
    from: IpAddr,
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let mut connections = self.open.connections();
        let strangers = &mut connections.strangers;
        if let Some(count) = strangers.get_mut(&self.from) {
            *count -= 1;
            if *count == 0 {
                strangers.remove(&self.from);
            }
        }
    }
}

impl Default for Open {
    fn default() -> Self {
        Self { room: Arc::new(Semaphore::new(CONNECTIONS.0)), connections: Mutex::default() }
    }
}

impl Open {
    fn connections(&self) -> MutexGuard<'_, Connections> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns room for one more connection, if there is any.
    pub fn room(&self) -> Option<OwnedSemaphorePermit> {
        self.room.clone().try_acquire_owned().ok()
    }

    /// Enters a connection of this person. Returns `None` if the person has too many.
    pub fn take(self: &Arc<Self>, person: &str, key: FlowKey, flow: Flow) -> Option<Place> {
        let mut connections = self.connections();
        let count = connections.people.entry(person.to_owned()).or_default();
        if *count >= CONNECTIONS.1 {
            return None;
        }
        *count += 1;
        connections.last += 1;
        let (number, (_end, cut)) = (connections.last, oneshot::channel());
        connections.all.insert(number, Entry { person: person.to_owned(), key, flow, _end });
        Some(Place { cut, _place: Registered { open: self.clone(), number } })
    }

    /// Makes room for a connection of a stranger. Returns `None` if strangers, or those at this address, have too many.
    pub fn take_stranger(self: &Arc<Self>, from: IpAddr) -> Option<Stranger> {
        let from = site(from);
        let mut connections = self.connections();
        let strangers = &mut connections.strangers;
        if strangers.values().sum::<usize>() >= STRANGERS.0 {
            return None;
        }
        let count = strangers.entry(from).or_default();
        if *count >= STRANGERS.1 {
            return None;
        }
        *count += 1;
        Some(Stranger { open: self.clone(), from })
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
            Err(error) => tracing::error!("cannot check whether relayed connections go on: {error:#}"),
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
        assert!(open.connections().strangers.is_empty());
        let six = ["2001:db8::1", "2001:db8::ffff:2", "2001:db8:0:1::1"].map(|text| site(text.parse().expect("one")));
        assert!(six[0] == six[1] && six[1] != six[2]);
    }

    #[test]
    fn a_removed_connection_is_told_and_counts_no_more() {
        let open = Arc::new(Open::default());
        let mut place = open.take("alice", key(), Flow::default()).expect("room");
        assert!(place.cut.try_recv().is_err_and(|error| error == oneshot::error::TryRecvError::Empty));
        open.remove(1);
        assert!(place.cut.try_recv().is_err_and(|error| error == oneshot::error::TryRecvError::Closed));
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
