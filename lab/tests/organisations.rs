//! Tests of a person who is logged in to two organisations at the same time with one agent. The authorities of the two
//! organisations don't trust each other.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lab::net::veth;
use lab::nobody::{said, succeed};
use lab::service::{Echo, ask, call, exchange, last_answer};
use lab::world::{AUTHORITY, AUTHORITY_PORT, Agent, Authority, ECHO, PASSWORD, SOON, Verifier, policy_for_echo};
use lab::{Namespace, Nobody, poll, test};
use nix::sys::signal::Signal;

/// The servers of the two organisations.
const HOME: &str = "192.0.2.20";
const ACME: &str = "203.0.113.20";
/// The networks for which the organisation `acme` may speak.
const ACME_NETWORK: &str = "203.0.113.0/24";
/// The address of its authority.
const ACME_AUTHORITY: &str = "198.51.103.10";
/// Time to wait for an answer that must not come.
const QUIET: Duration = Duration::from_millis(400);

/// A client with an agent, and two organisations, each with an authority, and a server behind a verifier.
struct Stage {
    agent: Agent,
    home: Organisation,
    acme: Organisation,
    client: Namespace,
    _router: Namespace,
}

struct Organisation {
    _verifier: Verifier,
    authority: Authority,
    _echo: Echo,
    _server: Namespace,
    _host: Namespace,
    address: &'static str,
}

impl Organisation {
    fn start(router: &Namespace, name: &str, address: &'static str, authority: &str) -> Result<Self> {
        let (server, host) = (Namespace::new(&format!("{name}-srv"))?, Namespace::new(&format!("{name}-auth"))?);
        for (space, own, device) in [(&server, address, "s"), (&host, authority, "a")] {
            let (net, _) = own.rsplit_once('.').context("an address")?;
            let next = format!("{net}.254");
            veth(space, "eth0", &format!("{own}/24"), router, &format!("{name}-{device}"), &format!("{next}/24"))?;
            space.route("default", &next)?;
        }
        let mut this = Authority::at(&host, authority);
        let listen = format!("{authority}:{AUTHORITY_PORT}");
        this.command(&["init"], &["--name", authority, "--listen", &listen])?;
        fs::write(this.dir().join("policy.toml"), policy_for_echo(&[address]))?;
        let password = this.password_file();
        for person in ["alice", "mallory"] {
            this.command(&["user", "add"], &[person, "--password-file", &password.to_string_lossy()])?;
        }
        this.run()?;
        let echo = Echo::start(&server, ECHO)?;
        let verifier = Verifier::start(&server, &this)?;
        Ok(Self { _verifier: verifier, authority: this, _echo: echo, _server: server, _host: host, address })
    }

    fn echo(&self) -> SocketAddr {
        format!("{}:{ECHO}", self.address).parse().expect("an address")
    }
}

impl Stage {
    /// Starts everything. Nobody is logged in.
    fn new() -> Result<Self> {
        let (router, client) = (Namespace::new("router")?, Namespace::new("client")?);
        router.forward()?;
        veth(&client, "eth0", "10.1.0.1/24", &router, "client", "10.1.0.254/24")?;
        client.route("default", "10.1.0.254")?;
        let home = Organisation::start(&router, "home", HOME, AUTHORITY)?;
        let acme = Organisation::start(&router, "acme", ACME, ACME_AUTHORITY)?;
        let agent = Agent::start(&client)?;
        Ok(Self { agent, home, acme, client, _router: router })
    }

    /// Starts everything, and logs Alice in to both organisations.
    fn logged_in() -> Result<Self> {
        let stage = Self::new()?;
        stage.agent.login(&stage.home.authority, "alice")?;
        let (done, text) = stage.log_in_to_acme(&["--network", ACME_NETWORK])?;
        ensure!(done, "{text}");
        Ok(stage)
    }

