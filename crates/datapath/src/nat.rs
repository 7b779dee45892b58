//! A gateway's inside addresses: the pool of addresses, the persons behind grants, and the programs' messages about
//! both.

use crate::attachments::Pins;
use crate::object::{Loaded, Opened};
use crate::ring;
use crate::table::Table;
use anyhow::{Context, Result};
use libbpf_rs::{MapHandle, ProgramInput, RingBuffer};
use std::net::IpAddr;
use wire::map::{
    Bearer, FlowKey, LeaseKey, Member, NatConfig, NatNews, PersonName, PoolSlot, ReceivedAddress, WayBack,
    address_bytes,
};
use zerocopy::{FromBytes, IntoBytes};

/// The tables that outlive the process.
pub(crate) const PINNED: [&str; 8] = ["bearers", "pool", "leases", "ways_back", "members", "news", "unknown", "names"];
/// Maximum number of persons who can have a number in the table [`Addresses::names`].
pub const PEOPLE_MAX: u32 = 65_536;

/// Returns the programs' settings for this pool, which has its IPv4 addresses first.
pub(crate) fn config(pool: &[IpAddr]) -> NatConfig {
    let pool4 = pool.iter().filter(|address| address.is_ipv4()).count() as u32;
    NatConfig { pool4, pool6: pool.len() as u32 - pool4 }
}

/// Sets the sizes of the tables. Without a pool, they have one entry each.
pub(crate) fn resize(opened: &mut Opened, pool: &[IpAddr], flows: u32, grants: u32) -> Result<()> {
    let (flows, grants, people) = if pool.is_empty() { (1, 1, 1) } else { (flows * 2, grants, PEOPLE_MAX) };
    let all = pool.len().max(1) as u32;
    let sizes = [("pool", all), ("members", all), ("leases", all * 2), ("ways_back", flows), ("bearers", grants)];
    sizes.iter().chain(&[("names", people)]).try_for_each(|(name, entries)| opened.resize(name, *entries))
}

/// Reports whether the pool that an earlier process pinned is equal to `pool`.
pub(crate) fn is_pinned(pins: &Pins, pool: &[IpAddr]) -> bool {
    let Ok(map) = MapHandle::from_pinned_path(pins.map("pool")) else { return false };
    let Ok(slots) = Table::<u32, PoolSlot>::new(map) else { return false };
    let same = |(slot, address): (u32, &IpAddr)| {
        slots.get(&slot).is_ok_and(|there| there.is_some_and(|there| there.address == address_bytes(*address)))
    };
    slots.capacity() as usize == pool.len().max(1) && (0..).zip(pool).all(same)
}

/// The tables with which a gateway assigns inside addresses.
pub struct Addresses {
    /// The person behind each grant, by the grant's handle.
    pub bearers: Table<u64, Bearer>,
    /// The inside addresses and their states, by slot in the pool.
    pub slots: Table<u32, PoolSlot>,
    /// The slot of the inside address that each person had last.
    pub leases: Table<LeaseKey, u32>,
    /// The outside addresses of clients, by flow. The flow's key contains the client's inside address.
    pub ways_back: Table<FlowKey, WayBack>,
    /// The numbers that stand for persons, by the person's name.
    pub names: Table<PersonName, u32>,
    members: Table<Member, u32>,
    news: MapHandle,
    unknown: MapHandle,
}

impl Addresses {
    pub(crate) fn new(object: &Loaded) -> Result<Self> {
        Ok(Self {
            bearers: object.table("bearers")?,
            slots: object.table("pool")?,
            leases: object.table("leases")?,
            ways_back: object.table("ways_back")?,
            names: object.table("names")?,
            members: object.table("members")?,
            news: object.map("news")?,
            unknown: object.map("unknown")?,
        })
    }

    /// Writes the addresses into the pool. A slot that has its address already keeps its state, for example in a pool
    /// that an earlier process pinned.
    pub(crate) fn fill(&self, pool: &[IpAddr]) -> Result<()> {
        for (slot, address) in (0..).zip(pool) {
            let bytes = address_bytes(*address);
            if self.slots.get(&slot)?.is_none_or(|there| there.address != bytes) {
                self.slots.set(&slot, &PoolSlot { address: bytes, ..PoolSlot::default() })?;
            }
            let family = if address.is_ipv4() { 4 } else { 6 };
            self.members.set(&Member { address: bytes, family, reserved: 0 }, &slot)?;
        }
        Ok(())
    }

    /// Opens the ring of the programs' messages. Whenever the caller polls the result, `each` is called with every
    /// message in the ring.
    ///
    /// # Errors
    ///
    /// Fails if the ring can't be opened.
    pub fn news(&self, each: impl FnMut(NatNews) + Send + 'static) -> Result<RingBuffer<'static>> {
        ring::open(&[&self.news, &self.unknown], each)
    }
}

/// Input and output of the kernel program `reclaim`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)]
#[repr(C)]
struct Reclaim {
    now: u32,
    ways: u32,
}

/// Removes the entries of `ways_back` whose flows have ended by `now`. Returns the number of removed entries.
pub(crate) fn reclaim(object: &Loaded, now: u32) -> Result<u32> {
    let program = object.runnable("reclaim")?;
    let mut pass = Reclaim { now, ways: 0 };
    let input = ProgramInput { context_in: Some(pass.as_mut_bytes()), ..ProgramInput::default() };
    let result = program.test_run(input).context("cannot run the reclaim program")?;
    anyhow::ensure!(result.return_value == 0, "the reclaim program failed: {}", result.return_value);
    Ok(pass.ways)
}

/// Runs the program that assigns the inside address of a flow that a peer gateway reported.
pub(crate) fn bind_received(object: &Loaded, mut received: ReceivedAddress) -> Result<ReceivedAddress> {
    let program = object.runnable("bind_received")?;
    let input = ProgramInput { context_in: Some(received.as_mut_bytes()), ..ProgramInput::default() };
    let result = program
        .test_run(input)
        .context("cannot run the program that assigns inside addresses to flows of peer gateways")?;
    anyhow::ensure!(
        result.return_value == 0,
        "the program that assigns inside addresses to flows of peer gateways failed: {}",
        result.return_value
    );
    Ok(received)
}
