//! The interface between a pump and the [`End`] that decides about the pump's packets.

use crate::cut::Cut;
use crate::packet::{Layout, Virtio};
use engine::tunnel::{Dropped, Millis, Packet, Received};
use seal::{Batch, Mode};
use std::net::{IpAddr, SocketAddr};
use wire::map::FlowKey;
use wire::seal::{Compression, Part, Suite, Suites, Treatment};

/// The current time on two clocks. The first is in milliseconds of a clock that is never set back and continues while
/// the machine sleeps. The second is in Unix seconds.
pub type Times = (Millis, u32);

/// A datagram that has to be sent to the other end of a tunnel.
pub struct Message {
    /// The destination address and port.
    pub to: SocketAddr,
    /// The local address from which to send; `None` if the kernel chooses it.
    pub source: Option<IpAddr>,
    /// Payload of the datagram.
    pub datagram: Vec<u8>,
}

/// The tunnel into which the packets of one frame from the device go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way<K> {
    /// The key by which the [`End`] identifies the tunnel.
    pub tunnel: K,
    /// Address and port of the other end.
    pub to: SocketAddr,
    /// The local address from which to send; `None` if the kernel chooses it.
    pub source: Option<IpAddr>,
}

/// How the packets of one frame from the device are sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct How {
    /// Treatment of the records that carry the packets.
    pub treatment: Treatment,
    /// The suites of which one is chosen for the records.
    pub suites: Suites,
    /// Whether to compress the frame before it is sealed.
    pub compress: Mode,
}

/// How a packet that came through a tunnel was sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sealed {
    /// Treatment of the records that carried the packet.
    pub treatment: Treatment,
    /// Suite of the records that carried the packet.
    pub suite: Suite,
    /// Whether the packet was compressed.
    pub is_compressed: bool,
}

/// Decides about packets on behalf of a pump. [`AgentEnd`](crate::AgentEnd) and [`VerifierEnd`](crate::VerifierEnd)
/// implement it.
pub trait End: Send {
    /// The key by which the implementation identifies a tunnel.
    type Tunnel: Copy + PartialEq;

    /// Whether the datagrams that [`Self::poll`] returns have to be sent before any record, because tokens are among
    /// them.
    const SENDS_TOKENS: bool = false;

    /// Returns the tunnel for a frame from the device, and how to seal the frame's packets; `None` if the frame is to
    /// be dropped. The implementation is allowed to change the addresses in `packet`.
    fn route(
        &mut self,
        packet: &mut [u8],
        layout: &Layout,
        virtio: Virtio,
        times: Times,
    ) -> Option<(Way<Self::Tunnel>, How)>;

    /// Seals the packets of a frame in this lane, and appends the records to `out`. Returns the number of bytes of the
    /// packets that were sealed, and the number of packets that could not be sealed.
    fn seal(
        &mut self,
        tunnel: Self::Tunnel,
        how: (How, u8),
        cut: Cut<'_>,
        times: Times,
        out: &mut Batch,
    ) -> (usize, usize);

    /// Seals the blocks of a compressed frame in this lane, and appends the records to `out`. Returns `false` if the
    /// frame has to be sent uncompressed, packet by packet.
    fn seal_block<'p>(
        &mut self,
        tunnel: Self::Tunnel,
        how: (How, Compression, u8),
        parts: impl Iterator<Item = (Part, &'p [u8])>,
        times: Times,
        out: &mut Batch,
    ) -> bool;

    /// Opens a datagram. Returns its tunnel and its content. Returns `None` if the end drops the datagram, or if the
    /// datagram concerns only the end itself. Appends the end's own answers to `replies`.
    fn receive<'d>(
        &mut self,
        from: SocketAddr,
        to: Option<IpAddr>,
        datagram: &'d mut [u8],
        times: Times,
        replies: &mut Vec<Message>,
    ) -> Option<(Self::Tunnel, Received<'d>)>;

    /// Reports whether a packet or super-packet is allowed to come out of `tunnel`. The implementation is allowed to
    /// change the addresses in `packet`. `partial` means that the transport checksum is partial.
    fn admit(
        &mut self,
        tunnel: Self::Tunnel,
        packet: &mut [u8],
        layout: &Layout,
        partial: bool,
        sealed: Sealed,
        times: Times,
    ) -> bool;

    /// Returns the flow of the frame that [`Self::route`] or [`Self::admit`] has accepted last. Returns `None` if this
    /// end does not count compressed frames.
    fn latest(&self) -> Option<FlowKey> {
        None
    }

    /// Called after a frame of the flow `_flow` was compressed or decompressed. `_before` is the length of the frame
    /// before compression, and `_after` the length after compression, both in bytes.
    fn compressed(&mut self, _flow: FlowKey, _before: usize, _after: usize) {}

    /// Does the work that is due. Appends to `replies` the datagrams that are to be sent.
    fn poll(&mut self, times: Times, replies: &mut Vec<Message>);

    /// Removes and returns a frame with its virtio header that can be routed now. [`Self::route`] had put the frame
    /// aside because its tunnel was not ready.
    fn ready(&mut self, _: Times) -> Option<Vec<u8>> {
        None
    }

    /// Called before [`Self::poll`] if somebody has called [`Pump::wake`](crate::Pump::wake) because something outside
    /// the pump has changed.
    fn woken(&mut self) {}
}

/// Seals the packets of a frame with `seal`, which reports whether it has sealed a packet. Returns the same kind of
/// result as [`End::seal`].
pub(crate) fn seal_each(
    (how, lane): (How, u8),
    mut cut: Cut<'_>,
    mut seal: impl FnMut(&Packet<'_>) -> bool,
) -> (usize, usize) {
    let How { treatment, suites, .. } = how;
    let (mut bytes, mut failed) = (0, 0);
    while let Some(piece) = cut.next_piece() {
        if seal(&Packet { treatment, suites, lane, partial: piece.partial, parts: &[piece.packet] }) {
            bytes += piece.packet.len();
        } else {
            failed += 1;
        }
    }
    (bytes, failed)
}

/// Counts a record that an end dropped. `counters` has one counter for each reason, in the order of [`Dropped::ALL`].
pub(crate) fn note(counters: &mut [u64; Dropped::ALL.len()], why: Dropped) {
    let index = Dropped::ALL.iter().position(|known| *known == why);
    if let Some(counter) = index.and_then(|index| counters.get_mut(index)) {
        *counter += 1;
    }
}
