//! Opens an embedded object file, sets its configuration, and gives its maps homes in the BPF file system.

use crate::hook::Attached;
use crate::link;
use crate::table::{Table, distinct};
use anyhow::{Context, Result, bail};
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType, Object, ObjectBuilder, OpenObject, Program, ProgramMut};
use nix::mount::{MsFlags, mount};
use std::fs;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use zerocopy::{FromBytes, Immutable, IntoBytes};

const BPF_FILE_SYSTEM: &str = "/sys/fs/bpf";
const GATEWAY: &str = "gateway";
const PROOFS: &str = "proofs";

/// A directory in the BPF file system where maps and links outlive the process that made them.
#[derive(Clone, Debug)]
pub struct Pins(PathBuf);

impl Pins {
    /// The directory of `role` and `instance`, made if it is missing; mounts the BPF file system where nobody has.
    pub fn new(role: &str, instance: &str) -> Result<Self> {
        mount_bpf_file_system()?;
        let directory = Path::new(BPF_FILE_SYSTEM).join("vouchsafe").join(format!("{role}-{instance}"));
        for part in ["maps", "links"] {
            let path = directory.join(part);
            fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
        }
        Ok(Self(directory))
    }

    /// The directory of `role` and `instance` if something is pinned there.
    pub fn existing(role: &str, instance: &str) -> Option<Self> {
        let directory = Path::new(BPF_FILE_SYSTEM).join("vouchsafe").join(format!("{role}-{instance}"));
        directory.is_dir().then_some(Self(directory))
    }

    /// Every directory in which something is pinned, by name.
    pub fn all() -> Vec<Self> {
        let entries = fs::read_dir(Path::new(BPF_FILE_SYSTEM).join("vouchsafe"));
        let mut all: Vec<_> = entries.into_iter().flatten().flatten().map(|entry| entry.path()).collect();
        all.retain(|path| path.is_dir());
        all.sort();
        all.into_iter().map(Self).collect()
    }

