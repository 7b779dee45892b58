//! A model of the carrier `stream` (wire.md §4.6): a client that tries several sockets, a network that loses, repeats
//! and reorders packets, a verifier, and a server. For the verifier's change to a packet, the model calls
//! [`wire::tail::strip`] on real frames, so that the change is not described a second time.
//!
//! The model has no timers. The client's stack may repeat a SYN at any moment before the client gives up the socket,
//! and the client may give up at any moment. So the results hold for every timing.

use stateright::{Model, Property};
use std::collections::{BTreeMap, BTreeSet};
use wire::packet::Packet;
use wire::tail::{BLOCK_LEN, STREAM_MAGIC, find, strip};

/// Bytes that the client writes, one in each segment.
const WRITTEN: &[u8] = b"ab";
/// Value of each byte of a token in the model.
const TOKEN: u8 = 0xee;
const ETHERNET_LEN: usize = 14;
const HEADERS_LEN: usize = ETHERNET_LEN + 20 + 20;
const SYN: u8 = 2;
const ACK: u8 = 16;

/// The property that must hold in every state.
pub const EXACT: &str = "the server reads what the client wrote, from its first byte, and nothing else";
/// A state that must be reachable. Otherwise, [`EXACT`] would hold only because no server ever reads everything.
pub const WHOLE: &str = "a server reads everything";
/// A state that must be reachable: a second socket succeeds after the client has given up the first one.
pub const AGAIN: &str = "a second socket gets through";

/// The verifier of the model: a correct one, or one with a fault that the checker has to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verifier {
    /// The verifier does what the wire format says.
    Right,
    /// The verifier takes off the block, but does not change the sequence number.
    LeavesSequence,
    /// The verifier passes SYNs without a token.
    PassesPlainSyns,
    /// The verifier admits a token twice, and does not take off the block the second time.
    PassesCopies,
}

/// The model, with its parameters.
pub struct Stream {
    /// The verifier, correct or with a fault.
    pub verifier: Verifier,
    /// Number of sockets that the client tries.
    pub sockets: u8,
    /// Maximum number of packets that the network repeats.
    pub copies: u8,
}

/// A segment in transit. The number of the socket stands for the client's port.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Segment {
    socket: u8,
    to_server: bool,
    flags: u8,
    sequence: u32,
    acknowledgement: u32,
    data: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Client {
    Unused,
    SynSent,
    GivenUp,
    /// The server has acknowledged the token, and the client has written this many bytes.
    Connected(u8),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Server {
    /// The sequence number that the server expects next.
    next: u32,
    is_open: bool,
    read: Vec<u8>,
}

/// A state of the model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    clients: Vec<Client>,
    servers: BTreeMap<u8, Server>,
    on_the_way: BTreeSet<Segment>,
    copies: u8,
    /// The sockets whose flow the verifier has admitted, and whose token has been used. Each socket has one flow and
    /// one token.
    admitted: BTreeSet<u8>,
}

/// A step of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The client opens a socket: it sends a SYN with a token.
    Open(u8),
    /// The client's stack sends the SYN of a socket again, without the token.
    Repeat(u8),
    /// The client gives up a socket.
    GiveUp(u8),
    /// The client writes the next byte on a socket, or its stack sends this byte again.
    Write(u8, u8),
    /// A packet arrives at its destination or at the verifier.
    Arrive(usize),
    /// A packet arrives, and a copy of it stays in transit.
    ArriveTwice(usize),
}

fn initial_sequence(socket: u8) -> u32 {
    // Close to the largest sequence number, so that the numbers of one socket wrap around.
    u32::MAX - 20 - 1000 * u32::from(socket)
}

fn block() -> Vec<u8> {
    let mut block = vec![TOKEN; BLOCK_LEN];
    block[..STREAM_MAGIC.len()].copy_from_slice(&STREAM_MAGIC);
    block
}

impl Segment {
    fn syn(socket: u8, data: Vec<u8>) -> Self {
        let sequence = initial_sequence(socket);
        Self { socket, to_server: true, flags: SYN, sequence, acknowledgement: 0, data }
    }

    fn data(socket: u8, behind_syn: u32, data: Vec<u8>) -> Self {
        let sequence = initial_sequence(socket).wrapping_add(1 + behind_syn);
        Self { socket, to_server: true, flags: ACK, sequence, acknowledgement: 1, data }
    }

    fn frame(&self) -> Vec<u8> {
        let mut frame = vec![0; HEADERS_LEN];
        frame[12..14].copy_from_slice(&[8, 0]);
        let ip_len = (HEADERS_LEN - ETHERNET_LEN + self.data.len()) as u16;
        let ip = &mut frame[ETHERNET_LEN..];
        ip[0] = 0x45;
        ip[2..4].copy_from_slice(&ip_len.to_be_bytes());
        (ip[8], ip[9]) = (64, 6);
        ip[12..16].copy_from_slice(&[192, 0, 2, 1]);
        ip[16..20].copy_from_slice(&[192, 0, 2, 2]);
        let tcp = &mut ip[20..];
        tcp[..2].copy_from_slice(&(1000 + u16::from(self.socket)).to_be_bytes());
        tcp[2..4].copy_from_slice(&22_u16.to_be_bytes());
        tcp[4..8].copy_from_slice(&self.sequence.to_be_bytes());
        tcp[8..12].copy_from_slice(&self.acknowledgement.to_be_bytes());
        (tcp[12], tcp[13]) = (5 << 4, self.flags);
        frame.extend(&self.data);
        frame
    }

