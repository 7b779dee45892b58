//! Tests of the console in a real browser: accessibility, the ways to log in, and the effects of actions.
//!
//! A scene and a browser take longer to start than most checks take to run, so some tests check several facts in one
//! scene. Each check leaves the state that the next one expects.

use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use browser::Browser;
use browser::console::{
    ADMINISTRATOR, PAGES, PERSON, Scene, Who, authenticator, code, hindrances, log_in, log_out, url,
};
use lab::service::{call, exchange, last_answer};
use lab::world::{ECHO, FRONT4, PASSWORD, SOON};
use lab::{poll, provider, test};

/// Time limit for cutting a flow.
const CUT: Duration = Duration::from_secs(2);

#[test]
fn every_page_is_for_everybody() {
    test(|| {
        let scene = Scene::new()?;
        let browser = Browser::start(scene.desk())?;
        let mut wrong = Vec::new();
        for who in [Who::Anybody, Who::Person, Who::Administrator] {
            scene.become_one(&browser, who)?;
            for page in PAGES.iter().filter(|page| page.who == who) {
                scene.open(&browser, page)?;
                wrong.extend(hindrances(&browser)?.into_iter().map(|what| format!("{}: {what}", page.path)));
                println!("judged {}", page.path);
            }
        }
        ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
        Ok(())
    });
}

#[test]
fn a_person_says_what_they_log_in_with_and_from() {
    test(|| {
        let scene = Scene::new()?;
        let browser = Browser::start(scene.desk())?;
        scene.become_one(&browser, Who::Person)?;
        a_passkey_logs_in_until_it_is_removed(&browser).context("a passkey")?;
        log_in(&browser, PERSON, PASSWORD)?;
        a_second_factor_is_set_up_and_asked_for(&browser).context("a second factor")?;
        a_device_that_is_revoked_loses_its_flow(&scene, &browser).context("a device")
    });
}

fn a_passkey_logs_in_until_it_is_removed(browser: &Browser<'_>) -> Result<()> {
    authenticator(browser)?;
    browser.open(&format!("{}/console/security", url()))?;
    browser.fill("#passkey-name", "this laptop")?;
    browser.fill("#passkey-password", PASSWORD)?;
    browser.click("#add-passkey button")?;
    browser.wait_for("The passkey is added")?;
    for _ in 0..2 {
        log_out(browser)?;
        browser.click("form[data-passkey] button")?;
        browser.wait_for(&format!("You are logged in as {PERSON}"))?;
    }
    browser.open(&format!("{}/console/security", url()))?;
    browser.click("tbody summary")?;
    browser.fill("tbody input[type=password]", PASSWORD)?;
    browser.click("tbody form button")?;
    browser.wait_for("The passkey is removed")?;
    log_out(browser)?;
    browser.click("form[data-passkey] button")?;
    browser.wait_for("This passkey is unknown here")
}

fn a_second_factor_is_set_up_and_asked_for(browser: &Browser<'_>) -> Result<()> {
    browser.open(&format!("{}/console/security/factor", url()))?;
    let secret = browser.script("return document.querySelector('dd code').textContent.replaceAll(' ', '')")?;
    let secret = secret.as_str().context("no secret")?;
    browser.fill("#new-code", &code(secret, 0)?)?;
    browser.fill("#factor-password", PASSWORD)?;
    browser.click("main form button")?;
    browser.wait_for("Your second factor is set up")?;
    log_out(browser)?;
    let enter = |code: &str| -> Result<()> {
        browser.fill("#person", PERSON)?;
        browser.fill("#password", PASSWORD)?;
        browser.fill("#code", code)?;
        browser.click("#password ~ button")
    };
    enter("")?;
    browser.wait_for("needs the six digits")?;
    // A code is valid once. The next code, which a clock that is ahead would show, is accepted.
    enter(&code(secret, 30)?)?;
    browser.wait_for(&format!("You are logged in as {PERSON}"))
}

