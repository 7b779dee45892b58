//! Changes of the file of lists: a list is replaced by the entries of a file, or single entries are added and removed.

use super::entry::{Group, Line, MOST_LINE, Parsed, Terms, key};
use super::store::{Store, no_list};
use crate::storage::Operator;
use anyhow::{Context, Result, bail, ensure};
use engine::policy::lists::{MOST_ENDS, MOST_GROUPS, TooManyEnds, sender};
use engine::policy::name_is_valid;
use ipnet::IpNet;
use rusqlite::{OptionalExtension, params};
use sha2::{Digest, Sha256};
use std::collections::{HashMap, HashSet};
use std::io::{BufRead, Read};

/// Number of entries that an import writes in one transaction, and the number of entries that one batch of changes has
/// at most.
const PIECE: u64 = 100_000;
/// Maximum number of changed entries that an entry of the audit trail lists.
const LISTED: usize = 8;

/// Counts of the input that an import has read so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Imported {
    /// Number of lines.
    pub lines: u64,
    /// Number of entries.
    pub entries: u64,
    /// Number of addresses and networks. An address or network that occurs at two places of the input counts twice.
    pub receivers: u64,
}

/// Counts of the entries that a batch of changes affected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changed {
    /// Number of entries that were added or replaced.
    pub put: u64,
    /// Number of removals, including removals of entries that did not exist.
    pub removed: u64,
}

/// The rows of an import.
struct Rows {
    generation: i64,
    terms: Terms,
    /// The address or network of the last line, with its entries so far, and their senders.
    current: Option<(IpNet, Vec<Group>, HashSet<u32>)>,
    names: HashMap<String, u32>,
    /// The different ends of the entries.
    ends: HashSet<u32>,
    imported: Imported,
    hash: Sha256,
}

