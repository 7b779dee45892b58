//! The path segments in force, as an administrator lists them.

use super::SegmentIssuer;
use super::book::{Entry, Key};
use crate::now;
use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use wire::{SegmentFlags, Vni};

/// Maximum number of segments in one list.
pub const MOST: usize = 10_000;

/// The criteria by which segments are listed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentFilter {
    /// Lists only segments of this network.
    pub network: Option<String>,
    /// Lists only segments that this person or service account requested.
    pub person: Option<String>,
    /// Maximum number of segments to list; at most [`MOST`].
    pub limit: usize,
}

/// A list of the segments in force that match a [`SegmentFilter`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentList {
    /// Number of segments that match the filter, including those that are not in the list.
    pub total: usize,
    /// The latest end of a matching segment, in Unix seconds; `None` if no segment matches.
    pub last_expires: Option<u64>,
    /// The listed segments, sorted by network, receiver and sender.
    pub segments: Vec<SegmentEntry>,
    /// The current time by the authority's clock, in Unix seconds.
    pub now: u64,
}

/// A segment in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentEntry {
    /// The network's name.
    pub network: String,
    /// The network's number.
    pub vni: u32,
    /// The sender's address in the network.
    pub sender: IpAddr,
    /// The receiver's address in the network.
    pub receiver: IpAddr,
    /// The IP protocol number, if the segment is for one service only; `None` if it is for all services.
    pub protocol: Option<u8>,
    /// The port of that service, if the segment is for one service only. In a return segment, it is the sender's port.
    pub port: Option<u16>,
    /// Whether the segment is for a single flow.
    pub single: bool,
    /// Whether the receiver is allowed to request a segment for its answers.
    pub reply: bool,
    /// Whether this is a return segment for another segment.
    pub answers: bool,
    /// The person or service account that requested the segment.
    pub person: String,
    /// The device of the session in which the segment was requested. `None` if the session has ended, or if the segment
    /// is for answers and was issued to a session of another account.
    pub device: Option<String>,
    /// The outer address of the sender's tunnel endpoint.
    pub sending: IpAddr,
    /// The outer address of the receiver's tunnel endpoint.
    pub receiving: IpAddr,
    /// The end of the segment, in Unix seconds.
    pub expires: u64,
}

/// A segment in the book: network, receiver, key, request and expiry.
type Found<'b> = (Vni, IpAddr, &'b Key, &'b Entry, u32);

impl SegmentIssuer {
    /// Lists the segments in force that match `filter`. Scans the whole book and keeps it locked meanwhile, for about
    /// 100 ms if the book is full. The authority issues no segment during this time.
    ///
    /// # Errors
    /// Fails if the network in `filter` does not exist.
    pub fn list(&self, filter: &SegmentFilter) -> Result<SegmentList> {
        if let Some(network) = &filter.network {
            let is_known = self.networks().vni(network).is_some();
            ensure!(is_known, "there is no network `{}` in networks.toml", network.escape_debug());
        }
        let now = now();
        let book = self.book();
        let is_wanted = |(_, _, _, entry, _): &Found<'_>| {
            filter.network.as_ref().is_none_or(|network| *network == entry.network)
                && filter.person.as_ref().is_none_or(|person| *person == entry.person)
        };
        let mut found: Vec<_> = book.in_force(now).filter(is_wanted).collect();
        let total = found.len();
        let last_expires = found.iter().map(|(.., expires)| u64::from(*expires)).max();
        let limit = filter.limit.min(MOST);
        if limit < total {
            if limit > 0 {
                found.select_nth_unstable_by_key(limit - 1, order);
            }
            found.truncate(limit);
        }
        found.sort_unstable_by_key(order);
        let entries = found.into_iter().map(|found| (found.2.token, listed(&found)));
        let entries: Vec<_> = entries.collect();
        drop(book);
        let devices = self.sessions.get_all(entries.iter().map(|(token, _)| token));
        let segments = entries.into_iter().zip(devices).map(|((_, entry), session)| {
            // If a return segment was passed on, its session belongs to the account that answers.
            let own = session.filter(|session| session.person == entry.person);
            let device = own.map(|session| session.device.clone());
            SegmentEntry { device, ..entry }
        });
        Ok(SegmentList { total, last_expires, segments: segments.collect(), now })
    }
}

fn order(&(vni, receiver, key, _, expires): &Found<'_>) -> impl Ord + use<> {
    (vni, receiver, key.sender, key.service, key.flags.0, expires, key.token)
}

fn listed((vni, receiver, key, entry, expires): &Found<'_>) -> SegmentEntry {
    SegmentEntry {
        network: entry.network.clone(),
        vni: vni.number(),
        sender: key.sender,
        receiver: *receiver,
        protocol: key.service.map(|(protocol, _)| protocol),
        port: key.service.map(|(_, port)| port),
        single: key.flags.has(SegmentFlags::SINGLE),
        reply: key.flags.has(SegmentFlags::REPLY),
        answers: key.flags.has(SegmentFlags::RETURN),
        person: entry.person.clone(),
        device: None,
        sending: entry.sending,
        receiving: entry.place.endpoint,
        expires: (*expires).into(),
    }
}
