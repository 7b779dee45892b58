//! Entries of lists: as lines of JSON, which operators write, and as bytes in the file of lists.

use anyhow::{Context, Result, bail, ensure};
use engine::policy::{instant, name_is_valid};
use ipnet::IpNet;
use serde::Deserialize;
use std::net::IpAddr;

/// Maximum length of a line of a file with entries, in bytes.
pub const MOST_LINE: u64 = 4 << 20;
/// Maximum number of characters of a note.
pub const MOST_NOTE: usize = 200;
/// Entries end at full hours, so that a list has few different ends.
pub(super) const HOUR: u64 = 3600;

/// A line of a file with entries: the entries about one address or network and one or more senders.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Line {
    /// The address or network that the senders may or may not reach.
    pub to: String,
    /// The senders, such as `person:alice`, `group:staff`, `tag:laptops`, or `everyone`.
    pub who: Vec<String>,
    /// Whether the entries deny.
    #[serde(default)]
    pub deny: bool,
    /// Priority of the entries; 100 if absent, or 200 for entries that deny.
    pub priority: Option<u16>,
    /// The time at which the entries end: a day, or a full hour such as `2030-01-31T12:00:00Z`. If absent, they do not
    /// end.
    pub until: Option<String>,
    /// A note.
    #[serde(default)]
    pub note: String,
    /// Whether the line removes these entries. A change may have such lines, but an import may not.
    #[serde(default)]
    pub remove: bool,
}

/// A valid line.
pub(super) struct Parsed {
    pub(super) to: IpNet,
    pub(super) who: Vec<String>,
    pub(super) note: String,
    pub(super) remove: bool,
    pub(super) deny: bool,
    pub(super) priority: u16,
    /// The hour since 1970 at which the entries end, or 0.
    pub(super) hours: u32,
}

/// The properties of an entry, as the file stores them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Terms {
    /// Number of the change that made the entry.
    pub(super) revision: u64,
    pub(super) deny: bool,
    pub(super) priority: u16,
    /// The hour since 1970 at which the entry ends; 0 if it does not end.
    pub(super) hours: u32,
    /// Number of the note; 0 is none.
    pub(super) note: u32,
    /// Number of the author.
    pub(super) author: u32,
    /// When the entry was made, in Unix seconds.
    pub(super) time: u64,
}

/// Entries of one address or network that differ only in their senders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Group {
    pub(super) terms: Terms,
    /// Numbers of the senders; 0 is everyone.
    pub(super) senders: Vec<u32>,
}

impl Line {
    /// Parses a line of JSON.
    ///
    /// # Errors
    /// Returns what is wrong with the line.
    pub fn parse(text: &[u8]) -> Result<Self> {
        Ok(serde_json::from_slice(text)?)
    }

    /// Checks the line.
    pub(super) fn parsed(self) -> Result<Parsed> {
        let Self { to, who, deny, priority, until, note, remove } = self;
        let read = to.parse::<IpNet>().ok().or_else(|| to.parse::<IpAddr>().ok().map(IpNet::from));
        let net = read.with_context(|| {
            format!("`to`: `{}` is not an address (203.0.113.10, 2001:db8::1) or a network", to.escape_debug())
        })?;
        ensure!(net == net.trunc(), "`to`: {net} has bits set after its prefix length; write {}", net.trunc());
        ensure!(!who.is_empty(), "`who` is empty");
        who.iter().try_for_each(|word| check_word(word))?;
        ensure!(
            note.chars().count() <= MOST_NOTE && !note.contains(char::is_control),
            "`note` must be one line of at most {MOST_NOTE} characters"
        );
        if remove && (deny || priority.is_some() || until.is_some()) {
            bail!("a line that removes entries may have only the keys `to`, `who`, `note` and `remove`");
        }
        let hours = until.map_or(Ok(0), |until| hours_of(&until))?;
        let priority = priority.unwrap_or(if deny { 200 } else { 100 });
        Ok(Parsed { to: net, who, note, remove, deny, priority, hours })
    }
}

