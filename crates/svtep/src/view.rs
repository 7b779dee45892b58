//! Types of the daemon's answers, for the daemon and the command line. Times are in Unix seconds.

use engine::endpoint::Way;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use wire::map::{SegmentEntry, SegmentKey, segment_state};

/// Overview of the endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The endpoint's id as a verifier of proofs.
    pub verifier: String,
    /// Name of the endpoint among those on this host.
    pub instance: String,
    /// The URL of the authority at which the endpoint is enrolled.
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
    /// Time when configuration and keys were last fetched, Unix seconds; `None` if they have not been fetched yet.
    pub read: Option<u64>,
    /// Time until which there are keys, Unix seconds; `None` if there is no key for the current epoch, so that nothing
    /// is delivered.
    pub keys_until: Option<u64>,
    /// Whether nothing is delivered because the table of withdrawals was full.
    pub closed: bool,
    /// Number of withdrawals of consent that are still in force.
    pub withdrawn: u64,
    /// Name of the underlay's interface. The other endpoints are reached through it.
    pub underlay: String,
    /// The underlay's MTU.
    pub mtu: u32,
    /// The endpoint's own addresses on the underlay.
    pub addresses: Vec<IpAddr>,
    /// The tenants behind the endpoint.
    pub tenants: Vec<Tenant>,
    /// Number of requests for segments that the authority has not answered yet.
    pub open: u64,
    /// The state of the paths to each endpoint to which the authority knows several paths.
    #[serde(default)]
    pub paths: Vec<Path>,
    /// Number of times that the daemon has changed the path to an endpoint, since the daemon started.
    #[serde(default)]
    pub path_changes: u64,
    /// Numbers of the authority's answers, by kind.
    pub answers: Vec<Counter>,
    /// Number of received segments under which tenants can send answers.
    pub consents: u64,
    /// Numbers of tenants' packets, by outcome.
    pub packets: Vec<Counter>,
    /// Numbers of packets from the tunnel with a valid proof, by the way in which the proof was checked.
    pub passed: Vec<Counter>,
    /// Numbers of packets from the tunnel that were dropped, by drop reason.
    pub reasons: Vec<Counter>,
}

/// The state of the paths to an endpoint to which the authority knows several paths.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Path {
    /// The other endpoint.
    pub endpoint: IpAddr,
    /// Number of the path in use; 0 is the first path.
    pub number: u8,
    /// Number of other paths to the endpoint.
    pub others: u8,
    /// Whether the other endpoint has answered a probe on the path in use.
    pub answered: bool,
    /// Time of the last change of the path, Unix seconds; `None` if it was never changed.
    pub changed: Option<u64>,
}

impl Path {
    /// Returns the view of `way`, the state of the paths to `endpoint`.
    pub fn new(endpoint: IpAddr, way: &Way) -> Self {
        let &Way { number, others, answered, changed, .. } = way;
        Self { endpoint, number, others, answered, changed: changed.map(u64::from) }
    }
}

/// The state of a tenant, as the daemon reports it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tenant {
    /// The tenant's interface.
    pub interface: String,
    /// The interface's id.
    pub id: u16,
    /// Name of the virtual network to which the tenant belongs.
    pub network: String,
    /// The number of the virtual network.
    pub vni: u32,
    /// The addresses from which the tenant is allowed to send.
    pub addresses: Vec<IpAddr>,
    /// Reason why the interface is not attached; `None` if it is attached.
    pub not_attached: Option<String>,
    /// The service account that requests segments for the tenant.
    pub service: String,
    /// Whether the service account is logged in.
    pub logged_in: bool,
    /// The error of the service account's session; `None` if there is none.
    pub trouble: Option<String>,
    /// Number of segments under which the tenant can send at present.
    pub segments: u64,
    /// The last refusal of a request for this tenant; `None` if no request was refused.
    pub refused: Option<Refused>,
}

/// A refused request for a segment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// Time of the refusal, Unix seconds.
    pub at: u64,
    /// Reason for the refusal, as the authority gave it.
    pub why: String,
}

/// A counter with its name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counter {
    /// Name of the counter.
    pub name: String,
    /// Value of the counter.
    pub count: u64,
}

impl Counter {
    /// Returns a counter with this name and value.
    pub fn new(name: &str, count: u64) -> Self {
        Self { name: name.to_owned(), count }
    }
}

/// An entry of the table of segments. `state` says whether the entry contains a segment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    /// The tenant's interface.
    pub interface: String,
    /// Name of the virtual network to which the tenant belongs.
    pub network: String,
    /// Address of the sender.
    pub sender: IpAddr,
    /// Address of the receiver.
    pub receiver: IpAddr,
    /// The protocol number; `None` if the segment is for all services.
    pub protocol: Option<u8>,
    /// The service's port; `None` if the segment is for all services.
    pub port: Option<u16>,
    /// The port of the service's client; `None` unless the segment is for one flow only.
    pub other_port: Option<u16>,
    /// Whether the segment is for answers to received packets.
    pub back: bool,
    /// State of the entry: `given` (there is a segment), `refused`, or `by_flow` (each flow has an entry of its own).
    pub state: String,
    /// Reason for the refusal, as the authority gave it; `None` unless the state is `refused`.
    pub why: Option<String>,
    /// The endpoint behind which the receiver is; `None` unless the state is `given`.
    pub endpoint: Option<IpAddr>,
    /// Number of the segment's path; `None` if the endpoint knows only one.
    #[serde(default)]
    pub path: Option<u8>,
    /// Expiry of the entry, Unix seconds; `None` if the entry does not expire.
    pub until: Option<u64>,
    /// Time when a packet was last sent under the segment, Unix seconds; `None` if none has been sent.
    pub used: Option<u64>,
}

impl Segment {
    /// Converts an entry of the table. `interface` and `network` belong to the tenant. `why` is the reason if the entry
    /// is a refusal. `path` is the number of the segment's path.
    pub fn new(
        key: &SegmentKey,
        entry: &SegmentEntry,
        interface: &str,
        network: &str,
        why: Option<String>,
        path: Option<u8>,
    ) -> Self {
        let state = match entry.state() {
            segment_state::REFUSED => "refused",
            segment_state::GIVEN => "given",
            _ => "by_flow",
        };
        let (port, other_port) = key.ports();
        let is_service = key.protocol != 0;
        Self {
            interface: interface.to_owned(),
            network: network.to_owned(),
            sender: key.sender(),
            receiver: key.receiver(),
            protocol: is_service.then_some(key.protocol),
            port: is_service.then_some(port),
            other_port: key.is_for_one_flow().then_some(other_port),
            back: key.is_back(),
            state: state.to_owned(),
            why,
            endpoint: entry.endpoints().map(|(_, receiving)| receiving),
            path,
            until: (entry.until != u32::MAX).then_some(entry.until.into()),
            used: (entry.used != 0).then_some(entry.used.into()),
        }
    }
}