impl Store {
    /// Replaces a list by the entries of `input`, as a whole or not at all. `named` is the name of the input in error
    /// messages. Calls `progress` now and then. The caller must hold the [lock](Self::lock).
    ///
    /// # Errors
    /// Fails if the name or a line is not valid, an address has two entries about one sender, the entries end at too
    /// many different times, or the file cannot be written.
    pub fn import(
        &mut self,
        list: &str,
        mut input: impl BufRead,
        named: &str,
        (by, now): (&Operator, u64),
        mut progress: impl FnMut(&Imported),
    ) -> Result<Imported> {
        ensure!(name_is_valid(list), "`{}` is not a valid name of a list", list.escape_debug());
        // Rows that an interrupted import left behind.
        self.purge()?;
        self.sweep_groups()?;
        let mut rows = self.in_transaction(|store| {
            store.connection.execute("UPDATE counters SET revision = revision + 1, generation = generation + 1", [])?;
            let (revision, generation) =
                store.connection.query_row("SELECT revision, generation FROM counters", [], |row| {
                    Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?))
                })?;
            let author = store.text_number(&operator(by)?)?;
            let revision = revision.cast_unsigned();
            let terms = Terms { revision, deny: false, priority: 0, hours: 0, note: 0, author, time: now };
            let (names, ends, imported) = (HashMap::new(), HashSet::new(), Imported::default());
            Ok(Rows { generation, terms, current: None, names, ends, imported, hash: Sha256::new() })
        })?;
        let mut is_more = true;
        while is_more {
            let piece = self.in_transaction(|store| store.import_piece(&mut input, named, &mut rows));
            match piece {
                Ok(more) => is_more = more,
                Err(error) => {
                    // If this fails, the next import deletes the rows.
                    let _ = self.purge();
                    return Err(error);
                }
            }
            progress(&rows.imported);
        }
        let Rows { imported, hash, generation, ends, .. } = rows;
        let (entries, receivers) = (imported.entries, imported.receivers);
        let hash = hex::encode(hash.finalize());
        let detail =
            format!("list {list} replaced: {entries} entries for {receivers} addresses from {named}, SHA-256 {hash}");
        self.in_transaction(|store| {
            if let Some(before) = store.generation(list)? {
                store.connection.execute("DELETE FROM changes WHERE generation = ?1", [before])?;
            }
            store.connection.execute(
                "INSERT INTO lists (list, generation) VALUES (?1, ?2)
                 ON CONFLICT (list) DO UPDATE SET generation = excluded.generation",
                params![list, generation],
            )?;
            ends.iter().try_for_each(|hours| store.note_end(generation, *hours))?;
            store.connection.execute("DELETE FROM ends WHERE generation NOT IN (SELECT generation FROM lists)", [])?;
            store.note(by, now, &detail)
        })?;
        Ok(imported)
    }

    /// Imports some lines. Returns whether there are more.
    fn import_piece(&self, input: &mut impl BufRead, named: &str, rows: &mut Rows) -> Result<bool> {
        let (mut line, until) = (Vec::new(), rows.imported.entries + PIECE);
        while rows.imported.entries < until {
            let number = rows.imported.lines + 1;
            if !read_line(input, &mut line).with_context(|| format!("{named}:{number}"))? {
                self.write_current(rows)?;
                return Ok(false);
            }
            rows.hash.update(&line);
            rows.imported.lines = number;
            if !line.trim_ascii().is_empty() {
                let entries = Line::parse(&line).and_then(Line::parsed).and_then(|line| self.import_line(line, rows));
                entries.with_context(|| format!("{named}:{number}"))?;
            }
        }
        Ok(true)
    }

    fn import_line(&self, line: Parsed, rows: &mut Rows) -> Result<()> {
        ensure!(!line.remove, "an import replaces the list, and can't remove entries: use `lists change`");
        if rows.current.as_ref().is_none_or(|(to, ..)| *to != line.to) {
            self.write_current(rows)?;
            // If the lines of an address do not follow each other, the earlier ones are in the file.
            let groups = self.groups(rows.generation, &key(line.to), i64::MAX)?;
            let senders = groups.iter().flat_map(|group| &group.senders).copied().collect();
            rows.current = Some((line.to, groups, senders));
            rows.imported.receivers += 1;
        }
        if line.hours > 0 && rows.ends.insert(line.hours) && rows.ends.len() > MOST_ENDS {
            bail!(TooManyEnds);
        }
        let note = if line.note.is_empty() { 0 } else { self.text_number(&line.note)? };
        let terms = Terms { deny: line.deny, priority: line.priority, hours: line.hours, note, ..rows.terms };
        let Rows { current: Some((to, groups, senders)), names, imported, .. } = rows else { return Ok(()) };
        let place = groups.iter().position(|group| group.terms == terms).unwrap_or_else(|| {
            groups.push(Group { terms, senders: Vec::new() });
            groups.len() - 1
        });
        for word in line.who {
            let number = match names.get(&word) {
                Some(number) => *number,
                None => {
                    let number = self.name_number(&word)?;
                    names.insert(word.clone(), number);
                    number
                }
            };
            ensure!(senders.insert(number), "{to} has two entries about {word}");
            groups[place].senders.push(number);
            imported.entries += 1;
        }
        Ok(())
    }

    fn write_current(&self, rows: &mut Rows) -> Result<()> {
        match rows.current.take() {
            Some((to, groups, _)) => self.write_groups(rows.generation, &key(to), &groups),
            None => Ok(()),
        }
    }

    /// Adds, replaces and removes entries of a list, all of them or none. The caller must hold the [lock](Self::lock).
    /// `named` is the name of the input in error messages, which also contain the number of the line.
    ///
    /// # Errors
    /// Fails if there is no such list, a line is not valid, there are too many entries or none, the entries of the list
    /// end at too many different times, or the file cannot be written.
    pub fn change(
        &mut self,
        list: &str,
        lines: impl IntoIterator<Item = (u64, Line)>,
        named: &str,
        (by, now): (&Operator, u64),
    ) -> Result<Changed> {
        self.in_transaction(|store| {
            let generation = store.generation(list)?.with_context(|| no_list(list))?;
            let author = store.text_number(&operator(by)?)?;
            let mut revision = store.revision()?;
            let (mut changed, mut listed) = (Changed::default(), Vec::new());
            for (number, line) in lines {
                let line = line.parsed().with_context(|| format!("{named}:{number}"))?;
                let note = if line.note.is_empty() { 0 } else { store.text_number(&line.note)? };
                if line.hours > 0 && !line.remove {
                    store.note_end(generation, line.hours)?;
                }
                for word in &line.who {
                    revision += 1;
                    let Parsed { deny, priority, hours, remove, .. } = line;
                    let revision = revision.cast_unsigned();
                    let terms = Terms { revision, deny, priority, hours, note, author, time: now };
                    let sender = store.name_number(word).with_context(|| format!("{named}:{number}"))?;
                    let mut insert = store.connection.prepare_cached(
                        "INSERT INTO changes (revision, generation, receiver, sender, terms) VALUES (?1, ?2, ?3, ?4, ?5)",
                    )?;
                    let bytes = (!remove).then(|| terms.encode());
                    let bytes = bytes.as_ref().map(|bytes| &bytes[..]);
                    insert.execute(params![revision.cast_signed(), generation, key(line.to), sender, bytes])?;
                    *(if remove { &mut changed.removed } else { &mut changed.put }) += 1;
                    if listed.len() < LISTED {
                        listed.push(in_words(&line, word));
                    }
                }
                ensure!(
                    changed.put + changed.removed <= PIECE,
                    "{named}:{number}: with this line, a batch changes more than {PIECE} entries: name fewer senders \
                     per line, or replace the whole list with `vouchsafe authority lists import`"
                );
            }
            let Changed { put, removed } = changed;
            ensure!(put + removed > 0, "nothing to change");
            let ends: i64 =
                store.connection.query_row("SELECT count(*) FROM ends WHERE generation = ?1", [generation], |row| {
                    row.get(0)
                })?;
            ensure!(usize::try_from(ends).is_ok_and(|ends| ends <= MOST_ENDS), TooManyEnds);
            store.connection.execute("UPDATE counters SET revision = ?1", [revision])?;
            let more = if put + removed > LISTED as u64 { ", …" } else { "" };
            let detail =
                format!("list {list}: entries added {put}, removed {removed}: {}{more}", listed.join(", "));
            store.note(by, now, &detail)?;
            Ok(changed)
        })
    }

    /// Records that the list of this generation has, or had, an entry that ends at this hour. The server can't follow a
    /// list with too many ends.
    fn note_end(&self, generation: i64, hours: u32) -> Result<()> {
        let mut insert = self.connection.prepare_cached("INSERT OR IGNORE INTO ends VALUES (?1, ?2)")?;
        insert.execute(params![generation, hours])?;
        Ok(())
    }

    /// Notes a change for the audit trail.
    fn note(&self, by: &Operator, now: u64, detail: &str) -> Result<()> {
        self.connection.execute(
            "INSERT INTO unaudited (time, operator, detail) VALUES (?1, ?2, ?3)",
            params![now.cast_signed(), serde_json::to_string(by)?, detail],
        )?;
        Ok(())
    }

    /// Returns the number of a sender, which gets one if it has none.
    fn name_number(&self, word: &str) -> Result<u32> {
        if word == "everyone" {
            return Ok(0);
        }
        let mut find = self.connection.prepare_cached("SELECT number FROM names WHERE name = ?1")?;
        if let Some(number) = find.query_row([word], |row| row.get(0)).optional()? {
            return Ok(number);
        }
        if word.starts_with("group:") {
            let groups = "SELECT count(*) FROM names WHERE name >= 'group:' AND name < 'group;'";
            let groups: i64 = self.connection.query_row(groups, [], |row| row.get(0))?;
            if groups >= MOST_GROUPS as i64 {
                bail!("`who`: lists can name at most {MOST_GROUPS} groups in all: name persons instead of {word}");
            }
        }
        self.connection.prepare_cached("INSERT INTO names (name) VALUES (?1)")?.execute([word])?;
        let number = u32::try_from(self.connection.last_insert_rowid()).ok().filter(|number| sender(*number).is_some());
        number.context("lists can name at most 2 147 483 647 different senders in all")
    }

    /// Returns the number of a note or author, which gets one if it has none.
    fn text_number(&self, text: &str) -> Result<u32> {
        let mut find = self.connection.prepare_cached("SELECT number FROM texts WHERE text = ?1")?;
        if let Some(number) = find.query_row([text], |row| row.get(0)).optional()? {
            return Ok(number);
        }
        self.connection.prepare_cached("INSERT INTO texts (text) VALUES (?1)")?.execute([text])?;
        Ok(u32::try_from(self.connection.last_insert_rowid())?)
    }
}

/// Returns the change of one entry in words.
fn in_words(line: &Parsed, word: &str) -> String {
    let Parsed { to, deny, remove, note, hours, .. } = line;
    let action = match (remove, deny) {
        (true, _) => "removed",
        (false, true) => "deny",
        (false, false) => "allow",
    };
    let until =
        if *hours > 0 { format!(" until {}", shell::table::utc(u64::from(*hours) * 3600)) } else { String::new() };
    let note = if note.is_empty() { String::new() } else { format!(" ({note})") };
    format!("{action} {word} to {to}{until}{note}")
}

/// Returns the name of an operator.
fn operator(by: &Operator) -> Result<String> {
    Ok(serde_json::from_value(serde_json::to_value(by)?)?)
}

/// Reads a line. Returns false at the end of the input.
fn read_line(input: &mut impl BufRead, line: &mut Vec<u8>) -> Result<bool> {
    line.clear();
    let read = input.by_ref().take(MOST_LINE + 1).read_until(b'\n', line)?;
    ensure!(read as u64 <= MOST_LINE, "the line is longer than {MOST_LINE} bytes: use several lines for an address");
    Ok(read > 0)
}
