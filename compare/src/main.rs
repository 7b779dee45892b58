//! `vouchsafe-compare`: run, list, rank, advise, report.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use anyhow::{Context, Result, ensure};
use clap::{Args, Parser, Subcommand};
use compare::advise;
use compare::driver::{obstacle, version};
use compare::drivers;
use compare::rank::{Weights, oslv, presets, rounded};
use compare::results::Results;
use compare::run::Depth;
use compare::{record, report, truths};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

/// Where results are kept unless `--out` or `--from` says otherwise.
const RESULTS: &str = "target/compare";

#[derive(Parser)]
#[command(name = "vouchsafe-compare", about = "Measures VPNs and Vouchsafe side by side", disable_version_flag = true)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Measure solutions in turns; needs root. Interrupt it to stop, and run it again to continue
    Run(RunArguments),
    /// List the solutions, and why some can't run here
    List,
    /// Check that the method finds what is known beforehand; needs root and some minutes
    Check(CheckArguments),
    /// Rank the solutions of a run by weights
    Rank(RankArguments),
    /// Recommend what to use, with the argument
    Advise(AdviseArguments),
    /// Write a run's report: one HTML file, tables as CSV beside it
    Report(From),
}

#[derive(Args)]
struct CheckArguments {
    /// Number of rounds
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// The folder of the results; a stopped check continues there
    #[arg(long, value_name = "DIR", default_value = "target/compare-check")]
    out: PathBuf,
}

/// Which run is read.
#[derive(Args)]
struct From {
    /// The folder of a run's results
    #[arg(long, value_name = "DIR", default_value = RESULTS)]
    from: PathBuf,
    /// Print a short table in Markdown, as for a README, and write nothing
    #[arg(long)]
    markdown: bool,
}

#[derive(Args)]
struct RankArguments {
    /// The folder of a run's results
    #[arg(long, value_name = "DIR", default_value = RESULTS)]
    from: PathBuf,
    /// A TOML file with a table `weights` and a list `must`
    #[arg(long, value_name = "FILE", conflicts_with_all = ["preset", "oslv"])]
    weights: Option<PathBuf>,
    /// Weights made for somebody: home, campus, factory, cloud
    #[arg(long, value_name = "NAME", conflicts_with = "oslv")]
    preset: Option<String>,
    /// Weight of one criterion, as throughput=3; may be repeated
    #[arg(long = "weight", value_name = "NAME=N", conflicts_with = "oslv")]
    weight: Vec<String>,
    /// A property or feature without which a solution is left out; may be repeated
    #[arg(long, value_name = "NAME", conflicts_with = "oslv")]
    must: Vec<String>,
    /// Use the published heuristic, with weights for overhead, bandwidth, latency and jitter
    #[arg(long, value_name = "N,N,N,N", num_args = 0..=1, default_missing_value = "1,1,1,1", value_delimiter = ',')]
    oslv: Option<Vec<f64>>,
}

#[derive(Args)]
struct AdviseArguments {
    /// The folder of a run's results, from which a candidate is taken; if there is none, no candidate is named
    #[arg(long, value_name = "DIR", default_value = RESULTS)]
    from: PathBuf,
    /// Confidentiality: whom do you trust with packets on their way?
    #[arg(long, value_enum)]
    path: advise::Path,
    /// Confidentiality: which applications encrypt by themselves (TLS, SSH, QUIC)?
    #[arg(long, value_enum)]
    encryption: advise::Encryption,
    /// Confidentiality: must observers not learn with which servers clients talk?
    #[arg(long)]
    secret_addresses: bool,
    /// Integrity: what follows if somebody changes a packet on its way?
    #[arg(long, value_enum, default_value = "noticed")]
    tampering: advise::Tampering,
    /// Non-repudiation: must each access be attributable to a person?
    #[arg(long)]
    attributable: bool,
    /// What do people need to reach?
    #[arg(long, value_enum)]
    reach: advise::Reach,
    /// Who administers the clients' devices?
    #[arg(long, value_enum)]
    devices: advise::Devices,
    /// The devices' systems; several with commas
    #[arg(long, value_enum, value_delimiter = ',', default_value = "linux")]
    platforms: Vec<advise::Platform>,
    /// Cost: what breaks first when it is slow?
    #[arg(long, value_enum, default_value = "nothing")]
    slow: advise::Slow,
}

