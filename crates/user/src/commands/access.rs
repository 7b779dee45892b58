//! `vouchsafe access …`: asks for access to receivers for which somebody else decides.

use super::words::left;
use super::{done, unexpected};
use crate::at::At;
use anyhow::Result;
use api::Requestable;
use clap::{Args, Subcommand};
use engine::document::seconds;
use engine::model::Service;
use engine::policy::{parse_service, service};
use ipnet::IpNet;
use reach::protocol::{AccessCall, Call, Reply};
use shell::table::Table;
use shell::{print, println};
use std::net::IpAddr;
use std::process::ExitCode;

const ASK: &str = "Examples:
  vouchsafe access ask db-3 --service tcp/5432 --for 8h --reason 'migration of the invoices'
  vouchsafe access ask wiki";

/// Ask for access to receivers for which somebody else decides
#[derive(Subcommand, Debug)]
pub enum AccessCommand {
    /// Ask for access to a receiver
    #[command(after_help = ASK)]
    Ask(AskArguments),
    /// List your requests, and the receivers for which you can ask
    List {
        /// The agent's socket, and the user whose session is concerned
        #[command(flatten)]
        at: At,
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// List older requests, from the place that the previous list named at its end
        #[arg(long, value_name = "PLACE")]
        before: Option<String>,
    },
    /// Withdraw a request; if it was allowed, your access ends
    Withdraw {
        /// The agent's socket, and the user whose session is concerned
        #[command(flatten)]
        at: At,
        /// The number of the request, as `access list` shows it
        #[arg(value_name = "NUMBER")]
        id: String,
    },
}

/// A request for access
#[derive(Args, Debug)]
pub struct AskArguments {
    #[command(flatten)]
    at: At,
    /// Name of the receiver, as `access list` shows it
    receiver: String,
    /// A service such as tcp/22; may be repeated [default: all for which you can ask]
    #[arg(long = "service", value_name = "SERVICE")]
    services: Vec<String>,
    /// How long you want access, such as 8h or 3d [default: the person who decides chooses]
    #[arg(long = "for", value_name = "TIME", value_parser = lifetime)]
    lifetime: Option<u32>,
    /// The reason, for whoever decides
    #[arg(long, value_name = "TEXT", default_value = "")]
    reason: String,
}

fn lifetime(text: &str) -> Result<u32, String> {
    seconds(text).ok_or_else(|| "write a time such as 90m, 8h or 3d".to_owned())
}

impl AccessCommand {
    /// Returns where the command finds the session.
    pub(super) fn at(&mut self) -> &mut At {
        match self {
            Self::Ask(arguments) => &mut arguments.at,
            Self::List { at, .. } | Self::Withdraw { at, .. } => at,
        }
    }
}

pub(super) async fn run(command: AccessCommand) -> Result<ExitCode> {
    match command {
        AccessCommand::Ask(AskArguments { at, receiver, services, lifetime, reason }) => {
            done(at.call(Call::Access(AccessCall::Ask { receiver, services, lifetime, reason })).await?)
        }
        AccessCommand::List { at, json, before } => list(&at, json, before).await,
        AccessCommand::Withdraw { at, id } => done(at.call(Call::Access(AccessCall::Withdraw { id })).await?),
    }
}

async fn list(at: &At, json: bool, before: Option<String>) -> Result<ExitCode> {
    let list = match at.call(Call::Access(AccessCall::List { before })).await? {
        Reply::Access(list) => list,
        other => return unexpected(other),
    };
    if json {
        println!("{}", serde_json::to_string_pretty(&list)?);
        return Ok(ExitCode::SUCCESS);
    }
    let requests = list.requests.iter().map(|request| {
        let ends = request.until.filter(|_| request.state == "allowed").map(|until| left(until, list.now));
        vec![
            request.id.clone(),
            request.state.clone(),
            request.receiver.clone(),
            request.services.join(" "),
            request.by.clone().unwrap_or_else(|| "-".to_owned()),
            ends.unwrap_or_else(|| "-".to_owned()),
            request.note.clone().unwrap_or_default(),
        ]
    });
    print!("{}", Table::new(&["NUMBER", "STATE", "RECEIVER", "SERVICES", "BY", "ENDS IN", "NOTE"], requests));
    if let Some(next) = &list.next {
        println!("\nolder requests: vouchsafe access list --before {next}");
    }
    let receivers = list.requestable.iter().map(|one| {
        let addresses: Vec<_> = one.addresses.iter().map(written).collect();
        vec![one.receiver.clone(), one.services.join(" "), addresses.join(" ")]
    });
    print!("\n{}", Table::new(&["YOU CAN ASK FOR", "SERVICES", "ADDRESSES"], receivers));
    Ok(ExitCode::SUCCESS)
}

/// Returns the command by which a user asks for access to a destination, if there is one.
pub(super) async fn way_to_ask(at: &At, address: IpAddr, protocol: u8, port: u16) -> Option<String> {
    let Ok(Reply::Access(list)) = at.call(Call::Access(AccessCall::List { before: None })).await else { return None };
    let covers = |text: &String| parse_service(text).is_ok_and(|service| service.covers(protocol, port));
    let is_it =
        |one: &&Requestable| one.addresses.iter().any(|net| net.contains(&address)) && one.services.iter().any(covers);
    let found = list.requestable.iter().find(is_it)?;
    let service = service(&Service { protocol, first_port: port, last_port: port });
    Some(format!("vouchsafe access ask {} --service {service}", found.receiver))
}

/// Returns a network as text. If the network is a single address, returns the address.
fn written(net: &IpNet) -> String {
    if net.prefix_len() == net.max_prefix_len() { net.addr().to_string() } else { net.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::document::duration;

    #[test]
    fn a_time_is_read_as_it_is_written() {
        assert_eq!(lifetime("8h").map(duration), Ok("8h".to_owned()));
        assert!(lifetime("8").is_err() && lifetime("").is_err());
    }
}
