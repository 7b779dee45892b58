//! Names of the organisations to whose authorities a user logs in.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The name that output shows for a user's default organisation, which has no name.
pub const DEFAULT_ORGANISATION: &str = "default";
/// Maximum length of a name, in bytes.
const NAME_MAX: usize = 64;

/// The name that a user gives to an organisation. It can be used as the name of a file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct OrganisationName(String);

/// Error: a text is no name of an organisation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WrongName {
    /// The name is empty, too long, or has characters that are not allowed.
    #[error(
        "{0:?} is no name for an organisation: use at most {NAME_MAX} lower-case letters, digits, `.`, `-` and `_`, \
         and begin with a letter or digit"
    )]
    Malformed(String),
    /// The name is reserved: it stands for the organisation without a name.
    #[error("`{DEFAULT_ORGANISATION}` is the organisation of logins without a name: leave the name out")]
    Default,
}

impl OrganisationName {
    /// Returns the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for OrganisationName {
    type Err = WrongName;

    fn from_str(text: &str) -> Result<Self, WrongName> {
        let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let mut bytes = text.bytes();
        let is_good = text.len() <= NAME_MAX
            && bytes.next().is_some_and(is_plain)
            && bytes.all(|byte| is_plain(byte) || matches!(byte, b'.' | b'-' | b'_'));
        match text {
            DEFAULT_ORGANISATION => Err(WrongName::Default),
            _ if is_good => Ok(Self(text.to_owned())),
            _ => Err(WrongName::Malformed(text.chars().take(NAME_MAX).collect())),
        }
    }
}

impl TryFrom<String> for OrganisationName {
    type Error = WrongName;

    fn try_from(text: String) -> Result<Self, WrongName> {
        text.parse()
    }
}

impl From<OrganisationName> for String {
    fn from(name: OrganisationName) -> Self {
        name.0
    }
}

impl fmt::Display for OrganisationName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// Returns the name of an organisation for output.
pub fn shown(name: Option<&OrganisationName>) -> &str {
    name.map_or(DEFAULT_ORGANISATION, OrganisationName::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_plain_word() {
        for good in ["acme", "example.org", "a", "7-zip_2"] {
            assert_eq!(good.parse::<OrganisationName>().map(String::from).as_deref(), Ok(good));
        }
        let long = "a".repeat(NAME_MAX + 1);
        for wrong in
            ["", ".", "..", "../x", "a/b", "/etc/passwd", ".hidden", "-x", "A", "a b", "a\0", "a\n", "ä", &long]
        {
            assert!(wrong.parse::<OrganisationName>().is_err(), "{wrong:?}");
            let text = serde_json::to_string(wrong).unwrap();
            assert!(serde_json::from_str::<OrganisationName>(&text).is_err(), "{wrong:?}");
        }
        assert_eq!("default".parse::<OrganisationName>(), Err(WrongName::Default));
    }
}
