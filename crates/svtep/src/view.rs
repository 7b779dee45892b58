//! The endpoint's answers, as types: one definition for the daemon and the command line. Times are Unix seconds.

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
    /// The authority's URL.
    pub authority: String,
    /// Whether the authority's event stream is up.
    pub connected: bool,
    /// The last error of the authority, if it persists.
    pub trouble: Option<String>,
    /// Time when configuration and keys were last fetched.
    pub read: Option<u64>,
    /// Time until which there are keys; none if there is no key for the current epoch, and nothing is delivered.
    pub keys_until: Option<u64>,
    /// Whether nothing is delivered because the table of withdrawals was full.
    pub closed: bool,
    /// Number of statements of withdrawn consent that have not expired.
    pub withdrawn: u64,
    /// The underlay: the interface to the other endpoints.
    pub underlay: String,
    /// The underlay's MTU.
    pub mtu: u32,
    /// The endpoint's own addresses on the underlay.
    pub addresses: Vec<IpAddr>,
    /// The tenants behind the endpoint.
    pub tenants: Vec<Tenant>,
    /// Number of open requests to the authority.
    pub open: u64,
    /// Answers of the authority, by kind.
    pub answers: Vec<Counter>,
    /// Number of received segments that may be answered.
    pub consents: u64,
    /// Packets at the tunnel, by outcome.
    pub packets: Vec<Counter>,
    /// Packets out of the tunnel whose proof was right, by how.
    pub passed: Vec<Counter>,
    /// Packets out of the tunnel that were dropped, by drop reason.
    pub reasons: Vec<Counter>,
}

/// A tenant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tenant {
    /// The tenant's interface.
    pub interface: String,
    /// The interface's id.
    pub id: u16,
    /// The tenant's network.
    pub network: String,
    /// The network's number.
    pub vni: u32,
    /// The addresses that the tenant may send from.
    pub addresses: Vec<IpAddr>,
    /// Reason why the interface is not attached, if it is not.
    pub not_attached: Option<String>,
    /// The service account that requests segments for the tenant.
    pub service: String,
    /// Whether the service account is logged in.
    pub logged_in: bool,
    /// The error of the account's session, if there is one.
    pub trouble: Option<String>,
    /// Number of segments that the tenant sends under.
    pub segments: u64,
    /// The tenant's last refusal.
    pub refused: Option<Refused>,
}

/// A refusal of a segment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// Time of the refusal.
    pub at: u64,
    /// Reason for the refusal, as the authority gave it.
    pub why: String,
}

/// A counter.
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

/// An entry of the table of segments: a segment, or its absence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    /// The tenant's interface.
    pub interface: String,
    /// The tenant's network.
    pub network: String,
    /// The sender.
    pub sender: IpAddr,
    /// The receiver.
    pub receiver: IpAddr,
    /// The protocol; none if the segment is for all services.
    pub protocol: Option<u8>,
    /// The service's port.
    pub port: Option<u16>,
    /// The port at the other end, if the segment is for one flow.
    pub other_port: Option<u16>,
    /// Whether the segment is for answers.
    pub back: bool,
    /// State of the entry: `given`, `refused`, or `by_flow` if flows have segments of their own.
    pub state: String,
    /// Reason for the refusal, as the authority gave it, if the state is `refused`.
    pub why: Option<String>,
    /// The endpoint that the receiver is behind.
    pub endpoint: Option<IpAddr>,
    /// Expiry of the entry.
    pub until: Option<u64>,
    /// Time when a packet was last sent under the segment.
    pub used: Option<u64>,
}

impl Segment {
    /// Converts a table entry of the tenant behind this interface in this network.
    pub fn new(key: &SegmentKey, entry: &SegmentEntry, interface: &str, network: &str, why: Option<String>) -> Self {
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
            until: (entry.until != u32::MAX).then_some(entry.until.into()),
            used: (entry.used != 0).then_some(entry.used.into()),
        }
    }
}
