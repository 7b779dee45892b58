//! Webhooks, with a real HTTP server that receives the messages and answers as a test demands.

use crate::console::{Browser, URL};
use crate::metrics;
use crate::stage::{PASSWORD, POLICY, Stage, to};
use api::AccessRequest;
use authority::webhook::WebhookState;
use authority::{Directory, admin, now, tls};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use client::Authority;
use reqwest::StatusCode;
use ring::hmac;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufStream};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

/// Limit for whatever must happen, also after a pause between two attempts, on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(60);
const KEY: [u8; 32] = [7; 32];

const DELEGATED: &str = r#"
[[receivers]]
name = "db"
address = "203.0.113.20"
services = ["tcp/5432"]
verifier = "edge-1"

[[receivers]]
name = "web"
address = "203.0.113.30"
services = ["tcp/443"]
verifier = "edge-1"

[[delegations]]
name = "dba"
to = "db"
delegates = "person:bob"
who = ["person:eve", "person:bob"]
lifetime_max = "1d"

[[delegations]]
name = "webmasters"
to = "web"
delegates = "person:bob"
who = "person:eve"
lifetime_max = "1d"
"#;

fn secret() -> String {
    format!("whsec_{}", STANDARD.encode(KEY))
}

/// A message that arrived.
#[derive(Debug)]
pub struct Arrived {
    line: String,
    headers: HashMap<String, String>,
    body: String,
}

impl Arrived {
    pub fn header(&self, name: &str) -> &str {
        &self.headers[name]
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }

    pub fn kind(&self) -> String {
        self.json()["type"].as_str().unwrap().to_owned()
    }

    /// Checks the signature and the time as the specification says.
    fn check(&self) {
        let (id, time) = (self.header("webhook-id"), self.header("webhook-timestamp"));
        assert!(time.parse::<u64>().unwrap().abs_diff(now()) < 120, "{time}");
        let tag = STANDARD.decode(self.header("webhook-signature").strip_prefix("v1,").unwrap()).unwrap();
        let text = format!("{id}.{time}.{}", self.body);
        let key = hmac::Key::new(hmac::HMAC_SHA256, &KEY);
        hmac::verify(&key, text.as_bytes(), &tag).unwrap();
    }

    /// Checks the signature with the Python code in docs/consent.md, also of a changed body.
    fn check_as_documented(&self) {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/consent.md");
        let docs = std::fs::read_to_string(docs).unwrap();
        let code = docs.split("```python\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
        let call = "import json, sys\nsecret, headers, body = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]\n\
                    print([is_genuine(secret, headers, text.encode()) for text in (body, body + ' ')])\n";
        let (secret, headers) = (secret(), json!(self.headers).to_string());
        let program = format!("{code}\n{call}");
        let done = Command::new("python3").args(["-c", &program, &secret, &headers, &self.body]).output().unwrap();
        let [said, error] = [done.stdout, done.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
        assert_eq!(said, "[True, False]\n", "{error}");
    }
}

/// Reads a message and answers it with `status`. A redirect leads to another path of the same server.
async fn answer(stream: impl AsyncRead + AsyncWrite + Unpin, status: &str) -> Option<Arrived> {
    let mut stream = BufStream::new(stream);
    let mut line = String::new();
    if stream.read_line(&mut line).await.ok()? == 0 {
        return None;
    }
    let mut headers = HashMap::new();
    loop {
        let mut header = String::new();
        stream.read_line(&mut header).await.ok()?;
        let Some((name, value)) = header.trim_end().split_once(": ") else { break };
        headers.insert(name.to_ascii_lowercase(), value.to_owned());
    }
    let mut body = vec![0; headers["content-length"].parse().unwrap()];
    stream.read_exact(&mut body).await.ok()?;
    let answer = format!("HTTP/1.1 {status}\r\nlocation: /other\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    stream.write_all(answer.as_bytes()).await.ok()?;
    stream.flush().await.ok()?;
    let _ = stream.shutdown().await;
    Some(Arrived { line: line.trim_end().to_owned(), headers, body: String::from_utf8(body).unwrap() })
}

/// A program that receives messages. It answers with the given statuses, one after the other, and then with 204.
pub struct Program {
    pub url: String,
    arrived: mpsc::UnboundedReceiver<Arrived>,
}

impl Program {
    pub async fn start(statuses: &'static [&'static str], acceptor: Option<TlsAcceptor>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let scheme = if acceptor.is_some() { "https" } else { "http" };
        let url = format!("{scheme}://{}/hook", listener.local_addr().unwrap());
        let (arrived, messages) = mpsc::unbounded_channel();
        let mut statuses = statuses.iter().copied();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let status = statuses.next().unwrap_or("204 No Content");
                let message = match &acceptor {
                    None => answer(stream, status).await,
                    Some(acceptor) => match acceptor.accept(stream).await {
                        Ok(stream) => answer(stream, status).await,
                        Err(_) => None,
                    },
                };
                if let Some(message) = message {
                    let _ = arrived.send(message);
                }
            }
        });
        Self { url, arrived: messages }
    }

    pub async fn next(&mut self) -> Arrived {
        timeout(PATIENCE, self.arrived.recv()).await.expect("a message in time").unwrap()
    }
}

