//! The reasons why a call fails.

use api::Problem;

/// Reason why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The policy denies the request.
    #[error("{}", .0.title)]
    Denied(Problem),
    /// There is no bearer token, or it has expired: log in or enrol again.
    #[error("not logged in, or the session has ended: log in again")]
    NotLoggedIn,
    /// The authority refused the call for another reason, such as `wrong_password` or `too_many`.
    #[error("{}", .0.title)]
    Refused(Problem),
    /// No answer arrived: no connection was made, the authority's certificate is not trusted, or the time limit was
    /// exceeded.
    #[error("cannot reach the authority: {0}")]
    Unreachable(String),
    /// The answer does not match the request.
    #[error("the authority's answer is malformed: {0}")]
    Unusable(&'static str),
    /// Another failure, such as an answer that can't be parsed.
    #[error("{0}")]
    Other(String),
}

impl From<reqwest::Error> for Error {
    fn from(error: reqwest::Error) -> Self {
        if error.is_decode() || error.is_builder() {
            Self::Other(chain(&error))
        } else {
            Self::Unreachable(chain(&error))
        }
    }
}

/// Formats an error with its causes. The last cause is the most useful (`connection refused`, `invalid peer
/// certificate`).
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    with_way_out(text)
}

/// Appends advice if the system does not know the authority's CA, or if the certificate is for another name.
fn with_way_out(mut text: String) -> String {
    if ["UnknownIssuer", "BadSignature"].iter().any(|fault| text.contains(fault)) {
        text.push_str("; name the authority's ca.pem with `--ca`");
    }
    if ["NotValidForName", "not valid for name"].iter().any(|fault| text.contains(fault)) {
        text.push_str("; the authority's certificate has to contain the name that you gave (`authority init --name`)");
    }
    text
}
