//! The verifier's directory. It contains the enrolment and the settings, the replay seed, and the authority's last
//! state. The directory has mode 0700, and its files 0600. Files are replaced atomically.

use crate::organisations;
use crate::settings::{self, Flags, StoredEnrolment, TEMPLATE};
use anyhow::{Context, Result, bail};
use engine::model::Service;
use follower::Enrolment;
use ipnet::IpNet;
use shell::folder::Folder;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// The file with enrolment and settings.
const FILE: &str = "verifier.toml";
/// The file with the certificates to trust for the authority.
const CA: &str = "ca.pem";
/// The folder with a directory for each further organisation.
const ORGANISATIONS: &str = "organisations";

/// Handle to the verifier's directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directory(Folder);

impl Directory {
    /// Returns a handle to the directory at `path`, which need not exist.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self(Folder::at(path))
    }

    /// Returns the path of `verifier.toml`, the file with the enrolment and the settings.
    pub fn file(&self) -> PathBuf {
        self.0.file(FILE)
    }

    /// Reads `verifier.toml`. If the file is missing, there is no enrolment, and every setting has its default.
    ///
    /// # Errors
    ///
    /// Fails if the file can't be read, is accessible to other users, or contains faults.
    pub fn read(&self) -> Result<(Option<StoredEnrolment>, Flags)> {
        let path = self.file();
        let text = match fs::read_to_string(&path) {
            Ok(text) => Zeroizing::new(text),
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok((None, Flags::default())),
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
        };
        let mode = fs::metadata(&path)?.mode();
        if mode & 0o077 != 0 {
            bail!("{} is accessible to other users (mode {:03o}): run chmod 600 on it", path.display(), mode & 0o777);
        }
        settings::parse(&text).map_err(|faults| anyhow::anyhow!(faults.in_file(&path.display().to_string())))
    }

    /// Enrols at the authority with the one-time code and stores the authority's answer in `verifier.toml`. If this
    /// file exists, the settings in it are kept.
    ///
    /// # Errors
    ///
    /// Fails if the directory can't be written, if the authority's URL is malformed, if the file `ca` can't be read, or
    /// if the authority can't be reached or does not accept the code.
    pub async fn enrol(&self, authority: &str, ca: Option<&Path>, code: &str) -> Result<Enrolment> {
        let before = fs::read_to_string(self.file()).unwrap_or_else(|_| TEMPLATE.to_owned());
        self.enrol_with(&before, (authority, ca, code)).await
    }

    /// Enrols at the authority of another organisation. `self` is the directory that [`Self::organisation`] returns for
    /// the organisation. `at` contains the parameters of [`Self::enrol`]. The authority may speak only for `services`
    /// in `networks`; if `services` is empty, for all services there.
    ///
    /// # Errors
    ///
    /// Fails in the same cases as [`Self::enrol`].
    pub async fn enrol_organisation(
        &self,
        (networks, services): (&[IpNet], &[Service]),
        at: (&str, Option<&Path>, &str),
    ) -> Result<Enrolment> {
        self.enrol_with(&limits(networks, services), at).await
    }

    async fn enrol_with(&self, before: &str, at: (&str, Option<&Path>, &str)) -> Result<Enrolment> {
        let encode = |enrolment: &Enrolment| {
            let text = with_enrolment(before, enrolment);
            if let Some(pem) = &enrolment.ca {
                self.0.write(CA, pem.as_bytes())?;
            }
            Ok(Zeroizing::new(text.as_bytes().to_vec()))
        };
        follower::enrol(&self.0, FILE, at, encode).await
    }

    /// Returns the directory of the organisation with this name. It need not exist.
    pub fn organisation(&self, name: &str) -> Self {
        Self::at(self.0.file(ORGANISATIONS).join(name))
    }

    /// Returns the names of the further organisations that have a directory, sorted.
    ///
    /// # Errors
    ///
    /// Fails if the folder `organisations` can't be read, or if it contains a file or directory whose name no
    /// organisation can have.
    pub fn organisations(&self) -> Result<Vec<String>> {
        let folder = Folder::at(self.0.file(ORGANISATIONS));
        if !folder.path().exists() {
            return Ok(Vec::new());
        }
        let mut names = folder.names()?;
        names.sort();
        for name in &names {
            let is_named = organisations::name(name);
            is_named.map_err(anyhow::Error::msg).with_context(|| folder.file(name).display().to_string())?;
        }
        Ok(names)
    }

    /// Returns the stored enrolment, together with the certificates in the file that it names as `ca`.
    ///
    /// # Errors
    ///
    /// Fails if the file with the certificates can't be read.
    pub fn enrolment(&self, stored: &StoredEnrolment) -> Result<Enrolment> {
        let ca = stored.ca.as_ref().map(|ca| Enrolment::read_ca(&self.0.file(ca))).transpose()?;
        let StoredEnrolment { authority, verifier, token, .. } = stored;
        Ok(Enrolment { authority: authority.clone(), ca, verifier: verifier.clone(), token: token.to_string() })
    }

    /// Returns this directory as a [`Folder`]. The crate `follower` stores the authority's last state in it.
    pub fn folder(&self) -> &Folder {
        &self.0
    }

    /// Returns the random seed of the hash that selects a token's bucket in the replay table. The directory stores the
    /// seed, because the replay table outlives this process and depends on the seed.
    ///
    /// # Errors
    ///
    /// Fails if a new seed can't be made or stored.
    pub fn replay_seed(&self) -> Result<u64> {
        if let Ok(Some(bytes)) = self.0.read("replay_seed")
            && let Ok(bytes) = bytes.try_into()
        {
            return Ok(u64::from_ne_bytes(bytes));
        }
        let seed = getrandom::u64().context("cannot get random numbers")?;
        self.0.write("replay_seed", &seed.to_ne_bytes())?;
        Ok(seed)
    }

    /// Takes the lock that excludes a second verifier. The lock is released when the returned file is dropped.
    ///
    /// # Errors
    ///
    /// Fails if another verifier holds the lock, or if the file of the lock can't be opened.
    pub fn lock(&self) -> Result<File> {
        self.0.lock("verifier")
    }
}

