//! Paths between two namespaces with a router between them: without a tunnel, through a sealed tunnel, through
//! wireguard-go, and through OpenVPN.

use crate::stage::{self, SERVER, Stage, demand};
use anyhow::{Context, Result};
use engine::model::Treatment;
use lab::{Namespace, Process};
use std::any::Any;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

/// Port of the throughput's server, and of the echo.
const IPERF: u16 = 5201;
const ECHO: u16 = 7;
/// A port of the server. In [`Path::native`], packets to this port travel outside of the tunnel.
const NATIVE: u16 = 5202;

/// Figures that one measurement of a path yields.
#[derive(Clone, Copy)]
pub struct Measured {
    /// Throughput in Mbit/s.
    pub rate: f64,
    /// Processor time for 10^9 bytes, in seconds: the sum over all processes of the path and over the kernel's threads
    /// that handle packets.
    pub cpu: f64,
}

/// A path, with all the programs that a measurement needs.
pub struct Path {
    /// Name of the path in the figures.
    pub name: &'static str,
    /// The client's namespace.
    pub client: Namespace,
    _server: Namespace,
    to: &'static str,
    port: u16,
    _alive: Vec<Box<dyn Any>>,
    /// Processes of the path, besides this one.
    processes: Vec<u32>,
    _iperf: Process,
}

impl Path {
    fn with(
        name: &'static str,
        (client, server): (Namespace, Namespace),
        to: &'static str,
        alive: Vec<Box<dyn Any>>,
        processes: Vec<u32>,
    ) -> Result<Self> {
        Self::serve(name, (client, server), (to, IPERF), alive, processes)
    }

    fn serve(
        name: &'static str,
        (client, server): (Namespace, Namespace),
        (to, port): (&'static str, u16),
        alive: Vec<Box<dyn Any>>,
        mut processes: Vec<u32>,
    ) -> Result<Self> {
        let mut iperf = server.spawn(["iperf3", "-s", "--forceflush", "-p", &port.to_string()])?;
        iperf.wait_for("Server listening", Duration::from_secs(5))?;
        processes.push(iperf.pid());
        echo(&server)?;
        Ok(Self { name, client, _server: server, to, port, _alive: alive, processes, _iperf: iperf })
    }

    /// Measures the throughput of `streams` parallel TCP streams during `seconds`; both are decimal numbers for iperf3.
    pub fn throughput(&self, streams: &str, seconds: &str) -> Result<Measured> {
        let before = self.worked()?;
        let port = self.port.to_string();
        let words = ["iperf3", "-c", self.to, "-p", &port, "-t", seconds, "-P", streams, "-J"];
        let text = self.client.run(words).context(self.name)?;
        let cpu = self.worked()? - before;
        let json: serde_json::Value = serde_json::from_str(&text)?;
        let sum = &json["end"]["sum_received"];
        let rate = sum["bits_per_second"].as_f64().context("iperf3 reported no rate")?;
        let bytes = sum["bytes"].as_f64().context("iperf3 reported no bytes")?;
        Ok(Measured { rate: rate / 1e6, cpu: cpu / (bytes / 1e9) })
    }

    /// Returns the processor time, in seconds, of this process, its ended children, the path's other processes, and the
    /// kernel's threads for packets.
    fn worked(&self) -> Result<f64> {
        let mut nanos = of_process(&std::process::id().to_string())?;
        for process in &self.processes {
            nanos += of_process(&process.to_string())?;
        }
        for entry in std::fs::read_dir("/proc")?.flatten() {
            let name = std::fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            if name.starts_with("ksoftirqd") {
                nanos += of_process(&entry.file_name().to_string_lossy())?;
            }
        }
        let usage = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_CHILDREN)?;
        let seconds = |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
        Ok(nanos / 1e9 + seconds(usage.user_time()) + seconds(usage.system_time()))
    }

    /// Sends `count` single bytes to the echo over one connection, each after the echo of the byte before. Returns
    /// their round-trip times in microseconds.
    pub fn round_trips(&self, count: usize) -> Result<Vec<f64>> {
        let to: SocketAddr = format!("{}:{ECHO}", self.to).parse()?;
        let client = &self.client;
        let stream = client.enter(|| TcpStream::connect_timeout(&to, Duration::from_secs(5)));
        let mut stream = stream.context(self.name)?;
        stream.set_nodelay(true)?;
        let mut trip = || -> Result<f64> {
            let begun = Instant::now();
            stream.write_all(b"x")?;
            stream.read_exact(&mut [0])?;
            Ok(begun.elapsed().as_nanos() as f64 / 1e3)
        };
        (0..count).map(|_| trip()).collect()
    }

    /// Builds a path through a sealed tunnel.
    pub fn sealed(name: &'static str, treatment: Treatment) -> Result<Self> {
        Self::sealed_with_queues(name, treatment, tunnel::default_queues())
    }

    /// Builds a path through a sealed tunnel whose ends have this number of queues.
    pub fn sealed_with_queues(name: &'static str, treatment: Treatment, queues: usize) -> Result<Self> {
        let stage = Stage::with_queues(false, demand(treatment), queues);
        for port in [IPERF, ECHO] {
            stage.leg(6, port, demand(treatment));
        }
        let Stage { agent, verifier, client, router, server, .. } = stage;
        Self::with(name, (client, server), SERVER, vec![Box::new(agent), Box::new(verifier), Box::new(router)], vec![])
    }

