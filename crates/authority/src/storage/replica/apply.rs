//! Applies the entries of other members, and snapshots, to a member's database.

use super::capture::{self, Table};
use super::entry::{Block, Entry, Kind, Value};
use super::log::Log;
use super::{Position, Unavailable};
use crate::storage::audit::chain;
use anyhow::{Context, Result, bail, ensure};
use rusqlite::{Connection, Transaction, TransactionBehavior, params_from_iter};

/// Applies consecutive entries of `log` in one transaction, except entries that the database contains already. Returns
/// the position in the log that the database has reached.
pub(super) fn entries(
    connection: &mut Connection,
    tables: &[Table],
    entries: &[(u64, Entry)],
    log: &Log,
) -> Result<Position> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // Another process of this host may have applied some of them.
    let mut position = Position::read(&transaction)?;
    transaction.execute("UPDATE replica SET applying = 1", [])?;
    for (number, entry) in entries {
        if *number <= position.applied {
            continue;
        }
        let what = format!("entry {number} of the cluster's log, which member {} wrote,", entry.member);
        log.formats().check(entry.schema, &what)?;
        if *number != position.applied + 1 || entry.before != position.last {
            bail!(Unavailable::now(format!(
                "entry {number} of the cluster's log does not follow entry {} of this member: etcd contains another \
                 history, perhaps from a backup. docs/cluster.md says how to make a new cluster of the member that has \
                 the most entries",
                position.applied
            )));
        }
        changes(&transaction, tables, &entry.blocks)
            .with_context(|| format!("cannot apply entry {number} of the cluster's log"))?;
        if entry.member == log.member() {
            // This member was stopped, or had no answer, after it had appended the entry.
            entry.audit.iter().try_for_each(|row| record_again(&transaction, row))?;
        }
        position.applied = *number;
        position.last.clone_from(&entry.id);
        if entry.decisive {
            position.decisive = *number;
        }
    }
    position.write(&transaction)?;
    transaction.commit()?;
    Ok(position)
}

/// Adds to this member's trails an audit entry that was lost with the transaction. `row` has the columns of
/// [`capture::AUDIT`].
fn record_again(transaction: &Transaction<'_>, row: &[Value]) -> Result<()> {
    let text = |at: usize| match row.get(at) {
        Some(Value::Text(text)) => Some(text.clone()),
        _ => None,
    };
    let (Some(trail), Some(Value::Integer(time)), Some(event)) = (text(0), row.get(1), text(2)) else {
        bail!("an audit entry in the cluster's log is malformed");
    };
    let fields = std::array::from_fn(|at| text(3 + at));
    chain::append_again(transaction, &trail, time.cast_unsigned(), &event, fields)
}

/// Applies changes of rows. A unique index refuses a change if another row still has the value. Such a change is
/// applied again after the other changes, one of which takes the value away from that row.
pub(super) fn changes(transaction: &Transaction<'_>, tables: &[Table], blocks: &[Block]) -> Result<()> {
    let mut waiting = Vec::new();
    for Block { table, kind, columns, rows } in blocks {
        let table = capture::known(tables, table, columns)?;
        let sql = statement(table, *kind, columns)?;
        for row in rows {
            ensure!(row.len() == columns.len(), "a row of the table {} is incomplete", table.name);
            waiting.push((table, *kind, sql.clone(), row));
        }
    }
    while !waiting.is_empty() {
        let before = waiting.len();
        let mut refused = Vec::new();
        let mut last = None;
        for (table, kind, sql, row) in waiting {
            match change(transaction, table, kind, &sql, row) {
                Ok(()) => {}
                Err(error) if is_refused(&error) => {
                    last = Some(error);
                    refused.push((table, kind, sql, row));
                }
                Err(error) => return Err(error),
            }
        }
        if refused.len() == before {
            bail!("the rows contradict those of this member: {:#}", last.context("no change was tried")?);
        }
        waiting = refused;
    }
    Ok(())
}

fn change(transaction: &Transaction<'_>, table: &Table, kind: Kind, sql: &str, row: &[Value]) -> Result<()> {
    let changed = transaction.prepare_cached(sql)?.execute(params_from_iter(row))?;
    // If a row is missing, this member's copy differs from those of the other members.
    if kind != Kind::Put && changed != 1 {
        bail!(Unavailable::now(format!(
            "this member lacks a row of the table {} that the others have: `vouchsafe authority cluster join` copies \
             their state",
            table.name
        )));
    }
    Ok(())
}

fn is_refused(error: &anyhow::Error) -> bool {
    let code = error.downcast_ref().and_then(rusqlite::Error::sqlite_error_code);
    code == Some(rusqlite::ErrorCode::ConstraintViolation)
}

fn quoted(columns: &[String]) -> String {
    columns.iter().map(|column| format!("\"{column}\"")).collect::<Vec<_>>().join(", ")
}

