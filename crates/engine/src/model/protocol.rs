//! IP protocols, as users write them.

use wire::packet::{ICMP, ICMPV6, TCP, UDP};

const NAMES: [(u8, &str); 4] = [(TCP, "tcp"), (UDP, "udp"), (ICMP, "icmp"), (ICMPV6, "icmpv6")];

/// Returns the name of an IP protocol, such as `tcp`, or the protocol's number if this module has no name for the
/// protocol.
pub fn name(protocol: u8) -> String {
    let known = NAMES.iter().find(|(number, _)| *number == protocol);
    known.map_or_else(|| protocol.to_string(), |(_, name)| (*name).to_owned())
}

/// Parses a protocol in the form that [`name`] returns.
///
/// # Errors
///
/// Returns a message that says how to write a protocol.
pub fn parse(text: &str) -> Result<u8, String> {
    let known = NAMES.iter().find(|(_, name)| *name == text).map(|(number, _)| *number);
    known
        .or_else(|| text.parse().ok())
        .ok_or_else(|| "a protocol must be `tcp`, `udp` or a number up to 255".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_as_they_are_written() {
        for protocol in 0..=u8::MAX {
            assert_eq!(parse(&name(protocol)), Ok(protocol));
        }
        assert!(parse("sctpp").is_err());
    }
}
