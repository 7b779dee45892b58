//! Records which rows of the replicated tables a transaction changes. Temporary triggers, which exist only on a
//! member's connection, call an SQL function with each row before and after the change. Only the first and the last
//! state of a row count. If they are equal, the row has not changed.

use super::entry::{Block, Kind, Value, push};
use anyhow::{Context as _, Result, bail, ensure};
use rusqlite::Connection;
use rusqlite::functions::{Context, FunctionFlags};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Tables that belong to one member: its audit trails, what it has to announce, and its place in the log.
const LOCAL: &[&str] = &["audit", "audit_trails", "refusals", "rechecks", "unannounced", "untold", "replica"];

/// The columns of an audit entry that a member records with a change.
pub(super) const AUDIT: &str = "trail, time, event, person, device, source, receiver, rule, detail, operator";

/// The changes of a table that change decisions.
enum Decisive {
    /// Any change of the table.
    Any,
    /// A new row, a deleted row, or a change of one of these columns.
    Columns(&'static [&'static str]),
    /// A change of this column. A missing row counts as a row with 0 in this column.
    Flag(&'static str),
}

/// The tables on which decisions depend. The state of sessions and accounts is not among them, because the transaction
/// that records a grant reads it.
const DECISIVE: &[(&str, Decisive)] = &[
    ("policies", Decisive::Any),
    ("preferences", Decisive::Any),
    ("device_tags", Decisive::Any),
    ("shared", Decisive::Any),
    ("verifiers", Decisive::Columns(&["token"])),
    ("accounts", Decisive::Columns(&[])),
    ("identities", Decisive::Columns(&["person", "issuer", "subject", "groups", "tags"])),
    ("scores", Decisive::Flag("low")),
    ("access_requests", Decisive::Flag("allowed")),
];

/// A replicated table.
#[derive(Clone, Debug)]
pub(super) struct Table {
    pub name: String,
    pub columns: Vec<String>,
    /// The indices in `columns` of the columns that form the primary key.
    pub key: Vec<usize>,
}

impl Table {
    pub fn key_columns(&self) -> Vec<String> {
        self.key.iter().map(|at| self.columns[*at].clone()).collect()
    }

    fn key_of(&self, row: &[Value]) -> Vec<Value> {
        self.key.iter().map(|at| row[*at].clone()).collect()
    }

    fn position(&self, column: &str) -> Option<usize> {
        self.columns.iter().position(|name| name == column)
    }
}

/// Returns the replicated tables of a database.
///
/// # Errors
/// Fails if a table has no primary key, or the database cannot be read.
pub(super) fn tables(connection: &Connection) -> Result<Vec<Table>> {
    let mut names = connection.prepare("SELECT name FROM main.sqlite_schema WHERE type = 'table' ORDER BY name")?;
    let names = names.query_map([], |row| row.get(0))?.collect::<Result<Vec<String>, _>>()?;
    let replicated = names.into_iter().filter(|name| !name.starts_with("sqlite_") && !LOCAL.contains(&name.as_str()));
    replicated.map(|name| table(connection, name)).collect()
}

