//! What the documents say of this crate's numbers.

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
