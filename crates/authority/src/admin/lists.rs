//! The commands that import, change and show lists.

use super::act_on;
use super::control::{Command, LOADING};
use crate::lists::{Changed, Imported, Line, ListEntry, ListSummary, MOST_LINE, Store, refuse_in_cluster};
use crate::storage::Operator;
use crate::{Directory, now};
use anyhow::{Context, Result, ensure};
use ipnet::IpNet;
use std::io::{BufRead, Read};

/// Maximum number of lines of a batch of changes.
const BATCH: usize = 10_000;

/// Replaces a list by the entries of `input`, as a whole or not at all. Error messages call the input `named`. Returns
/// what was imported, and the running server's reply or, if no server is running, a sentence that says so. Calls
/// `progress` now and then.
///
/// # Errors
/// Fails if a line is not valid, another command changes lists, the authority is a member of a cluster, a file cannot be
/// written, or the running server could not put the list in force.
pub async fn import(
    directory: &Directory,
    list: &str,
    input: impl BufRead,
    named: &str,
    progress: impl FnMut(&Imported),
) -> Result<(Imported, String)> {
    let (mut store, _lock) = changing(directory)?;
    let imported = store.import(list, input, named, (&Operator::current(), now()), progress)?;
    let done = in_force(directory, &store).await?;
    // The rows of the former list. It is not in force any more, so this may take its time.
    store.purge()?;
    Ok((imported, done))
}

/// Adds and removes entries of a list, all of them or none. `lines` have numbers for error messages, which call the
/// input `named`. Returns what changed, and the running server's reply or, if no server is running, a sentence that says
/// so.
///
/// # Errors
/// Fails for the reasons of [`import`], or if there is no such list.
pub async fn change(
    directory: &Directory,
    list: &str,
    lines: Vec<(u64, Line)>,
    named: &str,
) -> Result<(Changed, String)> {
    let (mut store, _lock) = changing(directory)?;
    let changed = store.change(list, lines, named, (&Operator::current(), now()))?;
    Ok((changed, in_force(directory, &store).await?))
}

/// Reads changes of a list from `input`, and puts each batch in force before it reads the next one. Calls `each` with the
/// effect of each batch.
///
/// # Errors
/// Fails for the reasons of [`change`]. The batches before the one that failed are in force.
pub async fn change_all(
    directory: &Directory,
    list: &str,
    mut input: impl BufRead,
    named: &str,
    mut each: impl FnMut(&Changed, &str),
) -> Result<()> {
    let (mut store, _lock) = changing(directory)?;
    let mut number = 0;
    loop {
        let mut lines = Vec::new();
        let mut is_more = true;
        while is_more && lines.len() < BATCH {
            let mut line = Vec::new();
            let read = input.by_ref().take(MOST_LINE + 1).read_until(b'\n', &mut line);
            let place = || format!("{named}:{}", number + 1);
            let read = read.with_context(place)? as u64;
            ensure!(read <= MOST_LINE, "{}: the line is longer than {MOST_LINE} bytes", place());
            is_more = read > 0;
            if !line.trim_ascii().is_empty() {
                lines.push((number + 1, Line::parse(&line).with_context(place)?));
            }
            number += 1;
        }
        if !lines.is_empty() {
            let changed = store.change(list, lines, named, (&Operator::current(), now()))?;
            each(&changed, &in_force(directory, &store).await?);
        }
        if !is_more {
            return Ok(());
        }
    }
}

/// Returns the lists, by name.
///
/// # Errors
/// Fails if the file of lists cannot be read.
pub fn summaries(directory: &Directory) -> Result<Vec<ListSummary>> {
    Store::open(directory)?.map_or_else(|| Ok(Vec::new()), |store| store.summaries())
}

/// Returns the entries of a list for exactly this address or network.
///
/// # Errors
/// Fails if there is no such list, or the file of lists cannot be read.
pub fn entries(directory: &Directory, list: &str, to: IpNet) -> Result<Vec<ListEntry>> {
    let store = Store::open(directory)?;
    let store = store.with_context(|| {
        format!("there are no lists yet: `vouchsafe authority lists import {} FILE` makes one", list.escape_debug())
    })?;
    store.entries(list, to)
}

/// Opens the file of lists for a change, with the lock.
fn changing(directory: &Directory) -> Result<(Store, std::fs::File)> {
    refuse_in_cluster(directory, "lists can't be changed here")?;
    // Without an authority in the directory, there is nothing to add a list to.
    drop(directory.open_database()?);
    let lock = Store::lock(directory)?;
    Ok((Store::create(directory)?, lock))
}

/// Writes changes to the audit trail, and waits until the server has put them in force.
async fn in_force(directory: &Directory, store: &Store) -> Result<String> {
    store.settle_audit(&mut directory.open_database()?)?;
    loop {
        match act_on(directory, Command::Lists).await? {
            Some(done) if done == LOADING => {}
            Some(done) => return Ok(done),
            None => return Ok("the authority is not running: the change takes effect when it starts".into()),
        }
    }
}
