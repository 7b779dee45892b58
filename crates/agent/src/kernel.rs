//! The kernel side: programs on interfaces, maps, held packets, the socket that sends them again.

use crate::config::Config;
use crate::inject::Injector;
use crate::protocol;
use anyhow::{Context, Result};
use datapath::Pins;
use datapath::agent::{Agent, Attachment, Held, supported_attachment};
use datapath::interface::Interface;
use engine::agent::{Frame, Subject};
use engine::protected::Protected;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;
use wire::map::{GrantEntry, GrantSlot, Owner, Services, agent_counter, owner};

/// How long a thread waits for held packets before it looks whether it is still needed.
const POLL: Duration = Duration::from_millis(500);
/// Names of the counters that people see.
const COUNTERS: &[(&str, u32)] = &[
    ("other", agent_counter::OTHER),
    ("tokens", agent_counter::TOKENS),
    ("tokens_alone", agent_counter::ALONE),
    ("held", agent_counter::HELD),
    ("hold_failed", agent_counter::HOLD_FAILED),
    ("plain", agent_counter::PLAIN),
    ("conversation", agent_counter::CONVERSATION),
    ("failed", agent_counter::FAILED),
    ("rider", agent_counter::RIDER),
];

/// A held packet.
pub struct HeldPacket {
    /// Whose, and where to.
    pub slot: GrantSlot,
    /// The packet, if it came through whole.
    pub frame: Option<Frame>,
}

/// Everything in the kernel that is the agent's.
pub struct Kernel {
    /// One per kind of link; they share their maps, so that the first one's are everybody's.
    agents: Vec<(u32, Agent)>,
    attached: Vec<(Interface, Result<(), String>)>,
    wanted: Vec<String>,
    attachment: Attachment,
    pins: Pins,
    cgroups: bool,
    injector: Injector,
    held: mpsc::Sender<HeldPacket>,
    running: Arc<AtomicBool>,
    addresses: u64,
}

impl Kernel {
    /// Loads the programs and takes over what an earlier process left. Held packets go to `held`.
    pub fn start(config: &Config, held: mpsc::Sender<HeldPacket>) -> Result<Self> {
        let mut kernel = Self {
            agents: Vec::new(),
            attached: Vec::new(),
            wanted: config.interfaces.clone(),
            attachment: supported_attachment(),
            pins: Pins::new("agent", &config.instance)?,
            cgroups: config.settings.owners.iter().any(|(owner, _)| owner.kind == owner::CGROUP),
            injector: Injector::new()?,
            held,
            running: Arc::new(AtomicBool::new(true)),
            addresses: addresses(),
        };
        kernel.load(14)?;
        kernel.maps().set_injector(kernel.injector.cookie())?;
        if kernel.maps().nonce()? == 0 {
            kernel.maps().set_nonce(getrandom::u32().context("no random numbers")?)?;
        }
        Ok(kernel)
    }

    /// The maps, which all programs share.
    pub fn maps(&self) -> &Agent {
        &self.agents[0].1
    }

    fn load(&mut self, link_header: u32) -> Result<usize> {
        if let Some(index) = self.agents.iter().position(|(header, _)| *header == link_header) {
            return Ok(index);
        }
        let agent = Agent::load(link_header, self.cgroups, self.attachment, Some(self.pins.clone()))?;
        let (held, running) = (self.held.clone(), self.running.clone());
        let each = move |packet: Held| {
            let Held { header, frame } = packet;
            let whole = frame.len() == header.length as usize;
            let frame = whole.then(|| Frame::new(header.interface, link_header, header.segment, &frame)).flatten();
            // With no room left the packet is lost, as any packet may be.
            let _ = held.try_send(HeldPacket { slot: header.slot, frame });
        };
        let buffer = agent.held(each, |count| tracing::warn!(count, "held packets were lost"))?;
        std::thread::Builder::new().name(format!("held-{link_header}")).spawn(move || {
            while running.load(Ordering::Relaxed) {
                // A signal may end it early; it is tried again in any case.
                if let Err(error) = buffer.poll(POLL) {
                    tracing::debug!("held packets: {error}");
                }
            }
        })?;
        self.agents.push((link_header, agent));
        Ok(self.agents.len() - 1)
    }