    fn log_in_to_acme(&self, more: &[&str]) -> Result<(bool, String)> {
        let arguments = [&["--organisation", "acme"], more].concat();
        self.agent.try_login_with(&self.acme.authority, "alice", &arguments)
    }

    /// Opens a TCP connection and sends a datagram to an organisation's server. Both have to be answered.
    fn reach(&self, organisation: &Organisation) -> Result<TcpStream> {
        let flow = call(&self.client, organisation.echo(), SOON)
            .with_context(|| format!("{}: {}", organisation.address, self.agent.log()))?;
        ask(&self.client, organisation.echo(), SOON).context("a datagram")?;
        Ok(flow)
    }

    /// Returns the networks that the agent refuses to let an organisation speak for.
    fn refused(&self, organisation: &str) -> Result<Vec<String>> {
        let status = self.agent.status()?;
        let all = status["organisations"].as_array().cloned().unwrap_or_default();
        let one = all.iter().find(|one| one["name"] == organisation).context("no such organisation")?;
        let list = one["refused"].as_array().cloned().unwrap_or_default();
        Ok(list.iter().filter_map(|network| network.as_str().map(str::to_owned)).collect())
    }

    /// Waits until the agent refuses exactly these claims of an organisation's authority.
    fn waits_for_refusal(&self, organisation: &str, networks: &[&str]) -> Result<()> {
        let is_so = || self.refused(organisation).is_ok_and(|refused| refused == networks);
        ensure!(poll(SOON, is_so), "{organisation}: {}", self.agent.status()?);
        Ok(())
    }

    /// Returns the receivers and organisations of the agent's grants, in order.
    fn grants(&self) -> Result<Vec<(String, Option<String>)>> {
        let list = self.agent.grants()?["grants"].as_array().cloned().unwrap_or_default();
        let one = |grant: &serde_json::Value| {
            (grant["prefix"].as_str().unwrap_or_default().to_owned(), grant["organisation"].as_str().map(str::to_owned))
        };
        let mut grants: Vec<_> = list.iter().map(one).collect();
        grants.sort();
        grants.dedup();
        Ok(grants)
    }
}

#[test]
fn a_person_reaches_a_server_in_each_of_two_organisations_at_the_same_time() {
    test(|| {
        let mut stage = Stage::logged_in()?;
        let (mut home, mut acme) = (stage.reach(&stage.home)?, stage.reach(&stage.acme)?);
        exchange(&mut home)?;
        exchange(&mut acme)?;
        let expected = [(format!("{HOME}/32"), None), (format!("{ACME}/32"), Some("acme".to_owned()))];
        ensure!(stage.grants()? == expected, "{:?}", stage.grants()?);
        // Each authority gave grants for its own server only.
        for organisation in [&stage.home, &stage.acme] {
            let grants = organisation.authority.grants()?;
            ensure!(!grants.is_empty() && grants.iter().all(|grant| grant["person"] == "alice"), "{grants:?}");
        }
        // Both sessions outlive the daemon.
        stage.agent.kill()?;
        exchange(&mut home)?;
        exchange(&mut acme)?;
        stage.reach(&stage.home)?;
        stage.reach(&stage.acme)?;
        stage.agent.run()?;
        stage.reach(&stage.home)?;
        stage.reach(&stage.acme)?;
        let status = stage.agent.status()?;
        ensure!(status["organisations"][1]["session"]["person"] == "alice", "{status}");
        ensure!(status["organisations"][1]["networks"][0] == ACME_NETWORK, "{status}");
        Ok(())
    });
}

