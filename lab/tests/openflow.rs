//! Tests of a home router with OpenFlow switches, which let devices in that have no Vouchsafe software.

use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lab::service::{self, Echo, ask, call, exchange};
use lab::switch::{CONTROLLER, Switch, packets};
use lab::transfer::{Sink, Transfer};
use lab::world::{
    Agent, Authority, DARK4, DOMAIN, ECHO, FRONT_NAME, FRONT4, FRONT6, NameServer, Network, Verifier, Way, dig, policy,
};
use lab::{Capture, Namespace, capture, poll, test};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use wire::Carrier;

const SOON: Duration = Duration::from_secs(10);
/// Time to wait for an answer that must not come.
const QUIET: Duration = Duration::from_millis(600);
const SINK: u16 = 5000;
/// Rate of transfers in bytes per second, below the switch's capacity.
const BRAKE: u64 = 4 << 20;
/// Seconds after which the agent may give a second datagram of a flow a token as well.
const AGAIN: u64 = 2;

/// The router's cables, and its addresses on them.
const ALICE: (&str, &str) = ("lan-alice", "10.1.0.254/24 fd01::ff/64");
const MALLORY: (&str, &str) = ("lan-mallory", "10.2.0.254/24 fd02::ff/64");
type Bridge = (&'static str, &'static [(&'static str, &'static str)]);
const BRIDGE: &str = "lan-switch";
const ONE: Bridge = (BRIDGE, &[ALICE, MALLORY]);

/// Alice's and Mallory's machines behind the switches of one router, on which the agent runs.
struct Home {
    agent: Agent,
    switch: Switch,
    bridges: Vec<Bridge>,
    /// A capture, which is kept when a test fails.
    wan: Capture,
    verifier: Verifier,
    authority: Authority,
    _echo: Echo,
    network: Network,
}

impl Home {
    /// Starts everything and logs Alice in on the router. Her machine's packets carry her tokens.
    fn new(way: Way, carrier: Carrier) -> Result<Self> {
        let network = Network::new(way)?;
        let mac = colons(&network.alice)?;
        Self::with(network, carrier, &[ONE], &[mac])
    }

    /// Starts everything with these bridges. Packets of the machines with these hardware addresses carry Alice's
    /// tokens.
    fn with(network: Network, carrier: Carrier, bridges: &[Bridge], macs: &[String]) -> Result<Self> {
        let switch = Switch::start(&network.router)?;
        Self::around(network, switch, &format!("tcp:{CONTROLLER}"), carrier, bridges, macs, &[])
    }

    /// Starts everything for a running switch, whose controller is to be at `controller`, with additional flags for the
    /// agent.
    fn around(
        network: Network,
        switch: Switch,
        controller: &str,
        carrier: Carrier,
        bridges: &[Bridge],
        macs: &[String],
        flags: &[String],
    ) -> Result<Self> {
        let lifetime = "lifetime = \"5m\"";
        let policy = policy("5m").replace(lifetime, &format!("{lifetime}\ncarrier = \"{}\"", carrier.name()));
        let authority = Authority::start(&network.authority, &policy)?;
        let verifier = Verifier::start_with(&network.server, &authority, &["--carriers", "tail,shim"])?;
        let echo = Echo::start(&network.server, ECHO)?;
        let router = &network.router;
        for (bridge, cables) in bridges {
            switch.add_bridge(bridge)?;
            switch.set_controller(bridge, controller)?;
            for (device, _) in *cables {
                switch.add_port(router, bridge, device)?;
            }
        }
        for host in [&network.alice, &network.mallory] {
            host.offload("eth0", "tx", false)?;
        }
        let wan = Capture::start(router, "wan")?;
        let devices = macs.iter().flat_map(|mac| ["--device".to_owned(), format!("{mac}=root")]);
        let own = ["--switches", CONTROLLER].map(str::to_owned);
        let flags: Vec<_> = own.into_iter().chain(devices).chain(flags.iter().cloned()).collect();
        let agent = Agent::start_with(router, &flags)?;
        agent.login(&authority, "alice")?;
        let bridges = bridges.to_vec();
        let home = Self { agent, switch, bridges, wan, verifier, authority, _echo: echo, network };
        home.settle()?;
        Ok(home)
    }

    /// Waits for the switch after it has started: assigns the bridges' addresses, and waits for the controller's rules.
    fn settle(&self) -> Result<()> {
        for (bridge, cables) in &self.bridges {
            let addresses: Vec<_> = cables.iter().map(|(_, addresses)| *addresses).collect();
            self.switch.settle(&self.network.router, bridge, &addresses.join(" "))?;
            self.switch.wait_for_rules(bridge)?;
        }
        Ok(())
    }