    /// Returns the segment with the changes that [`wire`] made to its frame.
    fn changed_to(&self, frame: &[u8]) -> Self {
        let packet = Packet::parse(frame);
        let data = frame[packet.payload..packet.end].to_vec();
        Self { sequence: packet.sequence, data, ..self.clone() }
    }
}

impl Stream {
    /// Returns the segment as it leaves the verifier; `None` if the verifier drops it.
    fn verify(&self, state: &mut State, segment: &Segment) -> Option<Segment> {
        if segment.flags != SYN {
            return state.admitted.contains(&segment.socket).then(|| segment.clone());
        }
        let mut frame = segment.frame();
        let packet = Packet::parse(&frame);
        if find(&frame, &packet).is_none() {
            return (self.verifier == Verifier::PassesPlainSyns).then(|| segment.clone());
        }
        if !state.admitted.insert(segment.socket) {
            // A correct verifier accepts each token once.
            return (self.verifier == Verifier::PassesCopies).then(|| segment.clone());
        }
        let length = strip(&mut frame, &packet).expect("there is a block");
        let mut stripped = segment.changed_to(&frame[..length]);
        if self.verifier == Verifier::LeavesSequence {
            stripped.sequence = segment.sequence;
        }
        Some(stripped)
    }

    fn at_server(state: &mut State, segment: &Segment) {
        let Segment { socket, flags, sequence, .. } = *segment;
        if flags == SYN {
            // The data of a SYN counts only with Fast Open, which the server has not enabled.
            let next = sequence.wrapping_add(1);
            let server = state.servers.entry(socket).or_insert(Server { next, is_open: false, read: Vec::new() });
            if !server.is_open && server.next == next {
                let flags = SYN | ACK;
                let data = Vec::new();
                let answer = Segment { socket, to_server: false, flags, sequence: 0, acknowledgement: next, data };
                state.on_the_way.insert(answer);
            }
            return;
        }
        let Some(server) = state.servers.get_mut(&socket) else { return };
        server.is_open = true;
        // A segment that begins elsewhere is out of order; the client's stack sends it again.
        if sequence == server.next {
            server.next = sequence.wrapping_add(segment.data.len() as u32);
            server.read.extend(&segment.data);
        }
    }

    fn at_client(state: &mut State, segment: &Segment) {
        let socket = segment.socket;
        let client = &mut state.clients[usize::from(socket)];
        if *client != Client::SynSent {
            return;
        }
        let acknowledged = segment.acknowledgement.wrapping_sub(initial_sequence(socket) + 1);
        if acknowledged as usize == BLOCK_LEN {
            *client = Client::Connected(0);
        } else if acknowledged == 0 {
            // The stack at once sends the data that the server has not acknowledged. Then the client resets the
            // connection.
            *client = Client::GivenUp;
            state.on_the_way.insert(Segment::data(socket, 0, block()));
        }
    }
}

impl Model for Stream {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            clients: vec![Client::Unused; self.sockets.into()],
            servers: BTreeMap::new(),
            on_the_way: BTreeSet::new(),
            copies: 0,
            admitted: BTreeSet::new(),
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Step>) {
        let mut may_open = true;
        for (socket, client) in (0..).zip(&state.clients) {
            match *client {
                Client::Unused if may_open => actions.push(Step::Open(socket)),
                Client::SynSent => actions.extend([Step::Repeat(socket), Step::GiveUp(socket)]),
                Client::Connected(written) => {
                    let bytes = 0..(written + 1).min(WRITTEN.len() as u8);
                    actions.extend(bytes.map(|byte| Step::Write(socket, byte)));
                }
                Client::Unused | Client::GivenUp => {}
            }
            // The client opens the next socket only when it has given up the one before.
            may_open = *client == Client::GivenUp;
        }
        let packets = 0..state.on_the_way.len();
        actions.extend(packets.clone().map(Step::Arrive));
        if state.copies < self.copies {
            actions.extend(packets.map(Step::ArriveTwice));
        }
    }

    fn next_state(&self, before: &State, step: Step) -> Option<State> {
        let mut state = before.clone();
        match step {
            Step::Open(socket) => {
                state.clients[usize::from(socket)] = Client::SynSent;
                state.on_the_way.insert(Segment::syn(socket, block()));
            }
            Step::Repeat(socket) => drop(state.on_the_way.insert(Segment::syn(socket, Vec::new()))),
            Step::GiveUp(socket) => state.clients[usize::from(socket)] = Client::GivenUp,
            Step::Write(socket, byte) => {
                let client = &mut state.clients[usize::from(socket)];
                if let Client::Connected(written) = client {
                    *written = (*written).max(byte + 1);
                }
                let data = vec![WRITTEN[usize::from(byte)]];
                state.on_the_way.insert(Segment::data(socket, BLOCK_LEN as u32 + u32::from(byte), data));
            }
            Step::Arrive(at) | Step::ArriveTwice(at) => {
                let segment = state.on_the_way.iter().nth(at)?.clone();
                if matches!(step, Step::ArriveTwice(_)) {
                    state.copies += 1;
                } else {
                    state.on_the_way.remove(&segment);
                }
                if !segment.to_server {
                    Self::at_client(&mut state, &segment);
                } else if let Some(segment) = self.verify(&mut state, &segment) {
                    Self::at_server(&mut state, &segment);
                }
            }
        }
        (state != *before).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(EXACT, |_, state: &State| {
                state.servers.values().all(|server| WRITTEN.starts_with(&server.read))
            }),
            Property::sometimes(WHOLE, |_, state: &State| state.servers.values().any(|server| server.read == WRITTEN)),
            Property::sometimes(AGAIN, |_, state: &State| {
                state.servers.get(&1).is_some_and(|server| server.read == WRITTEN)
            }),
        ]
    }
}
