//! Real services: OpenSSH's sshd, and an echo over TCP and UDP that counts its clients.

use std::collections::BTreeSet;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::acceptor::Acceptor;
use crate::net::Namespace;
use crate::poll;
use crate::process::{self, Process};

/// Interval at which a thread checks whether to end.
const TICK: Duration = Duration::from_millis(50);
/// Time without an answer after which a flow counts as cut. Even a busy machine answers sooner.
const SILENCE: Duration = Duration::from_secs(1);
/// Pause between the messages of [`last_answer`].
const PAUSE: Duration = Duration::from_millis(2);

/// A running sshd on port 22, and a key that it accepts.
pub struct Sshd {
    process: Process,
    dir: PathBuf,
}

impl Sshd {
    /// Starts an sshd in `namespace`, to which root can log in with [`Self::key`].
    pub fn start(namespace: &Namespace) -> Result<Self> {
        let dir = namespace.dir().join("sshd");
        fs::create_dir_all(&dir)?;
        for name in ["host", "client"] {
            let key = dir.join(name);
            process::output(Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(key))?;
        }
        let shown = dir.display();
        let config = format!(
            "Port 22\nHostKey {shown}/host\nAuthorizedKeysFile {shown}/client.pub\nPidFile none\nUsePAM yes\n\
             StrictModes no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin yes\n\
             PrintMotd no\nPrintLastLog no\nUseDNS no\n"
        );
        let file = dir.join("config");
        fs::write(&file, config)?;
        // Create the directory for sshd's unprivileged process, which packages create only at boot.
        fs::create_dir_all("/run/sshd").context("cannot create /run/sshd")?;
        let mut command = namespace.command("/usr/sbin/sshd");
        command.args(["-D", "-e", "-f"]).arg(&file);
        let mut process = namespace.start(command)?;
        process.wait_for("Server listening on :: port 22", Duration::from_secs(10))?;
        Ok(Self { process, dir })
    }

    /// Returns the path of the private key with which root can log in.
    pub fn key(&self) -> PathBuf {
        self.dir.join("client")
    }

