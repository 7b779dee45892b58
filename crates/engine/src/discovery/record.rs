//! The discovery record: `v=vouchsafe1; authority=https://…; protects=203.0.113.0/28,2001:db8::/64` (wire.md §7.1).

use super::domain::Domain;
use ipnet::IpNet;
use std::fmt::{self, Write};
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

/// The text with which every discovery record begins.
pub const VERSION: &str = "v=vouchsafe1";
/// Maximum length of a discovery record, in bytes.
pub const LONGEST: usize = 1024;
/// Maximum number of networks in a discovery record.
pub const PROTECTS_MAX: usize = 64;
/// The port of a URL that names none.
const HTTPS_PORT: u16 = 443;
/// The longest string of a TXT record, in bytes (RFC 1035 §3.3.14).
const STRING_MAX: usize = 255;

/// A domain's record, valid and within the limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    authority: AuthorityUrl,
    protects: Vec<IpNet>,
}

/// The URL of an authority: `https://`, a host, a port if it is not 443, and nothing else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthorityUrl {
    text: String,
    host: Host,
    port: u16,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Host {
    Name(Domain),
    Address,
}

/// The reason why a text that begins like a discovery record is malformed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The record is longer than [`LONGEST`]. The number is its length in bytes.
    #[error("the record is {0} bytes long; the maximum is {LONGEST}")]
    TooLong(usize),
    /// The record contains characters other than printable ASCII.
    #[error("the record contains characters other than printable ASCII")]
    NotText,
    /// This field has no `=`.
    #[error("{0:?} is not a field: write NAME=VALUE, with `;` between fields")]
    NoField(String),
    /// A known field appears twice.
    #[error("`{0}` appears twice")]
    Twice(&'static str),
    /// The record has no `authority` field.
    #[error("the field `authority` is missing")]
    NoAuthority,
    /// The `authority` field is not an [`AuthorityUrl`].
    #[error("{0:?} is not the URL of an authority: write https://HOST or https://HOST:PORT")]
    Authority(String),
    /// This entry of `protects` is not a network.
    #[error("{0:?} is not a network: write it like 203.0.113.0/28, with no bit set after the prefix")]
    Network(String),
    /// The record names more than [`PROTECTS_MAX`] networks.
    #[error("the record lists more than {PROTECTS_MAX} networks: combine them into larger networks")]
    TooMany,
}

impl Record {
    /// Creates a record. Sorts the networks, and merges those that overlap or that together make a larger network.
    ///
    /// # Errors
    ///
    /// Fails if the record would exceed [`LONGEST`] or [`PROTECTS_MAX`].
    pub fn new(authority: AuthorityUrl, protects: Vec<IpNet>) -> Result<Self, Malformed> {
        let mut protects = IpNet::aggregate(&protects);
        protects.sort();
        if protects.len() > PROTECTS_MAX {
            return Err(Malformed::TooMany);
        }
        let record = Self { authority, protects };
        match record.to_string().len() {
            length if length > LONGEST => Err(Malformed::TooLong(length)),
            _ => Ok(record),
        }
    }

    /// Parses the text of a TXT record, whose strings the caller has concatenated. Returns `None` if the text is not a
    /// discovery record: it does not begin with [`VERSION`]. If the record is malformed, returns the reason.
    pub fn read(text: &[u8]) -> Option<Result<Self, Malformed>> {
        let rest = text.strip_prefix(VERSION.as_bytes())?;
        let begins = rest.first().is_none_or(|byte| *byte == b';' || *byte == b' ');
        begins.then(|| Self::fields(text.len(), rest))
    }

    fn fields(length: usize, rest: &[u8]) -> Result<Self, Malformed> {
        if length > LONGEST {
            return Err(Malformed::TooLong(length));
        }
        if !rest.iter().all(|byte| *byte == b' ' || byte.is_ascii_graphic()) {
            return Err(Malformed::NotText);
        }
        let text = std::str::from_utf8(rest).map_err(|_| Malformed::NotText)?;
        let (mut authority, mut protects) = (None, None);
        for field in text.split(';').map(str::trim).filter(|field| !field.is_empty()) {
            let (name, value) = field.split_once('=').ok_or_else(|| Malformed::NoField(field.to_owned()))?;
            let (name, value) = (name.trim(), value.trim());
            let twice = match name {
                "authority" => authority.replace(value.parse()?).map(|_: AuthorityUrl| "authority"),
                "protects" => protects.replace(networks(value)?).map(|_| "protects"),
                "v" => Some("v"),
                // A later version of the format may have more fields.
                _ => None,
            };
            if let Some(name) = twice {
                return Err(Malformed::Twice(name));
            }
        }
        Self::new(authority.ok_or(Malformed::NoAuthority)?, protects.unwrap_or_default())
    }

    /// Returns the authority that protects the domain.
    pub fn authority(&self) -> &AuthorityUrl {
        &self.authority
    }

