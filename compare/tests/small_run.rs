//! Real runs in short form: what is known beforehand is found. Needs root, and the programs of `xtask/setup.sh test`.

use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use compare::claims::Claims;
use compare::driver::{Door, Driver, Need};
use compare::drivers;
use compare::measure::suite::{LIMIT, Plan};
use compare::quantity::Quantity;
use compare::record::{self, Property};
use compare::results::Results;
use compare::run::{Depth, Order, run};
use compare::scene::{End, Scene};
use compare::truths;
use compare::workshop::Workshop;

/// Measurements of one test would disturb those of another.
static ALONE: Mutex<()> = Mutex::new(());

fn results(names: &[&str], rounds: u32, plan: &Plan) -> Results {
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
    let solutions = drivers::named(&names).unwrap();
    let order = Order::new(&solutions, rounds, plan.clone());
    run(&order, dir.path(), &AtomicBool::new(false), |line| eprintln!("{line}")).unwrap();
    let results = Results::of(&record::read(&dir.path().join("records.jsonl")).unwrap());
    assert_eq!(results.skipped, [], "every solution of this test must run here");
    results
}

fn median(results: &Results, name: &str, quantity: Quantity) -> f64 {
    let solution = results.solution(name).unwrap();
    let summary = solution.summary(quantity);
    summary.unwrap_or_else(|| panic!("{name}: no {}: {:?}", quantity.name(), solution.failures)).median
}

#[test]
fn a_path_that_drops_every_50th_packet_is_reported_so_and_two_runs_of_one_path_tie() {
    const ONLY: &[Quantity] = &[Quantity::RttIdle, Quantity::Exchanges, Quantity::UdpLoss];
    let plan = Plan { only: Some(ONLY), ..Depth::Smoke.plan() };
    // Six rounds, so that two runs of the same path are found to differ once in five hundred times.
    let results = results(&["plain", "plain-again", "faulty"], 6, &plan);
    for finding in [truths::faulty(&results), truths::same(&results)] {
        assert_eq!(finding.found, Some(true), "{}: {}", finding.truth, finding.evidence);
    }
}

#[test]
fn tcp_inside_tcp_collapses_under_loss_and_tcp_inside_udp_does_not() {
    const ONLY: &[Quantity] = &[Quantity::TcpLong5, Quantity::TcpLossy5];
    let plan = Plan { only: Some(ONLY), bad_paths: true, span: Duration::from_millis(400), ..Depth::Smoke.plan() };
    let finding = truths::stacked(&results(&["openvpn-udp", "openvpn-tcp"], 2, &plan));
    assert_eq!(finding.found, Some(true), "{}", finding.evidence);
}

#[test]
fn a_small_run_measures_each_solution_and_sees_what_protects() {
    const ONLY: &[Quantity] = &[
        Quantity::TcpUp,
        Quantity::TcpDown5,
        Quantity::RttIdle,
        Quantity::Mtu,
        Quantity::WireFirst,
        Quantity::WireLater,
        Quantity::EffortNext,
    ];
    let smoke = Depth::Smoke.plan();
    let plan = Plan { bad_paths: true, security: true, move_client: true, only: Some(ONLY), ..smoke };
    let results = results(&["plain", "wireguard-go", "vouchsafe-tail", "vouchsafe-shim"], 1, &plan);
    for solution in &results.solutions {
        for quantity in [Quantity::Connect, Quantity::TcpUp, Quantity::TcpDown5, Quantity::RttIdle, Quantity::Mtu] {
            assert!(median(&results, &solution.name, quantity) > 0.0, "{}: {}", solution.name, quantity.name());
        }
    }
    // The cost of a packet on the wire is known to the byte.
    let wire = |name| [Quantity::WireFirst, Quantity::WireLater].map(|quantity| median(&results, name, quantity));
    assert_eq!(wire("plain"), [0.0, 0.0]);
    assert_eq!(wire("vouchsafe-tail"), [40.0, 0.0]);
    assert_eq!(wire("vouchsafe-shim"), [60.0, 0.0]);
    // IP, UDP, WireGuard's header and tag, and padding to 16 bytes.
    let later = wire("wireguard-go")[1];
    assert!((60.0..=76.0).contains(&later), "{later}");
    // WireGuard's tunnel has room for 80 bytes less.
    assert_eq!(
        [median(&results, "plain", Quantity::Mtu), median(&results, "wireguard-go", Quantity::Mtu)],
        [1500.0, 1420.0]
    );

    let holds = |name: &str, property| {
        let solution = results.solution(name).unwrap();
        solution.holds(property).unwrap_or_else(|| panic!("{name}: {property:?}: {:?}", solution.failures))
    };
    for property in [
        Property::PayloadHidden,
        Property::FlippedBitNoticed,
        Property::ReplayRefused,
        Property::AddressHidden,
        Property::SilentToStrangers,
    ] {
        assert!(!holds("plain", property), "{property:?}");
        assert!(holds("wireguard-go", property), "{property:?}");
    }
    // A token decides about access, and about nothing else.
    for name in ["vouchsafe-tail", "vouchsafe-shim"] {
        assert!(holds(name, Property::SilentToStrangers) && holds(name, Property::IdentityHidden));
        assert!(!holds(name, Property::PayloadHidden) && !holds(name, Property::AddressHidden));
    }
    assert!(!holds("plain", Property::FlowSurvivesRoaming));
}