    /// Its name: `ROLE-INSTANCE`.
    pub fn name(&self) -> String {
        self.0.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Where a map is pinned.
    pub fn map(&self, name: &str) -> PathBuf {
        self.0.join("maps").join(name)
    }

    /// Where a link is pinned. The BPF file system takes no dots, which VLANs have in their names; interfaces have no
    /// colons.
    pub(crate) fn link(&self, name: &str) -> PathBuf {
        self.0.join("links").join(name.replace('.', ":"))
    }

    /// Takes the lock that keeps a second process with the same pins out; held until the file is dropped.
    pub fn lock(&self) -> Result<fs::File> {
        let file = fs::File::open(&self.0).with_context(|| format!("cannot open {}", self.0.display()))?;
        match file.try_lock() {
            Ok(()) => Ok(file),
            Err(fs::TryLockError::WouldBlock) => bail!("another process uses {}", self.0.display()),
            Err(fs::TryLockError::Error(error)) => bail!("cannot lock {}: {error}", self.0.display()),
        }
    }

    /// The process that holds the lock. Asks the kernel's list, because trying the lock could keep a daemon from it.
    pub fn holder(&self) -> Option<u32> {
        let about = fs::metadata(&self.0).ok()?;
        let (device, inode) = (about.dev(), about.ino());
        holder(&fs::read_to_string("/proc/locks").ok()?, libc::major(device), libc::minor(device), inode)
    }

    /// Names of the pinned links.
    pub fn links(&self) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.0.join("links")) else { return Vec::new() };
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let mut names: Vec<_> = names.map(|name| name.replace(':', ".")).collect();
        names.sort();
        names
    }

    /// Pins an attachment in the place of the one that has this name, in one step.
    pub(crate) fn put_link(&self, name: &str, what: BorrowedFd<'_>) -> Result<()> {
        put(what, &self.link(name), &self.link(&Self::next(name)))
    }

    /// Pins a map in the place of the one that has this name, in one step.
    fn put_map(&self, name: &str, what: BorrowedFd<'_>) -> Result<()> {
        put(what, &self.map(name), &self.map(&Self::next(name)))
    }

    /// Names of the pinned links that are on an interface. Those whose interface is gone protect nothing: they are
    /// removed.
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

    /// Detaches what a process has left that was killed while it put an attachment there.
    pub(crate) fn remove_unfinished(&self, name: &str) {
        let next = Self::next(name);
        if self.link(&next).exists() {
            let _ = self.remove_link(&next);
        }
    }

    /// No interface has a blank in its name.
    fn next(name: &str) -> String {
        format!("{name} next")
    }

    /// Detaches what is pinned under one name and removes its pin.
    pub fn remove_link(&self, name: &str) -> Result<()> {
        if let Some(attached) = Attached::open(&self.link(name), name) {
            attached.detach();
        }
        fs::remove_file(self.link(name)).with_context(|| format!("cannot remove the pinned link {name}"))
    }

    /// Whether the pinned links only observe, as [`Self::note_observing`] noted.
    pub fn is_observing(&self) -> bool {
        self.observing().is_dir()
    }

    /// Notes whether the pinned links only observe. The BPF file system holds no files of others: a directory says it.
    pub fn note_observing(&self, observing: bool) -> Result<()> {
        let path = self.observing();
        match if observing { fs::create_dir(&path) } else { fs::remove_dir(&path) } {
            Err(_) if path.is_dir() == observing => Ok(()),
            noted => noted.with_context(|| format!("cannot make or remove {}", path.display())),
        }
    }

    fn observing(&self) -> PathBuf {
        self.0.join("observing")
    }

    /// Where a gateway's attachments are pinned beside those of admission.
    pub fn gateway(&self) -> Result<Self> {
        self.inner(GATEWAY)
    }

    /// Where a verifier of proofs and its tables are pinned beside those of admission.
    pub fn proofs(&self) -> Result<Self> {
        self.inner(PROOFS)
    }

    fn inner(&self, name: &str) -> Result<Self> {
        let directory = self.0.join(name);
        for part in ["maps", "links"] {
            let path = directory.join(part);
            fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
        }
        Ok(Self(directory))
    }

    /// Removes what a gateway has pinned here, if it was one.
    pub fn remove_gateway(&self) -> Result<()> {
        self.remove_inner(GATEWAY)
    }

    /// Removes what a verifier of proofs has pinned here, if there was one.
    pub fn remove_proofs(&self) -> Result<()> {
        self.remove_inner(PROOFS)
    }

    fn remove_inner(&self, name: &str) -> Result<()> {
        let inner = Self(self.0.join(name));
        if inner.0.is_dir() { inner.remove() } else { Ok(()) }
    }

    /// The same, but for the directories.
    pub(crate) fn empty(&self) -> Result<()> {
        for name in self.links() {
            self.remove_link(&name)?;
        }
        for entry in fs::read_dir(self.0.join("maps")).into_iter().flatten().flatten() {
            fs::remove_file(entry.path()).with_context(|| format!("cannot unpin {}", entry.path().display()))?;
        }
        Ok(())
    }

    /// Removes everything pinned here: links let go of their interfaces, maps of their memory.
    pub fn remove(&self) -> Result<()> {
        self.remove_gateway()?;
        self.remove_proofs()?;
        for name in self.links() {
            self.remove_link(&name)?;
        }
        fs::remove_dir_all(&self.0).with_context(|| format!("cannot remove {}", self.0.display()))
    }
}

/// Who holds a lock on this file, by the content of /proc/locks: `1: FLOCK  ADVISORY  WRITE 42 00:21:7 0 EOF`, the device
/// in hex.
fn holder(locks: &str, major: u32, minor: u32, inode: u64) -> Option<u32> {
    let file = format!("{major:02x}:{minor:02x}:{inode}");
    let mut lines = locks.lines().map(|line| line.split_whitespace().skip(1).collect::<Vec<_>>());
    let line = lines.find(|fields| fields.first() == Some(&"FLOCK") && fields.get(4) == Some(&file.as_str()))?;
    line[3].parse().ok()
}

/// Pins at `next` and moves that to `path`.
fn put(what: BorrowedFd<'_>, path: &Path, next: &Path) -> Result<()> {
    let _ = fs::remove_file(next);
    link::pin(what, next)?;
    fs::rename(next, path).with_context(|| format!("cannot pin {}", path.display()))
}

