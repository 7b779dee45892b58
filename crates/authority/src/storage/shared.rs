//! Files and settings that all members of a cluster share: the master keys, `networks.toml`, and the list of members.
//! An authority in no cluster keeps them only in its directory.

use super::Database;
use anyhow::Result;
use rusqlite::{OptionalExtension, params};

impl Database {
    /// Returns the value with this name, if there is one.
    ///
    /// # Errors
    /// Fails if the database cannot be read.
    pub fn shared(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let mut find = self.connection.prepare_cached("SELECT value FROM shared WHERE name = ?1")?;
        Ok(find.query_row([name], |row| row.get(0)).optional()?)
    }

    /// Returns the values whose names begin with `prefix`, sorted. Each comes with its name, without the prefix.
    ///
    /// # Errors
    /// Fails if the database cannot be read.
    pub fn shared_below(&self, prefix: &str) -> Result<Vec<(String, Vec<u8>)>> {
        let mut find = self.connection.prepare_cached(
            "SELECT substr(name, length(?1) + 1), value FROM shared WHERE substr(name, 1, length(?1)) = ?1 ORDER BY \
             name",
        )?;
        let rows = find.query_map([prefix], |row| Ok((row.get(0)?, row.get(1)?)))?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Calls `change` with the present value of this name, and stores the value that `change` returns, in one
    /// transaction. `None` removes the value.
    ///
    /// # Errors
    /// Fails if `change` failed, or the database cannot be written; the value then stays as it was.
    pub fn change_shared(
        &mut self,
        name: &str,
        change: impl FnOnce(Option<Vec<u8>>) -> Result<Option<Vec<u8>>>,
    ) -> Result<()> {
        self.write(|transaction| {
            let find = "SELECT value FROM shared WHERE name = ?1";
            let before: Option<Vec<u8>> = transaction.query_row(find, [name], |row| row.get(0)).optional()?;
            match change(before.clone())? {
                after if after == before => {}
                Some(value) => {
                    let put = "INSERT INTO shared (name, value) VALUES (?1, ?2)
                               ON CONFLICT DO UPDATE SET value = excluded.value";
                    transaction.execute(put, params![name, value])?;
                }
                None => {
                    transaction.execute("DELETE FROM shared WHERE name = ?1", [name])?;
                }
            }
            Ok(())
        })
    }
}
