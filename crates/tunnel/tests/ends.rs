//! Both ends of tunnels without a network: what an end sends is handed to the other end, in virtual time.

// Only a part of the stage is used here.
#[allow(dead_code)]
mod stage;

use engine::agent::Clock;
use engine::model::{Sealing, Treatment};
use engine::tunnel::Received;
use seal::{Batch, Mode};
use stage::{Known, demand, key, terms, verifier_end};
use std::net::SocketAddr;
use std::time::Duration;
use tunnel::cut::Cut;
use tunnel::{AgentEnd, End, Layout, Leg, Message, Sealed, Times, VerifierEnd, Virtio, times};
use wire::map::Steered;
use wire::packet::UDP;
use wire::seal::Initiation;
use wire::{Destination, Token, tail};

const SERVER: &str = "192.0.2.1";
const CLIENT: &str = "10.1.0.1";
const PLAIN: Virtio = Virtio { partial: false, segment: 0 };

fn to() -> Destination {
    Destination { address: SERVER.parse().expect("an address"), protocol: UDP, port: 7 }
}

/// The client's address and port, as the verifier sees it.
fn home() -> SocketAddr {
    "198.51.100.7:40000".parse().expect("an address")
}

/// A datagram of IPv4 with this many bytes of payload.
fn datagram(source: &str, destination: &str, ports: (u16, u16), length: usize) -> Vec<u8> {
    let octets = |text: &str| text.parse::<std::net::Ipv4Addr>().expect("an address").octets();
    let mut packet = vec![0x45, 0];
    packet.extend((28 + length as u16).to_be_bytes());
    packet.extend([0, 0, 0, 0, 64, UDP, 0, 0]);
    packet.extend([octets(source), octets(destination)].concat());
    packet.extend([ports.0.to_be_bytes(), ports.1.to_be_bytes(), (8 + length as u16).to_be_bytes(), [0; 2]].concat());
    packet.resize(28 + length, 0x2a);
    packet
}

fn question(length: usize) -> Vec<u8> {
    datagram(CLIENT, SERVER, (5000, 7), length)
}

/// An agent's end with a leg to the server and, if `terms`, with a tunnel.
fn agent(with_tunnel: bool) -> AgentEnd {
    let mut end = AgentEnd::asking(Box::new(|_| Some(Steered { subject: 1, wish: 0 })));
    end.set_leg(to(), Leg { tunnel: key(), demand: demand(Treatment::Encrypt) });
    if with_tunnel {
        end.set_tunnel(key(), terms(5), times());
    }
    end
}

/// Sends a packet from the device of an end into a tunnel, as a pump does. Returns the datagrams with the records.
fn send<E: End>(end: &mut E, mut packet: Vec<u8>, times: Times) -> Option<Vec<Vec<u8>>> {
    let layout = Layout::of(&packet).expect("a packet");
    let (way, how) = end.route(&mut packet, &layout, PLAIN, times)?;
    assert_eq!(how.compress, Mode::Never);
    let mut batch = Batch::default();
    let length = packet.len();
    let cut = Cut::new(&mut packet, layout, PLAIN, length).expect("a packet that is not cut");
    let (_, failed) = end.seal(way.tunnel, (how, 0), cut, times, &mut batch);
    (failed == 0).then(|| {
        batch.runs().flat_map(|run| run.bytes.chunks(run.segment).map(<[u8]>::to_vec).collect::<Vec<_>>()).collect()
    })
}

/// Hands datagrams to an end, as a pump does. Returns the packets that come out at its device, and what it answers.
fn take<E: End>(end: &mut E, from: SocketAddr, datagrams: Vec<Vec<u8>>, times: Times) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let (mut packets, mut replies) = (Vec::new(), Vec::new());
    for mut datagram in datagrams {
        let received = end.receive(from, None, &mut datagram, times, &mut replies);
        if let Some((tunnel, Received::Packet { treatment, suite, partial, packet, .. })) = received {
            let layout = Layout::of(packet).expect("a packet");
            let sealed = Sealed { treatment, suite, is_compressed: false };
            if end.admit(tunnel, packet, &layout, partial, sealed, times) {
                packets.push(packet.to_vec());
            }
        }
    }
    (packets, replies.into_iter().map(|message: Message| message.datagram).collect())
}

