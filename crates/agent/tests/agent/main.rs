//! The agent with the real kernel and a real authority, and a capture of every frame on the link. Needs root and the
//! `vouchsafe` binary (`cargo build -p vouchsafe`).

mod stage;

use anyhow::{Context, Result, ensure};
use datapath::Pins;
use datapath::interface::Interface;
use datapath::tc::{Attachment, supported_attachment};
use lab::seen::Seen;
use lab::{poll, test};
use nix::sys::signal::Signal;
use nix::sys::socket::{setsockopt, sockopt};
use stage::{SERVICES, SOON, Stage};
use std::io::Read;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// TCP retransmits the first SYN after one second; this is a little less.
const RETRANSMISSION: Duration = Duration::from_millis(900);

#[test]
fn a_first_packet_waits_for_its_grant_and_nobody_notices() {
    test(|| {
        let stage = Stage::start_with(&["--metrics", "10.0.0.1:9466"])?;
        for at in &SERVICES[..2] {
            let took = stage.connect(at)?;
            assert!(took < RETRANSMISSION, "{took:?}");
            let syns = stage.syns()?;
            assert_eq!(syns.len(), 1);
            let (first, payload) = stage.token(&syns[0])?;
            assert!(payload.is_empty() && syns[0].checksums_right);

            stage.connect(at)?;
            let syns = stage.syns()?;
            let (second, _) = stage.token(&syns[0])?;
            assert_eq!((syns.len(), first.header.handle), (1, second.header.handle));
            assert_ne!((first.time, first.nonce), (second.time, second.nonce));
        }
        assert_eq!((stage.counter("held")?, stage.counter("tokens")?), (2, 4));
        let page = stage.client.run(["curl", "-sS", "--max-time", "5", "http://10.0.0.1:9466/metrics"])?;
        for line in [
            "vouchsafe_agent_packets_total{outcome=\"tokens\"} 4",
            "vouchsafe_agent_packets_total{outcome=\"held\"} 2",
            "vouchsafe_agent_grant_answers_total{result=\"granted\"} 2",
            "vouchsafe_agent_grants 2.0",
            "vouchsafe_agent_sessions{authority_reachable=\"yes\"} 1.0",
            "vouchsafe_agent_interfaces{attached=\"yes\"} 1.0",
        ] {
            ensure!(page.contains(line), "{line}: {page}");
        }
        Ok(())
    })
}

#[test]
fn only_the_logged_in_users_packets_carry_tokens() {
    test(|| {
        let stage = Stage::start()?;
        let other = ["setpriv", "--reuid", "65534", "--clear-groups", "bash", "-c", "exec 3<>/dev/tcp/10.0.0.2/22"];
        stage.client.run(other)?;
        let syns = stage.syns()?;
        assert!(syns[0].payload.is_empty());
        stage.connect(SERVICES[0])?;
        stage.token(&stage.syns()?[0])?;

        stage.ask(&["logout"])?;
        stage.connect(SERVICES[0])?;
        assert!(stage.syns()?[0].payload.is_empty());
        assert!(!stage.run(&["status"])?.status.success());
        Ok(())
    })
}

#[test]
fn where_another_user_has_the_agent_connect_to_carries_no_token_of_roots() {
    test(|| {
        let stage = Stage::start()?;
        // The agent, which runs as root, connects to any address that a user gives as an authority. Root may reach this
        // service.
        stage.try_login_as(65534, "https://10.0.0.2:22")?;
        let syns = stage.syns()?;
        assert!(syns[0].payload.is_empty(), "a token for {:?}", syns[0].ports);
        assert_eq!(stage.counter("tokens")?, 0);
        stage.connect(SERVICES[0])?;
        stage.token(&stage.syns()?[0])?;
        Ok(())
    })
}

#[test]
fn forwarded_packets_carry_tokens_only_where_that_is_set() {
    test(|| {
        for (flags, carry) in [(&[][..], false), (&["--forwarded-as", "root"][..], true)] {
            let stage = Stage::start_with(flags)?;
            let guest = stage.guest()?;
            for _ in 0..2 {
                guest.run(["bash", "-c", "exec 3<>/dev/tcp/10.0.0.2/22"])?;
                let syns = stage.syns()?;
                assert_eq!((syns.len(), stage.token(&syns[0]).is_ok()), (1, carry));
            }
        }
        Ok(())
    })
}

#[test]
fn a_cgroups_packets_carry_the_tokens_of_the_user_that_is_set() {
    test(|| {
        let cgroup = Cgroup::new()?;
        let stage = Stage::start_with(&["--cgroup", &format!("/{}=root", cgroup.name)])?;
        let connect = "exec setpriv --reuid 65534 --clear-groups bash -c 'exec 3<>/dev/tcp/10.0.0.2/22'";
        for (script, carry) in [(connect.to_owned(), false), (format!("{}; {connect}", cgroup.enter()), true)] {
            stage.client.run(["sh", "-c", &script])?;
            let syns = stage.syns()?;
            assert_eq!((syns.len(), stage.token(&syns[0]).is_ok()), (1, carry));
        }
        Ok(())
    })
}

