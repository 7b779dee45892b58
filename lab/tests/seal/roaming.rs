//! Flows in a tunnel survive that their machine moves; nobody else moves a tunnel.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lab::service::{call, exchange};
use lab::test;
use lab::world::{ECHO, FRONT4, SOON};

use crate::stage::{SOURCE, Stage, TUNNEL, at, nothing_outside};

#[test]
fn a_download_goes_on_while_the_client_s_address_changes_three_times() {
    test(|| {
        let size: u64 = if std::env::var_os("VOUCHSAFE_SEAL_MINUTES").is_some() { 1_000_000_000 } else { 24_000_000 };
        let stage = Stage::new()?;
        let (alice, cable) = (&stage.network.alice, stage.observe()?);
        let mut stream = alice.enter(|| TcpStream::connect_timeout(&at(FRONT4, SOURCE), SOON)).context("no server")?;
        stream.set_read_timeout(Some(2 * SOON))?;
        stream.write_all(&size.to_be_bytes())?;
        let (mut buffer, mut got, mut moves) = (vec![0; 256 * 1024], 0_u64, 0);
        while got < size {
            let read = stream.read(&mut buffer).with_context(|| format!("after {got} bytes and {moves} moves"))?;
            ensure!(read > 0, "the stream ended after {got} bytes");
            ensure!(buffer[..read].iter().all(|byte| *byte == 0x5a), "other bytes than were sent");
            got += read as u64;
            if moves < 3 && got > size / 4 * (moves + 1) {
                moves += 1;
                // Another address of another translator's client: 10.1.0.2, 3 and 4.
                alice.ip(&format!("address del 10.1.0.{moves}/24 dev eth0"))?;
                alice.ip(&format!("address add 10.1.0.{}/24 dev eth0", moves + 1))?;
                alice.route("default", "10.1.0.254")?;
            }
        }
        ensure!(moves == 3, "{moves} moves");
        nothing_outside(&cable)?;
        // The tunnel has come from as many ports of the translator as the client had addresses.
        let ports: BTreeSet<_> = cable
            .lines(&format!("udp dst port {TUNNEL}"))?
            .iter()
            .filter_map(|line| Some(line.split(" > ").nth(1)?.rsplit(' ').next()?.to_owned()))
            .collect();
        ensure!(ports.len() > 1, "the tunnel never moved: {ports:?}");
        // An address that is not this machine's any more may be a neighbour's: nobody here answers for it.
        let asked = ["busybox", "arping", "-c", "2", "-w", "2", "-I", "lan-alice", "10.1.0.1"];
        let said = String::from_utf8_lossy(&stage.network.router.output(asked)?.stdout).into_owned();
        ensure!(said.contains("Sent 2 probe") && said.contains("Received 0 "), "{said}");
        Ok(())
    });
}

#[test]
fn whoever_repeats_the_tunnel_s_datagrams_from_elsewhere_moves_nothing() {
    test(|| {
        let stage = Stage::new()?;
        let (alice, cable) = (&stage.network.alice, stage.observe()?);
        let mut stream = call(alice, at(FRONT4, ECHO), SOON)?;
        (0..20).try_for_each(|_| exchange(&mut stream))?;
        // A neighbour behind the same translator, and one who saw every datagram, the first ones with tokens included.
        let datagrams = payloads(&std::fs::read(cable.file())?);
        ensure!(datagrams.len() > 10, "{} datagrams were seen", datagrams.len());
        let before = stage.verifier.counters()?;
        for copier in [&stage.network.mallory, &stage.network.authority] {
            let heard = copier.enter(|| -> Result<bool> {
                let socket = UdpSocket::bind("0.0.0.0:0")?;
                socket.set_read_timeout(Some(Duration::from_millis(300)))?;
                for datagram in &datagrams {
                    socket.send_to(datagram, at(FRONT4, TUNNEL))?;
                }
                Ok(socket.recv(&mut [0; 2048]).is_ok())
            })?;
            ensure!(!heard, "somebody who only copies gets an answer");
            exchange(&mut stream).context("the tunnel went elsewhere")?;
        }
        let grown = stage.verifier.counters()?.since(&before);
        ensure!(grown.contains_key("replayed") || grown.contains_key("no_token"), "{grown:?}");
        Ok(())
    });
}

/// Returns the payloads of IPv4 datagrams to the tunnel in a capture with Ethernet headers.
pub fn payloads(file: &[u8]) -> Vec<Vec<u8>> {
    let (mut found, mut at) = (Vec::new(), 24);
    while let Some(head) = file.get(at..at + 16) {
        let size = u32::from_le_bytes([head[8], head[9], head[10], head[11]]) as usize;
        let Some(frame) = file.get(at + 16..at + 16 + size) else { break };
        at += 16 + size;
        let is_udp4 = frame.get(12..14) == Some(&[8, 0]) && frame.get(23) == Some(&17) && frame.get(14) == Some(&0x45);
        if is_udp4 && frame.get(36..38) == Some(&TUNNEL.to_be_bytes()) && (43..1500).contains(&frame.len()) {
            found.push(frame[42..].to_vec());
        }
    }
    found
}
