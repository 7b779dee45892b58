//! Limits on the addresses at which a client connects to authorities. An authority names the other members of its
//! cluster, and DNS gives the addresses of names. Neither of them may make a client connect to an address outside of
//! the organisation.

use api::AUTHORITIES_MAX;
use reqwest::Url;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Decides at which addresses a client may connect to authorities.
pub trait Bounds: Send + Sync {
    /// Returns the reason why the client must not connect to the authority on `host`, which has this address; `None` if
    /// the client may connect. `is_named` states that the user named this host at the login.
    fn refusal(&self, host: &str, address: IpAddr, is_named: bool) -> Option<String>;
}

/// Applies [`Bounds`] to all connections of a client, and remembers the refusals.
#[derive(Clone, Default)]
pub(crate) struct Gate {
    bounds: Option<Arc<dyn Bounds>>,
    /// The host that the user named.
    named: Arc<str>,
    /// The reasons for refusals, by host.
    refused: Arc<Mutex<BTreeMap<String, String>>>,
}

impl Gate {
    /// Creates a gate for the authority that the user named, and the members of its cluster.
    pub fn new(named: &Url, bounds: Arc<dyn Bounds>) -> Self {
        Self { bounds: Some(bounds), named: crate::host(named).0.into(), refused: Arc::default() }
    }

    /// Checks a URL whose host is an address. Names are checked when they are resolved.
    ///
    /// # Errors
    ///
    /// Fails with the reason why the client must not connect.
    pub fn check(&self, url: &Url) -> Result<(), String> {
        let (host, _) = crate::host(url);
        match host.parse() {
            Ok(address) => self.refusal(&host, address).map_or(Ok(()), Err),
            Err(_) => Ok(()),
        }
    }

    /// Returns those of a host's addresses to which the client may connect.
    ///
    /// # Errors
    ///
    /// Fails with a reason if the client must not connect to any of them.
    pub fn admit(&self, host: &str, addresses: Vec<SocketAddr>) -> Result<Vec<SocketAddr>, String> {
        let mut refusal = None;
        let mut admitted = addresses;
        admitted.retain(|address| {
            let why = self.refusal(host, address.ip());
            let may = why.is_none();
            refusal = why.or(refusal.take());
            may
        });
        match refusal {
            Some(why) if admitted.is_empty() => Err(why),
            _ => Ok(admitted),
        }
    }

    /// Forgets the refusals for hosts that the cluster no longer has: those for which `has` returns false.
    pub fn keep(&self, has: impl Fn(&str) -> bool) {
        self.refused().retain(|host, _| has(host));
    }

    /// Returns the reasons for refusals.
    pub fn reasons(&self) -> Vec<String> {
        self.refused().values().cloned().collect()
    }

    fn refusal(&self, host: &str, address: IpAddr) -> Option<String> {
        let bounds = self.bounds.as_ref()?;
        let why = bounds.refusal(host, address.to_canonical(), host == &*self.named);
        let mut refused = self.refused();
        if let Some(why) = &why
            && refused.get(host) != Some(why)
            && (refused.len() < AUTHORITIES_MAX || refused.contains_key(host))
        {
            tracing::warn!("not connecting to an authority: {why}");
            refused.insert(host.to_owned(), why.clone());
        }
        why
    }

    fn refused(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
