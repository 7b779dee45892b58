//! Logging in and out: with a password, through a browser or a device code, with a service account's key.
//!
//! A login with an identity provider begins with one function of [`reach::login`] and ends with another. The daemon
//! keeps the state between the two. Only the daemon knows the code verifier, so nobody else can use the browser's
//! callback.

use super::organisations::LoginScope;
use super::territory::Limits;
use super::{Daemon, Message};
use api::{self, Callback, LoggedOut, LoginOutcome, ServiceKey};
use client::{Authority, Error};
use engine::agent::{Login, Subject};
use reach::login::{self, LoggedIn, Pending, refused, refused_by};
use reach::organisation::shown;
use reach::protocol::{LoginWay, Reply};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// Maximum time that a logout waits for the authority to name the identity provider's own session.
const LOGOUT_TIME: Duration = Duration::from_secs(4);

/// The authority at which a user logs in.
#[derive(Clone)]
pub(super) struct At {
    /// The authority's URL, or the name for which DNS lists its servers.
    pub url: String,
    /// The certificates to trust, in PEM; `None` for the system's certificates.
    pub ca: Option<String>,
    /// The user who logs in, and the organisation. The daemon runs as root, but makes the connection to the authority
    /// on behalf of this user. Otherwise, the packets of the connection would carry root's tokens.
    pub scope: LoginScope,
}

/// A login with an identity provider that a user has started. Has no `Debug` because it contains a secret.
pub(super) struct Started {
    at: Permitted,
    pending: Pending,
}

/// An authority at which the user is allowed to log in.
#[derive(Clone)]
struct Permitted {
    at: At,
    /// The addresses at which the authority may be.
    limits: Arc<Limits>,
    /// The name servers to ask for the authority's servers, if the user gave a name instead of a URL; empty for the
    /// system's name servers.
    name_servers: Arc<[SocketAddr]>,
}

impl Permitted {
    fn authority(&self) -> Result<Authority, Error> {
        let At { url, ca, scope } = &self.at;
        let ca = ca.as_deref().map(str::as_bytes);
        Authority::of_user(url, ca, (scope.uid, self.limits.clone()), &self.name_servers)
    }
}

impl Daemon {
    /// Checks that the configuration permits logins to this authority, and that its organisation takes no addresses
    /// from another one. If that is not so, refuses the client's call.
    fn takes(&self, at: At, reply: oneshot::Sender<Reply>) -> Option<(Permitted, oneshot::Sender<Reply>)> {
        if self.settings.may_log_in_to(&at.url) {
            return match self.plan(&at.scope, &at.url) {
                Ok(own) => {
                    let limits = self.territory.limits(at.scope.uid, at.scope.organisation.as_ref(), own);
                    let name_servers = self.settings.resolvers.as_slice().into();
                    Some((Permitted { at, limits, name_servers }, reply))
                }
                Err((kind, text)) => {
                    let _ = reply.send(refused(kind, text));
                    None
                }
            };
        }
        let text = format!(
            "the configuration of this machine's agent permits logins only to: {}",
            self.settings.authorities.join(", ")
        );
        let _ = reply.send(refused("other_authority", text));
        None
    }

    pub(super) fn login(&self, at: At, login: api::Login, reply: oneshot::Sender<Reply>) {
        let Some((at, reply)) = self.takes(at, reply) else { return };
        self.enter(at, reply, move |authority: Authority| async move {
            authority.login(&login).await.map(LoginOutcome::LoggedIn)
        });
    }

    pub(super) fn login_methods(&self, at: At, reply: oneshot::Sender<Reply>) {
        let Some((at, reply)) = self.takes(at, reply) else { return };
        tokio::spawn(async move {
            let answer = async { at.authority()?.login_methods().await };
            let _ = reply.send(match answer.await {
                Ok(methods) => Reply::LoginMethods(methods),
                Err(error) => refused_by(&error),
            });
        });
    }

