//! Adoption of TCP connections that are already established when protection starts. The verifier selects these
//! connections from the kernel's list of sockets by local address and port. Only [`sockets`] does IO.

use crate::plan;
use datapath::sockets::address;
use engine::model::protected::Protected;
use std::net::{IpAddr, SocketAddr};
use wire::map::{Flow, FlowKey, origin};
use wire::packet::TCP;

/// A TCP socket that has a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Socket {
    /// The socket's own address and port.
    pub local: SocketAddr,
    /// The peer's address and port.
    pub peer: SocketAddr,
}

/// Returns the TCP sockets of this network namespace whose connection is established or being closed.
///
/// # Errors
///
/// Fails if `/proc/self/net/tcp` can't be read.
pub fn sockets() -> std::io::Result<Vec<Socket>> {
    let four = std::fs::read_to_string("/proc/self/net/tcp")?;
    // The file is absent if the kernel has no IPv6.
    let six = std::fs::read_to_string("/proc/self/net/tcp6").unwrap_or_default();
    Ok(four.lines().chain(six.lines()).filter_map(socket).collect())
}

/// Parses one line of `/proc/net/tcp` or `tcp6`; returns `None` if its connection is neither established nor being
/// closed.
pub fn socket(line: &str) -> Option<Socket> {
    let mut fields = line.split_whitespace().skip(1);
    let (local, peer, state) = (fields.next()?, fields.next()?, fields.next()?);
    // ESTABLISHED, FIN_WAIT1, FIN_WAIT2, CLOSE_WAIT, LAST_ACK, CLOSING (include/net/tcp_states.h): the handshake is
    // complete and the peer may still send.
    if !["01", "04", "05", "08", "09", "0B"].contains(&state) {
        return None;
    }
    Some(Socket { local: address(local)?, peer: address(peer)? })
}

/// Returns those sockets whose local address and port are protected.
pub fn protected_sockets(sockets: &[Socket], protected: &[Protected]) -> Vec<Socket> {
    let is_protected = |s: &&Socket| plan::is_protected(protected, s.local.ip(), TCP, s.local.port());
    sockets.iter().filter(is_protected).copied().collect()
}

/// Returns the key and the entry with which the flow table adopts the connection of `socket`.
pub fn flow(socket: &Socket, now: u32) -> (FlowKey, Flow) {
    let key = FlowKey::new(socket.peer.ip(), socket.peer.port(), socket.local.ip(), socket.local.port(), TCP);
    (key, Flow { since: now, seen: now, origin: origin::ADOPTED, ..Flow::default() })
}

/// Parses the value of `SSH_CONNECTION` (`CLIENT PORT SERVER PORT`); `None` if it is malformed.
pub fn ssh_connection(text: &str) -> Option<Socket> {
    let mut fields = text.split(' ');
    let mut end = || {
        let address: IpAddr = fields.next()?.parse().ok()?;
        Some(SocketAddr::new(address.to_canonical(), fields.next()?.parse().ok()?))
    };
    let (peer, local) = (end()?, end()?);
    Some(Socket { local, peer })
}

/// Returns the connection through which the administrator is possibly working. This is the connection in
/// `SSH_CONNECTION`. If the variable is not set, it is any established connection to the SSH port.
pub fn operator(ssh_connection: Option<Socket>, sockets: &[Socket]) -> Option<Socket> {
    const SSH: u16 = 22;
    ssh_connection.or_else(|| sockets.iter().find(|socket| socket.local.port() == SSH).copied())
}

