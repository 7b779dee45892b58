//! The daemon's answers about its state.

use super::Daemon;
use crate::control::Request;
use crate::now;
use crate::view::{Counter, Path, Segment, Status, Tenant};
use anyhow::Result;
use serde_json::Value;
use std::sync::atomic::Ordering;
use wire::DropReason;
use wire::map::{counter, segment_state, svtep_counter};

/// Names of the outcomes of packets at the tunnel.
const PACKETS: [(u32, &str); 14] = [
    (svtep_counter::SENT, "sent"),
    (svtep_counter::UNKNOWN, "without_segment"),
    (svtep_counter::UNREPORTED, "not_looked_at"),
    (svtep_counter::REFUSED, "refused"),
    (svtep_counter::TOO_LONG, "too_long"),
    (svtep_counter::MALFORMED, "malformed"),
    (svtep_counter::FRAGMENT, "fragment"),
    (svtep_counter::OTHER, "link_only"),
    (svtep_counter::NEIGHBOUR, "neighbour"),
    (svtep_counter::FAILED, "failed"),
    (svtep_counter::DELIVERED, "delivered"),
    (svtep_counter::UNDELIVERED, "undelivered"),
    (svtep_counter::CONSENTS, "consents_noted"),
    (svtep_counter::CONTROL, "control"),
];
/// Names of the outcomes of proofs other than drops.
const PASSED: [(u32, &str); 2] = [(counter::FLOW, "remembered"), (counter::TOKEN, "computed")];

impl Daemon {
    pub(super) fn answer(&mut self, request: Request) -> Result<Value> {
        Ok(match request {
            Request::Status => serde_json::to_value(self.status()?)?,
            Request::Segments => serde_json::to_value(self.segments())?,
            Request::Detach => {
                self.kernel.end()?;
                tracing::warn!("detached by command: tenants are no longer connected to any network");
                Value::from("detached: tenants are no longer connected to any network")
            }
        })
    }

    fn status(&self) -> Result<Status> {
        let health = self.health.borrow().clone();
        let (in_use, authorities) = self.authority.members().shown();
        let program = self.kernel.program();
        let (tunnel, proofs) = (program.counts()?, program.proofs.counts()?);
        let of = |counts: &[u64], index: u32| counts.get(index as usize).copied().unwrap_or_default();
        let mut packets: Vec<_> = PACKETS.iter().map(|(index, name)| Counter::new(name, of(&tunnel, *index))).collect();
        packets.push(Counter::new("passed_on", self.endpoint.passed_on()));
        packets.push(Counter::new("spoofed", self.endpoint.spoofed()));
        packets.push(Counter::new("lost", self.lost.load(Ordering::Relaxed)));
        Ok(Status {
            verifier: self.enrolment.verifier.clone(),
            instance: self.settings.instance.clone(),
            authority: self.enrolment.authority.clone(),
            in_use,
            authorities,
            connected: health.connected,
            trouble: health.trouble,
            read: health.read,
            keys_until: self.kernel.keys_until(),
            closed: self.kernel.is_closed(),
            withdrawn: program.proofs.withdrawals() as u64,
            underlay: self.kernel.underlay().name.clone(),
            mtu: self.kernel.mtu(),
            addresses: self.settings.addresses.clone(),
            tenants: self.tenants(),
            open: self.endpoint.open() as u64,
            paths: self.endpoint.ways().iter().map(|(to, way)| Path::new(*to, way)).collect(),
            path_changes: self.endpoint.path_changes(),
            answers: [
                ("given", self.answers.given),
                ("refused", self.answers.refused),
                ("failed", self.answers.failed),
            ]
            .map(|(name, count)| Counter::new(name, count))
            .to_vec(),
            consents: program.consents.keys().len() as u64,
            packets,
            passed: PASSED.iter().map(|(index, name)| Counter::new(name, of(&proofs, *index))).collect(),
            reasons: DropReason::ALL.iter().map(|one| Counter::new(one.name(), of(&proofs, *one as u32))).collect(),
        })
    }

    fn tenants(&self) -> Vec<Tenant> {
        let segments = self.kernel.program().segments.entries();
        let tenant = |(place, settings): (usize, &crate::settings::TenantSettings)| {
            let session = &self.sessions[self.asks[place]];
            let standing = session.standing();
            let own = self.places.iter().find(|(_, known)| **known == place).map(|(interface, _)| *interface);
            let given = segments.iter().filter(|(key, entry)| {
                Some(key.interface) == own && entry.state() == segment_state::GIVEN && u64::from(entry.until) > now()
            });
            Tenant {
                interface: settings.interface.clone(),
                id: settings.id.0,
                network: settings.tenant.network.clone(),
                vni: settings.tenant.vni.number(),
                addresses: settings.tenant.addresses.clone(),
                not_attached: self.kernel.trouble(place).map(str::to_owned),
                service: session.service.clone(),
                logged_in: standing.asker.is_some() && standing.expires > now(),
                trouble: standing.trouble,
                segments: given.count() as u64,
                refused: own.and_then(|interface| self.refusals.last(interface)),
            }
        };
        self.settings.tenants.iter().enumerate().map(tenant).collect()
    }

    fn segments(&self) -> Vec<Segment> {
        let entries = self.kernel.program().segments.entries().into_iter();
        let mut all: Vec<_> = entries
            .filter(|(_, entry)| u64::from(entry.until) > now())
            .filter_map(|(key, entry)| {
                let tenant = &self.settings.tenants[*self.places.get(&key.interface)?];
                let why = (entry.state() == segment_state::REFUSED).then(|| self.refusals.of(&key)).flatten();
                let path = self.endpoint.path_of(&key, &entry);
                Some(Segment::new(&key, &entry, &tenant.interface, &tenant.tenant.network, why, path))
            })
            .collect();
        all.sort_by(|a, b| {
            let order =
                |one: &Segment| (one.interface.clone(), one.sender, one.receiver, one.protocol, one.port, one.back);
            order(a).cmp(&order(b))
        });
        all
    }
}
