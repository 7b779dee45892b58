//! What the verifier answers, as types: one definition for the daemon, the command line and applications. Times are Unix
//! seconds; handles are 16 hex digits, as JSON numbers lose bits beyond 2^53 in many readers.

use engine::api::{GrantOwner, Service};
use engine::protocol;
use engine::verifier::{Check as EngineCheck, Explanation, Outcome};
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};
use wire::Handle;
use wire::map::{Flow as KernelFlow, FlowKey, origin};

/// A flow, and who is behind it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flow {
    /// The client, as the server sees it.
    pub client: SocketAddr,
    /// The client as the inside of the gateway sees it, where that is another.
    pub inside: Option<SocketAddr>,
    /// The server.
    pub server: SocketAddr,
    /// `tcp`, `udp` or a number.
    pub protocol: String,
    /// The grant that admitted it; none if it was adopted, or opened from inside.
    pub handle: Option<String>,
    /// Whether it was established when protection started.
    pub adopted: bool,
    /// Whether the inside of this gateway opened it: the client is whom it called.
    pub outbound: bool,
    /// Whose grant it is; none if there is no grant, or neither the verifier nor the authority can say.
    pub person: Option<String>,
    /// The device it was issued to.
    pub device: Option<String>,
    /// The receiver's name.
    pub receiver: Option<String>,
    /// The rule that allowed it.
    pub rule: Option<String>,
    /// When it was admitted or adopted.
    pub since: u64,
    /// When its last packet came.
    pub seen: u64,
    /// Packets towards the server.
    pub packets: u64,
    /// IP bytes towards the server.
    pub bytes: u64,
    /// Whether the client has closed it.
    pub closing: bool,
}

impl Flow {
    /// A flow of the kernel's table with its owner.
    pub fn new(key: &FlowKey, flow: &KernelFlow, inside: Option<SocketAddr>, owner: Option<&GrantOwner>) -> Self {
        let named = |name: fn(&GrantOwner) -> &String| owner.map(|owner| name(owner).clone());
        Self {
            client: key.client().into(),
            inside,
            server: key.server().into(),
            protocol: protocol::name(key.protocol),
            handle: flow.by_grant().then(|| Handle(flow.handle).to_string()),
            adopted: flow.origin == origin::ADOPTED,
            outbound: flow.origin == origin::INSIDE,
            person: named(|owner| &owner.person),
            device: named(|owner| &owner.device),
            receiver: named(|owner| &owner.receiver),
            rule: named(|owner| &owner.rule),
            since: flow.since.into(),
            seen: flow.seen.into(),
            packets: flow.packets,
            bytes: flow.bytes,
            closing: flow.stage != wire::map::stage::OPEN,
        }
    }
}

/// An inside address, and whose it is or was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InsideAddress {
    /// The address.
    pub address: IpAddr,
    /// Whose; none if the verifier no longer knows.
    pub person: Option<String>,
    /// Since when.
    pub since: u64,
    /// Until it became somebody else's; none if it has not.
    pub until: Option<u64>,
    /// How many flows it has.
    pub flows: u32,
}

/// A dropped packet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drop {
    /// Its number since the daemon started; numbers have no gaps.
    pub number: u64,
    /// When.
    pub time: u64,
    /// The drop reason's name.
    pub reason: String,
    /// The client, if it could be read.
    pub client: Option<SocketAddr>,
    /// The server, if it could be read.
    pub server: Option<SocketAddr>,
    /// `tcp`, `udp` or a number.
    pub protocol: String,
    /// The grant its token names, if it had a readable one. Not proven unless the reason comes after the tag.
    pub handle: Option<String>,
    /// The interface it came in on.
    pub interface: String,
    /// Its length in bytes.
    pub length: u16,
    /// Whether it passed, because the verifier only observes.
    pub observed: bool,
}

/// A counter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counter {
    /// The outcome's name.
    pub name: String,
    /// Packets.
    pub packets: u64,
}

/// What was dropped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drops {
    /// Packets per drop reason, since protection started.
    pub reasons: Vec<Counter>,
    /// Packets per other outcome.
    pub passed: Vec<Counter>,
    /// Flows that the inside of a gateway opened, and that it wanted to open and that found no room.
    pub opened: Vec<Counter>,
    /// Drops that were counted and not reported.
    pub samples_lost: u64,
    /// Whether the verifier only observes: packets that it would drop pass.
    pub observing: bool,
    /// The latest drops, oldest first.
    pub samples: Vec<Drop>,
}

/// An interface under protection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Where packets are judged: `xdp` or `tc`.
    pub hook: String,
    /// How the program is attached: `native`, `generic` or `offloaded` at XDP, `tcx` or `clsact` at tc.
    pub mode: String,
    /// Why it has this hook.
    pub why: String,
    /// Its driver, where that is known.
    pub driver: Option<String>,
}

/// An interface that no program is attached to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotAttached {
    /// Its name.
    pub name: String,
    /// Why.
    pub why: String,
    /// Whether packets may reach what is protected through it, and nobody judges them.
    pub open: bool,
}

/// A bounded table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Table {
    /// Its name.
    pub name: String,
    /// Entries in use; none where nobody counts them.
    pub used: Option<u64>,
    /// The most entries.
    pub max: u64,
    /// Bytes per entry.
    pub bytes: u64,
}

