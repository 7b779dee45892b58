//! Rows: state, incoming packets and their expected outcomes.

pub mod accounts;
pub mod admission;
pub mod agent;
pub mod attacks;
pub mod clocks;
pub mod datagrams;
pub mod fast_open;
pub mod forms;
pub mod optional;
pub mod sealed;
pub mod shims;
pub mod streams;
pub mod tokens;

use crate::world::{Family, Grant, LsPair, NOW};
use engine::verifier::Outcome;
use lab::forge::{Packet, Tcp};
use wire::packet::{TCP, UDP};
use wire::{Destination, DropReason, Holder, tail};

/// One step of a case.
pub enum Step {
    /// A frame arrives, has this outcome, and reaches the host like this (untouched if it is dropped).
    Frame { frame: Vec<u8>, outcome: Outcome, out: Vec<u8> },
    /// An IP packet comes out of a sealed tunnel.
    Inside { packet: Vec<u8>, outcome: Outcome, out: Vec<u8> },
    /// The authority announces a pair.
    Tell(LsPair),
    /// A grant is revoked.
    Revoke(u64),
    /// A grant that would have expired at this time is revoked.
    RevokeUntil(u64, u32),
    /// A session ends.
    End(Holder),
    /// An account is shut out.
    ShutOut(u32),
    /// The sweep runs.
    Sweep,
    /// This many seconds pass.
    Wait(u32),
    /// The clock jumps ahead by this many seconds.
    Leap(u32),
    /// The clock is set back by this many seconds.
    Back(u32),
}

/// A sequence of steps that shows one thing.
pub struct Case {
    pub name: String,
    /// The clause of wire.md that it covers.
    pub clause: &'static str,
    pub steps: Vec<Step>,
}

impl Case {
    pub fn new(family: &Family, clause: &'static str, name: &str) -> Self {
        Self { name: format!("{}: {name}", family.name), clause, steps: Vec::new() }
    }

    /// Adds a frame that passes, or is dropped, unmodified.
    pub fn frame(mut self, frame: Vec<u8>, outcome: Outcome) -> Self {
        self.steps.push(Step::Frame { out: frame.clone(), frame, outcome });
        self
    }

    /// Adds a frame that reaches the host modified.
    pub fn becomes(mut self, frame: Vec<u8>, outcome: Outcome, out: Vec<u8>) -> Self {
        self.steps.push(Step::Frame { frame, outcome, out });
        self
    }

    /// Adds a first packet that is admitted and reaches the host without its token.
    pub fn admitted(self, first: &First) -> Self {
        self.becomes(first.frame(), Outcome::Token, first.plain())
    }

    /// Adds an IP packet out of a sealed tunnel that passes, or is dropped, unmodified.
    pub fn inside(mut self, packet: Vec<u8>, outcome: Outcome) -> Self {
        self.steps.push(Step::Inside { out: packet.clone(), packet, outcome });
        self
    }

    /// Adds a first packet out of a sealed tunnel that is admitted and reaches the host without its token.
    pub fn admitted_inside(mut self, first: &First) -> Self {
        let (packet, out) = (first.frame().split_off(14), first.plain().split_off(14));
        self.steps.push(Step::Inside { packet, outcome: Outcome::Token, out });
        self
    }

    pub fn step(mut self, step: Step) -> Self {
        self.steps.push(step);
        self
    }
}

/// A first packet as the client's stack sent it, and the token that follows it.
#[derive(Clone)]
pub struct First {
    pub packet: Packet,
    pub payload: Vec<u8>,
    pub token: [u8; 36],
}

impl First {
    pub fn frame(&self) -> Vec<u8> {
        let mut payload = self.payload.clone();
        payload.extend(tail::block(&self.token));
        self.packet.clone().payload(&payload).frame()
    }

    pub fn plain(&self) -> Vec<u8> {
        self.packet.clone().payload(&self.payload).frame()
    }

    /// Returns the first packet with a modified token.
    pub fn with_token(&self, change: impl FnOnce(&mut [u8; 36])) -> Self {
        let mut changed = self.clone();
        change(&mut changed.token);
        changed
    }

    /// Returns the first packet with a modified packet around its token.
    pub fn with_packet(&self, change: impl FnOnce(Packet) -> Packet) -> Self {
        Self { packet: change(self.packet.clone()), ..self.clone() }
    }
}

/// The two transports that carry tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    Tcp,
    Udp,
}

pub const TRANSPORTS: [Transport; 2] = [Transport::Tcp, Transport::Udp];
pub const CLIENT_PORT: u16 = 40000;

impl Transport {
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        }
    }

    pub fn protocol(self) -> u8 {
        match self {
            Self::Tcp => TCP,
            Self::Udp => UDP,
        }
    }

    /// Returns the reason for which a later packet of an unknown flow is dropped.
    pub fn unknown(self) -> DropReason {
        match self {
            Self::Tcp => DropReason::NoFlow,
            Self::Udp => DropReason::NoToken,
        }
    }

    /// Returns the protected port of [`Family::server`].
    pub fn port(self) -> u16 {
        match self {
            Self::Tcp => 22,
            Self::Udp => 443,
        }
    }

    pub fn destination(self, family: &Family) -> Destination {
        Destination { address: family.server, protocol: self.protocol(), port: self.port() }
    }

    /// Returns the packet that opens a flow between these ports.
    pub fn opening(self, family: &Family, client_port: u16, to: &Destination) -> Packet {
        let packet = Packet::new(family.client, to.address);
        match self {
            Self::Tcp => packet.tcp(Tcp { options: syn_options(), ..Tcp::syn(client_port, to.port) }),
            Self::Udp => packet.udp(client_port, to.port),
        }
    }

    /// Returns the first packet of a flow, with its token.
    pub fn first(self, family: &Family, grant: &Grant, client_port: u16, nonce: u32) -> First {
        let to = self.destination(family);
        let payload = if self == Self::Udp { b"hello".to_vec() } else { Vec::new() };
        First { packet: self.opening(family, client_port, &to), payload, token: grant.token(&to, NOW, nonce) }
    }

    /// Returns a later packet of the flow.
    pub fn later(self, family: &Family, client_port: u16) -> Packet {
        let packet = Packet::new(family.client, family.server);
        match self {
            Self::Tcp => packet.tcp(Tcp::new(client_port, 22, lab::forge::flag::ACK)),
            Self::Udp => packet.udp(client_port, 443),
        }
    }
}

/// Returns the options that Linux sends: maximum segment size, selective acknowledgement, timestamps, window scale.
pub fn syn_options() -> Vec<u8> {
    vec![2, 4, 5, 180, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7]
}
