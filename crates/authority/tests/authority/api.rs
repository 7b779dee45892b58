//! The API over real TLS: logins, grants, verifiers, and the responses to unauthenticated senders.

use crate::stage::*;
use api::{Event, ExplainRequest};
use authority::storage::Database;
use authority::{admin, now};
use client::Error;
use std::os::unix::fs::PermissionsExt;
use wire::{Destination, Flags, GrantHeader, Suite, Token, VerifierKey};

#[tokio::test]
async fn a_person_logs_in_and_out() {
    let stage = Stage::start().await;
    let client = stage.client();
    let session = client.login(&login("alice", PASSWORD, None)).await.unwrap();
    assert_eq!((session.person.as_str(), session.device.as_str()), ("alice", "laptop"));
    assert!(session.expires > session.now + 3600 && session.token.len() == 64);
    let client = client.with_token(&session.token);
    assert!(client.destinations().await.is_ok());
    client.logout().await.unwrap();
    assert!(matches!(client.destinations().await, Err(Error::NotLoggedIn)));
}

#[tokio::test]
async fn wrong_names_and_wrong_passwords_look_the_same() {
    let stage = Stage::start().await;
    let client = stage.client();
    let wrong = problem(client.login(&login("alice", "wrong horse", None)).await);
    let unknown = problem(client.login(&login("mallory", PASSWORD, None)).await);
    let impossible = problem(client.login(&login("../etc", PASSWORD, None)).await);
    assert_eq!((wrong.r#type.as_str(), wrong.status), ("wrong_password", 401));
    assert_eq!((&wrong, &wrong), (&unknown, &impossible));
}

#[tokio::test]
async fn guessing_is_slowed_and_does_not_end_sessions() {
    let stage = Stage::start().await;
    let alice = stage.login("alice").await;
    let client = stage.client();
    let mut kinds = Vec::new();
    for _ in 0..8 {
        kinds.push(problem(client.login(&login("alice", "wrong horse", None)).await).r#type);
    }
    assert_eq!(kinds[0], "wrong_password");
    assert_eq!(kinds[7], "too_many");
    assert!(alice.grant(&git()).await.is_ok());
    assert!(client.login(&login("bob", PASSWORD, None)).await.is_ok());
}

#[tokio::test]
async fn a_session_has_so_many_grants_at_most() {
    let stage = Stage::start().await;
    stage.apply(&POLICY.replace("granularity = \"network\"", "granularity = \"flow\"")).await.unwrap();
    let (alice, flow) = (stage.login("alice").await, to("203.0.113.70", 6, 80));
    for _ in 0..1024 {
        alice.grant(&flow).await.unwrap();
    }
    let refused = problem(alice.grant(&flow).await);
    assert_eq!((refused.r#type.as_str(), refused.status), ("too_many", 429));
    assert!(stage.login("alice").await.grant(&flow).await.is_ok());
}

#[tokio::test]
async fn a_second_factor_is_asked_for_and_works_once() {
    let stage = Stage::start().await;
    let address = admin::add_account(&stage.directory, "carol", PASSWORD, true).await.unwrap().unwrap();
    let secret = address.split_once("secret=").unwrap().1.split_once('&').unwrap().0;
    let secret = totp_rs::Secret::try_from_base32(secret).unwrap();
    let totp = totp_rs::Builder::new().with_secret(secret).build().unwrap();
    let client = stage.client();

    let asked = problem(client.login(&login("carol", PASSWORD, None)).await);
    assert_eq!(asked.r#type, "second_factor_required");
    let code = totp.generate(now()).to_string();
    let wrong = problem(client.login(&login("carol", "wrong horse", Some(&code))).await);
    assert_eq!(wrong.r#type, "wrong_password");
    let other = totp.generate(now() - 3600).to_string();
    assert_eq!(problem(client.login(&login("carol", PASSWORD, Some(&other))).await).r#type, "wrong_second_factor");
    client.login(&login("carol", PASSWORD, Some(&code))).await.unwrap();
    let replayed = problem(client.login(&login("carol", PASSWORD, Some(&code))).await);
    assert_eq!(replayed.r#type, "wrong_second_factor");
}

#[tokio::test]
async fn guessers_next_door_dont_keep_out_whoever_shows_a_second_factor() {
    let stage = Stage::start().await;
    let address = admin::add_account(&stage.directory, "carol", PASSWORD, true).await.unwrap().unwrap();
    let secret = address.split_once("secret=").unwrap().1.split_once('&').unwrap().0;
    let secret = totp_rs::Secret::try_from_base32(secret).unwrap();
    let totp = totp_rs::Builder::new().with_secret(secret).build().unwrap();
    let client = stage.client();
    let attempt = async |code: Option<&str>| client.login(&login("carol", PASSWORD, code)).await;
    while problem(client.login(&login("carol", "wrong horse", None)).await).status != 429 {}
    assert_eq!(problem(attempt(None).await).status, 429);
    let wrong = totp.generate(now() - 3600).to_string();
    assert_eq!(problem(attempt(Some(&wrong)).await).status, 429, "as if there were no such account");
    let guessed = client.login(&login("nobody", PASSWORD, Some(&wrong))).await;
    assert!([401, 429].contains(&problem(guessed).status));
    attempt(Some(&totp.generate(now()).to_string())).await.unwrap();
}

#[tokio::test]
async fn grants_follow_the_policy_and_name_the_rule() {
    let stage = Stage::start().await;
    let (alice, bob, eve) = (stage.login("alice").await, stage.login("bob").await, stage.login("eve").await);
    let grant = alice.grant(&git()).await.unwrap();
    assert_eq!(grant.rule, "policy.toml:17 staff may use git");
    assert_eq!((grant.receiver.as_str(), grant.carrier.as_str()), ("git", "tail"));
    assert_eq!((grant.prefix.to_string().as_str(), grant.expires), ("203.0.113.10/32", grant.now + 300));

    let denied = problem(bob.grant(&git()).await);
    assert_eq!((denied.r#type.as_str(), denied.status), ("denied", 403));
    assert_eq!(denied.detail.as_deref(), Some("policy.toml:23 not bob"));
    assert_eq!(problem(eve.grant(&git()).await).r#type, "no_rule");
    assert_eq!(problem(alice.grant(&to("203.0.113.10", 6, 23)).await).r#type, "no_receiver");
    assert_eq!(problem(alice.grant(&to("203.0.113.10", 0, 23)).await).r#type, "malformed");

    let names = |answer: api::Destinations| answer.destinations.into_iter().map(|r| r.name).collect::<Vec<_>>();
    assert_eq!(names(alice.destinations().await.unwrap()), ["git", "git", "lab"]);
    assert_eq!(names(bob.destinations().await.unwrap()), ["lab"]);
    assert!(names(eve.destinations().await.unwrap()).is_empty());
}

#[tokio::test]
async fn a_verifier_accepts_the_tokens_of_a_grant() {
    let stage = Stage::start().await;
    let alice = stage.login("alice").await;
    for (verifier, request, flags, suite) in [
        ("edge-1", git(), Flags::PORT, Suite::Siphash),
        ("edge-2", to("203.0.113.70", 17, 53), Flags::SOURCE, Suite::AesCmac),
    ] {
        let keys = stage.verifier(verifier).await.keys(2).await.unwrap();
        assert_eq!(keys.keys.len(), 4);
        let grant = alice.grant(&request).await.unwrap();
        let header = GrantHeader::decode(&hex::decode(&grant.header).unwrap().try_into().unwrap()).unwrap();
        assert_eq!((header.flags, header.suite), (flags, suite));

        let to = Destination { address: request.address, protocol: request.protocol, port: request.port };
        let holder_key = wire::GrantKey::new(hex::decode(&grant.key).unwrap().try_into().unwrap());
        let token = Token::new(header, &holder_key, grant.now as u32, 7, &to);

        let epoch = wire::Epoch::at(grant.now, 3600).from_wire(header.epoch).unwrap();
        let key = keys.keys.iter().find(|key| key.epoch == epoch.0).unwrap();
        let key = VerifierKey::new(hex::decode(&key.key).unwrap().try_into().unwrap());
        let source = "127.0.0.1".parse().unwrap();
        assert!(token.proves(&header.key(&key, &to, source), &to));
        let stranger = VerifierKey::new([0; 32]);
        assert!(!token.proves(&header.key(&stranger, &to, source), &to));
    }
}

#[tokio::test]
async fn verifiers_have_different_keys() {
    let stage = Stage::start().await;
    let one = stage.verifier("edge-1").await.keys(0).await.unwrap();
    let other = stage.verifier("edge-2").await.keys(0).await.unwrap();
    assert_eq!(one.keys.len(), 2);
    assert!(one.keys.iter().all(|key| other.keys.iter().all(|foreign| foreign.key != key.key)));
    let too_far = stage.client().with_token("x").keys(49).await;
    assert!(matches!(too_far, Err(Error::NotLoggedIn)));
}

#[tokio::test]
async fn a_verifier_hears_whose_a_grant_is() {
    let stage = Stage::start().await;
    let (verifier, other) = (stage.verifier("edge-1").await, stage.verifier("edge-2").await);
    let mut heard = events(&verifier).await;
    let grant = stage.login("alice").await.grant(&git()).await.unwrap();
    let Event::Granted { owner } = next(&mut heard).await else { panic!() };
    assert_eq!((owner.handle, owner.person.as_str(), owner.device.as_str()), (handle(&grant), "alice", "laptop"));
    assert_eq!((owner.receiver.as_str(), &owner.rule), ("git", &grant.rule));
    assert_eq!(verifier.grant_owner(owner.handle).await.unwrap(), Some(owner.clone()));
    assert_eq!(other.grant_owner(owner.handle).await.unwrap(), None);
}

#[tokio::test]
async fn a_verifier_learns_what_it_protects() {
    let stage = Stage::start().await;
    let verifier = stage.verifier("edge-1").await;
    let config = verifier.config().await.unwrap();
    assert_eq!((config.epoch_length, config.max_lifetime, config.verifier.as_str()), (3600, 3600, "edge-1"));
    let prefixes: Vec<_> = config.receivers.iter().map(|receiver| receiver.prefix.to_string()).collect();
    assert_eq!(prefixes, ["127.0.0.1/32", "203.0.113.10/32"]);
    let ssh = api::Service { protocol: 6, first_port: 22, last_port: 22 };
    assert!(config.receivers[0].services.contains(&ssh) && config.revoked.is_empty());

    let ask = |person: &str| ExplainRequest {
        person: person.into(),
        device: None,
        groups: Vec::new(),
        tags: Vec::new(),
        source: None,
        address: "203.0.113.10".parse().unwrap(),
        protocol: 6,
        port: 22,
    };
    assert!(verifier.explain(&ask("alice")).await.unwrap().explanation.allowed);
    let bob = verifier.explain(&ask("bob")).await.unwrap().explanation;
    assert!(!bob.allowed && bob.text.contains("denied by policy.toml:23 not bob"), "{}", bob.text);
    let elsewhere = ExplainRequest { address: "192.0.2.99".parse().unwrap(), ..ask("alice") };
    assert_eq!(problem(verifier.explain(&elsewhere).await).r#type, "not_found");
    let other = stage.verifier("edge-2").await;
    assert_eq!(problem(other.explain(&ask("alice")).await).r#type, "not_found", "the receiver is edge-1's");
}

#[tokio::test]
async fn an_enrolment_code_works_once() {
    let stage = Stage::start().await;
    let client = stage.client();
    let code = admin::add_verifier(&stage.directory, "edge-1", false).await.unwrap();
    assert_eq!(problem(client.enrol("0123").await).r#type, "wrong_code");
    let first = client.enrol(&code).await.unwrap();
    assert_eq!(problem(client.enrol(&code).await).r#type, "wrong_code");

    assert!(admin::add_verifier(&stage.directory, "edge-1", false).await.is_err());
    let again = admin::add_verifier(&stage.directory, "edge-1", true).await.unwrap();
    assert!(client.with_token(&first.token).config().await.is_ok());
    let second = client.enrol(&again).await.unwrap();
    assert!(client.with_token(&second.token).config().await.is_ok());
    assert!(matches!(client.with_token(&first.token).config().await, Err(Error::NotLoggedIn)));
}

#[tokio::test]
async fn strangers_get_nothing() {
    let stage = Stage::start().await;
    for client in [stage.client(), stage.client().with_token("no such token")] {
        assert!(matches!(client.grant(&git()).await, Err(Error::NotLoggedIn)));
        assert!(matches!(client.destinations().await, Err(Error::NotLoggedIn)));
        assert!(matches!(client.config().await, Err(Error::NotLoggedIn)));
        assert!(matches!(client.keys(1).await, Err(Error::NotLoggedIn)));
        assert!(matches!(client.events().next().await, Err(Error::NotLoggedIn)));
        assert!(matches!(client.logout().await, Err(Error::NotLoggedIn)));
    }
    let alice = stage.login("alice").await;
    assert_eq!(problem(alice.keys(1).await).r#type, "wrong_caller");
    let verifier = stage.verifier("edge-1").await;
    assert_eq!(problem(verifier.grant(&git()).await).r#type, "wrong_caller");
}

#[tokio::test]
async fn nobody_else_is_taken_for_the_authority() {
    let (stage, other) = (Stage::start().await, Stage::start().await);
    let ca = std::fs::read(other.directory.ca()).unwrap();
    let client = client::Authority::new(&format!("https://{}", stage.address), Some(&ca)).unwrap();
    let Err(Error::Unreachable(why)) = client.health().await else { panic!() };
    assert!(why.contains("certificate"), "{why}");
    assert!(client::Authority::new("http://localhost", Some(&ca)).is_err());
}

#[tokio::test]
async fn garbage_is_answered_with_its_problem() {
    let stage = Stage::start().await;
    let raw = stage.raw();
    let url = |path: &str| format!("https://{}{path}", stage.address);
    let sent = async |request: reqwest::RequestBuilder| {
        let answer = request.send().await.unwrap();
        let (status, kind) = (answer.status().as_u16(), answer.headers()["content-type"].clone());
        assert_eq!(kind, "application/problem+json");
        let problem: api::Problem = answer.json().await.unwrap();
        assert_eq!(problem.status, status);
        (status, problem.r#type)
    };
    let answer = |status, kind: &str| (status, kind.to_owned());
    assert_eq!(sent(raw.post(url("/v1/login")).body("{]")).await, answer(400, "malformed"));
    assert_eq!(sent(raw.post(url("/v1/login")).body("{\"person\": 7}")).await, answer(400, "malformed"));
    let unknown = "{\"person\":\"a\",\"password\":\"b\",\"device\":\"c\",\"admin\":true}";
    assert_eq!(sent(raw.post(url("/v1/login")).body(unknown)).await, answer(400, "malformed"));
    let big = "x".repeat(16 * 1024 + 1);
    assert_eq!(sent(raw.post(url("/v1/login")).body(big)).await, answer(413, "too_large"));
    assert_eq!(sent(raw.get(url("/v1/nothing"))).await, answer(404, "not_found"));
    assert_eq!(sent(raw.delete(url("/v1/login"))).await, answer(405, "wrong_method"));
    assert_eq!(sent(raw.post(url("/v1/grants")).bearer_auth("é")).await, answer(401, "not_logged_in"));
    assert!(stage.client().health().await.is_ok());
}

#[tokio::test]
async fn everything_is_written_down() {
    let stage = Stage::start().await;
    let alice = stage.login("alice").await;
    let grant = alice.grant(&git()).await.unwrap();
    problem(alice.grant(&to("203.0.113.10", 6, 80)).await);
    problem(stage.client().login(&login("alice", "wrong horse", None)).await);
    alice.logout().await.unwrap();
    let entries = Database::open(&stage.directory.database()).unwrap().audit_entries(Some("alice"), 100).unwrap();
    let events: Vec<_> = entries.iter().map(|entry| entry.event.as_str()).collect();
    assert_eq!(events, ["account_added", "login", "granted", "denied", "login_failed", "logout"]);
    assert!(entries[2].detail.contains(&grant.header[16..]));
    assert!(entries.iter().all(|entry| !entry.detail.contains(&grant.key)));
    // The audit trail contains the operator of commands; entries about a person's own actions have none.
    let by = entries[0].operator.as_deref().unwrap();
    assert!(by.strip_prefix("uid ").is_some_and(|uid| uid.starts_with(|c: char| c.is_ascii_digit())), "{by}");
    assert!(entries[1..].iter().all(|entry| entry.operator.is_none()));
    stage.apply(POLICY).await.unwrap();
    let last = Database::open(&stage.directory.database()).unwrap().audit_entries(None, 1).unwrap();
    assert_eq!((last[0].event.as_str(), last[0].operator.as_deref()), ("policy", Some(by)));
}

#[tokio::test]
async fn only_the_owner_can_read_the_directory() {
    let stage = Stage::start().await;
    stage.login("alice").await;
    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(stage.directory.path()), 0o700);
    for entry in std::fs::read_dir(stage.directory.path()).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_file() {
            assert_eq!(mode(&entry.path()), 0o600, "{:?}", entry.path());
        }
    }
}

#[tokio::test]
async fn init_touches_nothing_that_is_there() {
    let room = tempfile::tempdir().unwrap();
    std::fs::write(room.path().join("precious"), "x").unwrap();
    let listen = authority::settings::DEFAULT_LISTEN;
    assert!(authority::Directory::at(room.path()).init(&[], listen).is_err());
    let wrong = authority::Directory::at(room.path().join("new"));
    assert!(wrong.init(&["not a näme".into()], listen).is_err());
    let left: Vec<_> = std::fs::read_dir(room.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["precious"]);
}

#[tokio::test]
async fn whoever_does_not_know_the_ca_hears_which_flag_names_it() {
    let (stage, other) = (Stage::start().await, Stage::start().await);
    let ca = std::fs::read(other.directory.ca()).unwrap();
    let client = client::Authority::new(&format!("https://{}", stage.address), Some(&ca)).unwrap();
    let error = client.login_methods().await.unwrap_err().to_string();
    assert!(error.contains("name the authority's ca.pem with `--ca`"), "{error}");
}
