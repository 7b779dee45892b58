//! Several queues: tunnels are spread over them, each flow stays in order, no counter is used twice, and a flood on one
//! queue takes nothing from another. Needs root.

// Other tests need the rest.
#[allow(dead_code)]
mod stage;

use engine::model::Treatment::Encrypt;
use engine::tunnel::{Dropped, Initiator, Packet};
use lab::Capture;
use stage::{Dice, SERVER, Stage, demand, terms};
use std::collections::{HashMap, HashSet};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tunnel::{Load, times};
use wire::seal::record::{HEADER_LEN, OVERHEAD};
use wire::seal::{Message, Suites, Treatment};

const TCP: u8 = 6;
const UDP: u8 = 17;
const QUEUES: usize = 4;
/// So many flows or tunnels that they practically never are all on one of the queues.
const MANY: u16 = 16;
const PATIENCE: Duration = Duration::from_secs(30);
/// Time after which a record that has not arrived is sent again.
const AGAIN: Duration = Duration::from_millis(100);
/// The port of the tunnels' service.
const SERVICE: u16 = 4500;

fn address(port: u16) -> SocketAddr {
    SocketAddr::new(SERVER.parse().expect("an address"), port)
}

/// Number of queues of which `get` is not zero.
fn used(loads: &[Load], get: impl Fn(&Load) -> u64) -> usize {
    loads.iter().filter(|load| get(load) > 0).count()
}

/// Returns how many records both ends dropped because their counter was used before, or is too old to tell.
fn replayed(stage: &Stage) -> u64 {
    let index = Dropped::ALL.iter().position(|why| *why == Dropped::Replayed).expect("a reason");
    stage.agent.end().drops().records[index] + stage.verifier.end().drops().records[index]
}

/// Sends bytes over this many connections at the same time, and compares what comes back.
fn exchange(stage: &Stage, connections: u16, bytes: &[u8]) {
    stage.leg(TCP, 9100, demand(Encrypt));
    let listener = stage.server.enter(|| TcpListener::bind(address(9100))).expect("a listener");
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // If a client can't connect, its own thread says so; this one must not wait for it for ever.
            listener.set_nonblocking(true).expect("a mode");
            for _ in 0..connections {
                let mut accepted = None;
                let is_there = || {
                    accepted = listener.accept().ok();
                    accepted.is_some()
                };
                assert!(lab::poll(PATIENCE, is_there), "a client does not connect");
                let (mut stream, _) = accepted.expect("a connection");
                stream.set_nonblocking(false).expect("a mode");
                std::thread::spawn(move || {
                    let mut reader = stream.try_clone().expect("a stream");
                    let _ = std::io::copy(&mut reader, &mut stream);
                });
            }
        });
        for number in 0..connections {
            scope.spawn(move || {
                let connect = || TcpStream::connect_timeout(&address(9100), PATIENCE);
                let mut stream = stage.client.enter(connect).expect("a connection");
                stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
                stream.set_write_timeout(Some(PATIENCE)).expect("a timeout");
                let mut writer = stream.try_clone().expect("a stream");
                std::thread::scope(|scope| {
                    scope.spawn(move || {
                        writer.write_all(bytes).expect("everything is sent");
                        writer.shutdown(std::net::Shutdown::Write).expect("the end is sent");
                    });
                    let mut back = Vec::new();
                    stream.read_to_end(&mut back).expect("everything comes back");
                    assert!(back == bytes, "connection {number}: other bytes came back");
                });
            });
        }
    });
}

/// Returns the direction, index and counter of all records in a capture. The kernel shows the datagrams of one call as
/// one: in it, a record begins where the header of the one before is repeated with the next counter.
fn counters(pcap: &[u8]) -> Vec<(u16, u32, u8, u64)> {
    let mut all = Vec::new();
    let mut rest = pcap.get(24..).expect("a header");
    while let Some((head, after)) = rest.split_at_checked(16) {
        let length = u32::from_ne_bytes(head[8..12].try_into().expect("four bytes")) as usize;
        let Some((frame, after)) = after.split_at_checked(length) else { break };
        rest = after;
        let from = u16::from_be_bytes([frame[34], frame[35]]);
        let mut payload = &frame[42..];
        while let Some(Message::Record(header)) = Message::read(payload) {
            all.push((from, header.index.get(), header.counter.lane(), header.counter.number()));
            let mut next = payload[..HEADER_LEN].to_vec();
            let counter = u64::from_be_bytes(next[8..16].try_into().expect("eight bytes")) + 1;
            next[8..16].copy_from_slice(&counter.to_be_bytes());
            let same = |at: &[u8]| at[4..16] == next[4..16] && at[0] == next[0];
            let Some(at) = payload.get(OVERHEAD..).and_then(|rest| rest.windows(HEADER_LEN).position(same)) else {
                break;
            };
            payload = &payload[OVERHEAD + at..];
        }
    }
    all
}

