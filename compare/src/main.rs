//! The program `vouchsafe-compare`, with the commands run, list, check, rank, advise and report.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::{Args, Parser, Subcommand};
use compare::advise;
use compare::driver::{Driver, obstacle, version};
use compare::drivers;
use compare::measure::suite::Plan;
use compare::rank::{Weights, oslv, presets, rounded};
use compare::results::Results;
use compare::run::{Depth, LONGEST_TURN, Order};
use compare::study::{self, Study};
use compare::{record, report, truths};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

/// Default time limits of `--all` and of `--quick`, in minutes.
const MINUTES: [f64; 2] = [59.0, 7.6];

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
    /// List the solutions; for those that can't run here, print the reason
    List,
    /// Check that the method finds known truths; needs root and some minutes
    Check(CheckArguments),
    /// Rank the solutions of a run by weights
    Rank(RankArguments),
    /// Recommend what to use, and give the reasons
    Advise(AdviseArguments),
    /// Write a run's report: an HTML file, and tables as CSV beside it
    Report(From),
    /// Open sockets and pass them to the measurements; `vouchsafe run` starts this program for the client without root
    #[command(hide = true)]
    Broker {
        /// The Unix socket to listen at
        socket: PathBuf,
    },
}

#[derive(Args)]
struct CheckArguments {
    /// Number of rounds
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// The folder of the results; a stopped check continues there
    #[arg(long, value_name = "DIR", default_value = "target/compare-check")]
    out: PathBuf,
}

/// The run to read.
#[derive(Args)]
struct From {
    /// The folder of a run's results
    #[arg(long, value_name = "DIR", default_value = RESULTS)]
    from: PathBuf,
    /// File with the figures of Vouchsafe's bench; if it exists, the report shows them next to a paper's figures
    #[arg(long, value_name = "FILE", default_value = "target/bench/summary.json")]
    bench: PathBuf,
    /// Print a table in Markdown, and write nothing
    #[arg(long)]
    markdown: bool,
    /// Put a short table into this README, between its marks or before its section `Status`; write nothing else
    #[arg(long, value_name = "README", conflicts_with = "markdown")]
    into: Option<PathBuf>,
}

#[derive(Args)]
struct RankArguments {
    /// The folder of a run's results
    #[arg(long, value_name = "DIR", default_value = RESULTS)]
    from: PathBuf,
    /// A TOML file with a table `weights` and a list `must`
    #[arg(long, value_name = "FILE", conflicts_with_all = ["preset", "oslv"])]
    weights: Option<PathBuf>,
    /// Ready-made weights for a kind of users: home, campus, factory, cloud
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
    /// The folder of a run's results, from which the advice takes a tunnel; without this folder, the advice names no
    /// tunnel
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
    /// Integrity: what happens if somebody changes a packet on its way?
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
    /// Cost: which use suffers first when access is slow?
    #[arg(long, value_enum, default_value = "nothing")]
    slow: advise::Slow,
}

#[derive(Args)]
struct RunArguments {
    /// Solutions and studies to measure; `list` names them
    #[arg(required_unless_present_any = ["all", "quick"])]
    solutions: Vec<String>,
    /// Measure all solutions and studies, within an hour
    #[arg(long, conflicts_with = "solutions")]
    all: bool,
    /// Measure the plain path, WireGuard, OpenVPN and Vouchsafe in all treatments, within eight minutes
    #[arg(long, conflicts_with_all = ["solutions", "all"])]
    quick: bool,
    /// Take short turns
    #[arg(long)]
    short: bool,
    /// Take the shortest turns: only to see whether solutions work
    #[arg(long, conflicts_with = "short")]
    smoke: bool,
    /// Measure restart of the server and change of address in every round: some ten seconds more for each turn
    #[arg(long)]
    changes: bool,
    /// Number of rounds
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,
    /// Time limit of the run, in minutes. If it is too short, transfers become shorter. If that is not enough, the run
    /// has fewer rounds. By default 59 for --all, 7.6 for --quick
    #[arg(long, value_name = "N", value_parser = positive)]
    minutes: Option<f64>,
    /// Longest turn of a solution in seconds; a solution that takes longer is stopped, reported, and not measured again
    #[arg(long, value_name = "SECONDS", default_value_t = LONGEST_TURN.as_secs(), value_parser = clap::value_parser!(u64).range(1..))]
    limit: u64,
    /// Make studies as long as in the papers: transfers of 30 s, and runs of 10 min with new keys every 120 s
    #[arg(long, conflicts_with_all = ["quick", "smoke", "short", "minutes"])]
    paper_lengths: bool,
    /// The folder of the results
    #[arg(long, value_name = "DIR", default_value = RESULTS)]
    out: PathBuf,
}

