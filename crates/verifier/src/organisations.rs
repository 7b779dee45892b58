//! The organisations whose authorities decide about one verifier, and the services for which each of them may speak.
//! The organisations don't trust each other, so each has kernel tables of its own. This module does no IO other than
//! linking the kernel programs of the organisations.

use crate::settings::Settings;
use anyhow::{Result, bail, ensure};
use datapath::verifier::Link;
use engine::model::{Receiver, Service};
use ipnet::IpNet;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;
use wire::Carrier;
use wire::map::SERVICES_MAX;

mod merged;
mod room;

use room::overlap;

pub use merged::merged;
pub use room::within;

/// The name that stands for the default organisation, whose enrolment is in the verifier's own directory.
pub const DEFAULT: &str = "default";
/// Largest number of organisations with names.
pub const NAMED_MAX: usize = 7;
/// Number of receivers for which the tables of protected services have room, for all organisations together.
const RECEIVERS_MAX: usize = 60_000;

/// Parses the name of an organisation, which becomes part of paths.
///
/// # Errors
///
/// Fails with a description of possible names.
pub fn name(text: &str) -> Result<String, String> {
    let fine = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || ".-_".contains(c);
    let first = text.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit());
    if text.len() <= 64 && first && text.chars().all(fine) && text != DEFAULT {
        Ok(text.to_owned())
    } else {
        Err(format!(
            "a name has 1 to 64 lower-case letters, digits, `.`, `-` or `_`, begins with a letter or digit, and is not \
             {DEFAULT:?}"
        ))
    }
}

/// The services for which an organisation may speak, as the verifier's operator has decided.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// The organisation's networks; `None` for every address outside of `except`.
    pub networks: Option<Vec<IpNet>>,
    /// The services for which the organisation may speak at the addresses that `networks` permits; empty for all
    /// services.
    pub services: Vec<Service>,
    /// The networks of the other organisations. They count only if `networks` is `None`.
    pub except: Vec<IpNet>,
}

impl Limits {
    /// Reports whether the organisation may admit packets of `protocol` to this address and port.
    pub fn covers(&self, address: IpAddr, protocol: u8, port: u16) -> bool {
        let contain = |networks: &[IpNet]| networks.iter().any(|network| network.contains(&address));
        self.networks.as_deref().map_or_else(|| !contain(&self.except), contain)
            && (self.services.is_empty() || self.services.iter().any(|service| service.covers(protocol, port)))
    }

    /// Reports whether the receiver is completely within the limits.
    pub fn accept(&self, receiver: &Receiver) -> bool {
        let prefix = &receiver.prefix;
        let in_networks = match &self.networks {
            Some(networks) => networks.iter().any(|network| network.contains(prefix)),
            None => !self.except.iter().any(|other| other.contains(prefix) || prefix.contains(other)),
        };
        let within = |service: &Service, around: &Service| {
            around.protocol == 0
                || around.protocol == service.protocol
                    && around.first_port <= service.first_port
                    && service.last_port <= around.last_port
        };
        let given = |service: &Service| self.services.iter().any(|around| within(service, around));
        in_networks && (self.services.is_empty() || receiver.services.iter().all(given))
    }

    /// Reports whether the organisation may speak for some address of this network.
    fn touch(&self, prefix: &IpNet) -> bool {
        match &self.networks {
            Some(networks) => networks.iter().any(|network| overlap(network, prefix)),
            None => !self.except.iter().any(|other| other.contains(prefix)),
        }
    }

    /// Reports whether the organisation may speak for some part of the service in this network.
    fn concern(&self, prefix: &IpNet, service: &Service) -> bool {
        let meets = |one: &Service| {
            one.protocol == 0
                || service.protocol == 0
                || one.protocol == service.protocol
                    && one.first_port <= service.last_port
                    && service.first_port <= one.last_port
        };
        self.touch(prefix) && (self.services.is_empty() || self.services.iter().any(meets))
    }
}

/// An organisation and its limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Organisation {
    /// The name, or [`DEFAULT`].
    pub name: String,
    /// The services for which the organisation may speak.
    pub limits: Limits,
}

/// The organisations of one verifier, in the order in which their kernel programs decide about a packet. The first one
/// is the default organisation.
pub struct Chain {
    organisations: Vec<Organisation>,
    members: Mutex<Vec<Member>>,
    /// Whether the receivers of an organisation other than the first have changed since the first organisation's
    /// programs have taken them over.
    stale: AtomicBool,
    /// Notified when an organisation other than the first has sent its first receivers.
    changed: Notify,
}

