//! Path segments of virtual networks: the accounts that get them, and the effects of withdrawing consent.

use crate::stage::*;
use api::{AnswerRequest, Event, PathSegment, SegmentRequest, SegmentTo, Withdrawal};
use authority::admin;
use authority::storage::Which;
use client::convert;
use client::{Authority, Error, EventStream};
use engine::model::Given;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use wire::{Epoch, Proof, ProofKey, Segment, SegmentFlags};

pub const NETWORKS: &str = r#"
authority = "198.51.100.1"

[[networks]]
name = "blue"
vni = 100

[[networks]]
name = "red"
vni = 200

[[places]]
network = "blue"
address = "10.0.0.5"
endpoint = "192.0.2.1"
interface = 5

[[places]]
network = "blue"
address = "10.0.0.7"
endpoint = "192.0.2.2"
interface = 7

[[places]]
network = "red"
address = "10.0.0.5"
endpoint = "192.0.2.1"
interface = 15

[[places]]
network = "red"
address = "10.0.0.7"
endpoint = "192.0.2.3"
interface = 17

[[paths]]
to = ["192.0.2.1", "192.0.2.2"]
verifiers = ["edge-1", "edge-2"]

[[paths]]
to = "192.0.2.3"
verifiers = "edge-2"
suite = "siphash"
"#;

pub const TENANTS: &str = r#"
[groups]
staff = ["alice", "bob"]

[[receivers]]
name = "blue-web"
address = "10.0.0.7"
services = "all"
network = "blue"

[[receivers]]
name = "red-web"
address = "10.0.0.7"
services = ["tcp/443"]
network = "red"

[[rules]]
name = "web"
action = "allow"
who = "group:staff"
to = "blue-web"
reply = true

[[rules]]
name = "red"
action = "allow"
who = "person:bob"
to = "red-web"

[[tests]]
who = "person:bob"
network = "red"
to = "10.0.0.7 tcp/443"
expect = "allow"
"#;

async fn tenants() -> Stage {
    tenants_with("").await
}

/// Starts an authority with virtual networks, and with more lines at the beginning of its configuration.
pub async fn tenants_with(settings: &str) -> Stage {
    let stage = Stage::start_with(settings).await;
    std::fs::write(stage.directory.path().join("networks.toml"), NETWORKS).unwrap();
    stage.apply(TENANTS).await.unwrap();
    stage
}

pub fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub fn request(network: &str, port: u16) -> SegmentRequest {
    SegmentRequest {
        network: network.into(),
        sender: address("10.0.0.5"),
        sending: address("192.0.2.1"),
        to: SegmentTo { address: address("10.0.0.7"), protocol: 6, port },
        sender_port: 0,
    }
}

pub fn given(segment: &PathSegment) -> Given {
    convert::segment(segment, address("192.0.2.1"), address("10.0.0.5"), address("10.0.0.7")).unwrap()
}

/// Reports whether the proof at a place is the one that the verifier's key yields.
pub async fn proves(verifier: &Authority, given: &Given, place: u8) -> bool {
    let keys = verifier.keys(1).await.unwrap();
    let proofs = keys.proofs.expect("it is on a path");
    assert_eq!(proofs.authority, given.segment.authority);
    let epoch = Epoch::at(keys.now, 3600).from_wire(given.segment.epoch).unwrap();
    let key = proofs.keys.iter().find(|key| key.epoch == epoch.0).unwrap();
    let key = ProofKey::new(hex::decode(&key.key).unwrap().try_into().unwrap());
    let segment = Segment { pointer: place, ..given.segment };
    Proof(given.proofs[usize::from(place)]).proves(&key, &segment, given.vni, &given.ends)
}