/// Whether the BPF file system is where pins go.
pub fn bpf_file_system_is_mounted() -> bool {
    const BPF_MAGIC: i64 = 0xcafe_4a11;
    nix::sys::statfs::statfs(BPF_FILE_SYSTEM).is_ok_and(|info| info.filesystem_type().0 == BPF_MAGIC)
}

fn mount_bpf_file_system() -> Result<()> {
    if bpf_file_system_is_mounted() {
        return Ok(());
    }
    let path = Path::new(BPF_FILE_SYSTEM);
    // The kernel's default is 1777: everybody could list what is pinned, and pin there.
    mount(Some("bpf"), path, Some("bpf"), MsFlags::empty(), Some("mode=0700"))
        .with_context(|| format!("cannot mount the BPF file system at {BPF_FILE_SYSTEM} (are you root?)"))
}

/// An object file that is open and not yet loaded.
pub(crate) struct Opened {
    object: OpenObject,
    /// Pinned maps that do not fit and are replaced once the programs are loaded.
    outgrown: Vec<Outgrown>,
    /// Maps whose content the caller takes over.
    carried: &'static [&'static str],
}

/// A pinned map of another size or shape.
struct Outgrown {
    name: String,
    old: MapHandle,
    pins: Pins,
    /// Whether its content fits in the new one.
    same_shape: bool,
}

impl Opened {
    pub(crate) fn new(name: &str, bytes: &[u8]) -> Result<Self> {
        let open = ObjectBuilder::default().name(name)?.open_memory(bytes);
        let object = open.with_context(|| format!("cannot open the embedded {name} program"))?;
        Ok(Self { object, outgrown: Vec::new(), carried: &[] })
    }

    pub(crate) fn configure<C: IntoBytes + Immutable>(&mut self, config: &C) -> Result<()> {
        self.set_constant(".rodata.config", config)
    }

    /// Sets the settings in the section of this name.
    pub(crate) fn set_constant<C: IntoBytes + Immutable>(&mut self, section: &str, config: &C) -> Result<()> {
        let mut map = self.object.maps_mut().find(|map| map.name().to_string_lossy().ends_with(section));
        let map = map.as_mut().context("the embedded program has no configuration")?;
        map.set_initial_value(config.as_bytes()).context("cannot set the program's configuration")
    }

    pub(crate) fn resize(&mut self, name: &str, entries: u32) -> Result<()> {
        let mut map = self.object.maps_mut().find(|map| map.name() == name);
        let map = map.as_mut().with_context(|| format!("no map {name}"))?;
        map.set_max_entries(entries).with_context(|| format!("cannot size map {name}"))
    }

    /// Shares the named maps with whatever is pinned, or pins them. Once the programs are loaded, a pinned hash map of
    /// another size is replaced and its content goes over; one of another shape, left by another version, is replaced and
    /// its content is lost.
    pub(crate) fn pin(&mut self, pins: &Pins, names: &[&str]) -> Result<()> {
        for mut map in self.object.maps_mut() {
            let name = map.name().to_string_lossy().into_owned();
            if !names.contains(&name.as_str()) {
                continue;
            }
            let path = pins.map(&name);
            if let Ok(old) = MapHandle::from_pinned_path(&path) {
                let same_entries = old.key_size() == map.key_size() && old.value_size() == map.value_size();
                let flags = old.info().with_context(|| format!("cannot ask about pinned map {name}"))?.info.map_flags;
                let same_kind = old.map_type() == map.map_type() && flags == map.map_flags();
                if !same_entries || !same_kind || old.max_entries() != map.max_entries() {
                    let same_shape = same_entries && old.map_type() == MapType::Hash && map.map_type() == MapType::Hash;
                    self.outgrown.push(Outgrown { name, old, pins: pins.clone(), same_shape });
                    continue;
                }
            }
            map.set_pin_path(&path).with_context(|| format!("cannot pin map {name}"))?;
        }
        Ok(())
    }

