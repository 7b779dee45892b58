//! One connection to a switch: greeting, standing rules, signs of life.

use super::message::{FlowMod, Inbox, Malformed, Message, port};
use super::rules;
use crate::protected::Protected;
use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

/// A switch that says nothing is asked after this long, and given up after as long again.
const SILENCE: Duration = Duration::from_secs(5);
const WHOLE_PACKETS: u16 = 0xffff;
/// Error type "bad match": the switch does not know a field.
const BAD_MATCH: u16 = 4;
/// Error type "flow mod failed", code "table full".
const TABLE_FULL: (u16, u16) = (5, 1);

/// What the shell is to do.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// Send these bytes.
    Write(Vec<u8>),
    /// The switch has named itself and has its rules.
    Ready(u64),
    /// A packet came up.
    Elevated {
        /// The port that it came in by.
        in_port: u32,
        /// The packet.
        frame: Vec<u8>,
    },
    /// A copy of a name server's answer came up.
    Answer(Vec<u8>),
    /// The switch refused something, for another reason than the last time; worth a line in the log.
    Refused {
        /// The error's type.
        class: u16,
        /// Its code.
        code: u16,
    },
}

/// Why a connection is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// It sent what is no message.
    Malformed(Malformed),
    /// It no longer answers.
    Silent,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Its greeting has not come.
    Greeting,
    /// It was asked who it is.
    Asked,
    /// This is its number.
    Named(u64),
}

/// The state machine.
pub struct Switch {
    stage: Stage,
    inbox: Inbox,
    events: VecDeque<Event>,
    next_xid: u32,
    heard: Duration,
    asked: Option<Duration>,
    /// The barrier behind the first rules, until the switch has passed it.
    barrier: Option<u32>,
    refused: Option<(u16, u16)>,
    protected: Vec<Protected>,
    generation: u16,
    /// Copies of name servers' answers come up.
    hears: bool,
}

impl Switch {
    /// A connection just made. `generation` tells this controller's rules from an earlier one's: any number that the
    /// earlier one is not likely to have had.
    pub fn new(now: Duration, protected: Vec<Protected>, generation: u16) -> Self {
        let mut switch = Self {
            stage: Stage::Greeting,
            inbox: Inbox::default(),
            events: VecDeque::new(),
            next_xid: 1,
            heard: now,
            asked: None,
            barrier: None,
            refused: None,
            protected,
            generation,
            hears: true,
        };
        switch.send(&Message::Hello);
        switch
    }

    /// The same where no answers of name servers come up.
    #[must_use]
    pub fn deaf(self) -> Self {
        Self { hears: false, ..self }
    }

    /// The next effect, in order.
    pub fn poll(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The switch's number, once it has told it.
    pub fn datapath(&self) -> Option<u64> {
        match self.stage {
            Stage::Named(datapath) => Some(datapath),
            _ => None,
        }
    }

    /// Whether it has its first rules.
    pub fn is_ready(&self) -> bool {
        self.datapath().is_some() && self.barrier.is_none()
    }

    /// Bytes came.
    pub fn received(&mut self, now: Duration, bytes: &[u8]) -> Result<(), Lost> {
        self.heard = now;
        self.asked = None;
        self.inbox.push(bytes);
        while let Some((xid, message)) = self.inbox.message().map_err(Lost::Malformed)? {
            self.message(xid, message);
        }
        Ok(())
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Duration) -> Result<(), Lost> {
        match self.asked {
            Some(asked) if now.saturating_sub(asked) >= SILENCE => return Err(Lost::Silent),
            None if now.saturating_sub(self.heard) >= SILENCE => {
                self.asked = Some(now);
                self.send(&Message::EchoRequest(Vec::new()));
            }
            _ => {}
        }
        Ok(())
    }

    /// What is protected from now on.
    pub fn protect(&mut self, protected: &[Protected]) {
        if self.protected == protected {
            return;
        }
        self.protected = protected.to_vec();
        if self.datapath().is_some() {
            self.generation = self.generation.wrapping_add(1);
            self.install();
        }
    }

    /// Rules for a flow, then its frames, go down.
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
                self.stage = Stage::Asked;
                self.send(&Message::FeaturesRequest);
                self.send(&Message::SetConfig { miss_send_len: WHOLE_PACKETS });
            }
            Message::FeaturesReply { datapath } if self.stage == Stage::Asked => {
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
            // A full table refuses a rule with every packet.
            Message::Error { class, code } if self.refused != Some((class, code)) => {
                self.refused = Some((class, code));
                self.events.push_back(Event::Refused { class, code });
            }
            _ => {}
        }
    }

    /// New rules take the places of old ones with the same match, and only then go those that have no successor: no packet
    /// finds neither. The result is the number of the barrier behind them.
    fn install(&mut self) -> u32 {
        for rule in rules::standing(&self.protected, self.generation) {
            self.send(&Message::FlowMod(rule));
        }
        if self.hears {
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
        // What came from the switch or is of fixed size fits; a packet that grew beyond what a message holds is lost.
        if let Some(bytes) = message.encode(xid) {
            self.events.push_back(Event::Write(bytes));
        }
    }
}

impl Event {
    /// What a refusal means, for people.
    pub fn explain(class: u16, code: u16) -> String {
        let hint = match (class, code) {
            (BAD_MATCH, _) => ": it may lack the match on TCP flags (Open vSwitch has it)",
            TABLE_FULL => ": its table of rules is full; flows without a rule come up packet by packet",
            _ => "",
        };
        format!("the switch refused a message, error type {class}, code {code}{hint}")
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(why) => why.fmt(formatter),
            Self::Silent => write!(formatter, "the switch no longer answers"),
        }
    }
}
