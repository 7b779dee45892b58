//! Lines: asking for path segments by UDP (wire.md §8.13).

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use wire::ask::{LineKey, LineNumber};

/// The answer to `POST /v1/segments/line` of a session, which gives it a line in the place of the one it had.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
pub struct Line {
    /// The authority's UDP port.
    pub port: u16,
    /// The line's number: 16 hex digits.
    #[serde(with = "super::handle_hex")]
    #[schema(schema_with = super::handle)]
    pub line: u64,
    /// The line's key, 32 bytes, hex. Secret.
    pub key: String,
    /// When it ends with its session, if not before.
    pub expires: u64,
    /// The authority's clock.
    pub now: u64,
}

impl Line {
    /// The line's number and key; `None` if the key is broken.
    pub fn read(&self) -> Option<(LineNumber, LineKey)> {
        let mut key = [0; 32];
        hex::decode_to_slice(&self.key, &mut key).ok()?;
        Some((LineNumber(self.line), LineKey::new(key)))
    }
}
