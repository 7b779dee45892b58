//! The position of an organisation's kernel programs among those of the verifier's other organisations.

use super::Kernel;
use crate::organisations::{Chain, Limits};
use anyhow::Result;
use api::RevokedGrant;
use engine::model::{Receiver, Service};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The position of an organisation in the [chain](Chain) of the verifier's organisations.
#[derive(Clone)]
pub struct ChainPosition {
    /// All organisations of the verifier.
    pub chain: Arc<Chain>,
    /// Number of this organisation in the chain; 0 for the first one, whose programs are attached to interfaces.
    pub number: usize,
}

impl ChainPosition {
    /// Returns the services for which the organisation may speak.
    pub fn limits(&self) -> &Limits {
        &self.chain.organisations()[self.number].limits
    }

    /// Returns the organisation's name; `None` if it is the only one.
    pub fn name(&self) -> Option<&str> {
        self.chain.has_several().then(|| self.chain.organisations()[self.number].name.as_str())
    }
}

impl Kernel {
    /// Returns the position of the programs among those of the other organisations.
    pub fn position(&self) -> &ChainPosition {
        &self.position
    }

    /// Puts the programs at their position, where they get the packets that earlier programs refuse.
    pub fn link(&self) -> Result<()> {
        self.position.chain.place(self.position.number, self.verifier.link()?)
    }

    /// Returns the services in the table of protected services, which an earlier process may have written: the other
    /// organisations' services if `foreign` is true, and otherwise this organisation's own services.
    pub fn pinned(&self, foreign: bool) -> Vec<Receiver> {
        let entries = self.protected().into_iter().map(|entry| {
            let spans = entry.services.spans().iter().filter(|span| (span.foreign != 0) == foreign);
            let services = spans.map(|span| Service::from(*span)).collect();
            Receiver { name: entry.prefix.to_string(), prefix: entry.prefix, services }
        });
        entries.filter(|receiver| !receiver.services.is_empty()).collect()
    }

    /// Cuts the flows to services for which the organisation may not speak. An earlier process can have admitted them
    /// under other settings.
    pub fn cut_beyond_limits(&self, now: u64) {
        let limits = self.position.limits();
        let beyond = self.verifier.flows.entries().into_iter().filter(|(key, flow)| {
            let (address, port) = key.server();
            flow.by_grant() && !limits.covers(address, key.protocol, port)
        });
        let grants: BTreeMap<u64, u32> = beyond.map(|(_, flow)| (flow.handle, flow.holder)).collect();
        if grants.is_empty() {
            return;
        }
        let grant = |(handle, holder)| RevokedGrant { handle, expires: self.expiry(handle).unwrap_or(0), holder };
        let cut = self.cut(&grants.into_iter().map(grant).collect::<Vec<_>>(), now);
        tracing::warn!(
            organisation = self.position.name(),
            flows = cut.flows,
            "cut flows to services that the settings no longer give to the organisation"
        );
    }
}
