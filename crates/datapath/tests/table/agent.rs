//! The agent's side: wire.md §4.1, §4.2. The verifier accepts packets that the agent's program emits, and restores them
//! byte for byte.

use super::{CLIENT_PORT, TRANSPORTS, Transport};
use crate::world::{Family, Grant, LsPair, NOW, families};
use engine::agent::insertion::Action;
use lab::forge::{Packet, Tcp, flag};
use wire::map::Conversation;
use wire::shim::Content;
use wire::{Carrier, Flags, Suite, tail};

/// The subject that sends the rows' packets.
pub const SUBJECT: u32 = 7;

/// State of the agent when a packet arrives.
#[derive(Clone, Copy)]
pub enum Known {
    /// A grant for [`Family::server`].
    Grant(Grant),
    /// A grant for [`Family::server`], on a UDP flow.
    Conversation(Grant, Conversation),
    /// A grant, on another subject's UDP flow whose last datagram is this many seconds old.
    Others(Grant, i32),
    /// Packets go without identity, on another subject's UDP flow of this age.
    OthersPlain(i32),
    /// No subject has logged in, on another subject's UDP flow of this age.
    OthersUnowned(i32),
    /// An expired grant.
    Stale(Grant),
    /// A grant of an authority whose clock differs by this many seconds from this machine's.
    Skewed(Grant, i32),
    /// A pair with this many nonces used.
    Pair(LsPair, u32),
    /// Packets go without identity.
    Plain,
    /// No grant.
    Nothing,
    /// No subject has logged in.
    Nobody,
}

/// A case: state, packet and expected action.
pub struct Row {
    pub name: String,
    pub clause: &'static str,
    pub family: Family,
    pub known: Known,
    /// Carrier of the grant's tokens.
    pub carrier: Carrier,
    pub frame: Vec<u8>,
    pub action: fn(&Action) -> bool,
}

