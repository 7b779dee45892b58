//! Choice of the interfaces to which a verifier attaches, and the ways into the host that stay open with this choice.
//! Each frame must be verified exactly once: the first verification removes the token, so a second verification would
//! drop the packet.

use crate::interface::Layer;
use std::collections::{BTreeMap, BTreeSet};

/// Kinds of interfaces that pass on another interface's frames unchanged. Tunnels are not among them, because they
/// unwrap a different packet.
const OVER_LINK: [&str; 5] = ["vlan", "macvlan", "macvtap", "ipvlan", "ipvtap"];
/// Kinds of interfaces that receive the frames of their members.
const OVER_MEMBERS: [&str; 3] = ["bridge", "bond", "team"];
const OPEN_VSWITCH: &str = "openvswitch";

/// Returns those of the candidates (interface indices) whose frames also pass through another candidate. The value of
/// an entry is the index of this other candidate.
pub fn covered(layers: &[Layer], candidates: &BTreeSet<u32>) -> BTreeMap<u32, u32> {
    let by_index: BTreeMap<u32, &Layer> = layers.iter().map(|layer| (layer.index, layer)).collect();
    let first = |index: &u32| first_checkpoint(&by_index, candidates, *index, &mut BTreeSet::from([*index]));
    candidates.iter().filter_map(|index| Some((*index, first(index)?))).collect()
}

/// A way by which packets enter this host without passing a verifier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenWay {
    /// The interface through which the packets enter.
    pub name: String,
    /// Explanation for the operator: the reason why packets that enter here are not verified, and a way to change this,
    /// if there is one.
    pub why: String,
}

/// Returns the interfaces through which packets bypass the verifier, although it is attached to a related interface.
/// Such an interface is either a port of a bridge of which the verifier checks only other ports, or a macvlan or ipvlan
/// interface above a checked interface. Other interfaces above the same checked interface can send frames directly to
/// the macvlan or ipvlan interface. `checkpoints` are the indices of the verifier's interfaces.
pub fn open_ways(layers: &[Layer], checkpoints: &BTreeSet<u32>) -> Vec<OpenWay> {
    let by_index: BTreeMap<u32, &Layer> = layers.iter().map(|layer| (layer.index, layer)).collect();
    let is_checked = |index: u32| {
        checkpoints.contains(&index)
            || first_checkpoint(&by_index, checkpoints, index, &mut BTreeSet::from([index])).is_some()
    };
    let open = |layer: &Layer| {
        let name = layer.name.clone();
        let through = |index: &u32| by_index.get(index).map(|layer| layer.name.as_str());
        if let Some(lower) = layer.link.as_ref().filter(|_| layer.meets_siblings).and_then(through) {
            // The kernel shows unicast between macvlan siblings to the interface below, at tc and not to native XDP;
            // all other frames between siblings, and all of ipvlan's, bypass the interface below.
            let why = format!(
                "unprotected: not all frames from other interfaces on {lower} pass through {lower}; name {name} as \
                 `interface` instead of {lower}, or set the mode of {name} to private"
            );
            return layer.link.is_some_and(is_checked).then_some(OpenWay { name, why });
        }
        let master = by_index.get(&layer.master?)?;
        let others = below(&by_index, master.index);
        let is_open =
            !checkpoints.contains(&master.index) && !is_checked(layer.index) && others.into_iter().any(is_checked);
        let why =
            format!("unprotected: its frames reach {0}, but a verifier checks only other ports of {0}", master.name);
        is_open.then_some(OpenWay { name, why })
    };
    layers.iter().filter(|layer| layer.up && !checkpoints.contains(&layer.index)).filter_map(open).collect()
}

/// A reason why packets that arrive at an interface do not follow the routing rules for this interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Detour {
    /// The routing rules treat the packets as if they arrived at this interface, although they arrive at an interface
    /// below it.
    Above(String),
    /// A bridge or switch forwards the frames to an inside interface without routing. The inside interface can also be
    /// a port of this bridge or switch.
    Switched {
        /// The interface at which the packets arrive.
        outside: String,
        /// The inside interface.
        inside: String,
        /// The bridge or switch.
        by: String,
    },
    /// A master that does not only pass on the frames of its members (VRF, for example) routes the packets by rules of
    /// its own. The kernel applies these rules first.
    Routed {
        /// The interface at which the packets arrive.
        outside: String,
        /// The name of the master.
        by: String,
    },
}

