//! Bar charts with intervals, drawn as SVG.

use anyhow::{Result, anyhow};
use plotters::prelude::*;

use super::style::{STAND_INS, themed};
use crate::claims::Transport;
use crate::quantity::Quantity;
use crate::results::Results;

const WIDTH: u32 = 900;
/// Room for names, titles and the axis.
const LEFT: i32 = 190;
const TOP: i32 = 12;
const BOTTOM: i32 = 46;
const ROW: u32 = 22;

const fn ink(number: usize) -> RGBColor {
    let ((red, green, blue), _) = STAND_INS[number];
    RGBColor(red, green, blue)
}

/// Draws a bar chart of a quantity: for each solution, a bar up to its median, and a line over the interval of the
/// median. The colour of a bar shows the transport. Bars of one transport are next to each other, so that people who do
/// not see the colours can tell the transports apart. Returns `None` if fewer than two solutions were measured, or if
/// all values are 0.
///
/// # Errors
///
/// Fails if the plot can't be drawn.
pub fn bars(results: &Results, quantity: Quantity) -> Result<Option<String>> {
    let mut rows: Vec<_> = results
        .solutions
        .iter()
        .filter_map(|solution| Some((solution.name.clone(), solution.claims.transport, solution.summary(quantity)?)))
        .collect();
    if rows.len() < 2 {
        return Ok(None);
    }
    let order = |transport: Transport| match transport {
        Transport::None => 0,
        Transport::Udp => 1,
        Transport::Tcp => 2,
    };
    rows.sort_by(|a, b| order(a.1).cmp(&order(b.1)).then(b.2.median.total_cmp(&a.2.median)));
    let most = rows.iter().map(|row| row.2.high).fold(0.0, f64::max);
    let least = rows.iter().filter(|row| row.2.low > 0.0).map(|row| row.2.low).fold(f64::MAX, f64::min);
    if most <= 0.0 {
        return Ok(None);
    }
    // Values that differ by more than a factor of fifty are unreadable on a linear axis.
    let logarithmic = most / least > 50.0;
    let (low, high) = if logarithmic { (least.log10().floor(), most.log10().ceil()) } else { (0.0, most * 1.02) };
    let place = |value: f64| {
        let value = if logarithmic { value.max(10f64.powf(low)).log10() } else { value };
        LEFT + ((value - low) / (high - low) * f64::from(WIDTH as i32 - LEFT - 20)) as i32
    };
    let height = ROW * rows.len() as u32 + (TOP + BOTTOM) as u32;
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        let fault = |error: DrawingAreaErrorKind<_>| anyhow!("cannot draw the plot of {}: {error}", quantity.name());
        let text = |size: i32| ("sans-serif", size).into_font().color(&ink(0));
        let bottom = height as i32 - BOTTOM;
        for tick in ticks(low, high, logarithmic) {
            let at = place(if logarithmic { 10f64.powf(tick) } else { tick });
            area.draw(&PathElement::new(vec![(at, TOP), (at, bottom)], ink(1))).map_err(fault)?;
            let label = label(if logarithmic { 10f64.powf(tick) } else { tick });
            area.draw(&Text::new(label.clone(), (at - 3 * label.len() as i32, bottom + 6), text(12))).map_err(fault)?;
        }
        let scale = if logarithmic { ", logarithmic" } else { "" };
        area.draw(&Text::new(format!("{}{scale}", quantity.unit()), (LEFT, bottom + 24), text(13))).map_err(fault)?;
        for (row, (name, transport, summary)) in rows.iter().enumerate() {
            let y = TOP + (row as u32 * ROW) as i32;
            area.draw(&Text::new(name.clone(), (4, y + 4), text(13))).map_err(fault)?;
            let bar = [(LEFT, y + 3), (place(summary.median), y + ROW as i32 - 4)];
            area.draw(&Rectangle::new(bar, ink(2 + order(*transport)).filled())).map_err(fault)?;
            let (from, to, middle) = (place(summary.low), place(summary.high), y + ROW as i32 / 2);
            for line in [
                vec![(from, middle), (to, middle)],
                vec![(from, middle - 4), (from, middle + 4)],
                vec![(to, middle - 4), (to, middle + 4)],
            ] {
                area.draw(&PathElement::new(line, ink(0).stroke_width(2))).map_err(fault)?;
            }
        }
        area.present().map_err(fault)?;
    }
    let described = format!("role=\"img\" aria-label=\"{}; the table below has the figures\" <", quantity.title());
    let (tag, _) = described.rsplit_once('<').unwrap_or((&described, ""));
    Ok(Some(themed(&svg).replacen("<svg ", &format!("<svg {tag}"), 1)))
}

fn ticks(low: f64, high: f64, logarithmic: bool) -> Vec<f64> {
    if logarithmic {
        return (low as i32..=high as i32).map(f64::from).collect();
    }
    let raw = (high - low) / 6.0;
    let power = 10f64.powf(raw.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|factor| factor * power).find(|step| *step >= raw).unwrap_or(raw);
    (0..).map(|number| f64::from(number) * step).take_while(|tick| *tick <= high).collect()
}

fn label(value: f64) -> String {
    match value {
        1e6.. => format!("{}M", value / 1e6),
        1e4.. => format!("{}k", value / 1e3),
        _ => format!("{}", (value * 1e6).round() / 1e6),
    }
}
