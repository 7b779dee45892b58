//! The table `[console]` of authority.toml.

use crate::storage::Session;
use engine::document::{Fields, Reader};
use engine::policy::{Policy, Subject, name_is_valid};
use openidconnect::url::{Origin, Url};

const KEYS: &[&str] = &["url", "administrators", "idle", "lifetime"];
/// Default idle time: half an hour, in seconds.
const DEFAULT_IDLE: u32 = 30 * 60;
/// Default lifetime: half a day, in seconds.
const DEFAULT_LIFETIME: u32 = 12 * 3600;

/// Configuration of the console.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsoleSettings {
    /// The origin by which browsers reach the authority: `https://`, a name, and a port if it is not 443. Without this
    /// setting, the console offers neither passkeys nor logins with the identity provider.
    pub url: Option<String>,
    /// The administrators. Default: none.
    pub administrators: Vec<Administrator>,
    /// Seconds of inactivity after which a person has to log in again. Default 30 minutes.
    pub idle: u32,
    /// Seconds after which a person has to log in again in any case. Default 12 hours.
    pub lifetime: u32,
}

impl Default for ConsoleSettings {
    fn default() -> Self {
        Self { url: None, administrators: Vec::new(), idle: DEFAULT_IDLE, lifetime: DEFAULT_LIFETIME }
    }
}

/// A person or group with administrator rights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Administrator {
    /// The person with this name.
    Person(String),
    /// The members of a group of the policy or of the identity provider.
    Group(String),
}

impl ConsoleSettings {
    /// Reads the table `[console]` and reports its faults to `reader`. Returns the defaults if the file has no such
    /// table.
    pub fn read(reader: &mut Reader<'_>, fields: &Fields<'_, '_>) -> Self {
        let Some(value) = fields.value("console") else { return Self::default() };
        let Some(table) = value.get_ref().as_table() else {
            reader.fault(value.span(), "`console` must be a table: write it as `[console]`");
            return Self::default();
        };
        let fields = Fields::new(reader, table, value.span(), "[console]", KEYS);
        let url = fields.text(reader, "url").and_then(|text| {
            let url = origin(text.get_ref());
            if url.is_none() {
                reader.fault(
                    text.span(),
                    "`url` must be https://, a name and a port, without a path: \"https://authority.example.org:8443\"",
                );
            }
            url
        });
        let mut administrators = Vec::new();
        if fields.value("administrators").is_some() {
            for word in fields.required_texts(reader, "administrators") {
                match word.get_ref().split_once(':') {
                    Some(("person", name)) if name_is_valid(name) => {
                        administrators.push(Administrator::Person(name.into()));
                    }
                    Some(("group", name)) if name_is_valid(name) => {
                        administrators.push(Administrator::Group(name.into()));
                    }
                    _ => reader.fault(word.span(), "an administrator must be \"person:NAME\" or \"group:NAME\""),
                }
            }
        }
        Self {
            url,
            administrators,
            idle: fields.seconds(reader, "idle", DEFAULT_IDLE, 60, 86_400),
            lifetime: fields.seconds(reader, "lifetime", DEFAULT_LIFETIME, 60, 90 * 86_400),
        }
    }

    /// Reports whether the person of this session is an administrator under the policy in force. Device tags do not
    /// count, because a browser is not a device.
    pub fn is_administrator(&self, policy: &Policy, session: &Session) -> bool {
        let subject = Subject { groups: &session.groups, ..Subject::person(&session.person) };
        self.administrators.iter().any(|who| match who {
            Administrator::Person(person) => *person == session.person,
            Administrator::Group(group) => policy.is_in(&subject, group),
        })
    }
}

/// Returns an `https` origin in the form in which browsers write it; `None` if the text is no such origin.
fn origin(text: &str) -> Option<String> {
    let url = Url::parse(text).ok()?;
    let bare = url.path() == "/" && url.query().is_none() && url.fragment().is_none();
    let bare = bare && url.username().is_empty() && url.password().is_none();
    match url.origin() {
        Origin::Tuple(scheme, ..) if scheme == "https" && bare => Some(url.origin().ascii_serialization()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use crate::Settings;

    #[test]
    fn an_address_is_an_origin() {
        let read = |url: &str| Settings::parse(&format!("[console]\nurl = \"{url}\"")).ok()?.console.url;
        assert_eq!(read("https://A.example.org:443/").as_deref(), Some("https://a.example.org"));
        assert_eq!(read("https://a.example.org:8443").as_deref(), Some("https://a.example.org:8443"));
        for wrong in ["http://a.example.org", "https://a.example.org/x", "https://u@a.example.org", "a", "https:x?y"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn administrators_are_persons_and_groups() {
        let read = |list: &str| Settings::parse(&format!("[console]\nadministrators = {list}"));
        assert_eq!(read("[\"person:a\", \"group:b\"]").unwrap().console.administrators.len(), 2);
        for wrong in ["[\"alice\"]", "[\"tag:x\"]", "[\"everyone\"]", "[]", "[\"person:a b\"]"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
