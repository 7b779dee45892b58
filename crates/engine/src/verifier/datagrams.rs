//! TCP segments that travel as UDP datagrams (wire.md §4.8). Before the decision, the verifier turns such a datagram
//! back into a segment. The kernel programs do the same in `bpf/include/turn_back.h`.

use super::decide::Decision;
use super::flow::{is_live, is_proved};
use super::observer::Observer;
use super::tables::TablesMut;
use wire::map::FlowKey;
use wire::packet::{Packet, TCP, UDP};
use wire::{Carrier, DropReason, reorder};

impl<T: TablesMut, O: Observer> Decision<'_, T, O> {
    /// Turns a datagram that carries a TCP segment back into this segment, and returns true. Returns false if the
    /// packet is not such a datagram. Returns a drop reason if the packet must not reach an application as a datagram.
    pub(super) fn turn_back(&mut self, frame: &mut [u8]) -> Result<bool, DropReason> {
        // At XDP, no program would turn the answers.
        if !self.takes(Carrier::TcpInUdp) || !self.tables.at_tc() || self.tables.in_tunnel() {
            return Ok(false);
        }
        let packet = Packet::parse(frame);
        if packet.protocol != UDP || !reorder::is_plain(&packet) {
            return Ok(false);
        }
        let (Some(server), Some(datagrams)) = (packet.destination, FlowKey::to_server(&packet)) else {
            return Ok(false);
        };
        let Some(services) = self.tables.services(server) else { return Ok(false) };
        if !services.covers(TCP, packet.destination_port) {
            return Ok(false);
        }
        let (flags, has_flow) = (reorder::flags(frame, &packet), self.has_flow(&datagrams.in_datagrams()));
        let opens = flags.is_some_and(reorder::opens);
        if opens && reorder::ends_in_block(frame, &packet) {
            let taken = self.has_flow(&datagrams);
            self.require("datagram", !taken, DropReason::NoToken, || match taken {
                true => "the datagram carries a SYN, but a flow of datagrams has these addresses and ports".into(),
                false => "the datagram carries a SYN".into(),
            })?;
        } else if opens || flags.is_none() || !has_flow {
            let passes = !has_flow && services.covers(UDP, packet.destination_port);
            if passes {
                return Ok(false);
            }
            self.note("datagram", false, || match has_flow {
                true => {
                    "these addresses and ports belong to a TCP connection in datagrams, but the packet is no segment \
                     of this connection"
                        .into()
                }
                false => "this port belongs to a protected TCP service, but the packet is no segment of an admitted \
                          flow"
                    .into(),
            });
            return Err(DropReason::NoToken);
        } else {
            self.note("datagram", true, || "the datagram carries a segment of a TCP connection".into());
        }
        reorder::to_tcp(frame, &packet).ok_or(DropReason::Malformed)?;
        Ok(true)
    }

    fn has_flow(&self, key: &FlowKey) -> bool {
        let (config, now) = (self.tables.config(), self.now);
        let flow = self.tables.flow(key);
        flow.is_some_and(|flow| is_live(config, key, &flow, now) && is_proved(config, key, &flow, now))
    }
}
