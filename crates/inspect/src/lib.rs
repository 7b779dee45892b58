//! `vouchsafe inspect`: what a packet capture holds of Vouchsafe, packet by packet. It has no keys: whether a tag is right,
//! only a verifier knows.
#![forbid(unsafe_code)]

pub mod capture;
mod content;
mod flows;
mod packet;
mod text;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

const EXAMPLES: &str = "Examples:
  sudo tcpdump -i eth0 -w first.pcap 'tcp[tcpflags] & tcp-syn != 0 or udp or proto 4'
  vouchsafe inspect first.pcap
  vouchsafe inspect --only --json first.pcap | jq 'select(.remarks != [])'
  sudo tcpdump -i eth0 -U -w - | vouchsafe inspect -
For Wireshark and tshark there is a dissector: packaging/wireshark/vouchsafe.lua.";

/// Explain a packet capture: tokens, what carries them, the flows they open, what a verifier would object to
///
/// Reads pcap and pcapng of Ethernet, Linux cooked and raw IP captures. It needs no keys and shows none: whether a tag is
/// right, only the verifier knows (`vouchsafe verifier drops`). Times are judged by the capture's clock. Exit code 1 if
/// nothing of Vouchsafe is in the capture.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// The capture; `-` is standard input
    file: PathBuf,
    /// Only packets that hold something of Vouchsafe, or lack it where others had it
    #[arg(long)]
    only: bool,
    /// Print JSON, one object per packet
    #[arg(long)]
    json: bool,
}

/// Prints what each packet holds.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let (mut flows, mut totals) = (flows::Flows::default(), text::Totals::default());
    capture::read(&arguments.file, |frame| {
        let packet = flows.explain(&frame);
        totals.add(&packet);
        if arguments.only && packet.content.is_none() && packet.remarks.is_empty() {
            return Ok(());
        }
        match arguments.json {
            true => shell::println!("{}", serde_json::to_string(&packet)?),
            false => shell::print!("{}", text::Lines(&packet)),
        }
        Ok(())
    })?;
    if !arguments.json {
        shell::println!("{totals}");
    }
    Ok(if totals.nothing() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
