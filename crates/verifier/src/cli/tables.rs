//! Prints the daemon's answers as text for people.

use crate::view;
use engine::model::{Service, protocol};
use shell::table::{Table, bytes, utc};
use shell::{print, println};
use std::net::SocketAddr;

fn or_dash(text: Option<&str>) -> String {
    text.unwrap_or("-").to_owned()
}

pub(super) fn show_status(status: &view::Status) {
    let trial = status.trial_left.map_or(String::new(), |left| format!(", {left} s left to confirm"));
    let connected = if status.connected { "connected" } else { "not connected" };
    let mut rows = vec![
        ("verifier", format!("{} (instance {})", status.verifier, status.instance)),
        ("state", format!("{}{trial}", status.state)),
        ("authority", format!("{}, {connected}", status.in_use.as_ref().unwrap_or(&status.authority))),
        ("trouble", or_dash(status.trouble.as_deref())),
        ("read", status.read.map_or("-".into(), utc)),
        ("keys until", status.keys_until.map_or("none for the current epoch: nothing new is admitted".into(), utc)),
        ("epoch", format!("{} s; grants last {} s at most", status.epoch_length, status.max_lifetime)),
        ("owners", format!("{} known", status.owners)),
    ];
    let others: Vec<_> =
        status.authorities.iter().filter(|url| Some(*url) != status.in_use.as_ref()).cloned().collect();
    if !others.is_empty() {
        rows.insert(3, ("others", others.join(" ")));
    }
    for (name, text) in rows {
        println!("{name:12}{}", text.replace(char::is_control, "?"));
    }
    if !status.organisations.is_empty() {
        print!("\n{}", organisations(&status.organisations));
        for one in &status.organisations {
            one.refused.iter().for_each(|what| {
                println!("{}: may not speak for {}", one.name, what.replace(char::is_control, "?"));
            });
        }
    }
    let interfaces = status.interfaces.iter().map(|interface| {
        let view::Interface { name, hook, mode, why, driver } = interface;
        vec![name.clone(), hook.clone(), mode.clone(), or_dash(driver.as_deref()), why.clone()]
    });
    print!("\n{}", Table::new(&["INTERFACE", "HOOK", "MODE", "DRIVER", "WHY"], interfaces));
    if !status.inside.is_empty() {
        println!("\na gateway; inside: {}", status.inside.join(", "));
    }
    if let Some(mark) = &status.mark {
        println!("\nadmitted packets carry the mark {mark}; refused packets pass without it, with few exceptions");
    }
    if !status.peers.is_empty() {
        print!("\n{}", peers(&status.peers));
        let from = status
            .peers_heard
            .iter()
            .map(|one| vec![one.from.to_string(), utc(one.since), one.taken.to_string(), one.refused.to_string()]);
        print!("\n{}", Table::new(&["RECEIVED FROM", "SINCE", "ACCEPTED", "REFUSED"], from));
    }
    if !status.not_attached.is_empty() {
        let rows = status.not_attached.iter().map(|interface| vec![interface.name.clone(), interface.why.clone()]);
        print!("\n{}", Table::new(&["NOT ATTACHED", "WHY"], rows));
    }
    let protected = status.protected.iter().map(|entry| {
        let services: Vec<_> = entry.services.iter().map(service).collect();
        vec![entry.prefix.clone(), services.join(" ")]
    });
    print!("\n{}", Table::new(&["PROTECTED", "SERVICES"], protected));
    if !status.optional.is_empty() {
        let rows = status.optional.iter().map(|one| {
            let known = if one.named { "people with a grant" } else { "nobody: no receiver of the policy names it" };
            vec![format!("tcp {}", one.service), known.to_owned()]
        });
        print!("\n{}", Table::new(&["OPEN TO EVERYBODY", "KNOWN THERE"], rows));
    }
    show_exposure(status);
    if let Some(proofs) = &status.proofs {
        let names: Vec<_> = proofs.interfaces.iter().map(|interface| interface.name.as_str()).collect();
        let keys = match proofs.keys_until {
            Some(until) => format!("keys until {}", utc(until)),
            None => "no key for the current epoch".to_owned(),
        };
        let (before, on) = (proofs.endpoints.join(", "), names.join(", "));
        println!("proofs      before {before}, on {on}; {keys}; {} withdrawn", proofs.withdrawn);
        for left in &proofs.not_attached {
            println!("            not attached to {}: {}", left.name, left.why);
        }
        let dropped: u64 = proofs.reasons.iter().map(|reason| reason.packets).sum();
        let passed: Vec<_> = proofs.passed.iter().map(|way| format!("{} {}", way.packets, way.name)).collect();
        println!("            {}, {dropped} dropped", passed.join(", "));
    }
    if !status.tunnel_queues.is_empty() {
        let queues = status
            .tunnel_queues
            .iter()
            .enumerate()
            .map(|(number, queue)| vec![number.to_string(), queue.sealed.to_string(), queue.opened.to_string()]);
        print!("\n{}", Table::new(&["TUNNEL QUEUE", "BYTES SEALED", "BYTES OPENED"], queues));
    }
    let tables = status.tables.iter().map(|table| {
        let used = table.used.map_or("-".into(), |used| used.to_string());
        vec![table.name.clone(), used, table.max.to_string(), table.bytes.to_string(), bytes(table.max * table.bytes)]
    });
    print!("\n{}", Table::new(&["TABLE", "USED", "MAX", "BYTES EACH", "AT MOST"], tables));
}

