//! Checks of one interface.

use crate::Check;
use crate::host::why;
use datapath::hook::{Mode, favours_tc};
use datapath::interface::{Interface, LARGE_RECEIVE_OFFLOAD};
use datapath::probe::{self, Occupant, Probe};

/// Name of the verifier's program in the kernel.
const ADMIT: &str = "admit";
const FAST: &str = "sufficient at low rates; for high rates use a card whose driver supports native XDP";
/// Approximate length of the longest packet that fits into a page, together with XDP's headroom and the kernel's
/// metadata of the packet.
const MTU_IN_ONE_PIECE: u32 = 3500;

/// Runs all checks of `interface`. If the interface lacks a feature, the result is `Missing` if the interface is
/// `wanted` for a verifier, otherwise a warning.
pub(crate) fn checks(interface: &Interface, probe: Option<&Probe>, wanted: bool) -> Vec<Check> {
    let driver = interface.driver();
    let mut checks = vec![Check::ok("driver", driver.as_deref().unwrap_or("without a name"))];
    let xdp = probe.map(|probe| Xdp::of(interface, probe, wanted));
    checks.push(match interface.link_header {
        14 => Check::ok("link", "Ethernet"),
        _ => lack(
            wanted,
            Check::warn(
                "link",
                "no Ethernet header: usable by an agent only",
                "protect another interface on the path that has one",
            ),
        ),
    });
    let mode = xdp.as_ref().and_then(Xdp::mode);
    checks.extend((interface.link_header == 14).then(|| chosen(favours_tc(interface), mode)));
    checks.extend(xdp.filter(|_| interface.link_header == 14).map(|xdp| xdp.check(interface, wanted)));
    if let Some(probe) = probe {
        checks.push(match probe.tc(interface) {
            Ok(attachment) => Check::ok("tc", attachment.name()),
            Err(error) => Check::warn("tc", why(&error), "agents cannot use this interface"),
        });
    }
    checks.extend(interface.mtu().map(|mtu| length(mtu, mode)));
    checks.push(offloads(&interface.offloads(), &interface.name));
    checks.into_iter().map(|check| check.on(&interface.name)).collect()
}

fn lack(wanted: bool, check: Check) -> Check {
    if wanted { Check { state: crate::State::Missing, ..check } } else { check }
}

/// Reports the hook that a verifier selects automatically, and why.
fn chosen(favours_tc: Option<String>, mode: Option<Mode>) -> Check {
    let found = match (favours_tc, mode) {
        (Some(why), _) => format!("auto selects tc: {why}"),
        (None, Some(Mode::Native | Mode::Offloaded)) => "auto selects xdp: the driver supports it".to_owned(),
        (None, Some(Mode::Generic)) => "auto selects tc: the driver does not support XDP".to_owned(),
        (None, _) => "auto selects xdp if the driver supports it, otherwise tc".to_owned(),
    };
    Check::ok("hook", found)
}

/// State of XDP on an interface.
enum Xdp {
    Free(Mode),
    /// No other XDP program is attached, but XDP was not tested. The value says whether the driver supports native XDP,
    /// if the driver reports this.
    Untried(Option<bool>),
    /// Only generic XDP works, because the driver refused native XDP for this reason.
    Fallback(String),
    Ours(Option<Mode>),
    Taken(Occupant),
    Refused(String),
}

impl Xdp {
    /// Determines the state. XDP is tried only if the interface is wanted: generic XDP permanently turns off offloads
    /// of the card, and native XDP may interrupt its traffic.
    fn of(interface: &Interface, probe: &Probe, wanted: bool) -> Self {
        match probe::occupant(interface) {
            Some(occupant) if occupant.name == ADMIT => Self::Ours(occupant.mode),
            Some(occupant) => Self::Taken(occupant),
            None if !wanted => Self::Untried(probe::driver_has_xdp(interface)),
            None => match probe.xdp(interface) {
                Ok((mode, None)) => Self::Free(mode),
                Ok((_, Some(refusal))) => Self::Fallback(why(&refusal)),
                Err(error) => Self::Refused(why(&error)),
            },
        }
    }

    fn mode(&self) -> Option<Mode> {
        match self {
            Self::Free(mode) => Some(*mode),
            Self::Fallback(_) => Some(Mode::Generic),
            Self::Ours(mode) => *mode,
            Self::Untried(Some(false)) => Some(Mode::Generic),
            _ => None,
        }
    }

