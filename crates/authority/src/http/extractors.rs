//! Extractors for handlers: the caller, the caller's address and the request body. They reject unreadable and
//! unauthenticated requests.

use crate::http::peer::{Member, Peer};
use crate::http::problems::Problem;
use crate::http::throttle::{Key, Throttle};
use crate::login::Sessions;
use crate::login::credentials::token_hash;
use crate::push::events::Listener;
use crate::push::verifiers::Verifiers;
use crate::state::Authority;
use crate::storage::{Session, TokenHash};
use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use serde::de::DeserializeOwned;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time limit for receiving the body of a request.
const BODY_TIME: Duration = Duration::from_secs(10);

/// A part of the authority, such as its storage. A handler that has an argument of this type receives the part `P`.
pub struct Part<P>(pub Arc<P>);

impl<P> FromRequestParts<Arc<Authority>> for Part<P>
where
    P: Send + Sync,
    Authority: AsRef<Arc<P>>,
{
    type Rejection = Infallible;

    async fn from_request_parts(_: &mut Parts, authority: &Arc<Authority>) -> Result<Self, Infallible> {
        Ok(Self(AsRef::<Arc<P>>::as_ref(&**authority).clone()))
    }
}

/// Middleware that limits the rate of calls from one source on connections that have shown no credential. The limit
/// counts calls of all kinds together, except calls that show a credential.
///
/// # Errors
/// Fails if the source exceeds the rate.
pub async fn slow_strangers(
    State(throttle): State<Arc<Throttle>>,
    peer: Peer,
    request: Request,
    next: Next,
) -> Result<Response, Problem> {
    if peer.is_proven() {
        return Ok(next.run(request).await);
    }
    let calls = [Key::Stranger(Key::source(peer.address))];
    throttle.charge(&calls, Instant::now()).map_err(Problem::TooMany)?;
    let response = next.run(request).await;
    if peer.is_proven() {
        // It was no stranger's call. The agents behind one address reconnect together, each with two connections.
        throttle.refund(&calls);
    }
    Ok(response)
}

impl<S: Sync> FromRequestParts<S> for Peer {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        parts
            .extensions
            .get()
            .cloned()
            .ok_or_else(|| anyhow::anyhow!("the listener did not note the address of the caller").into())
    }
}

/// A request body, read from JSON.
pub struct Body<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let bytes = tokio::time::timeout(BODY_TIME, Bytes::from_request(request, state)).await;
        let bytes = bytes.map_err(|_| Problem::TooSlow)?.map_err(|rejection| match rejection.status() {
            StatusCode::PAYLOAD_TOO_LARGE => Problem::TooLarge,
            _ => Problem::Malformed("cannot read the body of the request".into()),
        })?;
        let read = serde_json::from_slice(&bytes);
        read.map(Self).map_err(|error| Problem::Malformed(format!("the body is not valid for this call: {error}")))
    }
}

/// The holder of a valid bearer token.
pub enum Caller {
    /// A logged-in person.
    Session(SessionCaller),
    /// An enrolled verifier.
    Verifier(VerifierCaller),
}

impl Caller {
    /// Returns the caller as a listener of the push channel.
    pub fn listener(&self) -> Listener {
        match self {
            Self::Session(caller) => Listener::Session(caller.token),
            Self::Verifier(caller) => Listener::Verifier(caller.id.to_string()),
        }
    }

    /// Reports whether the caller's token is still valid.
    pub fn is_known(&self, sessions: &Sessions, verifiers: &Verifiers) -> bool {
        match self {
            Self::Session(caller) => sessions.get(&caller.token).is_some(),
            Self::Verifier(caller) => verifiers.id(&caller.token).is_some(),
        }
    }
}

impl FromRequestParts<Arc<Authority>> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, authority: &Arc<Authority>) -> Result<Self, Problem> {
        let peer = Peer::from_request_parts(parts, authority).await?;
        let header = parts.headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let token = header.and_then(|value| value.strip_prefix("Bearer ")).ok_or(Problem::NotLoggedIn)?;
        let token = token_hash(token);
        let is_known = authority.sessions.get(&token).is_some() || authority.verifiers.id(&token).is_some();
        if !is_known && authority.follower.may_be_known(&token).await {
            let known = authority.sessions.get(&token).is_some() || authority.verifiers.id(&token).is_some();
            if !known {
                // The session may be newer than the copy of the database here.
                return Err(Problem::NoMajority);
            }
        }
        let caller = if let Some(session) = authority.sessions.get(&token) {
            Self::Session(SessionCaller { token, session, peer: peer.clone() })
        } else if let Some(id) = authority.verifiers.id(&token) {
            Self::Verifier(VerifierCaller { token, id })
        } else {
            return Err(Problem::NotLoggedIn);
        };
        peer.prove(|| match &caller {
            Self::Session(caller) => Member::Person(caller.session.person.clone()),
            Self::Verifier(caller) => Member::Verifier(caller.id.to_string()),
        });
        Ok(caller)
    }
}

/// A logged-in person who makes a call.
pub struct SessionCaller {
    /// The hash of the session's bearer token.
    pub token: TokenHash,
    /// The session in which the person makes the call.
    pub session: Arc<Session>,
    /// The remote end of the connection on which the call arrived.
    pub peer: Peer,
}

impl FromRequestParts<Arc<Authority>> for SessionCaller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, authority: &Arc<Authority>) -> Result<Self, Problem> {
        match Caller::from_request_parts(parts, authority).await? {
            Caller::Session(caller) => Ok(caller),
            Caller::Verifier(_) => Err(Problem::WrongCaller),
        }
    }
}

/// An enrolled verifier that makes a call.
pub struct VerifierCaller {
    /// The hash of the bearer token.
    pub token: TokenHash,
    /// The verifier's id.
    pub id: Arc<str>,
}

impl FromRequestParts<Arc<Authority>> for VerifierCaller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, authority: &Arc<Authority>) -> Result<Self, Problem> {
        match Caller::from_request_parts(parts, authority).await? {
            Caller::Verifier(caller) => Ok(caller),
            Caller::Session(_) => Err(Problem::WrongCaller),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::Router;
    use axum::middleware::from_fn_with_state;
    use axum::routing::get;
    use tower_service::Service;

    /// More calls than a source may make at once without a credential.
    const MANY: usize = 3000;

    #[tokio::test]
    async fn calls_on_new_connections_are_limited_unless_they_show_a_credential() {
        let shows = async |peer: Peer| peer.prove(|| Member::Verifier("edge-1".into()));
        let router = Router::new().route("/member", get(shows)).route("/stranger", get(async || ()));
        let router: Router = router.layer(from_fn_with_state(Arc::<Throttle>::default(), slow_strangers));
        let call = async |path: &str| {
            let mut request = Request::new(axum::body::Body::empty());
            *request.uri_mut() = path.parse().unwrap();
            request.extensions_mut().insert(Peer::new(([192, 0, 2, 1], 40_000).into(), None));
            router.clone().call(request).await.unwrap().status()
        };
        for number in 0..MANY {
            assert_eq!(call("/member").await, StatusCode::OK, "call {number}");
        }
        let mut answers = Vec::new();
        for _ in 0..MANY {
            answers.push(call("/stranger").await);
        }
        assert!(answers.contains(&StatusCode::OK) && answers.contains(&StatusCode::TOO_MANY_REQUESTS));
    }
}
