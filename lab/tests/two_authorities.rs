//! Two organisations before one server: one verifier follows two authorities that don't trust each other.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lab::net::veth;
use lab::service::{Echo, ask, call, exchange, last_answer};
use lab::world::{AUTHORITY, AUTHORITY_PORT, Agent, Authority, ECHO, SOON, Verifier, policy_for_echo};
use lab::{Namespace, poll, test};
use serde_json::Value;

/// The server's address for which both organisations may speak.
const SHARED: &str = "192.0.2.20";
/// The server's address for which only the organisation `acme` may speak.
const THEIRS: &str = "192.0.2.21";
/// The address of the authority of `acme`.
const ACME_AUTHORITY: &str = "198.51.103.10";
/// Time to wait for an answer that must not come.
const QUIET: Duration = Duration::from_millis(700);

/// A server behind a verifier, and two organisations, each with an authority and a client of its own.
struct Stage {
    home: Organisation,
    acme: Organisation,
    verifier: Verifier,
    flags: &'static [&'static str],
    _echo: Echo,
    _server: Namespace,
    router: Namespace,
}

/// An organisation. Each has a person called Alice.
struct Organisation {
    agent: Agent,
    authority: Authority,
    client: Namespace,
    _host: Namespace,
}

fn echo(address: &str) -> SocketAddr {
    format!("{address}:{ECHO}").parse().expect("an address")
}

impl Organisation {
    fn start(router: &Namespace, name: &str, net: u8, authority: &str, addresses: &[&str]) -> Result<Self> {
        let (client, host) = (Namespace::new(&format!("{name}-cli"))?, Namespace::new(&format!("{name}-auth"))?);
        for (space, own, device) in [(&client, &*format!("10.{net}.0.1"), "c"), (&host, authority, "a")] {
            let (prefix, _) = own.rsplit_once('.').context("an address")?;
            let next = format!("{prefix}.254");
            veth(space, "eth0", &format!("{own}/24"), router, &format!("{name}-{device}"), &format!("{next}/24"))?;
            space.route("default", &next)?;
        }
        let mut this = Authority::at(&host, authority);
        let listen = format!("{authority}:{AUTHORITY_PORT}");
        this.command(&["init"], &["--name", authority, "--listen", &listen])?;
        fs::write(this.dir().join("policy.toml"), policy_for_echo(addresses))?;
        let password = this.password_file();
        this.command(&["user", "add"], &["alice", "--password-file", &password.to_string_lossy()])?;
        this.run()?;
        let agent = Agent::start(&client)?;
        Ok(Self { agent, authority: this, client, _host: host })
    }

    /// Opens a TCP connection and sends a datagram. Both have to be answered.
    fn reach(&self, address: &str) -> Result<TcpStream> {
        let flow = call(&self.client, echo(address), SOON).with_context(|| self.agent.log())?;
        ask(&self.client, echo(address), SOON).context("a datagram")?;
        Ok(flow)
    }

    fn log_in(&self) -> Result<()> {
        self.agent.login(&self.authority, "alice")
    }
}

