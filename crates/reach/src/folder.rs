//! The folder of a user's own sessions: `~/.config/vouchsafe`, with mode 0700 and files of mode 0600. If the kernel has
//! persistent keyrings, the user's keyring contains the sessions' secrets, and no file does. The session with an
//! organisation that has a name is in a folder below it.

use crate::kept::{KeptNetworks, KeptSession};
use crate::organisation::OrganisationName;
use crate::{Error, keyring};
use serde::{Deserialize, Serialize};
use shell::folder::Folder;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use wire::Destination;
use zeroize::Zeroizing;

const SESSION: &str = "session.json";
const GRANTS: &str = "grants.json";
const LOCK: &str = "lock";
/// The file with the networks of all organisations.
const NETWORKS: &str = "networks.json";
/// The folder with the folders of organisations that have a name.
const ORGANISATIONS: &str = "organisations";
/// Maximum number of grants in the file.
const GRANTS_MAX: usize = 256;

/// The two places where a session can be: at the agent, or in the user's own folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Places {
    /// The agent's socket; `None` to use the user's own session even if the agent runs.
    pub socket: Option<PathBuf>,
    /// The folder of the user's own session.
    pub dir: PathBuf,
}

impl Places {
    /// Returns the usual places for this user: the agent's socket (`$VOUCHSAFE_AGENT_SOCKET`, or the default path), and
    /// the folder of [`default_dir`].
    ///
    /// # Errors
    ///
    /// Fails if [`default_dir`] fails.
    pub fn of_user() -> Result<Self, Error> {
        let socket = std::env::var_os("VOUCHSAFE_AGENT_SOCKET").map(PathBuf::from);
        let socket = Some(socket.unwrap_or_else(|| crate::agent::DEFAULT_SOCKET.into()));
        Ok(Self { socket, dir: default_dir()? })
    }
}

/// Returns the folder of this user's own session: `$VOUCHSAFE_SESSION_DIR`, or the folder `vouchsafe` in
/// `$XDG_CONFIG_HOME` or in `~/.config`.
///
/// # Errors
///
/// Fails if none of these variables is set, and `HOME` is not set either.
pub fn default_dir() -> Result<PathBuf, Error> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(dir) = set("VOUCHSAFE_SESSION_DIR") {
        return Ok(dir);
    }
    let config = set("XDG_CONFIG_HOME").filter(|path| path.is_absolute());
    let config = config.or_else(|| set("HOME").map(|home| home.join(".config")));
    config.map(|config| config.join("vouchsafe")).ok_or_else(|| {
        Error::Folder("there is no folder for your session: HOME is not set; set VOUCHSAFE_SESSION_DIR".to_owned())
    })
}

/// A stored grant: the authority's answer to a request for a destination. Has no `Debug` because it contains a key.
#[derive(Clone, Serialize, Deserialize)]
pub struct KeptGrant {
    address: std::net::IpAddr,
    protocol: u8,
    port: u16,
    pub answer: api::Grant,
}

impl KeptGrant {
    pub fn new(to: &Destination, answer: api::Grant) -> Self {
        Self { address: to.address, protocol: to.protocol, port: to.port, answer }
    }

    pub fn to(&self) -> Destination {
        Destination { address: self.address, protocol: self.protocol, port: self.port }
    }
}

/// The folder in which this user's session and grants are stored.
#[derive(Clone)]
pub struct Store {
    folder: Folder,
}

impl Store {
    /// Returns the store in the folder `dir`, which need not exist yet.
    pub fn at(dir: &Path) -> Self {
        Self { folder: Folder::at(dir) }
    }

    /// Returns the store of the session with an organisation. The store of the default organisation is this store
    /// itself.
    pub fn of(&self, organisation: Option<&OrganisationName>) -> Self {
        match organisation {
            None => self.clone(),
            Some(name) => Self::at(&self.folder.file(ORGANISATIONS).join(name.as_str())),
        }
    }

    /// Reads the networks of the user's organisations.
    ///
    /// # Errors
    ///
    /// Fails if the file can't be read or is malformed.
    pub fn networks(&self) -> Result<KeptNetworks, Error> {
        let Some(text) = self.folder.read(NETWORKS).map_err(|error| fault(&error))? else {
            return Ok(KeptNetworks::default());
        };
        serde_json::from_slice(&text).map_err(|error| {
            let file = self.folder.file(NETWORKS);
            Error::Folder(format!(
                "cannot read {}, which says for which networks your organisations may speak: {error}. Remove the file, \
                 and log in to each organisation again, with --network",
                file.display()
            ))
        })
    }

    /// Changes the networks of the user's organisations. If `change` fails, the networks stay as they were, and this
    /// method returns the failure.
    ///
    /// # Errors
    ///
    /// Fails if the file can't be read or written.
    pub fn change_networks<E>(
        &self,
        change: impl FnOnce(&mut KeptNetworks) -> Result<(), E>,
    ) -> Result<Result<(), E>, Error> {
        self.folder.make().map_err(|error| fault(&error))?;
        let _lock = self.lock()?;
        let before = self.networks()?;
        let mut networks = before.clone();
        if let Err(why) = change(&mut networks) {
            return Ok(Err(why));
        }
        if networks.are_default() {
            self.folder.remove(NETWORKS);
        } else if networks != before {
            self.write(NETWORKS, &networks)?;
        }
        Ok(Ok(()))
    }