/// Returns a warning if starting protection could lock the administrator out, because the administrator is logged in
/// through a protected port. If `adopt` is true, protection does not cut the administrator's connection, but the next
/// connection needs a grant.
pub fn lock_out(ssh: Option<&Socket>, protected: &[Protected], adopt: bool) -> Option<String> {
    let ssh = ssh.filter(|ssh| plan::is_protected(protected, ssh.local.ip(), TCP, ssh.local.port()))?;
    let cut = if adopt { "stays up, but the next one needs a grant" } else { "will be cut" };
    Some(format!(
        "the connection from {} to the protected port {} may be your own: it {cut}. With `--try 60s` protection ends \
         again unless you confirm it",
        ssh.peer, ssh.local
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::model::{Receiver, Service};

    const ESTABLISHED4: &str = "   1: 0A0200C0:0016 057100CB:1267 01 00000000:00000000 02:000A 00000000     0        0 1 2 00000000 20 4 0 10 -1";
    const LISTENING: &str =
        "   0: 00000000:0016 00000000:0000 0A 00000000:00000000 00:0000 00000000     0        0 1 1";
    const MAPPED: &str =
        "   0: 0000000000000000FFFF00000A0200C0:0016 0000000000000000FFFF0000057100CB:1268 01 0:0 0:0 0";
    const ESTABLISHED6: &str =
        "   0: B80D0120000000000000000001000000:0016 B80D0120000000000000000002000000:1267 08 0:0 0:0 0";

    fn at(text: &str) -> SocketAddr {
        text.parse().expect("an address and port")
    }

    #[cfg(target_endian = "little")]
    #[test]
    fn established_sockets_are_read() {
        let four = Socket { local: at("192.0.2.10:22"), peer: at("203.0.113.5:4711") };
        assert_eq!(socket(ESTABLISHED4), Some(four));
        assert_eq!(socket(MAPPED), Some(Socket { peer: at("203.0.113.5:4712"), ..four }));
        let six = Socket { local: at("[2001:db8::1]:22"), peer: at("[2001:db8::2]:4711") };
        assert_eq!(socket(ESTABLISHED6), Some(six));
        assert_eq!(socket(LISTENING), None);
        assert_eq!(socket("  sl  local_address rem_address   st tx_queue"), None);
        assert_eq!(socket(""), None);
    }

    fn protected() -> Vec<Protected> {
        let services = vec![Service { protocol: 6, first_port: 22, last_port: 22 }];
        let receiver = Receiver { name: "ssh".into(), prefix: "192.0.2.0/24".parse().expect("a prefix"), services };
        engine::model::protected::entries(&[receiver]).expect("fits")
    }

    #[test]
    fn only_connections_to_what_is_protected_are_adopted() {
        let ours = Socket { local: at("192.0.2.10:22"), peer: at("203.0.113.5:4711") };
        let outgoing = Socket { local: at("192.0.2.10:40000"), peer: at("203.0.113.5:22") };
        let elsewhere = Socket { local: at("192.0.3.10:22"), peer: at("203.0.113.5:4711") };
        assert_eq!(protected_sockets(&[ours, outgoing, elsewhere], &protected()), [ours]);
        let (key, flow) = flow(&ours, 1000);
        assert_eq!((key.client(), key.server()), ((ours.peer.ip(), 4711), (ours.local.ip(), 22)));
        assert_eq!((flow.origin, flow.handle, flow.seen), (origin::ADOPTED, 0, 1000));
    }

    #[test]
    fn an_operator_behind_a_protected_port_is_warned() {
        let ssh = ssh_connection("203.0.113.5 4711 192.0.2.10 22");
        assert!(lock_out(ssh.as_ref(), &protected(), false).expect("a warning").contains("will be cut"));
        assert!(lock_out(ssh.as_ref(), &protected(), true).expect("a warning").contains("stays up"));
        let elsewhere = ssh_connection("203.0.113.5 4711 192.0.9.10 22");
        assert_eq!(lock_out(elsewhere.as_ref(), &protected(), false), None);
        assert_eq!(lock_out(None, &protected(), false), None);
        assert_eq!(ssh_connection("x"), None);
        let other = Socket { local: at("192.0.2.10:22"), peer: at("203.0.113.9:1") };
        assert_eq!(operator(ssh, &[other]), ssh);
        assert_eq!(operator(None, &[Socket { local: at("192.0.2.10:80"), ..other }, other]), Some(other));
    }
}
