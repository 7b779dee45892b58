//! Tests a flood of forged first packets from an unauthenticated sender at the kernel's full rate. Every header field
//! is valid; addresses, ports, handles and tags are random. The packets use IPv4 and IPv6, TCP and UDP, and both
//! carriers. The verifier must neither admit nor answer any of them, and its tables must not grow.
//!
//! `cargo xtask soak --forged N` sends N packets and prints the figures. The ordinary test sends ten million.

mod frames;
mod tables;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use datapath::forger::Forger;
use datapath::interface::Interface;
use frames::Kind;
use lab::mint::Mint;
use lab::service::{ask, call, exchange};
use lab::world::{Agent, Authority};
use lab::world::{DARK4, ECHO, Network, Services, VERIFIER, Verifier, Way, policy};
use lab::{Port, poll, seen::Seen, test};
use serde_json::json;
use wire::DropReason;

const FORGED: u64 = 10_000_000;
/// Number of frames of one kind per round. Each round makes tokens with the current time.
const ROUND: u32 = 200_000;
const SOON: Duration = Duration::from_secs(10);

/// Returns the number of forged packets that the verifier has to check.
fn wanted() -> Result<u64> {
    let Ok(text) = std::env::var("VOUCHSAFE_SOAK_FORGED") else { return Ok(FORGED) };
    text.parse().with_context(|| format!("VOUCHSAFE_SOAK_FORGED is {text:?}, and should be a number"))
}

#[test]
fn forged_first_packets_admit_nobody_and_leave_nothing() {
    test(|| {
        let wanted = wanted()?;
        let network = Network::new(Way::Direct)?;
        let _services = Services::start(&network)?;
        let authority = Authority::start(&network.authority, &policy("5m"))?;
        // Virtual cables pass injected frames only to programs at XDP.
        let flags = ["--hook", "xdp", "--carriers", "tail,shim"];
        let verifier = Verifier::start_with(&network.server, &authority, &flags)?;
        let agent = Agent::start(&network.alice)?;
        agent.login(&authority, "alice")?;
        let echo = SocketAddr::new(DARK4.parse()?, ECHO);
        let mut kept = call(&network.alice, echo, SOON)?;

        let mut mint = Mint::new(authority.master_key()?, VERIFIER);
        let heard = Port::open(&network.internet, "dc")?;
        let forger = Forger::load()?;
        let cable = network.internet.enter(|| Interface::named("dc"))?;
        let tables = || tables::read(&verifier.pinned_tables());
        let before = (tables()?, verifier.counters()?);
        let (begun, mut shown, mut sent, mut judged) = (Instant::now(), Instant::now(), 0, 0);
        let mut answers = Vec::new();
        while judged < wanted {
            for kind in Kind::ALL {
                let forgery = kind.forge(&network, &mut mint)?;
                let count = ROUND.min(u32::try_from(wanted - judged).unwrap_or(ROUND)).max(64);
                sent += network.internet.enter(|| forger.send(&cable, &forgery.frame, &forgery.fields, count))?;
            }
            listen(&heard, Duration::ZERO, &mut answers);
            judged = verifier.counters()?.dropped(DropReason::BadTag) - before.1.dropped(DropReason::BadTag);
            ensure!(judged >= sent / 2, "of {sent} forged packets the verifier judged only {judged}");
            if shown.elapsed() > Duration::from_secs(10) {
                shown = Instant::now();
                let rate = judged as f64 / begun.elapsed().as_secs_f64() / 1e6;
                eprintln!("soak: {judged} of {wanted} judged, {rate:.2} million a second, {} answered", answers.len());
            }
        }
        let seconds = begun.elapsed().as_secs_f64();
        listen(&heard, Duration::from_secs(1), &mut answers);
        exchange(&mut kept).context("a flow from before was lost")?;

        // A sweep may be under way, so poll.
        let mut after = tables()?;
        let is_more = |now: &tables::Tables| now.iter().any(|(name, count)| before.0.get(name) < Some(count));
        let no_more = poll(SOON, || {
            let _ = tables().map(|now| after = now);
            !is_more(&after)
        });
        let grown = verifier.counters()?.since(&before.1);
        let admitted =
            ["token", "opened"].iter().map(|name| grown.get(*name).copied().unwrap_or_default()).sum::<u64>();
        let report = json!({
            "sent": sent, "judged": judged, "seconds": seconds, "per_second": judged as f64 / seconds,
            "admitted": admitted, "answered": answers.len(), "tables_before": before.0, "tables_after": after,
        });
        println!("{report:#}");
        ensure!(admitted == 0, "{admitted} were admitted: {grown:?}");
        ensure!(answers.is_empty(), "{} were answered, the first by {:?}", answers.len(), answers.first());
        ensure!(no_more, "tables grew: {:?}, then {after:?}", before.0);
        ask(&network.alice, echo, SOON).context("a first packet of somebody who may, afterwards")?;
        // Without random fields, the same frames have the right tag, and must be answered. So the test would see an
        // answer to a forged frame.
        for kind in Kind::ALL {
            let right = kind.forge(&network, &mut mint)?;
            network.internet.enter(|| forger.send(&cable, &right.frame, &[], 1))?;
            let heard = poll(SOON, || {
                listen(&heard, Duration::from_millis(20), &mut answers);
                !answers.is_empty()
            });
            ensure!(heard, "{kind:?} with the right tag was not answered: {:?}", verifier.counters()?.since(&before.1));
            answers.clear();
        }
        Ok(())
    });
}

/// Records every frame that the server sent to a source address of forged packets. Alice has none of these addresses.
fn listen(heard: &Port, patience: Duration, answers: &mut Vec<Seen>) {
    heard.receive(patience, |frame| {
        let seen = Seen::frame(frame)?;
        if frames::is_forged(seen.destination) {
            answers.push(seen);
        }
        None::<()>
    });
}
