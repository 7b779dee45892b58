//! Inside addresses: the person who has each address now, and the persons who had it before. Each person gets a number,
//! which stands for the person in the kernel's tables.
//!
//! The kernel program chooses a person's address on their first packet.

use crate::{now, view};
use anyhow::{Context, Result, ensure};
use api::GrantOwner;
use datapath::nat::{Addresses as Tables, PEOPLE_MAX};
use datapath::ring::Listener;
use ipnet::IpNet;
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::mpsc;
use wire::map::{Bearer, Flow, FlowKey, LeaseKey, NatNews, PersonName, nat_news};

/// Maximum number of addresses of each family in a pool. The number is limited because the kernel program searches the
/// whole pool when it assigns an address.
pub const POOL_MAX: usize = 4096;
/// Number of expired leases that stay listed.
const PAST_MAX: usize = 10_000;
/// Seconds after a grant's end for which its owner stays recorded, to allow for clock skew.
const SKEW: u64 = engine::verifier::CLOCK_SKEW_MAX as u64;
/// Maximum number of handles that wait until the daemon asks the authority for the grants' owners.
pub const UNKNOWN_MAX: usize = 1024;

/// Returns all addresses in these networks that hosts can have, IPv4 first. If a network consists of a single address,
/// the result includes this address.
///
/// # Errors
///
/// Fails if there are more than [`POOL_MAX`] addresses of one family.
pub fn pool(networks: &[IpNet]) -> Result<Vec<IpAddr>> {
    let mut all = Vec::new();
    for network in networks {
        let too_large =
            || format!("pool: {network} has more than {POOL_MAX} addresses, the maximum: name a smaller network");
        ensure!(network.hosts().nth(POOL_MAX).is_none(), too_large());
        let single = network.hosts().nth(1).is_none();
        // The first address of an IPv6 network is the Subnet-Router anycast address (RFC 4291 §2.6.1).
        all.extend(network.hosts().filter(|host| single || network.addr().is_ipv4() || *host != network.network()));
    }
    all.sort();
    all.dedup();
    for (name, family) in [("IPv4", IpAddr::is_ipv4 as fn(&IpAddr) -> bool), ("IPv6", IpAddr::is_ipv6)] {
        let count = all.iter().filter(|address| family(address)).count();
        ensure!(
            count <= POOL_MAX,
            "pool: {count} {name} addresses are more than the maximum of {POOL_MAX}: remove {name} networks, or name \
             smaller ones"
        );
    }
    Ok(all)
}

/// Current and past leases of inside addresses to persons.
pub struct Addresses {
    tables: Arc<Tables>,
    people: Mutex<People>,
    past: Arc<Mutex<VecDeque<view::InsideAddress>>>,
    _listener: Listener,
}

/// The last number assigned, and the person behind each number.
struct People {
    last: u32,
    names: BTreeMap<u32, String>,
}

fn name_key(person: &str) -> Option<PersonName> {
    let mut key = PersonName { bytes: [0; 64] };
    key.bytes.get_mut(..person.len())?.copy_from_slice(person.as_bytes());
    Some(key)
}

fn name_of(key: &PersonName) -> String {
    String::from_utf8_lossy(&key.bytes).trim_end_matches('\0').to_owned()
}

impl People {
    fn read(tables: &Tables) -> Self {
        let names: BTreeMap<u32, String> =
            tables.names.entries().into_iter().map(|(key, number)| (number, name_of(&key))).collect();
        let leased = tables.leases.keys().into_iter().map(|lease| lease.person);
        let borne = tables.bearers.entries().into_iter().map(|(_, bearer)| bearer.person);
        let last = names.keys().copied().chain(leased).chain(borne).max().unwrap_or_default();
        Self { last, names }
    }
}

impl Addresses {
    /// Starts a listener for the kernel program's messages. If the kernel program needs to know the owner of a grant,
    /// the listener sends the grant's handle to `unknown`.
    ///
    /// # Errors
    ///
    /// Fails if the kernel program's ring buffer can't be opened.
    pub fn new(tables: Arc<Tables>, pool: Vec<IpAddr>, unknown: mpsc::Sender<u64>) -> Result<Self> {
        let people = Mutex::new(People::read(&tables));
        let past: Arc<Mutex<VecDeque<_>>> = Arc::default();
        let mut had = BTreeMap::new();
        for lease in list(&tables) {
            had.insert(lease.address, lease);
        }
        let (read, record) = (tables.clone(), past.clone());
        let ring = tables.news(move |news| match news.kind {
            nat_news::UNKNOWN => drop(unknown.try_send(news.handle)),
            _ => {
                let Some(address) = pool.get(news.slot as usize) else { return };
                note(&read, &news, *address, &mut had, &mut record.lock().unwrap_or_else(PoisonError::into_inner));
            }
        })?;
        Ok(Self { tables, people, past, _listener: Listener::start("addresses", ring)? })
    }

