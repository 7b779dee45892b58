//! Matches of rules: the fields of OpenFlow's extensible match (§7.2.3) that rules for flows and prefixes need.

use ipnet::IpNet;
use wire::packet::{TCP, UDP};

/// A value to match under a mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Masked {
    /// The value that the field must have in the bits of `mask`.
    pub value: u16,
    /// The bits of the field that are compared with `value`.
    pub mask: u16,
}

impl Masked {
    /// Creates a match for exactly this value: all bits are compared.
    pub const fn exactly(value: u16) -> Self {
        Self { value, mask: u16::MAX }
    }
}

/// Match of a rule. A field that is `None` matches everything. Ports and TCP flags require `protocol`, and `protocol`
/// requires `source` or `destination`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Match {
    /// The switch port at which the packet arrived.
    pub in_port: Option<u32>,
    /// Address or network of the packet's sender.
    pub source: Option<IpNet>,
    /// Address or network of the packet's receiver.
    pub destination: Option<IpNet>,
    /// Number of the packet's IP protocol.
    pub protocol: Option<u8>,
    /// Port from which the packet's sender sends.
    pub source_port: Option<Masked>,
    /// Port of the packet's receiver.
    pub destination_port: Option<Masked>,
    /// TCP flags (the ONF's extension 109, which Open vSwitch supports for OpenFlow 1.3).
    pub tcp_flags: Option<Masked>,
}

/// Fields of the basic class (§7.2.3.7).
mod field {
    pub const IN_PORT: u8 = 0;
    pub const ETH_TYPE: u8 = 5;
    pub const IP_PROTO: u8 = 10;
    pub const IPV4_SRC: u8 = 11;
    pub const IPV4_DST: u8 = 12;
    pub const TCP_SRC: u8 = 13;
    pub const TCP_DST: u8 = 14;
    pub const UDP_SRC: u8 = 15;
    pub const UDP_DST: u8 = 16;
    pub const IPV6_SRC: u8 = 26;
    pub const IPV6_DST: u8 = 27;
    pub const TCP_FLAGS: u8 = 42;
}

const BASIC: [u8; 2] = [0x80, 0x00];
const EXPERIMENTER: [u8; 2] = [0xff, 0xff];
const ONF: [u8; 4] = *b"ONF\0";

impl Match {
    /// Appends the match, padded to a multiple of 8 bytes.
    pub fn encode(&self, bytes: &mut Vec<u8>) {
        let start = bytes.len();
        // Type "extensible", and the length, which does not include the padding.
        bytes.extend([0, 1, 0, 0]);
        if let Some(port) = self.in_port {
            put(bytes, field::IN_PORT, &port.to_be_bytes());
        }
        let family = self.destination.or(self.source);
        if let Some(net) = family {
            let ether_type: u16 = if net.addr().is_ipv4() { 0x0800 } else { 0x86dd };
            put(bytes, field::ETH_TYPE, &ether_type.to_be_bytes());
        }
        if let Some(protocol) = self.protocol {
            put(bytes, field::IP_PROTO, &[protocol]);
        }
        for (net, v4, v6) in
            [(self.source, field::IPV4_SRC, field::IPV6_SRC), (self.destination, field::IPV4_DST, field::IPV6_DST)]
        {
            match net {
                Some(IpNet::V4(net)) => {
                    put_masked(bytes, v4, &net.network().octets(), &net.netmask().octets());
                }
                Some(IpNet::V6(net)) => {
                    put_masked(bytes, v6, &net.network().octets(), &net.netmask().octets());
                }
                None => {}
            }
        }
        let ports = match self.protocol {
            Some(TCP) => Some((field::TCP_SRC, field::TCP_DST)),
            Some(UDP) => Some((field::UDP_SRC, field::UDP_DST)),
            _ => None,
        };
        if let Some((source, destination)) = ports {
            for (field, port) in [(source, self.source_port), (destination, self.destination_port)] {
                if let Some(Masked { value, mask }) = port {
                    put_masked(bytes, field, &value.to_be_bytes(), &mask.to_be_bytes());
                }
            }
        }
        if let Some(Masked { value, mask }) = self.tcp_flags {
            bytes.extend(EXPERIMENTER);
            bytes.extend([field::TCP_FLAGS << 1 | 1, 8]);
            bytes.extend(ONF);
            bytes.extend([value.to_be_bytes(), mask.to_be_bytes()].concat());
        }
        let len = bytes.len() - start;
        bytes[start + 2..start + 4].copy_from_slice(&(len as u16).to_be_bytes());
        bytes.resize(start + len.next_multiple_of(8), 0);
    }

    /// Returns the port at which a packet arrived, from the fields of a match.
    pub(super) fn in_port(mut fields: &[u8]) -> Option<u32> {
        while let Some((&[first, second, field, len], rest)) = fields.split_first_chunk() {
            let value = rest.get(..usize::from(len))?;
            if [first, second] == BASIC && field == field::IN_PORT << 1 {
                return value.first_chunk().map(|port| u32::from_be_bytes(*port));
            }
            fields = &rest[usize::from(len)..];
        }
        None
    }
}

fn put(bytes: &mut Vec<u8>, field: u8, value: &[u8]) {
    bytes.extend(BASIC);
    bytes.extend([field << 1, value.len() as u8]);
    bytes.extend(value);
}

/// Appends a field with its mask. Omits a mask whose bits are all set, because a switch may refuse it.
fn put_masked(bytes: &mut Vec<u8>, field: u8, value: &[u8], mask: &[u8]) {
    if mask.iter().all(|byte| *byte == 0xff) {
        return put(bytes, field, value);
    }
    if mask.iter().all(|byte| *byte == 0) {
        return;
    }
    bytes.extend(BASIC);
    bytes.extend([field << 1 | 1, 2 * value.len() as u8]);
    bytes.extend(value);
    bytes.extend(mask);
}

/// Returns the smallest set of masked values that match exactly the ports from `first` to `last`.
pub fn spans(first: u16, last: u16) -> Vec<Masked> {
    let mut masks = Vec::new();
    let (mut at, last) = (u32::from(first), u32::from(last));
    while at <= last {
        // The largest aligned block that begins at `at` and ends within the span.
        let aligned = if at == 0 { 16 } else { at.trailing_zeros().min(16) };
        let fits = (last - at + 1).ilog2();
        let bits = aligned.min(fits);
        masks.push(Masked { value: at as u16, mask: (u32::MAX << bits) as u16 });
        at += 1 << bits;
    }
    masks
}
