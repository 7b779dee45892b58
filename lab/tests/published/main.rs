//! The published scheme end to end, for devices that run nothing of ours (LS §3.4, §4): a browser, a real switch, the key
//! in band, tokens of SHA-224 by shim, and a gateway.

mod attacks;
mod layout;
mod stage;
mod table;

use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use browser::console::{hindrances, log_out, url};
use lab::service::{ask, call, exchange};
use lab::world::SOON;
use lab::{Capture, poll, test};
use wire::DropReason;

use stage::{BRIDGE, PAGE, QUIET, Stage, dark, echo};

/// Checks that a device gets no connection and no answer.
fn is_shut_out(device: &lab::Namespace, to: SocketAddr) -> Result<()> {
    ensure!(call(device, to, QUIET).is_err(), "{} got in to {to}", device.name());
    ensure!(ask(device, to, QUIET).is_err(), "{} got an answer from {to}", device.name());
    Ok(())
}

#[test]
fn a_person_logs_in_with_a_browser_and_the_switch_speaks_for_that_device_only() {
    test(|| {
        let stage = Stage::new(&[])?;
        let (alice, mallory) = (&stage.network.alice, &stage.network.mallory);
        is_shut_out(alice, echo())?;
        let cable = Capture::start(&stage.network.internet, "auth")?;
        let browser = stage.log_in(alice, "alice")?;
        // The support option is on SYNs of the browser; the key is in a packet of one of these connections.
        let shims = |from: &str| cable.lines(&format!("ip proto 4 and src host {from}")).map(|lines| lines.len());
        ensure!(shims("10.1.0.1")? >= 1, "no SYN had the support option");
        ensure!(poll(SOON, || shims("198.51.100.10").is_ok_and(|count| count == 1)), "{:?}", cable.lines("")?);
        for to in [echo(), dark()] {
            let mut stream = call(alice, to, SOON).with_context(|| format!("alice, TCP to {to}"))?;
            exchange(&mut stream).context("alice, on the connection")?;
            ask(alice, to, SOON).with_context(|| format!("alice, UDP to {to}"))?;
            is_shut_out(mallory, to)?;
        }
        // Nobody is logged in at the agent, and the browser's own connection goes on.
        ensure!(stage.agent.status()?["session"].is_null(), "{}", stage.agent.status()?);
        browser.open(&format!("{}{PAGE}", url()))?;
        browser.wait_for("is logged in as alice")?;
        let wrong = hindrances(&browser)?;
        ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
        Ok(())
    });
}

#[test]
fn without_a_switch_that_takes_keys_no_session_begins_and_no_key_is_sent() {
    test(|| {
        let stage = Stage::new(&[])?;
        // The server is not behind the switch, so nobody announces on its connections that keys are taken.
        let cable = Capture::start(&stage.network.internet, "auth")?;
        let browser = stage.arrive(&stage.network.server, "alice")?;
        browser.click(&format!("form[action='{PAGE}'] button"))?;
        browser.wait_for("has not announced that it accepts keys")?;
        cable.settle()?;
        ensure!(cable.lines("ip proto 4")?.is_empty(), "{:?}", cable.lines("ip proto 4")?);
        ensure!(stage.handles()?.is_empty(), "a grant is left: {:?}", stage.authority.grants()?);
        Ok(())
    });
}

#[test]
fn a_key_is_renewed_while_flows_go_on() {
    test(|| {
        let stage = Stage::new(&[])?;
        let alice = &stage.network.alice;
        let browser = stage.log_in(alice, "alice")?;
        let mut open = call(alice, echo(), SOON).context("with the first key")?;
        let first = stage.handles()?;
        // The page's script sends this request every few minutes.
        let script = "return fetch('/console/network/renew').then((answer) => answer.status)";
        for keys in 2..5 {
            let status = browser.script(script)?;
            ensure!(status == 204, "{status}");
            stage.wait_for_keys(keys)?;
            call(alice, echo(), SOON).with_context(|| format!("with key {keys}"))?;
            exchange(&mut open).context("on the connection from before")?;
        }
        ensure!(stage.handles()?.len() == first.len() + 3, "{:?}", stage.handles()?);
        browser.click(&format!("a[href^='{PAGE}/renew']"))?;
        browser.wait_for("Another key is on its way")?;
        stage.wait_for_keys(5)
    });
}

#[test]
fn a_device_that_has_moved_to_another_network_gets_no_key_until_its_person_asks_again() {
    test(|| {
        let stage = Stage::new(&[])?;
        let alice = &stage.network.alice;
        let browser = stage.log_in(alice, "alice")?;
        let renew = "return fetch('/console/network/renew').then((answer) => answer.status)";
        ensure!(browser.script(renew)? == 204);
        stage.wait_for_keys(2)?;
        let grants = stage.handles()?.len();
        alice.ip("address del 10.1.0.1/24 dev eth0")?;
        alice.address("eth0", "10.1.0.77/24")?;
        alice.route("default", "10.1.0.254")?;
        let cable = Capture::start(&stage.network.internet, "auth")?;
        // The browser notices by itself that its connections have no address any more.
        let mut status = serde_json::Value::Null;
        let asked = || {
            status = browser.script(&format!("{renew}.catch(() => 0)")).unwrap_or_default();
            status != 0
        };
        ensure!(poll(SOON, asked) && status == 409, "{status}");
        ensure!(stage.handles()?.len() == grants, "a pair was issued");
        browser.open(&format!("{}{PAGE}", url()))?;
        browser.wait_for("was logged in at the address 10.1.0.1")?;
        ensure!(browser.script("return document.querySelector('[data-renew]') === null")? == true);
        let keys = || cable.lines("ip proto 4 and src host 198.51.100.10").map(|lines| lines.len());
        cable.settle()?;
        ensure!(keys()? == 0, "{:?}", cable.lines("ip proto 4")?);
        browser.click(&format!("form[action='{PAGE}/leave'] button"))?;
        browser.wait_for("This device is logged out")?;
        browser.click(&format!("form[action='{PAGE}'] button"))?;
        browser.wait_for("The key is on its way")?;
        call(alice, echo(), SOON).map(drop).context("after the next login")
    });
}

