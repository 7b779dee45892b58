//! Checks for gaps in the protection by this host's verifiers: unprotected sockets, and ways into this host that bypass
//! the verifiers.

use crate::Check;
use crate::host::why;
use datapath::Pins;
use datapath::coverage::{OpenWay, open_ways};
use datapath::interface::layers;
use datapath::local::Local;
use datapath::optional;
use datapath::protected::Protected;
use datapath::sockets::{self, Listener, Outside};
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;

const TCP: u8 = 6;

/// Checks each verifier whose daemon runs in this network namespace.
pub(crate) fn outside() -> Vec<Check> {
    let verifiers = Pins::all().into_iter().filter(|pins| pins.name().starts_with("verifier-") && is_here(pins));
    verifiers.flat_map(|pins| [Some(ways(&pins)), Some(sockets_of(&pins)), optional_of(&pins)]).flatten().collect()
}

fn sockets_of(pins: &Pins) -> Check {
    match Protected::pinned(pins).and_then(|protected| Ok((protected, Local::now()?))) {
        Ok((protected, local)) => unprotected(&pins.name(), &sockets::outside(&protected, &local)),
        Err(error) => Check::warn("sockets", why(&error), "run it as root"),
    }
}

/// Lists the services that the operator has opened to everybody, if there are any.
fn optional_of(pins: &Pins) -> Option<Check> {
    match optional::pinned(pins) {
        Ok(services) => open_to_everybody(&pins.name(), &services),
        Err(error) => Some(Check::warn("optional", why(&error), "run it as root")),
    }
}

fn open_to_everybody(verifier: &str, services: &[SocketAddr]) -> Option<Check> {
    let all: Vec<_> = services.iter().map(|service| format!("tcp {service}")).collect();
    let found = format!("{verifier}: everybody may reach these services, with or without a token: {}", all.join(", "));
    (!all.is_empty()).then(|| Check::ok("optional", found))
}

fn ways(pins: &Pins) -> Check {
    let (name, links) = (pins.name(), pins.links());
    let layers = match layers() {
        Ok(layers) => layers,
        Err(error) => return Check::warn("ways in", why(&error), "run it as root"),
    };
    let attached = layers.iter().filter(|layer| links.contains(&layer.name)).map(|layer| layer.index).collect();
    covered(&name, &open_ways(&layers, &attached))
}

fn covered(verifier: &str, open: &[OpenWay]) -> Check {
    let all: Vec<_> = open.iter().map(|way| format!("{} is {}", way.name, way.why)).collect();
    if all.is_empty() {
        return Check::ok("ways in", format!("{verifier}: no known path into this host bypasses its programs"));
    }
    let remedy = "have the verifier protect these interfaces, too, or detach them from the protected ones";
    Check::missing("ways in", format!("{verifier}: {}", all.join("; ")), remedy)
}

fn is_here(pins: &Pins) -> bool {
    let network = |process: &str| -> Option<PathBuf> { fs::read_link(format!("/proc/{process}/ns/net")).ok() };
    let holder = pins.holder().and_then(|process| network(&process.to_string()));
    holder.is_some() && holder == network("self")
}

/// Reports unprotected sockets. A service that is unprotected at every address needs no protection; a service that is
/// protected at some of its addresses only is a mistake.
fn unprotected(verifier: &str, all: &[Outside]) -> Check {
    let name =
        |Listener { protocol, address }: Listener| format!("{} {address}", if protocol == TCP { "tcp" } else { "udp" });
    let names = |partly: bool| -> Vec<String> {
        let of = all.iter().filter(|outside| outside.partly == partly);
        of.map(|outside| {
            let at: Vec<_> = outside.at.iter().map(ToString::to_string).collect();
            if partly { format!("{} at {}", name(outside.listener), at.join(" ")) } else { name(outside.listener) }
        })
        .collect()
    };
    let (partly, never) = (names(true), names(false));
    let never = if never.is_empty() { "none".to_owned() } else { never.join(", ") };
    if partly.is_empty() {
        return Check::ok("sockets", format!("{verifier}: unprotected: {never}"));
    }
    let found = format!(
        "{verifier}: unprotected at some addresses: {}; unprotected at every address: {never}",
        partly.join(", ")
    );
    Check::warn(
        "sockets",
        found,
        "remove `only_named` from verifier.toml, or bind the service to the address that is protected",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::State;

    #[test]
    fn services_that_are_open_to_everybody_are_named() {
        let services = ["192.0.2.20:443", "[2001:db8::20]:443"].map(|text| text.parse().expect("an address"));
        let check = open_to_everybody("verifier-main", &services).expect("a check");
        assert!(check.found.ends_with("tcp 192.0.2.20:443, tcp [2001:db8::20]:443"), "{}", check.found);
        assert!(open_to_everybody("verifier-main", &[]).is_none());
    }

    fn outside(port: u16, partly: bool) -> Outside {
        let address = ([0, 0, 0, 0], port).into();
        Outside { listener: Listener { protocol: TCP, address }, at: vec![[192, 0, 2, 9].into()], partly }
    }

    #[test]
    fn a_way_in_that_nobody_judges_is_missing() {
        assert_eq!(covered("verifier-main", &[]).state, State::Ok);
        let way = OpenWay { name: "mv0".into(), why: "unprotected: siblings".into() };
        let check = covered("verifier-main", &[way]);
        assert_eq!((check.state, &*check.found), (State::Missing, "verifier-main: mv0 is unprotected: siblings"));
    }

    #[test]
    fn a_service_that_is_protected_in_part_is_a_warning() {
        let check = |all: &[Outside]| unprotected("verifier-main", all);
        assert_eq!(check(&[]), Check::ok("sockets", "verifier-main: unprotected: none"));
        assert_eq!(check(&[outside(80, false)]).found, "verifier-main: unprotected: tcp 0.0.0.0:80");
        let partly = check(&[outside(80, false), outside(22, true)]);
        assert_eq!(partly.state, State::Warn);
        assert!(partly.found.contains("tcp 0.0.0.0:22 at 192.0.2.9"), "{}", partly.found);
    }
}
