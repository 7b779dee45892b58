//! Tests of a verifier on a router before the servers: a flow from outside needs a token, and flows that the inside
//! opens are answered.

use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use lab::forge::Tcp;
use lab::net::Namespace;
use lab::service::{Echo, ask, call, exchange};
use lab::world::{AUTHORITY, DARK4, DARK6, ECHO, FRONT4, FRONT6, OPEN4, POOL, Way, in_family};
use lab::{Outsider, Place, Port, World, poll, test};
use nix::sys::socket::sockopt::{ReceiveTimeout, SendTimeout};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockProtocol, SockType, SockaddrStorage, bind, connect, setsockopt, socket,
};
use nix::sys::time::{TimeVal, TimeValLike};

const SOON: Duration = Duration::from_secs(5);
/// Time to wait for an answer that must not come.
const QUIET: Duration = Duration::from_millis(300);
/// An unprotected address outside, of the router `internet`.
const ABROAD6: &str = "2001:db8:1::ff";

fn dark(six: bool) -> IpAddr {
    in_family(six, DARK4, DARK6)
}

/// Returns the address of an echo service outside.
fn abroad(six: bool) -> SocketAddr {
    (in_family(six, AUTHORITY, ABROAD6), ECHO).into()
}

fn echoes(world: &World) -> Result<[Echo; 2]> {
    let network = &world.network;
    Ok([Echo::start(&network.authority, ECHO)?, Echo::start(&network.internet, ECHO)?])
}

/// Opens a connection from an address of the server on which every service is protected.
fn dial_out(world: &World, from: SocketAddr, to: SocketAddr) -> Result<TcpStream> {
    let family = if from.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    world.network.server.enter(|| {
        let socket = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
        let patience = TimeVal::milliseconds(SOON.as_millis() as i64);
        setsockopt(&socket, SendTimeout, &patience)?;
        setsockopt(&socket, ReceiveTimeout, &patience)?;
        bind(socket.as_raw_fd(), &SockaddrStorage::from(from))?;
        connect(socket.as_raw_fd(), &SockaddrStorage::from(to))?;
        Ok(TcpStream::from(socket))
    })
}

/// Sends a datagram from the server and waits for the answer.
fn ask_out(world: &World, from: SocketAddr, to: SocketAddr, patience: Duration) -> Result<UdpSocket> {
    world.network.server.enter(|| {
        let socket = UdpSocket::bind(from)?;
        socket.set_read_timeout(Some(patience))?;
        socket.send_to(b"who?", to)?;
        let (length, who) = socket.recv_from(&mut [0; 16]).context("no answer")?;
        ensure!((length, who) == (4, to), "{length} bytes from {who}");
        Ok(socket)
    })
}

/// Sends an ICMP echo request, and returns whether it is answered.
fn ping(from: &Namespace, source: IpAddr, to: IpAddr) -> Result<bool> {
    let (family, protocol, kind) = match source {
        IpAddr::V4(_) => (AddressFamily::Inet, SockProtocol::Icmp, 8),
        IpAddr::V6(_) => (AddressFamily::Inet6, SockProtocol::IcmpV6, 128),
    };
    from.sysctl("net/ipv4/ping_group_range", "0 2147483647")?;
    from.enter(|| {
        let socket = socket(family, SockType::Datagram, SockFlag::SOCK_CLOEXEC, protocol)?;
        bind(socket.as_raw_fd(), &SockaddrStorage::from(SocketAddr::new(source, 0)))?;
        let socket = UdpSocket::from(socket);
        socket.set_read_timeout(Some(QUIET))?;
        socket.send_to(&[kind, 0, 0, 0, 0, 0, 0, 1], (to, 0))?;
        Ok(socket.recv_from(&mut [0; 64]).is_ok_and(|(_, who)| who.ip() == to))
    })
}

