//! Measures the data path of sealed tunnels between two namespaces, beside the same path without a tunnel and beside
//! wireguard-go and OpenVPN. Needs root and the packages of `xtask/setup.sh bench`.

#[path = "../tests/stage/mod.rs"]
mod stage;

use anyhow::{Context, Result};
use engine::model::Treatment;
use lab::{Namespace, Process};
use measure::{Bound, Figures, Yardstick};
use stage::{SERVER, Stage, demand};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const ROUNDS: usize = 5;
const SECONDS: &str = "2";

/// Reads one of the figures.
type Get = fn(&Measured) -> f64;

/// Figures of a path in one round.
#[derive(Clone, Copy)]
struct Measured {
    /// Mbit/s.
    rate: f64,
    /// Seconds of all processors for 10^9 bytes.
    cpu: f64,
}

struct Lane {
    name: &'static str,
    client: Namespace,
    _server: Namespace,
    to: &'static str,
    _alive: Vec<Box<dyn std::any::Any>>,
    _iperf: Process,
}

/// Returns the seconds that the processors have worked since boot, for anything.
fn busy() -> Result<f64> {
    let stat = std::fs::read_to_string("/proc/stat")?;
    let fields: Vec<f64> = stat
        .lines()
        .next()
        .context("/proc/stat")?
        .split_whitespace()
        .skip(1)
        .filter_map(|word| word.parse().ok())
        .collect();
    // All but idle and iowait, in ticks of 10 ms.
    Ok((fields.iter().take(8).sum::<f64>() - fields[3] - fields[4]) / 100.0)
}

impl Lane {
    fn serve(server: &Namespace) -> Result<Process> {
        let mut iperf = server.spawn(["iperf3", "-s", "--forceflush"])?;
        iperf.wait_for("Server listening", Duration::from_secs(5))?;
        Ok(iperf)
    }

    fn measure(&self, streams: &str) -> Result<Measured> {
        let before = busy()?;
        let text = self.client.run(["iperf3", "-c", self.to, "-t", SECONDS, "-P", streams, "-J"]).context(self.name)?;
        let cpu = busy()? - before;
        let json: serde_json::Value = serde_json::from_str(&text)?;
        let sum = &json["end"]["sum_received"];
        let rate = sum["bits_per_second"].as_f64().context("iperf3 reported no rate")?;
        let bytes = sum["bytes"].as_f64().context("iperf3 reported no bytes")?;
        Ok(Measured { rate: rate / 1e6, cpu: cpu / (bytes / 1e9) })
    }

    fn sealed(name: &'static str, treatment: Treatment) -> Result<Self> {
        let stage = Stage::new(false, demand(treatment));
        stage.leg(6, 5201, demand(treatment));
        let iperf = Self::serve(&stage.server)?;
        let Stage { agent, verifier, client, router, server } = stage;
        let alive: Vec<Box<dyn std::any::Any>> = vec![Box::new(agent), Box::new(verifier), Box::new(router)];
        Ok(Self { name, client, _server: server, to: SERVER, _alive: alive, _iperf: iperf })
    }

    fn plain() -> Result<Self> {
        let (client, router, server) = stage::network(false);
        let iperf = Self::serve(&server)?;
        Ok(Self { name: "plain", client, _server: server, to: SERVER, _alive: vec![Box::new(router)], _iperf: iperf })
    }

    fn wireguard() -> Result<Self> {
        let (client, router, server) = stage::network(false);
        let mut alive: Vec<Box<dyn std::any::Any>> = vec![Box::new(router)];
        let key =
            || -> Result<String> { Ok(lab::process::output(Command::new("wg").arg("genkey"))?.trim().to_owned()) };
        let keys = [key()?, key()?];
        let public = |private: &str| -> Result<String> {
            let command = format!("echo {private} | wg pubkey");
            Ok(lab::process::output(Command::new("sh").args(["-c", &command]))?.trim().to_owned())
        };
        for (number, (end, name)) in [(&client, "wgb-client"), (&server, "wgb-server")].into_iter().enumerate() {
            let mut wireguard = end.command("wireguard-go");
            wireguard.args(["-f", name]).env("LOG_LEVEL", "error");
            let process = end.start(wireguard)?;
            let socket = format!("/var/run/wireguard/{name}.sock");
            anyhow::ensure!(lab::poll(Duration::from_secs(5), || Path::new(&socket).exists()), "no wireguard-go");
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
            alive.push(Box::new(process));
        }
        let iperf = Self::serve(&server)?;
        Ok(Self { name: "wireguard-go", client, _server: server, to: "10.99.0.2", _alive: alive, _iperf: iperf })
    }

    fn openvpn() -> Result<Self> {
        let (client, router, server) = stage::network(false);
        let mut alive: Vec<Box<dyn std::any::Any>> = vec![Box::new(router)];
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
            alive.push(Box::new(process));
        }
        let iperf = Self::serve(&server)?;
        Ok(Self { name: "openvpn", client, _server: server, to: "10.98.0.2", _alive: alive, _iperf: iperf })
    }
}

fn main() -> Result<()> {
    let paths = [
        Lane::plain()?,
        Lane::sealed("encrypt", Treatment::Encrypt)?,
        Lane::sealed("authenticate", Treatment::Authenticate)?,
        Lane::wireguard()?,
        Lane::openvpn()?,
    ];
    let mut figures = Figures::default();
    for (streams, count) in [("one", "1"), ("five", "5")] {
        let mut measured: Vec<Vec<Measured>> = paths.iter().map(|_| Vec::new()).collect();
        for round in 0..ROUNDS {
            for (path, measured) in paths.iter().zip(&mut measured) {
                let one = path.measure(count)?;
                eprintln!("{streams} {round} {:13} {:8.0} Mbit/s {:6.2} CPU s/GB", path.name, one.rate, one.cpu);
                measured.push(one);
            }
        }
        let yard = |of: usize, get: Get| Yardstick::new(measured[of].iter().map(get).collect());
        let middle = |of: usize, get: Get| measure::median(&measured[of].iter().map(get).collect::<Vec<_>>());
        let (rate, cpu): (Get, Get) = (|one| one.rate, |one| one.cpu);
        let name = |what: &str| format!("seal.{what}.{streams}");
        figures.add(&name("encrypt.throughput"), "Mbit/s", middle(1, rate), &yard(3, rate), Bound::AtLeast(3.0));
        figures.add(&name("encrypt.cpu_per_gb"), "s", middle(1, cpu), &yard(3, cpu), Bound::AtMost(0.35));
        figures.add(&name("encrypt.of_plain"), "Mbit/s", middle(1, rate), &yard(0, rate), Bound::None);
        figures.add(&name("authenticate.throughput"), "Mbit/s", middle(2, rate), &yard(1, rate), Bound::AtLeast(1.0));
        figures.add(&name("openvpn.throughput"), "Mbit/s", middle(4, rate), &yard(3, rate), Bound::None);
    }
    figures.print();
    Ok(())
}
