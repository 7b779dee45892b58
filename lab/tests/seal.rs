//! Sealed tunnels end to end, between real stacks: what an observer on the path sees, and what happens while daemons are
//! killed.

use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lab::service::{call, exchange};
use lab::world::{Agent, Authority, DARK4, ECHO, FRONT4, FRONT6, Network, SOON, Services, Verifier, Way, policy};
use lab::{Capture, poll, test};

/// Port of the tunnel.
const TUNNEL: u16 = 4499;
const POOL: [&str; 2] = ["--tunnel-pool", "100.127.0.0/16,fd56:5346::/64"];
/// How long to wait for an answer that must not come.
const QUIET: Duration = Duration::from_millis(800);

/// A world whose front takes packets in a tunnel only, with this treatment; the dark host stays native.
struct Sealed {
    agent: Agent,
    verifier: Verifier,
    _authority: Authority,
    _services: Services,
    network: Network,
}

impl Sealed {
    fn new(treatment: &str) -> Result<Self> {
        let network = Network::new(Way::Nat)?;
        let services = Services::start(&network)?;
        let tunnel = format!(
            r#"
[[receivers]]
name = "tunnel"
address = ["{FRONT4}"]
services = ["udp/{TUNNEL}"]
verifier = "edge"
tunnel = true

[[rules]]
name = "staff may use the tunnel"
action = "allow"
who = "group:staff"
to = "tunnel"
"#
        );
        let lifetime = "lifetime = \"5m\"";
        let text = policy("5m").replace(lifetime, &format!("{lifetime}\ntreatment = \"{treatment}\"")) + &tunnel;
        let authority = Authority::start(&network.authority, &text)?;
        let verifier = Verifier::start_with(&network.server, &authority, &POOL)?;
        let agent = Agent::start(&network.alice)?;
        agent.login(&authority, "alice")?;
        Ok(Self { agent, verifier, _authority: authority, _services: services, network })
    }

    /// Returns the packets to or from the front that the observer saw outside of the tunnel.
    fn outside(&self, capture: &Capture) -> Result<Vec<String>> {
        capture.lines(&format!("(host {FRONT4} or host {FRONT6}) and not (udp port {TUNNEL}) and (tcp or udp)"))
    }
}

fn at(host: &str, port: u16) -> SocketAddr {
    SocketAddr::new(host.parse().expect("an address"), port)
}

#[test]
fn sealed_and_native_flows_of_one_person_pass_side_by_side_over_a_nat() {
    test(|| {
        let world = Sealed::new("encrypt")?;
        let alice = &world.network.alice;
        let cable = Capture::start(&world.network.internet, "dc")?;
        for host in [FRONT4, FRONT6] {
            let mut stream = call(alice, at(host, ECHO), SOON).with_context(|| host.to_owned())?;
            exchange(&mut stream)?;
        }
        alice.enter(|| -> Result<()> {
            let socket = UdpSocket::bind("0.0.0.0:0")?;
            socket.set_read_timeout(Some(Duration::from_millis(500)))?;
            socket.connect(at(FRONT4, ECHO))?;
            let answered = poll(SOON, || socket.send(b"datagram").is_ok() && socket.recv(&mut [0; 16]).is_ok());
            ensure!(answered, "no echo of a datagram");
            Ok(())
        })?;
        let mut native = call(alice, at(DARK4, ECHO), SOON)?;
        exchange(&mut native)?;
        ensure!(world.outside(&cable)?.is_empty(), "outside: {:?}", world.outside(&cable)?);
        ensure!(!cable.lines(&format!("udp port {TUNNEL}"))?.is_empty(), "the tunnel was not used");
        ensure!(!cable.lines(&format!("tcp and host {DARK4}"))?.is_empty(), "the native flow was not native");
        Ok(())
    });
}

#[test]
fn nothing_of_a_sealed_rule_leaves_in_clear_while_the_daemons_are_killed() {
    test(|| {
        let mut world = Sealed::new("encrypt")?;
        let cable = Capture::start(&world.network.internet, "dc")?;
        let mut stream = call(&world.network.alice, at(FRONT4, ECHO), SOON)?;
        exchange(&mut stream)?;
        world.agent.kill()?;
        stream.set_read_timeout(Some(QUIET))?;
        ensure!(exchange(&mut stream).is_err(), "an answer without a tunnel");
        let refused = world.network.alice.enter(|| TcpStream::connect_timeout(&at(FRONT4, ECHO), QUIET)).is_err();
        ensure!(refused, "a connection without a tunnel");
        world.agent.run()?;
        let mut again = call(&world.network.alice, at(FRONT4, ECHO), SOON)?;
        exchange(&mut again)?;
        world.verifier.kill()?;
        again.set_read_timeout(Some(QUIET))?;
        ensure!(exchange(&mut again).is_err(), "an answer without a verifier's tunnel");
        world.verifier.run(&POOL)?;
        let mut third = call(&world.network.alice, at(FRONT4, ECHO), SOON)?;
        exchange(&mut third)?;
        ensure!(world.outside(&cable)?.is_empty(), "outside: {:?}", world.outside(&cable)?);
        Ok(())
    });
}
