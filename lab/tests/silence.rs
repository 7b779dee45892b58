//! Tests that an outsider gets no answer from a protected port, for any probe, and in any state of the verifier and of
//! clients that share the outsider's address.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lab::forge::protocol::TCP;
use lab::probe::Target;
use lab::service::{ask, call, exchange};
use lab::watch::{self, Finding};
use lab::world::{DARK4, DARK6, ECHO, FRONT4, FRONT6, OPEN4, OPEN6, POOL, SSH, Way, in_family};
use lab::{Outsider, Place, Port, World, test};

const SOON: Duration = Duration::from_secs(5);
/// Time to wait for an answer that must not come.
const QUIET: Duration = Duration::from_millis(300);

/// Returns the targets: a TCP port, a port of TCP and UDP, and a host on which every service is protected.
fn targets(outsider: &Outsider) -> [Target; 3] {
    let six = outsider.source.is_ipv6();
    let front = target(outsider, in_family(six, FRONT4, FRONT6));
    let dark = target(outsider, in_family(six, DARK4, DARK6));
    [Target { port: SSH, protocol: Some(TCP), ..front }, front, Target { whole_host: true, ..dark }]
}

fn target(outsider: &Outsider, address: IpAddr) -> Target {
    Target { address, port: ECHO, protocol: None, source: outsider.source, macs: outsider.macs(), whole_host: false }
}

/// Sends the suite. Fails if the target (or, next door, any host) answers, or if a packet passes the verifier.
fn nothing_comes_of_it(world: &World, outsider: &Outsider, place: Place, at: Target) -> Result<()> {
    let behind = Port::open(&world.network.server, "eth0")?;
    let findings = watch::run(outsider.port(), &at, QUIET)?;
    ensure!(findings.len() > 40, "only {} probes were sent", findings.len());
    let loud =
        |finding: &&Finding| !finding.answers.is_empty() || (place == Place::NextDoor && !finding.remarks.is_empty());
    let loud: Vec<_> = findings.iter().filter(loud).collect();
    ensure!(loud.is_empty(), "{} port {}: {loud:#?}", at.address, at.port);
    let through = watch::came_through(&behind, &Target { source: outsider.shown, ..at });
    ensure!(through.is_empty(), "{} port {}: reached the server: {through:#?}", at.address, at.port);
    Ok(())
}

fn nothing_is_heard(outsider: &Outsider) -> Result<()> {
    for at in targets(outsider) {
        let findings = watch::run(outsider.port(), &at, Duration::from_millis(20))?;
        let loud: Vec<_> = watch::answered(&findings).collect();
        ensure!(loud.is_empty(), "{loud:#?}");
    }
    Ok(())
}

fn all_targets(world: &World, when: &str) -> Result<()> {
    for six in [false, true] {
        for place in [Place::NextDoor, Place::Home] {
            let outsider = Outsider::new(&world.network, place, six)?;
            for at in targets(&outsider) {
                nothing_comes_of_it(world, &outsider, place, at)
                    .with_context(|| format!("{when} the admitted flow, {place:?}"))?;
            }
        }
    }
    Ok(())
}

#[test]
fn nothing_before_during_and_after_an_admitted_flow_of_the_same_address() {
    test(|| {
        let world = World::new(Way::Nat)?;
        all_targets(&world, "before")?;
        let services = [false, true].map(|six| [in_family(six, FRONT4, FRONT6), in_family(six, DARK4, DARK6)]);
        let services: Vec<SocketAddr> = services.concat().iter().map(|address| (*address, ECHO).into()).collect();
        let mut flows = Vec::new();
        for to in &services {
            flows.push(call(&world.network.alice, *to, SOON)?);
            ask(&world.network.alice, *to, SOON)?;
        }
        let end = AtomicBool::new(false);
        thread::scope(|scope| -> Result<()> {
            let talk = scope.spawn(|| -> Result<Vec<_>> {
                while !end.load(Relaxed) {
                    flows.iter_mut().try_for_each(exchange).context("alice's flow")?;
                    thread::sleep(Duration::from_millis(5));
                }
                Ok(flows)
            });
            let seen = all_targets(&world, "during");
            end.store(true, Relaxed);
            talk.join().ok().context("alice's thread panicked")??;
            seen
        })?;
        all_targets(&world, "after")
    });
}

