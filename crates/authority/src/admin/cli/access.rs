//! `vouchsafe authority access …`: lists consents and requests for access, withdraws them, and gives consents.

use super::{At, List, show};
use crate::admin;
use crate::admin::consents::{self, GivenConsent, Giving, MOST_FILE, Term};
use anyhow::{Context, Error, Result, ensure};
use clap::{Args, Subcommand};
use engine::document::seconds;
use engine::policy::delegation::RequestId;
use shell::println;
use shell::table::{count, utc};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const ALLOW: &str = "Examples:
  vouchsafe authority access allow alice --to db-1 --for 8h --note 'ticket 4711'
  vouchsafe authority access allow group:audit tag:managed --to db-1 --service tcp/5432 --until 2030-01-31";

/// List consents and requests for access, withdraw them, and give consents
#[derive(Subcommand, Debug)]
pub enum AccessCommand {
    /// List the requests that wait for a decision, and the consents in effect
    List {
        /// Options of the list
        #[command(flatten)]
        list: List,
        /// Include requests that were decided or withdrawn, and consents that have ended, in the last 30 days
        #[arg(long)]
        all: bool,
    },
    /// Give people access without a request, within the limits of a delegation of the policy. Needs a running authority
    #[command(after_help = ALLOW)]
    Allow(AllowArguments),
    /// Give all consents of a file, or none if one of them cannot be given. The file has one JSON object on each line.
    /// Needs a running authority
    Import {
        /// The authority's directory
        #[command(flatten)]
        at: At,
        /// The file; `-` is standard input
        file: PathBuf,
    },
    /// Withdraw requests and consents; grants that rest on them end, and established flows are cut. Exit code 1 if
    /// there is nothing to withdraw
    Withdraw {
        /// The authority's directory
        #[command(flatten)]
        at: At,
        /// The requests and consents to withdraw
        #[command(flatten)]
        which: Which,
    },
}

/// Consents to give
#[derive(Args, Debug)]
pub struct AllowArguments {
    /// The authority's directory
    #[command(flatten)]
    at: At,
    /// The people who get access
    #[arg(required = true, value_name = "PERSON|group:GROUP|tag:TAG")]
    who: Vec<String>,
    /// Name of the receiver; may be repeated
    #[arg(long = "to", required = true, value_name = "RECEIVER")]
    receivers: Vec<String>,
    /// A service such as tcp/22; may be repeated [default: all that the delegation permits]
    #[arg(long = "service", value_name = "SERVICE")]
    services: Vec<String>,
    /// The time for which the access lasts
    #[command(flatten)]
    time: Time,
    /// A note, which the person sees
    #[arg(long, value_name = "TEXT", default_value = "")]
    note: String,
}

/// The time for which the access lasts
#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
pub struct Time {
    /// How long the access lasts, such as 8h or 3d
    #[arg(long = "for", value_name = "TIME", value_parser = lifetime)]
    lifetime: Option<Term>,
    /// The end of the access, such as 2030-01-31 or 2030-01-31T12:00:00Z
    #[arg(long, value_name = "TIME", value_parser = consents::until_of)]
    until: Option<Term>,
}

fn lifetime(text: &str) -> Result<Term, String> {
    seconds(text).map(Term::For).ok_or_else(|| "write a time such as 90m, 8h or 3d".to_owned())
}

/// The requests and consents to withdraw
#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
pub struct Which {
    /// The number of a request or consent, as `access list` shows it
    #[arg(value_name = "NUMBER")]
    id: Option<RequestId>,
    /// All consents that this person has given
    #[arg(long, value_name = "PERSON")]
    given_by: Option<String>,
}

pub(super) async fn run(command: AccessCommand) -> Result<ExitCode> {
    match command {
        AccessCommand::List { list, all } => {
            let entries = list.at.database()?.access_requests(all)?;
            let head = ["NUMBER", "STATE", "PERSON", "RECEIVER", "SERVICES", "BY", "UNTIL", "TEXT"];
            show(&list, &entries, &head, |entry| {
                let text = entry.note.as_ref().filter(|note| !note.is_empty()).unwrap_or(&entry.reason);
                vec![
                    entry.id.to_string(),
                    entry.state.name().into(),
                    entry.person.clone(),
                    entry.receiver.clone(),
                    entry.services.join(" "),
                    entry.decider.clone().unwrap_or_else(|| "-".into()),
                    entry.until.map_or_else(|| "-".into(), utc),
                    text.clone(),
                ]
            })?;
        }
        AccessCommand::Allow(arguments) => allow(arguments).await?,
        AccessCommand::Import { at, file } => import(&at, &file).await?,
        AccessCommand::Withdraw { at, which } => {
            let which = match which {
                Which { id: Some(id), .. } => admin::Withdrawn::One(id),
                Which { given_by: Some(person), .. } => admin::Withdrawn::GivenBy(person),
                Which { id: None, given_by: None } => return Err(Error::msg("name a request or a person")),
            };
            let (withdrawn, done) = admin::withdraw_access(&at.directory(), &which).await?;
            if withdrawn == 0 {
                println!("nothing to withdraw: `vouchsafe authority access list` lists requests and consents");
                return Ok(ExitCode::FAILURE);
            }
            println!("withdrawn: {}; {done}", count(withdrawn, "request"));
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn allow(AllowArguments { at, who, receivers, services, time, note }: AllowArguments) -> Result<()> {
    let term = time.lifetime.or(time.until).context("write either --for or --until")?;
    let mut all = Vec::new();
    for receiver in &receivers {
        for holder in &who {
            let (holder, receiver) = (holder.clone(), receiver.clone());
            all.push(Giving { holder, receiver, services: services.clone(), term, note: note.clone() });
        }
    }
    let names: Vec<_> = all.iter().map(|giving| format!("{} to {}", giving.holder, giving.receiver)).collect();
    let given = consents::give(&at.directory(), all, false, |nth| names[nth].clone()).await?;
    given.iter().for_each(print_consent);
    Ok(())
}

async fn import(at: &At, file: &Path) -> Result<()> {
    let is_input = file.as_os_str() == "-";
    let named = if is_input { "standard input".to_owned() } else { file.display().to_string() };
    let mut text = String::new();
    let read = if is_input {
        std::io::stdin().take(MOST_FILE + 1).read_to_string(&mut text)
    } else {
        File::open(file).and_then(|file| file.take(MOST_FILE + 1).read_to_string(&mut text))
    };
    let length = read.with_context(|| format!("cannot read {named}"))?;
    ensure!(length as u64 <= MOST_FILE, "{named} is longer than {} MiB: divide it", MOST_FILE >> 20);
    let (numbers, all): (Vec<_>, Vec<_>) = consents::read(&text, &named)?.into_iter().unzip();
    let place = |nth: usize| format!("{named}:{}", numbers[nth]);
    let given = consents::give(&at.directory(), all, true, place).await?;
    given.iter().for_each(print_consent);
    println!("in force: {}", count(given.len(), "consent"));
    Ok(())
}

fn print_consent(GivenConsent { id, holder, receiver, services, until }: &GivenConsent) {
    println!("{id}: {holder} may reach {receiver} {} until {}", services.join(" "), utc(*until));
}
