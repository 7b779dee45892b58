//! Answers of resolvers to the agent, genuine or spoofed.

use engine::discovery::message::{self, Overheard};
use engine::discovery::{Answer, Domain, Record};

/// Checks that parsing an answer never panics, that a record found in the answer stays the same when it is written as
/// text and parsed again, and that servers found in the answer have ports.
pub fn answer(input: &[u8]) {
    let Ok(domain) = "example.org".parse::<Domain>() else { return };
    let id = input.first_chunk().map_or(0, |id| u16::from_be_bytes(*id));
    if let Some(Answer::Record(record, _)) = message::answer(&domain, id, input) {
        same(&record);
    }
    if let Some(Answer::Record(servers, _)) = message::servers_answer(&domain, id, input) {
        assert!(!servers.is_empty() && servers.iter().all(|server| server.port > 0));
    }
    if let Some(Overheard { domain, record, .. }) = message::overhear(input) {
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
