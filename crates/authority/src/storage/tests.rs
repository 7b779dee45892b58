mod access;
mod choices;
mod given;
mod holders;
mod journal;
mod leases;
mod logins;
mod migration;
mod scores;
mod turns;

use super::*;
use api::GrantOwner;
use engine::policy::Scope;
use std::net::IpAddr;
use wire::{Destination, Flags};

pub(super) const SESSION: TokenHash = [7; 32];
pub(super) const SOURCE: &str = "192.0.2.1";

pub(super) fn database(room: &tempfile::TempDir) -> Database {
    let file = room.path().join("authority.db");
    Database::create(&file, b"an authority").unwrap();
    let mut database = Database::open(&file).unwrap();
    let service = NewService { name: "robot", key: "00", groups: &[], tags: &[] };
    database.add_service(&service, &Operator::current(), 1).unwrap();
    let session = Session {
        person: "robot".into(),
        device: "rack".into(),
        expires: 10_000,
        tags: Vec::new(),
        groups: Vec::new(),
        ends: None,
        holder: wire::Holder::default(),
    };
    let proof = Proof::Service("00".into());
    let login = database.add_session(SESSION, &session, &proof, SOURCE.parse().unwrap(), 1).unwrap();
    assert!(matches!(login, Login::Done { .. }));
    database
}

pub(super) fn grant(handle: u64, session: TokenHash) -> Issuance {
    let address: IpAddr = "203.0.113.1".parse().unwrap();
    Issuance {
        session,
        owner: GrantOwner {
            handle,
            person: "robot".into(),
            device: "rack".into(),
            receiver: "git".into(),
            rule: "policy.toml:1".into(),
            issued: 100,
            expires: 400,
            class: 0,
            sealing: None,
        },
        verifier: "edge".into(),
        source: SOURCE.parse().unwrap(),
        to: Destination { address, protocol: 6, port: 22 },
        scope: Scope { prefix: address.into(), service: Some((6, 22)) },
        flags: Flags::PORT,
        renewable: None,
    }
}

/// Returns the same addresses for all receivers, whatever the policy is.
pub(super) fn addresses(_: &str) -> Option<Vec<ipnet::IpNet>> {
    Some(vec!["203.0.113.20/32".parse().unwrap()])
}

/// All grants are queued before the thread takes the first.
#[tokio::test]
async fn of_grants_that_are_recorded_together_one_that_cant_be_takes_no_other_along() {
    let room = tempfile::tempdir().unwrap();
    let storage = Storage::start(database(&room)).unwrap();
    let (begin, begun) = std::sync::mpsc::channel::<()>();
    let busy = storage.call(move |_| Ok(begun.recv()?));
    let ended = [9; 32];
    let requests = [grant(1, SESSION), grant(2, ended), grant(1, SESSION), grant(3, SESSION)];
    // Grants in separate queues are recorded together.
    let own_line = |(mut grant, person): (Issuance, &str)| {
        grant.owner.person = person.into();
        storage.add_grant(grant, storage.basis(person), |_| {})
    };
    let requests = requests.into_iter().zip(["robot", "second", "third", "fourth"]);
    let requests = futures_util::future::join_all(requests.map(own_line));
    let (_, recorded, ()) = tokio::join!(biased; busy, requests, async { begin.send(()).unwrap() });
    let recorded: Vec<_> = recorded.into_iter().map(Result::ok).collect();
    // The third grant has the handle of the first.
    assert_eq!(recorded, [Some(Recorded::Done), Some(Recorded::SessionEnded), None, Some(Recorded::Done)]);
    let grants = storage.call(|database| database.grants(200, false)).await.unwrap();
    let mut handles: Vec<_> = grants.into_iter().map(|grant| grant.handle.0).collect();
    handles.sort_unstable();
    assert_eq!(handles, [1, 3]);
    let entries = storage.call(|database| database.audit_entries(None, 100)).await.unwrap();
    assert_eq!(entries.iter().filter(|entry| entry.event == "granted").count(), 2);
    let verdict = storage.call(|database| database.verify_audit(b"an authority", &[])).await.unwrap();
    assert!(matches!(verdict, Verdict::Whole(_)), "{verdict:?}");
    storage.close().await;
}

#[test]
fn devices_that_anybody_may_name_at_will_dont_pile_up() {
    let room = tempfile::tempdir().unwrap();
    let mut database = database(&room);
    database.tag_device("robot", "rack", &["kept".into()], &Operator::current(), 2).unwrap();
    for nth in 0..300_u16 {
        let mut token = [0; 32];
        token[..2].copy_from_slice(&nth.to_be_bytes());
        let (tags, groups, holder) = (Vec::new(), Vec::new(), wire::Holder::default());
        let device = format!("machine {nth:03}");
        let session = Session { person: "robot".into(), device, expires: 10_000, tags, groups, ends: None, holder };
        let proof = Proof::Service("00".into());
        database.add_session(token, &session, &proof, SOURCE.parse().unwrap(), 10 + u64::from(nth)).unwrap();
    }
    let names: Vec<_> = database.devices(Some("robot")).unwrap().into_iter().map(|entry| entry.device).collect();
    // The tagged device and the latest ones remain.
    assert_eq!((names.len(), names[0].as_str(), names[1].as_str()), (257, "machine 044", "machine 045"));
    assert_eq!(names.last().map(String::as_str), Some("rack"));
}

#[test]
fn sessions_come_with_the_groups_and_tags_that_each_is_known_by() {
    let room = tempfile::tempdir().unwrap();
    let (mut database, by) = (database(&room), Operator::current());
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let known = |database: &Database| {
        let (_, session) = database.sessions(100).unwrap().remove(0);
        let known = database.facts_about("robot", Some("rack")).unwrap();
        assert_eq!((&session.groups, &session.tags), (&known.groups, &known.tags));
        (session.groups, session.tags)
    };
    assert_eq!(known(&database), (names(&[]), names(&[])));
    database.set_service_groups("robot", &names(&["staff", "eng"]), &by, 2).unwrap();
    database.set_service_tags("robot", &names(&["b", "c"]), &by, 2).unwrap();
    database.tag_device("robot", "rack", &names(&["c", "a"]), &by, 2).unwrap();
    assert_eq!(known(&database), (names(&["staff", "eng"]), names(&["a", "b", "c"])));
}
