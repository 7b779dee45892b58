//! Opens TCP connections whose SYN carries a token in the first bytes of the stream (wire.md §4.6).
//!
//! INVARIANT: the server's application never reads a token as part of its stream. Three measures ensure this. This
//! process abandons an attempt to connect before the stack sends the SYN again without its data (§4.6.2). It abandons
//! the attempt at once if the stack has sent the SYN without the token. It resets a connection if the SYN-ACK did not
//! acknowledge the token.

#[cfg(target_os = "macos")]
#[path = "stream/darwin.rs"]
mod system;
#[cfg(target_os = "linux")]
#[path = "stream/linux.rs"]
mod system;

use crate::Error;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrLike, SockaddrStorage, socket, sockopt};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};
use wire::tail::{BLOCK_LEN, stream_block};
use wire::token::TOKEN_LEN;

/// A block of 40 bytes: a carrier's mark and a token. It is the beginning of a TCP stream, or the end of a datagram.
pub type Block = [u8; BLOCK_LEN];

/// Minimum wait for the answer to a SYN (wire.md §4.6.2).
const WAIT_MIN: Duration = Duration::from_millis(250);
/// Maximum wait for the answer to a SYN: after 1 s, stacks send the SYN again without its data.
const WAIT_MAX: Duration = Duration::from_millis(900);
/// Time for which [`answers_without_verifier`] waits for an answer.
const PROBED: Duration = Duration::from_millis(500);

/// Parameters of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Address and port to which to connect.
    pub to: SocketAddr,
    /// Time after which no further SYN is sent.
    pub deadline: Instant,
    /// Round-trip time of an earlier connection to this address, if known.
    pub round_trip: Option<Duration>,
}

/// Opens a connection on a new socket. `block` returns the block for each SYN; its argument is the SYN's number,
/// counted from zero. Returns the socket, in blocking mode, and the round-trip time.
///
/// # Errors
///
/// Returns why the connection could not be made.
pub fn connect(
    plan: &Plan,
    block: impl FnMut(u32) -> Result<Block, Error>,
) -> Result<(OwnedFd, Option<Duration>), Error> {
    let family = if plan.to.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let open = || open(family).map_err(|error| io_error(plan.to, error.into()));
    let mut current = open()?;
    let (address, mut is_first) = (SockaddrStorage::from(plan.to), true);
    let round_trip = tries(plan, block, |block, wait| {
        if !std::mem::take(&mut is_first) {
            current = open()?;
        }
        let outcome = attempt(current.as_fd(), &address, block, plan.to, wait)?;
        if outcome == Outcome::NotTaken {
            reset_on_close(current.as_fd());
        }
        Ok((outcome, system::round_trip(current.as_fd())))
    })?;
    set_nonblocking(&current, false).map_err(|error| io_error(plan.to, error))?;
    complete(current.as_fd(), &address);
    Ok((current, round_trip))
}

/// Connects a socket of another program to the destination of `plan`; `address` is the same address in the form in
/// which the program wrote it. Between attempts, the socket is disconnected. It keeps its options and the pollers that
/// wait for it. It gets another port, unless the program has bound it to one. The socket's blocking mode does not
/// change. Returns the round-trip time, if known.
///
/// # Errors
///
/// Returns the reason why the connection could not be made. The socket is then unconnected again. If the socket was
/// already connected or connecting, it stays unchanged, and the reason is `EISCONN`.
pub fn connect_on(
    socket: BorrowedFd<'_>,
    address: &SockaddrStorage,
    plan: &Plan,
    block: impl FnMut(u32) -> Result<Block, Error>,
) -> Result<Option<Duration>, Error> {
    if let Some(what) = system::signs(socket) {
        return Err(Error::Signed(what, plan.to));
    }
    // On a connected socket, the block would be part of the application's data.
    if !system::is_unconnected(socket) {
        return Err(io_error(plan.to, io::Error::from_raw_os_error(libc::EISCONN)));
    }
    let mut is_first = true;
    let done = tries(plan, block, |block, wait| {
        if !std::mem::take(&mut is_first) {
            system::disconnect(socket);
        }
        let outcome = attempt(socket, address, block, plan.to, wait)?;
        Ok((outcome, system::round_trip(socket)))
    });
    if done.is_err() {
        system::disconnect(socket);
    }
    done
}