/// Returns the ways by which packets that arrive at the interfaces `outside` (indices) escape the routing rules for
/// these interfaces. The rules do not apply to the interfaces `inside`, which may be above an outside interface.
pub fn detours(layers: &[Layer], outside: &BTreeSet<u32>, inside: &BTreeSet<u32>) -> Vec<Detour> {
    let by_index: BTreeMap<u32, &Layer> = layers.iter().map(|layer| (layer.index, layer)).collect();
    let name = |index: u32| by_index.get(&index).map(|layer| layer.name.clone()).unwrap_or_default();
    let first = |index: u32| first_checkpoint(&by_index, outside, index, &mut BTreeSet::from([index]));
    let mut found = Vec::new();
    for layer in layers {
        let below_it = if outside.contains(&layer.index) { Some(layer.index) } else { first(layer.index) };
        let Some(enters) = below_it else { continue };
        let kind = layer.kind.as_str();
        if kind == "bridge" || kind == OPEN_VSWITCH {
            let ports = lower(&by_index, layer.index);
            // An inside VLAN on a port is as near as the port.
            let reaches = |index: &&u32| !lower(&by_index, **index).is_disjoint(&ports);
            if let Some(inside) = inside.iter().find(reaches) {
                found.push(Detour::Switched { outside: name(enters), inside: name(*inside), by: layer.name.clone() });
            }
        }
        let master = layer.master.and_then(|master| by_index.get(&master));
        if let Some(master) = master.filter(|master| !passes_on(&master.kind)) {
            found.push(Detour::Routed { outside: layer.name.clone(), by: master.name.clone() });
        }
        if !outside.contains(&layer.index) && !inside.contains(&layer.index) {
            found.push(Detour::Above(layer.name.clone()));
        }
    }
    found
}

/// Reports whether a master of this kind only passes on the frames of its members.
fn passes_on(kind: &str) -> bool {
    kind == OPEN_VSWITCH || OVER_MEMBERS.contains(&kind)
}

/// Returns an interface and all interfaces below it.
fn lower(layers: &BTreeMap<u32, &Layer>, index: u32) -> BTreeSet<u32> {
    let (mut found, mut next) = (BTreeSet::new(), vec![index]);
    while let Some(index) = next.pop() {
        if found.insert(index) {
            next.extend(below(layers, index));
        }
    }
    found
}

/// Returns the candidate below `index` that is closest to the wire.
fn first_checkpoint(
    layers: &BTreeMap<u32, &Layer>,
    candidates: &BTreeSet<u32>,
    index: u32,
    seen: &mut BTreeSet<u32>,
) -> Option<u32> {
    for below in below(layers, index) {
        if seen.insert(below) {
            let deeper = first_checkpoint(layers, candidates, below, seen);
            if let Some(checkpoint) = deeper.or_else(|| candidates.contains(&below).then_some(below)) {
                return Some(checkpoint);
            }
        }
    }
    None
}

