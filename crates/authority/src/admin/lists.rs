//! The commands that import, change and show lists.

use super::act_on;
use super::control::{Command, LOADING};
use crate::lists::{Changed, Imported, Line, ListEntry, ListSummary, MOST_LINE, Store, refuse_in_cluster};
use crate::storage::Operator;
use crate::{Directory, now};
use anyhow::{Context, Result, ensure};
use ipnet::IpNet;
use nix::sys::statvfs::fstatvfs;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, Write};

/// Maximum number of lines of a batch of changes.
const BATCH: usize = 10_000;
/// Size of the pieces in which [`spool`] copies an input, in bytes.
const COPIED: usize = 1 << 20;

/// Copies an input that others write, such as a pipe, to a temporary file in the authority's directory. Returns the
/// copy, ready to be read, when the input has ended. An [`import`] needs the copy because it holds a lock, and must not
/// wait for the writer. The copy takes at most half of the free disk space.
///
/// # Errors
/// Fails if the directory has no authority, the authority is a member of a cluster, the input cannot be read, or the
/// copy is too long or cannot be written.
pub fn spool(directory: &Directory, input: impl Read, named: &str) -> Result<BufReader<File>> {
    may_change(directory)?;
    let file = tempfile::tempfile_in(directory.path())
        .with_context(|| format!("cannot make a temporary file in {}", directory.path().display()))?;
    let room = fstatvfs(&file)?;
    let most = room.blocks_available().saturating_mul(room.fragment_size()) / 2;
    spool_to(file, most, input, named)
}

fn spool_to(mut file: File, most: u64, mut input: impl Read, named: &str) -> Result<BufReader<File>> {
    let (mut room, mut copied) = (vec![0; COPIED], 0);
    loop {
        let read = match input.read(&mut room) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            read => read.with_context(|| format!("cannot read {named}"))?,
        };
        if read == 0 {
            break;
        }
        copied += read as u64;
        ensure!(
            copied <= most,
            "{named} is longer than {most} bytes, half of the free disk: write the entries to a file on another disk, \
             and name that file"
        );
        file.write_all(&room[..read]).with_context(|| format!("cannot write a copy of {named}"))?;
    }
    file.rewind()?;
    Ok(BufReader::with_capacity(COPIED, file))
}

/// Replaces a list by the entries of `input`, as a whole or not at all. `named` is the name of the input in error
/// messages. Returns what was imported, and the running server's reply or, if no server is running, a sentence that
/// says so. Calls `progress` now and then. Other commands can't change lists meanwhile, so a caller that has to wait
/// for the input [spools](spool) it first.
///
/// # Errors
/// Fails if a line is not valid, another command changes lists, the authority is a member of a cluster, a file cannot
/// be written, or the running server could not put the list in force.
pub async fn import(
    directory: &Directory,
    list: &str,
    input: impl BufRead,
    named: &str,
    progress: impl FnMut(&Imported),
) -> Result<(Imported, String)> {
    let (mut store, _lock) = changing(directory).await?;
    let imported = store.import(list, input, named, (&Operator::current(), now()), progress)?;
    let done = in_force(directory, &store).await?;
    // The rows of the former list. It is not in force any more, so this may take its time.
    store.purge()?;
    store.sweep()?;
    Ok((imported, done))
}

/// Adds and removes entries of a list, all of them or none. `named` is the name of the input in error messages, which
/// also contain the number of the line. Returns what changed, and the running server's reply or, if no server is
/// running, a sentence that says so.
///
/// # Errors
/// Fails for the reasons of [`import`], or if there is no such list.
pub async fn change(
    directory: &Directory,
    list: &str,
    lines: Vec<(u64, Line)>,
    named: &str,
) -> Result<(Changed, String)> {
    let (mut store, _lock) = changing(directory).await?;
    let changed = store.change(list, lines, named, (&Operator::current(), now()))?;
    let done = in_force(directory, &store).await?;
    store.sweep()?;
    Ok((changed, done))
}

/// Reads changes of a list from `input`, and puts each batch in force before it reads the next one. Calls `each` with
/// the effect of each batch. Other commands can change lists while this one reads.
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
    may_change(directory)?;
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
            let (changed, done) = change(directory, list, lines, named).await?;
            each(&changed, &done);
        }
        if !is_more {
            return Ok(());
        }
    }
}

/// Returns the lists, sorted by name.
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

/// Opens the file of lists for a change, with the lock. Waits some seconds for a command that holds the lock.
async fn changing(directory: &Directory) -> Result<(Store, File)> {
    may_change(directory)?;
    let lock = Store::lock_soon(directory).await?;
    Ok((Store::create(directory)?, lock))
}

/// Fails if there can be no lists in this directory.
fn may_change(directory: &Directory) -> Result<()> {
    refuse_in_cluster(directory, "lists can't be changed here")?;
    // Without an authority in the directory, there is nothing to add a list to.
    drop(directory.open_database()?);
    Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_of_an_input_is_whole_or_refused() {
        let long: Vec<u8> = (0..3 * COPIED + 7).map(|at| at as u8).collect();
        let copy = |most| spool_to(tempfile::tempfile().unwrap(), most, long.as_slice(), "standard input");
        let mut read = Vec::new();
        copy(long.len() as u64).unwrap().read_to_end(&mut read).unwrap();
        assert!(read == long);
        let fault = copy(long.len() as u64 - 1).unwrap_err().to_string();
        assert!(fault.starts_with("standard input is longer than 3145734 bytes"), "{fault}");
    }
}
