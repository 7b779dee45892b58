//! `vouchsafe authority policy …`: checks, compares, queries and applies policies.

use super::{At, List, show};
use crate::Directory;
use crate::lists::Follower;
use crate::policy::replay::{Case, Replay};
use crate::{admin, now};
use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use engine::policy::diff::{Change, Kind, TableChange, TableKind, compare, compare_tables};
use engine::policy::lists::Found;
use engine::policy::{Compiled, OwnedSubject, Request, destination, instant};
use serde::Serialize;
use shell::table::{Table, count, utc};
use shell::{print, println};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Check, compare, try and apply policies
#[derive(Subcommand, Debug)]
pub enum PolicyCommand {
    /// Check whether a policy file is valid, and show its errors
    Check(OneFile),
    /// Run the tests that a policy file contains
    Test {
        /// The policy file
        #[command(flatten)]
        file: OneFile,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show whether a grant would be issued, which rule decides, which rules it overrides, and which rules almost match
    Explain(Explain),
    /// Show who gains and who loses access between two policy files; the exit code is 1 if anyone does
    Diff {
        /// The authority's directory
        #[command(flatten)]
        at: At,
        /// The old and the new policy file; a single file is compared with the directory's policy.toml
        #[arg(required = true, num_args = 1..=2, value_name = "FILE")]
        files: Vec<PathBuf>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Decide recent requests again by a draft of the policy, and show the requests that it decides differently. The
    /// exit code is 1 if any decision differs
    Replay {
        /// The file of the draft
        #[command(flatten)]
        file: OneFile,
        /// Number of hours to look back
        #[arg(long, default_value_t = 24)]
        hours: u64,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Replace the directory's policy file and put the new policy in force; an invalid file changes nothing
    Apply(OneFile),
    /// Put the directory's policy.toml in force after editing it
    Reload {
        /// The authority's directory
        #[command(flatten)]
        at: At,
    },
    /// List the versions of the policy that have been in force, newest first
    History(List),
    /// Print the text of a version
    Show {
        /// The authority's directory
        #[command(flatten)]
        at: At,
        /// Number of the version
        version: i64,
    },
    /// Put an earlier version in force again
    Rollback {
        /// The authority's directory
        #[command(flatten)]
        at: At,
        /// Number of the version
        version: i64,
    },
}

/// A policy file
#[derive(Args, Debug)]
pub struct OneFile {
    /// The authority's directory
    #[command(flatten)]
    at: At,
    /// The file [default: the directory's policy.toml]
    file: Option<PathBuf>,
}

/// A query about a decision of the policy
#[derive(Args, Debug)]
pub struct Explain {
    /// The authority's directory
    #[command(flatten)]
    at: At,
    /// Subject and destination: alice 203.0.113.10:22, or 'person:alice,tag:laptops,address:192.0.2.7 -> 203.0.113.53
    /// udp/53'
    #[arg(required = true, value_name = "WHO -> WHAT")]
    question: Vec<String>,
    /// Name of one of the person's devices, whose tags then apply
    #[arg(long)]
    device: Option<String>,
    /// Decide about a segment between addresses of this virtual network
    #[arg(long, value_name = "NAME")]
    network: Option<String>,
    /// Time of the request, such as 2026-03-02T09:00:00Z [default: now]
    #[arg(long = "at", value_name = "TIME")]
    time: Option<String>,
    /// The policy file [default: the directory's policy.toml]
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs `command`. Returns exit code 1 if a check or a test of a policy fails, the policy denies a request, or a
/// comparison finds a difference.
///
/// # Errors
/// Fails if the command could not be carried out.
pub async fn run(command: PolicyCommand) -> Result<ExitCode> {
    match command {
        PolicyCommand::Check(file) => return check(&file),
        PolicyCommand::Test { file, json } => return test(&file, json),
        PolicyCommand::Explain(question) => return explain(&question),
        PolicyCommand::Diff { at, files, json } => return diff(&at, &files, json),
        PolicyCommand::Replay { file, hours, json } => return replay(&file, hours, json),
        PolicyCommand::Apply(OneFile { at, file }) => {
            in_force(&at.directory(), &admin::apply_policy(&at.directory(), file.as_deref()).await?)?;
        }
        PolicyCommand::Reload { at } => {
            in_force(&at.directory(), &admin::apply_policy(&at.directory(), None).await?)?;
        }
        PolicyCommand::History(list) => {
            let versions = list.at.database()?.policies()?;
            show(&list, &versions, &["VERSION", "TIME", "BY", "HOW", "SHA-256"], |version| {
                let by = version.operator.clone().unwrap_or_else(|| "-".into());
                let head = vec![version.version.to_string(), utc(version.time)];
                [head, vec![by, version.note.clone(), version.sha256.clone()]].concat()
            })?;
        }
        PolicyCommand::Show { at, version } => print!("{}", at.database()?.policy_text(version)?),
        PolicyCommand::Rollback { at, version } => {
            in_force(&at.directory(), &admin::roll_back_policy(&at.directory(), version).await?)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

impl OneFile {
    fn path(&self) -> PathBuf {
        self.file.clone().unwrap_or_else(|| self.at.directory().policy())
    }
}

/// Prints the summary `done` of the policy that was put in force, and warnings about names in it that do not exist.
fn in_force(directory: &Directory, done: &str) -> Result<()> {
    println!("{done}");
    let ((policy, _), networks) = (directory.read_policy(None)?, directory.read_networks()?);
    for note in admin::unknown_names(directory, &policy, &networks)? {
        eprintln!("note: {note}");
    }
    Ok(())
}

fn check(file: &OneFile) -> Result<ExitCode> {
    let directory = file.at.directory();
    directory.settings()?;
    readable(&file.path())?;
    match directory.read_policy(file.file.as_deref()) {
        Ok((policy, _)) => {
            let policy = match Compiled::new(policy) {
                Ok(policy) => policy,
                Err(too_large) => {
                    println!("{}: {too_large}", file.path().display());
                    return Ok(ExitCode::FAILURE);
                }
            };
            let networks = match directory.read_networks() {
                Ok(networks) => networks,
                Err(faults) => {
                    println!("{faults:#}");
                    return Ok(ExitCode::FAILURE);
                }
            };
            let policy = policy.policy();
            if let Err(missing) = crate::lists::check(&directory, policy) {
                println!("{missing:#}");
                return Ok(ExitCode::FAILURE);
            }
            let counts = [(policy.receiver_count(), "receiver"), (policy.rules().len(), "rule")];
            let counts = counts.into_iter().chain([(policy.expectations().len(), "test")]);
            let of_networks = networks.counts().into_iter().filter(|(number, _)| *number > 0);
            let counts: Vec<_> = counts.chain(of_networks).map(|(number, one)| count(number, one)).collect();
            println!("valid: {}", counts.join(", "));
            for warning in admin::unknown_names(&directory, policy, &networks)? {
                println!("note: {warning}");
            }
            Ok(ExitCode::SUCCESS)
        }
        Err(faults) => {
            println!("{faults:#}");
            Ok(ExitCode::FAILURE)
        }
    }
}

#[derive(Serialize)]
struct Tested {
    tests: usize,
    failures: Vec<FailedTest>,
}

#[derive(Serialize)]
struct FailedTest {
    line: usize,
    message: String,
}

fn test(file: &OneFile, json: bool) -> Result<ExitCode> {
    let (policy, _) = file.at.directory().read_policy(file.file.as_deref())?;
    let policy = Compiled::new(policy)?;
    let failures = policy.failures().into_iter();
    let failures: Vec<_> =
        failures.map(|failure| FailedTest { line: failure.line, message: failure.message }).collect();
    let tested = Tested { tests: policy.policy().expectations().len(), failures };
    if json {
        println!("{}", serde_json::to_string_pretty(&tested)?);
    } else {
        let path = file.path();
        for failure in &tested.failures {
            println!("{}:{}: {}", path.display(), failure.line, failure.message);
        }
        println!("{}, {} failed", count(tested.tests, "test"), tested.failures.len());
    }
    Ok(if tested.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn explain(question: &Explain) -> Result<ExitCode> {
    let (mut who, to) = read_question(&question.question)?;
    let (policy, _) = question.at.directory().read_policy(question.policy.as_deref())?;
    if let Some(name) = &question.device {
        let devices = question.at.database()?.devices(None)?;
        let device = devices.into_iter().find(|device| device.person == who.person && device.device == *name);
        let device = device.with_context(|| {
            format!("no device {}/{name}: `vouchsafe authority device list` lists the devices", who.person)
        })?;
        who.tags.extend(device.tags);
    }
    let now = match &question.time {
        None => now(),
        Some(time) => instant(time).with_context(|| format!("`{time}` is not a time such as 2026-03-02T09:00:00Z"))?,
    };
    let mut policy = Compiled::new(policy)?;
    if !policy.policy().lists().is_empty() {
        policy.set_lists(Follower::about(&question.at.directory(), [to.address])?);
    }
    let rules = match &question.network {
        None => &policy,
        Some(name) => {
            let known: Vec<_> = policy.policy().networks().map(|(name, _)| name).collect();
            let known = if known.is_empty() {
                "no receiver is in a network".to_owned()
            } else {
                format!("it has receivers in: {}", known.join(", "))
            };
            policy.network(name).with_context(|| format!("the policy has no receivers in network `{name}`; {known}"))?
        }
    };
    // Without a readable database, `explain` still works for a policy file on another machine.
    let consents = question.at.database().and_then(|database| database.consents_since(now)).unwrap_or_default();
    let request = Request { subject: who.subject(), to, now };
    let mut trace = rules.trace_with(&request, &consents);
    if let Some(found) = rules.listed(&request) {
        trace.text += &format!(" ({})", in_words(&question.at.directory(), &found)?);
    }
    if question.json {
        println!("{}", serde_json::to_string_pretty(&trace)?);
    } else {
        println!("{}", trace.text);
        if let Some(grant) = &trace.grant {
            println!("grant: {grant}");
        }
        // Without a readable database there is no warning: `explain` also works for a policy file on another machine.
        let is_unknown =
            || question.at.database().is_ok_and(|database| matches!(database.knows(&who.person), Ok(false)));
        if !who.person.is_empty() && is_unknown() {
            println!("note: {}", admin::no_account(&who.person));
        }
        for (head, reasons) in [("overridden rules", &trace.beaten), ("rules that almost match", &trace.near)] {
            if !reasons.is_empty() {
                println!("\n{head}:");
                let row = |r: &engine::policy::Reason| {
                    vec![format!("  {}", r.rule), r.action.into(), r.priority.to_string(), r.why.clone()]
                };
                print!("{}", Table::new(&["  RULE", "ACTION", "PRIORITY", "WHY"], reasons.iter().map(row)));
            }
        }
    }
    Ok(if trace.allowed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Describes an entry of a list, with its author and its note.
fn in_words(directory: &Directory, found: &Found) -> Result<String> {
    let entries = admin::lists::entries(directory, &found.list, found.receiver)?;
    let mut text = found.to_string();
    if let Some(entry) = entries.iter().find(|entry| entry.who == found.who) {
        text += &format!(", by {} at {}", entry.author, utc(entry.time));
        if !entry.note.is_empty() {
            text += &format!(", note: {}", entry.note);
        }
    }
    Ok(text)
}

fn diff(at: &At, files: &[PathBuf], json: bool) -> Result<ExitCode> {
    let directory = at.directory();
    let installed = directory.policy();
    let (old, new) = match files {
        [old, new] => (old, new),
        [new] => (&installed, new),
        _ => bail!("name one or two policy files"),
    };
    let [(before, _), (after, _)] = [directory.read_policy(Some(old))?, directory.read_policy(Some(new))?];
    let changes = compare(&before, &after, now())?;
    let (tables, (old, new)) = (compare_tables(&before, &after), (old.display(), new.display()));
    let is_same = changes.is_empty() && tables.is_empty();
    if json {
        let all = changes.iter().map(Difference::Access).chain(tables.iter().map(Difference::Table));
        println!("{}", serde_json::to_string_pretty(&all.collect::<Vec<_>>())?);
    } else if is_same {
        println!("access does not change between {old} and {new}");
    } else {
        println!("changes from {old} to {new}:");
        changes.iter().for_each(print_change);
        tables.iter().for_each(print_table);
    }
    Ok(if is_same { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A difference between two policies. Only differences between delegations or between lists have the key `table`.
#[derive(Serialize)]
#[serde(untagged)]
enum Difference<'a> {
    Access(&'a Change),
    Table(&'a TableChange),
}

fn print_table(change: &TableChange) {
    let TableChange { table, name, kind, fields } = change;
    let sign = match kind {
        TableKind::Added => '+',
        TableKind::Removed => '-',
        TableKind::Changed => '~',
    };
    println!("{sign} {} [[{table}]] {name}", kind.name());
    for field in fields {
        match (&field.old, &field.new) {
            (Some(old), Some(new)) => println!("    {}: was {old}, is {new}", field.field),
            (Some(one), None) | (None, Some(one)) => println!("    {}: {one}", field.field),
            (None, None) => {}
        }
    }
}

fn print_change(change: &Change) {
    let kind = match change.kind {
        Kind::Gains => "+ gains",
        Kind::Loses => "- loses",
        Kind::Terms => "~ changed terms",
        Kind::Stays => "  unchanged access",
    };
    println!("{kind}: {}", change.who.join("; "));
    for place in &change.to {
        let (receivers, prefixes) = (place.receivers.join(", "), place.prefixes.join(", "));
        println!("    to   {receivers}: {prefixes}: {}", place.services.join(", "));
    }
    if !change.at.is_empty() {
        println!("    at   times such as {}", change.at.join(", "));
    }
    println!("    was  {}\n    is   {}", change.old, change.new);
}

fn replay(file: &OneFile, hours: u64, json: bool) -> Result<ExitCode> {
    let (draft, _) = file.at.directory().read_policy(file.file.as_deref())?;
    let since = now().saturating_sub(hours.saturating_mul(3600));
    let (database, mut draft) = (file.at.database()?, Compiled::new(draft)?);
    if !draft.policy().lists().is_empty() {
        let granted = database.grants_since(since)?.into_iter().map(|grant| grant.address);
        let refused = database.refusals(since)?.into_iter().map(|refusal| refusal.to.address);
        draft.set_lists(Follower::about(&file.at.directory(), granted.chain(refused))?);
    }
    let replay = Replay::of(&draft, &database, since)?;
    if json {
        println!("{}", serde_json::to_string_pretty(&replay)?);
    } else {
        for (head, cases) in [
            ("would be refused", &replay.refused),
            ("would be allowed", &replay.allowed),
            ("would be granted with another treatment", &replay.treated),
        ] {
            if !cases.is_empty() {
                println!("{head}:");
                let row = |case: &Case| {
                    let texts = [&case.person, &case.device, &case.to].map(Clone::clone);
                    [vec![format!("  {}", case.times)], texts.to_vec(), vec![utc(case.last), case.why.clone()]].concat()
                };
                print!("{}", Table::new(&["  TIMES", "PERSON", "DEVICE", "TO", "LAST", "WHY"], cases.iter().map(row)));
            }
        }
        let (grants, refusals) = (count(replay.grants, "grant"), count(replay.refusals, "refusal"));
        println!("decided again: {grants} and {refusals} of the last {hours} h");
    }
    let same = [&replay.refused, &replay.allowed, &replay.treated].iter().all(|cases| cases.is_empty());
    Ok(if same { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Parses `WHO WHAT`, `WHO -> WHAT` or `WHO → WHAT`, given as one argument or as several.
fn read_question(words: &[String]) -> Result<(OwnedSubject, wire::Destination)> {
    if words.last().is_some_and(|word| word == "-") {
        bail!("the shell interpreted the `>` of `->`: omit the arrow, or put the query in quotes");
    }
    let text = words.join(" ").replace('→', "->");
    let (who, to) = text
        .split_once("->")
        .or_else(|| text.split_once(' '))
        .context("no destination: write WHO WHAT, such as `alice 203.0.113.10:22`")?;
    let who = who.trim().parse::<OwnedSubject>().map_err(anyhow::Error::msg)?;
    Ok((who, destination(to.trim()).map_err(anyhow::Error::msg)?))
}

/// Returns an error if the file cannot be read, so that `check` does not report such a file as an invalid policy.
fn readable(path: &Path) -> Result<()> {
    std::fs::File::open(path).map(drop).with_context(|| format!("cannot read {}", path.display()))
}
