//! Messages of an OpenFlow switch, and the packets that it elevates.

use engine::agent::Subject;
use engine::model::protected::Protected;
use engine::openflow::plane::{Fate, Household, Origin, Plane};
use engine::openflow::switch::{Event, Lost, Switch};
use std::time::Duration;
use wire::map::{GrantEntry, SERVICES_MAX, Service, Services};
use wire::{Carrier, Epoch, Flags, GrantHeader, Handle, Suite};

const NOW: u32 = 1_800_000_000;
const WHO: Subject = Subject::of_user(1000);
/// Generation of the rules that elevated the packets in the corpus.
pub const GENERATION: u16 = 5;

/// Checks that the result does not depend on how a switch's stream is split, and that every answer is one whole
/// message. An elevated packet must be queued for a grant or forwarded, and must not be queued again once the grant
/// exists. The input's first byte selects where to split the stream.
pub fn openflow(input: &[u8]) {
    let Some((cut, said)) = input.split_first() else { return };
    let whole = hear(&[said]);
    let (first, rest) = said.split_at(usize::from(*cut).min(said.len()));
    assert!(hear(&[first, rest]) == whole, "it matters where the stream is cut");
    let household = Household { others: Some(WHO), ..Household::default() };
    let mut plane = Plane::new(household, 1, false);
    plane.log_in(WHO);
    plane.protect(everything());
    for event in whole.0 {
        match event {
            Event::Write(bytes) => {
                let len = bytes.get(2..4).map(|len| usize::from(u16::from_be_bytes([len[0], len[1]])));
                assert!(bytes[0] == 4 && len == Some(bytes.len()), "an answer is no message");
            }
            Event::Elevated { in_port, frame } => elevated(&mut plane, in_port, &frame),
            Event::Answer(frame) => drop(engine::discovery::message::overhear_frame(&frame)),
            Event::Ready(_) | Event::Refused { .. } => {}
        }
    }
}

fn hear(pieces: &[&[u8]]) -> (Vec<Event>, Option<Lost>) {
    let mut switch = Switch::new(Duration::ZERO, everything(), GENERATION);
    let mut lost = None;
    for piece in pieces {
        if lost.is_none() {
            lost = switch.received(Duration::ZERO, piece).err();
        }
    }
    (std::iter::from_fn(|| switch.poll()).collect(), lost)
}

fn elevated(plane: &mut Plane, in_port: u32, frame: &[u8]) {
    let origin = Origin { datapath: 1, port: in_port };
    let fate = match plane.elevated(origin, frame, NOW) {
        Fate::Queue(slot, queued) => {
            let carrier = if in_port.is_multiple_of(2) { Carrier::Tail } else { Carrier::Shim };
            plane.write(slot, &grant(carrier));
            match plane.again(WHO, &queued, NOW) {
                Some((from, fate)) => {
                    assert!(
                        from == origin && !matches!(fate, Fate::Queue(..)),
                        "it is queued although there is a grant"
                    );
                    fate
                }
                None => panic!("nobody knows where a queued frame came from"),
            }
        }
        fate => fate,
    };
    let Fate::Forward { rules, frames } = fate else { return };
    assert!(rules.is_empty() || rules.len() == 2, "rules for one direction");
    // The carrier must add its bytes once: to the packet, or to a packet that is sent ahead of it.
    assert!(matches!(frames.len(), 1 | 2));
    assert!(frames.iter().all(|sent| sent.len() <= frame.len() + wire::shim::SHIM_LEN));
}

fn everything() -> Vec<Protected> {
    let span = |protocol| Service { protocol, foreign: 0, first_port: 0, last_port: u16::MAX };
    let mut services = Services { count: 2, spans: [span(0); SERVICES_MAX] };
    (services.spans[0], services.spans[1]) = (span(6), span(17));
    let prefixes = ["0.0.0.0/0", "::/0"].iter().filter_map(|prefix| prefix.parse().ok());
    prefixes.map(|prefix| Protected { prefix, services }).collect()
}

fn grant(carrier: Carrier) -> GrantEntry {
    let header = GrantHeader {
        suite: Suite::Siphash,
        flags: Flags::PORT,
        epoch: Epoch(1).on_wire(),
        prefix_length: 32,
        expires: NOW + 300,
        handle: Handle(9),
    };
    GrantEntry {
        until: NOW + 290,
        used: 0,
        plain: 0,
        suite: Suite::Siphash as u8,
        carrier: carrier as u8,
        reserved: 0,
        skew: 0,
        header: header.encode(),
        key: [5; 32],
        spent: 0,
        reserved2: 0,
    }
}
