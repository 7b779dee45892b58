//! The authorities of a cluster, any of which serves an endpoint.

use serde::{Deserialize, Serialize};

/// Maximum number of authorities in one list. A reader ignores the rest of a longer list.
pub const AUTHORITIES_MAX: usize = 16;

/// The answer to `GET /v1/authorities`: the authorities of the cluster to which the answering authority belongs. They
/// serve the same people and verifiers, accept the same session tokens, and have certificates of the same CA.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Authorities {
    /// The URLs of the authorities (`https://HOST:PORT`), at most [`AUTHORITIES_MAX`]. An authority that is not in a
    /// cluster lists itself, or nothing.
    pub authorities: Vec<String>,
}
