//! Reports of the verifier's figures for the authority's console. The figures come from the kernel's tables.

use crate::shared::Shared;
use crate::{now, view};
use anyhow::Result;
use api::{DropCount, GrantOwner, REPORTED_FLOWS_MAX, Report, ReportedFlow};
use std::cmp::Reverse;
use std::sync::Arc;
use wire::DropReason;
use wire::map::{Flow, FlowKey};

/// Reads a report from the tables, on a thread for blocking work, because reading long tables takes a while.
pub async fn figures(shared: Arc<Shared>) -> Result<Report> {
    tokio::task::spawn_blocking(move || read(&shared)).await?
}

fn read(shared: &Shared) -> Result<Report> {
    let kernel = shared.kernel();
    let table = kernel.flow_table();
    let counts = kernel.counts()?;
    let passed = |name| passed(&counts, name);
    let drops = DropReason::ALL.iter().zip(&counts.reasons);
    let (state, keys_until) = (shared.state(&kernel), kernel.keys_until(now()));
    // Reading a long table takes a while; release the lock first.
    drop(kernel);
    let mut flows = table.entries();
    let live = flows.len() as u64;
    latest(&mut flows);
    let sealed = shared.sealed(&flows);
    Ok(Report {
        state,
        keys_until,
        admitted: passed("token"),
        passed: passed("flow"),
        drops: drops.map(|(reason, count)| DropCount { reason: *reason as u8, packets: count.packets }).collect(),
        live,
        flows: {
            let owners = shared.owners();
            let all = flows.iter().zip(sealed);
            all.map(|((key, flow), sealed)| reported(key, flow, owners.of(flow.handle), sealed)).collect()
        },
    })
}

fn passed(counts: &view::Drops, name: &str) -> u64 {
    counts.passed.iter().find(|outcome| outcome.name == name).map_or(0, |outcome| outcome.packets)
}

/// Keeps the flows with the latest packets, and sorts them, latest first. If the latest packets of two flows came in
/// the same second, the flow that began later comes first.
fn latest(flows: &mut Vec<(FlowKey, Flow)>) {
    let order = |(key, flow): &(FlowKey, Flow)| (Reverse(flow.seen), Reverse(flow.since), *key);
    if flows.len() > REPORTED_FLOWS_MAX {
        flows.select_nth_unstable_by_key(REPORTED_FLOWS_MAX, order);
        flows.truncate(REPORTED_FLOWS_MAX);
    }
    flows.sort_unstable_by_key(order);
}

fn reported(key: &FlowKey, flow: &Flow, owner: Option<&GrantOwner>, sealed: Option<api::SealedFlow>) -> ReportedFlow {
    let ((client, client_port), (server, server_port)) = (key.client(), key.server());
    ReportedFlow {
        client,
        client_port,
        server,
        server_port,
        protocol: key.protocol,
        handle: flow.by_grant().then_some(flow.handle),
        since: flow.since.into(),
        seen: flow.seen.into(),
        packets: flow.packets,
        bytes: flow.bytes,
        sealed: sealed.or_else(|| view::sealed(key, owner)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_names_the_latest_flows() {
        let flow = |port: u16, seen: u32, since: u32| {
            let [client, server] = ["203.0.113.5", "203.0.113.10"].map(|text| text.parse().unwrap());
            let (handle, origin) = (u64::from(port), u8::from(port == 1));
            let (bytes, packets, stage, inside_port, inside) = (0, 0, 0, [0; 2], 0);
            let flow =
                Flow { handle, bytes, packets, since, seen, stage, origin, inside_port, inside, ..Flow::default() };
            (FlowKey::new(client, port, server, 22, 6), flow)
        };
        let mut flows: Vec<_> =
            (1..=REPORTED_FLOWS_MAX as u16 + 50).map(|port| flow(port, 1000 + u32::from(port), 7)).collect();
        flows.push(flow(9999, 1001, 8));
        latest(&mut flows);
        let ports: Vec<_> = flows.iter().map(|(key, _)| key.client().1).collect();
        let newest = REPORTED_FLOWS_MAX as u16 + 50;
        assert_eq!(ports, (51..=newest).rev().collect::<Vec<_>>());

        let mut few = vec![flow(1, 1001, 7), flow(2, 1001, 8), flow(3, 1002, 7)];
        latest(&mut few);
        let latest_flows: Vec<_> = few.iter().map(|(key, flow)| reported(key, flow, None, None)).collect();
        assert_eq!(latest_flows.iter().map(|flow| flow.handle).collect::<Vec<_>>(), [Some(3), Some(2), None]);
    }
}