/// Returns the interfaces whose frames this one passes on.
fn below(layers: &BTreeMap<u32, &Layer>, index: u32) -> Vec<u32> {
    let Some(layer) = layers.get(&index) else { return Vec::new() };
    let members = |master: u32| layers.values().filter(move |member| member.master == Some(master)).map(|m| m.index);
    match layer.kind.as_str() {
        kind if OVER_LINK.contains(&kind) => layer.link.into_iter().collect(),
        kind if OVER_MEMBERS.contains(&kind) => members(index).collect(),
        // The switch's own ports name no lower interface: any frame that enters the switch may leave at them.
        OPEN_VSWITCH => {
            let switches = layers.values().filter(|layer| layer.kind == OPEN_VSWITCH);
            switches.flat_map(|switch| members(switch.index)).collect()
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(index: u32, kind: &str, link: u32, master: u32) -> Layer {
        let some = |index: u32| (index != 0).then_some(index);
        Layer { index, kind: kind.into(), link: some(link), master: some(master), ..Layer::default() }
    }

    fn of(layers: &[Layer]) -> Vec<(u32, u32)> {
        covered(layers, &layers.iter().map(|layer| layer.index).collect()).into_iter().collect()
    }

    #[test]
    fn what_is_over_another_is_covered_by_it() {
        assert_eq!(of(&[layer(1, "", 0, 3), layer(2, "veth", 9, 3), layer(3, "bridge", 0, 0)]), [(3, 1)]);
        assert_eq!(of(&[layer(1, "", 0, 2), layer(2, "bond", 0, 0), layer(3, "vlan", 2, 0)]), [(2, 1), (3, 1)]);
        assert_eq!(of(&[layer(1, "", 0, 0), layer(2, "macvlan", 1, 0)]), [(2, 1)]);
        let switch = [layer(1, "", 0, 2), layer(2, "openvswitch", 0, 0), layer(3, "openvswitch", 0, 0)];
        assert_eq!(of(&switch), [(2, 1), (3, 1)]);
    }

    #[test]
    fn tunnels_pairs_and_interfaces_on_unprotected_ones_are_not() {
        assert_eq!(of(&[layer(1, "", 0, 0), layer(2, "vxlan", 1, 0), layer(3, "macsec", 1, 0)]), []);
        assert_eq!(of(&[layer(1, "veth", 2, 0), layer(2, "veth", 1, 0)]), []);
        assert_eq!(of(&[layer(1, "bridge", 0, 0)]), []);
        let layers = [layer(1, "", 0, 0), layer(2, "vlan", 1, 0)];
        assert_eq!(covered(&layers, &BTreeSet::from([2])), BTreeMap::new());
    }

    fn open(layers: &[Layer], checkpoints: &[u32]) -> Vec<u32> {
        let up: Vec<_> =
            layers.iter().map(|layer| Layer { up: true, name: layer.index.to_string(), ..layer.clone() }).collect();
        let ways = open_ways(&up, &checkpoints.iter().copied().collect());
        ways.iter().filter_map(|way| way.name.parse().ok()).collect()
    }

    #[test]
    fn a_bridge_is_closed_only_if_every_port_is_checked() {
        let bridge = [layer(1, "", 0, 3), layer(2, "veth", 9, 3), layer(3, "bridge", 0, 0), layer(4, "", 0, 0)];
        assert_eq!(open(&bridge, &[1]), [2]);
        assert_eq!(open(&bridge, &[1, 2]), [0; 0]);
        assert_eq!(open(&bridge, &[3]), [0; 0], "checked at the bridge itself");
        assert_eq!(open(&bridge, &[4]), [0; 0], "nobody counts on it");
        let bond = [layer(1, "", 0, 2), layer(2, "bond", 0, 3), layer(3, "bridge", 0, 0), layer(4, "tun", 0, 3)];
        assert_eq!(open(&bond, &[1]), [4], "the bond is checked at its member");
    }

    #[test]
    fn siblings_reach_each_other_beside_the_interface_below() {
        let macvlan = |meets_siblings| {
            let child = Layer { meets_siblings, ..layer(2, "macvlan", 1, 0) };
            [layer(1, "", 0, 0), child]
        };
        assert_eq!(open(&macvlan(true), &[1]), [2]);
        assert_eq!(open(&macvlan(false), &[1]), [0; 0]);
        assert_eq!(open(&macvlan(true), &[2]), [0; 0], "checked at the child");
    }

    /// Returns the detours as text.
    fn around(layers: &[Layer], outside: &[u32], inside: &[u32]) -> Vec<String> {
        let named: Vec<_> =
            layers.iter().map(|layer| Layer { name: layer.index.to_string(), ..layer.clone() }).collect();
        let set = |indices: &[u32]| indices.iter().copied().collect();
        let text = |detour| match detour {
            Detour::Above(name) => name,
            Detour::Switched { outside, inside, by } => format!("{outside} to {inside} by {by}"),
            Detour::Routed { outside, by } => format!("{outside} in {by}"),
        };
        detours(&named, &set(outside), &set(inside)).into_iter().map(text).collect()
    }

    #[test]
    fn routing_rules_need_the_interfaces_above() {
        let layers = [
            layer(1, "", 0, 0),
            layer(2, "", 0, 0),
            layer(3, "vlan", 1, 0),
            layer(4, "vlan", 3, 6),
            layer(5, "macvlan", 2, 0),
            layer(6, "bridge", 0, 0),
            layer(7, "vxlan", 1, 0),
        ];
        assert_eq!(around(&layers, &[1], &[2]), ["3", "4", "6"]);
        assert_eq!(around(&layers, &[1, 3, 4, 6], &[2]), [""; 0]);
        let cable = [layer(1, "", 0, 0), layer(2, "vlan", 1, 0), layer(3, "vlan", 1, 0)];
        assert_eq!(around(&cable, &[1], &[2]), ["3"], "an inside VLAN on the same cable");
    }

    #[test]
    fn a_bridge_of_both_sides_and_a_vrf_are_no_way_for_routing_rules() {
        let bridged = [layer(1, "", 0, 3), layer(2, "", 0, 3), layer(3, "bridge", 0, 0), layer(4, "vlan", 2, 0)];
        assert_eq!(around(&bridged, &[1], &[2]), ["1 to 2 by 3", "3"]);
        assert_eq!(around(&bridged, &[3], &[2]), ["3 to 2 by 3"]);
        assert_eq!(around(&bridged, &[1], &[3]), ["1 to 3 by 3"], "the inside is the bridge's other ports");
        assert_eq!(around(&bridged, &[1], &[4]), ["1 to 4 by 3", "3"], "an inside VLAN on a port");
        let switch = [layer(1, "", 0, 3), layer(2, "", 0, 3), layer(3, "openvswitch", 0, 0)];
        assert_eq!(around(&switch, &[1], &[2]), ["1 to 2 by 3", "3"]);
        let vrf = [layer(1, "", 0, 3), layer(2, "vlan", 1, 4), layer(3, "bond", 0, 0), layer(4, "vrf", 0, 0)];
        assert_eq!(around(&vrf, &[1], &[]), ["2 in 4", "2", "3"]);
    }

    #[test]
    fn a_loop_ends() {
        assert_eq!(of(&[layer(1, "vlan", 2, 0), layer(2, "vlan", 1, 0)]).len(), 2);
    }
}
