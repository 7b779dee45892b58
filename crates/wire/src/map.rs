//! Layouts of the kernel maps, byte for byte as `bpf/include/maps.h` has them; `datapath` checks that they agree.
//!
//! Integers are in the machine's order unless their type says otherwise: only programs of this machine read them.

mod inside;
mod proofs;
mod replay;
mod svtep;
mod told;
mod transfer;

use crate::carrier::Carrier;
use crate::ls::{SECRET_LEN, ServerSecret};
use crate::mac::Suite;
use crate::packet::Packet;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
pub use inside::{Bearer, LeaseKey, Member, NatConfig, NatNews, PersonName, PoolSlot, WayBack, nat_news};
pub use proofs::{ProofKeySlot, ProofsConfig, WithdrawalKey};
pub use replay::{REPLAY_ENTRIES, ReplayBucket, ReplayLook};
pub use svtep::{
    Consent, Delivery, SegmentEntry, SegmentKey, SvtepConfig, Tenant, UnsentHeader, segment_state, svtep_counter,
};
pub use told::{FlowNews, ToldAddress, ToldFlow, taken, tells_flows};
pub use transfer::{AuthorityEnd, TakenKey, Transfer, TransferConfig, transfer_counter};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The most spans of ports that one protected prefix may have.
pub const SERVICES_MAX: usize = 32;

/// The verifier program's settings, fixed when it is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct VerifierConfig {
    /// Chance that picks a token's bucket.
    pub replay_seed: u64,
    /// Buckets of the replay table less one; their number is a power of two.
    pub replay_mask: u32,
    /// Seconds an epoch lasts.
    pub epoch_length: u32,
    /// The longest a grant may still live, seconds.
    pub max_lifetime: u32,
    /// How many flows one grant may have.
    pub flows_per_grant: u32,
    /// Seconds after which a silent TCP flow is forgotten.
    pub tcp_idle: u32,
    /// The same for all other flows.
    pub udp_idle: u32,
    /// The same for a TCP flow whose client sent FIN or RST last.
    pub closing_idle: u32,
    /// Drop samples per core and second.
    pub samples_per_second: u32,
    /// 1: count and report, but drop nothing.
    pub observe: u32,
    /// The carriers that it takes tokens from: the bits of each [`Carrier`].
    pub carriers: u16,
    /// The suites that it takes tokens of: each one's bit is at its number.
    pub suites: u16,
    /// How many flows the inside of a gateway may have opened; 0 if this is none.
    pub max_outbound: u32,
    /// When it tells of flows, for the gateways beside this one: one of [`tells_flows`].
    pub tells_flows: u32,
    /// What of a packet's mark says that it is admitted.
    pub mark: u32,
    /// Which bits of the mark are the verifier's, the lowest eight for the class; 0 if its verdict is to drop.
    pub mark_mask: u32,
}

impl Default for VerifierConfig {
    fn default() -> Self {
        Self {
            replay_seed: 0,
            replay_mask: 65535,
            epoch_length: 3600,
            max_lifetime: 3600,
            flows_per_grant: 1024,
            tcp_idle: 86400,
            udp_idle: 60,
            closing_idle: 30,
            samples_per_second: 100,
            observe: 0,
            carriers: Carrier::Tail as u16,
            suites: 1 << Suite::AesCmac as u16 | 1 << Suite::Siphash as u16,
            max_outbound: 0,
            tells_flows: tells_flows::NOTHING,
            mark: 0,
            mark_mask: 0,
        }
    }
}

impl VerifierConfig {
    /// Whether tokens come by this carrier.
    pub const fn takes(&self, carrier: Carrier) -> bool {
        self.carriers & carrier as u16 != 0
    }

    /// Whether it speaks the suite with this number.
    pub const fn speaks(&self, suite: u8) -> bool {
        suite < 16 && self.suites >> suite & 1 == 1
    }
}

/// The agent program's settings, fixed when it is loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AgentConfig {
    /// Bytes of link header on the interface: 14, or 0 on links without one.
    pub link_header: u32,
    /// 1 if attached by TCX.
    pub tcx: u32,
    /// 1 if some owner is a cgroup.
    pub match_cgroups: u32,
    /// 1 if copies of name servers' answers are handed over.
    pub hear: u32,
}

/// An address as the maps hold it: IPv4 in the first four bytes, the rest zero.
pub fn address_bytes(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(a) => {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&a.octets());
            bytes
        }
        IpAddr::V6(a) => a.octets(),
    }
}

