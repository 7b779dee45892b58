//! `vouchsafe authority audit …`: prints the audit trail as text or JSON lines, and verifies it.

use super::{At, List};
use crate::admin;
use crate::storage::{AuditEntry, NotedHead, Verdict};
use anyhow::Result;
use clap::{Args, Subcommand};
use shell::table::{Table, utc};
use shell::{print, println};
use std::io::{BufWriter, ErrorKind, Write};
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
    },
}

pub(super) fn run(arguments: AuditArgs) -> Result<ExitCode> {
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
        Some(AuditCommand::Head { at }) => {
            for head in at.database()?.audit_heads()? {
                println!("{head}");
            }
            Ok(ExitCode::SUCCESS)
        }
        Some(AuditCommand::Verify { at, heads }) => match admin::verify_audit(&at.directory(), &heads)? {
            Verdict::Whole(entries) => {
                println!("complete and unchanged: {entries} entries");
                at.database()?.audit_heads()?.iter().for_each(|head| println!("{head}"));
                Ok(ExitCode::SUCCESS)
            }
            Verdict::Broken(what) => {
                println!("verification failed: {what}");
                Ok(ExitCode::FAILURE)
            }
        },
    }
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