#[test]
fn many_flows_use_several_queues_and_no_counter_twice() {
    lab::test(|| {
        let stage = Stage::with_queues(false, demand(Encrypt), QUEUES);
        let capture = Capture::start(&stage.router, "wan")?;
        let bytes: Vec<_> = (0..1_000_000u32).map(|at| (at.wrapping_mul(0x9e37_79b1) >> 24) as u8).collect();
        exchange(&stage, MANY, &bytes);
        let records = counters(&std::fs::read(capture.stop()?)?);
        let different: HashSet<_> = records.iter().collect();
        assert!(records.len() > 1000, "{} records", records.len());
        assert_eq!(different.len(), records.len(), "records with a counter that was used before");
        for from in [SERVICE, records.iter().map(|record| record.0).find(|from| *from != SERVICE).expect("a client")] {
            let lanes: HashSet<_> =
                records.iter().filter(|record| record.0 == from && record.3 > 10).map(|record| record.2).collect();
            assert!(lanes.len() > 1, "records from port {from} in the lanes {lanes:?}");
        }
        assert_eq!(replayed(&stage), 0, "records that overtook others too far, or whose counter was used before");
        let (agent, verifier) = (stage.agent.loads(), stage.verifier.loads());
        assert!(
            used(&agent, |load| load.sealed) > 1 && used(&verifier, |load| load.sealed) > 1,
            "{agent:?} {verifier:?}"
        );
        assert_eq!(used(&verifier, |load| load.opened), 1, "one tunnel arrives on one queue: {verifier:?}");
        Ok(())
    });
}

#[test]
fn datagrams_of_each_flow_stay_in_order_both_ways() {
    lab::test(|| {
        const COUNT: u32 = 3000;
        let stage = Stage::with_queues(false, demand(Encrypt), QUEUES);
        stage.leg(UDP, 7, demand(Encrypt));
        let is_open = || stage.agent.end().show(times()).iter().any(|shown| shown.is_open);
        assert!(lab::poll(PATIENCE, is_open), "the tunnel opens");
        let server = stage.server.enter(|| UdpSocket::bind(address(7)))?;
        server.set_read_timeout(Some(Duration::from_millis(100)))?;
        let (done, server, stage) = (AtomicBool::new(false), &server, &stage);
        std::thread::scope(|scope| {
            let done = &done;
            let echo = scope.spawn(move || {
                let mut latest: HashMap<SocketAddr, u32> = HashMap::new();
                let mut room = [0; 100];
                while !done.load(Ordering::Relaxed) {
                    let Ok((4, from)) = server.recv_from(&mut room) else { continue };
                    let number = u32::from_be_bytes(room[..4].try_into().expect("four bytes"));
                    let before = latest.insert(from, number);
                    assert!(before < Some(number), "{from}: {number} after {before:?}");
                    let _ = server.send_to(&room[..4], from);
                }
                latest.len()
            });
            let flows: Vec<_> = (0..MANY)
                .map(|_| {
                    scope.spawn(move || {
                        let socket = stage.client.enter(|| UdpSocket::bind("0.0.0.0:0")).expect("a socket");
                        socket.connect(address(7)).expect("a route");
                        socket.set_read_timeout(Some(Duration::from_millis(20))).expect("a timeout");
                        let (mut back, mut room) = (0, [0; 100]);
                        let mut latest = None;
                        // Several at a time, so that one could overtake another; few enough to fit all queues.
                        for number in 0..COUNT {
                            let _ = socket.send(&number.to_be_bytes());
                            while number % 16 == 15 && latest < Some(number) {
                                // Lost ones are not the matter here.
                                let Ok(4) = socket.recv(&mut room) else { break };
                                let number = u32::from_be_bytes(room[..4].try_into().expect("four bytes"));
                                assert!(latest < Some(number), "{number} after {latest:?}");
                                (latest, back) = (Some(number), back + 1);
                            }
                        }
                        back
                    })
                })
                .collect();
            let back: Vec<_> = flows.into_iter().map(|flow| flow.join().expect("in order")).collect();
            done.store(true, Ordering::Relaxed);
            assert_eq!(echo.join().expect("in order"), usize::from(MANY));
            assert!(back.iter().all(|back| *back > COUNT / 2), "most come back: {back:?}");
        });
        let (agent, verifier) = (stage.agent.loads(), stage.verifier.loads());
        assert!(
            used(&agent, |load| load.sealed) > 1 && used(&verifier, |load| load.sealed) > 1,
            "{agent:?} {verifier:?}"
        );
        assert_eq!(replayed(stage), 0);
        Ok(())
    });
}

/// A client's tunnel from a socket of its own.
struct Client {
    socket: UdpSocket,
    initiator: Initiator,
    dice: Dice,
}