    fn check(self, interface: &Interface, wanted: bool) -> Check {
        let name = &interface.name;
        match self {
            Self::Untried(said) => {
                let tries = format!("`doctor --interface {name}` tests it");
                match said {
                    Some(true) => Check::ok("xdp", format!("native, according to the driver; {tries}")),
                    Some(false) => Check::warn("xdp", "generic: the driver does not support XDP", FAST),
                    None => Check::ok("xdp", tries),
                }
            }
            Self::Free(Mode::Generic) => Check::warn("xdp", "generic: the driver does not support XDP", FAST),
            Self::Fallback(why) => Check::warn(
                "xdp",
                format!("generic: the driver supports XDP but rejected the program: {why}"),
                format!("`dmesg` may say why: often the MTU, queues (`ethtool -L {name} combined N`) or offloads"),
            ),
            Self::Ours(Some(Mode::Generic)) => Check::warn("xdp", "generic; a verifier is attached", FAST),
            Self::Free(mode) => Check::ok("xdp", mode.name()),
            Self::Ours(mode) => {
                Check::ok("xdp", format!("{}; a verifier is attached", mode.map_or("several programs", Mode::name)))
            }
            Self::Taken(Occupant { id, name: program, mode }) => {
                let mode = mode.map_or(String::new(), |mode| format!(", {}", mode.name()));
                let found = format!("used by another program, {program:?} ({id}){mode}");
                let remedy = format!("detach that program, or leave {name} out of the verifier's interfaces");
                lack(wanted, Check::warn("xdp", found, remedy))
            }
            Self::Refused(why) => {
                lack(wanted, Check::warn("xdp", why, format!("leave {name} out of the verifier's interfaces")))
            }
        }
    }
}

/// Checks the MTU. Vouchsafe's programs accept packets in several buffers (XDP frags); some drivers don't.
fn length(mtu: u32, mode: Option<Mode>) -> Check {
    match mode {
        _ if mtu <= MTU_IN_ONE_PIECE => Check::ok("mtu", format!("{mtu}")),
        Some(Mode::Native | Mode::Offloaded) => Check::ok("mtu", format!("{mtu}, in several buffers (XDP frags)")),
        Some(Mode::Generic) => Check::warn(
            "mtu",
            format!("{mtu}: many drivers do not support native XDP beyond {MTU_IN_ONE_PIECE}"),
            format!("try an MTU of at most {MTU_IN_ONE_PIECE} for native XDP"),
        ),
        Some(Mode::Tcx | Mode::Clsact) | None => Check::ok("mtu", format!("{mtu}, requires XDP frags")),
    }
}

fn offloads(on: &[&str], interface: &str) -> Check {
    let found = if on.is_empty() { "none".to_owned() } else { on.join(", ") };
    if on.contains(&LARGE_RECEIVE_OFFLOAD) {
        let remedy = format!("`ethtool -K {interface} lro off`: drivers reject native XDP while LRO is on");
        Check::warn("offloads", found, remedy)
    } else {
        Check::ok("offloads", found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::State;

    fn eth0() -> Interface {
        Interface { name: "eth0".to_owned(), index: 2, link_header: 14 }
    }

    #[test]
    fn a_program_of_somebody_else_is_in_the_way_only_where_a_verifier_is_wanted() {
        let taken = || Xdp::Taken(Occupant { id: 7, name: "filter".to_owned(), mode: Some(Mode::Native) });
        let check = taken().check(&eth0(), true);
        assert_eq!((check.state, &*check.found), (State::Missing, r#"used by another program, "filter" (7), native"#));
        assert_eq!(taken().check(&eth0(), false).state, State::Warn);
        assert_eq!(Xdp::Ours(Some(Mode::Native)).check(&eth0(), true).state, State::Ok);
        assert_eq!(Xdp::Refused(String::new()).check(&eth0(), true).state, State::Missing);
    }

    #[test]
    fn the_hook_that_a_verifier_takes_is_said_with_its_reason() {
        assert_eq!(chosen(Some("virtual (veth)".into()), None).found, "auto selects tc: virtual (veth)");
        assert_eq!(chosen(None, Some(Mode::Native)).found, "auto selects xdp: the driver supports it");
        assert_eq!(chosen(None, Some(Mode::Generic)).found, "auto selects tc: the driver does not support XDP");
    }

    #[test]
    fn generic_xdp_is_slow_and_works() {
        assert_eq!(Xdp::Free(Mode::Generic).check(&eth0(), true).state, State::Warn);
        assert_eq!(Xdp::Untried(Some(false)).check(&eth0(), false).state, State::Warn);
        assert_eq!(Xdp::Untried(Some(true)).check(&eth0(), false).state, State::Ok);
        assert_eq!(Xdp::Untried(None).check(&eth0(), false), Check::ok("xdp", "`doctor --interface eth0` tests it"));
        assert_eq!(Xdp::Fallback(String::new()).check(&eth0(), true).state, State::Warn);
        assert_eq!(Xdp::Free(Mode::Native).check(&eth0(), true), Check::ok("xdp", "native"));
    }

    #[test]
    fn long_packets_ask_for_a_driver_with_fragments() {
        assert_eq!(length(1500, Some(Mode::Generic)), Check::ok("mtu", "1500"));
        assert_eq!(length(9000, Some(Mode::Native)).state, State::Ok);
        assert_eq!(length(9000, Some(Mode::Generic)).state, State::Warn);
    }

    #[test]
    fn merged_packets_are_a_warning() {
        assert_eq!(offloads(&["tx-checksumming", "generic-receive-offload"], "eth0").state, State::Ok);
        assert_eq!(offloads(&[LARGE_RECEIVE_OFFLOAD], "eth0").state, State::Warn);
        assert_eq!(offloads(&[], "eth0"), Check::ok("offloads", "none"));
    }
}
