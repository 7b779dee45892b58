//! Tests that a user without privileges reaches protected destinations through a strict NAT, and that nobody else does.
//! The user runs `connect`, `run` and `proxy`, and programs in several languages.

mod embedded;
mod programs;
mod proxy;
mod rough;
mod stage;

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lab::nobody::{said, succeed};
use lab::service::call;
use lab::world::{DARK4, DARK6, ECHO, FRONT4, FRONT6};
use lab::{Capture, Nobody, poll, test};
use serde_json::Value;
use stage::Stage;
use wire::DropReason;

const SOON: Duration = Duration::from_secs(10);
const QUIET: Duration = Duration::from_millis(400);

fn echo() -> SocketAddr {
    format!("{FRONT4}:{ECHO}").parse().expect("an address")
}

fn json(text: &str) -> Result<Value> {
    serde_json::from_str(text).with_context(|| format!("no JSON: {text}"))
}

#[test]
fn ssh_owns_the_connection_that_connect_passes() {
    test(|| {
        let stage = Stage::new()?;
        let nobody = stage.alice()?;
        let key = nobody.write("key", std::fs::read(stage.services.sshd.key())?, 0o600)?;
        let program = nobody.path("vouchsafe").display().to_string();
        for (host, flag, fd) in [(FRONT4, "--pass-fd", "yes"), (FRONT6, "-F", "yes"), (FRONT4, "", "no")] {
            let mut ssh = nobody.command("ssh");
            ssh.args(["-F", "none", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no", "-o", "LogLevel=ERROR"]);
            ssh.args(["-o", "UserKnownHostsFile=/dev/null", "-o", &format!("ProxyUseFdpass={fd}")]);
            ssh.args(["-o", &format!("ProxyCommand={program} connect {flag} %h %p"), "-i"]).arg(&key);
            let text = succeed(ssh.args(["-l", "root", host, "echo $SSH_CONNECTION"]))?;
            ensure!(text.contains(host), "{text}");
        }
        let grants = json(&succeed(&mut nobody.vouchsafe(["grants", "list", "--json"]))?)?;
        ensure!(grants["grants"].as_array().is_some_and(|list| list.len() == 2), "one for each address: {grants}");
        Ok(())
    });
}

#[test]
fn connect_is_a_plain_pipe() {
    test(|| {
        let stage = Stage::new()?;
        let nobody = stage.alice()?;
        for host in [FRONT4, DARK6] {
            let mut connect = nobody.vouchsafe(["connect", host, &ECHO.to_string()]);
            let mut child = connect.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
            let (mut input, mut output) = (child.stdin.take().context("in")?, child.stdout.take().context("out")?);
            let mut heard = [0; 9];
            input.write_all(b"one by on")?;
            output.read_exact(&mut heard)?;
            ensure!(&heard == b"one by on", "{heard:?}");
            drop(input);
            ensure!(child.wait()?.success(), "the end of the input ends the connection");
        }
        Ok(())
    });
}

#[test]
fn status_ping_and_logout_know_the_users_own_session() {
    test(|| {
        let stage = Stage::new()?;
        let nobody = Nobody::new(&stage.network.alice)?;
        let before = nobody.vouchsafe(["status"]).output()?;
        ensure!(before.status.code() == Some(1), "{}", said(&before));
        let refused = nobody.vouchsafe(["connect", FRONT4, "7"]).output()?;
        ensure!(refused.status.code() == Some(1) && said(&refused).contains("vouchsafe login"), "{}", said(&refused));
        let text = nobody.login(&stage.authority, "alice")?;
        ensure!(text.contains("vouchsafe connect"), "{text}");
        let status = json(&succeed(&mut nobody.vouchsafe(["status", "--json"]))?)?;
        ensure!(status["session"]["person"] == "alice" && status["own"].is_string(), "{status}");
        let front = format!("{FRONT4}:{ECHO}");
        for words in [&["ping", &front][..], &["ping", &front, "--udp"], &["ping", &format!("[{FRONT6}]:22")]] {
            let text = succeed(&mut nobody.vouchsafe(words))?;
            ensure!(text.contains("grant") && (text.contains("connected") || text.contains("answered")), "{text}");
        }
        succeed(&mut nobody.vouchsafe(["logout"]))?;
        ensure!(nobody.vouchsafe(["status"]).output()?.status.code() == Some(1), "still logged in");
        ensure!(stage.authority.grants()?.is_empty(), "grants outlive the session");
        nobody.login(&stage.authority, "alice")?;
        succeed(&mut nobody.vouchsafe(["status"]))?;
        stage.authority.revoke("alice")?;
        let revoked = nobody.vouchsafe(["status"]).output()?;
        ensure!(revoked.status.code() == Some(1) && said(&revoked).contains("not logged in"), "{}", said(&revoked));
        Ok(())
    });
}

#[test]
fn nobody_gets_in_without_a_grant() {
    test(|| {
        let stage = Stage::new()?;
        let mallory = Nobody::new(&stage.network.mallory)?;
        mallory.login(&stage.authority, "mallory")?;
        let nobody = stage.alice()?;
        let seen = || (stage.services.echo.connections(), stage.services.echo.datagrams());
        let before = seen();
        // Try from Alice's machine without her session, and as Mallory, whose session may use no destination.
        ensure!(call(&stage.network.alice, echo(), QUIET).is_err(), "without a token");
        let script = mallory.write("try.py", programs::TRY, 0o644)?;
        let script = script.to_string_lossy();
        for host in [FRONT4, FRONT6, DARK4, DARK6] {
            let tried = mallory.supervised(["/usr/bin/python3", &script, host, "7"]).output()?;
            ensure!(tried.status.code() == Some(1), "{host}: {}", said(&tried));
            let tried = mallory.vouchsafe(["connect", "--wait", "1", host, "7"]).output()?;
            ensure!(!tried.status.success(), "{host}: {}", said(&tried));
        }
        ensure!(seen() == before, "somebody got in: {:?}", seen());
        // A stolen cache of grants must not help a session that does not list their receivers.
        succeed(&mut nobody.vouchsafe(["ping", &format!("{FRONT4}:{ECHO}")]))?;
        ensure!(poll(SOON, || seen().0 == before.0 + 1), "{:?}", seen());
        let cache = std::fs::read(nobody.path(".config/vouchsafe/grants.json"))?;
        mallory.write(".config/vouchsafe/grants.json", cache, 0o600)?;
        let tried = mallory.vouchsafe(["connect", "--wait", "1", FRONT4, "7"]).output()?;
        ensure!(!tried.status.success() && seen().0 == before.0 + 1, "{}", said(&tried));
        Ok(())
    });
}

#[test]
fn a_revoked_person_can_not_connect() {
    test(|| {
        let stage = Stage::new()?;
        let nobody = stage.alice()?;
        let script = nobody.write("try.py", programs::TRY, 0o644)?;
        let words = ["/usr/bin/python3", &script.to_string_lossy(), FRONT4, "7"];
        succeed(&mut nobody.supervised(words))?;
        stage.authority.revoke("alice")?;
        let refused = poll(SOON, || nobody.supervised(words).output().is_ok_and(|output| !output.status.success()));
        ensure!(refused, "a revoked person still connects");
        Ok(())
    });
}

#[test]
fn no_token_leaves_for_addresses_that_the_authority_does_not_list() {
    test(|| {
        let stage = Stage::new()?;
        let nobody = stage.alice()?;
        let capture = Capture::start(&stage.network.alice, "eth0")?;
        // These addresses belong to routers, on which nothing listens.
        for to in ["192.0.2.254", "198.51.100.254"] {
            let tried = nobody.vouchsafe(["connect", "--wait", "1", to, "7"]).output()?;
            ensure!(tried.status.code() == Some(2), "{}", said(&tried));
        }
        let filter = "tcp[tcpflags] & (tcp-syn|tcp-ack) == tcp-syn and dst port 7";
        let sent = || capture.lengths(filter).is_ok_and(|lengths| lengths.len() >= 2);
        ensure!(poll(SOON, sent), "no SYN was seen");
        let lengths = capture.lengths(filter)?;
        ensure!(lengths.iter().all(|(_, length)| *length <= 60), "a SYN with data: {lengths:?}");
        Ok(())
    });
}

#[test]
fn a_machine_or_socket_that_can_not_send_tokens_is_named() {
    test(|| {
        let stage = Stage::new()?;
        let nobody = stage.alice()?;
        stage.network.alice.sysctl("net/ipv4/tcp_fastopen", "0")?;
        let refused = nobody.vouchsafe(["connect", FRONT4, "7"]).output()?;
        ensure!(said(&refused).contains("net.ipv4.tcp_fastopen"), "{}", said(&refused));
        stage.network.alice.sysctl("net/ipv4/tcp_fastopen", "1")?;
        let script = nobody.write("odd.py", programs::ODD_SOCKETS, 0o644)?;
        let odd = succeed(&mut nobody.supervised(["/usr/bin/python3", &script.to_string_lossy(), FRONT4, "7"]))?;
        ensure!(odd.contains("md5 refused") && odd.contains("mptcp") && odd.contains("plain connected"), "{odd}");
        Ok(())
    });
}

#[test]
fn a_verifier_that_does_not_take_streams_is_named() {
    test(|| {
        let mut stage = Stage::new()?;
        // One that only observes refuses such a token, too, and says so: the application would read it.
        for flags in [&["--carriers", "tail"][..], &["--carriers", "tail", "--observe"]] {
            stage.verifier.kill()?;
            stage.verifier.run(flags)?;
            let (before, connections) = (stage.verifier.counters()?, stage.services.echo.connections());
            let nobody = stage.alice()?;
            let refused = nobody.vouchsafe(["connect", "--wait", "2", FRONT4, "7"]).output()?;
            ensure!(said(&refused).contains("carriers"), "{}", said(&refused));
            let since = stage.verifier.counters()?.since(&before);
            ensure!(since.contains_key(DropReason::NoToken.name()), "{since:?}");
            ensure!(stage.services.echo.connections() == connections, "the server got the token");
            let warned = || stage.verifier.log().contains("although this verifier only observes");
            let observes = flags.contains(&"--observe");
            ensure!(poll(SOON, || warned() || !observes) && warned() == observes, "{}", stage.verifier.log());
        }
        Ok(())
    });
}
