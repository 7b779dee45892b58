//! The networks for which an organisation may speak once a user has logged in there, for the agent and for a user's own
//! sessions. The networks come from the user, or from the machine's administrator. An authority's answer never adds
//! one.

use crate::kept::KeptSession;
use crate::organisation::{OrganisationName, shown};
use engine::agent::overlap;
use engine::discovery::servers::name_the_same;
use engine::model::Receiver;
use ipnet::IpNet;
use std::collections::BTreeMap;

/// Maximum number of a user's organisations with a name. At the agent, each of these organisations may have a quarter
/// of the receivers that the default organisation may have. So all of them together may have as many.
const ORGANISATIONS_MAX: usize = 4;
/// Maximum number of an organisation's networks.
pub const NETWORKS_MAX: usize = 64;

/// One of a user's organisations, as it was before a login.
#[derive(Clone, Copy)]
pub struct Known<'a> {
    /// The organisation's name; `None` for the default one.
    pub name: Option<&'a OrganisationName>,
    /// The only networks for which the organisation may speak.
    pub networks: Option<&'a [IpNet]>,
    /// The user's session with the organisation.
    pub session: Option<&'a KeptSession>,
}

/// A login that a user wants.
#[derive(Clone, Copy)]
pub struct Wanted<'a> {
    /// The organisation; `None` for the default one.
    pub organisation: Option<&'a OrganisationName>,
    /// The networks that the user lets the organisation speak for. If empty, the organisation's networks stay as they
    /// are.
    pub networks: &'a [IpNet],
    /// The authority, as the user names it.
    pub authority: &'a str,
}

