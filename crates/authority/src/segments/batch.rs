//! Batched datagram I/O: one system call receives or sends many datagrams.

use nix::errno::Errno;
use nix::sys::socket::{
    ControlMessage, MsgFlags, MultiHeaders, SockaddrStorage, recvmmsg, sendmmsg, sendmsg, setsockopt, sockopt,
};
use nix::sys::time::TimeVal;
use std::io::{IoSlice, IoSliceMut};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use wire::ask::{ANSWER_LEN, Answer, REQUEST_LEN};

/// Maximum number of datagrams in a batch. Every answer waits until the whole batch has been processed, which takes
/// about a tenth of a millisecond.
pub const MOST: usize = 64;
/// Time without a datagram after which `receive` returns, in microseconds.
const TURN: i64 = 100_000;
/// Receive buffer of the socket in bytes; the kernel may impose a lower limit.
const ROOM: usize = 1 << 20;

/// Flags for sending. A send must not block while the kernel resolves the address of a neighbour.
const FLAGS: MsgFlags = MsgFlags::MSG_NOSIGNAL.union(MsgFlags::MSG_DONTWAIT);

/// Buffer for a datagram: one byte longer than a request, so that longer datagrams are recognised.
type Room = [u8; REQUEST_LEN + 1];

/// A socket with the buffers for one batch of datagrams.
pub struct Batches {
    socket: UdpSocket,
    received: MultiHeaders<SockaddrStorage>,
    /// Headers for sending. They are separate from `received`, because headers that were used for sending keep pointers
    /// to destination addresses.
    sent: MultiHeaders<SockaddrStorage>,
    rooms: Vec<Room>,
    /// The received datagrams: source, buffer index and length, sorted by source.
    from: Vec<(SocketAddr, usize, usize)>,
    /// Whether the kernel splits one buffer with several answers for the same address into datagrams (udp(7),
    /// UDP_SEGMENT).
    takes_apart: bool,
}

/// The answers to a batch, and for each the index of the datagram that it answers, in ascending order.
#[derive(Default)]
pub struct Answers {
    places: Vec<usize>,
    answers: Vec<Answer>,
}

impl Answers {
    /// Creates an empty value with memory for this number of answers.
    pub fn for_at_most(number: usize) -> Self {
        Self { places: Vec::with_capacity(number), answers: Vec::with_capacity(number) }
    }

    /// Adds `answer`, which answers the datagram with the index `place`.
    pub fn push(&mut self, place: usize, answer: Answer) {
        self.places.push(place);
        self.answers.push(answer);
    }
}

/// Binds a socket for [`Batches`]. On a host without IPv6, `0.0.0.0` replaces `[::]`.
///
/// # Errors
/// Fails if the address cannot be bound, or the socket's options cannot be set.
pub fn bind(address: SocketAddr) -> std::io::Result<UdpSocket> {
    let is_missing = |error: &std::io::Error| error.raw_os_error() == Some(Errno::EAFNOSUPPORT as i32);
    let socket = match UdpSocket::bind(address) {
        // `[::]` includes IPv4. On a host without IPv6, fall back to `0.0.0.0`.
        Err(error) if is_missing(&error) && address.ip().is_unspecified() => {
            UdpSocket::bind((Ipv4Addr::UNSPECIFIED, address.port()))?
        }
        bound => bound?,
    };
    setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::new(0, TURN))?;
    setsockopt(&socket, sockopt::RcvBuf, &ROOM)?;
    Ok(socket)
}

impl Batches {
    /// Wraps a socket that [`bind`] created.
    pub fn new(socket: UdpSocket) -> Self {
        let [received, sent] = [(); 2].map(|()| MultiHeaders::preallocate(MOST, None));
        let rooms = vec![[0; REQUEST_LEN + 1]; MOST];
        let takes_apart = setsockopt(&socket, sockopt::UdpGsoSegment, &(ANSWER_LEN as i32)).is_ok();
        Self { socket, received, sent, rooms, from: Vec::with_capacity(MOST), takes_apart }
    }

