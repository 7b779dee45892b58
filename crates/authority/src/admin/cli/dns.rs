//! `vouchsafe authority dns`: runs the name server, or prints the discovery record for another name server.

use super::At;
use crate::dns::{Published, Server};
use anyhow::Result;
use clap::Args;
use shell::{print, println};
use std::net::SocketAddr;
use std::process::ExitCode;
use tokio::signal::unix::{SignalKind, signal};

/// Serve the domain of [dns] with the record by which agents find this authority, or print that record
#[derive(Args, Debug)]
pub struct DnsArguments {
    #[command(flatten)]
    at: At,
    /// Print the record, and SRV records of `servers`, as zone file lines for another name server, and serve nothing
    #[arg(long, conflicts_with = "listen")]
    record: bool,
    /// Listen at this address instead of the configured ones; may be repeated
    #[arg(long, value_name = "ADDR:PORT")]
    listen: Vec<SocketAddr>,
}

pub(super) async fn run(DnsArguments { at, record, listen }: DnsArguments) -> Result<ExitCode> {
    let directory = at.directory();
    let published = Published::read(&directory)?;
    if record {
        print!("{}{}", published.record.zone_lines(&published.domain, published.ttl), published.server_lines());
        return Ok(ExitCode::SUCCESS);
    }
    let domain = published.domain;
    let mut server = Server::start(directory, &listen).await?;
    let addresses: Vec<_> = server.addresses().iter().map(SocketAddr::to_string).collect();
    println!("answering for {domain} on {}", addresses.join(", "));
    let (mut interrupt, mut terminate, mut hang_up) =
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?, signal(SignalKind::hangup())?);
    loop {
        tokio::select! {
            _ = interrupt.recv() => return Ok(ExitCode::SUCCESS),
            _ = terminate.recv() => return Ok(ExitCode::SUCCESS),
            _ = hang_up.recv() => server.reload(),
            error = server.run() => return Err(error),
        }
    }
}