/// The address in a map's 16 bytes.
pub fn address_of(bytes: [u8; 16], family: u8) -> IpAddr {
    match bytes {
        [a, b, c, d, ..] if family == 4 => IpAddr::V4(Ipv4Addr::new(a, b, c, d)),
        _ => IpAddr::V6(Ipv6Addr::from(bytes)),
    }
}

/// A flow: who talks to which service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct FlowKey {
    /// The client's address.
    pub client: [u8; 16],
    /// The server's address.
    pub server: [u8; 16],
    /// The client's port, big-endian.
    pub client_port: [u8; 2],
    /// The server's port, big-endian.
    pub server_port: [u8; 2],
    /// The protocol.
    pub protocol: u8,
    /// 4 or 6.
    pub family: u8,
    /// Zero.
    pub reserved: [u8; 2],
}

/// A flow of IPv4 addresses, in the shorter form that the kernel looks up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct FlowKey4 {
    /// The client's address.
    pub client: [u8; 4],
    /// The server's address.
    pub server: [u8; 4],
    /// The client's port, big-endian.
    pub client_port: [u8; 2],
    /// The server's port, big-endian.
    pub server_port: [u8; 2],
    /// The protocol.
    pub protocol: u8,
    /// Zero.
    pub reserved: [u8; 3],
}

impl FlowKey4 {
    /// The short form, if the addresses are IPv4.
    pub fn of(key: &FlowKey) -> Option<Self> {
        let ([a, b, c, d, ..], [e, f, g, h, ..]) = (key.client, key.server);
        (key.family == 4).then_some(Self {
            client: [a, b, c, d],
            server: [e, f, g, h],
            client_port: key.client_port,
            server_port: key.server_port,
            protocol: key.protocol,
            reserved: [0; 3],
        })
    }

    /// The long form.
    pub fn long(&self) -> FlowKey {
        let port = u16::from_be_bytes;
        let (client, server) = (IpAddr::V4(self.client.into()), IpAddr::V4(self.server.into()));
        FlowKey::new(client, port(self.client_port), server, port(self.server_port), self.protocol)
    }
}

/// A set of classes: of addresses none of which is protected, or of handles some of which are revoked.
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ClassSet {
    /// A bit per class.
    pub bits: [u64; 1024],
}

impl ClassSet {
    /// No class is in it.
    pub const NOTHING: Self = Self { bits: [0; 1024] };
    /// Every class is in it.
    pub const EVERYTHING: Self = Self { bits: [u64::MAX; 1024] };

    /// The class of an address: of IPv4 the whole address counts, of IPv6 the first half.
    pub fn class_of(address: IpAddr) -> u16 {
        match address {
            IpAddr::V4(a) => (u32::from_ne_bytes(a.octets()).wrapping_mul(0x9e37_79b1) >> 16) as u16,
            IpAddr::V6(a) => {
                let [b0, b1, b2, b3, b4, b5, b6, b7, ..] = a.octets();
                (u64::from_ne_bytes([b0, b1, b2, b3, b4, b5, b6, b7]).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as u16
            }
        }
    }

    /// The class of a handle. Handles are random.
    pub fn class_of_handle(handle: u64) -> u16 {
        handle as u16
    }

    /// Puts a class in.
    pub fn insert(&mut self, class: u16) {
        if let Some(word) = self.bits.get_mut(usize::from(class >> 6)) {
            *word |= 1 << (class & 63);
        }
    }

    /// Takes a class out.
    pub fn remove(&mut self, class: u16) {
        if let Some(word) = self.bits.get_mut(usize::from(class >> 6)) {
            *word &= !(1 << (class & 63));
        }
    }

    /// Whether a class is in it.
    pub fn contains(&self, class: u16) -> bool {
        self.bits.get(usize::from(class >> 6)).is_some_and(|word| word >> (class & 63) & 1 == 1)
    }

    /// How many classes are in it.
    pub fn len(&self) -> u32 {
        self.bits.iter().map(|word| word.count_ones()).sum()
    }

    /// Whether no class is in it.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl FlowKey {
    /// The flow between a client and a server.
    pub fn new(client: IpAddr, client_port: u16, server: IpAddr, server_port: u16, protocol: u8) -> Self {
        Self {
            client: address_bytes(client),
            server: address_bytes(server),
            client_port: client_port.to_be_bytes(),
            server_port: server_port.to_be_bytes(),
            protocol,
            family: if server.is_ipv4() { 4 } else { 6 },
            reserved: [0; 2],
        }
    }

    /// The flow of a packet on its way to the server.
    pub fn to_server(packet: &Packet) -> Option<Self> {
        let (client, server) = (packet.source?, packet.destination?);
        Some(Self::new(client, packet.source_port, server, packet.destination_port, packet.protocol))
    }

    /// The flow of a packet on its way back to the client.
    pub fn to_client(packet: &Packet) -> Option<Self> {
        let (server, client) = (packet.source?, packet.destination?);
        Some(Self::new(client, packet.destination_port, server, packet.source_port, packet.protocol))
    }

    /// The client's address and port.
    pub fn client(&self) -> (IpAddr, u16) {
        (address_of(self.client, self.family), u16::from_be_bytes(self.client_port))
    }

    /// The server's address and port.
    pub fn server(&self) -> (IpAddr, u16) {
        (address_of(self.server, self.family), u16::from_be_bytes(self.server_port))
    }
}

impl Services {
    /// The spans that count.
    pub fn spans(&self) -> &[Service] {
        self.spans.get(..self.count as usize).unwrap_or(&self.spans)
    }