/// Returns the statement for a change. The values are those of `columns`, in their order.
fn statement(table: &Table, kind: Kind, columns: &[String]) -> Result<String> {
    let name = &table.name;
    let key = table.key_columns();
    let numbered = |at: usize| format!("?{}", at + 1);
    let keyed = || {
        let parts = key.iter().enumerate().map(|(at, column)| format!("\"{column}\" = {}", numbered(at)));
        parts.collect::<Vec<_>>().join(" AND ")
    };
    Ok(match kind {
        Kind::Put => {
            let values = (0..columns.len()).map(numbered).collect::<Vec<_>>().join(", ");
            format!("INSERT INTO main.\"{name}\" ({}) VALUES ({values}) {}", quoted(columns), on_conflict(table))
        }
        Kind::Set => {
            ensure!(columns.starts_with(&key) && columns.len() > key.len(), "a change of {name} lacks its key");
            let parts = columns.iter().enumerate().skip(key.len());
            let parts = parts.map(|(at, column)| format!("\"{column}\" = {}", numbered(at)));
            format!("UPDATE main.\"{name}\" SET {} WHERE {}", parts.collect::<Vec<_>>().join(", "), keyed())
        }
        Kind::Delete => {
            ensure!(*columns == key, "the entry deletes a row of the table {name}, but lacks the row's key");
            format!("DELETE FROM main.\"{name}\" WHERE {}", keyed())
        }
    })
}

/// Returns the clause with which a new row replaces the row with the same key. If the two rows are equal, the clause
/// changes nothing.
fn on_conflict(table: &Table) -> String {
    let key = table.key_columns();
    let others: Vec<_> = table.columns.iter().filter(|column| !key.contains(column)).collect();
    if others.is_empty() {
        return format!("ON CONFLICT ({}) DO NOTHING", quoted(&key));
    }
    let set = others.iter().map(|column| format!("\"{column}\" = excluded.\"{column}\"")).collect::<Vec<_>>();
    let differs = others.iter().map(|column| format!("\"{column}\" IS NOT excluded.\"{column}\"")).collect::<Vec<_>>();
    format!("ON CONFLICT ({}) DO UPDATE SET {} WHERE {}", quoted(&key), set.join(", "), differs.join(" OR "))
}

/// A snapshot that replaces the replicated tables of a database. Nothing changes before [`Self::finish`].
pub(super) struct Replacement<'c> {
    transaction: Transaction<'c>,
    tables: Vec<Table>,
}

impl<'c> Replacement<'c> {
    pub fn begin(connection: &'c mut Connection, tables: Vec<Table>) -> Result<Self> {
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        for Table { name, .. } in &tables {
            // An ordinary table, because a temporary one would be in a file elsewhere.
            transaction
                .execute_batch(&format!("CREATE TABLE \"arriving_{name}\" AS SELECT * FROM main.\"{name}\" LIMIT 0"))?;
        }
        Ok(Self { transaction, tables })
    }

    /// Adds rows of the snapshot.
    pub fn add(&self, blocks: &[Block]) -> Result<()> {
        for Block { table, columns, rows, .. } in blocks {
            let table = capture::known(&self.tables, table, columns)?;
            let values = (1..=columns.len()).map(|at| format!("?{at}")).collect::<Vec<_>>().join(", ");
            let sql = format!("INSERT INTO \"arriving_{}\" ({}) VALUES ({values})", table.name, quoted(columns));
            let mut add = self.transaction.prepare_cached(&sql)?;
            rows.iter().try_for_each(|row| add.execute(params_from_iter(row)).map(drop))?;
        }
        Ok(())
    }

    /// Replaces the content of the replicated tables by the snapshot. Does not write rows that have not changed, so
    /// that nothing is announced for them again.
    pub fn finish(self, position: &Position, cluster: &str, member: &str) -> Result<()> {
        let Self { transaction, tables } = self;
        transaction.execute("DELETE FROM replica", [])?;
        transaction.execute(
            "INSERT INTO replica (one, cluster, member, applied, last, decisive, applying) VALUES (1, ?1, ?2, 0, ?3, \
             0, 1)",
            rusqlite::params![cluster, member, position.last],
        )?;
        for table in &tables {
            replace(&transaction, table).with_context(|| format!("cannot replace the table {}", table.name))?;
        }
        position.write(&transaction)?;
        transaction.commit()?;
        Ok(())
    }
}

fn replace(transaction: &Transaction<'_>, table: &Table) -> Result<()> {
    let (name, key) = (&table.name, quoted(&table.key_columns()));
    let (columns, conflict) = (quoted(&table.columns), on_conflict(table));
    // `WHERE true` lets SQLite tell ON CONFLICT from a join.
    let put = format!(
        "INSERT INTO main.\"{name}\" ({columns}) SELECT {columns} FROM \"arriving_{name}\" WHERE true {conflict}"
    );
    transaction.execute_batch(&format!(
        "CREATE INDEX \"arriving_{name}_key\" ON \"arriving_{name}\" ({key});
         DELETE FROM main.\"{name}\" WHERE ({key}) NOT IN (SELECT {key} FROM \"arriving_{name}\");"
    ))?;
    match transaction.execute(&put, []).map_err(anyhow::Error::from) {
        Err(error) if is_refused(&error) => {
            // A unique value moves from one row to another.
            transaction.execute(&format!("DELETE FROM main.\"{name}\""), [])?;
            transaction.execute(&put, [])?;
        }
        done => drop(done?),
    }
    transaction.execute_batch(&format!("DROP TABLE \"arriving_{name}\""))?;
    Ok(())
}
