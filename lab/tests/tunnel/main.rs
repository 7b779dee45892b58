//! Tests of tenants of virtual networks behind tunnel endpoints, with consent in every packet (wire.md §8).

mod attacks;
mod fixed;
mod stage;

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lab::service::{Echo, ask, call, exchange};
use lab::transfer::Sink;
use lab::{Namespace, poll, test};
use stage::{Core, MTU, Tenant};
use wire::DropReason;
use wire::SegmentFlags;
use wire::geneve::Encapsulation;
use wire::map::svtep_counter as tunnel;
use wire::packet::{TCP, UDP};

const SOON: Duration = Duration::from_secs(20);
/// Time to wait for an answer that must not come.
const QUIET: Duration = Duration::from_millis(300);
const WEB: u16 = 443;
const OTHER: u16 = 80;

fn at(tenant: &Tenant, port: u16) -> SocketAddr {
    SocketAddr::new(tenant.address, port)
}

#[test]
fn three_tenants_with_the_same_addresses_reach_their_own_by_what_was_consented_to() {
    test(|| {
        let core = Core::new()?;
        let (mut a, mut b, mut c) = (core.endpoint(1)?, core.endpoint(2)?, core.endpoint(3)?);
        let blue = (a.tenant(100, 1, "10.0.0.1")?, b.tenant(100, 1, "10.0.0.2")?);
        let red = (a.tenant(200, 2, "10.0.0.1")?, c.tenant(200, 1, "10.0.0.2")?);
        let green = (b.tenant(300, 2, "10.0.0.1")?, c.tenant(300, 2, "10.0.0.2")?);
        let mut services = Vec::new();
        for (from, to) in
            [((&a, &blue.0), (&b, &blue.1)), ((&a, &red.0), (&c, &red.1)), ((&b, &green.0), (&c, &green.1))]
        {
            core.give_both(from, to, (TCP, WEB))?;
            core.give_both(from, to, (UDP, WEB))?;
            let [web, other] = [WEB, OTHER].map(|port| Echo::start(&to.1.host, port));
            services.push((web?, other?));
            let mut stream = call(&from.1.host, at(to.1, WEB), SOON)?;
            exchange(&mut stream)?;
            ask(&from.1.host, at(to.1, WEB), SOON)?;
            ensure!(call(&from.1.host, at(to.1, OTHER), QUIET).is_err(), "nobody consented to this port");
            ensure!(ask(&from.1.host, at(to.1, OTHER), QUIET).is_err(), "nor here");
            ensure!(call(&to.1.host, at(from.1, WEB), QUIET).is_err(), "nor to be called by whom one may call");
        }
        for (web, other) in &services {
            ensure!((web.connections(), other.connections(), other.datagrams()) == (1, 0, 0), "each got its own only");
        }
        // The third endpoint serves another network with the same addresses. It must not have received a packet.
        ensure!(
            c.program.count(tunnel::UNDELIVERED)? == 0 && c.program.proofs.counts()?[DropReason::BadTag as usize] == 0
        );
        Ok(())
    });
}

/// Sends `bytes` bytes over TCP, and waits until they have arrived.
fn transfer(from: &Namespace, to: &Namespace, at: SocketAddr, bytes: usize) -> Result<()> {
    use std::io::Write;
    let sink = Sink::start(to, at.port())?;
    let mut stream = from.enter(|| std::net::TcpStream::connect_timeout(&at, SOON)).context("connecting")?;
    stream.set_write_timeout(Some(SOON))?;
    stream.write_all(&vec![0x5a; bytes])?;
    ensure!(poll(SOON, || sink.taken() == bytes as u64), "{} of {bytes} bytes arrived", sink.taken());
    Ok(())
}

#[test]
fn super_packets_go_in_and_out_in_one_piece_and_segments_fit() {
    const BYTES: usize = 16 << 20;
    test(|| {
        for (sender, receiver) in [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")] {
            let core = Core::new()?;
            let (mut a, mut b) = (core.endpoint(1)?, core.endpoint(2)?);
            let (from, to) = (a.tenant(100, 1, sender)?, b.tenant(100, 1, receiver)?);
            core.give_both((&a, &from), (&b, &to), (TCP, WEB))?;
            transfer(&from.host, &to.host, at(&to, WEB), BYTES)?;
            let (sent, taken) = (a.program.count(tunnel::SENT)?, b.program.count(tunnel::DELIVERED)?);
            let least = BYTES as u64 / u64::from(2 * MTU);
            ensure!(sent < least && taken < least, "{sent} packets went in, {taken} came out");
            ensure!(a.program.count(tunnel::FAILED)? == 0 && a.program.count(tunnel::TOO_LONG)? == 0);
        }
        Ok(())
    });
}

