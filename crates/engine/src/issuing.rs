//! The authority's decisions about what it issues: grants, path segments, and the lines on which segments are requested
//! by datagram.

pub mod grant;
pub mod lease;
pub mod lines;
pub mod segment;
