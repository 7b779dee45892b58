//! Answers over HTTP who is behind a connection, in the form that `auth_request` of nginx, `forward_auth` of Caddy and
//! `ext_authz` of Envoy use. The request's headers name a connection of the application. The answer's status and
//! headers name the person behind it.
//!
//! The listener is a UNIX socket, because the kernel reports the user behind each of its connections.

use super::complaints::{Complainants, complain};
use super::headers::connection;
use super::{Answer, Identity, identify};
use crate::shared::Shared;
use anyhow::Result;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Router};
use shell::control::Access;
use shell::http::{Times, converse};
use shell::lines;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UnixListener;
use tokio::sync::Semaphore;

/// Maximum number of concurrent connections of each user who may ask. No user can take the places of another one.
const SHARE: usize = 256;
/// Maximum number of concurrent connections whose questions are refused; further connections are closed.
const REFUSED: usize = 8;
/// Time limits of a connection, which proxies keep for many questions. It ends if no question comes for the time
/// `head`.
const TIMES: Times = Times { head: Duration::from_secs(30), whole: Duration::from_secs(600) };
const REFUSAL: Times = Times { head: Duration::from_secs(1), whole: Duration::from_secs(2) };
/// Pause after a failure to accept a connection.
const PAUSE: Duration = Duration::from_millis(100);

/// The path whose answer is 200 only if the person is known.
const PERSON: &str = "/v1/person";
/// The path whose answer is 200 for anybody, also for a connection without identity.
const ANYONE: &str = "/v1/anyone";

/// The path at which an application complains about the person behind a connection.
const COMPLAINT: &str = "/v1/complaint";

/// Headers of the answer.
const SAYS: [&str; 5] =
    ["x-vouchsafe-person", "x-vouchsafe-device", "x-vouchsafe-receiver", "x-vouchsafe-rule", "x-vouchsafe-grant"];

/// The number of the user on the other side of a connection.
#[derive(Clone, Copy)]
struct User(u32);

/// Listens at `path`. Every user can connect; [`serve`] decides whose questions are answered.
///
/// # Errors
///
/// Fails if another daemon listens there, or if the socket can't be made.
pub fn listen(path: &Path) -> Result<UnixListener> {
    lines::listen(path, "verifier", "a second verifier needs its own --identity-socket")
}

/// Answers questions until the future is dropped.
pub async fn serve(listener: UnixListener, access: Access, complainants: Complainants, shared: Arc<Shared>) {
    let answers = Router::new().fallback(answer).with_state((shared, Arc::new(complainants)));
    let (refuses, sends_back) = (Router::new().fallback(refuse), Router::new().fallback(too_many));
    let (mut shares, refused) = (BTreeMap::new(), Arc::new(Semaphore::new(REFUSED)));
    crate::relay::make_room();
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Usually the process is out of file descriptors: connections that end will free some.
                tracing::warn!("cannot accept a connection to the identity socket: {error}");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let Ok(user) = stream.peer_cred().map(|peer| peer.uid()) else { continue };
        // INVARIANT: only users who may ask get a share, so there are as many shares as the settings name users.
        let own = access.knows(user).then(|| shares.entry(user).or_insert_with(|| Arc::new(Semaphore::new(SHARE))));
        let (place, router, times) = match own.map(|share| share.clone().try_acquire_owned()) {
            Some(Ok(place)) => (place, answers.clone().layer(Extension(User(user))), TIMES),
            beyond => {
                tracing::debug!(user, may_ask = beyond.is_some(), "refused a connection to the identity socket");
                let Ok(place) = refused.clone().try_acquire_owned() else { continue };
                (place, if beyond.is_some() { sends_back.clone() } else { refuses.clone() }, REFUSAL)
            }
        };
        tokio::spawn(async move {
            converse(stream, router, times).await;
            drop(place);
        });
    }
}

async fn refuse() -> Response {
    let why = "this user may not ask who is behind a connection: add it to `whois_users` in verifier.toml\n";
    (StatusCode::FORBIDDEN, why).into_response()
}

async fn too_many() -> Response {
    let why = format!("this user has {SHARE} connections already: close those that are idle, or ask again later\n");
    (StatusCode::SERVICE_UNAVAILABLE, [("retry-after", "1")], why).into_response()
}

