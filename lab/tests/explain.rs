//! Tests that `verifier explain --packet` gives each packet of a capture the verdict that the kernel then gives.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lab::capture::pcap;
use lab::forge::flag::{ACK, PSH};
use lab::forge::{Tcp, protocol};
use lab::mint::{Mint, now};
use lab::service::{ask, call, exchange};
use lab::world::{ECHO, FRONT4, FRONT6, OPEN4, SSH, VERIFIER, Way, in_family};
use lab::{Capture, Outsider, Place, World, poll, process, test};
use serde_json::Value;
use wire::{Destination, Handle};

const SOON: Duration = Duration::from_secs(5);
/// Source port of the first handmade flow.
const FROM: u16 = 40_000;

/// Returns the verdict for each packet of a capture, as JSON, and the exit code.
fn verdicts(world: &World, file: &Path) -> Result<(Vec<Value>, Option<i32>)> {
    let Output { status, stdout, stderr } = world.verifier.explain_packets(file, &["--json"])?;
    let lines = std::str::from_utf8(&stdout)?.lines().map(serde_json::from_str);
    let lines = lines.collect::<Result<Vec<Value>, _>>().context("a line of JSON per packet")?;
    ensure!(stderr.is_empty(), "{}", String::from_utf8_lossy(&stderr));
    Ok((lines, status.code()))
}

/// Returns frames of an outsider next door, with names: with right, forged, used and expired tokens, and for other
/// ports.
fn frames(world: &World, outsider: &Outsider) -> Result<Vec<(&'static str, Vec<u8>)>> {
    let six = outsider.source.is_ipv6();
    let front = in_family(six, FRONT4, FRONT6);
    let mut mint = Mint::new(world.authority.master_key()?, VERIFIER);
    let tcp = Destination { address: front, protocol: protocol::TCP, port: ECHO };
    let right = mint.grant(7, tcp, outsider.source);
    let mut expired = right;
    expired.header.expires = now() - 60;
    expired.header.handle = Handle(8);
    let mut forged = mint.block(&right)?;
    forged[30] ^= 1;
    let token = mint.block(&right)?;
    let elsewhere = mint.block(&mint.grant(9, Destination { port: SSH, ..tcp }, outsider.source).clone())?;
    let udp = mint.grant(10, Destination { protocol: protocol::UDP, ..tcp }, outsider.source);
    let datagram = mint.block(&udp)?;
    let syn = |from: u16, block: &[u8]| outsider.syn(from, front, ECHO).payload(block).frame();
    let later = |from: u16| outsider.packet(front).tcp(Tcp::new(from, ECHO, ACK | PSH)).payload(b"later").frame();
    Ok(vec![
        ("no_token", syn(FROM, b"")),
        ("bad_tag", syn(FROM, &forged)),
        ("expired", syn(FROM, &mint.block(&expired)?)),
        ("bad_tag", syn(FROM, &elsewhere)),
        ("no_flow", later(FROM)),
        ("token", syn(FROM + 1, &token)),
        ("flow", later(FROM + 1)),
        ("replayed", syn(FROM + 2, &token)),
        ("token", outsider.datagram(FROM, front, ECHO).payload(&[b"hello", &datagram[..]].concat()).frame()),
        ("flow", outsider.datagram(FROM, front, ECHO).payload(b"hello again").frame()),
    ])
}

/// Sends a frame; returns the counters that it increased, and by how much.
fn moved(world: &World, outsider: &Outsider, frame: &[u8]) -> Result<BTreeMap<String, u64>> {
    let before = world.verifier.counters()?;
    outsider.send(frame)?;
    let mut since = BTreeMap::new();
    let counted = || match world.verifier.counters() {
        Ok(now) => {
            since = now.since(&before);
            !since.is_empty()
        }
        Err(_) => false,
    };
    ensure!(poll(SOON, counted), "no counter moved");
    Ok(since)
}

