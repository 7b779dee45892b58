//! Two authorities over a real etcd: each answers for both, and follows what the other records.

use crate::metrics;
use crate::segments;
use crate::stage::{PASSWORD, POLICY, SOON, events, git, handle, login, next, problem};
use crate::webhook;
use api::Event;
use authority::admin;
use authority::admin::consents::{self, Giving, Term};
use authority::admin::trails::{self, Checked};
use authority::cluster::bundle::{self, Etcd};
use authority::cluster::contact::Standing;
use authority::cluster::status::Status;
use authority::storage::{AccessVerdict, AuditEvent, Decided, Operator, RevokedCounts, Verdict, Which};
use authority::{Directory, Server};
use client::{Authority, Error, convert};
use etcd::stage::{Plan, Stage as EtcdStage};
use sha2::Digest;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Longest wait for something that must happen soon, also on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// A member with its running server.
struct Member {
    directory: Directory,
    address: SocketAddr,
    server: Option<Server>,
}

impl Member {
    async fn start(directory: Directory, listen: Option<SocketAddr>) -> Self {
        let server = Server::start(directory.clone(), listen).await.unwrap();
        let member = Self { directory, address: server.address(), server: Some(server) };
        member.reaches_etcd().await;
        member
    }

    fn client(&self) -> Authority {
        let ca = std::fs::read(self.directory.ca()).unwrap();
        Authority::new(&format!("https://{}", self.address), Some(&ca)).unwrap()
    }

    /// Waits until the member may record changes.
    async fn reaches_etcd(&self) {
        until("the member reaches etcd", async || self.client().health().await.is_ok()).await;
    }

    /// Waits until all members have followed everything that is recorded.
    async fn is_followed(&self) {
        until("all members follow", async || {
            let members = self.status().members;
            members.len() == 2 && members.iter().all(|member| member.behind == Some(0))
        })
        .await;
    }

    /// Returns an HTTP client for single requests to this member, which repeats none.
    fn raw(&self) -> reqwest::Client {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let ca = reqwest::Certificate::from_pem(&std::fs::read(self.directory.ca()).unwrap()).unwrap();
        reqwest::Client::builder().tls_certs_only([ca]).build().unwrap()
    }

    fn url(&self, path: &str) -> String {
        format!("https://{}{path}", self.address)
    }

    /// Opens an event stream as it is, which does not go to another member by itself.
    async fn raw_events(&self, token: &str) -> reqwest::Response {
        let request = self.raw().get(self.url("/v1/events")).bearer_auth(token);
        let mut stream = request.send().await.unwrap().error_for_status().unwrap();
        let hello = stream.chunk().await.unwrap().unwrap();
        assert!(String::from_utf8_lossy(&hello).contains("hello"));
        stream
    }

    fn status(&self) -> Status {
        Status::read(&self.directory, None).unwrap()
    }
}

/// Two members over one etcd.
struct Cluster {
    etcd: EtcdStage,
    a: Member,
    b: Member,
    _room: TempDir,
}

