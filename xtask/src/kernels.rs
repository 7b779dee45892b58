//! Runs the datapath's tests in Debian 12's 6.1 kernel, the oldest supported one, booted in an emulated machine.
//!
//! This needs no root, KVM or disk image. The kernel comes from Debian's package. One initramfs contains busybox, the
//! test binaries and the libraries that they load.

use std::collections::{BTreeSet, VecDeque};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use cargo_metadata::Message;

use crate::run::{cargo, command, command_as_root, output, root, run as run_command, succeeds};
use crate::target_dir;

/// The binaries whose tests take longest in an emulated machine, the longest first. Guests take these first, so that no
/// guest waits for another at the end.
const LONGEST: &[&str] =
    &["kernel_table", "kernel_replay", "kernel_hooks", "kernel_fuzz", "kernel_gateway", "kernel_proofs"];

/// Name of the oldest supported kernel's package, before and after the number that counts ABI changes.
const PACKAGE: (&str, &str) = ("linux-image-6.1.0-", "-cloud-amd64");
/// Modules of the cloud kernel that the tests need.
const MODULES: &[&str] = &["veth", "sch_ingress", "cls_bpf"];
/// The init of the guest. Each `@…@` in it stands for a value that differs between boots.
const INIT: &str = include_str!("kernels-init.sh");
/// Programs that tests run and that busybox cannot fully replace. Programs that this host lacks are left out.
const TOOLS: &[&str] = &["ip", "tc", "nsenter"];
/// Prefix of the line in which the guest reports the exit status of its tests.
const EXIT: &str = "VOUCHSAFE-EXIT ";
/// The line with which the guest asks for the name of its next test.
const NEXT: &str = "VOUCHSAFE-NEXT";

/// The beginning of the names of the tests that run in the guest.
const FILTER: &str = "kernel_";
/// Number of seconds that a guest has.
const LIMIT: u64 = 1200;

/// Options of `kernels`.
#[derive(clap::Args)]
pub struct Args {
    /// Run only tests whose name contains this
    #[arg(default_value = FILTER)]
    filter: String,
    /// Use this kernel package instead of the newest that apt offers
    #[arg(long, value_name = "FILE")]
    deb: Option<PathBuf>,
    /// Give up after this many seconds in the guest
    #[arg(long, default_value_t = LIMIT)]
    timeout: u64,
}

/// Fetches the kernel, builds the initramfs, boots it, and reports the results of the tests.
pub fn run(args: &Args) -> Result<()> {
    let kernel = match &args.deb {
        Some(deb) => unpack(deb)?,
        None => newest()?.with_context(|| {
            format!(
                "apt knows no package {}NN{} here; on anything but Debian 12, download one from \
                 packages.debian.org/bookworm and name it with --deb",
                PACKAGE.0, PACKAGE.1
            )
        })?,
    };
    let binaries = test_binaries("--package=datapath")?;
    let initramfs = initramfs(&kernel, &binaries, &args.filter)?;
    boot(&Prepared { kernel, binaries, initramfs }, &args.filter, args.timeout, false)
}

/// The kernel and the files that a boot needs.
pub struct Prepared {
    kernel: Kernel,
    binaries: Vec<PathBuf>,
    initramfs: PathBuf,
}

/// Fetches the kernel and builds the initramfs for [`run_beside_tests`], with the datapath's test binaries, built as
/// for `cargo test --workspace`. Returns `None` if Debian's kernel is not available.
pub fn prepare() -> Result<Option<Prepared>> {
    let Some(kernel) = newest()? else { return Ok(None) };
    let binaries = test_binaries("--workspace")?;
    let initramfs = initramfs(&kernel, &binaries, FILTER)?;
    Ok(Some(Prepared { kernel, binaries, initramfs }))
}

/// Runs the datapath's tests in the prepared kernel as part of `test`, with the processor time that other tests leave.
/// Skips them if `prepared` is `None`.
pub fn run_beside_tests(prepared: Option<Prepared>) -> Result<()> {
    let Some(prepared) = prepared else {
        println!("kernels: SKIPPED: apt knows no Debian 12 kernel here; see `cargo xtask kernels --help` for --deb");
        return Ok(());
    };
    boot(&prepared, FILTER, LIMIT, true)
}

/// An unpacked kernel package.
struct Kernel {
    image: PathBuf,
    modules: PathBuf,
    version: String,
}

