//! The solutions: one short file for each program, which may have several variants.

mod fastd;
mod faulty;
mod fwknop;
mod n2n;
mod nebula;
mod ocserv;
mod openvpn;
mod plain;
mod ppp;
mod proofs;
mod quicktun;
mod rootless;
mod socat;
mod softether;
mod ssh;
pub(crate) mod strongswan;
mod tailscale;
mod tinc;
pub(crate) mod vouchsafe;
mod vtun;
mod vxlan;
mod wireguard;

use anyhow::{Result, bail, ensure};

use crate::claims::Feature;
use crate::driver::Driver;

/// The solutions of a quick run.
pub const QUICK: [&str; 10] = [
    "plain",
    "wireguard-go",
    "openvpn-udp",
    "openvpn-tcp",
    "vouchsafe-tail",
    "vouchsafe-shim",
    "vouchsafe-stream",
    "vouchsafe-seal",
    "vouchsafe-seal-auth",
    "vouchsafe-proofs",
];

/// Returns every solution, in the order of the report.
pub fn all() -> Vec<Box<dyn Driver>> {
    let lists = [
        plain::variants(),
        vouchsafe::variants(),
        proofs::variants(),
        fwknop::variants(),
        wireguard::variants(),
        tailscale::variants(),
        openvpn::variants(),
        strongswan::variants(),
        ocserv::variants(),
        softether::variants(),
        tinc::variants(),
        vxlan::variants(),
        fastd::variants(),
        nebula::variants(),
        n2n::variants(),
        vtun::variants(),
        quicktun::variants(),
        ssh::variants(),
        socat::variants(),
        ppp::variants(),
        faulty::variants(),
    ];
    lists.into_iter().flatten().collect()
}

/// Returns the solutions with these names, in the order of `names`.
///
/// # Errors
///
/// Fails if no solution has one of these names, or if a name occurs twice. In the first case, the error lists the names
/// of all solutions.
pub fn named(names: &[String]) -> Result<Vec<Box<dyn Driver>>> {
    let mut left: Vec<Option<Box<dyn Driver>>> = all().into_iter().map(Some).collect();
    let mut chosen = Vec::new();
    for name in names {
        let found = left.iter_mut().find(|driver| driver.as_ref().is_some_and(|driver| driver.name() == *name));
        match found.and_then(Option::take) {
            Some(driver) => chosen.push(driver),
            None => {
                let known: Vec<_> = all().iter().map(|driver| driver.name()).collect();
                ensure!(!known.contains(name), "the solution `{name}` is named twice; name it once");
                bail!("there is no solution `{name}`; the solutions are: {}", known.join(", "));
            }
        }
    }
    Ok(chosen)
}

/// The claims of every tunnel with encryption, integrity protection and a fresh key exchange.
const TUNNEL: [Feature; 6] = [
    Feature::HidesAddresses,
    Feature::Encrypts,
    Feature::Authenticates,
    Feature::ForwardSecrecy,
    Feature::InsideAddress,
    Feature::PassesNat,
];

/// The claims of solutions with clients for all common systems.
const ALL_PLATFORMS: [Feature; 4] = [Feature::Windows, Feature::MacOs, Feature::Android, Feature::Ios];

/// Adds features to a list.
fn and(some: &[Feature], more: &[Feature]) -> Vec<Feature> {
    [some, more].concat()
}

/// Returns a list of features without some of them.
fn without(all: &[Feature], these: &[Feature]) -> Vec<Feature> {
    all.iter().copied().filter(|feature| !these.contains(feature)).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::claims::{Plane, Transport};
    use crate::driver::Door;
    use crate::workshop::Workshop;

    #[test]
    fn names_are_unique_and_a_quick_run_knows_its_solutions() {
        let all = all();
        let names: BTreeSet<_> = all.iter().map(|driver| driver.name()).collect();
        assert_eq!(names.len(), all.len());
        assert!(QUICK.iter().all(|name| names.contains(*name)));
    }

    #[test]
    fn every_missing_program_is_named_with_what_brings_it() {
        for driver in all() {
            assert!(driver.needs().iter().all(|need| !need.package.is_empty()), "{}", driver.name());
        }
    }

    #[test]
    fn a_door_has_the_transport_that_is_claimed() {
        for driver in all() {
            let claims = driver.claims();
            match driver.door() {
                Door::Udp(_) => assert_eq!(claims.transport, Transport::Udp, "{}", driver.name()),
                Door::Tcp(_) => assert_ne!(claims.transport, Transport::None, "{}", driver.name()),
                Door::Inside => assert_eq!(claims.plane, Plane::Kernel, "{}", driver.name()),
            }
        }
    }

    #[test]
    fn an_unknown_solution_is_refused_with_a_list() {
        let error = named(&["carrier-pigeon".to_owned()]).err().expect("it is unknown");
        assert!(error.to_string().contains("wireguard-go"), "{error}");
        let error = named(&["plain".to_owned(), "plain".to_owned()]).err().expect("it is named twice");
        assert!(error.to_string().contains("named twice"), "{error}");
    }

    #[test]
    fn preparing_more_clients_never_costs_fewer_steps() {
        for driver in all().iter().filter(|driver| crate::driver::obstacle(driver.as_ref()).is_none()) {
            let steps = [1, 2].map(|clients| {
                let mut shop = Workshop::new().unwrap();
                driver.prepare(&mut shop, clients).unwrap();
                shop.steps().total()
            });
            assert!(steps[0] <= steps[1], "{}: {steps:?}", driver.name());
        }
    }
}
