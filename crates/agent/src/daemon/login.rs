//! Logging in and out: with a password, through a browser or a device code, with a service account's key.
//!
//! A login with an identity provider has two halves, both in [`reach::login`], which the daemon connects. Nobody else
//! can use the callback from the browser, because only the daemon knows the code verifier.

use super::{Daemon, Message};
use api::{self, Callback, LoggedOut, LoginOutcome, ServiceKey};
use client::{Authority, Error};
use engine::agent::{Login, Subject};
use reach::login::{self, LoggedIn, Pending, refused, refused_by};
use reach::protocol::{LoginWay, Reply};
use std::time::Duration;
use tokio::sync::oneshot;

/// Maximum time that a logout waits for the authority to name the identity provider's own session.
const LOGOUT_TIME: Duration = Duration::from_secs(4);

/// The authority at which a user logs in.
pub(super) struct At {
    pub url: String,
    /// The certificates to trust, in PEM; `None` for the system's certificates.
    pub ca: Option<String>,
    /// The user who logs in. The connection to the authority is made on behalf of this user, so that its packets do not
    /// carry the tokens of root, who runs the daemon.
    pub uid: u32,
}

/// A login with an identity provider that a user has started. Has no `Debug` because it contains a secret.
pub(super) struct Started {
    at: At,
    pending: Pending,
}

impl At {
    fn authority(&self) -> Result<Authority, Error> {
        Authority::of_user(&self.url, self.ca.as_deref().map(str::as_bytes), self.uid)
    }
}

impl Daemon {
    /// Checks that the configuration permits logins to this authority. If it does not, refuses the client's call.
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
                let (pending, started) = login::start(&at.authority()?, uid, device, way).await?;
                Ok::<_, Error>((Started { at, pending }, Reply::LoginStarted(started)))
            };
            match answer.await {
                Ok((started, answer)) => {
                    drop(messages.send(Message::LoginStarted(uid, started, answer, reply)).await);
                }
                Err(error) => drop(reply.send(refused_by(&error))),
            }
        });
    }

    /// Finishes a login with an identity provider. `callback` comes from the browser. It is `None` for a device code,
    /// and if the client only asks whether the person has answered.
    pub(super) fn finish_login(&mut self, uid: u32, callback: Option<Callback>, reply: oneshot::Sender<Reply>) {
        let Some(Started { at, pending }) = self.started.get(&uid) else {
            drop(reply.send(refused("wrong_login", "no login is in progress: run `vouchsafe login`".to_owned())));
            return;
        };
        let at = At { url: at.url.clone(), ca: at.ca.clone(), uid };
        let finish = pending.finish(callback);
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

    /// Requests a session and passes the result to the loop.
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
                let At { url, ca, .. } = at;
                login::enter(&authority, url, ca, ask(authority.clone())).await
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
        self.forget_tunnels(subject);
        self.connect(subject, authority);
        let (expires, receivers, sealed) = (kept.expires, kept.receivers.clone(), kept.sealed.clone());
        self.note_destinations(subject, &receivers, &sealed, None);
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
        self.forget_tunnels(subject);
        let session = self.kept.get_mut(&uid).and_then(|kept| kept.session.take());
        self.save(uid);
        let authority = self.connections.remove(&subject).map(|connection| connection.authority.clone());
        // The logout runs in a task of its own, so that it completes even if the client stops waiting.
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
