//! The header that a gateway with `proxy_protocol` puts before a connection: the PROXY protocol, version 2, with the
//! person in TLVs.

use crate::error::Error;
use crate::identity::Identity;
use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
/// Version 2; a connection that is relayed for a client.
const VERSION_AND_COMMAND: u8 = 0x21;
const TCP4: u8 = 0x11;
const TCP6: u8 = 0x21;
/// Types of the TLVs that are read: person, device, rule, receiver, grant, unique id.
const KINDS: [u8; 6] = [0xe0, 0xe1, 0xe2, 0xe3, 0xe4, 0x05];
/// Longest body of a header that is read. A gateway's header is shorter than 1500 bytes.
const BODY_MAX: usize = 2048;
/// Longest time to wait for the header. A gateway sends it at once.
const PATIENCE: Duration = Duration::from_secs(5);

/// A connection that a gateway relays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relayed {
    /// The client's address and port.
    pub client: SocketAddr,
    /// The address and port to which the client connected.
    pub server: SocketAddr,
    /// The person behind the connection; `None` for a stranger at a service that everybody may reach.
    pub identity: Option<Identity>,
    /// The connection's unique id, for logs.
    pub unique: Option<String>,
}

impl Relayed {
    /// Reads the header of a connection that the application has just accepted. `gateways` are the addresses from which
    /// the gateways connect. The next byte on the connection is the first byte from the client.
    ///
    /// The socket has to be in blocking mode.
    ///
    /// # Errors
    ///
    /// Fails if the connection comes from elsewhere, or does not begin with a gateway's header within five seconds. The
    /// application then has to close the connection, and must not trust anything that it reads from it.
    pub fn from_gateway(stream: &TcpStream, gateways: &[IpAddr]) -> Result<Self, Error> {
        let peer = stream.peer_addr().map_err(Error::Socket)?.ip().to_canonical();
        if !gateways.iter().any(|gateway| gateway.to_canonical() == peer) {
            return Err(Error::NotAGateway(peer));
        }
        let patience = stream.read_timeout().map_err(Error::Socket)?;
        let relayed = Self::read(&mut Timed { stream, until: Instant::now() + PATIENCE });
        stream.set_read_timeout(patience).map_err(Error::Socket)?;
        relayed
    }

    /// Reads a header, and no byte beyond it. The caller has to make sure that the bytes come from a gateway, and that
    /// the source does not block forever. [`Self::from_gateway`] makes sure of both.
    ///
    /// # Errors
    ///
    /// Fails if the bytes are not a header of a gateway.
    pub fn read(source: &mut impl Read) -> Result<Self, Error> {
        let mut head = [0; 16];
        source.read_exact(&mut head).map_err(Error::Socket)?;
        let (signature, rest) = head.split_at(SIGNATURE.len());
        if signature != SIGNATURE || rest[0] != VERSION_AND_COMMAND {
            return Err(Error::Malformed("the connection does not begin with a header for a relayed connection"));
        }
        let length = usize::from(u16::from_be_bytes([rest[2], rest[3]]));
        if length > BODY_MAX {
            return Err(Error::Malformed("the header is longer than any that a gateway sends"));
        }
        let mut body = [0; BODY_MAX];
        source.read_exact(&mut body[..length]).map_err(Error::Socket)?;
        parse(rest[1], &body[..length])
    }
}

fn parse(family: u8, body: &[u8]) -> Result<Relayed, Error> {
    let ends = match family {
        TCP4 => ends::<4>(body),
        TCP6 => ends::<16>(body),
        _ => None,
    };
    let ([client, server], mut rest) = ends.ok_or(Error::Malformed("the header does not name a TCP connection"))?;
    let mut values = [const { None::<String> }; KINDS.len()];
    while let Some((&[kind, high, low], tail)) = rest.split_first_chunk::<3>() {
        let value = tail.split_at_checked(usize::from(u16::from_be_bytes([high, low])));
        let (value, tail) = value.ok_or(Error::Malformed("a value is longer than the header"))?;
        rest = tail;
        // The protocol has readers skip types that they do not know.
        let Some(at) = KINDS.iter().position(|known| *known == kind) else { continue };
        let text = str::from_utf8(value).map_err(|_| Error::Malformed("a value is not UTF-8"))?;
        if values[at].replace(text.to_owned()).is_some() {
            return Err(Error::Malformed("a value occurs twice"));
        }
    }
    if !rest.is_empty() {
        return Err(Error::Malformed("the header ends within a value"));
    }
    let [person, device, rule, receiver, grant, unique] = values;
    let identity = match (person, device, rule, receiver, grant) {
        (None, None, None, None, None) => None,
        (Some(person), Some(device), Some(rule), Some(receiver), Some(grant)) if !person.is_empty() => {
            Some(Identity { person, device, receiver, rule, grant })
        }
        _ => return Err(Error::Malformed("the header lacks some of the fields that describe the person")),
    };
    Ok(Relayed { client, server, identity, unique })
}

/// Returns the two ends of the connection, and the bytes after them.
fn ends<const LENGTH: usize>(body: &[u8]) -> Option<([SocketAddr; 2], &[u8])>
where
    IpAddr: From<[u8; LENGTH]>,
{
    let (client, rest) = body.split_first_chunk::<LENGTH>()?;
    let (server, rest) = rest.split_first_chunk::<LENGTH>()?;
    let (client_port, rest) = rest.split_first_chunk::<2>()?;
    let (server_port, rest) = rest.split_first_chunk::<2>()?;
    let end = |address: &[u8; LENGTH], port: &[u8; 2]| {
        SocketAddr::new(IpAddr::from(*address).to_canonical(), u16::from_be_bytes(*port))
    };
    Some(([end(client, client_port), end(server, server_port)], rest))
}

