//! Key transfer in band (wire.md §5.4), frame by frame: the agent's programs and those of an authority's host.

use datapath::agent::Agent;
use datapath::key_transfer::Transfers;
use datapath::tc::Attachment;
use lab::forge::{Packet, Tcp, flag};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;
use wire::ls::{ClientKey, KeyTransfer, Pair};
use wire::map::{AuthorityEnd, FlowKey, agent_counter, transfer_counter};
use wire::packet::TCP;
use wire::shim::{self, Content};

const PASS: u32 = u32::MAX;
const LAPTOP: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(198, 51, 100, 7), 40_000);
const AUTHORITY: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(203, 0, 113, 5), 8443);
const SOON: Duration = Duration::from_secs(60);

fn segment(from: SocketAddrV4, to: SocketAddrV4, flags: u8) -> Packet {
    let tcp = Tcp { sequence: 77, acknowledgement: 99, ..Tcp::new(from.port(), to.port(), flags) };
    Packet::new((*from.ip()).into(), (*to.ip()).into()).ethernet([2; 6], [4; 6]).dont_fragment().tcp(tcp)
}

fn reply() -> Packet {
    segment(AUTHORITY, LAPTOP, flag::ACK | flag::PSH).payload(b"a record of TLS")
}

fn transfer(number: u16) -> KeyTransfer {
    let pair = Pair { unique_id: *b"alice", nonce1: number.to_be_bytes() };
    KeyTransfer { key: ClientKey::of(pair, b"a secret"), pair }
}

/// Returns the frame in a shim, as made by `wire`.
fn wrapped(frame: &[u8], content: &Content) -> Vec<u8> {
    let packet = wire::packet::Packet::parse(frame);
    let mut frame = [frame, &[0; shim::SHIM_LEN]].concat();
    let len = shim::insert(&mut frame, &packet, content).expect("it fits");
    frame.truncate(len);
    frame
}

fn flow() -> FlowKey {
    FlowKey::new((*LAPTOP.ip()).into(), LAPTOP.port(), (*AUTHORITY.ip()).into(), AUTHORITY.port(), TCP)
}

fn agent() -> Agent {
    let agent = Agent::load(14, false, Attachment::Clsact, None).unwrap_or_else(|error| panic!("{error:#}"));
    agent.key_authorities.set(&AuthorityEnd::from(AUTHORITY), &1).unwrap();
    agent
}

/// Returns an agent that has just opened a connection to the authority.
fn asking() -> Agent {
    let agent = agent();
    let syn = segment(LAPTOP, AUTHORITY, flag::SYN).frame();
    assert_eq!(agent.run(&syn, 1).unwrap().frame, wrapped(&syn, &Content::Support));
    agent
}

#[test]
fn kernel_the_first_packet_to_an_authority_says_that_keys_are_taken_and_the_same_again_does_not() {
    let agent = asking();
    assert_eq!(agent.count(agent_counter::SUPPORT).unwrap(), 1);
    let elsewhere = SocketAddrV4::new(*AUTHORITY.ip(), 443);
    let neighbour = SocketAddrV4::new(Ipv4Addr::new(203, 0, 113, 6), AUTHORITY.port());
    for plain in [
        segment(LAPTOP, AUTHORITY, flag::SYN).frame(),
        segment(LAPTOP, AUTHORITY, flag::ACK).frame(),
        segment(LAPTOP, elsewhere, flag::SYN).frame(),
        segment(LAPTOP, neighbour, flag::SYN).frame(),
        segment(AUTHORITY, LAPTOP, flag::SYN).frame(),
        Packet::new((*LAPTOP.ip()).into(), (*AUTHORITY.ip()).into()).udp(40_001, AUTHORITY.port()).frame(),
    ] {
        let ran = agent.run(&plain, 1).unwrap();
        assert_eq!((ran.code, ran.frame), (PASS, plain));
    }
    assert_eq!(agent.count(agent_counter::SUPPORT).unwrap(), 1);
    // Another connection makes the offer again.
    let other = segment(SocketAddrV4::new(*LAPTOP.ip(), 40_001), AUTHORITY, flag::SYN).frame();
    assert_eq!(agent.run(&other, 1).unwrap().frame, wrapped(&other, &Content::Support));
}