/// Returns what an end sends of its own accord, without tokens.
fn polled(end: &mut impl End, times: Times) -> Vec<Vec<u8>> {
    let mut replies = Vec::new();
    end.poll(times, &mut replies);
    replies.into_iter().map(|message| message.datagram).filter(|datagram| !is_token(datagram)).collect()
}

fn is_token(datagram: &[u8]) -> bool {
    datagram.len() == tail::BLOCK_LEN && datagram.starts_with(&tail::MAGIC)
}

fn without_tokens(datagrams: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    datagrams.into_iter().filter(|datagram| !is_token(datagram)).collect()
}

/// Lets the ends speak until neither has anything to say.
fn settle(agent: &mut AgentEnd, verifier: &mut VerifierEnd<Known>, mut up: Vec<Vec<u8>>, times: Times) {
    while !up.is_empty() {
        let (_, down) = take(verifier, home(), up, times);
        up = without_tokens(take(agent, key().service, down, times).1);
    }
}

/// Answers a packet that came out at the verifier.
fn answer(packet: &[u8], length: usize) -> Vec<u8> {
    let layout = Layout::of(packet).expect("a packet");
    let (client_port, server_port) = layout.ports(packet);
    let addresses = (layout.destination(packet).to_string(), layout.source(packet).to_string());
    datagram(&addresses.0, &addresses.1, (server_port, client_port), length)
}

#[test]
fn an_answer_to_early_data_goes_into_the_new_tunnel_and_not_into_the_one_that_its_client_has_lost() {
    let (mut verifier, mut time) = (verifier_end(Sealing::NONE), times());
    let mut before = agent(true);
    let up = polled(&mut before, time);
    settle(&mut before, &mut verifier, up, time);
    let first = without_tokens(send(&mut before, question(10), time).expect("a tunnel"));
    let (came, _) = take(&mut verifier, home(), first, time);
    assert_eq!(came.len(), 1);
    // The agent is killed. The next one sends behind its initiation, before it has the verifier's answer.
    let mut after = agent(true);
    time.0 += 1000;
    let second = without_tokens(send(&mut after, question(10), time).expect("behind the initiation"));
    let (came, response) = take(&mut verifier, home(), second, time);
    assert_eq!(came.len(), 1, "early data");
    assert_eq!(verifier.count(), 2, "the older tunnel is there still");
    let answered = send(&mut verifier, answer(&came[0], 20), time).expect("a few bytes before the agent is confirmed");
    let (_, confirmed) = take(&mut after, key().service, response, time);
    let (came, _) = take(&mut after, key().service, answered, time);
    assert_eq!(came.len(), 1, "the answer arrives");
    take(&mut verifier, home(), confirmed, time);
}

#[test]
fn answers_return_from_an_unconfirmed_tunnel_with_the_next_packet_out_of_the_confirmed_one() {
    let (mut verifier, mut time) = (verifier_end(Sealing::NONE), times());
    let mut client = agent(true);
    let up = polled(&mut client, time);
    settle(&mut client, &mut verifier, up, time);
    let first = without_tokens(send(&mut client, question(10), time).expect("a tunnel"));
    assert_eq!(take(&mut verifier, home(), first, time).0.len(), 1);
    // Somebody has copied, elsewhere, an initiation with a packet of the same flow behind it, and lacks the keys.
    time.0 += 100;
    let copied = without_tokens(send(&mut agent(true), question(10), time).expect("behind the initiation"));
    let stranger = "203.0.113.66:666".parse().expect("an address");
    assert_eq!(take(&mut verifier, stranger, copied, time).0.len(), 1, "early data");
    assert_eq!(verifier.count(), 2);
    time.0 += 100;
    let second = without_tokens(send(&mut client, question(10), time).expect("a tunnel"));
    let (came, _) = take(&mut verifier, home(), second, time);
    assert_eq!(came.len(), 1);
    let answered = send(&mut verifier, answer(&came[0], 20), time).expect("a tunnel");
    assert_eq!(take(&mut client, key().service, answered, time).0.len(), 1, "the answer goes to the client");
}

