//! Compares the members' databases.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use rusqlite::types::Value;
use rusqlite::{Connection, OpenFlags};

/// Tables that each member has for itself: the audit trails, and what it still has to tell its own listeners.
const OWN: [&str; 5] = ["refusals", "rechecks", "unannounced", "untold", "replica"];

/// The rows of each replicated table, as text and in order.
pub type Tables = BTreeMap<String, Vec<String>>;

/// Reads the replicated tables of a database, without changing it.
pub fn tables(path: &Path) -> Result<Tables> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).with_context(|| path.display().to_string())?;
    connection.busy_timeout(std::time::Duration::from_secs(5))?;
    let unchanged = connection.unchecked_transaction()?;
    let mut names = unchanged.prepare("SELECT name FROM sqlite_schema WHERE type = 'table'")?;
    let names = names.query_map([], |row| row.get::<_, String>(0))?.collect::<Result<Vec<_>, _>>()?;
    let is_shared =
        |name: &String| !(name.starts_with("sqlite_") || name.starts_with("audit") || OWN.contains(&name.as_str()));
    let mut tables = Tables::new();
    for name in names.into_iter().filter(is_shared) {
        let mut all = unchanged.prepare(&format!("SELECT * FROM \"{name}\""))?;
        let columns: Vec<_> = all.column_names().map(str::to_owned).collect();
        let rows = all.query_map([], |row| {
            let cells = columns.iter().enumerate().map(|(at, column)| Ok(format!("{column}={}", text(&row.get(at)?))));
            Ok(cells.collect::<rusqlite::Result<Vec<_>>>()?.join(" "))
        })?;
        let mut rows = rows.collect::<Result<Vec<_>, _>>()?;
        rows.sort();
        tables.insert(name, rows);
    }
    Ok(tables)
}

fn text(value: &Value) -> String {
    match value {
        Value::Blob(bytes) => hex::encode(bytes),
        other => format!("{other:?}"),
    }
}

/// Checks that two databases have the same rows in every replicated table.
pub fn are_equal(one: &Tables, other: &Tables) -> Result<()> {
    let (names, others): (Vec<_>, Vec<_>) = (one.keys().collect(), other.keys().collect());
    ensure!(names == others, "the tables are {names:?} and {others:?}");
    for (name, rows) in one {
        let others = &other[name];
        if rows != others {
            let differing = rows.iter().filter(|row| others.binary_search(row).is_err()).take(3).collect::<Vec<_>>();
            let missing = others.iter().filter(|row| rows.binary_search(row).is_err()).take(3).collect::<Vec<_>>();
            bail!(
                "{name} has {} and {} rows; only in the first: {differing:#?}; only in the other: {missing:#?}",
                rows.len(),
                others.len()
            );
        }
    }
    Ok(())
}
