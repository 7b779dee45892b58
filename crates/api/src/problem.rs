//! The body of every error response.

use serde::{Deserialize, Serialize};

/// The body of an error response, in the form of RFC 9457.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Problem {
    /// A stable name of the kind of problem, such as `denied`, `not_logged_in`, `wrong_password`.
    pub r#type: String,
    /// One readable line: the problem and how to solve it.
    pub title: String,
    /// The HTTP status of the response.
    pub status: u16,
    /// Details of this occurrence of the problem, if there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

impl Problem {
    /// The `type` of a problem with status 503. The authority did not carry out the call, because it has lost the
    /// cluster's majority or is stopping. Another authority of the cluster can possibly carry out the call.
    pub const NO_MAJORITY: &str = "no_majority";

    /// Reports whether this problem has the type [`Self::NO_MAJORITY`]: the authority did not carry out the call.
    pub fn is_no_majority(&self) -> bool {
        self.r#type == Self::NO_MAJORITY
    }

    /// The `type` of a problem with status 404. The authority does not know the segment in the request. Another
    /// authority of the cluster has possibly issued it, because each authority records only the segments that it issued.
    pub const UNKNOWN_SEGMENT: &str = "unknown_segment";

    /// Reports whether this problem has the type [`Self::UNKNOWN_SEGMENT`].
    pub fn is_unknown_segment(&self) -> bool {
        self.r#type == Self::UNKNOWN_SEGMENT
    }
}
