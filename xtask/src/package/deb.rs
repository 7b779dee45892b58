//! The Debian package, by `dpkg-deb`. Scripts and settings are in packaging/debian.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::tree::Tree;
use super::{Job, documents, foreign, sbom};
use crate::run::{command, output};

/// Where `packaging/systemd` expects the program, and where the package has it.
const PROGRAM: (&str, &str) = ("/usr/local/bin/vouchsafe", "/usr/bin/vouchsafe");
/// Files of `packaging/` that are installed as they are.
const FILES: [(&str, &str); 6] = [
    ("debian/agent.toml", "etc/vouchsafe/agent.toml"),
    ("debian/vouchsafe-transfer", "etc/default/vouchsafe-transfer"),
    ("debian/copyright", "usr/share/doc/vouchsafe/copyright"),
    ("grafana/vouchsafe.json", "usr/share/vouchsafe/grafana/vouchsafe.json"),
    ("prometheus/vouchsafe.rules.yml", "usr/share/vouchsafe/prometheus/vouchsafe.rules.yml"),
    ("wireshark/vouchsafe.lua", "usr/share/vouchsafe/wireshark/vouchsafe.lua"),
];
const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];

/// Makes the Debian package and returns its path.
pub fn make(job: &Job, source: &Path) -> Result<PathBuf> {
    let packaging = source.join("packaging");
    let tree = Tree::new(job.out.join("deb"))?;
    tree.copy(&job.program, "usr/bin/vouchsafe", 0o755)?;
    for unit in fs::read_dir(packaging.join("systemd"))? {
        let unit = unit?.path();
        let name = unit.file_name().context("a unit has no name")?.to_string_lossy().into_owned();
        let text = fs::read_to_string(&unit)?;
        ensure!(text.contains(PROGRAM.0), "the unit {name} does not name the program {}", PROGRAM.0);
        tree.put(&format!("usr/lib/systemd/system/{name}"), 0o644, text.replace(PROGRAM.0, PROGRAM.1))?;
    }
    for (from, to) in FILES {
        tree.copy(&packaging.join(from), to, 0o644)?;
    }
    documents::add(job, &tree)?;
    tree.put("usr/share/doc/vouchsafe/sbom.cdx.json", 0o644, sbom::text(job, source)?)?;
    tree.gzip("usr/share/doc/vouchsafe/sbom.cdx.json")?;
    tree.put("usr/share/doc/vouchsafe/changelog.Debian", 0o644, changelog(job)?)?;
    tree.gzip("usr/share/doc/vouchsafe/changelog.Debian")?;
    control(job, &packaging.join("debian"), &tree)?;

    let deb = job.out.join(format!("vouchsafe_{}_{}.deb", job.version, job.arch.debian()));
    let mut pack = command("dpkg-deb");
    // Use one thread, because several threads divide the data at other places.
    pack.args(["--root-owner-group", "--threads-max=1"]).args(if job.quick {
        ["-Zgzip", "-z1"]
    } else {
        ["-Zxz", "-z6"]
    });
    pack.arg("--build").arg(tree.path()).arg(&deb).env("SOURCE_DATE_EPOCH", &job.epoch);
    output(&mut pack)?;
    Ok(deb)
}

/// Writes the package's own data: names, sizes, dependencies, hashes, scripts.
fn control(job: &Job, debian: &Path, tree: &Tree) -> Result<()> {
    let files = output(command("find").arg(tree.path()).args(["-type", "f", "-printf", "%P\n"]))?;
    let mut files: Vec<&str> = files.lines().collect();
    files.sort_unstable();
    let mut kilobytes = 0;
    for file in &files {
        kilobytes += fs::metadata(tree.path().join(file))?.len().div_ceil(1024);
    }
    let hashed = files.iter().filter(|file| !file.starts_with("etc/"));
    let sums = output(command("md5sum").args(hashed).current_dir(tree.path()))?;
    let control = fs::read_to_string(debian.join("control"))?
        .replace("@VERSION@", &job.version)
        .replace("@ARCHITECTURE@", job.arch.debian())
        .replace("@SIZE@", &kilobytes.to_string())
        .replace("@DEPENDS@", &dependencies(job)?);
    tree.put("DEBIAN/control", 0o644, control)?;
    tree.put("DEBIAN/md5sums", 0o644, sums)?;
    tree.copy(&debian.join("conffiles"), "DEBIAN/conffiles", 0o644)?;
    for script in SCRIPTS {
        tree.copy(&debian.join(script), &format!("DEBIAN/{script}"), 0o755)?;
    }
    Ok(())
}

/// Returns the packages of the libraries that the program loads, as `dpkg-shlibdeps` finds them on this machine or, for
/// another processor, among the packages that are unpacked here.
fn dependencies(job: &Job) -> Result<String> {
    let dir = Tree::new(job.out.join("shlibdeps"))?;
    dir.put("debian/control", 0o644, "Source: vouchsafe\n\nPackage: vouchsafe\nArchitecture: any\n")?;
    let program = job.program.canonicalize()?;
    let mut shlibdeps = command("dpkg-shlibdeps");
    shlibdeps.env("DEB_HOST_ARCH", job.arch.debian()).current_dir(dir.path());
    if !job.arch.is_native() {
        shlibdeps.args(foreign::packages(job.arch)?.iter().map(|package| format!("-S{}", package.display())));
    }
    let found = output(shlibdeps.arg("-O").arg(&program))?;
    let line = found.lines().find_map(|line| line.strip_prefix("shlibs:Depends="));
    Ok(line.with_context(|| format!("dpkg-shlibdeps printed {found:?}"))?.to_owned())
}

fn changelog(job: &Job) -> Result<String> {
    let date = output(command("date").args(["--utc", "--rfc-email", "--date", &format!("@{}", job.epoch)]))?;
    Ok(format!(
        "vouchsafe ({}) unstable; urgency=medium\n\n  * See the commits.\n\n \
         -- Vouchsafe maintainers <maintainers@vouchsafe.example>  {date}",
        job.version
    ))
}
