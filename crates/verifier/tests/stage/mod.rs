//! The stage of the tests: a server and a client in separate network namespaces, a real authority on the server's
//! loopback, and the verifier as a process. Dropping the stage removes everything. Needs root.

mod beside;

use api::{Grant, GrantRequest, Login};
use authority::{Directory, Server, admin};
pub use beside::Beyond;
use client::Authority;
use datapath::hook::Hook;
use nix::sched::{CloneFlags, setns};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::de::DeserializeOwned;
use std::fs::File;
use std::future::Future;
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use verifier::control::{self, Request};

pub const PASSWORD: &str = "correct horse";
/// The server's address and the protected port.
pub const SSH: &str = "10.77.0.1:22";
/// The server's address and an unprotected port.
pub const WEB: &str = "10.77.0.1:80";
/// Deadline for events that the tests wait for.
pub const SOON: Duration = Duration::from_secs(10);
/// Time without an answer after which a packet counts as dropped.
pub const DROPPED: Duration = Duration::from_millis(800);

pub const POLICY: &str = r#"
[[receivers]]
name = "ssh"
address = "10.77.0.1"
services = "tcp/22"
verifier = "edge-1"

[[rules]]
name = "alice may"
action = "allow"
who = "person:alice"
to = "ssh"
"#;

/// The end of [`POLICY`] with which each request gets a grant of its own.
pub const SINGLE: &str = "single = true\n";

/// Name of the test that acts as the verifier's program when the tests run their own executable.
pub const PROGRAM: &str = "the_program";
const ARGUMENTS: &str = "VERIFIER_TEST_ARGUMENTS";

/// Acts as the verifier's program if this process was started for that; otherwise returns.
pub fn program() {
    let Ok(arguments) = std::env::var(ARGUMENTS) else { return };
    let arguments: Vec<String> = serde_json::from_str(&arguments).unwrap();
    #[derive(clap::Parser)]
    struct Program {
        #[command(subcommand)]
        command: verifier::cli::VerifierCommand,
    }
    let program = <Program as clap::Parser>::parse_from(arguments);
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).init();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let done = runtime.block_on(verifier::cli::run(program.command));
    let code = match done {
        Ok(code) if code == std::process::ExitCode::SUCCESS => 0,
        Ok(_) => 1,
        Err(error) => {
            eprintln!("vouchsafe: {error:#}");
            2
        }
    };
    std::process::exit(code);
}

/// A network namespace with a name, deleted on drop.
struct Namespace(String);

impl Namespace {
    fn new(name: String) -> Self {
        ip(&["netns", "add", &name]);
        ip(&["-n", &name, "link", "set", "lo", "up"]);
        Self(name)
    }

    fn enter(&self) {
        setns(File::open(format!("/run/netns/{}", self.0)).unwrap(), CloneFlags::CLONE_NEWNET).unwrap();
    }
}

impl Namespace {
    fn socket(&self, address: &str) -> UdpSocket {
        std::thread::scope(|scope| {
            let bind = || {
                self.enter();
                UdpSocket::bind(address).unwrap()
            };
            scope.spawn(bind).join().unwrap()
        })
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

fn ip(arguments: &[&str]) {
    let done = Command::new("ip").args(arguments).output().unwrap();
    assert!(done.status.success(), "ip {arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
}

pub struct Stage {
    pub authority: Directory,
    pub address: SocketAddr,
    pub server: Option<Server>,
    pub instance: String,
    pub room: TempDir,
    /// Whether the daemon chooses its interfaces itself.
    pub everywhere: bool,
    /// Environment variables of the daemon.
    pub environment: Vec<(String, String)>,
    client: Namespace,
    host: Namespace,
}

/// Runs `test` on a thread in the server's namespace, with a new stage.
pub fn act<F: Future<Output = ()>>(test: impl FnOnce(Stage) -> F + Send + 'static) {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("vt{}x{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let run = move || {
        let (host, client) = (Namespace::new(format!("{name}h")), Namespace::new(format!("{name}c")));
        ip(&["-n", &host.0, "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", &client.0]);
        for (namespace, address) in [(&host, "10.77.0.1/24"), (&client, "10.77.0.2/24")] {
            ip(&["-n", &namespace.0, "addr", "add", address, "dev", "eth0"]);
            ip(&["-n", &namespace.0, "link", "set", "eth0", "up"]);
        }
        host.enter();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { test(Stage::new(name, host, client).await).await });
    };
    if let Err(panic) = std::thread::spawn(run).join() {
        std::panic::resume_unwind(panic);
    }
}

impl Stage {
    async fn new(instance: String, host: Namespace, client: Namespace) -> Self {
        let room = tempfile::tempdir().unwrap();
        let authority = Directory::at(room.path().join("authority"));
        authority.init(&["127.0.0.1".into()], "127.0.0.1:0".parse().unwrap()).unwrap();
        std::fs::write(authority.policy(), POLICY).unwrap();
        let server = Server::start(authority.clone(), None).await.unwrap();
        let address = server.address();
        Self {
            authority,
            address,
            server: Some(server),
            instance,
            room,
            everywhere: false,
            environment: Vec::new(),
            client,
            host,
        }
    }