    /// Starts a login with an identity provider.
    pub(super) fn start_login(&self, at: At, device: String, way: LoginWay, reply: oneshot::Sender<Reply>) {
        let Some((at, reply)) = self.takes(at, reply) else { return };
        let (messages, uid) = (self.messages.clone(), at.at.scope.uid);
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

    /// Finishes a login with an identity provider. `callback` contains the parameters that the browser brought. It is
    /// `None` for a login by device code, and for a call that only asks whether the person has answered.
    pub(super) fn finish_login(&mut self, uid: u32, callback: Option<Callback>, reply: oneshot::Sender<Reply>) {
        let Some(Started { at, pending }) = self.started.get(&uid) else {
            drop(reply.send(refused("wrong_login", "no login is in progress: run `vouchsafe login`".to_owned())));
            return;
        };
        let (at, finish) = (at.clone(), pending.finish(callback));
        self.enter(at, reply, move |authority: Authority| async move { authority.finish_login(&finish).await });
    }

    pub(super) fn service_login(&self, at: At, key: ServiceKey, device: String, reply: oneshot::Sender<Reply>) {
        let Some((at, reply)) = self.takes(at, reply) else { return };
        self.enter(at, reply, move |authority: Authority| async move {
            authority.login_by_key(&key, &device).await.map(LoginOutcome::LoggedIn)
        });
    }

    /// Requests a session and passes the result to the loop.
    fn enter<F>(&self, at: Permitted, reply: oneshot::Sender<Reply>, ask: impl FnOnce(Authority) -> F + Send + 'static)
    where
        F: Future<Output = Result<LoginOutcome, Error>> + Send,
    {
        let (messages, scope) = (self.messages.clone(), at.at.scope.clone());
        tokio::spawn(async move {
            let answer = async {
                let authority = at.authority()?;
                let At { url, ca, .. } = at.at;
                login::enter(&authority, url, ca, ask(authority.clone())).await
            };
            match answer.await {
                Ok(Some(done)) => drop(messages.send(Message::Login(scope, Box::new(done), reply)).await),
                Ok(None) => drop(reply.send(Reply::LoginPending)),
                Err(error) => drop(reply.send(refused_by(&error))),
            }
        });
    }

    pub(super) fn logged_in(&mut self, scope: &LoginScope, done: LoggedIn, reply: oneshot::Sender<Reply>) {
        let (LoggedIn { authority, mut kept, time }, uid) = (done, scope.uid);
        self.started.remove(&uid);
        // Other logins may have completed since this one began.
        let networks = match self.plan(scope, &kept.authority) {
            Ok(networks) => networks,
            Err((kind, text)) => {
                tokio::spawn(async move { authority.logout().await });
                return drop(reply.send(refused(kind, text)));
            }
        };
        let number = self.kept.entry(uid).or_default().set_networks(scope.organisation.as_ref(), networks.clone());
        let subject = Subject::of_user(uid).in_organisation(number);
        self.agent.set_networks(subject, networks);
        self.note_territory(uid);
        // Also end the earlier session at the authority.
        if let Some(before) = self.connections.remove(&subject) {
            let authority = before.authority.clone();
            tokio::spawn(async move { authority.logout().await });
        }
        self.forget_tunnels(subject);
        self.connect(subject, authority);
        let (receivers, refused) = self.claims(subject, std::mem::take(&mut kept.receivers));
        self.note_refused(subject, refused);
        kept.receivers = receivers.clone();
        let (expires, sealed) = (kept.expires, kept.sealed.clone());
        self.note_destinations(subject, &receivers, &sealed, None);
        self.agent.login(subject, Login { expires, receivers, sealed, skew: 0 });
        self.agent.sync_clock(subject, time.value, time.requested, time.answered);
        kept.skew = self.agent.skew(subject);
        self.act();
        let organisation = shown(scope.organisation.as_ref());
        tracing::info!(uid, organisation, person = kept.person, authority = kept.authority, "logged in");
        let text = format!("logged in to {} as {}", kept.authority, kept.person);
        self.set_session(subject, Some(kept));
        self.save(uid);
        let _ = reply.send(Reply::Done { text });
    }

    fn note_territory(&self, uid: u32) {
        if let Some(kept) = self.kept.get(&uid) {
            self.territory.note(uid, kept);
        }
    }

    /// Ends the session with an organisation. If `forget` is true, also forgets the organisation's networks.
    pub(super) fn logout(&mut self, scope: &LoginScope, forget: bool, reply: oneshot::Sender<Reply>) {
        let uid = scope.uid;
        let Some(subject) = self.subject(uid, scope.organisation.as_ref()) else {
            let text = format!("you have no organisation {:?}", shown(scope.organisation.as_ref()));
            return drop(reply.send(refused("no_organisation", text)));
        };
        self.agent.logout(subject);
        self.forget_tunnels(subject);
        let session = self.set_session(subject, None);
        if forget {
            self.kept.entry(uid).or_default().forget(scope.organisation.as_ref());
            self.agent.set_networks(subject, None);
            self.note_territory(uid);
        }
        self.save(uid);
        let authority = self.connections.remove(&subject).map(|connection| connection.authority.clone());
        // The logout runs in a task of its own, so that it completes even if the client stops waiting.
        let logout = tokio::spawn(async move {
            let answer = authority?.logout().await;
            answer.inspect_err(|error| tracing::warn!(uid, "cannot log out at the authority: {error}")).ok()?
        });
        let Some(session) = session else {
            let answer = match forget {
                true => Reply::Done { text: format!("forgot {}", shown(scope.organisation.as_ref())) },
                false => refused("not_logged_in", "not logged in".to_owned()),
            };
            return drop(reply.send(answer));
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
