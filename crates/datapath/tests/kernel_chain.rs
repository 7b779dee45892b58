//! The programs of two authorities in one chain (wire.md §6.13): each admits what its own authority has granted, and
//! nothing of the other's.

#[allow(dead_code, reason = "the table's rows are its other user")]
mod world;

use datapath::clock;
use datapath::hook::Hook;
use datapath::kernel_tables::KernelTables;
use datapath::verifier::{Verifier, epoch_key};
use engine::model::Service;
use engine::model::protected::services_of;
use engine::verifier::explain;
use lab::forge::{Packet, Tcp, flag};
use wire::map::{VerifierConfig, chain, counter};
use wire::packet::{TCP, UDP};
use wire::{Destination, DropReason, Epoch, Token, VerifierKey, tail};
use world::{EPOCH_LENGTH, Family, Grant, NOW, SIZES, families};

/// A service for which both authorities may speak, one of the first authority alone, and one of the second alone.
const SHARED: u16 = 22;
const FIRST: u16 = 23;
const SECOND: u16 = 9000;
/// Both authorities have a grant with this handle.
const HANDLE: u64 = 0x0102_0304_0506_0708;

/// The programs of two authorities. Packets arrive at the first ones.
struct Chain {
    hook: Hook,
    family: Family,
    first: Verifier,
    second: Verifier,
}

fn key(id: &str, epoch: Epoch) -> VerifierKey {
    world::master().verifier_key(id, epoch).expect("a short id")
}

impl Chain {
    fn new(hook: Hook, family: Family) -> Self {
        let load = |id: &str, place: u8, own: &[u16], foreign: &[u16]| {
            let config = VerifierConfig { chain: place, optional: 0, ..world::config() };
            let verifier = Verifier::load(hook, config, SIZES, None).unwrap_or_else(|error| panic!("{error:#}"));
            let spans = own
                .iter()
                .chain(foreign)
                .flat_map(|port| [TCP, UDP].map(|protocol| Service { protocol, first_port: *port, last_port: *port }));
            let mut services = services_of(&spans.collect::<Vec<_>>());
            services.spans.iter_mut().skip(2 * own.len()).for_each(|span| span.foreign = 1);
            let length = if family.server.is_ipv4() { 32 } else { 128 };
            verifier.protect(&[(family.server, length, services)]).expect("room");
            let Epoch(current) = Epoch::at(NOW.into(), EPOCH_LENGTH);
            for epoch in [current - 1, current, current + 1].map(Epoch) {
                verifier.epoch_keys.set(&epoch.on_wire().into(), &epoch_key(epoch, &key(id, epoch))).expect("a key");
            }
            verifier.set_clock_alone(clock::coarse_reading(NOW.into()).wrapping_add(200_000_000)).expect("clock");
            verifier
        };
        let first = load("edge-1", chain::FIRST, &[SHARED, FIRST], &[SHARED, SECOND]);
        let second = load("edge-2", chain::LATER, &[SHARED, SECOND], &[]);
        let this = Self { hook, family, first, second };
        this.link();
        this
    }

    fn link(&self) {
        let (first, second) = (self.first.link().expect("a link"), self.second.link().expect("a link"));
        second.lead_to(None).expect("the last one");
        first.lead_to(Some(&second)).expect("two");
    }

    fn unlink(&self) {
        self.first.link().and_then(|link| link.lead_to(None)).expect("one");
    }

    fn packet(&self) -> Packet {
        Packet::new(self.family.client, self.family.server).ethernet([2; 6], [4; 6])
    }

    fn syn(&self, from: u16, port: u16) -> Vec<u8> {
        self.packet().tcp(Tcp::syn(from, port)).frame()
    }

    /// Returns a SYN with a token of the authority whose verifier's id is `id`.
    fn first_packet(&self, id: &str, from: u16, port: u16, nonce: u32) -> Vec<u8> {
        let to = Destination { address: self.family.server, protocol: TCP, port };
        let block = tail::block(&self.token(id, &to, nonce));
        self.packet().tcp(Tcp::syn(from, port)).payload(&block).frame()
    }

