//! The setting of the tests: a verifier in front of one server, clients with grants, and their frames.

use lab::forge::{Packet, Tcp, flag};
use model::memory::Memory;
use model::program::{Constants, Edit, Program};
use model::world::{Cut, Job, Tables, Token, World};
use std::collections::BTreeMap;
use std::net::IpAddr;
use wire::map::{ClassSet, EpochKey, Forgotten, Prefix4, RevokedKey, SERVICES_MAX, Service, Services, VerifierConfig};
use wire::{Destination, Epoch, Flags, GrantHeader, Handle, Holder, MasterKey, Suite, VerifierKey, tail};
use zerocopy::IntoBytes;

pub const NOW: u32 = 1_800_000_000;
const EPOCH_LENGTH: u32 = 3600;
const SERVER: &str = "203.0.113.10";
const TCP: u8 = 6;
const UDP: u8 = 17;
const SSH: u16 = 22;
const QUIC: u16 = 443;

fn address(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn key(epoch: Epoch) -> VerifierKey {
    MasterKey::new(std::array::from_fn(|index| index as u8)).verifier_key("edge-1", epoch).expect("a short id")
}

/// A client's grant to the server.
#[derive(Clone, Copy)]
pub struct Grant {
    pub handle: u64,
    epoch: Epoch,
    expires: u32,
}

/// Returns the grant with this number, issued at the time `made`.
pub fn grant(number: u32, made: u32) -> Grant {
    Grant {
        handle: 0x0100_0000_0000_0000 | u64::from(number),
        epoch: Epoch::at(made.into(), EPOCH_LENGTH),
        expires: made + 3000,
    }
}

/// Returns the grant with this number that an account holds, issued at [`NOW`].
pub fn held(account: u32, number: u32) -> Grant {
    let epoch = Epoch::at(NOW.into(), EPOCH_LENGTH);
    let holder = Holder::new(account, 1).expect("a small account");
    Grant { handle: holder.handle(&key(epoch), number).0, epoch, expires: NOW + 3000 }
}

impl Grant {
    fn token(&self, protocol: u8, port: u16, time: u32, nonce: u32) -> Vec<u8> {
        let to = Destination { address: address(SERVER), protocol, port };
        let header = GrantHeader {
            suite: Suite::Siphash,
            flags: Flags(0),
            epoch: self.epoch.on_wire(),
            prefix_length: 32,
            expires: self.expires,
            handle: Handle(self.handle),
        };
        let grant_key = header.key(&key(self.epoch), &to, address("198.51.100.7"));
        tail::block(&wire::Token::new(header, &grant_key, time, nonce, &to).encode()).to_vec()
    }

    /// Returns a SYN from this port, with a token that has this time and nonce.
    pub fn syn(&self, client_port: u16, time: u32, nonce: u32) -> Job {
        Job::Frame(packet().tcp(Tcp::syn(client_port, SSH)).payload(&self.token(TCP, SSH, time, nonce)).frame())
    }

    /// Returns a datagram from this port, with a token that has this time and nonce.
    pub fn datagram(&self, client_port: u16, time: u32, nonce: u32) -> Job {
        let payload = [b"payload".to_vec(), self.token(UDP, QUIC, time, nonce)].concat();
        Job::Frame(packet().udp(client_port, QUIC).payload(&payload).frame())
    }
}

fn packet() -> Packet {
    Packet::new(address("198.51.100.7"), address(SERVER))
}

/// Returns a segment of an established connection, with these flags.
pub fn segment(client_port: u16, flags: u8) -> Job {
    let tcp = Tcp { sequence: 2, acknowledgement: 1, ..Tcp::new(client_port, SSH, flags | flag::ACK) };
    Job::Frame(packet().tcp(tcp).frame())
}

/// A verifier's settings, its initial frames, and the cores' scripts.
pub struct Scene {
    pub name: &'static str,
    pub edits: &'static [Edit],
    pub config: VerifierConfig,
    /// Maximum number of elements, by table.
    pub room: &'static [(&'static str, usize)],
    /// Frames that arrive before the scripts start.
    pub before: Vec<Job>,
    pub scripts: Vec<Vec<Job>>,
    pub tokens: Vec<Token>,
    pub cuts: Vec<Cut>,
    pub flows_max: usize,
    /// Revocations (core, handle, expires). Each becomes two jobs at the beginning of that core's script: the
    /// revocation, and a sweep.
    pub revokes: Vec<(usize, u64, u32)>,
    /// Ends of sessions (core, a grant of the session, expires). Each becomes two jobs at the beginning of that core's
    /// script.
    pub ends: Vec<(usize, Grant, u32)>,
    /// The time at the start, in Unix seconds.
    pub clock: u32,
}

/// Returns a scene in which an account that has used its limit of flows asks for another flow, while another account
/// asks for its first. The table has room for one more flow.
pub fn greedy(name: &'static str) -> Scene {
    let scripts = vec![vec![held(1, 2).syn(40001, NOW, 7)], vec![held(2, 3).syn(40002, NOW, 7)]];
    let scene = Scene::new(name, scripts).used_token(&[(0, 0)]).token(&[(1, 0)]);
    let config = VerifierConfig { flows_per_account: 1, ..scene.config };
    Scene { config, room: &[("flows4", 2)], before: vec![held(1, 1).syn(40000, NOW, 7)], flows_max: 2, ..scene }
}

