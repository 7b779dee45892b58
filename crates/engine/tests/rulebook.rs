//! Compares the rulebook with a slow evaluator that is written straight from the specification: a million random
//! requests of random entries, with changes in between. `VOUCHSAFE_SEED` selects another sequence.

use engine::model::Service;
use engine::policy::Action;
use engine::policy::rulebook::{Decision, Entry, Receiver, Request, Rulebook, Sender};
use ipnet::IpNet;
use std::net::IpAddr;
use std::num::NonZeroU16;
use wire::Destination;

/// Small worlds, so that entries overlap often.
const WORLDS: u64 = 500;
const CHANGES: usize = 40;
const REQUESTS: usize = 50;

/// Sender of an entry, in plain form.
#[derive(Clone, Copy, PartialEq)]
enum Who {
    Everyone,
    Subject(u32),
    Network(IpNet),
}

/// The plain data that every answer is computed from again.
#[derive(Default)]
struct Words {
    receivers: Vec<(Receiver, Vec<(Who, Entry)>)>,
}

/// A random request.
struct Asked {
    subjects: Vec<u32>,
    source: IpAddr,
    to: Destination,
    open: u16,
}

#[derive(Debug, PartialEq)]
enum Answer {
    NoReceiver,
    DefaultDeny(Receiver),
    /// The most specific receiver, and the deciding entry's fields except its sender, which is ambiguous if several
    /// entries agree.
    Decided(Receiver, Action, u16, u64, u16, Option<NonZeroU16>),
}

impl Words {
    fn decide(&self, asked: &Asked) -> Answer {
        let to = asked.to;
        let covers = |receiver: &Receiver| {
            let Service { protocol, first_port, last_port } = receiver.service;
            let has_ports = to.protocol == 6 || to.protocol == 17;
            let port = if has_ports { to.port } else { 0 };
            receiver.prefix.contains(&to.address)
                && (protocol == 0 || protocol == to.protocol && first_port <= port && port <= last_port)
        };
        let mut most_specific: Option<Receiver> = None;
        let mut deciding: Option<&Entry> = None;
        for (receiver, entries) in self.receivers.iter().filter(|(receiver, _)| covers(receiver)) {
            let (length, number) = (receiver.prefix.prefix_len(), receiver.number);
            if most_specific.is_none_or(|other| {
                length > other.prefix.prefix_len() || length == other.prefix.prefix_len() && number < other.number
            }) {
                most_specific = Some(*receiver);
            }
            for (who, entry) in entries {
                let about = match who {
                    Who::Everyone => true,
                    Who::Subject(number) => asked.subjects.contains(number),
                    Who::Network(prefix) => prefix.contains(&asked.source),
                };
                let time = entry.window.is_none_or(|window| window.get() == asked.open);
                if about && time && deciding.is_none_or(|other| beats(entry, other)) {
                    deciding = Some(entry);
                }
            }
        }
        match (most_specific, deciding) {
            (None, _) => Answer::NoReceiver,
            (Some(receiver), None) => Answer::DefaultDeny(receiver),
            (Some(receiver), Some(e)) => Answer::Decided(receiver, e.action, e.priority, e.revision, e.terms, e.window),
        }
    }
}

/// Orders entries by priority, then freshness, then denial first, then by the remaining fields.
fn beats(one: &Entry, other: &Entry) -> bool {
    if one.priority != other.priority {
        return one.priority > other.priority;
    }
    if one.revision != other.revision {
        return one.revision > other.revision;
    }
    if one.action != other.action {
        return one.action == Action::Deny;
    }
    (one.terms, one.window) > (other.terms, other.window)
}

fn ask(book: &Rulebook, asked: &Asked) -> Answer {
    let subjects: Vec<_> = asked.subjects.iter().map(|number| Sender::subject(*number).expect("a number")).collect();
    let request = Request { subjects: &subjects, source: Some(asked.source), to: asked.to };
    match book.decide(&request, |window| window.get() == asked.open).decision {
        Decision::NoReceiver => Answer::NoReceiver,
        Decision::DefaultDeny { receiver } => Answer::DefaultDeny(receiver),
        Decision::Decided(ruling) => {
            let e = ruling.entry;
            Answer::Decided(ruling.receiver, e.action, e.priority, e.revision, e.terms, e.window)
        }
    }
}

/// Pseudo-random numbers: xorshift64*.
struct Chance(u64);