/// Returns the newest kernel that apt offers, or else one that an earlier run downloaded; `None` if there is neither.
fn newest() -> Result<Option<Kernel>> {
    let mut fetched = fetch()?;
    if fetched.is_none() && (candidate()?.is_some() || !has_package_lists()) {
        // The package lists are older than the mirror or, in a bare container, are missing.
        let _ = run_command(command_as_root("apt-get").args(["-qq", "update"]));
        fetched = fetch()?;
    }
    if let Some(deb) = fetched {
        return unpack(&deb).map(Some);
    }
    let mut left: Vec<_> = fs::read_dir(dir()?)?.flatten().map(|entry| entry.path()).collect();
    left.retain(|path| path.extension().is_some_and(|extension| extension == "deb"));
    left.sort();
    match left.last() {
        Some(deb) => unpack(deb).map(Some),
        None if candidate()?.is_some() => bail!("apt-get could not download Debian's 6.1 kernel"),
        None => Ok(None),
    }
}

/// Downloads the newest kernel package and returns its path; `None` if apt does not offer or cannot download it.
fn fetch() -> Result<Option<PathBuf>> {
    let Some((package, version)) = candidate()? else { return Ok(None) };
    let dir = dir()?;
    let deb = dir.join(format!("{package}_{}_amd64.deb", version.replace(':', "%3a")));
    if !deb.exists() {
        println!("kernels: fetching {package} {version}");
        succeeds(command("apt-get").args(["-qq", "download", &format!("{package}={version}")]).current_dir(&dir));
    }
    Ok(deb.exists().then_some(deb))
}

fn has_package_lists() -> bool {
    let lists = fs::read_dir("/var/lib/apt/lists").into_iter().flatten().flatten();
    lists.into_iter().any(|entry| entry.file_name().to_string_lossy().contains("_Packages"))
}

/// Returns name and version of the newest kernel package that apt offers; `None` if it offers none.
fn candidate() -> Result<Option<(String, String)>> {
    let mut search = command("apt-cache");
    search.args(["search", "--names-only", &format!("^{}[0-9]+{}$", PACKAGE.0.replace('.', "\\."), PACKAGE.1)]);
    // Without apt, there is no candidate.
    let Ok(found) = output(&mut search) else { return Ok(None) };
    let number = |name: &str| name.strip_prefix(PACKAGE.0)?.strip_suffix(PACKAGE.1)?.parse::<u32>().ok();
    let names = found.lines().filter_map(|line| line.split(' ').next());
    let Some(package) = names.max_by_key(|name| number(name)) else { return Ok(None) };
    let shown = output(command("apt-cache").args(["show", "--no-all-versions", package]))?;
    let version =
        shown.lines().find_map(|line| line.strip_prefix("Version: ")).context("apt-cache shows no version")?;
    Ok(Some((package.to_owned(), version.to_owned())))
}

fn unpack(deb: &Path) -> Result<Kernel> {
    let deb = deb.canonicalize().with_context(|| format!("no kernel package at {}", deb.display()))?;
    let name = deb.file_stem().context("the path of the kernel package names no file")?.to_string_lossy().into_owned();
    let tree = dir()?.join(&name);
    if !tree.exists() {
        let partial = dir()?.join(format!("{name}.partial"));
        let _ = fs::remove_dir_all(&partial);
        run_command(command("dpkg-deb").arg("-x").arg(&deb).arg(&partial))?;
        fs::rename(&partial, &tree)?;
    }
    let within = |part: &str| -> Result<PathBuf> {
        let (dir, start) = part.rsplit_once('/').expect("a folder and the start of a name");
        let mut entries = fs::read_dir(tree.join(dir)).with_context(|| format!("{name} has no {dir}"))?.flatten();
        let found = entries.find(|entry| entry.file_name().to_string_lossy().starts_with(start));
        Ok(found.with_context(|| format!("{name} has no {part}…"))?.path())
    };
    let (image, modules) = (within("boot/vmlinuz")?, within("lib/modules/")?);
    let version = modules.file_name().expect("it has been found by name").to_string_lossy().into_owned();
    Ok(Kernel { image, modules, version })
}

