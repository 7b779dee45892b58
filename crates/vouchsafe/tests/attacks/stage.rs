//! An authority as a process of its own, and clients at any address of 127.0.0.0/8 that may send arbitrary bytes.

use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, connect, socket};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

pub const PASSWORD: &str = "correct horse";
/// Longest wait for an answer.
pub const PATIENCE: Duration = Duration::from_secs(20);

const POLICY: &str = r#"
[[receivers]]
name = "git"
address = "203.0.113.10"
services = "tcp/22"
verifier = "edge"

[[rules]]
action = "allow"
who = "person:alice"
to = "git"
"#;

/// Largest growth of the authority's memory under attack, in bytes: two concurrent password checks take 38 MiB of it.
const MEMORY: u64 = 160 << 20;

pub type Tls = StreamOwned<ClientConnection, TcpStream>;

pub struct Stage {
    process: Child,
    port: u16,
    /// Peak memory before the attack.
    born: u64,
    tls: Arc<ClientConfig>,
    dir: PathBuf,
    room: TempDir,
}

/// An answer: its status, and its body, which is a string if it is not JSON.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub body: Value,
}

impl Stage {
    /// Starts an authority with the accounts alice and bob.
    pub fn start() -> Self {
        Self::start_with("")
    }

    /// Starts an authority with the accounts alice and bob and additional lines of configuration.
    pub fn start_with(settings: &str) -> Self {
        let room = tempfile::tempdir().unwrap();
        let dir = room.path().join("authority");
        run(&dir, &["init", "--name", "localhost", "--listen", "127.0.0.1:0"], "");
        for person in ["alice", "bob"] {
            run(&dir, &["user", "add", person], PASSWORD);
        }
        std::fs::write(dir.join("policy.toml"), POLICY).unwrap();
        let config = dir.join("authority.toml");
        let text = format!("{settings}{}", std::fs::read_to_string(&config).unwrap());
        std::fs::write(config, text).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_vouchsafe"));
        command.args(["authority", "run", "--dir"]).arg(&dir).env("VOUCHSAFE_LOG", "error").stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let address = line.split([' ', ';']).nth(2).unwrap_or_else(|| panic!("{line}"));
        let port = address.rsplit(':').next().unwrap().parse().unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(dir.join("ca.pem")).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let tls = Arc::new(tls.with_root_certificates(roots).with_no_client_auth());
        let born = peak(&process);
        Self { process, port, born, tls, dir, room }
    }

    /// Runs a command of the authority and returns its output.
    pub fn authority(&self, words: &[&str]) -> String {
        run(&self.dir, words, "")
    }

