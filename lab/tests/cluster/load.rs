//! Traffic that must not notice the faults: flows that stay open, connections with grants that agents renew,
//! connections that need a new grant, and clients without agents that follow the authorities.

use std::net::{SocketAddr, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::{Scope, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use api::{GrantRequest, Login};
use client::Authority;
use lab::Namespace;
use lab::forge::protocol::TCP;
use lab::service::{call, exchange};
use lab::world::{DARK4, ECHO, FRONT4};
use tokio::runtime::Builder;

use crate::overlay::Overlay;
use crate::stage::{FAR, ROVER, SECRET, Stage, lock, setting};

/// Time within which a client of the API has logged in and knows all authorities.
const BEGINS: Duration = Duration::from_secs(20);
/// Interval of the bytes on a flow.
const BEAT: Duration = Duration::from_millis(100);
/// Shortest interval of new connections, and of the requests of one client, in milliseconds: in a long run, and in a
/// short one. Each of them waits for the answer before the next one. Without the interval they would measure how many
/// processes one machine runs at the same time: the three authorities, three members of etcd and all endpoints share it.
/// Short runs have to pass on a machine that is half as fast. `VOUCHSAFE_CLUSTER_PACE` sets another interval; with 0,
/// each request follows the answer to the one before.
const PACE: (u64, u64) = (100, 250);
/// Time within which a new grant must be there while the cluster has a majority.
const PROMISE: Duration = Duration::from_secs(3);
/// Time after which an answer does not count as an answer any more.
const LOST: Duration = Duration::from_secs(12);

/// Counters and failures of the traffic.
pub struct Load {
    pace: Duration,
    /// Set when everybody has to end.
    pub end: AtomicBool,
    /// Failures, of which there must be none.
    faults: Mutex<Vec<String>>,
    /// When requests for new grants began, how long they took, and of which kind they are.
    waits: Mutex<Vec<(Instant, Duration, Kind)>>,
    /// Exchanges on flows that stay open.
    pub beats: AtomicU64,
    /// Connections with a grant that an agent holds.
    pub renewed: AtomicU64,
    /// Connections and requests that needed a new grant.
    pub fresh: AtomicU64,
}

/// A kind of traffic, as the messages call it.
pub type Kind = &'static str;

const ASKED: Kind = "a new grant";
const OPENED: Kind = "a connection that needs a new grant";
const TUNNELLED: Kind = "a connection that needs new segments";
/// The kinds of traffic that need something new.
pub const KINDS: [Kind; 3] = [ASKED, OPENED, TUNNELLED];

impl Load {
    /// Creates the load. Nothing is sent yet.
    pub fn new() -> Result<Self> {
        let usual = if setting("VOUCHSAFE_CLUSTER_MINUTES")?.is_some() { PACE.0 } else { PACE.1 };
        let pace = Duration::from_millis(setting("VOUCHSAFE_CLUSTER_PACE")?.unwrap_or(usual));
        let (end, faults, waits) = (AtomicBool::new(false), Mutex::default(), Mutex::default());
        let [beats, renewed, fresh] = [const { AtomicU64::new(0) }; 3];
        Ok(Self { pace, end, faults, waits, beats, renewed, fresh })
    }

    /// Starts the traffic on threads of `scope`.
    pub fn start<'s, 'e>(&'e self, scope: &'s Scope<'s, 'e>, stage: &'e Stage) -> Result<()> {
        for client in &stage.clients {
            let flow = call(client, Stage::at(FRONT4, ECHO), LOST).context("the flow that stays open")?;
            scope.spawn(move || self.beat(flow));
            scope.spawn(move || self.connect(client, "a connection with a held grant", |_| Stage::at(FRONT4, ECHO)));
            let port = |number: u64| 1000 + (number % 59_000) as u16;
            scope.spawn(move || self.connect(client, OPENED, move |number| Stage::at(DARK4, port(number))));
        }
        let tenant = stage.overlay.caller();
        let flow = call(tenant, Overlay::at(ECHO), LOST).context("the tenants' flow that stays open")?;
        scope.spawn(move || self.beat(flow));
        scope.spawn(move || self.connect(tenant, TUNNELLED, |number| Overlay::at(1000 + (number % 59_000) as u16)));
        for host in &stage.hosts {
            scope.spawn(move || self.rove(&stage.probe, &host.url, &stage.ca));
        }
        Ok(())
    }

    /// Exchanges a message on a flow until the end.
    fn beat(&self, mut flow: TcpStream) {
        while !self.is_over() {
            let began = Instant::now();
            if let Err(error) = exchange(&mut flow) {
                return self.fault("an admitted flow", began, &format!("{error:#}"));
            }
            self.beats.fetch_add(1, Relaxed);
            sleep(BEAT.saturating_sub(began.elapsed()));
        }
    }

    /// Opens connections until the end.
    fn connect(&self, client: &Namespace, kind: Kind, to: impl Fn(u64) -> SocketAddr) {
        for number in 0.. {
            if self.is_over() {
                return;
            }
            let to = to(number);
            let began = Instant::now();
            let opened = call(client, to, LOST);
            match opened {
                Ok(_) if began.elapsed() < PROMISE => {}
                Ok(_) => self.fault(kind, began, "it took too long"),
                Err(error) => self.fault(kind, began, &format!("{error:#}")),
            }
            if to.port() == ECHO {
                self.renewed.fetch_add(1, Relaxed);
            } else {
                self.waited(kind, began);
            }
            sleep(self.pace.saturating_sub(began.elapsed()));
        }
    }

    /// Requests grants until the end: each time a new one, and the same one again, which is a renewal.
    fn rove(&self, probe: &Namespace, url: &str, ca: &[u8]) {
        let began = Instant::now();
        let roved = probe.enter(|| -> Result<()> {
            let runtime = Builder::new_current_thread().enable_all().build().context("a runtime")?;
            runtime.block_on(self.ask(url, ca))
        });
        if let Err(error) = roved {
            self.fault("a client of the API", began, &format!("{error:#}"));
        }
    }

    async fn ask(&self, url: &str, ca: &[u8]) -> Result<()> {
        let authority = Authority::new(url, Some(ca))?;
        let login =
            Login { person: ROVER.into(), password: SECRET.into(), totp: None, device: url.replace("https://", "") };
        // The answer names the other authorities. Until the client has it, the client knows one, which may be restarted.
        let began = Instant::now();
        let client = loop {
            let known = async {
                let session = authority.login(&login).await.context("the rover can't log in")?;
                let client = authority.with_token(&session.token);
                client.destinations().await.context("the rover's destinations")?;
                anyhow::Ok(client)
            };
            match known.await {
                Ok(client) => break client,
                Err(error) if began.elapsed() > BEGINS => return Err(error),
                Err(_) => tokio::time::sleep(self.pace).await,
            }
        };
        let request = |port| {
            let address = FAR.parse().expect("an address");
            GrantRequest { address, protocol: TCP, port, consented: false, in_band: false }
        };
        let held = request(1);
        for number in 0.. {
            if self.is_over() {
                break;
            }
            let round = Instant::now();
            for (kind, request) in [(ASKED, request(2 + (number % 60_000) as u16)), ("a renewal", held.clone())] {
                let began = Instant::now();
                match tokio::time::timeout(LOST, client.grant(&request)).await {
                    Ok(Ok(_)) if began.elapsed() < PROMISE => {}
                    Ok(Ok(_)) => self.fault(kind, began, "it took too long"),
                    Ok(Err(error)) => self.fault(kind, began, &error.to_string()),
                    Err(_) => self.fault(kind, began, "no answer"),
                }
                if kind == ASKED {
                    self.waited(kind, began);
                } else {
                    self.renewed.fetch_add(1, Relaxed);
                }
            }
            tokio::time::sleep(self.pace.saturating_sub(round.elapsed())).await;
        }
        Ok(())
    }

    fn is_over(&self) -> bool {
        self.end.load(Relaxed)
    }

    fn waited(&self, kind: Kind, began: Instant) {
        self.fresh.fetch_add(1, Relaxed);
        lock(&self.waits).push((began, began.elapsed(), kind));
    }

    fn fault(&self, kind: Kind, began: Instant, why: &str) {
        let text = format!("{kind} failed after {:.3?}: {why}", began.elapsed());
        eprintln!("{text}");
        lock(&self.faults).push(text);
    }

    /// Returns the longest wait of each of [`KINDS`] that began after `from`.
    pub fn longest_since(&self, from: Instant) -> [Duration; KINDS.len()] {
        let waits = lock(&self.waits);
        KINDS.map(|of| {
            let of = waits.iter().filter(|(began, _, kind)| *began >= from && *kind == of);
            of.map(|(_, took, _)| *took).max().unwrap_or_default()
        })
    }

    /// Checks that nothing failed, and that there was traffic of each kind.
    pub fn finish(&self) -> Result<()> {
        let faults = lock(&self.faults);
        if !faults.is_empty() {
            let first: Vec<_> = faults.iter().take(20).map(String::as_str).collect();
            bail!("{} failures, the first of them:\n{}", faults.len(), first.join("\n"));
        }
        for (kind, count) in [("flows", &self.beats), ("renewals", &self.renewed), ("new grants", &self.fresh)] {
            ensure!(count.load(Relaxed) > 20, "too little traffic: {kind}");
        }
        Ok(())
    }
}
