//! Many endpoints that listen at the same time.

use crate::stage::*;
use api::Event;
use authority::now;
use authority::storage::{Login, NewService, Operator, Proof, Session};
use client::Authority;
use sha2::{Digest, Sha256};
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};
use wire::Holder;

const MACHINES: usize = 50;

/// Logs a machine of the staff in, and returns its client, which has a connection of its own.
fn machine(stage: &Stage, number: usize) -> Authority {
    let (person, key) = (format!("m{number}"), hex::encode(number.to_be_bytes()));
    let token = hex::encode(Sha256::digest(&person));
    let mut database = stage.database();
    let groups = ["staff".to_owned()];
    let service = NewService { name: &person, key: &key, groups: &groups, tags: &[] };
    database.add_service(&service, &Operator::current(), now()).unwrap();
    let (device, groups, tags, holder) = ("rack".into(), groups.to_vec(), Vec::new(), Holder::default());
    let session = Session { person, device, expires: now() + 3600, tags, groups, ends: None, holder };
    let hash = Sha256::digest(&token).into();
    let login = database.add_session(hash, &session, &Proof::Service(key), Ipv4Addr::LOCALHOST.into(), now());
    assert!(matches!(login.unwrap(), Login::Done { .. }));
    stage.client().with_token(&token)
}

#[tokio::test]
async fn every_listener_hears_that_the_policy_changed_and_which_of_its_own_grants_ended() {
    let mut stage = Stage::start().await;
    let machines: Vec<_> = (0..MACHINES).map(|number| machine(&stage, number)).collect();
    // The server learns of the sessions.
    stage.restart().await;
    let verifier = stage.verifier("edge-1").await;
    let mut guard = events(&verifier).await;
    let mut listeners = Vec::new();
    for machine in &machines {
        let grant = machine.grant(&git()).await.unwrap();
        listeners.push((handle(&grant), events(machine).await));
    }
    let denying = POLICY.replace(
        "action = \"allow\"\nwho = \"group:staff\"\nto = \"git\"",
        "action = \"deny\"\nwho = \"everyone\"\nto = \"git\"",
    );
    assert_ne!(denying, POLICY);
    let text = stage.apply(&denying).await.unwrap();
    assert!(text.contains(&format!("; {MACHINES} grants revoked")), "{text}");
    let mut revoked = Vec::new();
    for (own, mut heard) in listeners {
        assert_eq!(next(&mut heard).await, Event::Policy);
        let Event::Revoked { grants } = next(&mut heard).await else { panic!("a revocation follows") };
        assert_eq!(grants.iter().map(|grant| grant.handle).collect::<Vec<_>>(), [own]);
        revoked.push(own);
    }
    let mut told = loop {
        match next(&mut guard).await {
            Event::Granted { .. } | Event::Policy => {}
            Event::Revoked { grants } => break grants.iter().map(|grant| grant.handle).collect::<Vec<_>>(),
            other => panic!("{other:?}"),
        }
    };
    told.sort_unstable();
    revoked.sort_unstable();
    assert_eq!(told, revoked, "the verifier hears of all of them");
}

#[tokio::test]
async fn a_stream_that_its_client_drops_ends_before_the_next_event() {
    let stage = Stage::start_with("metrics = \"127.0.0.1:0\"\n").await;
    let alice = stage.login("alice").await;
    let listening = events(&alice).await;
    let are_open = async |count: usize| {
        let line = format!("vouchsafe_authority_listeners{{of=\"session\"}} {count}.0\n");
        crate::metrics::page(&stage).await.contains(&line)
    };
    assert!(are_open(1).await);
    drop(listening);
    let began = Instant::now();
    while !are_open(0).await {
        // `Alive`, which comes every 10 s, would show it, too.
        assert!(began.elapsed() < SOON * 5, "the stream is still open");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn calls_are_answered_on_another_connection_than_that_of_the_stream() {
    let stage = Stage::start_with("metrics = \"127.0.0.1:0\"\n").await;
    let alice = stage.login("alice").await;
    let mut listening = events(&alice).await;
    let proven = "vouchsafe_authority_connections{proven=\"yes\"} 2.0\n";
    let page = crate::metrics::page(&stage).await;
    assert!(page.contains(proven), "{page}");
    for _ in 0..3 {
        alice.grant(&git()).await.unwrap();
    }
    let page = crate::metrics::page(&stage).await;
    assert!(page.contains(proven), "calls open no further connections: {page}");
    stage.apply(&POLICY.replace("staff may use git", "staff")).await.unwrap();
    assert_eq!(next(&mut listening).await, Event::Policy);
}

/// Returns a client's answer to a request for events, and checks that it begins well.
async fn listen(http: &reqwest::Client, stage: &Stage, token: &str) -> reqwest::Response {
    let request = http.get(format!("https://{}/v1/events", stage.address)).bearer_auth(token);
    let mut answer = request.send().await.unwrap();
    assert_eq!(answer.status(), 200);
    wait_for(&mut answer, "hello").await;
    answer
}

/// Reads a stream until an event of this kind.
async fn wait_for(stream: &mut reqwest::Response, kind: &str) {
    let kind = format!("\"event\":\"{kind}\"");
    loop {
        let chunk = tokio::time::timeout(SOON * 20, stream.chunk()).await.expect("an event in time").unwrap();
        if String::from_utf8_lossy(&chunk.expect("the stream goes on")).contains(&kind) {
            return;
        }
    }
}

async fn token_of_alice(stage: &Stage) -> String {
    stage.client().login(&login("alice", PASSWORD, None)).await.unwrap().token
}

#[tokio::test]
async fn an_endpoint_of_an_earlier_release_listens_on_the_connection_of_its_calls() {
    let stage = Stage::start().await;
    let (http, token) = (stage.raw(), token_of_alice(&stage).await);
    let mut listening = listen(&http, &stage, &token).await;
    let call = http.get(format!("https://{}/v1/destinations", stage.address)).bearer_auth(&token);
    let answer = call.send().await.unwrap();
    assert_eq!(answer.status(), 200);
    for answer in [&listening, &answer] {
        assert_eq!(answer.version(), reqwest::Version::HTTP_2);
    }
    stage.apply(&POLICY.replace("staff may use git", "staff")).await.unwrap();
    wait_for(&mut listening, "policy").await;
}

#[tokio::test]
async fn the_fifth_stream_of_a_session_ends_its_first() {
    let stage = Stage::start().await;
    let (http, token) = (stage.raw_http1(), token_of_alice(&stage).await);
    let mut streams = Vec::new();
    for _ in 0..5 {
        streams.push(listen(&http, &stage, &token).await);
        assert_eq!(streams.last().unwrap().version(), reqwest::Version::HTTP_11);
    }
    let mut first = streams.remove(0);
    let end = async { while first.chunk().await.unwrap().is_some() {} };
    tokio::time::timeout(SOON * 20, end).await.expect("the first stream ends");
    stage.apply(&POLICY.replace("staff may use git", "staff")).await.unwrap();
    for stream in &mut streams {
        wait_for(stream, "policy").await;
    }
}
