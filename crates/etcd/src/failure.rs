//! Errors of etcd and of the connections to it. They say whether etcd carried out a call, and how to solve the problem.

use crate::types::Error;
use reqwest::StatusCode;
use serde_json::Value;

/// Explains how to free space when the database has used up its quota.
pub const NO_SPACE: &str = "its database has reached its quota: free space with `etcdctl compact REVISION` and `etcdctl \
    defrag`, or start the members with a higher --quota-backend-bytes, and then run `etcdctl alarm disarm`";
/// Explains what to do if a member has found that its data differs from the data of other members.
const CORRUPT: &str =
    "a member's data is corrupt: remove that member from the cluster, delete its data, and add it again";

// Codes of gRPC.
const INVALID_ARGUMENT: i64 = 3;
const NOT_FOUND: i64 = 5;
const ALREADY_EXISTS: i64 = 6;
const PERMISSION_DENIED: i64 = 7;
const RESOURCE_EXHAUSTED: i64 = 8;
const FAILED_PRECONDITION: i64 = 9;
const OUT_OF_RANGE: i64 = 11;
const UNIMPLEMENTED: i64 = 12;
const UNAVAILABLE: i64 = 14;
const DATA_LOSS: i64 = 15;
const UNAUTHENTICATED: i64 = 16;

/// Reason why one attempt at a call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The member has certainly not carried out the call. Another member possibly can.
    NotApplied(String),
    /// The member may have carried the call out.
    Unclear(String),
    /// etcd refused the call. Every other member would refuse it, too.
    Refused(String),
    /// etcd reported that its database is full. etcd reports this error for calls that it has refused, but also for the
    /// call that exceeded the quota, although it has carried out that call.
    Full,
    /// The answer is longer than the limit.
    TooLong,
}

impl Failure {
    /// Returns the error for the caller. `writes` says whether the call changes something.
    pub fn into_error(self, writes: bool) -> Error {
        match self {
            Self::NotApplied(why) => Error::Unreachable(why),
            Self::Unclear(why) if writes => Error::Unknown(why),
            Self::Unclear(why) => Error::Unreachable(why),
            Self::Refused(why) => Error::Refused(why),
            Self::Full if writes => Error::Unknown(NO_SPACE.into()),
            Self::Full => Error::Refused(NO_SPACE.into()),
            Self::TooLong if writes => Error::Unknown(TOO_LONG.into()),
            Self::TooLong => Error::Refused(TOO_LONG.into()),
        }
    }
}

const TOO_LONG: &str = "the answer is too long";

/// Classifies an error of reqwest.
pub fn of_connection(error: &reqwest::Error) -> Failure {
    let why = chain(error);
    // A handshake that failed for a certificate's sake can look like a failure to read the answer, because in TLS 1.3
    // the client sends its request before the server has checked the client's certificate.
    let alerts = ["Certificate", "UnknownCA", "AccessDenied"];
    let is_handshake = why
        .split_once("received fatal alert: ")
        .is_some_and(|(_, alert)| alerts.iter().any(|name| alert.contains(name)));
    if is_handshake {
        return Failure::NotApplied(format!("{why}: give a client certificate that the members' CA has signed"));
    }
    if error.is_connect() || error.is_builder() { Failure::NotApplied(why) } else { Failure::Unclear(why) }
}

/// Classifies an answer whose HTTP status is an error.
pub fn of_answer(status: StatusCode, body: &[u8]) -> Failure {
    if let Some((code, message)) = serde_json::from_slice(body).ok().as_ref().and_then(grpc_error) {
        return of_grpc(code, message);
    }
    let text: String = String::from_utf8_lossy(body).trim().chars().take(300).collect();
    match status {
        StatusCode::NOT_FOUND => Failure::Refused(
            "the endpoint has no JSON gateway below /v3/: name a member's client URL, of etcd 3.4 or later, that was not \
             started with --enable-grpc-gateway=false"
                .into(),
        ),
        _ if status.is_client_error() => Failure::Refused(format!("HTTP {status}: {text}")),
        _ => Failure::Unclear(format!("HTTP {status}: {text}")),
    }
}

/// Returns the code and the message of an error, in plain answers and in streams. The gateways of etcd 3.4 to 3.6 use
/// several forms, all of which this function reads.
pub fn grpc_error(answer: &Value) -> Option<(i64, &str)> {
    let inner = answer.get("error").filter(|error| error.is_object()).unwrap_or(answer);
    let code = inner.get("grpc_code").or_else(|| inner.get("code"))?.as_i64()?;
    let message = inner.get("message").or_else(|| inner.get("error")).and_then(Value::as_str).unwrap_or_default();
    Some((code, message))
}