/// Adds a webhook to the configuration of an authority whose server does not run.
pub fn configure(directory: &Directory, url: &str) {
    std::fs::write(directory.path().join("webhook.secret"), secret()).unwrap();
    let config = directory.path().join("authority.toml");
    let before = std::fs::read_to_string(&config).unwrap();
    let table = format!("[[webhooks]]\nname = \"team\"\nurl = \"{url}\"\nsecret_file = \"webhook.secret\"\n");
    std::fs::write(&config, format!("{before}\n{table}")).unwrap();
}

/// Starts an authority with these webhooks, each with its name, its URL and further keys.
async fn stage(webhooks: &[(&str, &str, &str)]) -> (Stage, TempDir) {
    let room = tempfile::tempdir().unwrap();
    let file = room.path().join("webhook.secret");
    std::fs::write(&file, format!("{}\n", secret())).unwrap();
    let tables: Vec<_> = webhooks
        .iter()
        .map(|(name, url, further)| {
            format!("{{ name = \"{name}\", url = \"{url}\", secret_file = \"{}\"{further} }}", file.display())
        })
        .collect();
    let tables = tables.join(", ");
    let rest = format!("console = {{ url = \"{URL}\" }}\nmetrics = \"127.0.0.1:0\"\n");
    let stage = Stage::start_with(&format!("webhooks = [{tables}]\n{rest}")).await;
    stage.apply(&format!("{POLICY}{DELEGATED}")).await.unwrap();
    (stage, room)
}

/// Asks for access to a receiver, and returns the number of the request.
async fn ask(person: &Authority, receiver: &str) -> String {
    let reason = "a private matter".into();
    let request = AccessRequest { receiver: receiver.into(), services: Vec::new(), lifetime: None, reason };
    person.ask_access(&request).await.unwrap().id
}

