//! Path segments by UDP: the holder of a line gets the same segments as over HTTPS, and nobody else gets an answer.

use crate::segments::{TENANTS, address, given, request, tenants_with, withdrawn};
use crate::stage::*;
use api::Line;
use authority::admin;
use authority::storage::Which;
use client::{Asker, Authority, Error, convert};
use engine::model::SegmentRequest;
use std::time::{Duration, Instant};
use tokio::net::UdpSocket;
use wire::Destination;
use wire::ask::{ANSWER_LEN, LineKey, LineNumber, Question, Refusal, Reply, Request};

const DEADLINE: Duration = Duration::from_secs(20);

async fn tenants() -> Stage {
    tenants_with("segments = \"127.0.0.1:0\"\nmetrics = \"127.0.0.1:0\"\n").await
}

/// Returns the request of [`request`] in the form that an [`Asker`] takes.
pub fn wanted(network: &str, port: u16) -> SegmentRequest {
    let api::SegmentRequest { network, sender, sending, to, sender_port } = request(network, port);
    let to = Destination { address: to.address, protocol: to.protocol, port: to.port };
    SegmentRequest { network, sender, sending, to, sender_port, path: 0 }
}

/// A line, and a socket for requests.
pub struct Caller {
    pub socket: UdpSocket,
    pub number: LineNumber,
    pub key: LineKey,
}

impl Caller {
    pub async fn of(authority: &Authority) -> Self {
        let Line { port, line, key, .. } = authority.line().await.unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        socket.connect(("127.0.0.1", port)).await.unwrap();
        let key = LineKey::new(hex::decode(key).unwrap().try_into().unwrap());
        Self { socket, number: LineNumber(line), key }
    }

    fn request(&self, counter: u64) -> Request {
        let asked = request("blue", 22);
        let question = Question {
            network: &asked.network,
            sender: asked.sender,
            sending: asked.sending,
            receiver: asked.to.address,
            protocol: asked.to.protocol,
            port: asked.to.port,
            sender_port: asked.sender_port,
            answers: false,
            path: None,
        };
        self.key.seal_request(self.number, counter, &question.encode().unwrap()).unwrap()
    }

    pub async fn send(&self, datagram: &[u8]) {
        self.socket.send(datagram).await.unwrap();
    }

    /// Returns the counter of the next request that is answered, and the refusal if the answer is one.
    async fn next(&self) -> (u64, Option<Refusal>) {
        let mut room = [0; 2048];
        let received = tokio::time::timeout(DEADLINE, self.socket.recv(&mut room)).await.expect("an answer in time");
        let length = received.unwrap();
        assert_eq!(length, ANSWER_LEN);
        let (counter, reply) = self.key.open_answer(&mut room[..length]).expect("it is for this line");
        match Reply::decode(reply).expect("it says something") {
            Reply::Given(_) => (counter, None),
            Reply::Refused { reason, .. } => (counter, Some(reason)),
        }
    }
}

/// Waits until the server has counted this many requests for segments with this result.
async fn counted(stage: &Stage, result: &str, count: u64) {
    counted_in(stage, "segment_datagrams", result, count).await;
}

/// Waits until one of the server's counters has this value.
pub async fn counted_in(stage: &Stage, counter: &str, result: &str, count: u64) {
    let line = format!("vouchsafe_authority_{counter}_total{{result=\"{result}\"}} {count}\n");
    let begun = Instant::now();
    loop {
        let page = crate::metrics::page(stage).await;
        if page.contains(&line) {
            return;
        }
        assert!(begun.elapsed() < DEADLINE, "not {line}: {page}");
        tokio::task::yield_now().await;
    }
}

