//! `cluster.toml` and `cluster.key`: the cluster that this authority is a member of, and how it reaches etcd.

use crate::storage::{ClusterId, ClusterKey, Log};
use anyhow::{Context, Result, bail, ensure};
use engine::document::{Faults, Reader};
use engine::policy::name_is_valid;
use etcd::Etcd;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// Name of the file, in the authority's directory, with the configuration of a member of a cluster.
pub const FILE: &str = "cluster.toml";
/// File name of the key with which members seal everything that they store in etcd.
pub const KEY_FILE: &str = "cluster.key";
/// File names of the copies of the TLS files for etcd: CA, certificate and key.
pub const ETCD_FILES: [&str; 3] = ["etcd-ca.pem", "etcd.pem", "etcd.key"];

const KEYS: &[&str] = &["id", "name", "url", "etcd", "ca", "certificate", "key"];
/// Maximum number of URLs of etcd.
const MOST_ENDPOINTS: usize = 9;
/// Maximum length of a URL, in bytes.
const LONGEST_URL: usize = 256;

/// The content of `cluster.toml`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterConfig {
    /// The cluster's id.
    pub id: ClusterId,
    /// The name of this member.
    pub name: String,
    /// The URL at which agents and verifiers reach this member.
    pub url: String,
    /// The URLs of etcd.
    pub endpoints: Vec<String>,
    /// The file with the CA certificates with which this member verifies etcd's certificate; `None` for those of the
    /// system. A relative path is relative to the authority's directory.
    pub ca: Option<PathBuf>,
    /// The file with the certificate that this member shows to etcd; `None` if it shows none.
    pub certificate: Option<PathBuf>,
    /// The file with the key of the certificate that this member shows to etcd.
    pub key: Option<PathBuf>,
}

