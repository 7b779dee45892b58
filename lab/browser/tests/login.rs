//! Tests of logins as in production: of a person in a real browser at a real identity provider, of a person by device
//! code on another machine, and of a machine with its key. The provider's groups decide on access.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use browser::Browser;
use browser::approval::{QUESTION, address, approve, comparison, confirm, enter};
use browser::console::{hindrances, url};
use lab::provider::{self, Options, Provider};
use lab::service::{call, exchange, last_answer};
use lab::world::{AUTHORITY, Agent, Authority, ECHO, FRONT4, Network, SOON, Services, Verifier, Way, World, policy};
use lab::{Process, poll, test};

/// Uid of another user of Alice's machine.
const NOBODY: u32 = 65_534;
/// How long to wait for an answer that must not come.
const QUIET: Duration = Duration::from_millis(400);

/// The standard world, in which only the provider knows the members of staff.
struct Organisation {
    provider: Provider,
    world: World,
}

impl Organisation {
    fn new(options: impl FnOnce(&Authority) -> Options) -> Result<Self> {
        let network = Network::new(Way::Nat)?;
        let services = Services::start(&network)?;
        let policy = policy("5m").replace("staff = [\"alice\"]", "staff = []");
        let configuration = format!("{}\n[console]\nurl = \"{}\"\n", provider::configuration(AUTHORITY), url());
        // Users exist at the provider only: local accounts of the same names would be different persons.
        let authority = Authority::without_accounts(&network.authority, &policy, &configuration)?;
        let (certificate, key) = authority.certificate();
        let redirects = vec![format!("{}/console/login/callback", url())];
        let options = Options { redirects, ..options(&authority) };
        let provider = Provider::start(&network.authority, AUTHORITY, &certificate, &key, &options)?;
        let verifier = Verifier::start(&network.server, &authority)?;
        let agent = Agent::start(&network.alice)?;
        Ok(Self { provider, world: World { agent, verifier, authority, services, network } })
    }

    /// Runs Alice's `vouchsafe login` and approves it in her browser.
    fn log_in(&self, browser: &Browser<'_>, person: &str) -> Result<String> {
        let mut login = self.world.agent.begin_login(&self.world.authority, &[])?;
        browser.open(&address(&mut login)?)?;
        enter(browser, person)?;
        approve(browser, &login, person)?;
        browser.wait_for("You are logged in")?;
        finished(&mut login, true)
    }

    fn groups(&self) -> Result<serde_json::Value> {
        let sessions = self.world.authority.sessions()?;
        Ok(sessions.first().context("nobody is logged in")?["groups"].clone())
    }
}

fn echo() -> SocketAddr {
    format!("{FRONT4}:{ECHO}").parse().expect("an address")
}

/// Waits until a login has ended, checks that it succeeded if `well` and failed otherwise, and returns its output.
fn finished(login: &mut Process, well: bool) -> Result<String> {
    let status = login.wait(SOON)?;
    ensure!(status.success() == well, "the login ended with {status}:\n{}", login.log());
    Ok(login.log())
}

fn at_id_token(_: &Authority) -> Options {
    Options::default()
}

