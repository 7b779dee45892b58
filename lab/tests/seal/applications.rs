//! Applications side by side, each treated as its rule says.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream, UdpSocket};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lab::world::{DARK4, ECHO, FRONT4, FRONT6, SOON};
use lab::{Namespace, poll, process, test};

use crate::stage::{PAGE, PRINTER, Stage, WEB, at, nothing_outside, readable};

const ASKED: &str = "/authenticated-by-the-client-and-readable";
const PRINTED: &str = "a confidential page of the printer; ";
const SAID: &str = "a datagram that nobody on the path reads";
const SIX: &str = "a stream over IPv6 that nobody on the path reads";
const NATIVE: &str = "a native stream, which the path may read";

/// Sends text to an echo over TCP, and takes it back.
fn say(stream: &mut TcpStream, text: &str) -> Result<()> {
    let mut heard = vec![0; text.len()];
    stream.set_read_timeout(Some(SOON))?;
    stream.write_all(text.as_bytes())?;
    stream.read_exact(&mut heard)?;
    ensure!(heard == text.as_bytes(), "the echo is another");
    Ok(())
}

fn echo(client: &Namespace, host: &str, text: &str) -> Result<()> {
    let mut stream = client.enter(|| TcpStream::connect_timeout(&at(host, ECHO), SOON)).context("no echo")?;
    (0..5).try_for_each(|_| say(&mut stream, text))
}

fn print(client: &Namespace) -> Result<()> {
    let mut stream = client.enter(|| TcpStream::connect_timeout(&at(FRONT4, PRINTER), SOON)).context("no printer")?;
    let job = PRINTED.repeat(20_000);
    stream.write_all(job.as_bytes())?;
    stream.shutdown(Shutdown::Write)?;
    stream.set_read_timeout(Some(SOON))?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    ensure!(answer == format!("{} bytes printed", job.len()), "the printer says {answer:?}");
    Ok(())
}

fn datagrams(client: &Namespace) -> Result<()> {
    let socket = client.enter(|| UdpSocket::bind("0.0.0.0:0"))?;
    socket.set_read_timeout(Some(Duration::from_millis(500)))?;
    socket.connect(at(FRONT4, ECHO))?;
    for _ in 0..5 {
        let mut heard = [0; 100];
        let answered = poll(SOON, || {
            socket.send(SAID.as_bytes()).is_ok()
                && socket.recv(&mut heard).is_ok_and(|size| &heard[..size] == SAID.as_bytes())
        });
        ensure!(answered, "no echo of a datagram");
    }
    Ok(())
}

/// Checks that the verifier shows how each flow is sealed, and what compression brings.
fn shown(stage: &Stage) -> Result<()> {
    let flows = stage.verifier.flows()?;
    let of = |host: &str, port: u16| -> Result<&serde_json::Value> {
        let server = Some(at(host, port).to_string());
        let flow = flows.iter().find(|flow| flow["server"].as_str().map(str::to_owned) == server);
        Ok(&flow.with_context(|| format!("no flow to {host}, port {port}: {flows:#?}"))?["sealed"])
    };
    for (host, port, treatment, is_compressed) in [
        (FRONT4, 22, "encrypt", false),
        (FRONT4, WEB, "authenticate", false),
        (FRONT4, PRINTER, "encrypt", true),
        (FRONT6, ECHO, "encrypt", false),
    ] {
        let sealed = of(host, port)?;
        ensure!(sealed["treatment"] == treatment && sealed["suite"].is_string(), "{host}, port {port}: {sealed}");
        // The job consists of a text that repeats.
        let is_shorter = sealed["ratio"].as_u64().is_some_and(|ratio| ratio > 300);
        ensure!(is_shorter == is_compressed && sealed["ratio"].is_null() != is_compressed, "{host}, {port}: {sealed}");
    }
    ensure!(of(DARK4, ECHO)?.is_null(), "the native flow is shown as sealed");
    let table = stage.verifier.flow_table()?;
    let line = table.lines().find(|line| line.contains(&format!(":{PRINTER} "))).context("no line of the printer")?;
    ensure!(line.contains("encrypt, aes-") || line.contains("encrypt, chacha20"), "{line}");
    ensure!(line.trim_end().ends_with(":1"), "no compression ratio in {line:?}");
    Ok(())
}

