//! State that the daemon's tasks share, and the answers to requests on the control socket.

use crate::addresses::Addresses;
use crate::control::{Request, Requester};
use crate::drops::Ring;
use crate::kernel::Kernel;
use crate::owners::{OWNERS_MAX, Owners};
use crate::peers::Peers;
use crate::{metrics, now, view};
use anyhow::{Context, Result};
use api::{Complaint, ExplainRequest, GrantOwner, Standing, VerifierState};
use engine::model::Service;
use engine::verifier::{explain, explain_flow};
use follower::Health;
use serde::Serialize;
use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot, watch};
use wire::map::{Flow, FlowKey, Services};

mod roster;

pub use roster::Member;

/// Maximum time that a list of flows waits for the authority to report owners.
const NAMING: Duration = Duration::from_secs(2);
/// Maximum number of owners that one answer asks the authority for.
const NAMED_MAX: usize = 256;

/// A request that only the daemon's main loop can carry out.
pub enum Order {
    /// Keep the protection that is on trial.
    Confirm,
    /// End protection.
    Detach,
}

/// State that the daemon's tasks share.
pub struct Shared {
    verifier: String,
    instance: String,
    url: String,
    observe: bool,
    peers: Arc<Peers>,
    authority: client::Authority,
    kernel: RwLock<Kernel>,
    owners: Mutex<Owners>,
    drops: Arc<Mutex<Ring>>,
    health: watch::Receiver<Health>,
    trial: Mutex<Option<Instant>>,
    /// The verifier's other organisations. Set only in the state of the default organisation.
    roster: OnceLock<Vec<Arc<Member>>>,
    tunnels: Mutex<Option<TunnelView>>,
    orders: mpsc::Sender<(Order, oneshot::Sender<Result<String>>)>,
}

/// Returns how the packets of a flow are sealed and compressed; `None` if the tunnels' thread does not know the flow.
type SealedFlow = dyn Fn(&FlowKey) -> Option<api::SealedFlow> + Send;

/// Functions that ask the thread that serves the sealed tunnels.
pub struct TunnelView {
    /// Returns the numbers of packets that the tunnels dropped, by reason.
    pub counts: Box<dyn Fn() -> Vec<view::Counter> + Send>,
    /// Returns the load of each queue.
    pub queues: Box<dyn Fn() -> Vec<view::TunnelQueue> + Send>,
    /// Returns the treatment, suite and compression of a flow in a sealed tunnel.
    pub sealed: Box<SealedFlow>,
}

/// The verifier's id, and the names of its instance and its authority.
pub struct Names {
    /// The verifier's id.
    pub verifier: String,
    /// Name of this instance on the host.
    pub instance: String,
    /// The URL of the authority at which the verifier is enrolled.
    pub url: String,
}

impl Shared {
    /// Creates the state. `health` receives the state of the connection to the authority.
    pub fn new(
        names: Names,
        observe: bool,
        peers: Arc<Peers>,
        (authority, health): (client::Authority, watch::Receiver<Health>),
        kernel: Kernel,
        drops: Arc<Mutex<Ring>>,
        orders: mpsc::Sender<(Order, oneshot::Sender<Result<String>>)>,
    ) -> Self {
        let Names { verifier, instance, url } = names;
        Self {
            verifier,
            instance,
            url,
            observe,
            peers,
            authority,
            kernel: RwLock::new(kernel),
            owners: Mutex::new(Owners::new(OWNERS_MAX)),
            drops,
            health,
            trial: Mutex::default(),
            roster: OnceLock::new(),
            tunnels: Mutex::default(),
            orders,
        }
    }

    /// Locks the programs and tables, for reading and writing entries of the tables. Several tasks can have this lock
    /// at once.
    pub fn kernel(&self) -> RwLockReadGuard<'_, Kernel> {
        self.kernel.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the programs exclusively, for attaching or replacing them.
    pub fn kernel_mut(&self) -> RwLockWriteGuard<'_, Kernel> {
        self.kernel.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the table of grant owners.
    pub fn owners(&self) -> MutexGuard<'_, Owners> {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores a grant's owner. Also writes the owner to the kernel's tables, if these tables need it and have room.
    pub fn learn(&self, owner: GrantOwner) {
        if self.kernel().has_room_for(&owner, now()) {
            self.write_owner(&owner);
        }
        self.owners().remember(owner);
    }

    fn write_owner(&self, owner: &GrantOwner) {
        if let Err(error) = self.kernel().note_class(owner) {
            tracing::error!(person = owner.person, "cannot store the class of this person's grant: {error:#}");
        }
        if let Some(addresses) = self.kernel().addresses()
            && let Err(error) = addresses.learn(owner)
        {
            tracing::error!(
                person = owner.person,
                "cannot store the owner of a grant, so its flows get no inside address: {error:#}"
            );
        }
    }

    /// Locks the time at which the trial ends, for reading and changing it. The time is `None` if protection is not on
    /// trial.
    pub fn trial(&self) -> MutexGuard<'_, Option<Instant>> {
        self.trial.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the functions through which other tasks ask the thread of the sealed tunnels.
    #[cfg(feature = "seal")]
    pub fn set_tunnels(&self, tunnels: TunnelView) {
        *self.tunnels.lock().unwrap_or_else(PoisonError::into_inner) = Some(tunnels);
    }

