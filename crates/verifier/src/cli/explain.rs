//! `verifier explain`: answers whether a packet would pass, or whether a person would get a grant, and why.

use super::{Look, NO};
use crate::control::{Request, Requester};
use crate::view;
use anyhow::{Context, Result};
use api::PersonExplanation;
use clap::Args;
use engine::model::protocol;
use serde::Serialize;
use shell::table::Table;
use shell::{print, println};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

pub const EXAMPLES: &str = "Examples:
  vouchsafe verifier explain --from 203.0.113.7:5000 --to 203.0.113.10:22
  vouchsafe verifier explain --person alice --to 203.0.113.10:443 --protocol udp
  vouchsafe verifier explain --person alice --device laptop --group staff --to 203.0.113.10:22
  vouchsafe verifier explain --packet first.pcap
  vouchsafe verifier explain --frame HEX";

/// A question about a packet or a person
#[derive(Args, Debug)]
pub struct Question {
    /// The packet or person to explain
    #[command(flatten)]
    subject: Subject,
    /// Assumed facts about the person
    #[command(flatten)]
    besides: Besides,
    /// The server's address and port
    #[arg(long, value_name = "ADDR:PORT", required_unless_present_any = ["frame", "packet"])]
    to: Option<SocketAddr>,
    /// tcp, udp or a number
    #[arg(long, default_value = "tcp", value_parser = protocol::parse)]
    protocol: u8,
}

/// The packet or person to explain
#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
pub struct Subject {
    /// Would a packet from this client pass?
    #[arg(long, value_name = "ADDR:PORT")]
    from: Option<SocketAddr>,
    /// Would this Ethernet frame pass? The answer takes the frame's token into account
    #[arg(long, value_name = "HEX")]
    frame: Option<String>,
    /// Would the packets of this capture pass (pcap or pcapng; `-` is standard input)? Each packet is evaluated alone,
    /// with the time of its capture and the present tables
    #[arg(long, value_name = "FILE")]
    packet: Option<PathBuf>,
    /// Would this person get a grant?
    #[arg(long, value_name = "NAME")]
    person: Option<String>,
}

/// Assumed facts about a person, in addition to those that the authority knows
#[derive(Args, Debug)]
pub struct Besides {
    /// Assume that the person uses this device, so that the device's tags apply
    #[arg(long, value_name = "NAME", requires = "person", conflicts_with_all = ["from", "frame", "packet"])]
    device: Option<String>,
    /// Assume that the person is in this group, too; may be repeated
    #[arg(long = "group", value_name = "NAME", requires = "person", conflicts_with_all = ["from", "frame", "packet"])]
    groups: Vec<String>,
    /// Assume that the person's device has this tag, too; may be repeated
    #[arg(long = "tag", value_name = "NAME", requires = "person", conflicts_with_all = ["from", "frame", "packet"])]
    tags: Vec<String>,
    /// Assume that the person sends the request from this address
    #[arg(long = "address", value_name = "ADDR", requires = "person", conflicts_with_all = ["from", "frame", "packet"])]
    source: Option<IpAddr>,
    /// Ask the authority of this organisation [default: the first one that may speak for the server]
    #[arg(long, value_name = "NAME", requires = "person", conflicts_with_all = ["from", "frame", "packet"])]
    organisation: Option<String>,
}

/// A packet of a capture and the verifier's verdict.
#[derive(Serialize)]
struct PacketVerdict {
    number: u64,
    #[serde(flatten)]
    verdict: view::Verdict,
}