/// The state of one organisation.
#[derive(Default)]
struct Member {
    /// The receivers within the organisation's limits.
    accepted: Vec<Receiver>,
    /// Services that stay protected until the authority's receivers are accepted. Nobody may admit packets to them.
    closed: Vec<Receiver>,
    /// The receivers beyond the limits, for display.
    refused: Vec<String>,
    /// Whether this process has accepted receivers.
    has_accepted: bool,
    /// The link to the kernel programs; `None` before they are loaded.
    link: Option<Link>,
}

impl Chain {
    /// Creates the chain of these organisations. The first one is the default organisation.
    pub fn new(organisations: Vec<Organisation>) -> Self {
        let members = organisations.iter().map(|_| Member::default()).collect();
        Self { organisations, members: Mutex::new(members), stale: AtomicBool::new(false), changed: Notify::new() }
    }

    /// Returns the organisations.
    pub fn organisations(&self) -> &[Organisation] {
        &self.organisations
    }

    /// Reports whether there are several organisations.
    pub fn has_several(&self) -> bool {
        self.organisations.len() > 1
    }

    /// Takes over the receivers for which the authority of organisation `number` speaks. Returns those within the
    /// organisation's limits; the others are ignored.
    ///
    /// # Errors
    ///
    /// Fails if there are more receivers than the organisation's share of the tables, or more separate port ranges at
    /// an address than its share of the address's entry. In both cases, the receivers that were accepted earlier stay
    /// in force.
    pub fn claim(&self, number: usize, receivers: Vec<Receiver>) -> Result<Vec<Receiver>> {
        let Organisation { name, limits } = &self.organisations[number];
        let (accepted, beyond): (Vec<_>, Vec<_>) = receivers.into_iter().partition(|one| limits.accept(one));
        if self.has_several() {
            let (count, share) = (accepted.len(), self.share());
            ensure!(
                count <= share,
                "organisation {name:?} has {count} receivers at this verifier, but may have at most {share}"
            );
            room::measure(
                &accepted,
                |prefix| self.ranges_at(prefix),
                |prefix, ranges, share| {
                    bail!(
                        "organisation {name:?} has {} separate port ranges at {prefix}, but may have at most \
                         {share}: join neighbouring ports into ranges",
                        ranges.len()
                    )
                },
            )?;
        }
        let mut refused: Vec<_> = beyond.iter().map(|one| format!("{} ({})", one.name, one.prefix)).collect();
        refused.truncate(SHOWN);
        let mut members = self.members();
        let member = &mut members[number];
        if member.refused != refused && !refused.is_empty() {
            tracing::warn!(
                organisation = name,
                refused = beyond.len(),
                first = refused.first(),
                "ignoring receivers for which the organisation may not speak: see `networks` and `services` in its \
                 verifier.toml"
            );
        }
        member.refused = refused;
        if member.accepted != accepted || !member.closed.is_empty() {
            member.accepted.clone_from(&accepted);
            member.closed.clear();
            if number > 0 {
                self.stale.store(true, Ordering::Relaxed);
                if !member.has_accepted {
                    self.changed.notify_one();
                }
            }
            member.has_accepted = true;
        }
        Ok(accepted)
    }

    /// Claims the receivers of the last run, before programs are attached. If they exceed the organisation's share of
    /// the tables, accepts only the first ones, up to this share. At an address with too many port ranges, also closes
    /// the smallest gaps between them. In these cases, the services that `protected` returns stay protected, too.
    pub fn begin(&self, number: usize, receivers: Vec<Receiver>, protected: impl FnOnce() -> Vec<Receiver>) {
        let Err(error) = self.claim(number, receivers.clone()) else { return };
        tracing::error!(
            "{error:#}. Until the authority's policy keeps to this limit, the verifier protects only as many receivers \
             as the organisation may have, and the services that an earlier process protected"
        );
        let limits = &self.organisations[number].limits;
        let given = if limits.services.is_empty() { vec![Service::ALL] } else { room::joined(limits.services.clone()) };
        let mut accepted: Vec<_> = receivers.into_iter().filter(|one| limits.accept(one)).take(self.share()).collect();
        let mut crowded = Vec::new();
        let measured = room::measure(
            &accepted,
            |prefix| self.ranges_at(prefix),
            |prefix, ranges, share| {
                let services = room::with_gaps_closed(&ranges, share, &given);
                crowded.push(Receiver { name: String::new(), prefix, services: services.clone() });
                Ok(services)
            },
        );
        if let Err(error) = measured {
            tracing::error!("{error:#}");
        }
        accepted.append(&mut crowded);
        self.members()[number].accepted = accepted;
        self.keep(number, protected());
    }

