//! The verifier's program on a TUN device: packets as they come out of a sealed tunnel, and the answers of a real stack.

#[allow(dead_code, reason = "the table's rows are its other user")]
mod table;
#[allow(dead_code, reason = "the table's rows are its other user")]
mod world;

use datapath::clock;
use datapath::hook::Hook;
use datapath::interface::Interface;
use datapath::tunnel::Tunnel;
use lab::Port;
use lab::forge::Packet;
use lab::net::{Namespace, veth};
use nix::sched::{CloneFlags, setns};
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::time::{Duration, Instant};
use table::{CLIENT_PORT, First, Transport};
use wire::Flags;
use wire::map::{FlowKey, counter};
use world::{Deciders, Family, Grant, NOW, families};

const DEADLINE: Duration = Duration::from_secs(5);
const SILENCE: Duration = Duration::from_millis(300);

/// Opens a TUN device of this thread's namespace.
fn tun(name: &str) -> File {
    let file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open("/dev/net/tun").unwrap();
    // SAFETY: an all-zero ifreq is a valid value of this plain C structure.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (room, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *room = byte as _;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as i16;
    // SAFETY: the request is what TUNSETIFF takes, and lives through the call.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF as _, std::ptr::from_mut(&mut request)) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    file
}

/// Returns the next packet that leaves by the device, within the deadline, unless it is another protocol's.
fn leaves(mut tun: &File, deadline: Duration) -> Option<Vec<u8>> {
    let until = Instant::now() + deadline;
    let mut room = [0; 2048];
    while Instant::now() < until {
        match tun.read(&mut room) {
            Ok(length) => {
                let packet = room[..length].to_vec();
                if wire::packet::Packet::parse_ip(&packet).protocol == wire::packet::UDP {
                    return Some(packet);
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    }
    None
}

fn sealed(family: &Family, nonce: u32) -> First {
    let grant = Grant::new(family, 7);
    let grant = Grant { flags: grant.flags.with(Flags::SEALED), ..grant };
    Transport::Udp.first(family, &grant, CLIENT_PORT, nonce)
}

/// A verifier's host with a tunnel's device, and the routes of wire.md §6.11.4.
fn host() -> (Namespace, Namespace, File) {
    let (host, outside) = (Namespace::new("host").unwrap(), Namespace::new("outside").unwrap());
    veth(&host, "out0", "192.0.2.1/24 fd00::1/64", &outside, "eth0", "192.0.2.2/24 fd00::2/64").unwrap();
    setns(File::open(host.path()).unwrap(), CloneFlags::CLONE_NEWNET).unwrap();
    host.address("lo", "203.0.113.10/32 2001:db8::10/128").unwrap();
    let device = tun("seal0");
    host.ip("link set seal0 up").unwrap();
    // Everything else would leave by the default route.
    for (family, inside, router) in [("-4", "198.51.100.0/24", "192.0.2.2"), ("-6", "2001:db8:ffff::/64", "fd00::2")] {
        host.ip(&format!("{family} route add default via {router}")).unwrap();
        host.ip(&format!("{family} route add blackhole {inside} metric 4096")).unwrap();
        host.ip(&format!("{family} route add {inside} dev seal0 metric 1")).unwrap();
    }
    (host, outside, device)
}

#[test]
fn a_tunnels_device_admits_by_token_and_answers_leave_by_it_or_not_at_all() {
    let (_host, outside, device) = host();
    let kernel = Deciders::new(Hook::Tc, world::config(), &world::receivers()).kernel;
    kernel.set_clock(clock::coarse_reading(NOW.into())).unwrap();
    let mut tunnel = Tunnel::load(&kernel, None).unwrap_or_else(|error| panic!("{error:#}"));
    tunnel.attach(&Interface::named("seal0").unwrap()).unwrap_or_else(|error| panic!("{error:#}"));
    for family in families() {
        let to: SocketAddr = (family.server, 443).into();
        let server = UdpSocket::bind(to).unwrap();
        server.set_read_timeout(Some(DEADLINE)).unwrap();
        let mut room = [0; 100];
        let dropped = kernel.count(wire::DropReason::NoToken as u32).unwrap();
        // Without a token, to an open port with one waiting there, and then with a token.
        let stranger = Packet::new(family.client, family.server).udp(CLIENT_PORT, 443).payload(b"stranger");
        (&device).write_all(&stranger.ip()).unwrap();
        let open = UdpSocket::bind(SocketAddr::from((family.server, 5353))).unwrap();
        open.set_read_timeout(Some(SILENCE)).unwrap();
        let to_open = Packet::new(family.client, family.server).udp(CLIENT_PORT, 5353).payload(b"open");
        (&device).write_all(&to_open.ip()).unwrap();
        (&device).write_all(&sealed(&family, 1).frame()[14..]).unwrap();
        let (length, from) = server.recv_from(&mut room).expect("the admitted datagram arrives");
        assert_eq!((&room[..length], from), (&b"hello"[..], (family.client, CLIENT_PORT).into()), "{}", family.name);
        assert!(open.recv(&mut room).is_err(), "nothing is open inside");
        assert_eq!(kernel.count(wire::DropReason::NoToken as u32).unwrap(), dropped + 2);
        let key = FlowKey::new(family.client, CLIENT_PORT, family.server, 443, 17);
        assert!(kernel.flows.get(&key).unwrap().is_none(), "no flow outside");
        assert!(kernel.flows.get(&key.within(true)).unwrap().is_some());
        server.send_to(b"answer", from).unwrap();
        let answer = leaves(&device, DEADLINE).expect("the answer leaves by the tunnel's device");
        assert!(answer.ends_with(b"answer"));
    }
    assert!(kernel.count(counter::TOKEN).unwrap() >= 2);
    drop(device);
    let gone = Instant::now() + DEADLINE;
    while Interface::named("seal0").is_ok() {
        assert!(Instant::now() < gone, "the device goes with its last file");
        std::thread::yield_now();
    }
    let cable = Port::open(&outside, "eth0").unwrap();
    let leaves_outside = || {
        let is_datagram = |frame: &[u8]| wire::packet::Packet::parse(frame).protocol == wire::packet::UDP;
        cable.receive(SILENCE, |frame| is_datagram(frame).then_some(())).is_some()
    };
    for family in families() {
        let server = UdpSocket::bind(SocketAddr::from((family.server, 443))).unwrap();
        assert!(
            server.send_to(b"answer", (family.client, CLIENT_PORT)).is_err(),
            "{}: a route to nowhere",
            family.name
        );
        assert!(!leaves_outside(), "{}: an answer leaves by the default route", family.name);
    }
    UdpSocket::bind("192.0.2.1:0").unwrap().send_to(b"seen", "192.0.2.2:9").unwrap();
    assert!(leaves_outside(), "the cable shows what leaves");
}
