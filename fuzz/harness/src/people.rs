//! Headers of gateways and answers of verifiers, by which applications learn who is behind a connection.

use whois::{Answer, Relayed};

/// Length of a header's fixed part, whose last two bytes are the length of the rest.
const HEAD: usize = 16;

/// Checks that a header is read to its end and not beyond, and that every identity in a header or an answer has a person.
pub fn relayed(input: &[u8]) {
    let mut rest = input;
    let found = Relayed::read(&mut rest);
    let taken = input.len() - rest.len();
    if let Some((head, _)) = input.split_first_chunk::<HEAD>() {
        let whole = HEAD + usize::from(u16::from_be_bytes([head[14], head[15]]));
        assert!(taken <= whole);
        assert!(found.is_err() || taken == whole);
    }
    if let Ok(Relayed { identity: Some(who), .. }) = found {
        assert!(!who.person.is_empty());
    }
    if let Ok(who) = Answer::parse(input).and_then(|answer| answer.identity()) {
        assert!(!who.person.is_empty());
    }
}