    /// Receives the datagrams that are queued, or waits up to 100 ms for one. Returns their number, which can be 0.
    ///
    /// # Errors
    /// Fails if the socket fails. An interrupted wait, and a report that an earlier answer could not be delivered, are
    /// not errors.
    pub fn receive(&mut self) -> std::io::Result<usize> {
        self.from.clear();
        let mut slices: Vec<_> = self.rooms.iter_mut().map(|room| [IoSliceMut::new(room)]).collect();
        let flags = MsgFlags::MSG_WAITFORONE;
        match recvmmsg(self.socket.as_raw_fd(), &mut self.received, slices.iter_mut(), flags, None) {
            Ok(received) => {
                let known = (0..).zip(received).filter_map(|(room, message)| {
                    let address = message.address?;
                    let v4 = || address.as_sockaddr_in().map(|v4| SocketAddr::V4((*v4).into()));
                    let v6 = || address.as_sockaddr_in6().map(|v6| SocketAddr::V6((*v6).into()));
                    Some((v4().or_else(v6)?, room, message.bytes))
                });
                self.from.extend(known);
                self.from.sort_unstable();
            }
            // ECONNREFUSED and similar errors refer to an earlier answer that could not be delivered.
            Err(Errno::EAGAIN | Errno::EINTR | Errno::ECONNREFUSED | Errno::EHOSTUNREACH | Errno::ENETUNREACH) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(self.from.len())
    }

    /// Returns the received datagrams with their sources, in the order of their indices. If the socket is an IPv6
    /// socket, IPv4 sources are IPv4-mapped IPv6 addresses.
    pub fn datagrams(&mut self) -> impl Iterator<Item = (&mut [u8], SocketAddr)> {
        let mut rooms: Vec<_> = self.rooms.iter_mut().map(Some).collect();
        self.from.iter().map(move |(source, room, length)| {
            let room = rooms.get_mut(*room).and_then(Option::take);
            let datagram = room.and_then(|room| room.get_mut(..*length)).unwrap_or_default();
            (datagram, *source)
        })
    }

    /// Sends answers to the senders of the received datagrams. An answer that cannot be sent is lost, like any
    /// datagram.
    pub fn send(&mut self, Answers { places, answers }: &Answers) {
        let to = |place: &usize| self.from.get(*place).map(|(from, ..)| *from);
        let mut end = 0;
        let (sent, messages): (Vec<_>, Vec<_>) = places
            .chunk_by(|one, other| self.takes_apart && to(one) == to(other))
            .map(|places| {
                let answers = &answers[end..end + places.len()];
                end += places.len();
                (places.first().and_then(to).map(SockaddrStorage::from), [IoSlice::new(answers.as_flattened())])
            })
            .unzip();
        let mut done = 0;
        while let (Some(to @ [first, ..]), Some(slices @ [message, ..])) = (sent.get(done..), messages.get(done..)) {
            match sendmmsg(self.socket.as_raw_fd(), &mut self.sent, slices, to, [], FLAGS) {
                Ok(sent) => done += sent.count().max(1),
                // The first message cannot be sent; continue with the others.
                Err(error) => {
                    tracing::debug!("cannot send answers: {error}");
                    if matches!(error, Errno::EIO | Errno::EINVAL | Errno::EMSGSIZE) {
                        message[0]
                            .chunks(ANSWER_LEN)
                            .for_each(|answer| send_whole(&self.socket, answer, first.as_ref()));
                    }
                    done += 1;
                }
            }
        }
    }
}

/// Sends single answers from the socket of a [`Batches`], also from other threads.
pub struct Sender(UdpSocket);

impl Sender {
    /// Creates a sender for a socket that [`bind`] created.
    ///
    /// # Errors
    /// Fails if the process has too many open files.
    pub fn new(socket: &UdpSocket) -> std::io::Result<Self> {
        socket.try_clone().map(Self)
    }

