//! Logging in and out: with a password, through a browser or a device code, with a service account's key.
//!
//! A login with an identity provider has two halves, which this daemon connects: only the daemon knows the verifier, so
//! the callback from a browser is of no use to anyone else.

use super::{Daemon, LoggedIn, Message, Timed, refused, refused_by, timed};
use crate::protocol::{LoginStarted, LoginWay, Reply};
use crate::sessions::KeptSession;
use api::{
    self, BrowserLogin, BrowserLoginStarted, Callback, DeviceLogin, DeviceLoginStarted, FinishLogin, LoggedOut,
    LoginOutcome, ServiceKey,
};
use client::{Authority, Error};
use engine::agent::{self, Login, Subject};
use nix::unistd::{Uid, User};
use sha2::{Digest, Sha256};
use std::time::Duration;
use tokio::sync::oneshot;
use zeroize::Zeroizing;

/// How long a logout waits for the authority to name the identity provider's own session.
const LOGOUT_TIME: Duration = Duration::from_secs(4);

/// Longest name of a user or a machine that the authority accepts, in characters.
const MOST_CLAIM: usize = 64;

/// The authority to log in to.
pub(super) struct At {
    pub url: String,
    /// The certificates to trust, PEM; the system's if absent.
    pub ca: Option<String>,
    /// The user who logs in. The connection is made on their behalf, so that it carries no token of root's.
    pub uid: u32,
}

/// A login with an identity provider that a user has started. No `Debug`: it contains a secret.
pub(super) struct Started {
    at: At,
    login: String,
    verifier: Zeroizing<String>,
}

/// Returns the names of the requesting user, as the kernel reports them to this daemon, and of the machine; the page
/// that asks the person for approval shows them.
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

impl At {
    fn authority(&self) -> Result<Authority, Error> {
        Authority::of_user(&self.url, self.ca.as_deref().map(str::as_bytes), self.uid)
    }
}

impl Daemon {
    /// Checks that the configuration permits logins to this authority; if not, refuses the client's call.
    fn takes(&self, url: &str, reply: oneshot::Sender<Reply>) -> Option<oneshot::Sender<Reply>> {
        if self.settings.may_log_in_to(url) {
            return Some(reply);
        }
        let text = format!(
            "the configuration of this machine's agent permits logins only to: {}",
            self.settings.authorities.join(", ")
        );
        let _ = reply.send(refused("other_authority", text));
        None
    }

    pub(super) fn login(&self, uid: u32, at: At, login: api::Login, reply: oneshot::Sender<Reply>) {
        let Some(reply) = self.takes(&at.url, reply) else { return };
        self.enter(uid, at, reply, move |authority: Authority| async move {
            authority.login(&login).await.map(LoginOutcome::LoggedIn)
        });
    }

    pub(super) fn login_methods(&self, at: At, reply: oneshot::Sender<Reply>) {
        let Some(reply) = self.takes(&at.url, reply) else { return };
        tokio::spawn(async move {
            let answer = async { at.authority()?.login_methods().await };
            let _ = reply.send(match answer.await {
                Ok(methods) => Reply::LoginMethods(methods),
                Err(error) => refused_by(&error),
            });
        });
    }

    /// Starts a login with an identity provider.
    pub(super) fn start_login(&self, uid: u32, at: At, device: String, way: LoginWay, reply: oneshot::Sender<Reply>) {
        let Some(reply) = self.takes(&at.url, reply) else { return };
        let messages = self.messages.clone();
        tokio::spawn(async move {
            let answer = async {
                let mut bytes = Zeroizing::new([0; 32]);
                getrandom::fill(&mut *bytes).map_err(|error| Error::Other(error.to_string()))?;
                let verifier = Zeroizing::new(hex::encode(*bytes));
                let digest: [u8; 32] = Sha256::digest(verifier.as_bytes()).into();
                let challenge = hex::encode(digest);
                let authority = at.authority()?;
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
                Ok::<_, Error>((Started { at, login, verifier }, Reply::LoginStarted(started)))
            };
            match answer.await {
                Ok((started, answer)) => {
                    drop(messages.send(Message::LoginStarted(uid, started, answer, reply)).await);
                }
                Err(error) => drop(reply.send(refused_by(&error))),
            }
        });
    }

    /// Finishes a login with an identity provider. `callback` comes from the browser; it is absent for a device code,
    /// and when the client asks whether the person has answered.
    pub(super) fn finish_login(&mut self, uid: u32, callback: Option<Callback>, reply: oneshot::Sender<Reply>) {
        let Some(Started { at, login, verifier }) = self.started.get(&uid) else {
            drop(reply.send(refused("wrong_login", "no login is in progress: run `vouchsafe login`".to_owned())));
            return;
        };
        let at = At { url: at.url.clone(), ca: at.ca.clone(), uid };
        let finish = FinishLogin { login: login.clone(), verifier: verifier.to_string(), callback };
        self.enter(uid, at, reply, move |authority: Authority| async move { authority.finish_login(&finish).await });
    }