pub fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for family in families() {
        let grant = Grant::new(&family, 30);
        let mut row = |clause, name: String, known, frame: Vec<u8>, action: fn(&Action) -> bool| {
            let name = format!("{}: {name}", family.name);
            rows.push(Row { name, clause, family, known, carrier: Carrier::Tail, frame, action });
        };
        for transport in TRANSPORTS {
            let to = transport.destination(&family);
            let opening = || transport.opening(&family, CLIENT_PORT, &to);
            let what = |what: &str| format!("{}, {what}", transport.name());
            let payload: &[u8] = if transport == Transport::Udp { b"odd" } else { b"" };
            let frame = opening().payload(payload).frame();
            let aes = Grant { suite: Suite::AesCmac, ..grant };
            let single = Grant { flags: grant.flags.with(Flags::SINGLE).with(Flags::REPLY), ..grant };
            let bound = Grant { flags: grant.flags.with(Flags::SOURCE), ..grant };
            row("§4.1", what("siphash"), Known::Grant(grant), frame.clone(), is_token);
            row("§4.1", what("aes-cmac"), Known::Grant(aes), frame.clone(), is_token);
            row("§4.1", what("for a single flow, with consent"), Known::Grant(single), frame.clone(), is_token);
            row("§4.1", what("bound to the source"), Known::Grant(bound), frame.clone(), is_token);
            for length in [1, 2, 37, 500] {
                let frame = opening().payload(&vec![3; length]).frame();
                row("§4.1", what(&format!("{length} bytes of payload")), Known::Grant(grant), frame, is_token);
            }
            let mut padded = frame.clone();
            padded.extend([0; 5]);
            row("§4.1", what("with link padding"), Known::Grant(grant), padded, is_token);
            let carried = opening().payload(&[b"xVSF1", &[7; 36][..]].concat()).frame();
            row("§4.1", what("a block there already"), Known::Grant(grant), carried, is_other);
            let extended = if family.server.is_ipv6() {
                opening().extension(60, &[1, 4, 0, 0, 0, 0])
            } else {
                opening().options(&[1, 1, 1, 0])
            };
            row(
                "§6.5",
                what("IP options or extension headers"),
                Known::Grant(grant),
                extended.payload(b"x").frame(),
                is_token,
            );
            row("§4.1", what("a grant whose time is over"), Known::Stale(grant), frame.clone(), is_held);
            for skew in [-25, 25] {
                let name = what(&format!("the authority's clock {skew} s from ours"));
                row("§4.1", name, Known::Skewed(grant, skew), frame.clone(), is_token);
            }
            row("§4.1", what("no grant yet"), Known::Nothing, frame.clone(), is_held);
            row("§4.1", what("without identity by choice"), Known::Plain, frame.clone(), is_plain);
            row("§4.1", what("nobody logged in"), Known::Nobody, frame.clone(), is_plain);
            let open = Packet::new(family.client, family.open);
            let open = match transport {
                Transport::Tcp => open.tcp(Tcp::syn(CLIENT_PORT, 22)),
                Transport::Udp => open.udp(CLIENT_PORT, 443),
            };
            row("§6.2", what("to an open host"), Known::Grant(grant), open.frame(), is_other);
        }
        let segment = |flags| Packet::new(family.client, family.server).tcp(Tcp::new(CLIENT_PORT, 22, flags)).frame();
        for (name, flags) in
            [("ACK", flag::ACK), ("SYN and ACK", flag::SYN | flag::ACK), ("FIN", flag::FIN), ("RST", flag::RST)]
        {
            row("§4.1", format!("{name} gets no token"), Known::Grant(grant), segment(flags), is_other);
        }
        let port = Packet::new(family.client, family.server).tcp(Tcp::syn(CLIENT_PORT, 23)).frame();
        row("§6.2", "to an open port".to_owned(), Known::Grant(grant), port, is_other);
        let datagram =
            |length: usize| Packet::new(family.client, family.server).udp(CLIENT_PORT, 443).payload(&vec![4; length]);
        for (flow, carries) in [
            (flow(0, 0, 0), true),
            (flow(3, 0, 0), true),
            (flow(4, 0, 0), false),
            (flow(7, 0, 0), true),
            (flow(8, 0, 0), false),
            (flow(0x7fff, 0, 0), true),
            (flow(0xfffe, 0, 0), false),
            (flow(0xffff, 0, 0), false),
            (flow(0xffff, -1, -1), false),
            (flow(4, 1, 0), true),
            (flow(4, 1, 1), true),
            (flow(0xffff, 1, 0), true),
            (flow(4, 15, 15), true),
            (answered(1, 0, 0), false),
            (answered(1, 0, -1), false),
            (answered(3, 14, 0), false),
            (answered(3, 14, 14), false),
            (answered(9, 15, 0), true),
            (answered(9, 60, 60), true),
            // Without the silence, the token would be recent enough.
            (answered(9, 0, 15), true),
            // The flow sends, and nothing comes back.
            (waiting(2, 5, 1), false),
            (waiting(3, 5, 0), false),
            (waiting(3, 5, -1), false),
            (waiting(3, 5, 1), true),
            (waiting(3, 5, 9), true),
            (waiting(3, 0, 1), false),
        ] {
            let Conversation { token, answered, sent, seen, .. } = flow;
            let name = format!(
                "datagram {} of an {} flow, {} s after the last token and {} s after the last datagram",
                u32::from(sent) + 1,
                match answered {
                    0 => "unanswered".to_owned(),
                    1 => "answered".to_owned(),
                    seconds => format!("answered ({seconds})"),
                },
                i64::from(NOW) - i64::from(token),
                i64::from(NOW) - i64::from(seen)
            );
            let action = if carries { is_token } else { is_conversation };
            row("§4.1.3", name, Known::Conversation(grant, flow), datagram(33).frame(), action);
        }
        for (age, dropped) in [(-1, true), (0, true), (89, true), (90, false), (95, false)] {
            let otherwise = |action: fn(&Action) -> bool| if dropped { is_rider } else { action };
            let name = |who: &str| format!("{who}, {age} s after another's datagram");
            let frame = datagram(33).frame();
            row("§4.1", name("a grant"), Known::Others(grant, age), frame.clone(), otherwise(is_token));
            row("§4.1", name("without identity"), Known::OthersPlain(age), frame.clone(), otherwise(is_plain));
            row("§4.1", name("nobody logged in"), Known::OthersUnowned(age), frame, otherwise(is_plain));
            // On an admitted flow the verifier takes a malformed block for payload (wire.md §6.3.2).
            let fake = [&[4; 33][..], tail::MAGIC.as_slice(), &[0; 36]].concat();
            let fake = Packet::new(family.client, family.server).udp(CLIENT_PORT, 443).payload(&fake).frame();
            row("§4.1", name("what looks like a block"), Known::Others(grant, age), fake, otherwise(is_other));
            let syn = Packet::new(family.client, family.server).tcp(Tcp::syn(CLIENT_PORT, 22)).frame();
            row("§4.1", name("a SYN"), Known::Others(grant, age), syn, is_token);
        }
        let streamed = Packet::new(family.client, family.server).tcp(Tcp::syn(CLIENT_PORT, 22));
        let streamed = streamed.payload(&tail::stream_block(&[7; 36])).frame();
        row("§4.6", "a process's own token in its stream".to_owned(), Known::Grant(grant), streamed, is_other);
        let options = tail::fast_open_option(&[7; 36]).to_vec();
        let opened = Packet::new(family.client, family.server).tcp(Tcp { options, ..Tcp::syn(CLIENT_PORT, 22) });
        let opened = opened.payload(&tail::fast_open_block(&[7; 36])).frame();
        row("§4.7", "a SYN that has its token and option".to_owned(), Known::Grant(grant), opened, is_other);
        let header = if family.server.is_ipv6() { 48 } else { 28 };
        row(
            "§4.2",
            "the longest datagram with room".to_owned(),
            Known::Grant(grant),
            datagram(1240 - header).frame(),
            is_token,
        );
        row(
            "§4.2",
            "the shortest datagram without".to_owned(),
            Known::Grant(grant),
            datagram(1241 - header).frame(),
            is_ahead,
        );
        row("§4.2", "an empty datagram".to_owned(), Known::Grant(grant), datagram(0).frame(), is_ahead);
        let parts = datagram(3000).identification(9).fragments(1400);
        row("§4.2", "a first fragment".to_owned(), Known::Grant(grant), parts[0].clone(), is_ahead);
        row("§4.2", "a later fragment".to_owned(), Known::Grant(grant), parts[1].clone(), is_other);
        if family.server.is_ipv4() {
            let unsummed = datagram(20).no_checksum().frame();
            row("§4.1", "a datagram without checksum".to_owned(), Known::Grant(grant), unsummed, is_token);
        }
        let mut arp = vec![0; 42];
        arp[12..14].copy_from_slice(&[8, 6]);
        row("§6.2", "ARP".to_owned(), Known::Grant(grant), arp, is_other);
        assert!(grant.expires > NOW);
    }
    rows.extend(shims());
    rows.extend(pairs());
    rows
}

