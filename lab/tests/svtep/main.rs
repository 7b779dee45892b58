//! Tests of tunnel endpoints as operators run them: daemons, a real authority, tenants in namespaces, consent per
//! application.

mod paths;
mod stage;
mod stream;

use std::fs;
use std::net::UdpSocket;
use std::time::Duration;

use anyhow::{Result, ensure};
use lab::service::{Echo, ask, call, exchange};
use lab::world::{AUTHORITY, Prover};
use lab::{poll, test};
use serde_json::Value;
use stage::{Core, Endpoint, Tenant, receiver};
use stream::Stream;

const SOON: Duration = Duration::from_secs(20);
/// Time to wait for an answer that must not come.
const QUIET: Duration = Duration::from_millis(300);
const WEB: u16 = 443;
const OTHER: u16 = 80;
const BOTH: &str = "\"tcp/443\", \"udp/443\"";

#[test]
fn three_tenants_with_the_same_addresses_reach_their_own_by_what_the_authority_consents_to() {
    test(|| {
        let mut core = Core::new()?;
        let (mut a, mut b, mut c) = (core.host(1)?, core.host(2)?, core.host(3)?);
        let [blue, red, green] = [("blue", 100), ("red", 200), ("green", 300)];
        core.networks(&[blue, red, green]);
        for (to, verifier) in [(1, "endpoint-1"), (2, "endpoint-2"), (3, "endpoint-3")] {
            core.path(to, &[verifier]);
        }
        let of_blue = (core.tenant(&mut a, blue, 1, "10.0.0.1")?, core.tenant(&mut b, blue, 1, "10.0.0.2")?);
        let of_red = (core.tenant(&mut a, red, 2, "10.0.0.1")?, core.tenant(&mut c, red, 1, "10.0.0.2")?);
        let of_green = (core.tenant(&mut b, green, 2, "10.0.0.1")?, core.tenant(&mut c, green, 2, "10.0.0.2")?);
        let policy = |network| receiver(network, "10.0.0.2", BOTH, "reply = true");
        core.apply(&["blue", "red", "green"].map(policy).concat())?;
        let (a, b, c) = (core.run(a)?, core.run(b)?, core.run(c)?);
        let mut services = Vec::new();
        for (from, to) in [&of_blue, &of_red, &of_green] {
            let [web, other] = [WEB, OTHER].map(|port| Echo::start(&to.net, port));
            services.push((web?, other?));
            exchange(&mut call(&from.net, to.at(WEB), SOON)?)?;
            ask(&from.net, to.at(WEB), SOON)?;
            ensure!(call(&from.net, to.at(OTHER), QUIET).is_err(), "nobody consented to this port");
            ensure!(ask(&from.net, to.at(OTHER), QUIET).is_err(), "nor here");
            let unasked = Echo::start(&from.net, WEB)?;
            ensure!(
                call(&to.net, from.at(WEB), QUIET).is_err() && unasked.connections() == 0,
                "nor by whom one may call"
            );
        }
        // The tenant uses an address that is not its own.
        of_blue.0.net.address("eth0", "10.0.0.9/24")?;
        let spoofing = of_blue.0.net.enter(|| UdpSocket::bind("10.0.0.9:0"))?;
        spoofing.send_to(b"it's me", of_blue.1.at(WEB))?;
        ensure!(poll(SOON, || a.svtep.count("packets", "spoofed").is_ok_and(|count| count > 0)), "who is it from?");
        for (web, other) in &services {
            ensure!((web.connections(), other.connections(), other.datagrams()) == (1, 0, 0), "each got its own only");
            ensure!(web.clients().into_iter().eq([of_blue.0.address]), "and from whom it is said");
        }
        for endpoint in [&a, &b, &c] {
            ensure!(
                endpoint.svtep.count("reasons", "bad_tag")? == 0
                    && endpoint.svtep.count("packets", "undelivered")? == 0
            );
            ensure!(endpoint.svtep.count("answers", "failed")? == 0, "{}", endpoint.svtep.log());
            ensure!(!endpoint.svtep.log().contains("ERROR"), "{}", endpoint.svtep.log());
        }
        let segments = a.svtep.segments()?;
        let blue = segments.iter().find(|one| one["network"] == "blue" && one["port"] == WEB && one["protocol"] == 6);
        ensure!(blue.is_some_and(|one| one["state"] == "given" && one["endpoint"] == "192.0.2.10"), "{segments:?}");
        Ok(())
    });
}

