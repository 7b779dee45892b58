//! `vouchsafe verifier run`: starts protection, follows the authority, keeps house. When it ends, protection goes on
//! without it, unless it was only being tried.

use crate::addresses::UNKNOWN_MAX;
use crate::confirm::Confirmer;
use crate::control::{self, Access};
use crate::directory::{Cache, Directory, Enrolment};
use crate::drops::Ring;
use crate::peers::{self, Peers};
use crate::protection::Protection;
use crate::recheck::Recheck;
use crate::settings::Settings;
use crate::shared::{Names, Shared};
use crate::{adoption, now, report};
use anyhow::{Context, Result, bail};
use datapath::Pins;
use datapath::hook::{Choice, Hook};
use engine::api::Confirm;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

mod follow;
mod notify;

/// The first and the longest pause before the authority is asked again.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// Epochs whose keys are fetched ahead.
const KEYS_AHEAD: u32 = 24;
/// How long the keys of an earlier run wait for the authority to say what was revoked since.
const FIRST_ANSWER: Duration = Duration::from_secs(3);

/// What a daemon starts with.
pub struct Start {
    /// Where it keeps its things.
    pub directory: Directory,
    /// Which of several on this host.
    pub instance: String,
    /// Where it listens.
    pub socket: PathBuf,
    /// What is set.
    pub settings: Settings,
    /// Who it is to the authority.
    pub enrolment: Enrolment,
    /// Take protection back after this time unless it is confirmed.
    pub trial: Option<Duration>,
}