#[test]
fn a_client_without_root_reaches_a_server_in_each_of_two_organisations() {
    test(|| {
        let stage = Stage::new()?;
        let nobody = Nobody::new(&stage.client)?;
        nobody.login(&stage.home.authority, "alice")?;
        let password = nobody.write("password", PASSWORD, 0o600)?;
        let ca = nobody.write("acme.pem", fs::read(stage.acme.authority.ca())?, 0o644)?;
        let log_in_to_acme = |more: &[&str]| -> Result<(bool, String)> {
            let mut login =
                nobody.vouchsafe(["login", "--organisation", "acme", "--user", "alice", "--password-stdin"]);
            login.args(["--authority", &stage.acme.authority.url(), "--ca"]).arg(&ca).args(more);
            let output = login.stdin(File::open(&password)?).output()?;
            Ok((output.status.success(), said(&output)))
        };
        // The rules for networks are the agent's.
        let refused: [(&[&str], &[&str]); 2] =
            [(&[], &["acme", "--network"]), (&["--network", "192.0.2.0/25"], &["acme", "default", HOME])];
        for (arguments, words) in refused {
            let (done, text) = log_in_to_acme(arguments)?;
            ensure!(!done && words.iter().all(|word| text.contains(word)), "{arguments:?}: {text}");
        }
        let (done, text) = log_in_to_acme(&["--network", ACME_NETWORK])?;
        ensure!(done, "{text}");
        let reach = |organisation: &Organisation| -> Result<()> {
            let mut connect = nobody.vouchsafe(["connect", organisation.address, &ECHO.to_string()]);
            let mut child = connect.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
            let (mut input, mut output) = (child.stdin.take().context("in")?, child.stdout.take().context("out")?);
            let mut answer = [0; 5];
            input.write_all(b"hello")?;
            output.read_exact(&mut answer).with_context(|| format!("no answer from {}", organisation.address))?;
            drop(input);
            ensure!(child.wait()?.success() && &answer == b"hello", "{answer:?}");
            Ok(())
        };
        let json = |words: &[&str]| -> Result<serde_json::Value> {
            Ok(serde_json::from_str(&succeed(nobody.vouchsafe(words).arg("--json"))?)?)
        };
        let grants = || -> Result<Vec<(String, Option<String>)>> {
            let list = json(&["grants", "list"])?["grants"].as_array().cloned().unwrap_or_default();
            let text = |value: &serde_json::Value| value.as_str().map(str::to_owned);
            let one =
                |grant: &serde_json::Value| (text(&grant["prefix"]).unwrap_or_default(), text(&grant["organisation"]));
            Ok(list.iter().map(one).collect())
        };
        reach(&stage.home)?;
        reach(&stage.acme)?;
        let expected = [(format!("{HOME}/32"), None), (format!("{ACME}/32"), Some("acme".to_owned()))];
        ensure!(grants()? == expected, "{:?}", grants()?);
        let status = json(&["status"])?;
        ensure!(status["session"]["person"] == "alice", "{status}");
        ensure!(status["organisations"][1]["session"]["authority"] == stage.acme.authority.url(), "{status}");

        // The authority of acme claims the other organisation's server. Packets to it still carry tokens of its own
        // organisation.
        stage.acme.authority.apply(&policy_for_echo(&[ACME, "192.0.2.0/24"]))?;
        let status = json(&["status"])?;
        ensure!(status["organisations"][1]["refused"] == serde_json::json!(["192.0.2.0/24"]), "{status}");
        stage.home.authority.revoke("alice")?;
        nobody.login(&stage.home.authority, "alice")?;
        reach(&stage.home)?;
        reach(&stage.acme)?;
        ensure!(grants()?.contains(&expected[0]), "{:?}", grants()?);

        // Without a session, packets to acme's server carry no token, but acme keeps its networks.
        let logout = |more: &[&str]| {
            let mut logout = nobody.vouchsafe(["logout", "--organisation", "acme"]);
            succeed(logout.args(more))
        };
        logout(&[])?;
        ensure!(grants()? == expected[..1], "{:?}", grants()?);
        reach(&stage.home)?;
        let (done, text) = log_in_to_acme(&[])?;
        ensure!(done, "{text}");
        reach(&stage.acme)?;
        logout(&["--forget"])?;
        let (done, text) = log_in_to_acme(&[])?;
        ensure!(!done && text.contains("--network"), "{text}");
        Ok(())
    });
}

