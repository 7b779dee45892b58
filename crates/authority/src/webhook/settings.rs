//! The tables `[[webhooks]]` of authority.toml. Only the operator, who writes this file, chooses the addresses to which
//! the authority connects.

use crate::login::is_confidential;
use engine::document::{Fields, Reader};
use engine::policy::name_is_valid;
use openidconnect::url::Url;
use std::path::PathBuf;

const KEYS: &[&str] = &["name", "url", "secret_file", "ca_file", "delegations"];

/// Maximum number of webhooks, because each has a queue of its own.
const MOST: usize = 16;

/// The settings of a webhook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookSettings {
    /// Unique name, by which logs, metrics and commands refer to the webhook.
    pub name: String,
    /// The URL that receives the messages: `https://`, or `http://` on a loopback address.
    pub url: String,
    /// The file with the secret for signatures, relative to the authority's directory.
    pub secret_file: PathBuf,
    /// The file with the CA certificates (PEM) for connections to the URL, relative to the authority's directory.
    /// Default: the CA certificates of the system.
    pub ca_file: Option<PathBuf>,
    /// The delegations whose requests the webhook learns of. Default: all.
    pub delegations: Option<Vec<String>>,
}

impl WebhookSettings {
    /// Reads the tables `[[webhooks]]` and reports their faults to `reader`.
    pub fn read(reader: &mut Reader<'_>, fields: &Fields<'_, '_>) -> Vec<Self> {
        let tables = fields.tables(reader, "webhooks", "a webhook", KEYS);
        if let Some(further) = tables.get(MOST) {
            reader.fault(further.span(), format!("use at most {MOST} webhooks: let one program serve several teams"));
        }
        let mut webhooks = Vec::new();
        for table in tables.iter().take(MOST) {
            let webhook = Self::read_one(reader, table, &webhooks);
            webhooks.push(webhook);
        }
        webhooks
    }

    fn read_one(reader: &mut Reader<'_>, fields: &Fields<'_, '_>, before: &[Self]) -> Self {
        let name = fields.required_text(reader, "name");
        if let Some(name) = &name {
            if !name_is_valid(name.get_ref()) {
                let rule = "1 to 64 letters, digits, `.`, `_`, `@`, `+` or `-`, and begins with a letter or digit";
                reader.fault(name.span(), format!("the `name` of a webhook has {rule}"));
            } else if before.iter().any(|other| other.name == **name.get_ref()) {
                reader.fault(name.span(), format!("another webhook has the name `{}`, too", name.get_ref()));
            }
        }
        let url = fields.required_text(reader, "url");
        if let Some((url, fault)) = url.as_ref().and_then(|url| Some((url, url_fault(url.get_ref())?))) {
            reader.fault(url.span(), fault);
        }
        let secret_file = fields.required_text(reader, "secret_file");
        let ca_file = fields.text(reader, "ca_file").map(|text| PathBuf::from(*text.get_ref()));
        let delegations = fields.value("delegations").is_some().then(|| {
            let names = fields.required_texts(reader, "delegations");
            names.iter().map(|name| (*name.get_ref()).to_owned()).collect()
        });
        Self {
            name: name.map_or_else(String::new, |text| (*text.get_ref()).to_owned()),
            url: url.map_or_else(String::new, |text| (*text.get_ref()).to_owned()),
            secret_file: secret_file.map_or_else(PathBuf::new, |text| PathBuf::from(*text.get_ref())),
            ca_file,
            delegations,
        }
    }
}

/// Returns the fault of a URL, if it has one.
fn url_fault(text: &str) -> Option<&'static str> {
    let url = Url::parse(text).ok().filter(is_confidential);
    match url {
        None => Some("`url` must be an https:// URL (http:// on 127.0.0.1 or [::1] only)"),
        Some(url) if !url.username().is_empty() || url.password().is_some() => {
            Some("`url` must contain no user name and no password: the program checks the signature instead")
        }
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use crate::Settings;

    const FULL: &str = "name = \"team\"\nurl = \"https://hooks.example.org/v\"\nsecret_file = \"team.secret\"\n";

    fn read(rest: &str) -> Result<Vec<super::WebhookSettings>, String> {
        let settings = Settings::parse(&format!("[[webhooks]]\n{rest}"));
        settings.map(|settings| settings.webhooks).map_err(|faults| faults.to_string())
    }

    #[test]
    fn a_name_a_url_and_a_secret_are_enough() {
        let [webhook] = &read(FULL).unwrap()[..] else { panic!("one webhook") };
        assert_eq!((webhook.name.as_str(), webhook.url.as_str()), ("team", "https://hooks.example.org/v"));
        assert_eq!((&webhook.ca_file, &webhook.delegations), (&None, &None));
        assert!(Settings::parse("").unwrap().webhooks.is_empty());
        for url in ["http://127.0.0.1:9000", "http://[::1]:9000/x?y=z"] {
            read(&FULL.replace("https://hooks.example.org/v", url)).unwrap();
        }
        let narrow = read(&format!("{FULL}delegations = \"dba\"")).unwrap();
        assert_eq!(narrow[0].delegations, Some(vec!["dba".to_owned()]));
    }

    #[test]
    fn each_fault_names_the_place_and_the_way_out() {
        let url = |url: &str| FULL.replace("https://hooks.example.org/v", url);
        for (text, fault) in [
            (FULL.replace("name = \"team\"\n", ""), "missing key `name`"),
            (FULL.replace("\"team\"", "\"a team\""), "2:8: the `name` of a webhook has 1 to 64"),
            (format!("{FULL}[[webhooks]]\n{FULL}"), "6:8: another webhook has the name `team`"),
            ("name = \"team\"".into(), "missing key `url`"),
            (FULL.replace("secret_file = \"team.secret\"", ""), "missing key `secret_file`"),
            (url("http://hooks.example.org"), "3:7: `url` must be an https:// URL"),
            (url("http://localhost:9000"), "(http:// on 127.0.0.1 or [::1] only)"),
            (url("file:///etc/passwd"), "must be an https:// URL"),
            (url("hooks"), "must be an https:// URL"),
            (url("https://team:secret@hooks.example.org"), "no user name and no password"),
            (format!("{FULL}secretfile = \"x\""), "did you mean `secret_file`?"),
            (format!("{FULL}delegations = []"), "`delegations` is empty"),
        ] {
            let faults = read(&text).unwrap_err();
            assert!(faults.contains(fault), "{text}: {faults}");
        }
        let table = |n| format!("[[webhooks]]\n{}", FULL.replace("team", &format!("t{n}")));
        let many: String = (0..17).map(table).collect();
        let faults = Settings::parse(&many).unwrap_err();
        assert!(faults.all()[0].line >= 65 && faults.to_string().contains("at most 16 webhooks"), "{faults}");
        let faults = Settings::parse(&format!("[webhooks]\n{FULL}")).unwrap_err().to_string();
        assert!(faults.contains("must begin with [[webhooks]], in double brackets"), "{faults}");
    }
}
