//! The organisations of each user, and the networks for which each organisation may speak.
//!
//! A user may be logged in to the authorities of several organisations at once. Authorities of different organisations
//! do not trust each other, so no authority decides for which addresses it may speak. The networks come from the user
//! or from the administrator of the machine. An address belongs to at most one organisation of a user, and only this
//! organisation's session gives tokens for it. The agent and clients without root decide this with the same code.

use super::Subject;
use ipnet::IpNet;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// The networks of all users' organisations.
#[derive(Default)]
pub struct Organisations {
    /// Networks of the organisations that are limited to some networks.
    limits: BTreeMap<Subject, Vec<IpNet>>,
    /// Networks that the administrator has given to organisations, for all users.
    reserved: Vec<IpNet>,
}

impl Organisations {
    /// Creates a table without organisations. The networks in `reserved` belong to no user's default organisation.
    pub fn new(reserved: Vec<IpNet>) -> Self {
        Self { limits: BTreeMap::new(), reserved }
    }

    /// Limits an organisation to these networks. With `None`, forgets the limits of the organisation. Without limits,
    /// the default organisation may speak for each address that is neither reserved nor given to another organisation.
    /// Any other organisation may then speak for no address.
    pub fn set(&mut self, subject: Subject, networks: Option<Vec<IpNet>>) {
        match networks {
            Some(networks) => drop(self.limits.insert(subject, networks)),
            None => drop(self.limits.remove(&subject)),
        }
    }

    /// Reports whether an organisation may speak for all addresses of a prefix.
    pub fn may_claim(&self, subject: Subject, prefix: &IpNet) -> bool {
        match self.limits.get(&subject) {
            Some(networks) => networks.iter().any(|network| network.contains(prefix)),
            None if !subject.is_default() => false,
            None => {
                let others = self.limits.range(subject.all()).flat_map(|(_, networks)| networks);
                !others.chain(&self.reserved).any(|network| overlap(network, prefix))
            }
        }
    }

    /// Finds the organisation of a user that may speak for `address`, and returns the user's subject with this
    /// organisation. `number` is the number that all subjects of the user have.
    pub fn at(&self, number: u32, address: IpAddr) -> Option<Subject> {
        let default = Subject { number, organisation: 0 };
        let has = |networks: &[IpNet]| networks.iter().any(|network| network.contains(&address));
        let limited = self.limits.range(default.all()).find(|(_, networks)| has(networks));
        let rest = || (!self.limits.contains_key(&default) && !has(&self.reserved)).then_some(default);
        limited.map(|(subject, _)| *subject).or_else(rest)
    }
}

/// Reports whether two networks have an address in common.
pub fn overlap(one: &IpNet, other: &IpNet) -> bool {
    one.contains(other) || other.contains(one)
}