    /// Answers a request from the control socket.
    pub async fn answer(self: Arc<Self>, request: Request) -> Result<serde_json::Value> {
        match request {
            Request::Status => self.look(|shared| Ok(shared.status())).await,
            Request::Drops { from } => self.look(move |shared| shared.dropped(from)).await,
            Request::Flows => json(&self.flows_of_all(Kernel::flows).await?),
            Request::Whois { client, server } => {
                json(&self.flows_of_all(move |kernel| kernel.flows_of(client, server)).await?)
            }
            Request::Addresses => {
                self.look(|shared| {
                    let list = shared.kernel().addresses().map(Addresses::list);
                    list.context("this verifier has no pool of inside addresses (`pool` in verifier.toml)")
                })
                .await
            }
            Request::ExplainPacket { from, to, protocol } => {
                let explain = move |kernel: &Kernel| -> Result<view::Verdict> {
                    let explained = explain_flow(&kernel.kernel_tables(), from, to, protocol, now() as u32);
                    let explained = explained.context("the two addresses are of different families")?;
                    Ok(view::Verdict::new(explained))
                };
                self.look(move |shared| shared.verdict(explain)).await
            }
            Request::ExplainFrame { frame, time } => {
                let frame = hex::decode(frame).context("the frame is not valid hex")?;
                let time = time.unwrap_or_else(now);
                let explain = move |kernel: &Kernel| -> Result<view::Verdict> {
                    Ok(view::Verdict::new(explain(&kernel.kernel_tables(), &frame, time as u32)))
                };
                self.look(move |shared| shared.verdict(explain)).await
            }
            Request::ExplainPerson { requester, to, protocol } => {
                let Requester { person, device, groups, tags, source, organisation } = requester;
                let (address, port) = (to.ip(), to.port());
                let request = ExplainRequest { person, device, groups, tags, source, address, protocol, port };
                let one = self.of_organisation(organisation.as_deref(), (address, protocol, port))?;
                json(&one.authority.explain(&request).await?)
            }
            Request::Confirm => json(&self.order(Order::Confirm).await?),
            Request::Detach => json(&self.order(Order::Detach).await?),
        }
    }

    /// Passes on an application's complaint to the authority.
    ///
    /// # Errors
    ///
    /// Fails if the authority refuses the complaint, or can't be reached.
    pub async fn complain(&self, complaint: &Complaint) -> Result<Standing, client::Error> {
        self.authority.complain(complaint).await
    }

    /// Returns the page of metrics.
    pub async fn metrics(self: Arc<Self>) -> Result<shell::metrics::Page> {
        let look = |shared: &Self| Ok(metrics::page(&shared.status(), &shared.counts()?, now()));
        self.read(look).await
    }

    async fn order(&self, order: Order) -> Result<String> {
        let (reply, done) = oneshot::channel();
        self.orders.send((order, reply)).await.ok().context("the verifier is stopping")?;
        done.await.context("the verifier is stopping")?
    }

