//! A tunnel that follows its initiator to another address (wire.md §9.11).

use super::{CHALLENGE, Chance, Control, Millis, Tunnel};
use std::net::SocketAddr;

impl Tunnel {
    /// Size of this structure in bytes. Memory that it points to (replay windows, handshake state, cached keys) is not
    /// included.
    #[cfg(test)]
    pub(in crate::tunnel) const SIZE: usize = size_of::<Self>();

    /// Follows an initiator that has moved (wire.md §9.11). If a record came from a new address, returns a ping. The
    /// tunnel moves when the initiator has answered the ping from the new address.
    pub(super) fn moved(
        &mut self,
        from: SocketAddr,
        is_newest: bool,
        pong: Option<[u8; 8]>,
        now: Millis,
        chance: &mut dyn Chance,
    ) -> Option<Vec<u8>> {
        if from == self.address || self.is_bound && from.ip() != self.address.ip() {
            return None;
        }
        if let (Some((to, nonce, _)), Some(answer)) = (self.challenge, pong)
            && to == from
            && nonce == answer
        {
            self.address = from;
            self.challenge = None;
            return None;
        }
        let sent = self.challenge.map_or(0, |challenge| challenge.2);
        if !is_newest || self.challenge.is_some() && now.saturating_sub(sent) < CHALLENGE {
            return None;
        }
        let [a, b, c, d, e, f, g, h, ..] = chance.bytes();
        let bytes = [a, b, c, d, e, f, g, h];
        self.challenge = Some((from, bytes, now));
        self.link.said(&Control::Ping(bytes), now)
    }
}
