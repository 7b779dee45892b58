//! Error bodies.

use serde::{Deserialize, Serialize};

/// An error body, RFC 9457.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Problem {
    /// A stable name, such as `denied`, `not_logged_in`, `wrong_password`.
    pub r#type: String,
    /// One readable line: the problem and how to solve it.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// Details, if there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}
