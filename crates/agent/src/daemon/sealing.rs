//! Sealed tunnels in the daemon's loop: what the authority's answers say about them, and the grants that open them.

use super::Daemon;
use engine::agent::{FetchId, Refusal, Subject};
use engine::model::{Grant, Receiver};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use wire::Destination;
use wire::map::{GrantEntry, GrantSlot};

#[cfg(feature = "seal")]
pub(super) use with_tunnels::Sealing;

#[cfg(feature = "seal")]
mod with_tunnels {
    use super::*;
    use crate::daemon::Message;
    use crate::now;
    use crate::sealed::Sealed;
    use client::{Error, convert};
    use engine::model::GrantRequest;
    use std::collections::BTreeMap;

    /// The daemon's part of sealed tunnels.
    #[derive(Default)]
    pub struct Sealing {
        sealed: Sealed,
        /// Destinations of the requests for grants that are not answered yet.
        requested: BTreeMap<FetchId, Destination>,
    }

    impl Daemon {
        pub(in crate::daemon) fn note_fetch(&mut self, id: FetchId, to: Destination) {
            self.sealing.requested.insert(id, to);
        }

        /// Prepares the way of a grant's packets before the first of them is sent.
        pub(in crate::daemon) fn note_answer(
            &mut self,
            subject: Subject,
            id: FetchId,
            answer: &Result<Grant, Refusal>,
        ) {
            let Some(to) = self.sealing.requested.remove(&id) else { return };
            if !self.agent.awaits(subject, id) {
                return;
            }
            let Ok(grant) = answer else { return };
            if !grant.sealing.is_sealed() {
                return;
            }
            if let Err(error) = self.sealing.sealed.granted(self.kernel.maps(), subject, to, grant) {
                tracing::error!(to = ?to, "no sealed tunnel, and packets are dropped: {error:#}");
            }
            self.tend_tunnels();
        }

        /// Prepares the way of packets to a further destination of a grant.
        pub(in crate::daemon) fn note_entry(&mut self, slot: &GrantSlot, entry: &GrantEntry) {
            if let Err(error) = self.sealing.sealed.placed(self.kernel.maps(), slot, entry) {
                tracing::error!(to = ?slot.destination(), "no sealed tunnel, and packets are dropped: {error:#}");
            }
        }

        pub(in crate::daemon) fn note_destinations(
            &mut self,
            subject: Subject,
            receivers: &[Receiver],
            sealed: &BTreeSet<String>,
            tunnels: &[SocketAddr],
        ) {
            let (maps, sessions) = (self.kernel.maps(), self.connections.len());
            let done = self.sealing.sealed.destinations(maps, subject, (receivers, sealed), tunnels, sessions);
            if let Err(error) = done {
                tracing::error!("cannot steer packets into sealed tunnels: {error:#}");
            }
        }

        pub(in crate::daemon) fn forget_tunnels(&mut self, subject: Subject) {
            if let Err(error) = self.sealing.sealed.forget(self.kernel.maps(), subject) {
                tracing::error!("cannot forget the receivers of sealed tunnels: {error:#}");
            }
        }

        pub(in crate::daemon) fn tunnels_moved(&mut self) {
            self.sealing.sealed.moved();
        }

        /// Requests the grants that tunnels and their packets lack.
        pub(in crate::daemon) fn tend_tunnels(&mut self) {
            for (subject, to) in self.sealing.sealed.due() {
                let Some(connection) = self.connections.get(&subject) else { continue };
                let (authority, messages) = (connection.authority.clone(), self.messages.clone());
                let request = convert::grant_request(&GrantRequest { to, consented: false });
                tokio::spawn(async move {
                    let answer = authority.grant(&request).await;
                    let _ = messages.send(Message::Tunnel(subject, to, answer)).await;
                });
            }
            for to in self.sealing.sealed.unknown() {
                let subjects: Vec<_> = self.connections.keys().copied().collect();
                for subject in subjects {
                    self.agent.queued(now(), &subject.slot(&to), None);
                }
            }
        }

        pub(in crate::daemon) fn tunnel_granted(
            &mut self,
            subject: Subject,
            to: Destination,
            answer: Result<api::Grant, Error>,
        ) {
            let grant = match answer.map(|grant| convert::grant(&grant)) {
                Ok(Ok(grant)) => grant,
                Ok(Err(why)) => return tracing::error!(to = ?to, "cannot use the grant for a sealed tunnel: {why}"),
                Err(error) => return tracing::warn!(to = ?to, "no grant for a sealed tunnel: {error}"),
            };
            if let Err(error) = self.sealing.sealed.opened(self.kernel.maps(), subject, to, &grant) {
                tracing::error!(to = ?to, "cannot open a sealed tunnel: {error:#}");
            }
        }
    }
}

#[cfg(not(feature = "seal"))]
#[allow(clippy::unused_self)]
impl Daemon {
    pub(super) fn note_fetch(&self, _: FetchId, _: Destination) {}

    pub(super) fn note_answer(&self, _: Subject, _: FetchId, _: &Result<Grant, Refusal>) {}

    pub(super) fn note_entry(&self, _: &GrantSlot, _: &GrantEntry) {}

    pub(super) fn note_destinations(&self, _: Subject, _: &[Receiver], _: &BTreeSet<String>, _: &[SocketAddr]) {}

    pub(super) fn forget_tunnels(&self, _: Subject) {}

    pub(super) fn tunnels_moved(&self) {}

    pub(super) fn tend_tunnels(&self) {}
}
