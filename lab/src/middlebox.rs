//! Middleboxes on the path of packets: packet filters of nftables, and a box that removes the data from SYNs.

use std::fs::File;
use std::io::Read;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Result;
use nix::sys::socket::{MsgFlags, SockaddrIn, sendto};

use crate::net::Namespace;
use crate::rough::{raw, tun};

/// Name of the tun device of a box in user space, and mark of packets on their way to this device.
const TUN: &str = "box0";
const MARK: u32 = 0x73;
/// Mark of packets that come from the tun device.
const MARK_OUT: u32 = 0x74;

/// Rules of nftables in a namespace. Dropping this value removes them.
pub struct Rules<'a> {
    namespace: &'a Namespace,
}

impl<'a> Rules<'a> {
    /// Filters the packets that the namespace forwards, by these rules.
    pub fn forward(namespace: &'a Namespace, rules: &str) -> Result<Self> {
        Self::table(namespace, &format!("chain f {{ type filter hook forward priority -5; policy accept;\n{rules}\n}}"))
    }

    /// Filters the packets that the namespace forwards, by `rules`, and adds the chain `chain` to the same table.
    pub fn forward_with(namespace: &'a Namespace, chain: &str, rules: &str) -> Result<Self> {
        let forward = format!("chain f {{ type filter hook forward priority -5; policy accept;\n{rules}\n}}");
        Self::table(namespace, &format!("{chain}\n{forward}"))
    }

    /// Changes the destinations of packets that arrive at the namespace, as `rules` say.
    pub fn redirect(namespace: &'a Namespace, rules: &str) -> Result<Self> {
        Self::table(
            namespace,
            &format!("chain r {{ type nat hook prerouting priority -100; policy accept;\n{rules}\n}}"),
        )
    }

    fn table(namespace: &'a Namespace, chains: &str) -> Result<Self> {
        let file = namespace.dir().join("middlebox.nft");
        std::fs::write(&file, format!("table inet middlebox {{\n{chains}\n}}\n"))?;
        namespace.run(["nft".as_ref(), "-f".as_ref(), file.as_os_str()])?;
        Ok(Self { namespace })
    }
}

impl Drop for Rules<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.namespace.run(["nft", "delete", "table", "inet", "middlebox"]) {
            eprintln!("lab: could not remove the rules of a middlebox: {error:#}");
        }
    }
}

/// A box in user space that removes the data from IPv4 SYNs that a namespace forwards from a device, so that the server
/// acknowledges only the SYN. Dropping this value removes the box and its rules.
pub struct Stripper<'a> {
    namespace: &'a Namespace,
    stripped: Arc<AtomicU64>,
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl<'a> Stripper<'a> {
    /// Starts the box for packets that arrive on `device`.
    pub fn start(namespace: &'a Namespace, device: &str) -> Result<Self> {
        let rules = format!(
            "table ip stripper {{ chain p {{ type filter hook prerouting priority mangle; policy accept;
                iifname \"{device}\" tcp flags & (syn | ack) == syn meta mark set {MARK}
            }}
            }}"
        );
        let tun = namespace.enter(|| tun(TUN))?;
        namespace.ip(&format!("link set {TUN} up"))?;
        namespace.ip(&format!("route add default dev {TUN} table {MARK}"))?;
        namespace.ip(&format!("rule add fwmark {MARK} table {MARK}"))?;
        let out = namespace.enter(|| raw(MARK_OUT))?;
        let file = namespace.dir().join("stripper.nft");
        std::fs::write(&file, rules)?;
        namespace.run(["nft".as_ref(), "-f".as_ref(), file.as_os_str()])?;
        let (stripped, end) = (Arc::<AtomicU64>::default(), Arc::new(AtomicBool::new(false)));
        let thread = std::thread::spawn({
            let (stripped, end) = (stripped.clone(), end.clone());
            move || strip_all(tun, &out, &stripped, &end)
        });
        Ok(Self { namespace, stripped, end, thread: Some(thread) })
    }

    /// Returns the number of SYNs from which the box has removed data.
    pub fn stripped(&self) -> u64 {
        self.stripped.load(Relaxed)
    }
}

impl Drop for Stripper<'_> {
    fn drop(&mut self) {
        let no_rules = self.namespace.run(["nft", "delete", "table", "ip", "stripper"]);
        let no_way = self.namespace.ip(&format!("rule del fwmark {MARK} table {MARK}"));
        if let Err(error) = no_rules.map(drop).and(no_way.map(drop)) {
            eprintln!("lab: could not remove the rules of a middlebox: {error:#}");
        }
        self.end.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn strip_all(mut tun: File, out: &OwnedFd, stripped: &AtomicU64, end: &AtomicBool) {
    let mut room = [0; 2048];
    while !end.load(Relaxed) {
        let Ok(size) = tun.read(&mut room) else {
            std::thread::sleep(Duration::from_micros(200));
            continue;
        };
        let Some(packet) = strip(&room[..size]) else { continue };
        stripped.fetch_add(u64::from(packet.len() < size), Relaxed);
        let to = SockaddrIn::from(std::net::SocketAddrV4::new(address(&packet, 16), 0));
        if let Err(error) = sendto(out.as_raw_fd(), &packet, &to, MsgFlags::empty()) {
            eprintln!("lab: stripper: {error}");
        }
    }
}

fn address(packet: &[u8], at: usize) -> Ipv4Addr {
    let bytes: [u8; 4] = packet[at..at + 4].try_into().unwrap_or_default();
    bytes.into()
}

/// Returns a TCP packet over IPv4 without its data. The kernel completes the IP header.
fn strip(packet: &[u8]) -> Option<Vec<u8>> {
    if packet.len() < 40 || packet[0] >> 4 != 4 || packet[9] != 6 {
        return None;
    }
    let header = usize::from(packet[0] & 15) * 4;
    let tcp = usize::from(packet.get(header + 12)? >> 4) * 4;
    let mut short = packet.get(..header + tcp)?.to_vec();
    short[2..4].copy_from_slice(&((header + tcp) as u16).to_be_bytes());
    short[header + 16..header + 18].fill(0);
    let word = |pair: &[u8]| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
    let mut sum: u32 = short[12..20].chunks(2).chain(short[header..].chunks(2)).map(word).sum();
    sum += 6 + tcp as u32;
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    short[header + 16..header + 18].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    Some(short)
}
