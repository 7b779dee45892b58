//! Logging in at an authority, for the agent and for a user's own session: starting and finishing a login with an
//! identity provider, and turning the outcome into a session.
//!
//! A login with an identity provider has two halves, and only the caller that started it can finish it: it alone knows
//! the verifier, so the callback from a browser is of no use to anyone else.

use crate::kept::KeptSession;
use crate::protocol::{LoginStarted, LoginWay, Reply};
use api::{BrowserLogin, BrowserLoginStarted, DeviceLogin, DeviceLoginStarted, FinishLogin, LoginOutcome};
use client::{Authority, Error};
use engine::agent;
use nix::unistd::{Uid, User};
use sha2::{Digest, Sha256};
use shell::clock::since_boot;
use std::time::Duration;
use zeroize::Zeroizing;

/// Longest name of a user or a machine that the authority accepts, in characters.
const MOST_CLAIM: usize = 64;

/// A login with an identity provider that was started. No `Debug`: it contains a secret.
pub struct Pending {
    login: String,
    verifier: Zeroizing<String>,
}

/// A value, with the times since boot of its request and arrival.
pub struct Timed<T> {
    /// The value.
    pub value: T,
    /// When it was requested.
    pub requested: Duration,
    /// When it arrived.
    pub answered: Duration,
}

/// Runs `work`, and notes when it began and ended.
pub async fn timed<T>(work: impl Future<Output = T>) -> Timed<T> {
    let requested = since_boot();
    let value = work.await;
    Timed { value, requested, answered: since_boot() }
}

/// A session that was begun.
pub struct LoggedIn {
    /// The authority, with the session's token.
    pub authority: Authority,
    /// The session.
    pub kept: KeptSession,
    /// The authority's time, Unix seconds.
    pub time: Timed<u64>,
}

/// Starts a login with the identity provider of `authority` for the user `uid` of this machine.
///
/// # Errors
///
/// Fails if the authority refuses, or can't be reached.
pub async fn start(
    authority: &Authority,
    uid: u32,
    device: String,
    way: LoginWay,
) -> Result<(Pending, LoginStarted), Error> {
    let mut bytes = Zeroizing::new([0; 32]);
    getrandom::fill(&mut *bytes).map_err(|error| Error::Other(error.to_string()))?;
    let verifier = Zeroizing::new(hex::encode(*bytes));
    let digest: [u8; 32] = Sha256::digest(verifier.as_bytes()).into();
    let challenge = hex::encode(digest);
    let (login, started) = match way {
        LoginWay::Browser { port } => {
            let (user, host) = tokio::task::spawn_blocking(move || requester(uid))
                .await
                .map_err(|error| Error::Other(error.to_string()))?;
            let wanted = BrowserLogin { device, challenge, port, user, host };
            let started = authority.start_browser_login(&wanted).await?;
            let BrowserLoginStarted { login, url, state, expires_in } = started;
            let comparison = api::comparison(&digest);
            (login, LoginStarted::Browser { url, state, comparison, expires_in })
        }
        LoginWay::DeviceCode => {
            let started = authority.start_device_login(&DeviceLogin { device, challenge }).await?;
            let DeviceLoginStarted { login, user_code, url, url_with_code, interval, expires_in } = started;
            (login, LoginStarted::DeviceCode { user_code, url, url_with_code, interval, expires_in })
        }
    };
    Ok((Pending { login, verifier }, started))
}

impl Pending {
    /// Returns the message that finishes the login. `callback` comes from the browser; it is absent for a device code,
    /// and to ask whether the person has answered.
    pub fn finish(&self, callback: Option<api::Callback>) -> FinishLogin {
        FinishLogin { login: self.login.clone(), verifier: self.verifier.to_string(), callback }
    }
}

/// Makes a session of the outcome of a login at the authority `url`; `None` if the person has not answered yet. The
/// receivers are fetched, so that the next command finds its destination protected.
///
/// # Errors
///
/// Fails as the login did, and if the authority lists more receivers than a session may have.
pub async fn enter(
    authority: &Authority,
    url: String,
    ca: Option<String>,
    outcome: impl Future<Output = Result<LoginOutcome, Error>>,
) -> Result<Option<LoggedIn>, Error> {
    let Timed { value, requested, answered } = timed(outcome).await;
    let LoginOutcome::LoggedIn(session) = value? else { return Ok(None) };
    let api::Session { token, person, device, expires, now } = session;
    let authority = authority.with_token(&token);
    let (receivers, sealed) = client::convert::reachable(&authority.destinations().await?);
    if let Err(error) = agent::check_receivers(&receivers) {
        tracing::error!(authority = url, "login refused: {error}");
        return Err(Error::Other(error.to_string()));
    }
    let kept = KeptSession { authority: url, ca, token, person, device, expires, receivers, sealed, skew: 0 };
    Ok(Some(LoggedIn { authority, kept, time: Timed { value: now, requested, answered } }))
}

/// Returns a negative answer.
pub fn refused(kind: &str, text: String) -> Reply {
    Reply::Refused { kind: kind.to_owned(), text }
}

/// Returns the negative answer for a failed call to the authority.
pub fn refused_by(error: &Error) -> Reply {
    let kind = match error {
        Error::Denied(problem) | Error::Refused(problem) => problem.r#type.as_str(),
        Error::NotLoggedIn => "not_logged_in",
        Error::Unreachable(_) => "unreachable",
        Error::Unusable(_) | Error::Other(_) => "other",
    };
    refused(kind, error.to_string())
}

/// Returns the names of the requesting user and of the machine; the page that asks the person for approval shows them.
fn requester(uid: u32) -> (String, String) {
    let user = User::from_uid(Uid::from_raw(uid)).ok().flatten().map(|user| user.name);
    let host = nix::sys::utsname::uname().ok().map(|name| name.nodename().to_string_lossy().into_owned());
    (claim(user, || format!("user {uid}")), claim(host, || "a machine without a name".to_owned()))
}

/// Limits a name to what the authority accepts.
fn claim(name: Option<String>, otherwise: impl FnOnce() -> String) -> String {
    let name = name.unwrap_or_default();
    let taken: String = name.chars().filter(|letter| !letter.is_control()).take(MOST_CLAIM).collect();
    if taken.is_empty() { otherwise() } else { taken }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_made_such_as_the_authority_takes() {
        let own = Uid::current();
        let (user, host) = requester(own.as_raw());
        assert!(!user.is_empty() && !host.is_empty() && host.chars().count() <= MOST_CLAIM, "{user} on {host}");
        assert_eq!(requester(u32::MAX - 7).0, format!("user {}", u32::MAX - 7), "a user without a name");
        assert_eq!(claim(Some("a\u{7}b\n".into()), String::new), "ab");
        assert_eq!(claim(Some("é".repeat(100)), String::new).chars().count(), MOST_CLAIM);
    }
}