    /// Returns the rules of the bridge [`BRIDGE`] that name this address and port of a client.
    fn rules_of(&self, client: SocketAddr) -> Result<Vec<String>> {
        let named = |rule: &String| {
            rule.contains(&client.ip().to_string())
                && ["src", "dst"].iter().any(|end| rule.contains(&format!("tp_{end}={}", client.port())))
        };
        Ok(self.switch.rules(BRIDGE)?.into_iter().filter(named).collect())
    }
}

fn colons(host: &Namespace) -> Result<String> {
    Ok(host.mac("eth0")?.map(|byte| format!("{byte:02x}")).join(":"))
}

fn echo() -> SocketAddr {
    SocketAddr::new(FRONT4.parse().expect("an address"), ECHO)
}

fn echo6() -> SocketAddr {
    SocketAddr::new(FRONT6.parse().expect("an address"), ECHO)
}

#[test]
fn a_device_without_software_of_ours_gets_in_through_its_router_and_its_neighbour_does_not() {
    test(|| {
        let home = Home::new(Way::Nat, Carrier::Tail)?;
        for to in [echo(), echo6()] {
            let mut stream = call(&home.network.alice, to, SOON).with_context(|| format!("alice, TCP to {to}"))?;
            exchange(&mut stream).context("alice, on the connection")?;
            ask(&home.network.alice, to, SOON).with_context(|| format!("alice, UDP to {to}"))?;
            ensure!(call(&home.network.mallory, to, QUIET).is_err(), "mallory got in to {to}");
            ensure!(ask(&home.network.mallory, to, QUIET).is_err(), "mallory got an answer from {to}");
        }
        Ok(())
    });
}

#[test]
fn shims_get_in_on_a_direct_path() {
    test(|| {
        let home = Home::new(Way::Direct, Carrier::Shim)?;
        call(&home.network.alice, echo(), SOON).context("alice, TCP")?;
        ask(&home.network.alice, echo(), SOON).context("alice, UDP")?;
        ensure!(call(&home.network.mallory, echo(), QUIET).is_err(), "mallory got in");
        let shims = || home.wan.lines("ip proto 4").map_or(0, |lines| lines.len());
        ensure!(poll(SOON, || shims() >= 2), "{} first packets were in a shim", shims());
        let tokens = home.verifier.counters()?.named("token");
        ensure!(tokens >= 2, "{tokens} first packets were admitted");
        Ok(())
    });
}

/// Returns by how many bytes each of Alice's packets is longer behind the switch than in front of it.
fn overhead(carrier: Carrier, exchange: impl Fn(&Home) -> Result<()>) -> Result<Vec<usize>> {
    let home = Home::new(Way::Direct, carrier)?;
    // The first exchange fetches the grant. Its first packet may be retransmitted while it waits for the grant.
    exchange(&home)?;
    let router = &home.network.router;
    let (front, behind) = (Capture::start(router, ALICE.0)?, Capture::start(router, BRIDGE)?);
    exchange(&home)?;
    let filter = format!("dst host {FRONT4}");
    let mut seen = Ok(Vec::new());
    let complete = poll(SOON, || {
        seen = capture::overhead((&behind, &filter), (&front, &filter));
        seen.as_ref().is_ok_and(|seen| seen.len() >= 4)
    });
    let seen = seen?;
    ensure!(complete, "{seen:?}");
    Ok(seen)
}

#[test]
fn a_carrier_costs_as_much_by_a_switch_as_without_one() {
    test(|| {
        for (carrier, cost) in [(Carrier::Tail, 40), (Carrier::Shim, 60)] {
            let tcp = overhead(carrier, |home| {
                let mut stream = call(&home.network.alice, echo(), SOON)?;
                (0..3).try_for_each(|_| service::exchange(&mut stream))
            })?;
            ensure!(tcp[0] == cost && tcp[1..].iter().all(|more| *more == 0), "{}: {tcp:?}", carrier.name());
        }
        Ok(())
    });
}

#[test]
fn of_a_connection_only_the_syn_comes_up_and_exact_rules_come_down_with_it() {
    test(|| {
        let home = Home::new(Way::Nat, Carrier::Tail)?;
        let switch = &home.switch;
        // The first connection fetches the grant, and its SYN may be retransmitted while it waits.
        call(&home.network.alice, echo(), SOON)?;
        let before = switch.packets_up(BRIDGE)?;
        let mut stream = call(&home.network.alice, echo(), SOON)?;
        for _ in 0..50 {
            exchange(&mut stream)?;
        }
        let client = stream.local_addr()?;
        let up = switch.packets_up(BRIDGE)? - before;
        ensure!(up == 1, "{up} packets of one connection came up");
        let mut rules = home.rules_of(client)?;
        rules.sort_by_key(|rule| !rule.contains(&format!("nw_src={}", client.ip())));
        let [out, back] = &rules[..] else { anyhow::bail!("rules for one connection: {rules:?}") };
        for (rule, from, to) in [(out, client, echo()), (back, echo(), client)] {
            let exact = [
                format!("nw_src={}", from.ip()),
                format!("nw_dst={}", to.ip()),
                format!("tp_src={}", from.port()),
                format!("tp_dst={}", to.port()),
            ];
            ensure!(exact.iter().all(|field| rule.contains(field)), "{rule} is not exactly {exact:?}");
            ensure!(rule.contains("idle_timeout=60") && !rule.contains("hard_timeout"), "{rule}");
        }
        // The switch updates its counters some time after it has forwarded a packet.
        let forwarded =
            || home.rules_of(client).is_ok_and(|rules| rules.iter().all(|rule| packets(rule).is_ok_and(|n| n >= 50)));
        ensure!(poll(SOON, forwarded), "{:?}", home.rules_of(client)?);
        Ok(())
    });
}

