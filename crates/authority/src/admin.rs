//! Implementation of the administrative commands: each writes the database, then notifies the server if one runs.
//! Without a server, the change is recorded and takes effect at the next start.

pub mod backup;
pub mod cli;
pub(crate) mod control;

use crate::login::credentials;
use crate::policy::candidate::Candidate;
pub use crate::segments::listed::{MOST as MOST_SEGMENTS, SegmentEntry, SegmentFilter, SegmentList};
use crate::storage::{
    AuditEvent, Database, NewService, NotedHead, Operator, PolicyChange, SecondFactor, Verdict, Which,
};
use crate::{Directory, login, now, segments};
use anyhow::{Result, bail};
use api::ServiceKey;
use control::{Command, Reply};
use engine::policy::networks::Networks;
use engine::policy::{Policy, name_is_valid};
use std::collections::BTreeSet;
use std::path::Path;
use zeroize::Zeroizing;

/// Validity of an enrolment code, in seconds.
const CODE_LIFETIME: u64 = 24 * 3600;

/// Adds an account. With `totp`, returns the `otpauth://` address for an authenticator app, which is shown only here.
pub async fn add_account(
    directory: &Directory,
    person: &str,
    password: &str,
    totp: bool,
) -> Result<Option<Zeroizing<String>>> {
    check_name(person)?;
    let (account, address) = credentials::new_account(person, password, totp)?;
    Database::open(&directory.database())?.add_account(person, &account, &Operator::current(), now())?;
    Ok(address)
}

/// Change to an account's second factor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Factor {
    /// The second factor stays as it is.
    Keep,
    /// The second factor is removed.
    Remove,
    /// A new second factor replaces the old one.
    Renew,
}

/// Changes a password, ends the account's sessions and removes its passkeys. Returns the number of passkeys removed
/// and, for a new second factor, the `otpauth://` address for an authenticator app, which is shown only here.
pub async fn change_password(
    directory: &Directory,
    person: &str,
    password: &str,
    factor: Factor,
) -> Result<(usize, Option<Zeroizing<String>>)> {
    let hash = credentials::hash_password(password)?;
    let (factor, address) = match factor {
        Factor::Keep => (SecondFactor::Kept, None),
        Factor::Remove => (SecondFactor::Removed, None),
        Factor::Renew => {
            let (secret, address) = credentials::new_totp(person)?;
            (SecondFactor::New(secret), Some(address))
        }
    };
    let mut database = Database::open(&directory.database())?;
    let passkeys = database.change_password(person, &hash, &factor, &Operator::current(), now())?;
    sync(directory).await?;
    Ok((passkeys, address))
}

/// Removes an account and ends its sessions.
pub async fn remove_account(directory: &Directory, person: &str) -> Result<()> {
    Database::open(&directory.database())?.remove_account(person, &Operator::current(), now())?;
    sync(directory).await
}

/// Adds a service account and returns the key that its machine logs in with; the authority keeps no copy of this key.
pub async fn add_service(directory: &Directory, name: &str, groups: &[String], tags: &[String]) -> Result<ServiceKey> {
    check_name(name)?;
    groups.iter().chain(tags).try_for_each(|name| check_name(name))?;
    let ca = std::fs::read_to_string(directory.ca())?;
    let (key, public) = login::service::new_key(name, directory.audience()?, ca)?;
    let service = NewService { name, key: &public, groups, tags };
    Database::open(&directory.database())?.add_service(&service, &Operator::current(), now())?;
    Ok(key)
}

/// Puts a service account into these groups and no others, and re-evaluates live grants.
pub async fn set_service_groups(directory: &Directory, name: &str, groups: &[String]) -> Result<()> {
    groups.iter().try_for_each(|group| check_name(group))?;
    Database::open(&directory.database())?.set_service_groups(name, groups, &Operator::current(), now())?;
    reevaluate(directory).await
}

/// Replaces the tags of a service account and re-evaluates live grants.
pub async fn set_service_tags(directory: &Directory, name: &str, tags: &[String]) -> Result<()> {
    tags.iter().try_for_each(|tag| check_name(tag))?;
    Database::open(&directory.database())?.set_service_tags(name, tags, &Operator::current(), now())?;
    reevaluate(directory).await
}

