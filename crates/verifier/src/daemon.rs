//! `vouchsafe verifier run`: starts protection, follows the authority and maintains the kernel's tables. When the
//! process ends, protection continues without it, unless protection was on trial.

use crate::addresses::UNKNOWN_MAX;
use crate::confirm::Confirmer;
use crate::control;
use crate::directory::Directory;
use crate::drops::Ring;
use crate::identity::complaints::Complainants;
use crate::identity::endpoint;
use crate::kernel::{ChainPosition, Kernel};
use crate::peers::{self, Peers};
use crate::recheck::Recheck;
use crate::settings::Settings;
use crate::shared::{Names, Shared};
use crate::unnamed::Unnamed;
use crate::{adoption, now, organisations, relay, report};
use anyhow::{Context, Result, bail};
use api::Confirm;
use datapath::Pins;
use datapath::hook::{Choice, Hook};
use follower::{Acknowledger, Enrolment, Follower, Start as Following, State};
use others::{Common, Other};
use shell::control::Access;
use shell::signals::Signals;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use wire::map::FlowKey;

mod events;
mod marks;
mod notify;
mod others;
mod sealing;

pub use others::Organisation;

/// Error of a verifier whose token the authority does not accept.
const UNKNOWN: &str = "the authority does not know this verifier: run `vouchsafe verifier enrol --again`";

/// The parameters with which the daemon starts.
pub struct Start {
    /// The verifier's directory.
    pub directory: Directory,
    /// The name of this instance.
    pub instance: String,
    /// The path of the control socket.
    pub socket: PathBuf,
    /// The verifier's settings.
    pub settings: Settings,
    /// The verifier's identity at the authority.
    pub enrolment: Enrolment,
    /// Further organisations, each with an authority of its own.
    pub organisations: Vec<Organisation>,
    /// Time after which protection ends unless somebody confirms it; `None` if protection is not on trial.
    pub trial: Option<Duration>,
}

