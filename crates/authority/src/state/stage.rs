//! An authority for unit tests, without a server.

use super::Authority;
use crate::login::credentials::token_hash;
use crate::storage::{Account, Held, Operator, Proof, Session, TokenHash};
use crate::{Directory, admin, now};
use api::GrantRequest;
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tempfile::TempDir;

pub const SOURCE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
/// A policy that lets alice and mallory use git.
pub const POLICY: &str = r#"
[[receivers]]
name = "git"
address = "203.0.113.10"
services = ["tcp/22"]
verifier = "edge-1"

[[rules]]
action = "allow"
who = ["person:alice", "person:mallory"]
to = "git"
"#;

/// Returns [`POLICY`] with a receiver `db`, about which alice decides. Consents may be given to `who`, a value of the
/// policy's language.
pub fn policy_with_delegation(who: &str) -> String {
    format!(
        r#"{POLICY}
[[receivers]]
name = "db"
address = "203.0.113.20"
services = "tcp/5432"
verifier = "edge-1"

[[delegations]]
name = "dba"
to = "db"
delegates = "person:alice"
who = {who}
lifetime_max = "1d"
"#
    )
}

/// Adds an account with the password `correct horse`. Computing a hash takes long, so all later accounts get a copy of
/// the first account's hash.
async fn add_account(directory: &Directory, person: &str) {
    static FIRST: OnceLock<String> = OnceLock::new();
    let Some(hash) = FIRST.get() else {
        admin::add_account(directory, person, "correct horse", false).await.unwrap();
        let account = directory.open_database().unwrap().account(person).unwrap().unwrap();
        let _ = FIRST.set(account.password);
        return;
    };
    let account = Account { password: hash.clone(), totp: None };
    directory.open_database().unwrap().add_account(person, &account, &Operator::current(), now()).unwrap();
}

/// An authority with the accounts alice, mallory and eve.
pub struct Stage {
    pub authority: Arc<Authority>,
    _room: TempDir,
}

impl Stage {
    pub async fn new() -> Self {
        Self::with("").await
    }

    /// Loads an authority as [`Self::new`] does, after inserting `settings` (TOML) at the beginning of its
    /// configuration file.
    pub async fn with(settings: &str) -> Self {
        let room = tempfile::tempdir().unwrap();
        let directory = Directory::at(room.path().join("authority"));
        directory.init(&["localhost".into()], "127.0.0.1:0".parse().unwrap()).unwrap();
        std::fs::write(directory.policy(), POLICY).unwrap();
        let config = directory.path().join("authority.toml");
        let text = format!("{settings}{}", std::fs::read_to_string(&config).unwrap());
        std::fs::write(&config, text).unwrap();
        for person in ["alice", "mallory", "eve"] {
            add_account(&directory, person).await;
        }
        Self { authority: Arc::new(Authority::load(directory).await.unwrap()), _room: room }
    }

    /// Logs a person in, and returns the hash of the session's token.
    pub async fn login(&self, person: &str) -> TokenHash {
        let proof = self.proof(person).await;
        self.begin(person, proof).await
    }

    /// Returns the proof of a login with the person's password.
    pub async fn proof(&self, person: &str) -> Proof {
        let of = person.to_owned();
        let account = self.authority.storage.call(move |database| database.account(&of)).await.unwrap();
        Proof::Password(account.unwrap().password)
    }

    /// Begins a session, and returns the hash of its token.
    pub async fn begin(&self, person: &str, proof: Proof) -> TokenHash {
        let session = Session {
            person: person.into(),
            device: "laptop".into(),
            expires: now() + 3600,
            tags: Vec::new(),
            groups: Vec::new(),
            ends: None,
            holder: wire::Holder::default(),
        };
        let begun = self.authority.session_manager.begin(session, proof, SOURCE).await;
        token_hash(&begun.unwrap_or_else(|problem| panic!("{:?}", problem.said())))
    }

    /// Keeps new work of the account out of its queues until the result is dropped. When this future is first polled,
    /// the queue for writing may contain one piece of work, which is completed first, and the queue for reading must be
    /// empty.
    pub async fn hold_next(&self, whose: &'static str) -> Held {
        let storage = self.authority.storage.clone();
        self.authority.storage.call(move |_| Ok(storage.hold(whose))).await.unwrap()
    }
}

/// Returns a request for a grant for git.
pub fn git() -> GrantRequest {
    let address = "203.0.113.10".parse().unwrap();
    GrantRequest { address, protocol: 6, port: 22, consented: false, in_band: false }
}

/// Awaits `what` and returns its result. Panics if this takes more than five seconds, because another account's work
/// then delays `what`.
pub async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(5), what).await.expect("it does not wait for another account")
}
