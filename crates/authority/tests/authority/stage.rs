//! A real authority on its own port, with real TLS, in a temporary directory.

use api::{Confirm, Event, Grant, GrantRequest, Login, Problem, RevokedSession};
use authority::storage::{Account, Database, Operator};
use authority::{Directory, Server, admin};
use client::{Authority, Error, EventStream};
use std::net::SocketAddr;
use std::sync::OnceLock;
use std::time::Duration;
use tempfile::TempDir;
use wire::{Handle, Holder, VerifierKey};

pub const PASSWORD: &str = "correct horse";
/// Time limit for waiting for anything that must happen at once.
pub const SOON: Duration = Duration::from_secs(1);

pub const POLICY: &str = r#"
[groups]
staff = ["alice", "bob"]

[[receivers]]
name = "git"
address = ["127.0.0.1", "203.0.113.10"]
services = ["tcp/22", "udp/443"]
verifier = "edge-1"

[[receivers]]
name = "lab"
address = "203.0.113.64/28"
services = "all"
verifier = "edge-2"

[[rules]]
name = "staff may use git"
action = "allow"
who = "group:staff"
to = "git"

[[rules]]
name = "not bob"
action = "deny"
who = "person:bob"
to = "git"

[[rules]]
action = "allow"
who = "group:staff"
to = "lab"
granularity = "network"
bind_source = true
suite = "aes-cmac"
"#;

pub struct Stage {
    pub directory: Directory,
    pub address: SocketAddr,
    pub server: Option<Server>,
    _room: TempDir,
}

/// Adds an account with [`PASSWORD`]. A hash takes long, so all accounts but the first have a copy of the first one's.
async fn add_account(directory: &Directory, person: &str) {
    static FIRST: OnceLock<String> = OnceLock::new();
    let Some(hash) = FIRST.get() else {
        admin::add_account(directory, person, PASSWORD, false).await.unwrap();
        let account = directory.open_database().unwrap().account(person).unwrap().unwrap();
        let _ = FIRST.set(account.password);
        return;
    };
    let account = Account { password: hash.clone(), totp: None };
    directory.open_database().unwrap().add_account(person, &account, &Operator::current(), authority::now()).unwrap();
}

impl Stage {
    /// Starts an authority with [`POLICY`] and the accounts alice, bob and eve.
    pub async fn start() -> Self {
        Self::start_with("").await
    }

    /// Starts an authority as [`Self::start`] does, with more lines at the beginning of the configuration.
    pub async fn start_with(settings: &str) -> Self {
        let room = tempfile::tempdir().unwrap();
        let directory = Directory::at(room.path().join("authority"));
        directory.init(&["localhost".into(), "127.0.0.1".into()], "127.0.0.1:0".parse().unwrap()).unwrap();
        std::fs::write(directory.policy(), POLICY).unwrap();
        let config = directory.path().join("authority.toml");
        let text = format!("{settings}{}", std::fs::read_to_string(&config).unwrap());
        std::fs::write(&config, text).unwrap();
        for person in ["alice", "bob", "eve"] {
            add_account(&directory, person).await;
        }
        let server = Server::start(directory.clone(), None).await.unwrap();
        Self { directory, address: server.address(), server: Some(server), _room: room }
    }

    /// Stops the server and starts another on the same address.
    pub async fn restart(&mut self) {
        self.server.take().unwrap().stop().await;
        self.restart_stopped().await;
    }

    /// Starts another server on the same address after the first was stopped.
    pub async fn restart_stopped(&mut self) {
        self.server = Some(Server::start(self.directory.clone(), Some(self.address)).await.unwrap());
    }

    /// Applies another policy.
    pub async fn apply(&self, policy: &str) -> anyhow::Result<String> {
        let file = self.directory.path().join("next.toml");
        std::fs::write(&file, policy).unwrap();
        admin::apply_policy(&self.directory, Some(&file)).await
    }

    /// Makes every grant appear to have ended an hour ago.
    pub fn end_grants(&self) {
        let database = rusqlite::Connection::open(self.directory.database()).unwrap();
        database.busy_timeout(SOON).unwrap();
        database.execute("UPDATE grants SET expires = ?1", [authority::now() as i64 - 3600]).unwrap();
    }

    /// Opens the authority's database.
    pub fn database(&self) -> Database {
        Database::open(&self.directory.database()).unwrap()
    }

    /// Returns an HTTP client for arbitrary requests.
    pub fn raw(&self) -> reqwest::Client {
        self.raw_builder().build().unwrap()
    }

