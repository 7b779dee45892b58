//! Inside addresses: the addresses under which servers see the clients of tunnels (wire.md §6.11.4). Two clients behind
//! different NATs can have the same address, so each client gets an inside address of its own.

use ipnet::IpNet;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use wire::Holder;

use engine::tunnel::Millis;

/// Maximum number of inside addresses of one account.
const OF_ACCOUNT: usize = 16;
/// Milliseconds without packets after which an address may be assigned to another client. By then, servers have
/// forgotten the earlier client.
const IDLE: Millis = 3_600_000;
/// Maximum number of addresses that are tried for a client.
const TRIES: u128 = 64;

/// A client: the holder of a grant, and the source address of its packets inside the tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Client {
    /// The holder of the grant: account and session.
    pub holder: Holder,
    /// The source address of the client's packets.
    pub address: IpAddr,
}

/// The table of the assigned inside addresses.
pub struct Inside {
    networks: Vec<IpNet>,
    /// Seed for computing a client's address. With the same seed, a client usually gets the same address again after a
    /// restart.
    seed: u64,
    of_client: HashMap<Client, IpAddr>,
    used: HashMap<IpAddr, (Client, Millis)>,
    accounts: HashMap<u32, usize>,
}

impl Inside {
    /// Creates a table that assigns the addresses of these networks. The first host address of each network is the
    /// verifier's own. Neither this address, nor the network's own address, nor its last address is ever assigned.
    pub fn new(networks: Vec<IpNet>, seed: u64) -> Self {
        Self { networks, seed, of_client: HashMap::new(), used: HashMap::new(), accounts: HashMap::new() }
    }

    /// Returns the verifier's own address in a network: the network's first host address.
    pub fn own(network: &IpNet) -> IpAddr {
        nth(network, 1)
    }

    /// Returns the inside address of a client. Assigns an address if the client has none. If the client's account has
    /// 16 addresses already, the new address takes the place of the one that was used least recently. Returns `None` if
    /// no free address is found in at most 64 tries in each network of the client's address family.
    pub fn of(&mut self, client: Client, now: Millis) -> Option<IpAddr> {
        if let Some(address) = self.of_client.get(&client) {
            if let Some((_, last)) = self.used.get_mut(address) {
                *last = now;
            }
            return Some(*address);
        }
        self.make_room(client);
        let address = self.free(client, now)?;
        self.assign(client, address, now);
        Some(address)
    }

    /// Gives a client the address that it has at another gateway of this verifier. Returns whether the client then has
    /// this address. Refuses an address outside the networks of this table, and an address that another client uses
    /// here. Also refuses if the client already uses another address here, because the client's flows would change
    /// their address.
    pub fn take_over(&mut self, client: Client, address: IpAddr, now: Millis) -> bool {
        if client.address.is_ipv4() != address.is_ipv4() || !self.may_assign(address) {
            return false;
        }
        let is_in_use = |address| self.used.get(address).is_some_and(|(_, last)| now.saturating_sub(*last) <= IDLE);
        let before = self.of_client.get(&client).copied();
        if before != Some(address) {
            if before.as_ref().is_some_and(is_in_use) || is_in_use(&address) {
                return false;
            }
            if let Some(before) = before {
                self.take_back(before);
            }
            self.make_room(client);
        }
        self.assign(client, address, now);
        true
    }

    /// Reports whether clients can have this address: it is neither a network's own address, nor the verifier's, nor a
    /// network's last one.
    fn may_assign(&self, address: IpAddr) -> bool {
        let is_of = |network: &IpNet| {
            let special = [network.network(), Self::own(network), network.broadcast()];
            network.contains(&address) && !special.contains(&address)
        };
        self.networks.iter().any(is_of)
    }

    fn make_room(&mut self, client: Client) {
        let account = client.holder.account();
        if self.accounts.get(&account).copied().unwrap_or(0) >= OF_ACCOUNT {
            self.forget_oldest(account);
        }
    }

    /// Records that a client has an address, and takes the address from the client that had it.
    fn assign(&mut self, client: Client, address: IpAddr, now: Millis) {
        self.take_back(address);
        self.used.insert(address, (client, now));
        self.of_client.insert(client, address);
        *self.accounts.entry(client.holder.account()).or_default() += 1;
    }

    fn take_back(&mut self, address: IpAddr) {
        if let Some((before, _)) = self.used.remove(&address) {
            self.of_client.remove(&before);
            self.release(before.holder.account());
        }
    }

    /// Returns the client to which an inside address is assigned.
    pub fn client(&self, address: IpAddr) -> Option<Client> {
        self.used.get(&address).map(|used| used.0)
    }

    /// Returns every assigned address with its client.
    pub fn list(&self) -> impl Iterator<Item = (IpAddr, Client)> {
        self.used.iter().map(|(address, used)| (*address, used.0))
    }

    fn free(&self, client: Client, now: Millis) -> Option<IpAddr> {
        let is_fit = |network: &&IpNet| matches!(network, IpNet::V4(_)) == client.address.is_ipv4();
        for network in self.networks.iter().filter(is_fit) {
            let mut hasher = DefaultHasher::new();
            (self.seed, client).hash(&mut hasher);
            let size = 1u128 << (u32::from(network.max_prefix_len()) - u32::from(network.prefix_len())).min(64);
            // The network's address, the verifier's own, and the last, which is the broadcast address, are never
            // assigned.
            let count = size.saturating_sub(3);
            if count == 0 {
                continue;
            }
            let first = u128::from(hasher.finish()) % count;
            for try_ in 0..TRIES.min(count) {
                let address = nth(network, 2 + (first + try_) % count);
                let is_free = self.used.get(&address).is_none_or(|(_, last)| now.saturating_sub(*last) > IDLE);
                if is_free {
                    return Some(address);
                }
            }
        }
        None
    }