#[test]
fn what_the_inside_opens_is_answered_and_nothing_else_comes_in() {
    test(|| {
        let world = World::behind_gateway(Way::Nat, &[])?;
        let _echoes = echoes(&world)?;
        for six in [false, true] {
            let (inside, to) = (dark(six), abroad(six));
            let mut stream = dial_out(&world, (inside, 0).into(), to).context("a connection out")?;
            exchange(&mut stream)?;
            ask_out(&world, (inside, 0).into(), to, SOON).context("a datagram out")?;
            ensure!(ping(&world.network.server, inside, to.ip())?, "an echo request out");
            // The host that just answered the inside now sends packets of flows that the inside did not open.
            let back = if six { &world.network.internet } else { &world.network.authority };
            ensure!(!ping(back, to.ip(), inside)?, "an echo request in");
            ensure!(back.enter(|| TcpStream::connect_timeout(&(inside, ECHO).into(), QUIET)).is_err(), "a SYN in");
            let port = Port::open(&world.network.server, "eth0")?;
            back.enter(|| UdpSocket::bind((to.ip(), 0))?.send_to(b"unasked", (inside, 4000)))?;
            let arrived = port.receive(QUIET, |frame| frame.windows(7).any(|bytes| bytes == b"unasked").then_some(()));
            ensure!(arrived.is_none(), "a datagram in");
            exchange(&mut stream)?;
            let flows = world.verifier.flows()?;
            let outbound = flows.iter().filter(|flow| flow["outbound"] == true).count();
            ensure!(outbound >= 3, "{flows:?}");
        }
        let alice = call(&world.network.alice, (dark(false), ECHO).into(), SOON);
        alice.and_then(|mut stream| exchange(&mut stream)).context("Alice, who has a grant")?;
        let counters = world.verifier.counters()?;
        ensure!(counters.named("outbound") >= 6 && counters.named("outbound_full") == 0, "{counters:?}");
        let status = world.verifier.status()?;
        ensure!(status["inside"] == serde_json::json!(["eth1"]), "{status}");
        Ok(())
    });
}

/// Control for the test above: without inside interfaces, a flow that leaves a protected address gets no answer.
#[test]
fn without_an_inside_nothing_that_is_protected_calls_out() {
    test(|| {
        let world = World::new(Way::Nat)?;
        let _echoes = echoes(&world)?;
        for six in [false, true] {
            ensure!(ask_out(&world, (dark(six), 0).into(), abroad(six), QUIET).is_err(), "an answer came");
        }
        Ok(())
    });
}

/// Sends packets from outside that the router forwards out again. Only their source address is one of the inside's.
#[test]
fn nobody_outside_opens_a_flow_in_the_name_of_the_inside() {
    test(|| {
        let world = World::behind_gateway(Way::Nat, &[])?;
        let gateway = world.network.front();
        for key in ["all", "eth0", "default"] {
            gateway.sysctl(&format!("net/ipv4/conf/{key}/rp_filter"), "0")?;
        }
        for six in [false, true] {
            let outsider = Outsider::new(&world.network, Place::NextDoor, six)?;
            let (inside, ours) = (dark(six), outsider.shown);
            let [from, to] = outsider.macs();
            let forged = lab::forge::Packet::new(inside, ours).ethernet(from, to);
            for port in 5000..5010 {
                outsider.send(&forged.clone().udp(port, 7000).payload(b"x").frame())?;
                outsider.send(&forged.clone().tcp(Tcp::syn(port, 7000)).frame())?;
            }
            for port in 5000..5010 {
                outsider.send(&outsider.datagram(7000, inside, port).payload(b"in").frame())?;
                let answer = Tcp::new(7000, port, lab::forge::flag::SYN | lab::forge::flag::ACK);
                outsider.send(&outsider.packet(inside).tcp(answer).frame())?;
            }
            let counted = poll(SOON, || world.verifier.counters().is_ok_and(|all| all.named("no_token") >= 10));
            ensure!(counted, "{:?}", world.verifier.counters()?);
            let through = outsider.got_through(inside);
            ensure!(through.is_empty(), "{through:?}");
            let flows = world.verifier.flows()?;
            let noted = flows.iter().filter(|flow| flow["outbound"] == true && flow["protocol"] != "tcp").count();
            ensure!(noted == 0, "{flows:?}");
        }
        Ok(())
    });
}

