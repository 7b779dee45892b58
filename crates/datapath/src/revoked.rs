//! Revoked grants as the kernel program looks them up: a table, and which handles need no look-up.

use crate::object::Loaded;
use crate::table::Table;
use anyhow::Result;
use std::sync::{Mutex, MutexGuard, PoisonError};
use wire::map::ClassSet;

/// With more classes than this of handles that may be revoked, those that no longer are one are taken out.
const CLASSES_MAX: u32 = 1 << 12;

/// The revoked grants: when they would have ended, by handle.
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

    /// When a revoked grant would have ended.
    pub fn get(&self, handle: u64) -> Result<Option<u32>> {
        self.ends.get(&handle)
    }

    /// Every handle.
    pub fn handles(&self) -> Vec<u64> {
        self.ends.keys()
    }

    /// Revokes a grant that would have ended at `expires`, Unix seconds.
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

    /// Takes a revocation back; none there is fine.
    pub fn remove(&self, handle: u64) -> Result<()> {
        self.ends.remove(&handle)
    }

    /// Takes out the classes of revocations that have ended, where they have become many.
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