/// Classifies an error of gRPC.
pub fn of_grpc(code: i64, message: &str) -> Failure {
    let says = |part: &str| message.contains(part);
    match code {
        // Members report the first three errors before they propose the call to Raft. The gateway reports the last one
        // if it could not connect to its own member.
        UNAVAILABLE
            if says("no leader")
                || says("not capable")
                || says("not supported for learner")
                || says("all SubConns are in TransientFailure") =>
        {
            let hint = if says("authentication handshake failed") {
                ": the members' own certificates must also be valid for clients (extended key usage clientAuth), because \
                 the JSON gateway connects to its member with the member's certificate"
            } else {
                ""
            };
            Failure::NotApplied(format!("{message}{hint}"))
        }
        RESOURCE_EXHAUSTED if says("too many requests") => Failure::NotApplied(message.into()),
        RESOURCE_EXHAUSTED if says("database space exceeded") => Failure::Full,
        RESOURCE_EXHAUSTED if says("received message larger than max") => Failure::TooLong,
        DATA_LOSS => Failure::Refused(format!("{message}: {CORRUPT}")),
        UNIMPLEMENTED => Failure::Refused(format!("{message}: etcd 3.4 or later is needed")),
        PERMISSION_DENIED | UNAUTHENTICATED => Failure::Refused(format!(
            "{message}: the JSON gateway ignores the names in client certificates, so etcd's own authentication must be \
             off; demand client certificates instead (--client-cert-auth)"
        )),
        INVALID_ARGUMENT if says("request is too large") => {
            Failure::Refused(format!("{message}: see the members' --max-request-bytes"))
        }
        INVALID_ARGUMENT | NOT_FOUND | ALREADY_EXISTS | FAILED_PRECONDITION | OUT_OF_RANGE => {
            Failure::Refused(message.into())
        }
        _ => Failure::Unclear(message.into()),
    }
}

/// Returns a problem that a member's status reports, in words. Adds the solution if one is known.
pub fn problem(reported: &str) -> String {
    let reported = reported.trim();
    if reported.contains("NOSPACE") {
        format!("no space: {NO_SPACE}")
    } else if reported.contains("CORRUPT") {
        format!("corrupt: {CORRUPT}")
    } else {
        reported.to_owned()
    }
}

/// Returns an error with its causes, in one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn answered(status: u16, body: &Value) -> Failure {
        of_answer(StatusCode::from_u16(status).expect("a status"), body.to_string().as_bytes())
    }

    #[test]
    fn a_transaction_that_may_have_been_proposed_is_unclear() {
        for message in [
            "etcdserver: request timed out",
            "etcdserver: request timed out, possibly due to previous leader failure",
            "etcdserver: leader changed",
            "etcdserver: server stopped",
            "transport is closing",
        ] {
            let failure = answered(503, &json!({"error": message, "message": message, "code": 14}));
            assert_eq!(failure, Failure::Unclear(message.into()));
            assert_eq!(failure.clone().into_error(true), Error::Unknown(message.into()));
            assert_eq!(failure.into_error(false), Error::Unreachable(message.into()));
        }
        assert!(matches!(answered(500, &json!({"code": 2, "message": "raft: stopped"})), Failure::Unclear(_)));
        assert!(matches!(
            answered(504, &json!({"code": 4, "message": "context deadline exceeded"})),
            Failure::Unclear(_)
        ));
    }

    #[test]
    fn a_member_without_a_leader_has_not_applied_the_transaction() {
        let failure = answered(503, &json!({"error": "etcdserver: no leader", "code": 14}));
        assert_eq!(failure, Failure::NotApplied("etcdserver: no leader".into()));
        assert!(matches!(failure.into_error(true), Error::Unreachable(_)));
    }

    #[test]
    fn a_full_database_names_the_way_out_and_leaves_a_transaction_in_doubt() {
        let failure = answered(429, &json!({"message": "etcdserver: mvcc: database space exceeded", "code": 8}));
        assert_eq!(failure, Failure::Full);
        assert!(matches!(failure.clone().into_error(true), Error::Unknown(why) if why.contains("alarm disarm")));
        assert!(matches!(failure.into_error(false), Error::Refused(why) if why.contains("alarm disarm")));
    }

    #[test]
    fn errors_have_the_forms_of_each_gateway() {
        let stream = json!({"error": {"grpc_code": 14, "http_code": 503, "message": "etcdserver: no leader"}});
        assert_eq!(grpc_error(&stream), Some((14, "etcdserver: no leader")));
        let later = json!({"error": {"code": 14, "message": "etcdserver: no leader", "details": []}});
        assert_eq!(grpc_error(&later), Some((14, "etcdserver: no leader")));
        assert_eq!(grpc_error(&json!({"code": 5, "message": "a", "details": []})), Some((5, "a")));
        assert_eq!(grpc_error(&json!({"code": 5, "error": "a"})), Some((5, "a")));
        assert_eq!(grpc_error(&json!({"result": {}})), None);
    }

    #[test]
    fn answers_without_an_error_of_grpc_are_classified_by_their_status() {
        assert!(
            matches!(of_answer(StatusCode::NOT_FOUND, b"404 page not found"), Failure::Refused(why) if why.contains("JSON gateway"))
        );
        assert!(matches!(of_answer(StatusCode::BAD_GATEWAY, b"<html>"), Failure::Unclear(_)));
        assert!(
            matches!(of_answer(StatusCode::MISDIRECTED_REQUEST, b"host"), Failure::Refused(why) if why.contains("host"))
        );
    }

    #[test]
    fn alarms_name_the_way_out() {
        assert!(problem("memberID:8211 alarm:NOSPACE ").contains("--quota-backend-bytes"));
        assert!(problem("memberID:8211 alarm:CORRUPT ").contains("corrupt"));
        assert_eq!(problem("etcdserver: no leader"), "etcdserver: no leader");
    }
}
