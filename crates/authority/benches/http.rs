//! Grants per second over TLS: the real server on loopback, sessions of a thousand machines, persistent connections
//! with one call in flight each.
//!
//! Prints one JSON object, which `cargo xtask bench` collects. The yardstick is a call to the same server that is
//! authenticated and then refused as malformed. Such a call costs TLS, HTTP and JSON, but no decision and no access to
//! the database. Client and server share the processors; the processor time of each is reported.

use api::GrantRequest;
use authority::storage::{Database, Login, NewService, Operator, Proof, Session};
use authority::{Directory, now};
use client::{Authority, Error};
use measure::{Bound, Figures, Yardstick, mean_of_middle};
use sha2::{Digest, Sha256};
use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use wire::Holder;

const MACHINES: usize = 1000;
const RECEIVERS: usize = 200;
const GROUPS: usize = 50;
const CONNECTIONS: usize = 64;
/// Duration of each kind of call in a turn. Before it, calls are made for [`WARM`] without being measured.
const TIME: Duration = Duration::from_secs(4);
const WARM: Duration = Duration::from_secs(1);
const TURNS: usize = 4;
const START_TIME: Duration = Duration::from_secs(30);
/// Minimum ratio of the rate of grants to that of refused calls.
const BOUND: f64 = 0.4;

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Result of a measurement.
struct Measured {
    per_second: f64,
    mean: f64,
    p99: f64,
    /// Processor time per call in seconds.
    client: f64,
    server: f64,
}

#[tokio::main]
async fn main() {
    let binary =
        std::env::var_os("VOUCHSAFE_BIN").expect("VOUCHSAFE_BIN is the binary: `cargo xtask bench http` sets it");
    let room = tempfile::tempdir().expect("a directory");
    let directory = Directory::at(room.path().join("authority"));
    let address = free_address();
    directory.init(&["127.0.0.1".into()], address).expect("a new authority");
    std::fs::write(directory.policy(), policy()).expect("a policy");
    eprintln!("http: logging {MACHINES} machines in");
    let tokens = log_in(&directory);
    let server = start(Path::new(&binary), &directory, &room.path().join("server.log"));
    let ca = std::fs::read(directory.ca()).expect("the CA's certificate");
    let callers: Vec<Vec<(usize, Authority)>> = (0..CONNECTIONS)
        .map(|connection| {
            let caller = Authority::new(&format!("https://{address}"), Some(&ca)).expect("a client");
            let own = tokens.iter().enumerate().skip(connection).step_by(CONNECTIONS);
            own.map(|(machine, token)| (machine, caller.with_token(token))).collect()
        })
        .collect();
    let callers = Arc::new(callers);
    wait_for(&callers[0][0].1, &room.path().join("server.log")).await;

    let (mut refused, mut granted) = (Vec::new(), Vec::new());
    for turn in 0..TURNS {
        eprintln!("http: turn {} of {TURNS}: calls that are refused for their form, then grants", turn + 1);
        let wrong = |machine| GrantRequest { protocol: 0, ..to(machine) };
        let is_refusal = |answer: &Result<_, Error>| matches!(answer, Err(Error::Refused(_)));
        refused.push(measure(&callers, server.0.id(), wrong, is_refusal).await);
        granted.push(measure(&callers, server.0.id(), to, |answer| answer.is_ok()).await);
    }
    drop(server);

    let mut figures = Figures::default();
    let mut figure = |name: &str, unit: &str, of: fn(&Measured) -> f64, bound: Bound| {
        let [granted, refused] = [&granted, &refused].map(|turns| turns.iter().map(of).collect::<Vec<_>>());
        figures.add(name, unit, mean_of_middle(&granted), &Yardstick::new(refused), bound);
    };
    figure("http.grants_per_s", "1/s", |turn| turn.per_second, Bound::AtLeast(BOUND));
    figure("http.grant_ms", "ms", |turn| turn.mean * 1e3, Bound::None);
    figure("http.grant_p99_ms", "ms", |turn| turn.p99 * 1e3, Bound::None);
    figure("http.server_cpu_us", "us", |turn| turn.server * 1e6, Bound::None);
    figure("http.client_cpu_us", "us", |turn| turn.client * 1e6, Bound::None);
    figures.print();
}

/// Returns a policy in which each receiver is open to one group. The logins of the machines put each machine into five
/// groups.
fn policy() -> String {
    let mut text = String::from("[groups]\n");
    for group in 0..GROUPS {
        writeln!(text, "g{group} = []").expect("text grows");
    }
    for number in 0..RECEIVERS {
        let address = receiver(number);
        write!(
            text,
            "[[receivers]]\nname = \"r{number}\"\naddress = \"{address}\"\nservices = \"tcp/22\"\nverifier = \"edge\"\n\
             [[rules]]\naction = \"allow\"\nwho = \"group:g{}\"\nto = \"r{number}\"\nlifetime = \"1m\"\n",
            number % GROUPS
        )
        .expect("text grows");
    }
    text
}