    /// Records another gateway's report that a grant belongs to `person` and ends at `expires` (Unix seconds). Does
    /// nothing if the grant's owner is already recorded. Returns the number that stands for the person in the kernel's
    /// tables.
    ///
    /// # Errors
    ///
    /// Fails if the person can't get a number, or if the tables have no room.
    pub fn note(&self, person: &str, handle: u64, expires: u32) -> Result<u32> {
        let number = self.number(person)?;
        self.tables
            .bearers
            .insert(&handle, &Bearer { person: number, expires })
            .context("cannot record the owner of a grant, who therefore gets no inside address")?;
        Ok(number)
    }

    /// Returns the inside address of a flow's client and the person who has this address, even after the flow's grant
    /// has ended. Returns `None` if the client has no inside address or the person is unknown.
    pub fn holder(&self, flow: &Flow) -> Option<([u8; 16], String)> {
        let slot = self.tables.slots.get(&flow.inside.checked_sub(1)?).ok()??;
        let people = self.people.lock().unwrap_or_else(PoisonError::into_inner);
        Some((slot.address, people.names.get(&slot.person)?.clone()))
    }

    /// Writes the owner of a grant to the kernel's tables.
    ///
    /// # Errors
    ///
    /// Fails if the person can't get a number, or if the tables have no room.
    pub fn learn(&self, owner: &GrantOwner) -> Result<()> {
        let number = self.number(&owner.person)?;
        let expires = u32::try_from(owner.expires).unwrap_or(u32::MAX);
        self.tables
            .bearers
            .set(&owner.handle, &Bearer { person: number, expires })
            .context("cannot record the owner of a grant, who therefore gets no inside address")
    }

    fn number(&self, person: &str) -> Result<u32> {
        let key = name_key(person).with_context(|| format!("the name {person:?} is too long for an inside address"))?;
        let mut people = self.people.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(number) = self.tables.names.get(&key)? {
            return Ok(number);
        }
        if people.names.len() >= PEOPLE_MAX as usize {
            self.forget_people(&mut people)?;
        }
        // Larger than any number in use, so that no entry can refer to a former owner of the number.
        let number = people.last.checked_add(1).with_context(|| {
            format!(
                "cannot give {person:?} an inside address: the verifier has assigned its last number for a person. Run \
                 `vouchsafe verifier detach` (this ends protection) and start the verifier again"
            )
        })?;
        self.tables.names.set(&key, &number)?;
        people.last = number;
        people.names.insert(number, person.to_owned());
        Ok(number)
    }

    /// Forgets people who have neither an address nor a grant.
    fn forget_people(&self, people: &mut People) -> Result<()> {
        let mut needed: HashSet<u32> = self.tables.leases.keys().iter().map(|lease| lease.person).collect();
        needed.extend(self.tables.bearers.entries().iter().map(|(_, bearer)| bearer.person));
        let gone: Vec<u32> = people.names.keys().copied().filter(|number| !needed.contains(number)).collect();
        for number in gone {
            if let Some(key) = people.names.remove(&number).and_then(|name| name_key(&name)) {
                self.tables.names.remove(&key)?;
            }
        }
        Ok(())
    }

    /// Removes the owners of grants that have ended from the kernel's tables.
    ///
    /// # Errors
    ///
    /// Fails if an entry can't be removed.
    pub fn tidy(&self) -> Result<()> {
        let now = now();
        let ended = |bearer: &Bearer| u64::from(bearer.expires) + SKEW < now;
        let entries = self.tables.bearers.entries();
        entries
            .iter()
            .filter(|(_, bearer)| ended(bearer))
            .try_for_each(|(handle, _)| self.tables.bearers.remove(handle))
    }

    /// Returns current and past leases, the latest first.
    pub fn list(&self) -> Vec<view::InsideAddress> {
        let mut all = list(&self.tables);
        all.extend(self.past.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned());
        all.sort_by_key(|lease| std::cmp::Reverse((lease.since, lease.until)));
        all
    }