fn positive(text: &str) -> Result<f64> {
    let number: f64 = text.parse().with_context(|| format!("`{text}` is not a number"))?;
    ensure!(number > 0.0 && number.is_finite(), "`{text}` is not above 0");
    Ok(number)
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if !matches!(arguments.task, Task::Run(_) | Task::Check(_) | Task::Broker { .. }) {
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
        Task::Broker { socket } => compare::measure::way::serve(&socket).context("cannot pass sockets"),
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
    let everything = || drivers::all().into_iter().filter(|driver| !driver.is_for_tests()).collect();
    let (solutions, studies) = match (arguments.all, arguments.quick) {
        (true, _) => (everything(), study::all()),
        (false, true) => (drivers::named(&drivers::QUICK.map(str::to_owned))?, Vec::new()),
        (false, false) => named(&arguments.solutions)?,
    };
    let depth = match (arguments.smoke, arguments.short || arguments.quick) {
        (true, _) => Depth::Smoke,
        (false, true) => Depth::Quick,
        (false, false) => Depth::Full,
    };
    stop_on_signals()?;
    let mut plan = Plan { changes_once: !arguments.changes, ..depth.plan() };
    let mut limit = Duration::from_secs(arguments.limit);
    if arguments.paper_lengths {
        (plan.span, plan.paper_lengths) = (Duration::from_secs(30), true);
        limit = limit.max(Duration::from_secs(24 * 3600));
    }
    let [whole, quick] = MINUTES;
    let minutes = arguments.minutes.or(match (arguments.all && !arguments.paper_lengths, arguments.quick) {
        (true, _) => Some(whole),
        (false, true) => Some(quick),
        (false, false) => None,
    });
    let order = Order {
        studies: &studies,
        time: minutes.map(|minutes| Duration::from_secs_f64(minutes * 60.0)),
        limit,
        ..Order::new(&solutions, arguments.rounds.unwrap_or(depth.rounds()), plan)
    };
    compare::run::run(&order, &arguments.out, &STOP, |line| eprintln!("compare: {line}"))?;
    println!("{}", arguments.out.join("records.jsonl").display());
    Ok(())
}

/// Solutions and studies that a run measures.
type Chosen = (Vec<Box<dyn Driver>>, Vec<Box<dyn Study>>);

/// Returns the solutions and the studies of these names.
fn named(names: &[String]) -> Result<Chosen> {
    let studies: Vec<_> =
        study::all().into_iter().filter(|study| names.iter().any(|name| name == study.name())).collect();
    let rest: Vec<_> =
        names.iter().filter(|name| !studies.iter().any(|study| study.name() == name.as_str())).cloned().collect();
    Ok((drivers::named(&rest)?, studies))
}

/// Makes SIGINT and SIGTERM end the run between two measurements, so that every namespace is removed.
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
    let order = Order::new(&solutions, arguments.rounds, truths::plan());
    compare::run::run(&order, &arguments.out, &STOP, |line| eprintln!("compare: {line}"))?;
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
    for study in study::all() {
        let state = study.obstacle().unwrap_or_else(|| "study".to_owned());
        println!("{:20} {:50} {state}", study.name(), study.title());
    }
    Ok(())
}

fn results(dir: &Path) -> Result<Results> {
    let file = dir.join("records.jsonl");
    let records = record::read(&file)
        .context("this folder contains no results of a run; make them with `vouchsafe-compare run`")?;
    let results = Results::of(&records);
    let empty = results.solutions.is_empty() && results.cells.is_empty();
    ensure!(!empty, "{} contains no measured value", file.display());
    Ok(results)
}

fn rank(arguments: &RankArguments) -> Result<()> {
    let results = results(&arguments.from)?;
    if let Some(weights) = &arguments.oslv {
        let four: [f64; 4] = weights.as_slice().try_into().context("--oslv takes four weights")?;
        ensure!(
            four.iter().all(|weight| *weight >= 0.0) && four.iter().sum::<f64>() > 0.0,
            "weights must be 0 or more, and not all 0"
        );
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
    ensure!(
        weights.positive().next().is_some(),
        "no criterion has a weight: use --preset, --weights or --weight throughput=3"
    );
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
    println!("Solutions with the same place tie: the measured values do not show which is better.");
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
    let mut results = results(&from.from)?;
    results.bench = bench(&from.bench)?;
    if from.markdown {
        print!("{}", report::markdown(&results));
        return Ok(());
    }
    if let Some(file) = &from.into {
        let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        let text = report::readme::insert(&text, &results).with_context(|| file.display().to_string())?;
        std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))?;
        println!("{}", file.display());
        return Ok(());
    }
    println!("{}", report::write(&results, &from.from)?.display());
    Ok(())
}

/// Reads the values of a bench's figures; there are none if there is no such file.
fn bench(file: &Path) -> Result<std::collections::BTreeMap<String, f64>> {
    if !file.exists() {
        return Ok(std::collections::BTreeMap::new());
    }
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let figures: serde_json::Map<String, serde_json::Value> =
        serde_json::from_str(&text).with_context(|| format!("{} is not a summary of a bench", file.display()))?;
    Ok(figures.into_iter().filter_map(|(name, figure)| Some((name, figure["value"].as_f64()?))).collect())
}
