//! Path segments and renewed grants per second by UDP on one core (wire.md §8.13, §8.14). The real server runs on
//! loopback: its answering thread alone on the first processor, its other threads and the client on the second. The
//! client's requests are sealed in advance.
//!
//! The authority sends several answers as one large datagram, and the client receives this datagram whole (udp(7),
//! UDP_GRO). On loopback without UDP_GRO, the processor of the answering thread would have to split it. On a real
//! network, the network card splits it.
//!
//! Prints one JSON object, which `cargo xtask bench` collects. The yardstick is an echo server with the same loop and
//! the same two system calls. It returns as many bytes as an answer has.

use api::GrantRequest;
use authority::batch::{self, Answers, Batches};
use authority::storage::{Database, NewService, Operator, Proof, Session};
use authority::{Directory, Server, now};
use client::Authority;
use measure::{Bound, Figures, Yardstick, mean_of_middle};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::socket::{MsgFlags, MultiHeaders, SockaddrStorage, recvmmsg, sendmmsg, setsockopt, sockopt};
use nix::unistd::Pid;
use sha2::{Digest, Sha256};
use std::io::{IoSlice, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, TcpSocket};
use wire::ask::grant::{GrantAnswer, GrantQuestion};
use wire::ask::{ANSWER_LEN, LineKey, LineNumber, Question, Reply, Request};
use wire::{Destination, Holder};

const SESSIONS: usize = 1024;
const RECEIVERS: u32 = 64;
/// Source addresses of the requests, each with a socket.
const SOURCES: usize = 16;
/// Maximum number of requests in flight per source.
const UNDER_WAY: usize = 12;
/// Number of requests measured, after [`WARM`] requests that are not.
const COUNTED: usize = 800_000;
const WARM: usize = 100_000;
/// Time without an answer after which the requests in flight count as lost.
const LOST: Duration = Duration::from_millis(50);
/// Number of answers of which the client decrypts one.
const OPENED: u64 = 1009;
/// Minimum ratios of the rates of segments and of grants to the echo's rate.
const BOUND: f64 = 0.8;
const GRANTS_BOUND: f64 = 0.6;
/// Number of turns of the echo and of the authority, which alternate.
const TURNS: usize = 5;
/// Number of requests of each kind that a source sends in one turn.
const OF_TURN: usize = (WARM + COUNTED) / TURNS / SOURCES;

/// A session's line for requests, and the destinations of its requests.
struct Line {
    number: LineNumber,
    key: LineKey,
    segment: [u8; wire::ask::QUESTION_LEN],
    grant: Destination,
}

impl Line {
    /// Returns the question for a grant, with the present time.
    fn grant(&self) -> [u8; wire::ask::QUESTION_LEN] {
        let question = GrantQuestion { to: self.grant, consented: false, time: now() as u32 };
        question.encode().expect("it can be asked")
    }
}

/// Result of a measurement.
struct Measured {
    per_second: f64,
    /// Seconds from a request to its answer.
    median: f64,
    p99: f64,
    lost: usize,
    /// Processor time of the answering thread in seconds per request: in user space, and in the kernel.
    own: f64,
    kernel: f64,
}

