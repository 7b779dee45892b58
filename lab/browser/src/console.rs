//! The console's pages with real content, opened in a real browser and checked by axe-core (a program that finds
//! obstacles for people with disabilities).
//!
//! A new page needs a line in [`PAGES`]: the tests then check it with axe-core and walk it by keyboard, and
//! `cargo xtask screenshots` takes its picture.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use lab::Process;
use lab::net::Namespace;
use lab::provider::{self, Options, Provider};
use lab::service::call;
use lab::world::{AUTHORITY, Agent, Authority, ECHO, FRONT4, Network, PASSWORD, SOON, Services, Verifier, Way, policy};
use serde_json::{Value, json};

use crate::approval;
use crate::driver::{Browser, NAME};

/// The user who opens a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// A visitor who is not logged in.
    Anybody,
    /// A user with an account.
    Person,
    /// A user with an account who is an administrator.
    Administrator,
}

/// A page of the console.
#[derive(Clone, Copy, Debug)]
pub struct Page {
    /// Name of the page's picture.
    pub name: &'static str,
    /// Path of the page's URL.
    pub path: &'static str,
    /// The user who is logged in when the page is opened.
    pub who: Who,
}

const fn page(name: &'static str, path: &'static str, who: Who) -> Page {
    Page { name, path, who }
}

/// The pages of the console that are opened by their addresses. The page of a single policy version and the page of a
/// single request for access are not in this list.
pub const PAGES: &[Page] = &[
    page("login", "/console/login", Who::Anybody),
    page("overview", "/console", Who::Person),
    page("devices", "/console/devices", Who::Person),
    page("this-device", "/console/network", Who::Person),
    page("grants", "/console/grants", Who::Person),
    page("access", "/console/access", Who::Person),
    page("identity", "/console/identity", Who::Person),
    page("sessions", "/console/sessions", Who::Person),
    page("security", "/console/security", Who::Person),
    page("second-factor", "/console/security/factor", Who::Person),
    page("access-requests", "/console/access/requests", Who::Administrator),
    page("administration", "/console/admin", Who::Administrator),
    page("live-flows", "/console/admin/flows", Who::Administrator),
    page("drops", "/console/admin/drops?span=quarter", Who::Administrator),
    page("policy", "/console/admin/policy", Who::Administrator),
    page("policy-draft", "/console/admin/policy/draft", Who::Administrator),
    page("policy-versions", "/console/admin/policy/versions", Who::Administrator),
    page("people", "/console/admin/people", Who::Administrator),
    page("person", "/console/admin/people/ben", Who::Administrator),
    page("revoke", "/console/admin/revoke?person=ben", Who::Administrator),
    page("audit", "/console/admin/audit", Who::Administrator),
];

/// Time limit for the connection attempt of a client without a grant.
const KNOCK: Duration = Duration::from_millis(500);

/// An account that is allowed to use the receiver `front`. It is logged in at the agent of [`Scene`], which has a grant
/// in use.
pub const PERSON: &str = "ben";
/// An account that is an administrator.
pub const ADMINISTRATOR: &str = "olga";

/// Returns a part of a policy by which [`ADMINISTRATOR`] decides whether [`PERSON`] may reach a receiver.
pub fn delegation(receiver: &str) -> String {
    format!(
        "\n[[delegations]]\nname = \"{receiver}\"\nto = \"{receiver}\"\ndelegates = \"person:{ADMINISTRATOR}\"\n\
         who = \"person:{PERSON}\"\nlifetime_max = \"30d\"\n"
    )
}

/// An organisation with a console, accounts, an identity provider, a verifier and an agent. Fields are declared in the
/// order in which they are dropped.
pub struct Scene {
    /// An open connection of [`PERSON`], so that the console has a live flow to show.
    _flow: TcpStream,
    /// The agent at which [`PERSON`] is logged in.
    pub agent: Agent,
    /// The verifier that protects the server.
    pub verifier: Verifier,
    /// The identity provider, whose users have no local account.
    pub provider: Provider,
    /// The authority, which serves the console.
    pub authority: Authority,
    /// The services on the server.
    pub services: Services,
    /// Namespaces and cables.
    pub network: Network,
}

