//! Ranking by hand-made tables, and its promise: raising a weight never lowers a solution that is best in it.

use std::collections::BTreeMap;

use compare::claims::{Claims, Feature, Plane, Transport};
use compare::quantity::{Attribute, Better, Quantity};
use compare::rank::{self, Criterion, Must, Weights, values};
use compare::record::Property;
use compare::results::{Observed, Results, Solution};
use proptest::prelude::*;

fn solution(name: &str, samples: &[(Quantity, &[f64])]) -> Solution {
    let samples = samples.iter().map(|(quantity, values)| (*quantity, values.to_vec()));
    Solution {
        name: name.to_owned(),
        version: "1".to_owned(),
        claims: Claims {
            title: name.to_owned(),
            family: "hand-made".to_owned(),
            transport: Transport::Udp,
            plane: Plane::Process,
            cipher: "none".to_owned(),
            features: Vec::new(),
            standard: false,
        },
        samples: samples.collect(),
        rounds: BTreeMap::new(),
        observed: BTreeMap::new(),
        failures: Vec::new(),
    }
}

fn results(solutions: Vec<Solution>) -> Results {
    Results { solutions, ..Results::default() }
}

fn weights(pairs: &[(&str, f64)]) -> Weights {
    let mut weights = Weights::default();
    for (name, weight) in pairs {
        weights.set(name.parse().unwrap(), *weight).unwrap();
    }
    weights
}

fn order(results: &Results, weights: &Weights) -> Vec<(usize, String)> {
    rank::rank(results, weights).places.into_iter().map(|place| (place.place, place.name)).collect()
}

const FAST: [f64; 6] = [990.0, 1000.0, 1010.0, 1005.0, 995.0, 1000.0];
const SLOW: [f64; 6] = [99.0, 100.0, 101.0, 100.5, 99.5, 100.0];

#[test]
fn the_faster_one_is_first_and_the_reason_is_its_figure() {
    let table =
        results(vec![solution("slow", &[(Quantity::TcpUp, &SLOW)]), solution("fast", &[(Quantity::TcpUp, &FAST)])]);
    let ranking = rank::rank(&table, &weights(&[("tcp_up", 1.0)]));
    assert_eq!(ranking.places[0].name, "fast");
    assert_eq!((ranking.places[0].place, ranking.places[1].place), (1, 2));
    assert_eq!(ranking.places[0].reasons, ["one TCP stream, to the server: 1000 Mbit/s"]);
}

#[test]
fn the_plain_path_is_a_yardstick_and_no_choice() {
    let mut plain = solution("plain", &[(Quantity::TcpUp, &FAST)]);
    plain.claims.family = "none".to_owned();
    let table = results(vec![plain, solution("slow", &[(Quantity::TcpUp, &SLOW)])]);
    assert_eq!(order(&table, &weights(&[("tcp_up", 1.0)])), [(1, "slow".to_owned())]);
}

#[test]
fn less_is_better_where_it_is() {
    let table =
        results(vec![solution("slow", &[(Quantity::RttIdle, &FAST)]), solution("fast", &[(Quantity::RttIdle, &SLOW)])]);
    assert_eq!(order(&table, &weights(&[("rtt_idle", 1.0)]))[0].1, "fast");
}

#[test]
fn two_runs_of_the_same_solution_tie() {
    let again = [1002.0, 992.0, 1001.0, 1008.0, 997.0, 996.0];
    let table = results(vec![
        solution("once", &[(Quantity::TcpUp, &FAST)]),
        solution("again", &[(Quantity::TcpUp, &again)]),
        solution("slow", &[(Quantity::TcpUp, &SLOW)]),
    ]);
    let places: Vec<_> = order(&table, &weights(&[("tcp_up", 1.0)])).into_iter().map(|(place, _)| place).collect();
    assert_eq!(places, [1, 1, 3]);
    assert_eq!(rank::tie(&table.solutions[0], &table.solutions[1], Quantity::TcpUp), Some(true));
    assert_eq!(rank::tie(&table.solutions[0], &table.solutions[2], Quantity::TcpUp), Some(false));
    assert_eq!(rank::tie(&table.solutions[0], &table.solutions[1], Quantity::RttIdle), None);
}