/// Runs the daemon until a signal arrives, a client requests [`control::Request::Detach`], or a trial ends without
/// confirmation.
pub async fn run(start: Start) -> Result<ExitCode> {
    let Start { directory, instance, socket, mut settings, enrolment, organisations, trial } = start;
    let several = !organisations.is_empty();
    if several {
        organisations::check(&settings, trial.is_some())?;
    }
    let mut signals = Signals::listen()?;
    let _lock = directory.lock()?;
    let access = access(&settings.whois_users)?;
    let complainants = Complainants::new(&settings.complainants, number_of, |user| access.knows(user))?;
    let listener = control::listen(&socket)?;
    let askers = settings.identity_socket.as_deref().map(endpoint::listen).transpose()?;
    let readers = match settings.metrics {
        Some(address) => Some(shell::metrics::listen(address).await?),
        None => None,
    };
    let authority = enrolment.caller()?;
    let pins = Pins::new("verifier", &instance)?;
    let _instance_lock = pins.lock()?;
    // Programs that only observed did not protect anything.
    let cold_start = pins.live_links()?.is_empty() || pins.is_observing();
    if !cold_start && trial.is_some() {
        bail!(
            "cannot protect on trial: protection is already in force. Use `vouchsafe verifier run` without --try, or \
             end protection first with `vouchsafe verifier detach`"
        );
    }
    if trial.is_some() && settings.hook == Choice::Auto && !settings.hook.ends_with_process() {
        // A trial must end with this process. Before Linux 6.6, an attachment to tc outlives it.
        settings.hook = Choice::Only(Hook::Xdp);
    }
    if trial.is_some() && !settings.hook.ends_with_process() {
        bail!(
            "--try with --hook tc needs Linux 6.6 or later: on earlier kernels, a program attached to tc stays \
             attached when the process is killed"
        );
    }
    let chain = Arc::new(others::chain(&mut settings, &organisations));
    let known = State::load(directory.folder(), &enrolment.verifier);
    known.iter().for_each(|known| authority.learn(&known.config.authorities));
    let from_cache = known.is_some();
    let mut trouble = None;
    let mut state = match known {
        Some(known) => known,
        None => tokio::select! {
            state = first_state(&authority, cold_start) => match state {
                Err(error) if several && cold_start => {
                    tracing::error!("{error:#}. The other organisations' authorities are asked nevertheless");
                    trouble = Some(format!("{error:#}"));
                    others::nothing_known(&enrolment.verifier)?
                }
                state => state?,
            },
            () = signals.any() => return Ok(ExitCode::SUCCESS),
        },
    };

    let addresses = Arc::new(Notify::new());
    let news = addresses.clone();
    if let Err(error) = datapath::netlink::follow_addresses(move || news.notify_one()) {
        tracing::warn!("cannot watch this host's addresses; checking them every second instead: {error:#}");
    }
    let drops = Arc::new(Mutex::new(Ring::default()));
    let seed = directory.replay_seed()?;
    let (unknown, unknown_grants) = mpsc::channel(UNKNOWN_MAX);
    let names: Vec<_> = organisations.iter().map(|one| one.name.as_str()).collect();
    pins.keep_organisations(&names)?;
    let position = ChainPosition { chain: chain.clone(), number: 0 };
    let common = Common { settings: settings.clone(), chain: chain.clone(), pins: pins.clone(), drops: drops.clone() };
    let mut kernel =
        Kernel::load(position, pins, settings.clone(), seed, &state.config, drops.clone(), unknown.clone())?;
    let others = organisations.into_iter().enumerate().map(|(at, one)| Other::new(at + 1, one, common.clone()));
    let mut others = others.collect::<Result<Vec<_>>>()?;
    if several {
        let receivers = client::convert::receivers(&state.config.receivers);
        chain.begin(0, receivers, || kernel.pinned(false));
    }
    others.iter().for_each(|other| other.claim(&kernel));
    // Grants may have been revoked since the last run. Therefore cached keys are withheld until the authority has had a
    // chance to report that, unless the kernel has them anyway.
    let withheld = from_cache && cold_start;
    trouble = put(&kernel, &state, withheld)?.or(trouble);
    others.iter_mut().for_each(|other| other.load_known(cold_start));
    kernel.link()?;
    kernel.cut_beyond_limits(now());
    warn_of_lock_out(&kernel, &settings, trial, cold_start);
    // Before anything is admitted, so that no client reaches a service directly that expects the relay's header.
    let relayed = relay::prepare(&settings, &kernel.pins_name())?;
    let adopt = cold_start && settings.adopt;
    let has_flow = |key: &FlowKey| others.iter().any(|other| other.has_flow(key));
    let mut adopted = if adopt { kernel.adopt(has_flow)? } else { 0 };
    if cold_start {
        kernel.begin_anew()?;
    }
    kernel.attach()?;
    if adopt {
        // Also adopt connections whose handshake ended between the first list and the attachment.
        adopted += kernel.adopt(has_flow)?;
        tracing::info!(adopted, "adopted established connections");
    }
    if trial.is_none() {
        kernel.last()?;
    }
    notify::ready(&kernel);
    if from_cache {
        let answer = tokio::select! {
            answer = State::fetch_soon(&authority) => answer,
            () = signals.any() => {
                if trial.is_some() {
                    kernel.end()?;
                }
                return Ok(ExitCode::SUCCESS);
            }
        };
        trouble = catch_up(&mut kernel, &mut state, answer, withheld)?;
    }
    // A client gets an inside address only once the grant's owner is known, packets are marked with a class only once
    // the class is known, and a tunnel's packets pass unencrypted only once the rule is known.
    let needs_owners = !settings.pool.is_empty() || !settings.tunnel_pool.is_empty() || settings.mark.is_some();
    let confirms = if needs_owners { Confirm::Grants } else { Confirm::Pairs };
    let (following, folder) = (authority.clone(), directory.folder().clone());
    let mut follower = Follower::start(Following { authority: following, folder, state, trouble, confirms })?;
    // Open this only after protection is on: at boot, the network between peers may not be up yet.
    let peer_listener = match settings.peer_listen {
        Some(address) => Some(peers::listen(address).await?),
        None => None,
    };

    let until = kernel.keys_until(now());
    tracing::info!(
        verifier = enrolment.verifier,
        instance,
        keys_until = until,
        "{}",
        match (settings.observe, settings.mark) {
            (true, _) => "observing: refused packets pass, with few exceptions",
            (false, Some(_)) => "marking admitted packets: rules of a packet filter have to drop all other packets",
            (false, None) => "protecting",
        }
    );
    let peers = Arc::new(Peers::new(&settings.peers)?);
    let (orders, ordered) = mpsc::channel(4);
    let names = Names { verifier: enrolment.verifier.clone(), instance, url: enrolment.authority.clone() };
    let (health, caller) = (follower.health(), authority.clone());
    let members = others.iter().map(Other::member).collect();
    let shared = Arc::new(Shared::new(names, settings.observe, peers.clone(), (caller, health), kernel, drops, orders));
    shared.set_roster(members);
    let (stop, stopping) = watch::channel(false);
    let others: Vec<_> = others.into_iter().map(|other| tokio::spawn(other.serve(stopping.clone()))).collect();
    *shared.trial() = trial.map(|trial| (Instant::now() + trial).into_std());
    let answering = shared.clone();
    let relaying = tokio::spawn(relay::serve(relayed, shared.clone()));
    let identifying =
        askers.map(|askers| tokio::spawn(endpoint::serve(askers, access.clone(), complainants, shared.clone())));
    let server = tokio::spawn(control::serve(listener, access, move |request| answering.clone().answer(request)));
    let measured = shared.clone();
    let measuring =
        readers.map(|readers| tokio::spawn(shell::metrics::serve(readers, move || measured.clone().metrics())));
    let reported = shared.clone();
    let reporting = tokio::spawn(follower::report(authority.clone(), move || report::figures(reported.clone())));
    let in_tunnels = Arc::new(Unnamed::default());
    let naming = tokio::spawn(events::name(shared.clone(), authority.clone(), unknown_grants, in_tunnels.clone()));
    let confirmer = Confirmer::new(authority.clone(), confirms);
    let marks = marks::Marks::new(Acknowledger::new(authority.clone()));
    #[cfg(feature = "seal")]
    let sealed =
        sealing::Service::new(shared.clone(), settings.tunnel_pool.clone(), settings.tunnel_queues, seed, in_tunnels);
    // After the table of inside addresses is there, into which other gateways' clients come.
    let sharing = peer_listener.map(|listener| peers::start(&peers, listener, &shared)).transpose()?;
    let mut daemon = Daemon {
        peers,
        addresses,
        unknown,
        recheck: Recheck::new(shared.clone(), authority),
        shared,
        sole: !several,
        keyless: false,
        second_cut: None,
        sweeping: None,
        sweep_again: false,
        confirmer,
        marks,
        last_status: String::new(),
        #[cfg(feature = "seal")]
        sealed,
    };
    daemon.follow_tunnels(follower.state());
    let done = daemon.follow(&mut follower, &chain, ordered, signals, trial).await;
    others::end(&stop, others).await;
    server.abort();
    reporting.abort();
    naming.abort();
    drop(sharing);
    measuring.inspect(JoinHandle::abort);
    identifying.inspect(JoinHandle::abort);
    relaying.abort();
    let _ = std::fs::remove_file(&socket);
    let _ = settings.identity_socket.map(std::fs::remove_file);
    done
}

