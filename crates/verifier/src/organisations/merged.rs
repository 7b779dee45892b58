//! The table of protected services for the first organisation's programs. It has the services of the first organisation
//! and of all other organisations.

use engine::model::Service;
use engine::model::protected::{Protected, services_of};
use ipnet::IpNet;
use std::collections::BTreeMap;
use wire::map::{SERVICES_MAX, Services};

/// Returns the entries of `own` and `foreign` in one table. The services of `foreign` have the mark that only another
/// authority may admit packets to them. The kernel finds only the longest prefix that contains an address, so each
/// entry includes the services of wider prefixes in both tables.
///
/// If an entry has no room for all services, it marks all ports of the prefix, except those of the services of `own`.
/// So no service of `foreign` is left open. If there is no room for that either, the last service of `own` is marked,
/// too.
pub fn merged(own: &[Protected], foreign: &[Protected]) -> Vec<Protected> {
    type Pair<'a> = [Option<&'a Services>; 2];
    let mut all: BTreeMap<IpNet, Pair<'_>> = BTreeMap::new();
    for (side, entries) in [own, foreign].into_iter().enumerate() {
        for entry in entries {
            all.entry(entry.prefix).or_default()[side] = Some(&entry.services);
        }
    }
    let mut around: Vec<(IpNet, Pair<'_>)> = Vec::new();
    let mut merged = Vec::with_capacity(all.len());
    // Wider prefixes come first.
    for (prefix, pair) in all {
        while around.last().is_some_and(|(wider, _)| !wider.contains(&prefix)) {
            around.pop();
        }
        let wider = around.last().map_or([None; 2], |(_, pair)| *pair);
        let pair = [pair[0].or(wider[0]), pair[1].or(wider[1])];
        around.push((prefix, pair));
        merged.push(Protected { prefix, services: joined(prefix, pair) });
    }
    merged
}

fn joined(prefix: IpNet, [own, foreign]: [Option<&Services>; 2]) -> Services {
    let spans = |services: Option<&Services>| services.map(|services| services.spans().to_vec()).unwrap_or_default();
    let (mut own, mut foreign) = (spans(own), spans(foreign));
    if own.len() + foreign.len() > SERVICES_MAX {
        // Protect more of the others' services rather than less.
        foreign = services_of(&[Service::ALL]).spans().to_vec();
    }
    if own.len() + foreign.len() > SERVICES_MAX {
        tracing::error!(
            %prefix,
            services = own.len(),
            "the default organisation has too many separate port ranges where another organisation has services, too: \
             nobody reaches the ports of the last range. Join neighbouring ports into ranges"
        );
        own.truncate(SERVICES_MAX - 1);
    }
    foreign.iter_mut().for_each(|span| span.foreign = 1);
    let mut services = services_of(&[]);
    for (room, span) in services.spans.iter_mut().zip(own.into_iter().chain(foreign)) {
        *room = span;
        services.count += 1;
    }
    services
}
