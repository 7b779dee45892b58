//! `vouchsafe inspect`: finds tokens and other parts of Vouchsafe in a packet capture, and explains them packet by
//! packet. Only a verifier can check whether a token's tag is valid. Records of sealed tunnels are opened with keys
//! that an agent exported for debugging.
//!
//! The module [`capture`] reads the packets for this command and for `vouchsafe verifier explain`:
//!
//! ```no_run
//! use inspect::capture;
//! use std::path::Path;
//! use wire::packet::Packet;
//!
//! capture::read(Path::new("first.pcap"), |frame| {
//!     let packet = Packet::parse(&frame.bytes);
//!     println!("{}: {:?} sends {} bytes to {:?}", frame.number, packet.source, frame.length, packet.destination);
//!     Ok(())
//! })?;
//! # anyhow::Ok(())
//! ```
#![forbid(unsafe_code)]

pub mod capture;
mod content;
mod flows;
#[cfg(feature = "seal")]
mod keys;
#[cfg(not(feature = "seal"))]
#[path = "keyless.rs"]
mod keys;
mod line;
mod packet;
mod text;
mod tunnel;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

const EXAMPLES: &str = "Examples:
  sudo tcpdump -i eth0 -w first.pcap 'tcp[tcpflags] & tcp-syn != 0 or udp or proto 4'
  vouchsafe inspect first.pcap
  vouchsafe inspect --only --json first.pcap | jq 'select(.remarks != [])'
  sudo tcpdump -i eth0 -U -w - | vouchsafe inspect -
  vouchsafe inspect --keys /root/seal.keys tunnel.pcap
For Wireshark and tshark there is a dissector: packaging/wireshark/vouchsafe.lua.";

/// Explain a packet capture: tokens, their carriers, the flows they open, a verifier's objections
///
/// Reads pcap and pcapng files with Ethernet, Linux cooked and raw IP captures. Needs no keys and shows none: only the
/// verifier can check whether a tag is valid (`vouchsafe verifier drops`). Records of sealed tunnels stay closed
/// without the keys that the agent exported. Times are compared with the capture's clock. Exit code 1 if the capture
/// contains nothing of Vouchsafe.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// The capture; `-` for standard input
    file: PathBuf,
    /// Show only packets with content of Vouchsafe or with remarks
    #[arg(long)]
    only: bool,
    /// Open the records of sealed tunnels with the keys in this file, which an agent exported for debugging
    #[arg(long, value_name = "FILE")]
    keys: Option<PathBuf>,
    /// Print JSON, one object per packet
    #[arg(long)]
    json: bool,
}

/// Prints an explanation of each packet. The exit code is 1 if the capture contains nothing of Vouchsafe.
///
/// # Errors
///
/// Fails if the capture or the file of keys can't be read, or if standard output can't be written.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let keys = arguments.keys.as_deref().map(keys::KeyFile::read).transpose()?;
    let (mut flows, mut totals) = (flows::Flows::new(keys), text::Totals::default());
    capture::read(&arguments.file, |frame| {
        let packet = flows.explain(&frame);
        totals.add(&packet);
        if arguments.only && packet.content.is_none() && packet.tunnel.is_none() && packet.remarks.is_empty() {
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
