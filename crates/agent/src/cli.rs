//! `vouchsafe agent …`: runs the daemon, or a command that queries it.

use crate::settings::{DEFAULT_INSTANCE, Flags, Settings};
use crate::{daemon, kernel};
use anyhow::Result;
use clap::Subcommand;
use shell::println;
use std::process::ExitCode;
use user::commands::SessionCommand;

/// Runs the agent on this machine, or queries it
#[derive(Subcommand, Debug)]
pub enum AgentCommand {
    /// Run the daemon
    Run(Box<Flags>),
    /// Detach from every interface and remove the agent's state from the kernel, after the daemon has stopped for good
    Detach {
        /// Name of the instance
        #[arg(long, value_name = "NAME", default_value = DEFAULT_INSTANCE, env = "VOUCHSAFE_AGENT_INSTANCE")]
        instance: String,
    },
    /// The commands about a person's session at the agent
    #[command(flatten)]
    Session(Box<SessionCommand>),
}

/// Runs a command. Returns exit code 1 if the command is a question and the answer is no, or if there is nothing to
/// detach.
///
/// # Errors
///
/// Fails if the command could not be carried out; the caller then exits with code 2.
pub async fn run(command: AgentCommand) -> Result<ExitCode> {
    match command {
        AgentCommand::Run(flags) => {
            daemon::run(Settings::load(*flags)?).await?;
            Ok(ExitCode::SUCCESS)
        }
        AgentCommand::Detach { instance } => match datapath::Pins::existing("agent", &instance) {
            Some(pins) => {
                kernel::detach(&pins)?;
                println!("detached: packets no longer get tokens");
                Ok(ExitCode::SUCCESS)
            }
            None => {
                eprintln!("vouchsafe: nothing to detach: the kernel holds no state of agent instance {instance:?}");
                Ok(ExitCode::FAILURE)
            }
        },
        AgentCommand::Session(command) => user::commands::run_at_agent(*command).await,
    }
}
