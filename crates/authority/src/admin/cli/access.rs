//! `vouchsafe authority access …`: lists requests for access and consents, and withdraws them.

use super::{At, List, show};
use crate::admin;
use anyhow::{Error, Result};
use clap::{Args, Subcommand};
use engine::policy::delegation::RequestId;
use shell::println;
use shell::table::{count, utc};
use std::process::ExitCode;

/// List requests for access and consents, and withdraw them
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