/// Returns the next withdrawals.
pub async fn withdrawn(events: &mut EventStream) -> Vec<Withdrawal> {
    let asked = Instant::now();
    loop {
        match next(events).await {
            Event::Withdrawn { withdrawn } => {
                println!("told of withdrawn consent after {:?}", asked.elapsed());
                return withdrawn;
            }
            Event::Policy | Event::Revoked { .. } => {}
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_segment_has_a_proof_for_each_verifier_on_the_way_and_for_no_other() {
    let stage = tenants().await;
    let (edge, tep) = (stage.verifier("edge-1").await, stage.verifier("edge-2").await);
    let elsewhere = stage.verifier("edge-3").await;
    let segment = stage.login("alice").await.segment(&request("blue", 22)).await.unwrap();
    assert_eq!((segment.vni, segment.receiving, segment.reply), (100, address("192.0.2.2"), true));
    assert_eq!(segment.expires, segment.now + 300);
    let one = given(&segment);
    assert_eq!((one.segment.interface.0, one.segment.protocol, one.segment.port), (7, 6, 22));
    assert_eq!(one.segment.suite, wire::Suite::AesCmac);
    assert!(proves(&edge, &one, 0).await && proves(&tep, &one, 1).await);
    assert!(!proves(&tep, &one, 0).await && !proves(&edge, &one, 1).await);
    assert!(elsewhere.keys(1).await.unwrap().proofs.is_none());
    let audit = stage.database().audit_entries(None, 20).unwrap();
    let entry = audit.iter().find(|entry| entry.event == "segment").expect("it is written down");
    assert_eq!(entry.rule.as_deref(), Some("policy.toml:17 web"));
    assert_eq!(entry.detail, "network blue: 10.0.0.5 to 10.0.0.7 tcp/22");
}

#[tokio::test]
async fn networks_with_the_same_addresses_have_rules_places_and_paths_of_their_own() {
    let stage = tenants().await;
    let (alice, bob) = (stage.login("alice").await, stage.login("bob").await);
    assert_eq!(problem(alice.segment(&request("red", 443)).await).r#type, "no_rule");
    let red = given(&bob.segment(&request("red", 443)).await.unwrap());
    assert_eq!((red.vni.number(), red.segment.interface.0, red.ends.receiving), (200, 17, address("192.0.2.3")));
    assert_eq!((red.segment.suite, red.proofs.len()), (wire::Suite::Siphash, 1));
    assert_eq!(problem(bob.segment(&request("red", 22)).await).r#type, "no_receiver");
    // An address in a virtual network is no destination for clients outside of it.
    assert_eq!(problem(bob.grant(&to("10.0.0.7", 6, 443)).await).r#type, "no_receiver");
    assert!(bob.destinations().await.unwrap().destinations.is_empty());
}

#[tokio::test]
async fn what_cannot_be_is_refused_with_the_reason() {
    let stage = tenants().await;
    let alice = stage.login("alice").await;
    let asked = request("blue", 22);
    let elsewhere = SegmentRequest { sending: address("192.0.2.2"), ..asked.clone() };
    let spoofed = SegmentRequest { sender: address("10.0.0.6"), ..asked.clone() };
    for wrong in [elsewhere, spoofed] {
        let problem = problem(alice.segment(&wrong).await);
        assert_eq!(problem.r#type, "no_segment");
        assert!(problem.title.contains("is not behind the endpoint"), "{}", problem.title);
    }
    assert!(problem(alice.segment(&request("green", 22)).await).title.contains("no network `green`"));
    let eve = stage.login("eve").await;
    assert_eq!(problem(eve.segment(&asked).await).r#type, "no_rule");
    assert!(matches!(stage.client().with_token("none").segment(&asked).await, Err(Error::NotLoggedIn)));
}

#[tokio::test]
async fn who_is_sent_to_with_consent_to_answers_gets_the_way_back() {
    let stage = tenants().await;
    let (alice, bob) = (stage.login("alice").await, stage.login("bob").await);
    let there = given(&alice.segment(&request("blue", 22)).await.unwrap());
    let back = bob.answer_segment(&convert::answer_request(&there)).await.unwrap();
    assert_eq!((back.vni, back.receiving, back.reply), (100, address("192.0.2.1"), false));
    let back = convert::segment(&back, address("192.0.2.2"), address("10.0.0.7"), address("10.0.0.5")).unwrap();
    assert!(back.segment.flags.has(SegmentFlags::RETURN));
    assert_eq!((back.segment.interface.0, back.segment.expires), (5, there.segment.expires));
    assert!(proves(&stage.verifier("edge-1").await, &back, 0).await);

    let mut forged = there.clone();
    forged.proofs[0][0] ^= 1;
    assert_eq!(problem(bob.answer_segment(&convert::answer_request(&forged)).await).r#type, "no_segment");
    let without = stage.login("bob").await.segment(&request("red", 443)).await.unwrap();
    let refused = problem(bob.answer_segment(&convert::answer_request(&given(&without))).await);
    assert!(refused.title.contains("did not consent"), "{}", refused.title);
}

#[tokio::test]
async fn a_fixed_path_is_given_with_its_hops_and_answered_to_who_shows_them() {
    let stage = tenants().await;
    let places = NETWORKS.replace("192.0.2.1", "2001:db8:1::1").replace("192.0.2.2", "2001:db8:3::1");
    let path = "to = [\"2001:db8:1::1\", \"2001:db8:3::1\"]\nverifiers = [\"edge-1\", \"edge-2\"]";
    let fixed = format!("{path}\nfixed = true\nhops = \"2001:db8:a::1\"");
    assert!(places.contains(path));
    std::fs::write(stage.directory.path().join("networks.toml"), places.replace(path, &fixed)).unwrap();
    stage.apply(TENANTS).await.unwrap();
    let alice = stage.login("alice").await;
    let [sending, receiving, sender, receiver] =
        ["2001:db8:1::1", "2001:db8:3::1", "10.0.0.5", "10.0.0.7"].map(address);
    let segment = alice.segment(&SegmentRequest { sending, ..request("blue", 22) }).await.unwrap();
    let led = |hops: &[std::net::Ipv6Addr]| hops.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(led(&segment.hops), ["2001:db8:a::1", "2001:db8:3::1"]);
    let there = convert::segment(&segment, sending, sender, receiver).unwrap();
    assert!(there.segment.flags.has(SegmentFlags::ROUTED));
    // The path of the answer is fixed too, because networks.toml contains no other path.
    let shown = convert::answer_request(&there);
    let back = alice.answer_segment(&shown).await.unwrap();
    assert_eq!(led(&back.hops), ["2001:db8:a::1", "2001:db8:1::1"]);
    let back = convert::segment(&back, receiving, receiver, sender).unwrap();
    assert!(back.segment.flags.has(SegmentFlags(SegmentFlags::RETURN.0 | SegmentFlags::ROUTED.0)));
    let detour = vec!["2001:db8:b::1".parse().unwrap(), "2001:db8:3::1".parse().unwrap()];
    for hops in [Vec::new(), detour] {
        assert_eq!(problem(alice.answer_segment(&AnswerRequest { hops, ..shown.clone() }).await).r#type, "no_segment");
    }
}

#[tokio::test]
async fn who_may_ask_for_a_sender_is_the_operators_to_say() {
    let stage = tenants().await;
    let (alice, bob) = (stage.login("alice").await, stage.login("bob").await);
    let verifier = stage.verifier("edge-1").await;
    let mut guard = events(&verifier).await;
    let segment = alice.segment(&request("blue", 22)).await.unwrap();
    assert!(bob.segment(&request("blue", 22)).await.is_ok(), "whoever is logged in, where nobody is named");

    let networks = |who: &str| NETWORKS.replacen("interface = 5", &format!("interface = 5\nasked_by = \"{who}\""), 1);
    std::fs::write(stage.directory.path().join("networks.toml"), networks("person:bob")).unwrap();
    stage.apply(TENANTS).await.unwrap();
    let refused = problem(alice.segment(&request("blue", 22)).await);
    assert!(refused.r#type == "no_segment" && refused.title.contains("may not request segments"), "{}", refused.title);
    let statements = withdrawn(&mut guard).await;
    assert_eq!(u64::from(statements[0].until), segment.expires, "what others were given before is void");
    assert!(bob.segment(&request("blue", 22)).await.is_ok());

    std::fs::write(stage.directory.path().join("networks.toml"), networks("group:staff")).unwrap();
    stage.apply(TENANTS).await.unwrap();
    assert!(alice.segment(&request("blue", 22)).await.is_ok());
}

#[tokio::test]
async fn who_may_answer_for_a_receiver_is_the_operators_to_say_too() {
    let stage = tenants().await;
    let networks = NETWORKS.replacen("interface = 7", "interface = 7\nasked_by = \"person:bob\"", 1);
    std::fs::write(stage.directory.path().join("networks.toml"), networks).unwrap();
    stage.apply(TENANTS).await.unwrap();
    let (alice, bob, eve) = (stage.login("alice").await, stage.login("bob").await, stage.login("eve").await);
    let shown = convert::answer_request(&given(&alice.segment(&request("blue", 22)).await.unwrap()));
    for other in [&alice, &eve] {
        let refused = problem(other.answer_segment(&shown).await);
        assert!(
            refused.r#type == "no_segment" && refused.title.contains("may not request segments"),
            "{}",
            refused.title
        );
    }
    assert!(bob.answer_segment(&shown).await.is_ok());
}

#[tokio::test]
async fn the_way_back_is_written_down_and_ends_with_the_session_that_asked() {
    let stage = tenants().await;
    let (alice, bob, verifier) = (stage.login("alice").await, stage.login("bob").await, stage.verifier("edge-1").await);
    let soon = authority::now() + 60;
    let database = rusqlite::Connection::open(stage.directory.database()).unwrap();
    let shortened = database.execute("UPDATE sessions SET expires = ?1 WHERE person = 'bob'", [soon as i64]).unwrap();
    assert_eq!(shortened, 1);
    admin::revoke(&stage.directory, &Which::Person("eve".into())).await.unwrap();
    let (mut guard, mut sender) = (events(&verifier).await, events(&alice).await);
    let there = alice.segment(&request("blue", 22)).await.unwrap();
    let shown = convert::answer_request(&given(&there));
    let back = bob.answer_segment(&shown).await.unwrap();
    assert_eq!(back.expires, soon, "no longer than the session");
    let audit = stage.database().audit_entries(None, 20).unwrap();
    let entry = audit.iter().find(|entry| entry.person.as_deref() == Some("bob") && entry.event == "segment");
    let entry = entry.expect("it is written down");
    assert_eq!(entry.detail, "network blue: answers of 10.0.0.7 tcp/22 to 10.0.0.5");

    bob.logout().await.unwrap();
    let [receiver, sender_address] = ["10.0.0.5", "10.0.0.7"].map(address);
    let void = |until| Withdrawal { vni: 100, receiver, sender: Some(sender_address), until };
    assert_eq!(withdrawn(&mut guard).await, [void(soon as u32)]);

    // A new session of bob gets a segment that expires as late as the presented one. When this session ends too, no
    // return segment can be issued any more. Then alice's session is notified, and requests a new segment.
    let bob = stage.login("bob").await;
    assert_eq!(bob.answer_segment(&shown).await.unwrap().expires, there.expires);
    bob.logout().await.unwrap();
    assert_eq!(withdrawn(&mut guard).await, [void(there.expires as u32)]);
    assert_eq!(withdrawn(&mut sender).await, [void(there.expires as u32)]);
    let bob = stage.login("bob").await;
    assert!(problem(bob.answer_segment(&shown).await).title.contains("withdrawn"));
    let again = convert::answer_request(&given(&alice.segment(&request("blue", 22)).await.unwrap()));
    assert!(bob.answer_segment(&again).await.unwrap().expires > there.expires);
}

#[tokio::test]
async fn consent_that_a_policy_takes_away_is_withdrawn_at_once() {
    let stage = tenants().await;
    let (alice, verifier) = (stage.login("alice").await, stage.verifier("edge-2").await);
    let (mut guard, mut holder) = (events(&verifier).await, events(&alice).await);
    let segment = alice.segment(&request("blue", 22)).await.unwrap();
    let kept = stage.login("bob").await.segment(&request("red", 443)).await.unwrap();
    let said = stage.apply(&TENANTS.replace("staff = [\"alice\", \"bob\"]", "staff = [\"bob\"]")).await.unwrap();
    assert!(said.contains("2 receivers and 2 rules in force") && said.contains("; 2 withdrawals of consent"), "{said}");
    let statement = |sender: &str, receiver: &str| Withdrawal {
        vni: 100,
        receiver: address(receiver),
        sender: Some(address(sender)),
        until: segment.expires as u32,
    };
    // The consent that alice gave to answers is withdrawn too.
    let expected = [statement("10.0.0.7", "10.0.0.5"), statement("10.0.0.5", "10.0.0.7")];
    assert_eq!(withdrawn(&mut guard).await, expected);
    assert_eq!(withdrawn(&mut holder).await, expected);
    assert_eq!(verifier.config().await.unwrap().withdrawn, expected);
    assert_eq!(problem(alice.segment(&request("blue", 22)).await).r#type, "no_rule");
    let refused = problem(alice.answer_segment(&convert::answer_request(&given(&segment))).await);
    assert!(refused.title.contains("withdrawn"), "{}", refused.title);
    assert!(given(&kept).segment.expires > 0);

    // A segment that is issued after new consent expires later than the void segments.
    stage.apply(TENANTS).await.unwrap();
    assert!(alice.segment(&request("blue", 22)).await.unwrap().expires > segment.expires);
}

#[tokio::test]
async fn consent_of_a_revoked_person_or_device_is_withdrawn_at_once() {
    let stage = tenants().await;
    let verifier = stage.verifier("edge-1").await;
    let mut guard = events(&verifier).await;
    for (person, which) in
        [("alice", Which::Person("alice".into())), ("bob", Which::Device("bob".into(), "laptop".into()))]
    {
        let segment = stage.login(person).await.segment(&request("blue", 22)).await.unwrap();
        admin::revoke(&stage.directory, &which).await.unwrap();
        let statements = withdrawn(&mut guard).await;
        assert_eq!((statements.len(), u64::from(statements[0].until)), (2, segment.expires), "{person}");
    }
}

#[tokio::test]
async fn a_segment_ends_with_its_session() {
    let stage = tenants_with("session_lifetime = \"2m\"\n").await;
    let segment = stage.login("alice").await.segment(&request("blue", 22)).await.unwrap();
    assert!((60..=120).contains(&(segment.expires - segment.now)), "{} s", segment.expires - segment.now);
}

#[tokio::test]
async fn names_in_networks_that_nothing_has_are_told() {
    let stage = tenants().await;
    let (policy, _) = stage.directory.read_policy(None).unwrap();
    let networks =
        NETWORKS.replace("name = \"red\"", "name = \"rad\"").replace("network = \"red\"", "network = \"rad\"");
    let networks = networks.replacen("interface = 5", "interface = 5\nasked_by = \"group:stuff\"", 1);
    let networks = engine::policy::networks::Networks::parse(&networks).unwrap();
    stage.verifier("edge-1").await;
    let told = admin::unknown_names(&stage.directory, &policy, &networks).unwrap().join("\n");
    for (slip, count) in
        [("no network red ", 1), ("no verifier edge-2:", 1), ("no verifier edge-1:", 0), ("no group stuff ", 1)]
    {
        assert_eq!(told.matches(slip).count(), count, "{slip}: {told}");
    }
}

#[tokio::test]
async fn networks_that_are_wrong_change_nothing() {
    let stage = tenants().await;
    std::fs::write(stage.directory.path().join("networks.toml"), NETWORKS.replace("vni = 200", "vni = 100")).unwrap();
    let error = format!("{:#}", stage.apply(TENANTS).await.unwrap_err());
    assert!(error.contains("networks.toml:") && error.contains("has the same number"), "{error}");
    assert!(stage.login("alice").await.segment(&request("blue", 22)).await.is_ok());
}

/// SVLAN §VII, denial of capability: a client that floods the authority with requests denies nothing to others.
#[tokio::test]
async fn denial_of_capability_a_session_that_floods_is_slowed_down_and_others_are_served() {
    let stage = tenants().await;
    let (flooder, alice) = (stage.login("eve").await, stage.login("alice").await);
    let green = request("green", 22);
    let (mut floods, asked) = (tokio::task::JoinSet::new(), Arc::new(AtomicU64::new(0)));
    let began = Instant::now();
    for _ in 0..16 {
        let (flooder, green, asked) = (flooder.clone(), green.clone(), asked.clone());
        floods.spawn(async move {
            loop {
                assert_eq!(problem(flooder.segment(&green).await).status, 403);
                asked.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    // The limit is 2000 requests at once and 200 per second. A slower machine makes fewer requests, and floods nobody.
    while asked.load(Ordering::Relaxed) < 2400 && began.elapsed() < Duration::from_secs(20) {
        assert!(floods.try_join_next().is_none(), "all of them wait for their turn");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let (asked, allowed) = (asked.load(Ordering::Relaxed), 2016.0 + 200.0 * began.elapsed().as_secs_f64());
    assert!((asked as f64) <= allowed, "{asked} were answered, of {allowed}");
    // The flood continues while alice sends requests.
    for _ in 0..3 {
        assert!(alice.segment(&request("blue", 22)).await.is_ok());
    }
    floods.shutdown().await;
}

/// SVLAN §VII, forged requests: without a live session no segment is issued, and a client can't name an arbitrary
/// sender.
#[tokio::test]
async fn forged_requests_get_nothing_and_leave_nothing() {
    let stage = tenants().await;
    let (verifier, alice) = (stage.verifier("edge-1").await, stage.login("alice").await);
    let mut guard = events(&verifier).await;
    let asked = request("blue", 22);
    let given = given(&alice.segment(&asked).await.unwrap());
    let answer = convert::answer_request(&given);
    let nobody = stage.client().with_token(&"0".repeat(64));
    assert!(matches!(nobody.segment(&asked).await, Err(Error::NotLoggedIn)));
    assert!(matches!(nobody.answer_segment(&answer).await, Err(Error::NotLoggedIn)));
    assert_eq!(problem(verifier.segment(&asked).await).r#type, "wrong_caller");
    assert_eq!(problem(verifier.answer_segment(&answer).await).r#type, "wrong_caller");
    alice.logout().await.unwrap();
    assert_eq!(withdrawn(&mut guard).await.len(), 2, "hers and its answers, and no more");
    assert!(matches!(alice.segment(&asked).await, Err(Error::NotLoggedIn)));
    // A segment that was issued to one endpoint cannot be presented for another endpoint or another sender.
    let bob = stage.login("bob").await;
    let elsewhere = AnswerRequest { sending: address("192.0.2.2"), ..answer.clone() };
    let other = AnswerRequest { sender: address("10.0.0.6"), ..answer };
    for wrong in [elsewhere, other] {
        assert_eq!(problem(bob.answer_segment(&wrong).await).r#type, "no_segment");
    }
}
