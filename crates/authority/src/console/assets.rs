//! The style sheet and the script, which are compiled into the binary. Each URL contains a hash of the content, so
//! browsers may cache the file indefinitely.

use crate::login::credentials::token_hash;
use crate::state::Authority;
use axum::Router;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::IntoResponse;
use axum::routing::get;
use std::sync::{Arc, LazyLock};

/// A file that pages refer to.
pub struct Asset {
    name: &'static str,
    kind: &'static str,
    text: &'static str,
    path: LazyLock<String>,
}

impl Asset {
    /// Returns the URL path of the asset, including the hash of its content.
    pub fn path(&self) -> &str {
        &self.path
    }

    async fn serve(&self) -> impl IntoResponse + use<> {
        let kept = "public, max-age=31536000, immutable";
        ([(CONTENT_TYPE, self.kind), (CACHE_CONTROL, kept)], self.text)
    }
}

fn path(name: &str, text: &str) -> String {
    format!("{}/{name}?{}", super::ROOT, &hex::encode(token_hash(text))[..16])
}

const STYLE_TEXT: &str = include_str!("console.css");
const SCRIPT_TEXT: &str = include_str!("console.js");

/// The console's style sheet.
pub static STYLE: Asset = Asset {
    name: "/console.css",
    kind: "text/css; charset=utf-8",
    text: STYLE_TEXT,
    path: LazyLock::new(|| path("console.css", STYLE_TEXT)),
};

/// The console's script.
pub static SCRIPT: Asset = Asset {
    name: "/console.js",
    kind: "text/javascript; charset=utf-8",
    text: SCRIPT_TEXT,
    path: LazyLock::new(|| path("console.js", SCRIPT_TEXT)),
};

/// Returns the routes of the style sheet and the script.
pub fn routes() -> Router<Arc<Authority>> {
    Router::new()
        .route(STYLE.name, get(async || STYLE.serve().await))
        .route(SCRIPT.name, get(async || SCRIPT.serve().await))
}