    /// Continues to protect the services that an earlier process protected, for an organisation whose authority has not
    /// sent its receivers to this process. One entry of `protected` can have services of several organisations.
    pub fn keep(&self, number: usize, protected: Vec<Receiver>) {
        let own = &self.organisations[number].limits;
        let others = &self.organisations[1..];
        let part = |Receiver { name, prefix, services }: Receiver| {
            let is_anothers = |service: &Service| others.iter().any(|other| other.limits.concern(&prefix, service));
            // All of the first organisation's services have its mark.
            let stays = |service: &Service| {
                number == 0 || own.touch(&prefix) && (own.concern(&prefix, service) || !is_anothers(service))
            };
            let services: Vec<_> = services.into_iter().filter(stays).collect();
            (!services.is_empty()).then_some(Receiver { name, prefix, services })
        };
        self.members()[number].closed = protected.into_iter().filter_map(part).collect();
    }

    /// Returns the receivers of an organisation that were accepted last.
    pub fn accepted(&self, number: usize) -> Vec<Receiver> {
        self.members()[number].accepted.clone()
    }

    /// Returns the receivers to which the first organisation's programs admit nobody: those of all other organisations,
    /// and services that stay protected.
    pub fn others(&self) -> Vec<Receiver> {
        let members = self.members();
        let accepted = members.iter().skip(1).flat_map(|member| &member.accepted);
        accepted.chain(members.iter().flat_map(|member| &member.closed)).cloned().collect()
    }

    /// Returns the number of receivers that each organisation may have.
    fn share(&self) -> usize {
        RECEIVERS_MAX / self.organisations.len()
    }

    /// Returns the number of port ranges that an organisation may have in this network, so that the entries of its
    /// addresses have room for all organisations that may speak for them.
    fn ranges_at(&self, prefix: &IpNet) -> usize {
        let speakers = self.organisations.iter().filter(|one| one.limits.touch(prefix)).count();
        SERVICES_MAX / speakers.max(1)
    }

    /// Returns the receivers of an organisation that are ignored because they are beyond its limits, for display.
    pub fn refused(&self, number: usize) -> Vec<String> {
        self.members()[number].refused.clone()
    }

    /// Waits until an organisation other than the first has sent its first receivers. For later changes, ask
    /// [`Self::take_changes`] from time to time. If this function waited for them, too, an authority that often changes
    /// its receivers could keep the first organisation's task busy.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Reports whether the receivers of an organisation other than the first have changed since the last call.
    pub fn take_changes(&self) -> bool {
        self.stale.swap(false, Ordering::Relaxed)
    }

    /// Takes over the kernel programs of organisation `number`, and links all programs that are loaded. If the programs
    /// of an organisation refuse a packet, they pass it on to the programs of the next organisation. The last
    /// organisation's programs drop the packet.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses access to a table.
    pub fn place(&self, number: usize, link: Link) -> Result<()> {
        let mut members = self.members();
        members[number].link = Some(link);
        let links: Vec<_> = members.iter().filter_map(|member| member.link.as_ref()).collect();
        // From the last to the first: no packet reaches programs whose own next ones are missing.
        (0..links.len()).rev().try_for_each(|at| links[at].lead_to(links.get(at + 1).copied()))
    }

    fn members(&self) -> MutexGuard<'_, Vec<Member>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Largest number of ignored receivers that are shown.
const SHOWN: usize = 64;

/// Checks that the settings permit several organisations.
///
/// # Errors
///
/// Fails with the setting that permits only one.
pub fn check(settings: &Settings, on_trial: bool) -> Result<()> {
    let used = [
        ("inside", !settings.inside.is_empty()),
        ("everything", settings.everything_but.is_some()),
        ("pool", !settings.pool.is_empty()),
        ("tunnel_pool", !settings.tunnel_pool.is_empty()),
        ("peers", !settings.peers.is_empty() || settings.peer_listen.is_some()),
        ("proxy_protocol", !settings.proxy_protocol.is_empty()),
        ("identity_socket", settings.identity_socket.is_some()),
        ("complainants", !settings.complainants.is_empty()),
        ("optional", !settings.optional.is_empty()),
        ("verdict = \"mark\"", settings.mark.is_some()),
        ("[proofs]", settings.proofs.is_some()),
        ("carriers = \"tcp_in_udp\"", settings.kernel.takes(Carrier::TcpInUdp)),
        ("--try", on_trial),
        // A refused token in a stream would reach the application.
        ("observe", settings.observe),
    ];
    match used.iter().find(|(_, used)| *used) {
        Some((name, _)) => bail!(
            "a verifier of several organisations can't have the setting `{name}`: remove the setting, or the folders of \
             the other organisations"
        ),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
