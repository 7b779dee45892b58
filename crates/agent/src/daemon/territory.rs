//! The addresses at which the agent connects to authorities on behalf of a user. An organisation's authority names the
//! other members of its cluster, and it may control what the name server says about its own name. So it could make the
//! agent knock at another organisation's addresses, as the user.

use crate::sessions::Kept;
use client::Bounds;
use ipnet::IpNet;
use reach::organisation::{OrganisationName, shown};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock};

/// The networks of all users' organisations. Clones share them with the clients of authorities.
#[derive(Clone)]
pub(super) struct Territory {
    /// Networks that the administrator has given to organisations, for all users.
    configured: Arc<BTreeMap<OrganisationName, Vec<IpNet>>>,
    /// For each user, the organisations that may speak only for certain networks, and these networks.
    of_users: Arc<RwLock<BTreeMap<u32, Networks>>>,
}

/// The names of organisations, each with its networks.
type Networks = Vec<(String, Vec<IpNet>)>;

impl Territory {
    pub fn new(configured: BTreeMap<OrganisationName, Vec<IpNet>>) -> Self {
        Self { configured: Arc::new(configured), of_users: Arc::default() }
    }

    /// Takes over the networks of a user's organisations. From then on, the agent's connections to one organisation's
    /// authority on behalf of this user can't go to the networks of another organisation.
    pub fn note(&self, uid: u32, kept: &Kept) {
        let limited = kept.all().filter_map(|(_, name, networks)| Some((shown(name).to_owned(), networks?.to_vec())));
        let limited = limited.collect();
        self.of_users.write().unwrap_or_else(PoisonError::into_inner).insert(uid, limited);
    }

    /// Returns the limits of a client of an organisation's authority. `own` contains the organisation's networks;
    /// `None` stands for all networks that no other organisation has.
    pub fn limits(&self, uid: u32, organisation: Option<&OrganisationName>, own: Option<Vec<IpNet>>) -> Arc<Limits> {
        Arc::new(Limits { territory: self.clone(), uid, name: shown(organisation).to_owned(), own })
    }

    /// Returns the organisation other than `name` to which the configuration gives an address, and the network with
    /// this address.
    fn configured_other(&self, name: &str, address: IpAddr) -> Option<(String, IpNet)> {
        let has = |networks: &[IpNet]| networks.iter().find(|network| network.contains(&address)).copied();
        let mut others = self.configured.iter().filter(|(other, _)| other.as_str() != name);
        others.find_map(|(other, networks)| Some((other.to_string(), has(networks)?)))
    }

    /// Returns the organisation other than `name` that has a network with this address, and this network.
    fn other(&self, uid: u32, name: &str, address: IpAddr) -> Option<(String, IpNet)> {
        let has = |networks: &[IpNet]| networks.iter().find(|network| network.contains(&address)).copied();
        self.configured_other(name, address).or_else(|| {
            let of_users = self.of_users.read().unwrap_or_else(PoisonError::into_inner);
            let mut others = of_users.get(&uid).into_iter().flatten().filter(|(other, _)| {
                // The configuration replaces what the user has stored for the organisation.
                other != name && !self.configured.keys().any(|known| known.as_str() == other)
            });
            others.find_map(|(other, networks)| Some((other.clone(), has(networks)?)))
        })
    }
}

/// The limits of a client of one organisation's authority.
pub(super) struct Limits {
    territory: Territory,
    uid: u32,
    name: String,
    own: Option<Vec<IpNet>>,
}

