//! Sources of the sockets that measurements use. Usually a measurement opens its sockets in the client's namespace.
//! With some solutions, only the sockets of programs that the solution starts can reach the server. The solution then
//! starts a *broker*: a program that opens a socket, connects it, and passes it over a UNIX socket to the measurement.
//! The broker takes no further part in the measurement.

use std::io::{Error, ErrorKind, IoSlice, IoSliceMut, Read, Result, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use nix::cmsg_space;
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};

use super::inside::Inside;

/// Time in which a connection must be open.
const SOON: Duration = Duration::from_secs(5);

/// The source of a client's sockets: its namespace, or a broker.
#[derive(Clone)]
pub struct Way {
    inside: Inside,
    broker: Option<PathBuf>,
}

impl Way {
    /// Returns a source of sockets: the broker that listens at the path `broker` or, if this is `None`, the namespace
    /// `inside`.
    pub fn new(inside: Inside, broker: Option<PathBuf>) -> Self {
        Self { inside, broker }
    }

    /// Opens a UDP socket that is connected to a server.
    ///
    /// # Errors
    /// Fails if there is no route, or if the broker does not listen yet.
    pub fn udp(&self, to: SocketAddrV4) -> Result<UdpSocket> {
        match &self.broker {
            Some(broker) => Ok(UdpSocket::from(ask(broker, b'u', to)?)),
            None => self.inside.run(|| udp(to)),
        }
    }

    /// Opens a TCP connection.
    ///
    /// # Errors
    /// Fails if the connection is not open after five seconds (through a broker: ten), or if the broker does not listen
    /// yet.
    pub fn tcp(&self, to: SocketAddrV4) -> Result<TcpStream> {
        match &self.broker {
            Some(broker) => Ok(TcpStream::from(ask(broker, b't', to)?)),
            None => self.inside.run(|| TcpStream::connect_timeout(&to.into(), SOON)),
        }
    }
}

fn udp(to: SocketAddrV4) -> Result<UdpSocket> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.connect(to)?;
    Ok(socket)
}

/// Asks the broker for a socket of a kind, connected to a server.
fn ask(broker: &Path, kind: u8, to: SocketAddrV4) -> Result<OwnedFd> {
    let mut stream = UnixStream::connect(broker)?;
    stream.set_read_timeout(Some(SOON * 2))?;
    let [high, low] = to.port().to_be_bytes();
    let [a, b, c, d] = to.ip().octets();
    stream.write_all(&[kind, a, b, c, d, high, low])?;
    let mut errno = [0; 4];
    let mut parts = [IoSliceMut::new(&mut errno)];
    let mut space = cmsg_space!([RawFd; 1]);
    let got = recvmsg::<()>(stream.as_raw_fd(), &mut parts, Some(&mut space), MsgFlags::MSG_CMSG_CLOEXEC)?;
    let passed = got.cmsgs()?.find_map(|message| match message {
        ControlMessageOwned::ScmRights(descriptors) => descriptors.first().copied(),
        _ => None,
    });
    match passed {
        // SAFETY: the kernel has just made this descriptor for us, and nobody else knows it.
        Some(descriptor) => Ok(unsafe { OwnedFd::from_raw_fd(descriptor) }),
        None => Err(Error::from_raw_os_error(i32::from_be_bytes(errno))),
    }
}

/// Runs the broker, which listens on a UNIX socket at `path`. Returns only if it fails.
///
/// # Errors
/// Fails if it can't listen at `path`, or if it can't accept a connection.
pub fn serve(path: &Path) -> Result<()> {
    let _ = std::fs::remove_file(path);
    let listener = UnixListener::bind(path)?;
    for stream in listener.incoming() {
        let mut stream = stream?;
        // Each request on its own thread: connecting may take long, and several streams begin at a time.
        thread::spawn(move || {
            let mut request = [0; 7];
            if stream.read_exact(&mut request).is_ok() {
                let _ = reply(&stream, request);
            }
        });
    }
    Ok(())
}

fn reply(stream: &UnixStream, [kind, a, b, c, d, high, low]: [u8; 7]) -> Result<()> {
    let to = SocketAddrV4::new(Ipv4Addr::new(a, b, c, d), u16::from_be_bytes([high, low]));
    let opened: Result<OwnedFd> = match kind {
        b'u' => udp(to).map(OwnedFd::from),
        // A plain connect(2): one with a time limit would be non-blocking, which programs seldom use.
        b't' => TcpStream::connect(to).map(OwnedFd::from),
        _ => Err(Error::from(ErrorKind::InvalidInput)),
    };
    let errno = opened.as_ref().err().map_or(0, |error| error.raw_os_error().unwrap_or(libc::EIO)).to_be_bytes();
    let descriptors: Vec<RawFd> = opened.iter().map(AsRawFd::as_raw_fd).collect();
    let messages: &[ControlMessage<'_>] =
        if descriptors.is_empty() { &[] } else { &[ControlMessage::ScmRights(&descriptors)] };
    sendmsg::<()>(stream.as_raw_fd(), &[IoSlice::new(&errno)], messages, MsgFlags::empty(), None)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, SockaddrIn};

    use super::*;

    #[test]
    fn a_socket_that_was_passed_talks_to_the_server() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("broker.sock");
        let at = path.clone();
        thread::spawn(move || serve(&at));
        assert!(lab::poll(Duration::from_secs(10), || path.exists()));
        let (tcp, udp) = (TcpListener::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
        let port = |address: std::net::SocketAddr| SocketAddrV4::new(Ipv4Addr::LOCALHOST, address.port());
        let mut stream = TcpStream::from(ask(&path, b't', port(tcp.local_addr().unwrap())).unwrap());
        stream.write_all(b"x").unwrap();
        let mut byte = [0];
        tcp.accept().unwrap().0.read_exact(&mut byte).unwrap();
        assert_eq!(byte, *b"x");
        let socket = UdpSocket::from(ask(&path, b'u', port(udp.local_addr().unwrap())).unwrap());
        socket.send(b"y").unwrap();
        assert_eq!(udp.recv(&mut byte).unwrap(), 1);
        // A port that is taken, but not listened on: nobody else can begin to listen there.
        let taken = socket::socket(AddressFamily::Inet, SockType::Stream, SockFlag::empty(), None).unwrap();
        socket::bind(taken.as_raw_fd(), &SockaddrIn::new(127, 0, 0, 1, 0)).unwrap();
        let at: SockaddrIn = socket::getsockname(taken.as_raw_fd()).unwrap();
        let closed = SocketAddrV4::new(Ipv4Addr::LOCALHOST, at.port());
        assert_eq!(ask(&path, b't', closed).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    }
}
