//! Types of the verifier's answers, for the daemon, the command line and applications. Times are in Unix seconds.
//! Handles are strings of 16 hexadecimal digits, because many JSON readers lose bits of numbers beyond 2^53.

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
    /// The client's address and port as the inside of the gateway sees them; `None` if these are the client's own
    /// address and port.
    pub inside: Option<SocketAddr>,
    /// The server's address and port.
    pub server: SocketAddr,
    /// The protocol: `tcp`, `udp` or a number.
    pub protocol: String,
    /// Handle of the grant that admitted the flow; `None` if the flow was adopted, or opened from inside.
    pub handle: Option<String>,
    /// Whether the flow was already established when protection started.
    pub adopted: bool,
    /// Whether the inside of this gateway opened the flow; if so, `client` is the remote end.
    pub outbound: bool,
    /// The person whom the grant is for; `None` if there is no grant, or if neither the verifier nor the authority
    /// knows the person.
    pub person: Option<String>,
    /// The device to which the grant was issued; `None` if `person` is `None`.
    pub device: Option<String>,
    /// Name of the receiver to which the grant applies; `None` if `person` is `None`.
    pub receiver: Option<String>,
    /// Name of the rule that allowed the grant; `None` if `person` is `None`.
    pub rule: Option<String>,
    /// Time when the flow was admitted or adopted. For TCP, the time when the client last sent a SYN.
    pub since: u64,
    /// Time when the flow's last packet arrived.
    pub seen: u64,
    /// Number of packets towards the server.
    pub packets: u64,
    /// Number of bytes in the IP packets towards the server.
    pub bytes: u64,
    /// Whether the client has closed the flow, or has not opened it completely yet.
    pub closing: bool,
    /// Treatment, suite and compression of the flow in a sealed tunnel; `None` if the flow's packets travel outside of
    /// tunnels.
    #[serde(default)]
    pub sealed: Option<SealedFlow>,
    /// The organisation whose authority issued the grant; absent if the verifier has only one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub organisation: Option<String>,
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
            organisation: None,
        }
    }
}

/// Returns the treatment of a flow in a sealed tunnel; `None` if its packets travel outside. The result contains only
/// the treatment that the grant demands.
pub(crate) fn sealed(key: &FlowKey, owner: Option<&GrantOwner>) -> Option<SealedFlow> {
    let treatment = owner.and_then(|owner| owner.sealing.as_ref()).map(|sealing| sealing.treatment.clone());
    (key.tunnel == 1).then(|| SealedFlow { treatment, ..SealedFlow::default() })
}

/// A present or past assignment of an inside address to a person.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InsideAddress {
    /// The inside address.
    pub address: IpAddr,
    /// The person who has or had the address; `None` if the verifier no longer knows the person.
    pub person: Option<String>,
    /// Time when the assignment began.
    pub since: u64,
    /// Time when the address was assigned to another person; `None` for a present assignment.
    pub until: Option<u64>,
    /// Number of flows that use the address.
    pub flows: u32,
}

/// A dropped packet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drop {
    /// Number of the drop, counted without gaps since the daemon started.
    pub number: u64,
    /// Time when the packet was dropped.
    pub time: u64,
    /// Name of the drop reason.
    pub reason: String,
    /// The client's address and port, if they could be read.
    pub client: Option<SocketAddr>,
    /// The server's address and port, if they could be read.
    pub server: Option<SocketAddr>,
    /// The protocol: `tcp`, `udp` or a number.
    pub protocol: String,
    /// Handle of the grant that the packet's token names; `None` if the token could not be read. The sender has
    /// possibly invented the handle, unless the drop reason shows that the tag was right.
    pub handle: Option<String>,
    /// The interface on which the packet arrived.
    pub interface: String,
    /// Length of the packet's frame in bytes, at most 65 535.
    pub length: u16,
    /// Whether the packet passed because the verifier only observes.
    pub observed: bool,
}

/// A counter of packets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counter {
    /// Name of the outcome that is counted.
    pub name: String,
    /// Number of packets with this outcome.
    pub packets: u64,
}

/// An optional receiver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Optional {
    /// The TCP service that everybody may reach.
    pub service: SocketAddr,
    /// Whether a receiver of the policy names the service. If this is false, nobody gets a grant for the service, so
    /// the verifier can't name a person.
    pub named: bool,
}

/// Numbers of dropped and passed packets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drops {
    /// Number of packets for each drop reason, since protection started.
    pub reasons: Vec<Counter>,
    /// Number of packets for each outcome other than a drop.
    pub passed: Vec<Counter>,
    /// Number of flows that were opened from inside a gateway, and number of flows that could not be opened because the
    /// table was full.
    pub opened: Vec<Counter>,
    /// Records and packets of sealed tunnels that were dropped before the kernel's decision, by reason.
    #[serde(default)]
    pub tunnel: Vec<Counter>,
    /// Number of dropped packets that were counted, but for which there is no sample.
    pub samples_lost: u64,
    /// Whether the verifier only observes: packets that it would drop pass, with few exceptions. For each of `samples`,
    /// [`Drop::observed`] says whether the packet passed.
    pub observing: bool,
    /// The latest drops, oldest first.
    pub samples: Vec<Drop>,
}

