//! A client of etcd by its JSON gateway (`/v3/…`), which every member of etcd 3.4 and later has ([decision
//! 121](../../docs/decisions/0121-etcd-by-its-json-gateway.md)).
//!
//! The functions block, and may be called inside or outside of an asynchronous runtime. Every function of [`Etcd`] ends
//! within [`CALL_TIME`], or at most a second later, except [`Etcd::list`], which possibly makes several calls.
//! [`Error`] says whether etcd may have carried out a call that failed.
//!
//! ```no_run
//! use etcd::{Compare, Etcd, Op, Settings, Txn};
//!
//! let settings = Settings { endpoints: vec!["https://etcd.example:2379".into()], ..Settings::default() };
//! let etcd = Etcd::connect(&settings)?;
//! let lease = etcd.grant_lease(5)?;
//! let take = Txn {
//!     compare: vec![Compare::CreateRevisionIs("turn".into(), 0)],
//!     success: vec![Op::Put { key: "turn".into(), value: b"me".to_vec(), lease: Some(lease) }],
//!     failure: vec![Op::Get { key: "turn".into() }],
//! };
//! let reply = etcd.txn(&take)?;
//! println!("{}", if reply.succeeded { "taken" } else { "somebody else has it" });
//! # anyhow::Ok(())
//! ```
#![forbid(unsafe_code)]

mod failure;
mod gateway;
mod messages;
#[cfg(feature = "stage")]
pub mod stage;
mod tls;
mod types;
mod watch;
mod worker;

pub use gateway::CALL_TIME;
pub use types::{Compare, Error, KeyValue, MemberStatus, Op, Settings, Txn, TxnReply, WatchEvent};
pub use watch::Watch;

use failure::Failure;
use gateway::{ATTEMPT_TIME, CHANGE_TIME, Call, Gateway};
use serde_json::{Value, json};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};
use worker::Worker;

/// Maximum length of a transaction in bytes: the sum of its keys and values. It is etcd's default maximum
/// (`--max-request-bytes`), less the length of the other parts of a request.
pub const MOST_TXN: usize = 1536 * 1024 - 16 * 1024;
/// Number of keys in an answer to [`Etcd::list`].
const PAGE: usize = 500;
/// Maximum length of everything that [`Etcd::list`] returns.
const MOST_LISTED: usize = 64 * 1024 * 1024;
/// Time after the deadline of a call within which the thread has to report the failure.
const GRACE: Duration = Duration::from_secs(1);

/// A handle to an etcd cluster. Clones share a thread and its connections.
#[derive(Clone)]
pub struct Etcd {
    worker: Worker,
}

impl Etcd {
    /// Reads the files that `settings` names, and starts the thread that makes the calls. etcd need not be reachable.
    ///
    /// # Errors
    ///
    /// Fails if an endpoint is malformed, or if a file can't be read or used.
    pub fn connect(settings: &Settings) -> anyhow::Result<Self> {
        Ok(Self { worker: Worker::start(Gateway::new(settings)?)? })
    }

    /// Returns a key with its value. The result includes every change that was acknowledged before this call.
    ///
    /// # Errors
    ///
    /// Fails if etcd can't be reached.
    pub fn get(&self, key: &str) -> Result<Option<KeyValue>, Error> {
        let read = || messages::read_range(&self.ask("/v3/kv/range", &messages::range(key.as_bytes(), &[], 1, 0))?);
        Ok(read().map_err(|failure| failure.into_error(false))?.keys.pop())
    }

