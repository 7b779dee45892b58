//! Grants as the agent's kernel program holds them.

use crate::world::Grant;
use wire::Destination;
use wire::map::GrantEntry;

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
