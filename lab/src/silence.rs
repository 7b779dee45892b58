//! Shows an outsider's view of a protected host: sends the suite of probes from this machine, listens for answers, and
//! prints a table.

use std::net::IpAddr;
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lab::forge::protocol;
use lab::net::parse_mac;
use lab::probe::Target;
use lab::watch::{self, Finding};
use lab::{Port, poll, process};
use serde_json::{Value, json};

/// Options of `silence`.
#[derive(clap::Args)]
pub struct Args {
    /// Address to probe; you need permission to probe it
    #[arg(long, value_name = "ADDR")]
    target: IpAddr,
    /// The protected port
    #[arg(long, value_name = "N")]
    port: u16,
    /// Protocol of the port: tcp or udp [default: both]
    #[arg(long, value_name = "NAME", value_parser = ["tcp", "udp"])]
    protocol: Option<String>,
    /// Treat the whole host as protected: also ping it and send other protocols
    #[arg(long)]
    whole_host: bool,
    /// Interface to send from [default: the interface of the route to the target]
    #[arg(long, value_name = "IF")]
    interface: Option<String>,
    /// Seconds to listen after the last probe
    #[arg(long, value_name = "SECONDS", default_value_t = 3)]
    patience: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the suite. The exit code is 0 if nothing came back, 1 if anything did, and 2 if the suite could not be run.
pub fn run(args: &Args) -> ExitCode {
    match probe(args) {
        Ok(findings) => {
            show(args, &findings);
            ExitCode::from(u8::from(watch::answered(&findings).next().is_some()))
        }
        Err(error) => {
            eprintln!("silence: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn probe(args: &Args) -> Result<Vec<Finding>> {
    let route = Route::find(args.target, args.interface.as_deref())?;
    let target = Target {
        address: args.target,
        port: args.port,
        protocol: args.protocol.as_deref().map(|name| if name == "udp" { protocol::UDP } else { protocol::TCP }),
        source: route.source,
        macs: [parse_mac(&link_address(&route.device)?)?, parse_mac(&route.next_hop_address()?)?],
        whole_host: args.whole_host,
    };
    let port = Port::here(&route.device)?;
    watch::run(&port, &target, Duration::from_secs(args.patience))
}

/// Route of packets to the target.
struct Route {
    device: String,
    source: IpAddr,
    next: IpAddr,
}

impl Route {
    fn find(target: IpAddr, device: Option<&str>) -> Result<Self> {
        let mut command = Command::new("ip");
        command.args(["-j", "route", "get", &target.to_string()]);
        if let Some(device) = device {
            command.args(["oif", device]);
        }
        let routes: Value =
            serde_json::from_str(&process::output(&mut command)?).context("cannot read the route to the target")?;
        let text = |key: &str| routes[0][key].as_str();
        let device = text("dev").context("no route to the target")?.to_owned();
        ensure!(text("type") != Some("local"), "{target} is this machine: probe it from another");
        let source = text("prefsrc").context("the route to the target names no source address")?.parse()?;
        let next = text("gateway").map_or(Ok(target), str::parse)?;
        Ok(Self { device, source, next })
    }

    /// Makes the kernel resolve the next hop's hardware address, and returns it.
    fn next_hop_address(&self) -> Result<String> {
        let mut found = None;
        let known = poll(Duration::from_secs(3), || {
            // Send to the discard port: only the address resolution before the datagram matters.
            let any = if self.next.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
            let _ = std::net::UdpSocket::bind(any).and_then(|socket| socket.send_to(&[], (self.next, 9)));
            std::thread::sleep(Duration::from_millis(20));
            let shown = process::output(Command::new("ip").args(["-j", "neigh", "show", "to", &self.next.to_string()]));
            let list: Value = shown.ok().and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
            let here = list.as_array().into_iter().flatten().find(|entry| entry["dev"] == self.device.as_str());
            found = here.and_then(|entry| entry["lladdr"].as_str()).map(str::to_owned);
            found.is_some()
        });
        ensure!(
            known,
            "the next hop {} does not answer ARP or neighbour discovery on {}: is it up, and on this link?",
            self.next,
            self.device
        );
        found.context("the kernel does not list the next hop as a neighbour")
    }
}

/// Returns a device's hardware address. Does not read /sys, which may show another network namespace.
fn link_address(device: &str) -> Result<String> {
    let links: Value =
        serde_json::from_str(&process::output(Command::new("ip").args(["-j", "link", "show", device]))?)?;
    Ok(links[0]["address"].as_str().with_context(|| format!("{device} has no hardware address"))?.to_owned())
}

fn show(args: &Args, findings: &[Finding]) {
    let silent = watch::answered(findings).next().is_none();
    if args.json {
        let list = findings
            .iter()
            .map(|finding| json!({"probe": finding.name, "answers": finding.answers, "from_others": finding.remarks}));
        let all =
            json!({"target": args.target, "port": args.port, "silent": silent, "probes": list.collect::<Vec<_>>()});
        println!("{all:#}");
        return;
    }
    let width = findings.iter().map(|finding| finding.name.len()).max().unwrap_or_default();
    for finding in findings {
        let heard = match (finding.answers.as_slice(), finding.remarks.as_slice()) {
            ([], []) => "nothing".to_owned(),
            ([], [first, ..]) => format!("nothing; on the way: {first}"),
            ([first, ..], _) => format!("ANSWERS: {}, the first: {first}", finding.answers.len()),
        };
        println!("{:width$}  {heard}", finding.name);
    }
    let loud = watch::answered(findings).count();
    println!("\n{} port {}: {} probes, {loud} answered", args.target, args.port, findings.len());
}
