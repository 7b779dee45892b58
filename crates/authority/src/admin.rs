//! The administrative commands. A command that changes something also notifies the server, if a server is running. If
//! no server is running, the change takes effect when the server starts.

pub mod backup;
pub mod cli;
pub mod consents;
pub(crate) mod control;
pub mod lists;
pub mod trails;

use crate::cluster::confirm::Followed;
use crate::cluster::{files, status};
use crate::keys::MasterKeys;
use crate::login::credentials;
use crate::policy::candidate::Candidate;
pub use crate::segments::listed::{MOST as MOST_SEGMENTS, SegmentEntry, SegmentFilter, SegmentList};
use crate::storage::{
    AuditEvent, Database, LOW_SCORE, NewService, NotedHead, Operator, PolicyChange, RevokedCounts, SecondFactor,
    Verdict, Which,
};
use crate::webhook::{self, WebhookSettings, WebhookState};
use crate::{Directory, login, now, segments};
use anyhow::{Context, Result, bail};
use api::ServiceKey;
use control::{Acted, Command, Reply};
use engine::policy::delegation::RequestId;
use engine::policy::networks::Networks;
use engine::policy::{Policy, name_is_valid};
use std::collections::BTreeSet;
use std::path::Path;
use zeroize::Zeroizing;

/// Validity of an enrolment code, in seconds.
const CODE_LIFETIME: u64 = 24 * 3600;

/// Adds an account. With `totp`, the account gets a second factor, and the function returns its `otpauth://` URL for an
/// authenticator app. The authority cannot show this URL again later.
///
/// # Errors
/// Fails if the name or the password is not valid, the name is in use, or the database cannot be written.
pub async fn add_account(
    directory: &Directory,
    person: &str,
    password: &str,
    totp: bool,
) -> Result<Option<Zeroizing<String>>> {
    check_name(person)?;
    let (account, address) = credentials::new_account(person, password, totp)?;
    directory.open_database()?.add_account(person, &account, &Operator::current(), now())?;
    Ok(address)
}

/// The effect of a password change on the account's second factor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Factor {
    /// The second factor stays as it is.
    Keep,
    /// The second factor is removed.
    Remove,
    /// A new second factor replaces the old one.
    Renew,
}

/// Changes a password, ends the account's sessions and removes its passkeys. Returns the number of removed passkeys.
/// For a new second factor, also returns its `otpauth://` URL for an authenticator app; the authority cannot show this
/// URL again later.
///
/// # Errors
/// Fails if the password is not valid, there is no such account, the database cannot be written, or the running server
/// could not apply the change.
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
    let mut database = directory.open_database()?;
    let passkeys = database.change_password(person, &hash, &factor, &Operator::current(), now())?;
    sync(directory).await?;
    Ok((passkeys, address))
}

/// Removes the account of `person`, or the records about a person of the identity provider with this name. Also ends
/// the person's sessions.
///
/// # Errors
/// Fails if there is no such person, `person` is a service account, the database cannot be written, or the running
/// server could not apply the change.
pub async fn remove_account(directory: &Directory, person: &str) -> Result<()> {
    directory.open_database()?.remove_account(person, &Operator::current(), now())?;
    sync(directory).await
}

/// Adds a service account and returns the key with which its machine logs in. The authority keeps no copy of this key.
///
/// # Errors
/// Fails if the name, a group or a tag is not valid, the name is in use, the CA certificate cannot be read, or the
/// database cannot be written.
pub async fn add_service(directory: &Directory, name: &str, groups: &[String], tags: &[String]) -> Result<ServiceKey> {
    check_name(name)?;
    groups.iter().try_for_each(|name| check_name(name))?;
    tags.iter().try_for_each(|tag| check_tag(tag))?;
    let ca = std::fs::read_to_string(directory.ca())?;
    let (key, public) = login::service::new_key(name, directory.audience()?, ca)?;
    let service = NewService { name, key: &public, groups, tags };
    directory.open_database()?.add_service(&service, &Operator::current(), now())?;
    Ok(key)
}

