//! Draws distributions as SVG: for each value, the share of the samples that are not larger than the value.

use std::fmt::Write as _;

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 480.0;
const LEFT: f64 = 60.0;
const RIGHT: f64 = 240.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 50.0;
/// Number of points with which each curve is drawn.
const POINTS: usize = 250;
/// Colour and dash of each curve. The dashes distinguish the curves in print.
const STROKES: [(&str, &str); 6] = [
    ("#2e7d4f", ""),
    ("#b5502a", ""),
    ("#1b6ca8", "2 2"),
    ("#1b6ca8", "6 3"),
    ("#1b6ca8", "10 3 2 3"),
    ("#1b6ca8", ""),
];

/// The axis of values. Curves are not drawn beyond its range.
pub struct Axis {
    pub title: &'static str,
    pub unit: &'static str,
    pub from: f64,
    pub to: f64,
}

/// A curve of the picture: the distribution of `values`.
pub struct Curve {
    pub name: &'static str,
    pub values: Vec<f64>,
}

/// Returns the picture as SVG text.
pub fn draw(axis: &Axis, curves: &[Curve]) -> String {
    let mut svg = String::new();
    write(&mut svg, axis, curves).expect("a string takes everything");
    svg
}

fn write(svg: &mut String, axis: &Axis, curves: &[Curve]) -> std::fmt::Result {
    let span = axis.to - axis.from;
    let x = |value: f64| LEFT + (value - axis.from) / span * (WIDTH - LEFT - RIGHT);
    let y = |part: f64| HEIGHT - BOTTOM - part * (HEIGHT - TOP - BOTTOM);
    writeln!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
         font-size=\"13\" fill=\"#222\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <text x=\"{LEFT}\" y=\"24\" font-size=\"16\">{}</text>",
        axis.title
    )?;
    // Five steps, because the ranges of both pictures divide evenly into them.
    for step in 0..=5 {
        let value = axis.from + span * f64::from(step) / 5.0;
        line(svg, (x(value), y(0.0)), (x(value), y(1.0)))?;
        let (at, unit) = (y(0.0) + 20.0, axis.unit);
        writeln!(svg, "<text x=\"{:.1}\" y=\"{at:.1}\" text-anchor=\"middle\">{value}{unit}</text>", x(value))?;
    }
    for quarter in 0..=4 {
        let part = f64::from(quarter) / 4.0;
        line(svg, (x(axis.from), y(part)), (x(axis.to), y(part)))?;
        writeln!(svg, "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{part}</text>", LEFT - 8.0, y(part) + 4.0)?;
    }
    for (index, (curve, (colour, dash))) in curves.iter().zip(STROKES.iter().cycle()).enumerate() {
        let mut sorted = curve.values.clone();
        sorted.sort_by(f64::total_cmp);
        let points = (0..=POINTS).map(|point| {
            let value = axis.from + span * point as f64 / POINTS as f64;
            let part = sorted.partition_point(|sample| *sample <= value) as f64 / sorted.len().max(1) as f64;
            format!("{:.1},{:.1}", x(value), y(part))
        });
        let stroke = format!("fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.8\" stroke-dasharray=\"{dash}\"");
        writeln!(svg, "<polyline {stroke} points=\"{}\"/>", points.collect::<Vec<_>>().join(" "))?;
        let (at, row) = (WIDTH - RIGHT + 15.0, TOP + 20.0 * index as f64 + 10.0);
        writeln!(svg, "<line {stroke} x1=\"{at}\" x2=\"{}\" y1=\"{row}\" y2=\"{row}\"/>", at + 30.0)?;
        writeln!(svg, "<text x=\"{}\" y=\"{}\">{}</text>", at + 38.0, row + 4.0, curve.name)?;
    }
    writeln!(svg, "</svg>")
}

fn line(svg: &mut String, from: (f64, f64), to: (f64, f64)) -> std::fmt::Result {
    let ends = format!("x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\"", from.0, from.1, to.0, to.1);
    writeln!(svg, "<line {ends} stroke=\"#ddd\"/>")
}
