//! The verifier's metrics: the numbers of `status` and `drops`, without the names of people.

use crate::view::{Drops, Peer, Status};
use api::VerifierState;
use shell::metrics::{Page, label};

/// Returns the page of metrics.
pub fn page(status: &Status, drops: &Drops, now: u64) -> Page {
    let mut page = Page::new("verifier");
    let packets = |outcomes: &[crate::view::Counter], name| {
        outcomes.iter().map(|one| (label(name, &one.name), one.packets)).collect::<Vec<_>>()
    };
    page.counters("packets", "Packets that passed, by outcome", packets(&drops.passed, "outcome"));
    page.counters(
        "dropped_packets",
        "Packets that were dropped (when observing: would have been), by drop reason",
        packets(&drops.reasons, "reason"),
    );
    if let Some(proofs) = &status.proofs {
        page.counters("proofs", "Packets of virtual networks that passed, by how", packets(&proofs.passed, "outcome"));
        page.counters(
            "dropped_proofs",
            "Packets of virtual networks that were dropped, by drop reason",
            packets(&proofs.reasons, "reason"),
        );
        page.gauge("withdrawn", "Statements of withdrawn consent that have not ended", proofs.withdrawn as f64);
    }
    page.counter("samples_lost", "Drops that were counted and not reported", drops.samples_lost);
    let used = status.tables.iter().filter_map(|table| Some((label("table", &table.name), table.used? as f64)));
    page.gauges("table_entries", "Entries in use, by table", used);
    let max = status.tables.iter().map(|table| (label("table", &table.name), table.max as f64));
    page.gauges("table_entries_max", "Room for entries, by table", max);
    page.gauges(
        "state",
        "1 for the state it is in",
        VerifierState::ALL.map(|state| (label("state", state.name()), f64::from(status.state == state.name()))),
    );
    let interfaces = status.interfaces.iter().map(|interface| {
        let texts = [("interface", &interface.name), ("hook", &interface.hook), ("mode", &interface.mode)];
        (texts.map(|(name, text)| (name, text.clone())).to_vec(), 1.0)
    });
    page.gauges("interface", "1 for each attached interface, with hook and mode", interfaces);
    page.gauge("not_attached", "Interfaces that are left out or can't be protected", status.not_attached.len() as f64);
    let peer = |peer: &Peer| label("peer", &peer.address);
    let of_peers = |value: fn(&Peer) -> Option<f64>| {
        status.peers.iter().filter_map(move |one| Some((label("peer", &one.address), value(one)?))).collect::<Vec<_>>()
    };
    page.gauges(
        "peer_connected",
        "Whether a gateway beside this one has been told of all flows and hears of new ones",
        of_peers(|peer| Some(peer.connected.into())),
    );
    page.gauges(
        "peer_gap_seconds",
        "From a flow's first packet here until it passes at a gateway beside this one: median of the latest",
        of_peers(|peer| Some(peer.gap_us? as f64 / 1e6)),
    );
    let told = status.peers.iter().map(|one| (peer(one), one.told));
    page.counters("peer_flows", "Flows that a gateway beside this one took over or refreshed", told);
    let refused = status.peers.iter().map(|one| (peer(one), one.refused));
    page.counters("peer_flows_refused", "Flows that a gateway beside this one did not take", refused);
    page.gauge("peers_heard", "Gateways that tell this one of their flows", status.peers_heard.len() as f64);
    page.gauge("connected", "Whether the authority's event stream is up", status.connected.into());
    page.gauge("trouble", "Whether something is wrong with the authority", status.trouble.is_some().into());
    let age = status.read.map_or(f64::NAN, |read| now.saturating_sub(read) as f64);
    page.gauge("keys_age_seconds", "Since configuration and keys were read from the authority", age);
    let left = status.keys_until.map_or(0.0, |until| until.saturating_sub(now) as f64);
    page.gauge("keys_left_seconds", "Until there is no key; 0 if there is none for the current epoch", left);
    page.gauge("protected_prefixes", "Prefixes under protection", status.protected.len() as f64);
    page.gauge(
        "sockets_outside",
        "Listening sockets of this host that are not protected everywhere",
        status.outside.len() as f64,
    );
    page.gauge("owners", "Grants whose owners are known", status.owners as f64);
    page
}