impl Stage {
    /// Starts everything. The verifier follows the authority of the default organisation first, and gets the second one
    /// while it protects.
    fn new(flags: &'static [&'static str]) -> Result<Self> {
        let (router, server) = (Namespace::new("router")?, Namespace::new("server")?);
        router.forward()?;
        veth(&server, "eth0", &format!("{SHARED}/24"), &router, "server", "192.0.2.254/24")?;
        server.route("default", "192.0.2.254")?;
        server.address("eth0", &format!("{THEIRS}/24"))?;
        let home = Organisation::start(&router, "home", 1, AUTHORITY, &[SHARED])?;
        let acme = Organisation::start(&router, "acme", 2, ACME_AUTHORITY, &[SHARED, THEIRS])?;
        let service = Echo::start(&server, ECHO)?;
        let mut verifier = Verifier::start_with(&server, &home.authority, flags)?;
        home.log_in()?;
        acme.log_in()?;
        let mut flow = home.reach(SHARED)?;
        verifier.give_default(&[SHARED])?;
        let networks = ["--network", "192.0.2.20/32", "--network", "192.0.2.21/32"];
        verifier.enrol_further("acme", &acme.authority, &networks)?;
        verifier.kill()?;
        exchange(&mut flow).context("the daemon is away")?;
        verifier.run(flags)?;
        let stage = Self { home, acme, verifier, flags, _echo: service, _server: server, router };
        stage.waits("both are connected", |one, other| one["connected"] == true && other["connected"] == true)?;
        exchange(&mut flow).context("a flow from before there were two organisations")?;
        Ok(stage)
    }

    /// Waits until the state of the two organisations, which `vouchsafe verifier status` prints, is as wanted.
    fn waits(&self, what: &str, wanted: impl Fn(&Value, &Value) -> bool) -> Result<()> {
        let mut status = Value::Null;
        let is_so = || {
            status = self.verifier.status().unwrap_or_default();
            let all = &status["organisations"];
            all[0]["name"] == "default" && all[1]["name"] == "acme" && wanted(&all[0], &all[1])
        };
        let waited = poll(SOON, is_so);
        ensure!(waited, "{what}: {}\n{}", self.verifier.status()?["organisations"], self.verifier.log());
        Ok(())
    }
}

fn reach_and_be_kept_out(flags: &'static [&'static str]) -> Result<()> {
    let stage = Stage::new(flags)?;
    let (home, acme) = (&stage.home, &stage.acme);
    let mut flows = [home.reach(SHARED)?, acme.reach(SHARED)?, acme.reach(THEIRS)?];
    flows.iter_mut().try_for_each(exchange)?;
    // Two people of the same name: the verifier distinguishes them by their organisation.
    for (flow, organisation) in flows.iter().zip(["default", "acme", "acme"]) {
        let known = stage.verifier.whois(flow.local_addr()?)?;
        ensure!(known[0]["person"] == "alice" && known[0]["organisation"] == organisation, "{known}");
    }
    // The home organisation's authority claims the other one's address, and grants it.
    home.authority.apply(&policy_for_echo(&[SHARED, THEIRS, "192.0.2.0/24"]))?;
    stage.waits("the claims are refused", |home, _| home["refused"].as_array().is_some_and(|all| all.len() == 2))?;
    home.log_in()?;
    ensure!(call(&home.client, echo(THEIRS), QUIET).is_err(), "a grant of the other authority was admitted");
    ensure!(ask(&home.client, echo(THEIRS), QUIET).is_err(), "a datagram was admitted");
    let granted = home.authority.grants()?;
    ensure!(granted.iter().any(|grant| grant["person"] == "alice"), "{granted:?}");
    // The people of both still reach the server.
    home.reach(SHARED)?;
    acme.reach(SHARED)?;
    acme.reach(THEIRS)?;
    // The home organisation's flow has ended with the session that the new login replaced.
    flows[1..].iter_mut().try_for_each(exchange).context("flows of the other organisation")
}

#[test]
fn people_of_two_organisations_reach_one_server_and_each_only_what_is_theirs() {
    test(|| reach_and_be_kept_out(&[]));
}

#[test]
fn people_of_two_organisations_reach_one_server_at_tc() {
    test(|| reach_and_be_kept_out(&["--hook", "tc"]));
}