fn main() {
    let room = tempfile::tempdir().expect("a directory");
    let directory = Directory::at(room.path().join("authority"));
    directory.init(&["127.0.0.1".into()], SocketAddr::from(([127, 0, 0, 1], 0))).expect("a new authority");
    std::fs::write(directory.policy(), policy()).expect("a policy");
    std::fs::write(directory.path().join("networks.toml"), NETWORKS).expect("networks");
    let config = directory.path().join("authority.toml");
    let text = std::fs::read_to_string(&config).expect("its configuration");
    std::fs::write(&config, format!("segments = \"127.0.0.1:0\"\n{text}")).expect("its configuration");
    eprintln!("asking: logging {SESSIONS} machines in");
    let tokens = log_in(&directory);
    // All threads of this process begin on the second processor; only the answering thread is moved.
    pin(Pid::this(), 1);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("tokio");
    let server = runtime.block_on(Server::start(directory.clone(), None)).expect("the server starts");
    let address = server.segments().expect("accepting requests by UDP");
    let lines = runtime.block_on(lines(&directory, server.address(), &tokens));

    let echo = batch::bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a socket");
    let echoed = echo.local_addr().expect("its address");
    let ends = Arc::new(AtomicBool::new(false));
    let ended = ends.clone();
    let echo = std::thread::Builder::new().name("echo".into()).spawn(move || {
        let mut batches = Batches::new(echo);
        while !ended.load(Ordering::Relaxed) {
            batches.receive().expect("requests");
            let mut answers = Answers::default();
            for (place, (request, _)) in batches.datagrams().enumerate() {
                let answer = request.first_chunk().expect("a request is longer than an answer");
                answers.push(place, *answer);
            }
            batches.send(&answers);
        }
    });
    let echo = echo.expect("a thread");
    let echo_thread = thread("echo");
    pin(echo_thread, 0);
    let answering = thread("segments");
    pin(answering, 0);

    let opened = |source: usize, counter: u64, answer: &[u8]| {
        let line = &lines[asks(source, counter)];
        let mut answer = answer.to_vec();
        let (_, reply) = line.key.open_answer(&mut answer).expect("an answer to this line");
        *reply
    };
    let segment = |source: usize, counter: u64, answer: &[u8]| {
        let reply = opened(source, counter, answer);
        let reply = Reply::decode(&reply).expect("it says something");
        assert!(matches!(reply, Reply::Given(_)), "{reply:?}");
    };
    let grant = |source: usize, counter: u64, answer: &[u8]| match GrantAnswer::decode(&opened(source, counter, answer))
    {
        Some(GrantAnswer::Given(_)) => {}
        Some(GrantAnswer::Refused { reason, text }) => panic!("{}: {text}", reason.name()),
        None => panic!("it says nothing"),
    };
    let (mut echoes, mut asked, mut granted) = (Vec::new(), Vec::new(), Vec::new());
    let (in_request, in_answer) = (|bytes: &[u8]| counter(bytes, 12), |bytes: &[u8]| counter(bytes, 4));
    for turn in 0..TURNS {
        eprintln!("asking: turn {} of {TURNS}", turn + 1);
        let first = (2 * turn * OF_TURN) as u64;
        let requests = sealed(&lines, first, |line| line.segment);
        // An echo returns the request. The counter's offset in a request differs from its offset in an answer.
        echoes.push(measure(echoed, &requests, first, echo_thread, in_request, |_, _, _| {}));
        asked.push(measure(address, &requests, first, answering, in_answer, segment));
        drop(requests);
        let first = first + OF_TURN as u64;
        let requests = sealed(&lines, first, Line::grant);
        granted.push(measure(address, &requests, first, answering, in_answer, grant));
    }
    ends.store(true, Ordering::Relaxed);
    echo.join().expect("the echo ends");
    runtime.block_on(server.stop());
    let mut figures = Figures::default();
    report(&mut figures, "getsegment", &asked, &echoes, BOUND);
    report(&mut figures, "grant", &granted, &echoes, GRANTS_BOUND);
    figures.print();
}

/// Adds the figures about requests of one kind. `least` is the minimum ratio of their rate to the echo's rate.
fn report(figures: &mut Figures, kind: &str, asked: &[Measured], echoes: &[Measured], least: f64) {
    let each = |turns: &[Measured], of: fn(&Measured) -> f64| turns.iter().map(of).collect::<Vec<_>>();
    let mut figure = |name: &str, unit: &str, of: fn(&Measured) -> f64, bound: Bound| {
        let (name, value) = (format!("{kind}.udp_{name}"), mean_of_middle(&each(asked, of)));
        figures.add(&name, unit, value, &Yardstick::new(each(echoes, of)), bound);
    };
    figure("per_s", "1/s", |turn| turn.per_second, Bound::AtLeast(least));
    figure("median_us", "us", |turn| turn.median * 1e6, Bound::None);
    figure("p99_us", "us", |turn| turn.p99 * 1e6, Bound::None);
    figure("own_us", "us", |turn| turn.own * 1e6, Bound::None);
    figure("kernel_us", "us", |turn| turn.kernel * 1e6, Bound::None);
    let busy = |turns| mean_of_middle(&each(turns, |turn| turn.per_second * (turn.own + turn.kernel)));
    let limit = |busy: f64| if busy > 0.9 { "its own core" } else { "who asks, on the other core" };
    let (busy, echo) = (busy(asked), busy(echoes));
    eprintln!(
        "asking: {kind}: {} of {COUNTED} were lost; the thread was busy {:.0} % of the time (echo {:.0} %): its limit is {} (echo: {})",
        asked.iter().map(|turn| turn.lost).sum::<usize>(),
        busy * 100.0,
        echo * 100.0,
        limit(busy),
        limit(echo),
    );
}

