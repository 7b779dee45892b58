//! Compressed blocks (wire.md §9.4.1): whole super-packets, compressed on the way into a tunnel and decompressed on the
//! way out.

use crate::cut::Cut;
use crate::device::Device;
use crate::packet::{Layout, TCP, UDP, Virtio};
use seal::{Compressor, Decompressor, Effort, Habit, Joined, Mode};
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::io::{self, IoSlice};
use std::time::Instant;
use wire::packet::tcp_flags;
use wire::seal::Compression;

/// Number of flows whose habits are remembered. A further flow takes the place of a remembered flow. The replaced
/// flow's next block then needs a sample again.
const FLOWS: usize = 4096;

/// Compresses the blocks of one thread.
pub struct Packer {
    begun: Instant,
    effort: Effort,
    state: Option<State>,
    has_failed: bool,
}

/// Memory that only a thread with blocks to compress needs.
struct State {
    compressor: Compressor,
    /// The compression history of each flow. A flow is identified by its hash under a secret key.
    habits: Vec<(u32, Habit)>,
    hasher: RandomState,
}

impl Default for Packer {
    fn default() -> Self {
        Self { begun: Instant::now(), effort: Effort::default(), state: None, has_failed: false }
    }
}

impl Packer {
    /// Records that the thread had nothing to do from `begun` until now.
    pub fn waited(&mut self, begun: Instant) {
        if self.state.is_some() {
            let now = Instant::now();
            self.effort.waited(now - self.begun, now - begun);
        }
    }

    /// Compresses a block. `layout` describes the packet in the block. Returns `None` if the packet is to be sent
    /// uncompressed.
    pub fn pack(&mut self, mode: Mode, layout: &Layout, block: &[u8]) -> Option<(Compression, &[u8])> {
        if self.state.is_none() && !self.has_failed {
            self.state = Compressor::new().map(|compressor| State {
                compressor,
                habits: vec![(0, Habit::default()); FLOWS],
                hasher: RandomState::new(),
            });
            self.has_failed = self.state.is_none();
            self.effort = Effort::new(self.begun.elapsed());
        }
        let State { compressor, habits, hasher } = self.state.as_mut()?;
        self.effort.offered(block.len());
        let how = match (self.effort.compression(), mode) {
            (Some(how), _) => how,
            (None, Mode::Always) => Compression::Lz4,
            (None, _) => return None,
        };
        let packet = block.get(wire::seal::BlockHead::LEN..)?;
        let hash = hasher.hash_one((layout.addresses(packet), layout.protocol, layout.ports(packet)));
        let slot = habits.get_mut(hash as usize % FLOWS)?;
        let name = (hash >> 32) as u32;
        if slot.0 != name {
            *slot = (name, Habit::default());
        }
        let begun = Instant::now();
        let short = compressor.compress(mode, &mut slot.1, how, block)?;
        self.effort.compressed(how, block.len(), begun.elapsed());
        Some((how, short))
    }
}

/// Decompresses the blocks of one thread.
#[derive(Default)]
pub struct Unpacker(Option<Decompressor>);

/// The packet or super-packet that was in a block.
pub struct Unpacked<'u> {
    /// The decompressed packet or super-packet.
    pub packet: &'u mut [u8],
    /// Offsets of the packet's parts.
    pub layout: Layout,
    /// The virtio header with which the packet is written to the device.
    pub virtio: Virtio,
}

impl Unpacker {
    /// Decompresses a block. Returns `None` if the block can't be decompressed or contains no well-formed packet.
    pub fn unpack(&mut self, block: &Joined) -> Option<Unpacked<'_>> {
        if self.0.is_none() {
            self.0 = Decompressor::new();
        }
        let (head, packet) = self.0.as_mut()?.decompress_mut(block.compression, &block.bytes)?;
        let layout = Layout::of(packet)?;
        let mut virtio = Virtio { partial: head.partial, segment: head.segment };
        if usize::from(virtio.segment) >= packet.len() - layout.payload {
            virtio.segment = 0;
        }
        let is_sound = virtio.segment == 0 || virtio.partial && layout.has_ports() && may_be_cut(packet, &layout);
        is_sound.then_some(Unpacked { packet, layout, virtio })
    }
}