/// Builds the datapath's test executables and returns their paths.
fn test_binaries(packages: &str) -> Result<Vec<PathBuf>> {
    let mut build = cargo(["test", "--no-run", "--message-format=json-render-diagnostics", packages]);
    let messages = output(&mut build)?;
    let manifest = root().join("crates/datapath/Cargo.toml");
    let mut binaries = Vec::new();
    for message in Message::parse_stream(messages.as_bytes()) {
        if let Message::CompilerArtifact(artifact) = message?
            && artifact.profile.test
            && artifact.manifest_path == manifest.as_path()
        {
            binaries.extend(artifact.executable.map(PathBuf::from));
        }
    }
    ensure!(!binaries.is_empty(), "the datapath has no test binaries");
    Ok(binaries)
}

/// Names of the test binaries that no guest has taken yet.
type Queue = Mutex<VecDeque<String>>;

/// Boots one guest per processor. Each guest asks for one test binary after the other until none is left. If
/// `gives_way`, guests get processors only while no other process of this session wants them.
fn boot(prepared: &Prepared, filter: &str, limit: u64, gives_way: bool) -> Result<()> {
    let Prepared { kernel, binaries, initramfs } = prepared;
    let names = binaries.iter().filter_map(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
    let mut names: Vec<_> = names.collect();
    names.sort_by_key(|name| rank(name));
    let queue: Queue = Mutex::new(names.into());
    let guests = std::thread::available_parallelism()?.get().min(binaries.len());
    println!("kernels: booting {} in {guests} emulated machines", kernel.version);
    let limit = Duration::from_secs(limit);
    let outcomes: Vec<Result<Outcome>> = std::thread::scope(|scope| {
        let guest = |number| {
            let queue = &queue;
            let name = format!("{}/{number}", kernel.version);
            scope.spawn(move || watch(start(kernel, initramfs, gives_way)?, &name, queue, limit))
        };
        let guests: Vec<_> = (1..=guests).map(guest).collect();
        guests
            .into_iter()
            .map(|guest| guest.join().unwrap_or_else(|_| bail!("kernels: the thread of a guest panicked")))
            .collect()
    });
    let mut passed = 0;
    for outcome in outcomes {
        let outcome = outcome?;
        ensure!(outcome.exit == Some(0), "kernels: tests FAILED in {}", kernel.version);
        passed += outcome.passed;
    }
    ensure!(passed > 0, "kernels: no test of the datapath has a name that contains {filter:?}");
    println!("kernels: {passed} tests passed in {}", kernel.version);
    Ok(())
}

/// Returns the position of a test binary in the order in which guests take them. Its name is that of its tests, with a
/// hash behind a hyphen.
fn rank(name: &str) -> usize {
    let tests = name.rsplit_once('-').map_or(name, |(tests, _)| tests);
    LONGEST.iter().position(|longest| *longest == tests).unwrap_or(LONGEST.len())
}

/// Starts one emulated machine. Its serial line is the standard input and output of the process.
fn start(kernel: &Kernel, initramfs: &Path, gives_way: bool) -> Result<Machine> {
    const QEMU: &str = "qemu-system-x86_64";
    let mut machine = command(if gives_way { "chrt" } else { QEMU });
    if gives_way {
        machine.args(["--idle", "0", QEMU]);
    }
    // Emulation of the instructions that copy byte by byte is slow. The kernel uses them if the processor says that
    // they are fast (ERMS, FSRM).
    machine.args(
        "-accel tcg -cpu max,erms=off,fsrm=off -smp 1 -m 1024 -nographic -no-reboot -nodefaults -serial stdio -monitor none".split(' '),
    );
    machine.arg("-kernel").arg(&kernel.image).arg("-initrd").arg(initramfs);
    // The kernel's protection against faults of real processors is slow to emulate. Without it, the BPF verifier checks
    // the same for root. A run of `cargo xtask kernels` has it, and so tests the code that it adds to compiled
    // programs.
    let protection = if gives_way { " mitigations=off" } else { "" };
    machine.arg("-append").arg(format!("console=ttyS0 panic=-1 quiet{protection}"));
    let child = machine.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    Ok(Machine(child.context("qemu-system-x86_64")?))
}

/// A running qemu process, which is killed on drop.
struct Machine(Child);

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[derive(Default)]
struct Outcome {
    exit: Option<i32>,
    passed: u32,
}

/// Gives the guest test binaries from the queue, prints its console line by line, and returns the outcome.
fn watch(mut machine: Machine, name: &str, queue: &Queue, limit: Duration) -> Result<Outcome> {
    let console = BufReader::new(machine.0.stdout.take().context("qemu's output")?);
    let mut keyboard = machine.0.stdin.take().context("qemu's input")?;
    let (lines, received) = channel();
    std::thread::spawn(move || {
        for line in console.split(b'\n').map_while(Result::ok) {
            if lines.send(String::from_utf8_lossy(&line).trim_end().to_owned()).is_err() {
                break;
            }
        }
    });
    let deadline = Instant::now() + limit;
    let mut outcome = Outcome::default();
    loop {
        match received.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            // Skip the firmware's output, which contains control sequences for the terminal.
            Ok(line) if line.contains('\x1b') || line.starts_with("Booting from") => {}
            Ok(line) if line == NEXT => {
                let test = queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                // The guest ends when it receives an empty line.
                writeln!(keyboard, "{}", test.unwrap_or_default()).context("qemu's input")?;
            }
            Ok(line) => {
                println!("{name} | {line}");
                if let Some(code) = line.strip_prefix(EXIT) {
                    outcome.exit = code.parse().ok();
                }
                outcome.passed += passed(&line);
            }
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => bail!("kernels: {name} did not end within {} s", limit.as_secs()),
        }
    }
    ensure!(outcome.exit.is_some(), "kernels: {name} ended without reporting its tests; its console is above");
    Ok(outcome)
}

