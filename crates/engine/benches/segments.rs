//! Measures what a request for a path segment costs the authority, from the received request to the finished Geneve
//! option with its proofs. A thousand to a million clients are allowed to send to some receiver. Requests that are
//! allowed and requests that are denied are measured separately. The times include neither the network nor the seal of
//! requests.
//!
//! Repeats the measurement in Table I of the SVLAN paper, with a smaller database. The paper has up to a million
//! clients with a thousand authorized senders each (10⁹ entries). This bench has a million entries in all. With the
//! argument `whole`, it uses the paper's database: every client is a receiver, too, with a thousand senders in its
//! list. A million of them take some 8 GB and two minutes; sizes that do not fit in memory are left out.
//!
//! Prints one JSON object, which `cargo xtask bench` collects. For comparison, the bench also measures a walk over as
//! much memory as the rules take. The clients are drawn at random, so that the caches contain what they would contain
//! in real use.

use engine::issuing::segment::{Give, Giver};
use engine::model::Given;
use engine::model::Service;
use engine::policy::networks::Networks;
use engine::policy::rulebook::{Decision, Entry, Packed, Receiver, Request, Rulebook};
use engine::policy::{Action, GrantSuite, Granularity, Terms};
use ipnet::IpNet;
use measure::memory::Walk;
use measure::{Bound, Figures, Yardstick};
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Instant;
use wire::{Carrier, Destination, Epoch, MasterKey, ProofKey, Suite, Vni};

const SIZES: [u32; 4] = [1_000, 10_000, 100_000, 1_000_000];
/// The published system's mean times for the whole database, in microseconds: for allowed requests, and for others.
const PUBLISHED_WHOLE_US: [[f64; 4]; 2] = [[6.0, 6.0, 6.8, 6.7], [6.0, 6.0, 6.2, 6.2]];
/// Maximum memory that an entry of the whole database takes (`WHOLE_ENTRY_BYTES`), and memory that the bench needs
/// beside the entries (`ROOM_BESIDE`), in bytes.
const WHOLE_ENTRY_BYTES: u64 = 9;
const ROOM_BESIDE: u64 = 2 << 30;
/// Number of receivers loaded at a time, by two threads.
const BATCH: u32 = 8192;
/// Number of clients that one receiver names.
const ENTRIES: u32 = 1000;
const REQUESTS: u32 = 200_000;
const NOW: u64 = 1_800_000_000;
/// Time that the published system takes, in microseconds: the better of its figures, printed for comparison.
const PUBLISHED_US: f64 = 6.0;
/// Upper bound for a segment, in reads of the walk.
const BOUND: f64 = 60.0;
/// Approximate size of an entry (`ENTRY_BYTES`), and number of parts of a run, each of which starts with a walk
/// (`PARTS`).
const ENTRY_BYTES: usize = 16;
const PARTS: usize = 20;

const TERMS: Terms = Terms {
    granularity: Granularity::Application,
    lifetime: 300,
    single: false,
    reply: true,
    bind_source: false,
    suite: GrantSuite::Mac(Suite::Siphash),
    carrier: Carrier::Tail,
    class: 0,
    sealing: engine::model::Sealing::NONE,
};

fn main() {
    let mut figures = Figures::default();
    if std::env::args().any(|word| word == "whole") {
        SIZES.iter().enumerate().for_each(|(place, clients)| whole(place, *clients, &mut figures));
        return figures.print();
    }
    for clients in SIZES {
        let world = World::new(clients, clients / ENTRIES);
        let mut walk = Walk::new(clients as usize * ENTRY_BYTES);
        for (name, legitimate) in [("legitimate", true), ("others", false)] {
            let (mut taken, mut reads) = (Vec::new(), Vec::new());
            for (number, request) in world.requests(legitimate).enumerate() {
                if number % (REQUESTS as usize / PARTS) == 0 {
                    reads.push(walk.sample() / 1000.0);
                }
                taken.push(world.time(request, legitimate) / 1000.0);
            }
            let mean = taken.iter().sum::<f64>() / taken.len() as f64;
            let p99 = measure::quantile(&taken, 0.99);
            let read = Yardstick::new(reads);
            if (clients, legitimate) == (1_000_000, true) {
                figures.add("getsegment.engine_us", "us", mean, &read, Bound::AtMost(BOUND));
                figures.add("getsegment.engine_p99_us", "us", p99, &read, Bound::None);
                let published = Yardstick::fixed(PUBLISHED_US);
                figures.add("getsegment.engine_beside_published_us", "us", mean, &published, Bound::None);
            } else {
                figures.add(&format!("getsegment.{name}_{clients}_us"), "us", mean, &read, Bound::None);
                figures.add(&format!("getsegment.{name}_{clients}_p99_us"), "us", p99, &read, Bound::None);
            }
        }
    }
    figures.print();
}