impl ClusterConfig {
    /// Reads `cluster.toml` in the authority's directory at `path`. Returns `None` if there is no such file, because
    /// the authority is not a member of a cluster.
    ///
    /// # Errors
    /// Fails if the file cannot be read, or is not valid.
    pub fn read(path: &Path) -> Result<Option<Self>> {
        let file = path.join(FILE);
        match fs::read_to_string(&file) {
            Ok(text) => {
                let config = Self::parse(&text);
                config.map(Some).map_err(|faults| anyhow::anyhow!(faults.in_file(&file.display().to_string())))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", file.display())),
        }
    }

    /// Parses the text of `cluster.toml`.
    ///
    /// # Errors
    /// Fails if the text is not valid; the error contains all faults.
    pub fn parse(text: &str) -> Result<Self, Faults> {
        Reader::read(text, KEYS, |reader, fields| {
            let mut required = |key: &str, check: fn(&str) -> Result<()>| {
                let text = fields.required_text(reader, key)?;
                if let Err(error) = check(text.get_ref()) {
                    reader.fault(text.span(), format!("`{key}`: {error:#}"));
                    return None;
                }
                Some((*text.get_ref()).to_owned())
            };
            let id = required("id", |text| text.parse::<ClusterId>().map(drop));
            let (name, url) = (required("name", check_name), required("url", check_url));
            let endpoints = fields.required_texts(reader, "etcd");
            if let Some(most) = endpoints.get(MOST_ENDPOINTS) {
                reader.fault(most.span(), format!("`etcd` names more than {MOST_ENDPOINTS} URLs"));
            }
            for endpoint in &endpoints {
                if let Err(error) = check_endpoint(endpoint.get_ref()) {
                    reader.fault(endpoint.span(), format!("`etcd`: {error:#}"));
                }
            }
            let endpoints = endpoints.iter().map(|url| (*url.get_ref()).to_owned()).collect();
            let mut path = |key: &str| fields.text(reader, key).map(|path| PathBuf::from(*path.get_ref()));
            let (ca, certificate, key) = (path("ca"), path("certificate"), path("key"));
            if certificate.is_some() != key.is_some() {
                reader.fault(0..0, "`certificate` and `key` belong together: write both or none");
            }
            Some(Self { id: id?.parse().ok()?, name: name?, url: url?, endpoints, ca, certificate, key })
        })
    }

    /// Returns the text of the file.
    pub fn text(&self) -> String {
        let quoted = |text: &str| format!("\"{}\"", text.escape_default());
        let endpoints: Vec<_> = self.endpoints.iter().map(|url| quoted(url)).collect();
        let mut text = format!(
            "# The cluster that this authority is a member of: docs/cluster.md. Made by `vouchsafe authority cluster`.\n\n\
             # The same in all members.\nid = \"{}\"\n\n# The name of this member.\nname = {}\n\n\
             # Where agents and verifiers reach this member.\nurl = {}\n\n\
             # Where this member reaches etcd; it tries the first URL first.\netcd = [{}]\n",
            self.id,
            quoted(&self.name),
            quoted(&self.url),
            endpoints.join(", ")
        );
        for (key, path) in [("ca", &self.ca), ("certificate", &self.certificate), ("key", &self.key)] {
            if let Some(path) = path {
                text += &format!("{key} = {}\n", quoted(&path.display().to_string()));
            }
        }
        text
    }

    /// Reads the cluster's key, `cluster.key`, in the authority's directory at `path`.
    ///
    /// # Errors
    /// Fails if the file cannot be read or is malformed, or other users can access it.
    pub fn read_key(path: &Path) -> Result<ClusterKey> {
        let file = path.join(KEY_FILE);
        let shown = file.display();
        let mode = fs::metadata(&file)
            .with_context(|| {
                format!("cannot read {shown}, which belongs to {FILE}: copy it from another member of the cluster")
            })?
            .mode();
        if mode & 0o077 != 0 {
            bail!("{shown} is accessible to other users (mode {:03o}): run chmod 600 on it", mode & 0o777);
        }
        let bytes = Zeroizing::new(fs::read(&file).with_context(|| format!("cannot read {shown}"))?);
        ClusterKey::parse(&bytes).with_context(|| format!("cannot use {shown}"))
    }

    /// Makes the handle through which this member reaches etcd. Does not wait for etcd. `path` is the authority's
    /// directory.
    ///
    /// # Errors
    /// Fails if a TLS file cannot be read or is malformed.
    pub fn connect(&self, path: &Path) -> Result<Etcd> {
        let within = |file: &Option<PathBuf>| file.as_ref().map(|file| path.join(file));
        let (ca, certificate, key) = (within(&self.ca), within(&self.certificate), within(&self.key));
        Etcd::connect(&etcd::Settings { endpoints: self.endpoints.clone(), ca, certificate, key })
            .with_context(|| format!("cannot use etcd with the settings in {}", path.join(FILE).display()))
    }

    /// Makes the handle to the cluster's log. Does not wait for etcd. `path` is the authority's directory.
    ///
    /// # Errors
    /// Fails if the cluster's key or a TLS file cannot be read or is malformed.
    pub fn log(&self, path: &Path) -> Result<Log> {
        let key = Self::read_key(path)?;
        Ok(Log::new(self.connect(path)?, self.id, key, self.name.clone()))
    }
}

/// Checks the name of a member.
///
/// # Errors
/// Fails if the name is not valid; the error says which names are valid.
pub fn check_name(name: &str) -> Result<()> {
    ensure!(
        name_is_valid(name),
        "`{}` is not a valid name of a member: 1 to 64 letters, digits, `.`, `_`, `@`, `+` or `-`, and a letter or \
         digit first",
        name.escape_debug()
    );
    Ok(())
}

/// Checks the URL at which agents and verifiers reach a member.
///
/// # Errors
/// Fails if the text is not such a URL; the error shows one.
pub fn check_url(url: &str) -> Result<()> {
    let host = url.strip_prefix("https://").filter(|host| !host.is_empty() && url.len() <= LONGEST_URL);
    let is_plain = |host: &str| host.chars().all(|c| c.is_ascii_graphic() && !"/?#@\"\\".contains(c));
    ensure!(
        host.is_some_and(is_plain),
        "`{}` is not the URL of an authority: write https://HOST:PORT, without a path, such as \
         https://a.example.org:8443",
        url.escape_debug()
    );
    Ok(())
}

/// Checks a URL of etcd.
///
/// # Errors
/// Fails if the text is not such a URL; the error shows one.
pub fn check_endpoint(url: &str) -> Result<()> {
    let host = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
    let is_plain = |host: &str| !host.is_empty() && host.chars().all(|c| c.is_ascii_graphic() && !"\"\\".contains(c));
    ensure!(
        url.len() <= LONGEST_URL && host.is_some_and(is_plain),
        "`{}` is not a URL of etcd: write https://HOST:PORT, such as https://192.0.2.11:2379",
        url.escape_debug()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "id = \"00112233445566778899aabbccddeeff\"\nname = \"a\"\nurl = \"https://a.example.org:8443\"\n\
                        etcd = [\"https://192.0.2.11:2379\"]\n";

    #[test]
    fn the_text_that_it_writes_is_the_text_that_it_reads() {
        let config = ClusterConfig::parse(TEXT).unwrap();
        assert_eq!(ClusterConfig::parse(&config.text()).unwrap(), config);
        let [ca, certificate, key] = ETCD_FILES.map(|file| Some(PathBuf::from(file)));
        let config = ClusterConfig { ca, certificate, key, ..config };
        assert_eq!(ClusterConfig::parse(&config.text()).unwrap(), config);
    }

    #[test]
    fn all_faults_are_told_at_once() {
        let text = "id = \"x\"\nname = \"a b\"\nurl = \"http://a\"\netcd = \"192.0.2.11\"\nkeys = \"x\"\nkey = \"k\"";
        let faults = ClusterConfig::parse(text).unwrap_err().to_string();
        for line in 1..=5 {
            assert!(faults.contains(&format!("{line}:")), "{line} in {faults}");
        }
        assert!(faults.contains("belong together"), "{faults}");
        let missing = ClusterConfig::parse("").unwrap_err().to_string();
        assert!(["id", "name", "url", "etcd"].iter().all(|key| missing.contains(&format!("`{key}`"))), "{missing}");
    }

    #[test]
    fn a_url_has_a_host_and_no_path() {
        for right in ["https://a.example.org", "https://192.0.2.1:8443", "https://[2001:db8::1]:8443"] {
            check_url(right).unwrap();
        }
        for wrong in ["", "https://", "http://a", "https://a/b", "https://a?b", "https://user@a", "https://a b"] {
            assert!(check_url(wrong).is_err(), "{wrong}");
        }
    }
}