/// Returns the number N in a line "test result: ok. N passed; …", and 0 for any other line.
fn passed(line: &str) -> u32 {
    let counted = || line.strip_prefix("test result: ")?.split_once(". ")?.1.split(' ').next()?.parse().ok();
    counted().unwrap_or(0)
}

/// Builds an initramfs with busybox, the tests, the libraries that they load, and an init that runs them. Returns its
/// path.
fn initramfs(kernel: &Kernel, binaries: &[PathBuf], filter: &str) -> Result<PathBuf> {
    let tree = dir()?.join("initramfs");
    let _ = fs::remove_dir_all(&tree);
    for dir in ["bin", "dev", "etc", "proc", "run", "sys", "tmp", "tests", "modules", "var"] {
        fs::create_dir_all(tree.join(dir))?;
    }
    symlink("/run", tree.join("var/run"))?;
    let busybox = ["/bin/busybox", "/usr/bin/busybox"].into_iter().find(|path| Path::new(path).exists());
    let busybox = busybox.context("busybox is missing: run `make setup`")?;
    fs::copy(busybox, tree.join("bin/busybox"))?;
    symlink("busybox", tree.join("bin/sh"))?;

    let modules = insert_modules(kernel, &tree)?;
    let mut files = BTreeSet::new();
    for binary in binaries {
        let name = binary.file_name().context("the path of a test binary names no file")?;
        // Debug information is most of a binary's size, and the guest's memory is small.
        run_command(command("strip").arg("--strip-debug").arg("-o").arg(tree.join("tests").join(name)).arg(binary))?;
        files.extend(loaded_by(binary)?);
    }
    for tool in TOOLS {
        let places = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"].map(|dir| Path::new(dir).join(tool));
        if let Some(path) = places.into_iter().find(|path| path.exists()) {
            files.extend(loaded_by(&path)?);
            files.insert(path);
        }
    }
    for file in &files {
        copy_as_is(file, &tree)?;
    }
    test_data(&root().join("crates"), &tree)?;
    let here = root().join("crates/datapath");
    fs::create_dir_all(inside(&tree, &here))?;
    let script = INIT.replace("@MODULES@", &modules.join(" "));
    let script = script
        .replace("@FILTER@", filter)
        .replace("@HERE@", &here.to_string_lossy())
        .replace("@EXIT@", EXIT)
        .replace("@NEXT@", NEXT);
    let init = tree.join("init");
    fs::write(&init, script)?;
    fs::set_permissions(&init, fs::Permissions::from_mode(0o755))?;

    let archive = dir()?.join("initramfs.cpio");
    let mut cpio = command("cpio");
    cpio.args(["--create", "--format=newc", "--owner=0:0", "--quiet"]).current_dir(&tree);
    cpio.stdin(Stdio::piped()).stdout(File::create(&archive)?);
    let mut cpio = cpio.spawn().context("cpio")?;
    let names = output(command("find").arg(".").current_dir(&tree))?;
    cpio.stdin.take().context("cpio's input")?.write_all(names.as_bytes())?;
    ensure!(cpio.wait()?.success(), "cpio failed");
    Ok(archive)
}

