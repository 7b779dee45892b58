//! Tests of programs in several languages, static and dynamic, blocking and non-blocking, under `vouchsafe run`.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use lab::nobody::{said, succeed};
use lab::world::{DARK4, DARK6, ECHO, FRONT4, FRONT6, SOON};
use lab::{Process, poll, process, test};
use nix::sys::signal::Signal;

use super::stage::Stage;

/// Port of the web server on the server.
pub const WEB: u16 = 8080;
/// The page that the web server returns.
pub const PAGE: &str = "<title>inside</title>";

/// Python program that connects to HOST PORT, calls connect(2) again, and exchanges a message. It ends with exit code 1
/// if that fails.
pub const TRY: &str = r#"
import socket, sys
try:
    with socket.create_connection((sys.argv[1], int(sys.argv[2])), 3) as s:
        # A second call must not touch the connection; 106 is EISCONN.
        s.settimeout(None)
        assert s.connect_ex(s.getpeername()[:2]) in (0, 106)
        assert s.connect_ex(s.getpeername()[:2]) == 106
        s.settimeout(3)
        s.sendall(b"words")
        assert s.recv(100) == b"words"
except OSError as error:
    sys.exit(f"{error}")
"#;

/// Python program that opens a given number of connections in 16 threads, half of them non-blocking. It checks that
/// each connection echoes what was sent on it and nothing else.
pub const MANY: &str = r#"
import os, select, socket, sys, threading
host, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
left, good, lock = list(range(count)), 0, threading.Lock()
def one(number):
    s = socket.socket()
    if number % 2:
        s.setblocking(False)
        code = s.connect_ex((host, port))
        assert code in (0, 115), code
        select.select([], [s], [])
        assert s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
        s.setblocking(True)
    else:
        s.connect((host, port))
    words = os.urandom(100) + number.to_bytes(4, "big")
    s.sendall(words)
    s.shutdown(socket.SHUT_WR)
    heard = b""
    while True:
        part = s.recv(1000)
        if not part:
            break
        heard += part
    assert heard == words, (number, heard)
    s.close()
def work():
    global good
    while True:
        with lock:
            if not left:
                return
            number = left.pop()
        try:
            one(number)
            with lock:
                good += 1
        except Exception as error:
            print(number, repr(error), file=sys.stderr)
threads = [threading.Thread(target=work) for _ in range(16)]
[t.start() for t in threads]
[t.join() for t in threads]
print(good, "of", count)
"#;

/// Python program that connects sockets with options that are incompatible with a token, and an ordinary socket.
pub const ODD_SOCKETS: &str = r#"
import socket, struct, sys
host, port = sys.argv[1], int(sys.argv[2])
address = struct.pack("=HH4s", socket.AF_INET, socket.htons(port), socket.inet_aton(host)).ljust(128, b"\0")
key = address + struct.pack("=BBHi", 0, 0, 4, 0) + b"key!".ljust(80, b"\0")
s = socket.socket()
try:
    s.setsockopt(socket.IPPROTO_TCP, 14, key)
except OSError as error:
    print("no md5 in this kernel:", error)
try:
    s.connect((host, port))
except OSError as error:
    print("md5 refused", error.errno)
try:
    m = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)
    m.connect((host, port))
except OSError as error:
    print("mptcp refused", error.errno)
socket.create_connection((host, port)).close()
print("plain connected")
"#;

/// Python program that exchanges datagrams by `send` on a connected socket, and by `sendto` and `sendmsg` on others.
const UDP: &str = r#"
import socket, sys
host, port = sys.argv[1], int(sys.argv[2])
family = socket.AF_INET6 if ":" in host else socket.AF_INET
def patiently(send, s):
    s.settimeout(0.5)
    for _ in range(10):
        send()
        try:
            return s.recv(3000)
        except TimeoutError:
            pass
    sys.exit("no answer")
a = socket.socket(family, socket.SOCK_DGRAM)
a.connect((host, port))
assert patiently(lambda: a.send(b"connected"), a) == b"connected"
b = socket.socket(family, socket.SOCK_DGRAM)
assert patiently(lambda: b.sendto(b"to", (host, port)), b) == b"to"
c = socket.socket(family, socket.SOCK_DGRAM)
assert patiently(lambda: c.sendmsg([b"mess", b"age"], [], 0, (host, port)), c) == b"message"
d = socket.socket(family, socket.SOCK_DGRAM)
assert patiently(lambda: d.sendto(b"x" * 1300, (host, port)), d) == b"x" * 1300
print("all answered")
"#;