/// A server keeps sending to a client whose grant is revoked. That must not admit the client again.
#[test]
fn answers_to_a_revoked_client_open_nothing() {
    test(|| {
        let world = World::behind_gateway(Way::Direct, &[])?;
        let (alice, server) = (&world.network.alice, &world.network.server);
        let to: SocketAddr = (dark(false), 6000).into();
        let served = server.enter(|| UdpSocket::bind(to))?;
        served.set_read_timeout(Some(SOON))?;
        let client = alice.enter(|| UdpSocket::bind("10.1.0.1:6001"))?;
        client.send_to(b"hello", to)?;
        let (_, who) = served.recv_from(&mut [0; 16]).context("admitted")?;
        let flows = world.verifier.flows()?;
        let handle = flows.iter().find_map(|flow| flow["handle"].as_str()).context("no flow of Alice's")?;
        world.authority.revoke("alice")?;
        let cut = || world.verifier.flows().is_ok_and(|flows| !flows.iter().any(|flow| flow["handle"] == handle));
        ensure!(poll(SOON, cut), "the flow lives on");
        client.set_read_timeout(Some(SOON))?;
        for _ in 0..20 {
            served.send_to(b"still here", who)?;
            client.recv_from(&mut [0; 16]).context("what the server sends goes out")?;
        }
        ensure!(
            !world.verifier.flows()?.iter().any(|flow| flow["outbound"] == true && flow["client"] == who.to_string())
        );
        // The client keeps sending. Its agent has no grant any more, and the server's packets must not replace one.
        served.set_read_timeout(Some(QUIET))?;
        let _ = client.send_to(b"me again", to);
        ensure!(served.recv_from(&mut [0; 16]).is_err(), "the revoked client came in");
        Ok(())
    });
}

#[test]
fn everything_is_protected_but_what_is_open() {
    test(|| {
        let world = World::behind_gateway(Way::Direct, &["--everything", "--open", &format!("{OPEN4}/32")])?;
        let echo = Echo::start(&world.network.authority, ECHO)?;
        let mallory = &world.network.mallory;
        let reached = |to: &str| -> Result<bool> {
            let to: SocketAddr = to.parse()?;
            Ok(mallory.enter(|| TcpStream::connect_timeout(&to, QUIET)).is_ok())
        };
        ensure!(reached(&format!("{OPEN4}:{ECHO}"))?, "what is open is reached");
        // The policy names the front's port 22, but not its port 80. The gateway's own address belongs to no receiver.
        ensure!(!reached("[2001:db8:2::2]:7")? && !reached(&format!("{FRONT4}:{ECHO}"))?);
        ensure!(!ping(mallory, "10.2.0.1".parse()?, "192.0.3.1".parse()?)?, "the gateway answers a ping");
        ensure!(!ping(mallory, "fd02::1".parse()?, FRONT6.parse()?)?, "the front answers a ping");
        // The gateway opens connections itself, as it must do to its authority.
        ask(world.network.front(), (AUTHORITY.parse::<IpAddr>()?, ECHO).into(), SOON)?;
        ensure!(echo.datagrams() == 1);
        ask(&world.network.alice, (in_family(false, FRONT4, FRONT6), ECHO).into(), SOON)?;
        if world.verifier.status()?["connected"] != true {
            bail!("the gateway has lost its authority");
        }
        Ok(())
    });
}

/// The inside's flows have a limit of their own, so they never take room from clients' flows.
#[test]
fn the_inside_has_room_of_its_own() {
    test(|| {
        let world = World::behind_gateway(Way::Direct, &["--max-outbound", "16", "--max-flows", "32"])?;
        let _echoes = echoes(&world)?;
        let mut open = Vec::new();
        for port in 5000..5040 {
            open.extend(ask_out(&world, (dark(false), port).into(), abroad(false), Duration::from_millis(30)).ok());
        }
        // A single inside host may use a quarter of the room for outbound flows.
        ensure!(open.len() == 4, "{} flows", open.len());
        ensure!(world.verifier.counters()?.named("outbound_full") == 36, "{:?}", world.verifier.counters()?);
        for port in 0..8 {
            call(&world.network.alice, (dark(false), ECHO).into(), SOON).with_context(|| format!("client {port}"))?;
        }
        Ok(())
    });
}

