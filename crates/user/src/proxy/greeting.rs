//! A client's first message, which names its destination: in SOCKS5 or in HTTP CONNECT.

use anyhow::{Result, bail, ensure};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr};

/// Maximum length of the head of an HTTP request, in bytes.
const HEAD_MAX: usize = 16 * 1024;
const SOCKS5: u8 = 5;
const NO_AUTHENTICATION: u8 = 0;
const NO_METHOD: u8 = 0xff;

/// The destination that a client asks for.
#[derive(Debug, PartialEq, Eq)]
pub struct ProxyRequest {
    /// The destination's name or address.
    pub host: String,
    /// The destination's TCP port.
    pub port: u16,
    /// The protocol in which the client asks.
    pub form: Form,
}

/// The protocol that a client of the proxy uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// SOCKS5 (RFC 1928).
    Socks5,
    /// HTTP with the method CONNECT (RFC 9110).
    Http,
}

/// The outcome that the proxy reports to a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Connected,
    Forbidden,
    NoHost,
    Refused,
    Silence,
    Failed,
}

impl Form {
    /// Returns the answer in the client's protocol. An answer of SOCKS5 has no room for the reason `why`.
    pub fn answer(self, verdict: &Verdict, why: &str) -> Vec<u8> {
        match self {
            Self::Socks5 => {
                let code = match verdict {
                    Verdict::Connected => 0,
                    Verdict::Failed => 1,
                    Verdict::Forbidden => 2,
                    Verdict::NoHost => 4,
                    Verdict::Refused => 5,
                    Verdict::Silence => 6,
                };
                // The bound address, which no client of CONNECT uses, is zero.
                vec![SOCKS5, code, 0, 1, 0, 0, 0, 0, 0, 0]
            }
            Self::Http => {
                let status = match verdict {
                    Verdict::Connected => return b"HTTP/1.1 200 Connected\r\n\r\n".to_vec(),
                    Verdict::Forbidden => "403 Forbidden",
                    Verdict::Silence => "504 Gateway Timeout",
                    Verdict::Failed | Verdict::NoHost | Verdict::Refused => "502 Bad Gateway",
                };
                http(status, why)
            }
        }
    }
}

