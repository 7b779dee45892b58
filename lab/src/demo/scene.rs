//! The steps of the demo.

use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use lab::arrivals::Arrivals;
use lab::forge::protocol;
use lab::mint::{Forgery, Mint, now};
use lab::probe::Target;
use lab::seen::Seen;
use lab::service::{Sshd, call, exchange};
use lab::transfer::{Sink, Transfer};
use lab::watch;
use lab::world::{DARK4, ECHO, FRONT4, Network, OPEN4, PUBLIC4, SSH, Services, VERIFIER, Way};
use lab::{Namespace, Outsider, Place, Port, World, poll};
use wire::{Destination, DropReason};

use super::is_there;
use super::table::Table;

const SOON: Duration = Duration::from_secs(10);
/// How long to wait for an answer that must not come.
const QUIET: Duration = Duration::from_millis(500);
/// Number of packets of each forged kind.
const MANY: u16 = 200;
const SINK: u16 = 5000;
/// Number of measurements of each kind.
const TURNS: usize = 5;

/// State that the steps share.
pub struct Scene<'t> {
    table: &'t mut Table,
    way: Way,
    number: u32,
}

impl<'t> Scene<'t> {
    /// Creates the state before the first step.
    pub fn new(table: &'t mut Table, way: Way) -> Self {
        Self { table, way, number: 0 }
    }

    fn step(&mut self, what: impl Display) {
        self.number += 1;
        println!("\n{}. {what}", self.number);
    }

    /// Shows the network without Vouchsafe: sshd's port is open to everyone.
    pub fn without(&mut self, network: &Network, services: &Services) -> Result<()> {
        self.step("Without Vouchsafe, for comparison");
        let heard = scan(network, Place::Home)?;
        let open = heard.iter().any(|name| name == "TCP SYN");
        self.table.row("scan of sshd without Vouchsafe", "open", if open { "open" } else { "closed" }, open);
        let (done, text) = ssh(&services.sshd, &network.mallory, "echo inside")?;
        self.table.row("mallory reaches sshd without Vouchsafe", "yes", text, done);
        Ok(())
    }

    /// Shows a verifier in front of the server while nobody is logged in.
    pub fn protected_from_all(&mut self, world: &World) -> Result<()> {
        self.step("A verifier goes before the server; nobody has logged in yet");
        for (who, place) in [("mallory", Place::Home), ("somebody on the server's own cable", Place::NextDoor)] {
            let heard = scan(&world.network, place)?;
            let what = format!("scan of sshd by {who}");
            self.table.row(&what, "nothing comes back", answers(&heard), heard.is_empty());
        }
        if is_there(&world.network.mallory, "nmap") {
            let words = ["nmap", "-n", "-Pn", "-p", "22", "--max-retries", "1", FRONT4];
            let said = world.network.mallory.run(words)?;
            let line = said.lines().find(|line| line.starts_with("22/tcp")).unwrap_or("no verdict");
            self.table.row("nmap's verdict on port 22", "filtered", line, line.contains("filtered"));
        }
        let (done, _) = ssh(&world.services.sshd, &world.network.alice, "echo inside")?;
        let seen = if done { "connected" } else { "times out" };
        self.table.row("alice, before she logs in", "times out", seen, !done);
        Ok(())
    }

    /// Shows that Alice can connect after she has logged in.
    pub fn alice(&mut self, world: &World) -> Result<()> {
        self.step("Alice logs in and runs ssh as ever");
        let before = world.verifier.counters()?;
        let arrivals = Arrivals::of_syns(&world.network.server, PUBLIC4.parse()?, FRONT4.parse()?)?;
        let began = Instant::now();
        let (done, text) = ssh(&world.services.sshd, &world.network.alice, "echo inside")?;
        let seen = format!("{text} after {} ms", began.elapsed().as_millis());
        self.table.row("alice after she logged in", "inside", seen, done && text == "inside");
        let admitted = world.verifier.counters()?.since(&before);
        let tokens = admitted.get("token").copied().unwrap_or_default();
        let seen = format!("{tokens} taken, {} SYN handed on", arrivals.count()?);
        self.table.row("alice's tokens", "1 taken, 1 SYN handed on", &seen, seen == "1 taken, 1 SYN handed on");
        Ok(())
    }

    /// Shows that Mallory, who shares Alice's public address, gains nothing by it.
    pub fn mallory(&mut self, world: &World) -> Result<()> {
        let shared = if self.way == Way::Nat { ", who shares her public address," } else { "" };
        self.step(format!("Mallory{shared} tries while alice is connected"));
        let echo = SocketAddr::new(FRONT4.parse()?, ECHO);
        let mut flow = call(&world.network.alice, echo, SOON)?;
        let (done, _) = ssh(&world.services.sshd, &world.network.mallory, "echo inside")?;
        let seen = if done { "connected" } else { "times out" };
        self.table.row("mallory behind the same address", "times out", seen, !done);
        let heard = scan(&world.network, Place::Home)?;
        self.table.row("mallory's scan meanwhile", "nothing comes back", answers(&heard), heard.is_empty());
        let alive = exchange(&mut flow).is_ok();
        self.table.row("alice's connection meanwhile", "lives", if alive { "lives" } else { "dead" }, alive);
        let (_, why) = world.verifier.explain_person("mallory", (FRONT4.parse::<IpAddr>()?, SSH).into())?;
        println!("   the verifier on mallory: {}", why.trim());
        Ok(())
    }