/// Checks the notation of a sender.
fn check_word(word: &str) -> Result<()> {
    let is_valid = match word.split_once(':') {
        None => word == "everyone",
        Some(("person" | "group" | "tag", name)) => name_is_valid(name),
        Some(_) => false,
    };
    let kinds = "\"person:NAME\", \"group:NAME\", \"tag:NAME\", \"everyone\"";
    ensure!(is_valid, "`who`: `{}` is not one of {kinds}", word.escape_debug());
    Ok(())
}

/// Returns the hour since 1970 of a day or full hour.
fn hours_of(text: &str) -> Result<u32> {
    let at = instant(text).or_else(|| instant(&format!("{text}T00:00:00Z")));
    let full = at.filter(|at| at % HOUR == 0 && *at > 0).and_then(|at| u32::try_from(at / HOUR).ok());
    full.with_context(|| {
        format!("`until`: `{}` is not a day (2030-01-31) or a full hour (2030-01-31T12:00:00Z)", text.escape_debug())
    })
}

impl Terms {
    /// Number of bytes of the terms in the file.
    pub(super) const BYTES: usize = 31;

    pub(super) fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let Self { revision, deny, priority, hours, note, author, time } = self;
        bytes[..8].copy_from_slice(&revision.to_le_bytes());
        bytes[8] = u8::from(*deny);
        bytes[9..11].copy_from_slice(&priority.to_le_bytes());
        bytes[11..15].copy_from_slice(&hours.to_le_bytes());
        bytes[15..19].copy_from_slice(&note.to_le_bytes());
        bytes[19..23].copy_from_slice(&author.to_le_bytes());
        bytes[23..].copy_from_slice(&time.to_le_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &mut &[u8]) -> Result<Self> {
        let revision = u64::from_le_bytes(take(bytes)?);
        let deny = match take::<1>(bytes)? {
            [0] => false,
            [1] => true,
            _ => bail!(DAMAGED),
        };
        Ok(Self {
            revision,
            deny,
            priority: u16::from_le_bytes(take(bytes)?),
            hours: u32::from_le_bytes(take(bytes)?),
            note: u32::from_le_bytes(take(bytes)?),
            author: u32::from_le_bytes(take(bytes)?),
            time: u64::from_le_bytes(take(bytes)?),
        })
    }

    /// Returns the time at which the entry ends, in Unix seconds.
    pub(super) fn until(&self) -> Option<u64> {
        (self.hours > 0).then(|| u64::from(self.hours) * HOUR)
    }
}

impl Group {
    /// Encodes the entries of an address or network.
    pub(super) fn encode(groups: &[Self]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for Self { terms, senders } in groups {
            bytes.extend(terms.encode());
            bytes.extend((senders.len() as u32).to_le_bytes());
            senders.iter().for_each(|sender| bytes.extend(sender.to_le_bytes()));
        }
        bytes
    }

    /// Decodes the entries of an address or network.
    pub(super) fn decode(mut bytes: &[u8]) -> Result<Vec<Self>> {
        let mut groups = Vec::new();
        while !bytes.is_empty() {
            let terms = Terms::decode(&mut bytes)?;
            let count = u32::from_le_bytes(take(&mut bytes)?) as usize;
            let (own, rest) = bytes.split_at_checked(count.saturating_mul(4)).context(DAMAGED)?;
            let senders = own.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
            groups.push(Self { terms, senders: senders.collect() });
            bytes = rest;
        }
        Ok(groups)
    }

    /// Adds an entry, which replaces an entry about the same sender. Without `terms`, only removes the entry about the
    /// sender. Returns whether there was an entry about the sender.
    pub(super) fn apply(groups: &mut Vec<Self>, sender: u32, terms: Option<Terms>) -> bool {
        let mut was_there = false;
        for group in groups.iter_mut() {
            let before = group.senders.len();
            group.senders.retain(|other| *other != sender);
            was_there |= group.senders.len() < before;
        }
        groups.retain(|group| !group.senders.is_empty());
        if let Some(terms) = terms {
            match groups.iter_mut().find(|group| group.terms == terms) {
                Some(group) => group.senders.push(sender),
                None => groups.push(Self { terms, senders: vec![sender] }),
            }
        }
        was_there
    }
}

const DAMAGED: &str = "the file of lists is damaged: import the lists again, or restore a backup";

fn take<const N: usize>(bytes: &mut &[u8]) -> Result<[u8; N]> {
    let (first, rest) = bytes.split_first_chunk::<N>().context(DAMAGED)?;
    *bytes = rest;
    Ok(*first)
}