/// A stream that is read until a certain time.
struct Timed<'a> {
    stream: &'a TcpStream,
    until: Instant,
}

impl Read for Timed<'_> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(left))?;
        let mut stream = self.stream;
        stream.read(room)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::TcpListener;

    /// A header as a gateway writes it.
    const WHOLE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x00\x55\xc0\x00\x02\x09\xc0\x00\x02\x14\x12\x34\x00\x50\
        \xe0\x00\x02al\xe1\x00\x02pc\xe2\x00\x05staff\xe3\x00\x03web\xe4\x00\x1000000000000000ff\
        \x05\x00\x1bal/00000000000000ff/10-1234";

    /// Returns a header with these TLVs after the addresses of [`WHOLE`].
    fn with(tlvs: &[u8]) -> Vec<u8> {
        let mut header = WHOLE[..28].to_vec();
        header[14..16].copy_from_slice(&((tlvs.len() + 12) as u16).to_be_bytes());
        header.extend(tlvs);
        header
    }

    fn read(mut bytes: &[u8]) -> Result<Relayed, String> {
        Relayed::read(&mut bytes).map_err(|error| error.to_string())
    }

    #[test]
    fn a_gateways_header_names_client_and_person() {
        let mut stream = [WHOLE, b"GET /"].concat();
        let mut source = &stream[..];
        let found = Relayed::read(&mut source).unwrap();
        assert_eq!(source, b"GET /", "bytes of the application were read");
        assert_eq!(found.client, "192.0.2.9:4660".parse().unwrap());
        assert_eq!(found.server, "192.0.2.20:80".parse().unwrap());
        let [person, device, receiver, rule, grant] =
            ["al", "pc", "web", "staff", "00000000000000ff"].map(str::to_owned);
        assert_eq!(found.identity, Some(Identity { person, device, receiver, rule, grant }));
        assert_eq!(found.unique.as_deref(), Some("al/00000000000000ff/10-1234"));
        // IPv6, and IPv4 in it.
        stream = b"\r\n\r\n\0\r\nQUIT\n\x21\x21\x00\x24".to_vec();
        stream.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 9]);
        stream.extend([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x20, 0, 1, 0, 80]);
        let found = read(&stream).unwrap();
        assert_eq!(found.client, "192.0.2.9:1".parse().unwrap());
        assert_eq!((found.server, found.identity), ("[2001:db8::20]:80".parse().unwrap(), None));
    }

    #[test]
    fn a_strangers_header_names_nobody_and_other_values_are_skipped() {
        let stranger = read(&with(b"")).unwrap();
        assert_eq!((stranger.identity, stranger.unique), (None, None));
        let skipped = read(&with(b"\x04\x00\x02\xff\xff\xee\x00\x00")).unwrap();
        assert_eq!(skipped.identity, None);
    }

    #[test]
    fn a_header_that_is_not_a_gateways_names_nobody() {
        for length in 0..WHOLE.len() {
            assert!(read(&WHOLE[..length]).is_err(), "{length} bytes");
        }
        let changed = |at: usize, byte: u8| {
            let mut header = WHOLE.to_vec();
            header[at] = byte;
            header
        };
        // Another signature, version, command (the sender's own connection), or family; lengths that do not fit.
        for (at, byte) in [(0, b'P'), (12, 0x11), (12, 0x20), (13, 0), (13, 0x12), (13, 0x31), (14, 0xff), (15, 0x54)] {
            assert!(read(&changed(at, byte)).is_err(), "byte {at} is {byte}");
        }
        assert!(read(b"PROXY TCP4 192.0.2.9 192.0.2.20 4660 80\r\n").is_err(), "version 1");
        for tlvs in [
            &b"\xe0\x00\x02al"[..],
            b"\xe0\x00\x00\xe1\x00\x00\xe2\x00\x00\xe3\x00\x00\xe4\x00\x00",
            b"\xe0\x00\x01a\xe0\x00\x01b\xe1\x00\x00\xe2\x00\x00\xe3\x00\x00\xe4\x00\x00",
            b"\xe0\x00\x01\xff\xe1\x00\x00\xe2\x00\x00\xe3\x00\x00\xe4\x00\x00",
            b"\xe0\x00\x03al",
            b"\xe0\x00",
        ] {
            assert!(read(&with(tlvs)).is_err(), "{tlvs:?}");
        }
        assert!(read(&with(&[0; 2048])).is_err(), "a header longer than a gateway's");
    }

    #[test]
    fn only_gateways_name_people() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut gateway = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        gateway.write_all(WHOLE).unwrap();
        let (stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(77))).unwrap();
        let elsewhere = Relayed::from_gateway(&stream, &["192.0.2.254".parse().unwrap()]);
        assert!(matches!(elsewhere, Err(Error::NotAGateway(_))), "{elsewhere:?}");
        let here = Relayed::from_gateway(&stream, &["::ffff:127.0.0.1".parse().unwrap()]).unwrap();
        assert_eq!(here.identity.map(|who| who.person).as_deref(), Some("al"));
        assert_eq!(stream.read_timeout().unwrap(), Some(Duration::from_secs(77)));
    }
}