    /// Stops the authority.
    pub async fn stop_authority(&mut self) {
        self.server.take().unwrap().stop().await;
    }

    /// Starts the authority again at its old address.
    pub async fn start_authority(&mut self) {
        // Another test that is starting a process may have passed a copy of the authority's lock to that process.
        let deadline = Instant::now() + SOON;
        self.server = loop {
            match Server::start(self.authority.clone(), Some(self.address)).await {
                Ok(server) => break Some(server),
                Err(error) => assert!(Instant::now() < deadline, "{error:#}"),
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        };
    }

    /// Applies a policy at the authority.
    pub async fn apply(&self, policy: &str) {
        let file = self.room.path().join("next.toml");
        std::fs::write(&file, policy).unwrap();
        admin::apply_policy(&self.authority, Some(&file)).await.unwrap();
    }

    /// Creates alice's account, and returns an API client with a session of hers.
    pub async fn alice(&self) -> Authority {
        self.person("alice").await
    }

    /// Creates the account of a person, and returns an API client with a session of theirs.
    pub async fn person(&self, name: &str) -> Authority {
        admin::add_account(&self.authority, name, PASSWORD, false).await.unwrap();
        let ca = std::fs::read(self.authority.ca()).unwrap();
        let client = Authority::new(&format!("https://{}", self.address), Some(&ca)).unwrap();
        let login = Login { person: name.into(), password: PASSWORD.into(), totp: None, device: "laptop".into() };
        let session = client.login(&login).await.unwrap();
        client.with_token(&session.token)
    }

    /// Returns the path of the verifier's directory.
    pub fn directory(&self) -> PathBuf {
        self.room.path().join("verifier")
    }

    /// Returns the path of the control socket.
    pub fn socket(&self) -> PathBuf {
        self.room.path().join("verifier.sock")
    }

    /// Returns the arguments that select the daemon.
    pub fn daemon(&self) -> Vec<String> {
        ["--instance", &self.instance, "--socket", &self.socket().display().to_string()].map(Into::into).to_vec()
    }

    /// Returns the arguments for enrolment, with a new one-time code.
    pub async fn enrolment(&self) -> Vec<String> {
        let code = admin::add_verifier(&self.authority, "edge-1", false).await.unwrap();
        let (url, ca) = (format!("https://{}", self.address), self.authority.ca().display().to_string());
        ["--authority", &url, "--ca", &ca, "--code", &code].map(Into::into).to_vec()
    }

    fn command(&self, arguments: Vec<String>) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let arguments = [vec!["verifier".to_owned()], arguments].concat();
        command.args([PROGRAM, "--exact", "--nocapture", "--quiet"]).env_remove("SSH_CONNECTION");
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.env(ARGUMENTS, serde_json::to_string(&arguments).unwrap());
        command
    }

    /// Runs a command to its end, on a thread of its own so that the authority can answer it.
    pub async fn cli(&self, arguments: &[&str], more: Vec<String>) -> (i32, String) {
        let mut command = self.command([arguments.iter().map(|a| (*a).to_owned()).collect(), more].concat());
        let Output { status, stdout, stderr } =
            tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
        let text = String::from_utf8_lossy(&stdout).into_owned() + &String::from_utf8_lossy(&stderr);
        (status.code().unwrap_or(-1), text.trim_start_matches("\nrunning 1 test\n").to_owned())
    }