    /// Returns the protected networks that the record names.
    pub fn protects(&self) -> &[IpNet] {
        &self.protects
    }

    /// Reports whether one of the protected networks contains this address.
    pub fn covers(&self, address: IpAddr) -> bool {
        self.protects.iter().any(|network| network.contains(&address))
    }

    /// Reports whether the authority's host name is in this domain (wire.md §7.2.1). Only then does the TLS certificate
    /// show that the authority belongs to this domain, even if an attacker changed the DNS answer on its path.
    pub fn is_at_home(&self, domain: &Domain) -> bool {
        matches!(&self.authority.host, Host::Name(host) if domain.has(host.as_str()))
    }

    /// Returns the strings of the TXT record, each of at most 255 bytes.
    pub fn strings(&self) -> Vec<String> {
        let text = self.to_string();
        let chunks = text.as_bytes().chunks(STRING_MAX);
        chunks.map(|chunk| String::from_utf8_lossy(chunk).into_owned()).collect()
    }

    /// Returns two lines for a zone file: the record at the domain itself, and the record at [`Domain::record_name`].
    pub fn zone_lines(&self, domain: &Domain, ttl: u32) -> String {
        let strings: Vec<_> = self.strings().into_iter().map(|string| format!("\"{string}\"")).collect();
        let mut lines = String::new();
        for name in [domain.as_str(), &domain.record_name()] {
            let _ = writeln!(lines, "{name}. {ttl} IN TXT {}", strings.join(" "));
        }
        lines
    }
}

fn networks(list: &str) -> Result<Vec<IpNet>, Malformed> {
    let words = list.split(',').map(str::trim).filter(|word| !word.is_empty());
    let mut networks = Vec::new();
    for word in words {
        if networks.len() == PROTECTS_MAX {
            return Err(Malformed::TooMany);
        }
        let network = word.parse::<IpNet>().ok().or_else(|| Some(word.parse::<IpAddr>().ok()?.into()));
        let network = network.filter(|network| network.trunc() == *network);
        networks.push(network.ok_or_else(|| Malformed::Network(word.to_owned()))?);
    }
    Ok(networks)
}

impl fmt::Display for Record {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{VERSION}; authority={}", self.authority)?;
        for (index, network) in self.protects.iter().enumerate() {
            write!(formatter, "{}{network}", if index == 0 { "; protects=" } else { "," })?;
        }
        Ok(())
    }
}

impl AuthorityUrl {
    /// Returns the URL in canonical form for comparison: lower case, no port 443, no slash at the end.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the host's name and the port; `None` if the host is an address.
    pub fn name_and_port(&self) -> Option<(&Domain, u16)> {
        match &self.host {
            Host::Name(host) => Some((host, self.port)),
            Host::Address => None,
        }
    }
}

impl fmt::Display for AuthorityUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text.fmt(formatter)
    }
}

impl FromStr for AuthorityUrl {
    type Err = Malformed;

    fn from_str(text: &str) -> Result<Self, Malformed> {
        let wrong = || Malformed::Authority(text.to_owned());
        let rest = text.strip_prefix("https://").ok_or_else(wrong)?;
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (host, port) = match rest.strip_prefix('[') {
            Some(rest) => {
                let (address, port) = rest.split_once(']').ok_or_else(wrong)?;
                let address: Ipv6Addr = address.parse().map_err(|_| wrong())?;
                let port = if port.is_empty() { None } else { Some(port.strip_prefix(':').ok_or_else(wrong)?) };
                ((format!("[{address}]"), Host::Address), port)
            }
            None => {
                let (host, port) = rest.split_once(':').map_or((rest, None), |(host, port)| (host, Some(port)));
                let host = match host.parse::<std::net::Ipv4Addr>() {
                    Ok(address) => (address.to_string(), Host::Address),
                    Err(_) => {
                        let name: Domain = host.parse().map_err(|_| wrong())?;
                        (name.to_string(), Host::Name(name))
                    }
                };
                (host, port)
            }
        };
        let port = match port {
            None => None,
            Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                Some(digits.parse::<u16>().ok().filter(|port| *port > 0).ok_or_else(wrong)?)
            }
            Some(_) => return Err(wrong()),
        };
        let port = port.unwrap_or(HTTPS_PORT);
        let text = match port {
            HTTPS_PORT => format!("https://{}", host.0),
            port => format!("https://{}:{port}", host.0),
        };
        Ok(Self { text, host: host.1, port })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Record, Malformed> {
        Record::read(text.as_bytes()).expect("a record's beginning")
    }

    #[test]
    fn a_record_is_written_as_it_is_read() {
        let text = "v=vouchsafe1; authority=https://vouch.example.org:8443; protects=203.0.113.0/28,2001:db8::/64";
        let record = read(text).unwrap();
        assert_eq!(record.to_string(), text);
        assert!(record.covers("203.0.113.15".parse().unwrap()) && !record.covers("203.0.113.16".parse().unwrap()));
        assert_eq!(read(&record.to_string()), Ok(record));
    }