#[derive(Args)]
struct RunArguments {
    /// Solutions to measure
    #[arg(required_unless_present_any = ["all", "quick"])]
    solutions: Vec<String>,
    /// Measure all solutions
    #[arg(long, conflicts_with = "solutions")]
    all: bool,
    /// Measure the plain path, WireGuard, OpenVPN and Vouchsafe, in short turns
    #[arg(long, conflicts_with_all = ["solutions", "all"])]
    quick: bool,
    /// Take short turns
    #[arg(long)]
    short: bool,
    /// Take the shortest turns: only to see whether solutions work
    #[arg(long, conflicts_with = "short")]
    smoke: bool,
    /// Number of rounds
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,
    /// The folder of the results
    #[arg(long, value_name = "DIR", default_value = RESULTS)]
    out: PathBuf,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if !matches!(arguments.task, Task::Run(_) | Task::Check(_)) {
        // A reader such as `head` may close the output early: end quietly. A run goes on, whoever watches it.
        // SAFETY: the default action replaces the one that Rust has set; no other thread runs yet.
        let _ = unsafe { nix::sys::signal::signal(Signal::SIGPIPE, SigHandler::SigDfl) };
    }
    let done = match arguments.task {
        Task::Run(arguments) => run(&arguments),
        Task::List => list(),
        Task::Check(arguments) => match check(&arguments) {
            Ok(false) => return ExitCode::from(1),
            done => done.map(drop),
        },
        Task::Rank(arguments) => rank(&arguments),
        Task::Advise(arguments) => give_advice(arguments),
        Task::Report(from) => write_report(&from),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("vouchsafe-compare: {error:#}");
            ExitCode::from(2)
        }
    }
}

static STOP: AtomicBool = AtomicBool::new(false);

extern "C" fn stop(_: libc::c_int) {
    STOP.store(true, Relaxed);
}

fn run(arguments: &RunArguments) -> Result<()> {
    let solutions = if arguments.all {
        drivers::all().into_iter().filter(|driver| !driver.is_for_tests()).collect()
    } else if arguments.quick {
        drivers::named(&drivers::QUICK.map(str::to_owned))?
    } else {
        drivers::named(&arguments.solutions)?
    };
    let depth = match (arguments.smoke, arguments.short || arguments.quick) {
        (true, _) => Depth::Smoke,
        (false, true) => Depth::Quick,
        (false, false) => Depth::Full,
    };
    stop_on_signals()?;
    let rounds = arguments.rounds.unwrap_or(depth.rounds());
    compare::run::run(&solutions, rounds, &depth.plan(), &arguments.out, &STOP, |line| eprintln!("compare: {line}"))?;
    println!("{}", arguments.out.join("records.jsonl").display());
    Ok(())
}

/// Has an interrupt end the run between two measurements, so that every namespace is removed.
fn stop_on_signals() -> Result<()> {
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let action = SigAction::new(SigHandler::Handler(stop), SaFlags::empty(), SigSet::empty());
        // SAFETY: the handler only stores to an atomic variable, which a signal handler may do.
        unsafe { sigaction(signal, &action) }.with_context(|| format!("cannot handle {signal}"))?;
    }
    Ok(())
}