/// Reports whether a SYN to a protected destination is answered although no verifier has let it through. In this case,
/// a middlebox answers in the server's place, or no verifier protects the server. The SYN looks like one with a token
/// in the stream, but the token is not valid. A verifier drops this SYN, even if the verifier only observes. A
/// middlebox that terminates TCP answers the SYN.
///
/// # Errors
///
/// Returns why no such SYN could be sent.
pub fn answers_without_verifier(to: SocketAddr) -> Result<bool, Error> {
    let block = stream_block(&[0; TOKEN_LEN]);
    let plan = Plan { to, deadline: Instant::now() + PROBED, round_trip: None };
    match connect(&plan, |_| Ok(block)) {
        Ok(_) | Err(Error::NotTaken { .. }) => Ok(true),
        Err(Error::Silence { .. }) => Ok(false),
        Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::ConnectionRefused => Ok(false),
        Err(error) => Err(error),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Connected,
    NotTaken,
    Silence,
}

fn tries(
    plan: &Plan,
    mut block: impl FnMut(u32) -> Result<Block, Error>,
    mut attempt: impl FnMut(&Block, Duration) -> Result<(Outcome, Option<Duration>), Error>,
) -> Result<Option<Duration>, Error> {
    let began = Instant::now();
    for number in 0.. {
        let block = block(number)?;
        let left = plan.deadline.saturating_duration_since(Instant::now());
        let wait = wait(plan.round_trip, number).min(left);
        match attempt(&block, wait)? {
            (Outcome::Connected, round_trip) => return Ok(round_trip),
            (Outcome::NotTaken, _) => return Err(Error::NotTaken { to: plan.to }),
            (Outcome::Silence, _) if Instant::now() >= plan.deadline => {
                return Err(Error::Silence { to: plan.to, tries: number + 1, waited: began.elapsed() });
            }
            (Outcome::Silence, _) => {}
        }
    }
    Err(Error::Silence { to: plan.to, tries: u32::MAX, waited: began.elapsed() })
}

/// Returns how long to wait for the answer to a SYN. While the round-trip time is unknown, each wait is longer than the
/// previous one.
fn wait(round_trip: Option<Duration>, number: u32) -> Duration {
    let wait = match round_trip {
        Some(time) => time * 2,
        None => WAIT_MIN * (1 << number.min(2)),
    };
    wait.clamp(WAIT_MIN, WAIT_MAX)
}

fn attempt(
    socket: BorrowedFd<'_>,
    address: &SockaddrStorage,
    block: &Block,
    to: SocketAddr,
    wait: Duration,
) -> Result<Outcome, Error> {
    system::send_syn(socket, address, block, to)?;
    let deadline = Instant::now() + wait;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = PollTimeout::try_from(left.as_micros().div_ceil(1000)).unwrap_or(PollTimeout::MAX);
        let mut events = [PollFd::new(socket, PollFlags::POLLOUT)];
        match poll(&mut events, timeout) {
            Ok(0) if left.is_zero() => return Ok(Outcome::Silence),
            Ok(0) | Err(nix::errno::Errno::EINTR) => continue,
            Ok(_) => {}
            Err(error) => return Err(io_error(to, error.into())),
        }
        break;
    }
    match nix::sys::socket::getsockopt(&socket, sockopt::SocketError) {
        Ok(0) if system::took_data(socket) => Ok(Outcome::Connected),
        Ok(0) => Ok(Outcome::NotTaken),
        Ok(libc::ETIMEDOUT) => Ok(Outcome::Silence),
        Ok(number) => Err(io_error(to, io::Error::from_raw_os_error(number))),
        Err(error) => Err(io_error(to, error.into())),
    }
}

fn open(family: AddressFamily) -> nix::Result<OwnedFd> {
    #[cfg(target_os = "linux")]
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    #[cfg(not(target_os = "linux"))]
    let flags = SockFlag::empty();
    let socket = socket(family, SockType::Stream, flags, nix::sys::socket::SockProtocol::Tcp)?;
    #[cfg(not(target_os = "linux"))]
    {
        nix::fcntl::fcntl(&socket, nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::FD_CLOEXEC))?;
        let failed = |error: io::Error| nix::errno::Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO));
        set_nonblocking(&socket, true).map_err(failed)?;
    }
    Ok(socket)
}

/// Reports whether the socket is in non-blocking mode.
pub fn is_nonblocking(socket: BorrowedFd<'_>) -> bool {
    let flags = nix::fcntl::fcntl(socket, nix::fcntl::FcntlArg::F_GETFL).unwrap_or(0);
    flags & libc::O_NONBLOCK != 0
}

fn set_nonblocking(socket: &OwnedFd, on: bool) -> io::Result<()> {
    use nix::fcntl::{FcntlArg, OFlag, fcntl};
    let flags = OFlag::from_bits_retain(fcntl(socket, FcntlArg::F_GETFL)?);
    let flags = if on { flags | OFlag::O_NONBLOCK } else { flags - OFlag::O_NONBLOCK };
    fcntl(socket, FcntlArg::F_SETFL(flags))?;
    Ok(())
}

/// Makes the system record that a blocking socket is connected. Until then, the system treats data in a SYN as a part
/// of the call that connects the socket.
pub(crate) fn complete(socket: BorrowedFd<'_>, address: &SockaddrStorage) {
    let _ = nix::sys::socket::connect(descriptor(socket), address);
}

/// Makes the stack reset the connection when the socket is closed, so that it sends no data that it still holds.
fn reset_on_close(socket: BorrowedFd<'_>) {
    let now = libc::linger { l_onoff: 1, l_linger: 0 };
    if let Err(error) = nix::sys::socket::setsockopt(&socket, sockopt::Linger, &now) {
        tracing::debug!("cannot have the connection reset: {error}");
    }
}

fn io_error(to: SocketAddr, source: io::Error) -> Error {
    Error::Io { to, source }
}

/// Returns the address in the form that `sendto` and similar calls take.
fn raw(address: &SockaddrStorage) -> (*const libc::sockaddr, libc::socklen_t) {
    (address.as_ptr(), address.len())
}

fn descriptor(socket: BorrowedFd<'_>) -> i32 {
    socket.as_raw_fd()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_syn_is_given_up_before_the_stack_repeats_it() {
        let milliseconds = |round_trip: Option<u64>| {
            [0, 1, 2, 9].map(|number| wait(round_trip.map(Duration::from_millis), number).as_millis())
        };
        assert_eq!(milliseconds(None), [250, 500, 900, 900]);
        assert_eq!(milliseconds(Some(20)), [250; 4]);
        assert_eq!(milliseconds(Some(200)), [400; 4]);
        assert_eq!(milliseconds(Some(600)), [900; 4]);
    }
}
