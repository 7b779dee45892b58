//! QR codes, as drawings in a page.

use anyhow::{Result, anyhow};
use maud::{Markup, html};
use qrcodegen::{QrCode, QrCodeEcc};
use std::fmt::Write;

/// Light modules around a code, as readers want them.
const MARGIN: i32 = 4;

/// A code that says `text`; `name` is what it is, for those who don't see it.
pub fn drawing(text: &str, name: &str) -> Result<Markup> {
    let code = QrCode::encode_text(text, QrCodeEcc::Medium).map_err(|error| anyhow!("no QR code: {error}"))?;
    let mut path = String::new();
    for y in 0..code.size() {
        for x in (0..code.size()).filter(|x| code.get_module(*x, y)) {
            write!(path, "M{} {}h1v1h-1z", x + MARGIN, y + MARGIN)?;
        }
    }
    let side = code.size() + 2 * MARGIN;
    Ok(html! {
        svg.code viewBox={ "0 0 " (side) " " (side) } role="img" aria-label=(name) {
            // Dark on light, whatever the colours of the page: many readers know no other way.
            rect width=(side) height=(side) fill="#ffffff" {}
            path d=(path) fill="#000000" {}
        }
    })
}
