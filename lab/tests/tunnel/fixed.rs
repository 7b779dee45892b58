//! Tests of a tenant's packets on a path that segment routing fixes, through Linux routers: the core, which checks
//! proofs on ingress, and a verifier off the direct way.

use std::net::{IpAddr, Ipv6Addr};

use anyhow::{Result, ensure};
use datapath::clock;
use datapath::interface::Interface;
use datapath::proofs::Proofs;
use lab::mint::now;
use lab::net::veth;
use lab::segments::{EPOCH_LENGTH, Giver, MAX_LIFETIME, Minted};
use lab::service::{Echo, ask, call, exchange};
use lab::{Namespace, poll, test};
use wire::map::{ProofsConfig, counter};
use wire::packet::{TCP, UDP};
use wire::routing::Hops;
use wire::{DropReason, Segment, SegmentFlags};

use crate::stage::{Core, Endpoint, Tenant};
use crate::{QUIET, SOON, WEB, at, transfer};

const EDGE: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0xa, 0, 0, 0, 0, 1);
const ASIDE: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0xb, 0, 0, 0, 0, 1);

/// Attaches the program of a verifier with this hop to the devices on which packets arrive.
fn verifier(giver: &Giver, host: &Namespace, devices: &[&str], id: &str, hop: Ipv6Addr) -> Result<Proofs> {
    host.address("lo", &format!("{hop}/128"))?;
    for devices in ["all", "default"].iter().chain(devices) {
        host.sysctl(&format!("net/ipv6/conf/{devices}/seg6_enabled"), "1")?;
    }
    let config = ProofsConfig { epoch_length: EPOCH_LENGTH, max_lifetime: MAX_LIFETIME };
    let verifier = host.enter(|| -> Result<Proofs> {
        let mut verifier = Proofs::load(config, 16)?;
        for device in devices {
            verifier.attach(&Interface::named(device)?)?;
        }
        Ok(verifier)
    })?;
    let (epoch, key) = giver.key(id, now())?;
    verifier.learn(giver.authority, epoch, &key)?;
    verifier.stand_before(&[(hop.into(), 128)])?;
    verifier.set_clock(clock::coarse_to_unix())?;
    Ok(verifier)
}

/// Installs a segment along the path at a tenant's endpoint.
fn lead(
    core: &Core,
    from: (&Endpoint, &Tenant),
    to: (&Endpoint, &Tenant),
    service: (u8, u16),
    flags: SegmentFlags,
) -> Result<Minted> {
    let IpAddr::V6(end) = to.0.address else { anyhow::bail!("fixed paths are of IPv6") };
    let (segment, ends) = core.segment(from, to, Some(service));
    let segment = Segment { flags: segment.flags.with(flags, true), ..segment };
    let path = [("edge", EDGE), ("aside", ASIDE), (&*to.0.id, end)];
    let given = core.giver.prove_along(segment, from.1.vni, ends, &path)?;
    let (key, entry) = given.entry(from.1.interface)?;
    from.0.program.segments.set(&key, &entry)?;
    Ok(given)
}

/// Installs a segment in each direction, both along the same verifiers.
fn lead_both(core: &Core, from: (&Endpoint, &Tenant), to: (&Endpoint, &Tenant), service: (u8, u16)) -> Result<Minted> {
    lead(core, to, from, service, SegmentFlags::RETURN)?;
    lead(core, from, to, service, SegmentFlags::REPLY)
}

#[test]
fn a_tenants_packets_take_the_fixed_path_and_no_other() {
    test(|| {
        let core = Core::new()?;
        let (mut a, mut b) = (core.endpoint6(1)?, core.endpoint6(2)?);
        let aside = Namespace::new("aside")?;
        aside.forward()?;
        veth(&aside, "eth0", "2001:db8:b1::2/64", &core.host, "aside", "2001:db8:b1::1/64")?;
        aside.route("default", "2001:db8:b1::1")?;
        core.host.route(&format!("{ASIDE}/128"), "2001:db8:b1::2")?;
        let edge = verifier(&core.giver, &core.host, &["e1", "e2"], "edge", EDGE)?;
        let aside = (verifier(&core.giver, &aside, &["eth0"], "aside", ASIDE)?, aside);
        let (from, to) = (a.tenant(100, 1, "10.0.0.1")?, b.tenant(100, 1, "10.0.0.2")?);
        let echo = Echo::start(&to.host, WEB)?;
        lead_both(&core, (&a, &from), (&b, &to), (TCP, WEB))?;
        let given = lead_both(&core, (&a, &from), (&b, &to), (UDP, WEB))?;
        exchange(&mut call(&from.host, at(&to, WEB), SOON)?)?;
        ask(&from.host, at(&to, WEB), SOON)?;
        let passed = |verifier: &Proofs| verifier.counts().map(|counts| counts[counter::TOKEN as usize]);
        // Packets between the two verifiers are still in transit, and arrive soon.
        let both = || Ok::<_, anyhow::Error>((passed(&edge)?, passed(&aside.0)?));
        ensure!(poll(SOON, || both().is_ok_and(|(edge, aside)| edge > 0 && edge == aside)), "{:?} passed", both());
        ensure!(
            poll(SOON, || b.program.consents.entries().iter().any(|(_, noted)| {
                noted.hops().eq([EDGE, ASIDE].into_iter().map(IpAddr::from).chain([b.address]).filter_map(six))
            })),
            "who answers can show the path"
        );
        drop(echo);

        // Super-packets follow the path, too.
        transfer(&from.host, &to.host, at(&to, WEB), 1 << 20)?;

        // Now the sender's endpoint routes packets by other hops.
        let (key, right) = given.entry(from.interface)?;
        let IpAddr::V6(end) = b.address else { unreachable!("it is of IPv6") };
        let plain = Minted { hops: None, ..given.clone() }.entry(from.interface)?.1;
        let led = |hops: [Ipv6Addr; 3]| Hops::new(&hops).and_then(|hops| plain.along(&hops));
        let neighbour: Ipv6Addr = "2001:db8:b1::2".parse()?;
        let echo = Echo::start(&to.host, WEB)?;
        for (what, entry, stops, reason) in [
            ("another address of the verifier aside", led([EDGE, neighbour, end]), &edge, DropReason::BadTag),
            ("the edge in its place", led([EDGE, EDGE, end]), &edge, DropReason::BadTag),
            ("no route", Some(plain), &b.program.proofs, DropReason::Malformed),
        ] {
            let entry = entry.ok_or_else(|| anyhow::anyhow!("{what}"))?;
            let count = || stops.counts().map(|counts| counts[reason as usize]);
            let before = count()?;
            a.program.segments.set(&key, &entry)?;
            ensure!(ask(&from.host, at(&to, WEB), QUIET).is_err(), "{what}");
            ensure!(poll(SOON, || count().is_ok_and(|count| count > before)), "{what}: not {}", reason.name());
        }
        a.program.segments.set(&key, &right)?;
        ask(&from.host, at(&to, WEB), SOON)?;
        ensure!(echo.datagrams() == 1, "what was led another way never arrived");
        Ok(())
    });
}

fn six(address: IpAddr) -> Option<Ipv6Addr> {
    match address {
        IpAddr::V6(address) => Some(address),
        IpAddr::V4(_) => None,
    }
}
