//! One account floods the verifier's table of flows through its tunnel, and another account notices nothing.

// These tests need no network.
#[allow(dead_code)]
mod stage;

use engine::model::Treatment as Least;
use engine::tunnel::{Initiator, Packet, Received};
use stage::Dice;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering::Relaxed;
use tunnel::{End, Layout, Sealed, Times, VerifierEnd, Virtio, times};
use wire::packet::UDP;
use wire::seal::{Suites, Treatment};
use wire::{GrantHeader, Handle, Token, tail};

/// More flows than the verifier's table has room for.
const MANY: u32 = 80_000;

/// A client with a tunnel.
struct Client {
    from: SocketAddr,
    initiator: Initiator,
    dice: Dice,
}

/// Returns a datagram from a client to one of 65 536 ports of 65 536 servers.
fn packet(number: u32) -> Vec<u8> {
    let [a, b, c, d] = number.to_be_bytes();
    let mut packet = vec![0x45, 0, 0, 36, 0, 1, 0, 0, 64, UDP, 0, 0, 10, 1, 0, 1, 192, 0, a, b];
    packet.extend([0x9c, 0x40, c, d, 0, 16, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
    packet
}

impl Client {
    /// Opens a tunnel of this account.
    fn new(verifier: &mut VerifierEnd<stage::Known>, account: u32, times: Times) -> Self {
        let from = SocketAddr::new(IpAddr::from([10, 0, 0, account as u8]), 40_000);
        let mut client = Self { from, initiator: Initiator::new(stage::terms(account)), dice: Dice(account.into()) };
        client.initiator.want(true);
        for _ in 0..2 {
            for mut datagram in client.initiator.poll(times, &mut client.dice) {
                let mut replies = Vec::new();
                verifier.receive(from, None, &mut datagram, times, &mut replies);
                for mut reply in replies {
                    let _ = client.initiator.receive(&mut reply.datagram, times, &mut client.dice);
                }
            }
        }
        assert!(client.initiator.is_open(times.0), "the tunnel is open");
        client
    }

    /// Sends an authenticated packet, and reports whether the verifier lets it out of the tunnel.
    fn send(&mut self, verifier: &mut VerifierEnd<stage::Known>, packet: &[u8], times: Times) -> bool {
        let parts = [packet];
        let treatment = Treatment::Authenticate;
        let packet = Packet { treatment, suites: Suites::ALL, lane: 0, partial: false, parts: &parts };
        let mut batch = seal::Batch::default();
        self.initiator.seal(&packet, times, &mut self.dice, &mut batch).expect("a record");
        let mut datagram = batch.runs().next().expect("a record").bytes.to_vec();
        match verifier.receive(self.from, None, &mut datagram, times, &mut Vec::new()) {
            Some((tunnel, Received::Packet { packet, treatment, suite, partial, .. })) => {
                let layout = Layout::of(packet).expect("a packet");
                let sealed = Sealed { treatment, suite, is_compressed: false };
                verifier.admit(tunnel, packet, &layout, partial, sealed, times)
            }
            other => panic!("{:?}", other.map(|other| other.1)),
        }
    }
}

/// Returns the treatment of an answer to `packet`, whose client has the inside address `inside`.
fn answered(verifier: &mut VerifierEnd<stage::Known>, packet: &[u8], inside: IpAddr, times: Times) -> Treatment {
    let IpAddr::V4(inside) = inside else { panic!("{inside}") };
    let mut answer = packet.to_vec();
    answer[12..16].copy_from_slice(&packet[16..20]);
    answer[16..20].copy_from_slice(&inside.octets());
    answer[20..22].copy_from_slice(&packet[22..24]);
    answer[22..24].copy_from_slice(&packet[20..22]);
    let layout = Layout::of(&answer).expect("a packet");
    verifier.route(&mut answer, &layout, Virtio::default(), times).expect("a way").1.treatment
}

#[test]
fn a_flood_of_flows_of_one_account_leaves_room_for_those_of_others() {
    let mut verifier = stage::verifier_end(stage::demand(Least::Authenticate));
    let (mut now, wall) = times();
    let mut flooder = Client::new(&mut verifier, 5, (now, wall));
    let mut other = Client::new(&mut verifier, 6, (now, wall));
    assert!(other.send(&mut verifier, &packet(1), (now, wall)));
    let mut admitted = 0;
    for number in 0..MANY {
        now += u64::from(number % 2);
        admitted += u32::from(flooder.send(&mut verifier, &packet(number), (now, wall)));
    }
    assert_eq!(admitted, MANY, "the flooder itself is not refused at this rate");
    let inside = |verifier: &VerifierEnd<_>| {
        let client = verifier.clients().into_iter().find(|(_, client, _)| client.holder.account() == 6);
        client.expect("an inside address").0
    };
    assert!(other.send(&mut verifier, &packet(2), (now, wall)), "the first packet of a new flow is refused");
    for number in [1, 2] {
        let at = inside(&verifier);
        assert_eq!(answered(&mut verifier, &packet(number), at, (now, wall)), Treatment::Authenticate, "{number}");
    }
}

#[test]
fn tokens_with_forged_handles_have_nothing_looked_up() {
    let (mut verifier, looks) = stage::watched_verifier_end(stage::demand(Least::Encrypt));
    let times = times();
    let mut client = Client::new(&mut verifier, 5, times);
    let terms = stage::terms(5);
    let mut send = |client: &mut Client, number: u32, handle: Handle| {
        let grant = GrantHeader { handle, ..terms.grant };
        let mut packet = packet(number);
        packet.extend(tail::block(&Token::new(grant, &terms.key, times.1, number, &terms.to).encode()));
        let length = packet.len() as u16;
        packet[2..4].copy_from_slice(&length.to_be_bytes());
        packet[24..26].copy_from_slice(&(length - 20).to_be_bytes());
        client.send(&mut verifier, &packet, times);
    };
    // A stranger's handle, as it travels in clear outside of tunnels, and handles that the attacker makes up.
    send(&mut client, 0, stage::terms(6).grant.handle);
    (1..=500).for_each(|number| send(&mut client, number, Handle(u64::from(number) << 40 | 7)));
    assert_eq!(looks.by_token.load(Relaxed), 0);
    send(&mut client, 501, terms.grant.handle);
    assert_eq!(looks.by_token.load(Relaxed), 1, "its own is looked up");
    (502..100_000).for_each(|number| send(&mut client, number, terms.grant.handle));
    let all = looks.all.load(Relaxed);
    assert!(all < 3_000, "{all} looks at a time");
}

#[test]
fn a_flow_whose_record_was_too_weak_leaves_no_trace() {
    let mut verifier = stage::verifier_end(stage::demand(Least::Encrypt));
    let times = times();
    let mut client = Client::new(&mut verifier, 5, times);
    assert!(!client.send(&mut verifier, &packet(1), times));
    assert_eq!(verifier.drops().weak, 1);
    let at = verifier.clients()[0].0;
    assert_eq!(answered(&mut verifier, &packet(1), at, times), Treatment::Encrypt, "answers would be as weak");
}