impl Cluster {
    async fn start() -> Self {
        let etcd = EtcdStage::start(Plan::of(1)).unwrap();
        let room = tempfile::tempdir().unwrap();
        let [a, b] = ["a", "b"].map(|name| Directory::at(room.path().join(name)));
        // Each member must know its own URL before it starts, so the ports are chosen here.
        let ports: Vec<_> = (0..2).map(|_| std::net::TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let addresses: Vec<SocketAddr> = ports.iter().map(|port| port.local_addr().unwrap()).collect();
        drop(ports);
        a.init(&["localhost".into(), "127.0.0.1".into()], addresses[0]).unwrap();
        std::fs::write(a.policy(), POLICY).unwrap();
        for person in ["alice", "bob"] {
            admin::add_account(&a, person, PASSWORD, false).await.unwrap();
        }
        let reach = Etcd { endpoints: etcd.endpoints(), ca: None, certificate: None, key: None };
        let [first, second] = [0, 1].map(|at| format!("https://{}", addresses[at]));
        bundle::init(&a, &reach, "a", &first).unwrap();
        let a = Member::start(a, None).await;
        let invitation = room.path().join("invitation");
        bundle::invite(&a.directory, "b", &[], &second, &invitation).unwrap();
        bundle::join(&b, &invitation, Some(addresses[1]), &[]).unwrap();
        let b = Member::start(b, None).await;
        Self { etcd, a, b, _room: room }
    }
}

/// Waits until `is_so`.
async fn until(what: &str, is_so: impl AsyncFn() -> bool) {
    let begun = Instant::now();
    while !is_so().await {
        assert!(begun.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Waits for the event that sends listeners to another member, and returns its text.
async fn role_change(stream: &mut reqwest::Response) -> String {
    let read = async {
        loop {
            let text = stream.chunk().await.unwrap().expect("the event comes before the end of the stream");
            let text = String::from_utf8_lossy(&text).into_owned();
            if text.contains("role_change") {
                return text;
            }
        }
    };
    tokio::time::timeout(PATIENCE, read).await.unwrap()
}

/// Reads the command's text about the members that followed.
async fn apply(directory: &Directory, policy: &str) -> String {
    let file = directory.path().join("next.toml");
    std::fs::write(&file, policy).unwrap();
    admin::apply_policy(directory, Some(&file)).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_member_serves_a_session_and_follows_the_other() {
    let Cluster { a, b, .. } = &Cluster::start().await;
    let session = a.client().login(&login("alice", PASSWORD, None)).await.unwrap();
    let (at_a, at_b) = (a.client().with_token(&session.token), b.client().with_token(&session.token));
    // B has not heard of the session by itself, perhaps, but asks before it denies it.
    let grant = at_b.grant(&git()).await.unwrap();
    a.is_followed().await;
    assert_eq!(handle(&at_a.grant(&git()).await.unwrap()), handle(&grant), "a renews the grant of b");
    let urls = [&a.address, &b.address].map(|address| format!("https://{address}"));
    until("both are listed", async || at_a.destinations().await.unwrap().authorities == urls).await;

    // A verifier that enrols at one member listens at the other.
    let code = admin::add_verifier(&a.directory, "edge-1", false).await.unwrap();
    let enrolled = a.client().enrol(&code).await.unwrap();
    let verifier = b.client().with_token(&enrolled.token);
    assert_eq!(verifier.config().await.unwrap().authorities.len(), 2);
    let mut guard = events(&verifier).await;
    let session = a.client().login(&login("alice", PASSWORD, None)).await.unwrap();
    let other = a.client().with_token(&session.token).grant(&git()).await.unwrap();
    loop {
        match next(&mut guard).await {
            Event::Granted { owner } if owner.handle == handle(&other) => break,
            Event::Granted { .. } | Event::Policy => {}
            event => panic!("{event:?}"),
        }
    }
    // When the revocation returns, B has announced it.
    let which = Which::Grant(wire::Handle(handle(&other)));
    let revoked = admin::revoke(&a.directory, &which).await.unwrap();
    assert_eq!((revoked.counts, revoked.announced), (RevokedCounts { sessions: 0, grants: 1 }, true));
    let begun = Instant::now();
    loop {
        match next(&mut guard).await {
            Event::Revoked { grants } => {
                assert!(grants.iter().any(|grant| grant.handle == handle(&other)) && begun.elapsed() < SOON);
                break;
            }
            Event::Policy | Event::Recheck | Event::Granted { .. } => {}
            event => panic!("{event:?}"),
        }
    }
    assert!(verifier.config().await.unwrap().revoked.iter().any(|grant| grant.handle == handle(&other)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_is_in_force_everywhere_when_the_command_returns() {
    let Cluster { a, b, .. } = &Cluster::start().await;
    let session = b.client().login(&login("alice", PASSWORD, None)).await.unwrap();
    let at_b = b.client().with_token(&session.token);
    at_b.grant(&git()).await.unwrap();
    let mut holder = events(&at_b).await;
    std::fs::write(b.directory.policy(), "# an operator's draft\n").unwrap();
    let text = apply(&a.directory, &POLICY.replace("\"alice\", ", "")).await;
    assert!(text.contains("1 grant revoked") && text.contains("in force at b, too"), "{text}");
    assert_eq!(problem(at_b.grant(&git()).await).r#type, "no_rule");
    assert_eq!(next(&mut holder).await, Event::Policy);
    assert!(matches!(next(&mut holder).await, Event::Revoked { .. }));
    let read = |name: &str| std::fs::read_to_string(b.directory.path().join(name)).unwrap();
    assert!(!read("policy.toml").contains("alice"));
    assert_eq!(read("policy.toml.not-applied"), "# an operator's draft\n");
    // A change at the other member continues the same list of versions.
    let text = apply(&b.directory, POLICY).await;
    assert!(text.starts_with("version 3: ") && text.contains("in force at a, too"), "{text}");
    at_b.grant(&git()).await.unwrap();
    assert_eq!(a.directory.open_database().unwrap().policies().unwrap().len(), 3);
    // The master key goes round, too.
    admin::rotate_master_key(&a.directory, false).await.unwrap();
    until("b has the key", async || {
        std::fs::read(b.directory.path().join("master.key")).unwrap()
            == std::fs::read(a.directory.path().join("master.key")).unwrap()
    })
    .await;
    let status = a.status();
    assert!(status.members.iter().all(|member| member.is_there == Some(true)) && status.members.len() == 2, "{status}");
}

const DELEGATED: &str = r#"
[[receivers]]
name = "db"
address = "203.0.113.20"
services = "tcp/5432"
verifier = "edge-1"

[[delegations]]
name = "dba"
to = "db"
delegates = "person:alice"
who = "person:bob"
lifetime_max = "1d"
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consent_that_a_member_withdraws_before_it_dies_ends_at_the_others() {
    let Cluster { etcd: _etcd, mut a, b, _room } = Cluster::start().await;
    apply(&a.directory, &format!("{POLICY}{DELEGATED}")).await;
    let session = b.client().login(&login("bob", PASSWORD, None)).await.unwrap();
    let at_b = b.client().with_token(&session.token);
    let db = crate::stage::to("203.0.113.20", 6, 5432);
    // An operator gives access at one member. When the command returns, it is in force at the other; so is its end.
    let (holder, term) = ("bob".into(), Term::For(3600));
    let giving = Giving { holder, receiver: "db".into(), services: Vec::new(), term, note: String::new() };
    let given = consents::give(&a.directory, vec![giving], false, |_| String::new()).await.unwrap();
    at_b.grant(&db).await.unwrap();
    let which = admin::Withdrawn::One(given[0].id.parse().unwrap());
    assert_eq!(admin::withdraw_access(&a.directory, &which).await.unwrap().0, 1);
    assert_eq!(problem(at_b.grant(&db).await).r#type, "no_rule");
    let asking =
        api::AccessRequest { receiver: "db".into(), services: Vec::new(), lifetime: None, reason: String::new() };
    let id = at_b.ask_access(&asking).await.unwrap().id.parse().unwrap();
    let alice = a.client().login(&login("alice", PASSWORD, None)).await.unwrap();
    a.is_followed().await;
    // Another process at the host of `a`: the server has no part in the decision.
    let mut database = a.directory.open_database().unwrap();
    let verdict = AccessVerdict {
        session: sha2::Sha256::digest(alice.token.as_bytes()).into(),
        decider: "alice".into(),
        by: Operator::current(),
        version: database.policy_version().unwrap(),
        groups: Vec::new(),
        applicant_groups: Vec::new(),
        applicant_tags: Vec::new(),
        delegation: "dba".into(),
        label: "policy.toml:1 delegation dba".into(),
        allow: Some((vec![engine::policy::parse_service("tcp/5432").unwrap()], authority::now() + 3600)),
        note: String::new(),
    };
    let decided = database.decide_access(id, &verdict, authority::now()).unwrap();
    assert_eq!(decided, Decided::Done { person: "bob".into() });
    until("the consent is in force at b", async || at_b.grant(&db).await.is_ok()).await;
    let live = || b.directory.open_database().unwrap().live_grants_of("bob", authority::now()).unwrap().len();
    assert_eq!(live(), 1);
    a.server.take().unwrap().stop().await;
    assert!(database.withdraw_access(id, None, &Operator::current(), authority::now()).unwrap().is_some());
    drop(database);
    until("b revokes the grant", async || live() == 0).await;
    assert_eq!(problem(at_b.grant(&db).await).r#type, "no_rule");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_segment_is_answered_by_the_member_that_issued_it() {
    let cluster = Cluster::start().await;
    std::fs::write(cluster.a.directory.networks(), segments::NETWORKS).unwrap();
    let tenants = segments::TENANTS.replace("[groups]\nstaff = [\"alice\", \"bob\"]\n", "");
    apply(&cluster.a.directory, &format!("{POLICY}{tenants}")).await;
    cluster.a.is_followed().await;
    let session = cluster.a.client().login(&login("alice", PASSWORD, None)).await.unwrap();
    cluster.a.is_followed().await;
    let segment = cluster.a.client().with_token(&session.token).segment(&segments::request("blue", 22)).await.unwrap();
    let shown = convert::answer_request(&segments::given(&segment));
    let at_b = cluster.b.client().with_token(&session.token);
    let unknown = problem(at_b.answer_segment(&shown).await);
    assert_eq!((unknown.r#type.as_str(), unknown.status), (api::Problem::UNKNOWN_SEGMENT, 404));
    at_b.authorities().await.unwrap();
    at_b.answer_segment(&shown).await.expect("the client asks the other member, too");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_etcd_members_renew_and_issue_nothing_new() {
    let mut cluster = Cluster::start().await;
    let session = cluster.a.client().login(&login("alice", PASSWORD, None)).await.unwrap();
    let (at_a, at_b) = (cluster.a.client().with_token(&session.token), cluster.b.client().with_token(&session.token));
    let grant = at_a.grant(&git()).await.unwrap();
    // networks.toml goes round with the policy.
    std::fs::write(cluster.a.directory.networks(), segments::NETWORKS).unwrap();
    let tenants = segments::TENANTS.replace("[groups]\nstaff = [\"alice\", \"bob\"]\n", "");
    apply(&cluster.a.directory, &format!("{POLICY}{tenants}")).await;
    cluster.a.is_followed().await;
    at_b.segment(&segments::request("blue", 22)).await.unwrap();
    assert_eq!(handle(&at_b.grant(&git()).await.unwrap()), handle(&grant), "b renews the grant of a");
    let mut holder = cluster.b.raw_events(&session.token).await;
    cluster.etcd.kill(0).unwrap();
    until("b notices", async || cluster.b.client().health().await.is_err()).await;
    assert_eq!(problem(cluster.b.client().health().await).r#type, api::Problem::NO_MAJORITY);
    assert_eq!(handle(&at_b.grant(&git()).await.unwrap()), handle(&grant), "it renews");
    let new = crate::stage::to("203.0.113.10", 17, 443);
    let refused = problem(at_b.grant(&new).await);
    assert_eq!((refused.r#type.as_str(), refused.status), (api::Problem::NO_MAJORITY, 503));
    at_b.segment(&segments::request("blue", 22)).await.expect("it renews a segment that it issued");
    let refused = problem(at_b.segment(&segments::request("blue", 23)).await);
    assert_eq!(refused.r#type, api::Problem::NO_MAJORITY);
    let refused = problem(cluster.b.client().login(&login("bob", PASSWORD, None)).await);
    assert_eq!(refused.r#type, api::Problem::NO_MAJORITY);
    let unknown = cluster.b.client().with_token("unknown").destinations().await;
    assert_eq!(problem(unknown).r#type, api::Problem::NO_MAJORITY, "the session may be newer than the copy here");
    let status = cluster.b.status();
    assert!(status.head.is_none() && status.to_string().contains("etcd does not answer"), "{status}");
    // Those who listen here could not hear of revocations.
    role_change(&mut holder).await;
    // After five seconds, the member does not try any more. The request is sent once; a client would repeat it.
    let begun = Instant::now();
    let request = cluster.b.raw().post(cluster.b.url("/v1/grants")).bearer_auth(&session.token).json(&new);
    let refused: api::Problem = request.send().await.unwrap().json().await.unwrap();
    assert_eq!(refused.r#type, api::Problem::NO_MAJORITY);
    assert!(begun.elapsed() < Duration::from_secs(2), "a refusal takes {:?}", begun.elapsed());

    // A member also starts without etcd.
    let Member { directory, address, server } = cluster.b;
    server.unwrap().stop().await;
    let server = Server::start(directory.clone(), Some(address)).await.unwrap();
    let b = Member { directory, address, server: Some(server) };
    let at_b = b.client().with_token(&session.token);
    assert_eq!(handle(&at_b.grant(&git()).await.unwrap()), handle(&grant), "it renews within its grace");
    assert_eq!(problem(at_b.grant(&new).await).r#type, api::Problem::NO_MAJORITY);

    cluster.etcd.restart(0).unwrap();
    cluster.etcd.await_ready(0).unwrap();
    b.reaches_etcd().await;
    cluster.a.reaches_etcd().await;
    until("it issues again", async || at_b.grant(&new).await.is_ok()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_stops_sends_its_listeners_on_and_may_leave() {
    let cluster = Cluster::start().await;
    let session = cluster.a.client().login(&login("alice", PASSWORD, None)).await.unwrap();
    let at_b = cluster.b.client().with_token(&session.token);
    until("b sees a", async || at_b.destinations().await.unwrap().authorities.len() == 2).await;
    let mut holder = cluster.b.raw_events(&session.token).await;
    let Member { directory, server, .. } = cluster.b;
    let stopping = tokio::spawn(server.unwrap().stop());
    assert!(role_change(&mut holder).await.contains(&format!("https://{}", cluster.a.address)));
    stopping.await.unwrap();
    assert!(!cluster.a.status().members.iter().any(|member| member.name == "b" && member.is_there == Some(true)));
    let error = bundle::remove(&cluster.a.directory, "a", false).unwrap_err().to_string();
    assert!(error.contains("stop its server"), "{error}");
    // The commands say who did not follow.
    let text = apply(&cluster.a.directory, &POLICY.replace("\"bob\"", "\"bob\", \"eve\"")).await;
    assert!(text.contains("no contact with b"), "{text}");
    // An endpoint that asks meanwhile learns of b, too: it may be the only member that runs later.
    let at_a = cluster.a.client().with_token(&session.token);
    assert_eq!(at_a.destinations().await.unwrap().authorities.len(), 2);

    let error = bundle::leave(&directory, false, false).err().unwrap().to_string();
    assert!(error.contains("there are other members (a)") && error.contains("--keep-state"), "{error}");
    let left = bundle::leave(&directory, false, true).unwrap();
    assert!(left.name == "b" && left.unknown.is_none());
    assert_eq!(cluster.a.status().members.len(), 1);
    let alone = Server::start(directory.clone(), None).await.unwrap();
    let ca = std::fs::read(directory.ca()).unwrap();
    let client = Authority::new(&format!("https://{}", alone.address()), Some(&ca)).unwrap();
    assert!(client.with_token(&session.token).destinations().await.unwrap().authorities.is_empty());
    assert!(client.login(&login("bob", PASSWORD, None)).await.is_ok());
    let text = admin::apply_policy(&directory, None).await.unwrap();
    assert!(text.starts_with("version 2: "), "the last policy of the cluster came along: {text}");
    alone.stop().await;
    assert!(matches!(client.health().await, Err(Error::Unreachable(_))));
    assert!(Status::read(&directory, Some(Standing::Alone)).unwrap_err().to_string().contains("not a member"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_member_that_records_a_request_sends_a_message() {
    let Cluster { etcd: _etcd, mut a, mut b, _room } = Cluster::start().await;
    let mut program = webhook::Program::start(&[], None).await;
    for member in [&mut a, &mut b] {
        member.server.take().unwrap().stop().await;
        webhook::configure(&member.directory, &program.url);
        *member = Member::start(member.directory.clone(), Some(member.address)).await;
    }
    apply(&a.directory, &format!("{POLICY}{DELEGATED}")).await;
    let session = a.client().login(&login("bob", PASSWORD, None)).await.unwrap();
    let (at_a, at_b) = (a.client().with_token(&session.token), b.client().with_token(&session.token));
    let asking =
        api::AccessRequest { receiver: "db".into(), services: Vec::new(), lifetime: None, reason: String::new() };
    let mut numbers = Vec::new();
    for (one, other) in [(&at_a, &at_b), (&at_b, &at_a)] {
        a.is_followed().await;
        let id = one.ask_access(&asking).await.unwrap().id;
        // Both members know of the request before the other one withdraws it.
        a.is_followed().await;
        other.withdraw_access(&id).await.unwrap();
        for kind in ["access_asked", "access_withdrawn"] {
            let message = program.next().await;
            assert_eq!(
                (message.kind().as_str(), message.json()["data"]["request"].as_str()),
                (kind, Some(id.as_str()))
            );
            numbers.push(message.header("webhook-id").to_owned());
        }
    }
    numbers.sort();
    numbers.dedup();
    assert_eq!(numbers.len(), 4);
}

/// Writes the audit trails of a member to a file, as `audit export` does.
fn export(member: &Member) -> PathBuf {
    let file = member.directory.path().join("audit.jsonl");
    let mut lines = String::new();
    let database = member.directory.open_database().unwrap();
    let written = database.each_audit_entry(0, |entry| {
        lines += &serde_json::to_string(&entry)?;
        lines.push('\n');
        Ok(())
    });
    written.unwrap();
    std::fs::write(&file, lines).unwrap();
    file
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_whose_disk_goes_back_in_time_is_named_until_somebody_accepts_it() {
    let Cluster { etcd, a, mut b, _room } = Cluster::start().await;
    b.server.take().unwrap().stop().await;
    let (database, copy) = (b.directory.database(), b.directory.path().join("copy.db"));
    std::fs::copy(&database, &copy).unwrap();
    b = Member::start(b.directory.clone(), Some(b.address)).await;
    let heads = |member: &Member| {
        let heads = member.directory.open_database().unwrap().audit_heads().unwrap();
        heads.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let event = AuditEvent::new("granted").detail("what the disk will lose");
    b.directory.open_database().unwrap().audit(&event, authority::now()).unwrap();
    until("b has published its heads", async || trails::heads(&a.directory).unwrap()["b"] == heads(&b)).await;
    let before = heads(&b);
    b.server.take().unwrap().stop().await;
    for left in ["-wal", "-shm"] {
        let _ = std::fs::remove_file(b.directory.path().join(format!("authority.db{left}")));
    }
    std::fs::rename(&copy, &database).unwrap();
    let settings = b.directory.path().join("authority.toml");
    let text = std::fs::read_to_string(&settings).unwrap();
    std::fs::write(&settings, format!("metrics = \"127.0.0.1:0\"\n{text}")).unwrap();
    b = Member::start(b.directory.clone(), Some(b.address)).await;

    let lost = || a.status().members.into_iter().find(|member| member.name == "b").unwrap().lost;
    until("a knows what b has lost", async || !lost().is_empty()).await;
    assert!(lost().iter().all(|head| before.contains(head)), "{:?}", lost());
    let status = a.status().to_string();
    assert!(
        status.contains("the audit trails of member b lack entries") && status.contains("audit accept"),
        "{status}"
    );
    let address = b.server.as_ref().unwrap().metrics().unwrap();
    until("the metrics show it, and the state of etcd", async || {
        let page = metrics::page_at(address).await;
        let has = |line: &str| page.contains(&format!("vouchsafe_authority_{line}"));
        let server = format!("{{server=\"{}\"}}", etcd.endpoints()[0]);
        has(&format!("cluster_lost_audit_heads {}.0", lost().len()))
            && has("cluster_behind 0.0")
            && has("cluster_without_contact_seconds 0.0")
            && has("cluster_lost_leases_total 0")
            && has(&format!("etcd_up{server} 1.0"))
            && has(&format!("etcd_full{server} 0.0"))
            && has(&format!("etcd_compacted_revision{server} 0.0"))
            && ["etcd_quota_bytes", "etcd_size_bytes"].iter().all(|name| has(&format!("{name}{server} ")))
    })
    .await;

    // A copy of the trails of b lacks what it has published.
    let check = || {
        let noted = trails::heads(&a.directory).unwrap();
        trails::verify(&a.directory, &BTreeMap::from([("b".to_owned(), export(&b))]), &noted).unwrap()
    };
    let checked = check();
    assert_eq!(checked["a"], Checked::NoCopy);
    assert!(matches!(&checked["b"], Checked::Verified(Verdict::Broken(_))), "{checked:?}");
    let said = trails::accept(&b.directory).await.unwrap();
    assert!(before.iter().any(|head| said.contains(head)), "{said}");
    until("a knows that it was accepted", async || lost().is_empty()).await;
    let checked = check();
    assert!(matches!(&checked["b"], Checked::Verified(Verdict::Whole(_))), "{checked:?}");
    let accepted = b.directory.open_database().unwrap().audit_entries(None, 100).unwrap();
    assert!(accepted.iter().any(|entry| entry.event == "audit_accepted" && entry.operator.is_some()));
    let error = trails::accept(&b.directory).await.unwrap_err().to_string();
    assert!(error.contains("nothing to accept"), "{error}");
}
