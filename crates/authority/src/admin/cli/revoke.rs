//! `vouchsafe authority revoke`: ends grants and sessions, and says which verifiers have not confirmed it.

use super::{At, WRITE_DEVICE};
use crate::admin::{self, Revoked};
use crate::cluster::confirm::Followed;
use crate::storage::{RevokedCounts, Which};
use anyhow::{Context, Result, bail};
use clap::Args;
use serde::Serialize;
use shell::println;
use shell::table::count;
use std::process::ExitCode;

/// Arguments of `vouchsafe authority revoke`.
#[derive(Args, Debug)]
pub struct RevokeArguments {
    /// The authority's directory
    #[command(flatten)]
    at: At,
    /// The grants to end
    #[command(flatten)]
    which: Revocation,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The grants and sessions to end
#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
struct Revocation {
    /// One grant, by its handle
    #[arg(long, value_name = "HANDLE")]
    grant: Option<String>,
    /// All sessions and grants of a person
    #[arg(long)]
    person: Option<String>,
    /// All sessions and grants of one device of a person
    #[arg(long, value_name = "PERSON/DEVICE")]
    device: Option<String>,
}

impl Revocation {
    fn which(self) -> Result<Which> {
        if let Some(handle) = self.grant {
            let handle =
                handle.parse().ok().context("a handle has 16 hex digits, as `vouchsafe authority grants` shows it")?;
            return Ok(Which::Grant(handle));
        }
        match (self.person, self.device.as_deref().and_then(|device| device.split_once('/'))) {
            (Some(person), _) => Ok(Which::Person(person)),
            (None, Some((person, device))) => Ok(Which::Device(person.into(), device.into())),
            (None, None) => bail!(WRITE_DEVICE),
        }
    }
}

/// The outcome as JSON.
#[derive(Serialize)]
struct Outcome<'a> {
    sessions: usize,
    grants: usize,
    /// Whether the running server has announced the revocation.
    announced: bool,
    /// Whether the revocation is in force at every member and at every enrolled verifier.
    complete: bool,
    followed: &'a Followed,
}

/// Ends the grants and sessions. Returns exit code 1 if there is nothing to revoke, or if a connected verifier or a
/// running member of the cluster has not confirmed the revocation.
pub async fn run(arguments: RevokeArguments) -> Result<ExitCode> {
    let RevokeArguments { at, which, json } = arguments;
    let which = which.which()?;
    if !at.database()?.has(&which)? {
        let says = unknown(&which);
        if json {
            eprintln!("{says}");
        } else {
            println!("{says}");
        }
        return Ok(ExitCode::FAILURE);
    }
    let Revoked { counts: RevokedCounts { sessions, grants }, announced, followed } =
        admin::revoke(&at.directory(), &which).await?;
    let complete = announced && followed.is_complete();
    let code = if followed.is_late() { ExitCode::FAILURE } else { ExitCode::SUCCESS };
    if json {
        let outcome = Outcome { sessions, grants, announced, complete, followed: &followed };
        println!("{}", serde_json::to_string_pretty(&outcome)?);
        return Ok(code);
    }
    let ended = if sessions > 0 { format!("{} ended, ", count(sessions, "session")) } else { String::new() };
    let grants = format!("{ended}{}", count(grants, "grant"));
    if !announced {
        println!(
            "{grants} revoked, but the authority is not running: verifiers receive the revocation when it starts. \
             Until then, unexpired grants stay valid, and flows continue"
        );
    } else if followed.is_late() {
        println!("{grants} revoked, but it is NOT confirmed that all connected verifiers have cut the flows");
    } else {
        let which = if complete { "all verifiers" } else { "connected verifiers" };
        println!(
            "{grants} revoked; {which} have cut the flows of these grants, and the flows of expired grants that are \
             now revoked"
        );
    }
    if !followed.is_complete() {
        eprintln!("warning: the revocation is recorded{followed}");
    }
    Ok(code)
}

/// Returns the sentence that says that the grant, device, person, service or session to revoke does not exist.
fn unknown(which: &Which) -> String {
    match which {
        Which::Grant(handle) => {
            format!("there is no grant {handle}: `vouchsafe authority grants --all` lists the grants")
        }
        Which::Device(person, device) => {
            format!("no device {person}/{device}: `vouchsafe authority device list` lists the devices")
        }
        Which::Person(person) | Which::OwnGrant(person, _) => format!(
            "no person or service {person}: `vouchsafe authority user list` and `service list` list the accounts"
        ),
        Which::Session(_) => {
            "there is no such session: `vouchsafe authority session list` lists the sessions".to_owned()
        }
    }
}
