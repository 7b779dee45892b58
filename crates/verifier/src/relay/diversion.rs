//! The routing rules that divert connections to the relay. There is a rule for every outside interface, and for every
//! interface that is stacked above an outside interface. For example, the verifier checks a packet of a VLAN at the
//! interface below, but the kernel's routing rules see the VLAN's interface.

use crate::settings::Settings;
use anyhow::{Result, ensure};
use datapath::coverage::{Detour, detours};
use datapath::interface::{Layer, layers};
use datapath::transparent::Diversion;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

/// Interface where packets come out of sealed tunnels.
const TUNNEL_DEVICE: &str = "vs-sealed";
/// Interval at which the verifier looks for interfaces that have appeared.
const LOOK: Duration = Duration::from_millis(500);

/// The routing rules by which this verifier diverts connections to the relay, and the settings from which they result.
pub struct Diversions {
    diversion: Diversion,
    outside: Vec<String>,
    inside: Vec<String>,
    services: Vec<SocketAddr>,
    in_force: Vec<String>,
}

impl Diversions {
    /// Diverts connections whose destination is a service in the settings, so that they reach the relay on this host. If
    /// the settings name no services, removes the diversions of an earlier process.
    ///
    /// # Errors
    ///
    /// Fails if packets could go around the rules, or if the kernel refuses a rule.
    pub fn set(settings: &Settings, instance: &str) -> Result<Self> {
        let mut diversions = Self {
            diversion: Diversion::of(instance),
            outside: settings.interfaces.clone(),
            inside: settings.inside.clone(),
            services: settings.proxy_protocol.clone(),
            in_force: Vec::new(),
        };
        if !settings.tunnel_pool.is_empty() {
            diversions.outside.push(TUNNEL_DEVICE.to_owned());
        }
        if !diversions.services.is_empty() {
            let (wanted, around) = diversions.wanted(&layers()?);
            ensure!(around.is_empty(), "{}", around.join("; "));
            diversions.put(wanted)?;
        } else {
            diversions.put(Vec::new())?;
        }
        Ok(diversions)
    }

    /// Adds rules for interfaces that appear later, until the future is dropped.
    pub async fn follow(mut self) {
        let mut trouble = String::new();
        loop {
            tokio::time::sleep(LOOK).await;
            let found = self.look().map_or_else(|error| format!("{error:#}"), |around| around.join("; "));
            if found != trouble && !found.is_empty() {
                tracing::error!("connections may go around the relay: {found}");
            }
            trouble = found;
        }
    }

    /// Covers the interfaces that there are now. Returns the ways around the relay that no rule covers.
    fn look(&mut self) -> Result<Vec<String>> {
        let (wanted, around) = self.wanted(&layers()?);
        if wanted != self.in_force {
            self.put(wanted)?;
        }
        Ok(around)
    }

    fn put(&mut self, interfaces: Vec<String>) -> Result<()> {
        self.diversion.set(&interfaces, &self.services)?;
        for name in interfaces.iter().filter(|name| !self.outside.contains(name) && !self.in_force.contains(name)) {
            tracing::info!(interface = name, "connections from this interface lead to the relay, too");
        }
        self.in_force = interfaces;
        Ok(())
    }

    /// Returns the names of the interfaces from which connections have to lead to the relay, and the ways around the
    /// relay that no rule covers.
    fn wanted(&self, layers: &[Layer]) -> (Vec<String>, Vec<String>) {
        let index = |name: &String| layers.iter().find(|layer| layer.name == *name).map(|layer| layer.index);
        let indices = |names: &[String]| names.iter().filter_map(index).collect::<BTreeSet<u32>>();
        let (mut wanted, mut around) = (self.outside.clone(), Vec::new());
        for detour in detours(layers, &indices(&self.outside), &indices(&self.inside)) {
            match detour {
                Detour::Above(name) => wanted.push(name),
                Detour::Switched { outside, inside, by } => around.push(format!(
                    "{by} forwards frames between {outside} and the inside ({inside}) without routing, and so past the \
                     relay of `proxy_protocol`: remove {outside} from {by}"
                )),
                Detour::Routed { outside, by } => around.push(format!(
                    "packets from {outside} bypass the relay of `proxy_protocol`: {outside} belongs to {by}, and the \
                     kernel applies the routing rules of {by} before those that lead to the relay: remove {outside} \
                     from {by}"
                )),
            }
        }
        (wanted, around)
    }
}