    /// Returns the keys that begin with `prefix`, in order, and the revision to which all of them belong.
    ///
    /// # Errors
    ///
    /// Fails if etcd can't be reached, or if the keys and values are longer than 64 MiB.
    pub fn list(&self, prefix: &str) -> Result<(Vec<KeyValue>, i64), Error> {
        let (mut from, end) = messages::span(prefix);
        let (mut keys, mut revision, mut page, mut length) = (Vec::<KeyValue>::new(), 0, PAGE, 0);
        loop {
            let asked = self.ask("/v3/kv/range", &messages::range(&from, &end, page, revision));
            let range = match asked.and_then(|answer| messages::read_range(&answer)) {
                Ok(range) => range,
                // The page's values are long.
                Err(Failure::TooLong) if page > 1 => {
                    page /= 4;
                    page = page.max(1);
                    continue;
                }
                Err(failure) => return Err(failure.into_error(false)),
            };
            // Later pages are read as of the first page's revision.
            revision = if revision == 0 { range.revision } else { revision };
            length += range.keys.iter().map(|kv| kv.key.len() + kv.value.len()).sum::<usize>();
            if length > MOST_LISTED {
                return Err(Error::Refused(format!(
                    "the keys below {prefix} and their values are longer than {MOST_LISTED} bytes altogether"
                )));
            }
            keys.extend(range.keys);
            match keys.last() {
                Some(last) if range.more => {
                    from = last.key.as_bytes().to_vec();
                    from.push(0);
                }
                _ => return Ok((keys, revision)),
            }
        }
    }

    /// Carries out a transaction. It is sent to another member only if the previous member has certainly not carried it
    /// out.
    ///
    /// # Errors
    ///
    /// See [`Error`]: after [`Error::Unknown`], the transaction may have been carried out, or may yet be carried out
    /// within the next seconds. As soon as a later transaction has changed a key so that a comparison of this
    /// transaction does not hold, this transaction can no longer be carried out.
    pub fn txn(&self, txn: &Txn) -> Result<TxnReply, Error> {
        self.txn_within(txn, if txn.writes() { CHANGE_TIME } else { ATTEMPT_TIME })
    }

    /// Carries out a transaction as [`Self::txn`] does, but waits at most `patience` for the beginning of a member's
    /// answer.
    ///
    /// # Errors
    ///
    /// Fails as [`Self::txn`] does.
    pub fn txn_within(&self, txn: &Txn, patience: Duration) -> Result<TxnReply, Error> {
        let length = length(txn);
        if length > MOST_TXN {
            return Err(Error::Refused(format!("a transaction of {length} bytes is longer than {MOST_TXN} bytes")));
        }
        let once = txn.writes();
        let answer = self.send("/v3/kv/txn", &messages::txn(txn), (once, patience), false);
        answer.and_then(|answer| messages::read_txn(&answer)).map_err(|failure| failure.into_error(once))
    }

    /// Grants a lease that ends after `ttl_seconds`, unless it is kept alive. If `ttl_seconds` is shorter than an
    /// election of etcd, etcd makes the lease longer.
    ///
    /// # Errors
    ///
    /// Fails if etcd can't be reached, or if its database is full. If etcd granted the lease although the call failed,
    /// the lease ends after `ttl_seconds`.
    pub fn grant_lease(&self, ttl_seconds: u32) -> Result<i64, Error> {
        // The lease gets its number here, so that the call may be sent again.
        let number = (RandomState::new().build_hasher().finish() >> 1).max(1);
        let body = json!({"TTL": ttl_seconds.to_string(), "ID": number.to_string()});
        match self.ask("/v3/lease/grant", &body) {
            Ok(_) => Ok(number.cast_signed()),
            Err(Failure::Refused(why)) if why.contains("lease already exists") => Ok(number.cast_signed()),
            Err(failure) => Err(failure.into_error(false)),
        }
    }

    /// Restarts the time of a lease. Returns false if the lease has ended.
    ///
    /// # Errors
    ///
    /// Fails if etcd can't be reached.
    pub fn keep_alive(&self, lease: i64) -> Result<bool, Error> {
        let answer = self.send("/v3/lease/keepalive", &json!({"ID": lease.to_string()}), (false, ATTEMPT_TIME), true);
        let ttl = answer.and_then(|answer| messages::read_keep_alive(&answer));
        Ok(ttl.map_err(|failure| failure.into_error(false))? > 0)
    }

    /// Ends a lease, and deletes the keys that are bound to it. A lease that has ended already is no error.
    ///
    /// # Errors
    ///
    /// Fails if etcd can't be reached. The lease may have ended nevertheless.
    pub fn revoke_lease(&self, lease: i64) -> Result<(), Error> {
        match self.ask("/v3/lease/revoke", &json!({"ID": lease.to_string()})) {
            Ok(_) => Ok(()),
            Err(Failure::Refused(why)) if why.contains("lease not found") => Ok(()),
            Err(failure) => Err(failure.into_error(false)),
        }
    }

