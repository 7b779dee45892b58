//! Measures by how much compression raises the throughput on a path of 100 Mbit/s.
//!
//! The text is the documentation of Perl's modules in the package `perl-modules-…`, which is installed with `perl`. The
//! yardstick is the same transfer through the same tunnel without compression.

use crate::ROUNDS;
use crate::stage::{SERVER, Stage, demand};
use anyhow::{Context, Result, ensure};
use engine::model::{Compress, Sealing, Treatment};
use lab::transfer::{Sink, Transfer};
use measure::{Bound, Figures};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Rate of the path's narrowest link.
const LIMIT: [&str; 6] = ["rate", "100mbit", "burst", "64kb", "latency", "20ms"];
const TIME: Duration = Duration::from_millis(1200);
/// Where Debian and Ubuntu keep the modules' documentation.
const TEXTS: &str = "/usr/share/perl";
/// Minimum length of the text, in bytes. A folder with less text is the wrong folder.
const TEXT_MIN: usize = 500_000;
const NEVER: u16 = 5001;
const AUTO: u16 = 5002;

/// Measures transfers of text, and of random bytes, which compression can't shrink. Each transfer is made in turn with
/// the compression setting `auto` and with `never`.
pub fn measure(figures: &mut Figures) -> Result<()> {
    let mut text = Vec::new();
    collect(Path::new(TEXTS), &mut text)?;
    ensure!(
        text.len() > TEXT_MIN,
        "the folder {TEXTS} contains too little text: `sh xtask/setup.sh bench` installs it"
    );
    let mut noise = vec![0; 4 << 20];
    for room in noise.chunks_mut(256) {
        getrandom::fill(room).map_err(|error| anyhow::anyhow!("no random numbers: {error}"))?;
    }
    let stage = Stage::new(false, demand(Treatment::Encrypt));
    stage.leg(6, NEVER, demand(Treatment::Encrypt));
    stage.leg(6, AUTO, Sealing { compress: Some(Compress::Auto), ..demand(Treatment::Encrypt) });
    let _sinks = [Sink::start(&stage.server, NEVER)?, Sink::start(&stage.server, AUTO)?];
    let parts = [
        // The path has no limit yet, so `auto` has to find that compression does not pay.
        ("text_on_fast_path", text.clone(), Bound::None),
        ("text", text, Bound::AtLeast(2.5)),
        ("noise", noise, Bound::AtLeast(0.97)),
    ];
    for (part, (name, content, bound)) in parts.into_iter().enumerate() {
        if part == 1 {
            stage.router.run(["tc", "qdisc", "add", "dev", "wan", "root", "tbf"].into_iter().chain(LIMIT))?;
        }
        let content: Arc<[u8]> = content.into();
        let rate = |port: u16| -> Result<f64> {
            let to = SocketAddr::new(SERVER.parse()?, port);
            let transfer = Transfer::start_with(&stage.client, to, TIME, None, content.clone())?;
            Ok(transfer.finish()?.megabits())
        };
        rate(NEVER).context("the tunnel does not open")?;
        let counts = || stage.agent.counts().compressed.each_ref().map(|bytes| bytes.load(Ordering::Relaxed) as f64);
        let before = counts();
        let mut pairs = Vec::new();
        for round in 0..if bound == Bound::None { 3 } else { ROUNDS } {
            // The first transfer of a pair may find other queues on the path than the second one does.
            let (first, second) = if round % 2 == 0 { (AUTO, NEVER) } else { (NEVER, AUTO) };
            let rates = (rate(first)?, rate(second)?);
            pairs.push(if first == AUTO { rates } else { (rates.1, rates.0) });
            eprintln!("compress {name}: {:.0} Mbit/s, without {:.0}", pairs[round].0, pairs[round].1);
        }
        figures.add_pairs(&format!("seal.compress.{name}"), "Mbit/s", &pairs, bound);
        let [from, to] = counts();
        if to > before[1] {
            let ratio = (from - before[0]) / (to - before[1]);
            figures.count(&format!("seal.compress.{name}_ratio"), "times", ratio, Bound::None);
        }
    }
    Ok(())
}

/// Appends every text in Perl's format for documentation below a folder, in the order of names.
fn collect(folder: &Path, text: &mut Vec<u8>) -> Result<()> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("{}: is perl installed?", folder.display()))?;
    let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths.iter().filter(|path| !path.is_symlink()) {
        if path.is_dir() {
            collect(path, text)?;
        } else if path.extension().is_some_and(|extension| extension == "pod") {
            text.extend(std::fs::read(path)?);
        }
    }
    Ok(())
}