#[test]
fn packets_wait_for_their_tunnel_and_go_once_it_is_there() {
    let (mut verifier, mut time) = (verifier_end(Sealing::NONE), times());
    let mut agent = agent(false);
    assert_eq!(send(&mut agent, question(10), time), None);
    assert!(agent.ready(time).is_none(), "there is no grant yet");
    assert_eq!(agent.drops().no_leg, 0, "it waits");
    time.0 += 300;
    agent.set_tunnel(key(), terms(5), time);
    let frame = agent.ready(time).expect("it fits behind the initiation");
    let layout = Layout::of(&question(10)).expect("a packet");
    assert_eq!(frame, [&PLAIN.encode(&layout)[..], &question(10)].concat());
    assert!(agent.ready(time).is_none(), "once");
    // A packet that does not fit behind the initiation waits for the verifier's answer.
    assert_eq!(send(&mut agent, question(1300), time), None);
    assert!(agent.ready(time).is_none());
    let up = polled(&mut agent, time);
    settle(&mut agent, &mut verifier, up, time);
    let frame = agent.ready(time).expect("the tunnel is open");
    let sent = without_tokens(send(&mut agent, frame[PLAIN.encode(&layout).len()..].to_vec(), time).expect("sealed"));
    assert_eq!(take(&mut verifier, home(), sent, time).0.len(), 1);
}

#[test]
fn nobody_s_waiting_packets_take_room_from_others_and_none_waits_for_ever() {
    let mut time = times();
    let mut end = AgentEnd::asking(Box::new(|flow| {
        Some(Steered { subject: if flow.client().1 == 5000 { 1 } else { 2 }, wish: 0 })
    }));
    let hers = tunnel::Key { subject: 2, ..key() };
    for tunnel in [key(), hers] {
        end.set_leg(to(), Leg { tunnel, demand: demand(Treatment::Encrypt) });
    }
    for _ in 0..10_000 {
        assert_eq!(send(&mut end, question(100), time), None);
    }
    assert!(end.drops().no_leg > 9000, "most are dropped");
    assert_eq!(send(&mut end, datagram(CLIENT, SERVER, (6000, 7), 10), time), None);
    end.set_tunnel(hers, terms(6), time);
    assert!(end.ready(time).is_some_and(|frame| frame.ends_with(&datagram(CLIENT, SERVER, (6000, 7), 10))));
    assert!(end.ready(time).is_none());
    time.0 += 60_000;
    polled(&mut end, time);
    end.set_tunnel(key(), terms(5), time);
    assert!(end.ready(time).is_none(), "by then the application has sent again, or has given up");
    assert_eq!(end.drops().no_leg, 10_000);
}

#[test]
fn tokens_and_initiations_carry_the_authority_s_time_if_this_machine_s_clock_is_wrong() {
    let (right, mut wrong) = (times(), times());
    wrong.1 -= 3000;
    let mut end = AgentEnd::asking(Box::new(|_| Some(Steered { subject: 1, wish: 0 })));
    end.set_clock((1, 0), Clock::at(Duration::from_secs(right.1.into()), Duration::from_millis(right.0)));
    end.set_leg(to(), Leg { tunnel: key(), demand: demand(Treatment::Encrypt) });
    end.set_tunnel(key(), terms(5), wrong);
    let sent = send(&mut end, question(10), wrong).expect("behind the initiation");
    let token = sent.iter().find(|datagram| is_token(datagram)).expect("a token goes first");
    let token = Token::decode(token[4..].try_into().expect("36 bytes"), false).expect("a token");
    assert!(token.time.abs_diff(right.1) <= 1, "{} is not {}", token.time, right.1);
    let initiation = sent.iter().find_map(|datagram| Initiation::read(datagram.first_chunk()?, false).ok());
    assert!(initiation.expect("an initiation").time.abs_diff(right.1) <= 1);
    // So the verifier, whose clock is right, opens the tunnel.
    let mut verifier = verifier_end(Sealing::NONE);
    assert_eq!(take(&mut verifier, home(), without_tokens(sent), right).0.len(), 1);
}
