//! Deletes names, notes and authors that no entry of a list has any more. Otherwise, imports and changes with ever new
//! names would fill the disk, and the server's memory, which holds the names.
//!
//! A sweep reads all entries. So the next sweep waits until the number of new names and texts exceeds, by more than
//! [`LEAST`], the number that the last sweep has kept. This limits the cost of a sweep per new name.

use super::entry::{Group, Terms};
use super::store::Store;
use anyhow::Result;
use engine::policy::lists::MOST_GROUPS;

/// Number of new names and texts up to which there is no sweep.
const LEAST: i64 = 1 << 16;
/// Number of names or texts that one transaction deletes.
const PIECE: usize = 4096;

/// A set of numbers of names, or of texts.
struct Numbers(Vec<u64>);

impl Numbers {
    /// Creates an empty set of numbers up to `last`.
    fn up_to(last: u32) -> Self {
        Self(vec![0; last as usize / 64 + 1])
    }

    fn insert(&mut self, number: u32) {
        if let Some(word) = self.0.get_mut(number as usize / 64) {
            *word |= 1 << (number % 64);
        }
    }

    fn contains(&self, number: u32) -> bool {
        self.0.get(number as usize / 64).is_some_and(|word| word >> (number % 64) & 1 == 1)
    }
}

impl Store {
    /// Returns the number of sweeps. Names that were read before a sweep have to be read again.
    pub(super) fn sweeps(&self) -> Result<i64> {
        Ok(self.connection.query_row("SELECT count FROM sweeps", [], |row| row.get(0))?)
    }

    /// Deletes the names, notes and authors that no entry of a list has any more. Does nothing until many have been
    /// added since the last sweep. The caller must hold the [lock](Self::lock).
    ///
    /// # Errors
    /// Fails if the file cannot be read or written, or is damaged.
    pub fn sweep(&mut self) -> Result<()> {
        let new = "SELECT (SELECT coalesce(max(number), 0) FROM names) - name
            + (SELECT coalesce(max(number), 0) FROM texts) - text > kept + ?1 FROM sweeps";
        if self.connection.query_row(new, [LEAST], |row| row.get(0))? { self.sweep_now() } else { Ok(()) }
    }

    /// Sweeps if no further group can be named. The caller must hold the [lock](Self::lock).
    pub(super) fn sweep_groups(&mut self) -> Result<()> {
        let groups = "SELECT count(*) FROM names WHERE name >= 'group:' AND name < 'group;'";
        let groups: i64 = self.connection.query_row(groups, [], |row| row.get(0))?;
        if groups >= MOST_GROUPS as i64 { self.sweep_now() } else { Ok(()) }
    }

    /// Deletes the names and texts that no entry has. The caller must hold the [lock](Self::lock), so that nobody adds
    /// an entry meanwhile.
    pub(super) fn sweep_now(&mut self) -> Result<()> {
        let [name, text] = ["names", "texts"].map(|table| {
            let last = format!("SELECT coalesce(max(number), 0) FROM {table}");
            self.connection.query_row(&last, [], |row| row.get::<_, u32>(0))
        });
        let (name, text) = (name?, text?);
        let (mut names, mut texts) = (Numbers::up_to(name), Numbers::up_to(text));
        // A new name gets the number after the highest one. A number is never used again, so the highest one stays.
        names.insert(name);
        {
            // Both tables in the same state: the server moves entries from one to the other.
            let snapshot = self.connection.unchecked_transaction()?;
            let mut note = |terms: &Terms| {
                texts.insert(terms.note);
                texts.insert(terms.author);
            };
            let mut statement = snapshot.prepare("SELECT entries FROM receivers")?;
            let mut rows = statement.query([])?;
            while let Some(row) = rows.next()? {
                for Group { terms, senders } in Group::decode(row.get_ref(0)?.as_blob()?)? {
                    note(&terms);
                    senders.iter().for_each(|sender| names.insert(*sender));
                }
            }
            let mut statement = snapshot.prepare("SELECT sender, terms FROM changes")?;
            let mut rows = statement.query([])?;
            while let Some(row) = rows.next()? {
                names.insert(row.get(0)?);
                if let Some(mut terms) = row.get_ref(1)?.as_blob_or_null()? {
                    note(&Terms::decode(&mut terms)?);
                }
            }
        }
        let kept = self.keep_only("names", &names)? + self.keep_only("texts", &texts)?;
        // Last, so that the server reads the names again after all are deleted that it must forget.
        let done = "UPDATE sweeps SET count = count + 1, name = ?1, text = ?2, kept = ?3";
        self.connection.execute(done, (name, text, kept as i64))?;
        Ok(())
    }

    /// Deletes the rows of a table whose numbers are not in `used`. Returns the number of the others.
    fn keep_only(&mut self, table: &str, used: &Numbers) -> Result<usize> {
        let (mut unused, mut kept) = (Vec::new(), 0);
        {
            let mut statement = self.connection.prepare(&format!("SELECT number FROM {table}"))?;
            let mut rows = statement.query([])?;
            while let Some(row) = rows.next()? {
                let number: u32 = row.get(0)?;
                if used.contains(number) {
                    kept += 1;
                } else {
                    unused.push(number);
                }
            }
        }
        for piece in unused.chunks(PIECE) {
            self.in_transaction(|store| {
                let mut delete = store.connection.prepare_cached(&format!("DELETE FROM {table} WHERE number = ?1"))?;
                for number in piece {
                    delete.execute([number])?;
                }
                Ok(())
            })?;
        }
        Ok(kept)
    }
}