impl Client {
    /// Opens a tunnel of this account.
    fn new(stage: &Stage, account: u32) -> Self {
        let socket = stage.client.enter(|| UdpSocket::bind("0.0.0.0:0")).expect("a socket");
        socket.connect(address(SERVICE)).expect("a route");
        socket.set_read_timeout(Some(Duration::from_millis(20))).expect("a timeout");
        let initiator = Initiator::new(terms(account));
        let mut client = Self { socket, initiator, dice: Dice(account.into()) };
        client.initiator.want(true);
        let begun = Instant::now();
        while !client.initiator.is_open(times().0) {
            assert!(begun.elapsed() < PATIENCE, "the tunnel of account {account} does not open");
            for datagram in client.initiator.poll(times(), &mut client.dice) {
                let _ = client.socket.send(&datagram);
            }
            let mut room = [0; 2000];
            if let Ok(length) = client.socket.recv(&mut room) {
                let _ = client.initiator.receive(&mut room[..length], times(), &mut client.dice);
            }
        }
        client
    }

    /// Sends a datagram to the server's port 9 through the tunnel.
    fn send(&mut self) {
        let to = SERVER.parse::<Ipv4Addr>().expect("an address").octets();
        let mut packet = vec![0x45, 0, 0, 36, 0, 1, 0, 0, 64, UDP, 0, 0, 10, 1, 0, 1];
        packet.extend(to);
        packet.extend([0x9c, 0x40, 0, 9, 0, 16, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
        let parts = [&packet[..]];
        let treatment = Treatment::Encrypt;
        let packet = Packet { treatment, suites: Suites::ALL, lane: 0, partial: true, parts: &parts };
        let mut batch = seal::Batch::default();
        self.initiator.seal(&packet, times(), &mut self.dice, &mut batch).expect("a record");
        for run in batch.runs() {
            let _ = self.socket.send(run.bytes);
        }
    }

    /// Returns the verifier's queue on which the tunnel's records arrive.
    fn queue(&mut self, stage: &Stage) -> usize {
        let opened = || stage.verifier.loads().iter().map(|load| load.opened).collect::<Vec<_>>();
        let before = opened();
        self.send();
        let begun = Instant::now();
        loop {
            let now = opened();
            if let Some(queue) = (0..QUEUES).find(|queue| now[*queue] > before[*queue]) {
                return queue;
            }
            assert!(begun.elapsed() < PATIENCE, "nothing arrives");
            std::thread::yield_now();
        }
    }
}

#[test]
fn tunnels_are_spread_over_the_verifiers_queues() {
    lab::test(|| {
        let stage = Stage::with_queues(false, demand(Encrypt), QUEUES);
        let mut clients: Vec<_> = (0..MANY).map(|number| Client::new(&stage, 100 + u32::from(number))).collect();
        let queues: Vec<_> = clients.iter_mut().map(|client| client.queue(&stage)).collect();
        let different: HashSet<_> = queues.iter().collect();
        assert!(different.len() > 1, "all on one queue: {queues:?}");
        Ok(())
    });
}

#[test]
fn a_flood_through_one_tunnel_takes_nothing_from_a_tunnel_on_another_queue() {
    lab::test(|| {
        let stage = Stage::with_queues(false, demand(Encrypt), QUEUES);
        let mut other = Client::new(&stage, 100);
        let place = other.queue(&stage);
        let flooder = (101..200).map(|account| Client::new(&stage, account)).find_map(|mut client| {
            let is_elsewhere = client.queue(&stage) != place;
            is_elsewhere.then_some(client)
        });
        let mut flooder = flooder.expect("a tunnel on another queue");
        let stop = AtomicBool::new(false);
        let opened = || stage.verifier.loads()[place].opened;
        std::thread::scope(|scope| {
            let stop = &stop;
            let flood = scope.spawn(move || {
                let mut count = 0u64;
                while !stop.load(Ordering::Relaxed) {
                    flooder.send();
                    count += 1;
                }
                count
            });
            let begun = Instant::now();
            let mut again = 0;
            for number in 0..500 {
                let before = opened();
                other.send();
                let mut sent = Instant::now();
                let arrived = || opened() > before;
                // One record at a time: nothing else is in its queue.
                while !arrived() && begun.elapsed() < PATIENCE {
                    if sent.elapsed() >= AGAIN {
                        other.send();
                        (sent, again) = (Instant::now(), again + 1);
                    }
                    std::thread::yield_now();
                }
                if !arrived() {
                    stop.store(true, Ordering::Relaxed);
                    panic!("record {number} of the other tunnel does not arrive");
                }
            }
            stop.store(true, Ordering::Relaxed);
            assert!(flood.join().expect("a flood") > 500, "the flood was no flood");
            // The flood shares the backlogs of the test's own interfaces with the other tunnel, so one may be lost there.
            assert!(again <= 5, "{again} of 500 records of the other tunnel were lost");
        });
        Ok(())
    });
}
