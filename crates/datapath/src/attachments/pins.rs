//! Directories in the BPF file system, in which maps and attachments outlive the process that made them.

use super::attached::Attached;
use super::link;
use anyhow::{Context, Result, bail};
use nix::mount::{MsFlags, mount};
use std::fs;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const BPF_FILE_SYSTEM: &str = "/sys/fs/bpf";
const GATEWAY: &str = "gateway";
const PROOFS: &str = "proofs";
const TCP_IN_UDP: &str = "tcp_in_udp";
const ORGANISATIONS: &str = "organisations";

/// A directory in the BPF file system. Maps and links that are pinned in it outlive the process that made them.
#[derive(Clone, Debug)]
pub struct Pins(PathBuf);

impl Pins {
    /// Returns the directory for a role and an instance, and creates it if it is missing. Mounts the BPF file system if
    /// necessary.
    ///
    /// # Errors
    ///
    /// Fails if the file system can't be mounted, or the directory can't be made.
    pub fn new(role: &str, instance: &str) -> Result<Self> {
        mount_bpf_file_system()?;
        Self::make(Self::path(role, instance))
    }

    fn make(directory: PathBuf) -> Result<Self> {
        for part in ["maps", "links"] {
            let path = directory.join(part);
            fs::create_dir_all(&path).with_context(|| format!("cannot create {}", path.display()))?;
        }
        Ok(Self(directory))
    }

    fn path(role: &str, instance: &str) -> PathBuf {
        Path::new(BPF_FILE_SYSTEM).join("vouchsafe").join(format!("{role}-{instance}"))
    }

    /// Returns the directory for a role and an instance, or `None` if it does not exist.
    pub fn existing(role: &str, instance: &str) -> Option<Self> {
        let directory = Self::path(role, instance);
        directory.is_dir().then_some(Self(directory))
    }

    /// Returns the directories of all roles and instances, sorted by name.
    pub fn all() -> Vec<Self> {
        let entries = fs::read_dir(Path::new(BPF_FILE_SYSTEM).join("vouchsafe"));
        let mut all: Vec<_> = entries.into_iter().flatten().flatten().map(|entry| entry.path()).collect();
        all.retain(|path| path.is_dir());
        all.sort();
        all.into_iter().map(Self).collect()
    }

