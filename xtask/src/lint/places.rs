//! Checks the table of CONTRIBUTING.md that says in which file each function is.

use std::fs;
use std::path::Path;

/// Heading above the table.
const HEADING: &str = "## Where things happen";

/// Returns the table's functions that no file of their row defines, each with the line of the row. `root` is the folder
/// to which the table's links are relative.
pub fn missing(text: &str, root: &Path) -> Vec<(usize, String)> {
    let lines = text.lines().enumerate().skip_while(|(_, line)| *line != HEADING).skip(1);
    let rows = lines.take_while(|(_, line)| !line.starts_with("## ")).filter(|(_, line)| line.starts_with('|'));
    let mut missing = Vec::new();
    for (number, row) in rows {
        let cells: Vec<_> = row.trim_matches('|').split(" | ").collect();
        let [_, files, functions] = cells.as_slice() else { continue };
        let files: Vec<_> =
            super::links(files).map(|file| fs::read_to_string(root.join(file)).unwrap_or_default()).collect();
        let named = functions.split('`').skip(1).step_by(2);
        let lost = named.filter(|name| !files.iter().any(|file| defines(file, name)));
        missing.extend(lost.map(|name| (number + 1, name.to_owned())));
    }
    missing
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
        let row = |function: &str| {
            format!(
                "{HEADING}\n\n| what | file | functions |\n|---|---|---|\n| a | [b](src/lint/places.rs) | `{function}` |\n"
            )
        };
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        assert_eq!(missing(&row("missing"), here), []);
        assert_eq!(missing(&row("lost"), here), [(5, "lost".to_owned())]);
    }
}