impl Scene {
    /// Starts all parts of the organisation, and causes one admitted flow and one drop.
    pub fn new() -> Result<Self> {
        let network = Network::new(Way::Nat)?;
        let services = Services::start(&network)?;
        let policy = policy("5m").replace("staff = [\"alice\"]", &format!("staff = [\"{PERSON}\"]"));
        let policy = policy + &delegation("dark");
        let console = format!(
            "\n[console]\nurl = \"{}\"\nadministrators = [\"person:{ADMINISTRATOR}\", \"group:operators\"]\n",
            url()
        );
        let configuration = provider::configuration(AUTHORITY) + &console;
        let people = [PERSON, ADMINISTRATOR];
        let authority = Authority::make(&network.authority, &policy, &configuration, &people)?;
        let (certificate, key) = authority.certificate();
        let redirects = vec![format!("{}/console/login/callback", url())];
        let options = Options { redirects, ..Options::default() };
        let provider = Provider::start(&network.authority, AUTHORITY, &certificate, &key, &options)?;
        let verifier = Verifier::start(&network.server, &authority)?;
        let agent = Agent::start(&network.alice)?;
        agent.login(&authority, PERSON)?;
        let (asked, said) = agent.access("ask", &["dark", "--service", "tcp/7", "--reason", "to look at the logs"])?;
        ensure!(asked, "the person can't ask for access: {said}");
        let echo: SocketAddr = format!("{FRONT4}:{ECHO}").parse()?;
        let flow = call(&network.alice, echo, SOON).context("the person can't reach the receiver `front`")?;
        // A connection attempt without a grant, so that the picture of the drops page is not empty.
        ensure!(call(&network.mallory, echo, KNOCK).is_err(), "a stranger came in");
        Ok(Self { _flow: flow, agent, verifier, provider, authority, services, network })
    }

    /// Returns the namespace from which the users browse.
    pub fn desk(&self) -> &Namespace {
        &self.network.alice
    }

    /// Logs out the present user, if there is one, and logs in the user `who`.
    pub fn become_one(&self, browser: &Browser<'_>, who: Who) -> Result<()> {
        browser.open(&format!("{}/console", url()))?;
        if !browser.url()?.contains("/console/login") {
            log_out(browser)?;
        }
        match who {
            Who::Anybody => Ok(()),
            Who::Person => log_in(browser, PERSON, PASSWORD),
            Who::Administrator => log_in(browser, ADMINISTRATOR, PASSWORD),
        }
    }

    /// Opens a page. Checks that the browser was not redirected and that the page shows no alert.
    pub fn open(&self, browser: &Browser<'_>, page: &Page) -> Result<()> {
        browser.open(&format!("{}{}", url(), page.path))?;
        let at = browser.url()?;
        ensure!(at.ends_with(page.path), "{} leads to {at}", page.path);
        let alert = browser.script("return document.querySelector('[role=alert]')?.textContent || null")?;
        ensure!(alert.is_null(), "{} says {alert}", page.path);
        Ok(())
    }
}

/// Begins an agent's login and opens the page that asks the user to approve it. The login continues until the returned
/// process is dropped.
pub fn question(scene: &Scene, browser: &Browser<'_>) -> Result<Process> {
    let mut login = scene.agent.begin_login(&scene.authority, &[])?;
    browser.open(&approval::address(&mut login)?)?;
    approval::enter(browser, "alice")?;
    browser.wait_for(approval::QUESTION)?;
    Ok(login)
}

/// Returns the console's URL.
pub fn url() -> String {
    format!("https://{NAME}:8443")
}