/// Measures with the paper's database of this many clients.
fn whole(place: usize, clients: u32, figures: &mut Figures) {
    let needed = u64::from(clients) * u64::from(ENTRIES) * WHOLE_ENTRY_BYTES + ROOM_BESIDE;
    if needed > available() {
        eprintln!(
            "segments: left out {clients} clients: they need {} MiB, and {} MiB are free",
            needed >> 20,
            available() >> 20
        );
        return;
    }
    eprintln!("segments: loading {clients} clients with {ENTRIES} senders each");
    let start = Instant::now();
    let world = World::new(clients, clients);
    let loading = start.elapsed().as_secs_f64();
    shell::memory::into_huge_pages().expect("its own memory");
    figures.count(&format!("getsegment.whole_{clients}_load_s"), "s", loading, Bound::None);
    for (kind, (name, legitimate)) in [("legitimate", true), ("others", false)].into_iter().enumerate() {
        let taken: Vec<_> =
            world.requests(legitimate).map(|request| world.time(request, legitimate) / 1000.0).collect();
        let mean = taken.iter().sum::<f64>() / taken.len() as f64;
        let published = Yardstick::fixed(PUBLISHED_WHOLE_US[kind][place]);
        let mut figure = |part: &str, value: f64, bound: Bound| {
            figures.add(&format!("getsegment.whole_{name}_{clients}{part}_us"), "us", value, &published, bound);
        };
        figure("", mean, Bound::AtMost(1.0));
        figure("_least", measure::quantile(&taken, 0.0), Bound::None);
        figure("_p99", measure::quantile(&taken, 0.99), Bound::None);
    }
}

/// Returns the memory that is available, in bytes.
fn available() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").expect("/proc/meminfo");
    let value = text.lines().find_map(|line| line.strip_prefix("MemAvailable:")).expect("available memory");
    value.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
}

/// A request: client and receiver.
#[derive(Clone, Copy)]
struct Asked {
    client: u32,
    receiver: u32,
}

struct World {
    clients: u32,
    receivers: u32,
    book: Rulebook,
    networks: Networks,
    keys: Vec<ProofKey>,
}

