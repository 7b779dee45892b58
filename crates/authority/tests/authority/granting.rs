//! Grants by UDP: the holder of a line gets the same grants as over HTTPS, and nobody else gets an answer.

use crate::asking::{Caller, counted_in};
use crate::stage::*;
use api::{Event, GrantRequest};
use authority::storage::{AuditEntry, Which};
use authority::{admin, now};
use client::{Asker, Authority, Error, Way};
use std::time::{Duration, Instant};
use tokio::net::UdpSocket;
use wire::Destination;
use wire::ask::grant::{GrantAnswer, GrantQuestion};
use wire::ask::{ANSWER_LEN, Refusal, Request};

const DEADLINE: Duration = Duration::from_secs(20);

/// Starts an authority that accepts requests by UDP. Its epochs last a day, because a handle changes with the epoch.
async fn stage() -> Stage {
    Stage::start_with("epoch_length = \"1d\"\nsegments = \"127.0.0.1:0\"\nmetrics = \"127.0.0.1:0\"\n").await
}

/// Returns an asker that has a line.
async fn asker(authority: &Authority) -> Asker {
    let asker = Asker::new(authority.clone());
    asker.ready().await;
    asker
}

async fn counted(stage: &Stage, result: &str, count: u64) {
    counted_in(stage, "grant_datagrams", result, count).await;
}

/// Returns the audit entries of an event about a person.
fn audited(stage: &Stage, person: &str, event: &str) -> Vec<AuditEntry> {
    let entries = stage.database().audit_entries(Some(person), 100).unwrap();
    entries.into_iter().filter(|entry| entry.event == event).collect()
}

/// Encodes a request for a grant that was made at `time`.
fn request(caller: &Caller, counter: u64, asked: &GrantRequest, time: u64) -> Request {
    let to = Destination { address: asked.address, protocol: asked.protocol, port: asked.port };
    let question = GrantQuestion { to, consented: asked.consented, time: time as u32 };
    caller.key.seal_request(caller.number, counter, &question.encode().unwrap()).unwrap()
}

/// Returns the counter of the next request that is answered, and the grant's handle or the refusal.
async fn next_answer(caller: &Caller) -> (u64, Result<u64, Refusal>) {
    let mut room = [0; 2048];
    let received = tokio::time::timeout(DEADLINE, caller.socket.recv(&mut room)).await.expect("an answer in time");
    let length = received.unwrap();
    assert_eq!(length, ANSWER_LEN);
    let (counter, reply) = caller.key.open_answer(&mut room[..length]).expect("it is for this line");
    match GrantAnswer::decode(reply).expect("it says something") {
        GrantAnswer::Given(given) => (counter, Ok(given.header.handle.0)),
        GrantAnswer::Refused { reason, .. } => (counter, Err(reason)),
    }
}

#[tokio::test]
async fn a_grant_by_udp_is_the_one_that_https_gives() {
    let stage = stage().await;
    let (alice, verifier) = (stage.login("alice").await, stage.verifier("edge-1").await);
    let mut guard = events(&verifier).await;
    let asker = asker(&alice).await;
    let (first, way) = asker.grant(&git()).await.unwrap();
    assert_eq!(way, Way::Udp);
    let Event::Granted { owner } = next(&mut guard).await else { panic!("the verifier is told of the grant") };
    assert_eq!((owner.handle, owner.person.as_str()), (handle(&first), "alice"));
    let over_https = alice.grant(&git()).await.unwrap();
    let (renewed, way) = asker.grant(&git()).await.unwrap();
    assert_eq!(way, Way::Udp);
    for other in [&over_https, &renewed] {
        assert_eq!(handle(other), handle(&first));
        assert_eq!((&other.receiver, &other.rule, &other.carrier), (&first.receiver, &first.rule, &first.carrier));
        assert_eq!((other.prefix, &other.sealing), (first.prefix, &first.sealing));
        assert!(other.expires >= first.expires && other.now >= first.now);
        assert_eq!(other.key == first.key, other.expires == first.expires);
    }
    counted(&stage, "given", 2).await;
    let grants = stage.database().grants(now(), true).unwrap();
    assert_eq!((grants.len(), audited(&stage, "alice", "granted").len()), (1, 1), "it is recorded once");
    // A rule of another suite, with a wider scope, which is bound to the address.
    let lab = to("203.0.113.70", 6, 80);
    let (bound, way) = asker.grant(&lab).await.unwrap();
    let other = alice.grant(&lab).await.unwrap();
    assert_eq!((way, bound.prefix, handle(&bound)), (Way::Udp, other.prefix, handle(&other)));
}

