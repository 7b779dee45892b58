//! Measures, for each way in which the rootless client makes connections, the time that it adds to a connect and its
//! effect on the throughput of the connection.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;

use anyhow::{Context, Result};
use lab::nobody::succeed;
use lab::world::{Authority, DARK4, Network, Verifier, Way, policy};
use lab::{Namespace, Nobody};
use measure::{Bound, Figures, Yardstick, quantile};

use crate::connect::{PORT, listen};
use crate::throughput::Rates;

/// Number of rounds of connects, and number of connects in each round.
const ROUNDS: usize = 40;
const CONNECTS: usize = 25;
/// Number of rounds of transfers, and number of bytes in each transfer.
const TRANSFERS: usize = 24;
const BYTES: u64 = 512 << 20;
const SINK: u16 = 9200;
const PROXY: &str = "127.0.0.1:1081";
/// Rate of the path whose throughput is measured: that of a usual network card.
const PATH: &str = "10gbit";

/// A Python program that measures in microseconds how long connects, or the sending of many bytes, take. It runs with
/// and without `vouchsafe run`. A fifth argument is the port of a proxy, or `pass:` or `pipe:` and the path of
/// `vouchsafe`, whose command `connect` then makes the connection.
const PROGRAM: &str = r#"
import socket, subprocess, sys, time
what, host, port, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
if what == "connect":
    for _ in range(count):
        s = socket.socket()
        began = time.perf_counter()
        s.connect((host, port))
        print((time.perf_counter() - began) * 1e6)
        s.close()
elif sys.argv[5:] and sys.argv[5].startswith("pipe:"):
    words, chunk = [sys.argv[5][5:], "connect", host, str(port)], bytes(1 << 20)
    child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
    # The pipe has room for less, so afterwards the connection is there.
    child.stdin.write(chunk[:1 << 17])
    began = time.perf_counter()
    for _ in range(count >> 20):
        left = memoryview(chunk)
        while left:
            left = left[child.stdin.write(left):]
    child.stdin.close()
    child.stdout.read(1)
    print((time.perf_counter() - began) * 1e6)
    child.wait()
else:
    how, chunk = "".join(sys.argv[5:]), bytes(1 << 20)
    proxy = how.isdigit()
    if how.startswith("pass:"):
        ours, theirs = socket.socketpair()
        child = subprocess.Popen([how[5:], "connect", "--pass-fd", host, str(port)], stdout=theirs)
        s = socket.socket(fileno=socket.recv_fds(ours, 16, 1)[1][0])
        assert child.wait() == 0
    else:
        s = socket.create_connection(("127.0.0.1", int(how)) if proxy else (host, port))
    if proxy:
        s.sendall(b"\x05\x01\x00")
        s.recv(2)
        s.sendall(b"\x05\x01\x00\x01" + socket.inet_aton(host) + port.to_bytes(2, "big"))
        assert s.recv(10)[1] == 0
    began = time.perf_counter()
    for _ in range(count >> 20):
        s.sendall(chunk)
    s.shutdown(socket.SHUT_WR)
    s.recv(1)
    print((time.perf_counter() - began) * 1e6)
"#;