const NETWORKS: &str = r#"
authority = "198.51.100.1"
[[networks]]
name = "blue"
vni = 100
[[places]]
network = "blue"
address = "10.0.0.0/16"
endpoint = "192.0.2.1"
interface = 5
[[places]]
network = "blue"
address = "10.1.0.0/16"
endpoint = "192.0.2.2"
interface = 7
[[paths]]
to = "192.0.2.2"
verifiers = ["edge-1", "edge-2"]
"#;

/// Returns a policy with every machine in one group. For each group there is one receiver in a virtual network, and one
/// behind a verifier.
fn policy() -> String {
    let groups: String = (0..RECEIVERS).map(|number| format!("g{number} = []\n")).collect();
    let receiver = |number| {
        format!(
            "[[receivers]]\nname = \"r{number}\"\naddress = \"{}\"\nservices = [\"tcp/443\"]\nnetwork = \"blue\"\n\
             [[rules]]\naction = \"allow\"\nwho = \"group:g{number}\"\nto = \"r{number}\"\nreply = true\n\
             [[receivers]]\nname = \"s{number}\"\naddress = \"{}\"\nservices = \"tcp/22\"\nverifier = \"edge\"\n\
             [[rules]]\naction = \"allow\"\nwho = \"group:g{number}\"\nto = \"s{number}\"\n",
            receiver(number),
            server(number)
        )
    };
    let receivers: String = (0..RECEIVERS).map(receiver).collect();
    format!("[groups]\n{groups}{receivers}")
}

fn receiver(number: u32) -> IpAddr {
    Ipv4Addr::from_bits(0x0a01_0000 | number).into()
}

fn server(number: u32) -> IpAddr {
    Ipv4Addr::from_bits(0xcb00_7100 | number).into()
}

/// Creates sessions in the database, as a login would.
fn log_in(directory: &Directory) -> Vec<String> {
    let mut database = Database::open(&directory.database()).expect("the database");
    let (operator, now) = (Operator::current(), now());
    let one = |machine: usize| {
        let (person, token) = (format!("m{machine}"), hex::encode(Sha256::digest(machine.to_be_bytes())));
        let groups = vec![format!("g{}", machine as u32 % RECEIVERS)];
        let key = hex::encode(machine.to_be_bytes());
        let service = NewService { name: &person, key: &key, groups: &groups, tags: &[] };
        database.add_service(&service, &operator, now).expect("a service account");
        let (device, tags, holder) = ("rack".to_owned(), Vec::new(), Holder::default());
        let session = Session { person, device, expires: now + 3600, tags, groups, ends: None, holder };
        let (hash, proof) = (Sha256::digest(&token).into(), Proof::Service(key));
        database.add_session(hash, &session, &proof, Ipv4Addr::LOCALHOST.into(), now).expect("logged in");
        token
    };
    (0..SESSIONS).map(one).collect()
}

/// Forwards connections to the authority at `to`, from the address of a source: the authority answers requests for
/// grants only if they come from the address from which the session got its line. Returns the address to connect to.
async fn relay(source: usize, to: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a listener");
    let address = listener.local_addr().expect("its address");
    tokio::spawn(async move {
        while let Ok((mut near, _)) = listener.accept().await {
            let socket = TcpSocket::new_v4().expect("a socket");
            socket.bind((source_address(source), 0).into()).expect("the source's address");
            let mut far = socket.connect(to).await.expect("the authority");
            tokio::spawn(async move {
                let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
            });
        }
    });
    address
}