    pub(super) fn service_login(
        &self,
        uid: u32,
        at: At,
        key: ServiceKey,
        device: String,
        reply: oneshot::Sender<Reply>,
    ) {
        let Some(reply) = self.takes(&at.url, reply) else { return };
        self.enter(uid, at, reply, move |authority: Authority| async move {
            authority.login_by_key(&key, &device).await.map(LoginOutcome::LoggedIn)
        });
    }

    /// Requests a session and passes it to the loop.
    fn enter<F>(
        &self,
        uid: u32,
        at: At,
        reply: oneshot::Sender<Reply>,
        ask: impl FnOnce(Authority) -> F + Send + 'static,
    ) where
        F: Future<Output = Result<LoginOutcome, Error>> + Send,
    {
        let messages = self.messages.clone();
        tokio::spawn(async move {
            let answer = async {
                let authority = at.authority()?;
                let Timed { value, requested, answered } = timed(ask(authority.clone())).await;
                let LoginOutcome::LoggedIn(session) = value? else { return Ok(None) };
                let api::Session { token, person, device, expires, now } = session;
                let authority = authority.with_token(&token);
                // Fetched before the answer, so that the user's next command finds its destination protected.
                let (receivers, sealed) = client::convert::reachable(&authority.destinations().await?);
                let At { url, ca, .. } = at;
                if let Err(error) = agent::check_receivers(&receivers) {
                    tracing::error!(uid, authority = url, "login refused: {error}");
                    return Err(Error::Other(error.to_string()));
                }
                let kept =
                    KeptSession { authority: url, ca, token, person, device, expires, receivers, sealed, skew: 0 };
                Ok::<_, Error>(Some(LoggedIn { authority, kept, time: Timed { value: now, requested, answered } }))
            };
            match answer.await {
                Ok(Some(done)) => drop(messages.send(Message::Login(uid, Box::new(done), reply)).await),
                Ok(None) => drop(reply.send(Reply::LoginPending)),
                Err(error) => drop(reply.send(refused_by(&error))),
            }
        });
    }

    pub(super) fn logged_in(&mut self, uid: u32, done: LoggedIn, reply: oneshot::Sender<Reply>) {
        let LoggedIn { authority, mut kept, time } = done;
        self.started.remove(&uid);
        let subject = Subject::of_user(uid);
        // Also end the earlier session at the authority.
        if let Some(before) = self.connections.remove(&subject) {
            let authority = before.authority.clone();
            tokio::spawn(async move { authority.logout().await });
        }
        self.connect(subject, authority);
        let (expires, receivers, sealed) = (kept.expires, kept.receivers.clone(), kept.sealed.clone());
        self.agent.login(subject, Login { expires, receivers, sealed, skew: 0 });
        self.agent.sync_clock(subject, time.value, time.requested, time.answered);
        kept.skew = self.agent.skew(subject);
        self.act();
        tracing::info!(uid, person = kept.person, authority = kept.authority, "logged in");
        let text = format!("logged in to {} as {}", kept.authority, kept.person);
        self.kept.entry(uid).or_default().session = Some(kept);
        self.save(uid);
        let _ = reply.send(Reply::Done { text });
    }

    pub(super) fn logout(&mut self, subject: Subject, reply: oneshot::Sender<Reply>) {
        let uid = subject.user();
        self.agent.logout(subject);
        let session = self.kept.get_mut(&uid).and_then(|kept| kept.session.take());
        self.save(uid);
        let authority = self.connections.remove(&subject).map(|connection| connection.authority.clone());
        // A task, so that the logout completes even if the client stops waiting.
        let logout = tokio::spawn(async move {
            let answer = authority?.logout().await;
            answer.inspect_err(|error| tracing::warn!(uid, "cannot log out at the authority: {error}")).ok()?
        });
        let Some(session) = session else {
            drop(reply.send(refused("not_logged_in", "not logged in".to_owned())));
            return;
        };
        tracing::info!(uid, "logged out");
        let text = format!("logged out of {}", session.authority);
        tokio::spawn(async move {
            let answer = match tokio::time::timeout(LOGOUT_TIME, logout).await {
                Ok(Ok(Some(LoggedOut { provider }))) => Reply::LoggedOut { text, provider },
                _ => Reply::Done { text },
            };
            let _ = reply.send(answer);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_made_such_as_the_authority_takes() {
        let (user, host) = requester(0);
        assert!(user == "root" && !host.is_empty() && host.chars().count() <= MOST_CLAIM, "{user} on {host}");
        assert_eq!(requester(u32::MAX - 7).0, format!("user {}", u32::MAX - 7), "a user without a name");
        assert_eq!(claim(Some("a\u{7}b\n".into()), String::new), "ab");
        assert_eq!(claim(Some("é".repeat(100)), String::new).chars().count(), MOST_CLAIM);
    }
}