/// Sends the question to the daemon and prints the answer. The exit code is 1 if the answer is no, or if a packet of a
/// capture would not pass.
pub async fn run(look: &Look, Question { subject, besides, to, protocol }: Question) -> Result<ExitCode> {
    let to_or = || to.context("--to is missing");
    let yes = match subject {
        Subject { person: Some(person), .. } => {
            let Besides { device, groups, tags, source, organisation } = besides;
            let requester = Requester { person, device, groups, tags, source, organisation };
            let request = Request::ExplainPerson { requester, to: to_or()?, protocol };
            let answer: PersonExplanation = look.daemon.ask(&request).await?;
            look.show(&answer, |PersonExplanation { explanation, taken }| {
                println!("{}", explanation.text);
                taken.iter().for_each(|line| println!("  {line}"));
            })?;
            answer.explanation.allowed
        }
        Subject { packet: Some(file), .. } => capture(look, &file).await?,
        Subject { frame: Some(frame), .. } => verdict(look, &Request::ExplainFrame { frame, time: None }).await?,
        Subject { from, .. } => {
            let from = from.context("--from is missing")?;
            verdict(look, &Request::ExplainPacket { from, to: to_or()?, protocol }).await?
        }
    };
    Ok(if yes { ExitCode::SUCCESS } else { NO })
}

async fn verdict(look: &Look, request: &Request) -> Result<bool> {
    let verdict: view::Verdict = look.daemon.ask(request).await?;
    look.show(&verdict, show)?;
    Ok(verdict.passes)
}

/// Prints a verdict for each packet of a capture; returns whether all would pass.
async fn capture(look: &Look, file: &Path) -> Result<bool> {
    let mut frames = Vec::new();
    inspect::capture::read(file, |frame| {
        frames.push(frame);
        Ok(())
    })?;
    let mut all_pass = true;
    for frame in frames {
        anyhow::ensure!(!frame.cut, "packet {} is truncated in the capture: capture with -s 0", frame.number);
        let time = Some(frame.time.0).filter(|time| *time != 0);
        let request = Request::ExplainFrame { frame: hex::encode(&frame.bytes), time };
        let packet = PacketVerdict { number: frame.number, verdict: look.daemon.ask(&request).await? };
        all_pass &= packet.verdict.passes;
        match look.json {
            true => println!("{}", serde_json::to_string(&packet)?),
            false => {
                println!("packet {}", packet.number);
                show(&packet.verdict);
            }
        }
    }
    Ok(all_pass)
}

fn show(verdict: &view::Verdict) {
    let rows = verdict.checks.iter().map(|check| {
        let passed = if check.passed { "yes" } else { "no" };
        vec![check.name.clone(), passed.into(), check.text.clone()]
    });
    print!("{}", Table::new(&["CHECK", "", "FOUND"], rows));
    println!("{}", verdict.text);
}

#[cfg(test)]
mod tests {
    use crate::cli::VerifierCommand;
    use clap::Parser;

    #[derive(Parser, Debug)]
    struct Program {
        #[command(subcommand)]
        _command: VerifierCommand,
    }

    fn is_valid(line: &str) -> bool {
        Program::try_parse_from(["verifier"].into_iter().chain(line.split(' '))).is_ok()
    }

    #[test]
    fn explain_asks_one_thing() {
        assert!(is_valid("explain --from 1.2.3.4:5 --to [::1]:22 --protocol udp"));
        assert!(is_valid("explain --person alice --to 1.2.3.4:22"));
        assert!(is_valid("explain --frame 00"));
        assert!(is_valid("explain --packet first.pcap") && is_valid("explain --packet -"));
        assert!(!is_valid("explain --packet first.pcap --frame 00"));
        assert!(!is_valid("explain --to 1.2.3.4:22"));
        assert!(!is_valid("explain --person alice"));
        assert!(is_valid("explain --person a --device b --group c --group d --tag e --address ::1 --to 1.2.3.4:22"));
        assert!(!is_valid("explain --from 1.2.3.4:5 --to 1.2.3.4:22 --tag e"));
        assert!(!is_valid("explain --person alice --from 1.2.3.4:5 --to 1.2.3.4:22"));
        assert!(!is_valid("explain --from 1.2.3.4:5 --to 1.2.3.4:22 --protocol tpc"));
    }
}
