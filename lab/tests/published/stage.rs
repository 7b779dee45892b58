//! A home whose devices have no software of ours, an organisation with an identity provider, and a gateway in front of
//! its server. The agent on the home's router is the controller of a real switch; nobody logs in at the agent.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use browser::Browser;
use browser::approval::enter;
use browser::console::url;
use lab::provider::{self, Options, Provider};
use lab::service::Echo;
use lab::switch::{CONTROLLER, Switch};
use lab::world::{
    AUTHORITY, Agent, Authority, DARK4, ECHO, FRONT4, Network, SOON, TAKE_ALL, Transfer, VERIFIER, Verifier, Way,
    policy_for_tokens,
};
use lab::{Namespace, poll};
use wire::Carrier;

/// Time to wait for an answer that must not come.
pub const QUIET: Duration = Duration::from_millis(500);
/// The bridge, which is also the name of the router's interface to it.
pub const BRIDGE: &str = "lan-switch";
/// The page on which a person logs in the device that they browse with.
pub const PAGE: &str = "/console/network";
/// The ports of the switch, with the router's addresses behind them.
const CABLES: [(&str, &str); 2] =
    [("lan-alice", "10.1.0.254/24 fd01::ff/64"), ("lan-mallory", "10.2.0.254/24 fd02::ff/64")];

/// Everything, running. Fields are declared in the order in which they are dropped.
pub struct Stage {
    pub agent: Agent,
    pub switch: Switch,
    pub verifier: Verifier,
    pub provider: Provider,
    pub authority: Authority,
    _transfer: Transfer,
    pub echo: Echo,
    pub network: Network,
}

impl Stage {
    /// Starts everything; the gateway's verifier gets these flags, too.
    pub fn new(flags: &[&str]) -> Result<Self> {
        // A shim does not survive an address translator (wire.md §4.3.2).
        let network = Network::behind_gateway(Way::Direct)?;
        let echo = Echo::start(&network.server, ECHO)?;
        let transfer = Transfer::start(&network.authority)?;
        let policy = policy_for_tokens(wire::ls::NAME, Carrier::Shim).replace("staff = [\"alice\"]", "staff = []");
        let configuration = format!(
            "{}key_transfer_for = \"{VERIFIER}\"\n{}\n[console]\nurl = \"{}\"\n",
            transfer.setting(),
            provider::configuration(AUTHORITY),
            url()
        );
        let authority = Authority::without_accounts(&network.authority, &policy, &configuration)?;
        let (certificate, key) = authority.certificate();
        let redirects = vec![format!("{}/console/login/callback", url())];
        let options = Options { redirects, ..Options::default() };
        let provider = Provider::start(&network.authority, AUTHORITY, &certificate, &key, &options)?;
        let flags = [&TAKE_ALL[..], &["--inside", "eth1"], flags].concat();
        let verifier = Verifier::start_with(network.front(), &authority, &flags)?;
        let switch = Switch::start(&network.router)?;
        switch.add_bridge(BRIDGE)?;
        switch.set_controller(BRIDGE, &format!("tcp:{CONTROLLER}"))?;
        for (device, _) in CABLES {
            switch.add_port(&network.router, BRIDGE, device)?;
        }
        for host in [&network.alice, &network.mallory] {
            host.offload("eth0", "tx", false)?;
        }
        let logins = [FRONT4, DARK4].map(|host| format!("{}={host}/32", authority.url())).join(",");
        let flags = ["--switches", CONTROLLER, "--device-logins", &logins].map(str::to_owned);
        let agent = Agent::start_with(&network.router, &flags)?;
        switch.settle(&network.router, BRIDGE, &CABLES.map(|(_, addresses)| addresses).join(" "))?;
        switch.wait_for_rules(BRIDGE)?;
        Ok(Self { agent, switch, verifier, provider, authority, _transfer: transfer, echo, network })
    }

    /// Returns one of the agent's counters.
    pub fn counted(&self, name: &str) -> Result<u64> {
        self.agent.status()?["counters"][name].as_u64().with_context(|| format!("no counter {name}"))
    }

    /// Opens the page at the authority in a browser on a device, and logs the person in at the identity provider.
    pub fn arrive<'n>(&self, device: &'n Namespace, person: &str) -> Result<Browser<'n>> {
        let browser = Browser::start(device)?;
        browser.open(&format!("{}{PAGE}", url()))?;
        browser.click("form[action$='/login/provider'] button")?;
        enter(&browser, person)?;
        browser.wait_for("Log this device in")?;
        Ok(browser)
    }

    /// Logs a device in, and waits until the controller has its key.
    pub fn log_in<'n>(&self, device: &'n Namespace, person: &str) -> Result<Browser<'n>> {
        let browser = self.arrive(device, person)?;
        let before = self.counted("keys_in_band")?;
        browser.click(&format!("form[action='{PAGE}'] button"))?;
        browser.wait_for("The key is on its way")?;
        self.wait_for_keys(before + 1)?;
        Ok(browser)
    }

    /// Waits until the controller has taken this many keys, and checks that it takes no more.
    pub fn wait_for_keys(&self, keys: u64) -> Result<()> {
        let taken = || self.counted("keys_in_band").is_ok_and(|count| count >= keys);
        ensure!(poll(SOON, taken), "{} of {keys} keys came:\n{}", self.counted("keys_in_band")?, self.agent.log());
        ensure!(self.counted("keys_in_band")? == keys, "more keys than {keys}");
        Ok(())
    }

    /// Returns the handles of the grants in force, as the authority prints them.
    pub fn handles(&self) -> Result<Vec<String>> {
        let grants = self.authority.grants()?;
        grants.iter().map(|grant| grant["handle"].as_str().map(str::to_owned).context("a handle")).collect()
    }
}

pub fn echo() -> SocketAddr {
    SocketAddr::new(FRONT4.parse().expect("an address"), ECHO)
}

pub fn dark() -> SocketAddr {
    SocketAddr::new(DARK4.parse().expect("an address"), ECHO)
}