#[test]
fn kernel_no_agent_says_it_unless_told_to() {
    let agent = Agent::load(14, false, Attachment::Clsact, None).unwrap_or_else(|error| panic!("{error:#}"));
    let syn = segment(LAPTOP, AUTHORITY, flag::SYN).frame();
    assert_eq!(agent.run(&syn, 1).unwrap().frame, syn);
    let shimmed = wrapped(&reply().frame(), &Content::KeyTransfer(transfer(1).encode()));
    assert_eq!(agent.run_answer(&shimmed, 1).unwrap().frame, shimmed);
    assert!(agent.keys_taken().unwrap().keys().is_empty());
}

#[test]
fn kernel_a_key_comes_off_the_reply_which_is_then_as_it_was_sent() {
    let agent = asking();
    for (number, reply) in [reply(), segment(AUTHORITY, LAPTOP, flag::ACK)].into_iter().enumerate() {
        let (reply, transfer) = (reply.frame(), transfer(number as u16));
        let ran = agent.run_answer(&wrapped(&reply, &Content::KeyTransfer(transfer.encode())), 1).unwrap();
        assert_eq!((ran.code, hex::encode(ran.frame)), (PASS, hex::encode(reply)));
        let taken = agent.keys_taken().unwrap().get(&transfer.pair.handle().0).unwrap().expect("the key");
        assert_eq!(taken.key().bytes(), transfer.key.bytes());
    }
    assert_eq!(agent.count(agent_counter::KEYS).unwrap(), 2);
}

#[test]
fn kernel_a_key_that_nobody_asked_for_is_not_taken_and_stays_in_its_shim() {
    let agent = asking();
    let content = Content::KeyTransfer(transfer(1).encode());
    let laptop = SocketAddrV4::new(*LAPTOP.ip(), LAPTOP.port() + 1);
    let impostor = SocketAddrV4::new(Ipv4Addr::new(203, 0, 113, 6), AUTHORITY.port());
    let mut spoiled = content.encode();
    spoiled[39] = 1;
    let udp = Packet::new((*AUTHORITY.ip()).into(), (*LAPTOP.ip()).into()).udp(AUTHORITY.port(), LAPTOP.port());
    for left in [
        wrapped(&segment(AUTHORITY, laptop, flag::ACK).frame(), &content),
        wrapped(&segment(impostor, LAPTOP, flag::ACK).frame(), &content),
        wrapped(&segment(LAPTOP, AUTHORITY, flag::ACK).frame(), &content),
        wrapped(&udp.frame(), &content),
        wrapped(&reply().frame(), &Content::Support),
        wrapped(&reply().frame(), &Content::Token([0; 36])),
        reply().shimmed(&spoiled).frame(),
    ] {
        let ran = agent.run_answer(&left, 1).unwrap();
        assert_eq!((ran.code, ran.frame), (PASS, left));
    }
    assert!(agent.keys_taken().unwrap().keys().is_empty());
    assert_eq!(agent.count(agent_counter::KEYS).unwrap(), 0);
}

#[test]
fn kernel_a_flood_of_keys_takes_no_more_room_than_there_is() {
    let agent = asking();
    let taken = agent.keys_taken().unwrap();
    let frame = reply().frame();
    for number in 0..=u16::MAX {
        let content = Content::KeyTransfer(transfer(number).encode());
        agent.run_answer(&wrapped(&frame, &content), 1).unwrap();
        if u32::from(number) > 2 * taken.capacity() {
            break;
        }
    }
    assert!(taken.keys().len() <= taken.capacity() as usize);
    let last = transfer(u16::MAX);
    agent.run_answer(&wrapped(&frame, &Content::KeyTransfer(last.encode())), 1).unwrap();
    assert!(taken.get(&last.pair.handle().0).unwrap().is_some());
}

fn transfers() -> Transfers {
    Transfers::load(AUTHORITY.port()).unwrap_or_else(|error| panic!("{error:#}"))
}

/// Returns the programs of an authority's host to which a client has said that it takes keys.
fn greeted() -> Transfers {
    let transfers = transfers();
    let syn = segment(LAPTOP, AUTHORITY, flag::SYN).frame();
    let ran = transfers.run_in(&wrapped(&syn, &Content::Support)).unwrap();
    assert_eq!((ran.code, hex::encode(ran.frame)), (PASS, hex::encode(syn)));
    assert!(transfers.supporters.keys() == [flow()]);
    transfers
}

