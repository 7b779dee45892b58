//! A person's requests for access to receivers, which the agent and a user's own session pass on to the authority.

use crate::login::{refused, refused_by};
use crate::protocol::{AccessCall, Reply};
use api::AccessRequest;
use client::Authority;
use std::time::Duration;

/// Maximum time that a call waits for the authority.
const CALL_TIME: Duration = Duration::from_secs(10);

/// Makes a call about requests for access, in the session of `authority`.
pub async fn call(authority: &Authority, call: AccessCall) -> Reply {
    let answer = async {
        match call {
            AccessCall::Ask { receiver, services, lifetime, reason } => {
                let request = AccessRequest { receiver, services, lifetime, reason };
                let asked = authority.ask_access(&request).await?;
                let text =
                    format!("request {}: a person who decides for {} has to allow it", asked.id, request.receiver);
                Ok(Reply::Done { text })
            }
            AccessCall::List { before: None } => authority.access().await.map(Reply::Access),
            AccessCall::List { before: Some(next) } => authority.access_before(&next).await.map(Reply::Access),
            AccessCall::Withdraw { id } => {
                // The number becomes a part of the call's path.
                if id.len() != 8 || !id.chars().all(|digit| digit.is_ascii_hexdigit()) {
                    return Ok(refused("malformed", "the number of a request has 8 hex digits".to_owned()));
                }
                authority.withdraw_access(&id).await?;
                Ok(Reply::Done { text: format!("withdrawn: {id}") })
            }
        }
    };
    match tokio::time::timeout(CALL_TIME, answer).await {
        Ok(Ok(reply)) => reply,
        Ok(Err(error)) => refused_by(&error),
        Err(_) => refused("unreachable", "the authority does not answer".to_owned()),
    }
}
