//! An OpenID provider: oidc-provider on Node, with users, passwords and groups that a scenario can change at any time.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::json;

use crate::net::Namespace;
use crate::process::Process;
use crate::world::SOON;

/// The authority's client id at the provider.
pub const CLIENT: &str = "vouchsafe";
/// The authority's client secret at the provider.
pub const SECRET: &str = "a secret that only the authority and the provider know";
/// Password of every user of the provider.
pub const PASSWORD: &str = "staple battery";
const PORT: u16 = 5556;

/// Settings in which providers differ.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Whether claims of scopes are available at the UserInfo endpoint only, and not in ID tokens.
    pub claims_at_userinfo: bool,
    /// The redirect URIs of the client.
    pub redirects: Vec<String>,
    /// The client's URI for back-channel logout; `None` if the client has none.
    pub logout_uri: Option<String>,
}

/// A running provider with the users `alice` (in the group `staff`) and `mallory` (in none).
pub struct Provider {
    _process: Process,
    address: String,
    people: PathBuf,
    groups: BTreeMap<String, Vec<String>>,
}

impl Provider {
    /// Starts a provider on `address` of `namespace`. Its clients must trust `certificate`, whose private key is `key`.
    pub fn start(
        namespace: &Namespace,
        address: &str,
        certificate: &Path,
        key: &Path,
        options: &Options,
    ) -> Result<Self> {
        let dir = namespace.dir().join("provider");
        fs::create_dir_all(&dir)?;
        let modules = modules()?;
        let mut client = json!({
            "client_id": CLIENT,
            "client_secret": SECRET,
            "application_type": "native",
            "redirect_uris": options.redirects,
            "response_types": ["code"],
            "grant_types": ["authorization_code", "refresh_token", "urn:ietf:params:oauth:grant-type:device_code"],
        });
        if let Some(uri) = &options.logout_uri {
            client["backchannel_logout_uri"] = json!(uri);
            client["backchannel_logout_session_required"] = json!(true);
        }
        let people = dir.join("people.json");
        let config = json!({
            "issuer": issuer(address),
            "address": address,
            "port": PORT,
            "certificate": certificate,
            "key": key,
            "people": people,
            "claims_at_userinfo": options.claims_at_userinfo,
            "clients": [client],
        });
        let file = dir.join("config.json");
        fs::write(&file, config.to_string())?;
        let staff = vec!["staff".to_owned()];
        let groups = BTreeMap::from([("alice".to_owned(), staff), ("mallory".to_owned(), Vec::new())]);
        write(&people, &groups)?;
        let mut command = namespace.command("node");
        command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/provider/provider.mjs")).arg(&file);
        command.env("PROVIDER_MODULES", &modules).env("NODE_EXTRA_CA_CERTS", certificate.with_file_name("ca.pem"));
        let mut process = namespace.start(command)?;
        process.wait_for("the provider listens", SOON)?;
        Ok(Self { _process: process, address: address.to_owned(), people, groups })
    }

    /// Returns the issuer identifier.
    pub fn issuer(&self) -> String {
        issuer(&self.address)
    }

    /// Puts a user into these groups and no others. The provider uses them in every answer from then on.
    pub fn set_groups(&mut self, person: &str, groups: &[&str]) -> Result<()> {
        let known = self.groups.get_mut(person).with_context(|| format!("the provider knows no {person}"))?;
        *known = groups.iter().map(|group| (*group).to_owned()).collect();
        write(&self.people, &self.groups)
    }

    /// Removes a user, as when somebody leaves the organisation. The provider refuses to say anything about the user
    /// from then on.
    pub fn remove(&mut self, person: &str) -> Result<()> {
        self.groups.remove(person).with_context(|| format!("the provider knows no {person}"))?;
        write(&self.people, &self.groups)
    }

    /// Returns the URL at which a browser logs out.
    pub fn logout_url(&self) -> String {
        format!("{}/session/end", self.issuer())
    }
}

/// Returns the issuer identifier of a provider on `address`.
pub fn issuer(address: &str) -> String {
    format!("https://{address}:{PORT}")
}

/// Returns the section `[oidc]` for an authority that uses the provider on `address`. The client secret is in the file
/// `oidc.secret` in the authority's directory; the authority's own CA issued the provider's certificate.
pub fn configuration(address: &str) -> String {
    format!(
        "\n[oidc]\nissuer = \"{}\"\nclient_id = \"{CLIENT}\"\nclient_secret_file = \"oidc.secret\"\n\
         person_claim = \"preferred_username\"\nca_file = \"ca.pem\"\n",
        issuer(address)
    )
}

fn write(file: &Path, groups: &BTreeMap<String, Vec<String>>) -> Result<()> {
    let people: serde_json::Map<_, _> = groups
        .iter()
        .map(|(name, groups)| {
            let person = json!({
                "name": name,
                "password": PASSWORD,
                "email": format!("{name}@example.org"),
                "groups": groups,
            });
            (format!("{name}-at-the-provider"), person)
        })
        .collect();
    // Write another file and rename it, because the provider may read the file at any moment.
    let aside = file.with_extension("new");
    fs::write(&aside, serde_json::Value::from(people).to_string())?;
    Ok(fs::rename(aside, file)?)
}

/// Returns the folder in which `make setup` installed the provider's modules, next to cargo's build output.
pub fn modules() -> Result<PathBuf> {
    let this = std::env::current_exe()?;
    let found = this.ancestors().map(|dir| dir.join("parts/provider")).find(|path| path.join("node_modules").is_dir());
    let found = found.context("there is no OpenID provider: `make setup` installs it")?;
    ensure!(found.join("locked").is_file(), "{} is incomplete: run `make setup` again", found.display());
    Ok(found)
}
