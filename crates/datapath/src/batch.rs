//! Batched reads of the kernel's hash maps and arrays, up to thousands of entries per system call. The kernel remembers
//! the position of a read as the number of a bucket or as an index. Concurrent changes therefore neither restart the
//! read nor make it return an entry twice.

use libbpf_rs::{MapCore, MapHandle, MapType};
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;
use zerocopy::FromBytes;

/// Number of entries in the first batch. Each further batch has twice as many, up to a limit.
const AT_FIRST: u32 = 64;
/// Maximum number of entries and of bytes in one batch.
const AT_A_TIME: u32 = 4096;
const BYTES_AT_A_TIME: u32 = 1 << 20;

/// Returns every key with its value. Returns `None` if the map is neither a hash map nor an array, or the kernel
/// refuses.
pub(crate) fn entries<K: FromBytes, V: FromBytes>(map: &MapHandle) -> Option<Vec<(K, V)>> {
    if !matches!(map.map_type(), MapType::Hash | MapType::LruHash | MapType::Array) {
        return None;
    }
    decode(map, AT_FIRST)
}

/// Returns the sum over all cores of the number at each index. If the values are structures, their first numbers count.
/// Returns `None` if the map is not an array with one value for each core, or the kernel refuses.
pub(crate) fn sums(map: &MapHandle) -> Option<Vec<u64>> {
    if map.map_type() != MapType::PercpuArray {
        return None;
    }
    // The kernel pads each core's value to a multiple of eight bytes (Documentation/bpf/map_array.rst).
    let of_core = map.value_size().next_multiple_of(8);
    let value_size = of_core * u32::try_from(libbpf_rs::num_possible_cpus().ok()?).ok()?;
    let first = |value: &[u8]| u64::read_from_prefix(value).map_or(0, |(number, _)| number);
    let mut sums = Vec::new();
    read(map, value_size, AT_FIRST, |_, values| {
        sums.push(values.chunks_exact(of_core as usize).map(first).sum());
    })?;
    Some(sums)
}

/// Reads a map like [`entries`], with `room` entries in the first batch.
fn decode<K: FromBytes, V: FromBytes>(map: &MapHandle, room: u32) -> Option<Vec<(K, V)>> {
    let mut entries = Vec::new();
    read(map, map.value_size(), room, |key, value| {
        let entry = K::read_from_bytes(key).ok().zip(V::read_from_bytes(value).ok());
        entries.extend(entry);
    })?;
    Some(entries)
}

/// Calls `each` with every key and its value. `value_size` must be the number of bytes that the kernel writes for a
/// value. The first batch has at most `room` entries. Returns `None` if the kernel refuses.
fn read(map: &MapHandle, value_size: u32, mut room: u32, mut each: impl FnMut(&[u8], &[u8])) -> Option<()> {
    let fit = BYTES_AT_A_TIME / (map.key_size() + value_size).max(1);
    let most = AT_A_TIME.min(fit).min(map.max_entries()).max(1);
    let (key_size, value_size) = (map.key_size() as usize, value_size as usize);
    room = room.min(most);
    let options =
        libbpf_sys::bpf_map_batch_opts { sz: size_of::<libbpf_sys::bpf_map_batch_opts>() as _, ..Default::default() };
    let (mut keys, mut values) = (Vec::new(), Vec::new());
    let mut place = None::<u32>;
    loop {
        if keys.len() != room as usize * key_size {
            (keys, values) = (vec![0u8; room as usize * key_size], vec![0u8; room as usize * value_size]);
        }
        let (mut next, mut count) = (0u32, room);
        let from = place.as_mut().map_or(ptr::null_mut(), ptr::from_mut);
        // SAFETY: the buffers have room for `count` keys of the map's size and `count` values of `value_size` bytes,
        // which is what the kernel writes for a value. A position in a hash map or an array is a u32.
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
        read.for_each(|(key, value)| each(key, value));
        if over {
            return Some(());
        }
        place = Some(next);
        room = room.max(most.min(room * 2));
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
            assert_eq!(decode::<u32, u64>(&map, 16), Some(Vec::new()));
            let expected = fill(&map, 5000);
            // With room for one entry, a first bucket of several makes `read` ask for more.
            for room in [1, 7, AT_A_TIME, 10_000] {
                let entries = decode::<u32, u64>(&map, room).unwrap();
                assert_eq!(entries.len(), expected.len(), "{kind:?} {room}");
                assert_eq!(entries.into_iter().collect::<BTreeMap<_, _>>(), expected, "{kind:?} {room}");
            }
        }
    }

    #[test]
    fn kernel_buckets_with_more_entries_than_fit_are_read_whole() {
        // Each map hashes by a seed of its own, so in many of these maps the first bucket has several entries.
        for _ in 0..50 {
            let map = map(MapType::Hash, 4);
            let expected = fill(&map, 4);
            assert_eq!(decode::<u32, u64>(&map, 1).unwrap().into_iter().collect::<BTreeMap<_, _>>(), expected);
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
                let mut stayed = decode::<u32, u64>(&map, 512).unwrap();
                stayed.retain(|(key, _)| !passing.contains(key));
                assert_eq!(stayed.len(), expected.len());
                assert_eq!(stayed.into_iter().collect::<BTreeMap<_, _>>(), expected);
            }
            done.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn kernel_arrays_are_read_whole_whatever_fits_at_a_time() {
        let map = map(MapType::Array, 100);
        let expected = fill(&map, 100);
        for room in [1, 7, 100] {
            assert_eq!(decode::<u32, u64>(&map, room).unwrap().into_iter().collect::<BTreeMap<_, _>>(), expected);
        }
        assert_eq!(entries::<u32, u64>(&map).map(|entries| entries.len()), Some(100));
    }

    #[test]
    fn kernel_arrays_with_a_value_for_each_core_are_summed() {
        let map = map(MapType::PercpuArray, 5);
        let cores = libbpf_rs::num_possible_cpus().unwrap();
        for index in 0..5u32 {
            let values: Vec<_> =
                (1..=cores as u64).map(|core| (core * u64::from(index)).to_ne_bytes().to_vec()).collect();
            map.update_percpu(&index.to_ne_bytes(), &values, MapFlags::ANY).unwrap();
        }
        let of_one = (1..=cores as u64).sum::<u64>();
        assert_eq!(sums(&map), Some((0..5).map(|index| index * of_one).collect()));
    }

    #[test]
    fn kernel_maps_of_other_types_are_not_read_so() {
        assert_eq!(entries::<u32, u64>(&map(MapType::PercpuHash, 4)), None);
        assert_eq!(sums(&map(MapType::PercpuHash, 4)), None);
    }
}
