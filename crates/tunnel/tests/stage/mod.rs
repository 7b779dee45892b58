//! Both ends of a tunnel, each in a network namespace of its own, with a router between them.

use engine::model::{Sealing, Treatment};
use engine::tunnel::{Chance, Limits, Terms};
use engine::verifier::{Tables, Verifier};
use lab::Namespace;
use lab::nat::nat;
use lab::net::veth;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use tunnel::{AgentEnd, Device, Inside, Key, Knowledge, Leg, Pump, Socket, VerifierEnd, times};
use wire::map::{FlowKey, Steered};
use wire::{Destination, Epoch, Flags, GrantHeader, Handle, Holder, MasterKey, Suite, VerifierKey};

/// The server, as its clients address it.
pub const SERVER: &str = "192.0.2.1";
pub const SERVER6: &str = "2001:db8:2::1";
const SERVICE: &str = "192.0.2.1:4500";
const POOL: [&str; 2] = ["100.64.0.0/16", "fd64::/64"];

/// Random numbers that nobody needs to be secret.
pub struct Dice(pub u64);

impl Chance for Dice {
    fn bytes(&mut self) -> [u8; 32] {
        let mut bytes = [0; 32];
        for room in bytes.as_chunks_mut::<8>().0 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            *room = (self.0 ^ self.0 >> 29).to_le_bytes();
        }
        bytes
    }
}

/// A verifier's tables, and the same demand for every grant.
pub struct Known {
    tables: Verifier,
    demand: Sealing,
    looks: Arc<Looks>,
}

/// How often the demand was looked up, and how often by the handle of a token.
#[derive(Default)]
pub struct Looks {
    pub all: AtomicU32,
    pub by_token: AtomicU32,
}

impl Knowledge for Known {
    fn with_tables(&self, work: &mut dyn FnMut(&dyn Tables)) {
        work(&self.tables);
    }

    fn demanded(&self, _: &FlowKey, token: Option<Handle>, _: u32) -> Option<Sealing> {
        self.looks.all.fetch_add(1, Relaxed);
        self.looks.by_token.fetch_add(token.is_some().into(), Relaxed);
        Some(self.demand)
    }
}

/// The network and its two ends.
pub struct Stage {
    pub agent: Pump<AgentEnd>,
    /// The subject that opens the client's flows.
    pub opener: Arc<AtomicU32>,
    pub verifier: Pump<VerifierEnd<Known>>,
    pub client: Namespace,
    pub router: Namespace,
    pub server: Namespace,
}

pub fn demand(treatment: Treatment) -> Sealing {
    Sealing { treatment, ..Sealing::NONE }
}

/// The tunnel's key at the agent.
pub fn key() -> Key {
    Key { subject: 1, organisation: 0, service: SERVICE.parse().expect("an address") }
}

fn knowledge(demand: Sealing) -> Known {
    let mut tables = Verifier::default();
    let now = Epoch::at(times().1.into(), tables.config().epoch_length);
    for epoch in [Epoch(now.0 - 1), now, Epoch(now.0 + 1)] {
        tables.keys.insert(epoch, MasterKey::new([7; 32]).verifier_key("edge", epoch).expect("a short id"));
    }
    Known { tables, demand, looks: Arc::default() }
}

/// Terms of a tunnel of this account, which forge nothing: the test has the master key.
pub fn terms(account: u32) -> Terms {
    let verifier_key = &verifier_key();
    let epoch = Epoch::at(times().1.into(), Verifier::default().config().epoch_length);
    let address: SocketAddr = SERVICE.parse().expect("an address");
    let to = Destination { address: address.ip(), protocol: 17, port: address.port() };
    let grant = GrantHeader {
        suite: Suite::Siphash,
        flags: Flags::PORT,
        epoch: epoch.on_wire(),
        prefix_length: 32,
        // A bench waits ten minutes for a re-keying.
        expires: times().1 + 1800,
        handle: Holder::new(account, 1).expect("small").handle(verifier_key, 7),
    };
    Terms {
        key: grant.key(verifier_key, &to, address.ip()),
        grant,
        to,
        forward: true,
        suites: tunnel::suites(),
        rekey_after: 120_000,
        room: 1400,
    }
}

/// Returns a verifier's end without a device.
pub fn verifier_end(demand: Sealing) -> VerifierEnd<Known> {
    watched_verifier_end(demand).0
}

/// Returns a verifier's end without a device, and how often it looks up the demand.
pub fn watched_verifier_end(demand: Sealing) -> (VerifierEnd<Known>, Arc<Looks>) {
    let networks = POOL.map(|network| network.parse().expect("a network")).into();
    let known = knowledge(demand);
    let looks = known.looks.clone();
    let inside = Arc::new(Mutex::new(Inside::new(networks, 1)));
    (VerifierEnd::new(known, SERVICE.parse().expect("an address"), inside, Limits::default()), looks)
}