    /// Sends handmade tokens, each wrong in a different way.
    pub fn forgeries(&mut self, world: &World) -> Result<()> {
        self.step(format!("Mallory sends {MANY} SYNs with each kind of wrong token"));
        let to: IpAddr = FRONT4.parse()?;
        let mallory = Outsider::new(&world.network, Place::Home, false)?;
        let mut mint = Mint::new(world.authority.master_key()?, VERIFIER);
        let right = mint.grant(0xbad, Destination { address: to, protocol: protocol::TCP, port: SSH }, mallory.source);
        let elsewhere = |change: fn(&mut Forgery)| {
            let mut forgery = right;
            change(&mut forgery);
            forgery
        };
        let kinds = [
            ("forged", right, DropReason::BadTag),
            ("expired", elsewhere(|forgery| forgery.header.expires = now() - 1), DropReason::Expired),
            ("wrong port", elsewhere(|forgery| forgery.to.port = ECHO), DropReason::BadTag),
            ("wrong host", elsewhere(|f| f.to.address = IpAddr::from([192, 0, 2, 10])), DropReason::BadTag),
            ("stale (made 2 minutes ago)", elsewhere(|forgery| forgery.time = now() - 120), DropReason::ClockSkew),
        ];
        for (kind, (name, forgery, reason)) in kinds.into_iter().enumerate() {
            let mut frames = Vec::new();
            for number in 0..MANY {
                let mut block = mint.block(&forgery)?;
                if name == "forged" {
                    // Flip one bit of the tag; the rest of the block is valid.
                    block[39] ^= 1;
                }
                let port = 3000 + kind as u16 * MANY + number;
                frames.push(mallory.syn(port, to, SSH).payload(&block).frame());
            }
            self.attempt(world, &mallory, &format!("{name} tokens"), reason, &frames)?;
        }
        Ok(())
    }

    /// Replays the token of Alice's SYN, which Mallory has captured.
    pub fn replay(&mut self, world: &World) -> Result<()> {
        self.step(format!("Mallory has seen alice's SYN on the way and sends its token {MANY} times"));
        let echo = SocketAddr::new(FRONT4.parse()?, ECHO);
        let on_path = Port::open(&world.network.internet, "home")?;
        let _flow = call(&world.network.alice, echo, SOON)?;
        let captured = on_path.receive(SOON, |frame| {
            let seen = Seen::frame(frame)?;
            (seen.destination == echo.ip() && seen.tcp?.flags & 0x12 == 0x02).then_some(seen.payload)
        });
        let captured = captured.context("alice's SYN was not seen on the way")?;
        println!("   captured from {PUBLIC4}: {}…", hex::encode(&captured[..captured.len().min(24)]));
        let mallory = Outsider::new(&world.network, Place::Home, false)?;
        let frame = |number| mallory.syn(6000 + number, echo.ip(), ECHO).payload(&captured).frame();
        let frames: Vec<_> = (0..MANY).map(frame).collect();
        self.attempt(world, &mallory, "alice's token, replayed", DropReason::Replayed, &frames)
    }

    fn attempt(
        &mut self,
        world: &World,
        mallory: &Outsider,
        what: &str,
        reason: DropReason,
        frames: &[Vec<u8>],
    ) -> Result<()> {
        let to: IpAddr = FRONT4.parse()?;
        let before = world.verifier.counters()?;
        let arrivals = Arrivals::of_syns(&world.network.server, mallory.shown, to)?;
        for frame in frames {
            mallory.send(frame)?;
        }
        let wanted = frames.len() as u64;
        let mut dropped = 0;
        let _ = poll(SOON, || {
            dropped = world.verifier.counters().map_or(0, |now| now.dropped(reason) - before.dropped(reason));
            dropped >= wanted
        });
        let (back, through) = (mallory.came_back(to, Duration::from_millis(100)).len(), arrivals.count()?);
        let expected = format!("{wanted} dropped ({reason}), 0 admitted, 0 answers");
        let seen = format!("{dropped} dropped ({reason}), {through} admitted, {back} answers");
        let same = expected == seen;
        self.table.row(what, &expected, seen, same);
        Ok(())
    }

    /// Shows which person is behind a connection.
    pub fn whois(&mut self, world: &World) -> Result<()> {
        self.step("Who is behind a connection? The verifier knows, though the address is shared");
        let words = ["echo client $SSH_CONNECTION; sleep 60"];
        let command = world.services.sshd.client(&world.network.alice, FRONT4.parse()?, &words);
        let mut session = world.network.alice.start(command)?;
        session.wait_for("client ", SOON)?;
        let log = session.log();
        let mut said = log.split_whitespace().skip_while(|word| *word != "client").skip(1);
        let client = said.next().zip(said.next()).context("sshd names no client")?;
        let client: SocketAddr = format!("{}:{}", client.0, client.1).parse()?;
        let flows = world.verifier.whois(client)?;
        let word = |key: &str| flows[0][key].as_str().unwrap_or("nobody").to_owned();
        let seen = format!("{client} is {} on {} ({})", word("person"), word("device"), word("rule"));
        self.table.row("whois of an ssh session", "alice on laptop", seen, word("person") == "alice");
        Ok(())
    }

