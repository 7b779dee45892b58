//! Measures the effect of a flood of forged first packets on an admitted transfer. The baseline is the same transfer
//! during the same flood, with an XDP program that drops the flood's packets without verification.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lab::Port;
use lab::forge::{Packet, Tcp};
use lab::mint::Mint;
use lab::transfer::{Sink, Transfer};
use lab::world::{DARK4, Network, PUBLIC4, VERIFIER, Way};
use measure::{Bound, Figures, Yardstick, median};
use wire::{Destination, DropReason};

use crate::Guarded;
use crate::throughput::attach;

const ROUNDS: usize = 9;
const TIME: Duration = Duration::from_millis(1500);
/// Packets of the flood per second: as many as one core can send while a transfer runs on both sides.
const RATE: u64 = 50_000;
const FORGED: u16 = 512;
const DISCARD: u16 = 9;
const PORT: u16 = 9500;

/// Measures the throughput of a transfer during a flood.
pub fn measure(figures: &mut Figures) -> Result<()> {
    let bare = Network::new(Way::Direct)?;
    let _drop = attach(&bare, true)?;
    let guarded = Guarded::new(&[])?;
    let key = || guarded.authority.master_key();
    let (bare_flood, our_flood) =
        (Flood::new(&bare, Mint::new(key()?, VERIFIER))?, Flood::new(&guarded.network, Mint::new(key()?, VERIFIER))?);
    // Fetch the grants now, so that no round waits for a grant.
    transfer(&guarded.network)?;
    let judged = || Ok::<_, anyhow::Error>(guarded.verifier.counters()?.dropped(DropReason::BadTag));
    let (before, mut sent) = (judged()?, 0);
    let (mut baseline, mut ours) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        baseline.push(bare_flood.during(|| transfer(&bare))?.0);
        let (rate, count) = our_flood.during(|| transfer(&guarded.network))?;
        ours.push(rate);
        sent += count;
    }
    let dropped = judged()? - before;
    ensure!(
        sent > 0 && dropped >= sent / 10 * 9,
        "of {sent} forged packets, the verifier dropped only {dropped} because of a wrong tag"
    );
    let beside = Yardstick::new(baseline);
    figures.add("flood.transfer_ratio", "Mbit/s", median(&ours), &beside, Bound::AtLeast(0.85));
    let strangers = guarded.verifier.flows()?.iter().filter(|flow| flow["person"] != "alice").count();
    figures.count("flood.flows_left", "flows", strangers as f64, Bound::AtMost(0.0));
    let rate = sent as f64 / ROUNDS as f64 / TIME.as_secs_f64();
    figures.count("flood.packets_per_s", "packets/s", rate, Bound::None);
    Ok(())
}

/// Returns the throughput of a transfer by one client, in Mbit/s.
fn transfer(network: &Network) -> Result<f64> {
    let address: IpAddr = DARK4.parse()?;
    let _sink = Sink::start(&network.server, PORT)?;
    Ok(Transfer::start(&network.alice, SocketAddr::new(address, PORT), TIME, None)?.finish()?.megabits())
}

/// A flood of forged first packets, which the router sends on the server's own cable.
struct Flood {
    port: Port,
    frames: Vec<Vec<u8>>,
}

impl Flood {
    fn new(network: &Network, mut mint: Mint) -> Result<Self> {
        let to = Destination { address: DARK4.parse()?, protocol: 6, port: DISCARD };
        let source: IpAddr = PUBLIC4.parse()?;
        let (from, at) = (network.internet.mac("dc")?, network.server.mac("eth0")?);
        let frames = (0..FORGED).map(|index| {
            let mut block = mint.block(&mint_grant(&mint, index, to, source))?;
            // Flips a bit in the tag's last byte, so that the token has the right form and a wrong tag.
            block[39] ^= 1;
            let syn = Packet::new(source, to.address).ethernet(from, at).tcp(Tcp::syn(1024 + index, to.port));
            Ok(syn.payload(&block).frame())
        });
        Ok(Self { frames: frames.collect::<Result<_>>()?, port: Port::open(&network.internet, "dc")? })
    }

    /// Floods while `work` runs; returns the result of `work` and the number of packets sent.
    fn during<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<(T, u64)> {
        let (end, sent) = (AtomicBool::new(false), AtomicU64::new(0));
        thread::scope(|scope| {
            let flood = scope.spawn(|| -> Result<()> {
                let began = Instant::now();
                for frame in self.frames.iter().cycle() {
                    if end.load(Relaxed) {
                        break;
                    }
                    self.port.send(frame)?;
                    let count = sent.fetch_add(1, Relaxed) + 1;
                    if count.is_multiple_of(64) {
                        let due = Duration::from_secs_f64(count as f64 / RATE as f64);
                        thread::sleep(due.saturating_sub(began.elapsed()));
                    }
                }
                Ok(())
            });
            let done = work();
            end.store(true, Relaxed);
            flood.join().ok().context("the flood panicked")??;
            Ok((done?, sent.load(Relaxed)))
        })
    }
}

fn mint_grant(mint: &Mint, index: u16, to: Destination, source: IpAddr) -> lab::mint::Forgery {
    mint.grant(0x0f10_0d00 + u64::from(index), to, source)
}
