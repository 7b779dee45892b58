//! An OpenID provider: oidc-provider on Node, with people, passwords and groups that a scenario may change at any time.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::json;

use crate::net::Namespace;
use crate::process::Process;
use crate::world::SOON;

/// What the provider calls the authority.
pub const CLIENT: &str = "vouchsafe";
/// What the authority is known by.
pub const SECRET: &str = "a secret that only the authority and the provider know";
/// Everybody's password there.
pub const PASSWORD: &str = "staple battery";
const PORT: u16 = 5556;

/// What differs from one provider to another.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Whether what scopes stand for is told at the UserInfo endpoint only, not in ID tokens.
    pub claims_at_userinfo: bool,
    /// Where browsers are sent back to.
    pub redirects: Vec<String>,
    /// Where logouts by the back channel are told.
    pub logout_uri: Option<String>,
}

/// A running provider with the people `alice` (in the group `staff`) and `mallory` (in none).
pub struct Provider {
    _process: Process,
    address: String,
    people: PathBuf,
    groups: BTreeMap<String, Vec<String>>,
}

impl Provider {
    /// Starts one on `address` of `namespace`, with a certificate that whoever asks it trusts.
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

    /// Its issuer identifier.
    pub fn issuer(&self) -> String {
        issuer(&self.address)
    }

    /// Puts a person into these groups and no others. Who asks from then on is told so.
    pub fn set_groups(&mut self, person: &str, groups: &[&str]) -> Result<()> {
        let known = self.groups.get_mut(person).with_context(|| format!("the provider knows no {person}"))?;
        *known = groups.iter().map(|group| (*group).to_owned()).collect();
        write(&self.people, &self.groups)
    }

    /// Where a browser logs out.
    pub fn logout_url(&self) -> String {
        format!("{}/session/end", self.issuer())
    }
}

/// What a provider on `address` calls itself.
pub fn issuer(address: &str) -> String {
    format!("https://{address}:{PORT}")
}

/// `[oidc]` of an authority that logs people in with the provider on `address`; the secret is in the file `oidc.secret`
/// of the authority's directory, and its own CA made the provider's certificate.
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
    // Read at any moment by another process.
    let aside = file.with_extension("new");
    fs::write(&aside, serde_json::Value::from(people).to_string())?;
    Ok(fs::rename(aside, file)?)
}

/// What `make setup` installed, beside whatever cargo has built.
pub fn modules() -> Result<PathBuf> {
    let this = std::env::current_exe()?;
    let found = this.ancestors().map(|dir| dir.join("parts/provider")).find(|path| path.join("node_modules").is_dir());
    let found = found.context("no OpenID provider: `make setup` installs it")?;
    ensure!(found.join("locked").is_file(), "{} is not whole: `make setup` again", found.display());
    Ok(found)
}
