//! Reads the kernel's tables, to answer questions from the control socket.

use super::Kernel;
use crate::addresses::Addresses;
use crate::gateway::Gateway;
use crate::{plan, view};
use anyhow::Result;
use datapath::flows::Flows;
use datapath::kernel_tables::KernelTables;
use datapath::verifier::Sizes;
use engine::model::protected::Protected;
use engine::verifier::Outcome;
use std::net::SocketAddr;
use std::sync::Arc;
use wire::DropReason;
use wire::map::{Flow, FlowKey, VerifierConfig, counter, origin};
use wire::packet::{TCP, UDP};

/// The outcomes other than drops.
const PASSED: [Outcome; 6] =
    [Outcome::NotOurs, Outcome::Flow, Outcome::Token, Outcome::Consumed, Outcome::IcmpError, Outcome::Stranger];
/// Names of a gateway's counters of flows that the inside opens.
const OPENED: [(u32, &str); 2] = [(counter::OUTBOUND, "outbound"), (counter::OUTBOUND_FULL, "outbound_full")];

impl Kernel {
    /// Returns all flows that have not ended.
    pub fn flows(&self) -> Vec<(FlowKey, Flow)> {
        let mut flows = self.verifier.flows.entries();
        flows.retain(|(_, flow)| flow.origin != origin::ENDED);
        flows
    }

    /// Returns the table of flows. The caller can read the table without holding a lock on the programs.
    pub fn flow_table(&self) -> Arc<Flows> {
        self.verifier.flows.clone()
    }

    /// Returns the flows of a client to `server`. If `server` is `None`, returns the client's flows to all servers.
    pub fn flows_of(&self, client: SocketAddr, server: Option<SocketAddr>) -> Vec<(FlowKey, Flow)> {
        let (address, port) = (client.ip().to_canonical(), client.port());
        let mut keys: Vec<FlowKey> = match server {
            Some(server) => {
                let key = |protocol| FlowKey::new(address, port, server.ip().to_canonical(), server.port(), protocol);
                let [tcp, udp] = [TCP, UDP].map(key);
                vec![tcp, tcp.within(true), tcp.in_datagrams(), udp, udp.within(true)]
            }
            None => self.verifier.flows.keys().into_iter().filter(|key| key.client() == (address, port)).collect(),
        };
        // The address may be the client's inside address.
        let inside = self.addresses().map(|addresses| addresses.outside(client)).unwrap_or_default();
        keys.extend(
            inside
                .into_iter()
                .filter(|key| server.is_none_or(|server| key.server() == (server.ip().to_canonical(), server.port()))),
        );
        let flows = keys.into_iter().filter_map(|key| Some((key, self.verifier.flows.get(&key).ok()??)));
        flows.filter(|(_, flow)| flow.origin != origin::ENDED).collect()
    }

    /// Returns a flow; `None` if there is no such flow.
    pub fn flow(&self, key: &FlowKey) -> Option<Flow> {
        self.verifier.flows.get(key).ok().flatten()
    }

    /// Returns the counters of dropped and passed packets. The result contains no samples of drops.
    pub fn counts(&self) -> Result<view::Drops> {
        let counter = |name: &str, index| Ok(view::Counter { name: name.into(), packets: self.verifier.count(index)? });
        let reasons = DropReason::ALL.iter().map(|reason| counter(reason.name(), *reason as u32));
        let passed = PASSED.iter().map(|outcome| counter(outcome.name(), outcome.counter()));
        Ok(view::Drops {
            reasons: reasons.collect::<Result<_>>()?,
            passed: passed.collect::<Result<_>>()?,
            opened: OPENED.iter().map(|(index, name)| counter(name, *index)).collect::<Result<_>>()?,
            tunnel: Vec::new(),
            samples_lost: self.verifier.count(counter::SAMPLES_LOST)?,
            observing: self.settings.observe,
            samples: Vec::new(),
        })
    }

