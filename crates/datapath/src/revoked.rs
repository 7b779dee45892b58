//! Revoked grants in the look-up table of the kernel program, and the classes of handles for which no look-up is
//! needed.

use crate::object::Loaded;
use crate::table::Table;
use anyhow::Result;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use wire::map::ClassSet;

/// Maximum number of classes of handles. If there are more, [`Revoked::tidy`] removes the classes without a revoked
/// handle.
const CLASSES_MAX: u32 = 1 << 12;

/// The table of revoked grants. The key is a grant's handle; the value is the time when the grant would have expired.
pub struct Revoked {
    ends: Table<u64, u32>,
    classes: Table<u32, ClassSet>,
    /// The accounts of revoked grants, if the authority named them. Locked while the classes change.
    accounts: Mutex<HashMap<u64, u32>>,
}

impl Revoked {
    pub(crate) fn new(object: &Loaded) -> Result<Self> {
        let ends = object.table("revoked")?;
        let revoked = Self { ends, classes: object.table("revoked_classes")?, accounts: Mutex::default() };
        revoked.renew_classes()?;
        Ok(revoked)
    }

    /// Returns the time at which a revoked grant would have expired, or `None` if the grant is not revoked.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses access to a map.
    pub fn get(&self, handle: u64) -> Result<Option<u32>> {
        self.ends.get(&handle)
    }

    /// Returns the handles of all revoked grants.
    pub fn handles(&self) -> Vec<u64> {
        self.ends.keys()
    }

    /// Revokes a grant that would have expired at `expires`, Unix seconds.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses access to a map, or if the table is full.
    pub fn set(&self, handle: u64, expires: u32) -> Result<()> {
        let _changing = self.changing();
        let mut classes = self.classes()?;
        let class = ClassSet::class_of_handle(handle);
        if !classes.contains(class) {
            classes.insert(class);
            self.classes.set(&0, &classes)?;
        }
        self.ends.set(&handle, &expires)
    }

    /// Records the account of a grant that is about to be revoked.
    pub(crate) fn note_account(&self, handle: u64, account: u32) {
        self.changing().insert(handle, account);
    }

    /// Returns the entries of each account, as (handle, expiry). Leaves out entries whose account is unknown.
    pub(crate) fn by_account(&self) -> BTreeMap<u32, Vec<(u64, u32)>> {
        let accounts = self.changing();
        let mut entries: BTreeMap<u32, Vec<(u64, u32)>> = BTreeMap::new();
        for (handle, expires) in self.ends.entries() {
            if let Some(account) = accounts.get(&handle) {
                entries.entry(*account).or_default().push((handle, expires));
            }
        }
        entries
    }

    /// Returns the maximum number of revoked grants.
    pub fn capacity(&self) -> u32 {
        self.ends.capacity()
    }

    /// Removes the revocation of a grant, if the grant is revoked.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses access to a map.
    pub fn remove(&self, handle: u64) -> Result<()> {
        self.ends.remove(&handle)
    }

    /// Removes the classes and accounts whose revocations have expired, if there are many classes and accounts.
    pub(crate) fn tidy(&self) -> Result<()> {
        let mut accounts = self.changing();
        if accounts.len() > self.ends.capacity() as usize {
            let handles: HashSet<u64> = self.ends.keys().into_iter().collect();
            accounts.retain(|handle, _| handles.contains(handle));
        }
        drop(accounts);
        if self.classes()?.len() > CLASSES_MAX { self.renew_classes() } else { Ok(()) }
    }

    fn renew_classes(&self) -> Result<()> {
        let _changing = self.changing();
        let mut classes = ClassSet::NOTHING;
        self.handles().into_iter().for_each(|handle| classes.insert(ClassSet::class_of_handle(handle)));
        self.classes.set(&0, &classes)
    }

    fn classes(&self) -> Result<ClassSet> {
        Ok(self.classes.get(&0)?.unwrap_or(ClassSet::EVERYTHING))
    }

    fn changing(&self) -> MutexGuard<'_, HashMap<u64, u32>> {
        self.accounts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
