//! Properties that hold for every input: the readers never panic, read nothing beyond the header, and name nobody whom
//! the bytes do not name.

use proptest::prelude::*;
use std::io::Read;
use whois::{Answer, Relayed};

/// Returns bytes in pieces, as a network does, and counts them.
struct Pieces<'a> {
    rest: &'a [u8],
    most: usize,
    taken: usize,
}

impl Read for Pieces<'_> {
    fn read(&mut self, room: &mut [u8]) -> std::io::Result<usize> {
        let size = room.len().min(self.most).min(self.rest.len());
        let (now, later) = self.rest.split_at(size);
        room[..size].copy_from_slice(now);
        self.rest = later;
        self.taken += size;
        Ok(size)
    }
}

/// Bytes that begin like a header, so that some of them are one.
fn headers() -> impl Strategy<Value = Vec<u8>> {
    let tlv = (prop_oneof![Just(0xe0), Just(0xe1), Just(0xe2), Just(0xe3), Just(0xe4), any::<u8>()], "[a-z/ü]{0,9}");
    let tlv = tlv.prop_map(|(kind, text)| {
        let mut bytes = vec![kind, 0, text.len() as u8];
        bytes.extend(text.as_bytes());
        bytes
    });
    let body = prop_oneof![
        prop::collection::vec(tlv, 0..8).prop_map(|tlvs| tlvs.concat()),
        prop::collection::vec(any::<u8>(), 0..64),
    ];
    (any::<bool>(), any::<[u8; 36]>(), body, prop::collection::vec(any::<u8>(), 0..40), -1_i32..2).prop_map(
        |(six, ends, body, after, wrong)| {
            let ends = if six { &ends[..] } else { &ends[..12] };
            let length = (ends.len() + body.len()) as i32 + wrong.min(0);
            let mut bytes = b"\r\n\r\n\0\r\nQUIT\n\x21".to_vec();
            bytes.push(if six { 0x21 } else { 0x11 });
            bytes.extend((length as u16).to_be_bytes());
            [&bytes[..], ends, &body, &after].concat()
        },
    )
}

proptest! {
    #[test]
    fn a_header_is_read_to_its_end_and_not_beyond(bytes in headers(), most in 1_usize..50) {
        let mut source = Pieces { rest: &bytes, most, taken: 0 };
        let length = 16 + usize::from(u16::from_be_bytes([bytes[14], bytes[15]]));
        if let Ok(relayed) = Relayed::read(&mut source) {
            prop_assert_eq!(source.taken, length);
            if let Some(who) = relayed.identity {
                prop_assert!(!who.person.is_empty());
                let named = [&[0xe0, 0, who.person.len() as u8][..], who.person.as_bytes()].concat();
                prop_assert!(bytes[..length].windows(named.len()).any(|window| window == named));
            }
        }
        prop_assert!(source.taken <= length);
    }

    #[test]
    fn other_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = Relayed::read(&mut &bytes[..]);
        let _ = Answer::parse(&bytes).and_then(|answer| answer.identity());
    }

    #[test]
    fn an_answer_s_values_arrive_as_they_were(person in "\\PC{1,20}") {
        let encoded: String = person.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let rest = ["device", "receiver", "rule", "grant"].map(|name| format!("x-vouchsafe-{name}: \r\n")).concat();
        let text = format!("HTTP/1.1 200 OK\r\nx-vouchsafe-person: {encoded}\r\n{rest}\r\n");
        let who = Answer::parse(text.as_bytes()).and_then(|answer| answer.identity());
        prop_assert_eq!(who.map(|who| who.person).ok(), Some(person));
    }
}
