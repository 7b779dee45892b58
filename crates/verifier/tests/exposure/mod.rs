//! Tests of a service that is bound to all addresses and is reached at addresses that no receiver names.

use super::stage::*;
use super::{XDP_DROP, XDP_PASS};
use datapath::verifier::Sizes;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn6, bind, setsockopt, socket, sockopt};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::time::{Duration, Instant};
use wire::packet::{TCP, UDP};

/// The protected port, and an unprotected one, both open at all addresses.
const PORTS: (u16, u16) = (22, 80);
const SECONDARY: &str = "10.77.0.9";
const MDNS: &str = "224.0.0.251";

fn words(line: &str) -> Vec<&str> {
    line.split(' ').collect()
}

impl Stage {
    /// Protects TCP and UDP, adds addresses to the host, and lets both hosts send everywhere.
    async fn expose(&self) {
        let policy = POLICY.replace("\"tcp/22\"", "[\"tcp/22\", \"udp/22\"]");
        std::fs::write(self.authority.policy(), &policy).unwrap();
        self.apply(&policy).await;
        self.inside(&words(&format!("ip addr add {SECONDARY}/32 dev eth0")));
        self.inside(&words("ip addr add fd77::1/64 dev eth0 nodad"));
        self.inside(&words("ip route add default via 10.77.0.2"));
        self.outside(&words("ip addr add fd77::2/64 dev eth0 nodad"));
        self.outside(&words("ip route add default via 10.77.0.1"));
        for port in [PORTS.0, PORTS.1, 5353] {
            echo(&format!("[::]:{port}"));
            udp_echo(port);
        }
        until("addresses that may be used", || self.link_local()).await;
        let ready = || self.outside(&words("ip -6 addr show dev eth0 tentative")).is_empty().then_some(());
        until("addresses outside that may be used", ready).await;
    }

    /// Returns the host's IPv6 link-local address; `None` until it is usable.
    fn link_local(&self) -> Option<IpAddr> {
        let shown = Command::new("ip").args(words("-o -6 addr show dev eth0 scope link -tentative")).output().unwrap();
        let shown = String::from_utf8(shown.stdout).unwrap();
        let word = shown.split_whitespace().skip_while(|word| *word != "inet6").nth(1)?;
        word.split('/').next()?.parse().ok()
    }

    /// Returns the host's addresses that no receiver names: first unicast, then broadcast and multicast.
    fn unnamed(&self) -> (Vec<IpAddr>, Vec<IpAddr>) {
        let all = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<IpAddr>>();
        let mut own = all(&[SECONDARY, "fd77::1"]);
        own.extend(self.link_local());
        (own, all(&["255.255.255.255", "10.77.0.255", "224.0.0.1", MDNS, "ff02::1"]))
    }

    /// Returns socket addresses for a client to reach these addresses; IPv6 ones name the interface.
    fn ends(&self, addresses: &[IpAddr], port: u16) -> Vec<SocketAddr> {
        let interface: u32 = self.outside(&words("ip -o link show eth0")).split(':').next().unwrap().parse().unwrap();
        let end = |address: &IpAddr| match *address {
            IpAddr::V6(six) => SocketAddrV6::new(six, port, 0, interface).into(),
            IpAddr::V4(_) => SocketAddr::new(*address, port),
        };
        addresses.iter().map(end).collect()
    }