fn receiver(number: usize) -> IpAddr {
    Ipv4Addr::from_bits(0xc612_0000 | number as u32).into()
}

/// Returns a machine's request for a receiver of its first group.
fn to(machine: usize) -> GrantRequest {
    GrantRequest { address: receiver(machine % GROUPS), protocol: 6, port: 22, consented: false, in_band: false }
}

/// Creates sessions in the database, as a login would: a thousand logins would take long, and are not measured.
fn log_in(directory: &Directory) -> Vec<String> {
    let mut database = Database::open(&directory.database()).expect("the database");
    let (operator, now) = (Operator::current(), now());
    let one = |machine: usize| {
        let (person, token) = (format!("m{machine}"), hex::encode(Sha256::digest(machine.to_be_bytes())));
        let groups: Vec<_> = (0..5).map(|other| format!("g{}", (machine + 7 * other) % GROUPS)).collect();
        let key = hex::encode(machine.to_be_bytes());
        let service = NewService { name: &person, key: &key, groups: &groups, tags: &[] };
        database.add_service(&service, &operator, now).expect("a service account");
        let (device, tags, holder) = ("rack".to_owned(), Vec::new(), Holder::default());
        let session = Session { person, device, expires: now + 3600, tags, groups, ends: None, holder };
        let (hash, proof) = (Sha256::digest(&token).into(), Proof::Service(key));
        let login = database.add_session(hash, &session, &proof, Ipv4Addr::LOCALHOST.into(), now);
        assert!(matches!(login, Ok(Login::Done { .. })), "machine {machine} is logged in");
        token
    };
    (0..MACHINES).map(one).collect()
}

fn start(binary: &Path, directory: &Directory, log: &Path) -> Server {
    let log = std::fs::File::create(log).expect("a log");
    let mut command = Command::new(binary);
    command.args(["authority", "run", "--dir"]).arg(directory.path());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    Server(command.spawn().expect("the server starts"))
}

async fn wait_for(caller: &Authority, log: &Path) {
    let begun = Instant::now();
    while let Err(error) = caller.destinations().await {
        let log = || std::fs::read_to_string(log).unwrap_or_default();
        assert!(begun.elapsed() < START_TIME, "the server does not answer: {error}\n{}", log());
        tokio::task::yield_now().await;
    }
}

/// Makes calls in a loop on every connection. The machines of a connection take turns.
async fn measure(
    callers: &Arc<Vec<Vec<(usize, Authority)>>>,
    server: u32,
    request: impl Fn(usize) -> GrantRequest + Copy + Send + 'static,
    expected: impl Fn(&Result<api::Grant, Error>) -> bool + Copy + Send + 'static,
) -> Measured {
    let (warm, end) = (Instant::now() + WARM, Instant::now() + WARM + TIME);
    let calling: Vec<_> = (0..callers.len())
        .map(|connection| {
            let callers = callers.clone();
            tokio::spawn(async move {
                let mut taken = Vec::new();
                for (machine, caller) in callers[connection].iter().cycle() {
                    let begun = Instant::now();
                    if begun >= end {
                        break;
                    }
                    let answer = caller.grant(&request(*machine)).await;
                    assert!(expected(&answer), "{:?}", answer.err());
                    if begun >= warm {
                        taken.push(begun.elapsed().as_secs_f64());
                    }
                }
                taken
            })
        })
        .collect();
    tokio::time::sleep_until(warm.into()).await;
    let before = (processor_time("self"), processor_time(&server.to_string()));
    tokio::time::sleep_until(end.into()).await;
    let after = (processor_time("self"), processor_time(&server.to_string()));
    let mut taken = Vec::new();
    for calling in calling {
        taken.extend(calling.await.expect("calls are answered"));
    }
    taken.sort_by(f64::total_cmp);
    let calls = taken.len() as f64;
    Measured {
        per_second: calls / TIME.as_secs_f64(),
        mean: taken.iter().sum::<f64>() / calls,
        p99: taken[taken.len() * 99 / 100],
        client: (after.0 - before.0) / calls,
        server: (after.1 - before.1) / calls,
    }
}

/// Returns the processor time of a process so far, in seconds.
fn processor_time(process: &str) -> f64 {
    /// `sysconf(_SC_CLK_TCK)` on Linux.
    const TICKS: f64 = 100.0;
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).expect("the process lives");
    let fields: Vec<_> = stat.rsplit(") ").next().expect("fields").split(' ').collect();
    // proc_pid_stat(5): utime and stime are fields 14 and 15; the state, which is the first here, is field 3.
    let ticks = |field: usize| fields[field - 3].parse::<f64>().expect("a number");
    (ticks(14) + ticks(15)) / TICKS
}

fn free_address() -> SocketAddr {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr()).expect("a free port")
}
