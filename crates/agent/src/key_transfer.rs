//! Client keys in band (wire.md §5.4): the authorities that transfer them, and the key's way to its grant.
//!
//! A key counts only if the authority has named its pair under TLS: any other key that arrives in a shim is ignored.

use anyhow::Result;
use api::{Grant, GrantRequest};
use client::{Authority, Error};
use datapath::table::Table;
use std::net::{SocketAddr, SocketAddrV4};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};
use wire::map::TakenKey;
use wire::{ClientKey, Pair};

/// How long after the answer that names its pair a key may arrive: packets overtake each other.
const LATE: Duration = Duration::from_secs(1);
/// Interval at which the table is polled for the key meanwhile.
const LOOK: Duration = Duration::from_millis(10);
/// Timeout for resolving an authority's name.
const RESOLVE: Duration = Duration::from_secs(5);

/// The table of keys that the kernel program took from packets.
#[derive(Clone)]
pub struct Keys(Arc<Table<u64, TakenKey>>);

impl Keys {
    /// Wraps the table.
    pub fn new(table: Table<u64, TakenKey>) -> Self {
        Self(Arc::new(table))
    }

    /// Takes a pair's key and removes it from the table, so that it can be taken only once.
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

/// Requests a grant whose key may come in band. If the key does not arrive, requests the grant again with the key
/// included.
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

/// Resolves the addresses of these authorities, as far as possible; IPv4 only, because shims are.
pub async fn ends(urls: &[String]) -> Vec<SocketAddrV4> {
    let mut ends = Vec::new();
    for url in urls {
        let found = async {
            let (host, port) = client::endpoint(url)?;
            let found = tokio::net::lookup_host((host, port)).await;
            found.map(Vec::from_iter).map_err(|error| Error::Other(error.to_string()))
        };
        match timeout(RESOLVE, found).await {
            Ok(Ok(found)) => ends.extend(found.into_iter().filter_map(|end| match end {
                SocketAddr::V4(end) => Some(end),
                SocketAddr::V6(_) => None,
            })),
            Ok(Err(error)) => {
                tracing::warn!(url, "cannot find this authority's address, so its keys come by HTTPS: {error}")
            }
            Err(_) => {
                tracing::warn!(
                    url,
                    "this authority's name was not resolved within {RESOLVE:?}, so its keys come by HTTPS; the agent \
                     tries again in a minute"
                )
            }
        }
    }
    ends
}
