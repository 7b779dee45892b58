//! Clients that request grants and record a history, each at one authority; and administrators who change the policy
//! and revoke people meanwhile.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::{Scope, sleep};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use api::{GrantRequest, Login};
use client::{Authority, Error};
use lab::forge::protocol::TCP;
use lab::{Namespace, poll};
use tokio::runtime::Builder;
use tokio::time::timeout;

use crate::chance::Chance;
use crate::history::{Call, Op, PARTS, Ret, check};
use crate::stage::{Host, SECRET, lock, part, part_address, policy};

/// Interval between the requests of a client, in milliseconds: in a long run, and in a short one (see `load.rs`).
const PACE: (u64, u64) = (200, 400);
/// Time that a client waits for an answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// The histories, one for each part.
pub struct Recorder {
    began: Instant,
    pace: Duration,
    calls: [Mutex<Vec<Call>>; PARTS],
    sessions: AtomicU32,
    versions: AtomicU32,
    /// The end of each version of the policy.
    common: String,
    /// Set when everybody has to end.
    pub end: AtomicBool,
}

/// Where a client asks.
#[derive(Clone)]
pub struct Place {
    /// The authority's URL.
    pub url: String,
    /// The CA's certificate.
    pub ca: Arc<[u8]>,
    /// The name of the place, for messages.
    pub name: String,
}

impl Recorder {
    /// Begins to record. Each version of the policy ends with `common`.
    pub fn new(common: String, is_long: bool) -> Self {
        let pace = Duration::from_millis(if is_long { PACE.0 } else { PACE.1 });
        let (sessions, versions) = (AtomicU32::new(1), AtomicU32::new(1));
        let end = AtomicBool::new(false);
        Self { began: Instant::now(), pace, calls: Default::default(), sessions, versions, common, end }
    }

    /// Reports whether everybody has to end.
    pub fn is_over(&self) -> bool {
        self.end.load(Relaxed)
    }

    fn note(&self, part: usize, op: Op, from: Instant, ret: Option<Ret>, place: &str) {
        let came = ret.map(|ret| (ret, self.began.elapsed()));
        let call = Call { op, from: from.duration_since(self.began), came, place: place.into() };
        lock(&self.calls[part]).push(call);
    }

    /// Checks each history; returns the number of operations in all of them.
    pub fn check(&self) -> Result<usize> {
        let mut operations = 0;
        for (number, calls) in self.calls.iter().enumerate() {
            let calls = lock(calls);
            operations += calls.len();
            if let Err(stuck) = check(&calls) {
                bail!("the history of {} is not that of one authority, {}", part(number), stuck.text);
            }
        }
        Ok(operations)
    }

    /// Returns the number of recorded grants, and of operations without a known outcome.
    pub fn figures(&self) -> (usize, usize) {
        let count = |is: &dyn Fn(&Call) -> bool| {
            self.calls.iter().map(|calls| lock(calls).iter().filter(|call| is(call)).count()).sum()
        };
        (count(&|call| matches!(call.came, Some((Ret::Granted(_), _)))), count(&|call| call.came.is_none()))
    }

    /// Starts a client in `namespace` that logs in as the person of a part, and requests new grants at one place until
    /// the end. `was_well` says whether the place was in no trouble since a time: only then an answer that gives
    /// nothing must be right, because an authority that was cut off knows only what was so before.
    pub fn prober<'s, 'e>(
        &'e self,
        scope: &'s Scope<'s, 'e>,
        namespace: &'e Namespace,
        number: usize,
        place: Place,
        was_well: impl Fn(Instant) -> bool + Send + Sync + 's,
    ) where
        'e: 's,
    {
        scope.spawn(move || {
            namespace.enter(|| {
                let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
                runtime.block_on(self.probe(number, &place, &was_well))
            })
        });
    }

    async fn probe(&self, number: usize, place: &Place, was_well: &impl Fn(Instant) -> bool) {
        let address = part_address(number).parse().expect("an address");
        let (mut session, mut port) = (None, 0_u16);
        while !self.is_over() {
            let Some((own, client)) = &session else {
                session = self.log_in(number, place).await;
                if session.is_none() {
                    tokio::time::sleep(self.pace).await;
                }
                continue;
            };
            // Another port is another grant.
            port = port % 60_000 + 1;
            let request = GrantRequest { address, protocol: TCP, port, consented: false, in_band: false };
            let from = Instant::now();
            let answer = timeout(PATIENCE, Authority::grant(client, &request)).await;
            let is_gone = matches!(answer, Ok(Err(Error::NotLoggedIn)));
            let ret = match answer {
                Ok(Ok(grant)) => {
                    let name = grant.rule.rsplit(' ').next().unwrap_or_default();
                    Some(Ret::Granted(name.trim_start_matches('v').parse().expect("the name of a version's rule")))
                }
                Ok(Err(Error::Denied(_))) if was_well(from) => Some(Ret::Denied),
                Ok(Err(Error::NotLoggedIn)) if was_well(from) => Some(Ret::Gone),
                // A request that was not carried out changes nothing.
                _ => None,
            };
            if ret.is_some() {
                self.note(number, Op::Issue(*own), from, ret, &place.name);
            }
            if is_gone {
                session = None;
            }
            tokio::time::sleep(self.pace.saturating_sub(from.elapsed())).await;
        }
    }

