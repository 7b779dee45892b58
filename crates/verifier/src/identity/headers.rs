//! The headers by which a request names a connection of the application.

use super::Connection;
use axum::http::HeaderMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use wire::packet::{TCP, UDP};

const CLIENT: [&str; 2] = ["x-vouchsafe-client-address", "x-vouchsafe-client-port"];
const SERVER: [&str; 2] = ["x-vouchsafe-server-address", "x-vouchsafe-server-port"];
const PROTOCOL: &str = "x-vouchsafe-protocol";
const AGE: &str = "x-vouchsafe-age";

/// Reads the connection that a request is about.
///
/// # Errors
///
/// Fails with the header that is missing, occurs twice, or is malformed.
pub(super) fn connection(headers: &HeaderMap) -> Result<Connection, String> {
    let optional = |name| headers.contains_key(name).then(|| field(headers, name)).transpose();
    let protocol = match optional(PROTOCOL)? {
        None | Some("tcp") => TCP,
        Some("udp") => UDP,
        Some(_) => return Err(format!("{PROTOCOL} must be tcp or udp")),
    };
    let age = optional(AGE)?.map(|text| {
        let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        seconds.ok_or_else(|| format!("{AGE} is not a number of seconds"))
    });
    let (client, server) = (end(headers, CLIENT)?, end(headers, SERVER)?);
    Ok(Connection { client, server, protocol, age: age.transpose()? })
}

fn end(headers: &HeaderMap, [address, port]: [&'static str; 2]) -> Result<SocketAddr, String> {
    let ip: IpAddr = field(headers, address)?.parse().map_err(|_| format!("{address} is not an IP address"))?;
    let number = field(headers, port)?.parse().map_err(|_| format!("{port} is not a port"))?;
    Ok(SocketAddr::new(ip.to_canonical(), number))
}

/// Returns the value of a header that occurs exactly once. If it occurs twice, the visitor possibly sent one of the
/// two.
pub(super) fn field<'a>(headers: &'a HeaderMap, name: &'static str) -> Result<&'a str, String> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (Some(value), None) => value.to_str().map_err(|_| format!("{name} is not text")),
        (None, _) => Err(format!("{name} is missing")),
        _ => Err(format!("{name} occurs more than once")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::{HeaderName, HeaderValue};

    fn headers(fields: &[(&'static str, &'static str)]) -> HeaderMap {
        fields.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).fold(
            HeaderMap::new(),
            |mut all, (name, value)| {
                all.append(name, value);
                all
            },
        )
    }

    const WHOLE: [(&str, &str); 4] = [
        ("x-vouchsafe-client-address", "2001:db8::5"),
        ("x-vouchsafe-client-port", "4711"),
        ("x-vouchsafe-server-address", "::ffff:192.0.2.20"),
        ("x-vouchsafe-server-port", "443"),
    ];

    #[test]
    fn a_request_names_one_connection() {
        let found = connection(&headers(&WHOLE)).expect("complete");
        assert_eq!(found.client, "[2001:db8::5]:4711".parse().expect("an address"));
        assert_eq!((found.server, found.protocol), ("192.0.2.20:443".parse().expect("an address"), TCP));
        let udp = headers(&[&WHOLE[..], &[("x-vouchsafe-protocol", "udp")]].concat());
        assert_eq!(connection(&udp).expect("complete").protocol, UDP);
        let aged = |age| connection(&headers(&[&WHOLE[..], &[("x-vouchsafe-age", age)]].concat()));
        assert_eq!((found.age, aged("1.250").expect("a time").age), (None, Some(Duration::from_millis(1250))));
        for wrong in ["", "-1", "NaN", "inf", "1e99", "soon"] {
            assert!(aged(wrong).unwrap_err().contains("x-vouchsafe-age"), "{wrong}");
        }
        for left_out in 0..4 {
            let mut some = WHOLE.to_vec();
            some.remove(left_out);
            assert!(connection(&headers(&some)).unwrap_err().contains("is missing"));
        }
    }

    #[test]
    fn a_header_that_occurs_twice_is_refused() {
        for twice in WHOLE.into_iter().chain([("x-vouchsafe-protocol", "tcp")]) {
            let all = headers(&[&WHOLE[..], &[("x-vouchsafe-protocol", "tcp"), twice]].concat());
            assert!(connection(&all).unwrap_err().contains("more than once"), "{twice:?}");
        }
    }
}