#[test]
fn a_single_timed_sample_proves_nothing_and_a_count_does() {
    let table = |quantity, factor: f64| {
        results(vec![
            solution("one", &[(quantity, &[100.0])]),
            solution("other", &[(quantity, &[100.0 * factor])]),
            solution("worst", &[(quantity, &[100.0 * factor * factor])]),
        ])
    };
    let places = |quantity: Quantity| {
        let list = order(&table(quantity, 1.1), &weights(&[(quantity.name(), 1.0)]));
        list.into_iter().map(|(place, _)| place).collect::<Vec<_>>()
    };
    assert_eq!(places(Quantity::WireLater), [1, 2, 3]);
    assert_eq!(places(Quantity::RttIdle)[..2], [1, 1]);
    let timed = table(Quantity::RttIdle, 1.1);
    assert_eq!(rank::tie(&timed.solutions[0], &timed.solutions[1], Quantity::RttIdle), Some(true));
}

#[test]
fn what_was_not_measured_counts_as_worst() {
    let table = results(vec![solution("unknown", &[]), solution("slow", &[(Quantity::TcpUp, &SLOW)])]);
    assert_eq!(order(&table, &weights(&[("throughput", 1.0)]))[0].1, "slow");
}

#[test]
fn a_must_excludes_whoever_lacks_it_or_was_not_tried() {
    let observed = |holds| Observed { holds, evidence: "seen".to_owned() };
    let mut good = solution("good", &[(Quantity::TcpUp, &SLOW)]);
    good.observed.insert(Property::PayloadHidden, observed(Some(true)));
    good.claims.features.push(Feature::Windows);
    let mut bad = solution("bad", &[(Quantity::TcpUp, &FAST)]);
    bad.observed.insert(Property::PayloadHidden, observed(Some(false)));
    let untried = solution("untried", &[(Quantity::TcpUp, &FAST)]);
    let mut weights = weights(&[("tcp_up", 1.0)]);
    weights.require(Must::Property(Property::PayloadHidden));
    weights.require(Must::Feature(Feature::Windows));
    let ranking = rank::rank(&results(vec![bad, untried, good]), &weights);
    assert_eq!(ranking.places.len(), 1);
    assert_eq!(ranking.places[0].name, "good");
    let lacks = |name: &str| ranking.excluded.iter().find(|(other, _)| other == name).unwrap().1.clone();
    assert_eq!(lacks("bad"), ["payload_hidden", "windows"]);
    assert_eq!(lacks("untried"), ["payload_hidden", "windows"]);
}

#[test]
fn a_weighted_property_prefers_who_has_it_and_weighs_against_speed() {
    let mut safe = solution("safe", &[(Quantity::TcpUp, &SLOW)]);
    safe.observed.insert(Property::ReplayRefused, Observed { holds: Some(true), evidence: String::new() });
    let table = results(vec![safe, solution("fast", &[(Quantity::TcpUp, &FAST)])]);
    let first = |safety| order(&table, &weights(&[("tcp_up", 2.0), ("replay_refused", safety)]))[0].1.clone();
    assert_eq!(first(1.0), "fast");
    assert_eq!(first(3.0), "safe");
}

#[test]
fn zero_is_a_value_as_good_as_it_gets_where_less_is_better() {
    let table = results(vec![
        solution("kernel", &[(Quantity::CpuClient, &[0.0; 6])]),
        solution("process", &[(Quantity::CpuClient, &FAST)]),
    ]);
    assert_eq!(order(&table, &weights(&[("cpu_client", 1.0)])), [(1, "kernel".into()), (2, "process".into())]);
}

/// Some quantities of several attributes, some properties.
const QUANTITIES: [Quantity; 5] =
    [Quantity::TcpUp, Quantity::TcpDown, Quantity::RttIdle, Quantity::CpuMachine, Quantity::Mtu];

fn any_solution() -> impl Strategy<Value = (Vec<Vec<f64>>, bool, bool)> {
    let samples = prop::collection::vec(prop_oneof![4 => 1.0..1000.0f64, 1 => Just(0.0)], 0..8);
    (prop::collection::vec(samples, QUANTITIES.len()), any::<bool>(), any::<bool>())
}