/// Puts a service account into `groups` and removes it from all other groups. A running server then re-evaluates live
/// grants.
///
/// # Errors
/// Fails if a name in `groups` is not valid, there is no such service account, the database cannot be written, or the
/// running server could not apply the change.
pub async fn set_service_groups(directory: &Directory, name: &str, groups: &[String]) -> Result<()> {
    groups.iter().try_for_each(|group| check_name(group))?;
    evaluating(directory)?.set_service_groups(name, groups, &Operator::current(), now())?;
    reevaluate(directory).await
}

/// Replaces the tags of a service account. A running server then re-evaluates live grants.
///
/// # Errors
/// Fails if a tag is not valid, there is no such service account, the database cannot be written, or the running server
/// could not apply the change.
pub async fn set_service_tags(directory: &Directory, name: &str, tags: &[String]) -> Result<()> {
    tags.iter().try_for_each(|tag| check_tag(tag))?;
    evaluating(directory)?.set_service_tags(name, tags, &Operator::current(), now())?;
    reevaluate(directory).await
}

/// Removes a service account and ends its sessions and grants.
///
/// # Errors
/// Fails if there is no such service account, the database cannot be written, or the running server could not apply the
/// change.
pub async fn remove_service(directory: &Directory, name: &str) -> Result<()> {
    directory.open_database()?.remove_service(name, &Operator::current(), now())?;
    sync(directory).await
}

/// Makes the running server renew sessions with the identity provider now: all sessions or, if `person` is given, those
/// of this person. Returns the result in one line.
///
/// # Errors
/// Fails if no server is running, the server has no identity provider, or the server cannot read or write the database.
pub async fn renew_sessions(directory: &Directory, person: Option<String>) -> Result<String> {
    match control::send(directory, Command::RenewSessions { person }).await? {
        Some(Reply::Done(text)) => Ok(text),
        Some(Reply::Refused(why)) => bail!(why),
        None => bail!("the authority is not running: start it with `vouchsafe authority run`"),
    }
}

/// Lists the path segments in force that match `filter`. Only a running server knows path segments, and it knows only
/// those that it issued since it started.
///
/// # Errors
/// Fails if no server is running, or there is no network with the name in `filter`.
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

/// Returns the state of the webhooks of the running authority.
///
/// # Errors
/// Fails if no server is running.
pub async fn webhooks(directory: &Directory) -> Result<Vec<WebhookState>> {
    match control::ask(directory, Command::Webhooks).await? {
        Some(Reply::Done(states)) => Ok(states),
        Some(Reply::Refused(why)) => bail!(why),
        None => bail!(
            "the authority is not running, and only a running authority sends messages: start it with `vouchsafe \
             authority run`"
        ),
    }
}

/// Sends a test message to a webhook by the settings in authority.toml, whether or not the authority runs. Returns the
/// host that has accepted the message. The audit trail records the test.
///
/// # Errors
/// Fails if the webhook's secret or CA certificates cannot be used, the webhook does not accept the message, or the
/// database cannot be written.
pub async fn test_webhook(directory: &Directory, webhook: &WebhookSettings) -> Result<String> {
    let result = webhook::test(webhook, directory).await;
    let outcome = if result.is_ok() { "accepted" } else { "failed" };
    let event = AuditEvent::new("webhook_tested").detail(format!("{}: {outcome}", webhook.name));
    directory.open_database()?.audit(&event.by(&Operator::current()), now())?;
    result
}

/// Adds a verifier or, with `renew`, replaces its enrolment code. Returns the one-time code, which cannot be shown
/// again later.
///
/// # Errors
/// Fails if the id is not valid, the verifier exists already (without `renew`) or does not exist (with `renew`), or the
/// database cannot be written.
pub async fn add_verifier(directory: &Directory, id: &str, renew: bool) -> Result<Zeroizing<String>> {
    check_name(id)?;
    let (code, hash) = credentials::new_token::<16>()?;
    let (by, now) = (Operator::current(), now());
    directory.open_database()?.add_verifier(id, hash, now + CODE_LIFETIME, renew, &by, now)?;
    Ok(code)
}

