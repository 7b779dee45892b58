use super::*;
use engine::model::protected::{self, Protected, entries};
use wire::packet::{TCP, UDP};

fn network(text: &str) -> IpNet {
    text.parse().expect("a network")
}

fn service(text: &str) -> Service {
    engine::policy::parse_service(text).expect("a service")
}

fn receiver(prefix: &str, services: &[&str]) -> Receiver {
    let services = services.iter().map(|text| service(text)).collect();
    Receiver { name: prefix.into(), prefix: network(prefix), services }
}

fn organisation(name: &str, networks: &[&str], services: &[&str]) -> Organisation {
    let limits = Limits {
        networks: (name != DEFAULT).then(|| networks.iter().map(|text| network(text)).collect()),
        services: services.iter().map(|text| service(text)).collect(),
        except: if name == DEFAULT { networks.iter().map(|text| network(text)).collect() } else { Vec::new() },
    };
    Organisation { name: name.into(), limits }
}

fn chain() -> Chain {
    Chain::new(vec![
        organisation(DEFAULT, &["203.0.113.0/24"], &[]),
        organisation("acme", &["203.0.113.0/24"], &["tcp/22", "udp/1000-2000"]),
    ])
}

#[test]
fn an_organisation_speaks_only_for_what_the_operator_gave_it() {
    let chain = chain();
    let within = [receiver("203.0.113.7/32", &["tcp/22"]), receiver("203.0.113.0/25", &["udp/1500-2000", "tcp/22"])];
    let beyond = [
        receiver("192.0.2.1/32", &["tcp/22"]),
        receiver("203.0.112.0/23", &["tcp/22"]),
        receiver("0.0.0.0/0", &["tcp/22"]),
        receiver("203.0.113.8/32", &["tcp/23"]),
        receiver("203.0.113.8/32", &["tcp/22", "tcp/23"]),
        receiver("203.0.113.8/32", &["udp/999-1001"]),
        receiver("203.0.113.8/32", &["all"]),
        receiver("203.0.113.8/32", &["tcp"]),
    ];
    let accepted = chain.claim(1, within.iter().chain(&beyond).cloned().collect()).expect("room");
    assert_eq!(accepted, within);
    assert_eq!((chain.refused(1).len(), chain.refused(0).len()), (beyond.len(), 0));
    assert_eq!(chain.others(), within);
    // The default organisation has everything else, and nothing that touches the other's networks.
    let claims = ["192.0.2.1/32", "203.0.113.7/32", "203.0.112.0/23", "203.0.113.128/25", "0.0.0.0/0", "2001:db8::/32"];
    let claims = claims.map(|prefix| receiver(prefix, &["all"]));
    let accepted = chain.claim(0, claims.to_vec()).expect("room");
    assert_eq!(
        accepted.iter().map(|one| one.prefix.to_string()).collect::<Vec<_>>(),
        ["192.0.2.1/32", "2001:db8::/32"]
    );
    let limits: Vec<_> = chain.organisations().iter().map(|one| &one.limits).collect();
    for (address, protocol, port, covered) in [
        ("203.0.113.7", TCP, 22, [false, true]),
        ("203.0.113.7", TCP, 23, [false, false]),
        ("203.0.113.7", UDP, 1000, [false, true]),
        ("192.0.2.1", TCP, 22, [true, false]),
    ] {
        let address = address.parse().expect("an address");
        let covers = [limits[0].covers(address, protocol, port), limits[1].covers(address, protocol, port)];
        assert_eq!(covers, covered, "{address} {port}");
    }
}

#[test]
fn an_organisation_that_claims_all_room_is_refused_and_the_others_keep_theirs() {
    let chain = Chain::new(vec![organisation(DEFAULT, &[], &[]), organisation("acme", &["10.0.0.0/8"], &[])]);
    chain.claim(1, vec![receiver("10.0.0.1/32", &["tcp/22"])]).expect("room");
    let many = (0..=RECEIVERS_MAX as u32 / 2).map(|number| {
        let address = std::net::Ipv4Addr::from(0x0a00_0000 + number);
        receiver(&format!("{address}/32"), &["tcp/22"])
    });
    let error = chain.claim(1, many.collect()).expect_err("no room").to_string();
    assert!(error.contains("acme") && error.contains("may have at most 30000"), "{error}");
    assert_eq!(chain.others().len(), 1, "the earlier receivers stay");
}

#[test]
fn receivers_beyond_the_share_leave_nothing_open_at_the_start() {
    let theirs = ["10.0.0.0/8"];
    let chain = Chain::new(vec![organisation(DEFAULT, &theirs, &[]), organisation("acme", &theirs, &[])]);
    let share = RECEIVERS_MAX / 2;
    let many = (0..=share as u32).map(|number| {
        let address = std::net::Ipv4Addr::from(0x0a00_0000 + number);
        receiver(&format!("{address}/32"), &["tcp/22"])
    });
    let many: Vec<_> = many.collect();
    let protected = receiver("10.9.9.9/32", &["tcp/80"]);
    for number in [0, 1] {
        chain.begin(number, many.clone(), || vec![protected.clone()]);
        let accepted = chain.accepted(number);
        assert_eq!(accepted.len(), if number == 0 { 0 } else { share }, "10.0.0.0/8 is not the first one's");
        assert_eq!(chain.others().contains(&protected), number == 1);
    }
    // The authority has removed some: the services of the earlier process are its own business again.
    chain.claim(1, many[..2].to_vec()).expect("room");
    assert_eq!(chain.others(), many[..2]);
    assert!(chain.take_changes() && !chain.take_changes());
}