#[test]
fn an_authority_with_more_services_than_its_share_opens_nothing_at_the_next_start() {
    test(|| {
        let mut stage = Stage::new(&[])?;
        let ports: Vec<_> = (0..40).map(|number| format!("\"tcp/{}\"", 1000 + 2 * number)).collect();
        let ports = |count: usize| format!("\"udp/7\", {}", ports[..count].join(", "));
        let crowded = policy_for_echo(&[SHARED]).replace("\"udp/7\"", &ports(24));
        stage.home.authority.apply(&crowded)?;
        let is_told = |home: &Value| home["trouble"].as_str().is_some_and(|text| text.contains("may have at most 16"));
        stage.waits("the default organisation has too many port ranges", |home, _| is_told(home))?;
        stage.acme.reach(THEIRS)?;
        stage.home.reach(SHARED).context("the earlier receivers stay")?;
        // A start without anything in the kernel, as after a reboot.
        stage.verifier.detach()?;
        stage.verifier.run(stage.flags)?;
        for (address, client) in [(THEIRS, &stage.home.client), (SHARED, &stage.router)] {
            ensure!(call(client, echo(address), QUIET).is_err(), "{address} is open\n{}", stage.verifier.log());
        }
        stage.waits("both are connected", |home, acme| {
            is_told(home) && home["connected"] == true && acme["connected"] == true
        })?;
        stage.acme.reach(SHARED)?;
        stage.acme.reach(THEIRS)?;
        stage.home.reach(SHARED)?;
        stage.home.authority.apply(&policy_for_echo(&[SHARED]))?;
        stage.waits("the receivers are accepted", |home, _| home["trouble"].is_null())?;
        stage.home.reach(SHARED)?;
        Ok(())
    });
}

#[test]
fn what_one_authority_does_leaves_the_other_ones_people_alone() {
    test(|| {
        let mut stage = Stage::new(&[])?;
        let (mut ours, mut theirs) = (stage.home.reach(SHARED)?, stage.acme.reach(SHARED)?);
        // A revocation ends the flows of one organisation's Alice.
        stage.acme.authority.revoke("alice")?;
        last_answer(&mut theirs, SOON)?;
        exchange(&mut ours)?;
        stage.home.reach(SHARED)?;
        stage.acme.log_in()?;
        let mut theirs = stage.acme.reach(THEIRS)?;

        // The default organisation's authority dies.
        stage.home.authority.kill()?;
        stage.acme.reach(SHARED)?;
        stage.acme.authority.revoke("alice")?;
        last_answer(&mut theirs, SOON)?;
        stage.acme.log_in()?;
        let mut theirs = stage.acme.reach(THEIRS)?;
        exchange(&mut ours)?;

        // The daemon is away, and starts again without that authority.
        stage.verifier.kill()?;
        exchange(&mut ours)?;
        exchange(&mut theirs)?;
        stage.acme.reach(SHARED).context("without the daemon")?;
        stage.verifier.run_alone()?;
        exchange(&mut ours)?;
        exchange(&mut theirs)?;
        stage.waits("one of two is connected", |home, acme| home["connected"] != true && acme["connected"] == true)?;
        stage.acme.reach(SHARED)?;
        stage.home.authority.run()?;
        stage.waits("both are connected", |home, acme| home["connected"] == true && acme["connected"] == true)?;

        // The other authority dies.
        let mut shared = stage.acme.reach(SHARED)?;
        stage.acme.authority.kill()?;
        exchange(&mut theirs).context("a flow that was there")?;
        stage.home.authority.revoke("alice")?;
        last_answer(&mut ours, SOON)?;
        stage.home.log_in()?;
        stage.home.reach(SHARED)?;
        exchange(&mut theirs).context("a flow that was there")?;

        // Without the other organisation, nobody of it gets in, and the first one notices nothing.
        let mut ours = stage.home.reach(SHARED)?;
        stage.verifier.forget_further("acme")?;
        stage.verifier.kill()?;
        stage.verifier.run(stage.flags)?;
        last_answer(&mut shared, SOON).context("a flow of an organisation that is gone")?;
        exchange(&mut ours)?;
        let status = stage.verifier.status()?;
        ensure!(status["organisations"].as_array().is_none_or(Vec::is_empty), "{status}");
        Ok(())
    });
}
