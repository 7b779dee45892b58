//! The agent's table of flows in sealed tunnels: who gets an entry, and who can't take the place of others.

mod held;
#[allow(dead_code, reason = "the table's rows are its other user")]
mod world;

use datapath::agent::Agent;
use engine::model::Treatment;
use held::{ROOT, SUBJECT};
use lab::forge::{Packet, Tcp};
use wire::Destination;
use wire::map::{ASKS, Conversation, FlowKey, GrantSlot, KEEPS_FLOWS, Steered, agent_counter};
use wire::packet::{TCP, UDP};
use world::{Family, Grant, NOW, families};

const OTHER: u32 = 8;
/// The tunnels' device. The packet is only sent there when the program has ended.
const DEVICE: u32 = 999;
const REDIRECT: u32 = 7;
const SHOT: u32 = 2;
const WISH: u32 = Treatment::Encrypt as u32;

/// The programs, on a machine whose user 0 is logged in and asks for encryption.
fn agent() -> Agent {
    let kernel = held::logged_in(ASKS | KEEPS_FLOWS, DEVICE);
    kernel.wishes.set(&ROOT, &WISH).expect("wishes");
    kernel
}

fn grant(kernel: &Agent, family: &Family, protocol: u8, port: u16) {
    let to = Destination { address: family.server, protocol, port };
    let grant = Grant::new(family, 30);
    kernel.grants.set(&GrantSlot::new(SUBJECT, &to), &held::entry(&grant, &to, NOW + 100)).expect("grants");
}

#[test]
fn kernel_notes_steered_flows_of_senders_with_a_grant_only() {
    for family in families() {
        let kernel = agent();
        let flows = kernel.steered_flows().expect("a table");
        let syn = |port| Packet::new(family.client, family.server).tcp(Tcp::syn(port, 22)).frame();
        let queued = |kernel: &Agent| kernel.count(agent_counter::QUEUE_FAILED).expect("counters");
        // This test opens no buffer: a packet that waits for its grant is dropped.
        for port in 1000..1100 {
            assert_eq!(kernel.run(&syn(port), 1).expect("it runs").code, SHOT);
        }
        assert_eq!(queued(&kernel), 100);
        assert!(flows.keys().is_empty(), "{}: a flood without a grant takes the place of others' flows", family.name);
        grant(&kernel, &family, TCP, 22);
        assert_eq!(kernel.run(&syn(1000), 1).expect("it runs").code, REDIRECT, "{}", family.name);
        let key = FlowKey::new(family.client, 1000, family.server, 22, TCP);
        assert_eq!(flows.keys(), [key]);
        assert_eq!(flows.get(&key).expect("a table"), Some(Steered { subject: SUBJECT, wish: WISH }));
    }
}

#[test]
fn kernel_lets_no_rider_take_over_a_steered_flow() {
    for family in families() {
        let kernel = agent();
        let flows = kernel.steered_flows().expect("a table");
        grant(&kernel, &family, UDP, 443);
        let key = FlowKey::new(family.client, 1000, family.server, 443, UDP);
        let theirs = Steered { subject: OTHER, wish: 1 };
        flows.set(&key, &theirs).expect("a table");
        let conversation = Conversation { token: NOW - 5, answered: 1, sent: 1, subject: OTHER, seen: NOW - 5 };
        kernel.conversations.set(&key, &conversation).expect("conversations");
        let datagram = Packet::new(family.client, family.server).udp(1000, 443).payload(b"data").frame();
        assert_eq!(kernel.run(&datagram, 1).expect("it runs").code, SHOT);
        assert_eq!(kernel.count(agent_counter::RIDER).expect("counters"), 1);
        assert_eq!(flows.get(&key).expect("a table"), Some(theirs), "{}", family.name);
    }
}
