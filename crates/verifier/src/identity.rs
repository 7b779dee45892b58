//! Tells applications who is behind a connection: the owner of the grant that admitted it.
//!
//! An answer is about the flow that has the connection's addresses and ports now. The verifier remembers nothing from
//! one answer to the next. If the flow gets another owner while the verifier asks the authority, the verifier does not
//! give the answer.

pub mod complaints;
pub mod endpoint;
mod headers;

use crate::now;
use crate::shared::Shared;
use anyhow::Result;
use engine::verifier::is_in_use;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use wire::map::{Flow, FlowKey};

/// Longest time from a client's last SYN to the moment when the server's application gets the connection: enough for
/// the server to send its answer five times (after 1, 3, 7 and 15 s). A client whose handshake takes longer is not
/// known.
const HANDSHAKE: u64 = 20;
/// Largest difference of two readings of one clock in whole seconds.
const ROUNDING: u64 = 2;

/// A connection of an application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// The client's address and port, as the server sees them.
    pub client: SocketAddr,
    /// The server's address and port.
    pub server: SocketAddr,
    /// Number of the IP protocol.
    pub protocol: u8,
    /// Time since the application accepted the connection; `None` if the application does not say. With this time, the
    /// verifier does not mistake an older flow with the same addresses and ports for this connection.
    pub age: Option<Duration>,
}

impl Connection {
    /// Reports whether a flow that began at `since` can be this connection. `now` is in Unix seconds, too.
    fn began_with(&self, since: u64, now: u64) -> bool {
        self.age.is_none_or(|age| {
            let accepted = now.saturating_sub(age.as_secs());
            (accepted.saturating_sub(HANDSHAKE)..=accepted + ROUNDING).contains(&since)
        })
    }
}

/// The person behind a connection, and the terms on which the connection was admitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Name of the person.
    pub person: String,
    /// The person's device.
    pub device: String,
    /// The receiver for which the grant was issued.
    pub receiver: String,
    /// The rule that allowed the grant.
    pub rule: String,
    /// Handle of the grant: 16 hexadecimal digits.
    pub handle: String,
}

/// The answer to the question who is behind a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A grant of this person admitted the connection.
    Known(Identity),
    /// There is no such connection, or no grant admitted it.
    Nobody,
    /// A grant admitted the connection, but neither the verifier nor the authority knows the grant's owner at present.
    Unnamed,
}

/// Returns the person behind a connection. If the verifier does not know the owner of the connection's grant, asks the
/// authority, and waits for two seconds at most.
///
/// # Errors
///
/// Fails if the kernel's tables can't be read.
pub async fn identify(shared: &Arc<Shared>, connection: Connection) -> Result<Answer> {
    match find(shared, connection).await? {
        Some((key, flow)) => owner(shared, key, flow).await,
        None => Ok(Answer::Nobody),
    }
}

/// Returns the flow of this connection, if a grant admitted it. Returns `None` if there is no such flow, or if there
/// are several.
///
/// # Errors
///
/// Fails if the kernel's tables can't be read.
pub async fn find(shared: &Arc<Shared>, connection: Connection) -> Result<Option<(FlowKey, Flow)>> {
    let Connection { client, server, protocol, .. } = connection;
    let look = move |shared: &Shared| {
        let kernel = shared.kernel();
        let (mut flows, time) = (kernel.flows_of(client, Some(server)), now());
        flows.retain(|(key, flow)| {
            key.protocol == protocol
                && flow.by_grant()
                && is_in_use(kernel.config(), key, flow, time as u32)
                && connection.began_with(flow.since.into(), time)
        });
        Ok(flows)
    };
    let flows = shared.clone().read(look).await?;
    if flows.len() > 1 {
        // They differ in the side of a sealed tunnel, or in the client's own address: nobody can say which one the
        // application means.
        tracing::warn!(%client, %server, "several flows have these addresses and ports, so the verifier names nobody");
        return Ok(None);
    }
    Ok(flows.into_iter().next())
}

/// Returns the owner of a flow. Waits for the authority for two seconds at most.
///
/// # Errors
///
/// Fails if the kernel's tables can't be read.
pub async fn owner(shared: &Arc<Shared>, key: FlowKey, flow: Flow) -> Result<Answer> {
    let Some(named) = shared.named(vec![(key, flow)]).await.pop() else { return Ok(Answer::Nobody) };
    if !still_there(shared, key, flow).await? {
        return Ok(Answer::Nobody);
    }
    let known = (named.person, named.device, named.receiver, named.rule, named.handle);
    let (Some(person), Some(device), Some(receiver), Some(rule), Some(handle)) = known else {
        return Ok(Answer::Unnamed);
    };
    Ok(Answer::Known(Identity { person, device, receiver, rule, handle }))
}

/// Reports whether a flow still exists and belongs to the same grant.
async fn still_there(shared: &Arc<Shared>, key: FlowKey, before: Flow) -> Result<bool> {
    let look = move |shared: &Shared| {
        let flow = shared.kernel().flow(&key);
        Ok(flow.is_some_and(|flow| flow.by_grant() && (flow.handle, flow.since) == (before.handle, before.since)))
    };
    shared.clone().read(look).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_of_another_time_is_not_the_connection() {
        let [client, server] = ["192.0.2.1:4000", "192.0.2.2:443"].map(|text| text.parse().expect("an address"));
        let aged = |age| Connection { client, server, protocol: 6, age };
        let began = |age, since| aged(Some(Duration::from_secs(age))).began_with(since, 10_000);
        // Accepted ten seconds ago.
        assert!(began(10, 9_990) && began(10, 9_970) && began(10, 9_992));
        assert!(!began(10, 9_969), "it began long before");
        assert!(!began(10, 9_995), "it began after");
        assert!(!began(20_000, 9_995) && began(u64::MAX, 0));
        assert!(aged(None).began_with(1, 10_000));
    }
}
