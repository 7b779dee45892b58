//! The state of a TCP connection as the client's segments show it (wire.md §6.3.1 to §6.3.4). A segment that the
//! server's stack would not accept changes nothing. So an attacker who can forge a client's address, but does not see
//! the client's packets, cannot end a connection.

use super::tables::Stack;
use wire::map::{Flow, VerifierConfig, stage};
use wire::packet::{Packet, tcp_flags};

/// Maximum distance, in bytes, between a segment's sequence number and the client's position. A segment that is farther
/// away changes nothing.
const NEAR: u32 = 1 << 18;

/// Records a client's SYN. The next sequence number that the verifier expects is the one after the SYN itself, because
/// the server may ignore the SYN's payload. If the server accepts the payload, the client's next segment begins after
/// the payload. Otherwise, the client sends the payload again.
pub fn begin(flow: &mut Flow, packet: &Packet) {
    flow.stage = stage::OPENING;
    flow.proved = 0;
    move_to(flow, packet.sequence.wrapping_add(1));
}

/// Updates the state of the flow with a segment from the client, which must not be a SYN without ACK. `stack` looks up
/// the connection in the server's own stack.
pub fn follow(config: &VerifierConfig, flow: &mut Flow, packet: &Packet, stack: impl FnOnce() -> Stack) {
    let segment = Segment::of(packet);
    if flow.stage == stage::OPENING {
        return segment.open(config, flow, stack);
    }
    let near = |next| next != 0 && is_near(segment.sequence, next);
    let (mut next, ends) = (flow.next, segment.has(tcp_flags::FIN | tcp_flags::RST));
    let mut fits = next != 0 && segment.ends_at(next);
    if (!near(next) || ends && !fits)
        && let Stack::Expects(number) = stack()
    {
        fits = segment.ends_at(number);
        if !near(next) {
            next = number;
            move_to(flow, next);
        }
    }
    if !near(next) {
        return;
    }
    let reset = segment.has(tcp_flags::RST);
    if ends && fits {
        flow.stage = if reset { stage::RESET } else { stage::CLOSING };
    }
    if reset {
        return;
    }
    if ends && !fits && segment.has(tcp_flags::ACK) && is_behind(next, segment.sequence) {
        // The data before this segment was lost on the way, and will be sent again.
        flow.proved = segment.sequence;
        return;
    }
    if !is_behind(next, segment.end()) {
        return;
    }
    move_to(flow, segment.end());
    let fin = flow.proved;
    if segment.length != 0 && !(ends && fits) {
        flow.stage = if fin != 0 && segment.end() == fin { stage::CLOSING } else { stage::OPEN };
    }
    if fin != 0 && !is_behind(segment.end(), fin) {
        flow.proved = 0;
    }
}

struct Segment<'a> {
    packet: &'a Packet,
    sequence: u32,
    length: u32,
}

impl<'a> Segment<'a> {
    fn of(packet: &'a Packet) -> Self {
        Self { packet, sequence: packet.sequence, length: packet.end.saturating_sub(packet.payload) as u32 }
    }

    fn has(&self, flag: u8) -> bool {
        self.packet.tcp_flags & flag != 0
    }

    fn end(&self) -> u32 {
        self.sequence.wrapping_add(self.length)
    }

    /// Reports whether the segment, which ends a connection, is the one that the server expects.
    fn ends_at(&self, next: u32) -> bool {
        match self.has(tcp_flags::RST) {
            true => self.sequence == next,
            false => self.has(tcp_flags::ACK) && (self.sequence == next || self.end() == next),
        }
    }

    /// Applies a segment to a connection of which only the SYN has arrived.
    fn open(&self, config: &VerifierConfig, flow: &mut Flow, stack: impl FnOnce() -> Stack) {
        let next = flow.next;
        // A RST may belong to an earlier connection for which the server still has state.
        if self.has(tcp_flags::RST)
            || !self.has(tcp_flags::ACK)
            || next != 0 && !is_near(self.sequence, next)
            || !self.answers(config, flow, stack)
        {
            return;
        }
        let ends = self.has(tcp_flags::FIN) && next != 0 && self.ends_at(next);
        flow.stage = if ends { stage::CLOSING } else { stage::OPEN };
        let end = self.end().wrapping_add(self.has(tcp_flags::SYN).into());
        if next == 0 || is_behind(next, end) {
            move_to(flow, end);
        }
    }

    /// Reports whether the server has answered the client's SYN, as far as the verifier can tell. A gateway that shares
    /// flows may not have seen the answer.
    fn answers(&self, config: &VerifierConfig, flow: &Flow, stack: impl FnOnce() -> Stack) -> bool {
        let acknowledged = self.packet.acknowledgement;
        if flow.answer != 0 {
            return acknowledged.wrapping_sub(flow.answer) < NEAR;
        }
        if config.max_outbound != 0 {
            return config.advertises_flows != 0;
        }
        match stack() {
            Stack::Answered(number) => acknowledged == number,
            Stack::Expects(_) | Stack::Unknown => true,
        }
    }
}

