//! Lists for users: aligned columns, times in UTC.

use jiff::Timestamp;
use std::fmt;

/// A table of text: a header, and rows of cells.
pub struct Table(Vec<Vec<String>>);

impl Table {
    /// Creates a table; each row must have as many cells as the header.
    pub fn new(head: &[&str], rows: impl Iterator<Item = Vec<String>>) -> Self {
        let head = head.iter().map(|cell| (*cell).to_owned()).collect();
        // Names that users chose must not control the terminal.
        let plain = |row: Vec<String>| row.iter().map(|cell| cell.replace(char::is_control, "?")).collect();
        Self(std::iter::once(head).chain(rows.map(plain)).collect())
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.0.first().map_or(0, Vec::len);
        let width = |column: usize| self.0.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<_> = (0..columns).map(width).collect();
        for row in &self.0 {
            let cells: Vec<_> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
            writeln!(f, "{}", cells.join("  ").trim_end())?;
        }
        Ok(())
    }
}

/// Formats a number of items, with the noun in `one` in the singular or the plural: `1 grant`, `2 grants`.
pub fn count(number: usize, one: &str) -> String {
    if number == 1 { format!("1 {one}") } else { format!("{number} {one}s") }
}

/// Formats a span of time: `90 s`, `5 min`, `3 h`, `4 days`.
pub fn span(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}

/// Formats a time in Unix seconds as `2030-01-31T12:00:00Z`.
pub fn utc(time: u64) -> String {
    let time = i64::try_from(time).ok().and_then(|time| Timestamp::from_second(time).ok());
    // The library's calendar ends with the year 9999.
    time.map_or_else(|| "9999-12-31T23:59:59Z".to_owned(), |time| time.to_string())
}

/// Formats a number of bytes: `512 B`, `1.5 KiB`, `1.5 MiB`.
pub fn bytes(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        _ => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_civil_dates() {
        for (time, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_210_096, "2024-02-29T12:34:56Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
            (u64::MAX, "9999-12-31T23:59:59Z"),
        ] {
            assert_eq!(utc(time), text);
        }
    }

    #[test]
    fn spans_have_one_unit() {
        assert_eq!([119, 120, 7199, 7200, 172_800].map(span), ["119 s", "2 min", "119 min", "2 h", "2 days"]);
    }

    #[test]
    fn sizes_are_round() {
        assert_eq!([bytes(1000), bytes(1536), bytes(33_554_432)], ["1000 B", "1.5 KiB", "32.0 MiB"]);
    }

    #[test]
    fn columns_are_aligned_and_cells_cant_steer_the_terminal() {
        let table = Table::new(&["A", "BB"], [vec!["x\u{1b}[2J".to_owned(), "y".to_owned()]].into_iter());
        assert_eq!(table.to_string(), "A      BB\nx?[2J  y\n");
    }
}