    fn forget_oldest(&mut self, account: u32) {
        let of_account = self.used.iter().filter(|(_, (client, _))| client.holder.account() == account);
        let oldest = of_account.min_by_key(|(_, (_, last))| *last).map(|(address, _)| *address);
        if let Some(address) = oldest {
            self.take_back(address);
        }
    }

    fn release(&mut self, account: u32) {
        if let Some(count) = self.accounts.get_mut(&account) {
            *count -= 1;
            if *count == 0 {
                self.accounts.remove(&account);
            }
        }
    }
}

fn nth(network: &IpNet, number: u128) -> IpAddr {
    match network {
        IpNet::V4(network) => std::net::Ipv4Addr::from(u32::from(network.network()).wrapping_add(number as u32)).into(),
        IpNet::V6(network) => std::net::Ipv6Addr::from(u128::from(network.network()).wrapping_add(number)).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(account: u32, address: &str) -> Client {
        Client { holder: Holder::new(account, 1).expect("small"), address: address.parse().expect("an address") }
    }

    fn networks() -> Vec<IpNet> {
        ["100.64.0.0/24", "fd00:7::/64"].map(|network| network.parse().expect("a network")).into()
    }

    #[test]
    fn two_clients_with_one_address_have_different_ones_inside() {
        let mut inside = Inside::new(networks(), 1);
        for address in ["192.168.1.2", "fe80::1"] {
            let (one, other) = (client(1, address), client(2, address));
            let (first, second) = (inside.of(one, 0).expect("room"), inside.of(other, 0).expect("room"));
            assert_ne!(first, second);
            assert_eq!(first.is_ipv4(), one.address.is_ipv4());
            assert_eq!(inside.of(one, 5), Some(first));
            assert_eq!((inside.client(first), inside.client(second)), (Some(one), Some(other)));
        }
    }

    #[test]
    fn a_client_has_the_same_address_after_a_restart() {
        let one = client(1, "192.168.1.2");
        assert_eq!(Inside::new(networks(), 1).of(one, 0), Inside::new(networks(), 1).of(one, 9));
    }

    #[test]
    fn a_client_gets_the_address_that_it_has_elsewhere_and_takes_none_from_others() {
        let (mut first, mut second) = (Inside::new(networks(), 1), Inside::new(networks(), 2));
        let (one, other) = (client(1, "192.168.1.2"), client(2, "192.168.1.2"));
        let address = first.of(one, 0).expect("room");
        assert!(second.take_over(one, address, 0) && second.take_over(one, address, 5));
        assert_eq!((second.of(one, 9), second.client(address)), (Some(address), Some(one)));
        assert!(!second.take_over(other, address, IDLE + 9), "it is in use until it has been idle");
        let own = second.of(other, 9).expect("room");
        assert!(!second.take_over(other, first.of(other, 9).expect("room"), 9), "flows here have another");
        assert_eq!((second.of(other, 9), second.client(address)), (Some(own), Some(one)));
        assert!(second.take_over(other, address, IDLE + 10));
        assert_eq!((second.client(address), second.client(own)), (Some(other), None));
        assert_ne!(second.of(one, IDLE + 11), Some(address));
        for wrong in ["100.64.0.0", "100.64.0.1", "100.64.0.255", "100.64.1.7", "fd00:7::9"] {
            assert!(!second.take_over(client(3, "10.0.0.1"), wrong.parse().expect("an address"), 0), "{wrong}");
        }
    }

    #[test]
    fn addresses_that_are_taken_over_count_for_their_account() {
        let mut inside = Inside::new(networks(), 1);
        for number in 0..100u8 {
            let (of, address) = (format!("10.0.0.{number}"), format!("100.64.0.{}", 2 + number));
            assert!(inside.take_over(client(1, &of), address.parse().expect("an address"), u64::from(number)));
        }
        assert_eq!(inside.list().count(), OF_ACCOUNT);
    }

    #[test]
    fn an_account_that_takes_many_takes_them_from_itself() {
        let mut inside = Inside::new(networks(), 1);
        let other = inside.of(client(2, "10.0.0.1"), 0);
        for number in 0..1000u32 {
            let address = format!("10.1.{}.{}", number / 256, number % 256);
            assert!(inside.of(client(1, &address), u64::from(number)).is_some());
        }
        assert_eq!(inside.list().filter(|(_, client)| client.holder.account() == 1).count(), OF_ACCOUNT);
        assert_eq!(inside.of(client(2, "10.0.0.1"), 0), other);
    }

    #[test]
    fn a_full_network_refuses_newcomers_until_an_address_is_idle() {
        let mut inside = Inside::new(vec!["100.64.0.0/29".parse().expect("a network")], 1);
        let many: Vec<_> = (0..6).map(|account| inside.of(client(account, "10.0.0.1"), 0)).collect();
        assert_eq!(many.iter().flatten().count(), 5, "eight less the network's, the verifier's, the last");
        assert_eq!(inside.of(client(9, "10.0.0.1"), IDLE), None);
        assert!(inside.of(client(9, "10.0.0.1"), IDLE + 1).is_some());
    }
}