#[test]
fn a_person_logs_in_with_a_browser_and_the_providers_groups_decide() {
    test(|| {
        let mut organisation = Organisation::new(at_id_token)?;
        ensure!(call(&organisation.world.network.alice, echo(), QUIET).is_err(), "admitted without a login");
        {
            let browser = Browser::start(&organisation.world.network.alice)?;
            let said = organisation.log_in(&browser, "alice")?;
            ensure!(said.contains("as alice"), "{said}");
        }
        let mut flow = call(&organisation.world.network.alice, echo(), SOON).context("alice, who is staff")?;
        ensure!(call(&organisation.world.network.mallory, echo(), QUIET).is_err(), "mallory got in");

        // The provider removes her from the group, and the authority learns of it.
        organisation.provider.set_groups("alice", &["guests"])?;
        exchange(&mut flow).context("nobody has told the authority yet")?;
        let asked = Instant::now();
        let told = organisation.world.authority.refresh_sessions()?;
        ensure!(told.contains("1 with changed groups"), "{told}");
        let lived = last_answer(&mut flow, SOON)?.duration_since(asked);
        ensure!(lived < Duration::from_secs(1), "the flow lived {lived:?} more");
        println!("the flow of a person who lost her group was cut after {} ms", lived.as_millis());
        ensure!(call(&organisation.world.network.alice, echo(), QUIET).is_err(), "a new flow was admitted");
        ensure!(organisation.groups()? == serde_json::json!(["guests"]), "{}", organisation.groups()?);

        // The provider adds her to the group again; no new login is needed.
        organisation.provider.set_groups("alice", &["staff"])?;
        organisation.world.authority.refresh_sessions()?;
        let again = poll(SOON, || call(&organisation.world.network.alice, echo(), QUIET).is_ok());
        ensure!(again, "alice is staff again and not admitted");
        Ok(())
    });
}

#[test]
fn a_login_that_another_user_of_the_machine_began_ends_at_a_question() {
    test(|| {
        let organisation = Organisation::new(at_id_token)?;
        let world = &organisation.world;
        let browser = Browser::start(&world.network.alice)?;
        browser.open(&format!("{}/console/login", url()))?;
        browser.click("form[action$='/login/provider'] button")?;
        enter(&browser, "alice")?;
        browser.wait_for("You are logged in as alice")?;
        let own = world.authority.sessions()?;

        // Another user of Alice's machine begins a login and sends its URL to her browser, which is logged in at the
        // provider.
        let mut theirs = world.agent.begin_login_as(NOBODY, &world.authority, &[])?;
        browser.open(&address(&mut theirs)?)?;
        let asked = || browser.text().is_ok_and(|said| said.contains(QUESTION));
        ensure!(poll(SOON, || asked() || theirs.exit().is_some()), "{}", browser.text()?);
        ensure!(theirs.exit().is_none(), "somebody else has Alice's session: {}", theirs.log());
        let said = browser.text()?;
        for line in ["alice", "claims to be nobody", &comparison(&theirs)?] {
            ensure!(said.contains(line), "{line} is not in:\n{said}");
        }
        let wrong = hindrances(&browser)?;
        ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
        ensure!(theirs.exit().is_none() && world.authority.sessions()? == own, "logged in without an answer");

        // One click must not approve the login: an attacker may have prepared it in another window.
        browser.click("button[value=approve]")?;
        ensure!(browser.text()?.contains(QUESTION), "one click was enough: {}", browser.text()?);
        confirm(&browser)?;
        ensure!(theirs.exit().is_none() && world.authority.sessions()? == own, "logged in without an answer");

        browser.click("button[value=deny]")?;
        browser.wait_for("Nobody was logged in")?;
        let heard = finished(&mut theirs, false)?;
        ensure!(heard.contains("the login was denied in the browser"), "{heard}");
        ensure!(world.authority.sessions()? == own, "logged in after a no");
        Ok(())
    });
}

#[test]
fn a_person_logs_in_by_device_code_and_somebody_in_no_group_gets_nothing() {
    test(|| {
        // In this configuration the ID token contains no groups: the authority has to query the UserInfo endpoint.
        let organisation = Organisation::new(|_| Options { claims_at_userinfo: true, ..Options::default() })?;
        let world = &organisation.world;
        // The browser is not on the agent's machine. A device code allows this.
        for (person, admitted) in [("mallory", false), ("alice", true)] {
            let browser = Browser::start(&world.network.mallory)?;
            let mut login = world.agent.begin_login(&world.authority, &["--device-code"])?;
            let url = address(&mut login)?;
            let log = login.log();
            let code = log.split("enter the code").nth(1).and_then(|rest| rest.split_whitespace().next());
            browser.open(&url)?;
            browser.fill("input[name=user_code]", code.context("no code")?)?;
            browser.click("button[type=submit]")?;
            browser.click("button[type=submit]")?;
            enter(&browser, person)?;
            browser.wait_for("Sign-in Success")?;
            let said = finished(&mut login, true)?;
            ensure!(said.contains(&format!("as {person}")), "{said}");
            if admitted {
                call(&world.network.alice, echo(), SOON).context("alice, who is staff")?;
            } else {
                ensure!(call(&world.network.alice, echo(), QUIET).is_err(), "{person}, who is in no group, got in");
            }
        }
        Ok(())
    });
}

