//! Complaints of applications about people, which lower their scores.

use serde::{Deserialize, Serialize};

/// The conduct of the person behind a connection that an application complains about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Misconduct {
    /// A login at the application failed.
    FailedLogin,
    /// Requests that are too many, or too expensive.
    Flood,
    /// Any other abuse of the application.
    Abuse,
}

impl Misconduct {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::FailedLogin, Self::Flood, Self::Abuse];

    /// Returns the name in requests and in the audit trail.
    pub const fn name(self) -> &'static str {
        match self {
            Self::FailedLogin => "failed_login",
            Self::Flood => "flood",
            Self::Abuse => "abuse",
        }
    }

    /// Returns the number of points that a complaint takes off, unless it says otherwise.
    pub const fn points(self) -> u32 {
        match self {
            Self::FailedLogin => 5,
            Self::Flood => 10,
            Self::Abuse => 20,
        }
    }
}

/// Maximum number of points that one complaint takes off.
pub const COMPLAINT_POINTS_MAX: u32 = 20;

/// `POST /v1/verifier/complaints` of a verifier: an application complains about the person behind a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Complaint {
    /// Handle of the grant that admitted the connection.
    #[serde(with = "crate::form::handle_hex")]
    #[cfg_attr(feature = "schema", schema(schema_with = crate::schema::handle))]
    pub handle: u64,
    /// The application: the name of its user on the verifier's host.
    #[cfg_attr(feature = "schema", schema(min_length = 1, max_length = 64))]
    pub application: String,
    /// The person's conduct.
    pub about: Misconduct,
    /// Number of points to take off; those of the kind if absent.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::form::some_whole")]
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 20))]
    pub points: Option<u32>,
}

/// The answer to [`Complaint`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Standing {
    /// The person's score, from 0 to 100.
    pub score: u32,
}
