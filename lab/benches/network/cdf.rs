//! Draws distributions: the share of samples that took at most a given time.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 480.0;
/// Margins of the picture: left, right, top, bottom.
const MARGIN: [f64; 4] = [60.0, 220.0, 40.0, 50.0];
/// Colour and dash of each curve; the dashes distinguish curves in print.
const STROKES: [(&str, &str); 8] = [
    ("#1b6ca8", ""),
    ("#1b6ca8", "6 3"),
    ("#1b6ca8", "2 2"),
    ("#b5502a", ""),
    ("#b5502a", "6 3"),
    ("#b5502a", "2 2"),
    ("#2e7d4f", ""),
    ("#2e7d4f", "2 2"),
];

/// A curve to draw: the distribution of the samples that one measurement took.
pub struct Curve {
    /// Name of the curve in the legend.
    pub name: String,
    /// The samples, in microseconds.
    pub microseconds: Vec<f64>,
}

/// Writes the curves to `target/bench/NAME.svg`, with a logarithmic axis of time, and returns the file's path.
pub fn write(name: &str, title: &str, curves: &[Curve]) -> Result<PathBuf> {
    let all = || curves.iter().flat_map(|curve| &curve.microseconds).copied();
    ensure!(all().count() > 0, "nothing to draw");
    let least = all().fold(f64::MAX, f64::min).max(1.0);
    let most = all().fold(0.0, f64::max);
    let (low, high) = (least.log10().floor(), most.log10().ceil());
    let [left, right, top, bottom] = MARGIN;
    let x = |microseconds: f64| left + (microseconds.max(1.0).log10() - low) / (high - low) * (WIDTH - left - right);
    let y = |part: f64| HEIGHT - bottom - part * (HEIGHT - top - bottom);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
         font-size=\"13\" fill=\"#222\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <text x=\"{left}\" y=\"24\" font-size=\"16\">{title}</text>\n"
    );
    for decade in low as i32..=high as i32 {
        let at = x(10f64.powi(decade));
        let label = match decade {
            ..3 => format!("{} µs", 10f64.powi(decade)),
            3..6 => format!("{} ms", 10f64.powi(decade - 3)),
            _ => format!("{} s", 10f64.powi(decade - 6)),
        };
        line(&mut svg, (at, y(0.0)), (at, y(1.0)))?;
        writeln!(svg, "<text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{label}</text>", y(0.0) + 20.0)?;
    }
    for quarter in 0..=4 {
        let part = f64::from(quarter) / 4.0;
        line(&mut svg, (x(10f64.powf(low)), y(part)), (x(10f64.powf(high)), y(part)))?;
        writeln!(svg, "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{part}</text>", left - 8.0, y(part) + 4.0)?;
    }
    for (index, (curve, (colour, dash))) in curves.iter().zip(STROKES.iter().cycle()).enumerate() {
        let mut sorted = curve.microseconds.clone();
        sorted.sort_by(f64::total_cmp);
        let count = sorted.len() as f64;
        let points = sorted.iter().enumerate();
        let points: Vec<_> =
            points.map(|(at, value)| format!("{:.1},{:.1}", x(*value), y((at + 1) as f64 / count))).collect();
        let stroke = format!("fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.8\" stroke-dasharray=\"{dash}\"");
        writeln!(svg, "<polyline {stroke} points=\"{}\"/>", points.join(" "))?;
        let (at, row) = (WIDTH - right + 15.0, top + 20.0 * index as f64 + 10.0);
        writeln!(svg, "<line {stroke} x1=\"{at}\" x2=\"{}\" y1=\"{row}\" y2=\"{row}\"/>", at + 30.0)?;
        writeln!(svg, "<text x=\"{}\" y=\"{}\">{}</text>", at + 38.0, row + 4.0, curve.name)?;
    }
    svg.push_str("</svg>\n");
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("bench");
    fs::create_dir_all(&dir)?;
    let file = dir.join(format!("{name}.svg"));
    fs::write(&file, svg).with_context(|| file.display().to_string())?;
    Ok(file)
}

fn line(svg: &mut String, from: (f64, f64), to: (f64, f64)) -> Result<()> {
    let ends = format!("x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\"", from.0, from.1, to.0, to.1);
    Ok(writeln!(svg, "<line {ends} stroke=\"#ddd\"/>")?)
}
