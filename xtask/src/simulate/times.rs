//! Round-trip times between regions, as read from a table.

use anyhow::{Context, Result, ensure};

/// Round-trip times between every two regions, in milliseconds. Within a region the time is 0, because the table has no
/// value for it.
pub struct Times {
    rows: Vec<Vec<u32>>,
}

impl Times {
    /// Parses CSV. The first line names the regions of the columns. Each further line begins with the name of its own
    /// region, and continues with the times in the order of the columns. The field for the line's own region is empty.
    pub fn read(text: &str) -> Result<Self> {
        let mut lines = text.lines();
        let regions: Vec<_> = lines.next().context("the file is empty")?.split(',').skip(1).collect();
        ensure!(regions.len() > 1, "line 1 names fewer than two regions");
        let mut rows = Vec::new();
        for (number, line) in (2..).zip(lines) {
            let (name, cells) = line.split_once(',').with_context(|| format!("line {number} has no times"))?;
            let here = rows.len();
            ensure!(
                regions.get(here) == Some(&name),
                "line {number}: the region {name} is not the region of column {}",
                here + 2
            );
            let read = |(there, cell): (usize, &str)| -> Result<u32> {
                if there == here {
                    ensure!(
                        cell.is_empty(),
                        "line {number}: the field for the time from {name} to itself must be empty"
                    );
                    return Ok(0);
                }
                let time = cell.parse().ok().filter(|time| *time > 0);
                time.with_context(|| {
                    format!("line {number}, column {}: {cell:?} is not a time in milliseconds", there + 2)
                })
            };
            let row = cells.split(',').enumerate().map(read).collect::<Result<Vec<_>>>()?;
            ensure!(row.len() == regions.len(), "line {number}: {} times for {} regions", row.len(), regions.len());
            rows.push(row);
        }
        ensure!(rows.len() == regions.len(), "{} rows for {} columns", rows.len(), regions.len());
        Ok(Self { rows })
    }

    /// Returns the number of regions.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Returns the round-trip time between two regions in milliseconds.
    pub fn between(&self, from: usize, to: usize) -> u32 {
        self.rows[from][to]
    }
}
