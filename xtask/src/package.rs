//! Makes the packages: a Debian package, an OCI image, a CycloneDX bill of materials, the chart's manifests.
//!
//! Two builds of one commit give the same bytes: the program is built at fixed paths, each file has the commit's time,
//! and the entries of archives are sorted.

mod deb;
mod documents;
mod foreign;
mod image;
mod program;
mod sbom;
mod tree;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;

use program::Build;

use crate::run::{command, output, root};
use crate::target_dir;

/// Options of `package`.
#[derive(clap::Args)]
pub struct Args {
    /// Make only these packages
    #[arg(value_enum)]
    only: Vec<Part>,
    /// The processor that the program is for
    #[arg(long, value_enum, default_value = "amd64")]
    arch: Arch,
    /// Package this program, and build none
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// The folder to write to [default: target/package]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Number of the package among the packages of the same version
    #[arg(long, default_value_t = 1)]
    revision: u32,
    /// Compress little, for tests; with --twice, also build dependencies only once and optimise nothing
    #[arg(long)]
    quick: bool,
    /// Build the last commit twice, from clones in two folders, and compare
    #[arg(long, conflicts_with_all = ["binary", "out"])]
    twice: bool,
}

/// A package.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// vouchsafe_VERSION_ARCH.deb
    Deb,
    /// An OCI image, as an archive
    Image,
    /// The bill of materials
    Sbom,
}

/// A processor, by Debian's name.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Arch {
    Amd64,
    /// If this machine has another processor, `sh xtask/setup.sh package-arm64` installs what the build needs
    Arm64,
}

impl Arch {
    fn debian(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }

    fn rust(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64-unknown-linux-gnu",
            Self::Arm64 => "aarch64-unknown-linux-gnu",
        }
    }

    /// Returns the processor's number in ELF files.
    fn elf(self) -> u16 {
        match self {
            Self::Amd64 => 62,
            Self::Arm64 => 183,
        }
    }

    /// Reports whether this machine has such a processor.
    fn is_native(self) -> bool {
        self.rust().split('-').next() == Some(std::env::consts::ARCH)
    }
}

/// The part that all packages have in common.
struct Job {
    arch: Arch,
    /// Version and revision.
    version: String,
    /// Unix time that every file in a package gets as its modification time.
    epoch: String,
    /// The program, without symbols.
    program: PathBuf,
    out: PathBuf,
    quick: bool,
}

/// Makes the packages that `args` ask for.
pub fn run(args: &Args) -> Result<()> {
    let out = args.out.clone().unwrap_or_else(|| target_dir().join("package"));
    if !args.twice {
        return make(args, root(), &target_dir().join("package-build"), &out).map(drop);
    }
    let clones = target_dir().join("package-twice");
    let _ = fs::remove_dir_all(&clones);
    let commit = output(command("git").args(["rev-parse", "HEAD"]))?;
    let mut made = Vec::new();
    for name in ["one", "another-folder"] {
        let clone = clones.join(name);
        let git = || command("git");
        crate::run::run(git().args(["clone", "--quiet", "--no-hardlinks", "--no-checkout"]).arg(root()).arg(&clone))?;
        crate::run::run(git().arg("-C").arg(&clone).args(["checkout", "--quiet", "--detach", commit.trim()]))?;
        // Paths in the build are the same for both folders. So cargo takes the dependencies of the first, and builds
        // every crate of the second folder anew, because its files are newer.
        let target = if args.quick { clones.join("target") } else { clone.join("target") };
        made.push(make(args, &clone, &target, &clone.join("package"))?);
    }
    let mut differ = Vec::new();
    for (one, other) in made[0].iter().zip(&made[1]) {
        let same = sha256(one)? == sha256(other)?;
        println!("{} {}", if same { "same  " } else { "DIFFER" }, one.display());
        differ.extend((!same).then(|| format!("{} and {}", one.display(), other.display())));
    }
    ensure!(differ.is_empty(), "not reproducible: {}", differ.join(", "));
    // Packages of a program that is not optimised are not for use.
    if !args.quick {
        fs::create_dir_all(&out).with_context(|| out.display().to_string())?;
        for path in &made[0] {
            fs::copy(path, out.join(path.file_name().context("a package has no name")?))?;
        }
    }
    fs::remove_dir_all(&clones).with_context(|| clones.display().to_string())
}

/// Makes the packages from the checkout `source`, which is built in the folder `target`, and returns their paths.
fn make(args: &Args, source: &Path, target: &Path, out: &Path) -> Result<Vec<PathBuf>> {
    fs::create_dir_all(out).with_context(|| format!("could not make {}", out.display()))?;
    let epoch = epoch(source)?;
    let program = out.join(format!("vouchsafe.{}", args.arch.debian()));
    let built = match &args.binary {
        Some(binary) => binary.clone(),
        None => {
            let profile = if args.twice && args.quick { "demo" } else { "release" };
            program::build(&Build { source, target, arch: args.arch, profile, epoch: &epoch })?
        }
    };
    program::strip(args.arch, &built, &program)?;
    let version = format!("{}-{}", env!("CARGO_PKG_VERSION"), args.revision);
    let job = Job { arch: args.arch, version, epoch, program, out: out.to_owned(), quick: args.quick };
    let mut made = Vec::new();
    for part in Part::value_variants().iter().filter(|part| args.only.is_empty() || args.only.contains(part)) {
        let path = match part {
            Part::Deb => deb::make(&job, source)?,
            Part::Image => image::make(&job, source)?,
            Part::Sbom => sbom::make(&job, source)?,
        };
        println!("{} {}", sha256(&path)?, path.display());
        made.push(path);
    }
    fs::remove_file(&job.program).with_context(|| job.program.display().to_string())?;
    Ok(made)
}

/// Returns `$SOURCE_DATE_EPOCH` if it is set, otherwise the time of the last commit, in Unix seconds.
fn epoch(source: &Path) -> Result<String> {
    if let Ok(set) = std::env::var("SOURCE_DATE_EPOCH") {
        return Ok(set);
    }
    let mut git = command("git");
    git.arg("-C").arg(source);
    // With this setting, git also reads a checkout that another user owns.
    git.args(["-c", "safe.directory=*", "log", "-1", "--format=%ct"]);
    match output(&mut git) {
        Ok(text) => Ok(text.trim().to_owned()),
        Err(error) => bail!("{error:#}; outside of a repository, set SOURCE_DATE_EPOCH"),
    }
}

/// Returns the SHA-256 hash of a file, in hexadecimal.
fn sha256(path: &Path) -> Result<String> {
    let line = output(command("sha256sum").arg("--binary").arg(path))?;
    line.split(' ').next().map(|hash| hash.trim_start_matches('\\').to_owned()).context("sha256sum printed nothing")
}
