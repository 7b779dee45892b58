//! Batched reads of the kernel's hash maps, thousands of entries per system call. The kernel remembers the position of
//! a read as the number of a bucket. Concurrent changes therefore neither restart the read nor make it return an entry
//! twice.

use libbpf_rs::{MapCore, MapHandle, MapType};
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;
use zerocopy::FromBytes;

/// Maximum number of entries and of bytes in one batch.
const AT_A_TIME: u32 = 4096;
const BYTES_AT_A_TIME: u32 = 1 << 20;

/// Returns every key with its value. Returns `None` if the map is not a hash map, or the kernel refuses.
pub(crate) fn entries<K: FromBytes, V: FromBytes>(map: &MapHandle) -> Option<Vec<(K, V)>> {
    let fit = BYTES_AT_A_TIME / (map.key_size() + map.value_size()).max(1);
    read(map, AT_A_TIME.min(fit).min(map.max_entries()).max(1))
}

/// Reads a map like [`entries`], `room` entries at a time.
fn read<K: FromBytes, V: FromBytes>(map: &MapHandle, mut room: u32) -> Option<Vec<(K, V)>> {
    if !matches!(map.map_type(), MapType::Hash | MapType::LruHash) {
        return None;
    }
    let (key_size, value_size) = (map.key_size() as usize, map.value_size() as usize);
    let options =
        libbpf_sys::bpf_map_batch_opts { sz: size_of::<libbpf_sys::bpf_map_batch_opts>() as _, ..Default::default() };
    let (mut keys, mut values) = (Vec::new(), Vec::new());
    let (mut entries, mut place) = (Vec::new(), None::<u32>);
    loop {
        if keys.len() != room as usize * key_size {
            (keys, values) = (vec![0u8; room as usize * key_size], vec![0u8; room as usize * value_size]);
        }
        let (mut next, mut count) = (0u32, room);
        let from = place.as_mut().map_or(ptr::null_mut(), ptr::from_mut);
        // SAFETY: the buffers have room for `count` keys and values of the map's sizes, and a position in a hash map is
        // a u32.
        let result = unsafe {
            libbpf_sys::bpf_map_lookup_batch(
                map.as_fd().as_raw_fd(),
                from.cast(),
                ptr::from_mut(&mut next).cast(),
                keys.as_mut_ptr().cast(),
                values.as_mut_ptr().cast(),
                &mut count,
                &options,
            )
        };
        let over = match -result {
            0 => false,
            libc::ENOENT => true,
            // The next bucket, which the kernel returns whole or not at all, has more entries than fit.
            libc::ENOSPC if room <= map.max_entries() => {
                room = room.checked_mul(2)?;
                continue;
            }
            _ => return None,
        };
        let read = keys.chunks_exact(key_size).zip(values.chunks_exact(value_size)).take(count as usize);
        entries.extend(
            read.filter_map(|(key, value)| Some((K::read_from_bytes(key).ok()?, V::read_from_bytes(value).ok()?))),
        );
        if over {
            return Some(entries);
        }
        place = Some(next);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use libbpf_rs::MapFlags;
    use std::collections::BTreeMap;
    use std::sync::atomic::{AtomicBool, Ordering};

    fn map(kind: MapType, most: u32) -> MapHandle {
        let options = libbpf_sys::bpf_map_create_opts {
            sz: size_of::<libbpf_sys::bpf_map_create_opts>() as _,
            ..Default::default()
        };
        MapHandle::create(kind, Some("batch"), 4, 8, most, &options).unwrap()
    }

    fn fill(map: &MapHandle, count: u32) -> BTreeMap<u32, u64> {
        let entries: BTreeMap<_, _> = (0..count).map(|key| (key, u64::from(key) * 7)).collect();
        for (key, value) in &entries {
            map.update(&key.to_ne_bytes(), &value.to_ne_bytes(), MapFlags::ANY).unwrap();
        }
        entries
    }

    #[test]
    fn kernel_hash_maps_are_read_whole_whatever_fits_at_a_time() {
        for kind in [MapType::Hash, MapType::LruHash] {
            let map = map(kind, 10_000);
            assert_eq!(read::<u32, u64>(&map, 16), Some(Vec::new()));
            let expected = fill(&map, 5000);
            // With room for one entry, buckets of several make `read` ask for more.
            for room in [1, 7, AT_A_TIME, 10_000] {
                let entries = read::<u32, u64>(&map, room).unwrap();
                assert_eq!(entries.len(), expected.len(), "{kind:?} {room}");
                assert_eq!(entries.into_iter().collect::<BTreeMap<_, _>>(), expected, "{kind:?} {room}");
            }
        }
    }

    #[test]
    fn kernel_entries_that_stay_are_met_once_while_others_come_and_go() {
        let map = map(MapType::Hash, 10_000);
        let expected = fill(&map, 3000);
        let (done, passing) = (AtomicBool::new(false), 3000u32..8000);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    for key in passing.clone() {
                        map.update(&key.to_ne_bytes(), &[0; 8], MapFlags::ANY).unwrap();
                    }
                    for key in passing.clone() {
                        map.delete(&key.to_ne_bytes()).unwrap();
                    }
                }
            });
            for _ in 0..100 {
                let mut stayed = read::<u32, u64>(&map, 512).unwrap();
                stayed.retain(|(key, _)| !passing.contains(key));
                assert_eq!(stayed.len(), expected.len());
                assert_eq!(stayed.into_iter().collect::<BTreeMap<_, _>>(), expected);
            }
            done.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn kernel_maps_of_other_types_are_not_read_so() {
        assert_eq!(entries::<u32, u64>(&map(MapType::Array, 4)), None);
    }
}