fn a_device_that_is_revoked_loses_its_flow(scene: &Scene, browser: &Browser<'_>) -> Result<()> {
    let mut flow = connection(scene)?;
    browser.open(&format!("{}/console/devices", url()))?;
    browser.click("main .act button")?;
    browser.wait_for("Its flows are being cut")?;
    last_answer(&mut flow, CUT)?;
    ensure!(!browser.text()?.contains(ADMINISTRATOR), "somebody else's name is on the page");
    Ok(())
}

#[test]
fn administrators_see_who_is_in_and_say_who_may() {
    test(|| {
        let mut scene = Scene::new()?;
        a_group_of_the_identity_provider_makes_administrators(&mut scene).context("a group")?;
        let browser = Browser::start(scene.desk())?;
        scene.become_one(&browser, Who::Administrator)?;
        a_flow_is_shown_and_ended(&scene, &browser).context("a flow")?;
        a_draft_is_judged_and_applied(&scene, &browser).context("a draft")
    });
}

fn a_group_of_the_identity_provider_makes_administrators(scene: &mut Scene) -> Result<()> {
    scene.provider.set_groups("alice", &["operators"])?;
    let browser = Browser::start(&scene.network.alice)?;
    browser.open(&format!("{}/console/admin", url()))?;
    browser.click("form[action$='/login/provider'] button")?;
    browser.fill("input[name=login]", "alice")?;
    browser.fill("input[name=password]", provider::PASSWORD)?;
    browser.click("button[type=submit]")?;
    browser.wait_for("You are an administrator")?;
    // The provider removes alice from the group, and the authority learns of it.
    scene.provider.set_groups("alice", &["staff"])?;
    scene.authority.refresh_sessions()?;
    browser.open(&format!("{}/console/admin", url()))?;
    browser.wait_for("This page is for administrators")?;
    log_out(&browser)?;
    browser.open(&format!("{}/console", url()))?;
    ensure!(browser.url()?.contains("/console/login"), "still logged in");
    Ok(())
}

/// Opens a connection of [`PERSON`].
fn connection(scene: &Scene) -> Result<TcpStream> {
    call(scene.desk(), format!("{FRONT4}:{ECHO}").parse()?, SOON)
}

fn a_flow_is_shown_and_ended(scene: &Scene, browser: &Browser<'_>) -> Result<()> {
    let mut flow = connection(scene)?;
    let from = flow.local_addr()?.port();
    // Verifiers report every two seconds. The NAT keeps source ports where it can.
    let shown = poll(SOON, || {
        let opened = browser.open(&format!("{}/console/admin/flows", url()));
        let text = opened.and_then(|()| browser.text()).unwrap_or_default();
        text.contains(PERSON) && text.contains(&format!(":{from}"))
    });
    ensure!(shown, "the flow is not shown: {}", browser.text()?);
    browser.click("main td a[href*='/admin/revoke?grant=']")?;
    browser.wait_for("This ends the grant")?;
    exchange(&mut flow)?;
    browser.click("main form[method=post] button")?;
    browser.wait_for("Flows are being cut")?;
    last_answer(&mut flow, CUT)?;
    Ok(())
}

fn a_draft_is_judged_and_applied(scene: &Scene, browser: &Browser<'_>) -> Result<()> {
    let mut flow = connection(scene)?;
    browser.open(&format!("{}/console/admin/policy/draft", url()))?;
    let edit = format!(
        "const text = document.querySelector('#text');
         text.value = text.value.replace('\"{PERSON}\"', '\"{ADMINISTRATOR}\"');
         return text.value.includes('{ADMINISTRATOR}');"
    );
    ensure!(browser.script(&edit)? == true, "the draft has no such person");
    browser.click("main form button[type=submit]")?;
    browser.wait_for("Changes of access")?;
    let text = browser.text()?;
    ensure!(["gain", "lose", PERSON, ADMINISTRATOR].iter().all(|word| text.contains(word)), "{text}");
    let wrong = hindrances(browser)?;
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    exchange(&mut flow)?;
    browser.click("form[action$='/policy/apply'] button")?;
    browser.wait_for("The policy is in force")?;
    last_answer(&mut flow, CUT)?;
    Ok(())
}
