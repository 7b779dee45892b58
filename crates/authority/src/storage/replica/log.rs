//! The cluster's log in etcd. The keys `log/…` contain the entries. The key `head` contains the number and the id of
//! the last entry. The key `turn` stands for the right to append the next entry. All names are below
//! `/vouchsafe/CLUSTER/`.

use super::Unavailable;
use super::clock::{self, Clock};
use super::entry::{self, Entry};
use super::format::Formats;
use super::seal::{ClusterId, ClusterKey};
use anyhow::{Context, Result, bail};
use etcd::{Compare, Error, Etcd, KeyValue, Op, Txn, TxnReply};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Maximum length of an encrypted entry, in bytes. etcd refuses requests above 1.5 MiB, and a request contains the
/// entry as base64.
pub(super) const ENTRY_MAX: usize = 1 << 20;
/// Number of entries that are read in one request.
const TOGETHER: u64 = 16;
/// Minimum time for which all writes fail at once, after a call to etcd that got no answer. Meanwhile the storage
/// thread does local work.
const REST: Duration = Duration::from_secs(1);
/// Maximum time for which a member tries to find out whether etcd recorded an append.
const SETTLE: Duration = Duration::from_secs(2);

/// The calls of etcd that the log needs. In tests, another implementation loses some of the answers.
pub(crate) trait Store: Send + Sync {
    fn get(&self, key: &str) -> Result<Option<KeyValue>, Error>;
    fn txn(&self, txn: &Txn) -> Result<TxnReply, Error>;
    /// Carries out a transaction, and waits for the beginning of etcd's answer for `patience` at most.
    fn txn_within(&self, txn: &Txn, patience: Duration) -> Result<TxnReply, Error>;
    fn grant_lease(&self, ttl_seconds: u32) -> Result<i64, Error>;
    fn keep_alive(&self, lease: i64) -> Result<bool, Error>;
}

impl Store for Etcd {
    fn get(&self, key: &str) -> Result<Option<KeyValue>, Error> {
        Self::get(self, key)
    }

    fn txn(&self, txn: &Txn) -> Result<TxnReply, Error> {
        Self::txn(self, txn)
    }

    fn txn_within(&self, txn: &Txn, patience: Duration) -> Result<TxnReply, Error> {
        Self::txn_within(self, txn, patience)
    }

    fn grant_lease(&self, ttl_seconds: u32) -> Result<i64, Error> {
        Self::grant_lease(self, ttl_seconds)
    }

    fn keep_alive(&self, lease: i64) -> Result<bool, Error> {
        Self::keep_alive(self, lease)
    }
}

/// A handle to the log of a cluster. Clones share it.
#[derive(Clone)]
pub struct Log(Arc<Inner>);

struct Inner {
    store: Box<dyn Store>,
    cluster: ClusterId,
    key: ClusterKey,
    member: String,
    /// The time until which writes fail at once, and the reason.
    rests: Mutex<Option<(Instant, String)>>,
    /// The number of the latest snapshot that this process has seen.
    snapshot: AtomicU64,
    clock: Arc<Clock>,
    formats: Formats,
}

/// The last entry of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub number: u64,
    pub id: Vec<u8>,
}

impl Head {
    pub fn text(&self) -> String {
        format!("{} {}", self.number, hex::encode(&self.id))
    }

    fn parse(value: &[u8]) -> Result<Self> {
        let parts = std::str::from_utf8(value).ok().and_then(|text| text.split_once(' '));
        let parsed =
            parts.and_then(|(number, id)| Some(Self { number: number.parse().ok()?, id: hex::decode(id).ok()? }));
        parsed.context("the head of the cluster's log in etcd is malformed")
    }
}

/// The right to append the next entry.
pub(super) struct Turn {
    /// The revision at which etcd recorded the turn. It distinguishes the turn from a later turn of the same holder.
    revision: i64,
    pub head: Head,
}

/// The answer to a request for the turn.
pub(super) enum Taken {
    Turn(Turn),
    /// Somebody else has the turn. etcd recorded that turn at this revision.
    Held(i64),
    /// The caller can request the turn again at once. It had an earlier turn that it did not know of, and that turn has
    /// now ended.
    Again,
    /// The lease has ended.
    NoLease,
    /// There was no answer. The text is the reason.
    Unknown(String),
}

/// The answer to an append.
pub(super) enum Appended {
    Done,
    /// The turn was lost. The entry is not in the log and will not get there later.
    Lost,
    /// There was no answer, so the entry is possibly in the log. The text is the reason.
    Unknown(String),
}