/// Removes a service account and ends its sessions and grants.
pub async fn remove_service(directory: &Directory, name: &str) -> Result<()> {
    Database::open(&directory.database())?.remove_service(name, &Operator::current(), now())?;
    sync(directory).await
}

/// Makes the server check sessions with the identity provider now, and returns the outcome.
pub async fn renew_sessions(directory: &Directory, person: Option<String>) -> Result<String> {
    match control::send(directory, Command::RenewSessions { person }).await? {
        Some(Reply::Done(text)) => Ok(text),
        Some(Reply::Refused(why)) => bail!(why),
        None => bail!("the authority is not running: start it with `vouchsafe authority run`"),
    }
}

/// Lists the path segments in force. Only the server knows them, and only those that it issued since it started.
pub async fn segments(directory: &Directory, filter: SegmentFilter) -> Result<SegmentList> {
    match control::ask(directory, Command::Segments(filter)).await? {
        Some(Reply::Done(list)) => Ok(list),
        Some(Reply::Refused(why)) => bail!(why),
        None => bail!(
            "the authority is not running, and only a running authority knows the segments: start it with `vouchsafe \
             authority run`"
        ),
    }
}

/// Adds a verifier or renews its enrolment code. Returns the one-time code, which is shown only here.
pub async fn add_verifier(directory: &Directory, id: &str, renew: bool) -> Result<Zeroizing<String>> {
    check_name(id)?;
    let (code, hash) = credentials::new_token::<16>()?;
    let (by, now) = (Operator::current(), now());
    Database::open(&directory.database())?.add_verifier(id, hash, now + CODE_LIFETIME, renew, &by, now)?;
    Ok(code)
}

/// Removes a verifier; its token becomes invalid at once.
pub async fn remove_verifier(directory: &Directory, id: &str) -> Result<()> {
    Database::open(&directory.database())?.remove_verifier(id, &Operator::current(), now())?;
    sync(directory).await
}

/// Outcome of a revocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Revoked {
    /// Number of grants that the revocation ended.
    pub grants: usize,
    /// Whether a server runs and has notified the verifiers.
    pub announced: bool,
}

/// Revokes grants.
pub async fn revoke(directory: &Directory, which: &Which) -> Result<Revoked> {
    let grants = Database::open(&directory.database())?.revoke(which, &Operator::current(), now())?;
    let announced = act_on(directory, Command::Sync).await?.is_some();
    Ok(Revoked { grants: grants.unwrap_or(0), announced })
}

/// Replaces the tags of a device and returns the server's reply.
pub async fn tag_device(directory: &Directory, person: &str, device: &str, tags: &[String]) -> Result<String> {
    tags.iter().try_for_each(|tag| check_name(tag))?;
    Database::open(&directory.database())?.tag_device(person, device, tags, &Operator::current(), now())?;
    let done = act_on(directory, Command::Reevaluate).await?;
    Ok(done.unwrap_or_else(|| "the authority is not running: the change takes effect when it starts".into()))
}

/// Applies a policy file, replacing the directory's own, or applies the directory's own file as edited. An invalid file
/// changes nothing.
pub async fn apply_policy(directory: &Directory, file: Option<&Path>) -> Result<String> {
    let candidate = Candidate::read(directory, file)?;
    let note = file.map_or_else(|| "reload".into(), |file| format!("apply {}", file.display()));
    put_in_force(directory, candidate, note, file.is_some()).await
}

/// Puts an earlier policy version in force again, under a new version number.
pub async fn roll_back_policy(directory: &Directory, version: i64) -> Result<String> {
    let text = Database::open(&directory.database())?.policy_text(version)?;
    let candidate = Candidate::new(text, &format!("version {version}"), directory.settings()?.max_lifetime)?;
    put_in_force(directory, candidate, format!("rollback to {version}"), true).await
}

