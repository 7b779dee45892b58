//! A program that seals its own datagrams (decision 52). It needs no privileges, no agent and no TUN device. It
//! requests the grants for a service and for the tunnel in front of that service, opens the tunnel itself, sends a text
//! through it to an echo service over UDP, and prints the echo.
//!
//! ```sh
//! cargo run -p lab --example seals_itself -- URL CA.pem PERSON PASSWORD ADDRESS:PORT TEXT
//! ```

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use client::{Authority, convert};
use engine::model::{Grant, GrantRequest, Secret, Treatment as Demand};
use engine::tunnel::{Chance, Initiator, Packet, Received, Terms};
use seal::Batch;
use wire::seal::{Suites, Treatment};
use wire::{Destination, GrantHeader, GrantKey, Token, tail};

/// The number of UDP.
const UDP: u8 = 17;
/// Source address of the packets inside the tunnel. Any address will do, because the verifier replaces it by an inside
/// address that it gives the client.
const INSIDE: Ipv4Addr = Ipv4Addr::new(192, 0, 0, 8);
const PORT: u16 = 40_000;
/// Time limit for an answer, and interval between attempts.
const PATIENCE: Duration = Duration::from_secs(10);
const AGAIN: Duration = Duration::from_millis(200);

#[allow(dead_code, reason = "a test includes this file")]
fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, ca, person, password, to, text] = &arguments[..] else {
        bail!("usage: seals_itself URL CA.pem PERSON PASSWORD ADDRESS:PORT TEXT");
    };
    let ca = std::fs::read(ca).with_context(|| ca.clone())?;
    let answer = talk((url, &ca), (person, password), to.parse().context("ADDRESS:PORT")?, text, None)?;
    println!("{answer}");
    Ok(())
}

struct Random;

impl Chance for Random {
    fn bytes(&mut self) -> [u8; 32] {
        let mut bytes = [0; 32];
        // A program without random numbers must not seal anything.
        std::fs::File::open("/dev/urandom")
            .and_then(|mut file| std::io::Read::read_exact(&mut file, &mut bytes))
            .expect("random numbers");
        bytes
    }
}

/// Sends a text to an echo service through a tunnel that this program opens itself, and returns the answer. If `weaker`
/// is set, the datagrams get the treatment `weaker` in place of the one that the rule demands. A test can then see that
/// the verifier drops them.
///
/// # Errors
/// Fails if the person is not allowed to use the service or the tunnel, or if no answer arrives.
pub fn talk(
    (url, ca): (&str, &[u8]),
    (person, password): (&str, &str),
    to: SocketAddrV4,
    text: &str,
    weaker: Option<Treatment>,
) -> Result<String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (service, tunnel, at) = runtime.block_on(grants((url, ca), (person, password), to))?;
    let treatment = match service.sealing.treatment {
        Demand::Authenticate => Treatment::Authenticate,
        // More than the rule demands is always allowed.
        Demand::Encrypt | Demand::None => Treatment::Encrypt,
    };
    let treatment = weaker.unwrap_or(treatment);
    let (header, key) = secret(&service)?;
    let (tunnel_header, tunnel_key) = secret(&tunnel)?;
    let way = Destination { address: at.ip(), protocol: UDP, port: at.port() };
    let token = Token::new(tunnel_header, &tunnel_key, unix(), nonce(), &way);
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.connect(at)?;
    socket.set_read_timeout(Some(AGAIN))?;
    // The tunnel's UDP flow needs a token like every other.
    socket.send(&tail::block(&token.encode()))?;
    let mut initiator = Initiator::new(Terms {
        grant: tunnel_header,
        key: tunnel_key,
        to: way,
        forward: service.sealing.forward_secrecy,
        suites: (Suites::ALL, seal::suites::helped()),
        rekey_after: u64::from(service.sealing.rekey) * 1000,
        room: 1200,
    });
    let inner = Destination { address: to.ip().to_owned().into(), protocol: UDP, port: to.port() };
    let (begun, mut buffer) = (Instant::now(), [0; 2048]);
    while begun.elapsed() < PATIENCE {
        let now = (begun.elapsed().as_millis() as u64 + 1, unix());
        // Early records are always encrypted. A packet with a weaker treatment has to wait for the tunnel.
        if weaker.is_none() || initiator.is_open(now.0) {
            // Until the verifier knows the flow, each packet of it carries a token of the service's grant.
            let token = Token::new(header, &key, unix(), nonce(), &inner);
            let packet = datagram(to, text, &tail::block(&token.encode()));
            let mut batch = Batch::default();
            let packet =
                Packet { treatment, suites: service.sealing.suites, lane: 0, partial: false, parts: &[&packet] };
            if initiator.seal(&packet, now, &mut Random, &mut batch).is_ok() {
                for run in batch.runs() {
                    run.bytes.chunks(run.segment).try_for_each(|datagram| socket.send(datagram).map(drop))?;
                }
            }
        } else {
            initiator.want(true);
        }
        for datagram in initiator.poll(now, &mut Random) {
            socket.send(&datagram)?;
        }
        while let Ok(size) = socket.recv(&mut buffer) {
            let now = (begun.elapsed().as_millis() as u64 + 1, unix());
            if let Ok(Received::Packet { packet, .. }) = initiator.receive(&mut buffer[..size], now, &mut Random)
                && let Some(answer) = packet.get(28..)
                && packet.get(20..22) == Some(&to.port().to_be_bytes())
            {
                return String::from_utf8(answer.to_vec()).context("the answer is not UTF-8");
            }
        }
    }
    bail!("no answer from {to} within {PATIENCE:?}")
}

