//! What the endpoint answers, as types: one definition for the daemon and the command line. Times are Unix seconds.

use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use wire::map::{SegmentEntry, SegmentKey, segment_state};

/// The endpoint at a glance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Its id as a verifier of proofs.
    pub verifier: String,
    /// Which of several on this host.
    pub instance: String,
    /// The authority's URL.
    pub authority: String,
    /// Whether its event stream is up.
    pub connected: bool,
    /// What went wrong with the authority last, if something is wrong.
    pub trouble: Option<String>,
    /// When configuration and keys were read last.
    pub read: Option<u64>,
    /// Until when there are keys; none if there is none for the current epoch, and nothing is delivered.
    pub keys_until: Option<u64>,
    /// Whether nothing is delivered because a withdrawal found no room.
    pub closed: bool,
    /// Statements of withdrawn consent that have not ended.
    pub withdrawn: u64,
    /// The interface to the other endpoints.
    pub underlay: String,
    /// The longest packet there.
    pub mtu: u32,
    /// Its own addresses there.
    pub addresses: Vec<IpAddr>,
    /// Who is behind it.
    pub tenants: Vec<Tenant>,
    /// Questions to the authority that are open.
    pub open: u64,
    /// Answers of the authority, by kind.
    pub answers: Vec<Counter>,
    /// Segments that came in and may be answered.
    pub consents: u64,
    /// What became of packets at the tunnel.
    pub packets: Vec<Counter>,
    /// Packets out of the tunnel whose proof was right, by how.
    pub passed: Vec<Counter>,
    /// Packets out of the tunnel that were dropped, by drop reason.
    pub reasons: Vec<Counter>,
}

/// A tenant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tenant {
    /// Its interface.
    pub interface: String,
    /// That interface's id.
    pub id: u16,
    /// Its network.
    pub network: String,
    /// The network's number.
    pub vni: u32,
    /// The addresses that it may send from.
    pub addresses: Vec<IpAddr>,
    /// Why its interface is not attached, if it is not.
    pub not_attached: Option<String>,
    /// The service account that asks for it.
    pub service: String,
    /// Whether that is logged in.
    pub logged_in: bool,
    /// What is wrong with its session, if something is.
    pub trouble: Option<String>,
    /// Segments that it sends under.
    pub segments: u64,
    /// What it was refused last.
    pub refused: Option<Refused>,
}

/// Why there was no segment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// When.
    pub at: u64,
    /// The authority's words.
    pub why: String,
}

/// A counter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counter {
    /// What is counted.
    pub name: String,
    /// How many.
    pub count: u64,
}

impl Counter {
    /// So many of that.
    pub fn new(name: &str, count: u64) -> Self {
        Self { name: name.to_owned(), count }
    }
}

/// A segment, or that there is none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    /// The tenant's interface.
    pub interface: String,
    /// The tenant's network.
    pub network: String,
    /// Who sends.
    pub sender: IpAddr,
    /// Whom to.
    pub receiver: IpAddr,
    /// The protocol; none for all.
    pub protocol: Option<u8>,
    /// The service's port.
    pub port: Option<u16>,
    /// The port at the other end, where it is for one flow.
    pub other_port: Option<u16>,
    /// Whether it is for answers.
    pub back: bool,
    /// `given`, `refused` or `by_flow` (flows have their own).
    pub state: String,
    /// Of one that is refused, why: the authority's words.
    pub why: Option<String>,
    /// The endpoint that the receiver is behind.
    pub endpoint: Option<IpAddr>,
    /// When it ends.
    pub until: Option<u64>,
    /// When a packet went under it last.
    pub used: Option<u64>,
}

impl Segment {
    /// What a table says, of a tenant behind this interface in this network.
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