#[test]
fn of_datagrams_the_first_comes_up_and_then_one_every_few_seconds() {
    test(|| {
        let home = Home::new(Way::Nat, Carrier::Tail)?;
        ask(&home.network.alice, echo(), SOON)?;
        let switch = &home.switch;
        let socket = home.network.alice.enter(|| UdpSocket::bind("0.0.0.0:0"))?;
        socket.set_read_timeout(Some(SOON))?;
        socket.connect(echo())?;
        let exchange = || -> Result<()> {
            socket.send(b"datagram")?;
            socket.recv(&mut [0; 16]).map(drop).context("no answer")
        };
        let (before, began) = (switch.packets_up(BRIDGE)?, Instant::now());
        exchange()?;
        let client = socket.local_addr()?;
        ensure!(poll(SOON, || home.rules_of(client).is_ok_and(|rules| rules.len() == 2)), "no rules for {client}");
        for _ in 0..50 {
            exchange()?;
        }
        let up = switch.packets_up(BRIDGE)? - before;
        // On a busy machine, the first rule may expire before the last datagram.
        let most = 1 + began.elapsed().as_secs() / AGAIN;
        ensure!((1..=most).contains(&up), "{up} datagrams of one flow came up, not 1 to {most}");
        Ok(())
    });
}

#[test]
fn a_name_servers_answer_comes_up_and_is_learned_from_and_nobody_waits_for_that() {
    test(|| {
        let mut home = Home::new(Way::Nat, Carrier::Tail)?;
        let _names = NameServer::start(&home.network.authority, &home.authority)?;
        let ask_name = |home: &Home| dig(&home.network.alice, &["+short", FRONT_NAME, "A"]);
        let before = home.switch.packets_up(BRIDGE)?;
        ensure!(home.agent.discovered()?.is_empty(), "{:?}", home.agent.discovered()?);
        let address = ask_name(&home)?;
        ensure!(address.trim() == FRONT4, "{address}");
        ensure!(poll(SOON, || home.agent.discovered().is_ok_and(|found| found.contains_key(DOMAIN))), "not learned");
        let found = home.agent.discovered()?.remove(DOMAIN).context("it was there")?;
        ensure!(found["finding"] == "overheard" && found["at_home"] == true, "{found}");
        ensure!(home.switch.packets_up(BRIDGE)? > before, "the answer did not come up");
        let to = SocketAddr::new(address.trim().parse()?, ECHO);
        call(&home.network.alice, to, SOON).context("to the address that was learned")?;
        ensure!(home.verifier.counters()?.named("token") >= 1, "{:?}", home.verifier.counters()?);
        home.agent.kill()?;
        ensure!(ask_name(&home)?.trim() == FRONT4, "without a controller there are no names");
        Ok(())
    });
}

#[test]
fn the_controller_is_killed_in_mid_transfer_and_the_flow_lives() {
    test(|| {
        let mut home = Home::new(Way::Nat, Carrier::Tail)?;
        let sink = Sink::start(&home.network.server, SINK)?;
        let to = SocketAddr::new(DARK4.parse()?, SINK);
        let transfer = Transfer::start(&home.network.alice, to, Duration::from_secs(4), Some(BRAKE))?;
        let mut idle = call(&home.network.alice, echo(), SOON)?;
        ensure!(poll(SOON, || sink.taken() > BRAKE / 2), "no transfer");
        home.agent.kill()?;
        let orphaned = sink.taken();
        ensure!(poll(SOON, || sink.taken() > orphaned + BRAKE / 2), "the transfer stands still");
        ensure!(call(&home.network.alice, echo(), QUIET).is_err(), "a first packet passed without a controller");
        home.agent.run()?;
        ensure!(poll(SOON, || call(&home.network.alice, echo(), QUIET).is_ok()), "no new flow afterwards");
        exchange(&mut idle).context("on a connection from before")?;
        let rate = transfer.finish()?;
        ensure!(sink.taken() == rate.bytes, "{} of {} bytes arrived", sink.taken(), rate.bytes);
        Ok(())
    });
}

