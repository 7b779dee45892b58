//! The verifier's metrics: the numbers that the commands `status` and `drops` show. They contain no names of people.

use crate::view::{Drops, Organisation, Peer, Status};
use api::VerifierState;
use shell::metrics::{Page, label};

/// Computes a figure of one organisation. The `u64` is the current time, Unix seconds.
type OfOrganisation = fn(&Organisation, u64) -> f64;

fn of_connected(one: &Organisation, _: u64) -> f64 {
    one.connected.into()
}

fn of_trouble(one: &Organisation, _: u64) -> f64 {
    one.trouble.is_some().into()
}

fn of_keys(one: &Organisation, now: u64) -> f64 {
    one.keys_until.map_or(0.0, |until| until.saturating_sub(now) as f64)
}

fn of_refused(one: &Organisation, _: u64) -> f64 {
    one.refused.len() as f64
}

fn of_closed(one: &Organisation, _: u64) -> f64 {
    one.closed.into()
}

/// Builds the page of metrics.
pub fn page(status: &Status, drops: &Drops, now: u64) -> Page {
    let mut page = Page::new("verifier");
    let packets = |outcomes: &[crate::view::Counter], name| {
        outcomes.iter().map(|one| (label(name, &one.name), one.packets)).collect::<Vec<_>>()
    };
    page.counters("packets", "Packets that the verifier accepted, by outcome", packets(&drops.passed, "outcome"));
    page.counters(
        "dropped_packets",
        "Packets that were dropped, or would have been when observing, by drop reason",
        packets(&drops.reasons, "reason"),
    );
    page.counters(
        "dropped_tunnel_packets",
        "Records and packets of sealed tunnels dropped before the decision on the packet, by reason",
        packets(&drops.tunnel, "reason"),
    );
    if let Some(proofs) = &status.proofs {
        page.counters(
            "proofs",
            "Packets of virtual networks that passed, by outcome",
            packets(&proofs.passed, "outcome"),
        );
        page.counters(
            "dropped_proofs",
            "Packets of virtual networks that were dropped, by drop reason",
            packets(&proofs.reasons, "reason"),
        );
        page.gauge("withdrawn", "Current withdrawals of consent", proofs.withdrawn as f64);
    }
    page.counter("samples_lost", "Drops that were counted but not reported", drops.samples_lost);
    let used = status.tables.iter().filter_map(|table| Some((label("table", &table.name), table.used? as f64)));
    page.gauges("table_entries", "Entries in use, by table", used);
    let max = status.tables.iter().map(|table| (label("table", &table.name), table.max as f64));
    page.gauges("table_entries_max", "Capacity, by table", max);
    page.gauges(
        "state",
        "1 for the verifier's current state",
        VerifierState::ALL.map(|state| (label("state", state.name()), f64::from(status.state == state.name()))),
    );
    let interfaces = status.interfaces.iter().map(|interface| {
        let texts = [("interface", &interface.name), ("hook", &interface.hook), ("mode", &interface.mode)];
        (texts.map(|(name, text)| (name, text.clone())).to_vec(), 1.0)
    });
    page.gauges("interface", "1 for each attached interface, with hook and mode", interfaces);
    page.gauge("not_attached", "Interfaces that are skipped or cannot be protected", status.not_attached.len() as f64);
    let open = status.not_attached.iter().filter(|interface| interface.open).count();
    page.gauge("unchecked_interfaces", "Interfaces whose packets nobody checks", open as f64);
    let peer = |peer: &Peer| label("peer", &peer.address);
    let of_peers = |value: fn(&Peer) -> Option<f64>| {
        status.peers.iter().filter_map(move |one| Some((label("peer", &one.address), value(one)?))).collect::<Vec<_>>()
    };
    page.gauges(
        "peer_connected",
        "Whether a peer gateway has received all flows and receives new ones",
        of_peers(|peer| Some(peer.connected.into())),
    );
    page.gauges(
        "peer_gap_seconds",
        "Time from a flow's first packet at this gateway until it can pass at a peer gateway: median of recent flows",
        of_peers(|peer| Some(peer.gap_us? as f64 / 1e6)),
    );
    let accepted = status.peers.iter().map(|one| (peer(one), one.advertised));
    page.counters("peer_flows", "Flows that a peer gateway accepted or refreshed", accepted);
    let refused = status.peers.iter().map(|one| (peer(one), one.refused));
    page.counters("peer_flows_refused", "Flows that a peer gateway refused", refused);
    page.gauge("peers_heard", "Peer gateways that send their flows to this one", status.peers_heard.len() as f64);
    page.gauge("connected", "Whether the authority's event stream is up", status.connected.into());
    page.gauge("trouble", "Whether there is a problem with the authority", status.trouble.is_some().into());
    let age = status.read.map_or(f64::NAN, |read| now.saturating_sub(read) as f64);
    page.gauge("keys_age_seconds", "Time since configuration and keys were read from the authority", age);
    let left = status.keys_until.map_or(0.0, |until| until.saturating_sub(now) as f64);
    page.gauge("keys_left_seconds", "Time until the last key expires; 0 if there is none for the current epoch", left);
    let figures: [(&str, &str, OfOrganisation); 5] = [
        ("organisation_connected", "Whether the event stream of an organisation's authority is up", of_connected),
        ("organisation_trouble", "Whether there is a problem with an organisation's authority", of_trouble),
        (
            "organisation_keys_left_seconds",
            "Time until an organisation's last key expires; 0 if there is none",
            of_keys,
        ),
        ("organisation_refused_receivers", "Receivers for which an organisation may not speak", of_refused),
        ("organisation_closed", "Whether an organisation's table of revoked grants is full", of_closed),
    ];
    for (name, help, value) in figures {
        let all = status.organisations.iter().map(|one| (label("organisation", &one.name), value(one, now)));
        page.gauges(name, help, all);
    }
    page.gauge("protected_prefixes", "Protected prefixes", status.protected.len() as f64);
    page.gauge(
        "sockets_outside",
        "Listening sockets of this host that are not protected everywhere",
        status.outside.len() as f64,
    );
    page.gauge("owners", "Grants whose owners are known", status.owners as f64);
    page
}
