//! An authority alone and the members of a cluster have the same state after the same operations.

use super::*;
use crate::login::Identity;
use crate::storage::tests::{SESSION, SOURCE, addresses, grant};
use crate::storage::{
    AccessVerdict, Account, AuditEvent, Decided, Issuance, LeaseTerms, Login, NewComplaint, NewRequest, NewService,
    Operator, Passkey, PolicyChange, Proof, Recorded, RequestOutcome, ScoreTerms, Session, TokenHash, Walk, Which,
    session_number,
};
use engine::issuing::lease::Turn;
use engine::policy::delegation::RequestId;
use engine::policy::preference::{Choice, Preference, Preferences};
use wire::Handle;
use zeroize::Zeroizing;

type Operation = Box<dyn Fn(&mut Database)>;

fn log_in(database: &mut Database, token: TokenHash, person: &str, proof: &Proof, now: u64) {
    let ends = matches!(proof, Proof::Provider { .. }).then_some(40_000);
    let (tags, groups, holder) = (Vec::new(), Vec::new(), wire::Holder::default());
    let session = Session { person: person.into(), device: "laptop".into(), expires: 9000, tags, groups, ends, holder };
    let login = database.add_session(token, &session, proof, SOURCE.parse().unwrap(), now).unwrap();
    assert!(matches!(login, Login::Done { .. }), "{login:?}");
}

fn renewable(database: &Database, number: u32, session: TokenHash) -> Issuance {
    let half = database.numbering().unwrap().0.encrypt(Turn { number, epochs: 0 });
    let mut issuance = grant(0xab00_0000_0000_0000 | u64::from(half), session);
    issuance.owner.person = match session[0] {
        1 => "alice",
        3 | 4 => "carol",
        _ => "robot",
    }
    .into();
    issuance.renewable = Some((LeaseTerms { number, issued: 100, lease: 300 }, 9000));
    issuance
}

fn policy(text: &str) -> PolicyChange {
    PolicyChange { text: text.into(), note: "apply".into(), by: None, summary: "one".into(), after: None }
}

fn request_id(number: u32) -> RequestId {
    RequestId(std::num::NonZeroU32::new(number).unwrap())
}

fn access_request(number: u32, session: TokenHash, person: &str) -> NewRequest {
    NewRequest {
        id: request_id(number),
        session,
        person: person.into(),
        source: SOURCE.parse().unwrap(),
        receiver: "db".into(),
        services: vec![engine::model::Service::ALL],
        lifetime: None,
        reason: "because".into(),
        version: 1,
        groups: Vec::new(),
        delegations: vec!["dba".into()],
        prefixes: addresses("db").unwrap(),
    }
}

/// Returns a decision of carol, by version 2 of the policy.
fn verdict(until: Option<u64>) -> AccessVerdict {
    AccessVerdict {
        session: [2; 32],
        decider: "carol".into(),
        by: Operator::current(),
        version: 2,
        groups: vec!["staff".into()],
        applicant_groups: Vec::new(),
        applicant_tags: Vec::new(),
        delegation: "dba".into(),
        label: "policy.toml:1 delegation dba".into(),
        allow: until.map(|until| (vec![engine::model::Service::ALL], until)),
        note: String::new(),
    }
}