    /// Sends an answer. An answer that cannot be sent is lost, like any datagram.
    pub fn send(&self, answer: &Answer, to: SocketAddr) {
        send_whole(&self.0, answer, Some(&to.into()));
    }
}

/// Sends one answer, with segmentation turned off. Some routes do not support segmentation, and refuse even a single
/// answer that might be segmented. This is the case with IPsec, on links with the smallest MTUs, and before Linux 6.11
/// on interfaces without transmit checksum offload.
fn send_whole(socket: &UdpSocket, answer: &[u8], to: Option<&SockaddrStorage>) {
    let (slice, whole) = ([IoSlice::new(answer)], [ControlMessage::UdpGsoSegments(&0)]);
    if let Err(error) = sendmsg(socket.as_raw_fd(), &slice, &whole, FLAGS, to) {
        tracing::debug!("cannot send an answer: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::process::Command;
    use std::time::Duration;

    /// Runs in a network namespace of its own, whose MTU is smaller than an answer: answers travel in fragments if the
    /// kernel accepts them.
    #[test]
    fn answers_arrive_where_none_may_leave_together() {
        let alone = std::thread::spawn(|| {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).expect("this test needs root");
            let up = Command::new("ip").args(["link", "set", "lo", "up", "mtu", "200"]).status().expect("ip");
            assert!(up.success());
            let socket = bind((Ipv4Addr::LOCALHOST, 0).into()).expect("a socket");
            let address = socket.local_addr().expect("its address");
            let (mut batches, client) =
                (Batches::new(socket), UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket"));
            client.set_read_timeout(Some(Duration::from_secs(5))).expect("set");
            (0..3).for_each(|number| _ = client.send_to(&[number; REQUEST_LEN], address).expect("sent"));
            let mut left = 3;
            while left > 0 {
                let (come, mut answers) = (batches.receive().expect("requests"), Answers::default());
                assert!(come > 0, "{left} never came");
                left -= come;
                for (place, (request, _)) in batches.datagrams().enumerate() {
                    answers.push(place, [request[0]; ANSWER_LEN]);
                }
                batches.send(&answers);
            }
            let received = [(); 3].map(|()| {
                let mut room = [0; REQUEST_LEN];
                assert_eq!(client.recv(&mut room).expect("an answer"), ANSWER_LEN);
                room[0]
            });
            assert_eq!(received, [0, 1, 2]);
        });
        assert!(alone.join().is_ok());
    }

    #[test]
    fn answers_that_leave_together_arrive_one_by_one_at_whoever_asked() {
        let socket = bind((Ipv4Addr::LOCALHOST, 0).into()).expect("a socket");
        let address = socket.local_addr().expect("its address");
        let mut batches = Batches::new(socket);
        let clients = [(); 3].map(|()| {
            let client = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket");
            client.set_read_timeout(Some(Duration::from_secs(5))).expect("set");
            client.connect(address).expect("connected");
            client
        });
        let marked = |client: usize, number: usize| [client as u8, number as u8];
        // The clients send more requests than a batch takes, interleaved. The first client alone fills another batch.
        // Some requests are too long.
        let each = MOST / clients.len() + 1;
        let numbers = |place: usize| 0..if place == 0 { each + MOST } else { each };
        let is_long = |number: usize| number % 16 == 7;
        let send = |place: usize, number: usize| {
            let mut request = vec![0; if is_long(number) { REQUEST_LEN + 9 } else { REQUEST_LEN }];
            request[..2].copy_from_slice(&marked(place, number));
            clients[place].send(&request).expect("sent");
        };
        (0..each).for_each(|number| (0..clients.len()).for_each(|place| send(place, number)));
        let mut left = each * clients.len();
        for more in [0, MOST] {
            (each..each + more).for_each(|number| send(0, number));
            left += more;
            while left > 0 {
                let come = batches.receive().expect("requests");
                assert!(come > 0, "{left} never came");
                left -= come;
                let mut answers = Answers::default();
                for (place, (request, source)) in batches.datagrams().enumerate() {
                    assert!(source.ip().is_loopback());
                    if request.len() == REQUEST_LEN {
                        let mut answer = [0; ANSWER_LEN];
                        answer[..2].copy_from_slice(&request[..2]);
                        answers.push(place, answer);
                    }
                }
                batches.send(&answers);
            }
        }
        for (place, client) in clients.iter().enumerate() {
            let expected: BTreeSet<_> = numbers(place).filter(|number| !is_long(*number)).collect();
            let received = expected.iter().map(|_| {
                let mut room = [0; 2 * ANSWER_LEN];
                assert_eq!(client.recv(&mut room).expect("an answer"), ANSWER_LEN);
                [room[0], room[1]]
            });
            let received: BTreeSet<_> = received.collect();
            assert_eq!(received, expected.iter().map(|number| marked(place, *number)).collect());
        }
    }
}
