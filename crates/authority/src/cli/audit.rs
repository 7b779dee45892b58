//! `vouchsafe authority audit …`: the audit trail in words, as JSON lines, and whether it is whole.

use super::{At, List};
use crate::admin;
use crate::storage::{AuditEntry, NotedHead, Verdict};
use anyhow::Result;
use clap::{Args, Subcommand};
use shell::table::{Table, utc};
use shell::{print, println};
use std::io::{BufWriter, ErrorKind, Write};
use std::process::ExitCode;

/// Lists what happened, oldest first
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct AuditArgs {
    /// What else to do with it
    #[command(subcommand)]
    command: Option<AuditCommand>,
    /// How it is listed; JSON is an object a line
    #[command(flatten)]
    list: List,
    /// Only about this person
    #[arg(long)]
    person: Option<String>,
    /// How many entries, from the last
    #[arg(long, default_value_t = 100)]
    last: u32,
}

/// What else can be done with the audit trail
#[derive(Subcommand, Debug)]
enum AuditCommand {
    /// Print every entry as JSON, an object a line, oldest first
    Export {
        /// Where the authority lives
        #[command(flatten)]
        at: At,
        /// Only entries after the one with this number
        #[arg(long, value_name = "ID", default_value_t = 0)]
        after: i64,
    },
    /// Print where the trails end, to be noted elsewhere
    Head {
        /// Where the authority lives
        #[command(flatten)]
        at: At,
    },
    /// Check that the trails are whole, or show the first broken entry; exit code 1 if they are not
    Verify {
        /// Where the authority lives
        #[command(flatten)]
        at: At,
        /// A head that was noted before and must be in the trail still; may be repeated
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
                println!("whole: {entries} entries");
                at.database()?.audit_heads()?.iter().for_each(|head| println!("{head}"));
                Ok(ExitCode::SUCCESS)
            }
            Verdict::Broken(what) => {
                println!("broken: {what}");
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

/// Prints entries as they come. A reader that has enough, such as `head`, is no failure.
fn print_lines(give: impl FnOnce(&mut dyn FnMut(&AuditEntry) -> Result<()>) -> Result<()>) -> Result<ExitCode> {
    let mut out = BufWriter::new(std::io::stdout().lock());
    let given = give(&mut |entry| Ok(writeln!(out, "{}", serde_json::to_string(entry)?)?));
    match given.and_then(|()| Ok(out.flush()?)) {
        Err(error) if error.downcast_ref().map(std::io::Error::kind) == Some(ErrorKind::BrokenPipe) => {}
        other => other?,
    }
    Ok(ExitCode::SUCCESS)
}
