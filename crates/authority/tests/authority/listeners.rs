//! Many endpoints that listen at the same time.

use crate::stage::*;
use api::Event;
use authority::now;
use authority::storage::{Login, NewService, Operator, Proof, Session};
use client::Authority;
use sha2::{Digest, Sha256};
use std::net::Ipv4Addr;
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
    assert!(text.ends_with(&format!("; {MACHINES} grants revoked")), "{text}");
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
