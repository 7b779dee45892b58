//! The authority's decisions about the things that it issues: grants, path segments, and the lines on which segments
//! are requested by datagram.

pub mod grant;
pub mod lease;
pub mod lines;
pub mod segment;
