//! The verifier's answer over HTTP.

use crate::error::Error;
use crate::identity::Identity;

/// An answer of the verifier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The HTTP status: 200 if the verifier answers the question.
    pub status: u16,
    /// The body: the reason, if the status is not 200.
    pub body: String,
    /// The header fields: names in lower case, and values.
    fields: Vec<(String, String)>,
}

impl Answer {
    /// Parses an answer that has arrived whole.
    ///
    /// # Errors
    ///
    /// Fails if the bytes are not an answer of HTTP/1.
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        const END: &[u8] = b"\r\n\r\n";
        let end = bytes.windows(END.len()).position(|window| window == END);
        let end = end.ok_or(Error::Malformed("the verifier's answer is cut off"))?;
        let head = str::from_utf8(&bytes[..end]).map_err(|_| Error::Malformed("the answer's head is not text"))?;
        let mut lines = head.split("\r\n");
        let mut words = lines.next().unwrap_or_default().split(' ');
        let (version, status) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let is_status = status.len() == 3 && status.bytes().all(|byte| byte.is_ascii_digit());
        let status = status.parse().ok().filter(|_| version.starts_with("HTTP/1.") && is_status);
        let status = status.ok_or(Error::Malformed("the answer is not one of HTTP"))?;
        let field = |line: &str| -> Option<(String, String)> {
            let (name, value) = line.split_once(':')?;
            Some((name.to_ascii_lowercase(), value.trim_matches([' ', '\t']).to_owned()))
        };
        let fields = lines.map(field).collect::<Option<_>>().ok_or(Error::Malformed("a line without a colon"))?;
        let body = String::from_utf8_lossy(&bytes[end + END.len()..]).into_owned();
        Ok(Self { status, body, fields })
    }

    /// Returns the identity in a positive answer (status 200) to the question who is behind a connection.
    ///
    /// # Errors
    ///
    /// Fails if a field is missing, occurs twice, or is not text, and if the person is empty.
    pub fn identity(&self) -> Result<Identity, Error> {
        let identity = Identity {
            person: self.field("x-vouchsafe-person")?,
            device: self.field("x-vouchsafe-device")?,
            receiver: self.field("x-vouchsafe-receiver")?,
            rule: self.field("x-vouchsafe-rule")?,
            grant: self.field("x-vouchsafe-grant")?,
        };
        if identity.person.is_empty() {
            return Err(Error::Malformed("the answer names nobody"));
        }
        Ok(identity)
    }

    /// Returns the person's score in a positive answer (status 200) to a complaint.
    ///
    /// # Errors
    ///
    /// Fails if there is no score.
    pub fn score(&self) -> Result<u32, Error> {
        self.field("x-vouchsafe-score")?.parse().map_err(|_| Error::Malformed("the answer has no score"))
    }

    /// Returns a field that occurs exactly once.
    fn field(&self, name: &str) -> Result<String, Error> {
        let mut values = self.fields.iter().filter(|(other, _)| other == name);
        let (Some((_, value)), None) = (values.next(), values.next()) else {
            return Err(Error::Malformed("a field of the answer is missing, or occurs twice"));
        };
        decoded(value).ok_or(Error::Malformed("a field of the answer is not encoded text"))
    }
}

/// Decodes a header's value, in which `%XX` stands for a byte.
fn decoded(text: &str) -> Option<String> {
    let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
    while let [first, tail @ ..] = rest {
        rest = tail;
        let mut byte = *first;
        if byte == b'%' {
            let ([high, low], tail) = rest.split_first_chunk::<2>()?;
            let digit = |byte: &u8| char::from(*byte).to_digit(16);
            byte = u8::try_from(digit(high)? * 16 + digit(low)?).ok()?;
            rest = tail;
        }
        bytes.push(byte);
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &str = "HTTP/1.1 200 OK\r\nX-Vouchsafe-Person: alice\r\nx-vouchsafe-device: laptop\r\n\
        x-vouchsafe-receiver: git\r\nx-vouchsafe-rule: Z%C3%BCrich%0D%0A100 %25\r\n\
        x-vouchsafe-grant: 00000000000000ff\r\ncontent-length: 0\r\n\r\n";

    fn identity(text: &str) -> Result<Identity, String> {
        Answer::parse(text.as_bytes()).and_then(|answer| answer.identity()).map_err(|error| error.to_string())
    }

    #[test]
    fn an_answer_names_a_person() {
        let found = identity(WHOLE).unwrap();
        assert_eq!((found.person.as_str(), found.device.as_str()), ("alice", "laptop"));
        assert_eq!(found.rule, "Zürich\r\n100 %");
        assert_eq!((found.receiver.as_str(), found.grant.as_str()), ("git", "00000000000000ff"));
    }

    #[test]
    fn what_does_not_name_one_person_is_refused() {
        for (from, to) in [
            ("X-Vouchsafe-Person: alice", "X-Vouchsafe-Person:"),
            ("X-Vouchsafe-Person: alice", "X-Vouchsafe-Person: alice\r\nx-vouchsafe-person: bob"),
            ("X-Vouchsafe-Person: alice\r\n", ""),
            ("x-vouchsafe-device: laptop", "x-vouchsafe-device laptop"),
            ("100 %25", "100 %2"),
            ("%C3%BC", "%C3"),
            ("%25", "%+5"),
            ("HTTP/1.1 200", "HTTP/1.1 +20"),
            ("HTTP/1.1", "SMTP"),
            ("\r\n\r\n", "\r\n"),
        ] {
            assert!(WHOLE.contains(from));
            assert!(identity(&WHOLE.replace(from, to)).is_err(), "{to}");
        }
    }

    #[test]
    fn a_refusal_has_its_reason() {
        let refused = Answer::parse(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 3\r\n\r\nno\n").unwrap();
        assert_eq!((refused.status, refused.body.as_str()), (403, "no\n"));
        let scored = Answer::parse(b"HTTP/1.1 200 OK\r\nx-vouchsafe-score: 80\r\n\r\n").unwrap();
        assert_eq!(scored.score().unwrap(), 80);
        assert!(refused.score().is_err());
    }
}
