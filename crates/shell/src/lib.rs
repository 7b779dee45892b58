//! What the roles' IO has in common: lists for people, standard output, folders of their own, JSON lines over UNIX sockets,
//! a page of metrics.
//!
//! Knows nothing of what is listed, said or counted: that is the roles' own.
#![forbid(unsafe_code)]

pub mod folder;
pub mod lines;
pub mod metrics;
pub mod output;
pub mod table;
