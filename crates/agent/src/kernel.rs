//! The agent's state in the kernel: programs on interfaces, maps, queued packets, and the socket that sends them again.

mod buffer;

use crate::inject::Injector;
use crate::packet_queue::{PacketQueue, QueuedPacket};
use crate::settings::Settings;
use anyhow::{Context, Result};
use datapath::Pins;
use datapath::agent::{Agent, Queued, interface_of, remove_filters};
use datapath::interface::{Interface, is_helping_device};
use datapath::tc::{Attachment, supported_attachment};
use datapath::tcp_in_udp::Devices;
use engine::agent::insertion::Used;
use engine::agent::{Frame, Subject};
use engine::discovery::{Overheard, message};
use engine::model::protected::Protected;
use nix::time::{ClockId, clock_gettime};
use reach::protocol;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{IpAddr, SocketAddrV4};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;
use wire::map::{AuthorityEnd, GrantEntry, GrantSlot, HelpingDevices, Owner, Services, agent_counter, owner};

/// Maximum number of authorities that transfer keys in band.
const KEY_ENDS_MAX: usize = 64;
/// File with the list of online CPUs.
const ONLINE: &str = "/sys/devices/system/cpu/online";
/// Shortest sleep of the machine that the agent detects, by the difference between two clocks. A smaller difference may
/// come from the time between the readings of the clocks.
const NAP: Duration = Duration::from_millis(100);
/// Names of the counters shown to users.
const COUNTERS: &[(&str, u32)] = &[
    ("other", agent_counter::OTHER),
    ("tokens", agent_counter::TOKENS),
    ("tokens_alone", agent_counter::ALONE),
    ("held", agent_counter::QUEUED),
    ("hold_failed", agent_counter::QUEUE_FAILED),
    ("plain", agent_counter::PLAIN),
    ("conversation", agent_counter::CONVERSATION),
    ("failed", agent_counter::FAILED),
    ("rider", agent_counter::RIDER),
    ("support", agent_counter::SUPPORT),
    ("keys_in_band", agent_counter::KEYS),
    ("steered", agent_counter::STEERED),
    ("no_tunnel", agent_counter::NO_TUNNEL),
    ("unsealed", agent_counter::UNSEALED),
    ("watched", agent_counter::WATCHED),
    ("late", agent_counter::LATE),
];

/// The channels through which tasks pass on the packets and records that they read from the kernel.
#[derive(Clone)]
pub struct Outlets {
    /// The queue for packets that wait for their grants.
    pub queued: PacketQueue,
    /// The channel for overheard records.
    pub overheard: mpsc::Sender<Overheard>,
}

/// The agent's state in the kernel.
pub struct Kernel {
    /// One set of programs for each length of link header. All sets share their maps.
    agents: Vec<(u32, Agent)>,
    attached: Vec<(Interface, Result<(), String>)>,
    wanted: Vec<String>,
    /// Whether to attach the kernel programs to every interface except loopback.
    everywhere: bool,
    attachment: Attachment,
    pins: Pins,
    cgroups: bool,
    overhears: bool,
    injector: Injector,
    outlets: Outlets,
    running: Arc<AtomicBool>,
    /// Counter that the agent increases to make the tasks reopen the buffers of queued packets.
    openings: Arc<AtomicU64>,
    signs: Signs,
    addresses: u64,
    /// The devices through which TCP segments pass before they become datagrams; `None` if the settings don't allow
    /// this.
    helping: Option<Devices>,
}