    /// Whether a packet of `protocol` to `port` is meant.
    pub fn covers(&self, protocol: u8, port: u16) -> bool {
        self.spans().iter().any(|span| {
            span.protocol == 0 || span.protocol == protocol && span.first_port <= port && port <= span.last_port
        })
    }

    /// Whether some port of `protocol` is meant: for packets that don't show their port.
    pub fn covers_some(&self, protocol: u8) -> bool {
        self.spans().iter().any(|span| span.protocol == 0 || span.protocol == protocol)
    }
}

/// An admitted flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Flow {
    /// The grant that admitted it; 0 if none did.
    pub handle: u64,
    /// IP bytes towards the server since it was admitted. Approximate under several receive queues.
    pub bytes: u64,
    /// Packets towards the server since it was admitted.
    pub packets: u64,
    /// When it was admitted, Unix seconds.
    pub since: u32,
    /// When its last packet came, Unix seconds.
    pub seen: u32,
    /// How far its connection is: one of [`stage`].
    pub stage: u8,
    /// Who opened it: one of [`origin`].
    pub origin: u8,
    /// The client's port as the inside of a gateway sees it, big-endian.
    pub inside_port: [u8; 2],
    /// The slot of the address that the inside sees it by, and one more; 0 if that is its own.
    pub inside: u32,
}

impl Flow {
    /// Whether a grant admitted it.
    pub const fn by_grant(&self) -> bool {
        self.origin == origin::TOKEN
    }
}

/// Who opened a flow.
pub mod origin {
    /// A client, by a token.
    pub const TOKEN: u8 = 0;
    /// It was established before protection started.
    pub const ADOPTED: u8 = 1;
    /// The inside of a gateway: what comes in are its answers.
    pub const INSIDE: u8 = 2;
}

/// Where a TCP connection stands, as far as the client's packets show. All but an open one are forgotten soon.
pub mod stage {
    /// Data may come; also every flow that is not TCP's.
    pub const OPEN: u8 = 0;
    /// Its SYN was admitted and nothing else has come.
    pub const OPENING: u8 = 1;
    /// The client sent FIN, and no payload since.
    pub const CLOSING: u8 = 2;
    /// The client sent RST, and nothing since.
    pub const RESET: u8 = 3;
}

/// Seconds over which a grant's tokens are counted: as long as a token can be valid, in a power of two.
pub const TOKEN_WINDOW: u32 = 64;
/// How many tokens of a grant are taken in a window, for each flow it may have: so that no grant fills the replay table.
pub const TOKENS_PER_FLOW: u32 = 8;

/// What the verifier remembers of a grant that has admitted something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct GrantUse {
    /// How many flows it has.
    pub flows: u32,
    /// When it ends, Unix seconds.
    pub expires: u32,
    /// How many of its tokens were taken in this window.
    pub tokens: u32,
    /// The window, in units of [`TOKEN_WINDOW`] of Unix time.
    pub window: u32,
    /// The flow it admitted first: the only one if the grant is for a single flow.
    pub first: FlowKey,
}

