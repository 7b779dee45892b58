//! Several authorities that share their state over etcd (docs/cluster.md). Each of these *members* has a whole copy of
//! the database; `storage/replica.rs` replicates its transactions. This module makes an authority a member, and keeps
//! the list of the running members. It applies changes that other members made, and waits until other members have
//! applied a change.

pub mod bundle;
pub mod config;
pub mod confirm;
pub mod contact;
pub mod etcd_state;
pub mod files;
pub mod follow;
pub mod membership;
pub mod start;
pub mod status;
pub mod trails;
