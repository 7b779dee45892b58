//! Further hosts of the stage, besides server and client.

use super::{DROPPED, Namespace, Stage, ip};
use std::net::{SocketAddr, TcpStream, UdpSocket};

/// A host behind the verifier's host, or next to it.
pub struct Beyond(Namespace);

impl Beyond {
    /// Opens a UDP socket on the host.
    pub fn socket(&self, address: &str) -> UdpSocket {
        self.0.socket(address)
    }

    /// Reports whether a connection from the host is established.
    pub fn connects(&self, to: &str) -> bool {
        let to: SocketAddr = to.parse().unwrap();
        std::thread::scope(|scope| {
            let connect = || {
                self.0.enter();
                TcpStream::connect_timeout(&to, DROPPED).is_ok()
            };
            scope.spawn(connect).join().unwrap()
        })
    }
}

impl Stage {
    /// Adds a host that the client (10.78.0.2) reaches only if frames cross this host between the interfaces `near` and
    /// `far`.
    pub fn beyond(&self) -> Beyond {
        let beyond = Namespace::new(format!("{}b", self.instance));
        for (near, namespace, address) in [("near", &self.client, "10.78.0.2/24"), ("far", &beyond, "10.78.0.1/24")] {
            let (host, there) = (&self.host.0, &namespace.0);
            ip(&["-n", host, "link", "add", near, "type", "veth", "peer", "name", "eth1", "netns", there]);
            ip(&["-n", there, "addr", "add", address, "dev", "eth1"]);
            // Frames cross unchanged, so the sender must compute checksums itself.
            ip(&["netns", "exec", there, "ethtool", "-K", "eth1", "tx", "off"]);
            ip(&["-n", host, "link", "set", near, "up"]);
            ip(&["-n", there, "link", "set", "eth1", "up"]);
        }
        Beyond(beyond)
    }

    /// Adds a host with a macvlan interface on the verifier's interface.
    pub fn sibling(&self, address: &str) -> Beyond {
        let (host, sibling) = (&self.host.0, Namespace::new(format!("{}s", self.instance)));
        ip(&["-n", host, "link", "add", "mv1", "link", "eth0", "type", "macvlan", "mode", "bridge"]);
        ip(&["-n", host, "link", "set", "mv1", "netns", &sibling.0]);
        ip(&["-n", &sibling.0, "addr", "add", address, "dev", "mv1"]);
        ip(&["-n", &sibling.0, "link", "set", "mv1", "up"]);
        Beyond(sibling)
    }
}