fn table(connection: &Connection, name: String) -> Result<Table> {
    let mut columns = connection.prepare("SELECT name, pk FROM pragma_table_xinfo(?1) ORDER BY cid")?;
    let columns = columns.query_map([&name], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let columns: Vec<(String, u32)> = columns.collect::<Result<_, _>>()?;
    let mut key: Vec<_> = columns.iter().enumerate().filter(|(_, (_, key))| *key > 0).collect();
    key.sort_by_key(|(_, (_, key))| *key);
    let key: Vec<usize> = key.into_iter().map(|(at, _)| at).collect();
    ensure!(!key.is_empty(), "the table {name} has no primary key, so it cannot be replicated");
    Ok(Table { name, columns: columns.into_iter().map(|(name, _)| name).collect(), key })
}

/// The changes of a transaction.
pub(super) struct Captured {
    pub blocks: Vec<Block>,
    pub audit: Vec<Vec<Value>>,
    pub decisive: bool,
}

struct Touched {
    table: usize,
    before: Option<Vec<Value>>,
    after: Option<Vec<Value>>,
}

#[derive(Default)]
struct Recording {
    is_on: bool,
    rows: Vec<Touched>,
    places: HashMap<(usize, Vec<Value>), usize>,
    audit: Vec<Vec<Value>>,
}

/// Records the changes that one connection makes.
pub(super) struct Recorder {
    tables: Arc<[Table]>,
    recording: Arc<Mutex<Recording>>,
}

impl Recorder {
    /// Creates on a connection the triggers and SQL functions that record changes.
    pub fn attach(connection: &Connection) -> Result<Self> {
        let tables: Arc<[Table]> = tables(connection)?.into();
        let recording = Arc::<Mutex<Recording>>::default();
        let flags = FunctionFlags::SQLITE_UTF8;
        let (of, to) = (tables.clone(), recording.clone());
        connection.create_scalar_function("vouchsafe_row", -1, flags, move |context| {
            let mut recording = lock(&to);
            if recording.is_on {
                note(&mut recording, &of, context)?;
            }
            Ok(0)
        })?;
        let to = recording.clone();
        connection.create_scalar_function("vouchsafe_audit", -1, flags, move |context| {
            let mut recording = lock(&to);
            if recording.is_on {
                recording.audit.push(values(context, 0));
            }
            Ok(0)
        })?;
        let mut sql = String::new();
        for (at, Table { name, columns, .. }) in tables.iter().enumerate() {
            let row = |side: &str| {
                let values = columns.iter().map(|column| format!("{side}.\"{column}\"")).collect::<Vec<_>>().join(", ");
                let is_new = u8::from(side == "NEW");
                format!("SELECT vouchsafe_row({at}, {is_new}, {values});")
            };
            let (old, new) = (row("OLD"), row("NEW"));
            for (event, body) in [("INSERT", new.clone()), ("DELETE", old.clone()), ("UPDATE", format!("{old} {new}"))]
            {
                sql += &format!(
                    "CREATE TEMP TRIGGER capture_{name}_{event} AFTER {event} ON main.\"{name}\" BEGIN {body} END;\n"
                );
            }
        }
        let audit = AUDIT.split(", ").map(|column| format!("NEW.{column}")).collect::<Vec<_>>().join(", ");
        sql += &format!(
            "CREATE TEMP TRIGGER capture_audit AFTER INSERT ON main.audit BEGIN SELECT vouchsafe_audit({audit}); END;"
        );
        // REPLACE deletes rows; only with this setting do triggers see it.
        connection.pragma_update(None, "recursive_triggers", true)?;
        connection.execute_batch(&sql)?;
        Ok(Self { tables, recording })
    }

    pub fn tables(&self) -> &[Table] {
        &self.tables
    }

    /// Begins to record changes. The caller must call [`Self::end`] at the end of the transaction, even if the
    /// transaction fails.
    pub fn begin(&self) {
        *lock(&self.recording) = Recording { is_on: true, ..Recording::default() };
    }

    /// Ends the recording. Returns the changes in the order in which the transaction first touched the rows.
    pub fn end(&self) -> Captured {
        let Recording { rows, audit, .. } = std::mem::take(&mut *lock(&self.recording));
        let mut captured = Captured { blocks: Vec::new(), audit, decisive: false };
        for Touched { table, before, after } in rows {
            let table = &self.tables[table];
            captured.decisive |= is_decisive(table, before.as_deref(), after.as_deref());
            let blocks = &mut captured.blocks;
            match (before, after) {
                (None, None) => {}
                (None, Some(row)) => push(blocks, &table.name, Kind::Put, table.columns.clone(), row),
                (Some(row), None) => push(blocks, &table.name, Kind::Delete, table.key_columns(), table.key_of(&row)),
                (Some(before), Some(after)) if before == after => {}
                (Some(before), Some(after)) => {
                    let mut columns = table.key_columns();
                    let mut row = table.key_of(&after);
                    for (at, value) in after.into_iter().enumerate() {
                        if value != before[at] {
                            columns.push(table.columns[at].clone());
                            row.push(value);
                        }
                    }
                    push(blocks, &table.name, Kind::Set, columns, row);
                }
            }
        }
        captured
    }
}

fn lock(recording: &Mutex<Recording>) -> MutexGuard<'_, Recording> {
    recording.lock().unwrap_or_else(PoisonError::into_inner)
}

fn values(context: &Context<'_>, from: usize) -> Vec<Value> {
    (from..context.len()).map(|at| context.get_raw(at).into()).collect()
}

/// Notes a row: the arguments are the number of its table, 1 if this is its new state, and its values.
fn note(recording: &mut Recording, tables: &[Table], context: &Context<'_>) -> rusqlite::Result<()> {
    let (table, is_new): (u32, bool) = (context.get(0)?, context.get(1)?);
    let table = table as usize;
    let row = values(context, 2);
    let key = tables[table].key_of(&row);
    let Recording { rows, places, .. } = recording;
    let at = *places.entry((table, key)).or_insert(rows.len());
    if at == rows.len() {
        let before = if is_new { None } else { Some(row.clone()) };
        rows.push(Touched { table, before, after: None });
    }
    rows[at].after = is_new.then_some(row);
    Ok(())
}

fn is_decisive(table: &Table, before: Option<&[Value]>, after: Option<&[Value]>) -> bool {
    let Some((_, decisive)) = DECISIVE.iter().find(|(name, _)| *name == table.name) else { return false };
    if before == after {
        return false;
    }
    let value = |row: &[Value], column: &str| table.position(column).map(|at| row[at].clone());
    match (decisive, before, after) {
        (Decisive::Columns(columns), Some(before), Some(after)) => {
            columns.iter().any(|column| value(before, column) != value(after, column))
        }
        (Decisive::Flag(column), ..) => {
            let flag = |row: Option<&[Value]>| row.and_then(|row| value(row, column)).unwrap_or(Value::Integer(0));
            flag(before) != flag(after)
        }
        _ => true,
    }
}

/// Returns the table with this name, if it has all of these columns.
pub(super) fn known<'t>(tables: &'t [Table], name: &str, columns: &[String]) -> Result<&'t Table> {
    let table = tables.iter().find(|table| table.name == name);
    let table = table.with_context(|| format!("this version of vouchsafe knows no table {name}"))?;
    if let Some(unknown) = columns.iter().find(|column| table.position(column).is_none()) {
        bail!("this version of vouchsafe knows no column {unknown} in the table {name}");
    }
    Ok(table)
}
