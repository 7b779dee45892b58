//! The command line: one binary for all roles and for people. Each role's crate does the work; this crate handles
//! arguments, logs and exit codes.
#![forbid(unsafe_code)]

use anyhow::{Context, Result};
use clap::{CommandFactory, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use std::io::{ErrorKind, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tokio::runtime::{Builder, Runtime};
use tracing_subscriber::EnvFilter;

/// First-packet access: grants instead of tunnels
#[derive(Parser)]
#[command(name = "vouchsafe", version)]
struct Arguments {
    /// Format of logs, on standard error; VOUCHSAFE_LOG sets their level (`info`, `authority=debug`, …)
    #[arg(long, global = true, value_enum, default_value_t, env = "VOUCHSAFE_LOG_FORMAT")]
    log_format: LogFormat,
    #[command(subcommand)]
    command: Command,
}

#[derive(Clone, Copy, Default, ValueEnum)]
enum LogFormat {
    /// For people
    #[default]
    Text,
    /// For machines, one object per line
    Json,
}

#[derive(Subcommand)]
enum Command {
    /// Log people in, evaluate policy, issue grants
    #[cfg(feature = "roles")]
    #[command(subcommand)]
    Authority(authority::admin::cli::AuthorityCommand),
    /// Protect this host, or the hosts behind it
    #[cfg(feature = "roles")]
    #[command(subcommand)]
    Verifier(verifier::cli::VerifierCommand),
    /// Run a tunnel endpoint, for tenants of virtual networks in which receivers consent to senders
    #[cfg(feature = "roles")]
    #[command(subcommand)]
    Svtep(svtep::cli::SvtepCommand),
    /// Put tokens into first packets: run the daemon or query it
    #[cfg(feature = "roles")]
    #[command(subcommand)]
    Agent(agent::cli::AgentCommand),
    /// The commands about a person's session
    #[command(flatten)]
    Session(user::commands::SessionCommand),
    /// The commands that reach protected destinations without an agent
    #[command(flatten)]
    Reach(user::ReachCommand),
    #[cfg(feature = "roles")]
    Doctor(doctor::Arguments),
    #[cfg(feature = "roles")]
    Inspect(inspect::Arguments),
    #[cfg(feature = "roles")]
    Transfer(key_transfer::Arguments),
    /// Write completions for a shell to standard output
    #[command(after_help = COMPLETIONS)]
    Completions {
        /// The shell
        #[arg(value_enum)]
        shell: Shell,
    },
    /// Write a man page for every command
    #[command(after_help = MAN)]
    Man {
        /// The directory to write to
        #[arg(value_name = "DIR")]
        dir: PathBuf,
    },
}

const COMPLETIONS: &str = "Examples:
  vouchsafe completions bash > ~/.local/share/bash-completion/completions/vouchsafe
  vouchsafe completions zsh | sudo tee /usr/local/share/zsh/site-functions/_vouchsafe > /dev/null
  vouchsafe completions fish > ~/.config/fish/completions/vouchsafe.fish";
const MAN: &str = "Example:
  sudo mkdir -p /usr/local/share/man/man1 && sudo vouchsafe man /usr/local/share/man/man1";

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    start_logs(arguments.log_format);
    let done = match arguments.command {
        // These commands block, and one of them forks, which requires that the process has one thread.
        Command::Reach(command) => user::reach(command),
        Command::Completions { shell } => completions(shell),
        Command::Man { dir } => man(&dir),
        command => match runtime(&command) {
            Ok(runtime) => runtime.block_on(run(command)),
            Err(error) => Err(error.into()),
        },
    };
    done.unwrap_or_else(|error| cant(&error))
}

/// Returns the runtime for a command. The agent's runtime has one thread: the first packet of a connection waits for
/// the agent, and would wait longer if threads had to wake each other.
fn runtime(command: &Command) -> std::io::Result<Runtime> {
    match command {
        #[cfg(feature = "roles")]
        Command::Agent(_) => Builder::new_current_thread().enable_all().build(),
        _ => Runtime::new(),
    }
}

async fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Session(command) => user::commands::run(command).await,
        Command::Reach(_) | Command::Completions { .. } | Command::Man { .. } => {
            unreachable!("INVARIANT: `main` runs these without a runtime")
        }
        #[cfg(feature = "roles")]
        Command::Authority(command) => authority::admin::cli::run(command).await,
        #[cfg(feature = "roles")]
        Command::Verifier(command) => verifier::cli::run(command).await,
        #[cfg(feature = "roles")]
        Command::Svtep(command) => svtep::cli::run(command).await,
        #[cfg(feature = "roles")]
        Command::Agent(command) => agent::cli::run(command).await,
        #[cfg(feature = "roles")]
        Command::Doctor(arguments) => doctor::run(&arguments),
        #[cfg(feature = "roles")]
        Command::Inspect(arguments) => inspect::run(&arguments),
        #[cfg(feature = "roles")]
        Command::Transfer(arguments) => key_transfer::run(arguments).await,
    }
}

fn completions(shell: Shell) -> Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "vouchsafe", &mut script);
    match std::io::stdout().write_all(&script) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
        written => written.context("could not write the completions")?,
    }
    Ok(ExitCode::SUCCESS)
}

fn man(dir: &Path) -> Result<ExitCode> {
    clap_mangen::generate_to(Arguments::command(), dir)
        .with_context(|| format!("could not write man pages to {}", dir.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// Prints an error and returns exit code 2.
fn cant(error: &anyhow::Error) -> ExitCode {
    eprintln!("vouchsafe: {error:#}");
    ExitCode::from(2)
}

fn start_logs(format: LogFormat) {
    let filter = EnvFilter::try_from_env("VOUCHSAFE_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let logs = logs.with_ansi(std::io::stderr().is_terminal());
    match format {
        LogFormat::Text => logs.init(),
        LogFormat::Json => logs.json().init(),
    }
}

#[cfg(test)]
mod tests {
    use super::{Arguments, CommandFactory};

    #[test]
    fn the_arguments_are_well_formed() {
        Arguments::command().debug_assert();
    }
}