    /// Returns the leases of inside addresses, if this is a gateway with a pool.
    pub fn addresses(&self) -> Option<&Addresses> {
        self.gateway.as_ref().and_then(Gateway::addresses)
    }

    /// Returns the size and the use of those tables that can become full.
    pub fn tables(&self) -> Vec<view::Table> {
        let Sizes { flows, grants, accounts, replay_buckets, revoked, pairs, .. } = self.settings.sizes;
        let table = |name: &str, used: Option<usize>, max: u64, bytes| {
            let used = used.map(|used| used as u64);
            view::Table { name: name.into(), used, max, bytes }
        };
        let verifier = &self.verifier;
        let keys = verifier.flows.keys();
        let four = keys.iter().filter(|key| key.family == 4).count();
        let mut all = vec![
            table("flows, IPv4", Some(four), flows.into(), 120),
            table("flows, IPv6", Some(keys.len() - four), flows.into(), 144),
            table("grants", Some(verifier.grants.keys().len()), grants.into(), 120),
            table("accounts", Some(verifier.accounts.keys().len()), accounts.into(), 72),
            table("revoked", Some(verifier.revoked.handles().len()), revoked.into(), 64),
            table("ended sessions", Some(verifier.revoked_holders.entries().len()), revoked.into(), 64),
            table("replays", None, u64::from(replay_buckets) * 8, 8),
        ];
        if self.config.max_outbound > 0 {
            let used = verifier.outbound().ok().map(|used| used as usize);
            // `outbound` below has 0 bytes each, because these flows are counted among the flows.
            if let Some((used, max)) = self.addresses().map(Addresses::usage) {
                all.push(table("inside addresses", Some(used), max.into(), 48));
            }
            all.push(table("outbound", used, self.config.max_outbound.into(), 0));
        }
        if self.takes_pairs() {
            all.push(table("pairs", Some(verifier.ls_grants.keys().len()), pairs.into(), 8192));
        }
        all
    }

    /// Returns the time (Unix seconds) until which there are keys; `None` if there is no key for the epoch at `now`.
    pub fn keys_until(&self, now: u64) -> Option<u64> {
        let slots = self.verifier.epoch_keys.entries().into_iter().map(|(_, key)| key.epoch);
        plan::keys_until(slots, now, self.config.epoch_length)
    }

    /// Returns the mark of admitted packets; `None` if the verifier does not mark packets, but drops them.
    pub fn mark(&self) -> Option<String> {
        self.settings.mark.map(|mark| mark.to_string())
    }

    /// Returns the configuration with which the programs were loaded.
    pub fn config(&self) -> &VerifierConfig {
        &self.config
    }

    /// Returns the kernel's tables for decisions about tunnels. In this form, every table reports that it has room,
    /// because counting entries takes longer than a decision.
    #[cfg(feature = "seal")]
    pub fn tunnel_tables(&self) -> KernelTables<'_> {
        KernelTables::with_room(&self.verifier)
    }

    /// Returns the handle of the grant that admitted a flow; `None` if no grant did, or if there is no such flow.
    #[cfg(feature = "seal")]
    pub fn handle_of(&self, flow: &wire::map::FlowKey) -> Option<wire::Handle> {
        let flow = self.verifier.flows.get(flow).ok().flatten()?;
        flow.by_grant().then_some(wire::Handle(flow.handle))
    }

    /// Loads the program for the device out of which the packets of tunnels come. The program and the device are
    /// removed when this process ends.
    #[cfg(feature = "seal")]
    pub fn load_tunnel(&self) -> anyhow::Result<datapath::tunnel::Tunnel> {
        datapath::tunnel::Tunnel::load(&self.verifier, None)
    }

    /// Returns the kernel's tables in the form in which a decision about a packet reads them.
    pub fn kernel_tables(&self) -> KernelTables<'_> {
        KernelTables::new(&self.verifier)
    }

    /// Returns the protected prefixes with their services.
    pub fn protected(&self) -> Vec<Protected> {
        plan::protected(self.verifier.protected.four.entries(), self.verifier.protected.six.entries())
    }
}