/// Removes a verifier: its token becomes invalid at once, and the grants for it end.
///
/// # Errors
/// Fails if there is no such verifier, the database cannot be written, or the running server could not apply the
/// change.
pub async fn remove_verifier(directory: &Directory, id: &str) -> Result<()> {
    directory.open_database()?.remove_verifier(id, &Operator::current(), now())?;
    sync(directory).await
}

/// The outcome of a revocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revoked {
    /// The numbers of sessions and grants that the revocation ended.
    pub counts: RevokedCounts,
    /// Whether a running server has announced the revocation to the verifiers.
    pub announced: bool,
    /// The members of the cluster and the verifiers, and which of them have carried out the revocation.
    pub followed: Followed,
}

/// Revokes the grants and ends the sessions that `which` selects. Waits until every connected verifier has cut the
/// flows, for some seconds at most.
///
/// # Errors
/// Fails if there is no such grant or session, the database cannot be written, or the running server could not apply
/// the change.
pub async fn revoke(directory: &Directory, which: &Which) -> Result<Revoked> {
    let counts = directory.open_database()?.revoke(which, &Operator::current(), now())?;
    let (done, followed) = follow_up(directory, Command::Sync).await?;
    Ok(Revoked { counts: counts.unwrap_or_default(), announced: done.is_some(), followed })
}

/// Replaces the tags of a device. Returns the running server's reply or, if no server is running, a sentence that says
/// so.
///
/// # Errors
/// Fails if a tag is not valid, there is no such device, the database cannot be written, or the running server could
/// not apply the change.
pub async fn tag_device(directory: &Directory, person: &str, device: &str, tags: &[String]) -> Result<String> {
    tags.iter().try_for_each(|tag| check_tag(tag))?;
    evaluating(directory)?.tag_device(person, device, tags, &Operator::current(), now())?;
    let done = act_on(directory, Command::Reevaluate).await?;
    Ok(done.unwrap_or_else(|| "the authority is not running: the change takes effect when it starts".into()))
}

/// Sets a person's score to 100. Returns the running server's reply or, if no server is running, a sentence that says
/// so; `None` if the score is 100 already.
///
/// # Errors
/// Fails if the database cannot be written, or the running server could not apply the change.
pub async fn reset_score(directory: &Directory, person: &str) -> Result<Option<String>> {
    if !evaluating(directory)?.reset_score(person, &Operator::current(), now())? {
        return Ok(None);
    }
    let done = act_on(directory, Command::Reevaluate).await?;
    Ok(Some(done.unwrap_or_else(|| "the authority is not running: the change takes effect when it starts".into())))
}

/// The requests and consents that an operator withdraws.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Withdrawn {
    /// One request or consent.
    One(RequestId),
    /// All consents that a person has given.
    GivenBy(String),
}

/// Withdraws requests and consents. Returns their number, and the running server's reply or, if no server is running, a
/// sentence that says so.
///
/// # Errors
/// Fails if the database cannot be written, or the running server could not apply the change.
pub async fn withdraw_access(directory: &Directory, which: &Withdrawn) -> Result<(usize, String)> {
    let (mut database, by) = (evaluating(directory)?, Operator::current());
    let mut withdrawn = 0;
    match which {
        Withdrawn::One(id) => withdrawn += usize::from(database.withdraw_access(*id, None, &by, now())?.is_some()),
        Withdrawn::GivenBy(person) => loop {
            match database.withdraw_consents_by(person, &by, now())?.len() {
                0 => break,
                some => withdrawn += some,
            }
        },
    }
    if withdrawn == 0 {
        return Ok((0, String::new()));
    }
    drop(database);
    let done = act_on(directory, Command::Reevaluate).await?;
    let done = done.unwrap_or_else(|| "the authority is not running: the change takes effect when it starts".into());
    Ok((withdrawn, done))
}

/// Checks the name of a tag that an administrator gives a device or a service account.
fn check_tag(tag: &str) -> Result<()> {
    if tag == LOW_SCORE {
        bail!("the tag {LOW_SCORE} is for people with a low score: it can't be given by hand");
    }
    check_name(tag)
}

