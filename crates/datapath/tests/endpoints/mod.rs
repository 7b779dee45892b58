//! A tunnel endpoint's programs with one tenant each way, and segments for it.

use datapath::Pins;
use datapath::clock;
use datapath::interface::Interface;
use datapath::svtep::{Config, Svtep};
use lab::mint::now;
use lab::segments::{EPOCH_LENGTH, Giver, MAX_LIFETIME, Minted};
use std::net::IpAddr;
use wire::map::{ProofsConfig, svtep_counter};
use wire::{Ends, InterfaceId, SegmentFlags, Vni};

/// Frames run as if they arrived on the loopback interface.
pub const INTERFACE: u32 = 1;
pub const ID: InterfaceId = InterfaceId(7);
pub const PATH: [&str; 1] = ["here"];
pub const MTU: u32 = 1500;
pub const REPORTS: u32 = 5;

pub fn vni(number: u32) -> Vni {
    Vni::new(number).expect("24 bits")
}

pub fn config() -> Config {
    let proofs = ProofsConfig { epoch_length: EPOCH_LENGTH, max_lifetime: MAX_LIFETIME };
    Config { proofs, remembered: 1024, mtu: MTU, reports: REPORTS }
}

/// All combinations of families: outer, inner.
pub fn families() -> [Ends; 4] {
    let underlay: [[IpAddr; 2]; 2] =
        [["198.51.100.1", "198.51.100.2"], ["2001:db8::1", "2001:db8::2"]].map(|pair| pair.map(address));
    let tenants: [[IpAddr; 2]; 2] = [["10.0.0.1", "10.0.0.2"], ["fd00::1", "fd00::2"]].map(|pair| pair.map(address));
    let ends = |outer: usize, inner: usize| Ends {
        sending: underlay[outer][0],
        receiving: underlay[outer][1],
        sender: tenants[inner][0],
        receiver: tenants[inner][1],
    };
    [ends(0, 0), ends(0, 1), ends(1, 0), ends(1, 1)]
}

pub fn address(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

pub struct Endpoint {
    pub program: Svtep,
    pub giver: Giver,
}

impl Endpoint {
    /// Creates an endpoint that is both the sending and the receiving one.
    pub fn new() -> Self {
        Self::pinned(None)
    }

    /// Creates an endpoint that is both the sending and the receiving one, with the state left in the pins.
    pub fn pinned(pins: Option<Pins>) -> Self {
        let underlay = Interface::named("lo").expect("loopback");
        let program = Svtep::load(&underlay, &config(), pins).unwrap_or_else(|error| panic!("{error:#}"));
        let giver = Giver::new([7; 32]);
        let (epoch, key) = giver.key(PATH[0], now()).expect("a key");
        program.proofs.learn(giver.authority, epoch, &key).expect("map takes keys");
        let endpoints = families().map(|ends| (ends.receiving, if ends.receiving.is_ipv4() { 32 } else { 128 }));
        program.proofs.stand_before(&endpoints).expect("map takes prefixes");
        program.proofs.set_clock(clock::coarse_to_unix()).expect("clock");
        program.admit_tenant(INTERFACE, vni(5), ID, false).expect("maps take tenants");
        Self { program, giver }
    }

    pub fn give(&self, ends: Ends, service: Option<(u8, u16)>, flags: SegmentFlags) -> Minted {
        let segment = self.giver.segment(&ends, ID, service);
        let segment = wire::Segment { flags: segment.flags.with(flags, true), ..segment };
        let given = self.giver.prove(segment, vni(5), ends, &PATH).expect("a short path");
        let (key, entry) = given.entry(INTERFACE).expect("an entry");
        self.program.segments.set(&key, &entry).expect("map takes segments");
        given
    }

    /// Returns the result of `work`, and the one tunnel counter that moved during it.
    pub fn counted<T>(&self, work: impl FnOnce() -> T) -> (T, u32) {
        let before = self.program.counts().expect("counters");
        let result = work();
        let after = self.program.counts().expect("counters");
        let of_interest = (0..svtep_counter::COUNT).filter(|index| *index != svtep_counter::CONSENTS);
        let moved: Vec<_> = of_interest.filter(|i| after[*i as usize] != before[*i as usize]).collect();
        let [index] = moved[..] else { panic!("counters {moved:?} moved, not one") };
        (result, index)
    }
}
