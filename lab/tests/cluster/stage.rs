//! Three hosts with a member of etcd and an authority each, a server behind a verifier, two clients with agents, two
//! tunnel endpoints with a tenant each, and a host of clients without agents. A router joins them all.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use lab::middlebox::Rules;
use lab::net::veth;
use lab::service::Echo;
use lab::world::{
    AUTHORITY, AUTHORITY_PORT, Agent, Authority, DARK4, ECHO, FRONT4, OPEN4, PASSWORD, SOON, VERIFIER, Verifier,
};
use lab::{Etcd, Namespace, Process, poll};
use serde_json::Value;

use crate::clock::{self, Clock};
use crate::history::PARTS;
use crate::overlay::{self, Overlay};

/// The hosts' addresses. The first is the one that [`Authority::make`] uses.
pub const HOSTS: [&str; 3] = [AUTHORITY, "198.51.101.10", "198.51.102.10"];
/// The people with agents, one at each client.
pub const PEOPLE: [&str; 2] = ["alice", "bob"];
/// The person whose clients follow the authorities by themselves.
pub const ROVER: &str = "rover";
/// The receiver of the rover's requests. No host has the address.
pub const FAR: &str = "192.0.2.99";
/// Time that a command of an administrator may take.
const COMMAND: Duration = Duration::from_secs(30);
/// Time after a fault in which a host is allowed to answer from what it knew before.
const SETTLES: Duration = Duration::from_secs(10);

/// Number of entries that an authority may be behind while others write.
const NEAR: u64 = 100;

/// A host of an authority and of a member of etcd.
pub struct Host {
    /// The authority.
    pub authority: Mutex<Authority>,
    /// The member of etcd.
    pub etcd: Mutex<Etcd>,
    /// The authority's clock.
    pub clock: Clock,
    /// The authority's URL.
    pub url: String,
    dir: PathBuf,
    troubles: Mutex<Vec<(Instant, Option<Instant>)>>,
    /// The host.
    pub namespace: Namespace,
}

/// The answer of a command.
pub struct Answer {
    /// Whether its exit code is 0.
    pub done: bool,
    /// Its output.
    pub text: String,
}

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Host {
    /// Runs `vouchsafe authority WORDS… --dir DIR REST…` at this host.
    pub fn command(&self, words: &[&str], rest: &[&str]) -> Result<Answer> {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.namespace.path().display())).arg("--").arg(lab::vouchsafe());
        command.arg("authority").args(words).arg("--dir").arg(&self.dir).args(rest);
        let mut process = Process::start(command, self.namespace.dir())?;
        let status = process.wait(COMMAND)?;
        Ok(Answer { done: status.success(), text: process.log() })
    }

    /// Does the same, and fails unless the exit code is 0.
    pub fn demand(&self, words: &[&str], rest: &[&str]) -> Result<String> {
        let answer = self.command(words, rest)?;
        ensure!(answer.done, "`authority {}` at {}: {}", words.join(" "), self.url, answer.text);
        Ok(answer.text)
    }

    /// Returns the answer of `cluster status`, as JSON.
    pub fn status(&self) -> Result<Value> {
        // The exit code is 1 if anything needs attention.
        let text = self.command(&["cluster", "status"], &["--json"])?.text;
        let json = text.find('{').map_or("", |at| &text[at..]);
        serde_json::from_str(json).with_context(|| text.clone())
    }

    /// Returns the path of the authority's database.
    pub fn database(&self) -> PathBuf {
        lab_database(&self.dir)
    }

    /// Notes that this host is in trouble from now on.
    pub fn begin_trouble(&self) {
        lock(&self.troubles).push((Instant::now(), None));
    }

    /// Notes that this host's trouble is over.
    pub fn end_trouble(&self) {
        if let Some((_, end @ None)) = lock(&self.troubles).last_mut() {
            *end = Some(Instant::now());
        }
    }

    /// Reports whether this host is in no trouble now.
    pub fn is_well(&self) -> bool {
        lock(&self.troubles).last().is_none_or(|(_, end)| end.is_some())
    }

    /// Reports whether this host was in no trouble since `from`, nor shortly before.
    pub fn was_well(&self, from: Instant) -> bool {
        lock(&self.troubles).last().is_none_or(|(_, end)| end.is_some_and(|end| end + SETTLES < from))
    }
}