#[test]
fn several_switches_are_one_home_and_one_that_was_killed_comes_back() {
    test(|| {
        let network = Network::new(Way::Nat)?;
        let macs = [colons(&network.alice)?, colons(&network.mallory)?];
        let bridges: [Bridge; 2] = [("lan-one", &[ALICE]), ("lan-two", &[MALLORY])];
        let mut home = Home::with(network, Carrier::Tail, &bridges, &macs)?;
        let both = |home: &Home| -> Result<()> {
            call(&home.network.alice, echo(), SOON).context("behind the one")?;
            // In this test, Mallory's machine is a second machine of Alice's.
            call(&home.network.mallory, echo(), SOON).context("behind the other").map(drop)
        };
        both(&home)?;
        let shown = home.agent.status()?["interfaces"].as_array().map_or(0, Vec::len);
        ensure!(shown == 2, "{shown} switches are shown: {}", home.agent.status()?);
        let mut open = call(&home.network.mallory, echo(), SOON)?;
        home.switch.kill()?;
        home.switch.run(&home.network.router)?;
        home.settle()?;
        exchange(&mut open).context("on a connection from before the switch was killed")?;
        both(&home)
    });
}

/// Creates a CA, and a certificate with its key for each side. Returns the paths of the files.
fn certificates(dir: &Path) -> Result<[PathBuf; 5]> {
    let (key, mut ca) = (KeyPair::generate()?, CertificateParams::default());
    ca.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    // A certificate whose subject equals its issuer would count as self-signed, so the CA has a name of its own.
    ca.distinguished_name.push(DnType::CommonName, "the switches' CA");
    let file = |name: &str, text: String| -> Result<PathBuf> {
        let file = dir.join(name);
        std::fs::write(&file, text)?;
        Ok(file)
    };
    let ca_file = file("ca.pem", ca.self_signed(&key)?.pem())?;
    let issuer = Issuer::new(ca, key);
    let side = |name: &str| -> Result<[PathBuf; 2]> {
        let key = KeyPair::generate()?;
        let certificate = CertificateParams::new([name.to_owned()])?.signed_by(&key, &issuer)?;
        Ok([file(&format!("{name}.pem"), certificate.pem())?, file(&format!("{name}-key.pem"), key.serialize_pem())?])
    };
    let ([ours, our_key], [theirs, their_key]) = (side("agent")?, side("switch")?);
    Ok([ca_file, ours, our_key, theirs, their_key])
}

#[test]
fn a_switch_with_a_certificate_is_served_by_tls_and_one_that_speaks_plain_is_told_from_it() {
    test(|| {
        let network = Network::new(Way::Nat)?;
        let [ca, ours, our_key, theirs, their_key] = certificates(network.router.dir())?;
        let shown = |file: &Path| file.display().to_string();
        let switch = Switch::start(&network.router)?;
        switch.vsctl(&["set-ssl", &shown(&their_key), &shown(&theirs), &shown(&ca)])?;
        let files = [("certificate", &ours), ("key", &our_key), ("ca", &ca)];
        let flags: Vec<_> = files.iter().flat_map(|(name, file)| [format!("--switches-{name}"), shown(file)]).collect();
        let (macs, controller) = ([colons(&network.alice)?], format!("ssl:{CONTROLLER}"));
        let mut home = Home::around(network, switch, &controller, Carrier::Tail, &[ONE], &macs, &flags)?;
        call(&home.network.alice, echo(), SOON).context("through TLS")?;
        let told = |home: &Home, words: &str| poll(SOON, || home.agent.log().contains(words));
        // The switch now has a certificate of another CA; the CA that it expects of the agent stays the same.
        let elsewhere = home.network.alice.dir();
        let [_, _, _, foreign, foreign_key] = certificates(elsewhere)?;
        home.switch.vsctl(&["set-ssl", &shown(&foreign_key), &shown(&foreign), &shown(&ca)])?;
        // An open connection keeps its old certificate, so this makes the switch reconnect.
        home.switch.set_controller(BRIDGE, "ssl:127.0.0.1:1")?;
        home.switch.set_controller(BRIDGE, &controller)?;
        ensure!(told(&home, "the TLS handshake failed"), "{}", home.agent.log());
        home.switch.set_controller(BRIDGE, &format!("tcp:{CONTROLLER}"))?;
        ensure!(told(&home, "uses OpenFlow without TLS"), "{}", home.agent.log());
        // Now the reverse: the switch uses TLS, and the agent does not.
        home.switch.set_controller(BRIDGE, &controller)?;
        home.agent.kill()?;
        home.agent.run_with(&["--switches".to_owned(), CONTROLLER.to_owned()])?;
        ensure!(told(&home, "uses TLS"), "{}", home.agent.log());
        Ok(())
    });
}