    /// Returns those of `ends` that echo a datagram.
    fn udp_answers(&self, ends: &[SocketAddr]) -> Vec<SocketAddr> {
        let sockets: Vec<(SocketAddr, UdpSocket)> = ends
            .iter()
            .map(|end| {
                let socket = self.socket_at(if end.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" });
                socket.set_broadcast(true).unwrap();
                socket.set_nonblocking(true).unwrap();
                socket.send_to(b"ping", end).unwrap_or_else(|error| panic!("{end}: {error}"));
                (*end, socket)
            })
            .collect();
        std::thread::sleep(DROPPED);
        sockets.iter().filter(|(_, socket)| socket.recv(&mut [0; 16]).is_ok()).map(|(end, _)| *end).collect()
    }

    /// Returns those of `ends` that accept a connection.
    fn tcp_answers(&self, ends: &[SocketAddr]) -> Vec<SocketAddr> {
        ends.iter().filter(|end| self.reaches(**end).is_ok()).copied().collect()
    }

    fn reaches(&self, to: SocketAddr) -> std::io::Result<TcpStream> {
        self.do_outside(move || TcpStream::connect_timeout(&to, DROPPED))
    }

    /// Returns the ends that answer at the port: unicast addresses by TCP and UDP, broadcast and multicast addresses by
    /// UDP.
    fn answers(&self, port: u16) -> Vec<(u8, SocketAddr)> {
        let (own, many) = self.unnamed();
        let (own, many) = (self.ends(&own, port), self.ends(&many, port));
        let tcp = self.tcp_answers(&own).into_iter().map(|end| (TCP, end));
        let udp = self.udp_answers(&[own, many].concat()).into_iter().map(|end| (UDP, end));
        tcp.chain(udp).collect()
    }

    /// Returns the ends that should answer at the port while nothing is protected.
    fn all(&self, port: u16) -> Vec<(u8, SocketAddr)> {
        let (own, many) = self.unnamed();
        let (own, many) = (self.ends(&own, port), self.ends(&many, port));
        let tcp = own.iter().map(|end| (TCP, *end));
        tcp.chain(own.iter().chain(&many).map(|end| (UDP, *end))).collect()
    }
}

/// Echoes datagrams to all addresses of the host, and to a multicast group. Uses a socket per family, because one for
/// both families would receive no IPv4 multicast.
fn udp_echo(port: u16) {
    let four = UdpSocket::bind(("0.0.0.0", port)).unwrap();
    four.join_multicast_v4(&MDNS.parse().unwrap(), &Ipv4Addr::new(10, 77, 0, 1)).unwrap();
    let six = socket(AddressFamily::Inet6, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None).unwrap();
    setsockopt(&six, sockopt::Ipv6V6Only, &true).unwrap();
    bind(six.as_raw_fd(), &SockaddrIn6::from(SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, port, 0, 0))).unwrap();
    for socket in [four, six.into()] {
        std::thread::spawn(move || {
            let mut room = [0; 64];
            while let Ok((length, from)) = socket.recv_from(&mut room) {
                let _ = socket.send_to(&room[..length], from);
            }
        });
    }
}

#[test]
fn a_protected_port_answers_at_no_address_of_the_host() {
    act(|stage| async move {
        stage.expose().await;
        assert_eq!(stage.answers(PORTS.0), stage.all(PORTS.0), "without a verifier everything answers");
        let _verifier = stage.run(&[]).await;
        assert_eq!(stage.answers(PORTS.0), [], "the service at other addresses");
        // Unprotected ports, multicast and broadcast included, work as before, and neighbour discovery still does.
        stage.outside(&words("ip neigh flush dev eth0"));
        for port in [PORTS.1, 5353] {
            assert_eq!(stage.answers(port), stage.all(port), "port {port} is not protected");
        }
        let offer = stage.socket_at("0.0.0.0:67");
        let client = UdpSocket::bind("0.0.0.0:68").unwrap();
        client.set_read_timeout(Some(SOON)).unwrap();
        offer.set_broadcast(true).unwrap();
        offer.send_to(b"offer", "255.255.255.255:68").unwrap();
        assert_eq!(client.recv(&mut [0; 16]).expect("an offer of DHCP"), 5);
    });
}