/// Prints the services that are protected at the host's other addresses too, and the sockets that listen outside
/// protection.
fn show_exposure(status: &view::Status) {
    let view::Extended { services, networks, crowded } = &status.extended;
    if !services.is_empty() {
        let services: Vec<_> = services.iter().map(service).collect();
        let between = if *crowded { ", and the ports between them, because the table has too few entries" } else { "" };
        let (services, count) = (services.join(" "), networks.len());
        println!("\nalso at this host's other addresses ({count} networks): {services}{between}");
    }
    let rows = status.outside.iter().map(|socket| {
        let at: Vec<_> = socket.at.iter().map(ToString::to_string).collect();
        let at = if socket.partly { at.join(" ") } else { "everywhere".to_owned() };
        vec![socket.protocol.clone(), socket.address.to_string(), at]
    });
    if rows.len() > 0 {
        print!("\n{}", Table::new(&["OUTSIDE PROTECTION", "LISTENS AT", "UNPROTECTED AT"], rows));
    }
}

/// Returns the table of organisations, with the state of the connection to each one's authority.
fn organisations(organisations: &[view::Organisation]) -> Table {
    let rows = organisations.iter().map(|one| {
        let state = match &one.trouble {
            _ if one.closed => "closed: no room for revocations",
            Some(trouble) => trouble,
            None if one.connected => "connected",
            None => "not connected",
        };
        let networks = if one.networks.is_empty() { "all others".to_owned() } else { one.networks.join(" ") };
        let services: Vec<_> = one.services.iter().map(service).collect();
        let services = if services.is_empty() { "all".to_owned() } else { services.join(" ") };
        let keys = one.keys_until.map_or("none".into(), utc);
        vec![one.name.clone(), one.authority.clone(), state.to_owned(), keys, networks, services]
    });
    Table::new(&["ORGANISATION", "AUTHORITY", "STATE", "KEYS UNTIL", "NETWORKS", "SERVICES"], rows)
}

/// Returns the table of peers, with the state of the advertisements to each.
fn peers(peers: &[view::Peer]) -> Table {
    let rows = peers.iter().map(|peer| {
        let state = match &peer.trouble {
            _ if peer.connected => "connected",
            Some(trouble) => trouble,
            None => "connecting",
        };
        let gap = peer.gap_us.map_or("-".into(), |gap| format!("{:.1} ms", gap as f64 / 1e3));
        vec![peer.address.clone(), state.to_owned(), peer.advertised.to_string(), peer.refused.to_string(), gap]
    });
    Table::new(&["PEER", "STATE", "SENT", "REFUSED", "GAP"], rows)
}

fn service(service: &Service) -> String {
    let Service { protocol, first_port, last_port } = *service;
    match protocol {
        0 => "all".into(),
        _ if (first_port, last_port) == (0, u16::MAX) => protocol::name(protocol),
        _ if first_port == last_port => format!("{}/{first_port}", protocol::name(protocol)),
        _ => format!("{}/{first_port}-{last_port}", protocol::name(protocol)),
    }
}

fn grant(flow: &view::Flow) -> String {
    match flow {
        view::Flow { adopted: true, .. } => "adopted".into(),
        view::Flow { outbound: true, .. } => "outbound".into(),
        view::Flow { handle, .. } => or_dash(handle.as_deref()),
    }
}

