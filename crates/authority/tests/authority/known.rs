//! Explanations: the facts about a person on which they are based, such as tags and groups.

use crate::provider::Key;
use crate::stage::{POLICY, Stage, events, git, handle, problem, revoked};
use api::{ExplainRequest, PersonExplanation, ServiceKey, ServiceLogin};
use authority::admin;
use client::Authority;
use serde_json::json;

/// Rules for git, in addition to the stage's rule for its staff.
const OTHERS: &str = "
[[rules]]
name = \"trusted machines\"
action = \"allow\"
who = \"tag:trusted\"
to = \"git\"

[[rules]]
name = \"from the office\"
action = \"allow\"
who = \"address:192.0.2.0/24\"
to = \"git\"
";

async fn stage() -> Stage {
    let stage = Stage::start().await;
    stage.apply(&format!("{POLICY}{OTHERS}")).await.unwrap();
    stage
}

/// Logs in a service account whose machine is named `device`.
async fn machine(stage: &Stage, file: &ServiceKey, device: &str) -> Authority {
    let client = stage.client();
    let nonce = client.challenge().await.unwrap().nonce;
    let claims = json!({
        "iss": format!("vouchsafe:{}", file.service), "sub": file.service, "aud": [file.audience], "nonce": nonce,
        "iat": authority::now(), "exp": authority::now() + 60,
    });
    let assertion = Key::of(&file.key).token(claims.as_object().unwrap());
    let login = ServiceLogin { service: file.service.clone(), nonce, assertion, device: device.into() };
    client.with_token(&client.service_login(&login).await.unwrap().token)
}

fn about(person: &str) -> ExplainRequest {
    let to = git();
    ExplainRequest {
        person: person.into(),
        device: None,
        groups: Vec::new(),
        tags: Vec::new(),
        source: None,
        address: to.address,
        protocol: to.protocol,
        port: to.port,
    }
}

fn told(answer: &PersonExplanation, begin: &str) -> String {
    answer.taken.iter().find(|line| line.starts_with(begin)).unwrap().clone()
}

#[tokio::test]
async fn a_service_accounts_tags_hold_on_whichever_machine() {
    let stage = stage().await;
    let file = admin::add_service(&stage.directory, "backup", &[], &["trusted".into()]).await.unwrap();
    let (cellar, attic) = (machine(&stage, &file, "cellar").await, machine(&stage, &file, "attic").await);
    let (first, second) = (cellar.grant(&git()).await.unwrap(), attic.grant(&git()).await.unwrap());
    let listed = stage.database().services().unwrap();
    assert_eq!((listed[0].service.as_str(), listed[0].tags.as_slice()), ("backup", &["trusted".to_owned()][..]));

    // Tags of the device are added to those of the service account.
    admin::tag_device(&stage.directory, "backup", "cellar", &["trusted".into()]).await.unwrap();
    let mut to_attic = events(&attic).await;
    admin::set_service_tags(&stage.directory, "backup", &[]).await.unwrap();
    assert_eq!(revoked(&mut to_attic).await, [handle(&second)], "what rested on the tag is cut");
    assert_eq!(problem(attic.grant(&git()).await).r#type, "no_rule");
    cellar.grant(&git()).await.unwrap();
    let live = stage.database().grants(authority::now(), false).unwrap();
    assert!(live.iter().any(|grant| grant.handle.0 == handle(&first)), "{live:?}");

    assert!(admin::set_service_tags(&stage.directory, "alice", &["trusted".into()]).await.is_err(), "no service");
    assert!(admin::set_service_tags(&stage.directory, "backup", &["no tag".into()]).await.is_err());
}

#[tokio::test]
async fn an_explanation_takes_what_is_known_and_says_what_is_not() {
    let stage = stage().await;
    let verifier = stage.verifier("edge-1").await;
    let ask = async |request: ExplainRequest| verifier.explain(&request).await.unwrap();

    let unknown = ask(about("eve")).await;
    assert!(!unknown.explanation.allowed);
    assert!(told(&unknown, "tags:").contains("no device is given"), "{unknown:?}");
    assert!(told(&unknown, "source address:").contains("unknown"), "{unknown:?}");

    // The request itself contains the tags, the groups or the source.
    assert!(ask(ExplainRequest { tags: vec!["trusted".into()], ..about("eve") }).await.explanation.allowed);
    assert!(ask(ExplainRequest { groups: vec!["staff".into()], ..about("eve") }).await.explanation.allowed);
    let office = ask(ExplainRequest { source: Some("::ffff:192.0.2.7".parse().unwrap()), ..about("eve") }).await;
    assert!(office.explanation.allowed, "{office:?}");

    // The authority knows the tags of a device that has logged in, and the groups of a service account.
    stage.login("eve").await;
    let on = |device: &str| ExplainRequest { device: Some(device.into()), ..about("eve") };
    assert!(!ask(on("laptop")).await.explanation.allowed);
    admin::tag_device(&stage.directory, "eve", "laptop", &["trusted".into()]).await.unwrap();
    let known = ask(on("laptop")).await;
    assert!(known.explanation.allowed, "{known:?}");
    admin::add_service(&stage.directory, "backup", &["staff".into()], &[]).await.unwrap();
    let service = ask(about("backup")).await;
    assert!(service.explanation.allowed, "{service:?}");
}

/// A thief may use a verifier's credentials. The answers to them must not reveal people's groups and devices.
#[tokio::test]
async fn an_explanation_for_a_verifier_names_no_facts_that_only_the_authority_knows() {
    let stage = stage().await;
    let verifier = stage.verifier("edge-1").await;
    stage.login("eve").await;
    admin::add_service(&stage.directory, "backup", &["payroll".into()], &[]).await.unwrap();
    let ask = async |person: &str, device: Option<&str>| {
        let request = ExplainRequest { device: device.map(Into::into), ..about(person) };
        serde_json::to_string(&verifier.explain(&request).await.unwrap().taken).unwrap()
    };
    assert!(!ask("backup", None).await.contains("payroll"));
    assert_eq!(ask("eve", Some("laptop")).await, ask("eve", Some("lapdog")).await, "it tells which devices exist");
    assert_eq!(ask("eve", None).await, ask("backup", None).await, "it tells services from persons");
}
