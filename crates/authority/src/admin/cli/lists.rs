//! `vouchsafe authority lists …`: imports, changes and shows lists.

use super::{At, List, show};
use crate::admin::lists;
use crate::lists::{Imported, Line, ListEntry};
use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use ipnet::IpNet;
use shell::println;
use shell::table::{count, utc};
use std::fs::File;
use std::io::BufReader;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Time between two reports of the progress of an import.
const PROGRESS: Duration = Duration::from_secs(5);

/// Import, change and show lists: entries about who may reach which addresses
#[derive(Subcommand, Debug)]
pub enum ListsCommand {
    /// Replace a list by the entries of a file, as a whole or not at all. Established flows that no entry allows any
    /// more are cut
    Import {
        /// The authority's directory
        #[command(flatten)]
        at: At,
        /// Name of the list
        list: String,
        /// A file with a JSON object on each line: {"to": "203.0.113.7", "who": ["person:alice"]}; `-` is standard
        /// input
        file: PathBuf,
    },
    /// Add the entries of a file to a list, or remove them from the list, in batches of 10000 lines. Each batch is in
    /// force before the next batch is read
    Change {
        /// The authority's directory
        #[command(flatten)]
        at: At,
        /// Name of the list
        list: String,
        /// A file as for an import, in which lines with "remove": true remove entries; `-` is standard input
        file: PathBuf,
    },
    /// Add an entry; it replaces an entry about the same address and sender
    Add {
        /// The authority's directory
        #[command(flatten)]
        at: At,
        /// The list, the address and the sender
        #[command(flatten)]
        which: Which,
        /// Make an entry that denies
        #[arg(long)]
        deny: bool,
        /// Priority of the entry; the matching entry with the highest priority decides [default: 100, or 200 with
        /// --deny]
        #[arg(long, value_name = "0-65535")]
        priority: Option<u16>,
        /// The end of the entry: a day, or a full hour such as 2030-01-31T12:00:00Z
        #[arg(long, value_name = "TIME")]
        until: Option<String>,
        /// A note
        #[arg(long, default_value = "")]
        note: String,
    },
    /// Remove an entry; the exit code is 1 if there is none
    Remove {
        /// The authority's directory
        #[command(flatten)]
        at: At,
        /// The list, the address and the sender
        #[command(flatten)]
        which: Which,
        /// A note for the audit trail
        #[arg(long, default_value = "")]
        note: String,
    },
    /// Show the entries of a list for an address or network
    Show {
        /// Options of the list
        #[command(flatten)]
        options: List,
        /// Name of the list
        list: String,
        /// The address or network
        #[arg(long, value_name = "ADDRESS", value_parser = net)]
        to: IpNet,
    },
    /// Show the names and sizes of all lists
    List(List),
}

/// An entry of a list
#[derive(Args, Debug)]
pub struct Which {
    /// Name of the list
    list: String,
    /// The address or network that the entry is about
    #[arg(long, value_name = "ADDRESS", value_parser = net)]
    to: IpNet,
    /// The sender: person:NAME, group:NAME, tag:NAME, or everyone
    #[arg(long, value_name = "SENDER")]
    who: String,
}

impl Which {
    fn line(&self) -> Line {
        Line { to: self.to.to_string(), who: vec![self.who.clone()], ..Line::default() }
    }
}

pub(super) async fn run(command: ListsCommand) -> Result<ExitCode> {
    match command {
        ListsCommand::Import { at, list, file } => {
            let (named, opened) = open(&file)?;
            let input = if opened.metadata()?.is_file() {
                BufReader::with_capacity(1 << 20, opened)
            } else {
                lists::spool(&at.directory(), opened, &named)?
            };
            let mut next = Instant::now() + PROGRESS;
            let progress = |imported: &Imported| {
                if Instant::now() >= next {
                    eprintln!("{named}: {} read so far", count(imported.lines as usize, "line"));
                    next = Instant::now() + PROGRESS;
                }
            };
            let (imported, done) = lists::import(&at.directory(), &list, input, &named, progress).await?;
            let Imported { entries, receivers, .. } = imported;
            println!("list {list}: entries {entries}, addresses {receivers}; {done}");
        }
        ListsCommand::Change { at, list, file } => {
            let (named, opened) = open(&file)?;
            let input = BufReader::with_capacity(1 << 20, opened);
            let each = |changed: &crate::lists::Changed, done: &str| {
                println!("list {list}: added {}, removed {}; {done}", changed.put, changed.removed);
            };
            lists::change_all(&at.directory(), &list, input, &named, each).await?;
        }
        ListsCommand::Add { at, which, deny, priority, until, note } => {
            let line = Line { deny, priority, until, note, ..which.line() };
            let (_, done) = lists::change(&at.directory(), &which.list, vec![(1, line)], "the arguments").await?;
            println!("added; {done}");
        }
        ListsCommand::Remove { at, which, note } => {
            let directory = at.directory();
            let entries = lists::entries(&directory, &which.list, which.to)?;
            if !entries.iter().any(|entry| entry.who == which.who) {
                println!("list {} has no entry about {} for {}", which.list, which.who, which.to);
                return Ok(ExitCode::FAILURE);
            }
            let line = Line { remove: true, note, ..which.line() };
            let (_, done) = lists::change(&directory, &which.list, vec![(1, line)], "the arguments").await?;
            println!("removed; {done}");
        }
        ListsCommand::Show { options, list, to } => {
            let entries = lists::entries(&options.at.directory(), &list, to)?;
            let head = ["SENDER", "ACTION", "PRIORITY", "UNTIL", "MADE", "BY", "NOTE"];
            show(&options, &entries, &head, row)?;
        }
        ListsCommand::List(options) => {
            let lists = lists::summaries(&options.at.directory())?;
            show(&options, &lists, &["LIST", "ADDRESSES", "CHANGES SINCE"], |list| {
                vec![list.list.clone(), list.receivers.to_string(), list.changes.to_string()]
            })?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn row(entry: &ListEntry) -> Vec<String> {
    vec![
        entry.who.clone(),
        if entry.deny { "deny" } else { "allow" }.into(),
        entry.priority.to_string(),
        entry.until.map_or_else(|| "-".into(), utc),
        utc(entry.time),
        entry.author.clone(),
        entry.note.clone(),
    ]
}

/// Opens a file of entries, which may be a pipe. Returns the name of the file for messages, and the open file.
fn open(file: &Path) -> Result<(String, File)> {
    if file.as_os_str() == "-" {
        let input = std::io::stdin().as_fd().try_clone_to_owned().context("cannot read standard input")?;
        return Ok(("standard input".into(), input.into()));
    }
    let named = file.display().to_string();
    let opened = File::open(file).with_context(|| format!("cannot read {named}"))?;
    Ok((named, opened))
}

/// Parses an address or network.
fn net(text: &str) -> Result<IpNet, String> {
    let read = text.parse::<IpNet>().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from));
    let fault = || format!("`{}` is not an address (203.0.113.10, 2001:db8::1) or a network", text.escape_debug());
    let net = read.ok_or_else(fault)?;
    if net == net.trunc() {
        Ok(net)
    } else {
        Err(format!("{net} has bits set after its prefix length; write {}", net.trunc()))
    }
}