/// Creates a network with a tenant behind each of two endpoints. The second tenant is the receiver.
fn pair(core: &mut Core, path: &[&str], policy: &str) -> Result<[(Endpoint, Tenant); 2]> {
    let (mut a, mut b) = (core.host(1)?, core.host(2)?);
    core.networks(&[("blue", 100)]);
    core.path(1, &["endpoint-1"]);
    core.path(2, path);
    let from = core.tenant(&mut a, ("blue", 100), 1, "10.0.0.1")?;
    let to = core.tenant(&mut b, ("blue", 100), 2, "10.0.0.2")?;
    core.apply(policy)?;
    Ok([(core.run(a)?, from), (core.run(b)?, to)])
}

/// Checks that `svtep check` finds exactly one fault, which contains this text, as JSON and as a table.
fn finds(endpoint: &Endpoint, text: &str) -> Result<()> {
    let (is_fine, json) = endpoint.svtep.check(&["--json"])?;
    let found: Vec<Value> = serde_json::from_str(&json)?;
    let faults: Vec<_> = found.iter().filter_map(|one| one["fault"].as_str()).collect();
    ensure!(!is_fine && faults.len() == 1 && faults[0].contains(text), "{text}: {json}");
    let (is_fine, table) = endpoint.svtep.check(&[])?;
    ensure!(!is_fine && table.contains(text), "{table}");
    Ok(())
}

#[test]
fn a_check_compares_tenants_with_the_authority_which_lists_their_segments() {
    test(|| {
        let mut core = Core::new()?;
        let policy = receiver("blue", "10.0.0.2", BOTH, "reply = true");
        let [(a, from), (_b, to)] = pair(&mut core, &["endpoint-2"], &policy)?;
        let _web = Echo::start(&to.net, WEB)?;
        exchange(&mut call(&from.net, to.at(WEB), SOON)?)?;
        let listed = core.authority.segments(&["--network", "blue", "--person", "host-1"])?;
        ensure!(listed.contains("10.0.0.1 to 10.0.0.2") && listed.contains("in force; "), "{listed}");
        let json: Value = serde_json::from_str(&core.authority.segments(&["--json"])?)?;
        ensure!(json["total"] == 2 && json["segments"].as_array().is_some_and(|all| all.len() == 2), "{json}");
        ensure!(core.authority.segments(&["--person", "host-3"])?.contains("no segment is in force"));
        ensure!(core.authority.segments(&["--network", "green"]).is_err(), "there is no such network");

        ensure!(a.svtep.check(&["--json"])?.0, "{}", a.svtep.check(&[])?.1);
        let file = core.authority.dir().join("networks.toml");
        let networks = fs::read_to_string(&file)?;
        let tenant = "address = \"10.0.0.1\"\nendpoint = \"192.0.2.6\"\ninterface = 1\nasked_by = \"person:host-1\"";
        let said = |text: &str, tenant: &str| -> Result<()> {
            ensure!(networks.contains(tenant), "{networks}");
            fs::write(&file, networks.replace(tenant, text))?;
            core.authority.apply(&format!("[groups]\nhosts = []\n{policy}")).map(drop)
        };
        for (text, fault) in [
            (tenant.replace("interface = 1", "interface = 7"), "its interface id is 7 at the authority and 1 here"),
            (tenant.replace("host-1", "host-2"), "only person:host-2 request segments for this address"),
            (
                format!(
                    "{tenant}\n[[places]]\nnetwork = \"blue\"\naddress = \"10.0.0.9\"\nendpoint = \
                     \"192.0.2.6\"\ninterface = 9"
                ),
                "no tenant here has this id",
            ),
            (tenant.replace("192.0.2.6", "192.0.2.10"), "no network of this name, or places no address of the network"),
            (
                tenant.replace("10.0.0.1\"", "10.0.0.0/24\"")
                    + "\n[[places]]\nnetwork = \"blue\"\naddress = \"10.0.0.1\"\nendpoint = \"192.0.2.10\"\ninterface = 1",
                "behind another endpoint",
            ),
        ] {
            said(&text, tenant)?;
            if fault == "behind another endpoint" {
                // The network around this place then has no tenant either.
                ensure!(a.svtep.check(&[])?.1.contains(fault), "{}", a.svtep.check(&[])?.1);
            } else {
                finds(&a, fault)?;
            }
        }
        said(tenant, tenant)?;
        ensure!(a.svtep.check(&[])?.0, "{}", a.svtep.check(&[])?.1);
        core.authority.remove_service("host-1")?;
        finds(&a, "the account cannot log in")?;
        core.authority.stop()?;
        finds(&a, "nothing was compared with the authority's configuration")?;
        Ok(())
    });
}

