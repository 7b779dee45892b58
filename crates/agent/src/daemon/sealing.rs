//! Sealed tunnels in the daemon's loop. Learns from the authority's answers which packets need tunnels, and requests
//! the grants that open the tunnels.

use super::Daemon;
use engine::agent::{FetchId, Refusal, Subject};
use engine::model::{Grant, Receiver};
use reach::login::refused;
use reach::protocol::{Interface, Reply, Tunnel, TunnelQueue};
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
    use crate::key_export::KeyFile;
    use crate::now;
    use crate::sealed::Sealed;
    use crate::wishes::Wishes;
    use client::{Error, convert};
    use engine::model::GrantRequest;
    use std::collections::BTreeMap;

    /// The daemon's state for sealed tunnels and for senders who ask for a treatment.
    #[derive(Default)]
    pub struct Sealing {
        sealed: Sealed,
        wishes: Wishes,
        /// Destinations of the requests for grants that are not answered yet.
        requested: BTreeMap<FetchId, Destination>,
    }

    impl Sealing {
        pub(in crate::daemon) fn sealed(&self) -> &Sealed {
            &self.sealed
        }

        pub(in crate::daemon) fn sealed_mut(&mut self) -> &mut Sealed {
            &mut self.sealed
        }
    }

    impl Daemon {
        /// Opens the file for the keys of tunnels, if the configuration names one.
        pub(in crate::daemon) fn export_keys(&mut self) -> anyhow::Result<()> {
            self.sealing.sealed.set_queues(self.settings.tunnel_queues);
            if let Some(path) = &self.settings.danger_export_keys {
                self.sealing.sealed.danger_export(KeyFile::open(path)?);
            }
            Ok(())
        }

        /// Applies the treatments that senders ask for. These come from the configuration, and from commands whose
        /// treatments an earlier process of the agent stored in the kernel.
        pub(in crate::daemon) fn start_wishes(&mut self) {
            let known = self.kernel.maps().wishes.entries();
            self.sealing.wishes = Wishes::new(self.settings.wishes.clone(), &known);
            self.write_wishes();
        }

        fn write_wishes(&mut self) {
            let (wishes, asks) = self.sealing.wishes.all();
            if let Err(error) = self.sealing.sealed.ask(self.kernel.maps(), &wishes, asks) {
                tracing::error!("cannot store which senders ask for a treatment: {error:#}");
            }
        }

        pub(in crate::daemon) fn treat(&mut self, uid: u32, process: u32, treatment: &str) -> Reply {
            match self.sealing.wishes.command(uid, process, treatment) {
                Ok(()) => {
                    self.write_wishes();
                    Reply::Done { text: format!("packets of process {process} are sealed: {treatment}") }
                }
                Err(error) => refused("no_treatment", format!("{error:#}")),
            }
        }

        pub(in crate::daemon) fn tunnels_of(&self, subject: Subject) -> Vec<Tunnel> {
            self.sealing.sealed.tunnels_of(subject)
        }

        pub(in crate::daemon) fn tunnel_queues(&self) -> Vec<TunnelQueue> {
            self.sealing.sealed.queues()
        }

        pub(in crate::daemon) fn broken_tunnels(&self) -> Option<Interface> {
            self.sealing.sealed.broken_device()
        }

        pub(in crate::daemon) fn tunnel_counters(&self) -> Vec<(String, u64)> {
            self.sealing.sealed.counters()
        }

        pub(in crate::daemon) fn note_fetch(&mut self, id: FetchId, to: Destination) {
            self.sealing.requested.insert(id, to);
        }

        /// Stores the grant in an answer, so that the kernel can steer the grant's packets before the first of them is
        /// sent.
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
            self.set_tunnels_clock(subject);
            if let Err(error) = self.sealing.sealed.granted(self.kernel.maps(), subject, to, grant) {
                tracing::error!(to = ?to, "cannot find a sealed tunnel, so packets are dropped: {error:#}");
            }
            self.request_tunnels();
        }

        fn set_tunnels_clock(&mut self, subject: Subject) {
            self.sealing.sealed.set_clock(subject, self.agent.clock(subject));
        }

        /// Prepares the steering of packets to another destination that a grant covers.
        pub(in crate::daemon) fn note_entry(&mut self, slot: &GrantSlot, entry: &GrantEntry) {
            let Some(subject) = self.agent.holder(slot) else { return };
            if let Err(error) = self.sealing.sealed.placed(self.kernel.maps(), subject, slot, entry) {
                tracing::error!(to = ?slot.destination(), "cannot find a sealed tunnel, so packets are dropped: {error:#}");
            }
            self.note_rungs(slot, entry);
        }

        pub(in crate::daemon) fn note_removed(&mut self, slot: &GrantSlot) {
            if let Some(subject) = self.agent.holder(slot) {
                self.sealing.sealed.removed(subject, slot);
            }
            self.forget_rungs(slot);
        }

        pub(in crate::daemon) fn note_destinations(
            &mut self,
            subject: Subject,
            receivers: &[Receiver],
            sealed: &BTreeSet<String>,
            tunnels: Option<&[SocketAddr]>,
        ) {
            let (maps, sessions) = (self.kernel.maps(), self.connections.len());
            let done = self.sealing.sealed.destinations(maps, subject, (receivers, sealed), tunnels, sessions);
            if let Err(error) = done {
                tracing::error!("cannot steer packets into sealed tunnels: {error:#}");
            }
            // So that the tunnels are open when the first packets come.
            self.request_tunnels();
        }

        pub(in crate::daemon) fn forget_tunnels(&mut self, subject: Subject) {
            if let Err(error) = self.sealing.sealed.forget(self.kernel.maps(), subject) {
                tracing::error!("cannot remove a person's sealed receivers from the kernel: {error:#}");
            }
            self.forget_ladder(subject);
        }

        pub(in crate::daemon) fn tunnels_moved(&mut self) {
            self.sealing.sealed.moved();
        }

        /// Does the periodic work for tunnels and their packets. The caller calls this method every second.
        pub(in crate::daemon) fn tend_tunnels(&mut self) {
            self.sealing.sealed.revive(self.kernel.maps());
            if let Err(error) = self.sealing.sealed.keep_addresses() {
                tracing::warn!(
                    "cannot keep an address that this machine has lost, so the tunnels' flows from this address end: \
                     {error:#}"
                );
            }
            if self.sealing.wishes.sweep() {
                self.write_wishes();
            }
            for subject in self.connections.keys().copied().collect::<Vec<_>>() {
                self.set_tunnels_clock(subject);
            }
            self.request_tunnels();
            let agent = &self.agent;
            let unknown = self.sealing.sealed.unknown(self.kernel.maps(), |slot| agent.holder(slot));
            for slot in unknown {
                self.agent.queued(now(), &slot, None);
            }
            if let Err(error) = self.sealing.sealed.prune(self.kernel.maps()) {
                tracing::error!("cannot remove the destinations of ended grants: {error:#}");
            }
        }

        /// Requests the grants that tunnels need and don't have.
        pub(in crate::daemon) fn request_tunnels(&mut self) {
            for (subject, to) in self.sealing.sealed.due() {
                let Some(connection) = self.connections.get(&subject) else {
                    self.sealing.sealed.failed(subject, to, true);
                    continue;
                };
                let (asker, messages, login) = (connection.asker.clone(), self.messages.clone(), connection.login);
                let request = convert::grant_request(&GrantRequest { to, consented: false });
                tokio::spawn(async move {
                    let answer = asker.grant(&request).await.map(|(grant, _)| grant);
                    let _ = messages.send(Message::Tunnel(subject, login, to, answer)).await;
                });
            }
        }

        pub(in crate::daemon) fn tunnel_granted(
            &mut self,
            (subject, login): (Subject, u64),
            to: Destination,
            answer: Result<api::Grant, Error>,
        ) {
            let is_unreached = matches!(&answer, Err(Error::Unreachable(_) | Error::Other(_)));
            let grant = answer.map(|grant| convert::grant(&grant));
            match &grant {
                // Another person may have logged in meanwhile.
                _ if !self.is_current(subject, login) => {}
                Ok(Ok(grant)) => {
                    self.set_tunnels_clock(subject);
                    if let Err(error) = self.sealing.sealed.opened(self.kernel.maps(), subject, to, grant) {
                        tracing::error!(to = ?to, "cannot open a sealed tunnel: {error:#}");
                    }
                    return;
                }
                Ok(Err(why)) => tracing::error!(to = ?to, "cannot use the grant for a sealed tunnel: {why}"),
                Err(error) => tracing::warn!(to = ?to, "cannot get a grant for a sealed tunnel: {error}"),
            }
            self.sealing.sealed.failed(subject, to, is_unreached);
        }
    }
}

