//! `vouchsafe discover`: finds the authority that protects a domain, according to DNS.

use super::unexpected;
use crate::at::At;
use anyhow::Result;
use clap::Args;
use reach::protocol::{Call, Discovered, Finding, Reply};
use shell::println;
use std::process::ExitCode;

/// Show which authority a domain names
#[derive(Args, Debug)]
pub struct DiscoverArguments {
    #[command(flatten)]
    pub(super) at: At,
    /// The domain, such as example.org [default: all known domains]
    domain: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub async fn run(DiscoverArguments { at, domain, json }: DiscoverArguments) -> Result<ExitCode> {
    let domains = match at.call(Call::Discover { domain }).await? {
        Reply::Discovered { domains } => domains,
        other => return unexpected(other),
    };
    if json {
        println!("{}", serde_json::to_string_pretty(&domains)?);
    } else if domains.is_empty() {
        println!("no protected domain is known: `vouchsafe discover DOMAIN` looks one up");
    }
    for discovered in domains.iter().filter(|_| !json) {
        println!("{}", sentence(discovered));
        if !discovered.protects.is_empty() {
            let networks: Vec<_> = discovered.protects.iter().map(ToString::to_string).collect();
            println!("  it protects {}", networks.join(", "));
        }
    }
    Ok(if domains.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Describes a domain's record in a sentence: its source, the authority, and what the user can do.
pub(super) fn sentence(discovered: &Discovered) -> String {
    let Discovered { domain, authority, at_home, allowed, .. } = discovered;
    let heard = match discovered.finding {
        Finding::Asked => "",
        Finding::Overheard => " (overheard: anybody could have forged it)",
    };
    let what_to_do = match (allowed, at_home) {
        (false, _) => "the configuration of this machine's agent does not permit logins there".to_owned(),
        (true, true) => format!("log in with `vouchsafe login {domain}`"),
        (true, false) => format!(
            "this authority is not within {domain}: log in there only if you know from another source that it is the \
             right one"
        ),
    };
    format!("{domain} says that {authority} protects it{heard}: {what_to_do}")
}

/// Returns the authority that a domain names, if the user may log in there. Accepts an authority only if its
/// certificate can prove that it belongs to the domain.
pub(super) async fn authority_of(at: &At, domain: &str) -> Result<Result<String, ExitCode>> {
    let reply = at.call(Call::Discover { domain: Some(domain.to_owned()) }).await?;
    let found = match reply {
        Reply::Discovered { domains } => domains.into_iter().find(|found| found.finding == Finding::Asked),
        other => return unexpected(other).map(Err),
    };
    match found {
        Some(found) if found.at_home => {
            println!("{} says that {} protects it", found.domain, found.authority);
            Ok(Ok(found.authority))
        }
        Some(found) => super::no(&format!(
            "the authority that {domain} names is not within {domain}: {}. If you know that it is the right one, log \
             in with `--authority`",
            found.authority
        ))
        .map(Err),
        None => super::no(&format!("{domain} names no authority")).map(Err),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_to_do_depends_on_who_says_it() {
        let say = |finding, at_home, allowed| {
            sentence(&Discovered {
                domain: "example.org".into(),
                authority: "https://vouch.example.net".into(),
                protects: Vec::new(),
                finding,
                at_home,
                allowed,
            })
        };
        assert!(say(Finding::Asked, true, true).ends_with("`vouchsafe login example.org`"));
        assert!(!say(Finding::Asked, false, true).contains("`vouchsafe login"));
        assert!(!say(Finding::Overheard, true, false).contains("`vouchsafe login"));
        assert!(say(Finding::Overheard, true, true).contains("anybody could have forged it"));
    }
}
