//! `make test`: runs every test of the workspace, several test programs at a time.
//!
//! `cargo test` starts one test program after the other. Most of ours wait for packets, timers and daemons, so it would
//! leave the processors idle half of the time. This module asks cargo for the list of test programs and runs as many of
//! them at once as there are processors, and one more while these leave processors idle. Programs that measure time run
//! one after the other, when the others have ended. The emulated machines run beside the last of them and beside the
//! examples in the documentation, and get the processor time that these leave. A line after each program says how much
//! processor time it used, and a line after each group, for which part of the time the processors were busy.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use cargo_metadata::Message;

use crate::run::{self, cargo, command_as_root, output};
use crate::{build, kernels, target_dir};

/// Test programs that compare durations or rates, and whose results any work beside them would change.
const ALONE: &[(&str, &str)] = &[("lab", "hostile_account"), ("lab", "cluster")];
/// Test programs beside which the emulated machines run. Another test program would change their results, but the machines
/// get only the time that these programs leave.
const BESIDE_MACHINES: &[(&str, &str)] = &[("compare", "small_run")];
/// The longest test programs, the longest of all first. They start before the others, so that no processor is idle at
/// the end.
const LONGEST: &[(&str, &str)] = &[
    ("datapath", "two_cores"),
    ("datapath", "kernel_fuzz"),
    ("lab", "seal"),
    ("authority", "authority"),
    ("lab", "published"),
    ("lab", "effectiveness"),
    ("lab", "ladder"),
    ("lab", "rootless"),
    ("verifier", "daemon"),
    ("browser", "console"),
    ("lab", "time"),
    ("lab", "quickstart"),
    ("lab", "identity"),
    ("vouchsafe", "attacks"),
    ("lab", "packages"),
    ("engine", "engine"),
    ("model", "interleavings"),
    ("browser", "login"),
    ("datapath", "kernel_table"),
    ("lab", "silence"),
    ("etcd", "one"),
    ("agent", "agent"),
    ("lab", "openflow"),
];

/// A test program that cargo has built.
struct Program {
    /// Name of the package to which the test program belongs.
    package: String,
    /// Kind of the program's target: `lib`, `bin` or `test`.
    kind: String,
    /// Name of the file with the tests; for unit tests the name of the crate.
    name: String,
    path: PathBuf,
    /// The package's folder, in which cargo, too, starts the program.
    folder: PathBuf,
}

impl fmt::Display for Program {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        write!(out, "{} {} {}", self.package, self.kind, self.name)
    }
}

impl Program {
    fn is_in(&self, list: &[(&str, &str)]) -> bool {
        self.rank(list) < list.len()
    }

    fn rank(&self, list: &[(&str, &str)]) -> usize {
        list.iter().position(|(package, name)| self.package == *package && self.name == *name).unwrap_or(list.len())
    }
}