impl Log {
    /// Creates a handle for the member with this name. Does not wait for etcd.
    pub fn new(etcd: Etcd, cluster: ClusterId, key: ClusterKey, member: String) -> Self {
        Self::over(Box::new(etcd), cluster, key, member)
    }

    pub(crate) fn over(store: Box<dyn Store>, cluster: ClusterId, key: ClusterKey, member: String) -> Self {
        Self::of(store, cluster, key, member, Formats::OF_THIS_RELEASE)
    }

    /// Creates a handle for a program that works with `formats`. Tests pass the formats of a later release.
    pub(super) fn of(
        store: Box<dyn Store>,
        cluster: ClusterId,
        key: ClusterKey,
        member: String,
        formats: Formats,
    ) -> Self {
        let (rests, snapshot, clock) = (Mutex::default(), AtomicU64::new(0), Arc::default());
        Self(Arc::new(Inner { store, cluster, key, member, rests, snapshot, clock, formats }))
    }

    /// Returns the number of the last entry.
    ///
    /// # Errors
    /// Fails if etcd has no majority, or does not know the cluster.
    pub fn head(&self) -> Result<u64> {
        Ok(self.read_head()?.number)
    }

    /// Encrypts a value for the members of the cluster. Only [`Self::open`] with the same `context` decrypts it.
    ///
    /// # Errors
    /// Fails if the system provides no randomness.
    pub fn seal(&self, context: &str, plain: &[u8]) -> Result<Vec<u8>> {
        self.0.key.seal(&self.context(context), plain)
    }

    /// Decrypts a value that [`Self::seal`] has encrypted.
    ///
    /// # Errors
    /// Fails if the value does not come from a member of this cluster, or belongs to another context.
    pub fn open(&self, context: &str, sealed: &[u8]) -> Result<Vec<u8>> {
        self.0.key.open(&self.context(context), sealed)
    }

    /// Returns the clock of this host. While it is wrong, nothing can be recorded.
    pub fn clock(&self) -> &Arc<Clock> {
        &self.0.clock
    }

    fn check_clock(&self) -> Result<(), Unavailable> {
        self.0.clock.wrong().map_or(Ok(()), |behind| Err(Unavailable::now(clock::sentence(behind))))
    }

    pub(super) fn cluster(&self) -> ClusterId {
        self.0.cluster
    }

    pub(super) fn member(&self) -> &str {
        &self.0.member
    }

    pub(super) fn formats(&self) -> &Formats {
        &self.0.formats
    }

    /// Returns the name of a key in etcd.
    pub(super) fn key(&self, name: &str) -> String {
        format!("/vouchsafe/{}/{name}", self.0.cluster)
    }

    pub(super) fn entry_key(&self, number: u64) -> String {
        self.key(&format!("log/{number:020}"))
    }

    /// Returns the context to which a ciphertext is bound: the cluster and `name`.
    fn context(&self, name: &str) -> String {
        format!("{} {name}", self.0.cluster)
    }

    /// Returns the number of the latest snapshot that this process has seen.
    pub(super) fn known_snapshot(&self) -> u64 {
        self.0.snapshot.load(Ordering::Relaxed)
    }

    pub(super) fn note_snapshot(&self, number: u64) {
        self.0.snapshot.fetch_max(number, Ordering::Relaxed);
    }

    pub(super) fn get(&self, key: &str) -> Result<Option<KeyValue>, Unavailable> {
        self.ask(|store| store.get(key)).map_err(unavailable)
    }

    pub(super) fn txn(&self, compare: Vec<Compare>, success: Vec<Op>, failure: Vec<Op>) -> Result<TxnReply, Error> {
        self.ask(|store| store.txn(&Txn { compare, success, failure }))
    }

    pub(super) fn read_head(&self) -> Result<Head> {
        let found = self.get(&self.key("head"))?;
        self.parse_head(found.as_ref())
    }

    fn parse_head(&self, found: Option<&KeyValue>) -> Result<Head> {
        let lacks = || Unavailable::now(format!("etcd does not know the cluster {}", self.0.cluster));
        Head::parse(&found.ok_or_else(lacks)?.value)
    }

