//! The memory of an authority for each endpoint that listens for events, and the time until 20 000 listening endpoints
//! have heard that their grants are revoked.
//!
//! The real server runs in a process of its own. Every endpoint is a TLS connection with HTTP/1.1, like the connection
//! on which an agent listens. The endpoints have 200 loopback addresses, because the authority limits the connections
//! of one address. The memory is the growth of the server's anonymous memory, from 64 endpoints to all of them, divided
//! by the number of endpoints, after each has heard two of the events that are sent every ten seconds. The kernel's
//! memory for sockets is a figure of its own, for both ends of each connection.
//!
//! Three more figures are measured with fewer endpoints: the memory for each endpoint over HTTP/2
//! (`http.stream_http2_kib`), for each endpoint with the agents' client (`http.stream_agent_kib`), and for an agent that
//! has just made a call (`http.agent_kib`). Its second connection, over HTTP/2, closes within three minutes.
//!
//! Then every endpoint has a grant, and the operator applies a policy that allows none of them. `revocation.heard_ms`
//! is the time from the start of this command until the last endpoint has decrypted the event that its grant is
//! revoked. The server shares the processors of the machine with all endpoints. If the limit on open files allows fewer
//! than 20 000 endpoints, but at least 10 000, the bench multiplies the time by 20 000 and divides it by the number of
//! endpoints. It does the same if `VOUCHSAFE_BENCH_STREAMS` sets a smaller number of endpoints.
//!
//! Prints one JSON object, which `cargo xtask bench` collects.

use api::{Event, GrantOwner};
use authority::storage::{Database, Issuance, Login, NewService, Operator, Proof, Recorded, Session, TokenHash};
use authority::{Directory, Server, admin, now};
use client::Authority;
use engine::policy::Scope;
use measure::Figures;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use rustls::client::Resumption;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use sha2::{Digest, Sha256};
use std::io::{BufRead, BufReader, Read};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use wire::{Destination, Flags, Holder};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Number of endpoints, and the smallest number with which the bench measures.
const MANY: usize = 20_000;
const LEAST: usize = 10_000;
/// Number of endpoints that listen before the first measurement. So memory that the process needs only once is not
/// counted.
const BEFORE: usize = 64;
/// Number of endpoints in the measurements with fewer of them.
const FEW: usize = 1_000;
/// Number of agents with two connections. The authority accepts two thousand connections of their address at once.
const AGENTS: usize = 400;
/// Endpoints of one source address.
const OF_SOURCE: usize = 100;
/// Source addresses of one /24.
const OF_NETWORK: usize = 50;
/// Maximum memory for an endpoint, in KiB.
const MEMORY: f64 = 24.0;
/// Maximum time until every endpoint has heard of the revocation, in milliseconds.
const HEARD: f64 = 1000.0;
/// Number of handshakes at a time.
const TOGETHER: usize = 64;
/// Number of open files that each of the two processes needs beside the connections.
const FILES: u64 = 160;
/// Longest wait for the endpoints.
const PATIENCE: Duration = Duration::from_secs(120);
/// Name of the environment variable that sets another number of endpoints.
const ENDPOINTS: &str = "VOUCHSAFE_BENCH_STREAMS";
/// Name of the environment variable that gives the serving process the authority's directory.
const SERVES: &str = "VOUCHSAFE_BENCH_SERVES";

/// A process that serves the authority until this value is dropped.
struct Serving {
    process: Child,
    address: SocketAddr,
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The events that all endpoints together have heard.
struct Heard {
    begun: Instant,
    hello: AtomicUsize,
    alive: AtomicUsize,
    revoked: AtomicUsize,
    /// Nanoseconds from `begun` to the first and to the latest revocation that an endpoint has heard.
    first: AtomicU64,
    last: AtomicU64,
    /// The first failure of an endpoint.
    failure: Mutex<Option<String>>,
}

impl Heard {
    fn new() -> Self {
        Self {
            begun: Instant::now(),
            hello: AtomicUsize::new(0),
            alive: AtomicUsize::new(0),
            revoked: AtomicUsize::new(0),
            first: AtomicU64::new(u64::MAX),
            last: AtomicU64::new(0),
            failure: Mutex::new(None),
        }
    }