    fn token(&self, id: &str, to: &Destination, nonce: u32) -> [u8; 36] {
        let grant = Grant::new(&self.family, HANDLE);
        let key = grant.header().key(&key(id, grant.epoch), to, grant.source);
        Token::new(grant.header(), &key, NOW, nonce, to).encode()
    }

    fn next(&self, from: u16, port: u16) -> Vec<u8> {
        self.packet().tcp(Tcp::new(from, port, flag::ACK)).payload(b"data").frame()
    }

    /// Runs the first programs on a frame. Exactly one counter of one authority's programs has to move, and the engine has
    /// to decide alike by this authority's tables. Returns the counter, whether it was the second one's, and the frame.
    fn run(&self, frame: &[u8]) -> (u32, bool, Vec<u8>) {
        let counts = || [&self.first, &self.second].map(|verifier| verifier.counts().expect("counters"));
        let explained =
            [&self.first, &self.second].map(|verifier| explain(&KernelTables::new(verifier), frame, NOW).outcome);
        let before = counts();
        let ran = self.first.run(frame, 1).expect("it runs");
        let moved: Vec<_> = counts()
            .iter()
            .zip(&before)
            .enumerate()
            .flat_map(|(whose, (after, before))| {
                let moved = (0..counter::COUNT).filter(|index| *index != counter::SAMPLES_LOST);
                let moved: Vec<_> = moved.filter(|index| after[*index as usize] != before[*index as usize]).collect();
                moved.into_iter().map(move |index| (index, whose == 1))
            })
            .collect();
        let [(index, is_second)] = moved[..] else { panic!("counters {moved:?} moved, not one") };
        assert_eq!(world::outcome_of(index), explained[usize::from(is_second)], "second: {is_second}");
        let passes = index >= counter::NOT_OURS;
        assert_eq!(ran.code, self.hook.code(passes), "code and counter {index} agree");
        (index, is_second, ran.frame)
    }

    fn passes(&self, frame: &[u8]) -> bool {
        self.run(frame).0 >= counter::NOT_OURS
    }

    /// The first programs decide about the frame, and drop it for this reason.
    fn drops_first(&self, frame: &[u8], reason: DropReason) {
        let (index, is_second, _) = self.run(frame);
        assert_eq!((index, is_second), (reason as u32, false));
    }

    /// The second programs drop the frame for this reason.
    fn drops_second(&self, frame: &[u8], reason: DropReason) {
        let (index, is_second, _) = self.run(frame);
        assert_eq!((index, is_second), (reason as u32, true));
    }
}

fn each(test: impl Fn(&Chain)) {
    for hook in Hook::ALL {
        for family in families() {
            test(&Chain::new(hook, family));
        }
    }
}

#[test]
fn kernel_admits_the_grants_of_each_authority_to_its_own_services_only() {
    each(|chain| {
        // To the service of both, each authority's token opens a flow in its own tables, and is removed.
        for (from, id, second) in [(1001, "edge-1", false), (1002, "edge-2", true)] {
            let (index, is_second, frame) = chain.run(&chain.first_packet(id, from, SHARED, 1));
            assert_eq!((index, is_second), (counter::TOKEN, second), "{id}");
            assert_eq!(frame, chain.syn(from, SHARED));
            let (index, is_second, _) = chain.run(&chain.next(from, SHARED));
            assert_eq!((index, is_second), (counter::FLOW, second), "{id}");
        }
        assert_eq!([&chain.first, &chain.second].map(|verifier| verifier.flows.entries().len()), [1, 1]);
        // The service of one authority is closed to the other one's grants.
        assert!(chain.passes(&chain.first_packet("edge-1", 1003, FIRST, 2)));
        chain.drops_first(&chain.first_packet("edge-2", 1004, FIRST, 2), DropReason::BadTag);
        assert!(chain.passes(&chain.first_packet("edge-2", 1005, SECOND, 3)));
        chain.drops_second(&chain.first_packet("edge-1", 1006, SECOND, 3), DropReason::BadTag);
        // Without a token, nobody gets in, and each packet is counted once.
        chain.drops_first(&chain.syn(1007, FIRST), DropReason::NoToken);
        for port in [SHARED, SECOND] {
            chain.drops_second(&chain.syn(1007, port), DropReason::NoToken);
            chain.drops_second(&chain.next(1007, port), DropReason::NoFlow);
        }
        assert_eq!(chain.run(&chain.syn(1008, 80)).0, counter::NOT_OURS);
    });
}

