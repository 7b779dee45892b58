//! How much of each packet is headers, and what is left for tenants, beside Ethernet and VXLAN.
//!
//! Prints one JSON object: {name: {value, unit, baseline, ratio, bound, holds}}; `cargo xtask bench` collects it. The baseline is
//! VXLAN. Computed, not measured: docs/overhead.md has the same as a table, and a test holds the two together.

#[path = "overhead/rows.rs"]
mod rows;

use rows::{MTUS, Row, rows};
use serde_json::{Map, Value, json};

fn main() {
    let rows = rows();
    let vxlan = rows.iter().find(|row| row.name == "vxlan").expect("the baseline is a row");
    let mut figures = Map::new();
    for row in &rows {
        let mut add = |what: String, value: &dyn Fn(&Row) -> f64, unit: &str| {
            let (value, baseline) = (value(row), value(vxlan));
            let figure = json!({
                "value": value, "unit": unit, "baseline": baseline, "ratio": rounded(value / baseline),
                "bound": null, "holds": null,
            });
            figures.insert(format!("overhead.{}.{what}", row.name), figure);
        };
        add("header".to_owned(), &|row| row.header as f64, "B");
        for mtu in MTUS {
            add(format!("payload_{mtu}"), &|row| row.payload(mtu) as f64, "B");
            add(format!("goodput_{mtu}"), &|row| rounded(row.goodput(mtu)), "of 1");
        }
    }
    eprint!("{}", rows::table(&rows));
    println!("{}", Value::Object(figures));
}

fn rounded(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}
