//! Folders that programs have as their root: a Debian system, or the content of an image. Each program runs in a mount
//! namespace of its own, so no mount is left behind. The program sees the host's kernel (`/proc`, `/sys`), the host's
//! devices, and the host's folder for temporary files, where tests keep their state. As `/sys/fs/bpf` it sees a folder
//! that belongs to this root only.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use crate::process;

const BPF: &str = "/sys/fs/bpf";

/// A root folder. Dropping it removes the folder and the pins that programs in it have made.
pub struct Rootfs {
    dir: TempDir,
    pins: PathBuf,
    /// Path of the script that starts a program in this root.
    enter: PathBuf,
}

impl Rootfs {
    /// Unpacks a Debian system of this machine's release, which `sh xtask/setup.sh test` has made.
    pub fn debian() -> Result<Self> {
        let base = crate::built()
            .context("cannot find the folder into which cargo built this program")?
            .with_file_name("parts")
            .join("debian.tar");
        ensure!(base.exists(), "{} is missing: `sh xtask/setup.sh test` makes it", base.display());
        Self::unpack(&base, "")
    }

    /// Unpacks an image's layer. Programs can read the root, but not write to it.
    pub fn image(layer: &Path) -> Result<Self> {
        Self::unpack(layer, "mount --bind \"$root\" \"$root\"; mount -o remount,bind,ro \"$root\"")
    }

    fn unpack(archive: &Path, first: &str) -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let dir = TempDir::with_prefix("vouchsafe-root-").context("cannot create a folder for the root")?;
        let root = dir.path().join("root");
        fs::create_dir(&root)?;
        process::output(Command::new("tar").arg("-xpf").arg(archive).arg("-C").arg(&root))?;
        let pins = Path::new(BPF).join(format!(
            "vouchsafe-root-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        ));
        fs::create_dir(&pins).with_context(|| format!("no BPF file system at {BPF}"))?;
        let temporary = std::env::temp_dir();
        for mounted in ["proc", "sys", "dev", temporary.strip_prefix("/")?.to_str().context("the path of /tmp")?] {
            fs::create_dir_all(root.join(mounted))?;
        }
        let enter = dir.path().join("enter");
        let text = format!(
            "#!/bin/sh\nexec unshare --mount --propagation private -- sh -ec '\nroot=\"$1\"; shift\n{first}\n\
             mount -t proc proc \"$root/proc\"\nmount --bind /sys \"$root/sys\"\n\
             mount --bind {pins} \"$root/sys/fs/bpf\"\nmount --bind /dev \"$root/dev\"\n\
             mount --bind {tmp} \"$root{tmp}\"\nexec $LIMIT chroot \"$root\" \"$@\"' sh {root} \"$@\"\n",
            pins = pins.display(),
            tmp = temporary.display(),
            root = root.display(),
        );
        let this = Self { dir, pins, enter };
        script(&this.enter, &text)?;
        Ok(this)
    }

    /// Returns the root's folder.
    pub fn path(&self) -> PathBuf {
        self.dir.path().join("root")
    }

    /// Prepares `program` to run in the root.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(&self.enter);
        command.arg(program);
        command
    }

    /// Runs `[program, args…]` in the root and returns its standard output.
    pub fn run(&self, words: &[&str]) -> Result<String> {
        let (program, arguments) = words.split_first().context("no program")?;
        process::output(self.command(program).args(arguments))
    }

    /// Writes a script called `name`, outside of the root, that runs `program` in the root. Returns the script's path.
    pub fn program(&self, name: &str, program: &str) -> Result<PathBuf> {
        self.limited(name, program, "")
    }

    /// Writes a script as [`Self::program`] does. The script also limits `program` to these capabilities and
    /// `CAP_SYS_CHROOT`, which the script needs to enter the root.
    pub fn program_with(&self, name: &str, program: &str, capabilities: &BTreeSet<String>) -> Result<PathBuf> {
        let names: String = capabilities.iter().map(|name| format!(",+{name}")).collect();
        self.limited(name, program, &format!("setpriv --inh-caps=-all --bounding-set=-all,+sys_chroot{names}"))
    }

    fn limited(&self, name: &str, program: &str, limit: &str) -> Result<PathBuf> {
        let path = self.dir.path().join(name);
        script(&path, &format!("#!/bin/sh\nLIMIT='{limit}' exec {} {program} \"$@\"\n", self.enter.display()))?;
        Ok(path)
    }
}

impl Drop for Rootfs {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.pins) {
            eprintln!("lab: {}: {error}", self.pins.display());
        }
    }
}

fn script(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| path.display().to_string())?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
    Ok(())
}