    async fn log_in(&self, number: usize, place: &Place) -> Option<(u32, Authority)> {
        let own = self.sessions.fetch_add(1, Relaxed);
        let client = Authority::new(&place.url, Some(&place.ca)).ok()?;
        let device = format!("device at {}", place.name);
        let login = Login { person: part(number), password: SECRET.into(), totp: None, device };
        let from = Instant::now();
        let session = timeout(PATIENCE, client.login(&login)).await.ok()?.ok()?;
        self.note(number, Op::Login(own), from, Some(Ret::Done), &place.name);
        Some((own, client.with_token(&session.token)))
    }

    /// Puts versions of the policy in force, one after the other and each at a host that is well, until the end: the next
    /// one after `pause`, or when the trouble of a host begins.
    pub fn change_policy(&self, hosts: &[Host], chance: &mut Chance, pause: Duration) -> Result<()> {
        while !self.is_over() {
            if let Some(host) = well(hosts, chance) {
                self.apply_once(
                    chance,
                    &host.url,
                    |file| {
                        host.command(&["policy", "apply"], &[file])
                            .is_ok_and(|answer| answer.done && is_sure(&answer.text))
                    },
                    host.namespace.dir(),
                )?;
            }
            let are_well = || hosts.iter().all(Host::is_well);
            let mut before = are_well();
            let _ = poll(pause, || {
                let now = are_well();
                let begins = before && !now;
                before = now;
                begins || self.is_over()
            });
        }
        Ok(())
    }

    /// Puts the next version of the policy in force by `apply`, which gets a file and says whether the version is in
    /// force for certain.
    pub fn apply_once(
        &self,
        chance: &mut Chance,
        place: &str,
        apply: impl FnOnce(&str) -> bool,
        dir: &std::path::Path,
    ) -> Result<()> {
        let version = self.versions.fetch_add(1, Relaxed);
        let allowed: [bool; PARTS] = std::array::from_fn(|_| chance.below(4) > 0);
        let file = dir.join(format!("policy-{version}.toml"));
        fs::write(&file, policy(version, &allowed) + &self.common)?;
        let from = Instant::now();
        let ret = apply(&file.to_string_lossy()).then_some(Ret::Done);
        for (number, allowed) in allowed.into_iter().enumerate() {
            self.note(number, Op::Apply { version, allowed }, from, ret.clone(), place);
        }
        Ok(())
    }

    /// Revokes people, each at a host that is well, until the end.
    pub fn revoke(&self, hosts: &[Host], chance: &mut Chance, pause: Duration) -> Result<()> {
        while !self.is_over() {
            sleep(pause);
            let number = chance.below(PARTS as u64) as usize;
            let Some(host) = well(hosts, chance) else { continue };
            let from = Instant::now();
            let answer = host.command(&["revoke"], &["--person", &part(number)]);
            let done = answer.is_ok_and(|answer| answer.done && is_sure(&answer.text));
            self.note(number, Op::Revoke, from, done.then_some(Ret::Done), &host.url);
        }
        Ok(())
    }

    /// Checks that enough happened for the histories to show something.
    pub fn is_rich(&self, least: usize) -> Result<()> {
        let (granted, _) = self.figures();
        ensure!(granted >= least, "only {granted} grants were recorded");
        for calls in &self.calls {
            let is_there = |is: &dyn Fn(&Call) -> bool| lock(calls).iter().any(is);
            ensure!(is_there(&|call| call.op == Op::Revoke), "nobody was revoked");
            ensure!(
                is_there(&|call| matches!(call.op, Op::Apply { .. }) && call.came.is_some()),
                "no policy was applied"
            );
        }
        Ok(())
    }
}

/// Reports whether the command was carried out by a server. If the server ended just before, the command changed only
/// the database.
fn is_sure(text: &str) -> bool {
    !text.contains("not running")
}

fn well<'h>(hosts: &'h [Host], chance: &mut Chance) -> Option<&'h Host> {
    let well: Vec<_> = hosts.iter().filter(|host| host.is_well()).collect();
    (!well.is_empty()).then(|| *chance.one_of(&well))
}

/// Returns the place of a host.
pub fn place(host: &Host, ca: &[u8]) -> Place {
    Place { url: host.url.clone(), ca: ca.into(), name: host.url.clone() }
}
