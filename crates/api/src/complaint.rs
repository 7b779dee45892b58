//! Complaints of applications about people, which lower their scores.

use serde::{Deserialize, Serialize};

/// The misconduct of a person, as an application reports it. The person opened a connection to the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Misconduct {
    /// The person failed to log in to the application.
    FailedLogin,
    /// The person sent too many requests, or requests that cost the application too much.
    Flood,
    /// The person abused the application in another way.
    Abuse,
}

impl Misconduct {
    /// All kinds of misconduct.
    pub const ALL: [Self; 3] = [Self::FailedLogin, Self::Flood, Self::Abuse];

    /// Returns the name of this kind of misconduct in requests and in the audit trail.
    pub const fn name(self) -> &'static str {
        match self {
            Self::FailedLogin => "failed_login",
            Self::Flood => "flood",
            Self::Abuse => "abuse",
        }
    }

    /// Returns the number of points by which a complaint of this kind lowers the person's score, if the complaint does
    /// not set [`Complaint::points`].
    pub const fn points(self) -> u32 {
        match self {
            Self::FailedLogin => 5,
            Self::Flood => 10,
            Self::Abuse => 20,
        }
    }
}

/// Maximum number of points by which one complaint lowers a person's score.
pub const COMPLAINT_POINTS_MAX: u32 = 20;

/// The body of `POST /v1/verifier/complaints`: a verifier passes on an application's complaint about the person behind
/// a connection.
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
    /// The person's misconduct, as the application reports it.
    pub about: Misconduct,
    /// Number of points by which the complaint lowers the person's score; if absent, [`Misconduct::points`] of `about`.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::form::some_whole")]
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 20))]
    pub points: Option<u32>,
}

/// The answer to [`Complaint`]: the person's new score.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Standing {
    /// The person's score, from 0 to 100.
    pub score: u32,
}
