//! Tests of the effects of time on flows. Verifier keys change with every epoch, and the master key by routine
//! rotation, without disturbing any flow. When a time window closes, its flows are cut.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use lab::counter::Stack;
use lab::forge::protocol::UDP;
use lab::mint::{Mint, now};
use lab::service::{ask, call, exchange, last_answer};
use lab::world::{ECHO, FRONT4, VERIFIER, Way, policy};
use lab::{Outsider, Place, World, poll, test};
use wire::{Destination, DropReason};

const SOON: Duration = Duration::from_secs(5);
/// Time to wait for an answer that must not come.
const QUIET: Duration = Duration::from_millis(400);
/// The shortest epoch that an authority accepts, in seconds.
const EPOCH: u32 = 20;
/// Pause between two rounds of new flows, because one grant admits 1,024 flows.
const PACE: Duration = Duration::from_millis(40);

fn echo() -> SocketAddr {
    format!("{FRONT4}:{ECHO}").parse().expect("an address")
}

/// Opens new flows continuously, and keeps an old one open.
struct Traffic {
    living: TcpStream,
    began: u32,
    rounds: usize,
}

impl Traffic {
    fn start(world: &World) -> Result<Self> {
        let living = call(&world.network.alice, echo(), SOON)?;
        ensure!(Stack::read(&world.network.alice)?.syn_retransmissions()? == 0, "the first SYN was lost");
        Ok(Self { living, began: now(), rounds: 0 })
    }

    /// Continues until `ahead` epochs have begun, and until every grant of the epoch before has expired.
    fn until_epoch(&mut self, world: &World, ahead: u32) -> Result<()> {
        let begins = (self.began / EPOCH + ahead) * EPOCH;
        while now() <= begins + EPOCH / 2 {
            let round = Instant::now();
            let at = || format!("{} s after an epoch began", now() % EPOCH);
            exchange(&mut self.living).with_context(|| format!("the living flow, {}", at()))?;
            call(&world.network.alice, echo(), SOON).with_context(|| format!("a new connection, {}", at()))?;
            ask(&world.network.alice, echo(), SOON).with_context(|| format!("a new datagram, {}", at()))?;
            self.rounds += 1;
            std::thread::sleep(PACE.saturating_sub(round.elapsed()));
        }
        Ok(())
    }

    /// Checks that no packet was dropped and no SYN was retransmitted.
    fn is_whole(&self, world: &World) -> Result<()> {
        let counters = world.verifier.counters()?;
        let dropped: Vec<_> = DropReason::ALL.iter().filter(|reason| counters.dropped(**reason) > 0).collect();
        ensure!(dropped.is_empty(), "packets were dropped: {dropped:?} of {counters:?}");
        let lost = Stack::read(&world.network.alice)?.syn_retransmissions()?;
        ensure!(lost == 0, "{lost} SYNs were lost");
        println!("{} new connections and as many new UDP flows in {} s: none lost", self.rounds, now() - self.began);
        Ok(())
    }
}

#[test]
fn two_epochs_end_and_no_flow_is_lost() {
    test(|| {
        let world = World::with_epochs(Way::Nat, EPOCH)?;
        let before = world.verifier.status()?["keys_until"].as_u64().context("no keys")?;
        let mut traffic = Traffic::start(&world)?;
        traffic.until_epoch(&world, 2)?;
        traffic.is_whole(&world)?;
        let after = world.verifier.status()?["keys_until"].as_u64().context("no keys")?;
        ensure!(after >= before + 2 * u64::from(EPOCH), "no keys came: until {before}, then {after}");
        Ok(())
    });
}