/// The class of a grant, for rules of a packet filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct GrantClass {
    /// The class, 0 to 255.
    pub class: u32,
    /// When the grant ends, Unix seconds.
    pub expires: u32,
}

/// A verifier's key for one epoch; the array's index is the epoch's low 8 bits.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct EpochKey {
    /// The epoch's whole number; 0 is none.
    pub epoch: u64,
    /// The siphash half.
    pub siphash: [u8; 16],
    /// The AES half.
    pub aes: [u8; 16],
}

/// A verifier's application server secret of one epoch; the array's index is the epoch's low 8 bits.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SecretEntry {
    /// The epoch's whole number; 0 is none.
    pub epoch: u64,
    /// The block that client keys are hashes of, padding included, but for the pair: seven zero bytes stand for that.
    pub block: [u8; 64],
}

impl SecretEntry {
    /// The entry of a secret.
    pub fn new(epoch: u64, secret: &ServerSecret) -> Self {
        const PAIR_LEN: usize = 7;
        const LEN: usize = PAIR_LEN + SECRET_LEN;
        let mut block = [0; 64];
        block[PAIR_LEN..LEN].copy_from_slice(secret.bytes());
        block[LEN] = 0x80;
        block[56..].copy_from_slice(&(LEN as u64 * 8).to_be_bytes());
        Self { epoch, block }
    }
}

/// A pair that the authority told of (wire.md §5.5); the map's key is its handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct LsGrant {
    /// The epoch whose secret its client key is made with.
    pub epoch: u64,
    /// When it ends, Unix seconds.
    pub expires: u32,
    /// Zero.
    pub reserved: u32,
    /// A bit for each nonce2 that was used.
    pub used: [u64; 1024],
}

impl LsGrant {
    /// A pair none of whose nonces was used.
    pub const fn new(epoch: u64, expires: u32) -> Self {
        Self { epoch, expires, reserved: 0, used: [0; 1024] }
    }

    /// Whether a nonce2 was used.
    pub fn is_used(&self, nonce2: u16) -> bool {
        self.used.get(usize::from(nonce2 >> 6)).is_none_or(|word| word >> (nonce2 & 63) & 1 == 1)
    }

    /// Notes that a nonce2 was used; whether it was for the first time.
    pub fn take(&mut self, nonce2: u16) -> bool {
        let fresh = !self.is_used(nonce2);
        if let Some(word) = self.used.get_mut(usize::from(nonce2 >> 6)) {
            *word |= 1 << (nonce2 & 63);
        }
        fresh
    }
}

/// The key of a longest-prefix map of IPv4 networks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Prefix4 {
    /// Leading bits.
    pub length: u32,
    /// The network.
    pub address: [u8; 4],
}

/// The key of a longest-prefix map of IPv6 networks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Prefix6 {
    /// Leading bits.
    pub length: u32,
    /// The network.
    pub address: [u8; 16],
}

/// A span of ports of one protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Service {
    /// The protocol; 0 is every one.
    pub protocol: u8,
    /// Zero.
    pub reserved: u8,
    /// The first port.
    pub first_port: u16,
    /// The last port.
    pub last_port: u16,
}

/// What is protected behind one prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Services {
    /// How many of the spans count.
    pub count: u32,
    /// The spans.
    pub spans: [Service; SERVICES_MAX],
}

/// A dropped packet, as the verifier's program reports it.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DropSample {
    /// The grant's handle where the token was readable, else 0.
    pub handle: u64,
    /// The packet's flow as far as it was readable.
    pub flow: FlowKey,
    /// The interface's index.
    pub interface: u32,
    /// The packet's length.
    pub length: u16,
    /// The drop reason's number.
    pub reason: u8,
    /// 1 if it passed because the verifier only observes.
    pub observed: u8,
}

/// Index of the verifier's counters behind those of the drop reasons, which stand at their numbers.
pub mod counter {
    /// Packets to what is not protected.
    pub const NOT_OURS: u32 = 16;
    /// Packets of admitted flows.
    pub const FLOW: u32 = 17;
    /// Packets admitted by their token.
    pub const TOKEN: u32 = 18;
    /// Datagrams that held a token alone and were consumed.
    pub const CONSUMED: u32 = 19;
    /// ICMP errors that quoted an admitted flow.
    pub const ICMP_ERROR: u32 = 20;
    /// Drop samples that did not fit the ring or the rate.
    pub const SAMPLES_LOST: u32 = 21;
    /// Flows that the inside of a gateway has opened.
    pub const OUTBOUND: u32 = 22;
    /// Flows that it wanted to open, and that found no room.
    pub const OUTBOUND_FULL: u32 = 23;
    /// Packets of the inside to an inside address that nobody has.
    pub const UNCLAIMED: u32 = 24;
    /// Number of counters.
    pub const COUNT: u32 = 32;
}

