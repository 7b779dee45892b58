//! A session in the form in which the agent, or a user's own commands, store it. Also the networks of organisations, in
//! the form in which a user's own commands store them.

use crate::organisation::OrganisationName;
use client::{Authority, Error};
use engine::agent::{Organisations, Subject};
use engine::model::Receiver;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// A stored session. Has no `Debug` because it contains a secret.
#[derive(Clone, Serialize, Deserialize)]
pub struct KeptSession {
    /// The authority's URL, or the name for which DNS lists its servers.
    pub authority: String,
    /// The addresses of all authorities in the cluster of `authority`, from the latest answer; empty if `authority` is
    /// in no cluster.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub authorities: Vec<String>,
    /// The certificates to trust, PEM; `None` for the system's.
    pub ca: Option<String>,
    /// The bearer token, which is secret. In the session's file, this is empty if the token is in the user's keyring.
    pub token: String,
    /// The person's name.
    pub person: String,
    /// The device's name.
    pub device: String,
    /// End of the session, Unix seconds.
    pub expires: u64,
    /// The receivers that the person may reach, from the authority's latest answer.
    #[serde(default)]
    pub receivers: Vec<Receiver>,
    /// Names of the receivers to which packets may travel only in a sealed tunnel.
    #[serde(default)]
    pub sealed: BTreeSet<String>,
    /// Number of seconds by which the authority's clock was ahead of this machine's clock.
    #[serde(default)]
    pub skew: i32,
}

impl KeptSession {
    /// Returns a client of the session's authority, or of its cluster. The client sends the session's token.
    ///
    /// # Errors
    ///
    /// Fails if the address or a certificate is malformed, or if there are no certificates to trust.
    pub fn caller(&self) -> Result<Authority, Error> {
        Ok(self.knowing(Authority::new(&self.authority, self.ca.as_deref().map(str::as_bytes))?))
    }

    /// Returns the client `authority` with the session's token and the list of the cluster's authorities.
    pub fn knowing(&self, authority: Authority) -> Authority {
        authority.learn(&self.authorities);
        authority.with_token(&self.token)
    }
}

/// The subjects of a user's own sessions have the same number, because a process serves one user only.
const OWN: Subject = Subject::of_user(0);

/// The networks of a user's organisations, for the user's own sessions. The networks remain after a session has ended,
/// so that no other organisation can claim them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeptNetworks {
    /// The only networks for which the default organisation may speak. `None` if it may speak for all networks that no
    /// other organisation has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    default: Option<Vec<IpNet>>,
    /// The networks of organisations with a name.
    #[serde(default)]
    organisations: BTreeMap<OrganisationName, Vec<IpNet>>,
}

impl KeptNetworks {
    /// Returns the organisations, each with its subject and networks. The default one is the first.
    pub fn all(&self) -> impl Iterator<Item = (Subject, Option<&OrganisationName>, Option<&[IpNet]>)> {
        let named = (1..).zip(&self.organisations);
        let named =
            named.map(|(number, (name, networks))| (OWN.in_organisation(number), Some(name), Some(&**networks)));
        std::iter::once((OWN, None, self.default.as_deref())).chain(named)
    }

    /// Returns the user's subject in an organisation; `None` if the user does not have this organisation.
    pub fn subject(&self, name: Option<&OrganisationName>) -> Option<Subject> {
        self.all().find(|(_, known, _)| *known == name).map(|(subject, ..)| subject)
    }

    /// Reports whether the user has only the default organisation, which may speak for every address.
    pub fn are_default(&self) -> bool {
        *self == Self::default()
    }

    /// Sets the networks of an organisation.
    pub fn set(&mut self, name: Option<&OrganisationName>, networks: Option<Vec<IpNet>>) {
        match name {
            None => self.default = networks,
            Some(name) => drop(self.organisations.insert(name.clone(), networks.unwrap_or_default())),
        }
    }

    /// Forgets the networks of an organisation. If the organisation has a name, also forgets the organisation.
    pub fn forget(&mut self, name: Option<&OrganisationName>) {
        match name {
            None => self.default = None,
            Some(name) => drop(self.organisations.remove(name)),
        }
    }

    /// Returns the table that says which organisation may speak for an address.
    pub fn territory(&self) -> Territory {
        let mut organisations = Organisations::new(Vec::new());
        for (subject, _, networks) in self.all() {
            organisations.set(subject, networks.map(<[IpNet]>::to_vec));
        }
        Territory(organisations)
    }
}

/// The table that says which of a user's organisations may speak for an address.
pub struct Territory(Organisations);

impl Territory {
    /// Returns the user's subject in the organisation that may speak for this address; `None` if no organisation may.
    pub fn at(&self, address: std::net::IpAddr) -> Option<Subject> {
        self.0.at(OWN.number(), address.to_canonical())
    }

    /// Returns the receivers for which the organisation may speak, and the networks of the other receivers.
    pub fn claims(&self, subject: Subject, receivers: Vec<Receiver>) -> (Vec<Receiver>, Vec<IpNet>) {
        let (own, others): (Vec<_>, Vec<_>) =
            receivers.into_iter().partition(|receiver| self.0.may_claim(subject, &receiver.prefix));
        (own, others.into_iter().map(|receiver| receiver.prefix).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agents_table_decides_which_own_session_an_address_belongs_to() {
        let name = |text: &str| text.parse::<OrganisationName>().unwrap();
        let networks = |text: &str| vec![text.parse::<IpNet>().unwrap()];
        let mut kept = KeptNetworks::default();
        assert!(kept.are_default());
        kept.set(Some(&name("acme")), Some(networks("203.0.113.0/24")));
        kept.set(Some(&name("zeta")), Some(networks("2001:db8:5::/48")));
        let text = serde_json::to_string(&kept).unwrap();
        assert_eq!(serde_json::from_str::<KeptNetworks>(&text).unwrap(), kept);
        let at = |kept: &KeptNetworks, address: &str| {
            let subject = kept.territory().at(address.parse().unwrap());
            kept.all().find(|(known, ..)| Some(*known) == subject).map(|(_, name, _)| name.map(ToString::to_string))
        };
        assert_eq!(at(&kept, "192.0.2.1"), Some(None));
        assert_eq!(at(&kept, "203.0.113.9"), Some(Some("acme".to_owned())));
        assert_eq!(at(&kept, "::ffff:203.0.113.9"), Some(Some("acme".to_owned())));
        assert_eq!(at(&kept, "2001:db8:5::9"), Some(Some("zeta".to_owned())));
        let receiver = |prefix: &str| Receiver { name: "r".into(), prefix: prefix.parse().unwrap(), services: vec![] };
        let claims = ["203.0.113.9/32", "203.0.112.0/23", "192.0.2.1/32"].map(receiver).to_vec();
        let acme = kept.subject(Some(&name("acme"))).unwrap();
        let (own, others) = kept.territory().claims(acme, claims.clone());
        assert_eq!((own.len(), others.len()), (1, 2), "only what is completely inside");
        assert_eq!(kept.territory().claims(OWN, claims).0.len(), 1, "the default organisation has the rest");
        kept.set(None, Some(networks("192.0.2.0/24")));
        assert_eq!(at(&kept, "198.51.100.1"), None);
        kept.forget(Some(&name("acme")));
        assert!(kept.subject(Some(&name("acme"))).is_none() && at(&kept, "203.0.113.9").is_none());
    }
}
