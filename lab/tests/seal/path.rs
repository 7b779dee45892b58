//! Datagrams in tunnels over a path that is shorter than the interfaces at its ends: 1280 bytes, in the middle.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lab::service::call;
use lab::world::{ECHO, FRONT4, FRONT6, SOON};
use lab::{Namespace, poll, test};

use crate::stage::{ANSWERS, Stage, at, nothing_outside};

/// MTU of the path.
const MTU: usize = 1280;
/// Bytes of a record and of the tunnel's UDP and IPv4 headers.
const AROUND: usize = 32 + 8 + 20;
/// Bytes of UDP and IP headers inside the tunnel.
const HEADERS: (usize, usize) = (28, 48);
/// Time to wait for an echo that may be lost.
const SHORT: Duration = Duration::from_millis(300);

/// Makes the kernel refuse datagrams that are too long for the path, instead of cutting them into fragments.
fn whole_only(socket: &UdpSocket) -> Result<()> {
    let (level, option) = match socket.local_addr()? {
        SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER),
        SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER),
    };
    let always: libc::c_int = libc::IP_PMTUDISC_DO;
    let length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the value is an int that lives through the call.
    let done =
        unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, std::ptr::from_ref(&always).cast(), length) };
    ensure!(done == 0, "cannot forbid fragments");
    Ok(())
}

/// A socket whose datagrams are never cut into fragments.
fn socket(client: &Namespace, to: SocketAddr) -> Result<UdpSocket> {
    let any: IpAddr = if to.is_ipv4() { [0u8; 4].into() } else { [0u8; 16].into() };
    let socket = client.enter(|| -> Result<UdpSocket> {
        let socket = UdpSocket::bind((any, 0))?;
        whole_only(&socket)?;
        socket.connect(to)?;
        Ok(socket)
    })?;
    socket.set_read_timeout(Some(SHORT))?;
    Ok(socket)
}

/// Makes the cable in the middle take 1280 bytes only.
fn shorten(stage: &Stage) -> Result<()> {
    for (router, device) in [(&stage.network.router, "wan"), (&stage.network.internet, "home")] {
        router.ip(&format!("link set {device} mtu {MTU}"))?;
    }
    Ok(())
}

/// Sends datagrams of this length until one comes back, or until the kernel says that they are too long. Returns
/// whether one came back.
fn passes(socket: &UdpSocket, length: usize) -> Result<bool> {
    let sent: Vec<u8> = (0..length).map(|at| at as u8).collect();
    let mut heard = vec![0; 2000];
    let mut answer = None;
    let _ = poll(SOON, || {
        match socket.send(&sent) {
            Err(error) if error.raw_os_error() == Some(libc::EMSGSIZE) => answer = Some(false),
            Ok(_) | Err(_) => {
                if socket.recv(&mut heard).is_ok_and(|size| heard[..size] == sent) {
                    answer = Some(true);
                }
            }
        }
        answer.is_some()
    });
    answer.with_context(|| format!("a datagram of {length} bytes neither passed nor was refused"))
}

#[test]
fn a_datagram_that_does_not_fit_is_refused_with_the_length_that_fits_in_both_directions() {
    test(|| {
        let stage = Stage::new()?;
        let (alice, cable) = (&stage.network.alice, stage.observe()?);
        // Both ends' own interfaces take 1500 bytes: only ICMP errors tell them.
        shorten(&stage)?;
        for (host, longest) in [(FRONT4, MTU - AROUND - HEADERS.0), (FRONT6, MTU - HEADERS.1)] {
            let socket = socket(alice, at(host, ECHO))?;
            ensure!(passes(&socket, 100).with_context(|| host.to_owned())?, "{host}: nothing passes");
            ensure!(!passes(&socket, 1400)?, "{host}: 1400 bytes passed a path of {MTU}");
            ensure!(passes(&socket, longest)?, "{host}: {longest} bytes, which fit, do not pass");
            ensure!(!passes(&socket, longest + 1)?, "{host}: {} bytes passed", longest + 1);
            // The kernel does not tell programs a shorter length with each answer.
            for _ in 0..20 {
                let _ = socket.send(&vec![0; longest + 1]);
                let _ = socket.send(&vec![0; 1472 - HEADERS.1]);
            }
            ensure!(passes(&socket, longest)?, "{host}: {longest} bytes no longer pass");
        }
        // The kernel cuts a program's datagrams if the program allows it, and they come back.
        let whole = alice.enter(|| UdpSocket::bind("0.0.0.0:0"))?;
        whole.set_read_timeout(Some(SHORT))?;
        whole.connect(at(FRONT4, ECHO))?;
        ensure!(passes(&whole, 2000)?, "a datagram in fragments does not pass");
        ensure!(too_long(&stage)? > 0, "the agent counted nothing");
        nothing_outside(&cable)
    });
}

