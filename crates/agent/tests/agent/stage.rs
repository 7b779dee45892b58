//! Two hosts on a link: the client with the agent; the server with the authority, protected services, and a capture of
//! every frame that arrives.

use anyhow::{Context, Result, ensure};
use api::EpochKeys;
use lab::net::veth;
use lab::process::output;
use lab::seen::Seen;
use lab::{Namespace, Port, Process, poll};
use std::fs::{File, OpenOptions};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::PathBuf;
use std::process::Output;
use std::time::{Duration, Instant};
use wire::tail::{BLOCK_LEN, MAGIC};
use wire::{Destination, Epoch, Token, VerifierKey};

pub const SOON: Duration = Duration::from_secs(10);
pub const SYN: u8 = 2;
pub const ACK: u8 = 16;

const PASSWORD: &str = "correct horse battery";
const AUTHORITY: &str = "https://10.0.0.2:8443";
const EPOCH_LENGTH: u32 = 3600;

/// The services that alice may reach, one grant each.
pub const SERVICES: &[&str] = &["10.0.0.2:22", "[fd00::2]:22", "10.0.0.2:80"];

const POLICY: &str = r#"
[[receivers]]
name = "server"
address = ["10.0.0.2", "fd00::2", "10.1.0.2"]
services = ["tcp/22", "tcp/80", "udp/5000"]
verifier = "edge"

[[rules]]
name = "alice may"
action = "allow"
who = "person:alice"
to = "server"
"#;

/// The whole set-up, removed on drop.
pub struct Stage {
    pub client: Namespace,
    pub server: Namespace,
    pub frames: Port,
    pub agent: Option<Process>,
    pub authority: Option<Process>,
    listeners: Vec<TcpListener>,
    keys: EpochKeys,
    pub instance: String,
    flags: Vec<String>,
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.agent = None;
        let _ = self.run(&["agent", "detach", "--instance", &self.instance]);
    }
}

impl Stage {
    /// Starts everything, with root logged in as alice and listeners at all services.
    pub fn start() -> Result<Self> {
        Self::start_with(&[])
    }

    /// Starts everything, with root logged in as alice and listeners at all services, and more flags for the agent.
    pub fn start_with(flags: &[&str]) -> Result<Self> {
        let (client, server) = (Namespace::new("client")?, Namespace::new("server")?);
        veth(&client, "eth0", "10.0.0.1/24 fd00::1/64", &server, "eth0", "10.0.0.2/24 fd00::2/64")?;
        let frames = Port::open(&server, "eth0")?;
        let instance = client.name().to_owned();
        let (agent, authority, listeners) = (None, None, Vec::new());
        let keys = EpochKeys { keys: Vec::new(), proofs: None, now: 0 };
        let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let mut stage = Self { flags, client, server, frames, agent, authority, listeners, keys, instance };
        stage.found_authority()?;
        stage.start_authority()?;
        stage.enrol_verifier()?;
        stage.start_agent()?;
        stage.log_in()?;
        Ok(stage)
    }

    fn directory(&self) -> PathBuf {
        self.server.dir().join("authority")
    }

    /// Returns the path of the CA certificate.
    fn ca(&self) -> PathBuf {
        self.directory().join("ca.pem")
    }

    pub fn socket(&self) -> PathBuf {
        self.client.dir().join("agent.sock")
    }

    fn found_authority(&self) -> Result<()> {
        let directory = self.directory();
        let directory = directory.to_str().context("a path")?;
        let password = self.server.dir().join("password");
        std::fs::write(&password, PASSWORD)?;
        let password = password.to_str().context("a path")?;
        self.must(&["authority", "init", "--dir", directory, "--name", "10.0.0.2"])?;
        std::fs::write(self.directory().join("policy.toml"), POLICY)?;
        self.must(&["authority", "user", "add", "--dir", directory, "alice", "--password-file", password]).map(drop)
    }

    /// Starts the authority; returns once it answers.
    pub fn start_authority(&mut self) -> Result<()> {
        let mut command = self.server.command(lab::vouchsafe());
        command.args(["authority", "run", "--listen", "10.0.0.2:8443", "--dir"]).arg(self.directory());
        let mut process = self.server.start(command)?;
        process.wait_for("authority started", SOON)?;
        self.authority = Some(process);
        Ok(())
    }

