//! A table of expected and observed results.

use std::fmt;

/// The table, with one row per claim.
#[derive(Default)]
pub struct Table(Vec<Row>);

struct Row {
    what: String,
    expected: String,
    seen: String,
    same: bool,
}

impl Table {
    /// Adds a row; `same` states whether the observed result is the expected one.
    pub fn row(&mut self, what: &str, expected: &str, seen: impl fmt::Display, same: bool) {
        let seen = seen.to_string();
        println!("   {what}: {}{seen}", if same { "" } else { "NOT AS EXPECTED: " });
        self.0.push(Row { what: what.to_owned(), expected: expected.to_owned(), seen, same });
    }

    /// Reports whether every row is as expected.
    pub fn all_as_expected(&self) -> bool {
        !self.0.is_empty() && self.0.iter().all(|row| row.same)
    }

    /// Returns a summary for the beginning of a sentence: how many rows are as expected.
    pub fn verdict(&self) -> String {
        match self.0.iter().filter(|row| !row.same).count() {
            0 => format!("All {} as expected,", self.0.len()),
            wrong => format!("{wrong} of {} NOT as expected,", self.0.len()),
        }
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = |text: fn(&Row) -> &str, head: &str| {
            self.0.iter().map(|row| text(row).chars().count()).chain([head.len()]).max().unwrap_or_default()
        };
        let (what, expected) = (width(|row| &row.what, "WHAT"), width(|row| &row.expected, "EXPECTED"));
        writeln!(f, "    {:what$}  {:expected$}  SEEN", "WHAT", "EXPECTED")?;
        for row in &self.0 {
            let mark = if row.same { "ok" } else { "NO" };
            writeln!(f, "{mark}  {:what$}  {:expected$}  {}", row.what, row.expected, row.seen)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Table;

    #[test]
    fn one_difference_is_enough() {
        let mut table = Table::default();
        assert!(!table.all_as_expected(), "nothing seen is not as expected");
        table.row("scan", "nothing", "nothing", true);
        assert!(table.all_as_expected());
        table.row("forged tokens", "0 admitted", "1 admitted", false);
        assert!(!table.all_as_expected());
        assert!(table.verdict().starts_with("1 of 2 NOT") && table.to_string().contains("NO  forged tokens"));
    }
}
