//! The network in which every solution is measured: a client and a stranger on one Ethernet, a gateway, and a server
//! behind it.
//!
//! ```text
//! client ──┐
//!          path (bridge) ── gateway ── server
//! stranger ┘
//! ```
//!
//! The client has no route to the server: a solution has to bring one. Tunnels end at the gateway.

use std::fs;
use std::os::unix::fs::MetadataExt;

use anyhow::Result;
use lab::Namespace;
use lab::net::veth;

/// The client's address on the path.
pub const CLIENT: &str = "10.77.1.2";
/// The client's address after it has moved.
pub const CLIENT_MOVED: &str = "10.77.1.3";
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

/// How the gateway is connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// The kernel's bridge carries packets.
    Bridge,
    /// Packets end at [`TRUNK`] and [`TO_GATEWAY`], between which an emulator carries them. The gateway's and the
    /// bridge's ends have no offloads, so that each frame is one packet.
    Emulated,
}

/// The device of the path's namespace that leads to the client.
pub const TO_CLIENT: &str = "to-client";
/// The device of the path's namespace that leads to the gateway.
pub const TO_GATEWAY: &str = "to-gateway";
/// The bridge's end towards the gateway, where the path is emulated.
pub const TRUNK: &str = "trunk";

/// Namespaces and cables; removed when dropped.
pub struct Site {
    /// The client: `eth0`.
    pub client: Namespace,
    /// Somebody else on the client's Ethernet: `eth0`.
    pub stranger: Namespace,
    /// The Ethernet itself: [`TO_CLIENT`], `to-stranger`, [`TO_GATEWAY`], and a bridge.
    pub path: Namespace,
    /// Where tunnels end: `eth0` outside, `eth1` inside.
    pub gateway: Namespace,
    /// The host of the services: `eth0`.
    pub server: Namespace,
    kind: Path,
}

impl Site {
    /// Builds the network.
    ///
    /// # Errors
    /// If a namespace or a cable can't be made, as when not running as root.
    pub fn new(kind: Path) -> Result<Self> {
        let names = ["client", "stranger", "path", "gateway", "server"];
        let [client, stranger, path, gateway, server] = names.map(Namespace::new);
        let this = Self { client: client?, stranger: stranger?, path: path?, gateway: gateway?, server: server?, kind };
        let Self { client, stranger, path, gateway, server, .. } = &this;
        for host in [client, stranger, path, gateway, server] {
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

    /// Adds a host to the client's Ethernet, with this address, which the client and the gateway reach directly.
    ///
    /// # Errors
    /// If the namespace or its cable can't be made.
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

    /// Gives the client another address on the path, as after a change of network.
    ///
    /// # Errors
    /// If the address can't be changed.
    pub fn move_client(&self) -> Result<()> {
        // The routes that go through the old address are kept: its replacement comes first.
        self.client.ip(&format!("address add {CLIENT_MOVED}/24 dev eth0"))?;
        self.client.ip(&format!("address delete {CLIENT}/24 dev eth0"))?;
        Ok(())
    }
}

/// Returns the processes whose main thread is in the namespace.
pub fn processes(namespace: &Namespace) -> Vec<i32> {
    let inode = |path: &std::path::Path| fs::metadata(path).map(|file| file.ino()).ok();
    let Some(wanted) = inode(&namespace.path()) else { return Vec::new() };
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let this = std::process::id().cast_signed();
    pids.filter(|pid| *pid != this && inode(format!("/proc/{pid}/ns/net").as_ref()) == Some(wanted)).collect()
}