/// Puts a policy in force and returns a summary. If `file` is given, the policy is read from it, and its text also
/// replaces the directory's policy file. If `file` is `None`, the policy is read from the directory's policy file. An
/// invalid policy changes nothing.
///
/// # Errors
/// Fails if the policy or `networks.toml` cannot be read or is not valid, a test of the policy fails, or the database
/// or the policy file cannot be written.
pub async fn apply_policy(directory: &Directory, file: Option<&Path>) -> Result<String> {
    let candidate = Candidate::read(directory, file)?;
    let note = file.map_or_else(|| "reload".into(), |file| format!("apply {}", file.display()));
    put_in_force(directory, candidate, note, file.is_some()).await
}

/// Puts an earlier version of the policy in force again, under a new version number. Returns a summary.
///
/// # Errors
/// Fails if there is no such version, its text is no longer a valid policy, `networks.toml` cannot be read or is not
/// valid, or the database or the policy file cannot be written.
pub async fn roll_back_policy(directory: &Directory, version: i64) -> Result<String> {
    let text = directory.open_database()?.policy_text(version)?;
    let candidate = Candidate::new(text, &format!("version {version}"), directory.settings()?.max_lifetime)?;
    put_in_force(directory, candidate, format!("rollback to {version}"), true).await
}

async fn put_in_force(directory: &Directory, candidate: Candidate, note: String, replaces: bool) -> Result<String> {
    directory.read_networks()?;
    crate::lists::check(directory, candidate.policy.policy())?;
    let by = Some(Operator::current());
    let text = replaces.then(|| candidate.text.clone());
    match control::send(directory, Command::ApplyPolicy { text, note: note.clone(), by: by.clone() }).await? {
        Some(Reply::Done(text)) => Ok(text),
        Some(Reply::Refused(why)) => {
            bail!("the authority refuses the new policy: {why}. The earlier policy stays in force")
        }
        None => {
            let summary = format!("{} in force", candidate.summary());
            let change = PolicyChange { summary, text: candidate.text, note, by, after: None };
            let put = || if replaces { directory.replace_policy(&change.text) } else { Ok(()) };
            let addresses = |name: &str| candidate.policy.policy().prefixes_of(name);
            let version = evaluating(directory)?.apply_policy(&change, &[], now(), &addresses, put)?;
            Ok(format!(
                "version {version}: {}; the authority is not running: the policy takes effect when it starts",
                change.summary
            ))
        }
    }
}

/// Rotates the master key and returns a summary. The new key takes effect at the epoch after the next. With
/// `compromised`, the new key replaces all master keys at once.
///
/// # Errors
/// Fails if the key of the previous rotation has not taken effect yet (only without `compromised`), the key file or the
/// database cannot be written, or the running server could not read the new key.
pub async fn rotate_master_key(directory: &Directory, compromised: bool) -> Result<String> {
    let epoch_length = directory.settings()?.epoch_length;
    let rotate = |keys: &mut MasterKeys| {
        if compromised {
            keys.replace()?;
            return Ok("a new master key is in force; earlier grants are invalid".to_owned());
        }
        let from = keys.follow(now(), epoch_length)?;
        Ok(format!("a new master key takes effect in {} s; no grant and no flow is affected", from - now()))
    };
    let mut database = directory.open_database()?;
    let done = if database.is_member() {
        let mut done = String::new();
        // The members' keys are those in the database: another member may have rotated them a moment ago.
        let mut rotated = None;
        database.change_shared(files::MASTER_KEYS, |before| {
            let before =
                Zeroizing::new(before.context("the cluster has no master keys: `cluster init` was not completed")?);
            let mut keys = MasterKeys::parse(&before).context("the cluster's master keys are malformed")?;
            done = rotate(&mut keys)?;
            let bytes = keys.encode();
            rotated = Some(bytes.clone());
            Ok(Some(bytes.to_vec()))
        })?;
        if let Some(bytes) = rotated {
            directory.replace_master_keys(&bytes)?;
        }
        done
    } else {
        directory.change_master_keys(rotate)?
    };
    let event = AuditEvent::new("master_key_rotated").detail(&done).by(&Operator::current());
    database.audit(&event, now())?;
    match control::send(directory, Command::ReloadKeys { anew: compromised }).await? {
        Some(Reply::Done(text)) => Ok(format!("{done}; {text}")),
        Some(Reply::Refused(why)) => bail!("the key is rotated, but the authority still uses the previous one: {why}"),
        None => Ok(format!("{done}; the authority is not running, and reads the new key when it starts")),
    }
}

