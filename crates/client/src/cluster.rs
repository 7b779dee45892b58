//! The authorities that serve a client: their URLs, the one in use, and how well each of them answers.
//!
//! The list comes from the authorities' own answers. A forged list can't make the client send its token to a stranger.
//! The client sends a request only to a server with a certificate of the CA that it trusts for the first authority.
//! This CA belongs to the cluster. A client that trusts the system's CAs has no such protection, because these CAs
//! certify everybody. Therefore, such a client accepts only URLs whose host is the first authority's host or a name
//! below that host.

use crate::Error;
use crate::bounds::Gate;
use crate::call::{Call, Failure, attempt};
use crate::choice::Choice;
use engine::discovery::AuthorityUrl;
use reqwest::{RequestBuilder, Response, Url};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// Maximum duration of a request that measures the round trip to an authority.
const MEASURING_TIME: Duration = Duration::from_secs(2);

/// The authorities of a cluster, as one client knows them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Members {
    /// URL of the authority in use.
    pub in_use: String,
    /// URLs of all authorities. The first is the one that was named at login or enrolment. Empty if the cluster has
    /// only one authority.
    pub all: Vec<String>,
}

impl Members {
    /// Returns the URL of the authority in use, and the URLs of all authorities, as commands display them. If there is
    /// only one authority, the first value is `None`, and the second is empty.
    pub fn shown(self) -> (Option<String>, Vec<String>) {
        ((!self.all.is_empty()).then_some(self.in_use), self.all)
    }
}

/// The authority in use, and whether any authority of the cluster answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Used {
    pub url: Url,
    pub is_alive: bool,
}

/// The connections to authorities, by purpose.
#[derive(Clone)]
pub(crate) struct Connections {
    /// Connections for calls: HTTP/2, if the authority has it.
    pub calls: Clients,
    /// Connections for event streams: HTTP/1.1. Each of them carries one stream and nothing else.
    pub events: Clients,
}

/// The two kinds of connections to an authority.
#[derive(Clone)]
pub(crate) struct Clients {
    /// Connections to a single authority. They have long time limits, because the client has no other authority.
    pub patient: reqwest::Client,
    /// Connections to authorities in a cluster. They have short time limits, because the client can use another
    /// authority.
    pub quick: reqwest::Client,
}

/// The authorities that serve a client. All clones of the client share this value.
pub(crate) struct Cluster {
    choice: Mutex<Choice>,
    own: Url,
    /// Whether the client trusts only the certificates that the caller passed, and not the system's certificates.
    is_pinned: bool,
    /// Decides at which addresses the client may connect.
    pub(crate) gate: Gate,
    connections: Connections,
    began: Instant,
    used: watch::Sender<Used>,
    is_measuring: AtomicBool,
}

impl Cluster {
    pub fn new(own: Url, is_pinned: bool, gate: Gate, connections: Connections) -> Self {
        let used = watch::Sender::new(Used { url: own.clone(), is_alive: true });
        let choice = Mutex::new(Choice::new(own.clone(), Duration::ZERO));
        let (began, is_measuring) = (Instant::now(), AtomicBool::new(false));
        Self { choice, own, is_pinned, gate, connections, began, used, is_measuring }
    }

    /// Returns a cluster that consists of the authority at `url` only.
    pub fn only(&self, url: Url) -> Self {
        Self::new(url, self.is_pinned, self.gate.clone(), self.connections.clone())
    }

    /// Replaces the list of authorities by `urls`, but keeps the first authority and the authority in use. Leaves out
    /// URLs that are malformed, URLs whose servers the client could not authenticate, and URLs at addresses to which
    /// the client must not connect.
    pub fn learn(&self, urls: &[String]) {
        let hosts: Vec<_> = urls.iter().filter_map(|url| Some(crate::host(&Url::parse(url).ok()?).0)).collect();
        self.gate.keep(|host| hosts.iter().any(|known| known == host) || host == crate::host(&self.own).0);
        let accepted = urls.iter().take(api::AUTHORITIES_MAX).filter_map(|text| self.accept(text));
        let accepted: Vec<_> = accepted.collect();
        self.change(|choice, now| choice.learn(accepted, now));
    }

