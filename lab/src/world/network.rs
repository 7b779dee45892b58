//! Namespaces and cables of the standard world.

use std::net::IpAddr;

use anyhow::Result;

use crate::nat::nat;
use crate::net::{Namespace, veth};

/// The server's IPv4 address on which only some services are protected.
pub const FRONT4: &str = "192.0.2.20";
/// The server's IPv6 counterpart of [`FRONT4`].
pub const FRONT6: &str = "2001:db8:2::20";
/// The server's IPv4 address on which every service is protected.
pub const DARK4: &str = "192.0.2.10";
/// The server's IPv6 counterpart of [`DARK4`].
pub const DARK6: &str = "2001:db8:2::10";
/// The server's unprotected IPv4 address, from which it opens its own connections.
pub const OPEN4: &str = "192.0.2.2";
/// The server's IPv6 counterpart of [`OPEN4`].
pub const OPEN6: &str = "2001:db8:2::2";
/// The public IPv4 address of Alice and Mallory behind their NAT.
pub const PUBLIC4: &str = "203.0.113.1";
/// The IPv6 counterpart of [`PUBLIC4`].
pub const PUBLIC6: &str = "2001:db8:1::1";
/// Alice's address at home.
pub const INSIDE4: &str = "10.1.0.1";
/// Inside addresses of a gateway's pool: about a hundred of each family.
pub const POOL: &str = "10.9.0.0/25,fd09::/121";
/// The authority's address.
pub const AUTHORITY: &str = "198.51.100.10";

/// The way by which clients reach the Internet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Through a strict NAT that shares one public address.
    Nat,
    /// By routing only: packets keep each client's own address.
    Direct,
}

/// Namespaces and cables. The device of each client, of the server and of the authority is `eth0`.
pub struct Network {
    /// The client with access.
    pub alice: Namespace,
    /// The client without access.
    pub mallory: Namespace,
    /// The clients' home router. Its devices are `lan-alice` and `lan-mallory` inside, and `wan` outside.
    pub router: Namespace,
    /// A router that only forwards. Its devices are `home`, `dc` (the server's cable) and `auth`.
    pub internet: Namespace,
    /// The router before the server, if there is one. Its devices are `eth0` outside and `eth1` inside.
    pub gateway: Option<Namespace>,
    /// The host of the services.
    pub server: Namespace,
    /// The host of the authority.
    pub authority: Namespace,
    /// The way by which clients reach the Internet.
    pub way: Way,
}

impl Network {
    /// Builds the network, without a gateway.
    pub fn new(way: Way) -> Result<Self> {
        Self::build(way, None)
    }

    /// Builds the network, with a gateway before the server.
    pub fn behind_gateway(way: Way) -> Result<Self> {
        Self::build(way, Some(Namespace::new("gateway")?))
    }

    /// Returns the host whose `eth0` faces the Internet on the server's side: the gateway if there is one, or else the
    /// server.
    pub fn front(&self) -> &Namespace {
        self.gateway.as_ref().unwrap_or(&self.server)
    }

    fn build(way: Way, gateway: Option<Namespace>) -> Result<Self> {
        let network = Self {
            gateway,
            alice: Namespace::new("alice")?,
            mallory: Namespace::new("mallory")?,
            router: Namespace::new("router")?,
            internet: Namespace::new("internet")?,
            server: Namespace::new("server")?,
            authority: Namespace::new("authority")?,
            way,
        };
        let Self { alice, mallory, router, internet, gateway, server, authority, .. } = &network;
        [alice, mallory, server].into_iter().chain(gateway).try_for_each(Namespace::use_loss_based_control)?;
        for (client, device, four, six) in
            [(alice, "lan-alice", "10.1.0", "fd01::"), (mallory, "lan-mallory", "10.2.0", "fd02::")]
        {
            let (inside, gateway) = (format!("{four}.1/24 {six}1/64"), format!("{four}.254/24 {six}ff/64"));
            veth(client, "eth0", &inside, router, device, &gateway)?;
            client.route("default", &format!("{four}.254"))?;
            client.route("default", &format!("{six}ff"))?;
        }
        let public = format!("{PUBLIC4}/24 {PUBLIC6}/64");
        veth(router, "wan", &public, internet, "home", "203.0.113.254/24 2001:db8:1::ff/64")?;
        let served = [OPEN4, FRONT4, DARK4].map(|address| format!("{address}/24")).join(" ");
        let served6 = [OPEN6, FRONT6, DARK6].map(|address| format!("{address}/64")).join(" ");
        let (served, next) = (format!("{served} {served6}"), "192.0.2.254/24 2001:db8:2::ff/64");
        match gateway {
            None => veth(server, "eth0", &served, internet, "dc", next)?,
            Some(gateway) => {
                veth(server, "eth0", &served, gateway, "eth1", next)?;
                let (four, six) = ("192.0.3.1", "2001:db8:3::1");
                let outside = format!("{four}/24 {six}/64");
                veth(gateway, "eth0", &outside, internet, "dc", "192.0.3.254/24 2001:db8:3::ff/64")?;
                gateway.route("default", "192.0.3.254")?;
                gateway.route("default", "2001:db8:3::ff")?;
                gateway.forward()?;
                internet.route("192.0.2.0/24", four)?;
                internet.route("2001:db8:2::/64", six)?;
            }
        }
        veth(authority, "eth0", &format!("{AUTHORITY}/24"), internet, "auth", "198.51.100.254/24")?;
        for (host, four, six) in
            [(router, "203.0.113.254", "2001:db8:1::ff"), (server, "192.0.2.254", "2001:db8:2::ff")]
        {
            host.route("default", four)?;
            host.route("default", six)?;
        }
        authority.route("default", "198.51.100.254")?;
        internet.forward()?;
        match way {
            Way::Nat => nat(router, "lan-*", "wan")?,
            Way::Direct => {
                router.forward()?;
                for (four, six) in [("10.1.0.0/24", "fd01::/64"), ("10.2.0.0/24", "fd02::/64")] {
                    internet.route(four, PUBLIC4)?;
                    internet.route(six, PUBLIC6)?;
                }
            }
        }
        Ok(network)
    }
}

/// Parses `sixth` as an address if `six` is set, and `four` otherwise.
pub fn in_family(six: bool, four: &str, sixth: &str) -> IpAddr {
    (if six { sixth } else { four }).parse().expect("a constant address")
}