#[test]
fn a_revoked_grant_is_gone_at_once() {
    test(|| {
        let stage = Stage::start()?;
        stage.connect(SERVICES[0])?;
        let (first, _) = stage.token(&stage.syns()?[0])?;
        let directory = stage.server.dir().join("authority");
        let handle = first.header.handle.to_string();
        stage.ask(&["authority", "revoke", "--dir", directory.to_str().context("a path")?, "--grant", &handle])?;
        let gone = || stage.ask(&["grants", "list", "--json"]).is_ok_and(|list| !list.contains(&handle));
        assert!(poll(SOON, gone));
        stage.connect(SERVICES[0])?;
        let (second, _) = stage.token(&stage.syns()?[0])?;
        assert_ne!(first.header.handle, second.header.handle);
        Ok(())
    })
}

#[test]
fn a_denied_destination_gets_packets_without_identity() {
    test(|| {
        let stage = Stage::start()?;
        stage.connect(SERVICES[0])?;
        stage.token(&stage.syns()?[0])?;
        stage.ask(&["grants", "deny", "10.0.0.2:22"])?;
        stage.connect(SERVICES[0])?;
        assert!(stage.syns()?[0].payload.is_empty());
        stage.connect(SERVICES[2])?;
        stage.token(&stage.syns()?[0])?;
        assert!(stage.ask(&["grants", "list"])?.contains("10.0.0.2:22"));
        stage.ask(&["grants", "forget", "10.0.0.2:22"])?;
        stage.connect(SERVICES[0])?;
        stage.token(&stage.syns()?[0])?;
        Ok(())
    })
}

#[test]
fn a_killed_daemon_is_missed_by_no_flow_and_its_successor_takes_over() {
    test(|| {
        let mut stage = Stage::start()?;
        stage.connect(SERVICES[0])?;
        let (before, _) = stage.token(&stage.syns()?[0])?;
        let mut agent = stage.agent.take().context("an agent")?;
        agent.signal(Signal::SIGKILL)?;
        agent.wait(SOON)?;
        stage.connect(SERVICES[0])?;
        let (meanwhile, _) = stage.token(&stage.syns()?[0])?;
        assert_eq!(before.header.handle, meanwhile.header.handle);

        stage.start_agent()?;
        let list = stage.ask(&["grants", "list", "--json"])?;
        assert!(list.contains(&before.header.handle.to_string()), "{list}");
        stage.connect(SERVICES[0])?;
        let (after, _) = stage.token(&stage.syns()?[0])?;
        assert_eq!(before.header.handle, after.header.handle);
        assert!(stage.connect(SERVICES[2])? < RETRANSMISSION);
        stage.token(&stage.syns()?[0])?;
        Ok(())
    })
}

#[test]
fn while_the_authority_is_away_what_is_there_is_used_and_the_rest_waits() {
    test(|| {
        let mut stage = Stage::start()?;
        stage.connect(SERVICES[0])?;
        stage.token(&stage.syns()?[0])?;
        stage.authority = None;
        assert!(stage.connect(SERVICES[0])? < RETRANSMISSION);
        stage.token(&stage.syns()?[0])?;
        let held = stage.counter("held")?;
        std::thread::scope(|scope| -> Result<()> {
            let at = SERVICES[2].parse()?;
            let waiting = scope.spawn({
                let client = &stage.client;
                move || client.enter(|| std::net::TcpStream::connect_timeout(&at, SOON).map(drop))
            });
            // The packet is held, and not sent before there is a grant.
            assert!(poll(SOON, || stage.counter("held").is_ok_and(|now| now > held)));
            let directory = stage.server.dir().join("authority");
            let mut command = stage.server.command(lab::vouchsafe());
            command.args(["authority", "run", "--listen", "10.0.0.2:8443", "--dir"]).arg(directory);
            let _authority = stage.server.start(command)?;
            waiting.join().expect("no panic")?;
            let syns = stage.syns()?;
            stage.token(&syns[0])?;
            Ok(())
        })
    })
}

#[test]
fn datagrams_carry_tokens_and_keep_their_order() {
    test(|| {
        let stage = Stage::start()?;
        stage.datagrams("10.0.0.2:5000", &[b"one", b"three", b"seven"])?;
        let received = stage.received(3)?;
        let payloads: Result<Vec<_>> = received.iter().map(|seen| Ok(stage.token(seen)?.1)).collect();
        assert_eq!(payloads?, [b"one".to_vec(), b"three".to_vec(), b"seven".to_vec()]);

        // The datagram has no room for the token, which is sent ahead in a packet of its own.
        let long = [7; 1400];
        stage.datagrams("10.0.0.2:5000", &[&long])?;
        let received = stage.received(2)?;
        assert!(stage.token(&received[0])?.1.is_empty());
        assert_eq!(received[1].payload, long);
        Ok(())
    })
}

