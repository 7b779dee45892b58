//! The kinds of forged first packets, and those of their fields that are randomised.

use std::net::IpAddr;
use std::ops::Range;

use anyhow::{Context, Result};
use datapath::forger::Field;
use lab::forge::protocol::{TCP, UDP};
use lab::forge::{Packet, Tcp};
use lab::mint::Mint;
use lab::world::{DARK4, DARK6, ECHO, Network, in_family};
use wire::shim::Content;
use wire::{Destination, Flags};

/// Forged packets have random source addresses in the networks of these addresses.
const FROM4: &str = "45.0.0.1";
const FROM6: &str = "2001:db8:f000:1::1";

/// A kind of forged first packet.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    six: bool,
    protocol: u8,
    shim: bool,
}

/// A frame whose token is right except for its tag, and the fields that are randomised.
pub struct Forgery {
    /// The frame, from its Ethernet header.
    pub frame: Vec<u8>,
    /// The fields to randomise, in the order of their offsets.
    pub fields: Vec<Field>,
}

/// Reports whether forged packets may use this source address.
pub fn is_forged(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.octets()[0] == 45,
        IpAddr::V6(address) => address.segments()[..4] == [0x2001, 0xdb8, 0xf000, 1],
    }
}

impl Kind {
    /// All kinds. IPv6 has no shim.
    pub const ALL: [Self; 6] = [
        Self { six: false, protocol: TCP, shim: false },
        Self { six: false, protocol: UDP, shim: false },
        Self { six: true, protocol: TCP, shim: false },
        Self { six: true, protocol: UDP, shim: false },
        Self { six: false, protocol: TCP, shim: true },
        Self { six: false, protocol: UDP, shim: true },
    ];

    /// Builds a packet of this kind, with a token for the current time.
    pub fn forge(self, network: &Network, mint: &mut Mint) -> Result<Forgery> {
        let to = Destination { address: in_family(self.six, DARK4, DARK6), protocol: self.protocol, port: ECHO };
        let source = in_family(self.six, FROM4, FROM6);
        let mut grant = mint.grant(0, to, source);
        // Let the grant cover all ports of the host, so that it fits any random port.
        grant.header.flags = Flags(grant.header.flags.0 & !Flags::PORT.0);
        let block = mint.block(&grant)?;
        let packet = Packet::new(source, to.address).ethernet(network.internet.mac("dc")?, network.server.mac("eth0")?);
        let packet = if self.protocol == TCP { packet.tcp(Tcp::syn(1, ECHO)) } else { packet.udp(1, ECHO) };
        let token: [u8; wire::token::TOKEN_LEN] = *block.last_chunk().context("a block ends in a token")?;
        // The verifier consumes a datagram that contains nothing but a token, so this one contains more.
        let said: &[u8] = if self.protocol == UDP { b"anybody there?" } else { b"" };
        let frame = if self.shim {
            packet.payload(said).shimmed(&Content::Token(token).encode()).frame()
        } else {
            packet.payload(&[said, &block].concat()).frame()
        };
        let at = frame.windows(token.len()).position(|window| window == token).context("the token is in the frame")?;
        let fields = self.fields(at.try_into()?);
        Ok(Forgery { frame, fields })
    }

    /// Returns the fields to randomise: addresses, ports and TCP's sequence number, and the token's handle, nonce and
    /// tag. `token` is the offset of the token.
    fn fields(self, token: u16) -> Vec<Field> {
        const ETHERNET: u16 = 14;
        let network = ETHERNET + if self.shim { 20 } else { 0 };
        let transport = network
            + if self.six {
                40
            } else if self.shim {
                60
            } else {
                20
            };
        let sum = transport + if self.protocol == TCP { 16 } else { 6 };
        let header_sum = if self.six { 0 } else { network + 10 };
        let mut fields = Vec::new();
        if self.six {
            random(&mut fields, network + 16..network + 24, [sum, 0]);
        } else {
            random(&mut fields, ETHERNET + 13..ETHERNET + 16, [ETHERNET + 10, if self.shim { 0 } else { sum }]);
        }
        if self.shim {
            let twins = (1..).zip([network + 12, network + 14]);
            fields.extend(twins.map(|(twin, at)| Field { at, mask: [0xff; 2], twin, checksums: [header_sum, sum] }));
        }
        let ports_and_sequence = transport..transport + if self.protocol == TCP { 8 } else { 4 };
        random(&mut fields, ports_and_sequence, [sum, 0]);
        // The checksum of a transport does not cover the options of an IP header.
        let over_token = [if self.shim { header_sum } else { sum }, 0];
        for part in [8..16, 20..24, 24..36] {
            random(&mut fields, token + part.start..token + part.end, over_token);
        }
        fields
    }
}

/// Adds these bytes to the fields to randomise, in pairs, because checksums are sums of pairs of bytes.
fn random(fields: &mut Vec<Field>, bytes: Range<u16>, checksums: [u16; 2]) {
    for at in (bytes.start & !1..bytes.end).step_by(2) {
        let mask = [at, at + 1].map(|at| if bytes.contains(&at) { 0xff } else { 0 });
        fields.push(Field { at, mask, twin: 0, checksums });
    }
}