fn sealed(flow: &view::Flow) -> String {
    flow.sealed.as_ref().map_or("-".into(), api::SealedFlow::words)
}

/// Adds the organisation to a person's name, because two organisations may have people of the same name.
fn of_organisation(flow: &view::Flow, person: String) -> String {
    match &flow.organisation {
        Some(organisation) => format!("{person} ({organisation})"),
        None => person,
    }
}

pub(super) fn flow_table(flows: &[view::Flow]) -> Table {
    let mut flows: Vec<_> = flows.iter().collect();
    flows.sort_by_key(|flow| (flow.since, flow.client));
    let rows = flows.into_iter().map(|flow| {
        let [person, device, rule] = [&flow.person, &flow.device, &flow.rule].map(|text| or_dash(text.as_deref()));
        let (client, server) = (flow.client.to_string(), flow.server.to_string());
        let person = of_organisation(flow, person);
        let (packets, bytes) = (flow.packets.to_string(), flow.bytes.to_string());
        let (protocol, since) = (flow.protocol.clone(), utc(flow.since));
        vec![client, server, protocol, person, device, rule, grant(flow), since, packets, bytes, sealed(flow)]
    });
    const HEAD: [&str; 11] =
        ["CLIENT", "SERVER", "PROTOCOL", "PERSON", "DEVICE", "RULE", "GRANT", "SINCE", "PACKETS", "BYTES", "SEALED"];
    Table::new(&HEAD, rows)
}

pub(super) fn show_flow(flow: &view::Flow) {
    let [person, device, receiver, rule] =
        [&flow.person, &flow.device, &flow.receiver, &flow.rule].map(|text| or_dash(text.as_deref()));
    let rows = [
        ("flow", format!("{} to {} ({})", flow.client, flow.server, flow.protocol)),
        ("person", of_organisation(flow, person)),
        ("device", device),
        ("grant", grant(flow)),
        ("receiver", receiver),
        ("rule", rule),
        ("since", utc(flow.since)),
        ("seen", utc(flow.seen)),
        ("packets", flow.packets.to_string()),
        ("bytes", flow.bytes.to_string()),
        ("sealed", sealed(flow)),
    ];
    for (name, text) in rows {
        println!("{name:12}{}", text.replace(char::is_control, "?"));
    }
}

pub(super) fn address_table(all: &[view::InsideAddress]) -> Table {
    let rows = all.iter().map(|lease| {
        let view::InsideAddress { address, person, since, until, flows } = lease;
        let until = until.map_or("-".into(), utc);
        vec![address.to_string(), or_dash(person.as_deref()), utc(*since), until, flows.to_string()]
    });
    Table::new(&["INSIDE ADDRESS", "PERSON", "SINCE", "UNTIL", "FLOWS"], rows)
}

pub(super) fn show_drops(drops: &view::Drops) {
    let counters = drops
        .reasons
        .iter()
        .map(|counter| (counter, if drops.observing { "would drop" } else { "drop" }))
        .chain(drops.passed.iter().map(|c| (c, "")))
        .chain(drops.opened.iter().map(|c| (c, "flows")))
        .chain(drops.tunnel.iter().map(|c| (c, "tunnel")));
    let counted = counters.filter(|(counter, _)| counter.packets > 0);
    let rows = counted.map(|(counter, kind)| vec![counter.name.clone(), kind.into(), counter.packets.to_string()]);
    print!("{}", Table::new(&["OUTCOME", "", "PACKETS"], rows));
    if drops.samples_lost > 0 {
        println!("{} drops were counted but are not in this list", drops.samples_lost);
    }
    if !drops.samples.is_empty() {
        const HEAD: [&str; 8] = ["TIME", "REASON", "CLIENT", "SERVER", "PROTOCOL", "GRANT", "INTERFACE", "LENGTH"];
        print!("\n{}", Table::new(&HEAD, drops.samples.iter().map(drop_cells)));
    }
}

pub(super) fn drop_cells(dropped: &view::Drop) -> Vec<String> {
    let end = |end: Option<SocketAddr>| end.map_or("-".into(), |end| end.to_string());
    let reason = if dropped.observed { format!("{} (passed)", dropped.reason) } else { dropped.reason.clone() };
    vec![
        utc(dropped.time),
        reason,
        end(dropped.client),
        end(dropped.server),
        dropped.protocol.clone(),
        or_dash(dropped.handle.as_deref()),
        dropped.interface.clone(),
        dropped.length.to_string(),
    ]
}
