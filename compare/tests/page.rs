//! The report of a hand-made run, and the documentation's example.

use compare::claims::{Claims, Feature, Plane, Transport};
use compare::quantity::Quantity;
use compare::record::{Property, Record};
use compare::report::{self, style::STAND_INS};
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
    for ((red, green, blue), variable) in STAND_INS {
        let left = text.contains(&format!("#{red:02X}{green:02X}{blue:02X}"));
        assert!(!left, "the placeholder of {variable} is left");
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

/// A result whose table is in the README.
const COMMITTED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/result/records.jsonl");
const README: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../README.md");

#[test]
fn a_readme_gets_the_table_once_and_keeps_the_rest() {
    let results = Results::of(&records());
    let once = report::readme::insert("# Title\n\n## Status\n\nrest\n", &results).unwrap();
    assert!(once.starts_with("# Title\n\n## Compared with VPNs\n") && once.ends_with("## Status\n\nrest\n"), "{once}");
    assert!(once.contains("the vouchsafe-tail"));
    assert_eq!(report::readme::insert(&once, &results).unwrap(), once, "a second time nothing changes");
    let torn = once.replace("<!-- /generated -->", "");
    assert!(report::readme::insert(&torn, &results).unwrap_err().to_string().contains("marks"));
    assert!(report::readme::insert("no section", &results).is_err());
}

#[test]
fn the_readme_says_what_the_committed_result_says() {
    let path = std::path::Path::new(COMMITTED);
    let readme = std::fs::read_to_string(README).unwrap();
    if !path.exists() {
        assert!(!readme.contains("## Compared with VPNs"), "the table has no result");
        return;
    }
    let results = Results::of(&compare::record::read(path).unwrap());
    assert!(readme.contains(&report::readme::generated(&results)), "run `cargo xtask compare report --into README.md`");
}

#[test]
fn a_papers_experiments_stand_beside_its_values() {
    let mut records = records();
    let cell = |study: &str, row: &str, column: &str, value: f64| Record::Cell {
        study: study.to_owned(),
        row: row.to_owned(),
        column: column.to_owned(),
        unit: "MB/s".to_owned(),
        round: 0,
        value,
    };
    for (row, value) in
        [("direct", 100.0), ("gateway that forwards", 80.0), ("IPsec, user space", 20.0), ("Vouchsafe", 75.0)]
    {
        records.push(cell("downloads", row, "5", value));
    }
    let secret = "IPsec: AES-256-GCM, forward secrecy";
    records.push(cell("ciphers", secret, "stream", 500.0));
    records.push(cell("ciphers", "IPsec: ChaCha20-Poly1305", "stream", 400.0));
    records.push(cell("ciphers", secret, "stream, keys renewed by time", 400.0));
    let mut results = Results::of(&records);
    let dir = tempfile::tempdir().unwrap();
    let text = |results: &Results| std::fs::read_to_string(report::write(results, dir.path()).unwrap()).unwrap();
    let page = text(&results);
    assert!(page.contains("3.75 times as much as IPsec (paper: 2.5 to 2.9 times)"));
    assert!(page.contains("0.750 times as much as the direct way (paper: 0.92 to 0.99 times)"));
    assert!(page.contains("the fastest is 1.25 times as fast as the slowest"));
    assert!(
        page.contains("renewal with forward secrecy costs 3.17 % of the rate") && page.contains("moves 20.0 % less")
    );
    assert!(page.contains("`cargo xtask bench`") || page.contains("<code>cargo xtask bench</code>"));
    results.bench.insert("ls.fig4.router.full_us".to_owned(), 300.5);
    assert!(text(&results).contains("0.30"), "the bench's milliseconds");
}

#[test]
fn the_report_says_whether_the_kernel_and_udp_still_lead() {
    let (_dir, text) = page();
    // The results above give wireguard-go, by UDP, the value 200 in each quantity, and openvpn-tcp the value 100. Lower
    // overhead, latency and jitter are better, so openvpn-tcp leads in three of the four ranks.
    assert!(text.contains("Tunnels by UDP no longer lead: their mean rank is"));
    assert!(text.contains(
        "Solutions in the kernel: whether they lead is not known, because this run does not contain both kinds."
    ));
}