    /// Watches the keys that begin with `prefix`, from the given revision on, or from now on if it is `None`. Does not
    /// wait for etcd.
    pub fn watch(&self, prefix: &str, from_revision: Option<i64>) -> Watch {
        Watch::open(&self.worker, prefix, from_revision)
    }

    /// Returns the status of each endpoint, in the order of the settings. Endpoints that can't be reached are in the
    /// list, with the reason.
    ///
    /// # Errors
    ///
    /// Fails if too many calls wait.
    pub fn members(&self) -> Result<Vec<MemberStatus>, Error> {
        self.statuses(false)
    }

    /// Returns what [`Self::members`] returns, with the figures that only the members' pages of metrics have.
    ///
    /// # Errors
    ///
    /// Fails if too many calls wait.
    pub fn measured_members(&self) -> Result<Vec<MemberStatus>, Error> {
        self.statuses(true)
    }

    fn statuses(&self, is_measured: bool) -> Result<Vec<MemberStatus>, Error> {
        let (reply, answer) = sync_channel(1);
        let started = self.worker.run(move |gateway: Arc<Gateway>| async move {
            let mut asked: Vec<_> = gateway.in_order().map(|(index, url)| (index, url.to_owned())).collect();
            asked.sort();
            let tasks = asked.into_iter().map(|(_, endpoint)| {
                let gateway = gateway.clone();
                tokio::spawn(async move {
                    match gateway.status(&endpoint, ATTEMPT_TIME * 2).await {
                        Ok(mut status) => {
                            if is_measured {
                                gateway.measure(&mut status, ATTEMPT_TIME * 2).await;
                            }
                            status
                        }
                        Err(failure) => {
                            let error = Some(failure.into_error(false).to_string());
                            MemberStatus { error, endpoint, ..MemberStatus::default() }
                        }
                    }
                })
            });
            let mut members = Vec::new();
            for task in tasks.collect::<Vec<_>>() {
                members.extend(task.await);
            }
            let _ = reply.try_send(members);
        });
        started.map_err(|why| Error::Unreachable(why.into()))?;
        answer.recv_timeout(CALL_TIME + GRACE).map_err(|_| Error::Unreachable("the members gave no status".into()))
    }

    /// Sends a call that may be carried out twice.
    fn ask(&self, path: &'static str, body: &Value) -> Result<Vec<u8>, Failure> {
        self.send(path, body, (false, ATTEMPT_TIME), false)
    }

    fn send(
        &self,
        path: &'static str,
        body: &Value,
        (once, patience): (bool, Duration),
        first_line: bool,
    ) -> Result<Vec<u8>, Failure> {
        let deadline = Instant::now() + CALL_TIME;
        let call = Call { path, body: body.to_string().into_bytes(), once, patience, first_line, deadline };
        let (reply, answer) = sync_channel(1);
        let started = self.worker.run(move |gateway: Arc<Gateway>| async move {
            let _ = reply.try_send(gateway.call(&call).await);
        });
        started.map_err(|why| Failure::NotApplied(why.into()))?;
        let none = |_| Err(Failure::Unclear("the thread that calls etcd gives no answer".into()));
        answer.recv_timeout(CALL_TIME + GRACE).unwrap_or_else(none)
    }
}

/// Returns the length of a transaction's keys and values together, in bytes.
fn length(txn: &Txn) -> usize {
    let compared = txn.compare.iter().map(|compare| match compare {
        Compare::ValueIs(key, value) => key.len() + value.len(),
        Compare::CreateRevisionIs(key, _) | Compare::ModRevisionIs(key, _) => key.len(),
    });
    let operated = txn.success.iter().chain(&txn.failure).map(|op| match op {
        Op::Put { key, value, .. } => key.len() + value.len(),
        Op::Get { key } | Op::Delete { key } => key.len(),
        Op::DeleteRange { key, end } => key.len() + end.len(),
    });
    compared.chain(operated).sum()
}
