//! The documents agree with this crate's numbers, and name existing tests.

use std::path::Path;
use wire::DropReason;

#[test]
fn wire_md_lists_every_drop_reason_with_its_number() {
    let text = include_str!("../../../docs/wire.md");
    let clause = text.split("**6.7**").nth(1).expect("§6.7").split("**6.8**").next().expect("§6.8 follows");
    let rows: Vec<_> = clause
        .lines()
        .filter_map(|line| {
            let mut cells = line.split('|').map(str::trim).skip(1);
            Some((cells.next()?.parse::<u8>().ok()?, cells.next()?.trim_matches('`')))
        })
        .collect();
    let reasons: Vec<_> = DropReason::ALL.iter().map(|reason| (*reason as u8, reason.name())).collect();
    assert_eq!(rows, reasons);
}

#[test]
fn operations_md_says_what_to_do_about_every_drop_reason() {
    let text = include_str!("../../../docs/operations.md");
    for reason in DropReason::ALL {
        let row = text.lines().find(|line| line.starts_with('|') && line.contains(&format!("`{reason}`")));
        assert!(row.is_some(), "{reason}");
    }
}

/// Returns the rows of the table in a section of threats.md, cell by cell.
fn rows(heading: &str) -> Vec<Vec<&'static str>> {
    let text = include_str!("../../../docs/threats.md");
    let (_, rest) = text.split_once(heading).expect("the section");
    let section = rest.split("\n### ").next().expect("its text");
    let rows = section.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| attack "));
    rows.map(|line| line.split('|').map(str::trim).filter(|cell| !cell.is_empty()).collect()).collect()
}

/// Returns the tests that a row names, as file and name.
fn tests<'r>(row: &[&'r str]) -> Vec<(&'r str, &'r str)> {
    let tests: Vec<_> = row[2..].iter().filter_map(|cell| cell.trim_matches('`').split_once(": ")).collect();
    assert!(!tests.is_empty() && tests.len() == row.len() - 2, "{row:?}");
    tests
}

fn assert_runs(file: &str, name: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(file);
    let code = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{file}: {error}"));
    let (before, _) = code.split_once(&format!("fn {name}()")).unwrap_or_else(|| panic!("{file} has no {name}"));
    let attributes = before.rsplit("\n\n").next().expect("what is right before it");
    let runs = attributes.contains("#[test]") || attributes.contains("#[tokio::test");
    assert!(runs && !attributes.contains("#[ignore"), "{name} in {file} is not run");
}

/// The first test in every row is named after the attack, and all tests exist and run.
#[test]
fn threats_md_names_a_test_for_every_attack_of_the_published_scheme() {
    let rows = rows("### Section VII");
    assert!(rows.len() >= 14, "{} attacks", rows.len());
    for row in rows {
        let tests = tests(&row);
        assert!(tests[0].1.contains(&row[0].replace(' ', "_")), "no test is named after {}", row[0]);
        tests.iter().for_each(|(file, name)| assert_runs(file, name));
    }
}

#[test]
fn threats_md_names_a_test_for_every_attack_that_review_found() {
    let rows = rows("### Found by review");
    assert!(rows.len() >= 6, "{} attacks", rows.len());
    rows.iter().flat_map(|row| tests(row)).for_each(|(file, name)| assert_runs(file, name));
}
