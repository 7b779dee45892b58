//! Tests of a user who is logged in to two organisations, one of whose authorities is hostile.

use super::*;

/// Alice at her second organisation.
const WORK: Subject = ALICE.in_organisation(1);

/// Alice's default organisation has receivers in 192.0.2.0/24. Her second one may speak for 198.51.100.0/24.
fn stage() -> Stage {
    let mut stage = Stage::alice();
    stage.agent.set_networks(WORK, Some(networks(&["198.51.100.0/24"])));
    let login = Login { expires: UNIX + 43_200, receivers: vec![receiver("198.51.100.0/24")], ..Login::default() };
    stage.agent.login(WORK, login);
    stage.settle();
    stage
}

fn networks(list: &[&str]) -> Vec<IpNet> {
    list.iter().map(|text| text.parse().expect("a network")).collect()
}

impl Stage {
    fn lists(&mut self, subject: Subject, prefixes: &[&str]) -> Vec<String> {
        let receivers = prefixes.iter().map(|prefix| receiver(prefix)).collect();
        self.agent.destinations(self.now, subject, Some((receivers, BTreeSet::new()))).expect("a few");
        self.settle();
        self.agent.receivers(subject).iter().map(|receiver| receiver.prefix.to_string()).collect()
    }

    fn token_of(&self, to: Destination) -> Option<u64> {
        let entry = self.entries.get(&(ALICE.number(), to)).filter(|entry| entry.plain == 0)?;
        Some(GrantHeader::decode(&entry.header).expect("a header").handle.0)
    }
}

fn at(address: &str) -> Destination {
    Destination { address: address.parse().expect("an address"), protocol: TCP, port: 22 }
}

#[test]
fn each_organisations_authority_is_asked_for_its_own_addresses_at_the_same_time() {
    let mut stage = stage();
    let (home, work) = (at("192.0.2.1"), at("198.51.100.1"));
    stage.queued(home, 1);
    stage.queued(work, 2);
    let asked: Vec<_> = stage.requests.iter().map(|(_, subject, request)| (*subject, request.to)).collect();
    assert_eq!(asked, [(ALICE, home), (WORK, work)]);
    // Both authorities use the same handle.
    for to in [home, work] {
        let grant = stage.grant(to, 7);
        stage.answer(grant);
    }
    assert_eq!(stage.sent, [(1, true), (2, true)]);
    assert_eq!(stage.owners.len(), 2, "the user's packets belong to one subject in the kernel: {:?}", stage.owners);
    // The revocation by one authority does not concern the other's grant.
    stage.agent.event(stage.now, WORK, &Event::Revoked(vec![Handle(7)]));
    stage.settle();
    assert_eq!((stage.token_of(home), stage.token_of(work)), (Some(7), None));
    stage.agent.end(WORK);
    stage.settle();
    assert_eq!((stage.token_of(home), stage.ended.clone()), (Some(7), vec![WORK]));
    assert!(!stage.owners.is_empty(), "the other session goes on");
    stage.agent.logout(ALICE);
    stage.settle();
    assert!(stage.owners.is_empty() && stage.entries.is_empty());
}

#[test]
fn an_authority_that_claims_the_others_addresses_gets_nothing() {
    let mut stage = stage();
    let before = stage.protected.clone();
    for claim in ["192.0.2.0/24", "192.0.2.1/32", "0.0.0.0/0", "198.51.0.0/16", "203.0.113.0/24", "::/0"] {
        assert_eq!(stage.lists(WORK, &[claim, "198.51.100.0/24"]), ["198.51.100.0/24"], "{claim}");
    }
    assert_eq!(stage.lists(ALICE, &["198.51.100.7/32", "0.0.0.0/0", "198.0.0.0/8", "192.0.2.0/24"]), ["192.0.2.0/24"]);
    assert_eq!(stage.protected, before, "nothing else is protected");
    stage.queued(at("192.0.2.1"), 1);
    stage.queued(at("198.51.100.1"), 2);
    let asked: Vec<_> = stage.requests.iter().map(|(_, subject, _)| *subject).collect();
    assert_eq!(asked, [ALICE, WORK]);
    // A grant that is wider than the organisation's networks gives no token for other addresses.
    stage.requests.remove(0);
    let wide = stage.grant_of(at("198.51.100.1"), 9, 0, Flags::default());
    stage.answer(wide);
    stage.queued(at("192.0.2.9"), 3);
    assert_eq!(stage.token_of(at("192.0.2.9")), None);
    assert_eq!(stage.requests.last().map(|(_, subject, _)| *subject), Some(ALICE));
    for (address, subject) in [("192.0.2.1", ALICE), ("198.51.100.1", WORK), ("203.0.113.1", ALICE)] {
        let speaks = |of| stage.agent.speaks_for(of, at(address).address);
        assert_eq!((speaks(ALICE), speaks(WORK)), (subject == ALICE, subject == WORK), "tunnels at {address}");
    }
    stage.agent.hinted(stage.now, WORK, &networks(&["192.0.2.0/24", "10.0.0.0/8"]));
    let reloads = stage.reloads.len();
    stage.settle();
    assert_eq!(stage.reloads.len(), reloads, "a record's hint at others' addresses makes no request");
}