    fn note(&self, event: &[u8]) {
        let says = |word: &[u8]| event.windows(word.len()).any(|part| part == word);
        if says(b"\"revoked\"") {
            let time = self.begun.elapsed().as_nanos() as u64;
            self.first.fetch_min(time, Ordering::Relaxed);
            self.last.fetch_max(time, Ordering::Relaxed);
            self.revoked.fetch_add(1, Ordering::Release);
        }
        for (word, count) in [(&b"\"hello\""[..], &self.hello), (b"\"alive\"", &self.alive)] {
            count.fetch_add(usize::from(says(word)), Ordering::Relaxed);
        }
    }

    fn fail(&self, why: String) {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(why);
    }

    /// Waits until `count` has reached `most`.
    async fn until(&self, what: &str, count: &AtomicUsize, most: usize) {
        let begun = Instant::now();
        while count.load(Ordering::Acquire) < most {
            let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone();
            assert!(failure.is_none(), "an endpoint failed: {}", failure.unwrap_or_default());
            let heard = count.load(Ordering::Relaxed);
            assert!(begun.elapsed() < PATIENCE, "{what}: {heard} of {most} within {PATIENCE:?}");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

#[tokio::main]
async fn main() {
    if let Some(path) = std::env::var_os(SERVES) {
        return serve(Path::new(&path)).await;
    }
    let many = endpoints();
    let (room, tokens) = seed(many);
    let directory = Directory::at(room.path().join("authority"));
    let serving = start(&directory);
    // If the server revoked a grant at its start, the endpoint would hear nothing of it later.
    let live = Database::open(&directory.database()).expect("the database").grants(now(), false).expect("grants");
    assert_eq!(live.len(), many, "the policy allows every grant");
    drop(live);
    let crowd = Crowd::new(&directory, serving.address, Protocol::Http1);
    let heard = crowd.heard.clone();
    let memory = || (memory_of(serving.process.id()), memory_of_kernel());
    crowd.open(&tokens, 0..BEFORE).await;
    let first = memory();
    crowd.open(&tokens, BEFORE..many).await;
    let second = memory();
    let (mut figures, of_each) = (Figures::default(), (many - BEFORE) as f64);
    figures.count("http.stream_kib", "KiB", (second.0 - first.0) / of_each, Some(MEMORY));
    figures.count("http.stream_kernel_kib", "KiB", (second.1 - first.1) / of_each, None);
    figures.count("http.streams", "streams", many as f64, None);

    let denying = room.path().join("denying.toml");
    std::fs::write(&denying, policy("deny")).expect("a policy");
    eprintln!("streams: applying a policy that allows nobody; load average {}", load());
    let begun = heard.begun.elapsed();
    let applied = admin::apply_policy(&directory, Some(&denying));
    let applied = async { (applied.await.expect("the policy is applied"), heard.begun.elapsed()) };
    let all = heard.until("revoked", &heard.revoked, many);
    let ((text, returned), ()) = tokio::join!(applied, all);
    eprintln!("streams: {text}; afterwards {:.1} KiB a stream", (memory().0 - first.0) / of_each);
    let [first_heard, last] =
        [&heard.first, &heard.last].map(|time| Duration::from_nanos(time.load(Ordering::Acquire)));
    let missing = MANY as f64 / many as f64;
    figures.count("revocation.heard_ms", "ms", (last - begun).as_secs_f64() * 1e3 * missing, Some(HEARD));
    figures.count("revocation.first_heard_ms", "ms", (first_heard - begun).as_secs_f64() * 1e3, None);
    figures.count("revocation.returns_ms", "ms", (returned - begun).as_secs_f64() * 1e3, None);
    drop(serving);
    figures.count("http.stream_http2_kib", "KiB", over_http2(&directory, &tokens).await, None);
    figures.count("http.stream_agent_kib", "KiB", agents(&directory, &tokens, FEW, false).await, Some(MEMORY));
    figures.count("http.agent_kib", "KiB", agents(&directory, &tokens, AGENTS, true).await, None);
    figures.print();
}

/// Returns the memory of an authority for each endpoint that listens over HTTP/2, in KiB.
async fn over_http2(directory: &Directory, tokens: &[String]) -> f64 {
    let serving = start(directory);
    let crowd = Crowd::new(directory, serving.address, Protocol::Http2);
    crowd.open(tokens, 0..BEFORE).await;
    let first = memory_of(serving.process.id());
    crowd.open(tokens, BEFORE..BEFORE + FEW).await;
    (memory_of(serving.process.id()) - first) / FEW as f64
}

/// Returns the memory of an authority for each of `count` endpoints that have the client of agents, in KiB. If `calls`
/// is set, each of them makes a call, and the measurement ends before the connection for calls does.
async fn agents(directory: &Directory, tokens: &[String], count: usize, calls: bool) -> f64 {
    let serving = start(directory);
    let ca = std::fs::read(directory.ca()).expect("the CA's certificate");
    let heard = Arc::new(AtomicUsize::new(0));
    let open = async |from: usize, to: usize| {
        eprintln!("streams: opening {} streams of agents", to - from);
        for token in &tokens[from..to] {
            let caller = Authority::new(&format!("https://{}", serving.address), Some(&ca)).expect("a client");
            let caller = caller.with_token(token);
            let mut events = caller.events();
            assert_eq!(events.next().await.expect("an event"), Event::Hello);
            if calls {
                caller.destinations().await.expect("an answer");
            }
            let heard = heard.clone();
            tokio::spawn(async move {
                while events.next().await.is_ok_and(|event| event == Event::Alive) {
                    heard.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let (begun, before) = (Instant::now(), heard.load(Ordering::Relaxed));
        while heard.load(Ordering::Relaxed) < before + 2 * to {
            assert!(begun.elapsed() < PATIENCE, "an agent hears nothing");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    open(0, BEFORE).await;
    let first = memory_of(serving.process.id());
    open(BEFORE, BEFORE + count).await;
    (memory_of(serving.process.id()) - first) / count as f64
}

/// Endpoints that listen at one server, over one protocol.
struct Crowd {
    to: SocketAddr,
    protocol: Protocol,
    connector: TlsConnector,
    heard: Arc<Heard>,
}

impl Crowd {
    fn new(directory: &Directory, to: SocketAddr, protocol: Protocol) -> Self {
        Self { to, protocol, connector: connector(directory, protocol), heard: Arc::new(Heard::new()) }
    }

    /// Opens the streams of the endpoints with these numbers, after all streams with lower numbers. Returns when each
    /// endpoint has everything that it needs later: after two of the events that are sent every ten seconds.
    async fn open(&self, tokens: &[String], numbers: Range<usize>) {
        eprintln!("streams: opening {} streams over {:?}", numbers.len(), self.protocol);
        let (turns, all) = (Arc::new(Semaphore::new(TOGETHER)), numbers.end);
        for number in numbers {
            let turn = turns.clone().acquire_owned().await.expect("the semaphore stays open");
            let (to, protocol, token) = (self.to, self.protocol, tokens[number].clone());
            let endpoint = Endpoint { number, to, protocol, token };
            let (connector, heard) = (self.connector.clone(), self.heard.clone());
            tokio::spawn(async move {
                if let Err(error) = endpoint.listen(connector, &heard, || drop(turn)).await {
                    heard.fail(format!("{number}: {error}"));
                }
            });
        }
        let heard = &self.heard;
        heard.until("hello", &heard.hello, all).await;
        let before = heard.alive.load(Ordering::Relaxed);
        heard.until("alive", &heard.alive, before + 2 * all).await;
    }
}

/// Serves the authority of the directory until standard input ends.
async fn serve(path: &Path) {
    let server = Server::start(Directory::at(path), None).await.expect("the server starts");
    println!("{}", server.address());
    let wait = || std::io::stdin().read_to_end(&mut Vec::new());
    tokio::task::spawn_blocking(wait).await.expect("waiting").expect("standard input");
    server.stop().await;
}

fn start(directory: &Directory) -> Serving {
    let mut command = Command::new(std::env::current_exe().expect("a path"));
    command.env(SERVES, directory.path()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut process = command.spawn().expect("the bench starts itself");
    let mut line = String::new();
    BufReader::new(process.stdout.as_mut().expect("a pipe")).read_line(&mut line).expect("its address");
    let address = line.trim().parse().expect("an address");
    Serving { process, address }
}

/// Returns the number of endpoints, as far as the limit on open files allows. Raises the limit as far as possible, also
/// for the server.
///
/// # Panics
/// Panics if the limit is too low for the bench, or the number that was set is too small.
fn endpoints() -> usize {
    let set = std::env::var(ENDPOINTS).ok().map(|number| number.parse().expect("a number of endpoints"));
    let most: usize = set.unwrap_or(MANY);
    assert!((BEFORE + FEW..=MANY).contains(&most), "{ENDPOINTS} has to be from {} to {MANY}", BEFORE + FEW);
    let (least, wanted) = (LEAST.min(most), most as u64 + FILES);
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("the limit on open files");
    // To raise the hard limit takes CAP_SYS_RESOURCE.
    let limit = if setrlimit(Resource::RLIMIT_NOFILE, wanted, wanted.max(hard)).is_ok() { wanted } else { hard };
    let _ = setrlimit(Resource::RLIMIT_NOFILE, limit, limit.max(hard));
    let many = (limit.saturating_sub(FILES) as usize).min(most);
    assert!(
        many >= least,
        "the bench cannot run: {least} endpoints need {} open files in each of two processes, and the limit is \
         {limit}. Raise it with `ulimit -n {wanted}`, as root if the hard limit (`ulimit -Hn`) is lower",
        least as u64 + FILES
    );
    if many < most {
        eprintln!(
            "streams: {many} endpoints in place of {most}, because a process may open only {limit} files (`ulimit -Hn`)"
        );
    }
    many
}

/// Creates an authority whose accounts each have a session and a grant. Returns its room and the sessions' tokens. The
/// database is made in memory, where many small transactions are fast, and then copied to the disk.
fn seed(endpoints: usize) -> (TempDir, Vec<String>) {
    eprintln!("streams: logging {endpoints} machines in");
    let fast = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a directory");
    let directory = Directory::at(fast.path().join("authority"));
    directory.init(&["127.0.0.1".into()], SocketAddr::from(([127, 0, 0, 1], 0))).expect("a new authority");
    std::fs::write(directory.policy(), policy("allow")).expect("a policy");
    let config = directory.path().join("authority.toml");
    let text = std::fs::read_to_string(&config).expect("its configuration");
    std::fs::write(&config, format!("max_connections = 65536\n{text}")).expect("its configuration");
    let mut database = Database::open(&directory.database()).expect("the database");
    let tokens: Vec<_> = (0..endpoints).map(|number| log_in(&mut database, number)).collect();
    let issuances: Vec<_> = tokens.iter().enumerate().map(|(number, token)| issuance(number, token)).collect();
    for together in issuances.chunks(64) {
        let recorded = database.add_grants(together).expect("grants are recorded");
        assert!(recorded.iter().all(|one| *one == Recorded::Done), "{recorded:?}");
    }
    drop(database);
    let room = tempfile::tempdir().expect("a directory");
    let copy = room.path().join("authority");
    std::fs::create_dir(&copy).expect("a directory");
    for file in std::fs::read_dir(directory.path()).expect("the authority's files") {
        let file = file.expect("a file");
        if file.file_type().expect("its type").is_file() {
            std::fs::copy(file.path(), copy.join(file.file_name())).expect("a copy");
        }
    }
    (room, tokens)
}

fn policy(action: &str) -> String {
    format!(
        "[[receivers]]\nname = \"git\"\naddress = \"203.0.113.10\"\nservices = \"tcp/22\"\nverifier = \"edge\"\n\
         [[rules]]\naction = \"{action}\"\nwho = \"everyone\"\nto = \"git\"\n"
    )
}

/// Creates a session in the database, as a login would, and returns its token.
fn log_in(database: &mut Database, number: usize) -> String {
    let (person, token) = (format!("m{number}"), hex::encode(Sha256::digest(number.to_be_bytes())));
    let key = hex::encode(number.to_be_bytes());
    let service = NewService { name: &person, key: &key, groups: &[], tags: &[] };
    database.add_service(&service, &Operator::current(), now()).expect("a service account");
    let (device, tags, groups, holder) = ("rack".into(), Vec::new(), Vec::new(), Holder::default());
    let session = Session { person, device, expires: now() + 12 * 3600, tags, groups, ends: None, holder };
    let proof = Proof::Service(key);
    let login = database.add_session(hash(&token), &session, &proof, source(number).into(), now());
    assert!(matches!(login, Ok(Login::Done { .. })), "machine {number} is logged in");
    token
}

fn hash(token: &str) -> TokenHash {
    Sha256::digest(token).into()
}

fn issuance(number: usize, token: &str) -> Issuance {
    let address = IpAddr::from(Ipv4Addr::new(203, 0, 113, 10));
    Issuance {
        session: hash(token),
        owner: GrantOwner {
            // Handles come in random order. A handle that begins with a zero byte would be that of a pair, which this
            // policy does not allow.
            handle: (number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1 << 63,
            person: format!("m{number}"),
            device: "rack".into(),
            receiver: "git".into(),
            rule: "policy.toml:6".into(),
            issued: now(),
            expires: now() + 3600,
            class: 0,
            sealing: None,
        },
        verifier: "edge".into(),
        source: source(number).into(),
        to: Destination { address, protocol: 6, port: 22 },
        scope: Scope { prefix: address.into(), service: Some((6, 22)) },
        flags: Flags::PORT,
        renewable: None,
    }
}

/// Returns an endpoint's address.
fn source(number: usize) -> Ipv4Addr {
    let source = number / OF_SOURCE;
    Ipv4Addr::new(127, 7, (1 + source / OF_NETWORK) as u8, (1 + source % OF_NETWORK) as u8)
}

fn connector(directory: &Directory, protocol: Protocol) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    let pem = std::fs::read(directory.ca()).expect("the CA's certificate");
    roots.add(CertificateDer::from_pem_slice(&pem).expect("a certificate")).expect("a CA");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().expect("versions");
    let mut config = config.with_root_certificates(roots).with_no_client_auth();
    let name: &[u8] = match protocol {
        Protocol::Http1 => b"http/1.1",
        Protocol::Http2 => b"h2",
    };
    config.alpn_protocols = vec![name.to_vec()];
    // Every endpoint is a machine of its own.
    config.resumption = Resumption::disabled();
    TlsConnector::from(Arc::new(config))
}

/// A protocol over which endpoints listen.
#[derive(Clone, Copy, Debug)]
enum Protocol {
    Http1,
    Http2,
}

/// An endpoint that listens. It implements as much of HTTP/1.1 (RFC 9112) or HTTP/2 (RFC 9113) as one stream of events
/// needs.
struct Endpoint {
    number: usize,
    to: SocketAddr,
    protocol: Protocol,
    token: String,
}

/// Types of frames, and the flag by which SETTINGS and PING are answered.
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW: u8 = 8;
const ACK: u8 = 1;
/// Bytes after which the flow-control windows are opened again.
const CONSUMED: usize = 16 * 1024;

impl Endpoint {
    /// Listens until the connection ends. Calls `opened` when the first event has come.
    async fn listen(self, connector: TlsConnector, heard: &Heard, opened: impl FnOnce()) -> Result<(), Failure> {
        let socket = TcpSocket::new_v4()?;
        socket.bind((source(self.number), 0).into())?;
        let stream = socket.connect(self.to).await?;
        stream.set_nodelay(true)?;
        let stream = connector.connect(ServerName::from(self.to.ip()), stream).await?;
        match self.protocol {
            Protocol::Http1 => self.listen_http1(stream, heard, opened).await,
            Protocol::Http2 => self.listen_http2(stream, heard, opened).await,
        }
    }

    async fn listen_http1(
        self,
        stream: TlsStream<TcpStream>,
        heard: &Heard,
        opened: impl FnOnce(),
    ) -> Result<(), Failure> {
        let mut stream = tokio::io::BufReader::with_capacity(512, stream);
        let (host, token) = (self.to, &self.token);
        let request = "GET /v1/events HTTP/1.1\r\naccept: */*\r\n";
        let request = format!("{request}host: {host}\r\nauthorization: Bearer {token}\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        stream.flush().await?;
        let (mut opened, mut line) = (Some(opened), String::new());
        stream.read_line(&mut line).await?;
        if !line.starts_with("HTTP/1.1 200 ") {
            return Err(format!("the server answers {line:?}").into());
        }
        // The head ends with an empty line. Each chunk has its length before it, and an end of line behind it.
        while line != "\r\n" {
            line.clear();
            if stream.read_line(&mut line).await? == 0 {
                return Err("the server ends the connection in the head of its answer".into());
            }
        }
        loop {
            line.clear();
            stream.read_line(&mut line).await?;
            let length = usize::from_str_radix(line.trim_end(), 16)?;
            if length == 0 {
                return Err("the server ends the stream".into());
            }
            let mut chunk = vec![0; length + 2];
            stream.read_exact(&mut chunk).await?;
            heard.note(&chunk);
            if let Some(opened) = opened.take() {
                opened();
            }
        }
    }

    async fn listen_http2(
        self,
        mut stream: TlsStream<TcpStream>,
        heard: &Heard,
        opened: impl FnOnce(),
    ) -> Result<(), Failure> {
        let mut begins = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        begins.extend(frame(SETTINGS, 0, 0, &[]));
        // END_STREAM and END_HEADERS.
        begins.extend(frame(HEADERS, 5, 1, &self.head()));
        stream.write_all(&begins).await?;
        let (mut opened, mut consumed) = (Some(opened), 0);
        loop {
            let mut head = [0; 9];
            stream.read_exact(&mut head).await?;
            let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
            stream.read_exact(&mut payload).await?;
            let answer = match (head[3], head[4] & ACK) {
                (DATA, _) => {
                    heard.note(&payload);
                    if let Some(opened) = opened.take() {
                        opened();
                    }
                    consumed += payload.len();
                    if consumed < CONSUMED {
                        continue;
                    }
                    let opens = (std::mem::take(&mut consumed) as u32).to_be_bytes();
                    [frame(WINDOW, 0, 0, &opens), frame(WINDOW, 0, 1, &opens)].concat()
                }
                (SETTINGS, 0) => frame(SETTINGS, ACK, 0, &[]),
                (PING, 0) => frame(PING, ACK, 0, &payload),
                (RESET | GOAWAY, _) => return Err(format!("the server ends the stream: {payload:?}").into()),
                _ => continue,
            };
            stream.write_all(&answer).await?;
        }
    }

    /// Returns the request's fields in HPACK (RFC 7541).
    fn head(&self) -> Vec<u8> {
        let authority = self.to.to_string();
        let bearer = format!("Bearer {}", self.token);
        // GET and https are entries of the static table.
        let mut head = vec![0x82, 0x87];
        // `:path` and `:authority` without indexing, `accept` with indexing, `authorization` never indexed.
        let fields: [(&[u8], &str); 4] =
            [(&[0x04], "/v1/events"), (&[0x01], &authority), (&[0x53], "*/*"), (&[0x1f, 0x08], &bearer)];
        for (name, value) in fields {
            head.extend(name);
            head.push(value.len() as u8);
            head.extend(value.as_bytes());
        }
        head
    }
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// Returns the anonymous memory of a process, in KiB.
fn memory_of(process: u32) -> f64 {
    number_in(&format!("/proc/{process}/status"), "RssAnon:")
}

/// Returns the kernel's memory for its own structures and for the bytes in sockets, in KiB.
fn memory_of_kernel() -> f64 {
    let sockets = std::fs::read_to_string("/proc/net/sockstat").expect("the sockets");
    let tcp = sockets.lines().find_map(|line| line.strip_prefix("TCP:")).expect("those of TCP");
    let pages = tcp.rsplit(' ').next().and_then(|pages| pages.parse().ok()).unwrap_or(0.0);
    number_in("/proc/meminfo", "Slab:") + 4.0 * pages
}

/// Returns the number of kilobytes that a line of a file in /proc states.
fn number_in(path: &str, name: &str) -> f64 {
    let text = std::fs::read_to_string(path).expect("the process lives");
    let line = text.lines().find_map(|line| line.strip_prefix(name)).expect("a line with this name");
    line.trim().trim_end_matches(" kB").trim().parse().expect("a number")
}

fn load() -> String {
    std::fs::read_to_string("/proc/loadavg").unwrap_or_default().trim().to_owned()
}