#[test]
fn a_log_out_ends_flows_and_the_switch_speaks_for_the_device_no_more() {
    test(|| {
        for by_console in [false, true] {
            let stage = Stage::new(&[])?;
            let alice = &stage.network.alice;
            let browser = stage.log_in(alice, "alice")?;
            let mut open = call(alice, echo(), SOON)?;
            exchange(&mut open)?;
            open.set_read_timeout(Some(QUIET))?;
            if by_console {
                log_out(&browser)?;
            } else {
                browser.click(&format!("form[action='{PAGE}/leave'] button"))?;
                browser.wait_for("This device is logged out")?;
            }
            ensure!(poll(SOON, || exchange(&mut open).is_err()), "the flow lives on");
            let tokens = stage.counted("tokens")?;
            is_shut_out(alice, echo())?;
            ensure!(poll(SOON, || stage.counted("plain").is_ok_and(|count| count > 0)), "{}", stage.agent.status()?);
            ensure!(stage.counted("tokens")? == tokens, "the switch still makes tokens");
            ensure!(stage.handles()?.is_empty(), "{:?}", stage.authority.grants()?);
        }
        Ok(())
    });
}

#[test]
fn a_person_who_leaves_the_organisation_loses_the_device_at_once() {
    test(|| {
        let mut stage = Stage::new(&[])?;
        stage.provider.set_groups("mallory", &["staff"])?;
        let (alice, mallory) = (&stage.network.alice, &stage.network.mallory);
        let (_hers, _his) = (stage.log_in(alice, "alice")?, stage.log_in(mallory, "mallory")?);
        let (mut open, mut other) = (call(alice, echo(), SOON)?, call(mallory, echo(), SOON)?);
        exchange(&mut open)?;
        open.set_read_timeout(Some(QUIET))?;
        ensure!(stage.authority.refresh_sessions()?.contains("0 ended"), "the provider refuses nobody yet");
        exchange(&mut open).context("after the provider has vouched for her again")?;
        stage.provider.remove("alice")?;
        let told = stage.authority.refresh_sessions()?;
        ensure!(told.contains("2 ended"), "her browser's session and her device's: {told}");
        ensure!(poll(SOON, || exchange(&mut open).is_err()), "the flow lives on");
        is_shut_out(alice, echo())?;
        exchange(&mut other).context("the other person's flow")?;
        ensure!(stage.handles()?.len() == 1, "{:?}", stage.authority.grants()?);
        Ok(())
    });
}

#[test]
fn two_people_behind_one_switch_have_a_key_each() {
    test(|| {
        let mut stage = Stage::new(&[])?;
        stage.provider.set_groups("mallory", &["staff"])?;
        let (alice, mallory) = (&stage.network.alice, &stage.network.mallory);
        let _hers = stage.log_in(alice, "alice")?;
        let his = stage.log_in(mallory, "mallory")?;
        call(alice, echo(), SOON).context("alice")?;
        call(mallory, echo(), SOON).context("mallory, who is staff here")?;
        let mut people: Vec<_> = stage.verifier.flows()?.iter().map(|flow| flow["person"].clone()).collect();
        people.sort_by_key(ToString::to_string);
        ensure!(people == ["alice", "mallory"], "{people:?}");
        his.click(&format!("form[action='{PAGE}/leave'] button"))?;
        his.wait_for("This device is logged out")?;
        is_shut_out(mallory, echo())?;
        call(alice, echo(), SOON).context("alice, after the other has left")?;
        Ok(())
    });
}

#[test]
fn a_stateless_verifier_admits_pairs_that_it_was_not_told_of() {
    test(|| {
        let stage = Stage::new(&["--ls-stateless"])?;
        let (alice, mallory) = (&stage.network.alice, &stage.network.mallory);
        let _browser = stage.log_in(alice, "alice")?;
        call(alice, echo(), SOON).context("alice, TCP")?;
        ask(alice, echo(), SOON).context("alice, UDP")?;
        is_shut_out(mallory, echo())?;
        let table = stage.verifier.pinned_tables().join("ls_grants");
        ensure!(table.exists(), "{} is not there", table.display());
        ensure!(attacks::entries(&table)? == 0, "the verifier remembers pairs");
        ensure!(stage.verifier.counters()?.dropped(DropReason::UnknownEpoch) == 0, "{:?}", stage.verifier.counters()?);
        Ok(())
    });
}

#[test]
fn after_a_restart_of_the_controller_the_page_brings_the_next_key() {
    test(|| {
        let mut stage = Stage::new(&[])?;
        let browser = stage.log_in(&stage.network.alice, "alice")?;
        let mut open = call(&stage.network.alice, echo(), SOON)?;
        stage.agent.kill()?;
        stage.agent.run()?;
        stage.switch.wait_for_rules(BRIDGE)?;
        exchange(&mut open).context("on a connection from before")?;
        // Keys are in memory only.
        ensure!(call(&stage.network.alice, echo(), QUIET).is_err(), "a key outlived the controller");
        drop(browser);
        let _again = stage.log_in(&stage.network.alice, "alice")?;
        call(&stage.network.alice, echo(), SOON).map(drop).context("with the next key")
    });
}