/// Go program that exchanges messages over 20 TCP connections, each in a goroutine, while the scheduler sends itself
/// signals.
const GO: &str = r#"
package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"time"
)

func main() {
	done := make(chan error)
	for i := 0; i < 20; i++ {
		go func() {
			s, err := net.DialTimeout("tcp", os.Args[1], 10*time.Second)
			if err == nil {
				fmt.Fprint(s, "words")
				heard := make([]byte, 5)
				_, err = io.ReadFull(s, heard)
				if err == nil && string(heard) != "words" {
					err = fmt.Errorf("heard %q", heard)
				}
			}
			done <- err
		}()
	}
	for i := 0; i < 20; i++ {
		if err := <-done; err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	}
	fmt.Println("20 of 20")
}
"#;

const JAVA: &str = r#"
import java.net.*;
import java.nio.channels.*;

class Talk {
    public static void main(String[] words) throws Exception {
        try (Socket s = new Socket(words[0], Integer.parseInt(words[1]))) {
            s.getOutputStream().write("words".getBytes());
            System.out.println(new String(s.getInputStream().readNBytes(5)));
        }
        SocketChannel channel = SocketChannel.open();
        channel.configureBlocking(false);
        Selector selector = Selector.open();
        channel.register(selector, SelectionKey.OP_CONNECT);
        if (!channel.connect(new InetSocketAddress(words[0], Integer.parseInt(words[1])))) {
            selector.select();
            channel.finishConnect();
        }
        System.out.println("selected " + channel.isConnected());
    }
}
"#;

/// Starts a web server on every address of the server.
pub fn web(stage: &Stage) -> Result<Process> {
    let dir = stage.network.server.dir().join("web");
    std::fs::create_dir_all(&dir)?;
    std::fs::write(dir.join("index.html"), PAGE)?;
    let mut command = stage.network.server.command("/usr/bin/python3");
    command.args(["-u", "-m", "http.server", "--bind", "::", &WEB.to_string(), "--directory"]).arg(&dir);
    let mut web = stage.network.server.start(command)?;
    web.wait_for("Serving HTTP", SOON)?;
    Ok(web)
}

#[test]
fn curl_and_a_static_program_fetch_a_page() {
    test(|| {
        let stage = Stage::new()?;
        let nobody = stage.alice()?;
        let _web = web(&stage)?;
        for host in [DARK4.to_owned(), format!("[{DARK6}]")] {
            let url = format!("http://{host}:{WEB}/");
            let page = succeed(&mut nobody.supervised(["curl", "-sS", "--max-time", "10", &url]))?;
            ensure!(page == PAGE, "curl: {page}");
        }
        // `busybox` is a static program. Debian's static `wget` crashes while it resolves the name, with or without
        // `vouchsafe run`.
        for host in [DARK4, DARK6] {
            let ask = format!("printf 'GET / HTTP/1.0\\r\\n\\r\\n' | busybox nc {host} {WEB}");
            let page = succeed(&mut nobody.supervised(["sh", "-c", &ask]))?;
            ensure!(page.ends_with(PAGE), "busybox: {page}");
        }
        let linked = process::output(Command::new("readelf").args(["-l", "/bin/busybox"]))?;
        ensure!(!linked.contains("INTERP"), "busybox is to be linked statically: {linked}");
        // Run a shell, its children, and one child that has left their session.
        let url = format!("http://{DARK4}:{WEB}/");
        let script = format!("(curl -sS {url}; exec curl -sS {url}) | cat; setsid -w sh -c 'curl -sS {url}'");
        let pages = succeed(&mut nobody.supervised(["sh", "-c", &script]))?;
        ensure!(pages == PAGE.repeat(3), "{pages}");
        Ok(())
    });
}

#[test]
fn ssh_connects_by_itself() {
    test(|| {
        let stage = Stage::new()?;
        let nobody = stage.alice()?;
        let key = nobody.write("key", std::fs::read(stage.services.sshd.key())?, 0o600)?;
        for host in [FRONT4, FRONT6] {
            let mut ssh = nobody.supervised(["ssh", "-F", "none", "-o", "BatchMode=yes", "-o", "LogLevel=ERROR"]);
            ssh.args(["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-i"]).arg(&key);
            let text = succeed(ssh.args(["-l", "root", host, "echo $SSH_CONNECTION"]))?;
            ensure!(text.contains(host), "{text}");
        }
        Ok(())
    });
}

