//! The bytes on the wire, compared with the layout that LS publishes (§3.4, §4.1, §4.2, §5.4): an outer IPv4 header, an
//! inner one of 60 bytes with one option, and the transport. This file builds both headers, the token and the key by
//! itself, from nothing but the plain packet and the secrets.

use std::fs;

use anyhow::{Context, Result, ensure};
use lab::forge::checksum;
use lab::service::{ask, call};
use lab::world::{AUTHORITY, FRONT4, SOON, VERIFIER};
use lab::{Capture, poll, test};
use sha2::{Digest, Sha224};
use wire::{Epoch, ServerSecret};

use super::stage::{BRIDGE, Stage, echo};

const ETHERNET: usize = 14;
const IPV4: usize = 20;
/// Number of routers between the authority and the switch.
const ROUTERS: u8 = 2;
/// Length of an epoch, the authority's default.
const EPOCH_LENGTH: u32 = 3600;

/// Returns the frames of a capture, in order.
pub fn frames(capture: &Capture) -> Result<Vec<Vec<u8>>> {
    let file = fs::read(capture.file())?;
    let mut rest = file.get(24..).context("no pcap file")?;
    let mut frames = Vec::new();
    while let Some((header, after)) = rest.split_first_chunk::<16>() {
        let [.., a, b, c, d, _, _, _, _] = *header;
        let Some((frame, after)) = after.split_at_checked(u32::from_le_bytes([a, b, c, d]) as usize) else { break };
        frames.push(frame.to_vec());
        rest = after;
    }
    Ok(frames)
}

/// Reports whether a frame is IPv4, of this protocol, and from or to the address.
pub fn is(frame: &[u8], protocol: u8, end: End<'_>) -> bool {
    let (at, address) = match end {
        End::From(address) => (12, address),
        End::To(address) => (16, address),
    };
    let address: std::net::Ipv4Addr = address.parse().expect("an address");
    let ip = frame.get(ETHERNET..).unwrap_or_default();
    frame.get(12..ETHERNET) == Some(&[8, 0])
        && ip.get(9) == Some(&protocol)
        && ip.get(at..at + 4) == Some(&address.octets())
}