    /// Starts the daemon, and enrols it if this is the first time.
    pub async fn spawn(&self, arguments: &[&str]) -> Verifier {
        let mut all = vec!["run".to_owned(), "--dir".into(), self.directory().display().to_string()];
        if !self.everywhere {
            all.extend(["--interface", "eth0"].map(Into::into));
        }
        all.extend(self.daemon());
        if !self.directory().exists() {
            all.extend(self.enrolment().await);
        }
        all.extend(arguments.iter().map(|argument| (*argument).to_owned()));
        let log = self.room.path().join(format!("log{}", rand()));
        let output = File::create(&log).unwrap();
        let child = self.command(all).stdout(Stdio::null()).stderr(output).spawn().unwrap();
        Verifier { child, log }
    }

    /// Starts the daemon and waits until it answers.
    pub async fn run(&self, arguments: &[&str]) -> Verifier {
        let mut verifier = self.spawn(arguments).await;
        let up = async {
            while control::try_ask::<serde_json::Value>(&self.socket(), &Request::Status).await.ok().flatten().is_none()
            {
                assert!(verifier.child.try_wait().unwrap().is_none(), "it ended: {}", verifier.log());
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(SOON, up).await.expect("an answer in time");
        verifier
    }

    /// Sends a request to the daemon.
    pub async fn ask<T: DeserializeOwned>(&self, request: Request) -> T {
        control::ask(&self.socket(), &request).await.unwrap()
    }

    pub async fn status(&self) -> verifier::view::Status {
        self.ask(Request::Status).await
    }

    pub async fn flows(&self) -> Vec<verifier::view::Flow> {
        self.ask(Request::Flows).await
    }

    /// Opens a connection from the client's namespace.
    pub fn connect(&self, to: &str) -> std::io::Result<TcpStream> {
        let to: SocketAddr = to.parse().unwrap();
        self.do_outside(|| TcpStream::connect_timeout(&to, DROPPED))
    }

    /// Runs `act` in the client's namespace.
    pub fn do_outside<T: Send>(&self, act: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let act = || {
                self.client.enter();
                act()
            };
            scope.spawn(act).join().unwrap()
        })
    }

    /// Opens a UDP socket in the client's namespace.
    pub fn socket_outside(&self) -> UdpSocket {
        self.socket_at("10.77.0.2:0")
    }

    /// Opens a UDP socket in the client's namespace, at one of its addresses.
    pub fn socket_at(&self, address: &str) -> UdpSocket {
        self.client.socket(address)
    }

    /// Runs a program in the verifier's namespace.
    pub fn inside(&self, words: &[&str]) {
        ip(&[&["netns", "exec", &self.host.0], words].concat());
    }

    /// Runs a program in the client's namespace and returns its output.
    pub fn outside(&self, words: &[&str]) -> String {
        let said = Command::new("ip").args(["netns", "exec", &self.client.0]).args(words).output().unwrap();
        assert!(said.status.success(), "{words:?}: {}", String::from_utf8_lossy(&said.stderr));
        String::from_utf8(said.stdout).unwrap()
    }

    /// Reports whether a new connection is established.
    pub fn connects(&self, to: &str) -> bool {
        match self.connect(to) {
            Ok(_) => true,
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::TimedOut, "{error}");
                false
            }
        }
    }

    /// Loads the kernel program with this instance's tables, without attaching it, so that a test can run it directly.
    pub fn kernel(&self, sizes: datapath::verifier::Sizes) -> datapath::verifier::Verifier {
        let pins = datapath::Pins::existing("verifier", &self.instance).expect("something pinned");
        datapath::verifier::Verifier::load(Hook::Xdp, wire::map::VerifierConfig::default(), sizes, Some(pins)).unwrap()
    }

    /// Returns the names of the pinned links; `None` if nothing at all is pinned.
    pub fn links(&self) -> Option<Vec<String>> {
        Some(datapath::Pins::existing("verifier", &self.instance)?.links())
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if let Some(pins) = datapath::Pins::existing("verifier", &self.instance) {
            let _ = pins.remove();
        }
    }
}