/// Measures the connect times and the throughput of every way in which the rootless client makes connections.
pub fn measure(figures: &mut Figures) -> Result<()> {
    let plain = Network::new(Way::Direct)?;
    let network = Network::new(Way::Direct)?;
    let authority = Authority::start(&network.authority, &policy("5m"))?;
    let flags = ["--hook", "tc", "--flows-per-grant", "1000000"];
    let _verifier = Verifier::start_with(&network.server, &authority, &flags)?;
    let nobody = Nobody::new(&network.alice)?;
    nobody.login(&authority, "alice")?;
    let script = nobody.write("program.py", PROGRAM, 0o644)?;
    let python = ["/usr/bin/python3".to_owned(), script.display().to_string()];
    for server in [&plain.server, &network.server] {
        listen(server, &[PORT])?;
        sink(server)?;
    }
    let times = |command: &mut Command, words: &[&str]| -> Result<Vec<f64>> {
        let text = succeed(command.args(words))?;
        text.lines().map(|line| line.parse().with_context(|| line.to_owned())).collect()
    };
    let unguarded = || {
        let mut command = plain.alice.command(&python[0]);
        command.arg(&python[1]);
        command
    };

    let (port, count) = (PORT.to_string(), CONNECTS.to_string());
    let words = ["connect", DARK4, &port, &count];
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        without.extend(times(&mut unguarded(), &words)?);
        with.extend(times(&mut nobody.supervised(&python), &words)?);
    }
    let yardstick = Yardstick::new(without.chunks(without.len() / 10).map(|times| quantile(times, 0.5)).collect());
    let added = quantile(&with, 0.5) - quantile(&without, 0.5);
    figures.add("rootless.run.connect.p50_us", "us", quantile(&with, 0.5), &yardstick, Bound::None);
    figures.count("rootless.connect.p50_added_us", "us", added, Bound::AtMost(150.0));

    let _proxy = nobody.start(nobody.vouchsafe(["proxy", "--listen", PROXY]), "listening on")?;
    let (port, bytes) = (SINK.to_string(), BYTES.to_string());
    let words = ["send", DARK4, &port, &bytes];
    let through_proxy = [&words[..], &[PROXY.rsplit(':').next().unwrap_or_default()]].concat();
    let rate = |times: Vec<f64>| -> Result<f64> {
        let time = times.first().context("no time")?;
        Ok(BYTES as f64 * 8.0 / time)
    };
    let mut compare = |name: &str, words: &[&str], supervised: bool, bound: Bound| -> Result<()> {
        let mut rates = Rates::default();
        for _ in 0..TRANSFERS {
            let mut ours = if supervised { nobody.supervised(&python) } else { nobody.command(&python[0]) };
            if !supervised {
                ours.arg(&python[1]);
            }
            rates.push(rate(times(&mut ours, words)?)?, rate(times(&mut unguarded(), &words[..4])?)?);
        }
        rates.add(figures, name, bound);
        Ok(())
    };
    // Here the path has no limit of its rate, and sender, proxy and receiver share the processors. So this ratio shows
    // the processor time that the proxy costs, and not its effect on the throughput of a real path.
    compare("rootless.socks5.throughput_of_processors", &through_proxy, false, Bound::None)?;
    for network in [&plain, &network] {
        network
            .alice
            .run(["tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", PATH, "burst", "1m", "latency", "5ms"])?;
    }
    compare("rootless.run.throughput", &words, true, Bound::AtLeast(0.99))?;
    let by = |way: &str| format!("{way}:{}", nobody.path("vouchsafe").display());
    let (pass, pipe) = (by("pass"), by("pipe"));
    // The program owns the socket that `connect` passes, as ssh does. Through a pipe, `connect` copies the bytes.
    compare("rootless.connect.throughput", &[&words[..], &[pass.as_str()]].concat(), false, Bound::AtLeast(0.99))?;
    compare("rootless.connect_pipe.throughput", &[&words[..], &[pipe.as_str()]].concat(), false, Bound::AtLeast(0.9))?;
    compare("rootless.socks5.throughput", &through_proxy, false, Bound::AtLeast(0.9))?;
    Ok(())
}

/// Receives all data on each connection, and confirms the end by one byte.
fn sink(namespace: &Namespace) -> Result<()> {
    let listener = namespace.enter(|| TcpListener::bind(("0.0.0.0", SINK))).context("sink")?;
    let swallow = |mut stream: TcpStream| {
        let mut room = vec![0; 1 << 20];
        while stream.read(&mut room).is_ok_and(|size| size > 0) {}
        let _ = stream.write_all(b".");
    };
    std::thread::spawn(move || listener.incoming().flatten().for_each(swallow));
    Ok(())
}
