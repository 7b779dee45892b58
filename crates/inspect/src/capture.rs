//! Capture files: pcap and pcapng, as frames that begin with an Ethernet header.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use pcap_parser::traits::PcapNGPacketBlock;
use pcap_parser::{Block, InterfaceDescriptionBlock, Linktype, PcapBlockOwned, PcapError, create_reader};

/// Size of the buffer: more than the longest frame with its record header, as capturing programs write at most 256 KiB.
const BUFFER: usize = 1 << 20;
const ETHERNET: [u8; 12] = [0; 12];

/// One packet of a capture.
pub struct Frame {
    /// Number of the packet, starting from 1, as in Wireshark.
    pub number: u64,
    /// Time of capture: Unix seconds, and nanoseconds.
    pub time: (u64, u32),
    /// Length of the packet on the wire, in bytes.
    pub length: usize,
    /// Captured bytes, starting with an Ethernet header, which replaces the header of other link layers.
    pub bytes: Vec<u8>,
    /// Whether the capture contains only part of the packet.
    pub cut: bool,
}

/// The parameters for reading the packets of an interface.
#[derive(Clone, Copy)]
struct Interface {
    link: Linktype,
    /// Ticks of the interface's clock per second.
    resolution: u64,
    offset: i64,
}

/// Calls `each` with every frame of `file`, in order. If `file` is `-`, reads standard input.
///
/// # Errors
/// Fails if the file can't be read, is not a capture, has a link type that is not supported, or ends in the middle of a
/// packet; `each` has then received the frames before the fault. Also fails if `each` fails.
pub fn read(file: &Path, mut each: impl FnMut(Frame) -> Result<()>) -> Result<()> {
    let name = file.display();
    let source: Box<dyn Read + Send> = match file.to_str() {
        Some("-") => Box::new(std::io::stdin()),
        _ => Box::new(File::open(file).with_context(|| format!("cannot open {name}"))?),
    };
    let mut reader = match create_reader(BUFFER, source) {
        Ok(reader) => reader,
        Err(PcapError::ReadError) => bail!("cannot read {name}"),
        Err(PcapError::Eof) => {
            bail!("{name} is empty, so it is not a packet capture: even a capture without packets has a file header")
        }
        Err(_) => {
            bail!("{name} is not a packet capture: supported are pcap and pcapng, as tcpdump and Wireshark write them")
        }
    };
    let (mut interfaces, mut number) = (Vec::new(), 0);
    loop {
        match reader.next() {
            Ok((size, block)) => {
                if let Some(frame) = frame(&mut interfaces, &block, number + 1).with_context(|| name.to_string())? {
                    number = frame.number;
                    each(frame)?;
                }
                reader.consume(size);
            }
            Err(PcapError::Eof) => return Ok(()),
            Err(PcapError::Incomplete(_)) => {
                ensure!(reader.refill().is_ok(), "cannot read {name} after packet {number}");
            }
            Err(PcapError::UnexpectedEof) => {
                bail!("{name} is cut short after packet {number}: only the packets up to this one were read")
            }
            Err(_) => bail!("{name} is malformed after packet {number}"),
        }
    }
}

fn frame(interfaces: &mut Vec<Interface>, block: &PcapBlockOwned<'_>, number: u64) -> Result<Option<Frame>> {
    let (interface, time, length, data) = match block {
        PcapBlockOwned::LegacyHeader(header) => {
            let resolution = if header.is_nanosecond_precision() { 1_000_000_000 } else { 1_000_000 };
            *interfaces = vec![Interface { link: known(header.network)?, resolution, offset: 0 }];
            return Ok(None);
        }
        PcapBlockOwned::Legacy(packet) => {
            let interface = interfaces.first().with_context(|| format!("packet {number} precedes the file header"))?;
            let nanos = u64::from(packet.ts_usec) * (1_000_000_000 / interface.resolution);
            let time = (u64::from(packet.ts_sec), u32::try_from(nanos).unwrap_or(0));
            (interface, time, packet.origlen, packet.data)
        }
        PcapBlockOwned::NG(Block::SectionHeader(_)) => {
            interfaces.clear();
            return Ok(None);
        }
        PcapBlockOwned::NG(Block::InterfaceDescription(described)) => {
            interfaces.push(interface(described)?);
            return Ok(None);
        }
        PcapBlockOwned::NG(Block::EnhancedPacket(packet)) => {
            let index = usize::try_from(packet.if_id).unwrap_or(usize::MAX);
            let interface =
                interfaces.get(index).with_context(|| format!("packet {number} names an unknown interface"))?;
            let ticks = u64::from(packet.ts_high) << 32 | u64::from(packet.ts_low);
            (interface, interface.time(ticks), packet.origlen, packet.packet_data())
        }
        PcapBlockOwned::NG(Block::SimplePacket(packet)) => {
            let interface =
                interfaces.first().with_context(|| format!("packet {number} names an unknown interface"))?;
            (interface, (0, 0), packet.origlen, packet.packet_data())
        }
        PcapBlockOwned::NG(_) => return Ok(None),
    };
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    Ok(Some(Frame { number, time, length, bytes: ethernet(interface.link, data), cut: data.len() < length }))
}

impl Interface {
    fn time(&self, ticks: u64) -> (u64, u32) {
        let nanos = u128::from(ticks % self.resolution) * 1_000_000_000 / u128::from(self.resolution);
        ((ticks / self.resolution).saturating_add_signed(self.offset), nanos as u32)
    }
}

fn interface(described: &InterfaceDescriptionBlock<'_>) -> Result<Interface> {
    let resolution =
        described.ts_resolution().filter(|ticks| *ticks > 0).context("an interface has a clock resolution of 0")?;
    Ok(Interface { link: known(described.linktype)?, resolution, offset: described.ts_offset() })
}

fn known(link: Linktype) -> Result<Linktype> {
    let known = matches!(
        link,
        Linktype::ETHERNET
            | Linktype::RAW
            | Linktype::IPV4
            | Linktype::IPV6
            | Linktype::LINUX_SLL
            | Linktype::LINUX_SLL2
    );
    ensure!(known, "unsupported link type {link}: supported are Ethernet, Linux cooked and raw IP", link = link.0);
    Ok(link)
}

/// Replaces a frame's link-layer header by an Ethernet header.
fn ethernet(link: Linktype, data: &[u8]) -> Vec<u8> {
    let (ether_type, packet) = match link {
        Linktype::ETHERNET => return data.to_vec(),
        Linktype::LINUX_SLL => (data.get(14..16), data.get(16..)),
        Linktype::LINUX_SLL2 => (data.get(..2), data.get(20..)),
        _ => (
            Some(if data.first().is_some_and(|first| first >> 4 == 6) { &[0x86, 0xdd][..] } else { &[0x08, 0x00] }),
            Some(data),
        ),
    };
    [&ETHERNET, ether_type.unwrap_or_default(), packet.unwrap_or_default()].concat()
}
