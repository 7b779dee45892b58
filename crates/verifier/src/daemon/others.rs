//! The verifier's further organisations. Each has an authority, kernel tables and a follower of its own, so that none
//! depends on another one's authority.

use super::marks::Marks;
#[cfg(feature = "seal")]
use super::sealing;
use super::{Daemon, catch_up, events, put};
use crate::addresses::UNKNOWN_MAX;
use crate::confirm::Confirmer;
use crate::directory::Directory;
use crate::drops::Ring;
use crate::kernel::{ChainPosition, Kernel};
use crate::organisations::{self, Chain, DEFAULT, Limits};
use crate::peers::Peers;
use crate::recheck::Recheck;
use crate::settings::Settings;
use crate::shared::{Member, Names, Shared};
use crate::unnamed::Unnamed;
use crate::{now, report};
use anyhow::Result;
use api::{Confirm, EpochKeys};
use datapath::Pins;
use engine::model::Service;
use follower::{Acknowledger, Backoff, Enrolment, Follower, Start as Following, State};
use ipnet::IpNet;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use wire::map::{FlowKey, chain};

/// How long the end of the process waits until the organisations have stored their states.
const ENDING: Duration = Duration::from_secs(5);

/// The enrolment at a further organisation, and its limits.
pub struct Organisation {
    /// Name of the organisation on this host.
    pub name: String,
    /// The directory with the enrolment and the authority's last state.
    pub directory: Directory,
    /// The verifier's identity at the authority.
    pub enrolment: Enrolment,
    /// The networks for which the authority may speak.
    pub networks: Vec<IpNet>,
    /// The services in `networks` for which the authority may speak; empty for all services.
    pub services: Vec<Service>,
}

/// Returns the chain of all organisations, and changes the settings to those of the first one.
pub(super) fn chain(settings: &mut Settings, others: &[Organisation]) -> Chain {
    let first = Limits {
        networks: (!settings.networks.is_empty()).then(|| settings.networks.clone()),
        services: settings.services.clone(),
        except: others.iter().flat_map(|other| &other.networks).copied().collect(),
    };
    if first.networks.is_some() {
        // Nobody but the operator decides about the addresses outside of the networks.
        settings.only_named = true;
    }
    if !others.is_empty() {
        settings.kernel.chain = chain::FIRST;
    }
    let further = others.iter().map(|other| organisations::Organisation {
        name: other.name.clone(),
        limits: Limits { networks: Some(other.networks.clone()), services: other.services.clone(), except: Vec::new() },
    });
    let first = organisations::Organisation { name: DEFAULT.into(), limits: first };
    Chain::new(std::iter::once(first).chain(further).collect())
}

/// Returns the state of an authority that has not answered yet: no receivers and no keys.
pub(super) fn nothing_known(verifier: &str) -> Result<State> {
    let config = serde_json::json!({
        "verifier": verifier, "epoch_length": 3600, "max_lifetime": 300, "receivers": [], "revoked": [], "now": now(),
    });
    Ok(State {
        config: serde_json::from_value(config)?,
        keys: EpochKeys { keys: Vec::new(), proofs: None, now: now() },
    })
}

/// Ends the tasks of the further organisations, after each has stored its state.
pub(super) async fn end(stop: &watch::Sender<bool>, others: Vec<JoinHandle<()>>) {
    stop.send_replace(true);
    for other in others {
        if timeout(ENDING, other).await.is_err() {
            tracing::warn!(
                "the last state from an organisation's authority could not be stored in time: the next run may start \
                 with an older state"
            );
        }
    }
}

/// The parts that all organisations have in common.
#[derive(Clone)]
pub(super) struct Common {
    pub settings: Settings,
    pub chain: Arc<Chain>,
    /// The directory of the verifier's pins. It also contains the pins of the further organisations.
    pub pins: Pins,
    pub drops: Arc<Mutex<Ring>>,
}

/// A further organisation.
pub(super) struct Other {
    member: Arc<Member>,
    directory: Directory,
    verifier: String,
    authority: client::Authority,
    /// Always without peers, because only gateways have peers, and a gateway has only one organisation.
    peers: Arc<Peers>,
    common: Common,
    /// The state from the last run, or the authority's first answer.
    state: Option<State>,
    loaded: Option<Loaded>,
}

/// The kernel programs of an organisation.
struct Loaded {
    kernel: Kernel,
    seed: u64,
    unknown: mpsc::Sender<u64>,
    unknown_grants: mpsc::Receiver<u64>,
    /// Whether the programs get no keys until the authority has answered the first request, or this request has failed.
    withheld: bool,
    /// Description of the problem if the state could not be put in force completely.
    trouble: Option<String>,
}

impl Other {
    /// Reads the state of the last run. `number` is the organisation's number in the chain.
    pub fn new(number: usize, organisation: Organisation, mut common: Common) -> Result<Self> {
        let Organisation { name, directory, enrolment, .. } = organisation;
        common.settings.kernel.chain = chain::LATER;
        // The organisation may not speak for other addresses.
        common.settings.only_named = true;
        let authority = enrolment.caller()?;
        let state = State::load(directory.folder(), &enrolment.verifier);
        state.iter().for_each(|state| authority.learn(&state.config.authorities));
        let (verifier, url) = (enrolment.verifier.clone(), enrolment.authority.clone());
        let member = Arc::new(Member::new(number, name, verifier.clone(), url));
        let peers = Arc::new(Peers::new(&[])?);
        Ok(Self { member, directory, verifier, authority, peers, common, state, loaded: None })
    }

    /// Returns the organisation's entry in answers about all organisations.
    pub fn member(&self) -> Arc<Member> {
        self.member.clone()
    }