    /// Returns the directory's name: `ROLE-INSTANCE`.
    pub fn name(&self) -> String {
        self.0.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Returns the path at which the map with the name `name` is pinned.
    pub fn map(&self, name: &str) -> PathBuf {
        self.0.join("maps").join(name)
    }

    /// Returns the path at which a link is pinned. The names of VLAN interfaces contain dots, which the BPF file system
    /// forbids. Colons replace the dots, because no interface name contains a colon.
    pub(super) fn link(&self, name: &str) -> PathBuf {
        self.0.join("links").join(name.replace('.', ":"))
    }

    /// Takes the lock that keeps a second process from using the same pins. The lock lasts until the returned file is
    /// dropped.
    ///
    /// # Errors
    ///
    /// Fails if another process has the lock, or if the directory can't be opened.
    pub fn lock(&self) -> Result<fs::File> {
        let file = fs::File::open(&self.0).with_context(|| format!("cannot open {}", self.0.display()))?;
        match file.try_lock() {
            Ok(()) => Ok(file),
            Err(fs::TryLockError::WouldBlock) => {
                bail!("another process uses {}: stop that process first", self.0.display())
            }
            Err(fs::TryLockError::Error(error)) => bail!("cannot lock {}: {error}", self.0.display()),
        }
    }

    /// Returns the id of the process that holds the lock of [`Self::lock`]; `None` if no process holds it. The function
    /// reads the kernel's list of locks. It does not try to take the lock, because a daemon that starts at the same
    /// moment could then fail to take it.
    pub fn holder(&self) -> Option<u32> {
        let about = fs::metadata(&self.0).ok()?;
        let (device, inode) = (about.dev(), about.ino());
        holder(&fs::read_to_string("/proc/locks").ok()?, libc::major(device), libc::minor(device), inode)
    }

    /// Returns the names of the pinned links.
    pub fn links(&self) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.0.join("links")) else { return Vec::new() };
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let mut names: Vec<_> = names.map(|name| name.replace(':', ".")).collect();
        names.sort();
        names
    }

    /// Pins an attachment, atomically replacing the pin with this name.
    pub(super) fn put_link(&self, name: &str, what: BorrowedFd<'_>) -> Result<()> {
        put(what, &self.link(name), &self.link(&Self::next(name)))
    }

    /// Pins a map, atomically replacing the pin with this name.
    pub(crate) fn put_map(&self, name: &str, what: BorrowedFd<'_>) -> Result<()> {
        put(what, &self.map(name), &self.map(&Self::next(name)))
    }

    /// Returns the names of the pinned links whose interface exists. Removes the pins of all other links, because they
    /// protect nothing.
    ///
    /// # Errors
    ///
    /// Fails if a pin can't be read, written or removed.
    pub fn live_links(&self) -> Result<Vec<String>> {
        let mut live = self.links();
        let mut done = Ok(());
        live.retain(|name| {
            let lives = Attached::open(&self.link(name), name).is_some_and(|attached| !attached.is_gone());
            if !lives && let Err(error) = self.remove_link(name) {
                done = Err(error);
            }
            lives
        });
        done.map(|()| live)
    }

    /// Detaches an attachment left by a process that was killed while it replaced the pin with this name.
    pub(super) fn remove_unfinished(&self, name: &str) {
        let next = Self::next(name);
        if self.link(&next).exists() {
            let _ = self.remove_link(&next);
        }
    }

    /// Returns the temporary name under which a replacement is pinned. It contains a blank, so it is not the name of an
    /// interface.
    fn next(name: &str) -> String {
        format!("{name} next")
    }

    /// Detaches the attachment that is pinned under the name `name`, and removes its pin.
    ///
    /// # Errors
    ///
    /// Fails if a pin can't be read, written or removed.
    pub fn remove_link(&self, name: &str) -> Result<()> {
        if let Some(attached) = Attached::open(&self.link(name), name) {
            attached.detach();
        }
        fs::remove_file(self.link(name)).with_context(|| format!("cannot remove the pinned link {name}"))
    }

    /// Reports whether the programs of the pinned links only observe, as [`Self::note_observing`] recorded.
    pub fn is_observing(&self) -> bool {
        self.observing().is_dir()
    }

    /// Records whether the programs of the pinned links only observe. The BPF file system allows no ordinary files, so
    /// an empty directory stands for "yes".
    ///
    /// # Errors
    ///
    /// Fails if that directory can't be made or removed.
    pub fn note_observing(&self, observing: bool) -> Result<()> {
        let path = self.observing();
        match if observing { fs::create_dir(&path) } else { fs::remove_dir(&path) } {
            Err(_) if path.is_dir() == observing => Ok(()),
            noted => noted.with_context(|| format!("cannot create or remove {}", path.display())),
        }
    }

    fn observing(&self) -> PathBuf {
        self.0.join("observing")
    }

    /// Returns the directory, inside this one, where a gateway's attachments and tables are pinned.
    ///
    /// # Errors
    ///
    /// Fails if the directory can't be made.
    pub fn gateway(&self) -> Result<Self> {
        Self::make(self.0.join(GATEWAY))
    }

    /// Returns the directory, inside this one, where a verifier of proofs and its tables are pinned.
    ///
    /// # Errors
    ///
    /// Fails if the directory can't be made.
    pub fn proofs(&self) -> Result<Self> {
        Self::make(self.0.join(PROOFS))
    }

    /// Returns the directory, inside this one, where the attachments and the table of [`crate::tcp_in_udp::Answers`]
    /// are pinned.
    ///
    /// # Errors
    ///
    /// Fails if the directory can't be made.
    pub fn tcp_in_udp(&self) -> Result<Self> {
        Self::make(self.0.join(TCP_IN_UDP))
    }

    /// Returns the directory, inside this one, where the tables of another organisation's authority are pinned. Colons
    /// replace the dots of the name, because the BPF file system forbids dots.
    ///
    /// # Errors
    ///
    /// Fails if the directory can't be made.
    pub fn organisation(&self, name: &str) -> Result<Self> {
        Self::make(self.0.join(ORGANISATIONS).join(name.replace('.', ":")))
    }

    /// Reports whether tables of this organisation's authority are pinned.
    pub fn has_organisation(&self, name: &str) -> bool {
        self.0.join(ORGANISATIONS).join(name.replace('.', ":")).is_dir()
    }

    /// Removes the pins of all organisations' authorities except those with these names.
    ///
    /// # Errors
    ///
    /// Fails if a pin can't be removed.
    pub fn keep_organisations(&self, names: &[&str]) -> Result<()> {
        let kept: Vec<_> = names.iter().map(|name| name.replace('.', ":")).collect();
        for entry in fs::read_dir(self.0.join(ORGANISATIONS)).into_iter().flatten().flatten() {
            if !kept.iter().any(|name| entry.file_name() == name.as_str()) {
                let path = entry.path();
                fs::remove_dir_all(&path).with_context(|| format!("cannot remove {}", path.display()))?;
            }
        }
        Ok(())
    }

    /// Removes the pins of [`crate::tcp_in_udp::Answers`] from this directory, if there are any.
    ///
    /// # Errors
    ///
    /// Fails if a pin can't be read, written or removed.
    pub fn remove_tcp_in_udp(&self) -> Result<()> {
        self.remove_inner(TCP_IN_UDP)
    }

    /// Removes a gateway's pins from this directory, if there are any.
    ///
    /// # Errors
    ///
    /// Fails if a pin can't be read, written or removed.
    pub fn remove_gateway(&self) -> Result<()> {
        self.remove_inner(GATEWAY)
    }

    /// Removes the pins of a verifier of proofs from this directory, if there are any.
    ///
    /// # Errors
    ///
    /// Fails if a pin can't be read, written or removed.
    pub fn remove_proofs(&self) -> Result<()> {
        self.remove_inner(PROOFS)
    }

    fn remove_inner(&self, name: &str) -> Result<()> {
        let inner = Self(self.0.join(name));
        if inner.0.is_dir() { inner.remove() } else { Ok(()) }
    }

    /// Removes all pinned links and maps, and keeps the directories.
    pub(crate) fn empty(&self) -> Result<()> {
        for name in self.links() {
            self.remove_link(&name)?;
        }
        for entry in fs::read_dir(self.0.join("maps")).into_iter().flatten().flatten() {
            fs::remove_file(entry.path()).with_context(|| format!("cannot unpin {}", entry.path().display()))?;
        }
        Ok(())
    }

    /// Removes everything that is pinned in this directory. This detaches links from their interfaces and frees maps.
    ///
    /// # Errors
    ///
    /// Fails if a pin can't be read, written or removed.
    pub fn remove(&self) -> Result<()> {
        self.remove_gateway()?;
        self.remove_proofs()?;
        self.remove_tcp_in_udp()?;
        for name in self.links() {
            self.remove_link(&name)?;
        }
        fs::remove_dir_all(&self.0).with_context(|| format!("cannot remove {}", self.0.display()))
    }
}

