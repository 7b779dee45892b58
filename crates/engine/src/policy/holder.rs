//! Holders of consents: a person, everybody in a group, or everybody with a device that has a tag.

use super::Subject;
use super::text::name_is_valid;
use std::fmt;
use std::str::FromStr;

/// The holder of a consent.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Holder {
    /// The person with this name.
    Person(String),
    /// The members of the group with this name.
    Group(String),
    /// The users of devices with this tag.
    Tag(String),
}

impl Holder {
    /// Returns the subject that a delegation has to cover so that the holder can get a consent. If the holder is a
    /// person, the subject has these `groups` and `tags`. If the holder is a group or a tag, the subject is somebody
    /// about whom only this group or tag is known.
    pub fn subject<'s>(&'s self, groups: &'s [String], tags: &'s [String]) -> Subject<'s> {
        match self {
            Self::Person(person) => Subject { groups, tags, ..Subject::person(person) },
            Self::Group(name) => Subject { groups: std::slice::from_ref(name), ..Subject::default() },
            Self::Tag(name) => Subject { tags: std::slice::from_ref(name), ..Subject::default() },
        }
    }

    /// Returns the name of the person, if the holder is a person.
    pub fn person(&self) -> Option<&str> {
        match self {
            Self::Person(person) => Some(person),
            Self::Group(_) | Self::Tag(_) => None,
        }
    }
}

/// Writes `alice`, `group:staff` or `tag:managed`. The name of a person never contains a colon.
impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Person(name) => f.write_str(name),
            Self::Group(name) => write!(f, "group:{name}"),
            Self::Tag(name) => write!(f, "tag:{name}"),
        }
    }
}

/// Reads what [`Display`](fmt::Display) writes, and also `person:alice`.
impl FromStr for Holder {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, name) = text.split_once(':').unwrap_or(("person", text));
        let make = match kind {
            "person" => Self::Person,
            "group" => Self::Group,
            "tag" => Self::Tag,
            _ => return Err(fault(text)),
        };
        if name_is_valid(name) { Ok(make(name.to_owned())) } else { Err(fault(text)) }
    }
}

fn fault(text: &str) -> String {
    format!("access can't be given to `{}`: write NAME, group:NAME or tag:NAME", text.escape_debug())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_is_read_as_it_is_written() {
        for text in ["alice", "group:staff", "tag:managed"] {
            assert_eq!(text.parse::<Holder>().unwrap().to_string(), text);
        }
        assert_eq!("person:alice".parse(), Ok(Holder::Person("alice".into())));
        for wrong in ["", ":", "group:", "tag:a b", "address:192.0.2.7", "group:a:b", "a\nb", "person:group:a"] {
            assert!(wrong.parse::<Holder>().is_err(), "{wrong}");
        }
    }
}
