//! What resolvers, and those who speak in their name, say to the agent.

use engine::discovery::message::{self, Heard};
use engine::discovery::{Domain, Record, Told};

/// An answer is read without a fault, whatever it is; what it says of a domain is in bounds, and written as it was read.
pub fn answer(input: &[u8]) {
    let Ok(domain) = "example.org".parse::<Domain>() else { return };
    let id = input.first_chunk().map_or(0, |id| u16::from_be_bytes(*id));
    if let Some(Told::Record(record, _)) = message::answer(&domain, id, input) {
        same(&record);
    }
    if let Some(Heard { domain, record, .. }) = message::overhear(input) {
        assert!(!domain.is_top());
        assert_eq!(domain.as_str().parse(), Ok(domain.clone()));
        same(&record);
    }
    if let Some(Ok(record)) = Record::read(input) {
        same(&record);
    }
}

fn same(record: &Record) {
    let text = record.to_string();
    assert_eq!(Record::read(text.as_bytes()).and_then(Result::ok).as_ref(), Some(record), "{text}");
    assert_eq!(record.strings().concat(), text);
}