async fn answer(
    State((shared, complainants)): State<(Arc<Shared>, Arc<Complainants>)>,
    Extension(User(user)): Extension<User>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
) -> Response {
    if uri.path() == COMPLAINT {
        // A proxy asks with the visitor's method, but never for this path.
        return match method {
            Method::POST => complain(&shared, &complainants, user, &headers).await,
            _ => (StatusCode::METHOD_NOT_ALLOWED, "complain with POST\n").into_response(),
        };
    }
    let Some(question) = Question::of(uri.path()) else {
        let paths = format!("the paths are {PERSON}, {ANYONE} and {COMPLAINT}\n");
        return (StatusCode::NOT_FOUND, paths).into_response();
    };
    let connection = match connection(&headers) {
        Ok(connection) => connection,
        Err(fault) => return (StatusCode::BAD_REQUEST, format!("{fault}\n")).into_response(),
    };
    match identify(&shared, connection).await {
        Ok(answer) => question.respond(&answer),
        Err(error) => {
            tracing::error!("cannot tell who is behind a connection: {error:#}");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

/// The question of an application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Question {
    /// The application serves only connections whose person is known.
    Person,
    /// The application serves every connection. It only wants to know the person, if there is one.
    Anyone,
}

impl Question {
    /// Returns the question that a path asks. Envoy appends the path of the visitor's request. The visitor chooses this
    /// path, so no appended path may turn one question into the other.
    fn of(path: &str) -> Option<Self> {
        let below = |base: &str| path.strip_prefix(base).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        if below(PERSON) { Some(Self::Person) } else { below(ANYONE).then_some(Self::Anyone) }
    }

    fn respond(self, answer: &Answer) -> Response {
        match (self, answer) {
            (_, Answer::Known(Identity { person, device, receiver, rule, handle })) => {
                says([person, device, receiver, rule, handle].map(String::as_str)).into_response()
            }
            // Empty headers, so that a proxy overwrites headers of the same name that the visitor sent.
            (Self::Anyone, Answer::Nobody | Answer::Unnamed) => says([""; 5]).into_response(),
            (Self::Person, Answer::Nobody) => {
                let why = "no grant admitted a connection between these addresses and ports\n";
                (StatusCode::UNAUTHORIZED, [("www-authenticate", "Vouchsafe")], why).into_response()
            }
            (Self::Person, Answer::Unnamed) => {
                (StatusCode::SERVICE_UNAVAILABLE, "the authority does not name the owner of the connection's grant\n")
                    .into_response()
            }
        }
    }
}

fn says(values: [&str; 5]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in SAYS.into_iter().zip(values) {
        if let Ok(value) = HeaderValue::from_str(&encoded(value)) {
            headers.insert(HeaderName::from_static(name), value);
        }
    }
    headers
}

/// Encodes a text as a header's value: printable ASCII as it is, every other byte, `%`, and spaces at the ends as
/// `%XX`.
fn encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let last = text.len().saturating_sub(1);
    for (at, byte) in text.bytes().enumerate() {
        let inner_space = byte == b' ' && at != 0 && at != last;
        if inner_space || byte.is_ascii_graphic() && byte != b'%' {
            out.push(char::from(byte));
        } else {
            // Writing to a string can't fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_visitors_path_does_not_change_the_question() {
        for (path, question) in [
            ("/v1/person", Some(Question::Person)),
            ("/v1/person/v1/anyone", Some(Question::Person)),
            ("/v1/person/../anyone", Some(Question::Person)),
            ("/v1/anyone/", Some(Question::Anyone)),
            ("/v1/personal", None),
            ("/", None),
        ] {
            assert_eq!(Question::of(path), question, "{path}");
        }
    }

    fn status(question: Question, answer: &Answer) -> (u16, Vec<String>) {
        let response = question.respond(answer);
        let values = SAYS.iter().filter_map(|name| response.headers().get(*name)?.to_str().ok().map(str::to_owned));
        (response.status().as_u16(), values.collect())
    }

    #[test]
    fn only_a_known_person_gets_a_yes_where_one_is_required() {
        let [person, device, receiver, handle] = ["alice", "laptop", "git", "00"].map(str::to_owned);
        let rule = "Zürich\r\n100 %".to_owned();
        let known = Answer::Known(Identity { person, device, receiver, rule, handle });
        let shown = ["alice", "laptop", "git", "Z%C3%BCrich%0D%0A100 %25", "00"].map(str::to_owned).to_vec();
        for question in [Question::Person, Question::Anyone] {
            assert_eq!(status(question, &known), (200, shown.clone()));
        }
        assert_eq!(status(Question::Person, &Answer::Nobody), (401, vec![]));
        assert_eq!(status(Question::Person, &Answer::Unnamed), (503, vec![]));
        let empty = vec![String::new(); 5];
        assert_eq!(status(Question::Anyone, &Answer::Nobody), (200, empty.clone()));
        assert_eq!(status(Question::Anyone, &Answer::Unnamed), (200, empty));
    }
}