#[test]
fn kernel_admits_datagrams_of_both_authorities() {
    each(|chain| {
        for (from, id) in [(2001, "edge-1"), (2002, "edge-2")] {
            let to = Destination { address: chain.family.server, protocol: UDP, port: SHARED };
            let payload = [b"hello".as_slice(), &tail::block(&chain.token(id, &to, 1))].concat();
            let datagram = |payload: &[u8]| chain.packet().udp(from, SHARED).payload(payload).frame();
            let (index, is_second, frame) = chain.run(&datagram(&payload));
            assert_eq!((index, is_second), (counter::TOKEN, id == "edge-2"));
            assert_eq!(frame, datagram(b"hello"));
            assert!(chain.passes(&datagram(b"more")));
        }
        chain.drops_second(&chain.packet().udp(2003, SHARED).payload(b"hello").frame(), DropReason::NoToken);
    });
}

#[test]
fn kernel_cuts_the_flows_of_one_authority_only_though_the_handles_are_equal() {
    each(|chain| {
        for (from, id) in [(3001, "edge-1"), (3002, "edge-2")] {
            assert!(chain.passes(&chain.first_packet(id, from, SHARED, 1)));
        }
        // The second authority revokes a grant with the handle that the first one's grant has, too.
        chain.second.revoked.set(HANDLE, NOW + 300).expect("room");
        chain.second.sweep(NOW).expect("a sweep");
        assert!(chain.passes(&chain.next(3001, SHARED)) && !chain.passes(&chain.next(3002, SHARED)));
        assert!(chain.passes(&chain.first_packet("edge-1", 3003, SHARED, 2)));
        // A refusal after the tag's check is final: the token is the second authority's.
        chain.drops_second(&chain.first_packet("edge-2", 3004, SHARED, 2), DropReason::Revoked);
        chain.first.revoked.set(HANDLE, NOW + 300).expect("room");
        chain.first.sweep(NOW).expect("a sweep");
        chain.drops_first(&chain.first_packet("edge-1", 3005, SHARED, 3), DropReason::Revoked);
        assert!(chain.first.flows.entries().is_empty());
    });
}

#[test]
fn kernel_drops_packets_that_have_no_next_programs() {
    each(|chain| {
        for (from, id) in [(4001, "edge-1"), (4002, "edge-2")] {
            assert!(chain.passes(&chain.first_packet(id, from, SHARED, 1)));
        }
        chain.unlink();
        assert!(chain.passes(&chain.next(4001, SHARED)));
        chain.drops_first(&chain.next(4002, SHARED), DropReason::NoFlow);
        chain.drops_first(&chain.first_packet("edge-2", 4003, SECOND, 2), DropReason::NoToken);
        chain.link();
        assert!(chain.passes(&chain.next(4002, SHARED)));
        // The second authority gives up its services. Until the first one's programs know, packets still come here.
        chain.second.protect(&[]).expect("nothing");
        chain.drops_second(&chain.syn(4004, SECOND), DropReason::NoToken);
        chain.drops_second(&chain.syn(4004, SHARED), DropReason::NoToken);
        assert!(chain.passes(&chain.first_packet("edge-1", 4005, SHARED, 3)));
    });
}
