//! The table `[dns]` of authority.toml.

use engine::discovery::servers::SERVERS_MAX;
use engine::discovery::{AuthorityUrl, Domain, Server};
use engine::document::{Fields, Reader};
use ipnet::IpNet;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

const KEYS: &[&str] = &["domain", "authority", "servers", "protects", "ttl", "zone", "listen"];
const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 53);
/// Default time to live: five minutes, in seconds.
const DEFAULT_TTL: u32 = 300;

/// Configuration of discovery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsSettings {
    /// The domain to which the discovery record belongs.
    pub domain: Domain,
    /// URL at which agents reach the authority. Default: the URL of the console.
    pub authority: Option<AuthorityUrl>,
    /// The servers that SRV records list for the authority of this domain. Default: no SRV records.
    pub servers: Vec<Server>,
    /// The protected networks that the record lists. Default: the networks of the policy's receivers.
    pub protects: Option<Vec<IpNet>>,
    /// Time to live of the record, in seconds. Default five minutes.
    pub ttl: u32,
    /// The file with the domain's other records, relative to the authority's directory unless the path is absolute.
    pub zone: Option<String>,
    /// Addresses that receive queries, by UDP and TCP. Default `[::]:53`.
    pub listen: Vec<SocketAddr>,
}

impl DnsSettings {
    /// Reads the table `[dns]` and reports its faults to `reader`. Returns `None` if the file has no such table or its
    /// domain is not valid.
    pub fn read(reader: &mut Reader<'_>, fields: &Fields<'_, '_>) -> Option<Self> {
        let value = fields.value("dns")?;
        let Some(table) = value.get_ref().as_table() else {
            reader.fault(value.span(), "`dns` must be a table: write it as `[dns]`");
            return None;
        };
        let fields = Fields::new(reader, table, value.span(), "discovery", KEYS);
        let mut text_of = |key: &str| {
            let text = fields.text(reader, key)?;
            Some((text.span(), (*text.get_ref()).to_owned()))
        };
        let (domain, authority, zone) = (text_of("domain"), text_of("authority"), text_of("zone"));
        let domain = match domain {
            Some((span, text)) => {
                text.parse::<Domain>().map_err(|why| reader.fault(span, format!("`domain`: {why}"))).ok()
            }
            None => {
                fields.required(reader, "domain");
                None
            }
        };
        let authority = authority.and_then(|(span, text)| {
            text.parse::<AuthorityUrl>().map_err(|why| reader.fault(span, format!("`authority`: {why}"))).ok()
        });
        let mut list = |key: &str| {
            let given = fields.value(key).is_some();
            given.then(|| {
                let texts = fields.required_texts(reader, key);
                texts.into_iter().map(|text| (text.span(), (*text.get_ref()).to_owned())).collect::<Vec<_>>()
            })
        };
        let (servers, protects, listen) = (list("servers"), list("protects"), list("listen"));
        let servers = servers.unwrap_or_default();
        if let Some((span, _)) = servers.get(SERVERS_MAX) {
            reader.fault(span.clone(), format!("`servers` may list at most {SERVERS_MAX} servers"));
        }
        let mut server = |(span, text): (std::ops::Range<usize>, String)| {
            let server = text.parse::<AuthorityUrl>().ok().and_then(|url| Server::of(&url));
            if server.is_none() {
                let example = "\"https://a.example.org:8443\"";
                reader
                    .fault(span, format!("`servers` must be a list of URLs whose hosts are names, such as {example}"));
            }
            server
        };
        let servers = servers.into_iter().filter_map(&mut server).collect();
        let protects = protects.map(|list| {
            let read = |(span, text): (std::ops::Range<usize>, String)| {
                let network = text.parse::<IpNet>().ok().or_else(|| Some(text.parse::<IpAddr>().ok()?.into()));
                if network.is_none() {
                    reader
                        .fault(span, "`protects` must be a list of networks and addresses, such as \"203.0.113.0/28\"");
                }
                network.map(|network| network.trunc())
            };
            list.into_iter().filter_map(read).collect()
        });
        let listen = match listen {
            None => vec![DEFAULT_LISTEN],
            Some(list) => {
                let read = |(span, text): (std::ops::Range<usize>, String)| {
                    let address = text.parse().ok();
                    if address.is_none() {
                        reader.fault(span, "`listen` must be a list of addresses and ports, such as \"[::]:53\"");
                    }
                    address
                };
                list.into_iter().filter_map(read).collect()
            }
        };
        let ttl = fields.seconds(reader, "ttl", DEFAULT_TTL, 1, 86_400);
        let zone = zone.map(|(_, path)| path);
        Some(Self { domain: domain?, authority, servers, protects, ttl, zone, listen })
    }
}

#[cfg(test)]
mod tests {
    use crate::Settings;

    fn read(text: &str) -> Result<super::DnsSettings, String> {
        Settings::parse(&format!("[dns]\n{text}"))
            .map(|settings| settings.dns.expect("the table"))
            .map_err(|f| f.to_string())
    }

    #[test]
    fn a_domain_is_enough() {
        let settings = read("domain = \"Example.org\"").unwrap();
        assert_eq!((settings.domain.as_str(), settings.ttl, settings.listen.len()), ("example.org", 300, 1));
        assert!(settings.authority.is_none() && settings.protects.is_none() && settings.zone.is_none());
        assert!(settings.servers.is_empty());
        let servers = r#"servers = ["https://a.example.org:8443", "https://b.example.org"]"#;
        let settings = read(&format!("domain = \"example.org\"\n{servers}")).unwrap();
        let ports: Vec<_> = settings.servers.iter().map(|server| (server.host.as_str(), server.port)).collect();
        assert_eq!(ports, [("a.example.org", 8443), ("b.example.org", 443)]);
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        let faults = read(
            "domain = \"a b\"\nauthority = \"http://a.org\"\nprotects = [\"x\"]\nlisten = \"53\"\nttl = \"0s\"\nzoen = \
             1\nservers = [\"https://192.0.2.1\"]",
        );
        let faults = faults.unwrap_err();
        for line in 2..=8 {
            assert!(faults.contains(&format!("{line}:")), "{line} in {faults}");
        }
        assert!(faults.contains("did you mean `zone`?"), "{faults}");
        assert!(read("ttl = \"5m\"").unwrap_err().contains("missing key `domain`"));
    }
}