#[test]
fn several_datagrams_handed_over_as_one_are_sent_as_several() {
    test(|| {
        let stage = Stage::start()?;
        stage.client.enter(|| -> Result<()> {
            let socket = UdpSocket::bind("0.0.0.0:0")?;
            setsockopt(&socket, sockopt::UdpGsoSegment, &100)?;
            socket.send_to(&[b'x'; 250], "10.0.0.2:5000")?;
            Ok(())
        })?;
        let received = stage.received(3)?;
        let sizes: Result<Vec<_>> = received.iter().map(|seen| Ok(stage.token(seen)?.1.len())).collect();
        assert_eq!(sizes?, [100, 100, 50]);
        Ok(())
    })
}

#[test]
fn a_packet_gets_one_token_however_many_interfaces_it_crosses() {
    test(|| {
        let stage = Stage::start()?;
        stage.client.ip("link add br0 type bridge")?;
        stage.client.ip("link set br0 up")?;
        stage.client.ip("link set eth0 master br0")?;
        stage.client.ip("address flush dev eth0")?;
        stage.client.address("br0", "10.0.0.1/24")?;
        attached(&stage, "br0")?;
        for _ in 0..2 {
            stage.connect(SERVICES[0])?;
            stage.token(&stage.syns()?[0])?;
        }
        Ok(())
    })
}

#[test]
fn a_link_without_link_header_works_the_same() {
    test(|| {
        let stage = Stage::start()?;
        let mut tun = stage.tun("tun7", "10.1.0.1/24")?;
        attached(&stage, "tun7")?;
        let mut packet = [0; 2048];
        for payload in [&b"held"[..], b"not held"] {
            stage.datagrams("10.1.0.2:5000", &[payload])?;
            let seen = loop {
                let size = tun.read(&mut packet)?;
                let seen = Seen::ip(&packet[..size]).context("a packet")?;
                if seen.ports.is_some_and(|(_, port)| port == 5000) {
                    break seen;
                }
            };
            assert_eq!(stage.token(&seen)?.1, payload);
        }
        assert_eq!(stage.counter("held")?, 1);
        Ok(())
    })
}

#[test]
fn ping_says_what_happens() {
    test(|| {
        let stage = Stage::start()?;
        let said = stage.ask(&["ping", "10.0.0.2:22"])?;
        for word in ["1 name", "2 destination", "3 consent", "4 grant", "new: ", "alice may", "siphash", "connected"] {
            assert!(said.contains(word), "{word}: {said}");
        }
        // The server has no verifier, so it also answers what a verifier would drop.
        let path = "no verifier protects the server";
        assert!(!said.contains(path), "{said}");
        let with_path = stage.ask(&["ping", "10.0.0.2:22", "--path"])?;
        assert!(with_path.contains(path), "{with_path}");
        assert!(stage.ask(&["ping", "[fd00::2]"])?.contains("tcp/22 is protected"));
        assert!(stage.ask(&["ping", "10.0.0.2:22"])?.contains("existing: "));
        let silent = stage.run(&["ping", "10.0.0.2:5000", "--udp", "--wait", "1"])?;
        assert_eq!(silent.status.code(), Some(1));
        stage.ask(&["grants", "deny", "10.0.0.0/24"])?;
        let said = stage.ask(&["ping", "10.0.0.2:22"])?;
        assert!(said.contains("your rule for 10.0.0.0/24 is deny"), "{said}");
        Ok(())
    })
}

#[test]
fn detach_lets_go_of_every_kernels_hook() {
    test(|| {
        let mut stage = Stage::start()?;
        stage.agent = None;
        for attachment in [Attachment::Tcx, Attachment::Clsact] {
            if attachment == Attachment::Tcx && supported_attachment() != attachment {
                continue;
            }
            let name = format!("{}-{}", stage.client.name(), attachment.name());
            stage.client.enter(|| {
                let pins = Pins::new("agent", &name)?;
                let mut agent = datapath::agent::Agent::load(14, false, attachment, Some(pins))?;
                agent.attach(&Interface::named("eth0")?)
            })?;
            let filters = |side| stage.client.run(["tc", "filter", "show", "dev", "eth0", side]);
            if attachment == Attachment::Clsact {
                assert!(filters("egress")?.contains("insert") && filters("ingress")?.contains("notice"));
            }
            stage.ask(&["agent", "detach", "--instance", &name])?;
            assert!(!filters("egress")?.contains("insert") && !filters("ingress")?.contains("notice"));
            assert!(Pins::existing("agent", &name).is_none());
            assert_eq!(stage.run(&["agent", "detach", "--instance", &name])?.status.code(), Some(1));
        }
        Ok(())
    })
}

