//! A server is killed in the middle of its work: the grants that it issued are in the database, and the audit trail is
//! whole.

use api::{GrantRequest, Login};
use authority::storage::Database;
use authority::{Directory, now};
use client::Authority;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::timeout;

const PASSWORD: &str = "correct horse";
/// With `single`, each request gets a grant of its own, which is recorded.
const POLICY: &str = "
[[receivers]]
name = \"git\"
address = \"203.0.113.10\"
services = \"tcp/22\"
verifier = \"edge\"

[[rules]]
action = \"allow\"
who = \"everyone\"
to = \"git\"
single = true
";
/// Clients that request grants concurrently, so that several grants are recorded together.
const CALLERS: usize = 32;
/// Number of issued grants at which the server is killed; with those under way, fewer than a session may have.
const ANSWERED: usize = 200;
const ROUNDS: usize = 3;
/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(20);

/// A server as a process of its own.
struct Server {
    process: Child,
    url: String,
}

impl Server {
    fn start(directory: &Directory) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vouchsafe"));
        command.args(["authority", "run", "--dir"]).arg(directory.path());
        let mut process = command.env("VOUCHSAFE_LOG", "error").stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let address = line.split([' ', ';']).nth(2).unwrap_or_else(|| panic!("{line}"));
        let url = format!("https://{address}");
        Self { process, url }
    }

    /// Kills the process with SIGKILL.
    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_answered_is_recorded_though_the_server_is_killed() {
    let room = tempfile::tempdir().unwrap();
    let directory = Directory::at(room.path().join("authority"));
    directory.init(&["127.0.0.1".into()], "127.0.0.1:0".parse().unwrap()).unwrap();
    std::fs::write(directory.policy(), POLICY).unwrap();
    authority::admin::add_account(&directory, "alice", PASSWORD, false).await.unwrap();
    let ca = std::fs::read(directory.ca()).unwrap();
    let mut answered = BTreeSet::new();
    let mut token = None;
    for round in 1..=ROUNDS {
        let mut server = Server::start(&directory);
        let caller = Authority::new(&server.url, Some(&ca)).unwrap();
        let token = match &token {
            // The session survives the server's end.
            Some(token) => token,
            None => {
                let (person, password, device) = ("alice".into(), PASSWORD.into(), "laptop".into());
                let login = Login { person, password, totp: None, device };
                token.insert(caller.login(&login).await.unwrap().token)
            }
        };
        answered.extend(grants_until_killed(&mut server, &caller.with_token(token)).await);
        assert!(answered.len() >= round * ANSWERED);

        let database = Database::open(&directory.database()).unwrap();
        let recorded = database.grants(now(), true).unwrap();
        let recorded: BTreeSet<_> = recorded.iter().map(|grant| grant.handle.to_string()).collect();
        let lost: Vec<_> = answered.difference(&recorded).collect();
        assert!(lost.is_empty(), "of {} answered grants {} are not recorded", answered.len(), lost.len());
        let entries = database.audit_entries(None, u32::MAX).unwrap();
        let audited = entries.iter().filter(|entry| entry.event == "granted");
        let audited: BTreeSet<_> = audited.map(|entry| entry.detail[..16].to_owned()).collect();
        assert_eq!(audited, recorded, "each grant has its entry, each entry its grant");
        let mut verify = Command::new(env!("CARGO_BIN_EXE_vouchsafe"));
        let verified = verify.args(["authority", "audit", "verify", "--dir"]).arg(directory.path()).output().unwrap();
        assert!(verified.status.success(), "{}", String::from_utf8_lossy(&verified.stdout));
    }
}

/// Requests grants until enough have been issued, then kills the server; returns the handles of the issued grants.
async fn grants_until_killed(server: &mut Server, caller: &Authority) -> BTreeSet<String> {
    let (tell, mut told) = mpsc::unbounded_channel();
    for _ in 0..CALLERS {
        let (caller, tell) = (caller.clone(), tell.clone());
        tokio::spawn(async move {
            let asked = GrantRequest {
                address: "203.0.113.10".parse().unwrap(),
                protocol: 6,
                port: 22,
                consented: false,
                in_band: false,
            };
            // Until the connection breaks.
            while let Ok(grant) = caller.grant(&asked).await {
                tell.send(grant.header[16..].to_owned()).unwrap();
            }
        });
    }
    drop(tell);
    let mut handles = BTreeSet::new();
    while handles.len() < ANSWERED {
        let handle = timeout(PATIENCE, told.recv()).await.expect("answers in time");
        handles.insert(handle.expect("callers go on until the server is killed"));
    }
    server.kill();
    while let Some(handle) = timeout(PATIENCE, told.recv()).await.expect("callers end") {
        handles.insert(handle);
    }
    handles
}