/// If a router before the server runs the verifier, the router does not answer either.
#[test]
fn nothing_at_a_gateway_whether_or_not_it_gives_addresses() {
    test(|| {
        for flags in [&[][..], &["--pool", POOL]] {
            let world = World::behind_gateway(Way::Nat, flags)?;
            let suite = |place| -> Result<()> {
                for six in [false, true] {
                    let outsider = Outsider::new(&world.network, place, six)?;
                    for at in targets(&outsider) {
                        let address = at.address;
                        nothing_comes_of_it(&world, &outsider, place, at).with_context(|| format!("{flags:?}"))?;
                        let served = world.services.echo.connections() + world.services.echo.datagrams();
                        // Behind a gateway, packets may have any source address that the gateway assigns.
                        let through = if served == 0 { outsider.got_through(address) } else { Vec::new() };
                        ensure!(through.is_empty(), "{flags:?}: {through:#?}");
                    }
                }
                Ok(())
            };
            suite(Place::Home)?;
            suite(Place::NextDoor)?;
            let to = (in_family(false, FRONT4, FRONT6), ECHO).into();
            let mut flow = call(&world.network.alice, to, SOON)?;
            suite(Place::NextDoor).context("beside an admitted flow")?;
            exchange(&mut flow)?;
        }
        Ok(())
    });
}

#[test]
fn nothing_while_the_verifiers_daemon_restarts() {
    test(|| {
        let mut world = World::new(Way::Nat)?;
        let outsiders = [false, true].map(|six| Outsider::new(&world.network, Place::NextDoor, six));
        let mut behind = Vec::new();
        for outsider in outsiders {
            behind.push((Port::open(&world.network.server, "eth0")?, outsider?));
        }
        let end = AtomicBool::new(false);
        let verifier = &mut world.verifier;
        let restarts = AtomicU32::new(0);
        thread::scope(|scope| -> Result<()> {
            let restarting = scope.spawn(|| -> Result<()> {
                while !end.load(Relaxed) {
                    verifier.kill()?;
                    verifier.run(&[])?;
                    restarts.fetch_add(1, Relaxed);
                }
                Ok(())
            });
            let (mut rounds, mut seen) = (0, Ok(()));
            // How many restarts a round covers depends on the machine.
            while seen.is_ok() && !restarting.is_finished() && (rounds < 5 || restarts.load(Relaxed) < 3) {
                seen = behind.iter().try_for_each(|(_, outsider)| nothing_is_heard(outsider));
                rounds += 1;
            }
            end.store(true, Relaxed);
            restarting.join().ok().context("the restarting thread panicked")??;
            seen
        })?;
        for (port, outsider) in &behind {
            for at in targets(outsider) {
                let through = watch::came_through(port, &Target { source: outsider.shown, ..at });
                ensure!(through.is_empty(), "reached the server: {through:#?}");
            }
        }
        Ok(())
    });
}

/// Control: a suite that sent nothing would find silence everywhere.
#[test]
fn the_suite_hears_a_host_that_is_not_protected() {
    test(|| {
        let world = World::new(Way::Nat)?;
        for six in [false, true] {
            for place in [Place::NextDoor, Place::Home] {
                let outsider = Outsider::new(&world.network, place, six)?;
                let open = target(&outsider, in_family(six, OPEN4, OPEN6));
                let at = Target { whole_host: true, ..open };
                let behind = Port::open(&world.network.server, "eth0")?;
                let findings = watch::run(outsider.port(), &at, QUIET)?;
                let heard: Vec<_> = watch::answered(&findings).map(|finding| finding.name.as_str()).collect();
                // A strict NAT drops an ACK that belongs to no connection.
                let ack = Some("TCP ACK").filter(|_| place == Place::NextDoor);
                let names = ["TCP SYN", "TCP SYN, fragments in reverse", "UDP", "UDP from port 53", "any of these"];
                for name in names.into_iter().chain(ack) {
                    ensure!(heard.contains(&name), "{place:?}: no answer to {name}, only to {heard:?}");
                }
                let through = watch::came_through(&behind, &Target { source: outsider.shown, ..at });
                ensure!(through.len() > 20, "{place:?}: only {} packets arrived", through.len());
            }
        }
        Ok(())
    });
}

#[test]
fn the_command_says_by_its_exit_code_whether_a_host_is_silent() {
    test(|| {
        let world = World::new(Way::Nat)?;
        for (address, port, code) in [(FRONT4, "22", 0), (OPEN4, "22", 1), (FRONT6, "22", 0), (OPEN6, "22", 1)] {
            let mut command = world.network.mallory.command(env!("CARGO_BIN_EXE_lab"));
            command.args(["silence", "--target", address, "--port", port, "--protocol", "tcp", "--patience", "1"]);
            let output = command.arg("--json").output()?;
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            ensure!(output.status.code() == Some(code), "{address}: {}\n{text}{output:?}", output.status);
            let said: serde_json::Value = serde_json::from_str(&text)?;
            ensure!(said["silent"] == (code == 0) && said["probes"].as_array().is_some_and(|all| all.len() > 30));
        }
        Ok(())
    });
}
