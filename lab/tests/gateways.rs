//! Tests of two gateways before the same server: a flow that one gateway has admitted also passes at the other.
//!
//! ```text
//!                  ┌── gateway ──┐
//! alice … internet ┤    sync     ├── server
//!                  └── second  ──┘
//! ```

use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lab::net::{Namespace, veth};
use lab::service::{Echo, call, exchange};
use lab::transfer::{Sink, Transfer};
use lab::world::{AUTHORITY, DARK4, DARK6, ECHO, POOL, Verifier, Way, in_family};
use lab::{World, poll, test};

const SOON: Duration = Duration::from_secs(20);
/// Time to wait for an answer that must not come.
const QUIET: Duration = Duration::from_millis(300);
/// Port of the first transfer, and the rate of transfers in bytes per second, which suits slow machines.
const SINK: u16 = 7100;
const PER_SECOND: u64 = 4_000_000;
/// Number of bytes that a transfer must deliver after each change of routing.
const STRETCH: u64 = 500_000;
const PEER_PORT: u16 = 8446;
/// Duration of a transfer that lasts longer than the test.
const LONG: Duration = Duration::from_secs(600);

/// Two gateways, of which `twin` is the second one's verifier. Fields are declared in the order in which they are
/// dropped.
struct Two {
    twin: Verifier,
    world: World,
    _second: Namespace,
    flags: [Vec<String>; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    First,
    Second,
}

fn words(flags: &[String]) -> Vec<&str> {
    flags.iter().map(String::as_str).collect()
}

impl Two {
    fn new(more: &[&str]) -> Result<Self> {
        let flags = ["10.99.0.2", "10.99.0.1"].map(|peer| {
            let (peer, listen) = (format!("{peer}:{PEER_PORT}"), format!("[::]:{PEER_PORT}"));
            let all = [&["--peers", peer.as_str(), "--peer-listen", listen.as_str()], more].concat();
            all.iter().map(|&flag| flag.to_owned()).collect::<Vec<_>>()
        });
        let world = World::behind_gateway(Way::Direct, &words(&flags[0]))?;
        let (first, internet, server) = (world.network.front(), &world.network.internet, &world.network.server);
        let second = Namespace::new("second")?;
        veth(&second, "eth0", "192.0.4.1/24 2001:db8:4::1/64", internet, "dc2", "192.0.4.254/24 2001:db8:4::ff/64")?;
        veth(&second, "eth1", "192.0.5.1/24 2001:db8:5::1/64", server, "eth1", "192.0.5.2/24 2001:db8:5::2/64")?;
        veth(first, "sync", "10.99.0.1/24", &second, "sync", "10.99.0.2/24")?;
        for (to, via) in [
            ("default", "192.0.4.254"),
            ("default", "2001:db8:4::ff"),
            ("192.0.2.0/24", "192.0.5.2"),
            ("2001:db8:2::/64", "2001:db8:5::2"),
        ] {
            second.route(to, via)?;
        }
        second.forward()?;
        for key in ["all", "eth0", "eth1"] {
            server.sysctl(&format!("net/ipv4/conf/{key}/rp_filter"), "0")?;
        }
        let inside = [vec!["--inside".to_owned(), "eth1".to_owned()], flags[1].clone()].concat();
        let twin = world.verifier.twin(&second, &words(&inside))?;
        let flags = [[inside[..2].to_vec(), flags[0].clone()].concat(), inside];
        let this = Self { twin, world, _second: second, flags };
        this.meet()?;
        Ok(this)
    }

    /// Waits until both gateways have sent each other all their flows.
    fn meet(&self) -> Result<()> {
        let met = |verifier: &Verifier| {
            verifier.status().is_ok_and(|status| {
                status["peers"][0]["connected"] == true
                    && status["peers_heard"].as_array().is_some_and(|l| l.len() == 1)
            })
        };
        let both = poll(SOON, || met(&self.world.verifier) && met(&self.twin));
        ensure!(both, "{}\n{}", self.world.verifier.status()?["peers"], self.twin.status()?["peers"]);
        Ok(())
    }

    /// Routes packets to the server and back through this gateway.
    fn take(&self, by: By) -> Result<()> {
        let (internet, server) = (&self.world.network.internet, &self.world.network.server);
        let (there, back) = match by {
            By::First => (["192.0.3.1", "2001:db8:3::1"], ["192.0.2.254", "2001:db8:2::ff"]),
            By::Second => (["192.0.4.1", "2001:db8:4::1"], ["192.0.5.1", "2001:db8:5::1"]),
        };
        for (to, via) in [("192.0.2.0/24", there[0]), ("2001:db8:2::/64", there[1])] {
            internet.route(to, via)?;
        }
        back.iter().try_for_each(|via| server.route("default", via))
    }