#[tokio::test]
async fn refusals_by_udp_are_those_of_https_and_written_down() {
    let stage = stage().await;
    let [bob, eve] = [stage.login("bob").await, stage.login("eve").await];
    for (authority, person, asked) in
        [(&bob, "bob", git()), (&eve, "eve", git()), (&eve, "eve", to("203.0.113.10", 6, 23))]
    {
        let asker = asker(authority).await;
        let before = audited(&stage, person, "denied").len();
        let https = problem(authority.grant(&asked).await);
        let udp = problem(asker.grant(&asked).await);
        assert_eq!((udp.r#type, udp.title, udp.status), (https.r#type, https.title, https.status));
        assert_eq!(udp.detail, https.detail);
        assert_eq!(audited(&stage, person, "denied").len(), before + 2);
    }
    for (result, count) in [("denied", 1), ("no_rule", 1), ("no_receiver", 1), ("given", 0)] {
        counted(&stage, result, count).await;
    }
}

/// A grant that can't be answered by UDP is not recorded there, because each such grant would be another record.
#[tokio::test]
async fn a_pair_goes_over_https_and_is_recorded_once() {
    let stage = stage().await;
    let rule = "name = \"staff may use git\"\n";
    stage.apply(&POLICY.replace(rule, &format!("{rule}suite = \"sha224\"\n"))).await.unwrap();
    let asker = asker(&stage.login("alice").await).await;
    let (pair, way) = asker.grant(&git()).await.unwrap();
    assert_eq!((way, pair.header.len()), (Way::Https, 14));
    counted(&stage, "over_https", 1).await;
    assert_eq!(stage.database().grants(now(), true).unwrap().len(), 1);
    let long = POLICY.replace(rule, &format!("name = \"{}\"\n", "n".repeat(160)));
    if stage.apply(&long).await.is_ok() {
        let (grant, way) = asker.grant(&git()).await.unwrap();
        assert!(way == Way::Https && grant.rule.len() > 160);
        counted(&stage, "over_https", 2).await;
    }
}

#[tokio::test]
async fn copies_and_forgeries_of_requests_get_no_answer_and_record_nothing() {
    let stage = stage().await;
    let (alice, bob) = (Caller::of(&stage.login("alice").await).await, Caller::of(&stage.login("bob").await).await);
    let right = request(&alice, 1, &git(), now());
    // Bob's key on alice's line, no line at all, and changes of each part.
    let mut forged = request(&bob, 1, &git(), now());
    forged[4..12].copy_from_slice(&alice.number.0.to_be_bytes());
    let mut nobodys = right;
    nobodys[4] ^= 1;
    for datagram in [forged, nobodys] {
        alice.send(&datagram).await;
    }
    for at in [12, 20, 30, 100, 255] {
        let mut changed = right;
        changed[at] ^= 0x40;
        alice.send(&changed).await;
    }
    alice.send(&right).await;
    let (counter, answer) = next_answer(&alice).await;
    assert_eq!((counter, answer.is_ok()), (1, true), "the first that is answered");
    for _ in 0..3 {
        alice.send(&right).await;
    }
    alice.send(&request(&alice, 2, &git(), now())).await;
    assert_eq!(next_answer(&alice).await, (2, answer));
    counted(&stage, "given", 2).await;
    counted_in(&stage, "segment_datagrams", "repeated", 3).await;
    counted_in(&stage, "segment_datagrams", "forged", 6).await;
    counted_in(&stage, "segment_datagrams", "no_line", 1).await;
    assert_eq!(stage.database().grants(now(), true).unwrap().len(), 1);
    assert!(audited(&stage, "bob", "granted").is_empty());
}

/// With HTTPS, a handshake proves the source address that rules, `bind_source` and the audit trail rely on. So a request
/// by UDP counts only from the address from which its session got the line.
#[tokio::test]
async fn a_request_from_another_address_or_of_another_time_gets_no_grant() {
    let stage = stage().await;
    let alice = Caller::of(&stage.login("alice").await).await;
    let elsewhere = UdpSocket::bind("127.0.0.2:0").await.unwrap();
    elsewhere.connect(alice.socket.peer_addr().unwrap()).await.unwrap();
    let (number, key) = (alice.number, alice.key.clone());
    let elsewhere = Caller { socket: elsewhere, number, key };
    elsewhere.send(&request(&elsewhere, 1, &git(), now())).await;
    assert_eq!(next_answer(&elsewhere).await, (1, Err(Refusal::OtherAddress)));
    for (counter, time) in [(2, now() - 40), (3, now() + 40), (4, 0), (5, u64::from(u32::MAX))] {
        alice.send(&request(&alice, counter, &git(), time)).await;
        assert_eq!(next_answer(&alice).await, (counter, Err(Refusal::Stale)));
    }
    assert!(stage.database().grants(now(), true).unwrap().is_empty());
    assert!(audited(&stage, "alice", "granted").is_empty());
    for (counter, time) in [(6, now() - 20), (7, now() + 20)] {
        alice.send(&request(&alice, counter, &git(), time)).await;
        let (answered, answer) = next_answer(&alice).await;
        assert!(answered == counter && answer.is_ok(), "{answer:?}");
    }
    let granted = audited(&stage, "alice", "granted");
    assert!(granted.iter().all(|entry| entry.source.as_deref() == Some("127.0.0.1")), "{granted:?}");
}

#[tokio::test]
async fn what_ended_is_not_renewed_by_udp() {
    let stage = stage().await;
    let alice = stage.login("alice").await;
    let asker = asker(&alice).await;
    let (first, _) = asker.grant(&git()).await.unwrap();
    admin::revoke(&stage.directory, &Which::Grant(wire::Handle(handle(&first)))).await.unwrap();
    let (second, way) = asker.grant(&git()).await.unwrap();
    assert!(way == Way::Udp && handle(&second) != handle(&first));
    stage.apply(&POLICY.replace("staff = [\"alice\", \"bob\"]", "staff = [\"bob\"]")).await.unwrap();
    assert_eq!(problem(asker.grant(&git()).await).r#type, "no_rule");
    stage.apply(POLICY).await.unwrap();
    assert!(asker.grant(&git()).await.is_ok());
    let line = Caller::of(&alice).await;
    alice.logout().await.unwrap();
    line.send(&request(&line, 1, &git(), now())).await;
    counted_in(&stage, "segment_datagrams", "no_line", 1).await;
    assert!(matches!(asker.grant(&git()).await, Err(Error::NotLoggedIn)));
}

/// An account that sends more requests than it may is slowed down or sent to HTTPS. The requests of others are answered
/// by UDP meanwhile, also while a stranger floods the port.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_flood_of_an_account_or_a_stranger_does_not_keep_others_out() {
    let stage = stage().await;
    // Each service of the receiver gets a grant of its own, which is another record.
    stage.apply(&POLICY.replace("granularity = \"network\"\n", "")).await.unwrap();
    let (alice, bob) = (stage.login("alice").await, stage.login("bob").await);
    let (asker, mallory) = (asker(&alice).await, Caller::of(&bob).await);
    let flood = tokio::spawn(async move {
        for counter in 1..=3000_u16 {
            let asked = to("203.0.113.70", 6, counter);
            let mut datagram = request(&mallory, counter.into(), &asked, now());
            mallory.send(&datagram).await;
            datagram[40] ^= 1;
            mallory.send(&datagram).await;
        }
    });
    let begun = Instant::now();
    let mut by_udp = 0;
    while !flood.is_finished() || by_udp < 10 {
        by_udp += usize::from(asker.grant(&git()).await.unwrap().1 == Way::Udp);
        assert!(begun.elapsed() < DEADLINE, "{by_udp} by UDP");
    }
    flood.await.unwrap();
    let forged = async || {
        let page = crate::metrics::page(&stage).await;
        let line = page.lines().find(|line| line.contains("segment_datagrams_total{result=\"repeated\"}"));
        line.and_then(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).unwrap_or_default()
    };
    // The copies have counters that were used before, and a wrong seal: they cost one look-up.
    assert!(forged().await > 0);
}

/// One thread decides for all accounts. So each decision is charged to its account, also if no grant follows from it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn decisions_without_a_grant_are_charged_to_the_account() {
    const COUNT: u64 = 3000;
    let stage = stage().await;
    let rule = "name = \"staff may use git\"\n";
    stage.apply(&POLICY.replace(rule, &format!("{rule}suite = \"sha224\"\n"))).await.unwrap();
    let mallory = Caller::of(&stage.login("alice").await).await;
    let begun = Instant::now();
    for counter in 1..=COUNT {
        mallory.send(&request(&mallory, counter, &git(), now())).await;
        assert_eq!(next_answer(&mallory).await, (counter, Err(Refusal::OverHttps)));
    }
    let allowed = 2000.0 + 200.0 * begun.elapsed().as_secs_f64();
    assert!(COUNT as f64 <= allowed + 1.0, "{COUNT} in {:?}", begun.elapsed());
    assert!(stage.database().grants(now(), true).unwrap().is_empty(), "a grant was recorded for nothing");
}

#[tokio::test]
async fn where_no_line_is_or_nothing_answers_https_does() {
    let stage_without = Stage::start().await;
    let asker_without = asker(&stage_without.login("alice").await).await;
    assert_eq!(asker_without.grant(&git()).await.unwrap().1, Way::Https);

    let mut stage = stage().await;
    let asker = asker(&stage.login("alice").await).await;
    assert_eq!(asker.grant(&git()).await.unwrap().1, Way::Udp);
    // A restarted server knows no earlier line, and also listens on another port.
    stage.restart().await;
    assert_eq!(asker.grant(&git()).await.unwrap().1, Way::Https);
    let begun = Instant::now();
    while asker.grant(&git()).await.unwrap().1 == Way::Https {
        assert!(begun.elapsed() < DEADLINE, "there is no other line");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn many_at_a_time_are_all_answered() {
    let stage = stage().await;
    let asker = asker(&stage.login("alice").await).await;
    let mut asking = tokio::task::JoinSet::new();
    for port in 1..=100_u16 {
        let asker = asker.clone();
        asking.spawn(async move { asker.grant(&to("203.0.113.70", 17, port)).await.unwrap().0 });
    }
    while let Some(grant) = asking.join_next().await {
        assert_eq!(grant.unwrap().receiver, "lab");
    }
}
