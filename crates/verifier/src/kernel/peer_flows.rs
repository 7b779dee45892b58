//! Access to the kernel's tables for the exchange of flows with other gateways.

use super::Kernel;
#[cfg(feature = "seal")]
use crate::lessees::Lessees;
use crate::peers::advertiser::Limits;
use crate::peers::channel::Identity;
use crate::peers::record::{AdvertisedFlow, Inside};
use anyhow::Result;
use datapath::ring::Listener;
#[cfg(feature = "seal")]
use std::sync::Arc;
use wire::Epoch;
use wire::map::{Flow, FlowKey, FlowNews, ReceivedAddress, ReceivedFlow, origin, taken};

impl Kernel {
    /// Calls `each` for every flow that begins, until the returned listener is dropped.
    pub fn listen_to_flows(&self, each: impl FnMut(FlowNews) + Send + 'static) -> Result<Listener> {
        Listener::start("flows", self.verifier.flow_news(each)?)
    }

    /// Returns the identity with which this gateway authenticates to the other gateways. `now` is the current time,
    /// Unix seconds.
    pub fn identity(&self, now: u64) -> Result<Identity> {
        let current = self.epoch(now);
        let around = (current.0.saturating_sub(1)..=current.0 + 1).map(Epoch);
        let around: Vec<_> = around.filter_map(|epoch| Some((epoch, self.verifier.key(epoch)?))).collect();
        Identity::new(&around, current)
    }

    /// Returns the epoch at `now` (Unix seconds) if the table contains its key. Otherwise returns epoch 0.
    pub fn epoch(&self, now: u64) -> Epoch {
        let current = Epoch::at(now, self.config.epoch_length);
        self.verifier.key(current).map_or(Epoch(0), |_| current)
    }

    /// Returns the idle timeouts of flows.
    pub fn limits(&self) -> Limits {
        Limits { tcp: self.config.tcp_idle, closing: self.config.closing_idle, udp: self.config.udp_idle }
    }

    /// Sets the table of the inside addresses of clients in sealed tunnels.
    #[cfg(feature = "seal")]
    pub fn set_lessees(&mut self, lessees: Arc<dyn Lessees>) {
        self.lessees = Some(lessees);
    }

    /// Reports whether a flow can be advertised to other gateways. On a gateway with a pool, a flow that a client
    /// opened outside of tunnels must first have an inside address. All other flows can be advertised at once.
    pub fn can_advertise(&self, key: &FlowKey, flow: &Flow) -> bool {
        key.tunnel == 1 || flow.origin != origin::TOKEN || flow.inside != 0 || self.addresses().is_none()
    }

    /// Returns a flow in the form in which it is advertised to other gateways. `begins` says whether the flow is new to
    /// them. Returns `None` if the person behind the flow's inside address is unknown, or if a new flow is in a tunnel
    /// and its client is unknown.
    pub fn advertised_form(&self, key: FlowKey, flow: Flow, begins: bool) -> Option<AdvertisedFlow> {
        let lessees = self.lessees.as_ref().filter(|_| key.tunnel == 1);
        let lessee = lessees.and_then(|lessees| lessees.of(key.client().0));
        if key.tunnel == 1 && begins && lessee.is_none() {
            return None;
        }
        let inside = match self.addresses().filter(|_| flow.origin == origin::TOKEN && key.tunnel == 0) {
            Some(addresses) => {
                let (address, person) = addresses.holder(&flow)?;
                Some(Inside { address, person })
            }
            None => None,
        };
        let expires = self.expiry(flow.handle).unwrap_or_default();
        Some(AdvertisedFlow { key, flow, expires, begins, inside, lessee })
    }

    /// Returns the flow with this key, if it is in the table.
    pub fn flow_at(&self, key: &FlowKey) -> Option<Flow> {
        self.verifier.flows.get(key).ok().flatten()
    }

    /// Takes over a flow that another gateway advertised. Returns whether the flow is then in the table.
    pub fn take_over(&self, advertised: &AdvertisedFlow, now: u32) -> Result<bool> {
        let mut flow = advertised.flow;
        if advertised.key.tunnel == 1 {
            // First of all: a client without its address would get another here, and its flows would break.
            let taken = advertised
                .lessee
                .zip(self.lessees.as_ref())
                .map(|(lessee, lessees)| lessees.take_over(lessee, advertised.key.client().0));
            if taken == Some(false) || taken.is_none() && advertised.begins {
                return Ok(false);
            }
        } else if advertised.begins && flow.origin == origin::TOKEN {
            match (&advertised.inside, self.addresses()) {
                (None, None) => {}
                (Some(inside), Some(addresses)) => {
                    let person = addresses.note(&inside.person, flow.handle, advertised.expires)?;
                    let wanted = ReceivedAddress {
                        key: advertised.key,
                        inside: inside.address,
                        person,
                        now,
                        slot: 0,
                        port: flow.inside_port,
                        reserved: 0,
                    };
                    let Some(gateway) = &self.gateway else { return Ok(false) };
                    flow.inside = gateway.bind_received(wanted)?.slot;
                    if flow.inside == 0 {
                        return Ok(false);
                    }
                }
                // Only one of the two gateways has a pool: servers would see this client at a different address here.
                _ => return Ok(false),
            }
        }
        let received =
            ReceivedFlow { key: advertised.key, flow, expires: advertised.expires, begins: advertised.begins.into() };
        let outcome = self.verifier.take_over(received)?;
        Ok(matches!(outcome, taken::NEW | taken::KNOWN))
    }
}