    /// Returns an HTTP client for arbitrary requests over HTTP/1.1.
    pub fn raw_http1(&self) -> reqwest::Client {
        self.raw_builder().http1_only().build().unwrap()
    }

    fn raw_builder(&self) -> reqwest::ClientBuilder {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let ca = reqwest::Certificate::from_pem(&std::fs::read(self.directory.ca()).unwrap()).unwrap();
        reqwest::Client::builder().tls_certs_only([ca])
    }

    /// Returns a client that trusts this authority.
    pub fn client(&self) -> Authority {
        let ca = std::fs::read(self.directory.ca()).unwrap();
        Authority::new(&format!("https://{}", self.address), Some(&ca)).unwrap()
    }

    /// Logs a person in and returns the client.
    pub async fn login(&self, person: &str) -> Authority {
        let client = self.client();
        let session = client.login(&login(person, PASSWORD, None)).await.unwrap();
        client.with_token(&session.token)
    }

    /// Enrols a verifier and returns its client.
    pub async fn verifier(&self, id: &str) -> Authority {
        let code = admin::add_verifier(&self.directory, id, false).await.unwrap();
        let client = self.client();
        let enrolled = client.enrol(&code).await.unwrap();
        assert_eq!(enrolled.verifier, id);
        client.with_token(&enrolled.token)
    }
}

pub fn login(person: &str, password: &str, totp: Option<&str>) -> Login {
    Login { person: person.into(), password: password.into(), totp: totp.map(Into::into), device: "laptop".into() }
}

pub fn to(address: &str, protocol: u8, port: u16) -> GrantRequest {
    GrantRequest { address: address.parse().unwrap(), protocol, port, consented: false, in_band: false }
}

pub fn git() -> GrantRequest {
    to("203.0.113.10", 6, 22)
}

pub fn handle(grant: &Grant) -> u64 {
    u64::from_str_radix(&grant.header[16..], 16).unwrap()
}

/// Returns the problem with which a call was refused.
pub fn problem<T>(answer: Result<T, Error>) -> Problem {
    match answer {
        Err(Error::Denied(problem) | Error::Refused(problem)) => problem,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("this was not to succeed"),
    }
}

/// Opens an event stream and waits until it is connected.
pub async fn events(client: &Authority) -> EventStream {
    confirmed_events(client, Confirm::Nothing).await
}

/// Opens the event stream of a verifier that confirms, and waits until it is connected.
pub async fn confirmed_events(client: &Authority, confirms: Confirm) -> EventStream {
    let mut events = client.confirmed_events(confirms);
    assert_eq!(next(&mut events).await, Event::Hello);
    events
}

/// Returns the next event other than `Alive`.
pub async fn next(events: &mut EventStream) -> Event {
    loop {
        match tokio::time::timeout(Duration::from_secs(5), events.next()).await.expect("an event in time").unwrap() {
            Event::Alive => {}
            event => return event,
        }
    }
}

/// Returns the handles of the next event, which must come soon and be a revocation.
pub async fn revoked(events: &mut EventStream) -> Vec<u64> {
    let asked = std::time::Instant::now();
    loop {
        match next(events).await {
            Event::Revoked { grants } => {
                assert!(asked.elapsed() < SOON, "took {:?}", asked.elapsed());
                return grants.iter().map(|grant| grant.handle).collect();
            }
            Event::Policy
            | Event::Recheck
            | Event::Granted { .. }
            | Event::SessionsRevoked { .. }
            | Event::Withdrawn { .. } => {}
            other => panic!("{other:?}"),
        }
    }
}

/// Returns the sessions in the next `SessionsRevoked` event. Before it, the verifier must receive no revocation of
/// individual grants.
pub async fn ended_sessions(events: &mut EventStream) -> Vec<RevokedSession> {
    loop {
        match next(events).await {
            Event::SessionsRevoked { sessions } => return sessions,
            Event::Policy | Event::Granted { .. } => {}
            other => panic!("{other:?}"),
        }
    }
}

/// Returns the holders in the next `SessionsRevoked` event.
pub async fn ended(events: &mut EventStream) -> Vec<u32> {
    ended_sessions(events).await.iter().map(|session| session.holder).collect()
}

/// Returns the verifier's key for the current epoch.
pub async fn key(verifier: &Authority) -> VerifierKey {
    let keys = verifier.keys(0).await.unwrap().keys;
    VerifierKey::new(hex::decode(&keys.last().unwrap().key).unwrap().try_into().unwrap())
}

/// Returns the holder that the grant's handle identifies to its verifier.
pub async fn holder_of(grant: &Grant, verifier: &Authority) -> u32 {
    Holder::of(Handle(handle(grant)), &key(verifier).await).0
}