/// Reports whether the packet may be a super-packet. With TCP, this is a packet without the flags SYN, RST and URG.
fn may_be_cut(packet: &[u8], layout: &Layout) -> bool {
    let flags = packet.get(layout.transport + 13).copied().unwrap_or(0);
    layout.protocol != TCP || flags & (tcp_flags::SYN | tcp_flags::RST | tcp_flags::URG) == 0
}

impl Unpacked<'_> {
    /// Writes the packet to the device.
    ///
    /// # Errors
    /// Fails if the kernel did not accept the packet.
    pub fn write(&mut self, device: &Device) -> io::Result<()> {
        let Self { packet, layout, virtio } = self;
        // A token is at the end of each datagram: the verifier has to find it there.
        if layout.protocol == UDP && virtio.segment > 0 {
            let head = Virtio { partial: true, segment: 0 }.encode(layout);
            let cut = Cut::new(packet, *layout, *virtio, usize::from(u16::MAX));
            let mut cut = cut.map_err(|_| io::ErrorKind::InvalidData)?;
            while let Some(piece) = cut.next_piece() {
                device.write(&[IoSlice::new(&head), IoSlice::new(piece.packet)])?;
            }
            return Ok(());
        }
        device.write(&[IoSlice::new(&virtio.encode(layout)), IoSlice::new(packet)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::seal::{BlockHead, Treatment};

    /// A block with a packet of TCP whose header has these flags, and 300 bytes of payload.
    fn block(head: BlockHead, flags: u8) -> Joined {
        let mut bytes = head.encode().to_vec();
        bytes.extend([0x45, 0, 1, 84, 0, 1, 0, 0, 64, TCP, 0, 0, 10, 1, 0, 1, 192, 0, 2, 1]);
        bytes.extend([0x9c, 0x40, 0, 7, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, flags, 1, 0, 0, 0, 0, 0]);
        bytes.extend([b'x'; 300]);
        let mut compressor = Compressor::new().expect("memory");
        let short = compressor.compress(Mode::Always, &mut Habit::default(), Compression::Zstd, &bytes);
        let bytes = short.expect("it shrinks").to_vec();
        Joined { compression: Compression::Zstd, treatment: Treatment::Encrypt, bytes }
    }

    #[test]
    fn only_packets_of_an_open_connection_come_as_several_in_one() {
        let virtio = |segment, partial, flags| {
            let block = block(BlockHead { segment, partial }, flags);
            Unpacker::default().unpack(&block).map(|unpacked| unpacked.virtio)
        };
        let whole = Virtio { partial: true, segment: 0 };
        let several = Virtio { partial: true, segment: 100 };
        assert_eq!(virtio(100, true, tcp_flags::ACK), Some(several));
        assert_eq!(virtio(300, true, tcp_flags::ACK), Some(whole), "its payload is one segment");
        assert_eq!(virtio(0, true, tcp_flags::SYN), Some(whole));
        assert_eq!(virtio(100, false, tcp_flags::ACK), None, "each segment needs a checksum");
        for flags in [tcp_flags::SYN, tcp_flags::RST, tcp_flags::URG] {
            assert_eq!(virtio(100, true, tcp_flags::ACK | flags), None);
        }
    }

    #[test]
    fn a_block_with_anything_but_a_packet_is_dropped() {
        let mut cut = block(BlockHead::default(), tcp_flags::ACK);
        cut.bytes.pop();
        assert!(Unpacker::default().unpack(&cut).is_none());
        let mut bytes = BlockHead::default().encode().to_vec();
        bytes.extend([0x45; 400]);
        let mut compressor = Compressor::new().expect("memory");
        let short = compressor.compress(Mode::Always, &mut Habit::default(), Compression::Lz4, &bytes);
        let bytes = short.expect("it shrinks").to_vec();
        let none = Joined { compression: Compression::Lz4, treatment: Treatment::Encrypt, bytes };
        assert!(Unpacker::default().unpack(&none).is_none());
    }
}
