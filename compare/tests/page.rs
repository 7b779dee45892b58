//! The report of a hand-made run, and the documentation's example.

use compare::claims::{Claims, Feature, Plane, Transport};
use compare::quantity::Quantity;
use compare::record::{Property, Record};
use compare::report;
use compare::results::Results;

fn records() -> Vec<Record> {
    let mut records = vec![Record::Run {
        date: "2026-01-02T03:04:05Z".to_owned(),
        machine: "a machine <with> brackets".to_owned(),
        rounds: 6,
        solutions: vec!["plain".to_owned()],
    }];
    for (name, family, transport, factor) in [
        ("plain", "none", Transport::None, 10.0),
        ("vouchsafe-tail", "Vouchsafe", Transport::None, 9.0),
        ("wireguard-go", "WireGuard", Transport::Udp, 2.0),
        ("openvpn-tcp", "OpenVPN", Transport::Tcp, 1.0),
    ] {
        let claims = Claims {
            title: format!("the {name}"),
            family: family.to_owned(),
            transport,
            plane: Plane::Process,
            cipher: "AES".to_owned(),
            features: if name == "wireguard-go" { vec![Feature::Ios, Feature::HidesAddresses] } else { Vec::new() },
            standard: true,
        };
        records.push(Record::Solution { solution: name.to_owned(), version: "1.2 & 3".to_owned(), claims });
        for quantity in Quantity::ALL {
            for round in 0..6 {
                let value = factor * 100.0 + f64::from(round);
                records.push(Record::Sample { solution: name.to_owned(), quantity: *quantity, round, value });
            }
        }
    }
    records.push(Record::Observation {
        solution: "wireguard-go".to_owned(),
        property: Property::PayloadHidden,
        holds: Some(true),
        evidence: "0 of 30 packets <read>".to_owned(),
    });
    records.push(Record::Skipped { solution: "pigeon".to_owned(), reason: "not installed: coop (aviary)".to_owned() });
    records.push(Record::Failed {
        solution: "openvpn-tcp".to_owned(),
        what: "restart".to_owned(),
        round: 1,
        error: "no answer".to_owned(),
    });
    records
}

fn page() -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let file = report::write(&Results::of(&records()), dir.path()).unwrap();
    let text = std::fs::read_to_string(file).unwrap();
    (dir, text)
}

#[test]
fn the_page_is_whole_and_loads_nothing() {
    let (_dir, text) = page();
    for outside in ["<script", "<link", "src=", "@import", "url("] {
        assert!(!text.contains(outside), "{outside}");
    }
    let links: Vec<_> = text.match_indices("href=\"").map(|(at, _)| &text[at + 6..at + 7]).collect();
    assert!(!links.is_empty() && links.iter().all(|first| *first == "#"));
}

#[test]
fn names_from_the_run_are_escaped() {
    let (_dir, text) = page();
    assert!(text.contains("a machine &lt;with&gt; brackets") && text.contains("packets &lt;read&gt;"));
    assert!(!text.contains("<with>"));
}

#[test]
fn plots_follow_the_readers_colours_and_are_described() {
    let (_dir, text) = page();
    let plots = text.matches("<svg ").count();
    assert_eq!(plots, Quantity::ALL.len());
    assert_eq!(text.matches("role=\"img\"").count(), plots);
    assert!(text.contains("fill=\"var(--one)\"") && text.contains("prefers-color-scheme: dark"));
    for ((red, green, blue), _) in [((1u8, 2u8, 3u8), ()), ((7, 8, 9), ())] {
        assert!(!text.contains(&format!("#{red:02X}{green:02X}{blue:02X}")), "a stand-in is left");
    }
}

#[test]
fn every_link_within_the_page_has_its_target() {
    let (_dir, text) = page();
    for (at, _) in text.match_indices("href=\"#") {
        let name = text[at + 7..].split('"').next().unwrap();
        assert!(text.contains(&format!("id=\"{name}\"")), "{name}");
    }
}

#[test]
fn the_report_says_where_others_are_better() {
    let (_dir, text) = page();
    assert!(text.contains("hides-addresses: Vouchsafe does not claim it, 1 other does."));
    assert!(text.contains("What others do better than Vouchsafe"));
}

#[test]
fn what_was_skipped_or_failed_is_named() {
    let (_dir, text) = page();
    assert!(text.contains("pigeon: not installed: coop (aviary)") && text.contains("restart: no answer"));
}

#[test]
fn published_values_stand_beside_those_of_the_run() {
    let (_dir, text) = page();
    for published in ["at least 80 % higher", "21.6 MB/s each", "684.797", "N(3N - 2)"] {
        assert!(text.contains(published), "{published}");
    }
    // 200 by UDP against 100 by TCP, and their rounds.
    assert!(text.contains("98 % higher") || text.contains("97 % higher"), "the run's own contrast");
}

#[test]
fn the_csv_has_every_figure_with_its_interval() {
    let (dir, _) = page();
    let mut csv = csv::Reader::from_path(dir.path().join("figures.csv")).unwrap();
    let rows: Vec<_> = csv.records().map(Result::unwrap).collect();
    assert_eq!(rows.len(), 4 * Quantity::ALL.len());
    assert_eq!(
        rows[0].iter().collect::<Vec<_>>(),
        ["plain", "tcp_up", "Mbit/s", "6", "1002.5", "1000", "1005", "0.96875"]
    );
    let security = std::fs::read_to_string(dir.path().join("security.csv")).unwrap();
    assert!(security.contains("wireguard-go,payload_hidden,yes,0 of 30 packets <read>"), "{security}");
}

#[test]
fn a_readme_gets_a_table_with_date_machine_and_versions() {
    let text = report::markdown(&Results::of(&records()));
    for part in ["2026-01-02", "a machine", "1.2 & 3", "| the wireguard-go |"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn the_documentation_shows_a_whole_driver() {
    let docs = include_str!("../../docs/compare.md");
    let example = docs.split("```rust\n").nth(1).and_then(|rest| rest.split("\n```").next()).unwrap();
    assert_eq!(example.trim(), include_str!("../src/drivers/vxlan.rs").trim());
}

#[test]
fn the_documentation_names_every_quantity() {
    let docs = include_str!("../../docs/compare.md");
    let missing: Vec<_> =
        Quantity::ALL.iter().filter(|quantity| !docs.contains(&format!("`{}`", quantity.name()))).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