/// Runs until a signal, an order to detach, or the end of a trial.
pub async fn run(start: Start) -> Result<ExitCode> {
    let Start { directory, instance, socket, mut settings, enrolment, trial } = start;
    let mut signals =
        Signals { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? };
    let _lock = directory.lock()?;
    let access = access(&settings.whois_users)?;
    let listener = control::listen(&socket)?;
    let readers = match settings.metrics {
        Some(address) => Some(shell::metrics::listen(address).await?),
        None => None,
    };
    let authority = directory.caller(&enrolment)?;
    let pins = Pins::new("verifier", &instance)?;
    let _instance_lock = pins.lock()?;
    // What only observed protected nothing.
    let fresh = pins.live_links()?.is_empty() || pins.is_observing();
    if !fresh && trial.is_some() {
        bail!(
            "protection is on already, and goes on: there is nothing to try. `vouchsafe verifier run` follows it; \
             `vouchsafe verifier detach` ends it, and then it can be tried"
        );
    }
    if trial.is_some() && settings.hook == Choice::Auto && !settings.hook.ends_with_process() {
        // A trial must end with this process. Before Linux 6.6 an attachment to tc outlives it.
        settings.hook = Choice::Only(Hook::Xdp);
    }
    if trial.is_some() && !settings.hook.ends_with_process() {
        bail!("--try with --hook tc needs Linux 6.6: before, an attachment to tc outlives a process that is killed");
    }
    let known = directory.cache().filter(|cache| cache.config.verifier == enrolment.verifier);
    let from_cache = known.is_some();
    let mut cache = match known {
        Some(known) => known,
        None => tokio::select! {
            state = first_state(&authority, fresh) => state?,
            () = signals.any() => return Ok(ExitCode::SUCCESS),
        },
    };

    let addresses = Arc::new(Notify::new());
    let news = addresses.clone();
    if let Err(error) = datapath::netlink::follow_addresses(move || news.notify_one()) {
        tracing::warn!("this host's addresses are looked at once a second only: {error:#}");
    }
    let drops = Arc::new(Mutex::new(Ring::default()));
    let seed = directory.replay_seed()?;
    let (unknown, asked) = mpsc::channel(UNKNOWN_MAX);
    let mut protection = Protection::load(pins, settings.clone(), seed, &cache.config, drops.clone(), unknown.clone())?;
    // A grant may have been revoked since. So cached keys wait until the authority had a chance to say so, unless the kernel
    // has them anyway.
    let withheld = from_cache && fresh;
    protection.write(&cache.config, if withheld { &[] } else { &cache.keys.keys }, now())?;
    protection.write_proofs(&cache)?;
    warn_of_lock_out(&protection, &settings, trial, fresh);
    let adopt = fresh && settings.adopt;
    let mut adopted = if adopt { protection.adopt()? } else { 0 };
    if fresh {
        protection.begin_anew()?;
    }
    protection.attach()?;
    if adopt {
        // Those whose handshake ended between the list and the attachment.
        adopted += protection.adopt()?;
        tracing::info!(adopted, "established connections go on");
    }
    if trial.is_none() {
        protection.last()?;
    }
    notify::ready(&protection);
    let mut trouble = None;
    if from_cache {
        let answer = tokio::select! {
            answer = tokio::time::timeout(FIRST_ANSWER, fetch(authority.clone())) => answer,
            () = signals.any() => {
                if trial.is_some() {
                    protection.end()?;
                }
                return Ok(ExitCode::SUCCESS);
            }
        };
        trouble = catch_up(&mut protection, &mut cache, answer.ok(), withheld)?;
    }
    directory.set_cache(&cache)?;
    // Once it protects: at boot the network that peers speak over may not be up yet.
    let teller = match settings.peer_listen {
        Some(address) => Some(peers::listen(address).await?),
        None => None,
    };

    let until = protection.keys_until(now());
    tracing::info!(
        verifier = enrolment.verifier,
        instance,
        keys_until = until,
        "{}",
        match (settings.observe, settings.mark) {
            (true, _) => "observing: nothing is dropped",
            (false, Some(_)) => "marking what is admitted: rules of a packet filter have to drop the rest",
            (false, None) => "protecting",
        }
    );
    let peers = Arc::new(Peers::new(&settings.peers)?);
    let (orders, ordered) = mpsc::channel(4);
    let names = Names { verifier: enrolment.verifier, instance, url: enrolment.authority };
    let shared =
        Arc::new(Shared::new(names, settings.observe, peers.clone(), authority.clone(), protection, drops, orders));
    shared.health().read = trouble.is_none().then(now);
    shared.health().trouble = trouble;
    *shared.trial() = trial.map(|trial| (Instant::now() + trial).into_std());
    let answering = shared.clone();
    let server = tokio::spawn(control::serve(listener, access, move |request| answering.clone().answer(request)));
    let measured = shared.clone();
    let measuring =
        readers.map(|readers| tokio::spawn(shell::metrics::serve(readers, move || measured.clone().metrics())));
    let reporting = tokio::spawn(report::keep(shared.clone(), authority.clone()));
    let naming = tokio::spawn(follow::name(shared.clone(), authority.clone(), asked));
    // Without its owner's name nobody gets an inside address, and without its class no rule takes a packet for theirs.
    let needs_owners = !settings.pool.is_empty() || settings.mark.is_some();
    let confirms = if needs_owners { Confirm::Grants } else { Confirm::Pairs };
    let confirmer = Confirmer::new(authority.clone(), confirms);
    let sharing = teller.map(|listener| peers::start(&peers, listener, &shared)).transpose()?;
    let daemon = Daemon {
        peers,
        addresses,
        unknown,
        directory,
        authority: authority.clone(),
        recheck: Recheck::new(shared.clone(), authority),
        shared,
        cache,
        unsaved: false,
        saving: None,
        keyless: false,
        sync: None,
        sync_again: false,
        next_sync: Instant::now(),
        pause: PAUSES.0,
        second_cut: None,
        sweeping: None,
        sweep_again: false,
        confirmer,
        heard: Instant::now(),
        told: String::new(),
    };
    let done = daemon.follow(ordered, signals, trial).await;
    server.abort();
    reporting.abort();
    naming.abort();
    drop(sharing);
    measuring.inspect(JoinHandle::abort);
    let _ = std::fs::remove_file(&socket);
    done
}

