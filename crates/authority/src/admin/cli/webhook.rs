//! `vouchsafe authority webhook …`: shows the state of webhooks, and tests them.

use super::{At, List, show};
use crate::admin;
use crate::webhook::{WebhookSettings, unknown_delegations};
use anyhow::{Result, bail, ensure};
use clap::Subcommand;
use shell::println;
use std::process::ExitCode;

/// Show and test the webhooks, to which the authority sends messages about requests for access
#[derive(Subcommand, Debug)]
pub enum WebhookCommand {
    /// Show for each webhook how many messages the running authority has delivered and lost, and how many wait
    Status(List),
    /// Send a test message by the settings in authority.toml, whether or not the authority runs. Exit code 1 if a
    /// webhook does not accept it
    Test {
        /// The authority's directory
        #[command(flatten)]
        at: At,
        /// Only the webhook with this name
        name: Option<String>,
    },
}

pub(super) async fn run(command: WebhookCommand) -> Result<ExitCode> {
    match command {
        WebhookCommand::Status(list) => {
            let states = admin::webhooks(&list.at.directory()).await?;
            show(&list, &states, &["WEBHOOK", "HOST", "DELIVERED", "WAITING", "LOST", "TROUBLE"], |state| {
                let counts = [state.delivered, state.waiting as u64, state.lost].map(|count| count.to_string());
                let trouble = state.trouble.clone().unwrap_or_else(|| "-".into());
                [vec![state.name.clone(), state.host.clone()], counts.to_vec(), vec![trouble]].concat()
            })?;
            Ok(ExitCode::SUCCESS)
        }
        WebhookCommand::Test { at, name } => test(&at, name.as_deref()).await,
    }
}

async fn test(at: &At, name: Option<&str>) -> Result<ExitCode> {
    let directory = at.directory();
    let settings = directory.settings()?;
    ensure!(!settings.webhooks.is_empty(), "authority.toml has no table [[webhooks]]: docs/consent.md shows one");
    let is_meant = |webhook: &&WebhookSettings| name.is_none_or(|name| name == webhook.name);
    let meant: Vec<_> = settings.webhooks.iter().filter(is_meant).collect();
    if meant.is_empty() {
        let names: Vec<_> = settings.webhooks.iter().map(|webhook| webhook.name.as_str()).collect();
        bail!("there is no webhook with this name in authority.toml; its webhooks are {}", names.join(", "));
    }
    for warning in unknown_delegations(&settings.webhooks, &directory.read_policy(None)?.0) {
        eprintln!("note: {warning}");
    }
    let mut code = ExitCode::SUCCESS;
    for webhook in meant {
        match admin::test_webhook(&directory, webhook).await {
            Ok(host) => println!("{}: {host} accepted the test message", webhook.name),
            Err(error) => {
                println!("{}: {error:#}", webhook.name);
                code = ExitCode::FAILURE;
            }
        }
    }
    Ok(code)
}
