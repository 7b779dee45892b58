//! One connection to a switch: handshake, standing rules, keep-alive.

use super::message::{FlowMod, Inbox, Malformed, Message, port};
use super::rules;
use crate::model::protected::Protected;
use std::collections::VecDeque;
use std::fmt;
use std::net::SocketAddrV4;
use std::time::Duration;

/// After this much silence from the switch, the controller sends an echo request. After as much silence again, it
/// closes the connection.
const SILENCE: Duration = Duration::from_secs(5);
const WHOLE_PACKETS: u16 = 0xffff;
/// Error type "bad match": the switch does not support a field of a match.
const BAD_MATCH: u16 = 4;
/// Error type "flow mod failed", code "table full".
const TABLE_FULL: (u16, u16) = (5, 1);

/// An effect that the caller has to carry out.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// Send these bytes.
    Write(Vec<u8>),
    /// The switch has sent this number, its datapath id, and has installed its rules.
    Ready(u64),
    /// The switch sent a packet up.
    Elevated {
        /// The port at which the packet arrived.
        in_port: u32,
        /// The packet that the switch sent up.
        frame: Vec<u8>,
    },
    /// The switch sent up a copy of a name server's answer.
    Answer(Vec<u8>),
    /// The switch refused a message, and the reason is not the same as for its last refusal. The caller should log the
    /// refusal.
    Refused {
        /// The error's type.
        class: u16,
        /// The error's code.
        code: u16,
    },
}

/// Reason why the caller has to close a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// The switch sent an invalid message.
    Malformed(Malformed),
    /// The switch no longer answers.
    Silent,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Waiting for the switch's HELLO.
    Greeting,
    /// Waiting for the switch's identity.
    AwaitsFeatures,
    /// The switch has identified itself with this number.
    Named(u64),
}

/// State machine of one connection to a switch.
pub struct Switch {
    stage: Stage,
    inbox: Inbox,
    events: VecDeque<Event>,
    next_xid: u32,
    last_received: Duration,
    probed: Option<Duration>,
    /// Transaction id of the barrier after the first rules; `None` once the switch has confirmed it.
    barrier: Option<u32>,
    refused: Option<(u16, u16)>,
    protected: Vec<Protected>,
    /// The authorities at which people behind switches log in.
    authorities: Vec<SocketAddrV4>,
    generation: u16,
    /// Whether the switch sends up copies of name servers' answers.
    overhears: bool,
}

impl Switch {
    /// Starts the handshake on a new connection. `generation` is a number that distinguishes this controller's rules
    /// from those of an earlier controller. The caller should choose a number that no earlier controller is likely to
    /// have used.
    pub fn new(now: Duration, protected: Vec<Protected>, generation: u16) -> Self {
        let mut switch = Self {
            stage: Stage::Greeting,
            inbox: Inbox::default(),
            events: VecDeque::new(),
            next_xid: 1,
            last_received: now,
            probed: None,
            barrier: None,
            refused: None,
            protected,
            authorities: Vec::new(),
            generation,
            overhears: true,
        };
        switch.send(&Message::Hello);
        switch
    }

    /// Makes the switch send no copies of name servers' answers to the controller.
    #[must_use]
    pub fn without_overhearing(self) -> Self {
        Self { overhears: false, ..self }
    }

    /// Sets the authorities at which people behind the switch log in.
    #[must_use]
    pub fn with_authorities(self, authorities: Vec<SocketAddrV4>) -> Self {
        Self { authorities, ..self }
    }

