//! Lines: a session requests path segments and grants by UDP on a line (wire.md §8.13, §8.14).

use serde::{Deserialize, Serialize};
use wire::ask::{LineKey, LineNumber};

/// The answer to `POST /v1/segments/line` of a session: a new line, which replaces the session's earlier line.
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Line {
    /// The UDP port at which the authority receives requests on lines.
    pub port: u16,
    /// The line's number: 16 hex digits.
    #[serde(with = "crate::form::handle_hex")]
    #[cfg_attr(feature = "schema", schema(schema_with = crate::schema::handle))]
    pub line: u64,
    /// The line's key, 32 bytes, hex. Secret.
    pub key: String,
    /// Whether the authority accepts requests for grants on the line. Missing if the authority is too old to know such
    /// requests.
    #[serde(default)]
    pub grants: bool,
    /// Whether a request for a segment on the line may also ask for the return segment, for the receiver's answers
    /// (wire.md §8.15). Missing if the authority is too old to know such requests.
    #[serde(default)]
    pub answers: bool,
    /// Whether a request for a segment on the line may name a path (wire.md §8.16). Missing if the authority is too old
    /// to know such requests.
    #[serde(default)]
    pub paths: bool,
    /// The latest time at which the line ends: the end of the session, in Unix seconds.
    pub expires: u64,
    /// The current time by the authority's clock, in Unix seconds.
    pub now: u64,
}

impl Line {
    /// Returns the line's number and key, or `None` if the key is malformed.
    pub fn read(&self) -> Option<(LineNumber, LineKey)> {
        let mut key = [0; 32];
        hex::decode_to_slice(&self.key, &mut key).ok()?;
        Some((LineNumber(self.line), LineKey::new(key)))
    }
}