#[test]
fn neither_authority_can_say_that_it_protects_the_others_addresses() {
    test(|| {
        let stage = Stage::logged_in()?;
        stage.reach(&stage.home)?;
        let claims = [ACME, "192.0.2.0/24", "198.51.100.0/24"];
        stage.acme.authority.apply(&policy_for_echo(&claims))?;
        stage.waits_for_refusal("acme", &claims[1..])?;
        stage.home.authority.apply(&policy_for_echo(&[HOME, ACME, "203.0.113.128/25"]))?;
        stage.waits_for_refusal("default", &[&format!("{ACME}/32"), "203.0.113.128/25"])?;
        // New grants, since the policies have changed.
        stage.agent.try_login_with(&stage.home.authority, "alice", &[])?;
        for organisation in [&stage.home, &stage.acme] {
            stage.reach(organisation)?;
        }
        let expected = [(format!("{HOME}/32"), None), (format!("{ACME}/32"), Some("acme".to_owned()))];
        ensure!(stage.grants()? == expected, "{:?}", stage.grants()?);

        // The networks stay the organisation's when its session has ended.
        let said = stage.agent.logout_with(&["--organisation", "acme"])?;
        ensure!(said.contains("logged out"), "{said}");
        ensure!(call(&stage.client, stage.acme.echo(), QUIET).is_err(), "admitted without a session");
        ensure!(stage.grants()?.len() == 1, "{:?}", stage.grants()?);
        stage.reach(&stage.home)?;
        // The way back needs no networks, because the agent has kept them.
        let (done, text) = stage.log_in_to_acme(&[])?;
        ensure!(done, "{text}");
        stage.reach(&stage.acme)?;
        Ok(())
    });
}

#[test]
fn an_authority_that_names_members_at_anothers_addresses_makes_the_agent_connect_to_none() {
    test(|| {
        let mut stage = Stage::logged_in()?;
        let port = AUTHORITY_PORT + 1;
        let [at_home, at_acme] =
            [&stage.home, &stage.acme].map(|organisation| Echo::start(&organisation._server, port));
        let (at_home, at_acme) = (at_home?, at_acme?);
        // The agent stores the members that the authority named, and knows them after a restart. Their own authority is
        // dead, so that the agent looks for one that answers.
        stage.agent.kill()?;
        stage.acme.authority.kill()?;
        let file = stage.client.dir().join("agent-state").join(format!("{}.json", nix::unistd::getuid()));
        let mut kept: serde_json::Value = serde_json::from_slice(&fs::read(&file)?)?;
        ensure!(kept["organisations"]["acme"]["session"]["person"] == "alice", "{kept}");
        let member = |address: &str| format!("https://{address}:{port}");
        let named = serde_json::json!([stage.acme.authority.url(), member(HOME), member(ACME)]);
        kept["organisations"]["acme"]["session"]["authorities"] = named;
        fs::write(&file, serde_json::to_vec(&kept)?)?;
        stage.agent.run()?;
        ensure!(poll(SOON, || at_acme.connections() > 0), "the agent looks for no other member: {}", stage.agent.log());
        let status = stage.agent.status()?;
        let why = status["organisations"][1]["refused_members"][0].as_str().unwrap_or_default().to_owned();
        ensure!(why.contains("acme") && why.contains(HOME) && why.contains("--network"), "{status}");
        // The agent has tried all members meanwhile.
        let before = at_acme.connections();
        ensure!(poll(SOON * 2, || at_acme.connections() > before), "the agent tries no member again");
        ensure!(at_home.connections() == 0, "the agent connected to {HOME}: {}", stage.agent.log());
        stage.reach(&stage.home)?;

        // A login at an authority that is at another organisation's address is refused, whoever named the authority.
        stage.acme.authority.run()?;
        let home = format!("{AUTHORITY}/32");
        let (done, text) = stage.log_in_to_acme(&["--network", ACME_NETWORK, "--network", &home])?;
        ensure!(done, "{text}");
        let refused = stage.agent.try_login_with(&stage.home.authority, "alice", &[]);
        let text = refused.err().map(|error| format!("{error:#}")).context("the login succeeded")?;
        ensure!(text.contains("acme") && text.contains("belongs to organisation"), "{text}");
        Ok(())
    });
}