    /// Returns the address and port under which the inside sees the client of a flow; `None` if the inside sees the
    /// client's own address.
    pub fn of(&self, flow: &Flow, key: &FlowKey) -> Option<SocketAddr> {
        let slot = self.tables.slots.get(&flow.inside.checked_sub(1)?).ok()??;
        let address = wire::map::address_of(slot.address, key.family);
        Some((address, u16::from_be_bytes(flow.inside_port)).into())
    }

    /// Returns the keys of the flows whose client has this inside address and port. In these keys, the client has its
    /// own address and port.
    pub fn outside(&self, client: SocketAddr) -> Vec<FlowKey> {
        let (address, port) = (client.ip().to_canonical(), client.port());
        let keys = self.tables.ways_back.keys().into_iter().filter(|key| key.client() == (address, port));
        let outside = keys.filter_map(|key| {
            let back = self.tables.ways_back.get(&key).ok()??;
            Some(FlowKey { client: back.client, client_port: back.client_port, ..key })
        });
        outside.collect()
    }

    /// Returns the number of inside addresses that have flows, and the number of all addresses in the pool.
    pub fn usage(&self) -> (usize, u32) {
        let used = self.tables.slots.entries().iter().filter(|(_, slot)| slot.flows > 0).count();
        (used, self.tables.slots.capacity())
    }
}

/// Returns the current leases.
fn list(tables: &Tables) -> Vec<view::InsideAddress> {
    let names: BTreeMap<u32, String> =
        tables.names.entries().into_iter().map(|(key, number)| (number, name_of(&key))).collect();
    let leases = tables.leases.entries().into_iter();
    let lease = |(LeaseKey { person, family }, slot): (LeaseKey, u32)| {
        let slot = tables.slots.get(&slot).ok()??;
        Some(view::InsideAddress {
            address: wire::map::address_of(slot.address, family as u8),
            person: names.get(&person).cloned(),
            since: slot.since.into(),
            until: None,
            flows: slot.flows,
        })
    };
    leases.filter_map(lease).collect()
}

/// Logs a message of the kernel program. If an address got a new owner, moves the previous lease to `past`.
fn note(
    tables: &Tables,
    news: &NatNews,
    address: IpAddr,
    had: &mut BTreeMap<IpAddr, view::InsideAddress>,
    past: &mut VecDeque<view::InsideAddress>,
) {
    let names = tables.names.entries();
    let person = names.iter().find(|(_, number)| *number == news.person).map(|(key, _)| name_of(key));
    let time = u64::from(news.time);
    if news.kind == nat_news::IDLE {
        tracing::info!(%address, person, time, "the last flow of the inside address has ended");
        return;
    }
    tracing::info!(%address, person, time, "inside address assigned");
    let lease = view::InsideAddress { address, person, since: time, until: None, flows: 0 };
    if let Some(before) = had.insert(address, lease) {
        past.push_back(view::InsideAddress { until: Some(time), flows: 0, ..before });
        while past.len() > PAST_MAX {
            past.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(networks: &[&str]) -> Result<Vec<String>> {
        let networks: Vec<IpNet> = networks.iter().map(|text| text.parse().expect("a network")).collect();
        Ok(pool(&networks)?.iter().map(IpAddr::to_string).collect())
    }

    #[test]
    fn a_pool_has_the_addresses_of_its_networks_each_once() {
        let addresses = of(&["10.9.0.0/30", "fd09::/126", "10.9.1.1/32", "10.9.0.2/32"]).expect("fits");
        assert_eq!(addresses, ["10.9.0.1", "10.9.0.2", "10.9.1.1", "fd09::1", "fd09::2", "fd09::3"]);
        assert_eq!(of(&[]).expect("none"), Vec::<String>::new());
    }

    #[test]
    fn what_is_too_large_is_refused() {
        assert!(of(&["10.0.0.0/8"]).is_err() && of(&["fd09::/64"]).is_err());
        assert!(of(&["10.9.0.0/20", "10.10.0.0/20"]).is_err());
    }

    #[test]
    fn names_fit_into_their_key() {
        let key = name_key("alice@example.org").expect("short");
        assert_eq!(name_of(&key), "alice@example.org");
        assert!(name_key(&"a".repeat(65)).is_none());
    }
}