#[test]
fn every_packet_gets_the_verdict_that_the_kernel_gives_it() {
    test(|| {
        let world = World::new(Way::Direct)?;
        let dir = tempfile::tempdir()?;
        for six in [false, true] {
            let outsider = Outsider::new(&world.network, Place::NextDoor, six)?;
            for (at, (expected, frame)) in frames(&world, &outsider)?.into_iter().enumerate() {
                let (old, new) = (dir.path().join("one.pcap"), dir.path().join("one.pcapng"));
                fs::write(&old, pcap(std::slice::from_ref(&frame)))?;
                process::output(Command::new("tshark").args(["-F", "pcapng", "-r"]).arg(&old).arg("-w").arg(&new))?;
                ensure!(fs::read(&new)?.starts_with(&[0x0a, 0x0d, 0x0d, 0x0a]), "not pcapng");
                for file in [&old, &new] {
                    let (lines, code) = verdicts(&world, file)?;
                    let [line] = &lines[..] else { anyhow::bail!("{lines:?}") };
                    let passes = ["token", "flow"].contains(&expected);
                    ensure!(line["number"] == 1 && line["outcome"] == expected, "frame {at}, six: {six}: {line}");
                    ensure!(line["passes"] == passes && code == Some(i32::from(!passes)), "{code:?}: {line}");
                }
                let moved = moved(&world, &outsider, &frame)?;
                ensure!(moved.contains_key(expected), "frame {at}, six: {six}: expected {expected}, moved {moved:?}");
            }
        }
        Ok(())
    });
}

#[test]
fn a_real_capture_is_explained_from_its_first_to_its_last_packet() {
    test(|| {
        let world = World::new(Way::Direct)?;
        let to: SocketAddr = format!("{FRONT4}:{ECHO}").parse()?;
        let cable = Capture::start(&world.network.internet, "dc")?;
        let mut stream = call(&world.network.alice, to, SOON)?;
        exchange(&mut stream)?;
        ask(&world.network.alice, to, SOON)?;
        call(&world.network.alice, format!("{OPEN4}:{ECHO}").parse()?, SOON)?;
        let file = cable.stop()?;
        let (lines, code) = verdicts(&world, &file)?;
        ensure!(lines.len() > 8, "{lines:?}");
        for (at, line) in lines.iter().enumerate() {
            ensure!(line["number"] == at + 1, "{line}");
        }
        // The connection is still open, so its later packets belong to a flow. The token of its first packet has been
        // used.
        let outcomes: Vec<_> = lines.iter().filter_map(|line| line["outcome"].as_str()).collect();
        for expected in ["replayed", "flow", "not_ours"] {
            ensure!(outcomes.contains(&expected), "no {expected}: {outcomes:?}");
        }
        ensure!(code == Some(1), "{code:?}: {lines:#?}");

        let Output { status, stdout, .. } = world.verifier.explain_packets(&file, &[])?;
        let text = String::from_utf8(stdout)?;
        ensure!(status.code() == Some(1) && text.contains("packet 1\n") && text.contains("admitted flow"), "{text}");
        Ok(())
    });
}

#[test]
fn a_file_that_cannot_be_explained_is_refused_with_the_reason() {
    test(|| {
        let world = World::new(Way::Direct)?;
        let dir = tempfile::tempdir()?;
        let outsider = Outsider::new(&world.network, Place::NextDoor, false)?;
        let frame = outsider.syn(FROM, FRONT4.parse()?, ECHO).frame();
        let whole = pcap(&[frame.clone(), frame]);
        // The second record's header says that the packet was longer than the part in the file.
        let mut cut = whole.clone();
        let length = whole.len() - (whole.len() - 24) / 2 + 12;
        cut[length] += 1;
        let file = dir.path().join("it.pcap");
        for (bytes, reason) in [
            (&b"a text, and no capture of any packets at all"[..], "is not a packet capture"),
            (b"", "is empty"),
            (&whole[..whole.len() - 1], "is cut short after packet 1"),
            (&cut, "packet 2 is truncated in the capture: capture with -s 0"),
        ] {
            fs::write(&file, bytes)?;
            let Output { status, stderr, stdout } = world.verifier.explain_packets(&file, &["--json"])?;
            let error = String::from_utf8_lossy(&stderr);
            ensure!(status.code() == Some(2) && error.contains(reason), "expected {reason}: {error}");
            ensure!(stdout.is_empty() || reason.starts_with("packet 2"), "{}", String::from_utf8_lossy(&stdout));
        }
        let missing = world.verifier.explain_packets(&dir.path().join("missing.pcap"), &[])?;
        let error = String::from_utf8_lossy(&missing.stderr);
        ensure!(missing.status.code() == Some(2) && error.contains("cannot open"), "{error}");
        Ok(())
    });
}
