//! CSRA, Tables 2 and 3: a stream, and exchanges of single bytes, through tunnels with several ciphers, with and
//! without forward secrecy. First the keys stay the same, then they are renewed five times while the stream runs.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::{Cells, Study, missing, start};
use crate::driver::Driver;
use crate::drivers::strongswan::{self, Rekey};
use crate::drivers::vouchsafe::{self, Treatment};
use crate::measure::services::Use;
use crate::measure::streams;
use crate::measure::suite::{Ends, Plan, Sink};
use crate::scene::{End, Scene};
use crate::site::Path;

/// Name of the study of ciphers.
pub const NAME: &str = "ciphers";
/// The paper renewed keys every 120 s in runs of 600 s.
const PAPER_REKEY: u64 = 120;
/// Renewals in a run, in the paper and here.
const RENEWALS: u64 = 5;
/// Number of bytes after which keys are renewed, where the study renews keys by amount of data.
const REKEY_BYTES: u64 = 60_000_000;

/// The combinations: name, ESP proposal without and with a group for new keys.
const IPSEC: [(&str, [&str; 2]); 4] = [
    ("AES-256-GCM", ["aes256gcm16", "aes256gcm16-x25519"]),
    ("ChaCha20-Poly1305", ["chacha20poly1305", "chacha20poly1305-x25519"]),
    ("AES-256-CBC, SHA-256", ["aes256-sha256", "aes256-sha256-x25519"]),
    ("no cipher, SHA-256", ["null-sha256", "null-sha256-x25519"]),
];

/// The study of ciphers and new keys.
pub struct Ciphers;

/// Seconds between renewals.
fn rekey(plan: &Plan) -> u64 {
    if plan.paper_lengths { PAPER_REKEY } else { 1 }
}

impl Study for Ciphers {
    fn name(&self) -> &'static str {
        NAME
    }

    fn title(&self) -> &'static str {
        "CSRA, Tables 2 and 3: cipher, forward secrecy, and new keys"
    }

    fn obstacle(&self) -> Option<String> {
        let all = [tunnel(0, true, Rekey::Default), sealed(true)];
        let reasons: Vec<_> = all.iter().map(|driver| missing(driver.as_ref())).collect();
        reasons.iter().all(Option::is_some).then(|| reasons.into_iter().flatten().collect::<Vec<_>>().join("; "))
    }

    fn transfers(&self, plan: &Plan) -> Duration {
        // Streams and exchanges without renewal; streams with it have a length of their own.
        plan.span * 20
    }

    fn run(&self, plan: &Plan, round: u32, ends: Ends<'_>, sink: &mut Sink<'_>) -> Result<()> {
        let mut cells = Cells { study: NAME, round, ends, sink };
        let every = rekey(plan);
        for (number, (cipher, _)) in IPSEC.into_iter().enumerate() {
            for secrecy in [false, true] {
                let row = format!("IPsec: {cipher}{}", if secrecy { ", forward secrecy" } else { "" });
                steady(&row, tunnel(number, secrecy, Rekey::Default).as_ref(), plan, &mut cells)?;
                // The paper's second table, for the two ciphers of today's proposals.
                if number < 2 {
                    renewed(&row, tunnel(number, secrecy, Rekey::Seconds(every)).as_ref(), plan, &mut cells)?;
                }
                if number == 0 {
                    by_bytes(&row, tunnel(number, secrecy, Rekey::Bytes(REKEY_BYTES)).as_ref(), plan, &mut cells)?;
                }
            }
        }
        for secrecy in [false, true] {
            let row = format!("Vouchsafe, sealed{}", if secrecy { ", forward secrecy" } else { "" });
            steady(&row, sealed(secrecy).as_ref(), plan, &mut cells)?;
        }
        Ok(())
    }
}

/// Returns IPsec in user space, which has all of these ciphers on every kernel.
fn tunnel(number: usize, secrecy: bool, rekey: Rekey) -> Box<dyn Driver> {
    strongswan::with("ipsec", IPSEC[number].1[usize::from(secrecy)], false, rekey)
}

fn sealed(forward_secrecy: bool) -> Box<dyn Driver> {
    vouchsafe::with("vouchsafe-seal", Treatment::Sealed { how: "encrypt", forward_secrecy })
}

/// Measures a tunnel whose keys stay the same.
fn steady(row: &str, driver: &dyn Driver, plan: &Plan, cells: &mut Cells<'_, '_>) -> Result<()> {
    if missing(driver).is_some() {
        return Ok(());
    }
    cells.part(row, |cells| {
        let (scene, services) = start(driver, 1, Path::Bridge)?;
        let (way, server) = (scene.way(), scene.server());
        let (moved, _) = streams::transfer(&way, server, &services, (Use::Up, 1), plan.span, || ())?;
        cells.add(row, "stream", "Mbit/s", moved.rate())?;
        cells.add(row, "exchanges", "exchanges/s", streams::exchanges(&way, server, plan.span)?)
    })
}

/// Measures a tunnel whose keys are renewed by the clock.
fn renewed(row: &str, driver: &dyn Driver, plan: &Plan, cells: &mut Cells<'_, '_>) -> Result<()> {
    // The time of a little more than five renewals, so that five are complete.
    let span = Duration::from_secs(rekey(plan) * RENEWALS) + Duration::from_millis(400);
    under_renewal(row, "keys renewed by time", driver, span, cells)
}

/// Measures a tunnel whose keys are renewed after an amount of data.
fn by_bytes(row: &str, driver: &dyn Driver, plan: &Plan, cells: &mut Cells<'_, '_>) -> Result<()> {
    under_renewal(row, "keys renewed by amount", driver, plan.span.max(Duration::from_secs(2)), cells)
}

fn under_renewal(row: &str, how: &str, driver: &dyn Driver, span: Duration, cells: &mut Cells<'_, '_>) -> Result<()> {
    if missing(driver).is_some() {
        return Ok(());
    }
    cells.part(&format!("{row}, {how}"), |cells| {
        let (scene, services) = start(driver, 1, Path::Bridge)?;
        let keys = || keys(&scene);
        let (moved, [before, after]) =
            streams::transfer(&scene.way(), scene.server(), &services, (Use::Up, 1), span, keys)?;
        ensure!(before > 0, "the server's log shows no keys");
        cells.add(row, &format!("stream, {how}"), "Mbit/s", moved.rate())?;
        cells.add(row, &format!("new keys, {how}"), "in the run", (after - before) as f64)
    })
}

/// Returns how many keys for data the server has agreed on since it was started. A renewal is two lines of its log, one
/// for each direction.
fn keys(scene: &Scene) -> usize {
    let log = scene.whole_logs(End::Server);
    log.lines().filter(|line| line.contains("established with SPIs") && !line.contains("inbound CHILD_SA")).count()
}