    /// Prepares a command that runs `ssh` in `client`, to run `words` at `host`.
    pub fn client(&self, client: &Namespace, host: IpAddr, words: &[&str]) -> Command {
        let mut command = client.command("ssh");
        command.args(["-F", "none", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no", "-o", "LogLevel=ERROR"]);
        command.args(["-o", "UserKnownHostsFile=/dev/null", "-o", "ConnectTimeout=5", "-i"]);
        command.arg(self.dir.join("client")).arg(format!("root@{host}")).args(words);
        command
    }

    /// Returns the log of sshd.
    pub fn log(&self) -> String {
        self.process.log()
    }
}

/// Counters of one [`Echo`].
#[derive(Default)]
struct Seen {
    tcp: AtomicU64,
    udp: AtomicU64,
    clients: Mutex<BTreeSet<IpAddr>>,
}

/// An echo service. Dropping it ends the service.
pub struct Echo {
    _tcp: Acceptor,
    seen: Arc<Seen>,
    end: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Echo {
    /// Starts an echo service on TCP and UDP `port` of every address of `namespace`.
    pub fn start(namespace: &Namespace, port: u16) -> Result<Self> {
        let (seen, end) = (Arc::new(Seen::default()), Arc::new(AtomicBool::new(false)));
        let tcp = namespace.enter(|| listener(port)).context("cannot listen for the echo over TCP")?;
        let counters = seen.clone();
        let tcp = Acceptor::start(tcp, move |stream, peer| {
            counters.tcp.fetch_add(1, Relaxed);
            came(&counters, peer);
            drop(converse(stream));
        });
        let mut echo = Self { _tcp: tcp, seen, end, threads: Vec::new() };
        // Use one socket per address, so that an answer leaves from the address that the client used.
        let addresses = namespace.run(["ip", "-o", "address", "show", "scope", "global"])?;
        for address in addresses.lines().filter_map(|line| line.split_whitespace().nth(3)) {
            let address: IpAddr = address.split('/').next().unwrap_or(address).parse()?;
            let socket =
                namespace.enter(|| UdpSocket::bind((address, port))).context("cannot bind the echo over UDP")?;
            socket.set_read_timeout(Some(TICK))?;
            echo.spawn(move |seen, end| answer(&socket, seen, end));
        }
        Ok(echo)
    }

    /// Returns the number of accepted TCP connections.
    pub fn connections(&self) -> u64 {
        self.seen.tcp.load(Relaxed)
    }

    /// Returns the number of received datagrams.
    pub fn datagrams(&self) -> u64 {
        self.seen.udp.load(Relaxed)
    }

    /// Returns the addresses of all clients, over TCP and UDP.
    pub fn clients(&self) -> BTreeSet<IpAddr> {
        self.seen.clients.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn spawn(&mut self, work: impl FnOnce(&Arc<Seen>, &Arc<AtomicBool>) + Send + 'static) {
        let (seen, end) = (self.seen.clone(), self.end.clone());
        self.threads.push(thread::spawn(move || work(&seen, &end)));
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.end.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Opens a listener with room for a burst of connections, because the standard library's backlog is only 128.
fn listener(port: u16) -> Result<TcpListener> {
    use nix::sys::socket::{Backlog, listen};
    let mut bound = TcpListener::bind(("::", port));
    // The thread of an earlier listener may not have closed it yet.
    let _ = poll(Duration::from_secs(60), || {
        let is_taken = bound.as_ref().is_err_and(|error| error.kind() == ErrorKind::AddrInUse);
        if is_taken {
            bound = TcpListener::bind(("::", port));
        }
        !is_taken
    });
    let listener = bound?;
    listen(&listener, Backlog::new(4096)?)?;
    Ok(listener)
}

fn converse(mut stream: &TcpStream) -> std::io::Result<()> {
    stream.set_write_timeout(Some(Duration::from_secs(5)))?;
    stream.set_nodelay(true)?;
    let mut buffer = vec![0; 64 * 1024];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(size) => stream.write_all(&buffer[..size])?,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn answer(socket: &UdpSocket, seen: &Arc<Seen>, end: &AtomicBool) {
    let mut buffer = vec![0; 64 * 1024];
    while !end.load(Relaxed) {
        if let Ok((size, peer)) = socket.recv_from(&mut buffer) {
            seen.udp.fetch_add(1, Relaxed);
            came(seen, peer);
            let _ = socket.send_to(&buffer[..size], peer);
        }
    }
}

fn came(seen: &Seen, peer: SocketAddr) {
    seen.clients.lock().unwrap_or_else(PoisonError::into_inner).insert(peer.ip().to_canonical());
}

/// Connects to an [`Echo`], sends a message and expects its echo. `within` limits each of these steps.
pub fn dial(to: SocketAddr, within: Duration) -> Result<TcpStream> {
    let mut stream = TcpStream::connect_timeout(&to, within).with_context(|| format!("to {to}"))?;
    stream.set_read_timeout(Some(within))?;
    stream.set_nodelay(true)?;
    exchange(&mut stream)?;
    Ok(stream)
}

/// Runs [`dial`] in the namespace `client`.
pub fn call(client: &Namespace, to: SocketAddr, within: Duration) -> Result<TcpStream> {
    client.enter(|| dial(to, within))
}

/// Sends a message on an open connection to an [`Echo`], and checks that it comes back.
pub fn exchange(stream: &mut TcpStream) -> Result<()> {
    const WORDS: &[u8] = b"are you there?";
    let mut heard = [0; WORDS.len()];
    stream.write_all(WORDS)?;
    stream.read_exact(&mut heard)?;
    ensure!(heard == WORDS, "the answer is not what was sent");
    Ok(())
}

/// Exchanges messages on a flow until the flow is cut, and returns the time of the last answer.
///
/// # Errors
/// Fails if answers still come after `within`.
pub fn last_answer(flow: &mut TcpStream, within: Duration) -> Result<Instant> {
    flow.set_read_timeout(Some(TICK))?;
    let began = Instant::now();
    let mut last = began;
    while last.elapsed() < SILENCE {
        if exchange(flow).is_ok() {
            last = Instant::now();
        }
        ensure!(last.duration_since(began) < within, "the flow lives on");
        thread::sleep(PAUSE);
    }
    Ok(last)
}

/// Sends one datagram from a new socket on `port` (0: any) and waits for its echo.
pub fn send(port: u16, to: SocketAddr, within: Duration) -> Result<()> {
    let any: IpAddr = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, port))?;
    socket.set_read_timeout(Some(within))?;
    socket.send_to(b"ping", to)?;
    let mut heard = [0; 64];
    let (size, from) = socket.recv_from(&mut heard).with_context(|| format!("no answer from {to}"))?;
    ensure!(&heard[..size] == b"ping" && from == to, "the answer is not what was sent");
    Ok(())
}

/// Runs [`send`] in the namespace `client`, from any port.
pub fn ask(client: &Namespace, to: SocketAddr, within: Duration) -> Result<()> {
    client.enter(|| send(0, to, within))
}