/// What ends the daemon and not protection.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    async fn any(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Puts in force what the authority answered to the first question after the programs were attached, or else the cached
/// keys. Returns what is wrong with the authority, if something is.
fn catch_up(
    protection: &mut Protection,
    cache: &mut Cache,
    answer: Option<Result<Cache, client::Error>>,
    withheld: bool,
) -> Result<Option<String>> {
    let trouble = match answer {
        Some(Ok(news)) => {
            if !protection.is_loaded_for(&news.config) {
                protection.reload(&news.config)?;
            }
            *cache = news;
            None
        }
        Some(Err(error @ client::Error::NotLoggedIn)) => {
            tracing::error!(
                "the authority doesn't know this verifier: enrol it again. What was protected stays protected"
            );
            return Ok(Some(error.to_string()));
        }
        Some(Err(error)) => Some(error.to_string()),
        None => Some("the authority does not answer".to_owned()),
    };
    if let Some(error) = &trouble {
        tracing::warn!(error, "starting with what the authority said last");
    }
    if trouble.is_none() || withheld {
        protection.write(&cache.config, &cache.keys.keys, now())?;
        protection.write_proofs(cache)?;
    }
    Ok(trouble)
}

/// What the authority says, where nothing is known from before.
async fn first_state(authority: &client::Authority, fresh: bool) -> Result<Cache> {
    let mut pause = PAUSES.0;
    loop {
        let error = match fetch(authority.clone()).await {
            Ok(cache) => return Ok(cache),
            Err(error @ client::Error::NotLoggedIn) => {
                return Err(error).context("the authority doesn't know this verifier: enrol it again");
            }
            Err(error) => error,
        };
        if fresh {
            bail!("{error}; and nothing is known from before: neither what to protect nor a key. Nothing is protected");
        }
        tracing::warn!(%error, "an earlier run's protection goes on; waiting for the authority");
        sleep(pause).await;
        pause = (pause * 2).min(PAUSES.1);
    }
}

async fn fetch(authority: client::Authority) -> Result<Cache, client::Error> {
    let (config, keys) = tokio::try_join!(authority.config(), authority.keys(KEYS_AHEAD))?;
    Ok(Cache { config, keys })
}

fn access(users: &[String]) -> Result<Access> {
    let number = |user: &String| {
        if let Ok(number) = user.parse() {
            return Ok(number);
        }
        let found = nix::unistd::User::from_name(user)?;
        Ok(found.with_context(|| format!("whois_users: there is no user {user:?}"))?.uid.as_raw())
    };
    let whois = users.iter().map(number).collect::<Result<_>>()?;
    Ok(Access { owner: nix::unistd::geteuid().as_raw(), whois })
}

fn warn_of_lock_out(protection: &Protection, settings: &Settings, trial: Option<Duration>, fresh: bool) {
    if !fresh || settings.observe || settings.mark.is_some() || trial.is_some() {
        return;
    }
    let ssh = std::env::var("SSH_CONNECTION").ok().and_then(|text| adoption::ssh_connection(&text));
    let ssh = adoption::operator(ssh, &adoption::sockets().unwrap_or_default());
    if let Some(warning) = adoption::lock_out(ssh.as_ref(), &protection.protected(), settings.adopt) {
        tracing::warn!("{warning}");
    }
}

struct Daemon {
    /// The gateways beside this one.
    peers: Arc<Peers>,
    /// News of this host's addresses.
    addresses: Arc<Notify>,
    /// Grants whose owner is to be asked for.
    unknown: mpsc::Sender<u64>,
    directory: Directory,
    authority: client::Authority,
    shared: Arc<Shared>,
    cache: Cache,
    /// Whether the cache is newer than its file.
    unsaved: bool,
    saving: Option<JoinHandle<()>>,
    /// Whether there is no key for the current epoch.
    keyless: bool,
    sync: Option<JoinHandle<Result<Cache, client::Error>>>,
    /// Something changed while the authority was being asked: ask again.
    sync_again: bool,
    next_sync: Instant,
    pause: Duration,
    /// Finds the flows that outlived their grant and may not live on.
    recheck: Recheck,
    second_cut: Option<Instant>,
    /// A sweep that is under way, and whether another is to follow.
    sweeping: Option<JoinHandle<u32>>,
    sweep_again: bool,
    confirmer: Confirmer,
    /// When the event stream said something last.
    heard: Instant,
    /// What the service manager was told last.
    told: String,
}