/// Copies [`MODULES`] and the modules that they depend on. Returns their names in the order in which to load them.
fn insert_modules(kernel: &Kernel, tree: &Path) -> Result<Vec<String>> {
    let listing = output(command("find").arg(&kernel.modules).args(["-name", "*.ko"]))?;
    let mut loaded = Vec::new();
    for module in MODULES {
        insert_module(module, &listing, tree, &mut loaded)?;
    }
    Ok(loaded)
}

fn insert_module(module: &str, listing: &str, tree: &Path, loaded: &mut Vec<String>) -> Result<()> {
    if loaded.iter().any(|known| known == module) {
        return Ok(());
    }
    let is_it = |path: &&str| {
        let name = Path::new(path).file_stem().map(|name| name.to_string_lossy().replace('-', "_"));
        name.as_deref() == Some(module)
    };
    // If there is no file for the module, it is built into the kernel.
    let Some(path) = listing.lines().find(is_it) else { return Ok(()) };
    let image = fs::read(path)?;
    for needed in depends(&image) {
        insert_module(&needed, listing, tree, loaded)?;
    }
    fs::write(tree.join("modules").join(format!("{module}.ko")), image)?;
    loaded.push(module.to_owned());
    Ok(())
}

/// Returns the dependencies in a module's .modinfo section, because the package contains no modules.dep.
fn depends(image: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(at) = image.windows(KEY.len()).position(|window| window == KEY) else { return Vec::new() };
    let value = image[at + KEY.len()..].split(|byte| *byte == 0).next().unwrap_or_default();
    let value = String::from_utf8_lossy(value).replace('-', "_");
    value.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// Returns the paths under which `binary` finds its shared libraries and its loader.
fn loaded_by(binary: &Path) -> Result<Vec<PathBuf>> {
    let listing = output(command("ldd").arg(binary))?;
    Ok(listing.split_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from).collect())
}

/// Copies the data files of the crates' tests (vectors, corpora) into the tree, at their absolute paths.
fn test_data(crates: &Path, tree: &Path) -> Result<()> {
    for entry in fs::read_dir(crates)?.flatten() {
        let tests = entry.path().join("tests");
        if !tests.is_dir() {
            continue;
        }
        for path in output(command("find").arg(&tests).args(["-type", "f", "!", "-name", "*.rs"]))?.lines() {
            copy_as_is(Path::new(path), tree)?;
        }
    }
    Ok(())
}

fn copy_as_is(path: &Path, tree: &Path) -> Result<()> {
    let to = inside(tree, path);
    fs::create_dir_all(to.parent().context("the file has no folder")?)?;
    fs::copy(path, &to).with_context(|| format!("could not copy {}", path.display()))?;
    Ok(())
}

fn inside(tree: &Path, absolute: &Path) -> PathBuf {
    tree.join(absolute.strip_prefix("/").unwrap_or(absolute))
}

fn dir() -> Result<PathBuf> {
    let dir = target_dir().join("kernels");
    fs::create_dir_all(&dir).with_context(|| format!("could not make {}", dir.display()))?;
    Ok(dir)
}

#[cfg(test)]
mod tests {
    use super::{LONGEST, depends, passed, rank};

    #[test]
    fn a_module_names_what_it_needs() {
        assert_eq!(depends(b"\x7fELF\0license=GPL\0depends=nf-nat,nf_tables\0name=x\0"), ["nf_nat", "nf_tables"]);
        assert!(depends(b"\0depends=\0name=veth\0").is_empty());
        assert!(depends(b"").is_empty());
    }

    #[test]
    fn the_longest_tests_come_first() {
        let mut names = ["hops-12ab", "kernel_replay-34cd", "kernel_table-56ef", "kernel_tables-78ab"];
        names.sort_by_key(|name| rank(name));
        assert_eq!(names, ["kernel_table-56ef", "kernel_replay-34cd", "hops-12ab", "kernel_tables-78ab"]);
        let tests = crate::run::root().join("crates/datapath/tests");
        assert!(LONGEST.iter().all(|name| tests.join(name).with_extension("rs").exists()), "correct the list");
    }

    #[test]
    fn passed_tests_are_counted() {
        assert_eq!(passed("test result: ok. 12 passed; 0 failed; 0 ignored"), 12);
        assert_eq!(passed("test result: FAILED. 3 passed; 1 failed"), 3);
        assert_eq!(passed("running 3 tests"), 0);
    }
}