#[test]
fn the_way_out_survives_the_daemon() {
    test(|| {
        let mut world = World::behind_gateway(Way::Direct, &[])?;
        let _echoes = echoes(&world)?;
        let mut stream = dial_out(&world, (dark(false), 0).into(), abroad(false))?;
        world.verifier.kill()?;
        exchange(&mut stream)?;
        dial_out(&world, (dark(true), 0).into(), abroad(true)).and_then(|mut stream| exchange(&mut stream))?;
        world.verifier.run(&["--inside", "eth1"])?;
        exchange(&mut stream)?;
        // A restart without inside interfaces detaches their programs, so outbound flows end.
        world.verifier.kill()?;
        world.verifier.run(&[])?;
        let closed = poll(SOON, || dial_out_fails(&world));
        ensure!(closed, "a way out is left");
        Ok(())
    });
}

fn dial_out_fails(world: &World) -> bool {
    thread::sleep(Duration::from_millis(1));
    ask_out(world, (dark(false), 0).into(), abroad(false), QUIET).is_err()
}

/// The inside sees Alice under one address of the pool, for all her flows, and the verifier reports this lease.
#[test]
fn who_comes_in_has_an_inside_address() {
    test(|| {
        let mut world = World::behind_gateway(Way::Nat, &["--pool", POOL])?;
        for six in [false, true] {
            let mut flows = Vec::new();
            for to in [in_family(six, FRONT4, FRONT6), dark(six)] {
                let mut stream = call(&world.network.alice, (to, ECHO).into(), SOON)?;
                exchange(&mut stream)?;
                ask(&world.network.alice, (to, ECHO).into(), SOON)?;
                flows.push(stream);
            }
            let seen: Vec<IpAddr> = world
                .services
                .echo
                .clients()
                .into_iter()
                .map(|ip| ip.to_canonical())
                .filter(|ip| ip.is_ipv6() == six)
                .collect();
            ensure!(seen.len() == 1 && in_pool(seen[0]), "{seen:?}");
            let listed = world.verifier.addresses()?;
            let hers = listed.iter().find(|lease| lease["address"] == seen[0].to_string());
            ensure!(
                hers.is_some_and(|lease| lease["person"] == "alice" && lease["flows"].as_u64() >= Some(4)),
                "{listed:?}"
            );
            let of_alice = world.verifier.flows()?;
            let inside = of_alice.iter().find_map(|flow| flow["inside"].as_str()?.parse::<SocketAddr>().ok());
            let inside = inside.filter(|inside| in_pool(inside.ip())).context("no flow names its inside address")?;
            let who = world.verifier.whois(inside)?;
            ensure!(who[0]["person"] == "alice", "{who}");
            // No other client has Alice's address, and packets to an unassigned address of the pool do not leave the
            // inside.
            let nobody: SocketAddr = (in_family(six, "10.9.0.99", "fd09::79"), 5000).into();
            let outside = Port::open(&world.network.internet, "dc")?;
            world.network.server.enter(|| UdpSocket::bind((dark(six), 0))?.send_to(b"to nobody", nobody))?;
            let leaks =
                outside.receive(QUIET, |frame| frame.windows(9).any(|bytes| bytes == b"to nobody").then_some(()));
            ensure!(leaks.is_none(), "a packet to the pool went out");
            // Ending and restarting the daemon does not affect admitted flows.
            world.verifier.kill()?;
            flows.iter_mut().try_for_each(exchange)?;
            world.verifier.run(&["--inside", "eth1", "--pool", POOL])?;
            flows.iter_mut().try_for_each(exchange)?;
            let again = world.verifier.addresses()?;
            ensure!(
                again.iter().any(|lease| lease["address"] == seen[0].to_string() && lease["person"] == "alice"),
                "{again:?}"
            );
        }
        // Flows that the inside opens keep their own addresses.
        let _echoes = echoes(&world)?;
        ask_out(&world, (dark(false), 0).into(), abroad(false), SOON)?;
        Ok(())
    });
}

fn in_pool(address: IpAddr) -> bool {
    ["10.9.0.", "fd09::"].iter().any(|prefix| address.to_string().starts_with(prefix))
}
