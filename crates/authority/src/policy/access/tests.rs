use super::{Asking, Deciding};
use crate::http::problems::Problem;
use crate::now;
use crate::state::Authority;
use crate::state::stage::{SOURCE, Stage, policy_with_delegation};
use crate::storage::{Database, Operator};

/// Replaces the tags of mallory's device.
async fn tag(authority: &Authority, tags: &[&str]) {
    let tags: Vec<_> = tags.iter().map(|tag| (*tag).to_owned()).collect();
    let tag =
        move |database: &mut Database| database.tag_device("mallory", "laptop", &tags, &Operator::current(), now());
    authority.storage.call(tag).await.unwrap();
    authority.sync.run().await.unwrap();
}

#[tokio::test]
async fn a_delegate_allows_a_person_only_while_one_of_their_devices_has_the_tag() {
    let stage = Stage::new().await;
    let authority = &stage.authority;
    let text = policy_with_delegation(r#""tag:managed""#);
    authority.enforcer.apply(Some(text), String::new(), None, None).await.unwrap();
    let (alice, mallory) = (stage.login("alice").await, stage.login("mallory").await);
    tag(authority, &["managed"]).await;
    let asking = Asking { receiver: "db", services: &[], lifetime: None, reason: "" };
    let session = authority.sessions.get(&mallory).unwrap();
    let asked = authority.access.ask(&session, mallory, SOURCE, asking).await;
    let id = asked.unwrap_or_else(|problem| panic!("{:?}", problem.said()));
    let delegate = authority.sessions.get(&alice).unwrap();
    let decide = async || {
        let deciding = Deciding { allow: Some((vec!["tcp/5432".into()], 3600)), note: "" };
        authority.access.decide(&delegate, alice, Operator::current(), id, deciding).await
    };
    tag(authority, &["other"]).await;
    let refused = decide().await;
    assert!(matches!(refused, Err(Problem::Access(_, "exceeds_delegation", _))), "without the tag");
    tag(authority, &["managed", "other"]).await;
    assert!(decide().await.is_ok());
}
