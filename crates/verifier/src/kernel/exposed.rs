//! The protected services. Receivers name services at their addresses. The verifier also protects the ports of these
//! services at this host's other addresses, which can change.

use super::Kernel;
use crate::exposure::{Extension, extension};
use crate::organisations::merged;
use crate::{plan, view};
use anyhow::{Context, Result};
use datapath::local::Local;
use datapath::sockets::{self, Outside};
use engine::model::{Receiver, protected, protocol};
use ipnet::IpNet;
use std::collections::BTreeSet;
use std::sync::{MutexGuard, PoisonError};

/// The protection that was last written to the kernel's tables.
#[derive(Default)]
pub(super) struct Written {
    /// Prefixes that receivers name.
    named: BTreeSet<IpNet>,
    extension: Extension,
    /// Whether there were more services than the entry of one prefix can hold.
    crowded: bool,
    local: Local,
}

impl Kernel {
    /// Protects the services that these receivers name. Also protects their ports at this host's other addresses,
    /// unless the settings exclude this. Ignores receivers for which the organisation may not speak. If the receivers
    /// exceed the organisation's share, continues to protect the receivers that were accepted last and the other
    /// organisations' services, and fails.
    pub fn protect(&self, receivers: &[api::Receiver]) -> Result<()> {
        match self.position.chain.claim(self.position.number, client::convert::receivers(receivers)) {
            Ok(accepted) => self.protect_accepted(&accepted),
            Err(error) => self.protect_again().and(Err(error)),
        }
    }

    /// Protects the services of the receivers that were accepted last, and those of the other organisations.
    pub fn protect_again(&self) -> Result<()> {
        self.protect_accepted(&self.position.chain.accepted(self.position.number))
    }

    fn protect_accepted(&self, receivers: &[Receiver]) -> Result<()> {
        let mut entries = match &self.settings.everything_but {
            Some(open) => plan::everything_but(receivers, open)?,
            // The organisation's share has room for all ranges, unless the operator's own list of services is too long.
            None if self.position.chain.has_several() => protected::widened(receivers.iter()),
            None => protected::entries(receivers)?,
        };
        let mut written = Written { named: entries.iter().map(|entry| entry.prefix).collect(), ..Written::default() };
        if !self.settings.only_named {
            written.local = Local::now().unwrap_or_else(|error| {
                tracing::error!("cannot read this host's addresses, so those known before stay protected: {error:#}");
                self.written().local.clone()
            });
            written.extension = extension(receivers, &written.local, !self.settings.inside.is_empty());
            let others = &self.position.limits().except;
            let is_anothers =
                |network: &IpNet| others.iter().any(|other| other.contains(network) || network.contains(other));
            written.extension.networks.retain(|network| !is_anothers(network));
            let Extension { networks, services } = &written.extension;
            (entries, written.crowded) = protected::extended(&entries, networks, services);
        }
        if written.crowded && !self.written().crowded {
            tracing::warn!(
                "the policy has more services than the entry of one address can hold, so at this host's own addresses the \
                 ports between these services are protected, too. Join ports into ranges, or set only_named"
            );
        }
        if self.position.number == 0 && self.position.chain.has_several() {
            entries = merged(&entries, &protected::widened(self.position.chain.others().iter()));
        }
        let entries: Vec<_> = entries.iter().map(|e| (e.prefix.addr(), e.prefix.prefix_len(), e.services)).collect();
        self.verifier.protect(&entries).context("cannot update the table of protected destinations")?;
        *self.written() = written;
        Ok(())
    }

    /// Reports whether this host's addresses have changed since the protected services were last written to the tables.
    pub fn addresses_changed(&self) -> bool {
        !self.settings.only_named && Local::now().is_ok_and(|local| local != self.written().local)
    }

    fn written(&self) -> MutexGuard<'_, Written> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the entries of those protected prefixes that receivers name.
    pub fn named(&self) -> Vec<protected::Protected> {
        let written = self.written();
        self.protected().into_iter().filter(|entry| written.named.contains(&entry.prefix)).collect()
    }

    /// Returns the services that are protected at all addresses of this host, not only at those that receivers name,
    /// and the networks of these addresses.
    pub fn extended(&self) -> view::Extended {
        let written = self.written();
        view::Extended {
            services: written.extension.services.clone(),
            networks: written.extension.networks.iter().map(IpNet::to_string).collect(),
            crowded: written.crowded,
        }
    }

    /// Returns the sockets of this host that packets reach without being checked.
    pub fn outside(&self) -> Vec<view::Outside> {
        let local = Local::now().unwrap_or_default();
        let outside = sockets::outside(&self.verifier.protected, &local).into_iter();
        let view = |Outside { listener, at, partly }| view::Outside {
            protocol: protocol::name(listener.protocol),
            address: listener.address,
            at,
            partly,
        };
        outside.map(view).collect()
    }
}