    /// Builds a path that does not go through a tunnel, although the two hosts have one.
    pub fn native() -> Result<Self> {
        let stage = Stage::new(false, demand(Treatment::Encrypt));
        stage.client.ip(&format!("rule add to {SERVER} ipproto tcp dport {NATIVE} lookup main pref 9"))?;
        let Stage { agent, verifier, client, router, server, .. } = stage;
        let alive: Vec<Box<dyn Any>> = vec![Box::new(agent), Box::new(verifier), Box::new(router)];
        Self::serve("none", (client, server), (SERVER, NATIVE), alive, vec![])
    }

    /// Builds a path without a tunnel.
    pub fn plain() -> Result<Self> {
        let (client, router, server) = stage::network(false);
        Self::with("plain", (client, server), SERVER, vec![Box::new(router)], vec![])
    }

    /// Builds a path through wireguard-go.
    pub fn wireguard() -> Result<Self> {
        let (client, router, server) = stage::network(false);
        let (mut alive, mut processes): (Vec<Box<dyn Any>>, Vec<u32>) = (vec![Box::new(router)], Vec::new());
        let key =
            || -> Result<String> { Ok(lab::process::output(Command::new("wg").arg("genkey"))?.trim().to_owned()) };
        let keys = [key()?, key()?];
        let public = |private: &str| -> Result<String> {
            let command = format!("echo {private} | wg pubkey");
            Ok(lab::process::output(Command::new("sh").args(["-c", &command]))?.trim().to_owned())
        };
        for (number, (end, name)) in [(&client, "c"), (&server, "s")].into_iter().enumerate() {
            // The socket of the name outlives a process that was killed.
            let name = &format!("wgb{}{name}", std::process::id());
            let mut wireguard = end.command("wireguard-go");
            wireguard.args(["-f", name]).env("LOG_LEVEL", "error");
            let process = end.start(wireguard)?;
            let is_up = || end.run(["wg", "show", name]).is_ok();
            anyhow::ensure!(lab::poll(Duration::from_secs(5), is_up), "wireguard-go does not start");
            let private = end.dir().join("private");
            std::fs::write(&private, &keys[number])?;
            let peer = public(&keys[1 - number])?;
            let (path, allowed) = (private.to_string_lossy().into_owned(), format!("10.99.0.{}/32", 2 - number));
            let mut words = vec!["wg", "set", name, "listen-port", "4501", "private-key", &path, "peer", &peer];
            words.extend(["allowed-ips", &allowed]);
            if number == 0 {
                words.extend(["endpoint", "192.0.2.1:4501"]);
            }
            end.run(words)?;
            end.ip(&format!("address add 10.99.0.{}/24 dev {name}", number + 1))?;
            end.ip(&format!("link set {name} up mtu 1420"))?;
            processes.push(process.pid());
            alive.push(Box::new(process));
        }
        Self::with("wireguard-go", (client, server), "10.99.0.2", alive, processes)
    }

    /// Builds a path through OpenVPN.
    pub fn openvpn() -> Result<Self> {
        let (client, router, server) = stage::network(false);
        let (mut alive, mut processes): (Vec<Box<dyn Any>>, Vec<u32>) = (vec![Box::new(router)], Vec::new());
        let key = server.dir().join("static.key");
        lab::process::output(Command::new("openvpn").args(["--genkey", "secret"]).arg(&key))?;
        for (end, ours, theirs, extra) in
            [(&server, "10.98.0.2", "10.98.0.1", vec![]), (&client, "10.98.0.1", "10.98.0.2", vec!["--remote", SERVER])]
        {
            let mut openvpn = end.command("openvpn");
            openvpn.args(["--dev", "ovpnb", "--dev-type", "tun", "--port", "4502", "--ifconfig", ours, theirs]);
            openvpn.args(["--cipher", "AES-256-CBC", "--auth", "SHA256", "--secret"]).arg(&key).args(extra);
            let mut process = end.start(openvpn)?;
            if end.name() == client.name() {
                process.wait_for("Initialization Sequence Completed", Duration::from_secs(20))?;
            }
            processes.push(process.pid());
            alive.push(Box::new(process));
        }
        Self::with("openvpn", (client, server), "10.98.0.2", alive, processes)
    }
}

/// Returns the nanoseconds that the threads of a process have run.
fn of_process(process: &str) -> Result<f64> {
    let mut nanos = 0.0;
    for thread in std::fs::read_dir(format!("/proc/{process}/task")).context("a process of a path has ended")? {
        // A thread may have ended meanwhile.
        let Ok(text) = std::fs::read_to_string(thread?.path().join("schedstat")) else { continue };
        nanos += text.split_whitespace().next().and_then(|word| word.parse::<f64>().ok()).context("schedstat")?;
    }
    Ok(nanos)
}

/// Serves connections until the namespace is gone, and sends back the bytes of each connection.
fn echo(server: &Namespace) -> Result<()> {
    let listener = server.enter(|| TcpListener::bind(("0.0.0.0", ECHO)))?;
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let _ = stream.set_nodelay(true);
                let (mut from, mut to) = (&stream, &stream);
                let _ = std::io::copy(&mut from, &mut to);
            });
        }
    });
    Ok(())
}