/// Returns the rows about pairs, whose tokens always travel in shims.
fn pairs() -> Vec<Row> {
    let mut rows = Vec::new();
    let [family, _] = families();
    let mut row = |clause, name: String, spent, frame: Vec<u8>, action: fn(&Action) -> bool| {
        let known = Known::Pair(LsPair::new(7), spent);
        rows.push(Row { name: format!("pair: {name}"), clause, family, known, carrier: Carrier::Shim, frame, action });
    };
    for transport in TRANSPORTS {
        let opening = transport.opening(&family, CLIENT_PORT, &transport.destination(&family)).payload(b"odd");
        for spent in [0, 1, 255, 256, 0x1234, 32_767] {
            let name = format!("{}, {spent} nonces used", transport.name());
            row("§5.3", name, spent, opening.frame(), is_token);
        }
        let name = format!("{}, no nonce left", transport.name());
        row("§5.5", name, 32_768, opening.frame(), is_held);
        let options = opening.options(&[1, 1, 1, 0]).frame();
        row("§4.3.1", format!("{}, IP options of its own", transport.name()), 0, options, is_failed);
    }
    let datagram =
        |length: usize| Packet::new(family.client, family.server).udp(CLIENT_PORT, 443).payload(&vec![4; length]);
    row("§4.3.3", "the shortest datagram without room".to_owned(), 3, datagram(1221 - 28).frame(), is_ahead);
    row("§4.3.3", "an empty datagram".to_owned(), 3, datagram(0).frame(), is_ahead);
    rows
}

