//! Checks the table of CONTRIBUTING.md that lists, for each event, the files, the functions and a test.

use std::fs;
use std::path::Path;

/// Heading above the table.
const HEADING: &str = "## Where things happen";

/// Returns the faults of the table "Where things happen" in `text`, each with the line of its row: functions that none
/// of the row's files defines, tests that none of the row's test files defines, and rows without a test. `root` is the
/// folder to which the table's links are relative.
pub fn findings(text: &str, root: &Path) -> Vec<(usize, String)> {
    let lines = text.lines().enumerate().skip_while(|(_, line)| *line != HEADING).skip(1);
    let rows = lines.take_while(|(_, line)| !line.starts_with("## ")).filter(|(_, line)| line.starts_with('|'));
    let mut findings = Vec::new();
    for (number, row) in rows {
        let cells: Vec<_> = row.trim_matches('|').split(" | ").collect();
        let (files, functions, test) = match cells.as_slice() {
            [_, files, functions, test] => (*files, *functions, Some(*test)),
            [_, files, functions] => (*files, *functions, None),
            _ => continue,
        };
        let mut found = |text: String| findings.push((number + 1, text));
        let test = test.filter(|test| test.contains('`'));
        if test.is_none() && files.contains("](") {
            found("this row names no test".to_owned());
        }
        for (files, names) in [(files, functions)].into_iter().chain(test.map(|test| (test, test))) {
            for name in undefined(files, names, root) {
                found(format!("no file named in this row defines `{name}`"));
            }
        }
    }
    findings
}

/// Returns the names in backticks in `names` that no file linked in `files` defines.
fn undefined(files: &str, names: &str, root: &Path) -> Vec<String> {
    let files: Vec<_> =
        super::links(files).map(|file| fs::read_to_string(root.join(file)).unwrap_or_default()).collect();
    let named = names.split('`').skip(1).step_by(2);
    named.filter(|name| !files.iter().any(|file| defines(file, name))).map(str::to_owned).collect()
}

/// Reports whether a file of Rust or C defines the function.
fn defines(file: &str, function: &str) -> bool {
    let (rust, generic) = (format!("fn {function}("), format!("fn {function}<"));
    let c = format!(" {function}(");
    file.lines().any(|line| {
        line.contains(&rust)
            || line.contains(&generic)
            || (line.contains(&c) && !line.starts_with([' ', '\t', '/', '*']))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_that_its_file_lacks_is_found() {
        let row = |function: &str, test: &str| {
            let file = "[b](src/lint/places.rs)";
            let head = "| what happens | file | functions | test |\n|---|---|---|---|\n| **A heading** | | | |\n";
            format!("{HEADING}\n\n{head}| a | {file} | `{function}` |{test}\n")
        };
        let test = |name: &str| format!(" [b](src/lint/places.rs) `{name}` |");
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let known = test("a_function_that_its_file_lacks_is_found");
        let undefined = |name: &str| [(6, format!("no file named in this row defines `{name}`"))];
        assert_eq!(findings(&row("findings", &known), here), []);
        assert_eq!(findings(&row("renamed", &known), here), undefined("renamed"));
        assert_eq!(findings(&row("findings", &test("a_renamed_test")), here), undefined("a_renamed_test"));
        assert_eq!(findings(&row("findings", ""), here), [(6, "this row names no test".to_owned())]);
    }
}
