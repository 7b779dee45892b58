//! Tests of optional receivers: everybody reaches them, and whoever brings a token is known.

use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::ensure;
use lab::mint::Mint;
use lab::outsider::{Outsider, Place};
use lab::test;
use lab::world::{FRONT4, FRONT6, PUBLIC4, VERIFIER, in_family};
use wire::packet::TCP;
use wire::{Destination, DropReason};

use crate::web::{HTTP, Page, get};
use crate::{ALICE, Stage, again, front, url, visit};

const SOON: Duration = Duration::from_secs(2);

/// The setting that lets everybody reach nginx.
pub fn everybody() -> [String; 2] {
    ["--optional".into(), format!("{FRONT4}:{HTTP},[{FRONT6}]:{HTTP}")]
}

#[test]
fn a_person_is_known_where_strangers_are_served_too() {
    test(|| {
        let stage = Stage::with(&everybody())?;
        let (alice, mallory) = (&stage.network.alice, &stage.network.mallory);
        for six in [false, true] {
            for path in ["/", "/public/"] {
                let page = get(alice, &url(six, path), &[])?;
                ensure!(page == Page(200, ALICE.into()), "{path}: {page:?}");
            }
            let page = get(mallory, &url(six, "/public/"), &["-H", "X-Vouchsafe-Person: alice"])?;
            ensure!(page == Page(200, "||".into()), "{page:?}");
            let page = get(mallory, &url(six, "/"), &["-H", "X-Vouchsafe-Person: alice"])?;
            ensure!(page.0 == 401, "{page:?}");
        }
        let visits = stage.nginx.visits("", 8)?;
        let known = visits.iter().filter(|line| line.contains("person=\"alice\"")).count();
        let unknown =
            visits.iter().filter(|line| line.contains("person=\"\"") || line.contains("person=\"-\"")).count();
        ensure!((known, unknown) == (4, 4), "{visits:#?}");

        let flows = stage.verifier.flows()?;
        ensure!(!flows.is_empty() && flows.iter().all(|flow| flow["person"] == "alice"), "{flows:#?}");
        let status = stage.verifier.status()?;
        let shown: Vec<_> = status["optional"].as_array().into_iter().flatten().collect();
        ensure!(shown.len() == 2 && shown.iter().all(|one| one["named"] == true), "{shown:?}");
        ensure!(stage.verifier.counters()?.named("stranger") > 0);
        // Only this port is open to everybody.
        let other = SocketAddr::new(in_family(false, FRONT4, FRONT6), 22);
        ensure!(mallory.enter(|| TcpStream::connect_timeout(&other, SOON)).is_err(), "another port is open, too");
        Ok(())
    });
}

#[test]
fn a_forged_token_is_dropped_where_none_would_pass() {
    test(|| {
        let stage = Stage::with(&everybody())?;
        let mut mint = Mint::new(stage.authority.master_key()?, VERIFIER);
        for (six, port) in [(false, 21_000), (true, 21_100)] {
            let outsider = Outsider::new(&stage.network, Place::Home, six)?;
            let address: IpAddr = in_family(six, FRONT4, FRONT6);
            let syn = |port| outsider.syn(port, address, HTTP);
            let to = Destination { address, protocol: TCP, port: HTTP };
            let mut block = mint.block(&mint.grant(77, to, address))?;
            block[39] ^= 1;
            let before = stage.verifier.counters()?.dropped(DropReason::BadTag);
            outsider.send(&syn(port).payload(&block).frame())?;
            ensure!(outsider.came_back(address, SOON).is_empty(), "the server answers a forged token");
            ensure!(stage.verifier.counters()?.dropped(DropReason::BadTag) == before + 1);
            outsider.send(&syn(port + 1).frame())?;
            ensure!(
                !outsider.came_back(address, SOON).is_empty(),
                "the control: the server does not answer a stranger"
            );
        }
        Ok(())
    });
}

/// Alice and Mallory share one public address, and the address translator gives Mallory the port of Alice's connection.
#[test]
fn a_stranger_neither_takes_a_name_nor_takes_one_away() {
    test(|| {
        let stage = Stage::with(&everybody())?;
        let (alice, mallory, router) = (&stage.network.alice, &stage.network.mallory, &stage.network.router);
        let forget = || router.run(["conntrack", "-F"]).map(drop);
        let (_kept, page) = visit(alice, 43_000)?;
        ensure!(page == format!("HTTP/1.1 200 OK\n{ALICE}"), "{page}");
        forget()?;
        mallory.sysctl("net/ipv4/ip_local_port_range", "43000 43000")?;
        let before = stage.verifier.counters()?.dropped(DropReason::NoToken);
        ensure!(
            mallory.enter(|| TcpStream::connect_timeout(&front(false), SOON)).is_err(),
            "Mallory connects where Alice's flow is"
        );
        ensure!(stage.verifier.counters()?.dropped(DropReason::NoToken) > before, "Mallory's SYN did not arrive");
        forget()?;
        let page = stage.ask(43_000, &[])?;
        ensure!(page.0 == 200 && page.1.starts_with("person: alice"), "Alice is not known any more: {page:?}");
        let flow = stage.verifier.whois(format!("{PUBLIC4}:43000").parse()?)?;
        ensure!(flow[0]["person"] == "alice", "{flow}");
        mallory.sysctl("net/ipv4/ip_local_port_range", "43001 43001")?;
        forget()?;
        let (_stream, page) = visit(mallory, 43_001)?;
        ensure!(page.starts_with("HTTP/1.1 401"), "{page}");
        Ok(())
    });
}

#[test]
fn a_revoked_person_is_a_stranger_and_the_token_is_refused() {
    test(|| {
        let stage = Stage::with(&everybody())?;
        let (mut stream, page) = visit(&stage.network.alice, 44_000)?;
        ensure!(page.ends_with(ALICE), "{page}");
        stage.authority.revoke("alice")?;
        let mut page = String::new();
        let lost = lab::poll(SOON, || {
            page = again(&mut stream).unwrap_or_default();
            page.starts_with("HTTP/1.1 401")
        });
        ensure!(lost, "a revoked person is still known: {page}");
        Ok(())
    });
}
