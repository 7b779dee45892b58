//! The network in which every solution is measured: a client and a stranger on one Ethernet, a gateway, and a server
//! behind it.
//!
//! ```text
//! client ──┐
//!          path (bridge) ── gateway ── server
//! stranger ┘
//! ```
//!
//! The client has no route to the server until a solution adds one. Tunnels end at the gateway.

use std::fs;
use std::os::unix::fs::MetadataExt;

use anyhow::Result;
use lab::Namespace;
use lab::net::veth;

/// The client's address on the path.
pub const CLIENT: &str = "10.77.1.2";
/// The client's address after it has moved.
pub const CLIENT_MOVED: &str = "10.77.1.3";
/// The server's address on the path, in networks where the server has its own cable to the path, without a gateway.
pub const SERVER_NEAR: &str = "10.77.1.5";
/// The gateway's address on the path.
pub const GATEWAY: &str = "10.77.1.1";
/// The stranger's address.
pub const STRANGER: &str = "10.77.1.66";
/// The server's address behind the gateway.
pub const SERVER: &str = "10.77.2.2";
/// The network behind the gateway.
pub const LAN: &str = "10.77.2.0/24";
/// The client's address in a tunnel.
pub const TUNNEL_CLIENT: &str = "10.77.3.2";
/// The gateway's address in a tunnel.
pub const TUNNEL_GATEWAY: &str = "10.77.3.1";

/// How the gateway is connected to the client's Ethernet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// The kernel's bridge carries packets.
    Bridge,
    /// An emulator in user space copies packets between [`TRUNK`] and [`TO_GATEWAY`]. The devices at the gateway and at
    /// the bridge have no offloads, so that each frame is one packet.
    Emulated,
}

/// Name of the network device that leads to the client, in the path's namespace.
pub const TO_CLIENT: &str = "to-client";
/// Name of the network device that leads to the gateway, in the path's namespace.
pub const TO_GATEWAY: &str = "to-gateway";
/// Name of the network device through which the emulator reaches the bridge, in the path's namespace. It exists only on
/// a path of the kind [`Path::Emulated`].
pub const TRUNK: &str = "trunk";

/// Namespaces and cables. They are removed when this value is dropped.
pub struct Site {
    /// The client's host, with the interface `eth0`.
    pub client: Namespace,
    /// The hosts of more clients on the first client's Ethernet. Each has the interface `eth0`.
    pub others: Vec<Namespace>,
    /// The host of somebody else on the client's Ethernet, with the interface `eth0`.
    pub stranger: Namespace,
    /// The Ethernet itself: [`TO_CLIENT`], `to-stranger`, [`TO_GATEWAY`], and a bridge.
    pub path: Namespace,
    /// The host where tunnels end, with the interfaces `eth0` (outside) and `eth1` (inside).
    pub gateway: Namespace,
    /// The host of the services, with the interface `eth0`.
    pub server: Namespace,
    kind: Path,
}

impl Site {
    /// Builds the network.
    ///
    /// # Errors
    ///
    /// Fails if a namespace or a cable can't be made, for instance because the process does not run as root.
    pub fn new(kind: Path) -> Result<Self> {
        let names = ["client", "stranger", "path", "gateway", "server"];
        let [client, stranger, path, gateway, server] = names.map(Namespace::new);
        let (client, stranger, path, gateway, server) = (client?, stranger?, path?, gateway?, server?);
        let this = Self { client, others: Vec::new(), stranger, path, gateway, server, kind };
        let Self { client, stranger, path, gateway, server, .. } = &this;
        for host in [client, stranger, path, gateway, server] {
            quiet(host)?;
        }
        veth(client, "eth0", &format!("{CLIENT}/24"), path, TO_CLIENT, "")?;
        veth(stranger, "eth0", &format!("{STRANGER}/24"), path, "to-stranger", "")?;
        veth(gateway, "eth0", &format!("{GATEWAY}/24"), path, TO_GATEWAY, "")?;
        veth(gateway, "eth1", "10.77.2.1/24", server, "eth0", &format!("{SERVER}/24"))?;
        server.route("default", "10.77.2.1")?;
        gateway.sysctl("net/ipv4/ip_forward", "1")?;
        path.ip("link add br0 type bridge forward_delay 0")?;
        path.ip("link set br0 up")?;
        for port in [TO_CLIENT, "to-stranger"] {
            path.ip(&format!("link set {port} master br0"))?;
        }
        match kind {
            Path::Bridge => path.ip(&format!("link set {TO_GATEWAY} master br0")).map(drop)?,
            Path::Emulated => {
                veth(path, "uplink", "", path, TRUNK, "")?;
                path.ip("link set uplink master br0")?;
                for (host, device) in [(client, "eth0"), (stranger, "eth0"), (gateway, "eth0"), (path, "uplink")] {
                    host.offload(device, "tx", false)?;
                }
            }
        }
        Ok(this)
    }

