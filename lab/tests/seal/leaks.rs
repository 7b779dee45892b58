//! Nothing of a sealed rule leaves in clear, in either direction, while daemons start and are killed, keys are renewed, and
//! the authority is lost.

use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lab::world::{Agent, Authority, ECHO, FRONT4, FRONT6, SOON, Verifier};
use lab::{Capture, Namespace, poll, test};

use crate::stage::{POOL, QUIET, SIGNED, Stage, at, nothing_outside, readable};

/// The text in every packet of the traffic.
const SECRET: &str = "nobody on the path reads this secret of a sealed rule";
/// Time after which keys are renewed; grants end after three times as long.
const AGE: Duration = Duration::from_secs(10);

/// Pause between two exchanges of a flow, so that the captures of ten minutes fit on a disk.
const PACE: Duration = Duration::from_millis(4);

/// Traffic that goes on, whatever happens to it, until it ends.
#[derive(Default)]
struct Traffic {
    end: AtomicBool,
    streams: AtomicU64,
    datagrams: AtomicU64,
}

impl Traffic {
    /// Sends over streams: begins another when one breaks.
    fn stream(&self, client: &Namespace, host: &str, port: u16) {
        let text = SECRET.repeat(20);
        while !self.end.load(Relaxed) {
            let opened = client.enter(|| TcpStream::connect_timeout(&at(host, port), Duration::from_secs(1)));
            let Ok(mut stream) = opened else { continue };
            let _ = stream.set_read_timeout(Some(Duration::from_secs(1)));
            let mut heard = vec![0; text.len()];
            while !self.end.load(Relaxed)
                && stream.write_all(text.as_bytes()).is_ok()
                && stream.read_exact(&mut heard).is_ok()
            {
                self.streams.fetch_add(1, Relaxed);
                thread::park_timeout(PACE);
            }
        }
    }

    /// Sends datagrams, long ones as fragments.
    fn datagrams(&self, client: &Namespace, host: &str) {
        let any = if host.contains(':') { "[::]:0" } else { "0.0.0.0:0" };
        let Ok(socket) = client.enter(|| UdpSocket::bind(any)) else { return };
        let _ = socket.set_read_timeout(Some(Duration::from_millis(20)));
        let mut heard = [0; 4096];
        for number in 0.. {
            if self.end.load(Relaxed) {
                return;
            }
            let text = SECRET.repeat(if number % 8 == 0 { 40 } else { 2 });
            let _ = socket.send_to(text.as_bytes(), at(host, ECHO));
            if socket.recv(&mut heard).is_ok() {
                self.datagrams.fetch_add(1, Relaxed);
                thread::park_timeout(PACE);
            }
        }
    }

    /// Waits until both kinds of traffic have got answers.
    fn flows(&self, when: &str) -> Result<()> {
        let (streams, datagrams) = (self.streams.load(Relaxed), self.datagrams.load(Relaxed));
        let both = || self.streams.load(Relaxed) > streams + 3 && self.datagrams.load(Relaxed) > datagrams + 3;
        ensure!(poll(2 * SOON, both), "no traffic {when}: {streams} and {datagrams} answers");
        Ok(())
    }

    /// Checks that nothing is answered for a while.
    fn stands(&self, when: &str) -> Result<()> {
        // Packets that were under way still arrive.
        let mut last = (0, 0);
        let still = |last: &mut (u64, u64)| {
            let now = (self.streams.load(Relaxed), self.datagrams.load(Relaxed));
            std::mem::replace(last, now) == now
        };
        let mut since = Instant::now();
        let quiet = poll(SOON, || {
            if !still(&mut last) {
                since = Instant::now();
            }
            since.elapsed() >= QUIET
        });
        ensure!(quiet, "traffic goes on {when}");
        Ok(())
    }
}

fn phase(agent: &Agent) -> u64 {
    let status = agent.status().unwrap_or_default();
    status["tunnels"].as_array().into_iter().flatten().filter_map(|tunnel| tunnel["phase"].as_u64()).max().unwrap_or(0)
}

/// Waits until the keys are renewed.
fn renewed(agent: &Agent) -> Result<()> {
    let (mut looked, mut longest) = (Instant::now(), Duration::ZERO);
    let is_renewed = poll(AGE * 2 + SOON, || {
        longest = longest.max(std::mem::replace(&mut looked, Instant::now()).elapsed());
        phase(agent) > 1
    });
    // A look that took long says that the machine stood still, and not the tunnel.
    ensure!(is_renewed, "the keys are not renewed; the longest look took {longest:?}");
    Ok(())
}

