//! Computes, for several encapsulations, how long the headers of a packet are and how much room they leave for payload.
//!
//! Prints one JSON object, which `cargo xtask bench` collects. With each figure it contains VXLAN's figure, for
//! comparison. The figures are computed, not measured. docs/overhead.md shows them as a table, and a test checks that
//! the table is correct.

#[path = "overhead/rows.rs"]
mod rows;

use measure::{Bound, Figures, Yardstick};
use rows::{MTUS, Row, rows};

fn main() {
    let rows = rows();
    let vxlan = rows.iter().find(|row| row.name == "vxlan").expect("the yardstick is a row");
    let mut figures = Figures::default();
    for row in &rows {
        let mut add = |what: String, value: &dyn Fn(&Row) -> f64, unit: &str| {
            let name = format!("overhead.{}.{what}", row.name);
            figures.add(&name, unit, value(row), &Yardstick::fixed(value(vxlan)), Bound::None);
        };
        add("header".to_owned(), &|row| row.header as f64, "B");
        for mtu in MTUS {
            add(format!("payload_{mtu}"), &|row| row.payload(mtu) as f64, "B");
            add(format!("goodput_{mtu}"), &|row| row.goodput(mtu), "of 1");
        }
    }
    eprint!("{}", rows::table(&rows));
    figures.print();
}