/// Writes a state to the kernel's tables, without keys if they are withheld. The process protects the services of all
/// organisations. So if there are several, it goes on although one authority's state can't be put in force completely;
/// the returned text describes the problem.
fn put(kernel: &Kernel, state: &State, withheld: bool) -> Result<Option<String>> {
    let keys = if withheld { &[][..] } else { &state.keys.keys };
    let written = kernel.write(&state.config, keys, now());
    tolerated(kernel, written.and_then(|()| kernel.write_proofs(state)))
}

fn tolerated(kernel: &Kernel, done: Result<()>) -> Result<Option<String>> {
    match (done, kernel.position().name()) {
        (Err(error), Some(organisation)) => {
            tracing::error!(organisation, "cannot put the authority's configuration and keys in force: {error:#}");
            Ok(Some(format!("{error:#}")))
        }
        (done, _) => done.map(|()| None),
    }
}

/// Applies the first answer that the authority gives after the programs were attached. If the authority gives none,
/// puts the saved state in force with its keys, if the keys were withheld. Returns a description of the problem if the
/// authority's state could not be read or put in force.
fn catch_up(
    kernel: &mut Kernel,
    state: &mut State,
    answer: Result<State, client::Error>,
    withheld: bool,
) -> Result<Option<String>> {
    let (is_fresh, trouble) = match answer {
        Ok(news) => {
            let loaded = kernel.is_loaded_for(&news.config);
            let reloaded = if loaded { Ok(()) } else { kernel.reload(&news.config) };
            *state = news;
            (true, tolerated(kernel, reloaded)?)
        }
        Err(client::Error::NotLoggedIn) => {
            tracing::error!("{UNKNOWN}. Protection that was in force stays in force");
            return Ok(Some(UNKNOWN.to_owned()));
        }
        Err(error) => {
            let error = error.to_string();
            tracing::warn!(error, "starting with the last configuration from the authority");
            (false, Some(error))
        }
    };
    if is_fresh || withheld {
        return Ok(put(kernel, state, false)?.or(trouble));
    }
    Ok(trouble)
}