/// Returns the id of the process that holds a lock on this file, from the content of /proc/locks. A line there is `1:
/// FLOCK  ADVISORY  WRITE 42 00:21:7 0 EOF`, with the device in hexadecimal.
fn holder(locks: &str, major: u32, minor: u32, inode: u64) -> Option<u32> {
    let file = format!("{major:02x}:{minor:02x}:{inode}");
    let mut lines = locks.lines().map(|line| line.split_whitespace().skip(1).collect::<Vec<_>>());
    let line = lines.find(|fields| fields.first() == Some(&"FLOCK") && fields.get(4) == Some(&file.as_str()))?;
    line[3].parse().ok()
}

/// Pins an object at `next`, then renames the pin to `path`.
fn put(what: BorrowedFd<'_>, path: &Path, next: &Path) -> Result<()> {
    let _ = fs::remove_file(next);
    link::pin(what, next)?;
    fs::rename(next, path).with_context(|| format!("cannot pin {}", path.display()))
}

/// Reports whether the BPF file system is mounted at `/sys/fs/bpf`.
pub fn bpf_file_system_is_mounted() -> bool {
    const BPF_MAGIC: i64 = 0xcafe_4a11;
    nix::sys::statfs::statfs(BPF_FILE_SYSTEM).is_ok_and(|info| info.filesystem_type().0 == BPF_MAGIC)
}

fn mount_bpf_file_system() -> Result<()> {
    if bpf_file_system_is_mounted() {
        return Ok(());
    }
    let path = Path::new(BPF_FILE_SYSTEM);
    // The kernel's default mode is 1777, with which every user could list the pins and add some.
    mount(Some("bpf"), path, Some("bpf"), MsFlags::empty(), Some("mode=0700"))
        .with_context(|| format!("cannot mount the BPF file system at {BPF_FILE_SYSTEM} (are you root?)"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::mount::{MntFlags, umount2};
    use nix::sched::{CloneFlags, unshare};
    use std::os::unix::fs::PermissionsExt;
    use std::thread;

    #[test]
    fn the_holder_of_a_lock_is_found_by_device_and_inode() {
        let locks = "1: POSIX  ADVISORY  WRITE 9 00:1f:7 0 EOF\n2: FLOCK  ADVISORY  WRITE 42 00:1f:7 0 EOF\n\
            2: -> FLOCK  ADVISORY  WRITE 43 00:1f:8 0 EOF\n";
        assert_eq!(holder(locks, 0, 31, 7), Some(42));
        assert_eq!(holder(locks, 0, 31, 8), None, "43 waits");
        assert_eq!(holder(locks, 0, 30, 7), None);
    }

    /// Runs in its own mount namespace, which ends with the thread.
    #[test]
    fn a_bpf_file_system_that_the_program_mounts_is_for_root_alone() {
        let mounted = || -> u32 {
            unshare(CloneFlags::CLONE_FS | CloneFlags::CLONE_NEWNS).expect("a mount namespace (root?)");
            let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
            mount(None::<&str>, "/", None::<&str>, private, None::<&str>).expect("mounts of its own");
            while bpf_file_system_is_mounted() {
                umount2(BPF_FILE_SYSTEM, MntFlags::MNT_DETACH).expect("unmounted");
            }
            mount_bpf_file_system().expect("mounted");
            fs::metadata(BPF_FILE_SYSTEM).expect("there").permissions().mode() & 0o777
        };
        assert_eq!(thread::spawn(mounted).join().expect("done"), 0o700);
    }
}