    /// Removes the folder of an organisation, as `vouchsafe logout --forget` does.
    pub fn remove_organisation(&self, name: &OrganisationName) {
        self.of(Some(name)).remove();
        let _ = std::fs::remove_dir_all(self.folder.file(ORGANISATIONS).join(name.as_str()));
    }

    /// Returns the folder's path.
    #[cfg(test)]
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Reads the session. Returns `None` if there is none, or if the keyring no longer has its secret.
    ///
    /// # Errors
    ///
    /// Fails if the file can't be read or is malformed, or if the kernel doesn't let the keyring be read, because the
    /// user has as many keys as it allows.
    pub fn load(&self) -> Result<Option<KeptSession>, Error> {
        let Some(text) = self.folder.read(SESSION).map_err(|error| fault(&error))?.map(Zeroizing::new) else {
            return Ok(None);
        };
        let mut kept: KeptSession = serde_json::from_slice(&text).map_err(|error| {
            let file = self.folder.file(SESSION);
            Error::Folder(format!("cannot read {}, so run `vouchsafe login` again: {error}", file.display()))
        })?;
        if kept.token.is_empty() {
            match keyring::read(&self.key())? {
                Some(token) => kept.token = token.to_string(),
                None => return Ok(None),
            }
        }
        Ok(Some(kept))
    }

    /// Stores a session in place of the earlier session, and removes the earlier session's grants. `unix` is the
    /// current Unix time. Returns, in words, the place where the secret is stored.
    ///
    /// # Errors
    ///
    /// Fails if the files can't be written.
    pub fn save(&self, kept: &KeptSession, unix: u64) -> Result<&'static str, Error> {
        self.folder.make().map_err(|error| fault(&error))?;
        let _lock = self.lock()?;
        let in_keyring = keyring::write(&self.key(), &kept.token, kept.expires.saturating_sub(unix));
        if in_keyring {
            self.write(SESSION, &KeptSession { token: String::new(), ..kept.clone() })?;
        } else {
            self.write(SESSION, kept)?;
        }
        self.folder.remove(GRANTS);
        Ok(if in_keyring { "in the kernel's keyring" } else { "in a file that only you can read" })
    }

    /// Stores changes of the session's receivers and clock. Does nothing if the stored session has another token,
    /// because another process has then replaced it.
    ///
    /// # Errors
    ///
    /// Fails if the files can't be read or written.
    pub fn update(&self, token: &str, change: impl FnOnce(&mut KeptSession)) -> Result<(), Error> {
        let _lock = self.lock()?;
        let Some(mut kept) = self.load()?.filter(|kept| kept.token == token) else { return Ok(()) };
        change(&mut kept);
        if keyring::read(&self.key()).is_ok_and(|secret| secret.is_some_and(|secret| **secret == *kept.token)) {
            kept.token.clear();
        }
        self.write(SESSION, &kept)
    }

    /// Removes the session and its grants.
    pub fn remove(&self) {
        keyring::remove(&self.key());
        self.folder.remove(SESSION);
        self.folder.remove(GRANTS);
    }

    /// Reads the grants that earlier commands have fetched. Returns none if the file can't be read.
    pub fn grants(&self) -> Vec<KeptGrant> {
        let text = self.folder.read(GRANTS).ok().flatten().map(Zeroizing::new);
        text.and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default()
    }

    /// Stores a grant in place of the earlier grant for the same destination, and removes grants that have ended. Keeps
    /// only the latest 256 grants.
    ///
    /// # Errors
    ///
    /// Fails if the file can't be written.
    pub fn put_grant(&self, grant: KeptGrant, unix: u64) -> Result<(), Error> {
        let _lock = self.lock()?;
        let to = grant.to();
        let mut grants = self.grants();
        grants.retain(|other| other.to() != to && other.answer.expires > unix);
        grants.push(grant);
        let first = grants.len().saturating_sub(GRANTS_MAX);
        self.write(GRANTS, &grants[first..])
    }

    /// Removes the grants for a destination.
    ///
    /// # Errors
    ///
    /// Fails if the file can't be written.
    pub fn drop_grants(&self, to: &Destination) -> Result<(), Error> {
        let _lock = self.lock()?;
        let mut grants = self.grants();
        grants.retain(|other| other.to() != *to);
        self.write(GRANTS, &grants)
    }

    fn write(&self, name: &str, value: &(impl Serialize + ?Sized)) -> Result<(), Error> {
        let text = serde_json::to_vec(value).map(Zeroizing::new);
        let text = text.map_err(|error| Error::Folder(error.to_string()))?;
        self.folder.write(name, &text).map_err(|error| fault(&error))
    }

    /// Keeps other processes of this user from changing the files until the result is dropped.
    fn lock(&self) -> Result<File, Error> {
        let path = self.folder.file(LOCK);
        let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path);
        let locked = file.and_then(|file| file.lock().map(|()| file));
        locked.map_err(|error| Error::Folder(format!("cannot lock {}: {error}", path.display())))
    }

    fn key(&self) -> String {
        format!("vouchsafe:{}", self.folder.path().display())
    }
}