fn rand() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The daemon's process, killed on drop. Its log is shown if the test fails.
pub struct Verifier {
    pub child: Child,
    log: PathBuf,
}

impl Verifier {
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits until the daemon has logged `text`. The kernel's tables may show a change before the log does.
    pub async fn says(&self, text: &str) {
        until(&format!("`{text}` in the log"), || self.log().contains(text).then_some(())).await;
    }

    /// Waits until the daemon is connected to the authority.
    pub async fn connected(&self) {
        self.says("connected to the authority").await;
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    /// Waits until the process ends.
    pub async fn end(&mut self) -> ExitStatus {
        until("the daemon's end", || self.child.try_wait().unwrap()).await
    }
}

impl Drop for Verifier {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- the verifier's log\n{}", self.log());
        }
    }
}

/// Polls `look` until it returns a value, and returns that value; panics after [`SOON`].
pub async fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + SOON;
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(Instant::now() < deadline, "waited for {what} in vain");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Listens at `at` and echoes all data, on threads that end with their connections.
pub fn echo(at: &str) {
    let listener = TcpListener::bind(at).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let (mut from, mut to) = (stream.try_clone().unwrap(), stream);
                let _ = std::io::copy(&mut from, &mut to);
            });
        }
    });
}

/// Reports whether data written to the stream comes back.
pub fn echoes(mut stream: &TcpStream) -> bool {
    use std::io::{Read, Write};
    let mut back = [0; 4];
    stream.set_read_timeout(Some(DROPPED)).unwrap();
    stream.write_all(b"ping").is_ok() && stream.read_exact(&mut back).is_ok() && back == *b"ping"
}

/// Requests a grant for the protected port, and returns it.
pub async fn grant(person: &Authority) -> Grant {
    let to: SocketAddr = SSH.parse().unwrap();
    person
        .grant(&GrantRequest { address: to.ip(), protocol: 6, port: to.port(), consented: false, in_band: false })
        .await
        .unwrap()
}

/// Builds a SYN from `from` to the protected port with a token of this grant.
pub fn syn(grant: &Grant, from: &str, nonce: u32) -> Vec<u8> {
    let (from, to): (SocketAddr, SocketAddr) = (from.parse().unwrap(), SSH.parse().unwrap());
    let header = wire::GrantHeader::decode(&hex::decode(&grant.header).unwrap().try_into().unwrap()).unwrap();
    let key = wire::GrantKey::new(hex::decode(&grant.key).unwrap().try_into().unwrap());
    let destination = wire::Destination { address: to.ip(), protocol: 6, port: to.port() };
    let token = wire::Token::new(header, &key, verifier::now() as u32, nonce, &destination);
    let mut frame = vec![0; 54];
    frame[12..14].copy_from_slice(&[8, 0]);
    frame[14] = 0x45;
    frame[16..18].copy_from_slice(&80u16.to_be_bytes());
    frame[22..24].copy_from_slice(&[64, 6]);
    frame[26..30].copy_from_slice(&wire::map::address_bytes(from.ip())[..4]);
    frame[30..34].copy_from_slice(&wire::map::address_bytes(to.ip())[..4]);
    frame[34..36].copy_from_slice(&from.port().to_be_bytes());
    frame[36..38].copy_from_slice(&to.port().to_be_bytes());
    frame[46..48].copy_from_slice(&[0x50, 2]);
    frame.extend_from_slice(&wire::tail::block(&token.encode()));
    frame
}

/// Fills in the lengths and checksums of an IPv4 TCP frame.
fn complete(frame: &mut [u8]) {
    let length = frame.len() - 14;
    frame[16..18].copy_from_slice(&(length as u16).to_be_bytes());
    let sum = |bytes: &[u8]| -> u32 { bytes.chunks(2).map(|two| u32::from(two[0]) << 8 | u32::from(two[1])).sum() };
    let folded = |sum: u32| (!((sum % 0xffff) as u16)).to_be_bytes();
    let header = folded(sum(&frame[14..34]));
    frame[24..26].copy_from_slice(&header);
    let transport = folded(sum(&frame[26..]) + 6 + length as u32 - 20);
    frame[50..52].copy_from_slice(&transport);
}

/// Returns how programs are attached to tc on this kernel.
pub fn tc_mode() -> &'static str {
    datapath::tc::supported_attachment().name()
}

