//! The verifier's answers, as types: one definition for the daemon, the command line and applications. Times are Unix
//! seconds; handles are 16 hex digits, as many readers lose bits of JSON numbers beyond 2^53.

use api::{GrantOwner, SealedFlow};
use engine::model::Service;
use engine::model::protocol;
use engine::verifier::{Check as EngineCheck, Explanation, Outcome};
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};
use wire::Handle;
use wire::map::{Flow as KernelFlow, FlowKey, origin};

/// A flow, and the person behind it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flow {
    /// The client's address and port, as the server sees them.
    pub client: SocketAddr,
    /// The client's address and port as the inside of the gateway sees them, if they differ.
    pub inside: Option<SocketAddr>,
    /// The server's address and port.
    pub server: SocketAddr,
    /// `tcp`, `udp` or a number.
    pub protocol: String,
    /// Handle of the grant that admitted the flow; none if the flow was adopted, or opened from inside.
    pub handle: Option<String>,
    /// Whether the flow was established when protection started.
    pub adopted: bool,
    /// Whether the inside of this gateway opened the flow: then `client` is the remote end.
    pub outbound: bool,
    /// The person whom the grant is for; none if there is no grant, or neither the verifier nor the authority knows.
    pub person: Option<String>,
    /// The device that the grant was issued to.
    pub device: Option<String>,
    /// Name of the receiver.
    pub receiver: Option<String>,
    /// The rule that allowed the grant.
    pub rule: Option<String>,
    /// When the flow was admitted or adopted.
    pub since: u64,
    /// When the flow's last packet arrived.
    pub seen: u64,
    /// Packets towards the server.
    pub packets: u64,
    /// IP bytes towards the server.
    pub bytes: u64,
    /// Whether the client has closed the flow.
    pub closing: bool,
    /// How the flow's packets travel in a sealed tunnel; none if they travel outside.
    #[serde(default)]
    pub sealed: Option<SealedFlow>,
}

impl Flow {
    /// Builds the view of a flow in the kernel's table, with its owner.
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
            sealed: sealed(key, owner),
        }
    }
}

/// Returns how a flow travels in a sealed tunnel, as far as the authority's demand tells.
pub(crate) fn sealed(key: &FlowKey, owner: Option<&GrantOwner>) -> Option<SealedFlow> {
    let treatment = owner.and_then(|owner| owner.sealing.as_ref()).map(|sealing| sealing.treatment.clone());
    (key.tunnel == 1).then(|| SealedFlow { treatment, ..SealedFlow::default() })
}

/// A lease of an inside address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InsideAddress {
    /// The address.
    pub address: IpAddr,
    /// The person; none if the verifier no longer knows.
    pub person: Option<String>,
    /// When the lease began.
    pub since: u64,
    /// When the address was leased to another person; none if it has not been.
    pub until: Option<u64>,
    /// Number of flows of the address.
    pub flows: u32,
}

/// A dropped packet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drop {
    /// Sequence number since the daemon started, without gaps.
    pub number: u64,
    /// When the packet was dropped.
    pub time: u64,
    /// Name of the drop reason.
    pub reason: String,
    /// The client's address and port, if they could be read.
    pub client: Option<SocketAddr>,
    /// The server's address and port, if they could be read.
    pub server: Option<SocketAddr>,
    /// `tcp`, `udp` or a number.
    pub protocol: String,
    /// Handle of the grant that the packet's token names, if it had a readable one. Not proven unless the reason comes
    /// after the check of the tag.
    pub handle: Option<String>,
    /// The interface on which the packet arrived.
    pub interface: String,
    /// Length of the packet in bytes.
    pub length: u16,
    /// Whether the packet passed because the verifier only observes.
    pub observed: bool,
}

/// A counter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counter {
    /// Name of the outcome.
    pub name: String,
    /// Number of packets.
    pub packets: u64,
}

/// Dropped and passed packets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drops {
    /// Packets per drop reason, since protection started.
    pub reasons: Vec<Counter>,
    /// Packets per other outcome.
    pub passed: Vec<Counter>,
    /// Flows opened by the inside of a gateway, and those that it could not open for lack of room.
    pub opened: Vec<Counter>,
    /// Drops that were counted without a sample.
    pub samples_lost: u64,
    /// Whether the verifier only observes: packets that it would drop pass.
    pub observing: bool,
    /// The latest drops, oldest first.
    pub samples: Vec<Drop>,
}

/// An interface under protection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interface {
    /// Name of the interface.
    pub name: String,
    /// The hook at which packets are checked: `xdp` or `tc`.
    pub hook: String,
    /// How the program is attached: `native`, `generic` or `offloaded` at XDP, `tcx` or `clsact` at tc.
    pub mode: String,
    /// Why this hook is used.
    pub why: String,
    /// The interface's driver, if known.
    pub driver: Option<String>,
}

/// An interface to which no program is attached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotAttached {
    /// Name of the interface.
    pub name: String,
    /// The reason.
    pub why: String,
    /// Whether packets may reach protected services through this interface unchecked.
    pub open: bool,
}

/// A bounded table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Table {
    /// Name of the table.
    pub name: String,
    /// Number of entries in use; none if they are not counted.
    pub used: Option<u64>,
    /// Largest number of entries.
    pub max: u64,
    /// Bytes per entry.
    pub bytes: u64,
}

