//! A call to an authority, and the ways in which an attempt to send the call can fail.

use crate::{CALL_TIME, Error, MOST_ANSWER};
use api::Problem;
use reqwest::header::{CONTENT_TYPE, HeaderValue};
use reqwest::{Method, RequestBuilder, Response, StatusCode, Url};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::Arc;
use std::time::Duration;

/// Path of the call that shows the authority a segment, to get the return segment.
pub(crate) const ANSWER_SEGMENT: &str = "v1/segments/answer";

/// A call that is not yet addressed to a certain authority.
pub(crate) struct Call {
    method: Method,
    path: String,
    body: Option<Vec<u8>>,
    token: Option<Arc<str>>,
    /// Whether an authority can carry out the call twice without harm.
    pub repeats: bool,
    limit: Option<Duration>,
}

impl Call {
    /// Creates a call that changes nothing (HTTP GET).
    pub fn get(path: impl Into<String>) -> Self {
        let (path, limit) = (path.into(), Some(CALL_TIME));
        Self { method: Method::GET, path, body: None, token: None, repeats: true, limit }
    }

    /// Creates a call that changes something (HTTP POST).
    pub fn post(path: &str) -> Self {
        Self { method: Method::POST, repeats: false, ..Self::get(path) }
    }

    /// Creates a call that only checks whether an authority answers.
    pub fn health() -> Self {
        Self::get("v1/health")
    }

    /// Adds a body in JSON.
    pub fn json(self, body: &impl Serialize) -> Result<Self, Error> {
        let body = serde_json::to_vec(body).map_err(|error| Error::Other(error.to_string()))?;
        Ok(Self { body: Some(body), ..self })
    }

    /// Declares that an authority can carry out this call twice without harm. An example is a request for a grant: the
    /// second request renews the grant.
    pub fn repeatable(self) -> Self {
        Self { repeats: true, ..self }
    }

    /// Removes the time limit for the answer, because the answer is a stream.
    pub fn endless(self) -> Self {
        Self { limit: None, ..self }
    }

    /// Reports whether the call shows the authority a segment.
    pub fn shows_segment(&self) -> bool {
        self.path == ANSWER_SEGMENT
    }

    /// Reports whether the answer is a stream.
    pub fn is_endless(&self) -> bool {
        self.limit.is_none()
    }

    /// Adds a bearer token. Fails with [`Error::NotLoggedIn`] if `token` is `None`.
    pub fn with_token(self, token: Option<&Arc<str>>) -> Result<Self, Error> {
        Ok(Self { token: Some(token.ok_or(Error::NotLoggedIn)?.clone()), ..self })
    }

    /// Creates the HTTP request that makes this call to the authority at `url`.
    pub fn to(&self, http: &reqwest::Client, url: &Url) -> Result<RequestBuilder, Error> {
        let url = url.join(&self.path).map_err(|error| Error::Other(error.to_string()))?;
        let mut request = http.request(self.method.clone(), url);
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        if let Some(body) = &self.body {
            request = request.header(CONTENT_TYPE, HeaderValue::from_static("application/json")).body(body.clone());
        }
        Ok(match self.limit {
            Some(limit) => request.timeout(limit),
            None => request,
        })
    }
}

/// Reason why an authority did not carry out a call.
pub(crate) enum Failure {
    /// No answer arrived. If `is_unsent`, no connection was made either, so the authority certainly did not carry out
    /// the call.
    Unreached { error: Error, is_unsent: bool },
    /// The authority has lost the cluster's majority, and did not carry out the call.
    Unable(Error),
    /// The authority does not know the token. Another authority of the cluster possibly knows it.
    NotLoggedIn,
    /// The authority does not know the segment in the request. Another authority of the cluster possibly issued it.
    UnknownSegment(Error),
    /// The authority gave another negative answer. Every authority of the cluster would give the same answer.
    Final(Error),
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Unreached { error, .. }
            | Failure::Unable(error)
            | Failure::UnknownSegment(error)
            | Failure::Final(error) => error,
            Failure::NotLoggedIn => Self::NotLoggedIn,
        }
    }
}

/// Sends a request. Converts an answer whose status is not a success to the corresponding failure.
pub(crate) async fn attempt(request: RequestBuilder) -> Result<Response, Failure> {
    let response = request.send().await.map_err(|error| {
        let is_unsent = error.is_connect();
        match Error::from(error) {
            error @ Error::Unreachable(_) => Failure::Unreached { error, is_unsent },
            error => Failure::Final(error),
        }
    })?;
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    let body = read(response).await.map_err(|error| Failure::Unreached { error, is_unsent: false })?;
    let Ok(problem) = serde_json::from_slice::<Problem>(&body) else {
        let error = Error::Other(format!(
            "this server is not an authority: it answered {status} without the reason that an authority gives"
        ));
        return Err(Failure::Unreached { error, is_unsent: false });
    };
    Err(match status {
        StatusCode::UNAUTHORIZED if problem.r#type == "not_logged_in" => Failure::NotLoggedIn,
        StatusCode::NOT_FOUND if problem.is_unknown_segment() => Failure::UnknownSegment(Error::Refused(problem)),
        StatusCode::FORBIDDEN => Failure::Final(Error::Denied(problem)),
        StatusCode::SERVICE_UNAVAILABLE if problem.is_no_majority() => Failure::Unable(Error::Refused(problem)),
        _ => Failure::Final(Error::Refused(problem)),
    })
}

pub(crate) async fn read(mut response: Response) -> Result<Vec<u8>, Error> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        if body.len() + chunk.len() > MOST_ANSWER {
            return Err(Error::Other("the authority's answer is too long".into()));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

pub(crate) fn parse<A: DeserializeOwned>(body: &[u8]) -> Result<A, Error> {
    serde_json::from_slice(body).map_err(|error| Error::Other(format!("the authority's answer is malformed: {error}")))
}