impl Kernel {
    /// Loads the programs, and takes over the state that an earlier process left in the kernel.
    ///
    /// # Errors
    ///
    /// Fails if the programs can't be loaded, or a map can't be read or written.
    pub fn start(settings: &Settings, pins: Pins, outlets: Outlets) -> Result<Self> {
        let mut kernel = Self {
            agents: Vec::new(),
            attached: Vec::new(),
            wanted: settings.interfaces.clone(),
            // With switches, only named interfaces are used.
            everywhere: settings.interfaces.is_empty() && settings.switches.is_none(),
            attachment: supported_attachment(),
            pins,
            cgroups: settings.agent.owners.iter().any(|(owner, _)| owner.kind == owner::CGROUP),
            overhears: settings.overhears,
            injector: Injector::new()?,
            outlets,
            running: Arc::new(AtomicBool::new(true)),
            openings: Arc::default(),
            signs: Signs::default(),
            addresses: addresses(),
            helping: None,
        };
        for name in kernel.wanted.iter().filter(|name| Interface::named(name).is_err()) {
            tracing::warn!(
                interface = name,
                "the interface does not exist yet: the agent attaches to it when it appears"
            );
        }
        kernel.load(14)?;
        kernel.signs = kernel.signs()?;
        kernel.maps().set_injector(kernel.injector.cookie())?;
        kernel.help(settings.tcp_in_udp)?;
        if kernel.maps().nonce()? == 0 {
            kernel.maps().set_nonce(getrandom::u32().context("cannot get random numbers")?)?;
        }
        Ok(kernel)
    }

    /// Makes the devices through which segments pass before they become datagrams, or removes those of an earlier
    /// process.
    fn help(&mut self, wanted: bool) -> Result<()> {
        let owner = self.pins.name();
        if !wanted {
            self.maps().set_helping_devices(&HelpingDevices::default())?;
            return Devices::remove(&owner);
        }
        match Devices::set_up(&owner).and_then(|devices| self.agents[0].1.turn_segments(&devices).map(|()| devices)) {
            Ok(devices) => self.helping = Some(devices),
            Err(error) => {
                self.maps().set_helping_devices(&HelpingDevices::default())?;
                tracing::error!("TCP connections can't travel as UDP datagrams (tcp_in_udp): {error:#}");
            }
        }
        Ok(())
    }

    /// Reports whether TCP connections can travel as UDP datagrams.
    #[cfg(feature = "seal")]
    pub fn turns_segments(&self) -> bool {
        self.helping.is_some()
    }

    /// Returns the maps, which all programs share.
    pub fn maps(&self) -> &Agent {
        &self.agents[0].1
    }

    fn load(&mut self, link_header: u32) -> Result<usize> {
        if let Some(index) = self.agents.iter().position(|(header, _)| *header == link_header) {
            return Ok(index);
        }
        let agent = Agent::load_overhearing(
            link_header,
            self.cgroups,
            self.overhears,
            self.attachment,
            Some(self.pins.clone()),
        )?;
        let (Outlets { queued, overheard }, running) = (self.outlets.clone(), self.running.clone());
        let each = move |packet: Queued| {
            let Queued { header, frame } = packet;
            let whole = frame.len() == header.length as usize;
            let frame =
                whole.then(|| Frame::new(header.interface, link_header, header.segment.into(), &frame)).flatten();
            let frame = frame.map(|frame| frame.tagged(header.vlan_proto, header.vlan_tci).asking(header.wish));
            if header.slot.subject == 0 {
                // The kernel program passes on few answers, however many come.
                if let Some(record) = frame.and_then(|frame| message::overhear_frame(frame.bytes())) {
                    let _ = overheard.try_send(record);
                }
                return;
            }
            queued.push(QueuedPacket { slot: header.slot, frame });
        };
        let packets = agent.queued()?;
        let open = move || {
            packets.open(each.clone(), |count| {
                tracing::warn!(count, "lost packets from the kernel program, because its buffer was full")
            })
        };
        let (buffer, openings) = (open()?, self.openings.clone());
        tokio::spawn(buffer::read(buffer, open, openings, running)?);
        self.agents.push((link_header, agent));
        Ok(self.agents.len() - 1)
    }