    /// Reads the tables on a thread for blocking work, because reading long tables takes a while.
    pub(crate) async fn read<T: Send + 'static>(
        self: Arc<Self>,
        read: impl FnOnce(&Self) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        tokio::task::spawn_blocking(move || read(&self)).await?
    }

    async fn look<T: Serialize + Send + 'static>(
        self: Arc<Self>,
        look: impl FnOnce(&Self) -> Result<T> + Send + 'static,
    ) -> Result<serde_json::Value> {
        json(&self.read(look).await?)
    }

    /// Adds the owners to flows. Asks the authority for unknown owners, and waits for 2 s at most.
    pub(crate) async fn named(&self, flows: Vec<(FlowKey, Flow)>) -> Vec<view::Flow> {
        let unknown: HashSet<u64> = {
            let owners = self.owners();
            let handles = flows.iter().filter(|(_, flow)| flow.by_grant()).map(|(_, flow)| flow.handle);
            handles.filter(|handle| owners.of(*handle).is_none()).take(NAMED_MAX).collect()
        };
        let ask = async {
            for handle in unknown {
                match self.authority.grant_owner(handle).await {
                    Ok(Some(owner)) => self.learn(owner),
                    Ok(None) => {}
                    Err(error) => return tracing::warn!("cannot look up the owners of flows: {error}"),
                }
            }
        };
        if tokio::time::timeout(NAMING, ask).await.is_err() {
            tracing::warn!("cannot look up the owners of all flows: the authority did not answer within {NAMING:?}");
        }
        // Before the locks that the tunnels' thread takes, too.
        let sealed = self.sealed(&flows);
        // In the order in which everybody takes these two locks.
        let kernel = self.kernel();
        let owners = self.owners();
        let inside = |key: &FlowKey, flow: &Flow| kernel.addresses()?.of(flow, key);
        let view = |((key, flow), sealed): (&(FlowKey, Flow), Option<api::SealedFlow>)| {
            let mut view = view::Flow::new(key, flow, inside(key, flow), owners.of(flow.handle));
            view.sealed = sealed.or(view.sealed);
            view.organisation = kernel.position().name().map(str::to_owned);
            view
        };
        flows.iter().zip(sealed).map(view).collect()
    }

    /// Returns the treatment, suite and compression of each flow. Returns `None` for each flow that the tunnels' thread
    /// does not know. The caller must not hold the locks of the tables and owners, because the tunnels' thread takes
    /// these locks, too.
    pub fn sealed(&self, flows: &[(FlowKey, Flow)]) -> Vec<Option<api::SealedFlow>> {
        let tunnels = self.tunnels.lock().unwrap_or_else(PoisonError::into_inner);
        let of = |key: &FlowKey| (tunnels.as_ref().filter(|_| key.tunnel == 1)?.sealed)(key);
        flows.iter().map(|(key, _)| of(key)).collect()
    }

    fn dropped(&self, from: u64) -> Result<view::Drops> {
        let mut drops = self.counts()?;
        let tunnels = self.tunnels.lock().unwrap_or_else(PoisonError::into_inner);
        drops.tunnel = tunnels.iter().flat_map(|tunnels| (tunnels.counts)()).collect();
        drops.samples = self.drops.lock().unwrap_or_else(PoisonError::into_inner).since(from);
        Ok(drops)
    }

    /// Extends a verdict to drop a packet by the remark that it passes nevertheless, if the verifier only observes or
    /// marks, and spares packets of this kind.
    fn as_done(&self, verdict: view::Verdict) -> view::Verdict {
        if verdict.passes || verdict.is_never_spared {
            return verdict;
        }
        if self.kernel().mark().is_some() {
            let text = format!("{}; but it passes without the mark, so that a packet filter can drop it", verdict.text);
            return view::Verdict { text, ..verdict };
        }
        if !self.observe {
            return verdict;
        }
        let text = format!("{}; but it still passes, because the verifier only observes", verdict.text);
        view::Verdict { text, ..verdict }
    }

    /// Reports whether the verifier only observes. It then lets refused packets pass, except packets in sealed tunnels,
    /// and packets that wire.md §4.6.3 excludes.
    pub fn observes(&self) -> bool {
        self.observe
    }

    /// Returns the state of protection: closed, trying, observing or protecting.
    pub fn state(&self, kernel: &Kernel) -> VerifierState {
        match () {
            () if kernel.is_closed() => VerifierState::Closed,
            () if self.trial().is_some() => VerifierState::Trying,
            () if self.observe => VerifierState::Observing,
            () => VerifierState::Protecting,
        }
    }

    fn status(&self) -> view::Status {
        // Takes these locks before the lock of the tables, and each one alone. A thread that asks for a flow's sealing
        // has the lock of the tunnels and waits for the pump. The pump's threads take the locks of the tables and the
        // owners.
        let tunnels = self.tunnels.lock().unwrap_or_else(PoisonError::into_inner);
        let tunnel_queues = tunnels.as_ref().map(|tunnels| (tunnels.queues)()).unwrap_or_default();
        drop(tunnels);
        let owners = self.owners().count() as u64;
        let (in_use, authorities) = self.authority.members().shown();
        let organisations = self.organisations();
        let kernel = self.kernel();
        let health = self.health.borrow().clone();
        let trial = *self.trial();
        let protected = kernel.named().into_iter().map(|entry| view::Protected {
            prefix: entry.prefix.to_string(),
            services: own(&entry.services).collect(),
        });
        view::Status {
            verifier: self.verifier.clone(),
            instance: self.instance.clone(),
            state: self.state(&kernel).name().into(),
            trial_left: trial.map(|end| end.saturating_duration_since(Instant::now()).as_secs()),
            interfaces: kernel.interfaces(),
            inside: kernel.inside(),
            not_attached: kernel.not_attached(),
            mark: kernel.mark(),
            peers: self.peers.views(),
            peers_heard: self.peers.source_views(),
            authority: self.url.clone(),
            in_use,
            authorities,
            connected: health.connected,
            trouble: health.trouble,
            read: health.read,
            keys_until: kernel.keys_until(now()),
            epoch_length: kernel.config().epoch_length,
            max_lifetime: kernel.config().max_lifetime,
            protected: protected.collect(),
            optional: kernel.optional(),
            extended: kernel.extended(),
            outside: kernel.outside(),
            tables: kernel.tables(),
            proofs: kernel.proving().and_then(|proofs| {
                proofs.inspect_err(|error| tracing::error!("cannot read the counters of proofs: {error:#}")).ok()
            }),
            owners,
            tunnel_queues,
            organisations,
        }
    }
}

/// Returns the part of an address's protected services to which the default organisation's authority may admit packets.
fn own(services: &Services) -> impl Iterator<Item = Service> {
    services.spans().iter().filter(|span| span.foreign == 0).map(|span| (*span).into())
}

fn json(answer: &impl Serialize) -> Result<serde_json::Value> {
    Ok(serde_json::to_value(answer)?)
}