fn http(status: &str, why: &str) -> Vec<u8> {
    let body = format!("vouchsafe: {why}\n");
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\nConnection: \
         close\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// Reads the destination that the client asks for. Returns `None` if the client asks for something other than a
/// connection; this function has then answered the client.
///
/// # Errors
///
/// Fails if the connection breaks or the message is malformed.
pub fn read(client: &mut (impl Read + Write)) -> Result<Option<ProxyRequest>> {
    match byte(client)? {
        SOCKS5 => socks5(client),
        4 => bail!("the client speaks SOCKS4: set it to SOCKS5"),
        first => connect(client, first),
    }
}

fn socks5(client: &mut (impl Read + Write)) -> Result<Option<ProxyRequest>> {
    let mut methods = vec![0; byte(client)?.into()];
    client.read_exact(&mut methods)?;
    if !methods.contains(&NO_AUTHENTICATION) {
        client.write_all(&[SOCKS5, NO_METHOD])?;
        bail!("the client does not offer SOCKS without authentication, and this proxy supports nothing else");
    }
    client.write_all(&[SOCKS5, NO_AUTHENTICATION])?;
    let mut head = [0; 4];
    client.read_exact(&mut head)?;
    let [version, command, _, kind] = head;
    ensure!(version == SOCKS5, "the client's request is malformed");
    let host = match kind {
        1 => Ipv4Addr::from(bytes::<4>(client)?).to_string(),
        4 => Ipv6Addr::from(bytes::<16>(client)?).to_string(),
        3 => {
            let mut name = vec![0; byte(client)?.into()];
            client.read_exact(&mut name)?;
            String::from_utf8(name)?
        }
        _ => {
            client.write_all(&[SOCKS5, 8, 0, 1, 0, 0, 0, 0, 0, 0])?;
            bail!("the client's request has an unknown kind of address: {kind}");
        }
    };
    let port = u16::from_be_bytes(bytes(client)?);
    if command != 1 {
        client.write_all(&[SOCKS5, 7, 0, 1, 0, 0, 0, 0, 0, 0])?;
        return Ok(None);
    }
    Ok(Some(ProxyRequest { host, port, form: Form::Socks5 }))
}

fn connect(client: &mut (impl Read + Write), first: u8) -> Result<Option<ProxyRequest>> {
    let mut head = vec![first];
    // Read byte by byte, because the bytes after the head belong to the stream.
    while !head.ends_with(b"\r\n\r\n") {
        ensure!(head.len() < HEAD_MAX, "the client's request is too long");
        head.push(byte(client)?);
    }
    let text = String::from_utf8_lossy(&head);
    let mut words = text.lines().next().unwrap_or_default().split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    if method != "CONNECT" {
        let why = "this proxy accepts only the method CONNECT: set it as the proxy for https, or use SOCKS5, which \
            also works for http";
        client.write_all(&http("405 Method Not Allowed", why))?;
        return Ok(None);
    }
    let Some((host, port)) = split(target) else {
        client.write_all(&http("400 Bad Request", "CONNECT needs HOST:PORT"))?;
        return Ok(None);
    };
    Ok(Some(ProxyRequest { host, port, form: Form::Http }))
}

fn split(target: &str) -> Option<(String, u16)> {
    let (host, port) = target.rsplit_once(':')?;
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    (!host.is_empty()).then_some((host.to_owned(), port.parse().ok()?))
}

fn byte(client: &mut impl Read) -> Result<u8> {
    Ok(bytes::<1>(client)?[0])
}

fn bytes<const N: usize>(client: &mut impl Read) -> Result<[u8; N]> {
    let mut bytes = [0; N];
    client.read_exact(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Client<'a> {
        says: &'a [u8],
        hears: Vec<u8>,
    }

    impl Read for Client<'_> {
        fn read(&mut self, room: &mut [u8]) -> std::io::Result<usize> {
            self.says.read(room)
        }
    }

    impl Write for Client<'_> {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.hears.write(bytes)
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn asked(says: &[u8]) -> (Option<ProxyRequest>, Vec<u8>, usize) {
        let mut client = Client { says, hears: Vec::new() };
        let asked = read(&mut client).ok().flatten();
        (asked, client.hears, client.says.len())
    }

    #[test]
    fn both_protocols_say_where_to_go_and_keep_what_follows() {
        let wanted = |host: &str, port, form| Some(ProxyRequest { host: host.to_owned(), port, form });
        let name = b"\x05\x01\x00\x05\x01\x00\x03\x04wiki\x01\xbbTLS";
        assert_eq!(asked(name), (wanted("wiki", 443, Form::Socks5), vec![5, 0], 3));
        let four = b"\x05\x02\x02\x00\x05\x01\x00\x01\xc0\x00\x02\x01\x00\x16";
        assert_eq!(asked(four).0, wanted("192.0.2.1", 22, Form::Socks5));
        let six = [&b"\x05\x01\x00\x05\x01\x00\x04"[..], &[0; 15], &[1, 0, 22]].concat();
        assert_eq!(asked(&six).0, wanted("::1", 22, Form::Socks5));
        let http = b"CONNECT [2001:db8::1]:443 HTTP/1.1\r\nHost: x\r\n\r\nTLS";
        assert_eq!(asked(http), (wanted("2001:db8::1", 443, Form::Http), Vec::new(), 3));
    }

    #[test]
    fn other_requests_are_answered_in_their_protocol() {
        assert_eq!(asked(b"\x05\x01\x02").1, [5, 0xff], "only with a password");
        assert!(
            asked(b"\x05\x01\x00\x05\x03\x00\x01\x7f\x00\x00\x01\x00\x35").1.ends_with(&[5, 7, 0, 1, 0, 0, 0, 0, 0, 0])
        );
        for (request, status) in [
            ("GET http://x/ HTTP/1.1\r\n\r\n", "HTTP/1.1 405 "),
            ("CONNECT x HTTP/1.1\r\n\r\n", "HTTP/1.1 400 "),
            ("CONNECT :1 HTTP/1.1\r\n\r\n", "HTTP/1.1 400 "),
        ] {
            let (asked, hears, _) = asked(request.as_bytes());
            assert!(asked.is_none() && hears.starts_with(status.as_bytes()), "{request}");
        }
        assert!(asked(&[b'x'; 2 * HEAD_MAX]).0.is_none());
    }
}