/// One end of a packet.
#[derive(Clone, Copy)]
pub enum End<'a> {
    From(&'a str),
    To(&'a str),
}

/// Puts a plain frame into a shim, by the book: "the protocol field differs between the two IP headers […], but otherwise
/// the two headers contain identical values" (§4.1), apart from what the option and the lengths make of them. Routers on
/// the way count down the outer header's TTL only: the inner one is that of the sender, `hops` higher.
fn in_shim(plain: &[u8], option: &[u8], hops: u8) -> Vec<u8> {
    let (link, packet) = plain.split_at(ETHERNET);
    let (header, transport) = packet.split_at(IPV4);
    let header = |first: u8, more: usize, protocol: u8, option: &[u8], hops: u8| {
        let mut header = [header, option].concat();
        header[0] = first;
        header[8] += hops;
        header[2..4].copy_from_slice(&((packet.len() + more) as u16).to_be_bytes());
        header[9] = protocol;
        header[10..12].fill(0);
        let sum = checksum(&[&header]);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        header
    };
    let mut options = option.to_vec();
    options.resize(40, 0);
    let (outer, inner) = (header(0x45, 60, 4, &[], 0), header(0x4f, 40, packet[9], &options, hops));
    [link, &outer, &inner, transport].concat()
}

/// Returns an option of the inner header: type, length, kind, data.
fn option(kind: u8, data: &[u8]) -> Vec<u8> {
    [&[0x9e, 3 + data.len() as u8, kind], data].concat()
}

fn sha224(parts: &[&[u8]]) -> Vec<u8> {
    Sha224::digest(parts.concat()).to_vec()
}

/// Returns the secrets that the application server may share with the authentication server now.
fn secrets(stage: &Stage) -> Result<Vec<ServerSecret>> {
    let Epoch(now) = Epoch::at(lab::mint::now().into(), EPOCH_LENGTH);
    let master = stage.authority.master_key()?;
    let secret = |epoch| ServerSecret::of(&master.verifier_key(VERIFIER, Epoch(epoch))?);
    (now - 1..=now).map(|epoch| secret(epoch).context("a secret")).collect()
}

#[test]
fn every_shim_is_as_published_byte_for_byte() {
    test(|| {
        let stage = Stage::new(&[])?;
        let (router, alice) = (&stage.network.router, &stage.network.alice);
        let (plain, shimmed) = (Capture::start(router, "lan-alice")?, Capture::start(router, BRIDGE)?);
        let _browser = stage.log_in(alice, "alice")?;
        let handle = stage.handles()?.pop().context("no pair")?;
        let pair = hex::decode(handle.trim_start_matches("0x"))?.split_off(1);
        let (unique_id, nonce1) = pair.split_at(5);
        let keys: Vec<_> = secrets(&stage)?.iter().map(|secret| sha224(&[unique_id, nonce1, secret.bytes()])).collect();
        for _ in 0..3 {
            call(alice, echo(), SOON)?;
            ask(alice, echo(), SOON)?;
        }
        let in_shims = |end| frames(&shimmed).map(|all| all.into_iter().filter(|frame| is(frame, 4, end)).collect());
        let shims = |end| -> Result<Vec<Vec<u8>>> { in_shims(end) };
        ensure!(poll(SOON, || shims(End::To(FRONT4)).is_ok_and(|shims| shims.len() >= 6)), "too few shims");
        // Each packet reaches the device's cable first. With the shims' capture at rest and read before the other one, the
        // plain form of every packet in it is in the other, also if a machine under load still sends or captures.
        shimmed.settle()?;
        let after = frames(&shimmed)?;
        let shims = |end| after.iter().filter(|frame| is(frame, 4, end)).cloned().collect::<Vec<_>>();
        plain.settle()?;
        let plain = frames(&plain)?;

        // §3.4: "an option indicating that the client supports the protocol", on SYNs to the authentication server.
        let supports = shims(End::To(AUTHORITY));
        ensure!(!supports.is_empty(), "nobody announced support");
        for shim in &supports {
            let mut packets = plain.iter().filter(|plain| is(plain, 6, End::To(AUTHORITY)));
            let known = packets.any(|plain| in_shim(plain, &option(1, &[]), 0) == *shim);
            ensure!(known, "{} is no packet of the browser with the option", hex::encode(shim));
        }

        // §4.1: "both the clientKey value and the concatenation of the uniqueIdentifier and nonce1 value".
        let transfers = shims(End::From(AUTHORITY));
        ensure!(transfers.len() == 1, "{} transfers", transfers.len());
        let key = keys.iter().find(|key| {
            let option = option(2, &[&key[..], unique_id, nonce1].concat());
            let mut packets = plain.iter().filter(|plain| is(plain, 6, End::From(AUTHORITY)));
            packets.any(|plain| in_shim(plain, &option, ROUTERS) == transfers[0])
        });
        let key = key.with_context(|| format!("{} is no transfer of the key", hex::encode(&transfers[0])))?;

        // §4.2: "The token we construct is 37 bytes total (5 bytes for the user ID, 2 bytes for the nonce1, 2 bytes for
        // nonce2, and 28 bytes for the SHA224 output)", and each nonce2 is used once.
        let mut nonces = Vec::new();
        for shim in shims(End::To(FRONT4)) {
            let inner = shim.get(ETHERNET + IPV4..).and_then(|rest| rest.get(..60)).context("a short shim")?;
            let nonce2 = &inner[IPV4 + 3 + 7..][..2];
            let token = [unique_id, nonce1, nonce2, &sha224(&[unique_id, nonce2, key])].concat();
            ensure!(token.len() == 37, "{} bytes", token.len());
            let expected = option(3, &token);
            let known =
                plain.iter().any(|plain| plain.len() + 60 == shim.len() && in_shim(plain, &expected, 0) == shim);
            ensure!(known, "{} is no packet of the device with its token", hex::encode(&shim));
            nonces.push(nonce2.to_vec());
        }
        let count = nonces.len();
        nonces.sort();
        nonces.dedup();
        ensure!(nonces.len() == count && count >= 6, "{count} tokens, {} nonces", nonces.len());
        // §5.4: "20 bytes for the inner IP header, with an additional 40 bytes for our IP option", on the first packet
        // of a flow only.
        let others = after.iter().filter(|frame| is(frame, 6, End::To(FRONT4)) || is(frame, 17, End::To(FRONT4)));
        ensure!(others.clone().all(|frame| plain.contains(frame)), "a later packet was changed");
        ensure!(others.count() > 0, "no later packet");
        Ok(())
    });
}