/// Returns the one-time code of a second factor that is valid `ahead` seconds from now. `secret` is in base32.
pub fn code(secret: &str, ahead: u64) -> Result<String> {
    let secret = totp_rs::Secret::try_from_base32(secret).ok().context("a secret in base32")?;
    let totp: totp_rs::Totp = totp_rs::Builder::new().with_secret(secret).build()?;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_secs();
    Ok(totp.generate(now + ahead).to_string())
}

/// Adds a virtual authenticator to a browser. It stores passkeys and reports every user as verified.
pub fn authenticator(browser: &Browser<'_>) -> Result<()> {
    browser.devtools("WebAuthn.enable", json!({}))?;
    let options = json!({
        "protocol": "ctap2", "transport": "internal", "hasResidentKey": true, "hasUserVerification": true,
        "isUserVerified": true, "automaticPresenceSimulation": true,
    });
    browser.devtools("WebAuthn.addVirtualAuthenticator", json!({ "options": options })).map(drop)
}

/// Logs in with an account's password.
pub fn log_in(browser: &Browser<'_>, person: &str, password: &str) -> Result<()> {
    browser.open(&format!("{}/console", url()))?;
    browser.fill("#person", person)?;
    browser.fill("#password", password)?;
    browser.click("#password ~ button")?;
    browser.wait_for(&format!("You are logged in as {person}"))
}

/// Logs the current user out.
pub fn log_out(browser: &Browser<'_>) -> Result<()> {
    browser.click(".leave button")?;
    browser.wait_for("You are logged out")
}

/// Height at which pictures of longer pages are cut, in pixels.
const TALLEST: u64 = 1100;

/// Appearance of a page: colour scheme and width.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// Whether the page is shown in dark colours.
    pub dark: bool,
    /// Whether the window is as wide as a phone's.
    pub phone: bool,
}

impl Look {
    /// Every combination of colour scheme and width.
    pub const ALL: [Self; 4] = [
        Self { dark: false, phone: false },
        Self { dark: true, phone: false },
        Self { dark: false, phone: true },
        Self { dark: true, phone: true },
    ];

    /// Applies this appearance to the open page and to all pages opened later.
    pub fn of(self, browser: &Browser<'_>) -> Result<()> {
        let (width, height) = self.screen();
        let screen = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": self.phone });
        browser.devtools("Emulation.setDeviceMetricsOverride", screen)?;
        let colours = json!({ "name": "prefers-color-scheme", "value": if self.dark { "dark" } else { "light" } });
        browser.devtools("Emulation.setEmulatedMedia", json!({ "features": [colours] }))?;
        Ok(())
    }

    fn screen(self) -> (u32, u32) {
        if self.phone { (360, 740) } else { (1280, 800) }
    }

    /// Takes a picture of the page, as PNG. It shows at most the first 1100 pixels from the top of the page.
    pub fn picture(self, browser: &Browser<'_>) -> Result<Vec<u8>> {
        let height = browser.script("return document.documentElement.scrollHeight")?.as_u64().context("no height")?;
        let (width, _) = self.screen();
        let clip = json!({ "x": 0, "y": 0, "width": width, "height": height.min(TALLEST), "scale": 1 });
        let wanted = json!({ "captureBeyondViewport": true, "clip": clip });
        let told = browser.devtools("Page.captureScreenshot", wanted)?;
        Ok(STANDARD.decode(told["data"].as_str().context("no picture")?)?)
    }
}

/// Checks the open page in every [`Look`], and then by keyboard. Returns one line for each fault that would hinder a
/// user.
pub fn hindrances(browser: &Browser<'_>) -> Result<Vec<String>> {
    let mut wrong = Vec::new();
    for look in Look::ALL {
        look.of(browser)?;
        wrong.extend(faults(browser)?.into_iter().map(|fault| format!("{look:?}: {fault}")));
        let beyond = overflow(browser)?;
        if beyond > 0 {
            wrong.push(format!("{look:?}: {beyond} pixels are beyond the edge"));
        }
        if look.phone {
            wrong.extend(sideways(browser)?.into_iter().map(|part| format!("{look:?}: scrolls sideways: {part}")));
        }
    }
    wrong.extend(out_of_reach(browser)?.into_iter().map(|element| format!("by keyboard: {element}")));
    Ok(wrong)
}