    fn accept(&self, text: &str) -> Option<Url> {
        let url = Url::parse(text.parse::<AuthorityUrl>().ok()?.as_str()).ok()?;
        let is_covered = self.is_pinned || is_below(url.host_str()?, self.own.host_str()?);
        if !is_covered {
            tracing::debug!(
                "not using the authority {url}: without `--ca`, its host has to be the host of the first authority, or \
                 a name below that host"
            );
        }
        (is_covered && self.gate.check(&url).is_ok()).then_some(url)
    }

    /// Returns the reasons why the client does not connect to some authorities.
    pub fn refused(&self) -> Vec<String> {
        self.gate.reasons()
    }

    /// Returns the present time in the form that [`Choice`] uses.
    pub fn now(&self) -> Duration {
        self.began.elapsed()
    }

    pub fn choice(&self) -> MutexGuard<'_, Choice> {
        self.choice.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the choice with the function `change`. Tells the receivers of [`Self::watch`] if another authority is in
    /// use afterwards, or if [`Used::is_alive`] has another value.
    pub fn change<T>(&self, change: impl FnOnce(&mut Choice, Duration) -> T) -> T {
        let mut choice = self.choice();
        let value = change(&mut choice, self.now());
        let now = Used { url: choice.used().clone(), is_alive: choice.is_alive() };
        // The lock is still held, so that an earlier state never replaces a later one.
        self.used.send_if_modified(|used| {
            let differs = *used != now;
            if used.url != now.url {
                tracing::info!(from = %shown(&used.url), to = %shown(&now.url), "using another authority of the cluster");
            }
            *used = now;
            differs
        });
        value
    }

    /// Returns a receiver that always shows which authority is in use, and whether any authority answers.
    pub fn watch(&self) -> watch::Receiver<Used> {
        self.used.subscribe()
    }

    pub fn used(&self) -> Url {
        self.choice().used().clone()
    }

    pub fn are_several(&self) -> bool {
        self.choice().are_several()
    }

    pub fn members(&self) -> Members {
        let choice = self.choice();
        let all = if choice.are_several() { choice.urls().map(shown).collect() } else { Vec::new() };
        Members { in_use: shown(choice.used()), all }
    }

    /// Creates a call's request to the authority at `url`. Fails with [`Error::Unreachable`] if the client must not
    /// connect to this address.
    pub fn request(&self, url: &Url, call: &Call) -> Result<RequestBuilder, Error> {
        self.gate.check(url).map_err(Error::Unreachable)?;
        let Connections { calls, events } = &self.connections;
        let Clients { patient, quick } = if call.is_endless() { events } else { calls };
        call.to(if self.are_several() { quick } else { patient }, url)
    }

    /// Notes the outcome of a request that began at `started`. Returns whether the authority answered. An answer of an
    /// authority that has lost the cluster's majority does not count.
    pub fn note(&self, url: &Url, started: Duration, outcome: &Result<Response, Failure>) -> bool {
        self.change(|choice, now| match outcome {
            Ok(_) | Err(Failure::Final(_) | Failure::NotLoggedIn | Failure::UnknownSegment(_)) => {
                choice.answered(url, started, now);
                true
            }
            Err(Failure::Unable(_)) => {
                choice.unable(url, started, now);
                false
            }
            Err(Failure::Unreached { .. }) => {
                choice.failed(url, started, now);
                false
            }
        })
    }

    /// Notes that the authority at `url` has announced that it is about to stop. `next` is the URL of the authority
    /// that it recommends.
    pub fn end(&self, url: &Url, next: Option<&str>) {
        let next = next.and_then(|next| self.accept(next));
        self.change(|choice, now| {
            if choice.are_several() {
                choice.ends(url, next.as_ref(), now);
            }
        });
    }