/// Waits for this many audit entries of an event about alice.
async fn audited(stage: &Stage, event: &str, count: usize) -> Vec<String> {
    let begun = Instant::now();
    loop {
        let entries = stage.database().audit_entries(Some("alice"), 50).unwrap();
        let found: Vec<_> =
            entries.into_iter().filter(|entry| entry.event == event).map(|entry| entry.detail).collect();
        if found.len() >= count {
            return found;
        }
        assert!(begun.elapsed() < DEADLINE, "{found:?}");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_segment_asked_for_by_udp_is_the_one_that_https_gives() {
    let stage = tenants().await;
    let alice = stage.login("alice").await;
    let begun = authority::now();
    let mut one = Asker::new(alice.clone()).segment(&wanted("blue", 22)).await.unwrap();
    assert!((begun + 300..=authority::now() + 300).contains(&one.segment.expires.into()));
    counted(&stage, "given", 1).await;
    let other = given(&alice.segment(&request("blue", 22)).await.unwrap());
    assert_eq!((one.ends, one.vni, one.segment.flags), (other.ends, other.vni, other.segment.flags));
    if one.segment.expires == other.segment.expires {
        assert_eq!(one, other);
    } else {
        (one.segment.expires, one.proofs) = (other.segment.expires, other.proofs.clone());
        assert_eq!(one, other, "but for the time");
    }
    let entries = audited(&stage, "segment", 2).await;
    assert!(entries.iter().all(|detail| detail == "network blue: 10.0.0.5 to 10.0.0.7 tcp/22"), "{entries:?}");
}

#[tokio::test]
async fn refusals_by_udp_are_those_of_https_and_written_down() {
    let stage = tenants().await;
    let alice = stage.login("alice").await;
    let asker = Asker::new(alice.clone());
    let spoofed = SegmentRequest { sender: address("10.0.0.6"), ..wanted("blue", 22) };
    for asked in [wanted("red", 443), wanted("red", 22), wanted("green", 22), spoofed] {
        let https = alice.segment(&convert::segment_request(&asked)).await;
        let (udp, https) = (problem(asker.segment(&asked).await), problem(https));
        assert_eq!((udp.r#type, udp.title, udp.status), (https.r#type, https.title, https.status));
    }
    let results = [("no_rule", 1), ("no_receiver", 1), ("no_segment", 2), ("given", 0)];
    for (result, count) in results {
        counted(&stage, result, count).await;
    }
    assert_eq!(audited(&stage, "denied", 4).await.len(), 4);
}

#[tokio::test]
async fn many_at_a_time_are_all_answered_and_written_down_together() {
    let stage = tenants().await;
    let asker = Asker::new(stage.login("alice").await);
    let mut asking = tokio::task::JoinSet::new();
    for _ in 0..200 {
        let asker = asker.clone();
        asking.spawn(async move { asker.segment(&wanted("blue", 22)).await.unwrap() });
    }
    while let Some(segment) = asking.join_next().await {
        assert_eq!(segment.unwrap().proofs.len(), 2);
    }
    let begun = Instant::now();
    loop {
        let times = |detail: &String| -> u64 {
            let (_, times) = detail.split_once("tcp/22").expect("where to");
            times.strip_prefix(", ").and_then(|times| times.strip_suffix(" times")).map_or(1, |n| n.parse().unwrap())
        };
        let written: u64 = audited(&stage, "segment", 1).await.iter().map(times).sum();
        if written >= 200 {
            break;
        }
        assert!(begun.elapsed() < DEADLINE, "{written} were written down");
        tokio::task::yield_now().await;
    }
}

/// SVLAN §VII, forged requests: the authority answers only requests sealed by a line's holder, each at most once.
#[tokio::test]
async fn forged_requests_and_replay_of_requests_get_no_answer() {
    let stage = tenants().await;
    let (alice, bob) = (Caller::of(&stage.login("alice").await).await, Caller::of(&stage.login("bob").await).await);
    let right = alice.request(1);
    let changed = |at: usize| {
        let mut datagram = right;
        datagram[at] ^= 0x40;
        datagram
    };
    // The datagrams have alice's line and bob's key, or an unknown line, or are truncated, too long, empty, in the form
    // of an answer, or modified.
    let forged = bob.key.seal_request(alice.number, 1, &[1; 220]).unwrap();
    let nobodys = alice.key.seal_request(LineNumber(!alice.number.0), 1, &[1; 220]).unwrap();
    let senseless = alice.key.seal_request(alice.number, 9, &[0xff; 220]).unwrap();
    let longer = [&right[..], &[0]].concat();
    let answer = alice.key.seal_answer(1, &[0; 224]).unwrap();
    let mut wrong: Vec<Vec<u8>> = vec![forged.into(), nobodys.into(), senseless.into(), longer, answer.into()];
    wrong.extend([0, 1, 19, 20, 252, 255].map(|length| right[..length].to_vec()));
    wrong.extend([0, 3, 4, 12, 20, 100, 255].map(|at| changed(at).to_vec()));
    wrong.push(vec![0x55; 9000]);
    for datagram in &wrong {
        alice.send(datagram).await;
    }
    alice.send(&right).await;
    assert_eq!(alice.next().await, (1, None), "the first that is answered");
    for _ in 0..3 {
        alice.send(&right).await;
    }
    alice.send(&alice.request(2)).await;
    assert_eq!(alice.next().await, (2, None));
    counted(&stage, "given", 2).await;
    counted(&stage, "repeated", 3).await;
    // These are the request with bob's key, and the requests that were modified in the counter, the seal or the line.
    counted(&stage, "forged", 5).await;
    counted(&stage, "no_line", 2).await;
    counted(&stage, "malformed", 1).await;
    counted(&stage, "not_ours", 11).await;
    // Alice may use her line from another address, because endpoints move.
    let moved = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    moved.connect(alice.socket.peer_addr().unwrap()).await.unwrap();
    let alice = Caller { socket: moved, ..alice };
    alice.send(&alice.request(3)).await;
    assert_eq!(alice.next().await, (3, None));
}

#[tokio::test]
async fn a_line_ends_with_its_session_or_when_that_gets_another() {
    let stage = tenants().await;
    let logins = [stage.login("alice").await, stage.login("alice").await, stage.login("bob").await];
    let [first, second, other] = &logins;
    let callers = [Caller::of(first).await, Caller::of(second).await, Caller::of(other).await];
    for caller in &callers {
        caller.send(&caller.request(1)).await;
        assert_eq!(caller.next().await, (1, None));
    }
    let [ended, replaced, revoked] = callers;
    first.logout().await.unwrap();
    let fresh = Caller::of(second).await;
    admin::revoke(&stage.directory, &Which::Person("bob".into())).await.unwrap();
    // The server answers only the last request; the others were sent before it, on its socket.
    for caller in [ended, replaced, revoked] {
        fresh.send(&caller.request(2)).await;
    }
    fresh.send(&fresh.request(2)).await;
    assert_eq!(fresh.next().await, (2, None));
    counted(&stage, "no_line", 3).await;
    assert!(matches!(first.line().await, Err(Error::NotLoggedIn)));
    assert!(matches!(Asker::new(first.clone()).segment(&wanted("blue", 22)).await, Err(Error::NotLoggedIn)));
}

#[tokio::test]
async fn what_was_given_by_udp_is_withdrawn_as_what_was_given_over_https() {
    let stage = tenants().await;
    let (alice, verifier) = (stage.login("alice").await, stage.verifier("edge-2").await);
    let mut guard = events(&verifier).await;
    let asker = Asker::new(alice);
    let segment = asker.segment(&wanted("blue", 22)).await.unwrap();
    counted(&stage, "given", 1).await;
    stage.apply(&TENANTS.replace("staff = [\"alice\", \"bob\"]", "staff = [\"bob\"]")).await.unwrap();
    let statements = withdrawn(&mut guard).await;
    assert_eq!((statements.len(), statements[0].until), (2, segment.segment.expires));
    assert_eq!(problem(asker.segment(&wanted("blue", 22)).await).r#type, "no_rule");
}

#[tokio::test]
async fn where_nothing_is_asked_for_by_udp_or_nothing_answers_https_does() {
    let stage = tenants_with("").await;
    let alice = stage.login("alice").await;
    assert!(stage.server.as_ref().unwrap().segments().is_none());
    assert_eq!(problem(alice.line().await).status, 404);
    assert!(Asker::new(alice).segment(&wanted("blue", 22)).await.is_ok());

    let mut stage = tenants().await;
    let asker = Asker::new(stage.login("alice").await);
    asker.segment(&wanted("blue", 22)).await.unwrap();
    counted(&stage, "given", 1).await;
    // A restarted server knows no earlier line, and also listens on another port.
    stage.restart().await;
    assert!(asker.segment(&wanted("blue", 22)).await.is_ok(), "over HTTPS");
    assert!(asker.segment(&wanted("blue", 22)).await.is_ok(), "on another line");
    counted(&stage, "given", 1).await;
}