/// Runs every test here and, unless `no_kernels` is set, the kernel programs' tests in Linux 6.1. With `args`, runs
/// `cargo test --workspace ARGS…` instead, one program after the other.
pub fn run(no_kernels: bool, args: &[String]) -> Result<()> {
    let binary = build::for_tests()?;
    if !run::is_root() {
        eprintln!("xtask: network namespaces and kernel programs need root: test binaries run under sudo");
    }
    if !args.is_empty() {
        return run::run(with_settings(cargo(["test", "--workspace"]).args(args), &binary));
    }
    let programs = programs()?;
    for listed in ALONE.iter().chain(BESIDE_MACHINES).chain(LONGEST) {
        ensure!(
            programs.iter().any(|program| program.is_in(&[*listed])),
            "no test program is {listed:?}: correct the list"
        );
    }
    let (alone, others): (Vec<_>, Vec<_>) = programs.into_iter().partition(|program| program.is_in(ALONE));
    let (beside_machines, mut together): (Vec<_>, Vec<_>) =
        others.into_iter().partition(|program| program.is_in(BESIDE_MACHINES));
    together.sort_by_key(|program| program.rank(LONGEST));
    let lanes = std::thread::available_parallelism()?.get();
    // Downloads take no processor from the tests.
    let preparing = (!no_kernels).then(|| std::thread::spawn(kernels::prepare));
    let mut failed = in_lanes(together, lanes, 1, &binary)?;
    let join = |thread: std::thread::JoinHandle<_>| {
        thread.join().unwrap_or_else(|_| bail!("the thread that prepares the emulated machines panicked"))
    };
    let prepared = preparing.map(join);
    failed.extend(in_lanes(alone, 1, 0, &binary)?);
    std::thread::scope(|scope| {
        let machines = prepared.map(|prepared| scope.spawn(move || kernels::run_beside_tests(prepared?)));
        failed.extend(in_lanes(beside_machines, 1, 0, &binary)?);
        if let Err(error) = run::run(with_settings(&mut cargo(["test", "--workspace", "--doc", "--quiet"]), &binary)) {
            println!("xtask: {error:#}");
            failed.push("the examples in the documentation".to_owned());
        }
        let Some(machines) = machines else { return Ok(()) };
        if let Err(error) = machines.join().unwrap_or_else(|_| bail!("the thread of the emulated machines panicked")) {
            println!("xtask: {error:#}");
            failed.push("the emulated machines".to_owned());
        }
        anyhow::Ok(())
    })?;
    ensure!(failed.is_empty(), "tests FAILED in {}", failed.join(", "));
    Ok(())
}

/// Runs the tests of the rootless client with its static binary.
pub fn of_static_client() -> Result<()> {
    run::run(&mut cargo(["build", "--package", "vouchsafe", "--package", "embed"]))?;
    let mut tests = cargo(["test", "--package", "lab", "--test", "rootless"]);
    let tests = with_settings(&mut tests, &target_dir().join("debug/vouchsafe"));
    run::run(tests.env("VOUCHSAFE_ROOTLESS_BIN", build::static_client()))
}

/// Returns the library for programs in other languages, which [`build::for_tests`] has built beside the binary.
fn library(binary: &Path) -> PathBuf {
    binary.with_file_name("libvouchsafe.so")
}

/// Makes cargo run test programs or benches as root, with the binary that they start and the library beside it.
pub fn with_settings<'a>(cargo: &'a mut Command, binary: &Path) -> &'a mut Command {
    let path = build::with_peers();
    cargo.env("VOUCHSAFE_BIN", binary).env("VOUCHSAFE_LIB", library(binary)).env("PATH", &path);
    if !run::is_root() {
        cargo.env("CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER", runner(&path));
    }
    cargo
}

/// Returns the command with which cargo starts programs as root. sudo puts a search path of its own in place of ours, so
/// `env` sets ours again.
fn runner(path: &OsStr) -> OsString {
    let mut runner = OsString::from("sudo -E");
    // Cargo splits the command at spaces.
    if path.as_encoded_bytes().iter().any(u8::is_ascii_whitespace) {
        eprintln!("xtask: PATH has spaces: VPNs built by xtask/peers.sh are not used under sudo");
        return runner;
    }
    runner.push(" env PATH=");
    runner.push(path);
    runner
}

/// Returns the test programs of the workspace.
fn programs() -> Result<Vec<Program>> {
    let mut build = cargo(["test", "--workspace", "--no-run", "--message-format=json-render-diagnostics"]);
    let mut programs = Vec::new();
    for message in Message::parse_stream(output(&mut build)?.as_bytes()) {
        if let Message::CompilerArtifact(artifact) = message?
            && artifact.profile.test
            && let Some(path) = artifact.executable
        {
            let folder = artifact.manifest_path.parent().context("a manifest lies in no folder")?;
            programs.push(Program {
                package: folder.file_name().context("a package lies in the root folder")?.to_owned(),
                kind: artifact.target.kind.first().map_or_else(|| "test".to_owned(), ToString::to_string),
                name: artifact.target.name,
                path: path.into(),
                folder: folder.into(),
            });
        }
    }
    ensure!(!programs.is_empty(), "the workspace has no test programs");
    Ok(programs)
}