/// Returns the path of the database of an authority's directory.
pub fn lab_database(dir: &std::path::Path) -> PathBuf {
    dir.join("authority.db")
}

/// Everything. Fields are declared in the order in which they are dropped.
pub struct Stage {
    /// The agents of [`PEOPLE`].
    pub agents: Vec<Agent>,
    /// The verifier in front of the server.
    pub verifier: Verifier,
    /// The virtual network.
    pub overlay: Overlay,
    /// The three hosts.
    pub hosts: Vec<Host>,
    /// The echo service.
    pub echo: Echo,
    /// The host of the service.
    pub server: Namespace,
    /// The agents' machines.
    pub clients: Vec<Namespace>,
    /// The machine of clients without agents.
    pub probe: Namespace,
    /// The router. Its devices are `h1`, `h2`, `h3`, `dc`, `c1`, `c2`, `e1`, `e2` and `probe`.
    pub router: Namespace,
    /// The certificate of the cluster's CA.
    pub ca: Vec<u8>,
    /// When the stage was ready.
    pub began: Instant,
}

impl Stage {
    /// Builds the network and starts everything. Each member of etcd gets these additional flags.
    pub fn new(etcd_flags: &[&str]) -> Result<Self> {
        let router = Namespace::new("router")?;
        let attach = |name: &str, device: &str, addresses: &str, gateway: &str| -> Result<Namespace> {
            let host = Namespace::new(name)?;
            veth(&host, "eth0", addresses, &router, device, &format!("{gateway}/24"))?;
            host.route("default", gateway)?;
            Ok(host)
        };
        let mut hosts = Vec::new();
        for (at, address) in HOSTS.iter().enumerate() {
            let gateway = address.trim_end_matches("10").to_owned() + "254";
            hosts.push(attach(
                &format!("host{}", at + 1),
                &format!("h{}", at + 1),
                &format!("{address}/24"),
                &gateway,
            )?);
        }
        let served = [OPEN4, FRONT4, DARK4].map(|address| format!("{address}/24")).join(" ");
        let server = attach("server", "dc", &served, "192.0.2.254")?;
        let mut clients = Vec::new();
        for at in 1..=PEOPLE.len() {
            let net = format!("10.{at}.0");
            clients.push(attach(
                &format!("client{at}"),
                &format!("c{at}"),
                &format!("{net}.1/24"),
                &format!("{net}.254"),
            )?);
        }
        let probe = attach("probe", "probe", "10.9.0.1/24", "10.9.0.254")?;
        let endpoint = |number: usize| {
            let address = overlay::address(number);
            let gateway = address.trim_end_matches('1').to_owned() + "254";
            attach(&format!("endpoint{number}"), &format!("e{number}"), &format!("{address}/24"), &gateway)
        };
        let places = vec![endpoint(1)?, endpoint(2)?];
        router.forward()?;
        // Each port of the dark address is an own destination, and all of them end at the echo.
        let ports = format!("ip daddr {DARK4} tcp dport 1000-60000 redirect to :{ECHO}");
        std::mem::forget(Rules::redirect(&server, &ports)?);

        let etcds = Etcd::cluster(&hosts.iter().zip(HOSTS).collect::<Vec<_>>(), etcd_flags)?;
        let urls: Vec<_> = etcds.iter().map(Etcd::url).collect();
        let authorities = found(&hosts, &urls)?;
        let ca = fs::read(authorities[0].0.ca())?;
        let hosts: Vec<_> = hosts.into_iter().zip(etcds).zip(authorities).map(join).collect();

        let echo = Echo::start(&server, ECHO)?;
        let verifier = Verifier::start(&server, &lock(&hosts[0].authority))?;
        let mut agents = Vec::new();
        for ((client, host), person) in clients.iter().zip(&hosts).zip(PEOPLE) {
            let agent = Agent::start(client)?;
            agent.login(&lock(&host.authority), person)?;
            agents.push(agent);
        }
        let overlay = Overlay::start(places, &hosts)?;
        let began = Instant::now();
        Ok(Self { agents, verifier, overlay, hosts, echo, server, clients, probe, router, ca, began })
    }