fn fault(error: &anyhow::Error) -> Error {
    Error::Folder(format!("{error:#}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    fn session(token: &str) -> KeptSession {
        KeptSession {
            authority: "https://authority.example.org".into(),
            authorities: vec!["https://two.example.org".into()],
            ca: None,
            token: token.into(),
            person: "alice".into(),
            device: "laptop".into(),
            expires: 2000,
            receivers: Vec::new(),
            sealed: std::collections::BTreeSet::new(),
            skew: 0,
        }
    }

    fn grant(expires: u64) -> api::Grant {
        let prefix = "192.0.2.0/24".parse().unwrap();
        let (header, key, receiver, rule) = (String::new(), String::new(), String::new(), String::new());
        api::Grant { header, key, prefix, receiver, rule, carrier: "tail".into(), sealing: None, expires, now: 1 }
    }

    #[test]
    fn a_session_is_for_its_user_only_and_its_secret_comes_back() {
        let room = tempfile::tempdir().unwrap();
        let store = Store::at(&room.path().join("vouchsafe"));
        assert!(store.load().unwrap().is_none());
        store.save(&session("secret"), 1000).unwrap();
        let mode = |name: &str| std::fs::metadata(store.path().join(name)).unwrap().mode() & 0o777;
        assert_eq!((mode(""), mode(SESSION)), (0o700, 0o600));
        assert_eq!(store.load().unwrap().unwrap().token, "secret");
        store.update("other", |kept| kept.skew = 7).unwrap();
        store.update("secret", |kept| kept.skew = 5).unwrap();
        let kept = store.load().unwrap().unwrap();
        assert_eq!((kept.token.as_str(), kept.skew, kept.authorities.len()), ("secret", 5, 1));
        let text = std::fs::read_to_string(store.path().join(SESSION)).unwrap();
        let in_keyring = keyring::read(&store.key()).unwrap();
        assert_eq!(text.contains("secret"), in_keyring.is_none(), "{text}");
        store.remove();
        assert!(store.load().unwrap().is_none() && keyring::read(&store.key()).unwrap().is_none());
    }

    #[test]
    fn organisations_have_sessions_of_their_own_and_networks_outlive_them() {
        let room = tempfile::tempdir().unwrap();
        let store = Store::at(&room.path().join("vouchsafe"));
        let name: OrganisationName = "acme".parse().unwrap();
        let network = || Some(vec!["203.0.113.0/24".parse().unwrap()]);
        let refused = store.change_networks(|networks| {
            networks.set(Some(&name), network());
            Err("no")
        });
        assert!(refused.unwrap().is_err() && store.networks().unwrap().are_default());
        let change = |networks: &mut KeptNetworks| {
            networks.set(Some(&name), network());
            Ok::<_, ()>(())
        };
        store.change_networks(change).unwrap().unwrap();
        store.save(&session("first"), 1000).unwrap();
        let acme = store.of(Some(&name));
        acme.save(&session("second"), 1000).unwrap();
        assert_eq!(std::fs::metadata(acme.path()).unwrap().mode() & 0o777, 0o700);
        let token = |store: &Store| store.load().unwrap().map(|kept| kept.token);
        assert_eq!((token(&store).as_deref(), token(&acme).as_deref()), (Some("first"), Some("second")));
        acme.remove();
        assert_eq!((token(&store).as_deref(), token(&acme)), (Some("first"), None));
        assert_eq!(store.networks().unwrap().all().count(), 2);
        store.remove_organisation(&name);
        assert!(!acme.path().exists());
        std::fs::write(store.path().join(NETWORKS), "{").unwrap();
        let broken = store.networks().err().map(|error| error.to_string()).unwrap_or_default();
        assert!(broken.contains("networks.json") && broken.contains("--network"), "{broken}");
        assert!(store.change_networks(change).is_err(), "nothing is replaced");
        store.remove();
    }

    #[test]
    fn grants_are_kept_until_their_end_and_not_beyond_their_session() {
        let room = tempfile::tempdir().unwrap();
        let store = Store::at(room.path());
        let to = |port| Destination { address: "192.0.2.1".parse().unwrap(), protocol: 6, port };
        for (port, expires) in [(1, 100), (2, 300), (3, 300)] {
            store.put_grant(KeptGrant::new(&to(port), grant(expires)), 50).unwrap();
        }
        store.put_grant(KeptGrant::new(&to(2), grant(400)), 200).unwrap();
        let ends: Vec<_> = store.grants().iter().map(|grant| (grant.to().port, grant.answer.expires)).collect();
        assert_eq!(ends, [(3, 300), (2, 400)]);
        store.drop_grants(&to(3)).unwrap();
        assert_eq!(store.grants().len(), 1);
        store.save(&session("next"), 1000).unwrap();
        assert!(store.grants().is_empty());
        store.remove();
    }
}