    /// Adds a host with this address to the client's Ethernet. The client and the gateway reach the host directly.
    ///
    /// # Errors
    ///
    /// Fails if the namespace or its cable can't be made.
    pub fn add_host(&self, role: &str, address: &str) -> Result<Namespace> {
        let host = Namespace::new(role)?;
        let port = format!("to-{role}");
        veth(&host, "eth0", &format!("{address}/32"), &self.path, &port, "")?;
        self.path.ip(&format!("link set {port} master br0"))?;
        host.ip("route add 10.77.1.0/24 dev eth0")?;
        for near in [&self.client, &self.gateway] {
            near.ip(&format!("route add {address} dev eth0"))?;
        }
        if self.kind == Path::Emulated {
            host.offload("eth0", "tx", false)?;
        }
        Ok(host)
    }

    /// Adds a client to the Ethernet. The client's address follows from its number, see [`client_address`].
    ///
    /// # Errors
    /// Fails if the namespace or its cable can't be made.
    pub fn add_client(&mut self) -> Result<()> {
        let number = self.others.len() + 2;
        let host = Namespace::new(&format!("client{number}"))?;
        quiet(&host)?;
        let port = format!("to-client{number}");
        veth(&host, "eth0", &format!("{}/24", client_address(number)), &self.path, &port, "")?;
        self.path.ip(&format!("link set {port} master br0"))?;
        if self.kind == Path::Emulated {
            host.offload("eth0", "tx", false)?;
        }
        self.others.push(host);
        Ok(())
    }

    /// Gives the server a cable of its own to the clients' Ethernet, at [`SERVER_NEAR`], as a server without a gateway
    /// has.
    ///
    /// # Errors
    /// Fails if the cable can't be made.
    pub fn connect_server(&self) -> Result<()> {
        veth(&self.server, "eth1", &format!("{SERVER_NEAR}/24"), &self.path, "to-server", "")?;
        self.path.ip("link set to-server master br0").map(drop)
    }

    /// Gives the client another address on the path, as after a change of network.
    ///
    /// # Errors
    ///
    /// Fails if the address can't be changed.
    pub fn move_client(&self) -> Result<()> {
        // The new address is added first, so that routes through the old address survive.
        self.client.ip(&format!("address add {CLIENT_MOVED}/24 dev eth0"))?;
        self.client.ip(&format!("address delete {CLIENT}/24 dev eth0"))?;
        Ok(())
    }
}

/// Returns the address of a client on the path, by its number from 1.
pub fn client_address(number: usize) -> String {
    if number == 1 { CLIENT.to_owned() } else { format!("10.77.1.{}", 10 + number) }
}

/// Returns the address of a client in a tunnel, by its number from 1.
pub fn tunnel_address(number: usize) -> String {
    format!("10.77.3.{}", number + 1)
}

/// Turns off IPv6 on a host, and makes the host accept packets on every interface.
fn quiet(host: &Namespace) -> Result<()> {
    for (key, value) in [
        ("net/ipv6/conf/all/disable_ipv6", "1"),
        ("net/ipv6/conf/default/disable_ipv6", "1"),
        ("net/ipv4/conf/all/rp_filter", "0"),
        ("net/ipv4/conf/default/rp_filter", "0"),
        // When the client's first address goes, its second one stays.
        ("net/ipv4/conf/all/promote_secondaries", "1"),
    ] {
        host.sysctl(key, value)?;
    }
    Ok(())
}

/// Returns the ids of the processes whose main thread is in the namespace, except this process.
pub fn processes(namespace: &Namespace) -> Vec<i32> {
    let inode = |path: &std::path::Path| fs::metadata(path).map(|file| file.ino()).ok();
    let Some(wanted) = inode(&namespace.path()) else { return Vec::new() };
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let this = std::process::id().cast_signed();
    pids.filter(|pid| *pid != this && inode(format!("/proc/{pid}/ns/net").as_ref()) == Some(wanted)).collect()
}