    /// Attaches to new interfaces, and detaches from interfaces that no longer exist. Returns whether the addresses of
    /// this machine have changed.
    ///
    /// # Errors
    ///
    /// Fails if the interfaces can't be listed.
    pub fn follow_interfaces(&mut self) -> Result<bool> {
        let all = if self.everywhere {
            Interface::all()?
        } else {
            self.wanted.iter().filter_map(|name| Interface::named(name).ok()).collect()
        };
        for (interface, _) in self.attached.extract_if(.., |(interface, _)| !all.contains(interface)) {
            tracing::info!(interface = interface.name, "the interface has disappeared");
            self.agents.iter_mut().for_each(|(_, agent)| agent.forget(&interface));
        }
        for interface in all {
            if self.attached.iter().any(|(known, _)| *known == interface) {
                continue;
            }
            let done = self.attach(&interface).map_err(|error| format!("{error:#}"));
            match &done {
                Ok(()) => tracing::info!(interface = interface.name, by = self.attachment.name(), "attached"),
                Err(error) => tracing::warn!(
                    interface = interface.name,
                    "cannot attach to this interface, so its packets get no tokens: {error}"
                ),
            }
            self.attached.push((interface, done));
        }
        let addresses = addresses();
        Ok(std::mem::replace(&mut self.addresses, addresses) != addresses)
    }

    /// Reopens the buffers of queued packets if a CPU seems to have gone offline since the last call. When a CPU goes
    /// offline, the kernel closes the CPU's buffer, and does not open it again when the CPU comes back. A suspend takes
    /// all CPUs but one offline.
    ///
    /// # Errors
    ///
    /// Fails if a counter can't be read.
    pub fn follow_cores(&mut self) -> Result<()> {
        let signs = self.signs()?;
        if let Some(why) = self.signs.differ(&signs) {
            tracing::debug!("{why}: reopening the buffers of queued packets");
            self.openings.fetch_add(1, Ordering::Relaxed);
        }
        self.signs = signs;
        Ok(())
    }

    fn signs(&self) -> Result<Signs> {
        let clock = |id| clock_gettime(id).map(Duration::from).unwrap_or_default();
        // The clocks are read in this order so that the time asleep is never underestimated.
        let (awake, all) = (clock(ClockId::CLOCK_MONOTONIC), clock(ClockId::CLOCK_BOOTTIME));
        Ok(Signs {
            // Without /sys, the other two signs have to suffice.
            online: std::fs::read_to_string(ONLINE).unwrap_or_default(),
            asleep: all.saturating_sub(awake),
            failed: self.maps().count(agent_counter::QUEUE_FAILED)?,
        })
    }

    fn attach(&mut self, interface: &Interface) -> Result<()> {
        let index = self.load(interface.link_header)?;
        self.agents[index].1.attach(interface)
    }

    /// Detaches the programs of an earlier process from interfaces that no longer exist, or that the settings no longer
    /// select.
    pub fn let_go(&self) {
        let there = match every_interface() {
            Ok(there) => there,
            Err(error) => {
                return tracing::warn!("cannot detach from interfaces that are no longer used: {error:#}");
            }
        };
        let keep = |name: &str| {
            there.iter().any(|interface| interface.name == name)
                && (self.everywhere || self.wanted.iter().any(|wanted| wanted == name))
        };
        let is_in_use = |name: &String| self.helping.is_some() && is_helping_device(name);
        for name in self.pins.links().into_iter().filter(|name| !is_in_use(name)) {
            if !keep(interface_of(&name))
                && let Err(error) = self.pins.remove_link(&name)
            {
                tracing::warn!(interface = interface_of(&name), "cannot detach: {error:#}");
            }
        }
        if self.attachment == Attachment::Clsact {
            for interface in there.iter().filter(|interface| !keep(&interface.name)) {
                if let Err(error) = remove_filters(interface) {
                    tracing::warn!(interface = interface.name, "cannot detach: {error:#}");
                }
            }
        }
    }

    /// Replaces the protected prefixes.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses access to a map.
    pub fn protect(&self, entries: &[Protected]) -> Result<()> {
        let entries: Vec<(IpAddr, u8, Services)> =
            entries.iter().map(|entry| (entry.prefix.addr(), entry.prefix.prefix_len(), entry.services)).collect();
        self.maps().protect(&entries)
    }

    /// Replaces the list of authorities that transfer keys in band.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses access to a map.
    pub fn take_keys_from(&self, ends: &[SocketAddrV4]) -> Result<()> {
        let authorities = &self.maps().key_authorities;
        // An authority beyond the room in the table transfers its keys by HTTPS.
        let ends: Vec<_> = ends.iter().take(KEY_ENDS_MAX).map(|end| AuthorityEnd::from(*end)).collect();
        authorities
            .keys()
            .iter()
            .filter(|known| !ends.contains(known))
            .try_for_each(|gone| authorities.remove(gone))?;
        ends.iter().try_for_each(|end| authorities.set(end, &1))
    }