impl World {
    fn new(clients: u32, receivers: u32) -> Self {
        let mut book = Rulebook::default();
        let senders: Vec<_> = (0..clients).map(|client| book.network(IpNet::from(sender(client)))).collect();
        let packed = |number: u32| {
            let entry = |place: u32| Entry {
                sender: senders[named(clients, number, place) as usize],
                action: Action::Allow,
                priority: 100,
                revision: u64::from(place),
                terms: 0,
                window: None,
            };
            Packed::new(&(0..ENTRIES).map(entry).collect::<Vec<_>>())
        };
        for first in (0..receivers).step_by(BATCH as usize) {
            let end = receivers.min(first + BATCH);
            let middle = first.midpoint(end);
            let (some, others) = std::thread::scope(|scope| {
                let others = scope.spawn(|| (middle..end).map(packed).collect::<Vec<_>>());
                ((first..middle).map(packed).collect::<Vec<_>>(), others.join().expect("lists are packed"))
            });
            for (number, packed) in (first..end).zip(some.into_iter().chain(others)) {
                let receiver = Receiver { prefix: receiver(number).into(), service: Service::ALL, number, verifier: 0 };
                book.set_packed(receiver, packed);
            }
        }
        // The receivers are spread over 64 endpoints.
        let of_endpoint = receivers.next_power_of_two().max(64) / 64;
        let length = 32 - of_endpoint.ilog2();
        let mut text = "authority = \"198.51.100.1\"\n[[networks]]\nname = \"blue\"\nvni = 100\n".to_owned();
        for number in 0..64 {
            let behind = receiver(number * of_endpoint);
            let sides = [(format!("10.{number}.0.0/16"), 1), (format!("{behind}/{length}"), 2)];
            for (prefix, side) in sides {
                text += &format!(
                    "[[places]]\nnetwork = \"blue\"\naddress = \"{prefix}\"\nendpoint = \"192.0.{side}.{number}\"\ninterface = 1\n"
                );
            }
            text += &format!("[[paths]]\nto = \"192.0.2.{number}\"\nverifiers = [\"edge\", \"host-{number}\"]\n");
        }
        let networks = Networks::parse(&text).expect("valid");
        let master = MasterKey::new([7; 32]);
        let key = |verifier| master.proof_key(verifier, authority(), Epoch::at(NOW, 3600)).expect("a short name");
        let keys = vec![key("edge"), key("host")];
        Self { clients, receivers, book, networks, keys }
    }

    /// Returns requests of clients that their receiver names, or of clients that it does not name.
    fn requests(&self, legitimate: bool) -> impl Iterator<Item = Asked> + '_ {
        let receivers = self.receivers;
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        (0..REQUESTS).map(move |_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let receiver = (state >> 33) as u32 % receivers;
            let client = named(self.clients, receiver, (state >> 40) as u32 % ENTRIES);
            // Here every receiver names all clients, so denied requests come from senders that are no clients.
            let other = if self.clients == ENTRIES { client + self.clients } else { (client + ENTRIES) % self.clients };
            Asked { client: if legitimate { client } else { other }, receiver }
        })
    }

    fn time(&self, asked: Asked, legitimate: bool) -> f64 {
        let start = Instant::now();
        let option = black_box(self.get(asked).map(|given| given.option()));
        let taken = start.elapsed().as_nanos() as f64;
        assert_eq!(option.is_some(), legitimate, "client {} at receiver {}", asked.client, asked.receiver);
        taken
    }

    /// Handles a request like the authority does.
    fn get(&self, asked: Asked) -> Option<Given> {
        let (sender, address) = (sender(asked.client), receiver(asked.receiver));
        let vni: Vni = self.networks.vni("blue")?;
        let place = self.networks.place(vni, sender)?;
        let to = Destination { address, protocol: 6, port: 443 };
        let evaluation = self.book.decide(&Request { subjects: &[], source: Some(sender), to }, |_| true);
        let Decision::Decided(ruling) = evaluation.decision else { return None };
        let receiving = self.networks.place(vni, address)?;
        let path = self.networks.path(place.endpoint, receiving.endpoint)?;
        let give = Give {
            giver: Giver {
                authority: self.networks.authority()?,
                suite: path.suite,
                path: &self.keys,
                now: NOW,
                epoch_length: 3600,
                max_lifetime: 3600,
            },
            terms: TERMS,
            scope: evaluation.scope(&ruling, TERMS.granularity),
            until: None,
            withdrawn: None,
            vni,
            sender,
            sending: place.endpoint,
            sender_port: 0,
            to,
            receiving,
        };
        give.give().ok()
    }
}

fn authority() -> IpAddr {
    Ipv4Addr::new(198, 51, 100, 1).into()
}

fn sender(client: u32) -> IpAddr {
    Ipv4Addr::from_bits(0x0a00_0000 | client).into()
}

fn receiver(number: u32) -> IpAddr {
    Ipv4Addr::from_bits(0xac10_0000 | number).into()
}

/// Returns the client at one place of a receiver's list.
fn named(clients: u32, receiver: u32, place: u32) -> u32 {
    (receiver * ENTRIES + place) % clients
}
