//! The login of an agent in a browser: the provider's login page, and the page that asks for approval.

use anyhow::{Context, Result, ensure};
use lab::provider::PASSWORD;
use lab::world::SOON;
use lab::{Process, poll};

use crate::driver::Browser;

/// Text of the page on which a user approves the login of an agent.
pub const QUESTION: &str = "Approve only if you started this";
/// CSS selector of the box that a user ticks to approve.
const BOX: &str = "input[name=confirmed]";

/// Returns the first URL that a login prints.
pub fn address(login: &mut Process) -> Result<String> {
    // The line of the URL is complete only once another line follows.
    ensure!(
        poll(SOON, || login.log().split("https://").nth(1).is_some_and(|rest| rest.contains('\n'))),
        "{}",
        login.log()
    );
    let log = login.log();
    let line = log.lines().map(str::trim).find(|line| line.starts_with("https://"));
    Ok(line.context("no address")?.to_owned())
}

/// Returns the code that a browser login prints for the user to compare.
pub fn comparison(login: &Process) -> Result<String> {
    let log = login.log();
    let code = log.split("shows this code:").nth(1).and_then(|rest| rest.split_whitespace().next());
    Ok(code.context("no code")?.to_owned())
}

/// Logs a person in at the identity provider.
pub fn enter(browser: &Browser<'_>, person: &str) -> Result<()> {
    browser.fill("input[name=login]", person)?;
    browser.fill("input[name=password]", PASSWORD)?;
    browser.click("button[type=submit]")
}

/// Approves a login: the user finds the question, their name and the command's code on the page, and confirms.
pub fn approve(browser: &Browser<'_>, login: &Process, person: &str) -> Result<()> {
    browser.wait_for(QUESTION)?;
    let said = browser.text()?;
    ensure!(said.contains(person) && said.contains(&comparison(login)?), "{said}\n{}", login.log());
    confirm(browser)?;
    browser.click("button[value=approve]")
}

/// Ticks the page's check box. Repeats the click until the box is ticked, because the page ignores clicks within the
/// first second.
pub fn confirm(browser: &Browser<'_>) -> Result<()> {
    let is_ticked = || browser.script(&format!("return document.querySelector('{BOX}').checked"));
    let ticked = poll(SOON, || browser.click(BOX).is_ok() && is_ticked().is_ok_and(|ticked| ticked == true));
    ensure!(ticked, "the box can't be ticked");
    Ok(())
}
