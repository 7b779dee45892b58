//! The body of every error response.

use serde::{Deserialize, Serialize};

/// The body of an error response, in the form of RFC 9457.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Problem {
    /// A stable name, such as `denied`, `not_logged_in`, `wrong_password`.
    pub r#type: String,
    /// One readable line: the problem and how to solve it.
    pub title: String,
    /// The HTTP status of the response.
    pub status: u16,
    /// More about this occurrence of the problem, if there is more to say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

impl Problem {
    /// The `type` of a problem with status 503 by which an authority says that it can't do this call now, although
    /// another authority of the cluster possibly can: it has lost the cluster's majority, or is stopping. The authority
    /// has not carried out the call.
    pub const NO_MAJORITY: &str = "no_majority";

    /// Reports whether the authority did not carry out the call because it can't do it now; see [`Self::NO_MAJORITY`].
    pub fn is_no_majority(&self) -> bool {
        self.r#type == Self::NO_MAJORITY
    }
}
