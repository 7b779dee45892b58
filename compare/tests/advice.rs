//! Advice for cases in which the right answer is known.

use std::collections::BTreeMap;

use compare::advise::{Answers, Devices, Encryption, Path, Platform, Reach, Recommendation, Slow, Tampering, advise};
use compare::claims::{Claims, Feature, Plane, Transport};
use compare::quantity::Quantity;
use compare::record::Property;
use compare::results::{Observed, Results, Solution};

/// Services that speak TLS or SSH, on Linux, over the Internet: what Vouchsafe is for.
fn typical() -> Answers {
    Answers {
        path: Path::Untrusted,
        encryption: Encryption::All,
        secret_addresses: false,
        tampering: Tampering::Noticed,
        attributable: false,
        reach: Reach::Services,
        devices: Devices::Ours,
        platforms: vec![Platform::Linux],
        slow: Slow::Transfers,
    }
}

fn tunnel(name: &str, rate: f64, properties: &[Property], features: &[Feature]) -> Solution {
    let observed = Observed { holds: Some(true), evidence: "seen".to_owned() };
    Solution {
        name: name.to_owned(),
        version: "1".to_owned(),
        claims: Claims {
            title: name.to_owned(),
            family: name.to_owned(),
            transport: Transport::Udp,
            plane: Plane::Process,
            cipher: "some".to_owned(),
            features: [&[Feature::InsideAddress], features].concat(),
            standard: false,
        },
        samples: BTreeMap::from([(Quantity::TcpUp, vec![rate; 6])]),
        rounds: BTreeMap::new(),
        observed: properties.iter().map(|property| (*property, observed.clone())).collect(),
        failures: Vec::new(),
    }
}

fn run() -> Results {
    let sealed = [Property::PayloadHidden, Property::FlippedBitNoticed, Property::AddressHidden];
    Results {
        solutions: vec![
            tunnel("open", 9000.0, &[], &[]),
            tunnel("sealed", 1000.0, &sealed, &[]),
            tunnel("everywhere", 100.0, &sealed, &[Feature::Windows, Feature::Ios]),
        ],
        ..Results::default()
    }
}

fn recommended(answers: &Answers) -> Recommendation {
    advise(answers, Some(&run())).recommendation
}

fn sealed() -> Recommendation {
    Recommendation::Tunnel(Some("sealed".to_owned()))
}

#[test]
fn where_applications_encrypt_and_services_are_named_it_is_vouchsafe() {
    let advice = advise(&typical(), None);
    assert_eq!(advice.recommendation, Recommendation::Vouchsafe);
    assert!(advice.argument[0].contains("encrypt a second time"), "{:?}", advice.argument);
}

#[test]
fn where_observers_must_not_learn_addresses_it_is_not() {
    let advice = advise(&Answers { secret_addresses: true, ..typical() }, Some(&run()));
    assert_eq!(advice.recommendation, sealed());
    assert!(advice.sentence().contains("Do not use Vouchsafe here"), "{}", advice.sentence());
    assert!(advice.argument[0].contains("leaves addresses as they are"), "{:?}", advice.argument);
}

#[test]
fn an_inside_address_or_joined_sites_need_a_tunnel() {
    for reach in [Reach::Network, Reach::Sites] {
        assert_eq!(recommended(&Answers { reach, ..typical() }), sealed());
    }
}

#[test]
fn devices_with_other_systems_get_a_solution_that_runs_there() {
    for (platform, name) in
        [(Platform::Windows, Some("everywhere")), (Platform::Ios, Some("everywhere")), (Platform::Android, None)]
    {
        let answers = Answers { platforms: vec![Platform::Linux, platform], ..typical() };
        assert_eq!(recommended(&answers), Recommendation::Tunnel(name.map(str::to_owned)), "{platform}");
    }
}

#[test]
fn applications_without_encryption_on_an_untrusted_path_need_a_tunnel() {
    assert_eq!(recommended(&Answers { encryption: Encryption::Nothing, ..typical() }), sealed());
    let some = recommended(&Answers { encryption: Encryption::Some, ..typical() });
    assert_eq!(some, Recommendation::Both(Some("sealed".to_owned())));
}

#[test]
fn on_the_own_path_unencrypted_applications_need_only_access() {
    let answers = Answers { path: Path::Own, encryption: Encryption::Nothing, ..typical() };
    assert_eq!(recommended(&answers), Recommendation::Vouchsafe);
    // Unless a changed packet does harm: a token protects the first packet only.
    let harmful = Answers { tampering: Tampering::Harmful, ..answers };
    assert_eq!(recommended(&harmful), sealed());
}

#[test]
fn where_nothing_can_be_installed_neither_helps() {
    assert_eq!(recommended(&Answers { devices: Devices::Nobody, ..typical() }), Recommendation::Browser);
}

#[test]
fn an_observed_property_counts_and_the_fastest_does_not_win_without_it() {
    let Recommendation::Tunnel(Some(name)) = recommended(&Answers { reach: Reach::Network, ..typical() }) else {
        panic!("a tunnel is needed");
    };
    assert_eq!(name, "sealed");
}

#[test]
fn without_a_run_no_candidate_is_invented() {
    let advice = advise(&Answers { reach: Reach::Network, ..typical() }, None);
    assert_eq!(advice.recommendation, Recommendation::Tunnel(None));
    assert!(advice.argument.iter().any(|line| line.contains("No run is at hand")), "{:?}", advice.argument);
}

#[test]
fn attribution_asks_for_accounts_of_ones_own() {
    let advice = advise(&Answers { attributable: true, ..typical() }, None);
    assert!(advice.argument.iter().any(|line| line.contains("account or key of their own")));
}
