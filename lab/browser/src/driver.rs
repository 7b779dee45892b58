//! Headless Chromium in a namespace, which a test drives by WebDriver the way a person would use it.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{env, fs};

use anyhow::{Context, Result, bail, ensure};
use fantoccini::wd::WebDriverCompatibleCommand;
use fantoccini::{Client, ClientBuilder, Locator};
use http::Method;
use hyper_util::client::legacy::connect::HttpConnector;
use serde_json::{Value, json};
use tokio::runtime::{self, Runtime};
use url::{ParseError, Url};

use lab::net::Namespace;
use lab::process::Process;
use lab::world::AUTHORITY;

/// The authority's host name in the URLs that browsers open.
pub const NAME: &str = "authority.example.org";
/// The environment variables that name the Chromium and chromedriver to use.
const CHROMIUM: &str = "VOUCHSAFE_CHROMIUM";
const DRIVER: &str = "VOUCHSAFE_CHROMEDRIVER";
/// How long a page, or an element of it, may take to appear on a busy machine.
const SOON: Duration = Duration::from_secs(20);
/// Interval at which a page is polled.
const LOOK: Duration = Duration::from_millis(50);

/// A browser with a profile of its own. Dropping it ends the browser and deletes everything it stored.
pub struct Browser<'n> {
    namespace: &'n Namespace,
    runtime: Runtime,
    client: Option<Client>,
    driver: Process,
}

impl<'n> Browser<'n> {
    /// Starts a browser in `namespace`. It accepts every certificate, because it knows no scenario's CA.
    pub fn start(namespace: &'n Namespace) -> Result<Self> {
        let profile = tempfile::Builder::new().prefix("b-").tempdir_in(namespace.dir())?.keep();
        let mut command = namespace.command(program(DRIVER, &["chromedriver"])?);
        // The driver makes the browser's profile in this folder. Its path is short, because Chromium makes a socket there.
        command.arg("--port=0").env("HOME", &profile).env("TMPDIR", &profile);
        let mut driver = namespace.start(command)?;
        const STARTED: &str = "was started successfully on port ";
        driver.wait_for(STARTED, SOON).context("chromedriver")?;
        let log = driver.log();
        let port = log.split(STARTED).nth(1).and_then(|rest| rest.split(|c: char| !c.is_ascii_digit()).next());
        let address = format!("http://127.0.0.1:{}", port.context("chromedriver has printed no port")?);
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        // WebDriver's `acceptInsecureCerts` does not cover passkeys.
        let settings = json!({ "webauthn.allow_with_broken_certs": true });
        let binary = program(CHROMIUM, &["chromium-headless-shell", "chromium", "google-chrome", "chromium-browser"])?;
        let options = json!({ "args": arguments(), "binary": binary, "prefs": settings });
        // With "eager", a page counts as loaded when a person can use it, even if it still fetches resources from
        // elsewhere.
        let wanted = json!({
            "goog:chromeOptions": options, "acceptInsecureCerts": true, "pageLoadStrategy": "eager",
        });
        let mut builder = ClientBuilder::new(HttpConnector::new());
        builder.capabilities(wanted.as_object().cloned().unwrap_or_default());
        let client = namespace.enter(|| runtime.block_on(builder.connect(&address))).context("Chromium")?;
        Ok(Self { namespace, runtime, client: Some(client), driver })
    }

    /// Opens a URL.
    pub fn open(&self, url: &str) -> Result<()> {
        self.run(async |client| client.goto(url).await).with_context(|| format!("open {url}"))
    }

    /// Returns the URL of the open page.
    pub fn url(&self) -> Result<String> {
        self.run(async |client| client.current_url().await).map(String::from)
    }

    /// Returns the visible text of the page.
    pub fn text(&self) -> Result<String> {
        self.run(async |client| client.find(Locator::Css("body")).await?.text().await)
    }

    /// Waits until the page shows `text`.
    pub fn wait_for(&self, text: &str) -> Result<()> {
        let deadline = Instant::now() + SOON;
        loop {
            // A page that is being replaced has no text.
            let said = self.text().unwrap_or_default();
            if said.contains(text) {
                return Ok(());
            }
            ensure!(
                Instant::now() < deadline,
                "the page at {} does not say {text:?} but:\n{said}\nchromedriver says:\n{}",
                self.url().unwrap_or_default(),
                self.driver.log()
            );
            std::thread::sleep(LOOK);
        }
    }

    /// Types `text` into the element that the CSS selector `css` finds, once it exists.
    pub fn fill(&self, css: &str, text: &str) -> Result<()> {
        self.act(css, Some(text)).with_context(|| format!("type into {css}"))
    }

    /// Clicks on the element that the CSS selector `css` finds, once it exists.
    pub fn click(&self, css: &str) -> Result<()> {
        self.act(css, None).with_context(|| format!("click on {css}"))
    }

    /// Types into the element that `css` finds, or clicks on it. Retries on the new page if the page is replaced in the
    /// meantime.
    fn act(&self, css: &str, text: Option<&str>) -> Result<()> {
        let deadline = Instant::now() + SOON;
        self.run(async |client| {
            loop {
                let found = client.wait().at_most(SOON).every(LOOK).for_element(Locator::Css(css)).await?;
                let done = match text {
                    None => found.click().await,
                    Some(text) => match found.clear().await {
                        Ok(()) => found.send_keys(text).await,
                        not_cleared => not_cleared,
                    },
                };
                match done {
                    Err(error) if error.is_stale_element_reference() && Instant::now() < deadline => {}
                    done => return done,
                }
            }
        })
    }