    /// Leaves it to the caller to take over what these maps hold, where they are replaced.
    pub(crate) fn carry(&mut self, names: &'static [&'static str]) {
        self.carried = names;
    }

    /// Uses the named maps of another object.
    pub(crate) fn share(&mut self, other: &Loaded, names: &[&str]) -> Result<()> {
        for mut map in self.object.maps_mut() {
            let name = map.name().to_string_lossy().into_owned();
            if names.contains(&name.as_str()) {
                let shared = other.map(&name)?;
                map.reuse_fd(shared.as_fd()).with_context(|| format!("cannot share map {name}"))?;
            }
        }
        Ok(())
    }

    pub(crate) fn load(self, name: &str) -> Result<Loaded> {
        let object = self.object.load().with_context(|| {
            let kernel = WARNINGS.lock().unwrap_or_else(PoisonError::into_inner);
            let help = "needs Linux 6.1 and root; `vouchsafe doctor` says more";
            format!("the kernel does not take the {name} program ({help})\n{}", kernel.trim_end())
        })?;
        let loaded = Loaded(object);
        for Outgrown { name, old, pins, same_shape } in &self.outgrown {
            let new = loaded.map(name)?;
            if *same_shape {
                copy(name, old, &new)?;
            } else if !self.carried.contains(&name.as_str()) {
                tracing::warn!(map = name, "the pinned map has another shape; its content is lost");
            }
            pins.put_map(name, new.as_fd())?;
        }
        Ok(loaded)
    }
}

/// Puts the entries of `old` into `new` as far as there is room.
fn copy(name: &str, old: &MapHandle, new: &MapHandle) -> Result<()> {
    let (mut copied, mut lost) = (0, 0);
    for key in distinct(old.keys(), old.max_entries() as usize) {
        let Some(value) = old.lookup(&key, MapFlags::ANY).with_context(|| format!("cannot read old map {name}"))?
        else {
            continue;
        };
        match new.update(&key, &value, MapFlags::ANY) {
            Ok(()) => copied += 1,
            Err(_) => lost += 1,
        }
    }
    let (before, after) = (old.max_entries(), new.max_entries());
    if lost > 0 {
        tracing::warn!(map = name, before, after, copied, lost, "resized; not all entries had room");
    } else {
        tracing::info!(map = name, before, after, copied, "resized");
    }
    Ok(())
}

/// A loaded object file.
pub(crate) struct Loaded(Object);

impl Loaded {
    pub(crate) fn table<K, V>(&self, name: &str) -> Result<Table<K, V>>
    where
        K: IntoBytes + FromBytes + Immutable,
        V: IntoBytes + FromBytes + Immutable,
    {
        Table::new(self.map(name)?)
    }

    pub(crate) fn map(&self, name: &str) -> Result<MapHandle> {
        let map = self.0.maps().find(|map| libbpf_rs::MapCore::name(map) == name);
        let map = map.with_context(|| format!("no map {name}"))?;
        MapHandle::try_from(&map).with_context(|| format!("cannot open map {name}"))
    }

    /// The program in the form that running it on one packet needs.
    pub(crate) fn runnable(&self, name: &str) -> Result<ProgramMut<'_>> {
        self.0.progs_mut().find(|program| program.name() == name).with_context(|| format!("no program {name}"))
    }

    pub(crate) fn program(&self, name: &str) -> Result<Program<'_>> {
        self.0.progs().find(|program| program.name() == name).with_context(|| format!("no program {name}"))
    }
}

/// libbpf's latest warnings, which say why a load failed.
static WARNINGS: Mutex<String> = Mutex::new(String::new());
const WARNINGS_KEPT: usize = 4096;

/// Sends libbpf's messages to the log, and keeps the latest warnings for the error of a failed load.
pub(crate) fn log_through_tracing() {
    libbpf_rs::set_print(Some((libbpf_rs::PrintLevel::Debug, |level, text| match level {
        libbpf_rs::PrintLevel::Warn => {
            tracing::debug!(target: "libbpf", "{}", text.trim_end());
            let mut kept = WARNINGS.lock().unwrap_or_else(PoisonError::into_inner);
            kept.push_str(&text);
            let mut cut = kept.len().saturating_sub(WARNINGS_KEPT);
            while !kept.is_char_boundary(cut) {
                cut += 1;
            }
            kept.drain(..cut);
        }
        _ => tracing::trace!(target: "libbpf", "{}", text.trim_end()),
    })));
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

    /// In a mount namespace of its own, which ends with the thread.
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
