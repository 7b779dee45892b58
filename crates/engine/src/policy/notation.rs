//! Parses subjects in the notation of policy tests and commands (`person:alice`, `group:staff`, `tag:laptops`,
//! `address:192.0.2.7`, or several of these), and destinations (`203.0.113.10 tcp/22`, `203.0.113.10:22`).

use super::text::{name_is_valid, port_of, protocol_number};
use super::{Subject, has_ports};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use wire::Destination;

/// The subject of a policy test or of a query to the policy. An empty name stands for a person whom no rule and no
/// group names.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct OwnedSubject {
    /// Name of the person, or empty.
    pub person: String,
    /// Groups that the person has from the login, in addition to those of the policy.
    pub groups: Vec<String>,
    /// Tags of the device from which the person asks.
    pub tags: Vec<String>,
    /// Address from which the person calls the authority.
    pub source: Option<IpAddr>,
}

impl OwnedSubject {
    /// Returns the subject in the form that decisions of the policy need.
    pub fn subject(&self) -> Subject<'_> {
        Subject { person: &self.person, groups: &self.groups, tags: &self.tags, source: self.source }
    }

    /// Adds an attribute such as `group:staff`.
    ///
    /// # Errors
    ///
    /// Returns a message that says what is wrong with the word and how to correct it.
    pub fn add(&mut self, word: &str) -> Result<(), String> {
        match word.split_once(':') {
            None if word == "everyone" => {}
            Some(("person", name)) if name_is_valid(name) && self.person.is_empty() => self.person = name.into(),
            Some(("group", name)) if name_is_valid(name) => self.groups.push(name.into()),
            Some(("tag", name)) if name_is_valid(name) => self.tags.push(name.into()),
            Some(("address", address)) if self.source.is_none() => {
                let read = address.parse::<IpAddr>();
                self.source = Some(read.map_err(|_| format!("`{}` is not an address", address.escape_debug()))?);
            }
            Some(("person" | "address", _)) => return Err("only one person and one address can be given".into()),
            None if name_is_valid(word) => return Err(format!("write \"person:{word}\"")),
            _ => {
                let kinds = "person:NAME, group:NAME, tag:NAME, address:ADDRESS, everyone";
                return Err(format!("`{}` is not one of {kinds}", word.escape_debug()));
            }
        }
        Ok(())
    }
}

/// Parses words separated by commas. The first word may be a person's name without `person:`.
impl FromStr for OwnedSubject {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut subject = Self::default();
        for (index, word) in text.split(',').map(str::trim).enumerate() {
            let bare = index == 0 && word != "everyone" && name_is_valid(word);
            if bare { subject.add(&format!("person:{word}"))? } else { subject.add(word)? }
        }
        Ok(subject)
    }
}

impl fmt::Display for OwnedSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.subject().fmt(f)
    }
}

impl fmt::Display for Subject<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        for group in self.groups {
            write!(f, ", in {group}")?;
        }
        for tag in self.tags {
            write!(f, ", on {tag}")?;
        }
        match self.source {
            Some(source) => write!(f, ", from {source}"),
            None => Ok(()),
        }
    }
}

/// Parses a destination such as `203.0.113.10 tcp/22`, `203.0.113.10 icmp` or `203.0.113.10:22`, which stands for TCP.
///
/// # Errors
///
/// Returns a message that says how to write a destination.
pub fn destination(text: &str) -> Result<Destination, String> {
    if let Ok(socket) = text.parse::<SocketAddr>() {
        return Ok(Destination { address: socket.ip().to_canonical(), protocol: 6, port: socket.port() });
    }
    let way_out = || {
        let forms = "203.0.113.10 tcp/22, 203.0.113.10 icmp, 203.0.113.10:22 or [2001:db8::1]:22";
        format!("`{}` is not a destination: write it like {forms}", text.escape_debug())
    };
    let (address, service) = text.split_once(' ').ok_or_else(way_out)?;
    let (name, port) = service.split_once('/').map_or((service, None), |(name, port)| (name, Some(port)));
    let address = address.parse::<IpAddr>().map_err(|_| way_out())?.to_canonical();
    let protocol = protocol_number(name).ok_or_else(way_out)?;
    match port {
        Some(port) if has_ports(protocol) => {
            Ok(Destination { address, protocol, port: port_of(port).ok_or_else(way_out)? })
        }
        None if !has_ports(protocol) => Ok(Destination { address, protocol, port: 0 }),
        _ => Err(way_out()),
    }
}
