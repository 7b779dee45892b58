//! Files and settings that all members of a cluster share: the master keys, `networks.toml`, the list of members. An
//! authority alone keeps them in its directory only.

use super::Database;
use anyhow::Result;
use rusqlite::{OptionalExtension, params};

impl Database {
    /// Returns the value with this name, if there is one.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn shared(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let mut find = self.connection.prepare_cached("SELECT value FROM shared WHERE name = ?1")?;
        Ok(find.query_row([name], |row| row.get(0)).optional()?)
    }

    /// Returns the values whose names begin with `prefix`, with the rest of their names, in the order of these.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn shared_below(&self, prefix: &str) -> Result<Vec<(String, Vec<u8>)>> {
        let mut find = self.connection.prepare_cached(
            "SELECT substr(name, length(?1) + 1), value FROM shared WHERE substr(name, 1, length(?1)) = ?1 ORDER BY name",
        )?;
        let rows = find.query_map([prefix], |row| Ok((row.get(0)?, row.get(1)?)))?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Lets `change` replace the value with this name in one transaction. `change` gets the present value, and returns
    /// the new one; `None` removes it.
    ///
    /// # Errors
    /// `change` failed, or the database cannot be written; the value then stays as it was.
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