    /// Attaches to interfaces that have come, forgets those that have gone. Says whether this machine's addresses changed.
    pub fn follow_interfaces(&mut self) -> Result<bool> {
        let all = if self.wanted.is_empty() {
            Interface::all()?
        } else {
            self.wanted.iter().filter_map(|name| Interface::named(name).ok()).collect()
        };
        self.attached.retain(|(interface, _)| all.contains(interface));
        for interface in all {
            if self.attached.iter().any(|(known, _)| *known == interface) {
                continue;
            }
            let done = self.attach(&interface).map_err(|error| format!("{error:#}"));
            match &done {
                Ok(()) => tracing::info!(interface = interface.name, by = self.attachment.name(), "attached"),
                Err(error) => tracing::warn!(interface = interface.name, "not attached: {error}"),
            }
            self.attached.push((interface, done));
        }
        let addresses = addresses();
        Ok(std::mem::replace(&mut self.addresses, addresses) != addresses)
    }

    fn attach(&mut self, interface: &Interface) -> Result<()> {
        let index = self.load(interface.link_header)?;
        self.agents[index].1.attach(interface)
    }

    /// Lets go of interfaces that an earlier process attached to and this one is not to.
    pub fn let_go(&self) {
        let keep = |name: &str| {
            let interface = name.rsplit_once('-').map_or(name, |(interface, _)| interface);
            self.wanted.is_empty() || self.wanted.iter().any(|wanted| wanted == interface)
        };
        for name in self.pins.links().iter().filter(|name| !keep(name)) {
            if let Err(error) = self.pins.remove_link(name) {
                tracing::warn!("{error:#}");
            }
        }
    }

    /// Makes these the protected prefixes.
    pub fn protect(&self, entries: &[Protected]) -> Result<()> {
        let entries: Vec<(IpAddr, u8, Services)> =
            entries.iter().map(|entry| (entry.prefix.addr(), entry.prefix.prefix_len(), entry.services)).collect();
        self.maps().protect(&entries)
    }

    /// The owners and entries that are in the kernel.
    pub fn inventory(&self) -> (Vec<Owner>, Vec<(GrantSlot, GrantEntry)>) {
        (self.maps().owners.keys(), self.maps().grants.entries())
    }

    /// When a token was last made from an entry.
    pub fn used(&self, slot: &GrantSlot) -> Option<u32> {
        self.maps().grants.get(slot).ok().flatten().map(|entry| entry.used)
    }

    /// Sends a held frame again.
    pub fn send(&self, subject: Subject, frame: &Frame) {
        for ready in frame.ready() {
            if let Err(error) = self.injector.send(subject, frame.interface, &ready) {
                tracing::debug!(interface = frame.interface, "{error:#}");
            }
        }
    }

    /// The interfaces, for people.
    pub fn interfaces(&self) -> Vec<protocol::Interface> {
        let shown = self.attached.iter().map(|(interface, done)| protocol::Interface {
            name: interface.name.clone(),
            attachment: self.attachment.name().to_owned(),
            trouble: done.clone().err(),
        });
        shown.collect()
    }

    /// What was counted, by name.
    pub fn counters(&self) -> Result<BTreeMap<String, u64>> {
        COUNTERS.iter().map(|(name, index)| Ok(((*name).to_owned(), self.maps().count(*index)?))).collect()
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        self.running.store(false, Ordering::Relaxed);
    }
}

/// Stands for all addresses of this machine.
fn addresses() -> u64 {
    let mut hasher = DefaultHasher::new();
    let list = nix::ifaddrs::getifaddrs().into_iter().flatten();
    // Link-local addresses and counters of packet sockets say nothing about where we are.
    let mut seen: Vec<String> = list
        .filter_map(|entry| {
            let address = entry.address?;
            let ip = address.as_sockaddr_in().map(|v4| v4.ip().to_string());
            ip.or_else(|| address.as_sockaddr_in6().map(|v6| v6.ip().to_string()))
        })
        .filter(|address| !address.starts_with("fe80:"))
        .collect();
    seen.sort();
    seen.hash(&mut hasher);
    hasher.finish()
}