/// Returns the rows about a grant whose tokens travel in shims.
fn shims() -> Vec<Row> {
    let mut rows = Vec::new();
    let [family, _] = families();
    let grant = Grant::new(&family, 31);
    let mut row = |clause, name: String, known, frame: Vec<u8>, action: fn(&Action) -> bool| {
        rows.push(Row { name: format!("shim: {name}"), clause, family, known, carrier: Carrier::Shim, frame, action });
    };
    for transport in TRANSPORTS {
        let to = transport.destination(&family);
        let opening = || transport.opening(&family, CLIENT_PORT, &to);
        let what = |what: &str| format!("{}, {what}", transport.name());
        let known = Known::Grant(grant);
        let aes = Known::Grant(Grant { suite: Suite::AesCmac, ..grant });
        let bound = Known::Grant(Grant { flags: grant.flags.with(Flags::SOURCE), ..grant });
        let plain = opening().payload(b"odd");
        row("§4.3", what("siphash"), known, plain.frame(), is_token);
        row("§4.3", what("aes-cmac"), aes, plain.frame(), is_token);
        row("§3.4", what("bound to the source"), bound, plain.frame(), is_token);
        for length in [1, 2, 37, 500] {
            let frame = opening().payload(&vec![3; length]).frame();
            row("§4.3", what(&format!("{length} bytes of payload")), known, frame, is_token);
        }
        let changed = plain.clone().hops(3).class(0xb9).identification(0xffff).dont_fragment();
        row("§4.3", what("odd header fields"), known, changed.frame(), is_token);
        let mut padded = plain.frame();
        padded.extend([0; 5]);
        row("§4.3", what("with link padding"), known, padded, is_token);
        let options = plain.clone().options(&[1, 1, 1, 0]).frame();
        row("§4.3.1", what("IP options of its own"), known, options, is_failed);
        let mut wrong = plain.frame();
        wrong[24] ^= 0x55;
        row("§4.3", what("a wrong checksum in the IP header"), known, wrong, is_token);
        let wrapped = plain.shimmed(&Content::Token([7; 36]).encode()).frame();
        row("§4.3", what("in a shim already"), known, wrapped, is_other);
    }
    let known = Known::Grant(grant);
    let datagram =
        |length: usize| Packet::new(family.client, family.server).udp(CLIENT_PORT, 443).payload(&vec![4; length]);
    row("§4.3.3", "the longest datagram with room".to_owned(), known, datagram(1220 - 28).frame(), is_token);
    row("§4.3.3", "the shortest datagram without".to_owned(), known, datagram(1221 - 28).frame(), is_ahead);
    row("§4.3.3", "an empty datagram".to_owned(), known, datagram(0).frame(), is_ahead);
    let parts = datagram(3000).identification(9).fragments(1400);
    row("§4.3.3", "a first fragment".to_owned(), known, parts[0].clone(), is_ahead);
    row("§4.3", "a datagram without checksum".to_owned(), known, datagram(20).no_checksum().frame(), is_token);
    let conversation = Known::Conversation(grant, answered(1, 14, 0));
    row("§4.1.3", "an answered flow".to_owned(), conversation, datagram(20).frame(), is_conversation);
    let conversation = Known::Conversation(grant, answered(1, 15, 0));
    row("§4.1.3", "a flow in use".to_owned(), conversation, datagram(20).frame(), is_token);
    rows
}

/// Returns a flow of so many datagrams, whose last token and last datagram were sent this many seconds ago.
fn flow(sent: u16, token: i32, seen: i32) -> Conversation {
    let ago = |seconds| NOW.wrapping_sub_signed(seconds);
    Conversation { token: ago(token), answered: 0, sent, subject: SUBJECT, seen: ago(seen) }
}

fn answered(sent: u16, token: i32, seen: i32) -> Conversation {
    Conversation { answered: 1, ..flow(sent, token, seen) }
}

/// Returns an answered flow that has sent for this many seconds since its last answer, the one of the answer included.
fn waiting(seconds: u16, token: i32, seen: i32) -> Conversation {
    Conversation { answered: seconds, ..flow(9, token, seen) }
}

fn is_failed(action: &Action) -> bool {
    *action == Action::Failed
}

fn is_token(action: &Action) -> bool {
    *action == Action::Token
}

fn is_held(action: &Action) -> bool {
    *action == Action::Queued
}

fn is_plain(action: &Action) -> bool {
    *action == Action::Plain
}

fn is_other(action: &Action) -> bool {
    *action == Action::Other
}

fn is_conversation(action: &Action) -> bool {
    *action == Action::Conversation
}

fn is_rider(action: &Action) -> bool {
    *action == Action::Rider
}

fn is_ahead(action: &Action) -> bool {
    matches!(action, Action::Ahead(_))
}