    fn at(&self, by: By) -> &Verifier {
        match by {
            By::First => &self.world.verifier,
            By::Second => &self.twin,
        }
    }

    /// Returns the number of clients' flows that this gateway has.
    fn flows(&self, by: By) -> Result<usize> {
        Ok(self.at(by).flows()?.iter().filter(|flow| flow["outbound"] == false).count())
    }

    /// Waits until this gateway has exactly `count` flows of clients.
    fn has(&self, by: By, count: usize) -> Result<()> {
        let there = poll(SOON, || self.flows(by).is_ok_and(|flows| flows == count));
        ensure!(there, "{by:?} has not {count}: {:?}", self.at(by).flows()?);
        Ok(())
    }
}

fn dark(six: bool) -> IpAddr {
    in_family(six, DARK4, DARK6)
}

/// Keeps a transfer of each family running while routing changes repeatedly.
fn transfers_go_on(two: &Two) -> Result<()> {
    let alice = &two.world.network.alice;
    let sinks = [Sink::start(&two.world.network.server, SINK)?, Sink::start(&two.world.network.server, SINK + 1)?];
    let mut transfers = Vec::new();
    for (six, port) in [(false, SINK), (true, SINK + 1)] {
        transfers.push(Transfer::start(alice, (dark(six), port).into(), LONG, Some(PER_SECOND))?);
    }
    for by in [By::Second, By::First, By::Second] {
        let before = sinks.each_ref().map(Sink::taken);
        two.take(by)?;
        let goes_on = || sinks.iter().zip(before).all(|(sink, before)| sink.taken() > before + STRETCH);
        ensure!(poll(SOON, goes_on), "by {by:?}: {:?} after {before:?}", sinks.each_ref().map(Sink::taken));
        ensure!(two.at(by).counters()?.named("flow") > 0, "nothing came by {by:?}");
    }
    for transfer in transfers {
        transfer.end()?;
    }
    Ok(())
}

/// Prints the time from the admission of a flow at one gateway until the flow passes at the other.
fn print_gap(two: &Two, what: &str) -> Result<()> {
    let alice = &two.world.network.alice;
    two.take(By::First)?;
    for _ in 0..50 {
        call(alice, (dark(false), ECHO).into(), SOON)?;
    }
    let heard = poll(SOON, || two.world.verifier.status().is_ok_and(|s| s["peers"][0]["told"].as_u64() >= Some(50)));
    ensure!(heard, "{}", two.world.verifier.status()?["peers"]);
    let peer = &two.world.verifier.status()?["peers"][0];
    let (gap, max) = (peer["gap_us"].as_u64().context("no gap was measured")?, peer["gap_max_us"].as_u64());
    println!("{what}: a flow passes at the other gateway after {gap} µs at the median, {max:?} at most");
    Ok(())
}

#[test]
fn what_one_gateway_admits_passes_at_the_other() {
    test(|| {
        let mut two = Two::new(&[])?;
        transfers_go_on(&two)?;
        print_gap(&two, "without inside addresses")?;

        // Datagrams pass at the second gateway without another token.
        let to = SocketAddr::new(dark(false), ECHO);
        let alice = &two.world.network.alice;
        let talk = alice.enter(|| UdpSocket::bind(("10.1.0.1", 7101)))?;
        talk.set_read_timeout(Some(QUIET))?;
        let answered = || talk.send_to(b"ping", to).is_ok() && talk.recv_from(&mut [0; 16]).is_ok();
        ensure!(poll(SOON, answered), "no answer by the first");
        let tokens = two.twin.counters()?.named("token");
        two.take(By::Second)?;
        ensure!(poll(SOON, answered), "no answer by the second");
        ensure!(two.twin.counters()?.named("token") == tokens, "the second wanted a proof");

        // A flow that the inside opened passes at the other gateway, too.
        let abroad: SocketAddr = (AUTHORITY.parse::<IpAddr>()?, ECHO).into();
        let _echo = Echo::start(&two.world.network.authority, ECHO)?;
        let mut out = two.world.network.server.enter(|| dial_from(dark(false), abroad))?;
        exchange(&mut out)?;
        two.take(By::First)?;
        exchange(&mut out).context("what the inside opened")?;

        // First the daemon of one gateway is stopped while the other gateway admits flows. Then its kernel state is
        // removed as well.
        let mut first = call(alice, to, SOON)?;
        two.twin.kill()?;
        let mut while_away = call(alice, to, SOON)?;
        two.twin.run(&words(&two.flags[1]))?;
        two.meet()?;
        two.take(By::Second)?;
        exchange(&mut while_away).context("admitted while the other's daemon was away")?;
        two.twin.detach()?;
        two.twin.run(&words(&two.flags[1]))?;
        two.meet()?;
        for stream in [&mut first, &mut while_away] {
            exchange(stream).context("after the second began with empty tables")?;
        }
        two.world.verifier.kill()?;
        let mut anew = call(alice, to, SOON)?;
        two.world.verifier.run(&words(&two.flags[0]))?;
        two.meet()?;
        two.take(By::First)?;
        exchange(&mut anew).context("admitted while the first one's daemon was away")?;

        // Revocation cuts the flow at both gateways.
        ensure!(two.flows(By::First)? > 0 && two.flows(By::Second)? > 0);
        two.world.authority.revoke("alice")?;
        for by in [By::First, By::Second] {
            two.has(by, 0)?;
            two.take(by)?;
            anew.set_read_timeout(Some(QUIET))?;
            ensure!(exchange(&mut anew).is_err(), "a revoked flow goes on by {by:?}");
        }
        Ok(())
    });
}

#[test]
fn inside_addresses_are_the_same_at_both_gateways() {
    test(|| {
        let two = Two::new(&["--pool", POOL])?;
        transfers_go_on(&two)?;
        print_gap(&two, "with inside addresses")?;
        let alice = &two.world.network.alice;
        for by in [By::First, By::Second] {
            two.take(by)?;
            for six in [false, true] {
                exchange(&mut call(alice, (dark(six), ECHO).into(), SOON)?)?;
            }
        }
        let seen = two.world.services.echo.clients();
        ensure!(seen.len() == 2, "the server saw her by {seen:?}");
        for by in [By::First, By::Second] {
            let listed = two.at(by).addresses()?;
            let hers = |ip: &IpAddr| {
                let ip = ip.to_canonical().to_string();
                listed.iter().any(|lease| lease["address"] == ip && lease["person"] == "alice")
            };
            ensure!(seen.iter().all(hers), "{by:?}: {listed:?}");
        }
        let status = two.world.verifier.status()?;
        ensure!(status["peers"][0]["refused"] == 0 && status["peers_heard"][0]["refused"] == 0, "{status}");
        Ok(())
    });
}

/// A peer without the verifier's keys can reach the gateways' port, but gets no answer and changes nothing.
#[test]
fn a_stranger_tells_a_gateway_nothing() {
    test(|| {
        let two = Two::new(&[])?;
        let before = two.world.verifier.flows()?.len();
        let told = two.world.network.server.enter(|| -> Result<bool> {
            let mut stream = TcpStream::connect(("192.0.2.254", PEER_PORT))?;
            stream.set_read_timeout(Some(SOON))?;
            std::io::Write::write_all(&mut stream, &[0x16; 400])?;
            let mut heard = Vec::new();
            let _ = std::io::Read::read_to_end(&mut stream, &mut heard);
            Ok(heard.len() > 16)
        })?;
        ensure!(!told, "it was answered");
        ensure!(two.world.verifier.flows()?.len() == before);
        // Tests in channel.rs cover gateways of another verifier, and peers that pretend to be one.
        let status = two.world.verifier.status()?;
        ensure!(status["peers_heard"].as_array().is_some_and(|list| list.len() == 1), "{status}");
        Ok(())
    });
}

/// Opens a connection from an address of the server on which every service is protected.
fn dial_from(from: IpAddr, to: SocketAddr) -> Result<TcpStream> {
    use nix::sys::socket::{
        AddressFamily, SockFlag, SockType, SockaddrStorage, bind, connect, setsockopt, socket, sockopt,
    };
    use nix::sys::time::{TimeVal, TimeValLike};
    use std::os::fd::AsRawFd;
    let socket = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    let patience = TimeVal::milliseconds(SOON.as_millis() as i64);
    setsockopt(&socket, sockopt::SendTimeout, &patience)?;
    setsockopt(&socket, sockopt::ReceiveTimeout, &patience)?;
    bind(socket.as_raw_fd(), &SockaddrStorage::from(SocketAddr::new(from, 0)))?;
    connect(socket.as_raw_fd(), &SockaddrStorage::from(to))?;
    Ok(TcpStream::from(socket))
}