#[test]
fn port_ranges_at_an_address_have_a_share_if_several_organisations_may_speak_for_it() {
    let ports: Vec<_> = (0..=SERVICES_MAX).map(|number| format!("tcp/{}", 2 * number + 1)).collect();
    let ranges = |prefix: &str, count: usize| {
        let ports: Vec<_> = ports.iter().take(count).map(String::as_str).collect();
        receiver(prefix, &ports)
    };
    let mut default = organisation(DEFAULT, &[], &[]);
    default.limits.networks = Some(vec![network("192.0.2.0/24"), network("203.0.113.7/32")]);
    let chain = Chain::new(vec![default, organisation("acme", &["203.0.113.0/24"], &["tcp/1-99"])]);
    let half = SERVICES_MAX / 2;
    for number in [0, 1] {
        chain.claim(number, vec![ranges("203.0.113.7/32", half)]).expect("room");
        let error = chain.claim(number, vec![ranges("203.0.113.7/32", half + 1)]).expect_err("no room").to_string();
        assert!(error.contains("203.0.113.7/32") && error.contains("may have at most 16"), "{error}");
        assert_eq!(chain.accepted(number), [ranges("203.0.113.7/32", half)], "the earlier ones stay");
    }
    // A wider network counts at the address, too.
    let wide = [ranges("203.0.113.0/24", half), receiver("203.0.113.7/32", &["tcp/80"])];
    assert!(chain.claim(1, wide.to_vec()).is_err());
    chain.claim(0, vec![ranges("192.0.2.1/32", SERVICES_MAX)]).expect("nobody else may speak for this address");
    assert!(chain.claim(0, vec![ranges("192.0.2.1/32", SERVICES_MAX + 1)]).is_err());
    // At the start, gaps are closed, but no port for which the organisation may not speak.
    chain.begin(1, vec![ranges("203.0.113.8/32", SERVICES_MAX + 1)], Vec::new);
    let table = merged(&[], &protected::widened(chain.others().iter()));
    assert!((1..=65).step_by(2).all(|port| look(&table, "203.0.113.8", TCP, port) == (true, true)));
    assert_eq!(look(&table, "203.0.113.8", TCP, 2), (true, true), "a gap");
    let two = ["tcp/1", "tcp/9", "tcp/11"].map(service);
    let closed =
        |limits: &[&str]| room::with_gaps_closed(&two, 2, &limits.iter().map(|one| service(one)).collect::<Vec<_>>());
    assert_eq!(closed(&["all"]), ["tcp/1", "tcp/9-11"].map(service));
    assert_eq!(closed(&["tcp/1-9", "tcp/11"]), ["tcp/1-9", "tcp/11"].map(service));
    assert_eq!(closed(&["tcp/1", "tcp/9", "tcp/11"]), two, "the operator's list");
    assert_eq!(look(&table, "203.0.113.8", TCP, 100), (false, false), "beyond the organisation's services");
}

#[test]
fn an_entry_with_services_of_two_organisations_stays_protected_for_each() {
    let both = ["192.0.2.7/32"];
    let chain = Chain::new(vec![
        organisation(DEFAULT, &both, &[]),
        organisation("acme", &both, &["tcp/22", "udp/1-9"]),
        organisation("umbrella", &both, &["tcp/80"]),
    ]);
    let entry = receiver("192.0.2.7/32", &["tcp/22", "tcp/80", "udp/5-20", "tcp/443"]);
    let elsewhere = receiver("198.51.100.1/32", &["tcp/22"]);
    chain.keep(1, vec![entry.clone(), elsewhere]);
    // Nobody may speak for tcp/443 now, so it stays, too.
    assert_eq!(chain.others(), [receiver("192.0.2.7/32", &["tcp/22", "udp/5-20", "tcp/443"])]);
    chain.claim(2, vec![receiver("192.0.2.7/32", &["tcp/80"])]).expect("room");
    let table = merged(&[], &protected::widened(chain.others().iter()));
    assert!(["22", "80", "443"].iter().all(|port| look(&table, "192.0.2.7", TCP, port.parse().expect("a port")).0));
    chain.claim(1, Vec::new()).expect("room");
    assert_eq!(chain.others().len(), 1, "the authority has no receivers any more");
}

#[test]
fn receivers_that_a_new_organisation_takes_away_are_named() {
    let all = [receiver("192.0.2.7/32", &["tcp/22"]), receiver("192.0.2.8/32", &[]), receiver("10.0.0.0/8", &[])];
    let taken = within(&all, &[network("192.0.2.7/32"), network("10.1.0.0/16")]);
    assert_eq!(taken, ["192.0.2.7/32 (192.0.2.7/32)", "10.0.0.0/8 (10.0.0.0/8)"]);
}