/// Gets a line for each session, and its first grant, which the requests then renew.
async fn lines(directory: &Directory, address: SocketAddr, tokens: &[String]) -> Vec<Line> {
    let ca = std::fs::read(directory.ca()).expect("the CA's certificate");
    let mut callers = Vec::new();
    for source in 0..SOURCES {
        let url = format!("https://{}", relay(source, address).await);
        callers.push(Authority::new(&url, Some(&ca)).expect("a client"));
    }
    let mut lines = Vec::new();
    for (machine, token) in tokens.iter().enumerate() {
        let caller = callers[machine % SOURCES].with_token(token);
        let to = Destination { address: server(machine as u32 % RECEIVERS), protocol: 6, port: 22 };
        let Destination { address, protocol, port } = to;
        let request = GrantRequest { address, protocol, port, consented: false, in_band: false };
        caller.grant(&request).await.expect("a grant");
        let line = caller.line().await.expect("a line");
        let question = Question {
            network: "blue",
            sender: Ipv4Addr::from_bits(0x0a00_0000 | machine as u32).into(),
            sending: Ipv4Addr::new(192, 0, 2, 1).into(),
            receiver: receiver(machine as u32 % RECEIVERS),
            protocol: 6,
            port: 443,
            sender_port: 0,
            answers: false,
            path: None,
        };
        let key = hex::decode(line.key).expect("hex").try_into().expect("32 bytes");
        let segment = question.encode().expect("it can be asked");
        lines.push(Line { number: LineNumber(line.line), key: LineKey::new(key), segment, grant: to });
    }
    lines
}

/// Returns the number of the session whose request has this counter at a source. The sessions of a source take turns.
fn asks(source: usize, counter: u64) -> usize {
    source + SOURCES * (counter as usize % (SESSIONS / SOURCES))
}

/// Seals the requests of one turn for each source, in the order of their counters. `first` is the last counter that was
/// used before.
fn sealed(lines: &[Line], first: u64, question: impl Fn(&Line) -> [u8; wire::ask::QUESTION_LEN]) -> Vec<Vec<Request>> {
    let request = |source: usize, counter: u64| {
        let line = &lines[asks(source, counter)];
        line.key.seal_request(line.number, counter, &question(line)).expect("sealed")
    };
    let counters = first + 1..=first + OF_TURN as u64;
    (0..SOURCES).map(|source| counters.clone().map(|counter| request(source, counter)).collect()).collect()
}

/// Returns the counter at this place of a datagram.
fn counter(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|bytes| u64::from_be_bytes(*bytes))
}

/// Sends the requests of one turn, with a limited number in flight. `counter` finds the counter in an answer. `first`
/// is the last counter that was used before.
fn measure(
    to: SocketAddr,
    requests: &[Vec<Request>],
    first: u64,
    answering: Pid,
    counter: impl Fn(&[u8]) -> Option<u64>,
    opened: impl Fn(usize, u64, &[u8]),
) -> Measured {
    let (each, warm) = (OF_TURN, WARM / TURNS / SOURCES);
    let mut sources: Vec<_> = (0..SOURCES).map(|source| Source::new(source, to, each)).collect();
    let mut taken = Vec::with_capacity(COUNTED);
    let (mut lost, mut heard) = (0, Instant::now());
    let mut counting = None;
    let mut received = MultiHeaders::<SockaddrStorage>::preallocate(UNDER_WAY, None);
    let mut sent = MultiHeaders::<SockaddrStorage>::preallocate(UNDER_WAY, None);
    let mut rooms = [[0; ANSWER_LEN * UNDER_WAY]; UNDER_WAY];
    while sources.iter().any(|source| source.next < each || source.under_way > 0) {
        for (place, (source, requests)) in sources.iter_mut().zip(requests).enumerate() {
            let lengths: Vec<usize> = {
                let mut slices: Vec<_> = rooms.iter_mut().map(|room| [IoSliceMut::new(room)]).collect();
                let flags = MsgFlags::MSG_DONTWAIT;
                let come = recvmmsg(source.socket.as_raw_fd(), &mut received, slices.iter_mut(), flags, None);
                come.map(|come| come.map(|message| message.bytes).collect()).unwrap_or_default()
            };
            if !lengths.is_empty() {
                heard = Instant::now();
            }
            for answer in rooms.iter().zip(&lengths).flat_map(|(room, length)| room[..*length].chunks(ANSWER_LEN)) {
                let counter = counter(answer).expect("an answer has a counter");
                // An answer of an earlier part of the turn was given up as lost.
                let Some(place_in_turn) = counter.checked_sub(first) else { continue };
                let place_in_turn = place_in_turn as usize;
                if place_in_turn > warm {
                    taken.push((heard - source.sent_at[place_in_turn]).as_secs_f64());
                }
                if counter.is_multiple_of(OPENED) {
                    opened(place, counter, answer);
                }
            }
            let answered = lengths.iter().map(|length| length.div_ceil(ANSWER_LEN)).sum();
            source.under_way = source.under_way.saturating_sub(answered);
            let more = (UNDER_WAY - source.under_way).min(requests.len() - source.next);
            // Requests are sent in batches, because sending them one at a time would be the bottleneck.
            if more == 0 || more < UNDER_WAY / 2 && source.next + more < requests.len() {
                continue;
            }
            if source.next + more > warm && counting.is_none() {
                counting = Some((Instant::now(), processor_time(answering)));
            }
            let at = Instant::now();
            let now = &requests[source.next..source.next + more];
            let slices: Vec<_> = now.iter().map(|request| [IoSlice::new(request)]).collect();
            let (nowhere, flags) = (vec![None; more], MsgFlags::empty());
            let gone = sendmmsg(source.socket.as_raw_fd(), &mut sent, &slices, &nowhere, [], flags);
            let gone = gone.map_or(0, Iterator::count);
            source.sent_at[source.next + 1..=source.next + gone].fill(at);
            source.next += gone;
            source.under_way += gone;
        }
        if heard.elapsed() > LOST {
            lost += sources.iter().map(|source| source.under_way).sum::<usize>();
            sources.iter_mut().for_each(|source| source.under_way = 0);
            heard = Instant::now();
        }
    }
    let (began, cpu) = counting.expect("more are asked than warm up");
    let (elapsed, after) = (began.elapsed().as_secs_f64(), processor_time(answering));
    taken.sort_by(f64::total_cmp);
    let count = taken.len() as f64;
    Measured {
        per_second: count / elapsed,
        median: taken[taken.len() / 2],
        p99: taken[taken.len() * 99 / 100],
        lost,
        own: (after.0 - cpu.0) / count,
        kernel: (after.1 - cpu.1) / count,
    }
}