    fn enrol_verifier(&mut self) -> Result<()> {
        let directory = self.directory();
        let words = ["authority", "verifier", "add", "--dir", directory.to_str().context("a path")?, "edge"];
        let said = self.must(&words)?;
        let code = said.split_whitespace().max_by_key(|word| word.len()).context("a code")?.to_owned();
        let ca = std::fs::read(self.ca())?;
        self.keys = self.client.enter(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let authority = client::Authority::new(AUTHORITY, Some(&ca))?;
                let enrolled = authority.enrol(&code).await?;
                anyhow::Ok(authority.with_token(&enrolled.token).keys(2).await?)
            })
        })?;
        Ok(())
    }

    /// Starts the agent; returns once the agent tells the service manager that it is ready. Commands must work from then
    /// on.
    pub fn start_agent(&mut self) -> Result<()> {
        let notified = self.client.dir().join("notify");
        let _ = std::fs::remove_file(&notified);
        let manager = UnixDatagram::bind(&notified)?;
        manager.set_read_timeout(Some(SOON))?;
        let mut command = self.client.command(lab::vouchsafe());
        command.env("VOUCHSAFE_LOG", "debug").env("NOTIFY_SOCKET", &notified);
        command
            .args(["agent", "run"])
            .args(&self.flags)
            .args(["--instance", &self.instance, "--socket"])
            .arg(self.socket());
        command.arg("--dir").arg(self.client.dir().join("agent"));
        self.agent = Some(self.client.start(command)?);
        let mut room = [0; 64];
        let length = manager.recv(&mut room).context("READY=1")?;
        ensure!(room[..length].starts_with(b"READY=1"), "{}", String::from_utf8_lossy(&room[..length]));
        UnixStream::connect(self.socket()).context("a ready agent answers")?;
        Ok(())
    }

    fn log_in(&mut self) -> Result<()> {
        let (socket, ca) = (self.socket(), self.ca());
        let (socket, ca) = (socket.to_str().context("a path")?, ca.to_str().context("a path")?);
        let script = format!(
            "printf '%s' '{PASSWORD}' | {} login --socket {socket} --authority {AUTHORITY} --ca {ca} --user alice \
             --device laptop --password-stdin",
            lab::vouchsafe().display()
        );
        self.client.run(["sh", "-c", &script])?;
        // The destinations arrive a moment later.
        ensure!(
            poll(SOON, || self.ask(&["status", "--json"]).is_ok_and(|text| text.contains("\"prefix\""))),
            "no destinations"
        );
        if self.listeners.is_empty() {
            for at in SERVICES {
                self.listen(at)?;
            }
        }
        Ok(())
    }

    /// Has a user try to log in at an address where no authority answers. The user's process gets CAP_DAC_OVERRIDE,
    /// because the binary may be in a directory that the user can't read.
    pub fn try_login_as(&self, uid: u32, authority: &str) -> Result<()> {
        let (socket, ca, caps) = (self.socket(), self.ca(), "+dac_override");
        let script = format!(
            "printf x | timeout 2 setpriv --reuid {uid} --clear-groups --inh-caps {caps} --ambient-caps {caps} {} login \
             --socket {} --authority {authority} --ca {} --user x --device x --password-stdin; true",
            lab::vouchsafe().display(),
            socket.display(),
            ca.display()
        );
        self.client.run(["sh", "-c", &script]).map(drop)
    }

    /// Creates a device without link header in the client's namespace; the file returns the packets that are sent.
    pub fn tun(&self, name: &str, address: &str) -> Result<File> {
        self.client.ip(&format!("tuntap add dev {name} mode tun"))?;
        self.client.ip(&format!("link set {name} up"))?;
        self.client.address(name, address)?;
        self.client.enter(|| {
            let file = OpenOptions::new().read(true).write(true).open("/dev/net/tun")?;
            // SAFETY: an all-zero ifreq is a valid value of this plain C structure.
            let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
            for (room, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
                *room = byte as _;
            }
            request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as i16;
            // SAFETY: the request is what TUNSETIFF takes, and lives through the call.
            let result =
                unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF as _, std::ptr::from_mut(&mut request)) };
            ensure!(result == 0, "TUNSETIFF: {}", std::io::Error::last_os_error());
            Ok(file)
        })
    }

    /// Starts a listener in the server's namespace.
    fn listen(&mut self, at: &str) -> Result<()> {
        let at: SocketAddr = at.parse()?;
        self.listeners.push(self.server.enter(|| TcpListener::bind(at))?);
        Ok(())
    }

    /// Runs `vouchsafe` in the client's namespace.
    pub fn run(&self, words: &[&str]) -> Result<Output> {
        let mut command = self.client.command(lab::vouchsafe());
        Ok(command.args(words).env("VOUCHSAFE_AGENT_SOCKET", self.socket()).output()?)
    }

    fn must(&self, words: &[&str]) -> Result<String> {
        let mut command = self.client.command(lab::vouchsafe());
        output(command.args(words).env("VOUCHSAFE_AGENT_SOCKET", self.socket()))
    }

    /// Runs `vouchsafe` in the client's namespace, which must succeed, and returns its output.
    pub fn ask(&self, words: &[&str]) -> Result<String> {
        self.must(words)
    }

    /// Returns one of the agent's counters.
    pub fn counter(&self, name: &str) -> Result<u64> {
        let status: serde_json::Value = serde_json::from_str(&self.ask(&["status", "--json"])?)?;
        status["counters"][name].as_u64().context("no such counter")
    }

    /// Adds a host whose packets the client forwards, such as a container.
    pub fn guest(&self) -> Result<Namespace> {
        let guest = Namespace::new("guest")?;
        veth(&guest, "eth0", "10.3.0.2/24", &self.client, "eth1", "10.3.0.1/24")?;
        guest.route("default", "10.3.0.1")?;
        self.client.forward()?;
        self.server.route("10.3.0.0/24", "10.0.0.1")?;
        Ok(guest)
    }

    /// Connects as root and returns how long that took.
    pub fn connect(&self, to: &str) -> Result<Duration> {
        let to: SocketAddr = to.parse()?;
        let since = Instant::now();
        self.client
            .enter(|| TcpStream::connect_timeout(&to, SOON))
            .with_context(|| format!("no connection to {to}"))?;
        Ok(since.elapsed())
    }

    /// Sends datagrams as root from a new socket.
    pub fn datagrams(&self, to: &str, payloads: &[&[u8]]) -> Result<()> {
        self.client.enter(|| {
            let socket = UdpSocket::bind("0.0.0.0:0")?;
            for payload in payloads {
                socket.send_to(payload, to)?;
            }
            Ok(())
        })
    }

    /// Returns the SYNs of the next connection that is established at the server.
    pub fn syns(&self) -> Result<Vec<Seen>> {
        let mut syns = Vec::new();
        let up = self.frames.receive(SOON, |frame| {
            let seen = Seen::frame(frame)?;
            let flags = seen.tcp.as_ref()?.flags;
            // Ignore the authority's own connections.
            if seen.ports?.1 == 8443 || seen.ports?.0 == 8443 {
                return None;
            }
            if flags & (SYN | ACK) == SYN {
                syns.push(seen);
                return None;
            }
            (flags & SYN == 0 && !syns.is_empty()).then_some(())
        });
        up.context("no connection came up")?;
        Ok(syns)
    }

    /// Returns the next `count` datagrams to port 5000.
    pub fn received(&self, count: usize) -> Result<Vec<Seen>> {
        let mut all = Vec::new();
        let done = self.frames.receive(SOON, |frame| {
            let seen = Seen::frame(frame)?;
            if seen.protocol == 17 && seen.ports?.1 == 5000 {
                all.push(seen);
            }
            (all.len() == count).then_some(())
        });
        done.with_context(|| format!("{} of {count} datagrams", all.len()))?;
        Ok(all)
    }

    /// Returns the token in a packet, checked as a verifier would, and the payload without it.
    pub fn token(&self, seen: &Seen) -> Result<(Token, Vec<u8>)> {
        let at = seen.payload.len().checked_sub(BLOCK_LEN).context("no room for a token")?;
        let (payload, block) = seen.payload.split_at(at);
        ensure!(block.starts_with(&MAGIC), "no token");
        let token = Token::decode(block[4..].try_into()?, seen.destination.is_ipv6());
        let token = token.map_err(|reason| anyhow::anyhow!("{reason:?}"))?;
        let to =
            Destination { address: seen.destination, protocol: seen.protocol, port: seen.ports.context("no ports")?.1 };
        let epoch = Epoch::at(self.keys.now, EPOCH_LENGTH).from_wire(token.header.epoch).context("the epoch")?;
        let key = self.keys.keys.iter().find(|key| key.epoch == epoch.0).context("the epoch's key")?;
        let key = VerifierKey::new(hex::decode(&key.key)?.try_into().ok().context("32 bytes")?);
        let source: IpAddr = seen.source;
        ensure!(token.proves(&token.header.key(&key, &to, source), &to), "a token that proves nothing");
        ensure!(payload.len() < BLOCK_LEN || !payload[payload.len() - BLOCK_LEN..].starts_with(&MAGIC), "two tokens");
        Ok((token, payload.to_vec()))
    }
}
