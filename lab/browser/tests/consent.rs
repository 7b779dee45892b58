//! Consent in a real browser: a person asks for access, a delegate allows it, the person uses it, and the delegate
//! withdraws it. The delegate also gives access without a request.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use browser::Browser;
use browser::console::{ADMINISTRATOR, PERSON, delegation, hindrances, log_in, log_out, url};
use lab::service::{call, exchange, last_answer};
use lab::world::{Agent, Authority, DARK4, ECHO, FRONT4, Network, PASSWORD, SOON, Services, Verifier, Way, policy};
use lab::{poll, test};

/// Time limit for the connection attempt of a client without a grant.
const KNOCK: Duration = Duration::from_millis(500);
/// Time limit for cutting a flow, from the click on. It includes the browser, the authority and the verifier.
const CUT: Duration = Duration::from_secs(1);

#[test]
fn a_consent_opens_a_receiver_until_it_is_withdrawn() {
    test(|| {
        let network = Network::new(Way::Nat)?;
        let _services = Services::start(&network)?;
        // Nobody may reach anything but by consent.
        let policy = policy("5m").replace("staff = [\"alice\"]", "staff = []");
        let policy = policy + &delegation("front") + &delegation("dark");
        let console = format!("\n[console]\nurl = \"{}\"\n", url());
        let authority = Authority::make(&network.authority, &policy, &console, &[PERSON, ADMINISTRATOR])?;
        let _verifier = Verifier::start(&network.server, &authority)?;
        let agent = Agent::start(&network.alice)?;
        let (done, said) = agent.try_login(&authority, PERSON)?;
        ensure!(done, "{said}");
        let [front, dark]: [SocketAddr; 2] =
            [FRONT4, DARK4].map(|address| format!("{address}:{ECHO}").parse().unwrap());
        let knock = |to| call(&network.alice, to, KNOCK);
        ensure!(knock(front).is_err(), "the receiver is open without a consent");
        let browser = Browser::start(&network.alice)?;

        // The person asks.
        log_in(&browser, PERSON, PASSWORD)?;
        browser.open(&format!("{}/console/access", url()))?;
        browser.script("document.querySelector('#ask-receiver').value = 'front'")?;
        browser.fill("#ask-services", "tcp/7")?;
        browser.fill("#ask-reason", "a migration")?;
        browser.click("main form[action$='/console/access'] button")?;
        browser.wait_for("The request is made")?;
        log_out(&browser)?;
        ensure!(knock(front).is_err(), "a request opens the receiver");

        // The delegate allows.
        log_in(&browser, ADMINISTRATOR, PASSWORD)?;
        browser.open(&format!("{}/console/access/requests", url()))?;
        browser.wait_for("a migration")?;
        let wrong = hindrances(&browser)?;
        ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
        browser.click("main button[value=allow]")?;
        browser.wait_for("Allowed.")?;

        // The person uses it.
        let mut flow = None;
        ensure!(
            poll(SOON, || {
                flow = knock(front).ok();
                flow.is_some()
            }),
            "the consent opens nothing"
        );
        let mut flow = flow.context("a flow")?;
        ensure!(poll(SOON, || exchange(&mut flow).is_ok()), "the flow does not work");
        ensure!(knock(dark).is_err(), "another receiver is open");

        // The delegate withdraws.
        // A thread of its own notes the last answer, because the click returns only with the next page.
        let watch = std::thread::spawn(move || last_answer(&mut flow, SOON));
        let begun = Instant::now();
        browser.click("main form[action$='/access/requests/withdraw'] button")?;
        let last = watch.join().map_err(|_| anyhow!("the watch of the flow failed"))??;
        let lived = last.saturating_duration_since(begun);
        println!("the last answer came {lived:?} after the click");
        ensure!(lived <= CUT, "the flow lived for {lived:?} after the click");
        browser.wait_for("The consent is withdrawn")?;
        let wrong = hindrances(&browser)?;
        ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
        ensure!(knock(front).is_err(), "the receiver is still open");

        // The delegate gives access without a request.
        browser.script("document.querySelector('#give-receiver').value = 'front'")?;
        browser.fill("#give-who", PERSON)?;
        browser.fill("#give-for", "1h")?;
        browser.click("main form[action$='/access/requests/give'] button")?;
        browser.wait_for("Given.")?;
        ensure!(poll(SOON, || knock(front).is_ok()), "the access that was given opens nothing");
        browser.click("main form[action$='/access/requests/withdraw'] button")?;
        browser.wait_for("The consent is withdrawn")?;
        ensure!(knock(front).is_err(), "the receiver is open after the access has ended");

        // The agent says for what she can ask.
        let said = agent.ping_with(&front.to_string(), &["--wait", "1"])?.to_string();
        ensure!(said.contains("vouchsafe access ask front --service tcp/7"), "{said}");

        // Now alice asks on the command line, and withdraws the consent herself.
        by_command(&agent).context("by commands")
    });
}

fn by_command(agent: &Agent) -> Result<()> {
    let (asked, said) = agent.access("ask", &["front", "--for", "1h", "--reason", "again"])?;
    ensure!(asked && said.contains("has to allow it"), "{said}");
    let (again, said) = agent.access("ask", &["front"])?;
    ensure!(!again && said.contains("waits for a decision"), "{said}");
    let (listed, said) = agent.access("list", &[])?;
    ensure!(listed && said.contains("withdrawn") && said.contains("open") && said.contains("dark"), "{said}");
    let id = said.lines().find(|line| line.contains("open")).and_then(|line| line.split_whitespace().next());
    let id = id.context("a number")?.to_owned();
    let (done, said) = agent.access("withdraw", &[&id])?;
    ensure!(done, "{said}");
    let (twice, said) = agent.access("withdraw", &[&id])?;
    ensure!(!twice && said.contains("already withdrawn"), "{said}");
    Ok(())
}
