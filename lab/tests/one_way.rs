//! UDP flows that nobody answers, such as those of syslog: they need few tokens, and lose no datagram by that.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lab::world::{DARK4, DARK6, Network, SOON, Services, Way, in_family};
use lab::{Namespace, Outsider, Place, World, poll, test};
use wire::DropReason;

/// How long to wait for a datagram that must not come.
const QUIET: Duration = Duration::from_millis(300);
const SYSLOG: u16 = 514;
const EACH: Duration = Duration::from_millis(1);
const SENT: u64 = 3000;
/// Limit of flows per grant. It allows the grant 8 × 32 tokens in 64 s.
const FLOWS: u64 = 32;
const LIMIT: [&str; 2] = ["--flows-per-grant", "32"];
/// Tokens in `SENT` datagrams, apart from those of each second: four, and one for each power of two from 8 to 2048.
const TOKENS: u64 = 4 + 9;
const WORDS: &[u8] = b"<34>1 2026-01-01T00:00:00Z alice su - ID47 - somebody became somebody else";

/// A service that takes datagrams and answers none; ends when dropped.
struct Sink {
    /// Datagrams that arrived as they were sent.
    taken: Arc<AtomicU64>,
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Sink {
    fn start(server: &Namespace, at: SocketAddr) -> Result<Self> {
        let socket = server.enter(|| UdpSocket::bind(at)).context("cannot bind the sink")?;
        socket.set_read_timeout(Some(Duration::from_millis(50)))?;
        let (taken, end) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (count, over) = (taken.clone(), end.clone());
        let thread = thread::spawn(move || {
            let mut room = [0; 2048];
            while !over.load(Relaxed) {
                if socket.recv(&mut room).is_ok_and(|size| &room[..size] == WORDS) {
                    count.fetch_add(1, Relaxed);
                }
            }
        });
        Ok(Self { taken, end, thread: Some(thread) })
    }

    fn taken(&self) -> u64 {
        self.taken.load(Relaxed)
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.end.store(true, Relaxed);
        self.thread.take().map(JoinHandle::join);
    }
}

/// Alice behind a NAT, logged in, with a grant for the sink.
fn scene(six: bool) -> Result<(World, Sink, SocketAddr)> {
    let network = Network::new(Way::Nat)?;
    let services = Services::start(&network)?;
    let world = World::around_with(network, services, "5m", &LIMIT)?;
    world.agent.login(&world.authority, "alice")?;
    let to = SocketAddr::from((in_family(six, DARK4, DARK6), SYSLOG));
    let sink = Sink::start(&world.network.server, to)?;
    socket(&world, to)?.send(WORDS)?;
    ensure!(poll(SOON, || sink.taken() == 1), "no grant for the sink");
    Ok((world, sink, to))
}

fn socket(world: &World, to: SocketAddr) -> Result<UdpSocket> {
    let any: IpAddr = in_family(to.is_ipv6(), "0.0.0.0", "::");
    let socket = world.network.alice.enter(|| {
        UdpSocket::bind((any, 0)).and_then(|socket| {
            socket.connect(to)?;
            Ok(socket)
        })
    });
    socket.context("alice has no socket")
}

/// Sends datagrams at an even pace while `goes_on` says so.
fn stream(socket: &UdpSocket, goes_on: impl Fn(u32) -> bool) -> Result<()> {
    let begun = Instant::now();
    for number in (0..).take_while(|number| goes_on(*number)) {
        thread::sleep((EACH * number).saturating_sub(begun.elapsed()));
        socket.send(WORDS)?;
    }
    Ok(())
}

fn all_arrive(six: bool) -> Result<()> {
    let (world, sink, to) = scene(six)?;
    let log = socket(&world, to)?;
    let (before, taken, begun) = (world.verifier.counters()?, sink.taken(), Instant::now());
    stream(&log, |number| u64::from(number) < SENT)?;
    // The stream touches a second more than it lasts at either end.
    let tokens = TOKENS + begun.elapsed().as_secs() + 2;
    let all = poll(SOON, || sink.taken() == taken + SENT);
    let grown = world.verifier.counters()?.since(&before);
    let count = |name: &str| grown.get(name).copied().unwrap_or_default();
    ensure!(all, "{} of {SENT} arrived: {grown:?}", sink.taken() - taken);
    ensure!(count("token") + count("flow") == SENT, "admitted is not what was sent: {grown:?}");
    ensure!(count("token") <= tokens, "{} tokens, at most {tokens}: {grown:?}", count("token"));
    let dropped = DropReason::ALL.iter().find(|reason| grown.contains_key(reason.name()));
    ensure!(dropped.is_none(), "{grown:?}");

    // The admitted flow opens nothing to a stranger behind the same address, who takes the same port.
    let mallory = Outsider::new(&world.network, Place::Home, six)?;
    let (before, taken) = (world.verifier.counters()?, sink.taken());
    for _ in 0..100 {
        mallory.send(&mallory.datagram(log.local_addr()?.port(), to.ip(), to.port()).payload(WORDS).frame())?;
    }
    let refused =
        |reason: DropReason| world.verifier.counters().map(|now| now.dropped(reason) - before.dropped(reason));
    ensure!(
        poll(SOON, || refused(DropReason::NoToken).is_ok_and(|count| count == 100)),
        "{:?}",
        refused(DropReason::NoToken)?
    );
    ensure!(sink.taken() == taken, "{} of a stranger's datagrams arrived", sink.taken() - taken);

    // More such flows than the grant may have take no place from others, nor from its own.
    let others = (0..FLOWS + 8).map(|_| socket(&world, to)).collect::<Result<Vec<_>>>()?;
    for other in &others {
        other.send(WORDS)?;
    }
    // The grant has two flows already: the first one, and the stream.
    let fits = FLOWS - 2;
    let over = world.verifier.counters()?.since(&before);
    ensure!(poll(SOON, || sink.taken() == taken + fits), "{} of {fits}: {over:?}", sink.taken() - taken);
    ensure!(!poll(QUIET, || sink.taken() > taken + fits), "the grant has more flows than it may");
    ensure!(refused(DropReason::FlowLimit)? == others.len() as u64 - fits, "{}", refused(DropReason::FlowLimit)?);
    let taken = sink.taken();
    stream(&log, |number| number < 100)?;
    ensure!(poll(SOON, || sink.taken() == taken + 100), "{} of 100 arrived", sink.taken() - taken);
    Ok(())
}

#[test]
fn a_thousand_ipv4_datagrams_a_second_that_nobody_answers_all_arrive() {
    test(|| all_arrive(false));
}

#[test]
fn a_thousand_ipv6_datagrams_a_second_that_nobody_answers_all_arrive() {
    test(|| all_arrive(true));
}

#[test]
fn a_verifier_that_forgot_a_flow_that_nobody_answers_admits_it_again_within_a_second() {
    test(|| {
        let (mut world, sink, to) = scene(false)?;
        let log = socket(&world, to)?;
        let end = AtomicBool::new(false);
        thread::scope(|scope| {
            let sender = scope.spawn(|| stream(&log, |_| !end.load(Relaxed)));
            let forget = || -> Result<()> {
                let taken = sink.taken();
                ensure!(poll(SOON, || sink.taken() > taken + 1000), "no stream");
                world.verifier.detach()?;
                world.verifier.run(&LIMIT)?;
                let taken = sink.taken();
                ensure!(poll(SOON, || sink.taken() > taken + 1000), "the flow is not admitted again");
                // A second's datagrams, and twice as many that a busy machine sends late. A token every 15 s would lose 15 000.
                let lost = world.verifier.counters()?.dropped(DropReason::NoToken);
                ensure!(lost < 3000, "{lost} datagrams were lost");
                Ok(())
            };
            let forgotten = { forget }();
            end.store(true, Relaxed);
            sender.join().expect("the sender doesn't panic")?;
            forgotten
        })
    });
}
