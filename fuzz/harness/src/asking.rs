//! Requests for segments by datagram: the sealed form and the content.

use engine::issuing::lines::{Lines, Unanswered};
use std::net::{IpAddr, Ipv4Addr};
use wire::ask::{LineKey, LineNumber, QUESTION_LEN, Question, REPLY_LEN, Reply, envelope};

/// Line number of the vectors.
const LINE: LineNumber = LineNumber(0x1122_3344_5566_7788);

/// A request is accepted once, and only if it is unchanged; a question or reply that decodes encodes to the same bytes.
pub fn ask(input: &[u8]) {
    asked(input);
    let key = || LineKey::new(std::array::from_fn(|index| index as u8));
    if let Some(plain) = padded::<QUESTION_LEN>(input) {
        if let Some(question) = Question::decode(&plain) {
            assert_eq!(question.encode(), Some(plain), "one form only");
        }
        let sealed = key().seal_request(LINE, 7, &plain).expect("it is sealed");
        let mut opened = sealed;
        let outside = envelope(&sealed).expect("it is a request");
        assert_eq!(key().open_request(outside, &mut opened), Some(&plain));
    }
    if let Some(plain) = padded::<REPLY_LEN>(input) {
        if let Some(reply) = Reply::decode(&plain) {
            assert_eq!(reply.encode(), Some(plain), "one form only");
        }
        let mut sealed = key().seal_answer(7, &plain).expect("it is sealed");
        assert_eq!(key().open_answer(&mut sealed), Some((7, &plain)));
    }
    if let Some((_, reply)) = key().open_answer(&mut input.to_vec()) {
        let reply = *reply;
        assert!(Reply::decode(&reply).is_none_or(|read| read.encode() == Some(reply)));
    }
}

/// Returns why a request on the vectors' line is not answered, if it is not. A repeated request never is.
pub fn asked(input: &[u8]) -> Option<Unanswered> {
    let mut lines = Lines::default();
    assert!(lines.give((), LINE, LineKey::new(std::array::from_fn(|index| index as u8))));
    let mut read = || lines.read(&mut input.to_vec(), IpAddr::V4(Ipv4Addr::LOCALHOST), 0).map(drop);
    let (first, second) = (read(), read());
    match first {
        Ok(()) => assert_eq!(second, Err(Unanswered::Repeated)),
        // A request sealed by the line's owner uses up its counter, whatever its content.
        Err(Unanswered::Malformed) => assert_eq!(second, Err(Unanswered::Repeated)),
        Err(_) => assert_eq!(first, second),
    }
    first.err()
}

/// Pads the input to `N` bytes.
fn padded<const N: usize>(input: &[u8]) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    bytes.get_mut(..input.len())?.copy_from_slice(input);
    Some(bytes)
}