    #[test]
    fn spaces_order_and_unknown_fields_do_not_matter() {
        let plain = read("v=vouchsafe1; authority=https://a.example.org; protects=192.0.2.1/32").unwrap();
        for same in [
            "v=vouchsafe1;authority=https://A.example.org/;protects=192.0.2.1",
            "v=vouchsafe1 ;; protects = 192.0.2.1 , ; later=x=y; authority=https://a.example.org:443;",
        ] {
            assert_eq!(read(same).as_ref(), Ok(&plain), "{same}");
        }
    }

    #[test]
    fn what_is_somebody_elses_is_told_from_what_is_wrong() {
        for other in ["v=spf1 -all", "v=vouchsafe12; authority=https://a.org", "", "V=vouchsafe1", "google-site=x"] {
            assert!(Record::read(other.as_bytes()).is_none(), "{other}");
        }
        let wrong = |rest: &str| read(&format!("v=vouchsafe1{rest}")).unwrap_err();
        assert_eq!(wrong(""), Malformed::NoAuthority);
        assert_eq!(wrong("; authority=https://a.org; authority=https://a.org"), Malformed::Twice("authority"));
        assert_eq!(wrong("; authority=https://a.org; v=vouchsafe1"), Malformed::Twice("v"));
        assert_eq!(wrong("; authority=https://a.org; x"), Malformed::NoField("x".into()));
        assert_eq!(wrong("; authority=https://a.org\u{7}"), Malformed::NotText);
        assert_eq!(
            wrong("; authority=https://a.org; protects=192.0.2.1/24"),
            Malformed::Network("192.0.2.1/24".into())
        );
        let many = vec!["192.0.2.1"; PROTECTS_MAX + 1].join(",");
        assert_eq!(wrong(&format!("; authority=https://a.org; protects={many}")), Malformed::TooMany);
        assert!(matches!(wrong(&format!("; x={}", "y".repeat(LONGEST))), Malformed::TooLong(_)));
    }

    #[test]
    fn an_authority_is_https_a_host_and_a_port() {
        for (text, form) in [
            ("https://A.Example.org:0443", "https://a.example.org"),
            ("https://192.0.2.1:8443", "https://192.0.2.1:8443"),
            ("https://[2001:DB8::1]:8443/", "https://[2001:db8::1]:8443"),
        ] {
            assert_eq!(text.parse::<AuthorityUrl>().unwrap().as_str(), form);
        }
        for wrong in [
            "http://a.org",
            "https://",
            "https://a.org/x",
            "https://u@a.org",
            "https://a.org:",
            "https://a.org:0",
            "https://a.org:99999",
            "https://a.org:+1",
            "https://[::1",
            "https://[::1]x",
            "https://a.org?q",
            "a.org",
            "https://a.org:1:2",
            "https://a.org#f",
            "https://a.org\\b",
        ] {
            assert!(wrong.parse::<AuthorityUrl>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_authority_at_home_has_a_name_of_the_domain() {
        let domain = "example.org".parse().unwrap();
        let at = |url: &str| read(&format!("v=vouchsafe1; authority={url}")).unwrap().is_at_home(&domain);
        assert!(at("https://example.org") && at("https://vouch.example.org:8443"));
        for elsewhere in
            ["https://example.org.evil.net", "https://badexample.org", "https://192.0.2.1", "https://[::1]"]
        {
            assert!(!at(elsewhere), "{elsewhere}");
        }
    }

    #[test]
    fn a_long_record_is_several_strings_of_one_line() {
        let protects = (0..40u8).map(|n| format!("10.0.{}.0/24", n * 2).parse().unwrap()).collect();
        let record = Record::new("https://vouch.example.org".parse().unwrap(), protects).unwrap();
        let strings = record.strings();
        assert!(strings.len() > 1 && strings.iter().all(|string| string.len() <= STRING_MAX));
        assert_eq!(read(&strings.concat()), Ok(record.clone()));
        let lines = record.zone_lines(&"example.org".parse().unwrap(), 300);
        assert!(lines.starts_with("example.org. 300 IN TXT \"v=vouchsafe1; "), "{lines}");
        assert!(lines.lines().nth(1).unwrap().starts_with("_vouchsafe.example.org. 300 IN TXT \""), "{lines}");
    }

    proptest::proptest! {
        #[test]
        fn whatever_is_read_is_written_as_it_is_read_again(text in "[ -~]{0,200}", seed in 0u8..3) {
            let text = format!("v=vouchsafe1; authority=https://a{seed}.example.org; {text}");
            if let Some(Ok(record)) = Record::read(text.as_bytes()) {
                let again = record.to_string();
                proptest::prop_assert_eq!(Record::read(again.as_bytes()), Some(Ok(record)));
            }
        }
    }
}