fn operations() -> Vec<Operation> {
    let by = Operator::current;
    let terms = ScoreTerms { half_life: 3600, low: 80, per_application: 500 };
    let carol = |person: &str| {
        let (issuer, person) = ("https://idp.example.org".into(), person.into());
        let identity =
            Identity { issuer, subject: "c-1".into(), person, groups: vec!["staff".into()], sid: Some("s-1".into()) };
        Proof::Provider { identity, refresh_token: Some(Zeroizing::new("first".into())) }
    };
    let ops: Vec<Operation> = vec![
        Box::new(move |database| {
            let account = Account { password: "a hash".into(), totp: None };
            database.add_account("alice", &account, &by(), 10).unwrap();
        }),
        Box::new(|database| log_in(database, [1; 32], "alice", &Proof::Password("a hash".into()), 20)),
        Box::new(move |database| log_in(database, [2; 32], "carol", &carol("carol"), 21)),
        Box::new(|database| log_in(database, [3; 32], "carol", &Proof::Console([2; 32]), 22)),
        Box::new(|database| log_in(database, [4; 32], "carol", &Proof::Console([2; 32]), 23)),
        Box::new(move |database| {
            let passkey =
                Passkey { id: vec![1, 2], fixed: vec![3], state: [0; 7], name: "key".into(), created: 24, used: None };
            database.passkey_handle("alice", [9; 64]).unwrap();
            assert!(database.add_passkey("alice", &passkey, &by(), 24).unwrap());
        }),
        Box::new(move |database| {
            database.add_verifier("edge", [5; 32], 1000, false, &by(), 25).unwrap();
        }),
        Box::new(|database| {
            let enrolled = database.enrol([5; 32], [6; 32], SOURCE.parse().unwrap(), 26).unwrap();
            assert_eq!(enrolled.as_deref(), Some("edge"));
            // The token is now in use.
            assert_eq!(database.enrol([5; 32], [6; 32], SOURCE.parse().unwrap(), 27).unwrap(), None);
        }),
        Box::new(|database| {
            let issuances = [renewable(database, 1, SESSION), renewable(database, 2, [1; 32]), grant(5, SESSION)];
            let recorded = database.add_grants(&issuances).unwrap();
            assert_eq!(recorded, [Recorded::Renewable, Recorded::Renewable, Recorded::Done]);
        }),
        Box::new(|database| {
            let again = renewable(database, 1, SESSION);
            assert_eq!(database.add_grants(&[again]).unwrap(), [Recorded::NumberTaken]);
            let issuances = [renewable(database, 3, [3; 32]), renewable(database, 4, [4; 32])];
            assert_eq!(database.add_grants(&issuances).unwrap(), [Recorded::Renewable; 2]);
        }),
        Box::new(move |database| database.tag_device("alice", "laptop", &["managed".into()], &by(), 110).unwrap()),
        Box::new(move |database| {
            let target = "203.0.113.0/24".parse().unwrap();
            assert!(database.set_preference("alice", &target, Some(Choice::Never), &by(), 111).unwrap());
        }),
        Box::new(|database| {
            let all = vec![Preference { target: "203.0.113.0/24".parse().unwrap(), choice: Choice::Never }];
            let preferences = Preferences::new(all);
            let (revoked, next) =
                database.revoke_some_withheld("alice", &preferences, Walk::from_unexpired(112), 112).unwrap();
            assert_eq!((revoked, next), (1, None));
        }),
        Box::new(move |database| {
            let handle = Handle(renewable(database, 1, SESSION).owner.handle);
            assert_eq!(database.revoke(&Which::Grant(handle), &by(), 113).unwrap().map(|ended| ended.grants), Some(1));
        }),
        Box::new(move |database| {
            let handle = Handle(renewable(database, 3, [3; 32]).owner.handle);
            let (verifier, application) = ("edge".into(), "wiki".into());
            let complaint = NewComplaint { verifier, application, handle, about: "spam", points: 30 };
            let complained = database.complain(&complaint, terms, 114).unwrap();
            assert_eq!(complained, crate::storage::Complained::Done { score: 70, fell: true });
        }),
        Box::new(move |database| database.settle_scores(Some(terms), true, 115).unwrap()),
        Box::new(|database| {
            assert_eq!(database.apply_policy(&policy("one"), &[], 116, &addresses, || Ok(())).unwrap(), 1);
        }),
        Box::new(|database| {
            assert_eq!(
                database
                    .apply_policy(&policy("two"), &[(Handle(5), "robot".into())], 117, &addresses, || Ok(()))
                    .unwrap(),
                2
            );
        }),
        Box::new(|database| {
            // A policy whose file cannot be written is not recorded.
            let failed = database.apply_policy(&policy("three"), &[], 118, &addresses, || anyhow::bail!("a full disk"));
            assert_eq!(failed.unwrap_err().to_string(), "a full disk");
        }),
        Box::new(|database| {
            for (number, session, person) in [(7, [1; 32], "alice"), (8, SESSION, "robot"), (9, [4; 32], "carol")] {
                let groups = if person == "carol" { vec!["staff".into()] } else { Vec::new() };
                let request = NewRequest { version: 2, groups, ..access_request(number, session, person) };
                assert_eq!(database.ask_access(&request, 119).unwrap(), RequestOutcome::Done(request_id(number)));
            }
        }),
        Box::new(|database| {
            for (number, until, person) in [(7, Some(15_000), "alice"), (8, Some(300), "robot")] {
                let applicant_tags = database.facts_of_person(person).unwrap().tags;
                let verdict = AccessVerdict { applicant_tags, ..verdict(until) };
                let decided = database.decide_access(request_id(number), &verdict, 119).unwrap();
                assert_eq!(decided, Decided::Done { person: person.into() });
            }
        }),
        Box::new(|database| {
            let again = database.decide_access(request_id(7), &verdict(None), 119).unwrap();
            assert!(matches!(again, Decided::Already(_)), "{again:?}");
            assert_eq!(database.expire_consents(&[request_id(8)], 300).unwrap(), ["robot"]);
        }),
        Box::new(|database| {
            // Other members know whose grants are not yet examined.
            let unexamined = database.unexamined().unwrap();
            assert_eq!(unexamined.iter().map(|of| of.person.as_str()).collect::<Vec<_>>(), ["robot"]);
            database.examined(&unexamined[0]).unwrap();
            assert_eq!(database.unexamined_of("robot").unwrap(), None);
        }),
        Box::new(move |database| {
            let withdrawn = database.withdraw_access(request_id(9), Some("carol"), &by(), 119).unwrap();
            assert!(withdrawn.is_some());
        }),
        Box::new(|database| database.change_shared("late", |_| Ok(Some(b"60".to_vec()))).unwrap()),
        // The console session of carol ends, and one of her devices inherits the refresh token.
        Box::new(move |database| {
            assert!(database.end_own_session("carol", session_number(&[3; 32]), &by(), 120).unwrap());
        }),
        Box::new(move |database| {
            let due = database.renewable(None, 200, 200).unwrap();
            assert_eq!(due.len(), 1);
            assert!(database.end_other_sessions("carol", &[4; 32], &by(), 121).unwrap());
            assert_eq!(database.renewable(None, 200, 200).unwrap().len(), 1);
        }),
        // The provider gives carol another name.
        Box::new(move |database| log_in(database, [17; 32], "caroline", &carol("caroline"), 122)),
        Box::new(move |database| database.remove_account("alice", &by(), 123).unwrap()),
        Box::new(move |database| {
            let service = NewService { name: "alice", key: "01", groups: &[], tags: &["x".into()] };
            database.add_service(&service, &by(), 124).unwrap();
        }),
        Box::new(|database| log_in(database, [8; 32], "alice", &Proof::Service("01".into()), 125)),
        Box::new(move |database| database.remove_verifier("edge", &by(), 126).unwrap()),
        Box::new(|database| assert!(database.end_expired_sessions(9000).unwrap() > 0)),
        Box::new(|database| database.prune(20_000, 100, 1_000_000).unwrap()),
        Box::new(|database| database.audit(&AuditEvent::new("denied").person("robot"), 20_001).unwrap()),
    ];
    ops
}