/// Returns the settings of an organisation's directory.
fn limits(networks: &[IpNet], services: &[Service]) -> String {
    let quoted = |texts: Vec<String>| texts.iter().map(|text| format!("{text:?}")).collect::<Vec<_>>().join(", ");
    let networks = quoted(networks.iter().map(IpNet::to_string).collect());
    let services = match services {
        [] => "#services = [\"tcp/22\"]".to_owned(),
        some => format!("services = [{}]", quoted(some.iter().map(engine::policy::service).collect())),
    };
    format!(
        "\n# The networks for which the organisation's authority may speak, and the services there; without `services`, all.\n\
         networks = [{networks}]\n{services}\n"
    )
}

/// Returns the file's text with a new enrolment at its head; settings and comments are kept.
fn with_enrolment(text: &str, enrolment: &Enrolment) -> Zeroizing<String> {
    const KEYS: [&str; 4] = ["authority", "ca", "verifier", "token"];
    const HEAD: &str = "# The enrolment, written by `vouchsafe verifier enrol`; the token is a secret.";
    let quoted = |text: &str| format!("{text:?}");
    let mut new = Zeroizing::new(format!("{HEAD}\nauthority = {}\n", quoted(&enrolment.authority)));
    if enrolment.ca.is_some() {
        new.push_str(&format!("ca = {}\n", quoted(CA)));
    }
    new.push_str(&format!("verifier = {}\ntoken = {}\n", quoted(&enrolment.verifier), quoted(&enrolment.token)));
    let is_old = |line: &&str| {
        let key = line.split_once('=').map_or("", |(key, _)| key.trim());
        *line == HEAD || KEYS.contains(&key)
    };
    for line in text.lines().filter(|line| !is_old(line)) {
        new.push_str(line);
        new.push('\n');
    }
    new
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enrolment(token: &str) -> Enrolment {
        let (authority, verifier) = ("https://authority:8443".into(), "edge-1".into());
        Enrolment { authority, ca: Some("PEM".into()), verifier, token: token.into() }
    }

    #[test]
    fn enrolling_again_keeps_settings() {
        let first = with_enrolment(TEMPLATE, &enrolment("one"));
        let edited = first.replacen("#interface", "interface", 1);
        let second = with_enrolment(&edited, &enrolment("two"));
        let (read, flags) = settings::parse(&second).expect("valid");
        let read = read.expect("an enrolment");
        assert_eq!((read.token.as_str(), read.ca), ("two", Some(CA.into())));
        assert_eq!(flags.interface, ["eth0"]);
        assert_eq!(second.len(), edited.len());
    }

    #[test]
    fn an_organisations_directory_has_its_limits() {
        let network = "203.0.113.0/24".parse().expect("a network");
        let service = engine::policy::parse_service("tcp/22-23").expect("a service");
        let text = with_enrolment(&limits(&[network], &[service]), &enrolment("one"));
        let (read, flags) = settings::parse(&text).expect("valid");
        assert!(read.is_some());
        assert_eq!((flags.networks, flags.services), (vec![network], vec![service]));
        let (_, flags) = settings::parse(&with_enrolment(&limits(&[network], &[]), &enrolment("one"))).expect("valid");
        assert_eq!((flags.networks, flags.services), (vec![network], vec![]));
    }

    #[test]
    fn organisations_are_directories_with_plain_names() {
        let room = tempfile::tempdir().expect("room");
        let directory = Directory::at(room.path());
        assert_eq!(directory.organisations().expect("none"), [""; 0]);
        for name in ["umbrella", "acme"] {
            directory.organisation(name).0.make().expect("made");
        }
        assert_eq!(directory.organisations().expect("two"), ["acme", "umbrella"]);
        fs::write(room.path().join("organisations/Some file"), "").expect("written");
        assert!(directory.organisations().expect_err("a file").to_string().contains("Some file"));
    }

    #[test]
    fn the_seed_stays() {
        let room = tempfile::tempdir().expect("room");
        let directory = Directory::at(room.path().join("verifier"));
        directory.0.make().expect("made");
        assert_eq!(directory.replay_seed().expect("seed"), directory.replay_seed().expect("seed"));
        let mode = fs::metadata(room.path().join("verifier/replay_seed")).expect("there").mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}
