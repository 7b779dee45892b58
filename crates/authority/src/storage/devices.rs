//! Devices and their tags. A device is identified by its person and the name that the person gives the machine. The
//! tags of a service account belong to the account itself, and apply on any machine.

use super::{AuditEvent, Database, LOW_SCORE, Operator};
use anyhow::{Result, bail};
use rusqlite::{Connection, Transaction, params};
use serde::Serialize;

/// Maximum number of devices kept per person. The limit exists because clients choose device names freely.
const MOST_PER_PERSON: i64 = 256;

/// An entry of the list of devices.
#[derive(Debug, Serialize)]
pub struct DeviceEntry {
    /// The person whose device it is.
    pub person: String,
    /// The name that the person gave the device.
    pub device: String,
    /// Tags of the device.
    pub tags: Vec<String>,
    /// Time of the last login from the device, in Unix seconds.
    pub last_login: u64,
}

impl Database {
    /// Replaces the tags of a device.
    ///
    /// # Errors
    /// Fails if the person has never logged in from this device, or the database cannot be written.
    pub fn tag_device(&mut self, person: &str, device: &str, tags: &[String], by: &Operator, now: u64) -> Result<()> {
        self.write(|transaction| {
            if !is_known(transaction, person, device)? {
                bail!("no device {person}/{device} has logged in: `vouchsafe authority device list` lists the devices");
            }
            transaction.execute("DELETE FROM device_tags WHERE person = ?1 AND device = ?2", [person, device])?;
            for tag in tags {
                let add = "INSERT OR IGNORE INTO device_tags (person, device, tag) VALUES (?1, ?2, ?3)";
                transaction.execute(add, params![person, device, tag])?;
            }
            let detail = if tags.is_empty() { "no tags".to_owned() } else { tags.join(", ") };
            AuditEvent::new("device_tagged").person(person).device(device).detail(detail).by(by).write(transaction, now)
        })
    }

    /// Returns all devices, or those of `person`, sorted by person and device name.
    ///
    /// # Errors
    /// Fails if the database cannot be read.
    pub fn devices(&self, person: Option<&str>) -> Result<Vec<DeviceEntry>> {
        let mut statement = self.connection.prepare_cached(&listing(person.is_some()))?;
        let rows = statement.query_and_then([person], |row| {
            let (person, device): (String, String) = (row.get(0)?, row.get(1)?);
            let tags = tags_of(&self.connection, &person, &device)?;
            Ok(DeviceEntry { person, device, tags, last_login: row.get::<_, i64>(2)?.cast_unsigned() })
        })?;
        rows.collect()
    }
}

/// Returns the statement that lists devices. There are two such statements, because a single statement with `OR` would
/// scan all devices to find those of one person.
fn listing(of_one: bool) -> String {
    let whose = if of_one { "person = ?1" } else { "?1 IS NULL" };
    format!("SELECT person, device, last_login FROM devices WHERE {whose} ORDER BY person, device")
}

/// Reports whether a person has ever logged in from this device.
pub(super) fn is_known(connection: &Connection, person: &str, device: &str) -> Result<bool> {
    let mut statement = connection.prepare_cached("SELECT 1 FROM devices WHERE person = ?1 AND device = ?2")?;
    Ok(statement.exists([person, device])?)
}

/// Returns the tags of a device, sorted. Includes the tags of the person if it is a service account, and the tag of a
/// low score.
pub(super) fn tags_of(connection: &Connection, person: &str, device: &str) -> Result<Vec<String>> {
    let mut statement = connection.prepare_cached(
        "SELECT tag FROM device_tags WHERE person = ?1 AND device = ?2
             UNION SELECT value FROM identities, json_each(identities.tags) WHERE person = ?1
             UNION SELECT ?3 FROM scores WHERE person = ?1 AND low = 1 ORDER BY 1",
    )?;
    let rows = statement.query_map([person, device, LOW_SCORE], |row| row.get(0))?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Returns the tags that any device of a person has, sorted. Includes the tags of the person if it is a service
/// account, and the tag of a low score.
pub(super) fn tags_of_person(connection: &Connection, person: &str) -> Result<Vec<String>> {
    let mut statement = connection.prepare_cached(
        "SELECT tag FROM device_tags WHERE person = ?1
             UNION SELECT value FROM identities, json_each(identities.tags) WHERE person = ?1
             UNION SELECT ?2 FROM scores WHERE person = ?1 AND low = 1 ORDER BY 1",
    )?;
    let rows = statement.query_map([person, LOW_SCORE], |row| row.get(0))?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Deletes a person's least recently used devices beyond the limit, except those with a live session or with tags.
pub(super) fn forget_surplus(transaction: &Transaction<'_>, person: &str, now: u64) -> Result<()> {
    let mut surplus = transaction.prepare_cached(
        "DELETE FROM devices WHERE person = ?1 AND device IN (
            SELECT device FROM devices WHERE person = ?1 ORDER BY last_login DESC, rowid DESC LIMIT -1 OFFSET ?2)
         AND NOT EXISTS (SELECT 1 FROM device_tags AS tags WHERE tags.person = ?1 AND tags.device = devices.device)
         AND NOT EXISTS (SELECT 1 FROM sessions
            WHERE sessions.person = ?1 AND sessions.device = devices.device AND expires > ?3)",
    )?;
    surplus.execute(params![person, MOST_PER_PERSON, now.cast_signed()])?;
    Ok(())
}

/// Deletes a person's devices with their tags.
pub(super) fn forget(transaction: &Transaction<'_>, person: &str) -> Result<()> {
    transaction.execute("DELETE FROM device_tags WHERE person = ?1", [person])?;
    transaction.execute("DELETE FROM devices WHERE person = ?1", [person])?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_persons_devices_are_found_without_going_through_all() {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch(super::super::SCHEMA).unwrap();
        let plan = |of_one| -> String {
            let explain = format!("EXPLAIN QUERY PLAN {}", listing(of_one));
            connection.query_row(&explain, [Some("bob")], |row| row.get("detail")).unwrap()
        };
        assert!(plan(true).starts_with("SEARCH devices") && plan(true).contains("(person=?)"), "{}", plan(true));
        assert!(plan(false).starts_with("SCAN devices"), "{}", plan(false));
    }
}
