//! The order in which a pump's thread sends messages and delivers packets. Needs root.

use anyhow::{Context, Result};
use engine::tunnel::Received;
use lab::Namespace;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, setsockopt, sockopt};
use nix::sys::time::TimeSpec;
use seal::Batch;
use std::io::IoSliceMut;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::Duration;
use tunnel::cut::Cut;
use tunnel::{Device, End, How, Layout, Message, Pump, Sealed, Socket, Times, Virtio, Way, sum};
use wire::packet::UDP;
use wire::seal::{Compression, Part, Suite, Treatment};

/// The service of the tunnels, and the service inside.
const SERVICE: &str = "127.0.0.1:4500";
const INSIDE: &str = "10.9.0.1:7";

/// An end that answers each datagram, and lets the packet in it out of the tunnel: what a verifier does with an initiation
/// and the record behind it.
struct Answering;

impl End for Answering {
    type Tunnel = ();

    fn route(&mut self, _: &mut [u8], _: &Layout, _: Virtio, _: Times) -> Option<(Way<()>, How)> {
        None
    }

    fn seal(&mut self, (): (), _: (How, u8), _: Cut<'_>, _: Times, _: &mut Batch) -> (usize, usize) {
        (0, 0)
    }

    fn seal_block<'p>(
        &mut self,
        (): (),
        _: (How, Compression, u8),
        _: impl Iterator<Item = (Part, &'p [u8])>,
        _: Times,
        _: &mut Batch,
    ) -> bool {
        false
    }

    fn receive<'d>(
        &mut self,
        from: SocketAddr,
        _: Option<IpAddr>,
        datagram: &'d mut [u8],
        _: Times,
        replies: &mut Vec<Message>,
    ) -> Option<((), Received<'d>)> {
        replies.push(Message { to: from, source: None, datagram: b"the response".to_vec() });
        let (treatment, suite) = (Treatment::Encrypt, Suite::Aes128Gcm);
        Some(((), Received::Packet { treatment, suite, partial: false, early: true, packet: datagram }))
    }

    fn admit(&mut self, (): (), _: &mut [u8], _: &Layout, _: bool, _: Sealed, _: Times) -> bool {
        true
    }

    fn poll(&mut self, _: Times, _: &mut Vec<Message>) {}
}

/// Returns a datagram to the service inside.
fn packet() -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 36, 0, 1, 0, 0, 64, UDP, 0, 0, 10, 9, 0, 2, 10, 9, 0, 1];
    let checksum = !sum::fold(sum::add(0, &packet));
    packet[10..12].copy_from_slice(&checksum.to_be_bytes());
    packet.extend([0x9c, 0x40, 0, 7, 0, 16, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
    packet
}

fn bound(namespace: &Namespace, at: &str) -> Result<UdpSocket> {
    let socket = namespace.enter(|| UdpSocket::bind(at))?;
    socket.set_read_timeout(Some(Duration::from_secs(10)))?;
    setsockopt(&socket, sockopt::ReceiveTimestampns, &true)?;
    Ok(socket)
}

/// Returns when the kernel delivered the next datagram.
fn arrived(socket: &UdpSocket) -> Result<TimeSpec> {
    let (mut room, mut space) = ([0; 100], nix::cmsg_space!(TimeSpec));
    let mut parts = [IoSliceMut::new(&mut room)];
    let got = recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut space), MsgFlags::empty())?;
    let time = |message| match message {
        ControlMessageOwned::ScmTimestampns(time) => Some(time),
        _ => None,
    };
    got.cmsgs()?.find_map(time).context("the kernel tells no time")
}

#[test]
fn the_response_leaves_before_the_packet_behind_an_initiation_can_be_answered() {
    lab::test(|| {
        let namespace = Namespace::new("order")?;
        let device =
            namespace.enter(|| Device::new("vs-order", 1500).and_then(|device| device.turn_on().map(|()| device)))?;
        namespace.ip("address add 10.9.0.1/24 dev vs-order")?;
        let _pump = namespace.enter(|| -> Result<_> {
            let socket = Socket::new(UdpSocket::bind(SERVICE)?)?;
            Pump::start(vec![device], vec![socket], Answering)
        })?;
        let (client, inside) = (bound(&namespace, "127.0.0.1:0")?, bound(&namespace, INSIDE)?);
        for round in 0..50 {
            client.send_to(&packet(), SERVICE)?;
            // In this order: while the kernel does not stamp packets on their arrival yet, it stamps them here.
            let (response, delivered) = (arrived(&client)?, arrived(&inside)?);
            assert!(response <= delivered, "round {round}: the response came at {response}, after {delivered}");
        }
        Ok(())
    });
}