#[test]
fn the_receivers_withdrawal_cuts_a_live_flow_where_it_begins_and_where_it_ends() {
    test(|| {
        let mut core = Core::new()?;
        let policy = receiver("blue", "10.0.0.2", BOTH, "");
        let [(mut a, from), (b, to)] = pair(&mut core, &["endpoint-2"], &policy)?;
        let stream = Stream::start(&from, &to, WEB)?;
        ensure!(poll(SOON, || stream.heard() > 50), "what was consented to arrives");
        let count = |endpoint: &Endpoint, list: &str, name: &str| endpoint.svtep.count(list, name).unwrap_or_default();

        let cut = stream.cut(|| core.apply(""), || count(&a, "packets", "refused") > 20)?;
        println!("withdrawn consent cut a live flow at the sender's endpoint after {cut:?}");
        let before = stream.heard();
        core.apply(&policy)?;
        ensure!(poll(SOON, || stream.heard() > before + 50), "on new consent it goes on: {}", a.svtep.log());

        // If a client keeps sending under a void segment, the receiver's endpoint drops its packets.
        a.svtep.kill()?;
        let revoked = count(&b, "reasons", "revoked");
        let cut = stream.cut(|| core.apply(""), || count(&b, "reasons", "revoked") > revoked + 20)?;
        println!("withdrawn consent cut a live flow at the receiver's endpoint after {cut:?}");
        Ok(())
    });
}

#[test]
fn a_sensor_is_heard_and_only_who_was_asked_for_an_answer_answers() {
    test(|| {
        let mut core = Core::new()?;
        let [silent, asking] = [("\"udp/443\"", ""), ("\"udp/80\"", "reply = true")]
            .map(|(services, terms)| receiver("blue", "10.0.0.2", services, terms));
        let asking = asking.replace("\"blue-web\"", "\"blue-hub\"").replace("\"blue\"\naction", "\"asking\"\naction");
        let [(a, sensor), (b, hub)] = pair(&mut core, &["endpoint-2"], &(silent + &asking))?;
        let (deaf, hears) = (Echo::start(&hub.net, WEB)?, Echo::start(&hub.net, OTHER)?);
        ensure!(ask(&sensor.net, hub.at(WEB), QUIET).is_err(), "the hub answers");
        ensure!(poll(SOON, || deaf.datagrams() == 1), "the hub hears");
        ensure!(b.svtep.status()?["consents"] == 0, "there is nothing to show to the authority");
        ensure!(ask(&hub.net, sensor.at(WEB), QUIET).is_err() && a.svtep.count("packets", "delivered")? == 0);
        ask(&sensor.net, hub.at(OTHER), SOON)?;
        ensure!(hears.datagrams() == 1 && a.svtep.count("packets", "delivered")? == 1);
        ensure!(ask(&hub.net, sensor.at(OTHER), QUIET).is_err(), "the way back is for answers only");
        ensure!(a.svtep.count("packets", "delivered")? == 1);
        Ok(())
    });
}

