//! Datagrams by the batch: one system call for many, either way.

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, MultiHeaders, SockaddrStorage, recvmmsg, sendmmsg, sendmsg, setsockopt, sockopt};
use nix::sys::time::TimeVal;
use std::io::{IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use wire::ask::{ANSWER_LEN, Answer, REQUEST_LEN};

/// Datagrams in a batch, at most: those that come last wait for the others, some tenth of a millisecond.
pub const MOST: usize = 64;
/// How long nothing may come until the caller gets a turn.
const TURN: i64 = 100_000;
/// What the kernel holds of datagrams that nobody has read yet, bytes; less where it has a limit.
const ROOM: usize = 1 << 20;

/// Answers that wait for a neighbour's address must not keep others waiting.
const FLAGS: MsgFlags = MsgFlags::MSG_NOSIGNAL.union(MsgFlags::MSG_DONTWAIT);

/// A datagram's bytes: one more than a request has, so that longer ones are seen to be.
type Room = [u8; REQUEST_LEN + 1];

/// A socket, and what a batch takes.
pub struct Batches {
    socket: UdpSocket,
    received: MultiHeaders<SockaddrStorage>,
    /// Apart from the others: once sent with, headers keep pointers to where answers went.
    sent: MultiHeaders<SockaddrStorage>,
    rooms: Vec<Room>,
    /// What was received: from where, in which room, and how long it is. Those from one address are neighbours.
    from: Vec<(SocketAddr, usize, usize)>,
}

/// Answers of a batch, and the places that they answer, which ascend.
#[derive(Default)]
pub struct Answers {
    places: Vec<usize>,
    answers: Vec<Answer>,
}

impl Answers {
    /// Adds the answer to what was received in this place.
    pub fn push(&mut self, place: usize, answer: Answer) {
        self.places.push(place);
        self.answers.push(answer);
    }
}

/// A socket that batches can be received from.
pub fn bind(address: SocketAddr) -> std::io::Result<UdpSocket> {
    let socket = UdpSocket::bind(address)?;
    setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::new(0, TURN))?;
    setsockopt(&socket, sockopt::RcvBuf, &ROOM)?;
    // Answers to one address go out as one, which the kernel takes apart (udp(7), UDP_SEGMENT).
    setsockopt(&socket, sockopt::UdpGsoSegment, &(ANSWER_LEN as i32))?;
    Ok(socket)
}

impl Batches {
    /// Takes a socket over that [`bind`] made.
    pub fn new(socket: UdpSocket) -> Self {
        let [received, sent] = [(); 2].map(|()| MultiHeaders::preallocate(MOST, None));
        Self { socket, received, sent, rooms: vec![[0; REQUEST_LEN + 1]; MOST], from: Vec::with_capacity(MOST) }
    }

    /// Receives what is there, or waits for one, but not for long: then there is none.
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
            // ECONNREFUSED and its like are about an earlier answer that nobody took.
            Err(Errno::EAGAIN | Errno::EINTR | Errno::ECONNREFUSED | Errno::EHOSTUNREACH | Errno::ENETUNREACH) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(self.from.len())
    }

    /// What was received, by place, and from where.
    pub fn datagrams(&mut self) -> impl Iterator<Item = (&mut [u8], IpAddr)> {
        let mut rooms: Vec<_> = self.rooms.iter_mut().map(Some).collect();
        self.from.iter().map(move |(source, room, length)| {
            let room = rooms.get_mut(*room).and_then(Option::take);
            let datagram = room.and_then(|room| room.get_mut(..*length)).unwrap_or_default();
            (datagram, source.ip().to_canonical())
        })
    }

    /// Sends answers. What can't be delivered is lost, as datagrams may be.
    pub fn send(&mut self, Answers { places, answers }: &Answers) {
        let to = |place: &usize| self.from.get(*place).map(|(from, ..)| *from);
        let mut end = 0;
        let (sent, messages): (Vec<_>, Vec<_>) = places
            .chunk_by(|one, other| to(one) == to(other))
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
                // The first can't be sent; the others can.
                Err(error) => {
                    tracing::debug!("answers could not be sent: {error}");
                    if error == Errno::EIO {
                        self.send_apart(&message[0], first.as_ref());
                    }
                    done += 1;
                }
            }
        }
    }

    /// Sends one by one where the way there can't take datagrams apart: through IPsec.
    fn send_apart(&self, answers: &[u8], to: Option<&SockaddrStorage>) {
        for answer in answers.chunks(ANSWER_LEN) {
            let slice = [IoSlice::new(answer)];
            if let Err(error) = sendmsg(self.socket.as_raw_fd(), &slice, &[], FLAGS, to) {
                tracing::debug!("an answer could not be sent: {error}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::net::Ipv4Addr;
    use std::time::Duration;

    #[test]
    fn answers_that_leave_together_arrive_one_by_one_at_whoever_asked() {
        let socket = bind((Ipv4Addr::LOCALHOST, 0).into()).expect("a socket");
        let address = socket.local_addr().expect("its address");
        let mut batches = Batches::new(socket);
        let askers = [(); 3].map(|()| {
            let asker = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket");
            asker.set_read_timeout(Some(Duration::from_secs(5))).expect("set");
            asker.connect(address).expect("connected");
            asker
        });
        let asked = |asker: usize, number: usize| [asker as u8, number as u8];
        // In turn, one more than a batch takes, and one that is too long.
        for number in 0..=MOST / askers.len() {
            for (place, asker) in askers.iter().enumerate() {
                let mut request = vec![0; if number == 7 { REQUEST_LEN + 9 } else { REQUEST_LEN }];
                request[..2].copy_from_slice(&asked(place, number));
                asker.send(&request).expect("sent");
            }
        }
        let mut left = askers.len() * (MOST / askers.len() + 1);
        while left > 0 {
            left -= batches.receive().expect("requests");
            let mut answers = Answers::default();
            for (place, (request, source)) in batches.datagrams().enumerate() {
                assert!(source.is_loopback());
                if request.len() == REQUEST_LEN {
                    let mut answer = [0; ANSWER_LEN];
                    answer[..2].copy_from_slice(&request[..2]);
                    answers.push(place, answer);
                }
            }
            batches.send(&answers);
        }
        for (place, asker) in askers.iter().enumerate() {
            let expected: BTreeSet<_> = (0..=MOST / askers.len()).filter(|number| *number != 7).collect();
            let heard = expected.iter().map(|_| {
                let mut room = [0; 2 * ANSWER_LEN];
                assert_eq!(asker.recv(&mut room).expect("an answer"), ANSWER_LEN);
                [room[0], room[1]]
            });
            let heard: BTreeSet<_> = heard.collect();
            assert_eq!(heard, expected.iter().map(|number| asked(place, *number)).collect());
        }
    }
}
