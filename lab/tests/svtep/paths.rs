//! Tests of fixed paths end to end: an authority, two endpoints and the verifiers between them, all as daemons.
//!
//! ```text
//! tenant ── endpoint 1 ──┐      ┌── first
//!                        ├ core ┼── second, third
//! tenant ── endpoint 2 ──┘      └── authority
//! ```
//!
//! Only the path leads packets to the verifiers: no route does.

use std::net::{Ipv6Addr, SocketAddrV6};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use datapath::routed;
use lab::segments::Giver;
use lab::service::{Echo, ask, call, exchange};
use lab::world::{AUTHORITY, Prover};
use lab::{Namespace, poll, test};
use wire::geneve::{ENCAPSULATION_MAX, PORT, Payload};
use wire::packet::UDP;
use wire::routing::Hops;
use wire::{Ends, InterfaceId, Vni};

use crate::stage::{Core, receiver};
use crate::{BOTH, SOON, WEB};

/// A verifier that is not on the direct way, and its machine.
struct Aside {
    net: Namespace,
    prover: Prover,
    hop: Ipv6Addr,
}

impl Aside {
    fn start(core: &Core, id: &str, number: u8) -> Result<Self> {
        let net = core.router(id, number)?;
        let hop: Ipv6Addr = format!("2001:db8:{number:x}::2").parse()?;
        net.forward()?;
        for devices in ["all", "default", "underlay"] {
            net.sysctl(&format!("net/ipv6/conf/{devices}/seg6_enabled"), "1")?;
        }
        let prover = Prover::start(&net, &core.authority, id, &[&hop.to_string()], &["underlay"])?;
        Ok(Self { net, prover, hop })
    }

    /// Kills the verifier, and makes its machine forward nothing that segment routing leads to it.
    fn fail(&mut self) -> Result<()> {
        self.prover.kill()?;
        self.follow_routes(false)
    }

    fn follow_routes(&self, follows: bool) -> Result<()> {
        self.net.sysctl("net/ipv6/conf/underlay/seg6_enabled", if follows { "1" } else { "0" })
    }

    fn passed(&self) -> Result<u64> {
        Ok(self.prover.count("computed")? + self.prover.count("remembered")?)
    }
}

#[test]
fn a_fixed_path_leads_through_two_verifiers_and_nothing_passes_without_proof() {
    test(|| {
        // An answer by UDP has no room for two such paths.
        let mut core = Core::with("")?;
        core.networks(&[("blue", 100)]);
        let (mut a, mut b) = (core.host6(1)?, core.host6(2)?);
        let hops = ["2001:db8:3::2", "2001:db8:4::2"];
        core.fixed_path([&a, &b], &["first", "second", "endpoint-2"], &hops);
        core.fixed_path([&b, &a], &["second", "first", "endpoint-1"], &[hops[1], hops[0]]);
        let from = core.tenant(&mut a, ("blue", 100), 1, "10.0.0.1")?;
        let to = core.tenant(&mut b, ("blue", 100), 2, "10.0.0.2")?;
        core.apply(&receiver("blue", "10.0.0.2", BOTH, "reply = true"))?;
        let (first, second) = (Aside::start(&core, "first", 3)?, Aside::start(&core, "second", 4)?);
        let [sending, receiving] = [&a, &b].map(|host| host.address.clone());
        let (a, b) = (core.run(a)?, core.run(b)?);

        let web = Echo::start(&to.net, WEB)?;
        exchange(&mut call(&from.net, to.at(WEB), SOON)?)?;
        ask(&from.net, to.at(WEB), SOON)?;
        for aside in [&first, &second] {
            ensure!(aside.passed()? > 4 && aside.prover.count("bad_tag")? == 0, "{}", aside.hop);
            ensure!(aside.prover.count("malformed")? == 0, "{}", aside.hop);
        }
        ensure!(b.svtep.count("packets", "passed_on")? == 2, "both ways came at once: {}", b.svtep.log());
        ensure!(a.svtep.count("packets", "undelivered")? + b.svtep.count("packets", "undelivered")? == 0);
        ensure!(web.datagrams() == 1, "waiting packets take the path, too");

        // Somebody who is no authority makes up proofs for the same path, and one without the flag and the route.
        let mut giver = Giver::new([1; 32]);
        giver.authority = AUTHORITY.parse()?;
        let ends = Ends {
            sending: sending.parse()?,
            receiving: receiving.parse()?,
            sender: from.address,
            receiver: to.address,
        };
        let end: Ipv6Addr = receiving.parse()?;
        let segment = giver.segment(&ends, InterfaceId(2), Some((UDP, WEB)));
        let path = [("first", first.hop), ("second", second.hop), ("endpoint-2", end)];
        let vni = Vni::new(100).context("24 bits")?;
        let forged = giver.prove_along(segment, vni, ends, &path)?;
        let mut header = [0; ENCAPSULATION_MAX];
        let length = forged.encapsulation(Payload::Ipv4).encode(&mut header).context("it has a form")?;
        let inner = lab::forge::Packet::new(from.address, to.address).udp(40_000, WEB).payload(b"no proof").frame();
        let datagram = [&header[..length], &inner[14..]].concat();
        let led = Hops::new(&path.map(|(_, hop)| hop)).context("three hops")?;
        let (before, seen) = (second.passed()?, (first.prover.count("bad_tag")?, web.datagrams()));
        let here: Ipv6Addr = sending.parse()?;
        let to_end = SocketAddrV6::new(end, PORT, 0, 0);
        a.host.net.enter(|| routed::send(here, to_end, &led, &datagram))?;
        ensure!(poll(SOON, || first.prover.count("bad_tag").is_ok_and(|count| count == seen.0 + 1)), "it goes on");
        // The next packet with a proof arrives after the forged one.
        ask(&from.net, to.at(WEB), SOON)?;
        ensure!(second.passed()? > before && second.prover.count("bad_tag")? == 0, "the second verifier saw it");
        ensure!(web.datagrams() == seen.1 + 1 && b.svtep.count("reasons", "bad_tag")? == 0, "the endpoint saw it");
        Ok(())
    });
}