    /// Claims the services of the last run, so that the first organisation's programs protect them from the start. If
    /// no state is known, or if its receivers exceed the organisation's share, `first` (the first organisation's
    /// programs) continues to protect the services that it protects already.
    pub fn claim(&self, first: &Kernel) {
        let (number, chain) = (self.member.number, &self.common.chain);
        match &self.state {
            Some(state) => {
                chain.begin(number, client::convert::receivers(&state.config.receivers), || first.pinned(true));
            }
            None => chain.keep(number, first.pinned(true)),
        }
    }

    /// Reports whether the organisation's programs have admitted this flow.
    pub fn has_flow(&self, key: &FlowKey) -> bool {
        self.loaded.as_ref().is_some_and(|loaded| loaded.kernel.flow(key).is_some())
    }

    /// Loads the programs with the state of the last run, if there is one. If nothing is in force yet (`is_cold`), keys
    /// are withheld until the authority has had a chance to report revocations.
    pub fn load_known(&mut self, is_cold: bool) {
        let Some(state) = self.state.take() else { return };
        let withheld = is_cold || !self.common.pins.has_organisation(&self.member.name);
        match self.load(&state, withheld) {
            Ok(loaded) => self.loaded = Some(loaded),
            Err(error) => self.fail(&format!("{error:#}")),
        }
        self.state = Some(state);
    }

    fn load(&self, state: &State, withheld: bool) -> Result<Loaded> {
        let Common { settings, chain, pins, drops } = &self.common;
        let pins = pins.organisation(&self.member.name)?;
        let seed = self.directory.replay_seed()?;
        let (unknown, unknown_grants) = mpsc::channel(UNKNOWN_MAX);
        let position = ChainPosition { chain: chain.clone(), number: self.member.number };
        let kernel =
            Kernel::load(position, pins, settings.clone(), seed, &state.config, drops.clone(), unknown.clone())?;
        let trouble = put(&kernel, state, withheld)?;
        kernel.cut_beyond_limits(now());
        kernel.link()?;
        Ok(Loaded { kernel, seed, unknown, unknown_grants, withheld, trouble })
    }

    fn fail(&self, error: &str) {
        let organisation = &self.member.name;
        tracing::error!(organisation, "nobody of the organisation is admitted: {error}");
        self.member.fail(error.to_owned());
    }

    /// Follows the authority until `stop` becomes true.
    pub async fn serve(mut self, mut stop: watch::Receiver<bool>) {
        let (loaded, mut follower) = tokio::select! {
            ready = self.start() => ready,
            () = events::stopped(&mut stop) => return,
        };
        let Loaded { kernel, seed, unknown, unknown_grants, .. } = loaded;
        #[cfg(not(feature = "seal"))]
        let _ = seed;
        let authority = self.authority.clone();
        let peers = self.peers.clone();
        let names =
            Names { verifier: self.verifier.clone(), instance: self.member.name.clone(), url: self.member.url.clone() };
        // Orders go to the default organisation's task.
        let (orders, _) = mpsc::channel(1);
        let (observe, drops) = (self.common.settings.observe, self.common.drops.clone());
        let caller = (authority.clone(), follower.health());
        let shared = Arc::new(Shared::new(names, observe, peers.clone(), caller, kernel, drops, orders));
        self.member.set(shared.clone());
        let reported = shared.clone();
        let reporting = tokio::spawn(follower::report(authority.clone(), move || report::figures(reported.clone())));
        let in_tunnels = Arc::new(Unnamed::default());
        let naming = tokio::spawn(events::name(shared.clone(), authority.clone(), unknown_grants, in_tunnels.clone()));
        let daemon = Daemon {
            peers,
            addresses: Arc::new(Notify::new()),
            unknown,
            recheck: Recheck::new(shared.clone(), authority.clone()),
            sole: false,
            keyless: false,
            second_cut: None,
            sweeping: None,
            sweep_again: false,
            confirmer: Confirmer::new(authority.clone(), Confirm::Pairs),
            marks: Marks::new(Acknowledger::new(authority)),
            last_status: String::new(),
            #[cfg(feature = "seal")]
            sealed: sealing::Service::new(shared.clone(), Vec::new(), Some(1), seed, in_tunnels),
            shared,
        };
        daemon.follow_behind(&mut follower, stop).await;
        reporting.abort();
        naming.abort();
    }

    /// Loads the programs, if they are not loaded yet, and starts to follow the authority. Repeats each step that
    /// fails.
    async fn start(&mut self) -> (Loaded, Follower) {
        let mut backoff = Backoff::AUTHORITY;
        loop {
            match self.try_start().await {
                Ok(ready) => return ready,
                Err(error) => self.fail(&format!("{error:#}")),
            }
            sleep(backoff.pause()).await;
        }
    }

    async fn try_start(&mut self) -> Result<(Loaded, Follower)> {
        let (loaded, state, trouble) = match (self.loaded.take(), self.state.take()) {
            (Some(mut loaded), Some(mut state)) => {
                let answer = State::fetch_soon(&self.authority).await;
                let trouble = catch_up(&mut loaded.kernel, &mut state, answer, loaded.withheld)?;
                (loaded, state, trouble)
            }
            _ => {
                let state = State::fetch(self.authority.clone()).await?;
                let mut loaded = self.load(&state, false)?;
                let trouble = loaded.trouble.take();
                (loaded, state, trouble)
            }
        };
        let (authority, folder) = (self.authority.clone(), self.directory.folder().clone());
        let following = Following { authority, folder, state, trouble, confirms: Confirm::Pairs };
        Ok((loaded, Follower::start(following)?))
    }
}