    /// Measures the round trips to all authorities that are due, and uses the best authority from then on. Does nothing
    /// if an earlier call is still measuring.
    pub fn tend(self: &Arc<Self>) {
        let due = self.choice().due(self.now());
        if due.is_empty() || self.is_measuring.swap(true, Ordering::Relaxed) {
            return;
        }
        let cluster = self.clone();
        tokio::spawn(async move {
            for url in due {
                cluster.measure(&url).await;
            }
            cluster.change(|choice, _| choice.settle());
            cluster.is_measuring.store(false, Ordering::Relaxed);
        });
    }

    async fn measure(&self, url: &Url) {
        // The first request may have to make a connection, so that only the second one measures.
        for is_measured in [false, true] {
            let started = self.now();
            let Ok(request) = self.request(url, &Call::health()) else {
                return self.change(|choice, now| choice.failed(url, started, now));
            };
            let outcome = attempt(request.timeout(MEASURING_TIME)).await;
            let took = self.now() - started;
            if !self.note(url, started, &outcome) {
                return;
            }
            if is_measured {
                tracing::debug!(url = %shown(url), ?took, "measured the round trip");
                self.change(|choice, now| choice.measured(url, took, now));
            }
        }
    }
}

/// Reports whether a host is `above`, or a name below it.
fn is_below(host: &str, above: &str) -> bool {
    let is_name = !above.starts_with('[') && above.parse::<std::net::Ipv4Addr>().is_err();
    host == above || is_name && host.strip_suffix(above).is_some_and(|rest| rest.ends_with('.'))
}

/// Returns a URL as people write it: without a slash at the end.
pub(crate) fn shown(url: &Url) -> String {
    url.as_str().trim_end_matches('/').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(own: &str, is_pinned: bool) -> Cluster {
        let ca = rcgen::generate_simple_self_signed([]).unwrap().cert.pem();
        let tls = crate::tls::config(Some(ca.as_bytes())).unwrap();
        let client = reqwest::Client::builder().tls_backend_preconfigured(tls).build().unwrap();
        let clients = Clients { patient: client.clone(), quick: client };
        let connections = Connections { calls: clients.clone(), events: clients };
        Cluster::new(Url::parse(own).unwrap(), is_pinned, Gate::default(), connections)
    }

    fn learnt(cluster: &Cluster, urls: &[&str]) -> Vec<String> {
        cluster.learn(&urls.iter().copied().map(str::to_owned).collect::<Vec<_>>());
        cluster.members().all
    }

    #[test]
    fn only_urls_of_authorities_are_learnt() {
        let cluster = cluster("https://a.example.org:8443", true);
        let offered = [
            "https://a.example.org:8443/",
            "http://b.example.org",
            "https://user@b.example.org",
            "https://b.example.org/path",
            "ftp://b.example.org",
            "https://C.example.org:443",
            "https://192.0.2.1:8443",
        ];
        let known = ["https://a.example.org:8443", "https://c.example.org", "https://192.0.2.1:8443"];
        assert_eq!(learnt(&cluster, &offered), known);
        let many: Vec<_> = (0..1000).map(|number| format!("https://a{number}.example.org")).collect();
        cluster.learn(&many);
        assert_eq!(cluster.members().all.len(), api::AUTHORITIES_MAX);
        assert_eq!(learnt(&cluster, &[]), [""; 0], "it is alone");
        assert_eq!(cluster.members().in_use, "https://a.example.org:8443");
    }

    #[test]
    fn without_a_ca_of_its_own_a_cluster_is_below_the_named_host() {
        let cluster = cluster("https://vouch.example.org:8443", false);
        let offered = [
            "https://two.vouch.example.org:8443",
            "https://vouch.example.org",
            "https://evil.net",
            "https://evilvouch.example.org",
            "https://example.org",
        ];
        let known =
            ["https://vouch.example.org:8443", "https://two.vouch.example.org:8443", "https://vouch.example.org"];
        assert_eq!(learnt(&cluster, &offered), known);
        assert!(is_below("192.0.2.1", "192.0.2.1") && !is_below("7.192.0.2.1", "192.0.2.1"));
    }
}