fn too_long(stage: &Stage) -> Result<u64> {
    let status = stage.agent.status()?;
    status["counters"]["tunnel_too_long"].as_u64().with_context(|| format!("no counter: {status}"))
}

/// Answers each datagram with as many bytes as its number asks for. Returns the lengths that the kernel refused.
fn answers(server: &UdpSocket, wanted: &[usize]) -> Result<Vec<usize>> {
    let mut refused = Vec::new();
    for length in wanted {
        let mut room = [0; 100];
        let (_, client) = server.recv_from(&mut room).context("no question")?;
        match server.send_to(&vec![7; *length], client) {
            Ok(_) => {}
            Err(error) if error.raw_os_error() == Some(libc::EMSGSIZE) => refused.push(*length),
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(refused)
}

#[test]
fn a_server_learns_how_long_its_answers_through_a_tunnel_may_be() {
    test(|| {
        let stage = Stage::new()?;
        shorten(&stage)?;
        let longest = MTU - AROUND - HEADERS.0;
        let server = stage.network.server.enter(|| UdpSocket::bind(at(FRONT4, ANSWERS)))?;
        server.set_read_timeout(Some(SHORT))?;
        whole_only(&server)?;
        let client = socket(&stage.network.alice, at(FRONT4, ANSWERS))?;
        // The first answers of 1390 bytes are lost, until the server's kernel knows better.
        let mut refused = Vec::new();
        let learns = poll(SOON, || {
            // The first question may be lost while there is no tunnel.
            let _ = client.send(b"?");
            refused = answers(&server, &[1390]).unwrap_or_default();
            !refused.is_empty()
        });
        ensure!(learns, "the server's kernel learns nothing: {:?}", stage.verifier.counters()?);
        server.set_read_timeout(Some(SOON))?;
        client.set_read_timeout(Some(SOON))?;
        client.send(b"?")?;
        ensure!(answers(&server, &[longest])?.is_empty(), "{longest} bytes are refused");
        let mut heard = [0; 2000];
        ensure!(client.recv(&mut heard)? == longest, "another length");
        client.send(b"?")?;
        ensure!(answers(&server, &[longest + 1])? == [longest + 1], "{} bytes are sent", longest + 1);
        Ok(())
    });
}

#[test]
fn streams_pass_a_short_path() {
    test(|| {
        let stage = Stage::new()?;
        shorten(&stage)?;
        for host in [FRONT4, FRONT6] {
            let mut stream = call(&stage.network.alice, at(host, ECHO), SOON)?;
            stream.set_read_timeout(Some(SOON))?;
            let mut writer = stream.try_clone()?;
            let sent = vec![0x5a; 2_000_000];
            std::thread::scope(|scope| -> Result<()> {
                let copy = &sent;
                scope.spawn(move || writer.write_all(copy));
                let mut heard = vec![0; sent.len()];
                stream.read_exact(&mut heard).with_context(|| format!("{host}: the stream stalls"))?;
                ensure!(heard == sent, "{host}: other bytes");
                Ok(())
            })?;
        }
        Ok(())
    });
}