/// Programs that no lane has taken yet.
type Waiting = Mutex<VecDeque<Program>>;

/// The time for which processors are observed before a further lane starts a program.
const OBSERVED: Duration = Duration::from_secs(2);
/// The percentage of this time for which the processors may have been busy. On a busy machine, deadlines of tests pass.
const ROOM: f64 = 50.0;

/// Waits until the processors have room for another program. Returns whether one still waits then.
fn wait_for_room(waiting: &Waiting) -> bool {
    while !waiting.lock().unwrap_or_else(PoisonError::into_inner).is_empty() {
        let before = processor_time();
        std::thread::sleep(OBSERVED);
        match before.zip(processor_time()).and_then(|(before, after)| busy(before, after)) {
            Some(percent) if percent < ROOM => return true,
            Some(_) => {}
            None => return false,
        }
    }
    false
}

/// Runs the programs in `lanes` lanes, each of which takes the next program when it has finished one. `further` lanes
/// take one only while the processors have room. Returns the names of those that failed.
fn in_lanes(programs: Vec<Program>, lanes: usize, further: usize, binary: &Path) -> Result<Vec<String>> {
    let (count, began, before) = (programs.len(), Instant::now(), processor_time());
    let waiting: Waiting = Mutex::new(programs.into());
    let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    let lane = &|is_further: bool| -> Result<Vec<String>> {
        let mut failed = Vec::new();
        while !is_further || wait_for_room(&waiting) {
            let Some(program) = next() else { break };
            if !run_one(&program, binary)?.success() {
                failed.push(program.to_string());
            }
        }
        Ok(failed)
    };
    let outcomes: Vec<_> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..lanes + further).map(|number| scope.spawn(move || lane(number >= lanes))).collect();
        running.into_iter().map(|lane| lane.join().unwrap_or_else(|_| bail!("a lane of tests panicked"))).collect()
    });
    let failed = outcomes.into_iter().collect::<Result<Vec<_>>>()?.concat();
    print!("\nxtask: {count} test programs in {lanes} lanes took {:.0} s", began.elapsed().as_secs_f64());
    match before.zip(processor_time()).and_then(|(before, after)| busy(before, after)) {
        Some(percent) => println!("; this machine's processors were busy for {percent:.0} % of that time"),
        None => println!(),
    }
    Ok(failed)
}

/// How long this machine's processors have been busy, and how long they have been there, in ticks since it was booted.
type Ticks = [u64; 2];

/// Returns [`Ticks`] from the kernel; `None` where there is no /proc.
fn processor_time() -> Option<Ticks> {
    ticks(&fs::read_to_string("/proc/stat").ok()?)
}

/// Reads the first line of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal. The fields behind these are
/// parts of them.
fn ticks(stat: &str) -> Option<Ticks> {
    let fields = stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace().take(8);
    let fields: Vec<u64> = fields.map(|field| field.parse().ok()).collect::<Option<_>>()?;
    let all = fields.iter().sum::<u64>();
    Some([all - fields.get(3)? - fields.get(4)?, all])
}

/// Returns the percentage of the time between two readings in which the processors were busy.
fn busy(before: Ticks, after: Ticks) -> Option<f64> {
    let [busy, all] = [0, 1].map(|at| after[at].saturating_sub(before[at]));
    (all > 0).then(|| busy as f64 / all as f64 * 100.0)
}

