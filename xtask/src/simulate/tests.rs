use super::placement::Placement;
use super::*;

/// Three regions: a and b are near each other. c is far from both, and a little farther in one direction than in the
/// other.
const SMALL: &str = "Source,a,b,c\na,,10,100\nb,10,,90\nc,110,90,\n";

fn small() -> Times {
    Times::read(SMALL).expect("a table")
}

fn committed(name: &str) -> String {
    fs::read_to_string(root().join("docs").join(name)).expect("it is in the tree")
}

#[test]
fn a_delegate_where_the_receiver_is_doubles_every_first_round_trip() {
    let samples = samples(&small(), Placement::Receiver, 1, 5);
    assert_eq!(samples.len(), 6);
    assert!(samples.iter().all(|sample| sample.asking == sample.direct && sample.inflation() == 2.0));
}

#[test]
fn with_delegates_everywhere_asking_takes_nothing() {
    let samples = samples(&small(), Placement::Drawn(3), 1, 5);
    assert_eq!(samples.len(), 6 * 5);
    assert!(samples.iter().all(|sample| sample.asking == 0 && sample.inflation() == 1.0));
}

#[test]
fn the_nearest_of_two_delegates_is_asked() {
    // With two delegates in three regions, either the sender's region has one, or both other regions have one and the
    // sender asks the nearer.
    let samples = samples(&small(), Placement::Drawn(2), 3, 200);
    let asked = |time| samples.iter().filter(|sample| sample.asking == time).count();
    assert!(asked(10) > 0 && asked(90) > 0 && asked(0) > 0);
    assert_eq!(asked(0) + asked(10) + asked(90), samples.len(), "a's nearer is b, b's a, c's b");
}

#[test]
fn one_delegate_at_random_is_asked_as_often_as_it_is_drawn() {
    let samples = samples(&small(), Placement::Drawn(1), 1, 2_000);
    let mean = samples.iter().map(|sample| f64::from(sample.asking)).sum::<f64>() / samples.len() as f64;
    // Every sender and every delegate is equally likely, so the expected value is the mean of all nine times, including
    // the three times of 0.
    let expected = f64::from(10 + 100 + 10 + 90 + 110 + 90) / 9.0;
    assert!((mean - expected).abs() < 2.0, "{mean} {expected}");
}

#[test]
fn quantiles_are_samples() {
    assert_eq!(quantiles((1..=100).map(f64::from).collect()), [50.0, 90.0, 99.0]);
    assert_eq!(quantiles(vec![3.0, 1.0]), [1.0, 3.0, 3.0]);
}

#[test]
fn a_table_that_is_not_whole_names_the_place() {
    let refused = |text: &str| format!("{:#}", Times::read(text).err().expect("not a table"));
    assert_eq!(refused("Source,a,b\na,,1\nb,x,\n"), "line 3, column 2: \"x\" is not a time in milliseconds");
    assert_eq!(refused("Source,a,b\na,,1\n"), "1 rows for 2 columns");
    assert_eq!(refused("Source,a,b\nb,,1\na,1,\n"), "line 2: the region b is not the region of column 2");
    assert_eq!(refused("Source,a,b\na,5,1\nb,1,\n"), "line 2: the field for the time from a to itself must be empty");
    assert_eq!(refused("Source,a,b\na,,1,2\nb,1,\n"), "line 2: 3 times for 2 regions");
}

#[test]
fn the_document_says_and_shows_what_the_simulation_gives() {
    let times = Times::read(&committed("simulation/azure-2026-07.csv")).expect("a table");
    let results = simulate(&times, 1, 100);
    assert!(committed("simulation.md").contains(&table(&results)), "the table should be\n{}", table(&results));
    for (name, text) in pictures(&results) {
        assert!(committed(&format!("simulation/{name}")) == text, "cargo xtask simulate --into docs/simulation");
    }
}

#[test]
fn pictures_are_well_formed_and_their_curves_rise() {
    for (name, svg) in pictures(&simulate(&small(), 1, 10)) {
        let mut open = Vec::new();
        for tag in svg.split('<').skip(1) {
            let (tag, _text) = tag.split_once('>').expect("a tag ends");
            assert_eq!(tag.matches('"').count() % 2, 0, "{name}: {tag}");
            let element = tag.split([' ', '/']).find(|part| !part.is_empty()).expect("a name");
            if tag.starts_with('/') {
                assert_eq!(open.pop(), Some(element), "{name}");
            } else if !tag.ends_with('/') {
                open.push(element);
            }
        }
        assert!(open.is_empty() && !svg.contains('&'), "{name}");
        let curves: Vec<_> = svg.split("points=\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
        assert_eq!(curves.len(), PLACEMENTS.len());
        for curve in curves {
            let heights = curve.split(' ').map(|point| point.split_once(',').expect("a pair").1);
            let heights: Vec<f64> = heights.map(|height| height.parse().expect("a number")).collect();
            assert!(heights.iter().all(|height| (40.0..=430.0).contains(height)), "{name}");
            assert!(heights.is_sorted_by(|before, after| before >= after), "{name}");
        }
    }
}
