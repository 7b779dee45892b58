//! Boxes that the first rung passes, and boxes that answer in the server's place.

use anyhow::{Context, Result, ensure};
use lab::middlebox::Rules;
use lab::nobody::said;
use lab::service::Echo;
use lab::world::{ECHO, FRONT4};
use lab::{Namespace, Nobody, poll, test};

use crate::stage::{SECOND, Stage, TUNNEL, at};

/// Checks that connections through a box are there within a second by the first rung, that the agent remembers so, and
/// that it is the same when the box is gone. On a loaded machine, not every connection is in time, and a few are raced.
fn first_rung_serves<'a, T>(stage: &'a Stage, name: &str, put: impl FnOnce(&'a Stage) -> Result<T>) -> Result<()> {
    let held = put(stage)?;
    let mut late = Vec::new();
    let is_in_time = |outcome: Result<_>| match outcome {
        Ok((_, took)) if took < SECOND => true,
        other => {
            late.push(format!("{other:?}"));
            false
        }
    };
    let in_time = (0..5).map(|_| stage.timed_by(FRONT4, "packet")).any(is_in_time);
    ensure!(in_time, "{name}: {late:?}");
    ensure!(stage.state(FRONT4, 0)? == "works", "{name}: {}", stage.agent.ping(&at(FRONT4).to_string())?);
    drop(held);
    ensure!(poll(SECOND * 10, || stage.connects_by(FRONT4, "packet").is_ok()), "{name}: not when the box is gone");
    Ok(())
}

#[test]
fn boxes_that_pass_data_in_syns_are_met_by_the_first_rung_within_a_second() {
    test(|| {
        let stage = Stage::new()?;
        let options = "tcp option 34 exists drop\ntcp option 254 exists drop\nip option rr exists drop";
        let lossy = format!(
            "ip daddr {FRONT4} numgen random mod 100 < 2 drop\nip saddr {FRONT4} numgen random mod 100 < 2 drop"
        );
        let filters = [
            ("drops unknown options", options.to_owned()),
            ("drops UDP", format!("udp dport {TUNNEL} drop")),
            ("loses 2 % of the packets", lossy),
        ];
        for (name, rules) in filters {
            first_rung_serves(&stage, name, |stage| Rules::forward(&stage.network.internet, &rules))?;
        }
        first_rung_serves(&stage, "has an MTU of 1280 bytes", |stage| {
            ["home", "dc"]
                .iter()
                .try_for_each(|device| stage.network.internet.ip(&format!("link set {device} mtu 1280")).map(drop))
        })
    });
}

/// A transparent proxy: connections to the echo end at the router `internet`, on which another echo listens.
fn transparent_proxy(router: &Namespace) -> Result<Rules<'_>> {
    Rules::redirect(router, &format!("ip daddr {FRONT4} tcp dport {ECHO} redirect to :8888"))
}

/// A SYN proxy: it answers a client's SYN, and sends a SYN of its own to the server when the client has confirmed.
fn syn_proxy(router: &Namespace) -> Result<Rules<'_>> {
    let home = "home";
    router.sysctl("net/netfilter/nf_conntrack_tcp_loose", "0")?;
    let proxy = format!(
        "iifname \"{home}\" ip daddr {FRONT4} tcp dport {ECHO} ct state invalid,untracked synproxy mss 1460 wscale \
         7 timestamp sack-perm"
    );
    let untracked = format!(
        "chain u {{ type filter hook prerouting priority raw; policy accept;
            iifname \"{home}\" ip daddr {FRONT4} tcp dport {ECHO} tcp flags syn notrack
        }}"
    );
    Rules::forward_with(router, &untracked, &proxy)
}

/// Checks that the rootless client fails through a box that answers in the server's place, and says so in these words.
fn rootless_names(stage: &Stage, words: &str) -> Result<()> {
    let nobody = Nobody::new(&stage.network.mallory)?;
    nobody.login(&stage.authority, "alice")?;
    let before = stage.services.echo.connections();
    let tried = nobody.vouchsafe(["connect", "--wait", "2", FRONT4, &ECHO.to_string()]).output()?;
    ensure!(tried.status.code() == Some(2), "{}", said(&tried));
    ensure!(said(&tried).contains(words), "it is not named: {}", said(&tried));
    ensure!(stage.services.echo.connections() == before, "somebody got in");
    Ok(())
}

/// Checks that a rootless client connects once the box is gone.
fn rootless_recovers(stage: &Stage) -> Result<()> {
    let nobody = Nobody::new(&stage.network.mallory)?;
    nobody.login(&stage.authority, "alice")?;
    let mut last = String::new();
    let is_back = || match nobody.vouchsafe(["ping", &at(FRONT4).to_string()]).output() {
        Ok(output) => {
            last = said(&output);
            output.status.success()
        }
        Err(_) => false,
    };
    ensure!(poll(SECOND * 10, is_back), "the client does not recover: {last}");
    Ok(())
}

/// Returns what the agent's `ping --path` says of the path, if it says anything.
fn path(stage: &Stage) -> Result<Option<String>> {
    let told = stage.agent.ping_with(&at(FRONT4).to_string(), &["--path"])?;
    let steps = told["steps"].as_array().with_context(|| format!("no steps: {told}"))?;
    let step = steps.iter().find(|step| step["name"] == "path");
    Ok(step.and_then(|step| step["text"].as_str()).map(str::to_owned))
}

/// Checks that the agent's `ping` names a box that answers in the server's place, as long as the box is there, and that
/// nobody gets to the server through the box.
fn ping_names<'a>(stage: &'a Stage, words: &str, put: impl FnOnce(&'a Namespace) -> Result<Rules<'a>>) -> Result<()> {
    ensure!(path(stage)?.is_none(), "without a box, it says {:?}", path(stage)?);
    let rules = put(&stage.network.internet)?;
    let before = stage.services.echo.connections();
    let told = path(stage)?.context("a box that answers in the server's place is not noticed")?;
    ensure!(told.contains(words), "{told}");
    ensure!(stage.services.echo.connections() == before, "somebody got in");
    drop(rules);
    ensure!(poll(SECOND * 20, || stage.connect(FRONT4).is_ok()), "no connection when the box is gone");
    ensure!(stage.services.echo.connections() > before, "the connection ends elsewhere");
    ensure!(path(stage)?.is_none(), "a box that is gone is named: {:?}", path(stage)?);
    Ok(())
}

#[test]
fn a_box_that_answers_in_the_servers_place_is_named_and_gets_nothing() {
    test(|| {
        let stage = Stage::new()?;
        let proxy = Echo::start(&stage.network.internet, 8888)?;
        let rules = transparent_proxy(&stage.network.internet)?;
        rootless_names(&stage, "transparent proxy")?;
        // The box has accepted the connection, and has read nothing of it.
        ensure!(proxy.clients().len() <= 1);
        drop(rules);
        rootless_recovers(&stage)?;
        ping_names(&stage, "transparent proxy", transparent_proxy)
    });
}

#[test]
fn a_syn_proxy_is_named_and_gets_nothing() {
    test(|| {
        let stage = Stage::new()?;
        let rules = syn_proxy(&stage.network.internet)?;
        rootless_names(&stage, "SYN proxy")?;
        drop(rules);
        rootless_recovers(&stage)?;
        ping_names(&stage, "SYN proxy", syn_proxy)
    });
}
