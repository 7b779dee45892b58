//! Grants as the agent's kernel program holds them.

use crate::world::{self, Grant, NOW};
use datapath::agent::Agent;
use datapath::clock;
use datapath::tc::Attachment;
use engine::model::protected;
use wire::Destination;
use wire::map::{GrantEntry, Owner, owner};

/// Number of the user who is logged in.
pub const SUBJECT: u32 = 7;
/// Owner of the socket that packets belong to in a test run.
pub const ROOT: Owner = Owner { kind: owner::USER, reserved: 0, id: 0 };

/// Loads the agent's programs for a machine whose user 0 is logged in. `asks` says what they ask the daemon, and
/// `device` is the number of the tunnels' device.
pub fn logged_in(asks: u32, device: u32) -> Agent {
    let kernel = Agent::load(14, false, Attachment::Clsact, None).unwrap_or_else(|error| panic!("{error:#}"));
    let protected = protected::entries(&world::receivers()).expect("few spans");
    let entries: Vec<_> =
        protected.iter().map(|entry| (entry.prefix.network(), entry.prefix.prefix_len(), entry.services)).collect();
    kernel.protect(&entries).expect("maps take prefixes");
    kernel.set_clock(clock::boot_reading(NOW.into()).wrapping_add(200_000_000)).expect("clock");
    kernel.owners.set(&ROOT, &SUBJECT).expect("owners");
    kernel.set_asks(asks).expect("steering");
    kernel.set_tunnel(device, 0).expect("steering");
    kernel
}

/// Returns the entry of a grant that the agent may use until `until`.
pub fn entry(grant: &Grant, to: &Destination, until: u32) -> GrantEntry {
    let mut entry = GrantEntry {
        until,
        used: 0,
        plain: 0,
        suite: grant.suite as u8,
        carrier: 0,
        reserved: 0,
        skew: 0,
        header: grant.header().encode(),
        key: [0; 32],
        spent: 0,
        reserved2: 0,
    };
    entry.key[..16].copy_from_slice(grant.key(to).bytes());
    entry
}