impl Stage {
    /// Sends a SYN unchanged from the client's namespace to [`SSH`]. Reports whether the server's stack answers it.
    pub fn is_answered(&self, syn: &[u8]) -> bool {
        let script = "import socket,sys\n\
            mac=lambda ns:bytes.fromhex(ns.replace(':',''))\n\
            frame=mac(sys.argv[1])+mac(sys.argv[2])+bytes.fromhex(sys.argv[3])[12:]\n\
            s=socket.socket(socket.AF_PACKET,socket.SOCK_RAW,socket.htons(0x800))\n\
            s.bind(('eth0',0x800))\ns.settimeout(0.8)\ns.send(frame)\n\
            while True:\n  got=s.recv(2000)\n\
            \x20 if got[23]==6 and got[36:38]==frame[34:36] and got[47]&0x12==0x12:break";
        let mac = |namespace: &Namespace| {
            let shown = Command::new("ip").args(["-n", &namespace.0, "-br", "link", "show", "eth0"]).output().unwrap();
            String::from_utf8_lossy(&shown.stdout).split_whitespace().nth(2).unwrap().to_owned()
        };
        let mut frame = syn.to_vec();
        complete(&mut frame);
        let (to, from) = (mac(&self.host), mac(&self.client));
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.client.0, "python3", "-c", script, &to, &from, &hex::encode(frame)]);
        command.stderr(Stdio::null()).status().unwrap().success()
    }

    /// Reports whether XDP is attached to the server's interface.
    pub fn has_xdp(&self) -> bool {
        datapath::hook::mode(&datapath::interface::Interface::named("eth0").unwrap()).is_ok()
    }

    /// Sets the end of all grants to a past time, both at the authority and in the kernel's tables.
    pub fn end_grants(&self, kernel: &datapath::verifier::Verifier) {
        let past = verifier::now() as u32 - 3600;
        let database = rusqlite::Connection::open(self.authority.database()).unwrap();
        database.busy_timeout(SOON).unwrap();
        database.execute("UPDATE grants SET expires = ?1", [past]).unwrap();
        for (handle, used) in kernel.grants.entries() {
            kernel.grants.set(&handle, &wire::map::GrantUse { expires: past, ..used }).unwrap();
        }
    }

    /// Adds an interface whose driver has no XDP.
    pub fn add_bridge(&self, name: &str) {
        ip(&["-n", &self.host.0, "link", "add", name, "type", "bridge"]);
    }

    /// Makes the server's interface a port of a new bridge, which takes over its address.
    pub fn enter_bridge(&self, name: &str) {
        let host = &self.host.0;
        ip(&["-n", host, "addr", "flush", "dev", "eth0"]);
        ip(&["-n", host, "link", "set", "eth0", "master", name]);
        ip(&["-n", host, "addr", "add", "10.77.0.1/24", "dev", name]);
        ip(&["-n", host, "link", "set", name, "up"]);
    }

    /// Lets every user connect to the control socket.
    pub fn open_socket(&self) {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(self.room.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Sends a request to the daemon as this user, and returns the daemon's answer.
    pub fn asks(&self, user: u32, request: &str) -> String {
        use std::os::unix::process::CommandExt;
        let script = "import socket,sys\ns=socket.socket(socket.AF_UNIX)\ns.connect(sys.argv[1])\n\
                      s.sendall(sys.argv[2].encode()+b'\\n')\nprint(s.makefile().readline(),end='')";
        let socket = self.socket().display().to_string();
        let done = Command::new("python3").args(["-c", script, &socket, request]).uid(user).gid(user).output().unwrap();
        String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr)
    }

    /// Replaces the interface by a new one of the same name.
    pub fn replace_interface(&self) {
        let (host, client) = (&self.host.0, &self.client.0);
        ip(&["-n", host, "link", "del", "eth0"]);
        ip(&["-n", host, "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", client]);
        for (namespace, address) in [(host, "10.77.0.1/24"), (client, "10.77.0.2/24")] {
            ip(&["-n", namespace, "addr", "add", address, "dev", "eth0"]);
            ip(&["-n", namespace, "link", "set", "eth0", "up"]);
        }
    }
}