#[test]
fn members_have_the_state_of_an_authority_alone() {
    let (alone, cluster) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut alone = database(&alone);
    alone.copy_to(&cluster.path().join("a.db")).unwrap();
    let cluster = Cluster::with(1, cluster);
    let mut members = [cluster.open("a"), cluster.join("b")];
    // Each authority draws its own numbers.
    let but = ["numbering"];
    assert_same(&members[0], &members[1], &[]);
    for (nth, operation) in operations().into_iter().enumerate() {
        operation(&mut alone);
        operation(&mut members[nth % 2]);
        for member in &mut members {
            member.catch_up().unwrap();
            assert_same(&alone, member, &but);
        }
    }
    // Every authority announces what has ended to its own listeners.
    let announced = |database: &mut Database| {
        let mut sessions = database.take_ended_sessions().unwrap();
        sessions.sort_by_key(|(verifier, ended)| (verifier.clone(), ended.holder));
        let mut grants: Vec<_> =
            database.take_unannounced().unwrap().into_iter().map(|ended| ended.grant.grant.handle).collect();
        grants.sort_unstable();
        (sessions, grants, database.take_rechecks().unwrap())
    };
    let expected = announced(&mut alone);
    assert!(!expected.2.is_empty());
    for member in &mut members {
        assert_eq!(announced(member), expected);
        assert!(announced(member).2.is_empty());
    }
    // An action is in the trail of the member that performed it, and only there.
    let entries = |database: &Database| {
        let mut entries: Vec<_> = database
            .audit_entries(None, 1000)
            .unwrap()
            .into_iter()
            .map(|entry| (entry.time, entry.event, entry.person, entry.detail))
            .collect();
        entries.sort();
        entries
    };
    let mut of_members: Vec<_> = members.iter().flat_map(entries).collect();
    of_members.sort();
    assert_eq!(of_members, entries(&alone));
    for member in &mut members {
        let verdict = member.verify_audit(b"an authority", &[]).unwrap();
        assert!(matches!(verdict, crate::storage::Verdict::Whole(_)), "{verdict:?}");
    }
    let mut third = cluster.join("c");
    assert!(third.catch_up().unwrap().to > 0);
    assert_same(&members[0], &third, &[]);
}