impl Chance {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        ((u128::from(self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)) * u128::from(end)) >> 64) as u64
    }

    fn of<T: Copy>(&mut self, some: &[T]) -> T {
        some[self.below(some.len() as u64) as usize]
    }

    /// Returns an address, one of few per family.
    fn address(&mut self) -> IpAddr {
        let low = self.below(16) as u8;
        match self.below(2) {
            0 => [10, 0, 0, low].into(),
            _ => [0x2001, 0xdb8, 0, 0, 0, 0, 0, u16::from(low)].into(),
        }
    }

    /// Returns a prefix around such an address.
    fn prefix(&mut self) -> IpNet {
        let address = self.address();
        let longest = if address.is_ipv4() { 32 } else { 128 };
        let length = longest - self.of(&[0, 0, 0, 1, 2, 3, 4, 20]);
        IpNet::new(address, length).expect("a prefix").trunc()
    }

    fn service(&mut self) -> Service {
        let span = |protocol, first_port, last_port| Service { protocol, first_port, last_port };
        self.of(&[Service::ALL, span(6, 0, 65535), span(6, 22, 22), span(6, 20, 30), span(17, 22, 53), span(1, 0, 0)])
    }

    fn entry(&mut self, book: &mut Rulebook, revision: u64) -> (Who, Entry) {
        let (who, sender) = match self.below(8) {
            0 => (Who::Everyone, Sender::EVERYONE),
            1..5 => {
                let number = 1 + self.below(12) as u32;
                (Who::Subject(number), Sender::subject(number).expect("a number"))
            }
            _ => {
                let prefix = self.prefix();
                (Who::Network(prefix), book.network(prefix))
            }
        };
        let entry = Entry {
            sender,
            action: self.of(&[Action::Allow, Action::Deny]),
            priority: self.of(&[0, 100, 100, 200, 65535]),
            // Several entries of one rule have the same freshness.
            revision: revision - self.below(2).min(revision),
            terms: self.below(3) as u16,
            window: NonZeroU16::new(self.below(6).saturating_sub(3) as u16),
        };
        (who, entry)
    }

    fn asked(&mut self) -> Asked {
        Asked {
            subjects: (0..self.below(4)).map(|_| 1 + self.below(12) as u32).collect(),
            source: self.address(),
            to: Destination {
                address: self.address(),
                protocol: self.of(&[6, 6, 17, 1]),
                port: self.of(&[22, 22, 25, 53, 443]),
            },
            open: 1 + self.below(2) as u16,
        }
    }
}

/// Applies one change to both the plain data and the rulebook.
fn change(words: &mut Words, book: &mut Rulebook, chance: &mut Chance, revision: u64) {
    let count = words.receivers.len() as u64;
    let kind = chance.below(10);
    if count == 0 || kind == 0 {
        let number = revision as u32;
        let verifier = chance.below(3) as u32;
        let receiver = Receiver { prefix: chance.prefix(), service: chance.service(), number, verifier };
        let entries: Vec<_> = (0..chance.below(12)).map(|place| chance.entry(book, revision + place)).collect();
        book.set(receiver, &entries.iter().map(|(_, entry)| *entry).collect::<Vec<_>>());
        words.receivers.push((receiver, entries));
        return;
    }
    let place = chance.below(count) as usize;
    let receiver = words.receivers[place].0;
    if kind == 1 && count > 12 {
        assert!(book.withdraw(&receiver));
        words.receivers.remove(place);
        return;
    }
    let entries = &mut words.receivers[place].1;
    if kind < 5 || entries.is_empty() {
        let (who, entry) = chance.entry(book, revision);
        assert!(book.insert(&receiver, entry));
        entries.push((who, entry));
        return;
    }
    let of_entries = chance.below(entries.len() as u64) as usize;
    if kind < 8 {
        let (_, entry) = entries.remove(of_entries);
        assert!(book.remove(&receiver, &entry));
    } else {
        let new = chance.entry(book, revision);
        assert!(book.replace(&receiver, &entries[of_entries].1, new.1));
        entries[of_entries] = new;
    }
}

#[test]
fn a_million_decisions_are_those_of_the_plain_words() {
    let seed = std::env::var("VOUCHSAFE_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1u64);
    let mut answers = [0u64; 4];
    for world in 0..WORLDS {
        let mut chance = Chance(((seed << 32) | world) * 2 + 1);
        let (mut words, mut book) = (Words::default(), Rulebook::default());
        (0..12).for_each(|revision| change(&mut words, &mut book, &mut chance, revision));
        for revision in 12..12 + CHANGES as u64 {
            change(&mut words, &mut book, &mut chance, revision * 10);
            for _ in 0..REQUESTS {
                let asked = chance.asked();
                let (said, expected) = (ask(&book, &asked), words.decide(&asked));
                assert_eq!(said, expected, "seed {seed}, world {world}, after change {revision}");
                answers[match expected {
                    Answer::NoReceiver => 0,
                    Answer::DefaultDeny(_) => 1,
                    Answer::Decided(_, Action::Deny, ..) => 2,
                    Answer::Decided(_, Action::Allow, ..) => 3,
                }] += 1;
            }
        }
        assert_eq!(book.len(), words.receivers.len());
    }
    assert_eq!(answers.iter().sum::<u64>(), 1_000_000);
    assert!(answers.iter().all(|count| *count > 50_000), "every kind of answer comes often: {answers:?}");
}