#[test]
fn a_login_that_takes_anothers_addresses_is_refused_and_the_refusal_names_both() {
    test(|| {
        let stage = Stage::new()?;
        stage.agent.login(&stage.home.authority, "alice")?;
        let refused = |arguments: &[&str], words: &[&str]| -> Result<()> {
            let (done, text) = stage.log_in_to_acme(arguments)?;
            ensure!(!done && words.iter().all(|word| text.contains(word)), "{arguments:?}: {text}");
            Ok(())
        };
        refused(&[], &["acme", "--network"])?;
        refused(&["--network", "192.0.2.0/25"], &["acme", "default", HOME])?;
        refused(&["--network", "0.0.0.0/0"], &["acme", "default", HOME])?;
        let (done, text) = stage.log_in_to_acme(&["--network", ACME_NETWORK])?;
        ensure!(done, "{text}");
        let other = |arguments: &[&str]| stage.agent.try_login_with(&stage.acme.authority, "alice", arguments);
        let (done, text) = other(&["--organisation", "umbrella", "--network", "203.0.112.0/23"])?;
        ensure!(!done && ["umbrella", "acme", ACME_NETWORK].iter().all(|word| text.contains(word)), "{text}");
        let (done, text) = other(&["--organisation", "umbrella", "--network", "10.9.0.0/16"])?;
        ensure!(!done && text.contains("acme") && text.contains("already"), "the same authority twice: {text}");
        for name in ["../acme", "a/b", "/etc/passwd", "", ".", "default"] {
            ensure!(other(&["--organisation", name, "--network", "10.9.0.0/16"]).is_err(), "{name:?} was taken");
        }
        stage.reach(&stage.home)?;
        stage.reach(&stage.acme)?;
        let said = stage.agent.logout_with(&["--organisation", "acme", "--forget"])?;
        ensure!(said.contains("logged out"), "{said}");
        let (done, text) = other(&["--organisation", "umbrella", "--network", "203.0.112.0/23"])?;
        ensure!(done, "the networks are free: {text}");
        stage.reach(&stage.acme)?;
        Ok(())
    });
}

#[test]
fn what_happens_at_one_organisation_does_not_touch_the_other() {
    test(|| {
        let mut stage = Stage::logged_in()?;
        let (mut home, mut acme) = (stage.reach(&stage.home)?, stage.reach(&stage.acme)?);
        // A revocation.
        stage.acme.authority.revoke("alice")?;
        last_answer(&mut acme, SOON)?;
        exchange(&mut home)?;
        stage.reach(&stage.home)?;
        let (done, text) = stage.log_in_to_acme(&[])?;
        ensure!(done, "{text}");
        let mut acme = stage.reach(&stage.acme)?;

        // An authority that is silent, and one that is dead.
        for signal in [Signal::SIGSTOP, Signal::SIGKILL] {
            stage.acme.authority.signal(signal)?;
            let began = Instant::now();
            stage.agent.try_login_with(&stage.home.authority, "alice", &[])?;
            stage.reach(&stage.home)?;
            ensure!(began.elapsed() < Duration::from_secs(8), "{signal}: {:?}", began.elapsed());
            exchange(&mut acme).context("a flow that was there")?;
            stage.reach(&stage.acme).context("a grant that was there")?;
        }
        stage.acme.authority.run()?;

        // The home organisation's own authority is gone, and acme's goes on.
        stage.home.authority.kill()?;
        let (done, text) = stage.log_in_to_acme(&[])?;
        ensure!(done, "{text}");
        stage.reach(&stage.acme)?;
        stage.reach(&stage.home).context("a grant that was there")?;
        Ok(())
    });
}
