//! What the roles' IO has in common: lists for people, standard output, folders of their own, JSON lines over UNIX sockets,
//! a page of metrics, huge pages.
//!
//! Knows nothing of what is listed, said or counted: that is the roles' own.
#![deny(unsafe_code)]

pub mod folder;
pub mod lines;
pub mod memory;
pub mod metrics;
pub mod output;
pub mod table;
