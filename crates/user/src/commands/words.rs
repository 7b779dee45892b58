//! Formats values for output.

use shell::table::span;
use wire::packet::{TCP, UDP};

/// Formats a range of ports: `tcp/22`, `udp/5000-5010`, `all`.
pub fn service(protocol: u8, first_port: u16, last_port: u16) -> String {
    let name = match protocol {
        0 => return "all".to_owned(),
        TCP => "tcp".to_owned(),
        UDP => "udp".to_owned(),
        other => format!("protocol-{other}"),
    };
    match (first_port, last_port) {
        (0, u16::MAX) => name,
        (first, last) if first == last => format!("{name}/{first}"),
        (first, last) => format!("{name}/{first}-{last}"),
    }
}

/// Formats the time from `now` until `then`, both in seconds; `over` if `then` has passed.
pub fn left(then: u64, now: u64) -> String {
    if then <= now { "over".to_owned() } else { span(then - now) }
}

/// Formats the time from `then` until `now`; a `then` of 0 means never.
pub fn ago(then: u64, now: u64) -> String {
    if then == 0 { "never".to_owned() } else { format!("{} ago", span(now.saturating_sub(then))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_of_ports_and_time() {
        let services = [service(6, 22, 22), service(17, 1, 9), service(0, 0, 65535), service(6, 0, 65535)];
        assert_eq!(services, ["tcp/22", "udp/1-9", "all", "tcp"]);
        assert_eq!([left(100, 40), left(40, 40), ago(0, 9), ago(40, 4000)], ["60 s", "over", "never", "66 min ago"]);
    }
}