/// The kind and the text of the refusal of a login.
pub type Refusal = (&'static str, String);

/// Returns the networks for which an organisation may speak once the user has logged in there; `None` stands for all
/// networks that no other organisation has. `known` contains all of the user's organisations, the default one too.
/// `configured` contains the networks that the machine's administrator gives to organisations.
///
/// # Errors
///
/// Returns the reason why the user can't log in to the organisation in this way.
pub fn plan(
    wanted: &Wanted<'_>,
    known: &[Known<'_>],
    configured: &BTreeMap<OrganisationName, Vec<IpNet>>,
) -> Result<Option<Vec<IpNet>>, Refusal> {
    let Wanted { organisation, authority, .. } = *wanted;
    let name = shown(organisation);
    let networks = networks(wanted, known, configured)?;
    for network in networks.iter().flatten() {
        for (other, theirs) in others(organisation, known, configured) {
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
    let default = known.iter().find(|one| one.name.is_none());
    if let Some(networks) = &networks
        && organisation.is_some()
        && let Some(Known { networks: None, session: Some(session), .. }) = default
    {
        let is_in = |receiver: &&Receiver| networks.iter().any(|network| overlap(network, &receiver.prefix));
        if let Some(receiver) = session.receivers.iter().find(is_in) {
            let text = format!(
                "organisation {name:?} would speak for addresses that organisation {:?} ({}) protects already: {} is \
                 the receiver {:?} there. Give {name:?} other networks, or log out of the other organisation",
                shown(None),
                session.authority,
                receiver.prefix,
                receiver.name
            );
            return Err(("overlap", text));
        }
    }
    for other in known.iter().filter(|other| other.name != organisation) {
        if other.session.is_some_and(|session| name_the_same(&session.authority, authority)) {
            let text = format!(
                "{authority} is the authority of your organisation {:?} already: log out there first, or leave out \
                 --organisation",
                shown(other.name)
            );
            return Err(("same_authority", text));
        }
    }
    Ok(networks)
}

/// Returns the networks that a login wants for its organisation.
fn networks(
    wanted: &Wanted<'_>,
    known: &[Known<'_>],
    configured: &BTreeMap<OrganisationName, Vec<IpNet>>,
) -> Result<Option<Vec<IpNet>>, Refusal> {
    let given: Vec<_> = wanted.networks.iter().map(IpNet::trunc).collect();
    let before = known.iter().find(|one| one.name == wanted.organisation);
    let kept = before.and_then(|one| one.networks).map(<[IpNet]>::to_vec);
    let Some(name) = wanted.organisation else {
        return Ok(if given.is_empty() { kept } else { Some(limited(given)?) });
    };
    let fixed = configured.get(name);
    if let Some(fixed) = fixed {
        if !given.is_empty() && given != *fixed {
            let text = format!("the configuration of this machine fixes the networks of {name}: leave out --network");
            return Err(("fixed_networks", text));
        }
    } else if given.is_empty() && before.is_none() {
        let text = format!(
            "for which addresses may the authority of {name} speak? State them with --network, for example \
             `--network 192.0.2.0/24`, once for each network"
        );
        return Err(("no_networks", text));
    }
    if before.is_none() && known.iter().filter(|one| one.name.is_some()).count() >= ORGANISATIONS_MAX {
        let text = format!("you have {ORGANISATIONS_MAX} organisations: forget one with `vouchsafe logout --forget`");
        return Err(("too_many_organisations", text));
    }
    let own = if given.is_empty() { kept } else { Some(limited(given)?) };
    Ok(Some(fixed.cloned().or(own).unwrap_or_default()))
}

/// Returns the user's organisations and the configured ones, each with its networks. Leaves out the organisation `own`,
/// and organisations that may speak for all networks.
fn others<'a>(
    own: Option<&'a OrganisationName>,
    known: &'a [Known<'a>],
    configured: &'a BTreeMap<OrganisationName, Vec<IpNet>>,
) -> impl Iterator<Item = (&'a str, &'a [IpNet])> {
    let fixed = configured.iter().map(|(name, networks)| (name.as_str(), networks.as_slice()));
    let users = known.iter().filter_map(|one| Some((shown(one.name), one.networks?)));
    let is_configured = |name: &str| configured.keys().any(|known| known.as_str() == name);
    let users = users.filter(move |(name, _)| !is_configured(name));
    fixed.chain(users).filter(move |(name, _)| *name != shown(own))
}

fn limited(networks: Vec<IpNet>) -> Result<Vec<IpNet>, Refusal> {
    match networks.len() {
        0..=NETWORKS_MAX => Ok(networks),
        _ => Err(("too_many_networks", format!("an organisation can have at most {NETWORKS_MAX} networks"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn session(authority: &str, prefix: &str) -> KeptSession {
        let receiver = Receiver { name: "lab".into(), prefix: prefix.parse().unwrap(), services: Vec::new() };
        KeptSession {
            authority: authority.into(),
            authorities: Vec::new(),
            ca: None,
            token: "t".into(),
            person: "alice".into(),
            device: "laptop".into(),
            expires: 2000,
            receivers: vec![receiver],
            sealed: BTreeSet::new(),
            skew: 0,
        }
    }

    #[test]
    fn no_login_takes_another_organisations_addresses() {
        let name = |text: &str| text.parse::<OrganisationName>().unwrap();
        let networks = |text: &str| text.split_whitespace().map(|one| one.parse().unwrap()).collect::<Vec<IpNet>>();
        let home = session("https://home.example.org", "192.0.2.20/32");
        let (acme, theirs) = (name("acme"), networks("203.0.113.0/24"));
        let known = [
            Known { name: None, networks: None, session: Some(&home) },
            Known { name: Some(&acme), networks: Some(&theirs), session: None },
        ];
        let configured = [(name("fixed"), networks("198.51.100.0/24"))].into();
        let login = |organisation: &str, given: &str, authority: &str| {
            let (organisation, given) = (organisation.parse().ok(), networks(given));
            let wanted = Wanted { organisation: organisation.as_ref(), networks: &given, authority };
            plan(&wanted, &known, &configured).map_err(|(kind, _)| kind)
        };
        let elsewhere = "https://a.example.net";
        assert_eq!(login("", "", elsewhere), Ok(None));
        assert_eq!(login("acme", "", elsewhere), Ok(Some(theirs.clone())), "as before");
        assert_eq!(login("acme", "203.0.113.128/25", elsewhere), Ok(Some(networks("203.0.113.128/25"))));
        assert_eq!(login("fixed", "", elsewhere), Ok(Some(networks("198.51.100.0/24"))));
        assert_eq!(login("fixed", "10.0.0.0/8", elsewhere), Err("fixed_networks"));
        assert_eq!(login("zeta", "", elsewhere), Err("no_networks"));
        for taken in ["203.0.113.9/32", "0.0.0.0/0", "198.51.100.0/25", "192.0.2.0/24"] {
            assert_eq!(login("zeta", taken, elsewhere), Err("overlap"), "{taken}");
        }
        assert_eq!(login("zeta", "10.0.0.0/8", "https://HOME.example.org:443/"), Err("same_authority"));
        let many = vec!["10.0.0.0/24"; NETWORKS_MAX + 1].join(" ");
        assert_eq!(login("zeta", &many, elsewhere), Err("too_many_networks"));
        let names: Vec<_> = (0..ORGANISATIONS_MAX).map(|number| name(&format!("n{number}"))).collect();
        let full: Vec<_> =
            names.iter().map(|name| Known { name: Some(name), networks: Some(&[]), session: None }).collect();
        let zeta = name("zeta");
        let wanted = Wanted { organisation: Some(&zeta), networks: &networks("10.0.0.0/8"), authority: elsewhere };
        assert_eq!(plan(&wanted, &full, &BTreeMap::new()).unwrap_err().0, "too_many_organisations");
    }
}
