//! The authority's directory: the paths of its files, and the atomic creation of a new directory.

use crate::cluster::config::{self, ClusterConfig};
use crate::keys::MasterKeys;
use crate::login::credentials;
use crate::storage::Database;
use crate::tls::{Certificates, der, fingerprint};
use crate::{Settings, now};
use anyhow::{Context, Result, bail};
use engine::policy::Policy;
use std::fs::{self, File, OpenOptions, Permissions, TryLockError};
use std::io::{ErrorKind, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// File name of the policy, which also appears in the labels of rules, such as `policy.toml:12`.
pub const POLICY: &str = "policy.toml";

/// Files that are not copied one by one, because they belong to the running server or to the database: the server's
/// locks and socket, and SQLite's files.
pub(crate) const OF_THE_SERVER: [&str; 11] = [
    "lock",
    "rotate.lock",
    "control.sock",
    "authority.db",
    "authority.db-wal",
    "authority.db-shm",
    "authority.db-grants",
    "lists.db",
    "lists.db-wal",
    "lists.db-shm",
    "lists.lock",
];

/// The directory that contains all state of an authority. Its mode is 0700, and its files have mode 0600.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directory(PathBuf);

impl Directory {
    /// Returns a handle to the directory at `path`, which need not exist.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// Creates the directory with configuration, keys, certificates for `names`, example policy and database. Returns
    /// the fingerprint of the CA certificate.
    ///
    /// # Errors
    /// Fails if the directory exists and is not empty, a name is not valid in a certificate, or a file cannot be
    /// written.
    pub fn init(&self, names: &[String], listen: SocketAddr) -> Result<String> {
        self.make(|aside| aside.fill(names, listen))
    }

    /// Creates the directory, completely or not at all: `fill` writes the contents into a temporary directory, which is
    /// then renamed.
    ///
    /// # Errors
    /// Fails if the directory exists and is not empty, it cannot be created, or `fill` fails.
    pub(crate) fn make<T>(&self, fill: impl FnOnce(&Self) -> Result<T>) -> Result<T> {
        let path = std::path::absolute(&self.0)?;
        let shown = path.display();
        match fs::read_dir(&path) {
            Ok(entries) => {
                if entries.count() > 0 {
                    bail!("{shown} is not empty; nothing was changed");
                }
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error).context(format!("cannot create {shown}")),
        }
        let parent = path.parent().with_context(|| format!("cannot create {shown}: it has no parent directory"))?;
        fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))?;
        // The directory is created under a temporary name and renamed, so that a failure half-way leaves nothing
        // behind.
        let aside = tempfile::Builder::new().prefix(".vouchsafe-").tempdir_in(parent);
        let aside = aside.with_context(|| format!("cannot write to {}", parent.display()))?;
        fs::set_permissions(aside.path(), Permissions::from_mode(0o700))?;
        let filled = fill(&Self(aside.path().to_owned()))?;
        sync(aside.path())?;
        fs::rename(aside.path(), &path).with_context(|| format!("cannot create {shown}"))?;
        let _ = aside.keep();
        sync(parent)?;
        Ok(filled)
    }

    fn fill(&self, names: &[String], listen: SocketAddr) -> Result<String> {
        let certificates = Certificates::new(names, now())?;
        let master = Zeroizing::new(credentials::random::<32>()?);
        write_new(&self.master_key(), &*master)?;
        write_new(&self.0.join("authority.toml"), Settings::template(listen).as_bytes())?;
        write_new(&self.policy(), include_bytes!("../policy.example.toml"))?;
        write_new(&self.ca(), certificates.ca.as_bytes())?;
        write_new(&self.0.join("ca.key"), certificates.ca_key.as_bytes())?;
        write_new(&self.certificate(), certificates.server.as_bytes())?;
        write_new(&self.certificate_key(), certificates.server_key.as_bytes())?;
        write_new(&self.database(), b"")?;
        Database::create(&self.database(), &der(certificates.ca.as_bytes())?)?;
        fingerprint(certificates.ca.as_bytes())
    }

    /// Returns the audience of service accounts' assertions: the fingerprint of the authority's CA.
    ///
    /// # Errors
    /// Fails if the CA certificate cannot be read.
    pub fn audience(&self) -> Result<String> {
        fingerprint(read_text(&self.ca())?.as_bytes())
    }

    /// Reads the configuration, `authority.toml`.
    ///
    /// # Errors
    /// Fails if the file cannot be read, or is not valid.
    pub fn settings(&self) -> Result<Settings> {
        let path = self.0.join("authority.toml");
        let text = read_text(&path)?;
        Settings::parse(&text).map_err(|faults| anyhow::anyhow!(faults.in_file(&path.display().to_string())))
    }

    /// Reads a policy and returns it with its text. `None` stands for the directory's own policy file.
    ///
    /// # Errors
    /// Fails if the configuration or the policy file cannot be read, or is not valid.
    pub fn read_policy(&self, file: Option<&Path>) -> Result<(Policy, String)> {
        let max_lifetime = self.settings()?.max_lifetime;
        let path = file.map_or_else(|| self.policy(), Path::to_owned);
        let text = crate::policy::candidate::read_text(&path)?;
        match Policy::parse(&text, max_lifetime) {
            Ok(policy) => {
                let called = path.file_name().map_or_else(|| POLICY.into(), |name| name.to_string_lossy());
                Ok((policy.in_file(&called), text))
            }
            Err(faults) => bail!(faults.in_file(&path.display().to_string())),
        }
    }

    /// Replaces the directory's policy file, completely or not at all.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn replace_policy(&self, text: &str) -> Result<()> {
        self.replace(&self.policy(), text.as_bytes())
            .with_context(|| format!("cannot replace {}", self.policy().display()))
    }

    /// Replaces the directory's policy file by a policy that another member of the cluster has put in force. An
    /// operator may be editing the file. If the file contains another text, and `is_recorded` does not know this text
    /// as a version of the policy, the function copies the text to a file beside the policy file.
    ///
    /// # Errors
    /// Fails if a file cannot be written.
    pub fn follow_policy(&self, text: &str, is_recorded: impl FnOnce(&str) -> bool) -> Result<()> {
        self.follow(&self.policy(), text, is_recorded, "`vouchsafe authority policy apply` puts it in force")
    }

    /// Replaces `networks.toml` as [`Self::follow_policy`] replaces the policy.
    ///
    /// # Errors
    /// Fails if a file cannot be written.
    pub fn follow_networks(&self, text: &str, is_recorded: impl FnOnce(&str) -> bool) -> Result<()> {
        let way_out = "rename it to networks.toml, then run `vouchsafe authority policy reload`, to put it in force";
        self.follow(&self.networks(), text, is_recorded, way_out)
    }

    fn follow(&self, path: &Path, text: &str, is_recorded: impl FnOnce(&str) -> bool, way_out: &str) -> Result<()> {
        // A text that is not UTF-8 is no policy; it is kept all the same.
        let before = fs::read(path).unwrap_or_default();
        if before == text.as_bytes() {
            return Ok(());
        }
        let is_known = before.is_empty() || std::str::from_utf8(&before).is_ok_and(is_recorded);
        if !is_known {
            let mut aside = path.as_os_str().to_owned();
            aside.push(".not-applied");
            let aside = PathBuf::from(aside);
            self.replace(&aside, &before).with_context(|| format!("cannot write {}", aside.display()))?;
            tracing::warn!(
                "{} was edited here, but the cluster has another version in force: the edited text is now in {}; \
                 {way_out}",
                path.display(),
                aside.display()
            );
        }
        self.replace(path, text.as_bytes()).with_context(|| format!("cannot replace {}", path.display()))
    }

    /// Opens the database. If the authority is a member of a cluster, changes of the database are changes of the whole
    /// cluster, and need a majority of etcd.
    ///
    /// # Errors
    /// Fails if the database does not exist or cannot be read, or `cluster.toml` or a file that it names is not valid.
    pub fn open_database(&self) -> Result<Database> {
        match ClusterConfig::read(&self.0)? {
            Some(config) => Database::open_member(&self.database(), config.log(&self.0)?),
            None => Database::open(&self.database()),
        }
    }

    /// Writes a file of the directory, completely or not at all. Only the owner can read it.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn write_file(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let path = self.0.join(name);
        self.replace(&path, bytes).with_context(|| format!("cannot write {}", path.display()))
    }

    /// Removes the files that make the authority a member of a cluster.
    ///
    /// # Errors
    /// Fails if a file cannot be removed.
    pub fn remove_cluster_files(&self) -> Result<()> {
        // Without `cluster.toml`, the authority is not a member, so this file goes first.
        let files =
            [config::FILE, config::KEY_FILE, crate::cluster::contact::FILE].into_iter().chain(config::ETCD_FILES);
        for name in files {
            let path = self.0.join(name);
            match fs::remove_file(&path) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(error).with_context(|| format!("cannot remove {}", path.display()));
                }
                _ => {}
            }
        }
        sync(&self.0)
    }

    fn replace(&self, path: &Path, bytes: &[u8]) -> Result<()> {
        let mut aside = tempfile::NamedTempFile::new_in(&self.0)?;
        aside.write_all(bytes)?;
        // If root runs the command and the server runs as another user, that user must still be able to read the file.
        let owner = fs::metadata(&self.0)?;
        std::os::unix::fs::fchown(aside.as_file(), Some(owner.uid()), Some(owner.gid()))?;
        aside.as_file().sync_all()?;
        aside.persist(path)?;
        sync(&self.0)
    }

    /// Reads the master keys.
    ///
    /// # Errors
    /// Fails if the file cannot be read or is malformed, or other users can access it.
    pub fn read_master_keys(&self) -> Result<MasterKeys> {
        let path = self.master_key();
        let shown = path.display();
        let mode = fs::metadata(&path).with_context(|| format!("cannot read {shown}"))?.mode();
        if mode & 0o077 != 0 {
            bail!(
                "{shown} is accessible to other users (mode {:03o}): run chmod 600 on it, or create a new key",
                mode & 0o777
            );
        }
        let bytes = Zeroizing::new(fs::read(&path).with_context(|| format!("cannot read {shown}"))?);
        MasterKeys::parse(&bytes).with_context(|| format!("cannot use {shown}"))
    }

    /// Replaces the file with the master keys.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn replace_master_keys(&self, bytes: &[u8]) -> Result<()> {
        self.replace(&self.master_key(), bytes)
            .with_context(|| format!("cannot replace {}", self.master_key().display()))
    }

    /// Lets `change` change the master keys, and writes the changed keys to the key file, completely or not at all.
    /// Holds a lock meanwhile, so that only one command at a time changes the keys.
    ///
    /// # Errors
    /// Fails if the keys cannot be read or written, or `change` fails. The key file then stays as it was.
    pub fn change_master_keys<T>(&self, change: impl FnOnce(&mut MasterKeys) -> Result<T>) -> Result<T> {
        let lock = self.0.join("rotate.lock");
        let opened = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&lock);
        let lock = opened.with_context(|| format!("cannot open {}", lock.display()))?;
        lock.lock()?;
        let mut keys = self.read_master_keys()?;
        let changed = change(&mut keys)?;
        self.replace(&self.master_key(), &keys.encode())
            .with_context(|| format!("cannot replace {}", self.master_key().display()))?;
        Ok(changed)
    }

    /// Takes the lock that prevents a second server from running in this directory. The lock is held until the returned
    /// file is dropped.
    ///
    /// # Errors
    /// Fails if a server is running in this directory, or the lock file cannot be opened.
    pub fn lock(&self) -> Result<File> {
        let path = self.0.join("lock");
        let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path);
        let file = file.map_err(|error| anyhow::anyhow!("cannot open {}{}", path.display(), way_out(&error)))?;
        match file.try_lock() {
            Ok(()) => Ok(file),
            Err(TryLockError::WouldBlock) => bail!("another authority is running in {}", self.0.display()),
            Err(TryLockError::Error(error)) => bail!("cannot lock {}: {error}", path.display()),
        }
    }

    /// Returns the user id of the directory's owner. Only this user and root are allowed to command the server.
    ///
    /// # Errors
    /// Fails if the directory cannot be read.
    pub fn owner(&self) -> Result<u32> {
        Ok(fs::metadata(&self.0).with_context(|| format!("cannot read {}", self.0.display()))?.uid())
    }

    /// Returns the path of the authority's directory.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Returns the path of the CA certificate, which clients trust.
    pub fn ca(&self) -> PathBuf {
        self.0.join("ca.pem")
    }

    /// Returns the authority's identity: the DER form of its CA certificate. The hash chains of the audit trails begin
    /// with it.
    ///
    /// # Errors
    /// Fails if the certificate cannot be read, or is malformed.
    pub fn identity(&self) -> Result<Vec<u8>> {
        let path = self.ca();
        let pem = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        der(&pem).with_context(|| format!("{} is malformed", path.display()))
    }

    /// Returns the path of the file with the policy.
    pub fn policy(&self) -> PathBuf {
        self.0.join(POLICY)
    }

    /// Returns the path of the file with the virtual networks.
    pub fn networks(&self) -> PathBuf {
        self.0.join("networks.toml")
    }

    /// Returns the text of `networks.toml`; an empty text if there is no such file.
    ///
    /// # Errors
    /// Fails if the file cannot be read.
    pub fn networks_text(&self) -> Result<String> {
        match fs::read_to_string(self.networks()) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(String::new()),
            read => read.with_context(|| format!("cannot read {}", self.networks().display())),
        }
    }

    /// Returns the path of the database.
    pub fn database(&self) -> PathBuf {
        self.0.join("authority.db")
    }

    /// Returns the path of the server's certificate.
    pub fn certificate(&self) -> PathBuf {
        self.0.join("tls.pem")
    }

    /// Returns the path of the server's TLS key.
    pub fn certificate_key(&self) -> PathBuf {
        self.0.join("tls.key")
    }

    /// Returns the path of the running server's control socket.
    pub fn control_socket(&self) -> PathBuf {
        self.0.join("control.sock")
    }

    fn master_key(&self) -> PathBuf {
        self.0.join("master.key")
    }
}

