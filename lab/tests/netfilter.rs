//! Tests of the verdict as a packet mark: the exact rule set of docs/netfilter.md accepts packets that the verifier
//! admits, if their class allows it.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lab::service::{Echo, Sshd, call, exchange};
use lab::world::{Agent, Authority, FRONT4, FRONT6, Network, Verifier, Way, in_family};
use lab::{Namespace, poll, test};

const SOON: Duration = Duration::from_secs(20);
/// Time to wait for an answer that must not come.
const QUIET: Duration = Duration::from_millis(300);
const SSH: u16 = 22;
const WEB: u16 = 443;

const POLICY: &str = r#"
[[receivers]]
name = "server"
address = ["FRONT4", "FRONT6"]
services = ["tcp/22", "tcp/443"]
verifier = "edge"

[[rules]]
name = "administrators"
action = "allow"
who = "person:alice"
to = "server"
class = 1

[[rules]]
name = "the others"
action = "allow"
who = "person:mallory"
to = "server"
class = 2
"#;

/// Returns the rule set as docs/netfilter.md prints it.
fn rule_set() -> Result<&'static str> {
    let document = include_str!("../../docs/netfilter.md");
    let (_, rest) = document.split_once("```nft\n").context("no rule set in docs/netfilter.md")?;
    Ok(rest.split_once("```").context("the rule set has no end")?.0)
}

/// Rules that count first packets with a payload, which are packets that still carry a token.
const TOKENS: &str = r#"
table inet seen {
    chain input {
        type filter hook input priority filter - 20; policy accept;
        tcp flags & (syn | ack) == syn meta length >= 100 counter comment "token"
    }
}
"#;

fn load(server: &Namespace, name: &str, rules: &str) -> Result<()> {
    let file = server.dir().join(name);
    fs::write(&file, rules)?;
    server.run(["nft", "-f", &file.to_string_lossy()]).map(drop)
}

/// Returns the number of packets that the rule with this comment has counted.
fn counted(server: &Namespace, comment: &str) -> Result<u64> {
    let rules = server.run(["nft", "list", "ruleset"])?;
    let line = rules.lines().find(|line| line.contains(&format!("comment \"{comment}\""))).context("no such rule")?;
    let count = line.split_once("packets ").and_then(|(_, rest)| rest.split(' ').next()?.parse().ok());
    count.with_context(|| line.to_owned())
}

fn gets_in(client: &Namespace, to: SocketAddr, patience: Duration) -> bool {
    client.enter(|| TcpStream::connect_timeout(&to, patience)).is_ok()
}

#[test]
fn the_documented_rule_set_lets_in_whom_the_verifier_admits() {
    test(|| {
        let network = Network::new(Way::Nat)?;
        let server = &network.server;
        let (_sshd, _web) = (Sshd::start(server)?, Echo::start(server, WEB)?);
        load(server, "rules.nft", rule_set()?)?;
        load(server, "tokens.nft", TOKENS)?;
        let policy = POLICY.replace("FRONT4", FRONT4).replace("FRONT6", FRONT6);
        let authority = Authority::start(&network.authority, &policy)?;
        let (alice, mallory) = (&network.alice, &network.mallory);
        let to = |six, port| SocketAddr::new(in_family(six, FRONT4, FRONT6), port);
        // Without a verifier, no packet is marked.
        ensure!(!gets_in(alice, to(false, WEB), QUIET), "the rules let somebody in without a mark");

        let mut verifier = Verifier::start_with(server, &authority, &["--verdict", "mark"])?;
        let status = verifier.status()?;
        ensure!(status["mark"] == "0x56000000/0xffff0000" && status["interfaces"][0]["hook"] == "tc", "{status}");
        let agent = Agent::start(alice)?;
        agent.login(&authority, "alice")?;
        let mut streams = Vec::new();
        for six in [false, true] {
            ensure!(gets_in(alice, to(six, SSH), SOON), "Alice can't use SSH");
            streams.push(call(alice, to(six, WEB), SOON).context("Alice can't use the web")?);
            for port in [SSH, WEB] {
                ensure!(!gets_in(mallory, to(six, port), QUIET), "Mallory gets in without a grant");
            }
        }

        // Mallory has a grant of another class.
        let other = Agent::start(mallory)?;
        other.login(&authority, "mallory")?;
        let refused = counted(server, "admitted, but of another class")?;
        call(mallory, to(false, WEB), SOON).context("Mallory can't use the web with a grant")?;
        ensure!(!gets_in(mallory, to(false, SSH), QUIET), "class 2 uses SSH");
        ensure!(counted(server, "admitted, but of another class")? > refused);

        // Ending the daemon changes nothing. Removing its programs closes every port.
        verifier.kill()?;
        streams.iter_mut().try_for_each(exchange).context("the daemon is away")?;
        ensure!(gets_in(alice, to(true, SSH), SOON), "nobody gets in while the daemon is away");
        verifier.run(&["--verdict", "mark"])?;
        authority.revoke("alice")?;
        for stream in &mut streams {
            stream.set_read_timeout(Some(QUIET))?;
            ensure!(poll(SOON, || exchange(stream).is_err()), "a revoked connection goes on");
        }
        let mut last = call(mallory, to(false, WEB), SOON)?;
        ensure!(counted(server, "token")? == 0, "nft saw a token of what is admitted");
        verifier.detach()?;
        last.set_read_timeout(Some(QUIET))?;
        ensure!(exchange(&mut last).is_err(), "a connection goes on without the verifier");
        ensure!(!gets_in(mallory, to(false, WEB), QUIET), "somebody gets in without the verifier");
        ensure!(counted(server, "token")? > 0, "without the verifier tokens come through");
        Ok(())
    });
}
