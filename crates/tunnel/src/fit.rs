//! The length of the super-packets that TCP sends into the device.
//!
//! One system call sends at most 65 507 bytes of records (`UDP_SEGMENT`). The kernel's usual super-packet has up to 64
//! KiB, and its records together are longer than 65 507 bytes. So the super-packet leaves in two calls, and the second
//! call carries only two or three records. A slightly shorter super-packet leaves in one call and arrives as one
//! datagram. The other end writes it to its device as one super-packet, and TCP answers it with one packet.
//!
//! But before the kernel forwards a super-packet that is longer than the device's limit, it cuts the super-packet into
//! single packets, and each of them is read from the device separately. So the limit is lower only while this machine
//! forwards nothing.

use crate::route;
use engine::tunnel::Millis;
use std::fs;

/// Interval, in milliseconds, at which to look whether this machine forwards packets.
const LOOK: Millis = 5_000;
/// The kernel's usual limit, in bytes.
const USUAL: u32 = 65_536;
/// A limit, in bytes, with which the packets of a super-packet fit one system call as records. TCP leaves 321 bytes of
/// the limit free. The rest holds 45 packets with 1368 bytes of payload, whose records have 1452 bytes each.
const FITTING: u32 = 62_000;
/// Files whose content is not 0 if the kernel forwards packets: between all interfaces, or between new ones.
const SWITCHES: [&str; 4] = [
    "/proc/sys/net/ipv4/conf/all/forwarding",
    "/proc/sys/net/ipv4/conf/default/forwarding",
    "/proc/sys/net/ipv6/conf/all/forwarding",
    "/proc/sys/net/ipv6/conf/default/forwarding",
];

/// Sets the maximum length of the super-packets that TCP sends into the device: the kernel's usual limit while this
/// machine forwards packets, otherwise a slightly lower limit.
#[derive(Default)]
pub struct Fit {
    looked: Option<Millis>,
    limit: Option<u32>,
}

impl Fit {
    /// Checks whether the device's limit has to change, and changes it if so. Checks at most once every 5 s.
    pub fn look(&mut self, device: &str, now: Millis) {
        if self.looked.is_some_and(|last| now.saturating_sub(last) < LOOK) {
            return;
        }
        self.looked = Some(now);
        let limit = if forwards() { USUAL } else { FITTING };
        if self.limit.replace(limit) != Some(limit)
            && let Err(error) = route::limit_super_packets(device, limit)
        {
            // Packets pass with either limit.
            tracing::debug!("{error:#}");
        }
    }
}

/// Reports whether this machine forwards packets.
fn forwards() -> bool {
    SWITCHES.iter().any(|file| fs::read_to_string(file).is_ok_and(|text| text.trim() != "0"))
}
