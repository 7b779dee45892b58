//! Packets that kernel programs pass to user space, each with a header in front of it. There is one buffer per core.

use anyhow::{Context, Result};
use libbpf_rs::{MapCore, PerfBuffer, PerfBufferBuilder};
use zerocopy::FromBytes;

const PAGES: usize = 64;

/// Opens a buffer. When the caller polls the result, it calls `each` with every header and packet, and `lost` with the
/// number of packets that did not fit. `length` returns a packet's original length from its header. The result covers
/// the cores that are online at the time of the call.
pub(crate) fn open<H: FromBytes>(
    map: &impl MapCore,
    length: impl Fn(&H) -> usize + 'static,
    mut each: impl FnMut(H, Vec<u8>) + 'static,
    mut lost: impl FnMut(u64) + 'static,
) -> Result<PerfBuffer<'static>> {
    PerfBufferBuilder::new(map)
        .pages(PAGES)
        .sample_cb(move |_core, bytes: &[u8]| {
            if let Ok((header, rest)) = H::read_from_prefix(bytes) {
                let length = rest.len().min(length(&header));
                each(header, rest[..length].to_vec());
            }
        })
        .lost_cb(move |_core, count| lost(count))
        .build()
        .with_context(|| format!("cannot open the buffer {}", map.name().to_string_lossy()))
}