impl Bounds for Limits {
    fn refusal(&self, host: &str, address: IpAddr, is_named: bool) -> Option<String> {
        let Self { territory, uid, name, own } = self;
        let at = if host.parse::<IpAddr>().is_ok() { String::new() } else { format!(" at {address}") };
        let whose = if is_named { "the authority" } else { "a member of the cluster" };
        let flag = format!("--network {}", IpNet::from(address));
        // Networks that the user has stored don't count where a later configuration gives them to another organisation.
        let is_taken = territory.configured_other(name, address).is_some();
        if !is_taken && own.iter().flatten().any(|network| network.contains(&address)) {
            return None;
        }
        if let Some((other, network)) = territory.other(*uid, name, address) {
            return Some(format!(
                "{whose} of organisation {name:?} is said to be {host}{at}, but {network} belongs to organisation \
                 {other:?}. If this address is right, give {other:?} other networks (by a login, or in the agent's \
                 configuration), and then log in to {name:?} with `{flag}`"
            ));
        }
        match own {
            Some(_) if !is_named => Some(format!(
                "{whose} of organisation {name:?} is said to be {host}{at}, which is outside of the networks that you \
                 have given to {name:?}. If this address is right, log in again with all its networks and `{flag}`"
            )),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn networks(text: &str) -> Vec<IpNet> {
        text.split_whitespace().map(|network| network.parse().unwrap()).collect()
    }

    #[test]
    fn members_are_inside_their_organisations_networks_and_in_no_others() {
        let name = |text: &str| text.parse::<OrganisationName>().unwrap();
        let territory = Territory::new([(name("umbrella"), networks("198.51.100.0/24"))].into());
        let (acme, umbrella) = (name("acme"), name("umbrella"));
        let mut kept = Kept::default();
        let own = networks("203.0.113.0/24 2001:db8:5::/48");
        kept.set_networks(Some(&acme), Some(own.clone()));
        let default = territory.limits(1000, None, None);
        let of_acme = territory.limits(1000, Some(&acme), Some(own));
        let of_umbrella = territory.limits(1000, Some(&umbrella), Some(networks("198.51.100.0/24")));
        let may = |limits: &Limits, address: &str, is_named| {
            limits.refusal("vouchsafe.example.org", address.parse().unwrap(), is_named).is_none()
        };
        assert!(may(&default, "203.0.113.9", false), "the user has no organisation acme yet");
        territory.note(1000, &kept);
        for (limits, address, as_member, as_named) in [
            (&default, "192.0.2.1", true, true),
            (&default, "203.0.113.9", false, false),
            (&default, "2001:db8:5::1", false, false),
            (&default, "198.51.100.1", false, false),
            (&of_acme, "203.0.113.9", true, true),
            (&of_acme, "2001:db8:5::1", true, true),
            // The authority that the user named may be anywhere, but not where another organisation is.
            (&of_acme, "192.0.2.1", false, true),
            (&of_acme, "127.0.0.1", false, true),
            (&of_acme, "198.51.100.1", false, false),
            (&of_umbrella, "198.51.100.1", true, true),
            (&of_umbrella, "203.0.113.9", false, false),
        ] {
            assert_eq!((may(limits, address, false), may(limits, address, true)), (as_member, as_named), "{address}");
        }
        assert!(may(&territory.limits(1001, None, None), "203.0.113.9", false), "another user");
        let why = of_acme.refusal("198.51.100.1", "198.51.100.1".parse().unwrap(), false).unwrap();
        let words = ["acme", "umbrella", "198.51.100.1", "198.51.100.0/24", "--network 198.51.100.1/32"];
        assert!(words.iter().all(|word| why.contains(word)), "{why}");
        let why = of_acme.refusal("two.example.org", "192.0.2.1".parse().unwrap(), false).unwrap();
        let words = ["acme", "two.example.org at 192.0.2.1", "--network 192.0.2.1/32"];
        assert!(words.iter().all(|word| why.contains(word)), "{why}");
        kept.forget(Some(&acme));
        territory.note(1000, &kept);
        assert!(may(&default, "203.0.113.9", false), "forgotten");
    }

    #[test]
    fn stored_networks_give_way_to_a_later_configuration() {
        let name = |text: &str| text.parse::<OrganisationName>().unwrap();
        let territory = Territory::new([(name("umbrella"), networks("198.51.100.0/25"))].into());
        let acme = name("acme");
        let stored = networks("198.51.100.0/24");
        let mut kept = Kept::default();
        kept.set_networks(Some(&acme), Some(stored.clone()));
        territory.note(1000, &kept);
        let limits = territory.limits(1000, Some(&acme), Some(stored));
        let refusal = |address: &str, is_named| limits.refusal("one.example.org", address.parse().unwrap(), is_named);
        for is_named in [false, true] {
            assert!(refusal("198.51.100.1", is_named).is_some_and(|why| why.contains("umbrella")), "{is_named}");
            assert_eq!(refusal("198.51.100.200", is_named), None);
        }
    }
}