/// An interface on which packets are checked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interface {
    /// Name of the interface.
    pub name: String,
    /// The hook at which packets are checked: `xdp` or `tc`.
    pub hook: String,
    /// How the program is attached: `native`, `generic` or `offloaded` at XDP, `tcx` or `clsact` at tc. `af_xdp` if a
    /// thread, not a program, checks proofs here.
    pub mode: String,
    /// Reason why this hook is used.
    pub why: String,
    /// Name of the interface's kernel driver; `None` if it is not known.
    pub driver: Option<String>,
}

/// An interface to which no program is attached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotAttached {
    /// Name of the interface.
    pub name: String,
    /// The reason why no program is attached.
    pub why: String,
    /// Whether packets can reach protected services through this interface without being checked.
    pub open: bool,
}

/// Size and use of a table in the kernel that can become full.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Table {
    /// Name of the table.
    pub name: String,
    /// Number of entries in use; `None` if they are not counted.
    pub used: Option<u64>,
    /// Maximum number of entries.
    pub max: u64,
    /// Size of an entry in bytes; 0 if the entries are part of another table.
    pub bytes: u64,
}

/// A protected prefix, with its services.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Protected {
    /// The prefix, such as `203.0.113.0/24`.
    pub prefix: String,
    /// The services that are protected in this prefix.
    pub services: Vec<Service>,
}

/// The services that are protected at all addresses of this host, not only at those that receivers name, and the
/// networks of these addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extended {
    /// The services that are protected in all of `networks`.
    pub services: Vec<Service>,
    /// The networks of this host's addresses, and the networks to which every host listens, such as multicast networks.
    pub networks: Vec<String>,
    /// Whether there were more services than the entry of one address can hold. If so, the ports between these services
    /// are protected, too.
    pub crowded: bool,
}

/// A socket that packets reach without being checked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outside {
    /// The protocol: `tcp` or `udp`.
    pub protocol: String,
    /// The address and port to which the socket is bound.
    pub address: SocketAddr,
    /// The addresses at which packets reach the socket without being checked.
    pub at: Vec<IpAddr>,
    /// Whether packets to the socket are checked at its other addresses.
    pub partly: bool,
}

/// A gateway to which this gateway advertises its flows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// Address of the peer, as in the settings.
    pub address: String,
    /// Whether the peer has got all flows of this gateway, and gets new flows as they begin.
    pub connected: bool,
    /// The last error of the connection to the peer; `None` once the connection works again.
    pub trouble: Option<String>,
    /// Number of flows that the peer took over or refreshed.
    #[serde(rename = "told")]
    pub advertised: u64,
    /// Number of flows that the peer refused, because they are revoked there, or because the peer has no room for them
    /// or for their inside addresses.
    pub refused: u64,
    /// Time in microseconds from a flow's first packet at this gateway until packets of the flow pass at the peer, too:
    /// the median of the latest flows. `None` if the peer has not answered for a new flow yet.
    pub gap_us: Option<u64>,
    /// Like `gap_us`, but the maximum of the latest flows instead of the median.
    pub gap_max_us: Option<u64>,
}

/// A gateway that advertises its flows to this gateway.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerSource {
    /// Address from which the peer connected.
    pub from: SocketAddr,
    /// Time when the peer connected.
    pub since: u64,
    /// Number of flows from the peer that this gateway took over or refreshed.
    pub taken: u64,
    /// Number of flows from the peer that this gateway refused.
    pub refused: u64,
}

/// An organisation whose authority decides about receivers of this verifier.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Organisation {
    /// Name of the organisation on this host; `default` for the one in the verifier's own directory.
    pub name: String,
    /// The verifier's id at the authority.
    pub verifier: String,
    /// The URL of the authority in use.
    pub authority: String,
    /// Whether the kernel programs of the organisation are loaded. If not, nobody of the organisation is admitted.
    pub loaded: bool,
    /// Whether the authority's events arrive at present.
    pub connected: bool,
    /// The last error of the connection to the authority, until the connection works again. If `loaded` is false: the
    /// reason why the kernel programs are not loaded.
    pub trouble: Option<String>,
    /// Time when configuration and keys were last read from the authority.
    pub read: Option<u64>,
    /// Time until which there are keys; `None` if there is no key for the current epoch.
    pub keys_until: Option<u64>,
    /// Whether the organisation's table of revoked grants is full, so that none of its grants opens a flow.
    pub closed: bool,
    /// The networks for which the authority may speak; empty for all that no other organisation has.
    pub networks: Vec<String>,
    /// The services for which the authority may speak; empty for all.
    pub services: Vec<Service>,
    /// Number of protected prefixes.
    pub protected: u64,
    /// Receivers that are ignored because the authority may not speak for them.
    pub refused: Vec<String>,
    /// Size and use of the organisation's tables in the kernel that can become full.
    pub tables: Vec<Table>,
}

