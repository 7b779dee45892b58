//! Questions and complaints to the verifier on this host, by HTTP over its UNIX socket.

use crate::answer::Answer;
use crate::error::Error;
use crate::identity::Identity;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Path of the verifier's socket, if `$VOUCHSAFE_IDENTITY_SOCKET` names no other.
pub const SOCKET: &str = "/run/vouchsafe/identity.sock";
/// Longest time to wait for an answer. If the verifier has to ask the authority, it waits for two seconds.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest time to wait for the answer to a complaint, which the authority gives within five seconds.
const PATIENCE_OF_COMPLAINTS: Duration = Duration::from_secs(8);
/// Longest answer that is read.
const ANSWER_MAX: usize = 64 * 1024;

/// A connection that the application has accepted. The application keeps this value as long as it may want to ask
/// again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// The client's address and port.
    pub client: SocketAddr,
    /// The application's own address and port.
    pub server: SocketAddr,
    /// Time at which the application accepted the connection. It distinguishes the connection from an earlier one
    /// between the same addresses and ports.
    pub accepted: Instant,
}

impl Connection {
    /// Returns the addresses of a TCP connection that the application has just accepted, and the current time.
    ///
    /// # Errors
    ///
    /// Fails if the socket is not connected.
    pub fn accepted(stream: &TcpStream) -> Result<Self, Error> {
        let client = stream.peer_addr().map_err(Error::Socket)?;
        let server = stream.local_addr().map_err(Error::Socket)?;
        Ok(Self { client, server, accepted: Instant::now() })
    }
}

/// The misconduct of a person, in a complaint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misconduct {
    /// A login failed. The complaint lowers the score by 5 points by default.
    FailedLogin,
    /// The person sent too many requests. The complaint lowers the score by 10 points by default.
    Flood,
    /// The person abused the service. The complaint lowers the score by 20 points by default.
    Abuse,
}

impl Misconduct {
    const fn name(self) -> &'static str {
        match self {
            Self::FailedLogin => "failed_login",
            Self::Flood => "flood",
            Self::Abuse => "abuse",
        }
    }
}

/// The verifier on this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verifier {
    socket: PathBuf,
}

impl Default for Verifier {
    /// Returns the verifier at `$VOUCHSAFE_IDENTITY_SOCKET`, or else at [`SOCKET`].
    fn default() -> Self {
        let named = std::env::var_os("VOUCHSAFE_IDENTITY_SOCKET").filter(|path| !path.is_empty());
        Self::at(named.map_or_else(|| SOCKET.into(), PathBuf::from))
    }
}

impl Verifier {
    /// Returns the verifier with this `identity_socket`.
    pub fn at(socket: impl Into<PathBuf>) -> Self {
        Self { socket: socket.into() }
    }

    /// Asks who is behind a connection. Returns `None` if no grant admitted it. Waits for five seconds at most.
    ///
    /// The answer is valid only now: when the grant is revoked, the person is no longer known. So an application that
    /// serves a connection for a long time has to ask again.
    ///
    /// # Errors
    ///
    /// Fails if the verifier does not answer or refuses to answer. Also fails if neither the verifier nor the authority
    /// knows the owner of the grant (status 503).
    pub fn who(&self, connection: &Connection) -> Result<Option<Identity>, Error> {
        let answer = self.send("GET", "person", connection, "", PATIENCE)?;
        match answer.status {
            200 => answer.identity().map(Some),
            401 => Ok(None),
            status => Err(Error::Refused { status, why: answer.body }),
        }
    }

    /// Complains about the person behind a connection, and returns the person's score. `points` is the number of
    /// points, from 1 to 20, by which the complaint lowers the score. If it is `None`, the default of [`Misconduct`]
    /// applies.
    ///
    /// # Errors
    ///
    /// Fails if the verifier or the authority does not answer, or refuses the complaint; `docs/identity.md` lists the
    /// statuses. A complaint that failed with [`Error::Unreachable`], or with status 504, may have been counted
    /// nevertheless: do not repeat it.
    pub fn complain(&self, connection: &Connection, about: Misconduct, points: Option<u32>) -> Result<u32, Error> {
        let mut fields = format!("X-Vouchsafe-About: {}\r\nContent-Length: 0\r\n", about.name());
        if let Some(points) = points {
            fields.push_str(&format!("X-Vouchsafe-Points: {points}\r\n"));
        }
        let answer = self.send("POST", "complaint", connection, &fields, PATIENCE_OF_COMPLAINTS)?;
        match answer.status {
            200 => answer.score(),
            status => Err(Error::Refused { status, why: answer.body }),
        }
    }