async fn put_in_force(directory: &Directory, candidate: Candidate, note: String, replaces: bool) -> Result<String> {
    directory.read_networks()?;
    let by = Some(Operator::current());
    let text = replaces.then(|| candidate.text.clone());
    match control::send(directory, Command::ApplyPolicy { text, note: note.clone(), by: by.clone() }).await? {
        Some(Reply::Done(text)) => Ok(text),
        Some(Reply::Refused(why)) => bail!("the authority keeps the policy in force: {why}"),
        None => {
            let summary = format!("{} in force", candidate.summary());
            let change = PolicyChange { summary, text: candidate.text, note, by, after: None };
            let put = || if replaces { directory.replace_policy(&change.text) } else { Ok(()) };
            let version = Database::open(&directory.database())?.apply_policy(&change, &[], now(), put)?;
            Ok(format!(
                "version {version}: {}; the authority is not running: the policy takes effect when it starts",
                change.summary
            ))
        }
    }
}

/// Rotates the master key. The new key takes effect at the epoch after the next or, with `compromised`, replaces all
/// keys at once. Returns a human-readable summary.
pub async fn rotate_master_key(directory: &Directory, compromised: bool) -> Result<String> {
    let epoch_length = directory.settings()?.epoch_length;
    let done = directory.change_master_keys(|keys| {
        if compromised {
            keys.replace()?;
            return Ok("a new master key is in force; earlier grants are invalid".to_owned());
        }
        let from = keys.follow(now(), epoch_length)?;
        Ok(format!("a new master key takes effect in {} s; no grant and no flow is affected", from - now()))
    })?;
    let event = AuditEvent::new("master_key_rotated").detail(&done).by(&Operator::current());
    Database::open(&directory.database())?.audit(&event, now())?;
    match control::send(directory, Command::ReloadKeys { anew: compromised }).await? {
        Some(Reply::Done(text)) => Ok(format!("{done}; {text}")),
        Some(Reply::Refused(why)) => bail!("the key is rotated, but the authority still uses the previous one: {why}"),
        None => Ok(format!("{done}; the authority is not running: the key takes effect when it starts")),
    }
}

/// Verifies the audit trails and searches them for the noted heads.
pub fn verify_audit(directory: &Directory, noted: &[NotedHead]) -> Result<Verdict> {
    Database::open(&directory.database())?.verify_audit(&directory.identity()?, noted)
}

/// Returns names in a policy and in `networks.toml` that match no account or verifier. They are valid, but mostly
/// typing errors.
pub fn unknown_names(directory: &Directory, policy: &Policy, networks: &Networks) -> Result<Vec<String>> {
    let database = Database::open(&directory.database())?;
    let verifiers: BTreeSet<_> = database.verifiers()?.into_iter().map(|verifier| verifier.verifier).collect();
    let mut persons = Vec::new();
    for person in policy.persons() {
        if !database.knows(person)? {
            persons.push(no_account(person));
        }
    }
    let named = policy.receivers().iter().map(|receiver| receiver.verifier.as_str());
    let named: BTreeSet<_> = named.chain(networks.verifiers()).filter(|id| !verifiers.contains(*id)).collect();
    let named = named.into_iter().map(|id| format!("no verifier {id}: `vouchsafe authority verifier add {id}`"));
    Ok(persons.into_iter().chain(named).chain(segments::unknown_names(networks, policy)).collect())
}

/// Returns the message that the account does not exist, with the command that adds it.
pub(crate) fn no_account(person: &str) -> String {
    format!("no account {person}: `vouchsafe authority user add {person}`")
}

async fn reevaluate(directory: &Directory) -> Result<()> {
    act_on(directory, Command::Reevaluate).await.map(drop)
}

async fn sync(directory: &Directory) -> Result<()> {
    act_on(directory, Command::Sync).await.map(drop)
}

/// Makes the server act on a recorded change. Returns the server's reply, or `None` if no server runs.
async fn act_on(directory: &Directory, command: Command) -> Result<Option<String>> {
    match control::send(directory, command).await? {
        Some(Reply::Refused(why)) => {
            bail!("the change is recorded, but the running authority could not apply it: {why}")
        }
        Some(Reply::Done(text)) => Ok(Some(text)),
        None => Ok(None),
    }
}

fn check_name(name: &str) -> Result<()> {
    if !name_is_valid(name) {
        bail!(
            "`{}` is not a valid name: names have 1 to 64 letters, digits, `.`, `_`, `@`, `+` or `-`, and begin with \
             a letter or digit",
            name.escape_debug()
        );
    }
    Ok(())
}
