//! The authority's HTTPS API, from the caller's side.