    /// Runs a command of the authority; returns whether it succeeded, and its output and errors.
    pub fn tried(&self, words: &[&str]) -> (bool, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vouchsafe"));
        let done = command.arg("authority").args(words).arg("--dir").arg(&self.dir).output().unwrap();
        let said = [done.stdout, done.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
        (done.status.success(), said)
    }

    /// Returns the URL for a path.
    pub fn url(&self, path: &str) -> String {
        format!("https://localhost:{}{path}", self.port)
    }

    /// Returns the path of the CA certificate.
    pub fn ca(&self) -> PathBuf {
        self.dir.join("ca.pem")
    }

    /// Returns a directory that is deleted with the stage.
    pub fn room(&self) -> &Path {
        self.room.path()
    }

    /// Opens a TCP connection from an address.
    pub fn tcp(&self, from: Ipv4Addr) -> TcpStream {
        let socket = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
        bind(socket.as_raw_fd(), &SockaddrIn::from(SocketAddrV4::new(from, 0))).unwrap();
        let to = SockaddrIn::from(SocketAddrV4::new(Ipv4Addr::LOCALHOST, self.port));
        connect(socket.as_raw_fd(), &to).unwrap();
        let stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Opens a TLS connection from an address.
    pub fn tls(&self, from: Ipv4Addr) -> Tls {
        self.tls_for(from, &[])
    }

    /// Opens a TLS connection from an address for a protocol, such as `h2`.
    pub fn tls_for(&self, from: Ipv4Addr, protocols: &[&[u8]]) -> Tls {
        let mut config = (*self.tls).clone();
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        let name = ServerName::try_from("localhost").unwrap();
        StreamOwned::new(ClientConnection::new(Arc::new(config), name).unwrap(), self.tcp(from))
    }

    /// Sends bytes and returns the answer; `None` if the connection was closed without one.
    pub fn say(&self, from: Ipv4Addr, bytes: &[u8]) -> Option<Answer> {
        let mut stream = self.tls(from);
        // A server that has read enough may close before it has read everything.
        let _ = stream.write_all(bytes);
        answer(&mut stream)
    }

    /// Makes a call and returns the answer.
    pub fn call(&self, from: Ipv4Addr, call: &str, token: Option<&str>, body: Option<&Value>) -> Answer {
        self.try_call(from, call, token, body).expect("an answer")
    }

    /// Makes a call; returns `None` if the connection was cut off.
    pub fn try_call(&self, from: Ipv4Addr, call: &str, token: Option<&str>, body: Option<&Value>) -> Option<Answer> {
        let token = token.map(|token| format!("authorization: Bearer {token}\r\n")).unwrap_or_default();
        let body = body.map(Value::to_string).unwrap_or_default();
        let length = body.len();
        let text = format!(
            "{call} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{token}content-length: {length}\r\n\r\n{body}"
        );
        self.say(from, text.as_bytes())
    }

    /// Tries to log in and returns the answer.
    pub fn login(&self, from: Ipv4Addr, person: &str, password: &str) -> Answer {
        self.try_login(from, person, password).expect("an answer")
    }

    /// Tries to log in; returns `None` if the connection was cut off.
    pub fn try_login(&self, from: Ipv4Addr, person: &str, password: &str) -> Option<Answer> {
        let login = json!({ "person": person, "password": password, "device": "laptop" });
        self.try_call(from, "POST /v1/login", None, Some(&login))
    }

    /// Logs in, which must succeed, and returns the token.
    pub fn token(&self, from: Ipv4Addr, person: &str) -> String {
        let answer = self.login(from, person, PASSWORD);
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.body["token"].as_str().unwrap().to_owned()
    }

    /// Enrols a verifier; returns its token and the code that it used.
    pub fn verifier(&self, id: &str) -> (String, String) {
        let code = self.authority(&["verifier", "add", id]).trim().to_owned();
        let body = json!({ "code": code });
        let answer = self.call(Ipv4Addr::LOCALHOST, "POST /v1/verifiers/enrol", None, Some(&body));
        (answer.body["token"].as_str().unwrap().to_owned(), code)
    }

    /// Fails unless the process is alive, answers a client at another address, and its memory stayed in bounds.
    pub fn is_well(&mut self) {
        self.is_well_within(MEMORY);
    }

    /// Like `is_well`, with another bound for the growth of the memory, in bytes.
    pub fn is_well_within(&mut self, memory: u64) {
        assert_eq!(self.process.try_wait().unwrap(), None, "the authority ended");
        let answer = self.call(Ipv4Addr::new(127, 99, 99, 99), "GET /v1/health", None, None);
        assert_eq!((answer.status, answer.body["status"].as_str()), (200, Some("ok")));
        let grown = peak(&self.process).saturating_sub(self.born);
        assert!(grown < memory, "took {} MiB", grown >> 20);
    }
}

/// Returns the peak memory of a process, in bytes.
fn peak(process: &Child) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn run(dir: &Path, words: &[&str], input: &str) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vouchsafe"));
    command.arg("authority").args(words).arg("--dir").arg(dir);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = command.spawn().unwrap();
    process.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let done = process.wait_with_output().unwrap();
    assert!(done.status.success(), "{words:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap()
}

/// Reads the first answer on a connection; `None` if the connection is closed first.
pub fn answer(stream: &mut impl Read) -> Option<Answer> {
    let mut text = Vec::new();
    let mut part = [0; 4096];
    loop {
        if let Some(answer) = parse(&text) {
            return Some(answer);
        }
        match stream.read(&mut part) {
            Ok(0) => return None,
            Ok(read) => text.extend_from_slice(&part[..read]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                panic!("neither answered nor closed in {PATIENCE:?}: {:?}", String::from_utf8_lossy(&text))
            }
            Err(_) => return None,
        }
    }
}

fn parse(text: &[u8]) -> Option<Answer> {
    let end = text.windows(4).position(|four| four == b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(&text[..end]).to_ascii_lowercase();
    let status = head.split(' ').nth(1)?.parse().ok()?;
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let length = length.map_or(0, |length| length.parse().unwrap());
    let body = text.get(end + 4..end + 4 + length)?;
    let page = || Value::String(String::from_utf8_lossy(body).into_owned());
    Some(Answer { status, body: serde_json::from_slice(body).unwrap_or_else(|_| page()) })
}

/// Returns how long the other side takes to close the connection.
pub fn closes(stream: &mut impl Read, began: Instant) -> Duration {
    let mut part = [0; 4096];
    loop {
        match stream.read(&mut part) {
            Ok(read) if read > 0 => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                panic!("still open after {:?}", began.elapsed())
            }
            _ => return began.elapsed(),
        }
    }
}
