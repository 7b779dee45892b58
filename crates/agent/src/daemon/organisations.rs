//! Each user's organisations, the networks for which each organisation may speak, and the logins that these networks
//! permit. An authority's answer never adds a network.

use super::Daemon;
use super::territory::Limits;
use crate::sessions::Kept;
use engine::agent::{Subject, overlap};
use engine::discovery::AuthorityUrl;
use engine::model::Receiver;
use ipnet::IpNet;
use reach::kept::KeptSession;
use reach::organisation::{OrganisationName, shown};
use reach::protocol::Organisation;
use std::sync::Arc;

/// Maximum number of a user's organisations with a name. Their receivers together are about as many as those of the
/// default organisation.
const ORGANISATIONS_MAX: usize = 4;
/// Maximum number of an organisation's networks.
const NETWORKS_MAX: usize = 64;

/// The organisation that a login or a logout concerns.
#[derive(Clone)]
pub(super) struct Place {
    pub uid: u32,
    /// `None` for the user's default organisation.
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
        let place = self.kept.entry(subject.user()).or_default().session_mut(subject.organisation())?;
        std::mem::replace(place, session)
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
    pub(super) fn plan(&self, place: &Place, url: &str) -> Result<Option<Vec<IpNet>>, (&'static str, String)> {
        let name = shown(place.organisation.as_ref());
        let nobody = Kept::default();
        let kept = self.kept.get(&place.uid).unwrap_or(&nobody);
        let networks = self.wanted(place, kept)?;
        for network in networks.iter().flatten() {
            for (other, theirs) in self.others(place, kept) {
                if let Some(taken) = theirs.iter().find(|taken| overlap(taken, network)) {
                    let text = format!(
                        "organisations {name:?} ({network}) and {other:?} ({taken}) would both speak for the same \
                         addresses: give one of them other networks (`vouchsafe login --network`), or forget {other:?} \
                         (`vouchsafe logout --forget`)"
                    );
                    return Err(("overlap", text));
                }
            }
        }
        if let Some(networks) = &networks
            && place.organisation.is_some()
            && kept.networks.is_none()
            && let Some(session) = kept.session(0)
        {
            let is_in = |receiver: &&Receiver| networks.iter().any(|network| overlap(network, &receiver.prefix));
            if let Some(receiver) = session.receivers.iter().find(is_in) {
                let text = format!(
                    "organisation {name:?} would speak for addresses that organisation {:?} ({}) protects already: {} \
                     is its receiver {:?}. Give {name:?} other networks, or log out there",
                    shown(None),
                    session.authority,
                    receiver.prefix,
                    receiver.name
                );
                return Err(("overlap", text));
            }
        }
        let own = kept.number(place.organisation.as_ref());
        for (number, other, _) in kept.all().filter(|(number, ..)| Some(*number) != own) {
            if kept.session(number).is_some_and(|session| is_same(&session.authority, url)) {
                let text = format!(
                    "{url} is the authority of your organisation {:?} already: log out there first, or leave out \
                     --organisation",
                    shown(other)
                );
                return Err(("same_authority", text));
            }
        }
        Ok(networks)
    }

    /// Returns the networks that a login wants for its organisation.
    fn wanted(&self, place: &Place, kept: &Kept) -> Result<Option<Vec<IpNet>>, (&'static str, String)> {
        let given: Vec<_> = place.networks.iter().map(IpNet::trunc).collect();
        let Some(name) = &place.organisation else {
            return Ok(if given.is_empty() { kept.networks.clone() } else { Some(limited(given)?) });
        };
        if let Some(fixed) = self.settings.organisations.get(name) {
            if !given.is_empty() && given != *fixed {
                let text =
                    format!("the configuration of this machine fixes the networks of {name}: leave out --network");
                return Err(("fixed_networks", text));
            }
        } else if given.is_empty() && !kept.organisations.contains_key(name) {
            let text = format!(
                "for which addresses may the authority of {name} speak? State them with --network, for example \
                 `--network 192.0.2.0/24`, once for each network"
            );
            return Err(("no_networks", text));
        }
        if !kept.organisations.contains_key(name) && kept.organisations.len() >= ORGANISATIONS_MAX {
            let text =
                format!("you have {ORGANISATIONS_MAX} organisations: forget one with `vouchsafe logout --forget`");
            return Err(("too_many_organisations", text));
        }
        let known = kept.organisations.get(name).map(|one| one.networks.clone());
        let own = if given.is_empty() { known } else { Some(limited(given)?) };
        Ok(Some(self.settings.organisations.get(name).cloned().or(own).unwrap_or_default()))
    }

    /// Returns the limited networks of all organisations but one: the user's, and those of the configuration.
    fn others<'a>(&'a self, place: &'a Place, kept: &'a Kept) -> impl Iterator<Item = (&'a str, &'a [IpNet])> {
        let own = shown(place.organisation.as_ref());
        let configured = self.settings.organisations.iter();
        let configured = configured.map(|(name, networks)| (name.as_str(), networks.as_slice()));
        let users = kept.all().filter_map(|(_, name, networks)| Some((shown(name), networks?)));
        let is_configured = |name: &str| self.settings.organisations.keys().any(|known| known.as_str() == name);
        let users = users.filter(move |(name, _)| !is_configured(name));
        configured.chain(users).filter(move |(name, _)| *name != own)
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

    /// Returns a user's organisations in the form for display, the default one first.
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

fn limited(networks: Vec<IpNet>) -> Result<Vec<IpNet>, (&'static str, String)> {
    match networks.len() {
        0..=NETWORKS_MAX => Ok(networks),
        _ => Err(("too_many_networks", format!("an organisation can have at most {NETWORKS_MAX} networks"))),
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

fn is_same(one: &str, other: &str) -> bool {
    match (one.parse::<AuthorityUrl>(), other.parse::<AuthorityUrl>()) {
        (Ok(one), Ok(other)) => one == other,
        _ => one == other,
    }
}
