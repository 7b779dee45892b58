//! Each user's organisations, the networks for which each organisation may speak, and the logins that these networks
//! permit. An authority's answer never adds a network.

use super::Daemon;
use super::territory::Limits;
use crate::sessions::Kept;
use engine::agent::{Subject, overlap};
use engine::model::Receiver;
use ipnet::IpNet;
use reach::joining::{self, Known, NETWORKS_MAX, Refusal, Wanted};
use reach::kept::KeptSession;
use reach::organisation::{OrganisationName, shown};
use reach::protocol::Organisation;
use std::sync::Arc;

/// The organisation that a login or a logout concerns.
#[derive(Clone)]
pub(super) struct LoginScope {
    pub uid: u32,
    /// The organisation; `None` for the user's default organisation.
    pub organisation: Option<OrganisationName>,
    /// The networks that the user lets the organisation speak for. If empty, the organisation's networks stay as they
    /// are.
    pub networks: Vec<IpNet>,
}

impl Daemon {
    /// Returns the subject of a user in an organisation, if the user has this organisation.
    pub(super) fn subject(&self, uid: u32, organisation: Option<&OrganisationName>) -> Option<Subject> {
        let number = match organisation {
            None => 0,
            Some(_) => self.kept.get(&uid)?.number(organisation)?,
        };
        Some(Subject::of_user(uid).in_organisation(number))
    }

    pub(super) fn kept_session(&self, subject: Subject) -> Option<&KeptSession> {
        self.kept.get(&subject.user())?.session(subject.organisation())
    }

    pub(super) fn kept_session_mut(&mut self, subject: Subject) -> Option<&mut KeptSession> {
        self.kept.get_mut(&subject.user())?.session_mut(subject.organisation())?.as_mut()
    }

    pub(super) fn set_session(&mut self, subject: Subject, session: Option<KeptSession>) -> Option<KeptSession> {
        let former = self.kept.entry(subject.user()).or_default().session_mut(subject.organisation())?;
        std::mem::replace(former, session)
    }

    /// Sets the networks of all of a user's organisations after a restart. If a stored network overlaps a network of an
    /// organisation in the configuration, or of an earlier organisation, the stored network is left out.
    pub(super) fn restore_networks(&mut self, uid: u32, kept: &Kept) {
        self.territory.note(uid, kept);
        let configured = self.settings.organisations.iter();
        let mut taken: Vec<(String, IpNet)> = configured
            .flat_map(|(name, networks)| networks.iter().map(move |network| (name.to_string(), *network)))
            .collect();
        for (number, name, networks) in kept.all() {
            let fixed = name.and_then(|name| self.settings.organisations.get(name));
            let networks = match (fixed, networks) {
                (Some(fixed), _) => Some(fixed.clone()),
                (None, None) => None,
                (None, Some(networks)) => Some(unclaimed(shown(name), networks, &mut taken)),
            };
            self.agent.set_networks(Subject::of_user(uid).in_organisation(number), networks);
        }
    }

    /// Returns the networks for which an organisation may speak once a user has logged in there; `None` stands for all
    /// networks that no other organisation has.
    ///
    /// # Errors
    ///
    /// Returns, as the kind and text of a refusal, why the user can't log in to the organisation in this way.
    pub(super) fn plan(&self, scope: &LoginScope, url: &str) -> Result<Option<Vec<IpNet>>, Refusal> {
        let nobody = Kept::default();
        let kept = self.kept.get(&scope.uid).unwrap_or(&nobody);
        let known = kept.all().map(|(number, name, networks)| Known { name, networks, session: kept.session(number) });
        let LoginScope { organisation, networks, .. } = scope;
        let wanted = Wanted { organisation: organisation.as_ref(), networks, authority: url };
        joining::plan(&wanted, &known.collect::<Vec<_>>(), &self.settings.organisations)
    }

    /// Returns the limits of a client of the authority of a user's organisation.
    pub(super) fn limits(&self, subject: Subject) -> Arc<Limits> {
        let uid = subject.user();
        let found = self.kept.get(&uid).and_then(|kept| {
            kept.all().find(|(number, ..)| *number == subject.organisation()).map(|(_, name, networks)| {
                let fixed = name.and_then(|name| self.settings.organisations.get(name)).cloned();
                (name, fixed.or_else(|| networks.map(<[IpNet]>::to_vec)))
            })
        });
        let (name, own) = found.unwrap_or_default();
        self.territory.limits(uid, name, own)
    }

    /// Splits an authority's receivers into those for which its organisation may speak, and the networks of the others.
    pub(super) fn claims(&self, subject: Subject, receivers: Vec<Receiver>) -> (Vec<Receiver>, Vec<IpNet>) {
        let (own, others): (Vec<_>, Vec<_>) =
            receivers.into_iter().partition(|receiver| self.agent.may_claim(subject, &receiver.prefix));
        (own, others.into_iter().map(|receiver| receiver.prefix).collect())
    }

    /// Remembers the claims of an authority that the agent ignores, for `status`.
    pub(super) fn note_refused(&mut self, subject: Subject, mut refused: Vec<IpNet>) {
        let name = self.kept.get(&subject.user()).and_then(|kept| kept.name(subject.organisation()));
        let name = shown(name).to_owned();
        refused.truncate(NETWORKS_MAX);
        let Some(connection) = self.connections.get_mut(&subject) else { return };
        if !refused.is_empty() && connection.refused != refused {
            let claims: Vec<_> = refused.iter().map(IpNet::to_string).collect();
            tracing::warn!(
                uid = subject.user(),
                organisation = name,
                claims = claims.join(" "),
                "the authority claims networks for which it may not speak: the agent ignores these receivers"
            );
        }
        connection.refused = refused;
    }

    /// Returns a user's organisations as the agent displays them, the default one first.
    pub(super) fn organisations(&self, uid: u32) -> Vec<Organisation> {
        let nobody = Kept::default();
        let kept = self.kept.get(&uid).unwrap_or(&nobody);
        let shown_one = |(number, name, networks): (u16, Option<&OrganisationName>, Option<&[IpNet]>)| {
            let subject = Subject::of_user(uid).in_organisation(number);
            let fixed = name.and_then(|name| self.settings.organisations.get(name));
            Organisation {
                name: shown(name).to_owned(),
                networks: fixed.cloned().or_else(|| networks.map(<[IpNet]>::to_vec)),
                session: self.shown_session(subject),
                refused: self.connections.get(&subject).map(|one| one.refused.clone()).unwrap_or_default(),
                refused_members: self.connections.get(&subject).map(|one| one.authority.refused()).unwrap_or_default(),
            }
        };
        kept.all().map(shown_one).collect()
    }
}

/// Returns those of an organisation's networks that do not overlap another one's, and adds them to `taken`.
fn unclaimed(name: &str, networks: &[IpNet], taken: &mut Vec<(String, IpNet)>) -> Vec<IpNet> {
    let mut own = Vec::new();
    for network in networks {
        match taken.iter().find(|(_, other)| overlap(other, network)) {
            Some((other, theirs)) if other != name => tracing::error!(
                "organisations {name:?} ({network}) and {other:?} ({theirs}) speak for the same addresses: {name:?} \
                 loses {network}"
            ),
            _ => own.push(*network),
        }
    }
    taken.extend(own.iter().map(|network| (name.to_owned(), *network)));
    own
}
