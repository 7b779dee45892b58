//! A real browser: headless Chromium in a namespace, driven as a person would use it, by WebDriver.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use fantoccini::{Client, ClientBuilder, Locator};
use hyper_util::client::legacy::connect::HttpConnector;
use serde_json::json;
use tokio::runtime::{self, Runtime};

use crate::net::Namespace;
use crate::process::Process;

/// How long a page, or a part of it, may take to come on a busy machine.
const SOON: Duration = Duration::from_secs(20);
/// How often it is looked whether it is there.
const LOOK: Duration = Duration::from_millis(50);

/// A browser with a profile of its own; ends, with all it has stored, when dropped.
pub struct Browser<'n> {
    namespace: &'n Namespace,
    runtime: Runtime,
    client: Option<Client>,
    driver: Process,
}

impl<'n> Browser<'n> {
    /// Starts one in `namespace`. It takes every certificate: no scenario's CA is known to it.
    pub fn start(namespace: &'n Namespace) -> Result<Self> {
        let profile = tempfile::Builder::new().prefix("browser-").tempdir_in(namespace.dir())?.keep();
        let mut command = namespace.command("chromedriver");
        command.arg("--port=0").env("HOME", &profile);
        let mut driver = namespace.start(command)?;
        const STARTED: &str = "was started successfully on port ";
        driver.wait_for(STARTED, SOON).context("chromedriver (`make setup` installs it)")?;
        let log = driver.log();
        let port = log.split(STARTED).nth(1).and_then(|rest| rest.split(|c: char| !c.is_ascii_digit()).next());
        let address = format!("http://127.0.0.1:{}", port.context("chromedriver does not say its port")?);
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        let options = json!({ "args": arguments(&profile), "binary": binary()? });
        // A page is there when a person can use it; what it would fetch from elsewhere is not.
        let wanted = json!({
            "goog:chromeOptions": options, "acceptInsecureCerts": true, "pageLoadStrategy": "eager",
        });
        let mut builder = ClientBuilder::new(HttpConnector::new());
        builder.capabilities(wanted.as_object().cloned().unwrap_or_default());
        let client = namespace.enter(|| runtime.block_on(builder.connect(&address))).context("Chromium")?;
        Ok(Self { namespace, runtime, client: Some(client), driver })
    }

    /// Opens an address.
    pub fn open(&self, url: &str) -> Result<()> {
        self.run(async |client| client.goto(url).await).with_context(|| format!("open {url}"))
    }

    /// Where it is.
    pub fn url(&self) -> Result<String> {
        self.run(async |client| client.current_url().await).map(String::from)
    }

    /// What a person reads on the page.
    pub fn text(&self) -> Result<String> {
        self.run(async |client| client.find(Locator::Css("body")).await?.text().await)
    }

    /// Waits until the page says `text`.
    pub fn wait_for(&self, text: &str) -> Result<()> {
        let deadline = Instant::now() + SOON;
        loop {
            // A page that is being replaced has nothing to say.
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

    /// Types `text` into what the CSS selector `css` finds, once it is there.
    pub fn fill(&self, css: &str, text: &str) -> Result<()> {
        let fill = async |client: &Client| {
            let field = client.wait().at_most(SOON).every(LOOK).for_element(Locator::Css(css)).await?;
            field.clear().await?;
            field.send_keys(text).await
        };
        self.run(fill).with_context(|| format!("type into {css}"))
    }

    /// Clicks on what the CSS selector `css` finds, once it is there.
    pub fn click(&self, css: &str) -> Result<()> {
        let click = async |client: &Client| {
            client.wait().at_most(SOON).every(LOOK).for_element(Locator::Css(css)).await?.click().await
        };
        self.run(click).with_context(|| format!("click on {css}"))
    }

    /// Runs a script in the page and gives what it returns.
    pub fn script(&self, script: &str) -> Result<serde_json::Value> {
        self.run(async |client| client.execute(script, Vec::new()).await)
    }

    /// A picture of the page, PNG.
    pub fn screenshot(&self) -> Result<Vec<u8>> {
        self.run(async |client| client.screenshot().await)
    }

    /// Makes the window this large.
    pub fn resize(&self, width: u32, height: u32) -> Result<()> {
        self.run(async |client| client.set_window_size(width, height).await)
    }

    /// Does anything else that WebDriver can.
    pub fn run<T: Send, E: std::error::Error + Send + Sync + 'static>(
        &self,
        work: impl AsyncFnOnce(&Client) -> Result<T, E> + Send,
    ) -> Result<T> {
        let client = self.client.as_ref().context("the browser has ended")?;
        // Connections to the driver are made where it listens.
        Ok(self.namespace.enter(|| self.runtime.block_on(work(client)))?)
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

fn arguments(profile: &Path) -> Vec<String> {
    let words = "--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run \
                 --disable-background-networking --disable-component-update --disable-sync --window-size=1280,900";
    let profile = format!("--user-data-dir={}", profile.display());
    // Namespaces have no name servers, and nobody shall wait for them: addresses only.
    let names = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE *.*.*.*, EXCLUDE localhost".to_owned();
    words.split_whitespace().map(str::to_owned).chain([profile, names]).collect()
}

fn binary() -> Result<PathBuf> {
    let places = std::env::var_os("PATH").unwrap_or_default();
    for name in ["chromium", "chromium-browser"] {
        if let Some(found) = std::env::split_paths(&places).map(|dir| dir.join(name)).find(|path| path.is_file()) {
            return Ok(found);
        }
    }
    bail!("no Chromium: `make setup` installs it")
}
