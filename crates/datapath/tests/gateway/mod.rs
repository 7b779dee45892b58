//! A gateway's loaded programs, its clients, and helpers that run their packets.

use crate::world::{self, NOW, SIZES, address};
use datapath::Spot;
use datapath::clock;
use datapath::gateway::Gateway;
use datapath::hook::Hook;
use datapath::verifier::{Sizes, Verifier};
use lab::forge::{Packet, Tcp, flag};
use lab::seen::Seen;
use std::net::IpAddr;
use wire::map::{Bearer, Flow, FlowKey, ReceivedAddress, ReceivedFlow, VerifierConfig, address_bytes};
use wire::packet::{TCP, UDP};

pub const PASS: u32 = u32::MAX;
pub const DROP: u32 = 2;
pub const MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
/// The reclaiming sweep keeps ways back that are younger than this.
pub const YOUNG: u32 = 3;

pub struct Stage {
    pub verifier: Verifier,
    pub gateway: Gateway,
    pub now: u32,
}

/// A person's TCP connection or UDP flow.
#[derive(Clone, Copy)]
pub struct Client {
    pub person: u32,
    pub address: IpAddr,
    pub port: u16,
    pub server: IpAddr,
    pub protocol: u8,
}

impl Client {
    pub fn new(person: u32, six: bool) -> Self {
        let [a, b, c, d] = (0xc633_0000 + person).to_be_bytes();
        let (address, server) = match six {
            false => (IpAddr::from([a, b, c, d]), address("203.0.113.20")),
            true => (format!("2001:db8:ffff::{person:x}").parse().unwrap(), address("2001:db8::20")),
        };
        Self { person, address, port: 40_000, server, protocol: TCP }
    }

    pub fn key(&self) -> FlowKey {
        FlowKey::new(self.address, self.port, self.server, 22, self.protocol)
    }

    pub fn packet(&self) -> Packet {
        Packet::new(self.address, self.server).ethernet(MACS[0], MACS[1])
    }

    pub fn frame(&self) -> Vec<u8> {
        match self.protocol {
            UDP => self.packet().udp(self.port, 22).payload(b"odd").frame(),
            _ => self.packet().tcp(Tcp::new(self.port, 22, flag::ACK)).payload(b"odd").frame(),
        }
    }
}

impl Stage {
    pub fn new(pool: &[&str]) -> Self {
        let config = VerifierConfig { max_outbound: 1000, ..world::config() };
        let verifier = Verifier::load(Hook::Tc, config, SIZES, None).unwrap_or_else(|error| panic!("{error:#}"));
        let pool: Vec<IpAddr> = pool.iter().map(|text| address(text)).collect();
        Self::with(verifier, &config, &pool)
    }

    /// Starts a gateway without a pool that also takes these carriers.
    pub fn taking(carriers: u16) -> Self {
        let plain = world::config();
        let config = VerifierConfig { max_outbound: 1000, carriers: plain.carriers | carriers, ..plain };
        let verifier = Verifier::load(Hook::Tc, config, SIZES, None).unwrap_or_else(|error| panic!("{error:#}"));
        Self::with(verifier, &config, &[])
    }

    pub fn of_size(flows: u32) -> Self {
        let config = VerifierConfig { max_outbound: 1000, ..world::config() };
        let sizes = Sizes { flows, ..SIZES };
        let verifier = Verifier::load(Hook::Tc, config, sizes, None).unwrap_or_else(|error| panic!("{error:#}"));
        Self::with(verifier, &config, &[])
    }

    pub fn with(verifier: Verifier, config: &VerifierConfig, pool: &[IpAddr]) -> Self {
        let entries = engine::model::protected::entries(&world::receivers()).unwrap();
        let entries: Vec<_> =
            entries.iter().map(|entry| (entry.prefix.network(), entry.prefix.prefix_len(), entry.services)).collect();
        verifier.protect(&entries).unwrap();
        let gateway = Gateway::load(&verifier, config, SIZES, pool, None).unwrap_or_else(|error| panic!("{error:#}"));
        let stage = Self { verifier, gateway, now: NOW };
        stage.set_clock();
        stage
    }