/// A protected prefix.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Protected {
    /// The prefix.
    pub prefix: String,
    /// The services of the prefix that are protected.
    pub services: Vec<Service>,
}

/// Protection beyond the addresses that receivers name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extended {
    /// The services that are protected at the other addresses of this host, too.
    pub services: Vec<Service>,
    /// Networks of these addresses.
    pub networks: Vec<String>,
    /// Whether there were more services than one address has room for, so that ports between them are protected, too.
    pub crowded: bool,
}

/// A socket that receives packets that no program checks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outside {
    /// `tcp` or `udp`.
    pub protocol: String,
    /// The address and port that the socket is bound to.
    pub address: SocketAddr,
    /// The addresses at which packets reach the socket unchecked.
    pub at: Vec<IpAddr>,
    /// Whether the socket is protected at its other addresses.
    pub partly: bool,
}

/// A gateway that this one advertises its flows to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// Address of the peer, as configured.
    pub address: String,
    /// Whether all flows have been advertised to the peer, and new ones are.
    pub connected: bool,
    /// The last error, while there is one.
    pub trouble: Option<String>,
    /// Number of flows that the peer took over or refreshed.
    pub told: u64,
    /// Number of flows that the peer refused: revoked, or without room or their inside address there.
    pub refused: u64,
    /// Median time from a flow's first packet here until the flow passes at the peer, over the latest flows;
    /// microseconds.
    pub gap_us: Option<u64>,
    /// Longest such time among the latest flows, microseconds.
    pub gap_max_us: Option<u64>,
}

/// A gateway that advertises its flows to this one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerSource {
    /// Address from which the peer connected.
    pub from: SocketAddr,
    /// When the peer connected.
    pub since: u64,
    /// Number of flows taken over or refreshed.
    pub taken: u64,
    /// Number of flows refused.
    pub refused: u64,
}

/// The verifier at a glance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The verifier's id.
    pub verifier: String,
    /// Name of the instance on this host.
    pub instance: String,
    /// `protecting`, `observing`, `trying` (unless confirmed, protection ends) or `closed` (admits nothing new).
    pub state: String,
    /// Seconds until the trial ends, if there is one.
    pub trial_left: Option<u64>,
    /// The interfaces.
    pub interfaces: Vec<Interface>,
    /// The interfaces that lead inside, if this is a gateway.
    pub inside: Vec<String>,
    /// Interfaces that are left out or can't be protected.
    pub not_attached: Vec<NotAttached>,
    /// The mark of admitted packets and the bits that the verifier uses, if packets are marked and not dropped.
    pub mark: Option<String>,
    /// The gateways that this one advertises its flows to.
    pub peers: Vec<Peer>,
    /// The gateways that advertise their flows to this one.
    pub peers_heard: Vec<PeerSource>,
    /// The authority's URL.
    pub authority: String,
    /// Whether the event stream from the authority is up.
    pub connected: bool,
    /// The last problem with the authority, while there is one.
    pub trouble: Option<String>,
    /// When configuration and keys were last read.
    pub read: Option<u64>,
    /// Until when there are keys; none if there is none for the current epoch.
    pub keys_until: Option<u64>,
    /// Length of an epoch, seconds.
    pub epoch_length: u32,
    /// The longest lifetime of a grant, seconds.
    pub max_lifetime: u32,
    /// The protected prefixes.
    pub protected: Vec<Protected>,
    /// Protection beyond the addresses that receivers name.
    pub extended: Extended,
    /// Sockets of this host that are outside protection.
    pub outside: Vec<Outside>,
    /// The bounded tables.
    pub tables: Vec<Table>,
    /// State of the check of proofs, if there is one.
    pub proofs: Option<Proofs>,
    /// Number of grants whose owners are known.
    pub owners: u64,
}

/// State of the verifier of proofs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proofs {
    /// The endpoints behind this verifier.
    pub endpoints: Vec<String>,
    /// The interfaces on which proofs are checked.
    pub interfaces: Vec<Interface>,
    /// The interfaces on which proofs can't be checked.
    pub not_attached: Vec<NotAttached>,
    /// Number of statements of withdrawn consent that have not ended.
    pub withdrawn: u64,
    /// Until when there are keys; none if there is none for the current epoch.
    pub keys_until: Option<u64>,
    /// Packets that passed, by outcome.
    pub passed: Vec<Counter>,
    /// Packets that were dropped, by drop reason.
    pub reasons: Vec<Counter>,
}

/// One check of a packet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// Name of the check.
    pub name: String,
    /// Whether the packet passed it.
    pub passed: bool,
    /// The finding, as text.
    pub text: String,
}

/// Whether a packet would pass, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// Whether the packet would pass.
    pub passes: bool,
    /// `not_ours`, `flow`, `token`, `consumed`, `icmp_error`, or the drop reason's name.
    pub outcome: String,
    /// The checks in order, up to the one that decided.
    pub checks: Vec<Check>,
    /// The result as a sentence.
    pub text: String,
}

impl Verdict {
    /// Builds a verdict from the engine's explanation of a packet.
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
