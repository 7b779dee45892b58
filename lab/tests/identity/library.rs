//! Tests of the library with which applications ask, in this process and in a Python program.

use std::fs;
use std::io::Read;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;

use anyhow::{Context, Result, ensure};
use lab::embedded::{embed, library};
use lab::world::{ECHO, FRONT4, FRONT6, OPEN4, in_family};
use lab::{Namespace, poll, test};
use whois::{Connection, Error, Misconduct, Verifier};

use crate::web::{WORKER, without_place};
use crate::{SOON, Stage};

/// Connects a client to a listener. Returns both ends, the listener's first.
fn connect(client: &Namespace, listener: &TcpListener) -> Result<(TcpStream, TcpStream)> {
    let at = listener.local_addr()?;
    let outside = client.enter(|| TcpStream::connect_timeout(&at, SOON)).with_context(|| format!("to {at}"))?;
    let (inside, peer) = listener.accept()?;
    ensure!(peer == inside.peer_addr()?);
    Ok((inside, outside))
}

#[test]
fn an_application_asks_and_complains_through_the_library() {
    test(|| {
        let flags = ["--complainants".to_owned(), format!("root={FRONT4}:{ECHO}")];
        let stage = Stage::with_policy(&flags, "", "\n[scores]\nhalf_life = \"1d\"\n")?;
        let verifier = Verifier::at(stage.room.socket());
        let (server, alice) = (&stage.network.server, &stage.network.alice);
        let mut kept = Vec::new();
        for six in [true, false] {
            let at = SocketAddr::new(in_family(six, FRONT4, FRONT6), ECHO);
            let listener = server.enter(|| TcpListener::bind(at)).with_context(|| at.to_string())?;
            let (stream, client) = connect(alice, &listener)?;
            let connection = Connection::accepted(&stream)?;
            let who = verifier.who(&connection)?.with_context(|| format!("nobody is known at {at}"))?;
            let said = (who.person.as_str(), who.device.as_str(), who.receiver.as_str());
            ensure!(said == ("alice", "laptop", "front"), "{who:?}");
            ensure!(without_place(&who.rule) == "staff may use the front", "{who:?}");
            let flows = stage.verifier.flows()?;
            let flow = flows.iter().find(|flow| flow["client"] == connection.client.to_string()).context("no flow")?;
            ensure!(flow["handle"] == who.grant.as_str(), "{flow} is not {who:?}");
            kept.push((connection, stream, client));
        }
        // At an address that is not protected, the same person is a stranger.
        let open: IpAddr = OPEN4.parse()?;
        let listener = server.enter(|| TcpListener::bind((open, ECHO)))?;
        let (stream, _client) = connect(alice, &listener)?;
        ensure!(verifier.who(&Connection::accepted(&stream)?)?.is_none(), "somebody is known at an open address");

        let [(six, ..), (four, ..)] = &kept[..] else { unreachable!("INVARIANT: one connection of each family") };
        ensure!(verifier.complain(four, Misconduct::FailedLogin, None)? == 95);
        ensure!(verifier.complain(four, Misconduct::Abuse, Some(1))? == 94);
        let refused = verifier.complain(six, Misconduct::Abuse, None);
        ensure!(
            matches!(&refused, Err(Error::Refused { status: 403, why }) if why.contains("complainants")),
            "{refused:?}"
        );
        stage.authority.revoke("alice")?;
        let is_unknown = |(connection, ..): &(Connection, TcpStream, TcpStream)| {
            poll(SOON, || matches!(verifier.who(connection), Ok(None)))
        };
        ensure!(kept.iter().all(is_unknown), "a revoked person is still known");
        Ok(())
    });
}

#[test]
fn a_python_server_greets_people_by_name() {
    test(|| {
        let (stage, folder) = (Stage::new()?, library()?);
        let room = &stage.room;
        for (from, name) in
            [(folder.join("libvouchsafe.so"), "libvouchsafe.so"), (embed().join("examples/whois.py"), "whois.py")]
        {
            fs::copy(&from, room.path(name)).with_context(|| from.display().to_string())?;
            fs::set_permissions(room.path(name), fs::Permissions::from_mode(0o755))?;
        }
        let server = &stage.network.server;
        // The server's user may not use ports below 1024 otherwise.
        server.sysctl("net/ipv4/ip_unprivileged_port_start", "0")?;
        let mut command = server.command("setpriv");
        command.args(["--reuid", &WORKER.to_string(), "--clear-groups", "--", "/usr/bin/python3"]);
        command.arg(room.path("whois.py")).args(["0.0.0.0", &ECHO.to_string()]);
        command.env("VOUCHSAFE_LIBRARY", room.path("libvouchsafe.so"));
        command.env("VOUCHSAFE_IDENTITY_SOCKET", room.socket());
        let mut python = server.start(command)?;
        let port = ECHO.to_string();
        let listens = || server.run(["ss", "-Hltn", "sport", "=", &port]).is_ok_and(|text| !text.trim().is_empty());
        ensure!(poll(SOON, || python.exit().is_some() || listens()), "the server does not listen");
        ensure!(python.exit().is_none(), "the server has ended:\n{}", python.log());

        let greeting = |client: &Namespace, host: &str| -> Result<String> {
            let at = SocketAddr::new(host.parse()?, ECHO);
            let mut stream = client.enter(|| TcpStream::connect_timeout(&at, SOON))?;
            stream.set_read_timeout(Some(SOON))?;
            let mut text = String::new();
            stream.read_to_string(&mut text)?;
            Ok(text)
        };
        for (client, host, expected) in [
            (&stage.network.alice, FRONT4, "hello alice\n"),
            (&stage.network.mallory, OPEN4, "hello stranger\n"),
            (&stage.network.alice, OPEN4, "hello stranger\n"),
        ] {
            let text = greeting(client, host)?;
            ensure!(text == expected, "{text:?} in place of {expected:?}\n{}", python.log());
        }
        Ok(())
    });
}