/// A plain path whose client never comes to an end.
struct Hanging(Box<dyn Driver>);

impl Driver for Hanging {
    fn name(&self) -> String {
        "hanging".to_owned()
    }

    fn claims(&self) -> Claims {
        self.0.claims()
    }

    fn needs(&self) -> Vec<Need> {
        self.0.needs()
    }

    fn version(&self) -> String {
        self.0.version()
    }

    fn prepare(&self, _: &mut Workshop, _: usize) -> anyhow::Result<()> {
        Ok(())
    }

    fn start_server(&self, _: &mut Scene) -> anyhow::Result<()> {
        Ok(())
    }

    fn start_client(&self, scene: &mut Scene) -> anyhow::Result<()> {
        scene.run(End::Client, "sleep 600").map(drop)
    }

    fn door(&self) -> Door {
        Door::Inside
    }
}

#[test]
fn a_solution_that_hangs_is_stopped_and_named_and_the_others_are_measured() {
    const ONLY: &[Quantity] = &[Quantity::RttIdle];
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let mut plain = drivers::named(&["plain".to_owned(), "plain-again".to_owned()]).unwrap();
    let solutions: Vec<Box<dyn Driver>> = vec![Box::new(Hanging(plain.remove(1))), plain.remove(0)];
    let plan = Plan { only: Some(ONLY), ..Depth::Smoke.plan() };
    let order = Order { limit: Duration::from_secs(3), ..Order::new(&solutions, 2, plan) };
    let (mut said, begun) = (Vec::new(), Instant::now());
    run(&order, dir.path(), &AtomicBool::new(false), |line| said.push(line.to_owned())).unwrap();
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    let results = Results::of(&record::read(&dir.path().join("records.jsonl")).unwrap());
    let hanging = results.solution("hanging").unwrap();
    let limits: Vec<_> = hanging.failures.iter().filter(|(what, _)| what == LIMIT).collect();
    assert_eq!(limits.len(), 1, "it is tried once: {said:?}");
    assert!(limits[0].1.contains("stopped after 3 s"), "{}", limits[0].1);
    assert!(said.iter().any(|line| line.contains("hanging: time limit")), "{said:?}");
    assert_eq!(results.solution("plain").unwrap().samples[&Quantity::RttIdle].len(), 2, "{said:?}");
}

#[test]
fn a_run_ends_in_its_time_with_fewer_rounds() {
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let solutions = drivers::named(&["plain".to_owned()]).unwrap();
    let plan = Plan { only: Some(&[Quantity::RttIdle]), ..Depth::Smoke.plan() };
    let order = Order { time: Some(Duration::from_secs(8)), ..Order::new(&solutions, 1000, plan) };
    let begun = Instant::now();
    run(&order, dir.path(), &AtomicBool::new(false), |line| eprintln!("{line}")).unwrap();
    assert!(begun.elapsed() < Duration::from_secs(12), "{:?}", begun.elapsed());
    let results = Results::of(&record::read(&dir.path().join("records.jsonl")).unwrap());
    let rounds = results.solution("plain").unwrap().samples[&Quantity::RttIdle].len();
    assert!((2..1000).contains(&rounds), "{rounds}");
}

#[test]
fn a_stopped_run_says_so_and_leaves_what_it_measured() {
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let solutions = drivers::named(&["plain".to_owned()]).unwrap();
    const ONLY: &[Quantity] = &[Quantity::RttIdle];
    let plan = Plan { only: Some(ONLY), ..Depth::Smoke.plan() };
    let stop = AtomicBool::new(true);
    let order = Order::new(&solutions, 1, plan);
    let error = run(&order, dir.path(), &stop, |_| {}).unwrap_err();
    assert!(format!("{error:#}").contains("stopped"), "{error:#}");
    let mut said = Vec::new();
    run(&order, dir.path(), &AtomicBool::new(false), |line| said.push(line.to_owned())).unwrap();
    assert!(said[0].contains("continuing"), "{said:?}");
    let again =
        |said: &mut Vec<String>| run(&order, dir.path(), &AtomicBool::new(false), |line| said.push(line.to_owned()));
    said.clear();
    again(&mut said).unwrap();
    assert!(!said.iter().any(|line| line.contains("round 1")), "what is done is not measured again: {said:?}");
}
