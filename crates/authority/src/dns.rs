//! An authoritative name server for the domain whose record says that this authority protects it (wire.md §7.1): addresses
//! from a zone file, and the record beside every address that is protected. It has no key, and asks no other server.

mod config;
mod limit;
mod serve;
mod zone;

pub use config::DnsConfig;
pub use serve::Server;
pub use zone::Zone;

use crate::Directory;
use anyhow::{Context, Result};
use engine::discovery::{Domain, Record};

/// What a configuration says about discovery: the domain, its record, and how long that may be kept, in seconds.
pub struct Published {
    /// The domain.
    pub domain: Domain,
    /// Its record.
    pub record: Record,
    /// Seconds.
    pub ttl: u32,
}

const NO_DNS: &str = "authority.toml has no table [dns]: it needs `domain = \"example.org\"` at least";
const NO_AUTHORITY: &str =
    "nothing says where agents reach the authority: set `authority` in [dns], or `url` in [console]";

impl Published {
    /// As the directory has it: what the configuration leaves out comes from console and policy.
    pub fn read(directory: &Directory) -> Result<Self> {
        let config = directory.config()?;
        let dns = config.dns.context(NO_DNS)?;
        let authority = match (dns.authority, config.console.url) {
            (Some(url), _) => url,
            (None, Some(url)) => url.parse().context("`url` in [console]")?,
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
        let record =
            record.context("the record: set `protects` in [dns], of the networks around what the policy names")?;
        Ok(Self { domain: dns.domain, record, ttl: dns.ttl })
    }
}