/// Sets the client's position. A position of 0 is stored as 1, because 0 stands for an unknown position.
fn move_to(flow: &mut Flow, end: u32) {
    flow.next = if end == 0 { 1 } else { end };
}

fn is_near(sequence: u32, next: u32) -> bool {
    sequence.wrapping_sub(next).wrapping_add(NEAR) < 2 * NEAR
}

/// Reports whether the sequence number `one` comes before `other`.
fn is_behind(one: u32, other: u32) -> bool {
    other.wrapping_sub(one) as i32 > 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use tcp_flags::{ACK, FIN, RST};

    fn segment(sequence: u32, acknowledgement: u32, flags: u8, length: usize) -> Packet {
        let empty = Packet::parse(&[]);
        Packet { protocol: wire::packet::TCP, sequence, acknowledgement, tcp_flags: flags, end: length, ..empty }
    }

    fn after(flow: Flow, packet: &Packet, stack: Stack) -> Flow {
        let mut flow = flow;
        follow(&VerifierConfig::default(), &mut flow, packet, || stack);
        flow
    }

    #[test]
    fn a_connection_opens_once_the_client_knows_the_answer_of_this_hosts_stack() {
        let opening = Flow { stage: stage::OPENING, next: 1, ..Flow::default() };
        let stage_after = |packet, stack| after(opening, &packet, stack).stage;
        for guess in [0, 8, 10, u32::MAX] {
            assert_eq!(stage_after(segment(1, guess, ACK, 0), Stack::Answered(9)), stage::OPENING);
        }
        assert_eq!(stage_after(segment(1, 9, ACK, 0), Stack::Answered(9)), stage::OPEN);
        assert_eq!(stage_after(segment(1, 9, ACK | FIN, 0), Stack::Answered(9)), stage::CLOSING);
        assert_eq!(stage_after(segment(1, 9, ACK | RST, 0), Stack::Answered(9)), stage::OPENING);
        assert_eq!(stage_after(segment(NEAR + 1, 9, ACK, 0), Stack::Answered(9)), stage::OPENING);
        assert_eq!(stage_after(segment(1, 3, ACK, 0), Stack::Expects(1)), stage::OPEN);
        assert_eq!(stage_after(segment(1, 3, ACK, 0), Stack::Unknown), stage::OPEN);
    }

    #[test]
    fn a_gateway_believes_nobody_unless_another_may_have_seen_the_answer() {
        let opening = Flow { stage: stage::OPENING, next: 1, ..Flow::default() };
        let alone = VerifierConfig { max_outbound: 1, ..VerifierConfig::default() };
        let shares = VerifierConfig { advertises_flows: 1, ..alone };
        for (config, answer, acknowledged, expected) in [
            (alone, 0, 7, stage::OPENING),
            (shares, 0, 7, stage::OPEN),
            (shares, 8, 7, stage::OPENING),
            (alone, 8, 8, stage::OPEN),
            (alone, 8, 8 + NEAR, stage::OPENING),
        ] {
            let mut flow = Flow { answer, ..opening };
            follow(&config, &mut flow, &segment(1, acknowledged, ACK, 0), || unreachable!("a gateway asks nobody"));
            assert_eq!(flow.stage, expected, "{answer} {acknowledged}");
        }
    }

    #[test]
    fn the_stack_says_where_the_client_is_when_nobody_else_knows() {
        let adopted = Flow::default();
        assert_eq!(after(adopted, &segment(77, 0, RST, 0), Stack::Unknown), adopted);
        let learned = after(adopted, &segment(77, 0, RST, 0), Stack::Expects(5));
        assert_eq!((learned.stage, learned.next), (stage::OPEN, 5));
        assert_eq!(after(adopted, &segment(5, 0, RST, 0), Stack::Expects(5)).stage, stage::RESET);
        // Far from the position that the verifier expects, but right according to the stack.
        let lost = Flow { next: 1 << 30, ..adopted };
        assert_eq!(after(lost, &segment(5, 0, FIN | ACK, 0), Stack::Expects(5)).stage, stage::CLOSING);
        assert_eq!(after(lost, &segment(5, 0, FIN | ACK, 0), Stack::Unknown), lost);
        // Near the position: the verifier keeps a position that is ahead of the stack's.
        let ahead = Flow { next: 100, ..adopted };
        let reset = after(ahead, &segment(50, 0, RST, 0), Stack::Expects(50));
        assert_eq!((reset.stage, reset.next), (stage::RESET, 100));
    }

    /// None of 65 536 segments that a blind sender spreads over the whole sequence space ends the connection.
    #[test]
    fn a_blind_sender_hits_only_what_is_near() {
        let flow = Flow { next: 12_345, ..Flow::default() };
        let step = (1 << 16) + 1;
        let hits = |flags| {
            let tries = (0..65_536u32).map(|index| index.wrapping_mul(step));
            tries.filter(move |sequence| {
                after(flow, &segment(*sequence, 1, flags, 0), Stack::Unknown).stage != stage::OPEN
            })
        };
        assert_eq!((hits(RST).count(), hits(FIN | ACK).count()), (0, 0));
    }
}