    /// Measures in turns the throughput of an admitted flow, and of a flow in the same kind of network without
    /// Vouchsafe.
    pub fn throughput(&mut self, world: &World, time: Duration) -> Result<()> {
        self.step("What it costs to be admitted: copying to the server, with and without Vouchsafe, in turns");
        let plain = Network::new(self.way)?;
        let (mut without, mut beside, mut with) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..TURNS {
            without.push(measure(&plain, DARK4, time)?);
            beside.push(measure(&world.network, OPEN4, time)?);
            with.push(measure(&world.network, DARK4, time)?);
        }
        let [without, beside, with] = [without, beside, with].map(median);
        println!("   without Vouchsafe                           {without:6.0} Mbit/s");
        println!("   through the verifier, address not protected {beside:6.0} Mbit/s");
        println!("   through the verifier, flow admitted         {with:6.0} Mbit/s");
        let interfaces = world.verifier.status()?["interfaces"].clone();
        let hook = interfaces[0]["hook"].as_str().unwrap_or("no hook").to_owned();
        println!(
            "   The verifier has chosen {hook}: virtual cables copy each packet for XDP, network cards don't. This machine's"
        );
        println!("   cores are the limit of all three. `make bench` measures with care.");
        let (of_plain, of_beside) = (with / without * 100.0, with / beside * 100.0);
        let seen = format!("{of_plain:.0} % of the plain path, {of_beside:.0} % of the unprotected address");
        self.table.row("throughput of an admitted flow", "(figures, no bound)", seen, true);
        Ok(())
    }

    /// Revokes Alice's grant while she is connected.
    pub fn revocation(&mut self, world: &World) -> Result<()> {
        self.step("Alice's access is revoked while she is connected");
        let echo = SocketAddr::new(FRONT4.parse()?, ECHO);
        let mut flow = call(&world.network.alice, echo, SOON)?;
        flow.set_read_timeout(Some(Duration::from_millis(200)))?;
        let began = Instant::now();
        let (said, cut, last) = thread::scope(|scope| -> Result<_> {
            let talk = scope.spawn(|| {
                let mut last = Duration::ZERO;
                let cut = poll(SOON, || {
                    let asked = began.elapsed();
                    let dead = exchange(&mut flow).is_err();
                    if !dead {
                        last = asked;
                    }
                    dead
                });
                (cut, last)
            });
            let said = world.authority.revoke("alice")?;
            let (cut, last) = talk.join().ok().context("alice's thread panicked")?;
            Ok((said, cut, last))
        })?;
        println!("   {}", said.trim());
        let seen = if cut {
            format!("cut {} ms after the command was given", last.as_millis())
        } else {
            "lives on".to_owned()
        };
        self.table.row("alice's connection after it", "cut within 1000 ms", seen, cut && last < Duration::from_secs(1));
        let again = call(&world.network.alice, echo, QUIET).is_ok();
        let seen = if again { "connects" } else { "times out" };
        self.table.row("alice's next connection", "times out", seen, !again);
        Ok(())
    }
}

/// Returns the names of those probes of sshd's port that were answered.
fn scan(network: &Network, place: Place) -> Result<Vec<String>> {
    let outsider = Outsider::new(network, place, false)?;
    let target = Target {
        address: FRONT4.parse()?,
        port: SSH,
        protocol: Some(protocol::TCP),
        source: outsider.source,
        macs: outsider.macs(),
        whole_host: false,
    };
    let findings = watch::run(outsider.port(), &target, QUIET)?;
    println!("   {} probes from {}", findings.len(), outsider.shown);
    Ok(watch::answered(&findings).map(|finding| finding.name.clone()).collect())
}

fn answers(heard: &[String]) -> String {
    match heard {
        [] => "nothing comes back".to_owned(),
        [first, ..] => format!("answers to probes: {}, the first to {first}", heard.len()),
    }
}

fn ssh(sshd: &Sshd, client: &Namespace, words: &str) -> Result<(bool, String)> {
    let mut command: Command = sshd.client(client, FRONT4.parse()?, &[words]);
    let output = command.stdin(std::process::Stdio::null()).output()?;
    Ok((output.status.success(), String::from_utf8_lossy(&output.stdout).trim().to_owned()))
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// Measures throughput from Alice to the server's address `to`, in Mbit/s.
fn measure(network: &Network, to: &str, time: Duration) -> Result<f64> {
    let sink = Sink::start(&network.server, SINK)?;
    let rate = Transfer::start(&network.alice, (to.parse::<IpAddr>()?, SINK).into(), time, None)?.finish()?;
    anyhow::ensure!(sink.taken() == rate.bytes, "{} of {} bytes arrived", sink.taken(), rate.bytes);
    Ok(rate.megabits())
}