    /// Waits until each member of etcd works, and each authority may record grants and has followed nearly everything.
    pub fn settle(&self) -> Result<()> {
        let mut why = None;
        let settled = poll(SOON, || {
            why = self.trouble();
            why.is_none()
        });
        ensure!(settled, "the cluster does not come to rest: {}", why.unwrap_or_default());
        Ok(())
    }

    fn trouble(&self) -> Option<String> {
        for host in &self.hosts {
            if !lock(&host.etcd).is_healthy() {
                return Some(format!("etcd at {} does not work", host.url));
            }
            let status = match host.status() {
                Ok(status) => status,
                Err(error) => return Some(format!("{error:#}")),
            };
            let members = status["members"].as_array().map(Vec::as_slice).unwrap_or_default();
            let is_near = |member: &Value| member["behind"].as_u64().is_some_and(|behind| behind < NEAR);
            let is_whole = members.len() == self.hosts.len() && members.iter().all(is_near);
            if !is_whole || status["standing"]["state"] != "member" {
                return Some(status.to_string());
            }
        }
        None
    }

    /// Returns the index of the host whose member of etcd leads.
    pub fn leader(&self) -> Result<usize> {
        let mut at = None;
        let leads = |host: &Host| lock(&host.etcd).said().is_ok_and(|said| said.leads);
        let found = poll(SOON, || {
            at = self.hosts.iter().position(leads);
            at.is_some()
        });
        ensure!(found, "no member of etcd leads");
        at.context("no member of etcd leads")
    }

    /// Returns the address and port of a destination.
    pub fn at(host: &str, port: u16) -> SocketAddr {
        SocketAddr::new(host.parse().expect("an address"), port)
    }
}

fn join(((namespace, etcd), (authority, clock)): ((Namespace, Etcd), (Authority, Clock))) -> Host {
    Host {
        clock,
        url: authority.url(),
        dir: authority.dir().to_owned(),
        authority: Mutex::new(authority),
        etcd: Mutex::new(etcd),
        troubles: Mutex::default(),
        namespace,
    }
}

/// Makes an authority at the first host, makes a cluster of it, and lets the other hosts join.
fn found(hosts: &[Namespace], etcd: &[String]) -> Result<Vec<(Authority, Clock)>> {
    let people = PEOPLE.iter().map(|person| (*person).to_owned()).chain([ROVER.into()]);
    let people: Vec<_> = people.chain((0..PARTS).map(part)).collect();
    let people: Vec<_> = people.iter().map(String::as_str).collect();
    let mut first = Authority::make(&hosts[0], "", "segments = \"0.0.0.0:8443\"\n", &people)?;
    fs::write(first.dir().join("networks.toml"), overlay::networks())?;
    first.apply(&(policy(0, &[true; PARTS]) + &overlay::policy()))?;
    first.stop()?;
    let library = clock::library(hosts[0].dir())?;
    let clock = Clock::of(&mut first, &hosts[0], &library)?;
    let mut init: Vec<&str> = vec!["--name", "authority1", "--url"];
    let url = first.url();
    init.push(url.as_str());
    init.extend(etcd.iter().flat_map(|url| ["--etcd", url.as_str()]));
    first.command(&["cluster", "init"], &init).context("the cluster's beginning")?;
    first.run()?;
    let mut all = vec![(first, clock)];
    for (at, namespace) in hosts.iter().enumerate().skip(1) {
        let mut member = Authority::at(namespace, HOSTS[at]);
        enter(&all[0].0, &member, namespace, at, etcd)?;
        let clock = Clock::of(&mut member, namespace, &library)?;
        member.run()?;
        all.push((member, clock));
    }
    Ok(all)
}

