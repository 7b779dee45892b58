//! Ended sessions in the look-up table of the kernel program, by holder, and the classes of accounts for which no
//! look-up is needed.

use crate::object::Loaded;
use crate::table::Table;
use anyhow::Result;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use wire::Holder;
use wire::map::{CLASSES_OF_ACCOUNTS, ClassSet, RevokedKey};

/// Maximum number of classes of accounts. If there are more, [`RevokedHolders::tidy`] removes the classes without an
/// ended session.
const CLASSES_MAX: u32 = 1 << 12;

/// The table of ended sessions. The value is the time until which tokens of the session can still arrive.
///
/// An account has at most 256 sessions at a time, so 256 accounts can fill a table of the default size. If the table is
/// full, the account with the most entries gets a single entry for the whole account in their place. The entries of
/// other accounts stay.
pub struct RevokedHolders {
    ends: Table<RevokedKey, u32>,
    classes: Table<u32, ClassSet>,
    /// Held while the table or its classes change.
    changing: Mutex<()>,
}

impl RevokedHolders {
    pub(crate) fn new(object: &Loaded) -> Result<Self> {
        let (ends, classes) = (object.table("revoked_holders")?, object.table("revoked_classes")?);
        let revoked = Self { ends, classes, changing: Mutex::new(()) };
        let changing = revoked.changing();
        revoked.renew_classes(&revoked.ends.keys())?;
        drop(changing);
        Ok(revoked)
    }

    /// Reports whether this session has ended, or all sessions of its account have ended.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses access to a map.
    pub fn contains(&self, holder: Holder) -> Result<bool> {
        let keys = [RevokedKey::session(holder), RevokedKey::account(holder.account())];
        for key in keys {
            if self.ends.get(&key)?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns all entries, each with the time until which its tokens are rejected.
    pub fn entries(&self) -> Vec<(RevokedKey, u32)> {
        self.ends.entries()
    }

    /// Records that a session has ended, so that its tokens are rejected until `expires`, Unix seconds. If the table is
    /// full, records for one account that all its sessions have ended, to make room, and returns that account.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses access to a map, or if the table is full and no account has two entries.
    pub fn set(&self, holder: Holder, expires: u32) -> Result<Option<u32>> {
        let changing = self.changing();
        if self.extend_account(holder.account(), expires)? {
            return Ok(None);
        }
        self.put(&changing, RevokedKey::session(holder), expires)
    }

    /// Records that all sessions of an account have ended, so that their tokens are rejected until `expires`, Unix
    /// seconds. If the table is full, makes room: shuts out another account in the same way, and returns that account.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses access to a map, or if the table is full and no account has two entries.
    pub fn set_account(&self, account: u32, expires: u32) -> Result<Option<u32>> {
        let changing = self.changing();
        let whole = RevokedKey::account(account);
        let other = self.put(&changing, whole, expires)?.filter(|other| *other != account);
        let sessions = self.ends.keys().into_iter().filter(|key| key.account_number() == account && *key != whole);
        sessions.into_iter().try_for_each(|key| self.ends.remove(&key))?;
        Ok(other)
    }

    /// Extends the time for which an account is shut out to at least `expires`. Returns `false` if the account is not
    /// shut out.
    pub(crate) fn extend_account(&self, account: u32, expires: u32) -> Result<bool> {
        let whole = RevokedKey::account(account);
        let Some(until) = self.ends.get(&whole)? else { return Ok(false) };
        self.ends.set(&whole, &until.max(expires)).map(|()| true)
    }

    /// Replaces the entry of an account that is shut out by one entry for each of these sessions of the account.
    pub(crate) fn readmit(&self, account: u32, sessions: &[(Holder, u32)]) -> Result<()> {
        let _changing = self.changing();
        for (holder, expires) in sessions {
            self.ends.set(&RevokedKey::session(*holder), expires)?;
        }
        self.ends.remove(&RevokedKey::account(account))
    }

    /// Returns the maximum number of entries in the table.
    pub fn capacity(&self) -> u32 {
        self.ends.capacity()
    }

    fn put(&self, _changing: &MutexGuard<'_, ()>, key: RevokedKey, expires: u32) -> Result<Option<u32>> {
        self.note_class(key.account_number())?;
        let later = self.ends.get(&key)?.unwrap_or(0).max(expires);
        match self.ends.set(&key, &later) {
            Ok(()) => Ok(None),
            Err(error) => self.merge((key, later))?.map(Some).ok_or(error),
        }
    }

    /// Removes the entry with this key, if there is one.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses access to a map.
    pub fn remove(&self, key: &RevokedKey) -> Result<()> {
        self.ends.remove(key)
    }

    /// Replaces the entries of the account with the most entries, among which `new` counts, by one entry for the whole
    /// account. Returns that account, or `None` if no account has two entries.
    fn merge(&self, new: (RevokedKey, u32)) -> Result<Option<u32>> {
        let mut accounts: BTreeMap<u32, Vec<(RevokedKey, u32)>> = BTreeMap::new();
        for entry in self.ends.entries().into_iter().chain([new]) {
            accounts.entry(entry.0.account_number()).or_default().push(entry);
        }
        // On a tie, the account of the new entry is taken.
        let of_new = new.0.account_number();
        let most = accounts.into_iter().max_by_key(|(account, entries)| (entries.len(), *account == of_new));
        let Some((account, entries)) = most.filter(|(_, entries)| entries.len() > 1) else { return Ok(None) };
        let last = entries.iter().map(|(_, expires)| *expires).max().unwrap_or(new.1);
        let whole = RevokedKey::account(account);
        for (key, _) in entries.iter().filter(|(key, _)| *key != whole) {
            self.ends.remove(key)?;
        }
        self.ends.set(&whole, &last)?;
        if account != of_new {
            self.ends.set(&new.0, &new.1)?;
        }
        Ok(Some(account))
    }

    /// Removes the classes of accounts whose entries have expired, if there are many classes.
    pub(crate) fn tidy(&self) -> Result<()> {
        let _changing = self.changing();
        if self.classes()?.len() > CLASSES_MAX { self.renew_classes(&self.ends.keys()) } else { Ok(()) }
    }

    fn note_class(&self, account: u32) -> Result<()> {
        let mut classes = self.classes()?;
        let class = ClassSet::class_of_account(account);
        if !classes.contains(class) {
            classes.insert(class);
            self.classes.set(&CLASSES_OF_ACCOUNTS, &classes)?;
        }
        Ok(())
    }

    fn renew_classes(&self, keys: &[RevokedKey]) -> Result<()> {
        let mut classes = ClassSet::NOTHING;
        keys.iter().for_each(|key| classes.insert(ClassSet::class_of_account(key.account_number())));
        self.classes.set(&CLASSES_OF_ACCOUNTS, &classes)
    }

    fn classes(&self) -> Result<ClassSet> {
        Ok(self.classes.get(&CLASSES_OF_ACCOUNTS)?.unwrap_or(ClassSet::EVERYTHING))
    }

    fn changing(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