#[tokio::test]
async fn the_first_organisation_hears_of_changes_of_the_others_only() {
    let chain = chain();
    chain.claim(0, vec![receiver("192.0.2.1/32", &["tcp/22"])]).expect("room");
    let soon = std::time::Duration::from_millis(20);
    assert!(tokio::time::timeout(soon, chain.changed()).await.is_err());
    chain.claim(1, vec![receiver("203.0.113.7/32", &["tcp/22"])]).expect("room");
    chain.changed().await;
    assert!(chain.take_changes());
    chain.claim(1, vec![receiver("203.0.113.7/32", &["tcp/22"])]).expect("room");
    assert!(!chain.take_changes(), "nothing has changed");
    chain.claim(1, vec![receiver("203.0.113.8/32", &["tcp/22"])]).expect("room");
    assert!(tokio::time::timeout(soon, chain.changed()).await.is_err(), "only the first change is urgent");
    assert!(chain.take_changes() && !chain.take_changes());
}

/// Returns whether a service is protected, and whether only another organisation may admit packets to it.
fn look(table: &[Protected], address: &str, protocol: u8, port: u16) -> (bool, bool) {
    let address: IpAddr = address.parse().expect("an address");
    let entry =
        table.iter().filter(|entry| entry.prefix.contains(&address)).max_by_key(|entry| entry.prefix.prefix_len());
    entry.map_or((false, false), |entry| {
        (entry.services.covers(protocol, port), entry.services.is_foreign(protocol, port))
    })
}

#[test]
fn each_address_has_the_services_of_all_organisations_and_knows_whose_they_are() {
    let own =
        [receiver("192.0.2.0/24", &["tcp/22"]), receiver("192.0.2.7/32", &["tcp/80"]), receiver("::/0", &["tcp/1"])];
    let other = [receiver("192.0.2.0/25", &["tcp/80", "tcp/443"]), receiver("198.51.100.1/32", &["all"])];
    let table = merged(&entries(&own).expect("fits"), &entries(&other).expect("fits"));
    for (address, port, expected) in [
        ("192.0.2.7", 22, (true, false)),
        ("192.0.2.7", 80, (true, false)),
        ("192.0.2.7", 443, (true, true)),
        ("192.0.2.7", 25, (false, false)),
        ("192.0.2.9", 80, (true, true)),
        ("192.0.2.200", 80, (false, false)),
        ("192.0.2.200", 22, (true, false)),
        ("198.51.100.1", 9, (true, true)),
        ("2001:db8::1", 1, (true, false)),
    ] {
        assert_eq!(look(&table, address, TCP, port), expected, "{address} {port}");
    }
    let alone = entries(&own).expect("fits");
    assert_eq!(merged(&alone, &[]), alone);
}

#[test]
fn many_services_of_another_organisation_close_the_address_and_take_nothing_from_the_own_ones() {
    let ports: Vec<_> = (0..32).map(|number| format!("tcp/{}", 2 * number + 1)).collect();
    let many = |count: usize| {
        let ports: Vec<_> = ports.iter().take(count).map(String::as_str).collect();
        entries(&[receiver("192.0.2.7/32", &ports)]).expect("fits")
    };
    let table = merged(&many(20), &many(20));
    assert_eq!(look(&table, "192.0.2.7", TCP, 39), (true, false));
    assert_eq!(look(&table, "192.0.2.7", TCP, 2), (true, true), "closed");
    let table = merged(&many(32), &many(1));
    assert_eq!(look(&table, "192.0.2.7", TCP, 61), (true, false));
    assert_eq!(look(&table, "192.0.2.7", TCP, 63), (true, true), "no room, so closed");
}

#[test]
fn names_are_plain_words() {
    for fine in ["acme", "acme.example", "a-1_b", "7"] {
        assert_eq!(name(fine).as_deref(), Ok(fine));
    }
    for wrong in ["", "default", "../acme", "a/b", ".", "..", "Acme", "a b", "-a", &"a".repeat(65)] {
        assert!(name(wrong).is_err(), "{wrong:?}");
    }
}

#[test]
fn settings_that_know_one_authority_only_are_refused_by_name() {
    let settings = |text: &str| crate::settings::parse(text).expect("valid").1.settings();
    assert!(check(&settings("interface = \"eth0\""), false).is_ok());
    for (text, word) in [
        ("inside = \"eth1\"", "inside"),
        ("observe = true", "observe"),
        ("identity_socket = \"/run/x\"", "identity_socket"),
        ("optional = \"192.0.2.1:80\"", "optional"),
        ("verdict = \"mark\"", "verdict"),
        ("tunnel_pool = \"10.9.0.0/24\"", "tunnel_pool"),
        ("carriers = [\"tail\", \"tcp_in_udp\"]", "tcp_in_udp"),
        ("[proofs]\nendpoints = \"::/0\"\ninterface = \"eth1\"", "proofs"),
    ] {
        let error = check(&settings(text), false).expect_err("refused").to_string();
        assert!(error.contains(word), "{error}");
    }
    assert!(check(&settings(""), true).is_err());
}