/// Lets the authority of the host with this index, which has no directory, join the cluster by an invitation of
/// another.
pub fn enter(inviting: &Authority, member: &Authority, host: &Namespace, at: usize, etcd: &[String]) -> Result<()> {
    let (name, address, bundle) = (format!("authority{}", at + 1), HOSTS[at], host.dir().join("bundle"));
    let (url, out) = (member.url(), bundle.to_string_lossy().into_owned());
    let words = ["cluster", "invite"];
    inviting.command(&words, &[&name, "--name-of-host", address, "--url", &url, "--out", &out])?;
    let listen = format!("{address}:{AUTHORITY_PORT}");
    // The member of etcd on the same host first.
    let mut join = vec![out.as_str(), "--listen", &listen, "--etcd", &etcd[at]];
    join.extend(etcd.iter().filter(|url| **url != etcd[at]).flat_map(|url| ["--etcd", url.as_str()]));
    member.command(&["cluster", "join"], &join).with_context(|| name.clone())?;
    // A member needs its invitation only once.
    Ok(fs::remove_file(bundle)?)
}

/// Returns the name of a part of the history: of a person, and of the receiver that this person requests.
pub fn part(number: usize) -> String {
    format!("part{number}")
}

/// Returns the address of the receiver of a part of the history.
pub fn part_address(number: usize) -> String {
    format!("192.0.2.{}", 100 + number)
}

/// Returns version `version` of the policy. The name of the rule of each part ends with the version. The rule exists
/// only if the part is allowed. The other rules are the same in every version.
pub fn policy(version: u32, allowed: &[bool; PARTS]) -> String {
    let receiver = |name: &str, address: &str| {
        format!(
            "[[receivers]]\nname = \"{name}\"\naddress = [\"{address}\"]\nservices = \"all\"\nverifier = \"{VERIFIER}\"\n"
        )
    };
    let rule = |name: &str, who: &str, to: &str, lifetime: &str| {
        format!(
            "[[rules]]\nname = \"{name}\"\naction = \"allow\"\nwho = \"{who}\"\nto = \"{to}\"\nlifetime = \"{lifetime}\"\n"
        )
    };
    // Service accounts are in the group `hosts`.
    let mut text = format!("[groups]\nstaff = [\"{}\"]\nhosts = []\n", PEOPLE.join("\", \""));
    text += &receiver("front", FRONT4);
    text += &receiver("dark", DARK4);
    text += &receiver("far", FAR);
    text += &(0..PARTS).map(|number| receiver(&part(number), &part_address(number))).collect::<String>();
    text += &rule("staff at the front", "group:staff", "front", "10s");
    text += &rule("staff at the dark host", "group:staff", "dark", "10s");
    text += &rule("rover", &format!("person:{ROVER}"), "far", "10s");
    for number in (0..PARTS).filter(|number| allowed[*number]) {
        let name = part(number);
        text += &rule(&format!("{name} v{version}"), &format!("person:{name}"), &name, "10s");
    }
    text
}

/// Reads a number from the environment.
pub fn setting(name: &str) -> Result<Option<u64>> {
    let Ok(text) = std::env::var(name) else { return Ok(None) };
    match text.parse() {
        Ok(number) => Ok(Some(number)),
        Err(_) => bail!("{name} is {text:?}, and should be a whole number"),
    }
}

/// The password of every account.
pub const SECRET: &str = PASSWORD;