/// Returns the default names of the server's certificate: the host name, and the loopback names and addresses.
pub fn default_names() -> Vec<String> {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = host.trim();
    let mut names = vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()];
    if !host.is_empty() && !names.iter().any(|name| name == host) {
        names.insert(0, host.to_owned());
    }
    names
}

fn read_text(path: &Path) -> Result<String> {
    fs::read_to_string(path).map_err(|error| anyhow::anyhow!("cannot read {}{}", path.display(), way_out(&error)))
}

/// Describes a failure to open a file of the directory, with a remedy.
fn way_out(error: &std::io::Error) -> String {
    match error.kind() {
        ErrorKind::NotFound => ": it does not exist; `vouchsafe authority init` creates it".to_owned(),
        ErrorKind::PermissionDenied => ": run the command with sudo, or as the owner of the file".to_owned(),
        _ => format!(": {error}"),
    }
}

fn write_new(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    Ok(())
}

fn sync(directory: &Path) -> Result<()> {
    Ok(File::open(directory)?.sync_all()?)
}

#[cfg(test)]
mod tests {
    use engine::policy::Policy;

    #[test]
    fn the_example_policy_is_valid_as_it_is_and_without_its_comment_signs() {
        let text = include_str!("../policy.example.toml");
        assert_eq!(Policy::parse(text, 3600).unwrap(), Policy::default());
        let lines = text.lines().filter_map(|line| line.strip_prefix("# "));
        let lines: Vec<_> = lines.filter(|line| line.starts_with('[') || line.contains(" = ")).collect();
        let policy = Policy::parse(&lines.join("\n"), 3600).unwrap();
        assert_eq!((policy.receivers().len(), policy.rules().len(), policy.persons().len()), (1, 1, 2));
    }
}