#[test]
fn a_second_daemon_leaves_the_first_alone() {
    test(|| {
        let stage = Stage::start()?;
        let socket = stage.socket();
        let socket = socket.to_str().context("a path")?;
        let other = stage.client.dir().join("other.sock");
        let other = other.to_str().context("a path")?;
        let instance = stage.instance.as_str();
        let another = format!("{instance}-other");
        let own = stage.client.dir().join("agent");
        for (flags, why) in [
            ([instance, other], "already runs"),
            ([instance, socket], "already runs"),
            ([&another, socket], "another agent listens"),
        ] {
            let directory = stage.client.dir().join("other");
            let directory = directory.to_str().context("a path")?;
            let [instance, socket] = flags;
            let words = ["agent", "run", "--instance", instance, "--socket", socket, "--dir", directory];
            let output = stage.run(&words)?;
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.code() == Some(2) && said.contains(why), "{said}");
        }
        let words =
            ["agent", "run", "--instance", &another, "--socket", other, "--dir", own.to_str().context("a path")?];
        assert_eq!(stage.run(&words)?.status.code(), Some(2));
        assert_eq!(stage.run(&["agent", "detach", "--instance", instance])?.status.code(), Some(2));
        stage.ask(&["agent", "detach", "--instance", &another])?;
        assert!(stage.connect(SERVICES[0])? < RETRANSMISSION);
        stage.token(&stage.syns()?[0])?;
        Ok(())
    })
}

#[test]
fn interfaces_that_vanish_are_forgotten() {
    test(|| {
        let mut stage = Stage::start()?;
        let pins = Pins::existing("agent", &stage.instance).context("pins")?;
        let pinned = |name: &str| pins.links().iter().any(|link| link.starts_with(name));
        let agent = stage.agent.as_ref().context("an agent")?.pid();
        let links = || -> Result<usize> {
            let open = std::fs::read_dir(format!("/proc/{agent}/fd"))?.flatten();
            let is_link = |entry: &std::fs::DirEntry| {
                std::fs::read_link(entry.path()).is_ok_and(|to| to.as_os_str() == "anon_inode:bpf_link")
            };
            Ok(open.filter(is_link).count())
        };
        let before = links()?;
        for name in ["br4", "br5", "br6"] {
            stage.client.ip(&format!("link add {name} type bridge"))?;
            attached(&stage, name)?;
            stage.client.ip(&format!("link set {name} name renamed"))?;
            attached(&stage, "renamed")?;
            assert!(!pinned(name));
            stage.client.ip("link del renamed")?;
            assert!(poll(SOON, || !pinned("renamed")));
            assert!(poll(SOON, || links().is_ok_and(|now| now == before)), "{before} {}", links()?);
        }
        // An interface that disappears while no agent runs.
        stage.client.ip("link add br7 type bridge")?;
        attached(&stage, "br7")?;
        stage.agent = None;
        stage.client.ip("link del br7")?;
        assert!(pinned("br7"));
        stage.start_agent()?;
        assert!(!pinned("br7") && pinned("eth0"));
        Ok(())
    })
}

/// Waits until the agent has attached to a new interface.
fn attached(stage: &Stage, interface: &str) -> Result<()> {
    let done = poll(SOON, || {
        let status: serde_json::Value =
            stage.ask(&["status", "--json"]).ok().and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
        let list = status["interfaces"].as_array().cloned().unwrap_or_default();
        list.iter().any(|entry| entry["name"] == interface && entry["trouble"].is_null())
    });
    anyhow::ensure!(done, "{interface} was not attached to:\n{}", stage.ask(&["status"])?);
    Ok(())
}

/// A cgroup of the version 2 hierarchy, removed on drop.
struct Cgroup {
    name: String,
    path: PathBuf,
}

impl Cgroup {
    fn new() -> Result<Self> {
        let mounts = std::fs::read_to_string("/proc/mounts")?;
        let root = mounts.lines().find(|line| line.split(' ').nth(2) == Some("cgroup2")).context("no cgroup2")?;
        let name = format!("vs-agent-{}", std::process::id());
        let path = Path::new(root.split(' ').nth(1).context("a mount point")?).join(&name);
        std::fs::create_dir(&path)?;
        Ok(Self { name, path })
    }

    /// Returns a shell command that moves the shell into the cgroup.
    fn enter(&self) -> String {
        format!("echo $$ > {}/cgroup.procs", self.path.display())
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // For a moment, a process that has just ended still counts as a member.
        let _ = poll(SOON, || std::fs::remove_dir(&self.path).is_ok());
    }
}
