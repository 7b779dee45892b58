//! The list of path segments in force, and the places that a verifier learns.

use crate::segments::{TENANTS, address, request, tenants_with};
use crate::stage::*;
use api::{EndpointPlace, SegmentRequest};
use authority::admin::{self, MOST_SEGMENTS, SegmentFilter, SegmentList};
use authority::storage::Which;
use client::convert;

/// Returns the list of at most `limit` segments of this network and person.
async fn list(stage: &Stage, network: &str, person: &str, limit: usize) -> anyhow::Result<SegmentList> {
    let given = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    admin::segments(&stage.directory, SegmentFilter { network: given(network), person: given(person), limit }).await
}

/// Returns how many segments of this network and person are in force.
async fn count(stage: &Stage, network: &str, person: &str) -> usize {
    let list = list(stage, network, person, MOST_SEGMENTS).await.unwrap();
    assert_eq!(list.segments.len(), list.total);
    list.total
}

#[tokio::test]
async fn segments_in_force_are_listed_until_they_are_withdrawn() {
    let mut stage = tenants_with("").await;
    let empty = list(&stage, "", "", 10).await.unwrap();
    assert_eq!((empty.total, empty.last_expires, empty.segments.len()), (0, None, 0));
    let (alice, bob) = (stage.login("alice").await, stage.login("bob").await);
    let there = alice.segment(&request("blue", 22)).await.unwrap();
    bob.segment(&request("red", 443)).await.unwrap();
    let shown = convert::segment(&there, address("192.0.2.1"), address("10.0.0.5"), address("10.0.0.7")).unwrap();
    bob.answer_segment(&convert::answer_request(&shown)).await.unwrap();

    let all = list(&stage, "", "", 10).await.unwrap();
    assert_eq!((all.total, all.segments.len()), (3, 3));
    let ends = all.segments.iter().map(|segment| segment.expires).max();
    assert!(all.last_expires == ends && ends > Some(all.now), "{all:?}");
    let mut of_alice = list(&stage, "", "alice", 10).await.unwrap().segments;
    let one = of_alice.pop().expect("hers");
    assert!(of_alice.is_empty());
    assert_eq!(
        (one.network.as_str(), one.vni, one.sender, one.receiver),
        ("blue", 100, address("10.0.0.5"), address("10.0.0.7"))
    );
    assert_eq!((one.sending, one.receiving, one.expires), (address("192.0.2.1"), address("192.0.2.2"), there.expires));
    assert!(one.reply && !one.answers && !one.single && one.device.is_some(), "{one:?}");
    let blue = list(&stage, "blue", "bob", 10).await.unwrap();
    assert!(blue.segments.len() == 1 && blue.segments[0].answers, "{blue:?}");

    let first = list(&stage, "", "", 1).await.unwrap();
    assert_eq!((first.total, &first.segments[..]), (3, &all.segments[..1]), "the first in order");
    assert!(list(&stage, "green", "", 10).await.unwrap_err().to_string().contains("no network `green`"));

    admin::revoke(&stage.directory, &Which::Person("bob".into())).await.unwrap();
    assert_eq!((count(&stage, "", "bob").await, count(&stage, "", "alice").await), (0, 1));
    stage.apply(&TENANTS.replace("group:staff", "person:eve")).await.unwrap();
    assert_eq!(count(&stage, "", "").await, 0, "the policy does not allow it any more");
    stage.server.take().unwrap().stop().await;
    assert!(list(&stage, "", "", 10).await.unwrap_err().to_string().contains("the authority is not running"));
}

#[tokio::test]
async fn a_long_list_is_cut_and_counted() {
    let stage = tenants_with("").await;
    let alice = stage.login("alice").await;
    for sender_port in [0, 1] {
        let request = SegmentRequest { sender_port, ..request("blue", 22) };
        alice.segment(&request).await.unwrap();
    }
    assert_eq!(count(&stage, "blue", "alice").await, 1, "the same segment again");
    let none = list(&stage, "blue", "", 0).await.unwrap();
    assert_eq!((none.total, none.segments.len()), (1, 0));
}

#[tokio::test]
async fn a_verifier_learns_the_places_behind_the_endpoints_it_stands_before_and_no_others() {
    let stage = tenants_with("").await;
    let (before, last) = (stage.verifier("edge-1").await, stage.verifier("edge-2").await);
    let places = before.places().await.unwrap().expect("the call is there");
    assert_eq!((places.endpoints.len(), places.places.len()), (0, 0), "it stands before another verifier");
    let places = last.places().await.unwrap().unwrap();
    assert_eq!(places.endpoints, ["192.0.2.1", "192.0.2.2", "192.0.2.3"].map(address));
    let one = |network: &str, prefix: &str| {
        let is_it = |place: &&EndpointPlace| place.network == network && place.prefix.to_string() == prefix;
        let behind = places.places.iter().find(is_it).and_then(|place| place.behind.clone()).unwrap();
        (behind.endpoint, behind.interface, behind.asked_by)
    };
    assert_eq!(one("blue", "10.0.0.7/32"), (address("192.0.2.2"), 7, None));
    assert_eq!(one("red", "10.0.0.5/32"), (address("192.0.2.1"), 15, None));
    assert_eq!(places.places.len(), 4);
    let person = stage.login("alice").await.places().await;
    assert_eq!(problem(person).r#type, "wrong_caller");
}