/// Overview of the verifier.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The verifier's id.
    pub verifier: String,
    /// Name of the instance on this host.
    pub instance: String,
    /// State of protection: `protecting`, `observing`, `trying` (protection ends unless somebody confirms it) or
    /// `closed` (no new flow is admitted).
    pub state: String,
    /// Number of seconds until the trial ends; `None` if protection is not on trial.
    pub trial_left: Option<u64>,
    /// The interfaces on which packets are checked.
    pub interfaces: Vec<Interface>,
    /// The interfaces that lead inside; empty if this is not a gateway.
    pub inside: Vec<String>,
    /// Interfaces to which no program is attached.
    pub not_attached: Vec<NotAttached>,
    /// The mark of admitted packets and the bits that the verifier uses; `None` if packets are dropped rather than
    /// marked.
    pub mark: Option<String>,
    /// The gateways to which this gateway advertises its flows.
    pub peers: Vec<Peer>,
    /// The gateways that advertise their flows to this gateway.
    pub peers_heard: Vec<PeerSource>,
    /// The URL of the authority at which the verifier is enrolled.
    pub authority: String,
    /// The URL of the authority in use; absent if `authority` is in no cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_use: Option<String>,
    /// The URLs of all authorities of the cluster; empty if `authority` is in no cluster.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub authorities: Vec<String>,
    /// Whether the authority's events arrive at present.
    pub connected: bool,
    /// The last error of the connection to the authority; `None` once the connection works again.
    pub trouble: Option<String>,
    /// Time when configuration and keys were last read from the authority.
    pub read: Option<u64>,
    /// Time until which there are keys; `None` if there is no key for the current epoch.
    pub keys_until: Option<u64>,
    /// Length of an epoch, in seconds.
    pub epoch_length: u32,
    /// Maximum lifetime of a grant, in seconds.
    pub max_lifetime: u32,
    /// The protected prefixes.
    pub protected: Vec<Protected>,
    /// The optional receivers: services that everybody may reach.
    #[serde(default)]
    pub optional: Vec<Optional>,
    /// The services that are protected at all addresses of this host, not only at those that receivers name.
    pub extended: Extended,
    /// Sockets of this host that packets reach without being checked.
    pub outside: Vec<Outside>,
    /// Size and use of the tables in the kernel that can become full.
    pub tables: Vec<Table>,
    /// State of the verification of proofs; `None` if proofs are not checked.
    pub proofs: Option<Proofs>,
    /// Number of grants whose owners the verifier knows.
    pub owners: u64,
    /// The queues of the sealed tunnels; empty if this verifier accepts no tunnels.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tunnel_queues: Vec<TunnelQueue>,
    /// All organisations whose authorities decide about receivers of this verifier; empty if there is only one. The
    /// first one is the default organisation, to which the other fields of this overview refer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub organisations: Vec<Organisation>,
}

/// Numbers of bytes that the thread of one queue of the sealed tunnels has moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TunnelQueue {
    /// Number of bytes of packets that entered tunnels.
    pub sealed: u64,
    /// Number of bytes of packets that left tunnels.
    pub opened: u64,
}

/// State of the verification of proofs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proofs {
    /// The endpoints behind this verifier.
    pub endpoints: Vec<String>,
    /// The interfaces on which proofs are checked.
    pub interfaces: Vec<Interface>,
    /// The interfaces on which proofs can't be checked.
    pub not_attached: Vec<NotAttached>,
    /// Number of withdrawals of consent that are still in force.
    pub withdrawn: u64,
    /// Time until which there are keys; `None` if there is no key for the current epoch.
    pub keys_until: Option<u64>,
    /// Numbers of packets that passed, by outcome.
    pub passed: Vec<Counter>,
    /// Numbers of packets that were dropped, by drop reason.
    pub reasons: Vec<Counter>,
}

/// One step of the decision about a packet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// Name of the check.
    pub name: String,
    /// Whether the packet passed this check.
    pub passed: bool,
    /// The finding of the check, as a text for people.
    pub text: String,
}

/// The answer to the question whether a packet would pass.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// Whether the packet would pass.
    pub passes: bool,
    /// Name of the outcome: `not_ours`, `flow`, `token`, `consumed`, `icmp_error`, `stranger`, or the drop reason's
    /// name.
    pub outcome: String,
    /// The checks in the order in which they were made. The last one decided.
    pub checks: Vec<Check>,
    /// The result as a sentence for people.
    pub text: String,
    /// Whether a verifier that only observes or marks drops this packet, too, if it would not pass. Absent in JSON.
    #[serde(skip)]
    pub is_never_spared: bool,
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
            is_never_spared: explanation.is_never_spared,
        }
    }
}
