//! `vouchsafe authority audit …`: prints the audit trail as text or JSON lines, and verifies it.

use super::cluster::blocking;
use super::{At, List};
use crate::admin;
use crate::admin::trails::{self, Checked};
use crate::cluster::config::ClusterConfig;
use crate::cluster::status::NO_MEMBER;
use crate::storage::{AuditEntry, NotedHead, Verdict};
use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use shell::table::{Table, utc};
use shell::{print, println};
use std::io::{BufWriter, ErrorKind, Write};
use std::path::PathBuf;
use std::process::ExitCode;

/// List the entries of the audit trail, oldest first
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct AuditArgs {
    /// Other actions on the audit trail
    #[command(subcommand)]
    command: Option<AuditCommand>,
    /// Options of the list; JSON is one object per line
    #[command(flatten)]
    list: List,
    /// Only entries about this person
    #[arg(long)]
    person: Option<String>,
    /// Number of entries, counted from the latest
    #[arg(long, default_value_t = 100)]
    last: u32,
}

/// Other actions on the audit trail
#[derive(Subcommand, Debug)]
enum AuditCommand {
    /// Print every entry as JSON, one object per line, oldest first
    Export {
        /// The authority's directory
        #[command(flatten)]
        at: At,
        /// Only entries whose number is greater than this one
        #[arg(long, value_name = "ID", default_value_t = 0)]
        after: i64,
    },
    /// Print the heads of the trails, to be noted elsewhere
    Head {
        /// The authority's directory
        #[command(flatten)]
        at: At,
        /// Print the heads of all members of the cluster, as they have published them in etcd
        #[arg(long)]
        cluster: bool,
    },
    /// Accept that the trails of this member of a cluster lack entries that it has published earlier, because its disk
    /// was lost or the power failed. The trail records who has accepted that
    Accept {
        /// The authority's directory
        #[command(flatten)]
        at: At,
    },
    /// Verify that the trails are complete and unchanged; if they are not, show the first broken entry and exit with
    /// code 1
    Verify {
        /// The authority's directory
        #[command(flatten)]
        at: At,
        /// A head noted earlier that the trail must still contain; may be repeated
        #[arg(long = "head", value_name = "TRAIL:ID:HASH")]
        heads: Vec<NotedHead>,
        /// Also verify the trails of another member of the cluster: FILE is the output of `audit export` at member
        /// NAME. Repeat the option for each other member. Exit code 1 if the trails of a member are missing
        #[arg(long = "member", value_name = "NAME=FILE", value_parser = copy)]
        members: Vec<(String, PathBuf)>,
        /// The heads that the members' trails must contain, as `audit head --cluster` printed them before the export
        /// [default: those that etcd has now]
        #[arg(long, value_name = "FILE", requires = "members")]
        noted: Option<PathBuf>,
    },
}

pub(super) async fn run(arguments: AuditArgs) -> Result<ExitCode> {
    let AuditArgs { command, list, person, last } = arguments;
    match command {
        None => {
            let entries = list.at.database()?.audit_entries(person.as_deref(), last)?;
            if list.json { print_lines(|print| entries.iter().try_for_each(print)) } else { show(&entries) }
        }
        Some(AuditCommand::Export { at, after }) => {
            let database = at.database()?;
            print_lines(|print| database.each_audit_entry(after, |entry| print(&entry)))
        }
        Some(AuditCommand::Accept { at }) => {
            println!("{}", trails::accept(&at.directory()).await?);
            Ok(ExitCode::SUCCESS)
        }
        Some(AuditCommand::Head { at, cluster: true }) => {
            for (name, heads) in blocking(move || trails::heads(&at.directory())).await? {
                heads.iter().for_each(|head| println!("{name} {head}"));
            }
            Ok(ExitCode::SUCCESS)
        }
        Some(AuditCommand::Head { at, cluster: false }) => {
            for head in at.database()?.audit_heads()? {
                println!("{head}");
            }
            Ok(ExitCode::SUCCESS)
        }
        Some(AuditCommand::Verify { at, heads, members, noted }) => {
            let is_whole = match admin::verify_audit(&at.directory(), &heads)? {
                Verdict::Whole(entries) => {
                    println!("complete and unchanged: {entries} entries");
                    at.database()?.audit_heads()?.iter().for_each(|head| println!("{head}"));
                    true
                }
                Verdict::Broken(what) => {
                    println!("verification failed: {what}");
                    false
                }
            };
            let are_whole = members.is_empty() || blocking(move || verify_members(&at, members, noted)).await?;
            Ok(if is_whole && are_whole { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
    }
}

/// Parses `NAME=FILE`.
fn copy(text: &str) -> Result<(String, PathBuf), String> {
    let parts = text.split_once('=').filter(|(name, file)| !name.is_empty() && !file.is_empty());
    let (name, file) = parts.ok_or("write NAME=FILE")?;
    Ok((name.into(), file.into()))
}

/// Verifies copies of members' trails. This member needs no copy, because its database was verified.
fn verify_members(at: &At, copies: Vec<(String, PathBuf)>, noted: Option<PathBuf>) -> Result<bool> {
    let directory = at.directory();
    let own = ClusterConfig::read(directory.path())?.context(NO_MEMBER)?.name;
    let heads = match noted {
        Some(file) => trails::read(&file)?,
        None => trails::heads(&directory)?,
    };
    let mut is_whole = true;
    for (name, checked) in trails::verify(&directory, &copies.into_iter().collect(), &heads)? {
        is_whole &= match checked {
            Checked::Verified(Verdict::Whole(entries)) => {
                println!("{name}: complete and unchanged: {entries} entries");
                true
            }
            Checked::Verified(Verdict::Broken(what)) => {
                println!("{name}: verification failed: {what}");
                false
            }
            Checked::Unreadable(why) => {
                println!("{name}: verification failed: {why}");
                false
            }
            Checked::NoCopy if name == own => true,
            Checked::NoCopy => {
                println!("{name}: its trails are missing: add --member {name}=FILE");
                false
            }
        };
    }
    Ok(is_whole)
}

fn show(entries: &[AuditEntry]) -> Result<ExitCode> {
    let row = |entry: &AuditEntry| {
        let or_dash = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".into());
        let who = [&entry.person, &entry.device, &entry.source, &entry.receiver, &entry.rule, &entry.operator];
        [vec![utc(entry.time), entry.event.clone()], who.map(or_dash).to_vec(), vec![entry.detail.clone()]].concat()
    };
    let head = ["TIME", "EVENT", "PERSON", "DEVICE", "SOURCE", "RECEIVER", "RULE", "BY", "DETAIL"];
    print!("{}", Table::new(&head, entries.iter().map(row)));
    Ok(ExitCode::SUCCESS)
}

/// Prints each entry as one line of JSON as soon as it is read. A reader that closes the pipe early, such as `head`, is
/// not an error.
fn print_lines(give: impl FnOnce(&mut dyn FnMut(&AuditEntry) -> Result<()>) -> Result<()>) -> Result<ExitCode> {
    let mut out = BufWriter::new(std::io::stdout().lock());
    let given = give(&mut |entry| Ok(writeln!(out, "{}", serde_json::to_string(entry)?)?));
    match given.and_then(|()| Ok(out.flush()?)) {
        Err(error) if error.downcast_ref().map(std::io::Error::kind) == Some(ErrorKind::BrokenPipe) => {}
        other => other?,
    }
    Ok(ExitCode::SUCCESS)
}