/// Returns a scene at the end of a rate window. In its last second, a grant that has its one flow uses another token,
/// which is refused and refunded. On the other core, the next window begins with the first token of the account's other
/// grant.
pub fn refunded(name: &'static str) -> Scene {
    let late = held(1, 1).syn(40001, NOW, 8);
    let scripts = vec![vec![late], vec![Job::Tick(1), held(1, 2).syn(40002, NOW, 7)]];
    let scene = Scene::new(name, scripts).used_token(&[(0, 0)]).token(&[(1, 1)]);
    let config = VerifierConfig { flows_per_grant: 1, ..scene.config };
    Scene { config, before: vec![held(1, 1).syn(40000, NOW, 7)], clock: NOW - 1, ..scene }
}

impl Scene {
    pub fn new(name: &'static str, scripts: Vec<Vec<Job>>) -> Self {
        let config = VerifierConfig {
            replay_mask: 0,
            epoch_length: EPOCH_LENGTH,
            samples_per_second: 0,
            ..VerifierConfig::default()
        };
        Self {
            name,
            edits: &[],
            config,
            room: &[],
            before: Vec::new(),
            scripts,
            tokens: Vec::new(),
            cuts: Vec::new(),
            flows_max: 16,
            revokes: Vec::new(),
            ends: Vec::new(),
            clock: NOW,
        }
    }

    /// Adds the token that these frames carry; one of the frames must be admitted.
    pub fn token(mut self, frames: &[(usize, usize)]) -> Self {
        self.tokens.push(Token { frames: frames.to_vec(), must: true });
        self
    }

    /// Adds the token that these frames carry; all of the frames may be refused.
    pub fn used_token(mut self, frames: &[(usize, usize)]) -> Self {
        self.tokens.push(Token { frames: frames.to_vec(), must: false });
        self
    }

    pub fn world(self) -> World {
        let program = Program::new(self.edits, self.config, constants(), self.room.iter().copied().collect())
            .unwrap_or_else(|error| panic!("{error:#}"));
        let tables = Tables::of(&program).expect("the program has its tables");
        let mut memory = Memory::default();
        memory.clock = self.clock;
        let mut scripts = self.scripts;
        let mut cuts = self.cuts;
        for (core, handle, expires) in self.revokes {
            let put = Job::Put(tables.revoked, handle.to_ne_bytes().to_vec(), expires.to_ne_bytes().to_vec());
            scripts[core].splice(0..0, [put, Job::Sweep]);
            cuts.push(Cut { core, job: 1, handle });
        }
        for (core, grant, expires) in self.ends {
            let key = RevokedKey::session(Holder::of(Handle(grant.handle), &key(grant.epoch)));
            let put = Job::Put(tables.ended, key.as_bytes().to_vec(), expires.to_ne_bytes().to_vec());
            scripts[core].splice(0..0, [put, Job::Sweep]);
            cuts.push(Cut { core, job: 1, handle: grant.handle });
        }
        let (tokens, flows_max) = (self.tokens, self.flows_max);
        let mut world = World { name: self.name, program, memory, scripts, tokens, cuts, flows_max };
        let before: Vec<_> = self
            .before
            .into_iter()
            .map(|job| match job {
                Job::Frame(frame) => frame,
                other => panic!("only frames come before: {other:?}"),
            })
            .collect();
        for outcome in world.before(&before) {
            assert!(outcome > 16, "a frame that came before was dropped: reason {outcome}");
        }
        world
    }
}

fn constants() -> Constants {
    let index = |index: u32| index.to_ne_bytes().to_vec();
    let epochs = Epoch::at(NOW.into(), EPOCH_LENGTH).0 - 1..=Epoch::at(NOW.into(), EPOCH_LENGTH).0 + 3;
    let epoch_keys = epochs.map(|number| {
        let key = key(Epoch(number));
        let [siphash, aes] = [Suite::Siphash, Suite::AesCmac].map(|suite| *key.of(suite));
        let entry = EpochKey { epoch: number, siphash, aes };
        (index(u32::from(Epoch(number).on_wire())), entry.as_bytes().to_vec())
    });
    let mut services = Services { count: 2, spans: [Service::default(); SERVICES_MAX] };
    for (span, (protocol, port)) in services.spans.iter_mut().zip([(TCP, SSH), (UDP, QUIC)]) {
        *span = Service { protocol, first_port: port, last_port: port, ..Service::default() };
    }
    let IpAddr::V4(server) = address(SERVER) else { panic!("an IPv4 address") };
    let prefix = Prefix4 { length: 32, address: server.octets() };
    BTreeMap::from([
        ("clock", vec![(index(0), vec![0; 8])]),
        ("open4", vec![(index(0), ClassSet::NOTHING.as_bytes().to_vec())]),
        ("protected4", vec![(prefix.as_bytes().to_vec(), services.as_bytes().to_vec())]),
        ("epoch_keys", epoch_keys.collect()),
        ("forgotten", vec![(index(0), Forgotten::default().as_bytes().to_vec())]),
        ("revoked_classes", [0, 1].map(|class| (index(class), ClassSet::EVERYTHING.as_bytes().to_vec())).to_vec()),
    ])
}