/// Returns whether every known truth was found.
fn check(arguments: &CheckArguments) -> Result<bool> {
    stop_on_signals()?;
    let solutions = drivers::named(&truths::SOLUTIONS.map(str::to_owned))?;
    let plan =
        compare::measure::suite::Plan { security: false, restart: false, move_client: false, ..Depth::Full.plan() };
    compare::run::run(&solutions, arguments.rounds, &plan, &arguments.out, &STOP, |line| eprintln!("compare: {line}"))?;
    let findings = truths::check(&results(&arguments.out)?);
    for finding in &findings {
        let word = finding.found.map_or("can't tell", |found| if found { "found" } else { "MISSED" });
        println!("{word:10} {}: {}", finding.truth, finding.evidence);
    }
    Ok(findings.iter().all(|finding| finding.found == Some(true)))
}

fn list() -> Result<()> {
    for driver in drivers::all() {
        let state = obstacle(driver.as_ref()).unwrap_or_else(|| version(driver.as_ref()));
        println!("{:20} {:50} {state}", driver.name(), driver.claims().title);
    }
    Ok(())
}

fn results(dir: &Path) -> Result<Results> {
    let file = dir.join("records.jsonl");
    let records =
        record::read(&file).context("there are no results of a run; make them with `vouchsafe-compare run`")?;
    let results = Results::of(&records);
    ensure!(!results.solutions.is_empty(), "{} has no measured solution", file.display());
    Ok(results)
}

fn rank(arguments: &RankArguments) -> Result<()> {
    let results = results(&arguments.from)?;
    if let Some(weights) = &arguments.oslv {
        let four: [f64; 4] = weights.as_slice().try_into().context("--oslv takes four weights")?;
        ensure!(four.iter().all(|weight| *weight >= 0.0) && four.iter().sum::<f64>() > 0.0, "weights are 0 or more");
        for (place, (name, mean)) in oslv::of(&results, four).iter().enumerate() {
            println!("{:3}  {name:20} mean rank {}", place + 1, rounded(*mean));
        }
        return Ok(());
    }
    let mut weights = match (&arguments.weights, &arguments.preset) {
        (Some(file), _) => {
            let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
            Weights::read(&text).with_context(|| format!("cannot use the weights in {}", file.display()))?
        }
        (None, Some(name)) => presets::named(name)?,
        (None, None) => Weights::default(),
    };
    for pair in &arguments.weight {
        let (name, weight) = pair.split_once('=').with_context(|| format!("`{pair}` is not NAME=N"))?;
        weights.set(name.parse()?, weight.parse().with_context(|| format!("`{weight}` is not a number"))?)?;
    }
    for name in &arguments.must {
        weights.require(name.parse()?);
    }
    ensure!(weights.positive().next().is_some(), "no weights: use --preset, --weights or --weight throughput=3");
    let ranking = compare::rank::rank(&results, &weights);
    for place in &ranking.places {
        println!("{:3}  {:20} {} ± {}", place.place, place.name, rounded(place.score), rounded(place.error));
        for reason in &place.reasons {
            println!("       {reason}");
        }
    }
    for (name, lacks) in &ranking.excluded {
        println!("  -  {name:20} lacks {}", lacks.join(", "));
    }
    println!("Equal places tie: the data does not tell them apart.");
    Ok(())
}

fn give_advice(arguments: AdviseArguments) -> Result<()> {
    let run = arguments.from.join("records.jsonl").exists().then(|| results(&arguments.from)).transpose()?;
    let answers = advise::Answers {
        path: arguments.path,
        encryption: arguments.encryption,
        secret_addresses: arguments.secret_addresses,
        tampering: arguments.tampering,
        attributable: arguments.attributable,
        reach: arguments.reach,
        devices: arguments.devices,
        platforms: arguments.platforms,
        slow: arguments.slow,
    };
    let advice = advise::advise(&answers, run.as_ref());
    println!("{}", advice.sentence());
    for line in &advice.argument {
        println!("- {line}");
    }
    Ok(())
}

fn write_report(from: &From) -> Result<()> {
    let results = results(&from.from)?;
    if from.markdown {
        print!("{}", report::markdown(&results));
        return Ok(());
    }
    println!("{}", report::write(&results, &from.from)?.display());
    Ok(())
}
