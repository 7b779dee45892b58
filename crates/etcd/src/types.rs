//! Keys and values, transactions, and their results.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Members of etcd, and the files for TLS.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// URLs of members, `https://HOST:PORT` or `http://HOST:PORT`. The first one is preferred at the beginning.
    pub endpoints: Vec<String>,
    /// PEM file with the CAs that sign the members' certificates. If it is `None`, the client trusts the system's CAs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
    /// PEM file with the client's certificate, for members that demand one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<PathBuf>,
    /// PEM file with the private key of `certificate`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<PathBuf>,
}

/// Reason why a call failed. The variants say whether etcd may have carried the call out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No member answered, and none has carried the call out. Reads fail in this way whenever they get no answer.
    #[error("etcd is out of reach: {0}")]
    Unreachable(String),
    /// A transaction was sent, and etcd has possibly carried it out. The caller has to look up the result before it
    /// continues. This error also applies if etcd answers that its database is full, because etcd carries out the
    /// transaction that exceeds the quota.
    #[error("etcd may or may not have carried the transaction out: {0}")]
    Unknown(String),
    /// etcd refused the call, and did not carry it out.
    #[error("etcd refused the call: {0}")]
    Refused(String),
}

/// A key with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyValue {
    /// The key.
    pub key: String,
    /// The value of the key. In a watch, deleted keys have no values.
    pub value: Vec<u8>,
    /// Revision in which the key was created. In the comparison of a transaction, 0 means that the key does not exist.
    pub create_revision: i64,
    /// Revision in which the key was last changed.
    pub mod_revision: i64,
    /// The lease to which the key is bound; 0 if there is none.
    pub lease: i64,
}

/// A transaction. If every comparison in `compare` holds, etcd carries out the operations in `success`. Otherwise, it
/// carries out the operations in `failure`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Txn {
    /// Conditions of the transaction.
    pub compare: Vec<Compare>,
    /// Operations that etcd carries out if all comparisons hold. They must not change the same key twice.
    pub success: Vec<Op>,
    /// Operations that etcd carries out if a comparison does not hold.
    pub failure: Vec<Op>,
}

impl Txn {
    /// Reports whether the transaction contains an operation that changes something.
    pub(crate) fn writes(&self) -> bool {
        self.success.iter().chain(&self.failure).any(|op| !matches!(op, Op::Get { .. }))
    }
}

/// A comparison with the current state of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Compare {
    /// The key has this value. Does not hold for an absent key.
    ValueIs(String, Vec<u8>),
    /// The key was created in this revision. A revision of 0 means that the key does not exist.
    CreateRevisionIs(String, i64),
    /// The key was last changed in this revision. A revision of 0 means that the key does not exist.
    ModRevisionIs(String, i64),
}

/// An operation of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Sets a key. If the lease has ended, etcd refuses the whole transaction.
    Put {
        /// The key.
        key: String,
        /// The new value of the key.
        value: Vec<u8>,
        /// The lease whose end deletes the key.
        lease: Option<i64>,
    },
    /// Reads a key.
    Get {
        /// The key.
        key: String,
    },
    /// Deletes a key.
    Delete {
        /// The key.
        key: String,
    },
    /// Deletes the keys from `key` up to `end`, excluding `end`.
    DeleteRange {
        /// The first key.
        key: String,
        /// The first key that stays.
        end: String,
    },
}

/// The result of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TxnReply {
    /// Whether all comparisons held.
    pub succeeded: bool,
    /// etcd's revision after the transaction.
    pub revision: i64,
    /// For each operation that etcd carried out, the keys that it read. The list is empty for puts and deletes.
    pub got: Vec<Vec<KeyValue>>,
}

/// An event of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchEvent {
    /// Keys have changed. If the watch ends later, a new watch from `revision + 1` misses no change. The new watch
    /// possibly repeats changes of `revision`, because etcd divides long messages.
    Changed {
        /// The last revision of which the watch has reported all changes.
        revision: i64,
        /// Keys that were set, in order. A key that was set several times occurs several times.
        puts: Vec<KeyValue>,
        /// Keys that were deleted, or whose lease has ended.
        deleted: Vec<String>,
    },
    /// etcd no longer has the revision from which to watch. The watch has ended; list the keys again.
    Compacted,
    /// The connection broke, or the member has no leader or does not answer. The watch has ended; make a new one. The
    /// text is the reason.
    Lost(String),
    /// Nothing happened before the timeout.
    Quiet,
}

/// The state of one member.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MemberStatus {
    /// The member's URL, as in the settings.
    pub endpoint: String,
    /// Reason why there is no status. If it is set, only `endpoint` has a meaning.
    pub error: Option<String>,
    /// The member's version of etcd.
    pub version: String,
    /// The member's number (member id).
    pub id: u64,
    /// The number of the leader that this member follows; 0 if it knows no leader.
    pub leader: u64,
    /// The current term of Raft.
    pub raft_term: u64,
    /// The last revision that this member has.
    pub revision: i64,
    /// Size of the database file, in bytes. etcd's quota limits this size.
    pub db_size: i64,
    /// The part of `db_size` that is in use; defragmentation frees the rest.
    pub db_size_in_use: i64,
    /// Problems and alarms that the member reports. Each text contains a solution, if one is known.
    pub problems: Vec<String>,
    /// Whether the alarm about a full database is raised, so that etcd refuses all changes.
    pub is_full: bool,
    /// The quota of the database, in bytes. Only [`Etcd::measured_members`](crate::Etcd::measured_members) sets it, if
    /// the member's page of metrics has it.
    pub quota: Option<u64>,
    /// The revision up to which the member has removed old values. Only
    /// [`Etcd::measured_members`](crate::Etcd::measured_members) sets it, if the member's page of metrics has it.
    pub compacted: Option<u64>,
}

impl MemberStatus {
    /// Reports whether this member is the leader.
    pub fn is_leader(&self) -> bool {
        self.id != 0 && self.id == self.leader
    }
}