/// Whose traffic a socket's packets are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Owner {
    /// One of [`owner`].
    pub kind: u32,
    /// Zero.
    pub reserved: u32,
    /// The user id or cgroup id; 0 for forwarded packets.
    pub id: u64,
}

/// Kinds of [`Owner`].
pub mod owner {
    /// A user id.
    pub const USER: u32 = 1;
    /// A cgroup id: the socket's cgroup or one above it.
    pub const CGROUP: u32 = 2;
    /// Packets without a local socket.
    pub const FORWARDED: u32 = 3;
}

/// What the agent's grants are looked up by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct GrantSlot {
    /// The logged-in subject on this machine.
    pub subject: u32,
    /// The destination port, big-endian.
    pub port: [u8; 2],
    /// The protocol.
    pub protocol: u8,
    /// 4 or 6.
    pub family: u8,
    /// The destination.
    pub address: [u8; 16],
}

/// What the agent does with first packets to one destination.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct GrantEntry {
    /// Use it until then, Unix seconds by this machine's clock.
    pub until: u32,
    /// When the program last made a token from it, Unix seconds by the authority's clock; 0 if it never did.
    pub used: u32,
    /// 1: send packets as they are, without identity.
    pub plain: u8,
    /// The suite's number.
    pub suite: u8,
    /// How tokens travel: the number of a [`Carrier`].
    pub carrier: u8,
    /// Zero.
    pub reserved: u8,
    /// What to add to this machine's clock for the authority's, seconds.
    pub skew: i32,
    /// The grant header; of a pair its seven bytes and zero, then what the kernel does not read: when it ends (big-endian)
    /// and the prefix length.
    pub header: [u8; 16],
    /// The grant key or client key, and zeros.
    pub key: [u8; 32],
    /// How many nonces of its pair were used when the program last made a token from it.
    pub spent: u32,
    /// Zero.
    pub reserved2: u32,
}

/// A UDP flow as the agent sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Conversation {
    /// When its last token was sent, Unix seconds.
    pub token: u32,
    /// 1 once something came back.
    pub answered: u32,
    /// Whose it is.
    pub subject: u32,
    /// When its last datagram was sent, Unix seconds.
    pub seen: u32,
}

/// What precedes a packet that the agent's program hands over because its grant is missing; with subject 0, which is
/// nobody's, a copy of a name server's answer.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct HeldHeader {
    /// The destination and subject.
    pub slot: GrantSlot,
    /// The interface's index.
    pub interface: u32,
    /// Bytes of packet that follow.
    pub length: u32,
    /// Payload bytes of each datagram if the packet is several (GSO), else 0.
    pub segment: u32,
    /// EtherType of the VLAN tag beside the packet, big-endian; 0 if there is none.
    pub vlan_proto: [u8; 2],
    /// That tag's priority and VLAN.
    pub vlan_tci: u16,
}

/// Index of the agent's counters.
pub mod agent_counter {
    /// Packets that were none of the agent's business.
    pub const OTHER: u32 = 0;
    /// Tokens put into packets.
    pub const TOKENS: u32 = 1;
    /// Datagrams that carried a token alone, ahead of one that had no room.
    pub const ALONE: u32 = 2;
    /// Packets held for a grant.
    pub const HELD: u32 = 3;
    /// Packets that could not be held.
    pub const HOLD_FAILED: u32 = 4;
    /// Packets to protected destinations sent without identity.
    pub const PLAIN: u32 = 5;
    /// Packets of UDP flows that needed no token.
    pub const CONVERSATION: u32 = 6;
    /// Packets that could not be changed, and were dropped.
    pub const FAILED: u32 = 7;
    /// Datagrams on a flow of somebody else's, dropped.
    pub const RIDER: u32 = 8;
    /// First packets to authorities that carry the support option.
    pub const SUPPORT: u32 = 9;
    /// Client keys that came in band.
    pub const KEYS: u32 = 10;
    /// Number of counters.
    pub const COUNT: u32 = 16;
}