    /// Runs a script in the page and returns its result.
    pub fn script(&self, script: &str) -> Result<Value> {
        self.run(async |client| client.execute(script, Vec::new()).await)
    }

    /// Takes a picture of the page, as PNG.
    pub fn screenshot(&self) -> Result<Vec<u8>> {
        self.run(async |client| client.screenshot().await)
    }

    /// Resizes the window.
    pub fn resize(&self, width: u32, height: u32) -> Result<()> {
        self.run(async |client| client.set_window_size(width, height).await)
    }

    /// Presses keys in the element that has the focus.
    pub fn press(&self, keys: &str) -> Result<()> {
        self.run(async |client| client.active_element().await?.send_keys(keys).await)
    }

    /// Runs a command of the Chrome DevTools Protocol.
    pub fn devtools(&self, method: &str, parameters: Value) -> Result<Value> {
        let command = DevTools(json!({ "cmd": method, "params": parameters }));
        self.run(async |client| client.issue_cmd(command).await).with_context(|| format!("{method} of the browser"))
    }

    /// Runs any WebDriver command that has no method here.
    pub fn run<T: Send, E: std::error::Error + Send + Sync + 'static>(
        &self,
        work: impl AsyncFnOnce(&Client) -> Result<T, E> + Send,
    ) -> Result<T> {
        let client = self.client.as_ref().context("the browser has ended")?;
        // The client connects to the driver inside the namespace where the driver listens.
        Ok(self.namespace.enter(|| self.runtime.block_on(work(client)))?)
    }
}

/// A command of the Chrome DevTools Protocol, which chromedriver passes to the browser.
#[derive(Debug)]
struct DevTools(Value);

impl WebDriverCompatibleCommand for DevTools {
    fn endpoint(&self, base: &Url, session: Option<&str>) -> Result<Url, ParseError> {
        base.join(&format!("session/{}/goog/cdp/execute", session.unwrap_or_default()))
    }

    fn method_and_body(&self, _: &Url) -> (Method, Option<String>) {
        (Method::POST, Some(self.0.to_string()))
    }
}

impl Drop for Browser<'_> {
    fn drop(&mut self) {
        if let Some(client) = self.client.take() {
            let closed = self.namespace.enter(|| self.runtime.block_on(client.close()));
            if let Err(error) = closed {
                eprintln!("lab: the browser: {error}");
            }
        }
    }
}

fn arguments() -> Vec<String> {
    let words = "--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run \
                 --disable-background-networking --disable-component-update --disable-sync --window-size=1280,900";
    // Namespaces have no name servers, and no test should wait for one. So the browser resolves this one name, and uses
    // addresses otherwise.
    let named = format!("MAP {NAME} {AUTHORITY}");
    let names = format!("--host-resolver-rules={named}, MAP * ~NOTFOUND, EXCLUDE *.*.*.*, EXCLUDE localhost");
    words.split_whitespace().map(str::to_owned).chain([names]).collect()
}

/// Finds a program at the path that the environment variable gives, or else by one of its names.
fn program(variable: &str, names: &[&str]) -> Result<PathBuf> {
    if let Some(path) = env::var_os(variable) {
        return Ok(path.into());
    }
    let places = env::var_os("PATH").unwrap_or_default();
    let named = names.iter().flat_map(|name| env::split_paths(&places).map(move |dir| dir.join(name)));
    let (snaps, programs): (Vec<_>, Vec<_>) = named.filter(|path| path.is_file()).partition(|path| is_snap(path));
    if let Some(found) = programs.into_iter().next() {
        return Ok(found);
    }
    match snaps.first() {
        None => bail!("there is no {}: `make setup` installs what the tests need", names.join(" and no ")),
        Some(snap) => bail!(
            "{} is a snap, which can access neither the network namespaces nor the folders of scenarios. Ubuntu offers \
             Chromium only as a snap: install Chrome or Chromium from elsewhere, with the chromedriver of the same \
             version, and set {CHROMIUM} and {DRIVER} to their paths",
            snap.display()
        ),
    }
}

/// Reports whether the program starts a snap. It does if it is `snap` under another name or, as in Ubuntu's packages, a
/// script.
fn is_snap(program: &Path) -> bool {
    let script = |bytes: Vec<u8>| bytes.starts_with(b"#!") && bytes.windows(10).any(|part| part == b"/snap/bin/");
    fs::canonicalize(program).is_ok_and(|path| path.ends_with("snap")) || fs::read(program).is_ok_and(script)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_snap_is_known_for_one() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            fs::write(dir.path().join(name), text).unwrap();
            dir.path().join(name)
        };
        let snap = file("snap", "\x7fELF");
        let link = dir.path().join("chromium");
        symlink(&snap, &link).unwrap();
        assert!(is_snap(&link));
        assert!(is_snap(&file("chromium-browser", "#!/bin/sh\nexec /snap/bin/chromium \"$@\"\n")));
        assert!(!is_snap(&file("script", "#!/bin/sh\nexec /usr/lib/chromium/chromium \"$@\"\n")));
        assert!(!is_snap(&file("program", "\x7fELF /snap/bin/")));
        assert!(!is_snap(&dir.path().join("none")));
    }
}
