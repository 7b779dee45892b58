//! The table `[oidc]` of authority.toml: the identity provider.

use engine::document::{Fields, Reader};
use openidconnect::IssuerUrl;
use std::path::PathBuf;

const KEYS: &[&str] = &[
    "issuer",
    "client_id",
    "client_secret_file",
    "scopes",
    "person_claim",
    "groups_claim",
    "refresh",
    "reauthenticate",
    "ca_file",
];

/// Configuration of an identity provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderSettings {
    /// The provider's issuer identifier: `https://`, or `http://` on a loopback address.
    pub issuer: String,
    /// The client identifier of this authority at the provider.
    pub client_id: String,
    /// The file with the client secret, relative to the authority's directory; `None` for a public client, which has no
    /// secret.
    pub client_secret_file: Option<PathBuf>,
    /// Scopes to request in addition to `openid`. Default: those of `profile`, `email`, `groups` and `offline_access`
    /// that the provider supports.
    pub scopes: Option<Vec<String>>,
    /// The claim that becomes the person's name. Default `email`, which the provider must have verified.
    pub person_claim: String,
    /// The claim that lists groups. Default `groups`.
    pub groups_claim: String,
    /// Interval in seconds at which the authority asks the provider again for the groups of each person for whom it has
    /// a refresh token. Default 5 minutes.
    pub refresh: u32,
    /// Maximum age of a login at the provider, in seconds. Default: unlimited.
    pub reauthenticate: Option<u32>,
    /// The file with the CA certificates (PEM) for connections to the provider, relative to the authority's directory.
    /// Default: the CA certificates of the system.
    pub ca_file: Option<PathBuf>,
}

impl ProviderSettings {
    /// Reads the table `[oidc]` and reports its faults to `reader`. Returns `None` if the file has no such table.
    pub fn read(reader: &mut Reader<'_>, fields: &Fields<'_, '_>) -> Option<Self> {
        let value = fields.value("oidc")?;
        let Some(table) = value.get_ref().as_table() else {
            reader.fault(value.span(), "`oidc` must be a table: write it as `[oidc]`");
            return None;
        };
        let fields = Fields::new(reader, table, value.span(), "[oidc]", KEYS);
        let issuer = fields.required_text(reader, "issuer");
        let url = |issuer: &str| IssuerUrl::new(issuer.to_owned()).ok();
        if let Some(issuer) = &issuer
            && !url(issuer.get_ref()).is_some_and(|url| is_confidential(url.url()))
        {
            reader.fault(issuer.span(), "`issuer` must be an https:// URL (http:// on 127.0.0.1 or [::1] only)");
        }
        let client_id = fields.required_text(reader, "client_id");
        if let Some(client_id) = client_id.as_ref().filter(|id| id.get_ref().is_empty()) {
            reader.fault(client_id.span(), "`client_id` is empty");
        }
        let file = |reader: &mut Reader<'_>, key| fields.text(reader, key).map(|text| PathBuf::from(*text.get_ref()));
        let claim = |reader: &mut Reader<'_>, key, default: &str| {
            fields.text(reader, key).map_or_else(|| default.to_owned(), |text| (*text.get_ref()).to_owned())
        };
        let scopes = fields.value("scopes").is_some().then(|| {
            let scopes = fields.required_texts(reader, "scopes");
            scopes.iter().map(|scope| (*scope.get_ref()).to_owned()).collect()
        });
        let reauthenticate = fields.value("reauthenticate").is_some();
        let reauthenticate = reauthenticate.then(|| fields.seconds(reader, "reauthenticate", 0, 60, 90 * 86_400));
        Some(Self {
            issuer: issuer.map_or_else(String::new, |text| (*text.get_ref()).to_owned()),
            client_id: client_id.map_or_else(String::new, |text| (*text.get_ref()).to_owned()),
            client_secret_file: file(reader, "client_secret_file"),
            scopes,
            person_claim: claim(reader, "person_claim", "email"),
            groups_claim: claim(reader, "groups_claim", "groups"),
            refresh: fields.seconds(reader, "refresh", 300, 10, 86_400),
            reauthenticate,
            ca_file: file(reader, "ca_file"),
        })
    }
}

/// Reports whether a connection to this address protects requests from eavesdropping and tampering: TLS or loopback.
pub fn is_confidential(url: &openidconnect::url::Url) -> bool {
    use openidconnect::url::Host;
    let loopback = match url.host() {
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        _ => false,
    };
    url.scheme() == "https" || url.scheme() == "http" && loopback
}

#[cfg(test)]
mod tests {
    use crate::Settings;

    #[test]
    fn a_provider_needs_an_issuer_and_a_client_id() {
        let provider = |rest: &str| Settings::parse(&format!("[oidc]\n{rest}"));
        let full = "issuer = \"https://id.example.org\"\nclient_id = \"vouchsafe\"\n";
        let read = provider(full).unwrap().provider.unwrap();
        assert_eq!((read.person_claim.as_str(), read.groups_claim.as_str(), read.refresh), ("email", "groups", 300));
        assert_eq!((read.scopes, read.reauthenticate), (None, None));
        assert!(Settings::parse("").unwrap().provider.is_none());
        for wrong in ["client_id = \"x\"", "issuer = \"https://id.example.org\"", "issuer = \"x\"\nclient_id = \"x\""] {
            assert!(provider(wrong).is_err(), "{wrong}");
        }
        assert!(provider(&full.replace("https://id.example.org", "http://id.example.org")).is_err());
        assert!(provider(&full.replace("https://id.example.org", "http://127.0.0.1:5556/dex")).is_ok());
        let faults = provider(&format!("{full}isuer = \"x\"")).unwrap_err().to_string();
        assert!(faults.contains("did you mean `issuer`?"), "{faults}");
    }
}
