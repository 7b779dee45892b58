//! Starts and ends the UDP service of sealed tunnels, as the authority's configuration demands.

use super::Daemon;
use follower::State;

#[cfg(feature = "seal")]
pub(super) use running::Service;

#[cfg(feature = "seal")]
mod running {
    use crate::sealed::Sealed;
    use crate::shared::Shared;
    use crate::unnamed::Unnamed;
    use ipnet::IpNet;
    use std::net::SocketAddr;
    use std::sync::{Arc, Mutex};
    use tunnel::Inside;

    /// The UDP service of sealed tunnels, running or not.
    pub struct Service {
        shared: Arc<Shared>,
        networks: Vec<IpNet>,
        /// The inside addresses. They stay the same when the service restarts.
        inside: Arc<Mutex<Inside>>,
        queues: usize,
        unknown: Arc<Unnamed>,
        running: Option<Sealed>,
        /// The reason why the service could not start. It is stored so that each reason is logged only once.
        trouble: Option<String>,
    }

    impl Service {
        /// Creates the service without starting it.
        pub fn new(
            shared: Arc<Shared>,
            networks: Vec<IpNet>,
            queues: Option<u32>,
            seed: u64,
            unknown: Arc<Unnamed>,
        ) -> Self {
            let inside = Arc::new(Mutex::new(Inside::new(networks.clone(), seed)));
            shared.kernel_mut().set_lessees(inside.clone());
            let queues = queues.map_or_else(tunnel::default_queues, |queues| queues as usize);
            Self { shared, networks, inside, queues, unknown, running: None, trouble: None }
        }

        /// Runs the service at the addresses `tunnels`. If `tunnels` is empty, ends the service.
        pub fn follow(&mut self, tunnels: &[SocketAddr]) {
            if self.running.as_ref().is_some_and(|running| running.tunnels() != tunnels) {
                tracing::info!("the tunnels' addresses changed");
                self.running = None;
            }
            if self.running.as_ref().is_some_and(|running| !running.is_running()) {
                tracing::error!(
                    "a thread of the sealed tunnels has ended, and nobody reaches receivers through the tunnels: \
                     starting the thread again"
                );
                self.running = None;
            }
            if tunnels.is_empty() || self.running.is_some() {
                self.trouble = None;
                return;
            }
            let (inside, unknown) = (self.inside.clone(), self.unknown.clone());
            match Sealed::start(&self.shared, tunnels, &self.networks, inside, self.queues, unknown) {
                Ok(running) => (self.running, self.trouble) = (Some(running), None),
                Err(error) => {
                    let text = format!("{error:#}");
                    if self.trouble.as_ref() != Some(&text) {
                        tracing::error!(
                            "cannot start sealed tunnels, so nobody can reach receivers for which a rule demands a \
                             treatment: {text}"
                        );
                    }
                    self.trouble = Some(text);
                }
            }
        }

        /// Ends the service; [`Self::follow`] starts it again.
        pub fn end(&mut self) {
            self.running = None;
        }

        /// Makes the service close the tunnels of revoked grants and ended sessions at once.
        pub fn recheck(&self) {
            self.running.iter().for_each(Sealed::recheck);
        }
    }
}

#[cfg(feature = "seal")]
impl Daemon {
    pub(super) fn follow_tunnels(&mut self, state: &State) {
        if self.sole {
            self.sealed.follow(&state.config.tunnels);
        }
    }

    pub(super) fn restart_tunnels(&mut self) {
        self.sealed.end();
    }

    pub(super) fn recheck_tunnels(&self) {
        self.sealed.recheck();
    }
}

#[cfg(not(feature = "seal"))]
impl Daemon {
    pub(super) fn follow_tunnels(&mut self, state: &State) {
        if self.sole && !state.config.tunnels.is_empty() {
            tracing::debug!(
                tunnels = ?state.config.tunnels,
                "the policy has a sealed tunnel at this verifier, but this program was built without sealed tunnels: \
                 nobody reaches receivers for which a rule demands a treatment"
            );
        }
    }

    #[allow(clippy::unused_self)]
    pub(super) fn restart_tunnels(&mut self) {}

    #[allow(clippy::unused_self)]
    pub(super) fn recheck_tunnels(&self) {}
}