    /// Keeps `lease` alive, or requests a new lease of `seconds` seconds if it is `None`.
    pub(super) fn lease(&self, lease: Option<i64>, seconds: u32) -> Result<i64, Unavailable> {
        if let Some(lease) = lease
            && self.ask(|store| store.keep_alive(lease)).map_err(unavailable)?
        {
            return Ok(lease);
        }
        self.ask(|store| store.grant_lease(seconds)).map_err(unavailable)
    }

    /// Takes the turn if nobody has it. `holder` begins with the member's name, and is different for each open
    /// database. Waits for etcd's answer for `patience` at most. An earlier request with the same number `wanted` may
    /// have got the turn but no answer. This call then returns that turn.
    pub(super) fn take_turn(&self, lease: i64, (holder, wanted): (&str, u64), patience: Duration) -> Result<Taken> {
        self.check_clock()?;
        let (turn, head) = (self.key("turn"), self.key("head"));
        let own = format!("{holder} {wanted}");
        let put = Op::Put { key: turn.clone(), value: own.clone().into_bytes(), lease: Some(lease) };
        let read = Op::Get { key: head };
        let (success, failure) = (vec![put, read.clone()], vec![Op::Get { key: turn.clone() }, read]);
        let take = Txn { compare: vec![Compare::CreateRevisionIs(turn, 0)], success, failure };
        let reply = match self.ask(|store| store.txn_within(&take, patience)) {
            Ok(reply) => reply,
            Err(Error::Refused(why)) if why.contains("lease not found") => return Ok(Taken::NoLease),
            Err(error @ Error::Unknown(_)) => return Ok(Taken::Unknown(error.to_string())),
            Err(error) => bail!(unavailable(error)),
        };
        let head = || self.parse_head(reply.got.get(1).and_then(|found| found.first()));
        if reply.succeeded {
            return Ok(Taken::Turn(Turn { revision: reply.revision, head: head()? }));
        }
        let Some(found) = reply.got.first().and_then(|found| found.first()) else { return Ok(Taken::Again) };
        if found.value == own.as_bytes() {
            // Nobody has appended anything since etcd recorded this turn, so the head is the one to continue.
            return Ok(Taken::Turn(Turn { revision: found.create_revision, head: head()? }));
        }
        if found.value.starts_with(format!("{holder} ").as_bytes()) {
            // An append in that earlier turn possibly got no answer. It cannot succeed after this.
            self.delete_turn(found.create_revision)?;
            return Ok(Taken::Again);
        }
        Ok(Taken::Held(found.create_revision))
    }

    /// Returns the revision at which etcd recorded the present turn. Returns `None` if nobody has the turn.
    pub(super) fn held_turn(&self) -> Result<Option<i64>> {
        Ok(self.get(&self.key("turn"))?.map(|found| found.create_revision))
    }

    /// Ends the turn that etcd recorded at this revision, whoever has it. Its holder can't append an entry any more,
    /// because an append succeeds only if etcd still has the turn.
    pub(super) fn delete_turn(&self, revision: i64) -> Result<(), Unavailable> {
        let turn = self.key("turn");
        let (compare, delete) = (Compare::CreateRevisionIs(turn.clone(), revision), Op::Delete { key: turn });
        self.txn(vec![compare], vec![delete], Vec::new()).map_err(unavailable)?;
        Ok(())
    }

    /// Gives the turn back. If etcd does not answer, the turn ends with its lease.
    pub(super) fn give_back(&self, turn: &Turn) {
        if !self.rests()
            && let Err(error) = self.delete_turn(turn.revision)
        {
            tracing::debug!("cannot give back the turn to write to the cluster's log: {error}");
        }
    }

    /// Encrypts an entry.
    pub(super) fn sealed(&self, number: u64, entry: &Entry) -> Result<Vec<u8>> {
        let sealed = self.seal(&format!("log {number}"), &entry::encode(entry)?)?;
        if sealed.len() > ENTRY_MAX {
            bail!(
                "the change is too large for one entry of the cluster's log: it has {} bytes, but at most {ENTRY_MAX} \
                 are possible. Divide it into several changes",
                sealed.len()
            );
        }
        Ok(sealed)
    }

    fn opened(&self, number: u64, sealed: &[u8]) -> Result<Entry> {
        entry::decode(&self.open(&format!("log {number}"), sealed)?)
    }