/// Sends a datagram of Mallory's with a token made from `master`; reports whether the verifier admits it.
fn is_admitted(world: &World, mallory: &Outsider, mint: &mut Mint, port: u16) -> Result<bool> {
    let to: IpAddr = FRONT4.parse()?;
    let before = world.verifier.counters()?;
    let token = mint.grant(port.into(), Destination { address: to, protocol: UDP, port: ECHO }, mallory.source);
    let payload = [&b"ping"[..], &mint.block(&token)?].concat();
    mallory.send(&mallory.datagram(port, to, ECHO).payload(&payload).frame())?;
    let (mut grown, mut judged) = (BTreeMap::new(), None);
    let is_judged = poll(SOON, || {
        grown = world.verifier.counters().map(|counters| counters.since(&before)).unwrap_or_default();
        judged = match (grown.get("token"), grown.get(DropReason::BadTag.name())) {
            (Some(_), None) => Some(true),
            (None, Some(_)) => Some(false),
            _ => None,
        };
        judged.is_some()
    });
    ensure!(is_judged, "neither admitted nor dropped for its tag: {grown:?}");
    judged.context("not judged")
}

#[test]
fn the_master_key_is_rotated_and_no_flow_is_lost() {
    test(|| {
        let world = World::with_epochs(Way::Nat, EPOCH)?;
        let mallory = Outsider::new(&world.network, Place::Home, false)?;
        let mut old = Mint::for_epochs(world.authority.master_key()?, VERIFIER, EPOCH);
        let mut traffic = Traffic::start(&world)?;
        world.authority.rotate_master_key(false)?;
        let mut new = Mint::for_epochs(world.authority.master_key()?, VERIFIER, EPOCH);
        traffic.until_epoch(&world, 3)?;
        traffic.is_whole(&world)?;
        ensure!(!is_admitted(&world, &mallory, &mut old, 901)?, "the old key is still good");
        ensure!(is_admitted(&world, &mallory, &mut new, 902)?, "the new key is not in use");
        exchange(&mut traffic.living)
    });
}

#[test]
fn a_compromised_master_key_is_replaced_at_once_and_admitted_flows_live() {
    test(|| {
        let world = World::new(Way::Nat)?;
        let mallory = Outsider::new(&world.network, Place::Home, false)?;
        let mut stolen = Mint::new(world.authority.master_key()?, VERIFIER);
        let mut living = call(&world.network.alice, echo(), SOON)?;
        world.authority.rotate_master_key(true)?;
        let rotated = Instant::now();
        let mut port = 910..;
        let mut is_good = || is_admitted(&world, &mallory, &mut stolen, port.next().unwrap_or_default());
        ensure!(poll(SOON, || is_good().is_ok_and(|good| !good)), "what was stolen is still good");
        let took = rotated.elapsed();
        ensure!(took < Duration::from_secs(2), "what was stolen was good for {took:?} more");
        call(&world.network.alice, echo(), SOON).context("a new flow")?;
        exchange(&mut living).context("the flow that was there")
    });
}

#[test]
fn a_window_that_closes_cuts_its_flows_and_leaves_others() {
    test(|| {
        let world = World::new(Way::Nat)?;
        let closes = Timestamp::from_second(i64::from(now()) + 10)?;
        let rule = "name = \"staff may use the front\"";
        let window = format!("{rule}\nwhen = {{ until = {closes} }}");
        let mut elsewhere = call(&world.network.alice, format!("{}:{ECHO}", lab::world::DARK4).parse()?, SOON)?;
        world.authority.apply(&policy("5m").replace(rule, &window))?;
        let mut flow = call(&world.network.alice, echo(), SOON).context("while the window is open")?;
        let ended = last_answer(&mut flow, Duration::from_secs(20))?.elapsed();
        let more = Timestamp::now().duration_since(closes).as_secs_f64() - ended.as_secs_f64();
        ensure!(more > -1.0, "the flow was cut {} s before its window closed", -more);
        println!("the flow ended {more:.1} s after its window closed");
        ensure!(call(&world.network.alice, echo(), QUIET).is_err(), "a new flow was admitted");
        exchange(&mut elsewhere).context("a flow under another rule")?;
        let (allowed, why) = world.verifier.explain_person("alice", echo())?;
        ensure!(!allowed, "{why}");
        Ok(())
    });
}
