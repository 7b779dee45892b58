//! The optional receivers of a verifier, as another process can read them.

use crate::attachments::Pins;
use crate::table::Table;
use anyhow::{Context, Result};
use libbpf_rs::MapHandle;
use std::net::SocketAddr;
use wire::map::OptionalService;

/// Returns the optional receivers that a verifier has pinned, sorted. The list is empty if the verifier is of an
/// earlier version, which has no optional receivers.
///
/// # Errors
///
/// Fails if the kernel refuses access to the map.
pub fn pinned(pins: &Pins) -> Result<Vec<SocketAddr>> {
    let path = pins.map("optional");
    if !path.exists() {
        return Ok(Vec::new());
    }
    let map = MapHandle::from_pinned_path(path).context("cannot open the pinned map optional")?;
    let services: Table<OptionalService, u32> = Table::new(map)?;
    let mut all: Vec<SocketAddr> = services.keys().iter().map(|service| service.service().into()).collect();
    all.sort_unstable();
    Ok(all)
}
