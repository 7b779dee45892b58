//! The addresses to which a client connects for a host name. If a person named the authority by a name instead of a
//! URL, SRV records of this name list the authority's servers (wire.md §7.3). The client connects to one of them, and
//! demands a certificate for the name. So forged records can keep the client from reaching the authority, but can't
//! lead the client to another authority.

use crate::Error;
use crate::bounds::Gate;
use crate::dns;
use engine::discovery::{Answer, Domain, Server, servers};
use reqwest::Url;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use tokio::time::timeout;

/// Maximum time to look up the addresses of one server. The servers' addresses are looked up at the same time.
const LOOKUP_TIME: Duration = Duration::from_secs(2);
/// Maximum number of addresses that a client tries. The client divides the time to connect among them.
const ADDRESSES_MAX: usize = 16;

/// Draws the order of servers. All clients of a process draw the same order, because a login in several steps has to
/// come back to the server at which it began.
static DRAW: LazyLock<RandomState> = LazyLock::new(RandomState::new);

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// An authority that a person named by a name instead of a URL.
#[derive(Clone)]
pub struct ByName {
    name: Domain,
    /// The name servers to query. If the list is empty, the client queries the name servers of the system.
    name_servers: Arc<[SocketAddr]>,
}

/// Reads the text by which a person names an authority: a URL, or a domain name. Returns the URL for requests. For a
/// name, this URL has the name as its host and no port, because the SRV records have the ports.
///
/// # Errors
///
/// Fails if the text is neither a URL nor a domain name.
pub fn begin(text: &str, name_servers: &[SocketAddr]) -> Result<(Url, Option<ByName>), Error> {
    if text.contains("://") {
        return Ok((crate::base(text)?, None));
    }
    let wrong = || {
        Error::Other(format!(
            "{text:?} names no authority: write https://HOST:PORT, or a name such as vouchsafe.example.org if DNS has \
             SRV records for it"
        ))
    };
    let name: Domain = text.parse().map_err(|_| wrong())?;
    let url = Url::parse(&format!("https://{name}/")).map_err(|_| wrong())?;
    // URLs have further notations for addresses, such as 0x7f000001.
    if url.host_str() != Some(name.as_str()) {
        return Err(wrong());
    }
    Ok((url, Some(ByName { name, name_servers: name_servers.into() })))
}

impl ByName {
    /// Looks up the authority's servers and their addresses. Returns them in the order in which the client tries them.
    async fn addresses(&self) -> Result<Vec<SocketAddr>, BoxError> {
        let record = self.name.service_name();
        let why = match dns::find_servers(&self.name, &self.name_servers).await {
            Answer::Record(found, _) => match addresses(found).await {
                Ok(addresses) => {
                    tracing::debug!(%record, ?addresses, "looked up the authority's servers");
                    return Ok(addresses);
                }
                Err(why) => why,
            },
            Answer::Nothing(_) => "there is no such record".to_owned(),
            Answer::Truncated => "the name server's answer is incomplete".to_owned(),
            Answer::Failed(why) => why,
        };
        let way_out = "if you know the authority's URL, use it instead of the name: https://HOST:PORT";
        Err(format!("cannot find a server of the authority by the SRV record {record}: {why}; {way_out}").into())
    }
}

/// Returns the addresses of servers in the order in which the client tries them. Fails with the reason if there are
/// none.
async fn addresses(found: Vec<Server>) -> Result<Vec<SocketAddr>, String> {
    let ordered = servers::in_order(found, |server| DRAW.hash_one((server.host.as_str(), server.port)));
    let lookups = ordered.into_iter().map(|server| {
        let (host, port) = (server.host.as_str().to_owned(), server.port);
        let lookup = async move { tokio::net::lookup_host((host, port)).await.map(Vec::from_iter) };
        (server.host, tokio::spawn(timeout(LOOKUP_TIME, lookup)))
    });
    let lookups: Vec<_> = lookups.collect();
    let (mut all, mut failures) = (Vec::new(), Vec::new());
    for (host, lookup) in lookups {
        match lookup.await {
            Ok(Ok(Ok(addresses))) => all.extend(addresses),
            Ok(Ok(Err(why))) => failures.push(format!("{host}: {why}")),
            Ok(Err(_)) => failures.push(format!("{host}: no answer within {LOOKUP_TIME:?}")),
            Err(why) => failures.push(format!("{host}: {why}")),
        }
    }
    all.truncate(ADDRESSES_MAX);
    if all.is_empty() { Err(format!("no address of {}", failures.join("; "))) } else { Ok(all) }
}

/// A DNS resolver that looks up each name in a separate task. The look-up therefore does not run as the user on whose
/// behalf the connection is made. Returns only addresses to which the client may connect (see [`Gate::admit`]).
pub struct Resolver {
    gate: Gate,
    by_name: Option<ByName>,
}

impl Resolver {
    pub fn new(gate: Gate, by_name: Option<ByName>) -> Self {
        Self { gate, by_name }
    }
}

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let (gate, host) = (self.gate.clone(), name.as_str().to_owned());
        let by_name = self.by_name.clone().filter(|by_name| by_name.name.as_str() == host);
        Box::pin(async move {
            let wanted = host.clone();
            let found: Result<Vec<SocketAddr>, BoxError> = tokio::spawn(async move {
                match by_name {
                    // A URL without a port leaves the ports that are found here.
                    Some(by_name) => by_name.addresses().await,
                    None => Ok(Vec::from_iter(tokio::net::lookup_host((wanted, 0)).await?)),
                }
            })
            .await?;
            let admitted = gate.admit(&host, found?)?;
            Ok(Box::new(admitted.into_iter()) as Addrs)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_authority_is_named_by_a_url_or_by_a_name() {
        let (url, by_name) = begin("https://a.example.org:8443", &[]).unwrap();
        assert!(url.port() == Some(8443) && by_name.is_none());
        let (url, by_name) = begin("Vouch.Example.org.", &[]).unwrap();
        assert_eq!((url.as_str(), url.port()), ("https://vouch.example.org/", None));
        assert_eq!(by_name.unwrap().name.as_str(), "vouch.example.org");
        let wrong = ["", "a.org:8443", "192.0.2.1", "[::1]", "0x7f000001", "http://a.org", "user@a.org", "a.org/x"];
        for wrong in wrong {
            let refused = begin(wrong, &[]).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(refused.contains("https://HOST:PORT"), "{wrong}: {refused}");
        }
    }
}
