//! Colours and layout of the page. Plots are drawn in the placeholder colours of [`STAND_INS`]. The page replaces these
//! by CSS variables, so that plots follow the reader's choice of light or dark.

/// Placeholder colours in plots, each with the variable that replaces it.
pub const STAND_INS: [((u8, u8, u8), &str); 6] = [
    ((1, 2, 3), "var(--text)"),
    ((4, 5, 6), "var(--grid)"),
    ((7, 8, 9), "var(--one)"),
    ((10, 11, 12), "var(--two)"),
    ((13, 14, 15), "var(--three)"),
    ((16, 17, 18), "var(--paper)"),
];

/// Replaces the placeholder colours in a plot.
pub fn themed(svg: &str) -> String {
    STAND_INS.iter().fold(svg.to_owned(), |svg, ((red, green, blue), variable)| {
        svg.replace(&format!("#{red:02X}{green:02X}{blue:02X}"), variable)
    })
}

/// The style sheet. The three colours of bars are from the palette of Okabe and Ito, which people with any colour
/// vision can tell apart. In the dark style, they are lighter.
pub const SHEET: &str = "
:root { color-scheme: light dark; --paper: #fff; --text: #1a1a1a; --grid: #d0d0d0; --soft: #f2f4f6;
  --one: #0072b2; --two: #d55e00; --three: #009e73; }
@media (prefers-color-scheme: dark) { :root { --paper: #14171a; --text: #e8e8e8; --grid: #444a50; --soft: #1f2429;
  --one: #56b4e9; --two: #e69f00; --three: #2fc99b; } }
body { background: var(--paper); color: var(--text); font: 16px/1.5 system-ui, sans-serif; margin: 0 auto;
  max-width: 72rem; padding: 1rem; }
h1, h2, h3 { line-height: 1.25; } h2 { margin-top: 2.5rem; border-bottom: 1px solid var(--grid); }
a { color: var(--one); } figure { margin: 1rem 0; } figcaption { font-size: .9rem; }
svg { max-width: 100%; height: auto; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: .9rem; margin: .5rem 0; }
th, td { border: 1px solid var(--grid); padding: .25rem .5rem; text-align: left; vertical-align: top; }
td.number { text-align: right; font-variant-numeric: tabular-nums; } thead th { background: var(--soft); }
.best { font-weight: 700; } small, .soft { opacity: .8; }
.yes::before { content: \"✓ \"; color: var(--three); } .no::before { content: \"✗ \"; color: var(--two); }
@media print { body { max-width: none; font-size: 11px; } .wide { overflow: visible; } figure, tr { break-inside: avoid; }
  :root { --paper: #fff; --text: #000; --grid: #bbb; --soft: #eee; --one: #0072b2; --two: #d55e00; --three: #009e73; } }
";
