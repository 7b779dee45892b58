//! Typed access to kernel maps.

use crate::batch;
use anyhow::{Context, Result};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use std::collections::HashSet;
use std::marker::PhantomData;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Maximum number of keys that a walk visits, as a multiple of the table's capacity.
const WALKS: usize = 4;

/// A kernel map with keys of type `K` and values of type `V`. When the map is opened, the sizes of these types are
/// compared with the sizes that the kernel program declares.
pub struct Table<K, V> {
    map: MapHandle,
    types: PhantomData<fn(K) -> V>,
}

impl<K: IntoBytes + FromBytes + Immutable, V: IntoBytes + FromBytes + Immutable> Table<K, V> {
    pub(crate) fn new(map: MapHandle) -> Result<Self> {
        let (key, value) = (size_of::<K>(), size_of::<V>());
        anyhow::ensure!(
            map.key_size() as usize == key && map.value_size() as usize == value,
            "map {:?} has keys of {} and values of {} bytes, not {key} and {value}: it belongs to another version",
            map.name(),
            map.key_size(),
            map.value_size(),
        );
        Ok(Self { map, types: PhantomData })
    }

    /// Returns the value at `key`, if there is one.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses access to a map.
    pub fn get(&self, key: &K) -> Result<Option<V>> {
        let found = self.map.lookup(key.as_bytes(), MapFlags::ANY).with_context(|| self.place("read"))?;
        Ok(found.and_then(|bytes| V::read_from_bytes(&bytes).ok()))
    }

    /// Writes `value` at `key`.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses access to the map, or if the map is full.
    pub fn set(&self, key: &K, value: &V) -> Result<()> {
        self.map.update(key.as_bytes(), value.as_bytes(), MapFlags::ANY).with_context(|| self.place("write"))
    }

    /// Writes `value` at `key` unless the table has a value there. Returns whether `value` was written.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses access to the map, or if the map is full.
    pub fn insert(&self, key: &K, value: &V) -> Result<bool> {
        match self.map.update(key.as_bytes(), value.as_bytes(), MapFlags::NO_EXIST) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == libbpf_rs::ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(error).with_context(|| self.place("write")),
        }
    }

    /// Removes the entry at `key`, if there is one.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses access to a map.
    pub fn remove(&self, key: &K) -> Result<()> {
        match self.map.delete(key.as_bytes()) {
            Err(error) if error.kind() != libbpf_rs::ErrorKind::NotFound => {
                Err(error).with_context(|| self.place("delete from"))
            }
            _ => Ok(()),
        }
    }

    /// Returns every key once. The result may lack the key of an entry that is added or removed during the call.
    pub fn keys(&self) -> Vec<K> {
        match batch::entries::<K, V>(&self.map) {
            Some(entries) => entries.into_iter().map(|(key, _)| key).collect(),
            None => self.walk(),
        }
    }

    /// Returns every key with its value. The result may lack an entry that is added or removed during the call.
    pub fn entries(&self) -> Vec<(K, V)> {
        let one_by_one = || {
            let value = |key| self.get(&key).ok().flatten().map(|value| (key, value));
            self.walk().into_iter().filter_map(value).collect()
        };
        batch::entries(&self.map).unwrap_or_else(one_by_one)
    }

    /// Returns the maximum number of entries.
    pub fn capacity(&self) -> u32 {
        self.map.max_entries()
    }

    /// Returns every key, with one system call for each.
    fn walk(&self) -> Vec<K> {
        let keys = distinct(self.map.keys(), self.capacity() as usize);
        keys.iter().filter_map(|bytes| K::read_from_bytes(bytes).ok()).collect()
    }

    fn place(&self, verb: &str) -> String {
        format!("cannot {verb} kernel map {:?}", self.map.name())
    }
}

/// Returns each key that a walk over the map meets, without duplicates. The kernel restarts a walk whose current key is
/// deleted. Therefore the walk ends after a number of steps that `capacity` limits, even if the map changes all the
/// time.
pub(crate) fn distinct(walk: impl Iterator<Item = Vec<u8>>, capacity: usize) -> HashSet<Vec<u8>> {
    let mut keys = HashSet::new();
    for key in walk.take(capacity.saturating_mul(WALKS)) {
        keys.insert(key);
        if keys.len() >= capacity {
            break;
        }
    }
    keys
}

impl<V: IntoBytes + FromBytes + Immutable> Table<u32, V> {
    /// Returns the sum of the numbers at `index` in a map that has one value for each core. If the value is a
    /// structure, its first number counts.
    pub(crate) fn sum_at(&self, index: u32) -> Result<u64> {
        let cores = self.map.lookup_percpu(&index.to_ne_bytes(), MapFlags::ANY).with_context(|| self.place("read"))?;
        let numbers = cores.unwrap_or_default();
        Ok(numbers.iter().filter_map(|bytes| Some(u64::read_from_prefix(bytes).ok()?.0)).sum())
    }

    /// Returns what [`Self::sum_at`] returns for each of the first `count` indices. The map must have at least `count`
    /// entries.
    pub(crate) fn sums(&self, count: u32) -> Result<Vec<u64>> {
        match batch::sums(&self.map) {
            Some(sums) => Ok(sums.into_iter().take(count as usize).collect()),
            None => (0..count).map(|index| self.sum_at(index)).collect(),
        }
    }

    /// Changes the value of every core at `index`, in a map that has one value for each core. If a program changes a
    /// value meanwhile, that change is lost.
    pub(crate) fn change_at(&self, index: u32, change: impl Fn(V) -> V) -> Result<()> {
        let key = index.to_ne_bytes();
        let cores = self.map.lookup_percpu(&key, MapFlags::ANY).with_context(|| self.place("read"))?;
        let mut values = cores.unwrap_or_default();
        for bytes in &mut values {
            let (value, _) = V::read_from_prefix(bytes).map_err(|_| anyhow::anyhow!("a value is too short"))?;
            let changed = change(value);
            bytes[..size_of::<V>()].copy_from_slice(changed.as_bytes());
        }
        self.map.update_percpu(&key, &values, MapFlags::ANY).with_context(|| self.place("write"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_that_starts_over_gives_each_key_once_and_ends() {
        let walk = [1, 2, 1, 2, 3].into_iter().map(|key| vec![key]);
        assert_eq!(distinct(walk, 10).len(), 3);
        assert_eq!(distinct((0..).map(|step: u64| vec![(step % 3) as u8]), 10).len(), 3);
        assert_eq!(distinct((0..).map(|step: u64| step.to_ne_bytes().to_vec()), 10).len(), 10);
    }
}