    /// Removes and returns the oldest effect that the caller has not yet taken.
    pub fn poll(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Returns the switch's number (datapath id), once the switch has sent it.
    pub fn datapath(&self) -> Option<u64> {
        match self.stage {
            Stage::Named(datapath) => Some(datapath),
            _ => None,
        }
    }

    /// Reports whether the switch has installed its first rules.
    pub fn is_ready(&self) -> bool {
        self.datapath().is_some() && self.barrier.is_none()
    }

    /// Handles bytes received from the switch.
    ///
    /// # Errors
    ///
    /// Fails if the bytes are not a valid OpenFlow message.
    pub fn received(&mut self, now: Duration, bytes: &[u8]) -> Result<(), Lost> {
        self.last_received = now;
        self.probed = None;
        self.inbox.push(bytes);
        while let Some((xid, message)) = self.inbox.message().map_err(Lost::Malformed)? {
            self.message(xid, message);
        }
        Ok(())
    }

    /// Sends an echo request to the switch if the switch has been silent.
    ///
    /// # Errors
    ///
    /// Fails if the switch did not answer the last echo request in time.
    pub fn tick(&mut self, now: Duration) -> Result<(), Lost> {
        match self.probed {
            Some(probed) if now.saturating_sub(probed) >= SILENCE => return Err(Lost::Silent),
            None if now.saturating_sub(self.last_received) >= SILENCE => {
                self.probed = Some(now);
                self.send(&Message::EchoRequest(Vec::new()));
            }
            _ => {}
        }
        Ok(())
    }

    /// Sets the protected prefixes, and the authorities at which people behind the switch log in. If they have changed,
    /// replaces the rules of the switch.
    pub fn protect(&mut self, protected: &[Protected], authorities: &[SocketAddrV4]) {
        if self.protected == protected && self.authorities == authorities {
            return;
        }
        self.protected = protected.to_vec();
        self.authorities = authorities.to_vec();
        if self.datapath().is_some() {
            self.generation = self.generation.wrapping_add(1);
            self.install();
        }
    }

    /// Sends the rules of a flow to the switch, and then the flow's frames. The switch treats the frames as packets
    /// that arrived at its port `in_port`.
    pub fn forward(&mut self, in_port: u32, rules: Vec<FlowMod>, frames: Vec<Vec<u8>>) {
        for rule in rules {
            self.send(&Message::FlowMod(rule));
        }
        for frame in frames {
            self.send(&Message::PacketOut { in_port, to: port::NORMAL, frame });
        }
    }

    fn message(&mut self, xid: u32, message: Message) {
        match message {
            Message::Hello if self.stage == Stage::Greeting => {
                self.stage = Stage::AwaitsFeatures;
                self.send(&Message::FeaturesRequest);
                self.send(&Message::SetConfig { miss_send_len: WHOLE_PACKETS });
            }
            Message::FeaturesReply { datapath } if self.stage == Stage::AwaitsFeatures => {
                self.stage = Stage::Named(datapath);
                self.barrier = Some(self.install());
            }
            Message::BarrierReply if self.barrier == Some(xid) => {
                self.barrier = None;
                self.events.extend(self.datapath().map(Event::Ready));
            }
            Message::EchoRequest(data) => self.answer(xid, &Message::EchoReply(data)),
            Message::PacketIn { cookie, in_port, total_len, frame }
                if rules::is_ours(cookie) && frame.len() == usize::from(total_len) =>
            {
                self.events.push_back(match rules::is_for_answers(cookie) {
                    true => Event::Answer(frame),
                    false => Event::Elevated { in_port, frame },
                });
            }
            // Report an error once only while it repeats: a switch whose table is full refuses a rule with every
            // packet.
            Message::Error { class, code } if self.refused != Some((class, code)) => {
                self.refused = Some((class, code));
                self.events.push_back(Event::Refused { class, code });
            }
            _ => {}
        }
    }

    /// Installs the standing rules and returns the transaction id of the barrier after them. New rules replace old
    /// rules with the same match. Only then are the remaining old rules removed, so that packets always meet a rule.
    fn install(&mut self) -> u32 {
        for rule in rules::standing(&self.protected, &self.authorities, self.generation) {
            self.send(&Message::FlowMod(rule));
        }
        if self.overhears {
            for rule in rules::answers(self.generation) {
                self.send(&Message::FlowMod(rule));
            }
        }
        for rule in rules::without_other_generations(self.generation) {
            self.send(&Message::FlowMod(rule));
        }
        self.send(&Message::BarrierRequest)
    }

    fn send(&mut self, message: &Message) -> u32 {
        let xid = self.next_xid;
        self.next_xid = xid.wrapping_add(1);
        self.answer(xid, message);
        xid
    }

    fn answer(&mut self, xid: u32, message: &Message) {
        // A message of fixed size always fits, and so does a packet that the switch sent. A packet is lost only if its
        // token makes it longer than the longest message.
        if let Some(bytes) = message.encode(xid) {
            self.events.push_back(Event::Write(bytes));
        }
    }
}

impl Event {
    /// Describes an error of the switch in words.
    pub fn explain(class: u16, code: u16) -> String {
        let hint = match (class, code) {
            (BAD_MATCH, _) => ": it may not support the match on TCP flags (Open vSwitch does)",
            TABLE_FULL => ": its flow table is full; packets of flows without a rule go through the controller",
            _ => "",
        };
        format!("the switch rejected a message, error type {class}, code {code}{hint}")
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(why) => why.fmt(formatter),
            Self::Silent => write!(formatter, "the switch does not answer"),
        }
    }
}