#[test]
fn a_logout_at_the_provider_cuts_the_flow_within_a_second() {
    test(|| {
        let logout_uri = |authority: &Authority| format!("{}/v1/login/backchannel-logout", authority.url());
        let organisation =
            Organisation::new(|authority| Options { logout_uri: Some(logout_uri(authority)), ..Options::default() })?;
        let world = &organisation.world;
        let browser = Browser::start(&world.network.alice)?;
        organisation.log_in(&browser, "alice")?;
        let mut flow = call(&world.network.alice, echo(), SOON).context("alice, who is staff")?;
        browser.open(&organisation.provider.logout_url())?;
        exchange(&mut flow).context("she has only been asked whether she wants to log out")?;
        let asked = Instant::now();
        browser.click("button[name=logout]")?;
        let lived = last_answer(&mut flow, SOON)?.duration_since(asked);
        ensure!(lived < Duration::from_secs(2), "the flow lived {lived:?} more, the browser's part included");
        ensure!(world.authority.sessions()?.is_empty(), "the session lives on");
        ensure!(call(&world.network.alice, echo(), QUIET).is_err(), "a new flow was admitted");
        Ok(())
    });
}

#[test]
fn whoever_logs_out_is_told_how_to_log_out_at_the_provider_too() {
    test(|| {
        let organisation = Organisation::new(at_id_token)?;
        let world = &organisation.world;
        let browser = Browser::start(&world.network.alice)?;
        organisation.log_in(&browser, "alice")?;
        world.agent.logout()?;
        ensure!(world.authority.sessions()?.is_empty(), "the session lives on");

        // The provider's own session continues, so the provider does not ask for a password.
        let again = || -> Result<Process> {
            let mut login = world.agent.begin_login(&world.authority, &[])?;
            browser.open(&address(&mut login)?)?;
            Ok(login)
        };
        let mut login = again()?;
        approve(&browser, &login, "alice")?;
        finished(&mut login, true)?;
        let said = world.agent.logout()?;
        let farewell = said.lines().map(str::trim).find(|line| line.starts_with(&organisation.provider.issuer()));
        browser.open(farewell.with_context(|| said.clone())?)?;
        browser.click("button[name=logout]")?;
        browser.wait_for("Sign-out Success")?;
        let mut login = again()?;
        enter(&browser, "alice").context("there is no session at the provider any more")?;
        approve(&browser, &login, "alice")?;
        finished(&mut login, true).map(drop)
    });
}

#[test]
fn a_machine_logs_in_with_its_key_until_its_account_is_removed() {
    test(|| {
        let network = Network::new(Way::Nat)?;
        let services = Services::start(&network)?;
        let world = World::around(network, services, "5m")?;
        let key = world.network.alice.dir().join("backup.key");
        world.authority.add_service("backup", &["staff"], &key)?;
        let key = key.to_string_lossy().into_owned();
        let mut login = world.agent.begin_login(&world.authority, &["--service-key", &key])?;
        let said = finished(&mut login, true)?;
        ensure!(said.contains("as backup"), "{said}");
        let mut flow = call(&world.network.alice, echo(), SOON).context("the machine, which is in a group")?;
        world.authority.remove_service("backup")?;
        let removed = Instant::now();
        let lived = last_answer(&mut flow, SOON)?.duration_since(removed);
        ensure!(lived < Duration::from_secs(1), "the flow lived {lived:?} more");
        let mut login = world.agent.begin_login(&world.authority, &["--service-key", &key])?;
        finished(&mut login, false).map(drop)
    });
}