/// Runs one test program. Its output goes to a file below target/tests, and is printed as a whole when the program has
/// ended, so that the outputs of two programs do not mix.
fn run_one(program: &Program, binary: &Path) -> Result<ExitStatus> {
    let began = Instant::now();
    let dir = target_dir().join("tests");
    fs::create_dir_all(&dir).with_context(|| format!("could not make {}", dir.display()))?;
    let path = dir.join(format!("{}-{}-{}.txt", program.package, program.kind, program.name));
    let output = File::create(&path).with_context(|| format!("could not write {}", path.display()))?;
    // Pass the search path as an argument of env, because sudo puts its own in place of the variable.
    let mut search = OsString::from("PATH=");
    search.push(build::with_peers());
    let mut command = command_as_root("env");
    command.arg(search).arg(&program.path).current_dir(&program.folder);
    command.env("VOUCHSAFE_BIN", binary).env("VOUCHSAFE_LIB", library(binary));
    command.env("CARGO_MANIFEST_DIR", &program.folder);
    command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
    let mut child = command.spawn().with_context(|| format!("could not start {}", program.path.display()))?;
    let used = wait_and_measure(&child).map_or_else(String::new, |used| format!(", {used:.1} s of processors"));
    let status = child.wait().with_context(|| format!("could not wait for {}", program.path.display()))?;
    let printed = fs::read(&path).with_context(|| format!("could not read {}", path.display()))?;
    let mut out = std::io::stdout().lock();
    let took = began.elapsed().as_secs_f64();
    writeln!(out, "\nxtask: {program}: {status}, {took:.1} s{used}")?;
    out.write_all(&printed)?;
    Ok(status)
}

/// Time between two looks at a process that runs.
const LOOK: Duration = Duration::from_millis(10);

/// Waits until a process has ended. Returns how many seconds of processor time it used, together with those of its
/// children for which it waited; `None` where there is no /proc.
fn wait_and_measure(child: &Child) -> Option<f64> {
    let stat = format!("/proc/{}/stat", child.id());
    loop {
        // The kernel keeps the figures of a process that has ended until its parent waits for it.
        let used = used_by_ended(&fs::read_to_string(&stat).ok()?);
        if used.is_some() {
            return used;
        }
        std::thread::sleep(LOOK);
    }
}

/// Reads the processor time, in seconds, from /proc/PID/stat; `None` if the process still runs.
fn used_by_ended(stat: &str) -> Option<f64> {
    // The second field is a name in parentheses, which may contain both spaces and parentheses. State is the third, and
    // the times of the process and of its children are the 14th to 17th.
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ');
    if fields.next()? != "Z" {
        return None;
    }
    let times = fields.skip(10).take(4).map(|field| field.parse::<u64>().ok()).collect::<Option<Vec<_>>>()?;
    // The kernel shows such times in hundredths of a second, whatever it counts in.
    (times.len() == 4).then(|| times.iter().sum::<u64>() as f64 / 100.0)
}

#[cfg(test)]
mod tests_of_lanes {
    use super::*;

    #[test]
    fn processors_that_wait_for_a_disk_are_not_busy() {
        let before = ticks("cpu  10 0 10 100 50 0 5 5 7 0\ncpu0 1 1 1\n").unwrap();
        assert_eq!(before, [30, 180]);
        let after = ticks("cpu  40 0 20 140 80 0 5 5 7 0\n").unwrap();
        assert_eq!(busy(before, after).map(f64::round), Some(36.0));
        assert_eq!(busy(before, before), None);
        assert_eq!(ticks("cpu  1 2\n"), None);
        assert_eq!(ticks(""), None);
    }

    #[test]
    fn the_processor_time_of_a_process_is_known_when_it_has_ended() {
        let stat = |state| format!("7 (a) b) {state} 1 1 1 0 -1 4 10 20 0 0 150 50 25 75 20 0 1 0 9 0 0\n");
        assert_eq!(used_by_ended(&stat("Z")), Some(3.0));
        assert_eq!(used_by_ended(&stat("S")), None);
        assert_eq!(used_by_ended("7 (a) Z 1 1"), None);

        let mut command = Command::new("sh");
        command.args(["-c", "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; exit 3"]);
        let mut child = command.spawn().unwrap();
        assert!(wait_and_measure(&child).unwrap() > 0.0);
        assert_eq!(child.wait().unwrap().code(), Some(3));
    }
}
