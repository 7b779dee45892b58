//! `vouchsafe authority session …`: lists sessions, and renews them with the identity provider.

use super::{At, List, or_dash, show};
use crate::{admin, now};
use anyhow::Result;
use clap::Subcommand;
use shell::println;
use shell::table::utc;
use std::process::ExitCode;

/// List sessions, and renew them with the identity provider
#[derive(Subcommand, Debug)]
pub enum SessionCommand {
    /// List sessions that have not ended
    List(List),
    /// Ask the identity provider for everyone's groups now; a lost group ends the access that depended on it
    Refresh {
        /// The authority's directory
        #[command(flatten)]
        at: At,
        /// Only this person's sessions
        #[arg(long)]
        person: Option<String>,
    },
}

pub(super) async fn run(command: SessionCommand) -> Result<ExitCode> {
    match command {
        SessionCommand::List(list) => {
            let sessions = list.at.database()?.session_entries(now())?;
            show(
                &list,
                &sessions,
                &["PERSON", "DEVICE", "SOURCE", "GROUPS", "SINCE", "UNTIL", "RENEWED"],
                |session| {
                    let renewed = session.renewed.map_or_else(|| "-".into(), utc);
                    let times = [utc(session.created), utc(session.expires), renewed];
                    let texts = [&session.person, &session.device, &session.source, &or_dash(&session.groups)];
                    texts.into_iter().chain(&times).cloned().collect()
                },
            )?;
        }
        SessionCommand::Refresh { at, person } => {
            println!("{}", admin::renew_sessions(&at.directory(), person).await?);
        }
    }
    Ok(ExitCode::SUCCESS)
}
