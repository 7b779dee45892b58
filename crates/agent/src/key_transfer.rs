//! Client keys in band (wire.md §5.4): which authorities transfer them, and how a received key is assigned to its
//! grant.
//!
//! The agent uses a key only if the authority has announced the key's pair over TLS. It ignores all other keys that
//! arrive in shims.

use anyhow::Result;
use api::{Grant, GrantRequest};
use client::{Authority, Error};
use datapath::table::Table;
use engine::openflow::logins::Realm;
use ipnet::IpNet;
use std::collections::BTreeMap;
use std::net::{SocketAddr, SocketAddrV4};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};
use wire::map::TakenKey;
use wire::{ClientKey, Pair};

/// Maximum time for which the agent waits for a key after the answer that names the key's pair. The answer may overtake
/// the packet with the key.
const LATE: Duration = Duration::from_secs(1);
/// Interval at which the agent looks into the table while it waits for a key.
const LOOK: Duration = Duration::from_millis(10);
/// Maximum time for resolving an authority's name.
const RESOLVE: Duration = Duration::from_secs(5);

/// The table of keys that the kernel program received in band.
#[derive(Clone)]
pub struct Keys(Arc<Table<u64, TakenKey>>);

impl Keys {
    /// Wraps the table.
    pub fn new(table: Table<u64, TakenKey>) -> Self {
        Self(Arc::new(table))
    }

    /// Returns a pair's key and removes it from the table, so that it can be taken only once.
    fn take(&self, pair: Pair) -> Result<Option<ClientKey>> {
        let handle = pair.handle().0;
        let found = self.0.get(&handle)?;
        self.0.remove(&handle)?;
        Ok(found.map(|taken| taken.key()))
    }

    async fn wait_for(&self, pair: Pair) -> Option<ClientKey> {
        let late = Instant::now() + LATE;
        loop {
            match self.take(pair) {
                Ok(Some(key)) => return Some(key),
                Ok(None) if Instant::now() < late => sleep(LOOK).await,
                Ok(None) => return None,
                Err(error) => {
                    tracing::warn!("cannot look for a key that may have arrived in band: {error:#}");
                    return None;
                }
            }
        }
    }
}

/// Requests a grant whose key the authority can send in band. If the key does not arrive, requests the grant again,
/// with the key in the answer.
///
/// # Errors
///
/// Fails if the authority denies the grant or can't be reached.
pub async fn ask(authority: &Authority, request: &GrantRequest, keys: &Keys) -> Result<Grant, Error> {
    let mut grant = authority.grant(&GrantRequest { in_band: true, ..request.clone() }).await?;
    if !grant.key.is_empty() {
        return Ok(grant);
    }
    let pair = hex::decode(&grant.header).ok().and_then(|bytes| bytes.try_into().ok()).map(Pair::from_bytes);
    let key = match pair {
        Some(pair) => keys.wait_for(pair).await,
        None => None,
    };
    match key {
        Some(key) => {
            grant.key = hex::encode(key.bytes());
            Ok(grant)
        }
        None => {
            tracing::warn!(to = %request.address, "the key did not arrive in band: requesting it by HTTPS");
            authority.grant(request).await
        }
    }
}

/// Returns the authorities at which people behind switches log in. Each comes with its IPv4 addresses, and with the
/// networks in which its client keys are valid.
pub async fn realms(logins: &BTreeMap<String, Vec<IpNet>>) -> Vec<Realm> {
    let asked: Vec<_> = logins.iter().map(|(url, networks)| (tokio::spawn(addresses(url.clone())), networks)).collect();
    let mut realms = Vec::new();
    for (found, networks) in asked {
        realms.push(Realm { ends: found.await.unwrap_or_default(), networks: networks.clone() });
    }
    realms
}

/// Resolves the host names in these URLs of authorities to IPv4 addresses, because shims are IPv4 only. Leaves out
/// names that can't be resolved. Resolves all names at once, because the agent waits for them when it starts.
pub async fn ends(urls: &[String]) -> Vec<SocketAddrV4> {
    let asked: Vec<_> = urls.iter().map(|url| tokio::spawn(addresses(url.clone()))).collect();
    let mut ends = Vec::new();
    for found in asked {
        ends.extend(found.await.unwrap_or_default());
    }
    ends
}

async fn addresses(url: String) -> Vec<SocketAddrV4> {
    let found = async {
        let (host, port) = client::endpoint(&url)?;
        let found = tokio::net::lookup_host((host, port)).await;
        found.map(Vec::from_iter).map_err(|error| Error::Other(error.to_string()))
    };
    let four = |end| match end {
        SocketAddr::V4(end) => Some(end),
        SocketAddr::V6(_) => None,
    };
    match timeout(RESOLVE, found).await {
        Ok(Ok(found)) => return found.into_iter().filter_map(four).collect(),
        Ok(Err(error)) => {
            tracing::warn!(url, "cannot find this authority's address, so its keys come by HTTPS: {error}");
        }
        Err(_) => {
            tracing::warn!(
                url,
                "this authority's name was not resolved within {RESOLVE:?}, so its keys come by HTTPS; the agent \
                 tries again in a minute"
            );
        }
    }
    Vec::new()
}