/// Logs in, and gets the grants for a service and for the tunnel in front of it, with the tunnel's address.
async fn grants(
    (url, ca): (&str, &[u8]),
    (person, password): (&str, &str),
    to: SocketAddrV4,
) -> Result<(Grant, Grant, SocketAddr)> {
    let authority = Authority::new(url, Some(ca))?;
    let login = api::Login {
        person: person.to_owned(),
        password: password.to_owned(),
        totp: None,
        device: "seals-itself".to_owned(),
    };
    let session = authority.login(&login).await?;
    let authority = authority.with_token(&session.token);
    let ask = async |to: SocketAddr| -> Result<Grant> {
        let to = Destination { address: to.ip(), protocol: UDP, port: to.port() };
        let answer = authority.grant(&convert::grant_request(&GrantRequest { to, consented: true })).await?;
        convert::grant(&answer).map_err(|why| anyhow::anyhow!("cannot use the grant: {why}"))
    };
    let service = ask(to.into()).await?;
    let at = service.tunnels.iter().copied().find(SocketAddr::is_ipv4).context("there is no tunnel to this service")?;
    Ok((service, ask(at).await?, at))
}

fn secret(grant: &Grant) -> Result<(GrantHeader, GrantKey)> {
    match &grant.secret {
        Secret::Grant(header, key) => Ok((*header, key.clone())),
        Secret::Pair(..) => bail!("a grant of this suite is for first packets in the shim only"),
    }
}

/// Builds an IPv4 packet with a datagram: the text, and a token behind it.
fn datagram(to: SocketAddrV4, text: &str, block: &[u8]) -> Vec<u8> {
    let payload = [text.as_bytes(), block].concat();
    let length = (28 + payload.len()) as u16;
    let mut packet = vec![0x45, 0];
    packet.extend(length.to_be_bytes());
    packet.extend([0, 0, 0x40, 0, 64, UDP, 0, 0]);
    packet.extend(INSIDE.octets());
    packet.extend(to.ip().octets());
    let sum: u32 = packet.as_chunks::<2>().0.iter().map(|pair| u32::from(u16::from_be_bytes(*pair))).sum();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet.extend(PORT.to_be_bytes());
    packet.extend(to.port().to_be_bytes());
    packet.extend((length - 20).to_be_bytes());
    // No checksum, which UDP over IPv4 permits: the record's tag protects the packet.
    packet.extend([0, 0]);
    packet.extend(payload);
    packet
}

fn unix() -> u32 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs() as u32)
}

fn nonce() -> u32 {
    let [a, b, c, d, ..] = Random.bytes();
    u32::from_be_bytes([a, b, c, d])
}