#[cfg(not(feature = "seal"))]
#[allow(clippy::unused_self)]
impl Daemon {
    pub(super) fn start_wishes(&self) {}

    pub(super) fn tunnels_of(&self, _: Subject) -> Vec<Tunnel> {
        Vec::new()
    }

    pub(super) fn tunnel_queues(&self) -> Vec<TunnelQueue> {
        Vec::new()
    }

    pub(super) fn tunnel_counters(&self) -> Vec<(String, u64)> {
        Vec::new()
    }

    pub(super) fn broken_tunnels(&self) -> Option<Interface> {
        None
    }

    pub(super) fn treat(&self, _: u32, _: u32, _: &str) -> Reply {
        refused("no_treatment", "this agent was built without sealed tunnels".to_owned())
    }

    pub(super) fn note_fetch(&self, _: FetchId, _: Destination) {}

    pub(super) fn note_answer(&self, _: Subject, _: FetchId, _: &Result<Grant, Refusal>) {}

    pub(super) fn note_entry(&self, _: &GrantSlot, _: &GrantEntry) {}

    pub(super) fn note_removed(&self, _: &GrantSlot) {}

    pub(super) fn note_destinations(&self, _: Subject, _: &[Receiver], _: &BTreeSet<String>, _: Option<&[SocketAddr]>) {
    }

    pub(super) fn forget_tunnels(&self, _: Subject) {}

    pub(super) fn tunnels_moved(&self) {}

    pub(super) fn tend_tunnels(&self) {}
}