/// Returns the violations that axe-core finds on the page (WCAG 2.2, A and AA, and its best practices), one line per
/// element.
///
/// # Errors
///
/// Fails if axe-core is not installed or checked nothing.
pub fn faults(browser: &Browser<'_>) -> Result<Vec<String>> {
    let rules = json!(["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]);
    if browser.script("return typeof axe")? == "undefined" {
        let axe = provider::modules()?.join("node_modules/axe-core/axe.min.js");
        let axe = fs::read_to_string(&axe).with_context(|| format!("{}: `make setup` installs it", axe.display()))?;
        browser.script(&axe)?;
    }
    let judge = format!("return axe.run(document, {{ runOnly: {{ type: 'tag', values: {rules} }} }});");
    let told = browser.script(&judge)?;
    let rows = |name: &str| told[name].as_array().cloned().unwrap_or_default();
    let passed = rows("passes");
    let judged = |rule: &str| passed.iter().any(|row| row["id"] == rule);
    ensure!(judged("html-has-lang") && judged("color-contrast"), "axe-core judged nothing: {told}");
    let line = |row: &Value, node: &Value| {
        let why = node["failureSummary"].as_str().unwrap_or_default().replace('\n', " ");
        format!("{}: {} {why}", row["id"].as_str().unwrap_or_default(), node["html"])
    };
    let faults = rows("violations");
    let lines =
        faults.iter().flat_map(|row| row["nodes"].as_array().into_iter().flatten().map(move |node| line(row, node)));
    Ok(lines.collect())
}

/// Walks a page with the Tab key. Returns the controls that the walk did not reach, and those that show no sign of
/// having the focus.
pub fn out_of_reach(browser: &Browser<'_>) -> Result<Vec<String>> {
    let usable = "a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex='0']";
    let count = format!(
        "document.activeElement?.blur();
         window.left = new Set([...document.querySelectorAll({usable:?})].filter(e => e.checkVisibility() && !e.disabled));
         return window.left.size"
    );
    let count = browser.script(&count)?.as_u64().context("no count")?;
    ensure!(count > 0, "there is nothing to use on this page");
    let look = "const e = document.activeElement, style = getComputedStyle(e);
                if (style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2) window.left.delete(e);
                return window.left.size";
    for _ in 0..count + 2 {
        browser.press("\u{e004}")?;
        if browser.script(look)? == 0 {
            return Ok(Vec::new());
        }
    }
    let left = browser.script("return [...window.left].map(e => e.outerHTML)")?;
    Ok(left.as_array().into_iter().flatten().map(Value::to_string).collect())
}

/// Returns the parts of a page that a user of a phone would have to scroll sideways.
fn sideways(browser: &Browser<'_>) -> Result<Vec<String>> {
    let wide = "return [...document.querySelectorAll('main *')].filter(e => e.tagName !== 'TEXTAREA'
                    && e.scrollWidth > e.clientWidth + 1
                    && ['auto', 'scroll'].includes(getComputedStyle(e).overflowX)).map(e => e.outerHTML.slice(0, 200))";
    let wide = browser.script(wide)?;
    Ok(wide.as_array().into_iter().flatten().map(Value::to_string).collect())
}

/// Returns how many pixels of a page extend beyond the window's right edge.
pub fn overflow(browser: &Browser<'_>) -> Result<i64> {
    let wider = "return document.documentElement.scrollWidth - document.documentElement.clientWidth";
    browser.script(wider)?.as_i64().context("no width")
}