#[test]
fn a_member_reports_what_others_have_changed() {
    let cluster = Cluster::of(1);
    let (mut first, mut second) = (cluster.open("a"), cluster.join("b"));
    assert!(second.catch_up().unwrap().is_empty());
    first.add_grants(&[grant(5, SESSION)]).unwrap();
    assert!(first.take_changes().is_empty(), "the writer knows its own changes");
    let changes = second.catch_up().unwrap();
    assert_eq!((changes.to, changes.grants.as_slice()), (1, &[Handle(5)][..]));
    assert!(!changes.sessions && !changes.decisive && !changes.urgent && !changes.whole, "{changes:?}");
    first.revoke(&Which::Grant(Handle(5)), &Operator::current(), 150).unwrap();
    first.apply_policy(&policy("one"), &[], 116, &addresses, || Ok(())).unwrap();
    // A write applies what the member lacks, too.
    second.add_grants(&[grant(6, SESSION)]).unwrap();
    let changes = second.take_changes();
    assert!(changes.to == 3 && changes.sessions && changes.policy && changes.decisive && changes.urgent, "{changes:?}");
    assert!(second.take_changes().is_empty());
    assert_eq!((second.applied().unwrap(), first.applied().unwrap()), (4, 3));
}

#[test]
fn only_a_consent_that_begins_or_ends_changes_the_decisions_of_other_members() {
    let cluster = Cluster::of(1);
    let (mut first, mut second) = (cluster.open("a"), cluster.join("b"));
    first.apply_policy(&policy("one"), &[], 116, &addresses, || Ok(())).unwrap();
    log_in(&mut first, [9; 32], "robot", &Proof::Service("00".into()), 117);
    second.catch_up().unwrap();
    let id = request_id(7);
    first.ask_access(&access_request(7, SESSION, "robot"), 118).unwrap();
    let changes = second.catch_up().unwrap();
    assert!(!changes.decisive && !changes.sessions && !changes.urgent, "a person can't slow others down: {changes:?}");
    // A person whose name is not the one who asks decides in the session of a member that is behind.
    first.connection.execute("UPDATE access_requests SET person = 'alice'", []).unwrap();
    second.connection.execute("UPDATE access_requests SET person = 'alice'", []).unwrap();
    let groups = Vec::new();
    let verdict = AccessVerdict { session: [9; 32], decider: "robot".into(), version: 1, groups, ..verdict(Some(900)) };
    second.apply_policy(&policy("two"), &[], 119, &addresses, || Ok(())).unwrap();
    assert_eq!(first.decide_access(id, &verdict, 120).unwrap(), Decided::PolicyChanged, "of another member");
    let verdict = AccessVerdict { version: 2, ..verdict };
    assert_eq!(first.decide_access(id, &verdict, 120).unwrap(), Decided::Done { person: "alice".into() });
    assert!(matches!(second.decide_access(id, &verdict, 120).unwrap(), Decided::Already(_)), "of two members");
    let changes = second.take_changes();
    assert!(changes.decisive && changes.sessions && changes.urgent, "{changes:?}");
    first.withdraw_access(id, None, &Operator::current(), 121).unwrap().unwrap();
    let changes = second.catch_up().unwrap();
    assert!(changes.decisive && changes.sessions && changes.urgent, "{changes:?}");
    assert_eq!(second.consents().unwrap().all().count(), 0);
    // The second member finishes what the first one may leave undone, and the first one learns of it.
    let left = second.unexamined().unwrap();
    assert_eq!(left.iter().map(|of| of.person.as_str()).collect::<Vec<_>>(), ["alice"]);
    second.examined(&left[0]).unwrap();
    first.catch_up().unwrap();
    assert_eq!(first.unexamined().unwrap(), []);
    first.examined(&left[0]).unwrap();
}