/// Describes both ends, for a test that fails.
fn state(agent: &Agent, verifier: &Verifier) -> String {
    let status = agent.status().unwrap_or_default();
    let counters = verifier.counters().map(|counters| format!("{counters:?}")).unwrap_or_default();
    format!(
        "agent: tunnels {}, session {}, counters {}\nits log:\n{}\nverifier: {counters}\nits log:\n{}",
        status["tunnels"],
        status["session"]["trouble"],
        status["counters"],
        agent.log(),
        verifier.log()
    )
}

/// One round of all that may happen.
fn round(agent: &mut Agent, verifier: &mut Verifier, authority: &mut Authority, traffic: &Traffic) -> Result<()> {
    traffic.flows("at first")?;
    agent.kill()?;
    traffic.stands("without an agent")?;
    agent.run()?;
    traffic.flows("after the agent's restart")?;
    verifier.kill()?;
    traffic.stands("without a verifier")?;
    verifier.run(&POOL)?;
    traffic.flows("after the verifier's restart")?;
    renewed(agent)?;
    traffic.flows("with new keys")?;
    authority.stop()?;
    traffic.flows("without an authority, as long as grants last")?;
    // The tunnel's grant ends, and with it the tunnel.
    ensure!(poll(AGE * 3 + SOON, || traffic.stands("without grants").is_ok()), "traffic goes on without grants");
    authority.run()?;
    traffic.flows("with an authority again")
}

#[test]
fn nothing_of_a_sealed_rule_leaves_in_clear_whatever_happens() {
    test(|| {
        let minutes = std::env::var("VOUCHSAFE_SEAL_MINUTES").ok().and_then(|text| text.parse::<u64>().ok());
        // An authority takes seconds to stop, and traffic has to go on after that until the grants end.
        let mut stage = Stage::with("30s", "10s", &[])?;
        let home = Capture::start(&stage.network.router, "lan-alice")?;
        let cable = stage.observe()?;
        let Stage { agent, verifier, authority, network, .. } = &mut stage;
        let alice = &network.alice;
        let traffic = Traffic::default();
        let (begun, length) = (Instant::now(), Duration::from_secs(60 * minutes.unwrap_or(0)));
        thread::scope(|scope| -> Result<()> {
            scope.spawn(|| traffic.stream(alice, FRONT4, ECHO));
            scope.spawn(|| traffic.stream(alice, FRONT6, ECHO));
            scope.spawn(|| traffic.datagrams(alice, FRONT4));
            scope.spawn(|| traffic.datagrams(alice, FRONT6));
            let mut done = round(agent, verifier, authority, &traffic);
            while done.is_ok() && begun.elapsed() < length {
                println!("{:?}: another round", begun.elapsed());
                done = round(agent, verifier, authority, &traffic);
            }
            traffic.end.store(true, Relaxed);
            done.with_context(|| format!("after {:?}\n{}", begun.elapsed(), state(agent, verifier)))
        })?;
        println!(
            "{:?}: {} answers over streams, {} of datagrams",
            begun.elapsed(),
            traffic.streams.load(Relaxed),
            traffic.datagrams.load(Relaxed)
        );
        for capture in [cable, home] {
            nothing_outside(&capture)?;
            let file = capture.stop()?;
            let read = readable(&file, &[SECRET])?;
            ensure!(read.is_empty(), "{} has {read:?}", file.display());
        }
        Ok(())
    });
}

#[test]
fn a_search_of_the_capture_finds_what_is_in_clear() {
    test(|| {
        let stage = Stage::new()?;
        let cable = stage.observe()?;
        let mut stream =
            stage.network.alice.enter(|| TcpStream::connect_timeout(&at(FRONT4, SIGNED), SOON)).context("no echo")?;
        stream.write_all(SECRET.as_bytes())?;
        let mut heard = vec![0; SECRET.len()];
        stream.read_exact(&mut heard)?;
        nothing_outside(&cable)?;
        ensure!(readable(&cable.stop()?, &[SECRET])? == [SECRET], "authenticated only, and not readable");
        Ok(())
    });
}
