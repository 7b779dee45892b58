//! Builds the program so that the same source gives the same bytes, whoever builds it and where.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::Arch;
use crate::run::{command, forget_outer_cargo, is_root, output, root, run};
use crate::target_dir;

/// Shows source, dependencies and results at fixed paths, which compilers write into the program, in a mount namespace of
/// its own.
const AT_FIXED_PATHS: &str = r#"
mount -t tmpfs -o mode=755 none /mnt
mkdir /mnt/source /mnt/cargo /mnt/target
mount --bind "$SOURCE" /mnt/source
mount --bind "$CARGO" /mnt/cargo
mount --bind "$TARGET" /mnt/target
cd /mnt/source
export CARGO_HOME=/mnt/cargo CARGO_TARGET_DIR=/mnt/target
exec "$@"
"#;

/// Builds `vouchsafe` from the checkout `source`, as it is shipped, and returns its path.
pub fn build(source: &Path, arch: Arch, epoch: &str) -> Result<PathBuf> {
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let registry = std::env::var_os("CARGO_HOME").map_or_else(|| home.join(".cargo"), PathBuf::from);
    let target = match source == root() {
        true => target_dir().join("package-build"),
        false => source.join("target"),
    };
    fs::create_dir_all(&target).with_context(|| format!("could not make {}", target.display()))?;
    let mut unshare = command("unshare");
    forget_outer_cargo(unshare.arg("--mount"));
    if !is_root() {
        unshare.arg("--map-root-user");
    }
    unshare.args(["sh", "-ec", AT_FIXED_PATHS, "sh", "cargo", "build", "--release", "--locked"]);
    unshare.args(["--package", "vouchsafe", "--target", arch.rust()]);
    unshare.env("SOURCE", source).env("CARGO", &registry).env("TARGET", &target);
    unshare.env("SOURCE_DATE_EPOCH", epoch).env_remove("RUSTFLAGS").env("CARGO_INCREMENTAL", "0");
    run(&mut unshare).with_context(|| format!("is the target there? `rustup target add {}`", arch.rust()))?;
    Ok(target.join(arch.rust()).join("release/vouchsafe"))
}

/// Copies a program without its symbols.
pub fn strip(from: &Path, to: &Path) -> Result<()> {
    run(command("strip").arg("-o").arg(to).arg(from))
}

/// Returns the libraries and the loader of a program, by the paths under which it finds them.
pub fn libraries(program: &Path) -> Result<Vec<PathBuf>> {
    let listing = output(command("ldd").arg(program))?;
    ensure!(!listing.contains("not found"), "libraries are missing here:\n{listing}");
    Ok(listing.split_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from).collect())
}

/// Returns the Debian packages of a program's libraries, with their versions.
pub fn packages(program: &Path) -> Result<BTreeMap<String, String>> {
    let mut found = BTreeMap::new();
    for library in libraries(program)? {
        // dpkg knows a library by its path without links, or by the one from before /usr was merged.
        let real = library.canonicalize().with_context(|| library.display().to_string())?;
        let old = Path::new("/").join(real.strip_prefix("/usr").unwrap_or(&real));
        let owner = [real.as_path(), &old].into_iter().find_map(|path| {
            let found = command("dpkg-query").arg("--search").arg(path).output().ok()?;
            let line = String::from_utf8(found.stdout).ok().filter(|_| found.status.success())?;
            Some(line.split(':').next()?.to_owned())
        });
        let owner = owner.with_context(|| format!("no package has {}", library.display()))?;
        let version = output(command("dpkg-query").args(["--show", "--showformat=${Version}\n", &owner]))?;
        found.insert(owner, version.lines().next().unwrap_or_default().to_owned());
    }
    Ok(found)
}