    /// Appends the next entry and gives the turn back, both or neither.
    pub(super) fn append(&self, turn: &Turn, sealed: Vec<u8>, next: &Head) -> Result<Appended> {
        // The transaction may contain times that it has read since the clock was set.
        self.check_clock()?;
        let (held, head) = (self.key("turn"), self.key("head"));
        let compare = vec![
            Compare::CreateRevisionIs(held.clone(), turn.revision),
            Compare::ValueIs(head.clone(), turn.head.text().into_bytes()),
        ];
        let success = vec![
            Op::Put { key: self.entry_key(next.number), value: sealed, lease: None },
            Op::Put { key: head, value: next.text().into_bytes(), lease: None },
            Op::Delete { key: held },
        ];
        match self.txn(compare, success, Vec::new()) {
            Ok(reply) if reply.succeeded => Ok(Appended::Done),
            Ok(_) => Ok(Appended::Lost),
            Err(Error::Unknown(why)) => Ok(Appended::Unknown(why)),
            Err(error) => bail!(unavailable(error)),
        }
    }

    /// Finds out whether an append that got no answer has succeeded. First deletes the turn, so that the append cannot
    /// succeed later.
    ///
    /// # Errors
    /// Fails if etcd does not answer; the outcome remains unknown.
    pub(super) fn settle(&self, turn: &Turn, next: &Head) -> Result<bool> {
        let (held, entry) = (self.key("turn"), self.entry_key(next.number));
        let deadline = Instant::now() + SETTLE;
        loop {
            let get = Op::Get { key: entry.clone() };
            let (compare, delete) =
                (Compare::CreateRevisionIs(held.clone(), turn.revision), Op::Delete { key: held.clone() });
            match self.txn(vec![compare], vec![get.clone(), delete], vec![get]) {
                Ok(reply) => {
                    let Some(found) = reply.got.first().and_then(|found| found.first()) else { return Ok(false) };
                    return Ok(self.opened(next.number, &found.value)?.id == next.id);
                }
                Err(error) if Instant::now() >= deadline => {
                    let why = format!("etcd did not say whether it recorded the change: {error}");
                    bail!(Unavailable { why, maybe_done: true });
                }
                Err(_) => std::thread::sleep(Duration::from_millis(50)),
            }
        }
    }

    /// Reads the entries from `from` to `to`. An entry that etcd no longer has is `None`. The result may end before
    /// `to`.
    pub(super) fn entries(&self, from: u64, to: u64) -> Result<Vec<(u64, Option<Entry>)>> {
        let last = to.min(from + TOGETHER - 1);
        let gets = |last: u64| (from..=last).map(|number| Op::Get { key: self.entry_key(number) }).collect::<Vec<_>>();
        let reply = match self.txn(Vec::new(), gets(last), Vec::new()) {
            // Large entries may not fit into one answer.
            Err(error) if last > from => {
                tracing::debug!("cannot read {} entries of the cluster's log at once: {error}", last + 1 - from);
                self.txn(Vec::new(), gets(from), Vec::new())
            }
            reply => reply,
        };
        let reply = reply.map_err(unavailable)?;
        let found = (from..).zip(reply.got).map(|(number, found)| {
            let entry = found.first().map(|found| self.opened(number, &found.value));
            Ok((number, entry.transpose()?))
        });
        found.collect()
    }

    /// Reports whether a recent call to etcd got no answer.
    pub(super) fn rests(&self) -> bool {
        self.resting().is_some()
    }

    /// Fails if a recent call to etcd got no answer, so that the storage thread does not wait for etcd again.
    pub(super) fn check_rest(&self) -> Result<(), Unavailable> {
        self.resting().map_or(Ok(()), |why| Err(Unavailable::now(why)))
    }

    fn resting(&self) -> Option<String> {
        let rests = self.lock();
        rests.as_ref().filter(|(until, _)| Instant::now() < *until).map(|(_, why)| why.clone())
    }

    fn ask<T>(&self, call: impl FnOnce(&dyn Store) -> Result<T, Error>) -> Result<T, Error> {
        let begun = Instant::now();
        let answer = call(&*self.0.store);
        let rests = match &answer {
            Err(error @ (Error::Unreachable(_) | Error::Unknown(_))) => {
                // At least half of the time remains for other work.
                Some((Instant::now() + begun.elapsed().max(REST), error.to_string()))
            }
            _ => None,
        };
        *self.lock() = rests;
        answer
    }

    fn lock(&self) -> MutexGuard<'_, Option<(Instant, String)>> {
        self.0.rests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Converts an error of etcd. The log certainly does not contain the change.
pub(super) fn unavailable(error: Error) -> Unavailable {
    Unavailable::now(error.to_string())
}
