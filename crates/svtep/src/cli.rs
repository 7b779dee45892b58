//! `vouchsafe svtep …`: parses arguments and prints results. The module `daemon` does the work; queries go to the
//! daemon's control socket.

use crate::check;
use crate::control::{self, Request};
use crate::daemon;
use crate::directory::Directory;
use crate::settings::{self, DEFAULT_CONFIG, DEFAULT_INSTANCE, Flags, Settings};
use crate::view::{self, Counter};
use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use datapath::Pins;
use serde::Serialize;
use shell::table::{Table, count, utc};
use shell::{print, println};
use std::path::PathBuf;
use std::process::ExitCode;

const RUN: &str = "Examples:
  vouchsafe svtep template | sudo tee /etc/vouchsafe/svtep.toml > /dev/null
  vouchsafe svtep enrol --authority https://authority.example.org:8443 --ca ca.pem --code CODE
  vouchsafe svtep check && vouchsafe svtep run";

/// Run a tunnel endpoint: connect tenants to virtual networks in which receivers consent to senders
#[derive(Subcommand, Debug)]
pub enum SvtepCommand {
    /// Enrol this endpoint at its authority, as the verifier of the packets that it receives
    Enrol(Enrol),
    /// Run the daemon. When it ends, its kernel programs keep running; see `detach`
    #[command(after_help = RUN)]
    Run(Box<Run>),
    /// Check settings, keys and interfaces, compare tenants with the authority's configuration, and report faults; exit
    /// code 1 if there are any
    Check {
        /// The settings
        #[command(flatten)]
        run: Box<Run>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Print a template of the settings file
    Template,
    /// Show tenants, sessions, keys and counters, and the connection to the authority
    Status(Look),
    /// List the segments with which tenants send, and the requests that the authority refused
    Segments(Look),
    /// Detach from every interface and remove all kernel state, whether the daemon runs or not; a running daemon stops
    Detach(Daemon),
}

/// Enrolment at an authority
#[derive(Args, Debug)]
pub struct Enrol {
    /// Name of the tunnel endpoint, if there are several on this host
    #[arg(long, value_name = "NAME", env = "VOUCHSAFE_SVTEP_INSTANCE", default_value = DEFAULT_INSTANCE, value_parser = settings::instance)]
    instance: String,
    /// Directory of the enrolment [default: /var/lib/vouchsafe/svtep, or svtep-NAME for another instance]
    #[arg(long, value_name = "DIR", env = "VOUCHSAFE_SVTEP_DIR")]
    dir: Option<PathBuf>,
    /// The authority: https://HOST:PORT, or a name for which DNS lists its servers (SRV) and which its certificate has
    #[arg(long, value_name = "URL|NAME", env = "VOUCHSAFE_AUTHORITY")]
    authority: String,
    /// The CA certificate to trust for the authority [default: the system's]
    #[arg(long, value_name = "FILE", env = "VOUCHSAFE_CA")]
    ca: Option<PathBuf>,
    /// The one-time code that `vouchsafe authority verifier add` printed
    #[arg(long, env = "VOUCHSAFE_CODE", hide_env_values = true)]
    code: String,
    /// Enrol again although this endpoint is enrolled already
    #[arg(long)]
    again: bool,
}

/// The settings
#[derive(Args, Debug)]
pub struct Run {
    /// Read settings and tenants from this file
    #[arg(long, value_name = "FILE", env = "VOUCHSAFE_SVTEP_CONFIG", default_value = DEFAULT_CONFIG)]
    config: PathBuf,
    /// Settings that override those in the file
    #[command(flatten)]
    flags: Flags,
}

/// The daemon that a command concerns
#[derive(Args, Debug)]
pub struct Daemon {
    /// Name of the tunnel endpoint, if there are several on this host
    #[arg(long, value_name = "NAME", env = "VOUCHSAFE_SVTEP_INSTANCE", default_value = DEFAULT_INSTANCE, value_parser = settings::instance)]
    instance: String,
    /// The daemon's socket [default: /run/vouchsafe/svtep.sock, or svtep-NAME.sock for another instance]
    #[arg(long, value_name = "PATH", env = "VOUCHSAFE_SVTEP_SOCKET")]
    socket: Option<PathBuf>,
}

/// A query to the daemon
#[derive(Args, Debug)]
pub struct Look {
    /// The daemon to query
    #[command(flatten)]
    daemon: Daemon,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Executes the command. The exit code is 1 if `check` finds a fault or `detach` finds nothing; errors yield exit code
/// 2.
///
/// # Errors
///
/// Fails if the arguments or settings are invalid, if the daemon can't start, or if the queried daemon does not answer.
pub async fn run(command: SvtepCommand) -> Result<ExitCode> {
    match command {
        SvtepCommand::Enrol(enrol) => {
            let dir = enrol.dir.unwrap_or_else(|| settings::default_dir(&enrol.instance));
            let directory = Directory::at(dir);
            if directory.enrolment()?.is_some() && !enrol.again {
                bail!("{} holds an enrolment already: use --again to enrol again", directory.path().display());
            }
            let enrolment = directory.enrol(&enrol.authority, enrol.ca.as_deref(), &enrol.code).await?;
            println!("enrolled as {}", enrolment.verifier);
            Ok(ExitCode::SUCCESS)
        }
        SvtepCommand::Run(run) => {
            let settings = Settings::load(run.flags, &run.config)?;
            let directory = Directory::at(&settings.dir);
            let enrolment = directory.enrolment()?.with_context(|| {
                format!("{} names no authority: run `vouchsafe svtep enrol`", directory.path().display())
            })?;
            daemon::run(settings, directory, enrolment).await
        }
        SvtepCommand::Check { run, json } => check(*run, json).await,
        SvtepCommand::Template => {
            print!("{}", settings::TEMPLATE);
            Ok(ExitCode::SUCCESS)
        }
        SvtepCommand::Status(look) => {
            let status: view::Status = look.ask(Request::Status).await?;
            look.show(&status, show_status)
        }
        SvtepCommand::Segments(look) => {
            let segments: Vec<view::Segment> = look.ask(Request::Segments).await?;
            look.show(&segments, |segments| print!("{}", segment_table(segments)))
        }
        SvtepCommand::Detach(daemon) => detach(&daemon).await,
    }
}

async fn check(run: Run, json: bool) -> Result<ExitCode> {
    let settings = Settings::load(run.flags, &run.config)?;
    let found = check::check(&settings).await;
    if json {
        println!("{}", serde_json::to_string_pretty(&found)?);
    } else {
        let rows =
            found.iter().map(|one| vec![one.subject.clone(), one.fault.clone().unwrap_or_else(|| "ok".to_owned())]);
        print!("{}", Table::new(&["CHECKED", "FOUND"], rows));
    }
    let is_fine = found.iter().all(|one| one.fault.is_none());
    Ok(if is_fine { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn detach(daemon: &Daemon) -> Result<ExitCode> {
    if let Some(done) = control::try_ask::<String>(&daemon.socket(), Request::Detach).await? {
        println!("{done}");
        return Ok(ExitCode::SUCCESS);
    }
    match Pins::existing("svtep", &daemon.instance) {
        Some(pins) => {
            let _lock = pins.lock()?;
            pins.remove()?;
            println!("detached: tenants are no longer connected to any network");
            Ok(ExitCode::SUCCESS)
        }
        None => {
            println!("nothing to detach: the kernel holds no state of tunnel endpoint {}", daemon.instance);
            Ok(ExitCode::FAILURE)
        }
    }
}

impl Daemon {
    fn socket(&self) -> PathBuf {
        self.socket.clone().unwrap_or_else(|| settings::default_socket(&self.instance))
    }
}

impl Look {
    async fn ask<T: serde::de::DeserializeOwned>(&self, request: Request) -> Result<T> {
        let socket = self.daemon.socket();
        let Some(answer) = control::try_ask(&socket, request).await? else {
            let state = match Pins::existing("svtep", &self.daemon.instance) {
                Some(_) => "; current segments stay in use without the daemon (`vouchsafe svtep detach` removes them)",
                None => "",
            };
            bail!(
                "no tunnel endpoint listens at {}: start `vouchsafe svtep run`, or check `--socket` and \
                 `--instance`{state}",
                socket.display()
            )
        };
        Ok(answer)
    }

    fn show<T: Serialize>(&self, answer: &T, show: impl FnOnce(&T)) -> Result<ExitCode> {
        if self.json {
            println!("{}", serde_json::to_string_pretty(answer)?);
        } else {
            show(answer);
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn or_dash(text: Option<String>) -> String {
    text.unwrap_or_else(|| "-".to_owned())
}

fn show_status(status: &view::Status) {
    let connected = if status.connected { "connected" } else { "not connected" };
    let keys = match status.keys_until {
        _ if status.closed => {
            "removed, because there was no room for a withdrawal of consent: nothing is delivered".to_owned()
        }
        Some(until) => utc(until),
        None => "none for the current epoch: nothing is delivered".to_owned(),
    };
    let addresses: Vec<_> = status.addresses.iter().map(ToString::to_string).collect();
    let mut rows = vec![
        ("endpoint", format!("{} (instance {})", status.verifier, status.instance)),
        ("authority", format!("{}, {connected}", status.in_use.as_ref().unwrap_or(&status.authority))),
        ("trouble", or_dash(status.trouble.clone())),
        ("read", status.read.map_or("-".into(), utc)),
        ("keys until", keys),
        ("withdrawn", count(status.withdrawn as usize, "statement")),
        ("underlay", format!("{}, {}, MTU {}", status.underlay, addresses.join(" "), status.mtu)),
        ("open", count(status.open as usize, "question")),
    ];
    let others: Vec<_> =
        status.authorities.iter().filter(|url| Some(*url) != status.in_use.as_ref()).cloned().collect();
    if !others.is_empty() {
        rows.insert(2, ("others", others.join(" ")));
    }
    for (name, text) in rows {
        println!("{name:12}{}", text.replace(char::is_control, "?"));
    }
    let tenants = status.tenants.iter().map(|tenant| {
        let addresses: Vec<_> = tenant.addresses.iter().map(ToString::to_string).collect();
        let session = match (&tenant.trouble, tenant.logged_in) {
            (Some(trouble), _) => trouble.clone(),
            (None, true) => "logged in".to_owned(),
            (None, false) => "not logged in yet".to_owned(),
        };
        vec![
            tenant.interface.clone(),
            tenant.id.to_string(),
            format!("{} ({})", tenant.network, tenant.vni),
            addresses.join(" "),
            tenant.not_attached.clone().unwrap_or_else(|| "attached".to_owned()),
            format!("{}: {session}", tenant.service),
            tenant.segments.to_string(),
        ]
    });
    const HEAD: [&str; 7] = ["INTERFACE", "ID", "NETWORK", "ADDRESSES", "STATE", "SERVICE", "SEGMENTS"];
    print!("\n{}", Table::new(&HEAD, tenants));
    let refused = status.tenants.iter().filter_map(|tenant| {
        let refused = tenant.refused.as_ref()?;
        Some(vec![tenant.interface.clone(), utc(refused.at), refused.why.clone()])
    });
    let refused = Table::new(&["LAST REFUSAL", "AT", "WHY"], refused);
    if status.tenants.iter().any(|tenant| tenant.refused.is_some()) {
        print!("\n{refused}");
    }
    if !status.paths.is_empty() {
        let paths = status.paths.iter().map(|path| {
            let state = if path.answered { "answers" } else { "no answer yet" };
            let number = format!("{} (of paths 0 to {})", path.number, path.others);
            vec![path.endpoint.to_string(), number, state.to_owned(), path.changed.map_or("-".into(), utc)]
        });
        print!("\n{}", Table::new(&["PATHS TO", "IN USE", "STATE", "CHANGED"], paths));
    }
    let counted = |counters: &[Counter], kind: &str| -> Vec<_> {
        let some = counters.iter().filter(|one| one.count > 0);
        some.map(|one| vec![kind.to_owned(), one.name.clone(), one.count.to_string()]).collect()
    };
    let rows = [
        counted(&status.packets, "packets"),
        counted(&status.passed, "proofs"),
        counted(&status.reasons, "dropped proofs"),
        counted(&status.answers, "answers"),
    ];
    print!("\n{}", Table::new(&["COUNTED", "", ""], rows.into_iter().flatten()));
}

fn segment_table(segments: &[view::Segment]) -> Table {
    let rows = segments.iter().map(|segment| {
        let port = segment.port.map_or_else(|| "-".to_owned(), |port| port.to_string());
        let service = match segment.protocol {
            None => "all".to_owned(),
            Some(6) => format!("tcp/{port}"),
            Some(17) => format!("udp/{port}"),
            Some(other) => other.to_string(),
        };
        let flow = segment.other_port.map_or(String::new(), |port| format!(" with {port}"));
        let back = if segment.back { " (answers)" } else { "" };
        vec![
            segment.interface.clone(),
            segment.network.clone(),
            format!("{} to {}", segment.sender, segment.receiver),
            format!("{service}{flow}{back}"),
            segment.why.as_ref().map_or_else(|| segment.state.clone(), |why| format!("{}: {why}", segment.state)),
            or_dash(segment.endpoint.map(|address| address.to_string())),
            or_dash(segment.path.map(|path| path.to_string())),
            segment.until.map_or("-".into(), utc),
            segment.used.map_or("-".into(), utc),
        ]
    });
    const HEAD: [&str; 9] =
        ["INTERFACE", "NETWORK", "FROM AND TO", "SERVICE", "STATE", "ENDPOINT", "PATH", "UNTIL", "USED"];
    Table::new(&HEAD, rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory, Parser};

    #[derive(Parser, Debug)]
    struct Program {
        #[command(subcommand)]
        command: SvtepCommand,
    }

    #[test]
    fn the_command_line_is_consistent() {
        Program::command().debug_assert();
        let parse = |line: &str| Program::try_parse_from(["svtep"].into_iter().chain(line.split(' ')));
        assert!(parse("run --config x.toml --underlay eth1 --address 192.0.2.1 --mtu 1500").is_ok());
        assert!(parse("run --mtu 100").is_err() && parse("run --address x").is_err());
        assert!(parse("enrol --instance two --authority https://a --code x").is_ok());
        assert!(parse("segments --instance two --json").is_ok() && parse("segments --instance ../x").is_err());
    }

    #[test]
    fn a_segment_is_listed_by_whom_it_is_for() {
        let segment = view::Segment {
            interface: "t1".into(),
            network: "blue".into(),
            sender: [10, 0, 0, 1].into(),
            receiver: [10, 0, 0, 2].into(),
            protocol: Some(6),
            port: Some(443),
            other_port: Some(4711),
            back: true,
            state: "given".into(),
            why: None,
            endpoint: Some([192, 0, 2, 2].into()),
            path: Some(1),
            until: Some(0),
            used: None,
        };
        let refused = view::Segment { state: "refused".into(), why: Some("no rule".into()), ..segment.clone() };
        assert!(segment_table(&[refused]).to_string().contains("refused: no rule"));
        let shown = segment_table(&[segment]).to_string();
        assert!(shown.contains("10.0.0.1 to 10.0.0.2  tcp/443 with 4711 (answers)  given  192.0.2.2  1 "), "{shown}");
    }
}