/// Fetches the authority's state for a verifier that has none from an earlier run. If an earlier run's protection is
/// on, waits until the authority answers; otherwise asks once.
async fn first_state(authority: &client::Authority, cold_start: bool) -> Result<State> {
    let answer = if cold_start { State::fetch(authority.clone()).await } else { State::wait_for(authority).await };
    match answer {
        Ok(state) => Ok(state),
        Err(client::Error::NotLoggedIn) => bail!(UNKNOWN),
        Err(error) => {
            bail!("{error}; and there is no saved configuration or key from an earlier run. Nothing is protected")
        }
    }
}

/// Returns the number of a user, who is given by name or number.
fn number_of(user: &str) -> Result<u32> {
    if let Ok(number) = user.parse() {
        return Ok(number);
    }
    let found = nix::unistd::User::from_name(user)?;
    Ok(found.with_context(|| format!("no user is called {user:?}"))?.uid.as_raw())
}

fn access(users: &[String]) -> Result<Access> {
    let number = |user: &String| number_of(user).context("whois_users");
    Ok(Access::new(users.iter().map(number).collect::<Result<_>>()?))
}

fn warn_of_lock_out(kernel: &Kernel, settings: &Settings, trial: Option<Duration>, cold_start: bool) {
    if !cold_start || settings.observe || settings.mark.is_some() || trial.is_some() {
        return;
    }
    let ssh = std::env::var("SSH_CONNECTION").ok().and_then(|text| adoption::ssh_connection(&text));
    let ssh = adoption::operator(ssh, &adoption::sockets().unwrap_or_default());
    if let Some(warning) = adoption::lock_out(ssh.as_ref(), &kernel.protected(), settings.adopt) {
        tracing::warn!("{warning}");
    }
}

struct Daemon {
    /// The other gateways of this verifier.
    peers: Arc<Peers>,
    /// Notified when this host's addresses have changed.
    addresses: Arc<Notify>,
    /// Channel for handles of grants. The daemon asks the authority for the owners of these grants.
    unknown: mpsc::Sender<u64>,
    shared: Arc<Shared>,
    /// Whether there is only one organisation.
    sole: bool,
    /// Whether there is no key for the current epoch.
    keyless: bool,
    /// Asks the authority which flows have to end because they outlived their grant.
    recheck: Recheck,
    second_cut: Option<Instant>,
    /// The sweep in progress, if there is one. `sweep_again` says whether another sweep has to follow.
    sweeping: Option<JoinHandle<Option<u32>>>,
    sweep_again: bool,
    confirmer: Confirmer,
    marks: marks::Marks,
    /// The last status line sent to the service manager.
    last_status: String,
    #[cfg(feature = "seal")]
    sealed: sealing::Service,
}
