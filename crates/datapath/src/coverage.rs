//! Choice of the interfaces that a verifier attaches to, and the ways into the host that the choice leaves open. A
//! frame must be verified exactly once: the first verification removes the token, and a second one would drop the
//! packet for lack of it.

use crate::interface::Layer;
use std::collections::{BTreeMap, BTreeSet};

/// Interfaces that pass on another interface's frames unchanged. Tunnels don't belong here: they unwrap a different
/// packet.
const OVER_LINK: [&str; 5] = ["vlan", "macvlan", "macvtap", "ipvlan", "ipvtap"];
/// Interfaces that take frames from their members.
const OVER_MEMBERS: [&str; 3] = ["bridge", "bond", "team"];
const OPEN_VSWITCH: &str = "openvswitch";

/// Returns, for each of `candidates` (indexes) whose frames also come through another candidate, the index of that
/// other candidate.
pub fn covered(layers: &[Layer], candidates: &BTreeSet<u32>) -> BTreeMap<u32, u32> {
    let by_index: BTreeMap<u32, &Layer> = layers.iter().map(|layer| (layer.index, layer)).collect();
    let first = |index: &u32| first_checkpoint(&by_index, candidates, *index, &mut BTreeSet::from([*index]));
    candidates.iter().filter_map(|index| Some((*index, first(index)?))).collect()
}

/// A way into this host without a verifier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenWay {
    /// The interface that packets enter through.
    pub name: String,
    /// The reach of packets that enter there, and how to close the way.
    pub why: String,
}

/// Returns the ways in that an operator may believe to be closed while these interfaces (indexes) have a verifier:
/// ports of a bridge whose other ports have a verifier, and interfaces that other interfaces on the same lower
/// interface reach directly.
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
                 `interface` instead of {lower}, or set its mode to private"
            );
            return layer.link.is_some_and(is_checked).then_some(OpenWay { name, why });
        }
        let master = by_index.get(&layer.master?)?;
        let others = below(&by_index, master.index);
        let is_open =
            !checkpoints.contains(&master.index) && !is_checked(layer.index) && others.into_iter().any(is_checked);
        let why =
            format!("unprotected: its frames reach {0}, and a verifier checks other ports of {0} only", master.name);
        is_open.then_some(OpenWay { name, why })
    };
    layers.iter().filter(|layer| layer.up && !checkpoints.contains(&layer.index)).filter_map(open).collect()
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

    #[test]
    fn a_loop_ends() {
        assert_eq!(of(&[layer(1, "vlan", 2, 0), layer(2, "vlan", 1, 0)]).len(), 2);
    }
}
