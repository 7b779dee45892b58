//! QR codes, as drawings in a page.

use anyhow::{Result, anyhow};
use maud::{Markup, html};
use qrcodegen::{QrCode, QrCodeEcc};
use std::fmt::Write;

/// Width of the light margin around a code, in modules, as QR readers require.
const MARGIN: i32 = 4;

/// Draws a QR code that contains `text`. `name` describes the drawing to screen readers.
///
/// # Errors
/// Fails if the text is too long for a QR code.
pub fn drawing(text: &str, name: &str) -> Result<Markup> {
    let code =
        QrCode::encode_text(text, QrCodeEcc::Medium).map_err(|error| anyhow!("cannot create the QR code: {error}"))?;
    let mut path = String::new();
    for y in 0..code.size() {
        for x in (0..code.size()).filter(|x| code.get_module(*x, y)) {
            write!(path, "M{} {}h1v1h-1z", x + MARGIN, y + MARGIN)?;
        }
    }
    let side = code.size() + 2 * MARGIN;
    Ok(html! {
        svg.code viewBox={ "0 0 " (side) " " (side) } role="img" aria-label=(name) {
            // The code is dark on light in every colour scheme, because many readers cannot read inverted codes.
            rect width=(side) height=(side) fill="#ffffff" {}
            path d=(path) fill="#000000" {}
        }
    })
}