/// Encodes an address or network as a key of the file.
pub(super) fn key(net: IpNet) -> Vec<u8> {
    let mut bytes = match net.addr() {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    bytes.push(net.prefix_len());
    bytes
}

/// Decodes a key of the file.
pub(super) fn net(key: &[u8]) -> Result<IpNet> {
    let (length, octets) = key.split_last().context(DAMAGED)?;
    let address = match octets.len() {
        4 => IpAddr::from(<[u8; 4]>::try_from(octets)?),
        16 => IpAddr::from(<[u8; 16]>::try_from(octets)?),
        _ => bail!(DAMAGED),
    };
    IpNet::new(address, *length).context(DAMAGED)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> Result<Parsed> {
        Line::parse(text.as_bytes())?.parsed()
    }

    #[test]
    fn a_line_has_defaults_and_its_faults_are_named() {
        let parsed = line(r#"{"to": "203.0.113.7", "who": ["person:alice", "everyone"]}"#).unwrap();
        assert_eq!((parsed.to.to_string().as_str(), parsed.priority, parsed.hours), ("203.0.113.7/32", 100, 0));
        let parsed = line(r#"{"to": "2001:db8::/32", "who": ["tag:x"], "deny": true, "until": "1970-01-02"}"#).unwrap();
        assert_eq!((parsed.priority, parsed.hours, parsed.deny), (200, 24, true));
        for (text, expected) in [
            (r#"{"to": "203.0.113.7/24", "who": ["everyone"]}"#, "write 203.0.113.0/24"),
            (r#"{"to": "db", "who": ["everyone"]}"#, "`db` is not an address"),
            (r#"{"to": "203.0.113.7", "who": []}"#, "`who` is empty"),
            (r#"{"to": "203.0.113.7", "who": ["alice"]}"#, "`alice` is not one of"),
            (r#"{"to": "203.0.113.7", "who": ["address:10.0.0.1"]}"#, "is not one of"),
            (r#"{"to": "203.0.113.7", "who": ["person:a b"]}"#, "is not one of"),
            (r#"{"to": "203.0.113.7", "who": ["everyone"], "until": "2030-01-31T12:30:00Z"}"#, "full hour"),
            (r#"{"to": "203.0.113.7", "who": ["everyone"], "untill": "2030-01-31"}"#, "unknown field `untill`"),
            (r#"{"to": "203.0.113.7", "who": ["everyone"], "note": "a\nb"}"#, "`note` must be one line"),
            (r#"{"to": "203.0.113.7", "who": ["everyone"], "remove": true, "priority": 1}"#, "that removes"),
            (r#"{"to": "203.0.113.7", "who": ["everyone"]"#, "EOF"),
        ] {
            let fault = line(text).map(|_| ()).unwrap_err().to_string();
            assert!(fault.contains(expected), "{text}: {fault}");
        }
    }

    #[test]
    fn entries_survive_the_file() {
        let terms = |revision, hours| Terms {
            revision,
            deny: hours == 0,
            priority: 7,
            hours,
            note: 3,
            author: u32::MAX,
            time: 1 << 40,
        };
        let mut groups = vec![Group { terms: terms(1, 0), senders: vec![0, 7] }];
        assert!(Group::apply(&mut groups, 7, Some(terms(u64::MAX, 5))));
        assert!(!Group::apply(&mut groups, 9, Some(terms(u64::MAX, 5))));
        assert!(!Group::apply(&mut groups, 8, None));
        let bytes = Group::encode(&groups);
        assert_eq!(Group::decode(&bytes).unwrap(), groups);
        assert_eq!(groups[1].senders, [7, 9]);
        for end in 1..bytes.len() {
            let cut = Group::decode(&bytes[..end]);
            assert!(cut.is_err() || cut.unwrap().len() < groups.len(), "{end}");
        }
        for text in ["203.0.113.0/24", "2001:db8::/33", "0.0.0.0/0"] {
            assert_eq!(net(&key(text.parse().unwrap())).unwrap().to_string(), text);
        }
        assert!(net(&[1, 2, 3, 4, 33]).is_err() && net(&[]).is_err());
    }
}
