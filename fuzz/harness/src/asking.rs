//! Requests for segments and grants by UDP: the sealed request, and the content of requests and replies.

use engine::issuing::lines::{Lines, Unanswered};
use engine::model::Given;
use std::net::{IpAddr, Ipv4Addr};
use wire::ask::grant::GrantAnswer;
use wire::ask::{AnyQuestion, LineKey, LineNumber, QUESTION_LEN, REPLY_LEN, Reply, envelope};
use wire::{Ends, ProofKey, Vni};

/// Number of the line in the published vectors.
const LINE: LineNumber = LineNumber(0x1122_3344_5566_7788);
const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Checks that a request is accepted only once and only if it is unchanged. Also checks that the content of a request
/// or reply, or a segment that is passed on, encodes to the same bytes if it can be decoded.
pub fn ask(input: &[u8]) {
    asked(input);
    let key = || LineKey::new(std::array::from_fn(|index| index as u8));
    if let Some(plain) = padded::<QUESTION_LEN>(input) {
        let encoded = match AnyQuestion::decode(&plain) {
            Some(AnyQuestion::Segment(question)) => question.encode(),
            Some(AnyQuestion::Grant(question)) => question.encode(),
            None => Some(plain),
        };
        assert_eq!(encoded, Some(plain), "one form only");
        let sealed = key().seal_request(LINE, 7, &plain).expect("it is sealed");
        let mut opened = sealed;
        let outside = envelope(&sealed).expect("it is a request");
        assert_eq!(key().open_request(outside, &mut opened), Some(&plain));
    }
    if let Some(plain) = padded::<REPLY_LEN>(input) {
        if let Some(reply) = Reply::decode(&plain) {
            assert_eq!(reply.encode(), Some(plain), "one form only");
        }
        if let Some(answer) = GrantAnswer::decode(&plain) {
            assert_eq!(answer.encode(), Some(plain), "one form only");
        }
        let mut sealed = key().seal_answer(7, &plain).expect("it is sealed");
        assert_eq!(key().open_answer(&mut sealed), Some((7, &plain)));
    }
    let ends = Ends { sending: LOCAL, receiving: LOCAL, sender: LOCAL, receiver: LOCAL };
    let proof_key = || ProofKey::new(std::array::from_fn(|index| index as u8));
    if let Some(given) = Given::from_passed_on(input, Vni::from([0, 0, 100]), ends, |_| Some(proof_key())) {
        assert_eq!(given.passed_on(&proof_key()).as_deref(), Some(input), "one form only, and only the authority's");
    }
    if let Some((_, reply)) = key().open_answer(&mut input.to_vec()) {
        let reply = *reply;
        assert!(Reply::decode(&reply).is_none_or(|read| read.encode() == Some(reply)));
        assert!(GrantAnswer::decode(&reply).is_none_or(|read| read.encode() == Some(reply)));
    }
}

/// Treats the input as a request on the line of the published vectors. Returns the reason why the request is not
/// answered; `None` if it is answered. Checks that a repetition of the request is not answered.
pub fn asked(input: &[u8]) -> Option<Unanswered> {
    let mut lines = Lines::default();
    assert!(lines.give((), LINE, LineKey::new(std::array::from_fn(|index| index as u8)), LOCAL, 0));
    let mut read = || lines.read(&mut input.to_vec(), LOCAL, 0).map(drop);
    let (first, second) = (read(), read());
    match first {
        Ok(()) => assert_eq!(second, Err(Unanswered::Repeated)),
        // A request sealed by the line's owner uses up its counter, whatever its content.
        Err(Unanswered::Malformed) => assert_eq!(second, Err(Unanswered::Repeated)),
        Err(_) => assert_eq!(first, second),
    }
    first.err()
}

/// Returns the input, padded with zeros to `N` bytes; `None` if it is longer.
fn padded<const N: usize>(input: &[u8]) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    bytes.get_mut(..input.len())?.copy_from_slice(input);
    Some(bytes)
}