#[test]
fn super_packets_are_cut_up_where_the_underlay_asks_for_it() {
    test(|| {
        let core = Core::new()?;
        let (mut a, mut b) = (core.endpoint(1)?, core.endpoint(2)?);
        let (from, to) = (a.tenant(100, 1, "10.0.0.1")?, b.tenant(100, 1, "10.0.0.2")?);
        // Without these offloads, the kernel segments super-packets before the underlay, and copies the headers.
        for feature in ["tx-udp_tnl-segmentation", "tx-gso-partial", "tso", "gso", "tx"] {
            a.host.offload("underlay", feature, false)?;
        }
        core.give_both((&a, &from), (&b, &to), (TCP, WEB))?;
        transfer(&from.host, &to.host, at(&to, WEB), 1 << 20)?;
        let counts = b.program.proofs.counts()?;
        ensure!(DropReason::ALL.iter().all(|reason| counts[*reason as usize] == 0), "{counts:?}");
        let (sent, taken) = (a.program.count(tunnel::SENT)?, b.program.count(tunnel::DELIVERED)?);
        ensure!(taken > (1 << 20) / u64::from(MTU) && sent < taken, "{sent} went in, {taken} came out");
        Ok(())
    });
}

#[test]
fn a_sensor_is_heard_and_can_not_be_reached_by_its_hub() {
    test(|| {
        let core = Core::new()?;
        let (mut a, mut b) = (core.endpoint(1)?, core.endpoint(2)?);
        let (sensor, hub) = (a.tenant(100, 1, "10.0.0.1")?, b.tenant(100, 1, "10.0.0.2")?);
        let echo = Echo::start(&hub.host, WEB)?;
        core.give((&a, &sensor), (&b, &hub), Some((UDP, WEB)), SegmentFlags(0))?;
        ensure!(ask(&sensor.host, at(&hub, WEB), QUIET).is_err(), "the hub answers");
        ensure!(poll(SOON, || echo.datagrams() == 1), "the hub hears");
        ensure!(b.program.consents.keys().is_empty(), "there is nothing to show to the authority");
        ensure!(ask(&hub.host, at(&sensor, WEB), QUIET).is_err() && a.program.count(tunnel::DELIVERED)? == 0);
        // With the flag REPLY, the receiver's endpoint records a consent, and the authority makes of it the segment
        // that leads back.
        core.give((&a, &sensor), (&b, &hub), Some((UDP, WEB)), SegmentFlags::REPLY)?;
        ensure!(ask(&sensor.host, at(&hub, WEB), QUIET).is_err(), "nobody has asked for the way back yet");
        let mut noted = Vec::new();
        ensure!(poll(SOON, || {
            noted = b.program.consents.entries();
            noted.len() == 1
        }));
        let (shown, _) = Encapsulation::decode(noted[0].1.geneve()).ok().context("it is as it was sent")?;
        ensure!(shown.segment.pointer == 0 && shown.segment.flags.has(SegmentFlags::REPLY));
        core.give((&b, &hub), (&a, &sensor), Some((UDP, WEB)), SegmentFlags::RETURN)?;
        ask(&sensor.host, at(&hub, WEB), SOON)?;
        ensure!(ask(&hub.host, at(&sensor, WEB), QUIET).is_err(), "the way back is for answers only");
        Ok(())
    });
}

#[test]
fn withdrawn_consent_lets_nothing_through_that_is_sent_afterwards() {
    test(|| {
        let core = Core::new()?;
        let (mut a, mut b) = (core.endpoint(1)?, core.endpoint(2)?);
        let (from, to) = (a.tenant(100, 1, "10.0.0.1")?, b.tenant(100, 1, "10.0.0.2")?);
        let given = core.give((&a, &from), (&b, &to), Some((UDP, WEB)), SegmentFlags(0))?;
        let receiver = to.host.enter(|| UdpSocket::bind(("0.0.0.0", WEB)))?;
        let sender = from.host.enter(|| UdpSocket::bind("0.0.0.0:0"))?;
        receiver.set_nonblocking(true)?;
        let (sent, heard, end) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
        let hear = || {
            let mut number = [0; 8];
            while let Ok(8) = receiver.recv(&mut number) {
                heard.fetch_max(u64::from_le_bytes(number), SeqCst);
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !end.load(SeqCst) {
                    // Count before sending, so that no datagram is missed.
                    let number = sent.fetch_add(1, SeqCst) + 1;
                    let _ = sender.send_to(&number.to_le_bytes(), at(&to, WEB));
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            let outcome = (|| {
                let flows = poll(SOON, || {
                    hear();
                    heard.load(SeqCst) > 5
                });
                ensure!(flows, "what was consented to arrives");
                b.program.proofs.withdraw(to.vni, to.address, Some(from.address), given.segment.expires)?;
                let last = sent.load(SeqCst);
                let revoked = || b.program.proofs.counts().map(|counts| counts[DropReason::Revoked as usize]);
                ensure!(poll(SOON, || revoked().is_ok_and(|count| count > 20)), "{} were stopped", revoked()?);
                hear();
                ensure!(heard.load(SeqCst) <= last, "{} came through after {last}", heard.load(SeqCst));
                Ok(())
            })();
            end.store(true, SeqCst);
            outcome
        })
    });
}