/// A protected prefix.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Protected {
    /// The prefix.
    pub prefix: String,
    /// What of it is protected.
    pub services: Vec<Service>,
}

/// What is protected beyond the addresses that receivers name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extended {
    /// The services that are protected at the other addresses of this host, too.
    pub services: Vec<Service>,
    /// These addresses.
    pub networks: Vec<String>,
    /// Whether there were more services than one address has room for, so that ports between them are protected, too.
    pub crowded: bool,
}

/// A socket that takes packets which nobody judges.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outside {
    /// `tcp` or `udp`.
    pub protocol: String,
    /// What it is bound to.
    pub address: SocketAddr,
    /// The addresses where packets reach it.
    pub at: Vec<IpAddr>,
    /// Whether it is protected at others.
    pub partly: bool,
}

/// A gateway that is told of flows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// Where it listens, as the settings have it.
    pub address: String,
    /// Whether it has been told of all flows and hears of new ones.
    pub connected: bool,
    /// What went wrong last, if something is wrong.
    pub trouble: Option<String>,
    /// Flows that it took over or refreshed.
    pub told: u64,
    /// Flows that it did not take: revoked, or without room or their inside address there.
    pub refused: u64,
    /// From a flow's first packet here until it passes there, microseconds: the median of the latest.
    pub gap_us: Option<u64>,
    /// The longest of these.
    pub gap_max_us: Option<u64>,
}

/// A gateway that tells of its flows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerSource {
    /// Where it connected from.
    pub from: SocketAddr,
    /// Since when.
    pub since: u64,
    /// Flows taken over or refreshed.
    pub taken: u64,
    /// Flows that were not.
    pub refused: u64,
}

/// The verifier at a glance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The verifier's id.
    pub verifier: String,
    /// Which of several on this host.
    pub instance: String,
    /// `protecting`, `observing`, `trying` (unless confirmed, protection ends) or `closed` (admits nothing new).
    pub state: String,
    /// Seconds until a trial ends.
    pub trial_left: Option<u64>,
    /// The interfaces.
    pub interfaces: Vec<Interface>,
    /// The interfaces that lead inside, if this is a gateway.
    pub inside: Vec<String>,
    /// Interfaces that are left out or can't be protected.
    pub not_attached: Vec<NotAttached>,
    /// The mark of what is admitted, and which bits are its, if packets are marked and not dropped.
    pub mark: Option<String>,
    /// The gateways that this one tells of its flows.
    pub peers: Vec<Peer>,
    /// The gateways that tell this one.
    pub peers_heard: Vec<PeerSource>,
    /// The authority's URL.
    pub authority: String,
    /// Whether its event stream is up.
    pub connected: bool,
    /// What went wrong with the authority last, if something is wrong.
    pub trouble: Option<String>,
    /// When configuration and keys were read last.
    pub read: Option<u64>,
    /// Until when there are keys; none if there is none for the current epoch.
    pub keys_until: Option<u64>,
    /// Seconds an epoch lasts.
    pub epoch_length: u32,
    /// The longest lifetime of a grant, seconds.
    pub max_lifetime: u32,
    /// What is protected.
    pub protected: Vec<Protected>,
    /// What is protected besides what receivers name.
    pub extended: Extended,
    /// Sockets of this host that are outside protection.
    pub outside: Vec<Outside>,
    /// The bounded tables.
    pub tables: Vec<Table>,
    /// How it stands with proofs, if it checks them.
    pub proofs: Option<Proofs>,
    /// How many grants' owners are known.
    pub owners: u64,
}

/// How a verifier of proofs stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proofs {
    /// The endpoints that it stands before.
    pub endpoints: Vec<String>,
    /// The interfaces on which it checks.
    pub interfaces: Vec<Interface>,
    /// Interfaces on which it can't.
    pub not_attached: Vec<NotAttached>,
    /// Statements of withdrawn consent that have not ended.
    pub withdrawn: u64,
    /// Until when there are keys; none if there is none for the current epoch.
    pub keys_until: Option<u64>,
    /// Packets that passed, by how.
    pub passed: Vec<Counter>,
    /// Packets that were dropped, by drop reason.
    pub reasons: Vec<Counter>,
}

/// One check of a packet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// What is looked at.
    pub name: String,
    /// Whether the packet passed it.
    pub passed: bool,
    /// What was found.
    pub text: String,
}

/// Whether a packet would pass, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// Whether it would.
    pub passes: bool,
    /// `not_ours`, `flow`, `token`, `consumed`, `icmp_error`, or the drop reason's name.
    pub outcome: String,
    /// The checks in their order, up to the one that decided.
    pub checks: Vec<Check>,
    /// One sentence for people.
    pub text: String,
}

impl Verdict {
    /// What the engine says of a packet.
    pub fn new(explanation: Explanation) -> Self {
        let (text, outcome) = (explanation.text(), explanation.outcome);
        let checks = explanation.checks.into_iter();
        let checks = checks.map(|EngineCheck { name, passed, text }| Check { name: name.into(), passed, text });
        Self {
            passes: !matches!(outcome, Outcome::Drop(_)),
            outcome: outcome.name().into(),
            checks: checks.collect(),
            text,
        }
    }
}