    pub fn set_clock(&self) {
        self.verifier.set_clock(clock::coarse_reading(self.now.into()).wrapping_add(200_000_000)).unwrap();
    }

    /// Admits the client's flow as admission and the daemon do.
    pub fn admit(&self, client: &Client) {
        let handle = u64::from(client.person) << 8;
        self.gateway
            .addresses
            .bearers
            .set(&handle, &Bearer { person: client.person, expires: self.now + 300 })
            .unwrap();
        let flow = Flow { handle, since: self.now, seen: self.now, ..Flow::default() };
        assert!(self.verifier.flows.insert(&client.key(), &flow).unwrap());
    }

    /// Returns the packet as the inside sees it, or `None` if it is dropped.
    pub fn inward(&self, frame: &[u8]) -> Option<Seen> {
        let ran = self.gateway.run(Spot::Inward, frame).unwrap();
        assert!(ran.code == PASS || ran.code == DROP, "{ran:?}");
        (ran.code == PASS).then(|| Seen::frame(&ran.frame).unwrap())
    }

    /// Returns a packet from the inside as it leaves the gateway, or `None` if it is dropped.
    pub fn outward(&self, frame: &[u8]) -> Option<Seen> {
        let ran = self.gateway.run(Spot::Outward, frame).unwrap();
        assert!(ran.code == PASS || ran.code == DROP, "{ran:?}");
        (ran.code == PASS).then(|| Seen::frame(&ran.frame).unwrap())
    }

    /// Returns the client's inside address and port.
    pub fn shown(&self, client: &Client) -> Option<(IpAddr, u16)> {
        let seen = self.inward(&client.frame())?;
        assert!(seen.checksums_right && seen.payload == b"odd" && seen.destination == client.server, "{seen:?}");
        Some((seen.source, seen.ports.unwrap().0))
    }

    pub fn end(&mut self, client: &Client) {
        self.verifier.flows.remove(&client.key()).unwrap();
    }

    pub fn reclaim(&mut self) {
        self.now += YOUNG;
        self.set_clock();
        self.gateway.reclaim(self.now).unwrap();
    }
}

pub const FOUR: [&str; 3] = ["10.9.0.1", "10.9.0.2", "10.9.0.3"];
pub const SIX: [&str; 2] = ["fd09::1", "fd09::2"];

pub fn both() -> Vec<&'static str> {
    [&FOUR[..], &SIX].concat()
}

impl Stage {
    /// Takes over the client's flow as reported by a peer gateway, and returns the result.
    pub fn told(&self, client: &Client, flow: Flow, begins: bool) -> u32 {
        let told = ReceivedFlow { key: client.key(), flow, expires: self.now + 300, begins: begins.into() };
        self.verifier.take_over(told).unwrap()
    }

    /// Takes over the inside address that a client has at a peer gateway. Returns its slot here plus one, or 0.
    pub fn told_address(&self, client: &Client, inside: &str) -> u32 {
        let (inside, key) = (address_bytes(address(inside)), client.key());
        let (person, port) = (client.person, client.port.to_be_bytes());
        let told = ReceivedAddress { key, inside, person, now: self.now, slot: 0, port, reserved: 0 };
        self.gateway.bind_received(told).unwrap().slot
    }

    pub fn flow_at(&self, client: &Client) -> Option<Flow> {
        self.verifier.flows.get(&client.key()).unwrap()
    }

    pub fn flow_there(&self, client: &Client) -> Flow {
        let handle = u64::from(client.person) << 8;
        Flow { handle, holder: client.person << 8, since: self.now, seen: self.now, ..Flow::default() }
    }
}

/// Passes a client's segment through admission, and returns the flow afterwards.
pub fn admission_sees(stage: &Stage, client: &Client, tcp: Tcp) -> Flow {
    let ran = stage.verifier.run(&client.packet().tcp(tcp).frame(), 1).unwrap();
    assert_eq!(ran.code, PASS);
    stage.verifier.flows.get(&client.key()).unwrap().unwrap()
}

pub fn back_of(server: IpAddr, inside: IpAddr) -> Packet {
    Packet::new(server, inside).ethernet(MACS[1], MACS[0])
}
