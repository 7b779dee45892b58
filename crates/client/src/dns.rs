//! Queries name servers for a domain's record, and for the servers of an authority: by UDP with an unpredictable source
//! port and id, and by TCP if the answer does not fit. The answer is only a hint, even if it comes from a trusted name
//! server.

use anyhow::{Context, Result, ensure};
use engine::discovery::message::{self, DNS_PORT, LONGEST};
use engine::discovery::{Answer, Domain, Server};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::{Instant, timeout, timeout_at};

/// Maximum time for one query of a server by UDP, and by TCP. Each server is queried `TRIES` times.
const PATIENCE: Duration = Duration::from_secs(2);
const TRIES: usize = 2;
/// Maximum number of servers that are queried (as in resolv.conf(5)).
const SERVERS_MAX: usize = 3;
const RESOLV_CONF: &str = "/etc/resolv.conf";

/// Queries these name servers for a domain's record, and returns the first usable answer. If `servers` is empty, queries
/// the name servers in `/etc/resolv.conf`.
pub async fn ask(domain: &Domain, servers: &[SocketAddr]) -> Answer {
    first(&Lookup { domain, question: message::question, answer: message::answer }, servers).await
}

/// Queries these name servers for the servers of the authority that has the name `authority`, and returns the first
/// usable answer. If `servers` is empty, queries the name servers in `/etc/resolv.conf`.
pub async fn find_servers(authority: &Domain, servers: &[SocketAddr]) -> Answer<Vec<Server>> {
    let (question, answer) = (message::servers_question, message::servers_answer);
    first(&Lookup { domain: authority, question, answer }, servers).await
}

/// A query for records of a domain.
struct Lookup<'a, R> {
    domain: &'a Domain,
    /// Builds the query with this id.
    question: fn(&Domain, u16) -> Option<Vec<u8>>,
    /// Reads the answer to the query with this id.
    answer: fn(&Domain, u16, &[u8]) -> Option<Answer<R>>,
}

async fn first<R>(lookup: &Lookup<'_, R>, servers: &[SocketAddr]) -> Answer<R> {
    let own = if servers.is_empty() { configured(Path::new(RESOLV_CONF)) } else { servers.to_vec() };
    let mut failure = format!("{RESOLV_CONF} names no name server");
    for _ in 0..TRIES {
        for server in own.iter().take(SERVERS_MAX) {
            match lookup.at(*server).await {
                Ok(Answer::Failed(why)) => failure = format!("{server}: {why}"),
                Ok(answer) => return answer,
                Err(error) => failure = format!("{server}: {error:#}"),
            }
        }
    }
    Answer::Failed(failure)
}

/// Returns the servers in a file in the format of resolv.conf(5).
fn configured(file: &Path) -> Vec<SocketAddr> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let words = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let named = words.filter(|words| words.first() == Some(&"nameserver"));
    let addresses = named.filter_map(|words| words.get(1)?.parse::<IpAddr>().ok());
    addresses.map(|address| SocketAddr::new(address, DNS_PORT)).collect()
}

impl<R> Lookup<'_, R> {
    async fn at(&self, server: SocketAddr) -> Result<Answer<R>> {
        let mut id = [0; 2];
        getrandom::fill(&mut id).map_err(|error| anyhow::anyhow!("cannot get random numbers: {error}"))?;
        let id = u16::from_be_bytes(id);
        let question = (self.question)(self.domain, id).context("the name is too long for a query")?;
        match self.by_udp(id, &question, server).await? {
            Answer::Truncated => timeout(PATIENCE, self.by_tcp(id, &question, server)).await.with_context(no_answer)?,
            answer => Ok(answer),
        }
    }

    async fn by_udp(&self, id: u16, question: &[u8], server: SocketAddr) -> Result<Answer<R>> {
        let any: IpAddr = if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        // Each query uses a port of its own, on a connected socket, so that the kernel accepts packets from the server
        // only.
        let socket = UdpSocket::bind((any, 0)).await?;
        socket.connect(server).await?;
        socket.send(question).await?;
        let (deadline, mut bytes) = (Instant::now() + PATIENCE, vec![0; LONGEST]);
        loop {
            let size = timeout_at(deadline, socket.recv(&mut bytes)).await.with_context(no_answer)??;
            if let Some(answer) = (self.answer)(self.domain, id, &bytes[..size]) {
                return Ok(answer);
            }
        }
    }

    async fn by_tcp(&self, id: u16, question: &[u8], server: SocketAddr) -> Result<Answer<R>> {
        let mut stream = TcpStream::connect(server).await?;
        stream.write_all(&[&u16::try_from(question.len())?.to_be_bytes()[..], question].concat()).await?;
        let size = usize::from(stream.read_u16().await?);
        ensure!(size <= LONGEST, "the answer is {size} bytes long; the maximum is {LONGEST}");
        let mut bytes = vec![0; size];
        stream.read_exact(&mut bytes).await?;
        (self.answer)(self.domain, id, &bytes).context("the answer belongs to another question")
    }
}

fn no_answer() -> String {
    format!("no answer within {PATIENCE:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_servers_are_read_from_the_systems_file() {
        let file = std::env::temp_dir().join(format!("vouchsafe-resolv-{}", std::process::id()));
        std::fs::write(
            &file,
            "# nameserver 192.0.2.9\nsearch a\nnameserver 192.0.2.1\n nameserver\t2001:db8::1 x\nnameserver y\n",
        )
        .expect("a file");
        let servers = configured(&file).iter().map(ToString::to_string).collect::<Vec<_>>();
        std::fs::remove_file(&file).expect("it is there");
        assert_eq!(servers, ["192.0.2.1:53", "[2001:db8::1]:53"]);
        assert!(configured(&file).is_empty());
    }

    #[tokio::test]
    async fn what_answers_another_question_is_not_listened_to() {
        let server = UdpSocket::bind("127.0.0.1:0").await.expect("a socket");
        let address = server.local_addr().expect("an address");
        let domain: Domain = "example.org".parse().expect("a domain");
        let lookup = tokio::spawn(async move { ask(&"example.org".parse().expect("a domain"), &[address]).await });
        let mut bytes = [0; 512];
        let (size, from) = server.recv_from(&mut bytes).await.expect("a question");
        let id = u16::from_be_bytes([bytes[0], bytes[1]]);
        // The answer is the query itself with the bits for "response" and "no such name" set.
        let mut answer = bytes[..size].to_vec();
        (answer[2], answer[3]) = (0x81, 0x83);
        let mut forged = message::question(&domain, id.wrapping_add(1)).expect("short");
        (forged[2], forged[3]) = (0x81, 0x80);
        for bytes in [&b"noise"[..], &forged, &answer] {
            server.send_to(bytes, from).await.expect("sent");
        }
        assert_eq!(lookup.await.expect("an answer"), Answer::Nothing(0));
    }
}