    /// Sends a request, with further fields, and returns the answer.
    fn send(
        &self,
        method: &str,
        path: &str,
        connection: &Connection,
        fields: &str,
        patience: Duration,
    ) -> Result<Answer, Error> {
        let Connection { client, server, accepted } = connection;
        let request = format!(
            "{method} /v1/{path} HTTP/1.1\r\nHost: verifier\r\nConnection: close\r\n\
             X-Vouchsafe-Client-Address: {}\r\nX-Vouchsafe-Client-Port: {}\r\n\
             X-Vouchsafe-Server-Address: {}\r\nX-Vouchsafe-Server-Port: {}\r\n\
             X-Vouchsafe-Age: {:.3}\r\n{fields}\r\n",
            client.ip().to_canonical(),
            client.port(),
            server.ip().to_canonical(),
            server.port(),
            accepted.elapsed().as_secs_f64()
        );
        let bytes = self.converse(request.as_bytes(), patience);
        let bytes = bytes.map_err(|error| Error::Unreachable { socket: self.socket.clone(), error })?;
        Answer::parse(&bytes)
    }

    /// Sends bytes, and returns what comes back until the verifier closes the connection.
    fn converse(&self, request: &[u8], patience: Duration) -> io::Result<Vec<u8>> {
        let mut stream = UnixStream::connect(&self.socket)?;
        let until = Instant::now() + patience;
        stream.set_write_timeout(Some(patience))?;
        stream.write_all(request)?;
        let (mut bytes, mut room) = (Vec::new(), [0; 4096]);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            stream.set_read_timeout(Some(left))?;
            match stream.read(&mut room) {
                Ok(0) => return Ok(bytes),
                Ok(size) => bytes.extend_from_slice(&room[..size]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The time that the read was given is over.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
            if bytes.len() > ANSWER_MAX {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "the answer is too long"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
    use std::thread;

    /// Runs `work` with a verifier that gives this answer, and returns its result and the request.
    fn answered<T>(answer: &'static [u8], work: impl FnOnce(&Verifier, &Connection) -> T) -> (T, String) {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("vouchsafe-whois-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
        let socket = std::env::temp_dir().join(name);
        let listener = UnixListener::bind(&socket).unwrap();
        let serving = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let (mut request, mut byte) = (Vec::new(), [0]);
            while !request.ends_with(b"\r\n\r\n") {
                stream.read_exact(&mut byte).unwrap();
                request.extend(byte);
            }
            stream.write_all(answer).unwrap();
            String::from_utf8(request).unwrap()
        });
        let [client, server] = ["[::ffff:192.0.2.9]:4660", "192.0.2.20:80"].map(|text| text.parse().unwrap());
        let result = work(&Verifier::at(&socket), &Connection { client, server, accepted: Instant::now() });
        std::fs::remove_file(socket).unwrap();
        (result, serving.join().unwrap())
    }

    #[test]
    fn a_question_names_the_connection_and_its_age() {
        let nobody = b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 3\r\n\r\nno\n";
        let (who, request) = answered(nobody, |verifier, connection| verifier.who(connection));
        assert_eq!(who.unwrap(), None);
        let start = "GET /v1/person HTTP/1.1\r\nHost: verifier\r\nConnection: close\r\n\
            X-Vouchsafe-Client-Address: 192.0.2.9\r\nX-Vouchsafe-Client-Port: 4660\r\n\
            X-Vouchsafe-Server-Address: 192.0.2.20\r\nX-Vouchsafe-Server-Port: 80\r\nX-Vouchsafe-Age: ";
        let age = request.strip_prefix(start).and_then(|rest| rest.strip_suffix("\r\n\r\n"));
        assert!(age.is_some_and(|age| age.parse::<f64>().is_ok()), "{request}");
    }

    #[test]
    fn a_complaint_says_what_and_how_much() {
        let complain = |verifier: &Verifier, connection: &Connection| {
            verifier.complain(connection, Misconduct::FailedLogin, Some(3))
        };
        let (score, request) = answered(b"HTTP/1.1 200 OK\r\nx-vouchsafe-score: 80\r\n\r\n", complain);
        assert_eq!(score.unwrap(), 80);
        assert!(request.starts_with("POST /v1/complaint HTTP/1.1\r\n"), "{request}");
        assert!(request.contains("X-Vouchsafe-About: failed_login\r\n"), "{request}");
        assert!(request.contains("X-Vouchsafe-Points: 3\r\n"), "{request}");
    }

    #[test]
    fn without_a_clear_answer_nobody_is_named() {
        for answer in [
            &b"HTTP/1.1 200 OK\r\n\r\n"[..],
            b"HTTP/1.1 204 No Content\r\n\r\n",
            b"HTTP/1.1 403 Forbidden\r\n\r\nadd it to `whois_users`\n",
            b"HTTP/1.1 503 Service Unavailable\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nx-vouchsafe-person: alice\r\n",
            b"",
        ] {
            let (who, _) = answered(answer, |verifier, connection| verifier.who(connection));
            let why = who.unwrap_err().to_string();
            assert!(why.contains("refuses") || why.contains("malformed"), "{why}");
        }
        let [client, server] = ["192.0.2.9:1", "192.0.2.20:80"].map(|text| text.parse().unwrap());
        let nowhere = Verifier::at("/nonexistent/identity.sock");
        let why = nowhere.who(&Connection { client, server, accepted: Instant::now() }).unwrap_err().to_string();
        assert!(why.contains("/nonexistent/identity.sock") && why.contains("identity_socket"), "{why}");
    }
}