/// Waits until the state of the only webhook is as it should be.
async fn state(stage: &Stage, what: &str, is_so: impl Fn(&WebhookState) -> bool) -> WebhookState {
    let begun = Instant::now();
    loop {
        let state = admin::webhooks(&stage.directory).await.unwrap().remove(0);
        if is_so(&state) {
            return state;
        }
        assert!(begun.elapsed() < PATIENCE, "{what}: {state:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_message_leads_a_delegate_to_the_request() {
    let room = tempfile::tempdir().unwrap();
    let path = |name: &str| room.path().join(name);
    let certificates = tls::Certificates::new(&["127.0.0.1".into()], now()).unwrap();
    std::fs::write(path("ca.pem"), &certificates.ca).unwrap();
    std::fs::write(path("tls.pem"), &certificates.server).unwrap();
    std::fs::write(path("tls.key"), certificates.server_key.as_bytes()).unwrap();
    let mut config = (*tls::server_config(&path("tls.pem"), &path("tls.key")).unwrap()).clone();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let mut program = Program::start(&[], Some(TlsAcceptor::from(Arc::new(config)))).await;
    let ca = format!(", ca_file = \"{}\"", path("ca.pem").display());
    let (stage, _room) = stage(&[("team", &program.url, &ca)]).await;

    let eve = stage.login("eve").await;
    let id = ask(&eve, "db").await;
    let asked = program.next().await;
    asked.check();
    asked.check_as_documented();
    assert_eq!(asked.line, "POST /hook HTTP/1.1");
    assert_eq!((asked.header("content-type"), asked.kind().as_str()), ("application/json", "access_asked"));
    let link = format!("/console/access/requests/{id}");
    let expected = json!({
        "request": id, "person": "eve", "receiver": "db", "services": ["tcp/5432"], "delegations": ["dba"],
        "console": format!("{URL}{link}"),
    });
    // The reason is not in it.
    assert_eq!(asked.json()["data"], expected);

    // The delegate follows the link, logs in, and is at the request.
    let mut bob = Browser::of(&stage);
    assert_eq!(bob.get(&link).await.leads_to(), format!("/console/login?to={}", link.replace('/', "%2F")));
    assert_eq!(bob.try_to_log_in("bob", PASSWORD, &link).await.leads_to(), link);
    let page = bob.get(&link).await.text;
    assert!(page.contains("eve asks for db") && page.contains("a private matter"), "{page}");
    let verdict = [("id", id.as_str()), ("verdict", "allow"), ("services", "tcp/5432"), ("for", "8h"), ("note", "x")];
    bob.submit(&link, "/console/access/requests/decide", &verdict).await.leads_to();
    eve.grant(&to("203.0.113.20", 6, 5432)).await.unwrap();
    let allowed = program.next().await;
    allowed.check();
    assert_eq!((allowed.kind().as_str(), &allowed.json()["data"]["request"]), ("access_allowed", &json!(id)));
    assert!(allowed.json()["data"]["until"].as_str().unwrap().ends_with('Z') && !allowed.body.contains("bob"));
    assert_ne!(allowed.header("webhook-id"), asked.header("webhook-id"));
    let page = bob.get(&link).await.text;
    assert!(page.contains("does not wait for a decision: it is allowed by bob."), "{page}");

    // Others do not learn from the link whether there is such a request.
    for person in ["alice", "eve"] {
        let mut other = Browser::logged_in(&stage, person).await;
        for link in [link.as_str(), "/console/access/requests/00000001", "/console/access/requests/x"] {
            assert_eq!(other.get(link).await.status, StatusCode::NOT_FOUND, "{person} {link}");
        }
    }
    eve.withdraw_access(&id).await.unwrap();
    assert_eq!(program.next().await.kind(), "consent_withdrawn");

    // A refusal, and a request that is withdrawn.
    let id = ask(&eve, "db").await;
    assert_eq!(program.next().await.kind(), "access_asked");
    let verdict = [("id", id.as_str()), ("verdict", "refuse"), ("services", ""), ("for", ""), ("note", "no")];
    bob.submit("/console/access/requests", "/console/access/requests/decide", &verdict).await.leads_to();
    assert_eq!(program.next().await.kind(), "access_refused");
    let id = ask(&eve, "db").await;
    eve.withdraw_access(&id).await.unwrap();
    let kinds = [program.next().await.kind(), program.next().await.kind()];
    assert_eq!(kinds, ["access_asked", "access_withdrawn"]);
    // A delegate's own request is for others.
    let own = ask(&stage.login("bob").await, "db").await;
    assert_eq!(bob.get(&format!("/console/access/requests/{own}")).await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_message_is_repeated_until_it_is_accepted() {
    let mut program = Program::start(&["503 Service Unavailable", "302 Found"], None).await;
    let (stage, _room) = stage(&[("team", &program.url, "")]).await;
    let eve = stage.login("eve").await;
    ask(&eve, "db").await;
    let first = program.next().await;
    let failing = state(&stage, "the failure shows", |state| state.failed > 0).await;
    assert_eq!((failing.waiting as u64 + failing.delivered, failing.lost), (1, 0));
    for arrived in [program.next().await, program.next().await] {
        // Redirects are not followed.
        assert_eq!(arrived.line, "POST /hook HTTP/1.1");
        assert_eq!((arrived.header("webhook-id"), &arrived.body), (first.header("webhook-id"), &first.body));
        arrived.check();
    }
    let done = state(&stage, "the message is delivered", |state| state.delivered == 1).await;
    let (name, host) = ("team".into(), "127.0.0.1".into());
    let expected = WebhookState { name, host, delivered: 1, failed: 2, ..WebhookState::default() };
    assert_eq!(done, expected);
}

#[tokio::test]
async fn a_lost_message_is_logged_and_counted() {
    let mut program = Program::start(&["410 Gone"], None).await;
    let (stage, _room) = stage(&[("team", &program.url, "")]).await;
    let eve = stage.login("eve").await;
    let id = ask(&eve, "db").await;
    program.next().await;
    state(&stage, "the message is lost", |state| state.lost == 1).await;
    eve.withdraw_access(&id).await.unwrap();
    assert_eq!(program.next().await.kind(), "access_withdrawn");
    state(&stage, "the next message is delivered", |state| state.delivered == 1).await;
    let page = metrics::page(&stage).await;
    for line in [
        "vouchsafe_authority_webhook_messages_total{webhook=\"team\",result=\"delivered\"} 1",
        "vouchsafe_authority_webhook_messages_total{webhook=\"team\",result=\"lost\"} 1",
        "vouchsafe_authority_webhook_failures_total{webhook=\"team\"} 1",
        "vouchsafe_authority_webhook_waiting{webhook=\"team\"} 0.0",
    ] {
        assert!(page.contains(line), "{line}\n{page}");
    }
    // The entry may come after the count.
    let begun = Instant::now();
    let entry = loop {
        let trail = stage.database().audit_entries(Some("eve"), 100).unwrap();
        match trail.into_iter().find(|entry| entry.event == "webhook_lost") {
            Some(entry) => break entry,
            None => assert!(begun.elapsed() < PATIENCE),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert!(entry.detail.starts_with(&format!("team: access_asked {id}: it answers 410")), "{}", entry.detail);
}

#[tokio::test]
async fn a_silent_program_delays_nobody() {
    // The kernel accepts the connection, and nobody answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut works = Program::start(&[], None).await;
    let url = format!("http://{}/", silent.local_addr().unwrap());
    let (mut stage, _room) = stage(&[("silent", &url, ""), ("team", &works.url, "")]).await;
    let eve = stage.login("eve").await;
    let begun = Instant::now();
    for _ in 0..8 {
        let id = ask(&eve, "db").await;
        assert_eq!(works.next().await.kind(), "access_asked", "the other webhook");
        eve.withdraw_access(&id).await.unwrap();
        assert_eq!(works.next().await.kind(), "access_withdrawn", "the other webhook");
    }
    let took = begun.elapsed();
    // An attempt lasts 10 s. So 16 changes that wait for one would take 160 s.
    assert!(took < PATIENCE, "{took:?}");
    assert_eq!(state(&stage, "16 wait", |_| true).await.waiting, 16);
    let server = stage.server.take().unwrap();
    timeout(PATIENCE, server.stop()).await.expect("the authority stops although messages wait");
    let trail = stage.database().audit_entries(None, 100).unwrap();
    let lost: Vec<_> = trail.iter().filter(|entry| entry.event == "webhook_lost").collect();
    assert_eq!(lost.len(), 1);
    assert!(lost[0].detail.starts_with("silent: ") && lost[0].detail.ends_with("the authority stops"));
}

#[tokio::test]
async fn each_team_learns_of_its_own_requests() {
    let (mut dba, mut all) = (Program::start(&[], None).await, Program::start(&[], None).await);
    let own = ", delegations = [\"dba\"]";
    let (stage, _room) = stage(&[("dba", &dba.url, own), ("all", &all.url, "")]).await;
    let eve = stage.login("eve").await;
    for receiver in ["web", "db"] {
        ask(&eve, receiver).await;
        assert_eq!(all.next().await.json()["data"]["receiver"], receiver);
    }
    assert_eq!(dba.next().await.json()["data"]["receiver"], "db", "the first message to the team");
}

#[tokio::test]
async fn a_server_does_not_start_with_a_webhook_that_it_cannot_use() {
    let program = Program::start(&[], None).await;
    let (mut stage, room) = stage(&[("team", &program.url, "")]).await;
    stage.server.take().unwrap().stop().await;
    let file = room.path().join("webhook.secret");
    for (text, said) in [(Some("whsec_c2hvcnQ="), "24 to 64 bytes"), (None, "cannot read")] {
        match text {
            Some(text) => std::fs::write(&file, text).unwrap(),
            None => std::fs::remove_file(&file).unwrap(),
        }
        let error = authority::Server::start(stage.directory.clone(), None).await.err().expect("no server");
        let error = format!("{error:#}");
        assert!(error.contains("cannot use the webhook team of authority.toml") && error.contains(said), "{error}");
        assert!(!error.contains("c2hvcnQ"), "{error}");
    }
}
