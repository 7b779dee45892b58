//! `vouchsafe authority score …`: lists people's scores, and resets them.

use super::{At, List, show};
use crate::{admin, now};
use anyhow::{Context, Result};
use clap::Subcommand;
use shell::println;
use std::process::ExitCode;

/// List and reset people's scores, which applications lower by complaints
#[derive(Subcommand, Debug)]
pub enum ScoreCommand {
    /// List the scores below 100; `low` marks the scores to which the tag `low-score` applies
    List(List),
    /// Set a person's score to 100; exit code 1 if it is 100 already
    Reset {
        /// The authority's directory
        #[command(flatten)]
        at: At,
        /// The person's name
        person: String,
    },
}

pub(super) async fn run(command: ScoreCommand) -> Result<ExitCode> {
    match command {
        ScoreCommand::List(list) => {
            let terms = list.at.directory().settings()?.scores;
            let terms = terms.context("this authority keeps no scores: authority.toml has no table [scores]")?;
            let scores = list.at.database()?.scores(terms, now())?;
            show(&list, &scores, &["PERSON", "SCORE", ""], |score| {
                let low = if score.low { "low" } else { "" };
                vec![score.person.clone(), score.score.to_string(), low.into()]
            })?;
        }
        ScoreCommand::Reset { at, person } => {
            let Some(done) = admin::reset_score(&at.directory(), &person).await? else {
                println!("the score of {person} is 100 already");
                return Ok(ExitCode::FAILURE);
            };
            println!("the score of {person} is 100; {done}");
        }
    }
    Ok(ExitCode::SUCCESS)
}