#[test]
fn kernel_an_authority_greets_first_packets_to_its_port_and_nothing_else() {
    let transfers = transfers();
    let elsewhere = SocketAddrV4::new(*AUTHORITY.ip(), 443);
    for left in [
        segment(LAPTOP, AUTHORITY, flag::SYN).frame(),
        wrapped(&segment(LAPTOP, AUTHORITY, flag::ACK).frame(), &Content::Support),
        wrapped(&segment(LAPTOP, elsewhere, flag::SYN).frame(), &Content::Support),
        wrapped(&segment(LAPTOP, AUTHORITY, flag::SYN).frame(), &Content::Token([0; 36])),
        wrapped(&segment(LAPTOP, AUTHORITY, flag::SYN).frame(), &Content::KeyTransfer(transfer(1).encode())),
    ] {
        let ran = transfers.run_in(&left).unwrap();
        assert_eq!((ran.code, ran.frame), (PASS, left));
    }
    assert!(transfers.supporters.keys().is_empty());
    assert_eq!(transfers.counts().unwrap(), (0, 0));
}

#[test]
fn kernel_a_key_goes_out_once_on_its_flow_and_in_a_packet_that_fits() {
    let transfers = greeted();
    let (mine, reply) = (transfer(1), reply().frame());
    assert!(transfers.hand_over(&flow(), &mine, SOON).unwrap());
    assert!(!transfers.hand_over(&flow(), &transfer(2), SOON).unwrap(), "the first one still waits");
    let neighbour = SocketAddrV4::new(*LAPTOP.ip(), LAPTOP.port() + 1);
    for plain in [
        segment(AUTHORITY, LAPTOP, flag::SYN | flag::ACK).frame(),
        segment(AUTHORITY, LAPTOP, flag::RST | flag::ACK).frame(),
        segment(AUTHORITY, LAPTOP, flag::ACK).payload(&[0; 1200]).frame(),
        segment(AUTHORITY, neighbour, flag::ACK).frame(),
        segment(LAPTOP, AUTHORITY, flag::ACK).frame(),
    ] {
        let ran = transfers.run_out(&plain).unwrap();
        assert_eq!((ran.code, ran.frame), (PASS, plain));
    }
    let ran = transfers.run_out(&reply).unwrap();
    let expected = wrapped(&reply, &Content::KeyTransfer(mine.encode()));
    assert_eq!((ran.code, hex::encode(ran.frame)), (PASS, hex::encode(expected)));
    // The retransmission of the segment.
    assert_eq!(transfers.run_out(&reply).unwrap().frame, reply);
    assert_eq!(transfers.counts().unwrap(), (1, 1));
    assert!(transfers.hand_over(&flow(), &transfer(2), SOON).unwrap(), "there is room for the next one");
}

#[test]
fn kernel_no_key_goes_to_a_client_that_did_not_say_that_it_takes_any() {
    let transfers = transfers();
    assert!(!transfers.hand_over(&flow(), &transfer(1), SOON).unwrap());
    assert_eq!(transfers.run_out(&reply().frame()).unwrap().frame, reply().frame());
}

#[test]
fn kernel_a_key_that_found_no_packet_in_time_is_not_sent() {
    let transfers = greeted();
    assert!(transfers.hand_over(&flow(), &transfer(1), Duration::ZERO).unwrap());
    assert_eq!(transfers.run_out(&reply().frame()).unwrap().frame, reply().frame());
    assert_eq!(transfers.count(transfer_counter::HANDED).unwrap(), 0);
    assert!(transfers.waiting.keys().is_empty());
}

#[test]
fn kernel_a_flood_of_greetings_takes_no_more_room_than_there_is() {
    let transfers = transfers();
    for port in 0..=u16::MAX {
        if u32::from(port) > transfers.supporters.capacity() + 1000 {
            break;
        }
        let syn = segment(SocketAddrV4::new(*LAPTOP.ip(), port), AUTHORITY, flag::SYN).frame();
        transfers.run_in(&wrapped(&syn, &Content::Support)).unwrap();
    }
    assert!(transfers.supporters.keys().len() <= transfers.supporters.capacity() as usize);
}