#[test]
fn a_policy_that_gives_a_name_to_another_receiver_ends_its_consents_at_every_member() {
    let cluster = Cluster::of(1);
    let (mut first, mut second) = (cluster.open("a"), cluster.join("b"));
    first.apply_policy(&policy("one"), &[], 116, &addresses, || Ok(())).unwrap();
    log_in(&mut first, [9; 32], "robot", &Proof::Service("00".into()), 117);
    let id = request_id(7);
    first.ask_access(&access_request(7, SESSION, "robot"), 118).unwrap();
    for database in [&mut first, &mut second] {
        database.catch_up().unwrap();
        database.connection.execute("UPDATE access_requests SET person = 'alice'", []).unwrap();
    }
    let groups = Vec::new();
    let verdict = AccessVerdict { session: [9; 32], decider: "robot".into(), version: 1, groups, ..verdict(Some(900)) };
    assert_eq!(first.decide_access(id, &verdict, 120).unwrap(), Decided::Done { person: "alice".into() });
    second.apply_policy(&policy("two"), &[], 121, &|_| None, || Ok(())).unwrap();
    let changes = first.catch_up().unwrap();
    assert!(changes.decisive && changes.sessions, "{changes:?}");
    for database in [&first, &second] {
        assert_eq!(database.consents().unwrap().all().count(), 0);
    }
    while first.end_outdated_access(122).unwrap() {}
    second.catch_up().unwrap();
    assert!(!second.end_outdated_access(122).unwrap(), "another member has ended the consent");
    assert_eq!(second.access_requests(false).unwrap(), []);
    assert_same(&first, &second, &[]);
}

#[test]
fn no_grant_of_an_earlier_policy_is_recorded_after_a_later_one() {
    let cluster = Cluster::of(1);
    let (mut first, mut second) = (cluster.open("a"), cluster.join("b"));
    let ask = |database: &mut Database, handle, followed| {
        database.add_decided([(&grant(handle, SESSION), followed)]).unwrap()[0].recorded
    };
    assert_eq!(ask(&mut second, 1, 0), Recorded::Done);
    first.apply_policy(&policy("one"), &[], 116, &addresses, || Ok(())).unwrap();
    // The second member has not read the policy: its transaction does.
    assert_eq!(ask(&mut second, 2, 1), Recorded::Outdated);
    assert_eq!(ask(&mut second, 2, 2), Recorded::Done);
    assert_eq!(ask(&mut first, 3, 1), Recorded::Outdated);
    // A login changes no decision.
    log_in(&mut first, [9; 32], "robot", &Proof::Service("00".into()), 130);
    assert_eq!(ask(&mut second, 3, 2), Recorded::Done);
}
