//! Copies used tokens into a replay table of another size. Without this, these tokens could be used a second time.

use crate::attachments::Pins;
use crate::clock::coarse_to;
use crate::table::Table;
use anyhow::Result;
use libbpf_rs::{MapCore, MapHandle};
use wire::map::{Forgotten, ReplayBucket, Span};

/// Returns the pinned replay table if its size differs from that of the new table.
pub(crate) fn outgrown(pins: &Pins, buckets: u32) -> Option<MapHandle> {
    let old = MapHandle::from_pinned_path(pins.map("replays")).ok()?;
    (old.max_entries() != buckets).then_some(old)
}

/// Copies the entries of `old` that the clock check may still accept into `new`. Adds the times of entries that do not
/// fit to `forgotten`, so that the verifier rejects tokens from these times. `offset` is the number of nanoseconds that
/// the programs add to their clock.
pub(crate) fn carry_over(
    old: MapHandle,
    new: &Table<u32, ReplayBucket>,
    offset: u64,
    forgotten: &mut Forgotten,
) -> Result<()> {
    let now = coarse_to(offset);
    let Ok(old) = Table::<u32, ReplayBucket>::new(old) else {
        // Another version wrote the map, and this version can't read its entries.
        forgotten.forget(Span { from: 0, until: ReplayBucket::none_from(now) });
        return Ok(());
    };
    // The low bits of a token's hash select its bucket; a table of twice the size uses one more bit.
    let copies = (new.capacity() / old.capacity()).max(1);
    let mut lost = 0;
    for index in 0..old.capacity() {
        let Some(bucket) = old.get(&index)?.filter(|bucket| bucket.valid(now).next().is_some()) else { continue };
        for copy in 0..copies {
            let place = (index + copy * old.capacity()) % new.capacity();
            let mut there = new.get(&place)?.unwrap_or_default();
            for entry in bucket.valid(now) {
                if !there.keep(entry, now) {
                    lost = lost.max(ReplayBucket::time_of(entry) + 1);
                }
            }
            new.set(&place, &there)?;
        }
    }
    forgotten.forget(Span { from: 0, until: lost });
    let (before, after) = (old.capacity(), new.capacity());
    tracing::info!(map = "replays", before, after, until = lost, "resized");
    Ok(())
}
