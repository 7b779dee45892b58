//! An authoritative name server for the domain that this authority protects. It serves the records of a zone file. If
//! an answer contains protected addresses, the name server adds the discovery record, by which agents find this
//! authority (wire.md §7.1). The name server has no keys and does not query other servers.

mod limit;
mod serve;
mod settings;
mod zone;

pub use serve::Server;
pub use settings::DnsSettings;
pub use zone::Zone;

use crate::Directory;
use anyhow::{Context, Result};
use engine::discovery::{Domain, Record, Server as Listed, servers};

/// The discovery data of an authority: the domain, its record, and the record's time to live.
pub struct Published {
    /// The domain that the authority protects.
    pub domain: Domain,
    /// The discovery record of the domain.
    pub record: Record,
    /// Time to live of the record, in seconds.
    pub ttl: u32,
    /// The servers that SRV records list for the authority of the domain.
    pub servers: Vec<Listed>,
}

const NO_DNS: &str = "authority.toml has no table [dns]: set at least `domain = \"example.org\"` in it";
const NO_AUTHORITY: &str = "the authority's URL is not configured: set `authority` in [dns], or `url` in [console]";

impl Published {
    /// Reads the discovery data from a directory's configuration. Without the setting `authority`, the console's `url`
    /// is published. Without the setting `protects`, the addresses of the policy's receivers are published.
    ///
    /// # Errors
    /// Fails if the configuration or the policy cannot be read or is not valid, there is no `[dns]`, the authority's
    /// URL is not configured, or the record would be too long.
    pub fn read(directory: &Directory) -> Result<Self> {
        let settings = directory.settings()?;
        let dns = settings.dns.context(NO_DNS)?;
        let authority = match (dns.authority, settings.console.url) {
            (Some(url), _) => url,
            (None, Some(url)) => {
                url.parse().context("cannot use `url` of [console] as the authority's URL: set `authority` in [dns]")?
            }
            (None, None) => anyhow::bail!(NO_AUTHORITY),
        };
        let protects = match dns.protects {
            Some(list) => list,
            None => {
                let (policy, _) = directory.read_policy(None)?;
                policy.receivers().iter().flat_map(|receiver| receiver.prefixes.clone()).collect()
            }
        };
        let record = Record::new(authority, protects);
        let record = record.context(
            "cannot build the record of the domain: set `protects` in [dns] to a few networks that cover the \
             addresses in the policy",
        )?;
        Ok(Self { domain: dns.domain, record, ttl: dns.ttl, servers: dns.servers })
    }

    /// Returns the lines of a zone file that list the authority's servers.
    pub(crate) fn server_lines(&self) -> String {
        servers::zone_lines(&self.domain, &self.servers, self.ttl)
    }
}