    /// Returns the owners and the entries for grants that are in the kernel's tables.
    pub fn inventory(&self) -> (Vec<Owner>, Vec<(GrantSlot, GrantEntry)>) {
        (self.maps().owners.keys(), self.maps().grants.entries())
    }

    /// Returns the time when the agent last made a token from an entry, and the number of nonces used by then. Returns
    /// `None` if there is no such entry.
    pub fn used(&self, slot: &GrantSlot) -> Option<Used> {
        let entry = self.maps().grants.get(slot).ok().flatten()?;
        Some(Used { last: entry.used, spent: entry.spent })
    }

    /// Sends a frame that was queued, on behalf of `subject`.
    pub fn send(&self, subject: Subject, frame: &Frame) {
        for ready in frame.ready() {
            if let Err(error) = self.injector.send(subject, frame, &ready) {
                tracing::debug!(interface = frame.interface, "{error:#}");
            }
        }
    }

    /// Returns the interfaces as the agent displays them.
    pub fn interfaces(&self) -> Vec<protocol::Interface> {
        let shown = self.attached.iter().map(|(interface, done)| protocol::Interface {
            name: interface.name.clone(),
            attachment: self.attachment.name().to_owned(),
            trouble: done.clone().err(),
        });
        shown.collect()
    }

    /// Returns the agent's counters by name.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses access to a map.
    pub fn counters(&self) -> Result<BTreeMap<String, u64>> {
        COUNTERS.iter().map(|(name, index)| Ok(((*name).to_owned(), self.maps().count(*index)?))).collect()
    }
}

/// Values whose change is a sign that a buffer of queued packets possibly no longer works.
#[derive(Default)]
struct Signs {
    /// The list of online CPUs.
    online: String,
    /// Total time that the machine was asleep since boot.
    asleep: Duration,
    /// Number of packets that the kernel program could not pass to user space.
    failed: u64,
}

impl Signs {
    /// Returns a description of the first sign that changed.
    fn differ(&self, now: &Self) -> Option<&'static str> {
        if self.online != now.online {
            Some("CPUs went online or offline")
        } else if now.asleep.saturating_sub(self.asleep) > NAP {
            Some("the machine was suspended")
        } else if now.failed > self.failed {
            Some("packets could not be queued")
        } else {
            None
        }
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        self.running.store(false, Ordering::Relaxed);
    }
}

/// Removes everything of an instance from the kernel: first the programs from every interface, then the maps.
///
/// # Errors
///
/// Fails if a program can't be detached, or a pin can't be removed.
pub fn detach(pins: &Pins) -> Result<()> {
    let _lock = pins.lock().context("cannot detach (if the agent is running, stop it first)")?;
    every_interface()?.iter().try_for_each(remove_filters)?;
    Devices::remove(&pins.name())?;
    pins.remove()
}

/// Returns every interface, including loopback, which the configuration may have named.
fn every_interface() -> Result<Vec<Interface>> {
    Ok(Interface::all()?.into_iter().chain(Interface::named("lo")).collect())
}

/// Returns a hash of this machine's addresses.
fn addresses() -> u64 {
    let mut hasher = DefaultHasher::new();
    let list = nix::ifaddrs::getifaddrs().into_iter().flatten();
    // Link-local addresses and the counters of packet sockets do not indicate the network that the machine is in.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_sleep_and_failures_open_buffers_anew() {
        let signs = |online: &str, asleep, failed| Signs {
            online: online.to_owned(),
            asleep: Duration::from_millis(asleep),
            failed,
        };
        let before = signs("0-3", 5000, 7);
        assert_eq!(before.differ(&signs("0-3", 5001, 7)), None);
        assert_eq!(before.differ(&signs("0-3", 4999, 7)), None);
        for after in [signs("0-2", 5000, 7), signs("0-3", 9000, 7), signs("0-3", 5000, 8)] {
            assert!(before.differ(&after).is_some());
        }
    }
}