#[test]
fn a_path_with_a_failed_verifier_is_left_for_another_until_it_works_again() {
    test(|| {
        // An answer by UDP has room for both ways of the other path, but not of the first.
        let mut core = Core::new()?;
        core.networks(&[("blue", 100)]);
        let (mut a, mut b) = (core.host6(1)?, core.host6(2)?);
        let hops = ["2001:db8:3::2", "2001:db8:4::2", "2001:db8:5::2"];
        for (ends, verifiers, there) in [
            ([&a, &b], ["first", "second", "endpoint-2"], [hops[0], hops[1]]),
            ([&b, &a], ["second", "first", "endpoint-1"], [hops[1], hops[0]]),
        ] {
            core.fixed_path(ends, &verifiers, &there);
            core.alternative(&["third", verifiers[2]], &[hops[2]]);
        }
        let from = core.tenant(&mut a, ("blue", 100), 1, "10.0.0.1")?;
        let to = core.tenant(&mut b, ("blue", 100), 2, "10.0.0.2")?;
        core.apply(&receiver("blue", "10.0.0.2", BOTH, "reply = true"))?;
        let mut first = Aside::start(&core, "first", 3)?;
        let (second, third) = (Aside::start(&core, "second", 4)?, Aside::start(&core, "third", 5)?);
        let (a, b) = (core.run(a)?, core.run(b)?);
        let _web = Echo::start(&to.net, WEB)?;
        let mut stream = call(&from.net, to.at(WEB), SOON)?;
        exchange(&mut stream)?;
        let path = || a.svtep.status().map(|status| status["paths"][0].clone()).unwrap_or_default();
        let passes = || ask(&from.net, to.at(WEB), Duration::from_millis(200)).is_ok();
        // Probes are sent only while a tenant sends.
        let is_on = |number: u8| {
            let path = path();
            passes() && path["number"] == number && path["answered"] == true
        };
        ensure!(poll(SOON, || is_on(0)), "{}\n{}\n{}", path(), a.svtep.log(), b.svtep.log());
        ensure!(path()["others"] == 1 && path()["changed"].is_null(), "{}", path());
        ensure!(third.passed()? == 0 && second.passed()? > 0, "packets take the first path");
        ensure!(b.svtep.count("packets", "passed_on")? == 0, "endpoint 2 requests segments for its answers itself");

        let failed = Instant::now();
        first.fail()?;
        ensure!(poll(SOON, passes), "no packet passes: {}\n{}\n{}", path(), a.svtep.log(), b.svtep.log());
        println!("packets pass on the other path {:?} after the verifier failed", failed.elapsed());
        exchange(&mut stream)?;
        println!("the connection goes on {:?} after the verifier failed", failed.elapsed());
        ensure!(poll(SOON, || is_on(1)), "{}\n{}", path(), a.svtep.log());
        ensure!(third.passed()? > 0 && path()["changed"].is_number(), "{}", path());
        ensure!(b.svtep.count("packets", "passed_on")? > 0, "the way back comes with the way there");
        let segments = a.svtep.segments()?;
        ensure!(segments.iter().any(|one| one["path"] == 1 && one["endpoint"] == b.host.address), "{segments:?}");

        // The machine works again. The kernel program of its verifier has gone on without the process.
        first.follow_routes(true)?;
        ensure!(poll(Duration::from_secs(90), || is_on(0)), "{}\n{}", path(), a.svtep.log());
        println!("packets take the first path again {:?} after the verifier failed", failed.elapsed());
        exchange(&mut stream)?;
        ensure!(a.svtep.status()?["path_changes"] == 2, "{}", a.svtep.log());
        for (endpoint, log) in [(&a, a.svtep.log()), (&b, b.svtep.log())] {
            ensure!(!log.contains("ERROR") && endpoint.svtep.count("packets", "undelivered")? == 0, "{log}");
        }
        ensure!(a.svtep.log().contains("requesting segments for path 1"), "{}", a.svtep.log());
        Ok(())
    });
}
