//! The console as people see it: its pages with something on them, in a real browser, judged by axe-core.
//!
//! Whoever adds a page adds a line to [`PAGES`]: it is then judged, walked by keyboard, and has its picture taken.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use lab::net::Namespace;
use lab::provider::{self, Options, Provider};
use lab::service::call;
use lab::world::{AUTHORITY, Agent, Authority, ECHO, FRONT4, Network, PASSWORD, SOON, Services, Verifier, Way, policy};
use serde_json::{Value, json};

use crate::driver::{Browser, NAME};

/// Who looks at a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// Nobody in particular.
    Anybody,
    /// Somebody with an account.
    Person,
    /// Somebody with an account, who is an administrator.
    Administrator,
}

/// A page.
#[derive(Clone, Copy, Debug)]
pub struct Page {
    /// What its picture is called.
    pub name: &'static str,
    /// Where it is.
    pub path: &'static str,
    /// Who looks at it.
    pub who: Who,
}

const fn page(name: &'static str, path: &'static str, who: Who) -> Page {
    Page { name, path, who }
}

/// Every page.
pub const PAGES: &[Page] = &[
    page("login", "/console/login", Who::Anybody),
    page("overview", "/console", Who::Person),
    page("devices", "/console/devices", Who::Person),
    page("grants", "/console/grants", Who::Person),
    page("identity", "/console/identity", Who::Person),
    page("sessions", "/console/sessions", Who::Person),
    page("security", "/console/security", Who::Person),
    page("second-factor", "/console/security/factor", Who::Person),
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

/// How long a stranger waits for an answer.
const KNOCK: Duration = Duration::from_millis(500);

/// An account that may use the front; its agent is logged in and has a grant in use.
pub const PERSON: &str = "ben";
/// An account that is an administrator.
pub const ADMINISTRATOR: &str = "olga";

/// An organisation with a console, accounts, an identity provider, a verifier and an agent. Fields are in the order in
/// which they end.
pub struct Scene {
    /// What [`PERSON`] has open all the time.
    _flow: TcpStream,
    /// Where [`PERSON`] is logged in.
    pub agent: Agent,
    /// What protects the server.
    pub verifier: Verifier,
    /// Whose people are no accounts.
    pub provider: Provider,
    /// What serves the console.
    pub authority: Authority,
    /// What answers on the server.
    pub services: Services,
    /// Namespaces and cables.
    pub network: Network,
}

impl Scene {
    /// Starts it, and has something happen in it.
    pub fn new() -> Result<Self> {
        let network = Network::new(Way::Nat)?;
        let services = Services::start(&network)?;
        let policy = policy("5m").replace("staff = [\"alice\"]", &format!("staff = [\"{PERSON}\"]"));
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
        let echo: SocketAddr = format!("{FRONT4}:{ECHO}").parse()?;
        let flow = call(&network.alice, echo, SOON).context("the person may use the front")?;
        // Somebody without a grant, so that there is something in the picture of drops.
        ensure!(call(&network.mallory, echo, KNOCK).is_err(), "a stranger came in");
        Ok(Self { _flow: flow, agent, verifier, provider, authority, services, network })
    }

    /// Where people sit.
    pub fn desk(&self) -> &Namespace {
        &self.network.alice
    }

    /// Has whoever looks logged in, and nobody else.
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

    /// Opens a page, which has to be the one that is meant.
    pub fn open(&self, browser: &Browser<'_>, page: &Page) -> Result<()> {
        browser.open(&format!("{}{}", url(), page.path))?;
        let at = browser.url()?;
        ensure!(at.ends_with(page.path), "{} leads to {at}", page.path);
        let alert = browser.script("return document.querySelector('[role=alert]')?.textContent || null")?;
        ensure!(alert.is_null(), "{} says {alert}", page.path);
        Ok(())
    }
}

/// Where the console is.
pub fn url() -> String {
    format!("https://{NAME}:8443")
}

/// The code of a second factor, `ahead` seconds from now.
pub fn code(secret: &str, ahead: u64) -> Result<String> {
    let secret = totp_rs::Secret::try_from_base32(secret).ok().context("a secret in base32")?;
    let totp: totp_rs::Totp = totp_rs::Builder::new().with_secret(secret).build()?;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_secs();
    Ok(totp.generate(now + ahead).to_string())
}

/// Gives a browser an authenticator that keeps passkeys and takes whoever sits there for their holder.
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

/// Logs out.
pub fn log_out(browser: &Browser<'_>) -> Result<()> {
    browser.click(".leave button")?;
    browser.wait_for("You are logged out")
}

/// Pictures of longer pages end here, in pixels.
const TALLEST: u64 = 1100;

/// How a page looks.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// In the dark colours.
    pub dark: bool,
    /// As wide as a phone.
    pub phone: bool,
}

impl Look {
    /// Every one.
    pub const ALL: [Self; 4] = [
        Self { dark: false, phone: false },
        Self { dark: true, phone: false },
        Self { dark: false, phone: true },
        Self { dark: true, phone: true },
    ];

    /// Has pages look so from now on.
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

    /// A picture of the page from its head on, PNG.
    pub fn picture(self, browser: &Browser<'_>) -> Result<Vec<u8>> {
        let height = browser.script("return document.documentElement.scrollHeight")?.as_u64().context("no height")?;
        let (width, _) = self.screen();
        let clip = json!({ "x": 0, "y": 0, "width": width, "height": height.min(TALLEST), "scale": 1 });
        let wanted = json!({ "captureBeyondViewport": true, "clip": clip });
        let told = browser.devtools("Page.captureScreenshot", wanted)?;
        Ok(STANDARD.decode(told["data"].as_str().context("no picture")?)?)
    }
}

/// What keeps somebody from using the page that is open, in every look and by keyboard.
pub fn hindrances(browser: &Browser<'_>) -> Result<Vec<String>> {
    let mut wrong = Vec::new();
    for look in Look::ALL {
        look.of(browser)?;
        wrong.extend(faults(browser)?.into_iter().map(|fault| format!("{look:?}: {fault}")));
        let beyond = overflow(browser)?;
        if beyond > 0 {
            wrong.push(format!("{look:?}: {beyond} pixels are beyond the edge"));
        }
    }
    wrong.extend(out_of_reach(browser)?.into_iter().map(|element| format!("by keyboard: {element}")));
    Ok(wrong)
}

/// What axe-core has against a page (WCAG 2.2, A and AA, and its best practices), a line for each element. Fails where it
/// judged nothing.
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

/// Walks a page by the Tab key; gives what can be used and was not reached, or shows no sign of having the focus.
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

/// How many pixels of a page are beyond its right edge.
pub fn overflow(browser: &Browser<'_>) -> Result<i64> {
    let wider = "return document.documentElement.scrollWidth - document.documentElement.clientWidth";
    browser.script(wider)?.as_i64().context("no width")
}
