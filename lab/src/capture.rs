//! Packet captures, which are kept when a test fails.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::mint::now;
use crate::net::Namespace;
use crate::poll;
use crate::process::{self, Process};

/// Compares two captures of the same packets, each given with a pcap filter. Returns, for each packet in `short`, by
/// how many bytes it was longer in `long`. Packets are matched by their IP identification. Packets that are only in
/// `long` are ignored, because they were lost or are still in transit.
pub fn overhead(long: (&Capture, &str), short: (&Capture, &str)) -> Result<Vec<usize>> {
    let before = long.0.lengths(long.1)?;
    let of = |(id, length): (u16, usize)| {
        let (_, longer) = before.iter().find(|(other, _)| *other == id)?;
        longer.checked_sub(length)
    };
    let after = short.0.lengths(short.1)?;
    after
        .iter()
        .map(|packet| {
            of(*packet).with_context(|| format!("the packet {packet:?} has no match at least as long in {before:?}"))
        })
        .collect()
}

/// A running capture of both directions of one device, as a pcap file in the namespace's folder.
pub struct Capture {
    tcpdump: Process,
    file: PathBuf,
}

impl Capture {
    /// Captures on `device` from this moment on: once this function returns, no later packet is missed.
    pub fn start(namespace: &Namespace, device: &str) -> Result<Self> {
        let file = namespace.dir().join(format!("{device}.pcap"));
        // An earlier capture of the device may still be writing to a file of this name.
        let _ = fs::remove_file(&file);
        let mut command = namespace.command("tcpdump");
        // -U and immediate mode write each packet to the file at once. No -Z root: Ubuntu 24.04's tcpdump 4.99.4
        // crashes on it.
        command.args(["--immediate-mode", "-U", "-n", "-s", "0", "-i", device, "-w"]).arg(&file);
        let mut tcpdump = namespace.start(command)?;
        tcpdump.wait_for("listening on", Duration::from_secs(5)).context("tcpdump does not start")?;
        Ok(Self { tcpdump, file })
    }

    /// Returns the path of the pcap file.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Returns the packets captured so far that match the pcap `filter` (empty: all), one line per packet.
    pub fn lines(&self, filter: &str) -> Result<Vec<String>> {
        let text = self.read("-e", filter)?;
        Ok(text.lines().filter(|line| !line.starts_with(char::is_whitespace)).map(str::to_owned).collect())
    }

    /// Returns the IP identification and the length of each IPv4 packet that matches the pcap filter, in order.
    pub fn lengths(&self, filter: &str) -> Result<Vec<(u16, usize)>> {
        let text = self.read("-v", filter)?;
        let field = |line: &str, name: &str| -> Option<usize> {
            line.split(name).nth(1)?.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
        };
        let packet = |line: &str| Some((u16::try_from(field(line, ", id ")?).ok()?, field(line, ", length ")?));
        let lines = text.lines().filter(|line| !line.starts_with(char::is_whitespace));
        lines.map(|line| packet(line).with_context(|| format!("no length in {line}"))).collect()
    }

    /// Prints the packets captured so far that match the pcap filter. Reads the file again if it ends in the middle of
    /// a packet, because tcpdump is still writing this packet.
    fn read(&self, option: &str, filter: &str) -> Result<String> {
        let read = || {
            let mut command = Command::new("tcpdump");
            process::output(command.args(["-n", option, "-r"]).arg(&self.file).arg(filter))
        };
        let mut text = read();
        // If the file stays cut, the caller gets tcpdump's error.
        let _ = poll(Duration::from_secs(5), || {
            let is_cut = |error: &anyhow::Error| {
                let said = format!("{error:#}");
                ["truncated dump file", "invalid packet capture length"].iter().any(|fault| said.contains(fault))
            };
            let is_whole = !text.as_ref().is_err_and(is_cut);
            if !is_whole {
                text = read();
            }
            is_whole
        });
        text
    }

    /// Ends the capture once all packets up to now are in the file, and returns the file's path. The file exists as
    /// long as the namespace's folder.
    pub fn stop(mut self) -> Result<PathBuf> {
        self.settle()?;
        self.tcpdump.stop()?;
        Ok(self.file.clone())
    }

    /// Waits until all packets up to now are in the file. Without this, a test that looks for a packet's absence may
    /// pass only because tcpdump lags behind.
    pub fn settle(&self) -> Result<()> {
        // tcpdump sleeps only when it has no packets left to read.
        let stat = format!("/proc/{}/stat", self.tcpdump.pid());
        let sleeps = || fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") S "));
        ensure!(poll(Duration::from_secs(5), sleeps), "tcpdump still has packets to read");
        Ok(())
    }
}

/// Returns a pcap file that holds these Ethernet frames, all captured now.
pub fn pcap(frames: &[Vec<u8>]) -> Vec<u8> {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 262_144, 1] {
        file.extend(word.to_le_bytes());
    }
    for frame in frames {
        for word in [now(), 0, frame.len() as u32, frame.len() as u32] {
            file.extend(word.to_le_bytes());
        }
        file.extend(frame);
    }
    file
}
