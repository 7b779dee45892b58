//! Optional receivers: TCP services that everybody may reach. The verifier knows the people who send a token.

use super::Kernel;
use crate::view;
use anyhow::{Context, Result, ensure};
use std::net::{IpAddr, SocketAddr};
use wire::packet::TCP;

/// Room of the kernel's table.
const MOST: usize = 256;

fn end(service: &SocketAddr) -> (IpAddr, u16) {
    (service.ip().to_canonical(), service.port())
}

impl Kernel {
    /// Writes the optional receivers of the settings to the kernel's table.
    pub(super) fn write_optional(&self) -> Result<()> {
        let services = &self.settings.optional;
        ensure!(services.len() <= MOST, "`optional` may name at most {MOST} services, not {}", services.len());
        let ends: Vec<_> = services.iter().map(end).collect();
        self.verifier.make_optional(&ends).context("cannot update the table of optional receivers")?;
        for service in services {
            tracing::warn!(%service, "everybody may reach this service, with or without a token");
        }
        Ok(())
    }

    /// Reports whether everybody may reach this TCP service.
    pub fn is_optional(&self, service: SocketAddr) -> bool {
        self.settings.optional.iter().any(|one| end(one) == end(&service))
    }

    /// Returns the optional receivers.
    pub fn optional(&self) -> Vec<view::Optional> {
        let named = self.named();
        let covers = |service: &SocketAddr| {
            let around = named.iter().filter(|entry| entry.prefix.contains(&service.ip().to_canonical()));
            let nearest = around.max_by_key(|entry| entry.prefix.prefix_len());
            nearest.is_some_and(|entry| entry.services.covers(TCP, service.port()))
        };
        let view = |service: &SocketAddr| view::Optional { service: *service, named: covers(service) };
        self.settings.optional.iter().map(view).collect()
    }
}