#[test]
fn python_talks_tcp_and_udp() {
    test(|| {
        let stage = Stage::new()?;
        let nobody = stage.alice()?;
        let (tcp, udp) = (nobody.write("try.py", TRY, 0o644)?, nobody.write("udp.py", UDP, 0o644)?);
        for host in [FRONT4, FRONT6] {
            let python = |script: &Path| {
                let words = ["/usr/bin/python3", &script.to_string_lossy(), host, &ECHO.to_string()];
                succeed(&mut nobody.supervised(words))
            };
            python(&tcp)?;
            let text = python(&udp)?;
            ensure!(text.contains("all answered"), "{text}");
        }
        Ok(())
    });
}

#[test]
fn go_binaries_connect_though_their_scheduler_interrupts_them() {
    test(|| {
        let stage = Stage::new()?;
        let nobody = stage.alice()?;
        let dir = stage.network.alice.dir().join("go");
        std::fs::create_dir_all(&dir)?;
        std::fs::write(dir.join("main.go"), GO)?;
        std::fs::write(dir.join("go.mod"), "module talk\n\ngo 1.19\n")?;
        let binary = nobody.path("talk");
        let mut build = Command::new("go");
        build.args(["build", "-o"]).arg(&binary).arg(".").current_dir(&dir).env("CGO_ENABLED", "0");
        process::output(&mut build)?;
        for to in [format!("{FRONT4}:{ECHO}"), format!("[{FRONT6}]:{ECHO}")] {
            let text = succeed(&mut nobody.supervised([binary.as_os_str(), to.as_ref()]))?;
            ensure!(text.trim() == "20 of 20", "{text}");
        }
        Ok(())
    });
}

#[test]
fn a_java_client_connects_blocking_and_selecting() {
    test(|| {
        let stage = Stage::new()?;
        let nobody = stage.alice()?;
        let source = nobody.write("Talk.java", JAVA, 0o644)?;
        for host in [FRONT4, FRONT6] {
            let words = ["java", &source.to_string_lossy(), host, &ECHO.to_string()];
            let text = succeed(&mut nobody.supervised(words))?;
            ensure!(text == "words\nselected true\n", "{text}");
        }
        Ok(())
    });
}

#[test]
fn the_commands_exit_code_and_signals_are_its_own() {
    test(|| {
        let stage = Stage::new()?;
        let nobody = stage.alice()?;
        let shell = |script: &str| nobody.supervised(["sh", "-c", script]);
        ensure!(shell("exit 7").output()?.status.code() == Some(7));
        ensure!(nobody.supervised(["no-such-program"]).output()?.status.code() == Some(127));
        ensure!(nobody.supervised([nobody.path("ca.pem")]).output()?.status.code() == Some(126));
        let killed = shell("kill -KILL $$").output()?;
        ensure!(killed.status.signal() == Some(9), "{}", said(&killed));
        // A signal to `vouchsafe run` reaches the command, which decides on the exit code.
        let trap = shell("trap 'echo caught; exit 3' TERM; echo ready; while :; do sleep 0.05; done");
        let mut running = nobody.start(trap, "ready")?;
        running.signal(Signal::SIGTERM)?;
        ensure!(running.wait(SOON)?.code() == Some(3) && running.log().contains("caught"), "{}", running.log());
        // The output ends when the command ends, even if a descendant lives on. The descendant can still connect.
        let script = nobody.write("try.py", TRY, 0o644)?;
        let connects = format!("/usr/bin/python3 {} {FRONT4} {ECHO}", script.display());
        let late = format!("(sleep 1; {connects} && touch late) >/dev/null 2>&1 & echo done");
        let text = succeed(&mut shell(&late))?;
        ensure!(text == "done\n" && !nobody.path("late").exists(), "{text}");
        ensure!(poll(SOON, || nobody.path("late").exists()), "the descendant could not connect");
        Ok(())
    });
}

#[test]
fn a_silent_host_is_given_up_in_time() {
    test(|| {
        let stage = Stage::new()?;
        let nobody = stage.alice()?;
        stage.network.internet.ip("link set dc down")?;
        let script = "
import socket, sys, time
s = socket.socket()
s.settimeout(1)
began = time.time()
try:
    s.connect((sys.argv[1], 7))
except OSError:
    print(time.time() - began)
";
        let text = succeed(&mut nobody.supervised(["/usr/bin/python3", "-c", script, FRONT4]))?;
        let seconds: f64 = text.trim().parse().with_context(|| text.clone())?;
        ensure!(seconds < 5.0, "{text}");
        Ok(())
    });
}