/// A source address for requests.
struct Source {
    socket: UdpSocket,
    /// Number of requests sent.
    next: usize,
    /// Number of requests in flight.
    under_way: usize,
    /// Times of sending, by counter.
    sent_at: Vec<Instant>,
}

impl Source {
    fn new(number: usize, to: SocketAddr, requests: usize) -> Self {
        let socket = UdpSocket::bind((source_address(number), 0)).expect("a socket");
        socket.connect(to).expect("connected");
        setsockopt(&socket, sockopt::UdpGroSegment, &true).expect("several in one datagram");
        Self { socket, next: 0, under_way: 0, sent_at: vec![Instant::now(); requests + 1] }
    }
}

fn source_address(number: usize) -> Ipv4Addr {
    Ipv4Addr::new(127, 0, 1, number as u8 + 1)
}

fn pin(thread: Pid, processor: usize) {
    let mut set = CpuSet::new();
    set.set(processor).expect("a processor");
    if let Err(error) = sched_setaffinity(thread, &set) {
        eprintln!("asking: thread {thread} can't be kept on processor {processor}: {error}");
    }
}

/// Returns the thread of this process that has this name.
fn thread(name: &str) -> Pid {
    let begun = Instant::now();
    loop {
        for task in std::fs::read_dir("/proc/self/task").expect("threads").flatten() {
            let is_it = std::fs::read_to_string(task.path().join("comm")).is_ok_and(|comm| comm.trim() == name);
            if let (true, Some(Ok(id))) = (is_it, task.file_name().to_str().map(str::parse)) {
                return Pid::from_raw(id);
            }
        }
        assert!(begun.elapsed() < Duration::from_secs(10), "no thread {name}");
        std::thread::yield_now();
    }
}

/// Returns the processor time of a thread so far, in user space and in the kernel, in seconds.
fn processor_time(thread: Pid) -> (f64, f64) {
    /// `sysconf(_SC_CLK_TCK)` on Linux.
    const TICKS: f64 = 100.0;
    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).expect("the thread lives");
    let fields: Vec<_> = stat.rsplit(") ").next().expect("fields").split(' ').collect();
    // proc_pid_stat(5): utime and stime are fields 14 and 15; the state, which is the first here, is field 3.
    let ticks = |field: usize| fields[field - 3].parse::<f64>().expect("a number");
    (ticks(14) / TICKS, ticks(15) / TICKS)
}