fn any_results() -> impl Strategy<Value = Results> {
    prop::collection::vec(any_solution(), 2..7).prop_map(|rows| {
        let make = |(number, (columns, hidden, windows)): (usize, (Vec<Vec<f64>>, bool, bool))| {
            let samples: Vec<_> =
                QUANTITIES.iter().copied().zip(&columns).map(|(q, values)| (q, values.as_slice())).collect();
            let mut made = solution(&format!("s{number}"), &samples);
            made.observed.insert(Property::PayloadHidden, Observed { holds: Some(hidden), evidence: String::new() });
            made.claims.features.extend(windows.then_some(Feature::Windows));
            made
        };
        results(rows.into_iter().enumerate().map(make).collect())
    })
}

fn criteria() -> Vec<Criterion> {
    let mut all: Vec<_> = QUANTITIES.into_iter().map(Criterion::Quantity).collect();
    all.extend(Attribute::ALL.map(Criterion::Attribute));
    all.push(Criterion::Property(Property::PayloadHidden));
    all.push(Criterion::Feature(Feature::Windows));
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn raising_a_weight_never_lowers_a_solution_that_is_best_in_it(
        table in any_results(),
        start in prop::collection::vec(0.0..5.0f64, 13),
        which in 0..13usize,
        more in 0.1..20.0f64,
    ) {
        let all = criteria();
        let mut before = Weights::default();
        for (criterion, weight) in all.iter().zip(&start) {
            before.set(*criterion, *weight).unwrap();
        }
        let mut after = before.clone();
        after.set(all[which], start[which] + more).unwrap();
        let refs: Vec<_> = table.solutions.iter().collect();
        let column = values(all[which], &refs);
        let best = column.iter().map(|value| value.value).fold(f64::MIN, f64::max);
        let place = |weights: &Weights, name: &str| {
            rank::rank(&table, weights).places.into_iter().find(|place| place.name == name).unwrap().place
        };
        for (solution, value) in table.solutions.iter().zip(&column) {
            if value.value >= best {
                let (was, is) = (place(&before, &solution.name), place(&after, &solution.name));
                prop_assert!(is <= was, "{} fell from {was} to {is} by {}", solution.name, all[which]);
            }
        }
    }

    #[test]
    fn the_scale_of_all_weights_together_does_not_matter(table in any_results(), scale in 0.01..100.0f64) {
        let of = |factor: f64| {
            let mut weights = Weights::default();
            for (number, criterion) in criteria().into_iter().enumerate() {
                weights.set(criterion, factor * (1 + number % 3) as f64).unwrap();
            }
            order(&table, &weights)
        };
        let (one, other) = (of(1.0), of(scale));
        prop_assert_eq!(one.iter().map(|(place, _)| *place).collect::<Vec<_>>(), other.iter().map(|(place, _)| *place).collect::<Vec<_>>());
    }

    #[test]
    fn values_lie_between_the_worst_and_the_best(table in any_results()) {
        let refs: Vec<_> = table.solutions.iter().collect();
        for criterion in criteria() {
            for value in values(criterion, &refs) {
                prop_assert!((0.0..=1.0).contains(&value.value) && value.error >= 0.0 && value.error.is_finite(), "{criterion}: {value:?}");
            }
        }
    }
}

#[test]
fn the_published_heuristic_orders_a_run_by_its_four_attributes() {
    let row = |name: &str, [overhead, bandwidth, latency, jitter]: [f64; 4]| {
        solution(
            name,
            &[
                (Quantity::WireLater, &[overhead]),
                (Quantity::TcpUp, &[bandwidth]),
                (Quantity::RttIdle, &[latency]),
                (Quantity::JitterIdle, &[jitter]),
            ],
        )
    };
    let mut plain = row("plain", [0.0, 9999.0, 1.0, 1.0]);
    plain.claims.family = "none".to_owned();
    let table = results(vec![
        plain,
        row("a", [30.0, 900.0, 100.0, 10.0]),
        row("b", [60.0, 1000.0, 120.0, 5.0]),
        solution("incomplete", &[(Quantity::TcpUp, &[5000.0])]),
    ]);
    let list = rank::oslv::of(&table, [1.0; 4]);
    assert_eq!(list, [("a".to_owned(), 1.5), ("b".to_owned(), 1.5)]);
    assert_eq!(rank::oslv::of(&table, [0.0, 1.0, 0.0, 0.0])[0].0, "b");
    assert!(rank::oslv::ATTRIBUTES.iter().filter(|(_, quantity)| quantity.better() == Better::More).count() == 1);
}
