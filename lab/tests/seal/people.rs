//! Two people on one machine: each has a tunnel of their own, and what is revoked of one does not concern the other.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{IpAddr, TcpStream};

use anyhow::{Context, Result, ensure};
use lab::service::{call, exchange};
use lab::world::{ECHO, FRONT4, SOON};
use lab::{Namespace, poll, test};

use crate::stage::{QUIET, Stage, at, nothing_outside};

/// Mallory's user on Alice's machine; Alice is root there.
const USER: u32 = 65_534;

/// Opens a stream as a user.
fn call_as(client: &Namespace, user: u32, port: u16) -> Result<TcpStream> {
    let opened = client.enter(|| {
        // The thread alone becomes the user: the library's function would change them all.
        // SAFETY: these are numbers.
        let done = unsafe { libc::syscall(libc::SYS_setresuid, user, user, user) };
        ensure!(done == 0, "cannot become user {user}");
        Ok(TcpStream::connect_timeout(&at(FRONT4, port), SOON)?)
    })?;
    opened.set_read_timeout(Some(SOON))?;
    Ok(opened)
}

#[test]
fn two_people_on_one_machine_share_no_tunnel() {
    test(|| {
        let stage = Stage::new()?;
        let (alice, cable) = (&stage.network.alice, stage.observe()?);
        stage.agent.login_as(USER, &stage.authority, "mallory")?;
        let mut hers = call(alice, at(FRONT4, ECHO), SOON).context("Alice")?;
        let mut his = call_as(alice, USER, ECHO).context("Mallory")?;
        exchange(&mut his)?;
        exchange(&mut hers)?;
        let clients: BTreeSet<IpAddr> = stage.services.echo.clients();
        ensure!(clients.len() == 2, "the server sees {clients:?}");
        let flows = stage.verifier.flows()?;
        let people: BTreeSet<_> = flows
            .iter()
            .filter(|flow| flow["server"].as_str() == Some(&format!("{FRONT4}:{ECHO}")))
            .filter_map(|flow| Some((flow["person"].as_str()?.to_owned(), flow["client"].as_str()?.to_owned())))
            .collect();
        ensure!(people.len() == 2 && people.iter().any(|(person, _)| person == "mallory"), "{flows:#?}");
        let sealed =
            |flow: &&serde_json::Value| flow["sealed"]["treatment"] == "encrypt" && flow["sealed"]["suite"].is_string();
        ensure!(flows.iter().filter(sealed).count() == 2, "treatment and suite are not shown: {flows:#?}");
        // A revocation cuts one person's flow inside of the tunnel, too, and leaves the other's alone.
        stage.authority.revoke("mallory")?;
        his.set_read_timeout(Some(QUIET))?;
        let cut = poll(SOON, || exchange(&mut his).is_err());
        ensure!(cut, "a flow goes on inside the tunnel after its grant was revoked");
        exchange(&mut hers).context("Alice's flow ended with Mallory's")?;
        ensure!(call_as(alice, USER, ECHO).is_err(), "a person without access got through another's tunnel");
        nothing_outside(&cable)
    });
}

#[test]
fn a_flow_of_a_revoked_grant_is_cut_inside_and_others_of_the_person_go_on() {
    test(|| {
        use crate::stage::SIGNED;
        let stage = Stage::new()?;
        let alice = &stage.network.alice;
        let mut one = call(alice, at(FRONT4, ECHO), SOON)?;
        let mut other = call(alice, at(FRONT4, SIGNED), SOON)?;
        let flows = stage.verifier.flows()?;
        let of_one = flows.iter().find(|flow| flow["server"].as_str() == Some(&format!("{FRONT4}:{ECHO}")));
        let handle = of_one.and_then(|flow| flow["handle"].as_str()).context("the flow is not listed")?;
        stage.authority.revoke_grant(handle)?;
        one.set_read_timeout(Some(QUIET))?;
        ensure!(poll(SOON, || say(&mut one).is_err()), "the flow goes on");
        say(&mut other).context("the other flow ended, too")
    });
}

fn say(stream: &mut TcpStream) -> Result<()> {
    let mut heard = [0; 5];
    stream.write_all(b"again")?;
    stream.read_exact(&mut heard)?;
    ensure!(&heard == b"again", "another answer");
    Ok(())
}