/// Verifies both audit trails and checks that they contain the heads in `noted`.
///
/// # Errors
/// Fails if the database or the CA certificate cannot be read, or a head in `noted` is older than the oldest entry that
/// its trail still contains.
pub fn verify_audit(directory: &Directory, noted: &[NotedHead]) -> Result<Verdict> {
    directory.open_database()?.verify_audit(&directory.identity()?, noted)
}

/// Returns a warning for each name in a policy or in `networks.toml` that belongs to no account, verifier, network or
/// group. Such a name is allowed, but usually it is a typing error.
///
/// # Errors
/// Fails if the database cannot be read.
pub fn unknown_names(directory: &Directory, policy: &Policy, networks: &Networks) -> Result<Vec<String>> {
    let database = directory.open_database()?;
    let verifiers: BTreeSet<_> = database.verifiers()?.into_iter().map(|verifier| verifier.verifier).collect();
    let mut persons = Vec::new();
    for person in policy.persons() {
        if !database.knows(person)? {
            persons.push(no_account(person));
        }
    }
    let named = policy.receivers().iter().map(|receiver| receiver.verifier.as_str());
    let named: BTreeSet<_> = named.chain(networks.verifiers()).filter(|id| !verifiers.contains(*id)).collect();
    let named =
        named.into_iter().map(|id| format!("no verifier {id}: `vouchsafe authority verifier add {id}` adds it"));
    Ok(persons.into_iter().chain(named).chain(segments::unknown_names(networks, policy)).collect())
}

/// Returns the warning that `person` has no account, with the command that adds the account.
pub(crate) fn no_account(person: &str) -> String {
    format!("no account {person}: `vouchsafe authority user add {person}` adds it")
}

/// Opens the database for a change after which grants must be evaluated again. A server evaluates all grants when it
/// starts. In a cluster, this does not suffice: the servers of other members run already, and do not evaluate grants
/// again for a change that this process makes.
///
/// # Errors
/// Fails if the authority is a member of a cluster and its server is not running, or the database cannot be opened.
fn evaluating(directory: &Directory) -> Result<Database> {
    let database = directory.open_database()?;
    if database.is_member() && std::os::unix::net::UnixStream::connect(directory.control_socket()).is_err() {
        bail!(
            "in a cluster, this change needs a running server, which evaluates the grants again: start the server of \
             this member with `vouchsafe authority run`, or run the command at a member whose server is running"
        );
    }
    Ok(database)
}

async fn reevaluate(directory: &Directory) -> Result<()> {
    act_on(directory, Command::Reevaluate).await.map(drop)
}

async fn sync(directory: &Directory) -> Result<()> {
    act_on(directory, Command::Sync).await.map(drop)
}

/// Makes the server act on a change that was recorded in the database. Returns the server's reply, or `None` if no
/// server is running. Waits until the verifiers and, in a cluster, the other members have followed, and warns the
/// operator of those that have not.
async fn act_on(directory: &Directory, command: Command) -> Result<Option<String>> {
    let (done, followed) = follow_up(directory, command).await?;
    if !followed.is_complete() {
        eprintln!("note: the change is recorded{followed}");
    }
    Ok(done)
}

/// Does what [`act_on`] does, but does not warn. Instead, returns which verifiers and members have followed.
async fn follow_up(directory: &Directory, command: Command) -> Result<(Option<String>, Followed)> {
    Ok(match control::ask(directory, command).await? {
        Some(Reply::Refused(why)) => {
            bail!("the change is recorded, but the running authority could not apply it: {why}")
        }
        Some(Reply::Done(Acted { done, followed })) => (Some(done), followed),
        None => {
            let directory = directory.clone();
            (None, tokio::task::spawn_blocking(move || status::followed(&directory)).await??)
        }
    })
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
