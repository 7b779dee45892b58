//! A tree of files to be packed, with fixed modes.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::run::{command, run};

/// A folder that is packed as a whole; removed when dropped.
pub struct Tree(PathBuf);

impl Tree {
    /// Makes an empty tree.
    pub fn new(at: PathBuf) -> Result<Self> {
        let _ = fs::remove_dir_all(&at);
        fs::create_dir_all(&at).with_context(|| format!("could not make {}", at.display()))?;
        fs::set_permissions(&at, fs::Permissions::from_mode(0o755))?;
        Ok(Self(at))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Makes a folder in the tree, and the folders above it.
    pub fn folder(&self, name: &str, mode: u32) -> Result<PathBuf> {
        let mut path = self.0.clone();
        for part in Path::new(name).components() {
            path.push(part);
            if !path.exists() {
                fs::create_dir(&path).with_context(|| path.display().to_string())?;
                fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
            }
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
        Ok(path)
    }

    /// Writes a file into the tree.
    pub fn put(&self, name: &str, mode: u32, content: impl AsRef<[u8]>) -> Result<()> {
        let path = self.within(name)?;
        fs::write(&path, content).with_context(|| path.display().to_string())?;
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).with_context(|| path.display().to_string())
    }

    /// Copies a file into the tree.
    pub fn copy(&self, from: &Path, name: &str, mode: u32) -> Result<()> {
        let content = fs::read(from).with_context(|| from.display().to_string())?;
        self.put(name, mode, content)
    }

    /// Makes a symbolic link in the tree.
    pub fn link(&self, name: &str, to: &str) -> Result<()> {
        let path = self.within(name)?;
        symlink(to, &path).with_context(|| path.display().to_string())
    }

    /// Compresses a file of the tree by gzip. The compressed file contains neither the file's name nor its time.
    pub fn gzip(&self, name: &str) -> Result<()> {
        run(command("gzip").args(["-9", "--no-name"]).arg(self.0.join(name)))
    }

    fn within(&self, name: &str) -> Result<PathBuf> {
        if let Some((folder, _)) = name.rsplit_once('/') {
            self.folder(folder, 0o755)?;
        }
        Ok(self.0.join(name))
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