#[test]
fn an_address_that_the_host_gets_is_protected_at_once() {
    act(|stage| async move {
        stage.expose().await;
        let _verifier = stage.run(&[]).await;
        let kernel = stage.kernel(Sizes::default());
        let is_protected = || kernel.protected.four.keys().iter().any(|key| key.address == [10, 77, 0, 77]);
        let added = Instant::now();
        stage.inside(&words("ip addr add 10.77.0.77/32 dev eth0"));
        until("protection of the address", || is_protected().then_some(())).await;
        // A daemon that waited for its next tick could take up to a second.
        assert!(added.elapsed() < Duration::from_millis(900), "{:?}", added.elapsed());
        assert!(stage.reaches("10.77.0.77:22".parse().unwrap()).is_err());
        stage.inside(&words("ip addr del 10.77.0.77/32 dev eth0"));
        until("the end of its protection", || (!is_protected()).then_some(())).await;
    });
}

#[test]
fn sockets_outside_protection_are_named_and_only_named_leaves_them_there() {
    act(|stage| async move {
        stage.expose().await;
        let mut verifier = stage.run(&[]).await;
        let outside = stage.status().await.outside;
        let ports = |protocol: &str| -> Vec<u16> {
            let of = outside.iter().filter(|socket| socket.protocol == protocol);
            of.map(|socket| socket.address.port()).collect()
        };
        assert!(ports("tcp").contains(&80) && ports("udp").contains(&5353), "{outside:?}");
        assert!(!ports("tcp").contains(&22) && !ports("udp").contains(&22), "{outside:?}");
        verifier.signal(nix::sys::signal::Signal::SIGTERM);
        verifier.end().await;

        let _verifier = stage.run(&["--only-named"]).await;
        assert_eq!(stage.answers(PORTS.0), stage.all(PORTS.0));
        assert!(!stage.connects(SSH), "what is named is protected");
        let status = stage.status().await;
        let ssh = status.outside.iter().find(|socket| socket.address.port() == 22 && socket.protocol == "tcp");
        let at = &ssh.unwrap_or_else(|| panic!("{:?}", status.outside)).at;
        assert!(at.iter().any(|address| address.to_string() == SECONDARY), "{at:?}");
        let (code, text) = stage.cli(&["status"], stage.daemon()).await;
        assert!(code == 0 && text.contains("OUTSIDE PROTECTION") && text.contains(SECONDARY), "{text}");
    });
}

/// Builds an ICMP error from the client to `to`, about a packet that `server` sent to the client.
fn unreachable(to: [u8; 4], server: [u8; 4], client_port: u16) -> Vec<u8> {
    let ip = |protocol: u8, length: u16, from: [u8; 4], to: [u8; 4]| {
        let mut header = vec![0x45, 0];
        header.extend(length.to_be_bytes());
        header.extend([0, 1, 0, 0, 64, protocol, 0, 0]);
        header.extend([from, to].concat());
        header
    };
    let client = [10, 77, 0, 2];
    let mut frame = vec![0; 12];
    frame.extend([8, 0]);
    frame.extend(ip(1, 20 + 8 + 28, client, to));
    frame.extend([3, 3, 0, 0, 0, 0, 0, 0]);
    frame.extend(ip(TCP, 40, server, client));
    frame.extend(PORTS.0.to_be_bytes());
    frame.extend(client_port.to_be_bytes());
    frame.extend([0; 4]);
    frame
}

#[test]
fn an_icmp_error_to_another_address_of_the_host_is_judged() {
    act(|stage| async move {
        stage.expose().await;
        let _verifier = stage.run(&[]).await;
        let kernel = stage.kernel(Sizes::default());
        for to in [[10, 77, 0, 1], [10, 77, 0, 9]] {
            let frame = unreachable(to, [10, 77, 0, 1], 4711);
            assert_eq!(kernel.run(&frame, 1).unwrap().code, XDP_DROP, "{to:?}");
        }
        let elsewhere = unreachable([10, 77, 0, 9], [10, 77, 1, 1], 4711);
        assert_eq!(kernel.run(&elsewhere, 1).unwrap().code, XDP_PASS, "it quotes a packet of another server");
    });
}