/// Returns the verifier's key for the current epoch, of which grants are made.
pub fn verifier_key() -> VerifierKey {
    let mut known = knowledge(Sealing::NONE);
    let epoch = Epoch::at(times().1.into(), known.tables.config().epoch_length);
    known.tables.keys.remove(&epoch).expect("a key for each epoch")
}

/// Builds the network: client, router, server.
pub fn network(with_nat: bool) -> (Namespace, Namespace, Namespace) {
    let [client, router, server] =
        ["client", "router", "server"].map(|role| Namespace::new(role).expect("a namespace"));
    let cable = |a: &Namespace, device, addresses, b: &Namespace, other, theirs| {
        veth(a, device, addresses, b, other, theirs).expect("a cable");
    };
    cable(&client, "eth0", "10.1.0.1/24 fd01::1/64", &router, "lan", "10.1.0.254/24 fd01::ff/64");
    let next = "192.0.2.254/24 2001:db8:2::ff/64";
    cable(&server, "eth0", "192.0.2.1/24 2001:db8:2::1/64", &router, "wan", next);
    for (host, four, six) in [(&client, "10.1.0.254", "fd01::ff"), (&server, "192.0.2.254", "2001:db8:2::ff")] {
        host.route("default", four).expect("a route");
        host.route("default", six).expect("a route");
        // A new namespace may have been given the machine's own settings.
        host.use_loss_based_control().expect("CUBIC or Reno");
        host.sysctl("net/ipv4/ip_forward", "0").expect("a host that forwards nothing");
        host.sysctl("net/ipv6/conf/all/forwarding", "0").expect("a host that forwards nothing");
    }
    if with_nat {
        nat(&router, "lan", "wan").expect("a translator");
    } else {
        router.forward().expect("a router");
    }
    (client, router, server)
}

impl Stage {
    /// Builds the network, with a NAT on the way or without, and starts both ends. Every packet to the server except the
    /// tunnel's own goes into the tunnel, in which `demand` is the rule at the verifier.
    pub fn new(with_nat: bool, demand: Sealing) -> Self {
        Self::with_queues(with_nat, demand, tunnel::default_queues())
    }

    /// Does what [`Self::new`] does, with this number of queues at both ends.
    pub fn with_queues(with_nat: bool, demand: Sealing, queues: usize) -> Self {
        let (client, router, server) = network(with_nat);
        let verifier = server.enter(|| {
            let device = Device::with_queues("vs-seal", 1420, queues).expect("a device");
            device[0].turn_on().expect("a device");
            let sockets = Socket::several(SERVICE.parse().expect("an address"), queues).expect("sockets");
            Pump::start(device, sockets, verifier_end(demand)).expect("threads")
        });
        for (network, own) in POOL.into_iter().zip(["100.64.0.1/32", "fd64::1/128"]) {
            server.ip(&format!("address add {own} dev vs-seal")).expect("an address");
            server.ip(&format!("route add {network} dev vs-seal")).expect("a route");
        }
        let opener = Arc::new(AtomicU32::new(key().subject));
        let subject = opener.clone();
        let agent = client.enter(|| {
            let device = Device::with_queues("vs-seal", 1500, queues).expect("a device");
            device[0].turn_on().expect("a device");
            let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
            let mut end =
                AgentEnd::asking(Box::new(move |_| Some(Steered { subject: subject.load(Relaxed), wish: 0 })));
            end.set_tunnel(key(), terms(5), times());
            Pump::start(device, vec![Socket::new(socket).expect("a socket")], end).expect("threads")
        });
        client.sysctl("net/ipv4/conf/all/rp_filter", "0").expect("no filter");
        client.sysctl("net/ipv4/conf/vs-seal/rp_filter", "0").expect("no filter");
        let stage = Self { agent, opener, verifier, client, router, server };
        stage.steer();
        stage
    }

    /// Sends packets to the server into the device, except those of the tunnel itself: by a mark on everything else.
    fn steer(&self) {
        // The product does this at tc; here, routes by protocol and port are enough.
        for family in ["-4", "-6"] {
            let to = if family == "-4" { "10.1.0.1" } else { "fd01::1" };
            let server = if family == "-4" { SERVER } else { SERVER6 };
            for rule in [
                format!("to {server} ipproto udp dport 4500 lookup main pref 10"),
                format!("to {server} lookup 77 pref 11"),
            ] {
                self.client.ip(&format!("{family} rule add {rule}")).expect("a rule");
            }
            self.client.ip(&format!("{family} route add {server} dev vs-seal src {to} table 77")).expect("a route");
        }
    }

    /// Sends packets to a service of the server into the tunnel.
    pub fn leg(&self, protocol: u8, port: u16, demand: Sealing) {
        for address in [SERVER, SERVER6] {
            let to = Destination { address: address.parse().expect("an address"), protocol, port };
            self.agent.end().set_leg(to, Leg { tunnel: key(), demand });
        }
        self.agent.wake();
    }
}
