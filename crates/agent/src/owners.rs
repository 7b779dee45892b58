//! Users and cgroups in the configuration, as owners of packets.

use anyhow::{Context, Result};
use engine::agent::Subject;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use wire::map::{Owner, owner};

/// Returns the user with this name or number.
pub fn user(name: &str) -> Result<Subject> {
    if let Ok(uid) = name.parse() {
        return Ok(Subject::of_user(uid));
    }
    let user = nix::unistd::User::from_name(name).with_context(|| format!("cannot look up the user {name:?}"))?;
    Ok(Subject::of_user(user.with_context(|| format!("there is no user {name:?}"))?.uid.as_raw()))
}

/// Returns the owner for a cgroup of version 2. The owner's id is the inode number of the cgroup's directory. `path` is
/// the path of this directory, either in the file system or below the root of the cgroups.
pub fn cgroup(path: &str) -> Result<Owner> {
    let root = root().context("cgroup")?;
    let full = match Path::new(path).strip_prefix(&root) {
        Ok(_) => PathBuf::from(path),
        Err(_) => root.join(path.trim_start_matches('/')),
    };
    let inode = std::fs::metadata(&full).with_context(|| format!("cgroup: cannot find {}", full.display()))?.ino();
    Ok(Owner { kind: owner::CGROUP, reserved: 0, id: inode })
}

/// Returns the directory at which the file system of the cgroups of version 2 is mounted.
pub fn root() -> Result<PathBuf> {
    let mounts = fs::read_to_string("/proc/mounts").context("cannot read /proc/mounts")?;
    let mut mounted = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let root = mounted.find_map(|words| (words.get(2) == Some(&"cgroup2")).then(|| words[1].to_owned()));
    Ok(root.context("no cgroup2 file system is mounted")?.into())
}