#[test]
fn a_list_before_a_login_and_a_grant_in_the_kernel_do_not_claim_either() {
    let mut stage = Stage::new(Config { reserved: networks(&["203.0.113.0/24"]), ..Config::default() });
    stage.agent.set_networks(WORK, Some(networks(&["198.51.100.0/24"])));
    let receivers = ["0.0.0.0/0", "198.51.100.9/32", "203.0.113.0/25", "192.0.2.0/24"].map(receiver).to_vec();
    let login = Login { expires: UNIX + 43_200, receivers, ..Login::default() };
    stage.agent.login(ALICE, login.clone());
    stage.agent.login(ALICE.in_organisation(2), login.clone());
    stage.settle();
    assert_eq!(stage.protected, ["192.0.2.0/24"]);
    // Nobody is logged in to the organisation of this address.
    for address in ["198.51.100.9", "203.0.113.1"] {
        assert!(matches!(stage.agent.want(stage.now, ALICE, at(address)), Standing::NotProtected), "{address}");
        stage.queued(at(address), 5);
    }
    assert!(stage.requests.is_empty());
    assert_eq!(stage.sent, [(5, false), (5, false)], "without identity");
    // Once there is a session with the organisation, it is asked.
    stage.agent.login(WORK, login);
    stage.settle();
    assert!(!stage.entries.contains_key(&(ALICE.number(), at("198.51.100.9"))));
    stage.queued(at("198.51.100.9"), 6);
    assert_eq!(stage.requests.last().map(|(_, subject, _)| *subject), Some(WORK));
}

#[test]
fn a_second_organisation_has_a_smaller_share_of_the_kernels_tables() {
    let mut stage = stage();
    let many = |count| vec![receiver("198.51.100.0/24"); count];
    for (count, is_taken) in [(RECEIVERS_OF_OTHERS_MAX, true), (RECEIVERS_OF_OTHERS_MAX + 1, false)] {
        let taken = stage.agent.destinations(stage.now, WORK, Some((many(count), BTreeSet::new())));
        assert_eq!(taken.is_ok(), is_taken, "{count}");
    }
}

#[test]
fn a_network_that_becomes_anothers_takes_the_grants_along() {
    let mut stage = Stage::alice();
    let (mine, other) = (at("192.0.2.1"), at("192.0.2.200"));
    for (to, port) in [(mine, 1), (other, 2)] {
        stage.queued(to, port);
        let grant = stage.grant(to, port.into());
        stage.answer(grant);
    }
    stage.queued(at("192.0.2.201"), 3);
    stage.agent.set_networks(WORK, Some(networks(&["192.0.2.128/25"])));
    stage.agent.set_networks(ALICE, Some(networks(&["192.0.2.0/25"])));
    stage.settle();
    assert_eq!((stage.token_of(mine), stage.token_of(other)), (None, None), "the receiver is no longer inside");
    assert_eq!(stage.lists(ALICE, &["192.0.2.0/25"]), ["192.0.2.0/25"]);
    // The answer for the packet that waited comes too late.
    let late = stage.grant_of(at("192.0.2.201"), 8, 24, Flags::default());
    stage.answer(late);
    assert_eq!(stage.token_of(at("192.0.2.201")), None);
    assert!(!stage.sent.iter().any(|(port, _)| *port == 3), "dropped: its program sends it again");
}