#[test]
fn a_first_answer_waits_for_nobody() {
    test(|| {
        let mut core = Core::new()?;
        let policy = receiver("blue", "10.0.0.2", BOTH, "reply = true");
        let [(a, from), (b, to)] = pair(&mut core, &["endpoint-2"], &policy)?;
        let _web = Echo::start(&to.net, WEB)?;
        // From here on, the answering endpoint can't reach the authority.
        b.host.net.ip(&format!("route add blackhole {AUTHORITY}/32"))?;
        ask(&from.net, to.at(WEB), SOON)?;
        exchange(&mut call(&from.net, to.at(WEB), SOON)?)?;
        let passed_on = || b.svtep.count("packets", "passed_on").is_ok_and(|count| count == 2);
        ensure!(poll(SOON, passed_on), "one for each service: {}", b.svtep.log());
        ensure!(b.svtep.count("answers", "given")? == 0, "nobody was asked");
        ensure!(b.svtep.count("packets", "control")? >= 2 && b.svtep.count("packets", "delivered")? > 2);
        let back: Vec<_> = b.svtep.segments()?.into_iter().filter(|one| one["back"] == true).collect();
        ensure!(back.len() == 2 && back.iter().all(|one| one["endpoint"] == "192.0.2.6"), "{back:?}");
        ensure!(a.svtep.count("packets", "control")? == 0 && a.svtep.count("reasons", "malformed")? == 0);
        Ok(())
    });
}

#[test]
fn three_verifiers_in_a_row_and_what_is_at_hand_outlives_authority_and_daemon() {
    test(|| {
        let mut core = Core::new()?;
        let policy = receiver("blue", "10.0.0.2", "\"tcp/443\", \"tcp/80\", \"tcp/1000-2000\"", "reply = true");
        let endpoint = stage::address(2);
        let [(mut a, from), (mut b, to)] = pair(&mut core, &["core", "edge", "endpoint-2"], &policy)?;
        let provers = [
            Prover::start(&core.core, &core.authority, "core", &[&endpoint], &["e1"])?,
            Prover::start(&b.host.net, &core.authority, "edge", &[&endpoint], &["underlay"])?,
        ];
        let (_web, _other) = (Echo::start(&to.net, WEB)?, Echo::start(&to.net, OTHER)?);
        let mut stream = call(&from.net, to.at(WEB), SOON)?;
        exchange(&mut stream)?;
        for prover in &provers {
            ensure!(prover.count("computed")? + prover.count("remembered")? > 2 && prover.count("bad_tag")? == 0);
        }
        ensure!(b.svtep.count("packets", "undelivered")? == 0);

        // An authority that has just started may not answer the first datagrams in time. Each port needs a segment.
        let lines = |endpoint: &Endpoint| endpoint.svtep.log().matches("the authority answers by UDP").count();
        let mut ports = 1000..2000;
        let mut by_datagram = |endpoint: &Endpoint, before: usize| {
            poll(SOON, || {
                let asked = ports.next().map(|port| call(&from.net, to.at(port), QUIET));
                asked.is_some() && lines(endpoint) > before
            })
        };
        ensure!(by_datagram(&a, 0), "no line: {}", a.svtep.log());
        let before = lines(&a);
        core.authority.stop()?;
        exchange(&mut stream)?;
        ensure!(call(&from.net, to.at(OTHER), QUIET).is_err(), "nobody could be asked");
        core.authority.run()?;
        exchange(&mut call(&from.net, to.at(OTHER), SOON)?)?;
        ensure!(by_datagram(&a, before), "no other line after the restart: {}", a.svtep.log());

        let delivered = a.svtep.count("packets", "delivered")?;
        a.svtep.stop()?;
        b.svtep.kill()?;
        exchange(&mut stream)?;
        core.authority.stop()?;
        for endpoint in [&mut a, &mut b] {
            endpoint.svtep.run_alone()?;
        }
        exchange(&mut stream)?;
        ensure!(a.svtep.count("packets", "delivered")? > delivered, "it took over what was there");
        core.authority.run()?;
        let back = |endpoint: &Endpoint| endpoint.svtep.status().is_ok_and(|status| status["connected"] == true);
        ensure!(poll(SOON, || back(&a) && back(&b)), "they find the authority again: {}", a.svtep.log());
        ensure!(a.svtep.log().matches("logged in").count() <= 2, "a session is kept: {}", a.svtep.log());

        ensure!(a.svtep.check(&[])?.0, "{}", a.svtep.check(&[])?.1);
        a.svtep.detach()?;
        stream.set_read_timeout(Some(QUIET))?;
        ensure!(exchange(&mut stream).is_err(), "it is in no network any more");
        ensure!(a.svtep.detach().is_err(), "nothing is left to let go of");
        Ok(())
    });
}
