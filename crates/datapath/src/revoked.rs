//! Revoked grants in the kernel program's look-up table, and the classes of handles that need no look-up.

use crate::object::Loaded;
use crate::table::Table;
use anyhow::Result;
use std::sync::{Mutex, MutexGuard, PoisonError};
use wire::map::ClassSet;

/// Number of classes of handles beyond which classes without a revoked handle are removed.
const CLASSES_MAX: u32 = 1 << 12;

/// The revoked grants: when each would have expired, by handle.
pub struct Revoked {
    ends: Table<u64, u32>,
    classes: Table<u32, ClassSet>,
    /// Held while the classes change.
    changing: Mutex<()>,
}

impl Revoked {
    pub(crate) fn new(object: &Loaded) -> Result<Self> {
        let ends = object.table("revoked")?;
        let revoked = Self { ends, classes: object.table("revoked_classes")?, changing: Mutex::new(()) };
        revoked.renew_classes()?;
        Ok(revoked)
    }

    /// Returns when a revoked grant would have expired.
    pub fn get(&self, handle: u64) -> Result<Option<u32>> {
        self.ends.get(&handle)
    }

    /// Returns all handles.
    pub fn handles(&self) -> Vec<u64> {
        self.ends.keys()
    }

    /// Revokes a grant that would have expired at `expires`, Unix seconds.
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

    /// Undoes a revocation, if there is one.
    pub fn remove(&self, handle: u64) -> Result<()> {
        self.ends.remove(&handle)
    }

    /// Removes the classes of expired revocations once there are many.
    pub(crate) fn tidy(&self) -> Result<()> {
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

    fn changing(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