#[test]
fn each_application_has_its_own_treatment_at_the_same_time_over_a_nat() {
    test(|| {
        let stage = Stage::new()?;
        let (alice, cable) = (&stage.network.alice, stage.observe()?);
        let ssh = || -> Result<()> {
            let sshd = &stage.services.sshd;
            let said = process::output(&mut sshd.client(alice, FRONT4.parse()?, &["echo", "hello"]))?;
            ensure!(said.trim() == "hello", "ssh says {said:?}");
            Ok(())
        };
        let curl = || -> Result<()> {
            let url = format!("http://{FRONT4}:{WEB}{ASKED}");
            let got = alice.run(["curl", "--silent", "--show-error", "--max-time", "20", &url])?;
            ensure!(got == PAGE, "curl got {got:?}");
            Ok(())
        };
        thread::scope(|scope| {
            let all = [
                ("ssh", scope.spawn(ssh)),
                ("curl", scope.spawn(curl)),
                ("printer", scope.spawn(|| print(alice))),
                ("UDP", scope.spawn(|| datagrams(alice))),
                ("IPv6", scope.spawn(|| echo(alice, FRONT6, SIX))),
                ("native", scope.spawn(|| echo(alice, DARK4, NATIVE))),
            ];
            all.into_iter().try_for_each(|(name, thread)| thread.join().expect("no panic").context(name))
        })?;
        nothing_outside(&cable)?;
        shown(&stage)?;
        ensure!(!cable.lines(&format!("tcp and host {DARK4}"))?.is_empty(), "the native flow was not native");
        let file = cable.stop()?;
        let read = readable(&file, &[ASKED, PAGE, NATIVE, PRINTED, SAID, SIX])?;
        ensure!(read == [ASKED, PAGE, NATIVE], "the path reads {read:?}");
        Ok(())
    });
}

/// Changes one bit of packets on the path, while it exists.
struct Middlebox<'n>(&'n Namespace);

impl<'n> Middlebox<'n> {
    /// Changes the last bit of the byte at this offset behind the ports, in long packets that match.
    fn new(namespace: &'n Namespace, matches: &str, offset: u32) -> Result<Self> {
        let rules = format!(
            "table ip flip {{\n chain forward {{\n type filter hook forward priority mangle; policy accept;\n {matches} \
             meta length > 300 counter @th,{bits},8 set @th,{bits},8 xor 0x1\n }}\n}}\n",
            bits = offset * 8
        );
        let file = namespace.dir().join("flip.nft");
        std::fs::write(&file, rules)?;
        namespace.run(["nft".as_ref(), "-f".as_ref(), file.as_os_str()])?;
        Ok(Self(namespace))
    }

    /// Returns the number of changed packets.
    fn changed(&self) -> Result<u64> {
        let shown = self.0.run(["nft", "list", "table", "ip", "flip"])?;
        let count = shown.split("packets ").nth(1).and_then(|rest| rest.split(' ').next()?.parse().ok());
        count.context("nft shows no counter")
    }
}

impl Drop for Middlebox<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.0.run(["nft", "delete", "table", "ip", "flip"]) {
            eprintln!("{error:#}");
        }
    }
}

/// Bytes from the ports to the middle of what is sent: of TCP, and of a record behind UDP.
const INSIDE: u32 = 150;

#[test]
fn a_bit_that_changes_on_the_path_is_noticed_in_every_sealed_mode() {
    use crate::stage::{PACKED, QUIET, SIGNED};
    test(|| {
        let stage = Stage::new()?;
        let (alice, internet) = (&stage.network.alice, &stage.network.internet);
        let agent = |name: &str| -> Result<u64> { Ok(stage.agent.status()?["counters"][name].as_u64().unwrap_or(0)) };
        // Does not shrink.
        let mut dice = 7_u32;
        let mut noise = || {
            dice = dice.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (dice >> 24) as u8
        };
        let text: Vec<u8> = (0..900).map(|_| noise()).collect();
        for (mode, port) in [("encrypt", ECHO), ("authenticate", SIGNED), ("compress", PACKED)] {
            let mut stream = alice.enter(|| TcpStream::connect_timeout(&at(FRONT4, port), SOON)).context(mode)?;
            say(&mut stream, "first of all")?;
            for way in ["udp dport 4499", "udp sport 4499"] {
                let before = (agent("tunnel_bad_tag")?, stage.verifier.counters()?.named("record_bad_tag"));
                let middlebox = Middlebox::new(internet, way, INSIDE)?;
                stream.set_read_timeout(Some(QUIET))?;
                stream.write_all(&text)?;
                let mut heard = [0; 1];
                ensure!(stream.read(&mut heard).is_err(), "{mode}, {way}: a changed packet came through");
                ensure!(middlebox.changed()? > 0, "{mode}, {way}: nothing was changed");
                drop(middlebox);
                let after = (agent("tunnel_bad_tag")?, stage.verifier.counters()?.named("record_bad_tag"));
                let noticed = if way.contains("dport") { after.1 > before.1 } else { after.0 > before.0 };
                ensure!(noticed, "{mode}, {way}: nobody noticed: {before:?}, {after:?}");
                stream.set_read_timeout(Some(SOON))?;
                let mut heard = vec![0; text.len()];
                stream.read_exact(&mut heard)?;
                ensure!(heard == text, "{mode}, {way}: what came through is not what was sent");
            }
        }
        // On a native flow, the receiver accepts the data that the middlebox changed. So the middlebox does work.
        let mut stream = alice.enter(|| TcpStream::connect_timeout(&at(DARK4, ECHO), SOON))?;
        say(&mut stream, "first of all")?;
        let middlebox = Middlebox::new(internet, "tcp dport 7", INSIDE)?;
        stream.write_all(&text)?;
        stream.set_read_timeout(Some(SOON))?;
        let mut heard = vec![0; text.len()];
        stream.read_exact(&mut heard)?;
        ensure!(middlebox.changed()? > 0 && heard != text, "the middlebox changes nothing that a reader takes");
        Ok(())
    });
}
