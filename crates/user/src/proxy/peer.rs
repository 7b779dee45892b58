//! The user at the other end of a loopback connection.

use anyhow::{Context, Result};
use nix::unistd::Uid;
use std::net::{IpAddr, SocketAddr};

/// Returns the user whose process opened the connection from `peer` to `own`, both addresses of this machine.
///
/// # Errors
///
/// Fails if the kernel does not list the connection.
pub fn user_of(peer: SocketAddr, own: SocketAddr) -> Result<Uid> {
    let file = if peer.is_ipv4() { "/proc/self/net/tcp" } else { "/proc/self/net/tcp6" };
    let table = std::fs::read_to_string(file).with_context(|| format!("cannot read {file}"))?;
    let (peer, own) = (shown(peer), shown(own));
    let row = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let mut rows = row.filter(|row| row.get(1) == Some(&peer.as_str()) && row.get(2) == Some(&own.as_str()));
    let row = rows.next().with_context(|| format!("{file} does not list the connection"))?;
    let uid = row.get(7).and_then(|uid| uid.parse().ok()).with_context(|| format!("{file} names no user"))?;
    Ok(Uid::from_raw(uid))
}

/// Returns an address in the notation of the kernel's table, in which each word of the address is in the machine's byte
/// order.
fn shown(address: SocketAddr) -> String {
    let octets = match address.ip() {
        IpAddr::V4(four) => four.octets().to_vec(),
        IpAddr::V6(six) => six.octets().to_vec(),
    };
    let words = octets.chunks_exact(4).map(|word| u32::from_ne_bytes([word[0], word[1], word[2], word[3]]));
    let words: String = words.map(|word| format!("{word:08X}")).collect();
    format!("{words}:{:04X}", address.port())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn a_connection_is_this_processs() {
        for any in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(any).expect("a listener");
            let own = listener.local_addr().expect("an address");
            let client = TcpStream::connect(own).expect("connected");
            let peer = client.local_addr().expect("an address");
            assert_eq!(user_of(peer, own).expect("listed"), Uid::effective());
            assert!(user_of(own, SocketAddr::new(peer.ip(), 1)).is_err());
        }
    }
}
