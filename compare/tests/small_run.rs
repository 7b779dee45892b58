//! Real runs in short form: what is known beforehand is found. Needs root, and the programs of `xtask/setup.sh test`.

use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use compare::drivers;
use compare::measure::suite::Plan;
use compare::quantity::Quantity;
use compare::record::{self, Property};
use compare::results::Results;
use compare::run::{Depth, run};
use compare::truths;

/// Measurements of one test would disturb those of another.
static ALONE: Mutex<()> = Mutex::new(());

fn results(names: &[&str], rounds: u32, plan: &Plan) -> Results {
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
    let solutions = drivers::named(&names).unwrap();
    run(&solutions, rounds, plan, dir.path(), &AtomicBool::new(false), |line| eprintln!("{line}")).unwrap();
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

#[test]
fn a_stopped_run_says_so_and_leaves_what_it_measured() {
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let solutions = drivers::named(&["plain".to_owned()]).unwrap();
    const ONLY: &[Quantity] = &[Quantity::RttIdle];
    let plan = Plan { only: Some(ONLY), ..Depth::Smoke.plan() };
    let stop = AtomicBool::new(true);
    let error = run(&solutions, 1, &plan, dir.path(), &stop, |_| {}).unwrap_err();
    assert!(format!("{error:#}").contains("stopped"), "{error:#}");
    let mut said = Vec::new();
    run(&solutions, 1, &plan, dir.path(), &AtomicBool::new(false), |line| said.push(line.to_owned())).unwrap();
    assert!(said[0].contains("continuing"), "{said:?}");
    let again = |said: &mut Vec<String>| {
        run(&solutions, 1, &plan, dir.path(), &AtomicBool::new(false), |line| said.push(line.to_owned()))
    };
    said.clear();
    again(&mut said).unwrap();
    assert!(!said.iter().any(|line| line.contains("round 1")), "what is done is not measured again: {said:?}");
}
