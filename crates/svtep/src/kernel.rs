//! Owns the endpoint's kernel programs with their attachments and tables, and the thread that reads the packets that
//! the programs pass to user space.

use crate::now;
use crate::settings::Settings;
use anyhow::{Context, Result, ensure};
use api::Withdrawal;
use datapath::Pins;
use datapath::clock::coarse_to_unix;
use datapath::interface::Interface;
use datapath::svtep::{self, Svtep, Unsent};
use follower::State;
use std::collections::BTreeMap;
use std::fs::read_to_string;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::mpsc;
use wire::Vni;
use wire::map::ProofsConfig;

/// Time that the thread waits for packets before it checks whether to stop.
const POLL: Duration = Duration::from_millis(200);
/// File that lists the online cores.
const ONLINE: &str = "/sys/devices/system/cpu/online";

/// The channel to which a thread sends the packets that it reads from the kernel, with a counter of lost packets.
#[derive(Clone)]
pub struct Inlet {
    /// The channel for packets that tenants sent and for which there is no segment.
    pub packets: mpsc::Sender<Unsent>,
    /// Number of packets lost because the channel or the kernel's buffer was full.
    pub lost: Arc<AtomicU64>,
}

/// A change of a tenant's interface.
#[derive(Debug, PartialEq, Eq)]
pub enum Change {
    /// The interface with this index has appeared, and is attached now. The second number is the tenant's index in the
    /// settings.
    Came(u32, usize),
    /// The interface with this index has disappeared.
    Gone(u32),
}

/// Everything that the endpoint has in the kernel.
pub struct Kernel {
    program: Svtep,
    settings: Settings,
    pins: Pins,
    underlay: Interface,
    mtu: u32,
    config: ProofsConfig,
    /// Whether everything is loaded and attached. If not, the daemon tries again.
    whole: bool,
    /// Attached interfaces, by index in the settings.
    tenants: BTreeMap<usize, Interface>,
    failed: BTreeMap<usize, String>,
    reader: Option<Reader>,
    online: String,
    inlet: Inlet,
    /// Set if the table of withdrawals was full: all keys are then removed and nothing is delivered.
    closed: bool,
}

impl Kernel {
    /// Loads the programs, takes over the tables of an earlier process, and writes the authority's state to these
    /// tables. Attaches nothing.
    pub fn load(settings: &Settings, state: &State, pins: Pins, inlet: Inlet) -> Result<Self> {
        let config = config(state);
        let (program, underlay, mtu) = load(settings, config, &pins)?;
        let mut kernel = Self {
            program,
            settings: settings.clone(),
            pins,
            underlay,
            mtu,
            config,
            whole: true,
            tenants: BTreeMap::new(),
            failed: BTreeMap::new(),
            reader: None,
            online: String::new(),
            inlet,
            closed: false,
        };
        kernel.follow_cores()?;
        kernel.write(state)?;
        Ok(kernel)
    }

    /// Returns the endpoint's programs and tables.
    pub fn program(&self) -> &Svtep {
        &self.program
    }

    /// Returns the underlay's interface.
    pub fn underlay(&self) -> &Interface {
        &self.underlay
    }

    /// Returns the underlay's MTU.
    pub fn mtu(&self) -> u32 {
        self.mtu
    }

    /// Returns the reason why the interface of a tenant is not attached; `None` if it is attached. `tenant` is the
    /// tenant's index in the settings.
    pub fn trouble(&self, tenant: usize) -> Option<&str> {
        self.failed.get(&tenant).map(String::as_str)
    }

    /// Reports whether all keys were removed because the table of withdrawals was full.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Returns the time (Unix seconds) until which there are keys; `None` if there is no key for the current epoch.
    pub fn keys_until(&self) -> Option<u64> {
        let epochs = self.program.proofs.epochs();
        engine::verifier::keys_until(epochs.into_iter(), now(), self.config.epoch_length)
    }

    /// Reports whether the programs were loaded for the authority's epoch length and maximum lifetime, and for the
    /// present underlay.
    pub fn is_loaded_for(&self, state: &State) -> bool {
        let is_same =
            |there: Interface| there == self.underlay && (self.settings.mtu.is_some() || there.mtu() == Some(self.mtu));
        self.whole && self.config == config(state) && Interface::named(&self.underlay.name).is_ok_and(is_same)
    }

    /// Loads the programs again, for a new state of the authority or a new underlay. Attachments and tables are kept.
    pub fn reload(&mut self, state: &State) -> Result<()> {
        let config = config(state);
        self.program.last()?;
        let loaded = load(&self.settings, config, &self.pins)?;
        self.whole = false;
        self.reader = None;
        (self.program, self.underlay, self.mtu) = loaded;
        self.config = config;
        self.online.clear();
        self.follow_cores()?;
        self.write(state)?;
        self.attach_underlay()?;
        for (place, interface) in self.tenants.clone() {
            self.attach_tenant(place, interface)?;
        }
        self.program.last()?;
        self.whole = true;
        Ok(())
    }

    /// Writes the authority's state to the tables. Withdrawals come first: if there is no room for them, no keys are
    /// written.
    pub fn write(&mut self, state: &State) -> Result<()> {
        self.set_clock()?;
        if self.withdraw(&state.config.withdrawn) && state.config.epoch_length == self.config.epoch_length {
            let broken = |epoch| anyhow::anyhow!("the authority's key for proofs of epoch {epoch} is malformed");
            let keys = state.keys.proofs.as_ref().map_or_else(|| Ok(Vec::new()), |keys| keys.read().map_err(broken))?;
            if keys.is_empty() {
                tracing::warn!(
                    verifier = state.config.verifier,
                    "no path in networks.toml ends at this verifier: nothing is delivered"
                );
            }
            self.program.proofs.hold(&keys)?;
            self.closed = false;
        }
        let length = |address: &IpAddr| if address.is_ipv4() { 32 } else { 128 };
        let own: Vec<_> = self.settings.addresses.iter().map(|address| (*address, length(address))).collect();
        self.program.proofs.stand_before(&own).context("cannot store the endpoint's addresses")
    }

    /// Voids the received segments to which these withdrawals apply. Returns whether all withdrawals were written. If
    /// the table is full, removes all keys, so that nothing is delivered from then on.
    pub fn withdraw(&mut self, withdrawn: &[Withdrawal]) -> bool {
        let left = withdrawn.iter().filter(|what| u64::from(what.until) >= now()).find_map(|what| {
            let vni = Vni::new(what.vni)?;
            self.program.proofs.withdraw(vni, what.receiver, what.sender, what.until).err()
        });
        let Some(error) = left else { return true };
        tracing::error!(
            "cannot store a withdrawal of consent (is the table full?): this endpoint delivers no packet to its \
             tenants until it has stored every withdrawal: {error:#}"
        );
        if let Err(error) = self.program.proofs.hold(&[]) {
            tracing::error!(
                "cannot clear the keys for proofs, so packets of withdrawn path segments may still be delivered; the \
                 next sweep tries again: {error:#}"
            );
        }
        self.closed = true;
        false
    }

    /// Attaches to the underlay. Removes tenants of an earlier process that are not in the settings.
    pub fn attach_underlay(&mut self) -> Result<()> {
        let known = self.there().map(|(place, interface)| (interface.index, self.settings.tenants[place].id));
        let known: Vec<_> = known.collect();
        self.program.remove_tenants_but(&known)?;
        self.program
            .attach_underlay(&self.underlay)
            .with_context(|| format!("cannot attach to the underlay {}", self.underlay.name))
    }

    /// Returns the tenants' interfaces that exist, each with the tenant's index in the settings.
    fn there(&self) -> impl Iterator<Item = (usize, Interface)> {
        let names = self.settings.tenants.iter().map(|tenant| tenant.interface.as_str()).enumerate();
        names.filter_map(|(place, name)| Some((place, Interface::named(name).ok()?)))
    }

    /// Attaches to tenants' interfaces that have appeared, and removes the tenants whose interfaces have disappeared.
    /// Returns these changes.
    pub fn follow_interfaces(&mut self) -> Vec<Change> {
        let there: BTreeMap<_, _> = self.there().collect();
        let mut changes = Vec::new();
        for (place, old) in self.tenants.extract_if(.., |place, old| there.get(place) != Some(old)) {
            tracing::info!(interface = old.name, "the tenant's interface has disappeared");
            if let Err(error) = self.program.remove_tenant(old.index, self.settings.tenants[place].id) {
                tracing::error!(interface = old.name, "cannot stop delivery to the tenant: {error:#}");
            }
            self.program.release_tenant(&old);
            changes.push(Change::Gone(old.index));
        }
        for (place, tenant) in self.settings.tenants.iter().enumerate().filter(|(place, _)| !there.contains_key(place))
        {
            let why = format!("there is no interface {}", tenant.interface);
            if self.failed.insert(place, why.clone()).as_ref() != Some(&why) {
                tracing::warn!("{why}: its tenant is attached when the interface appears");
            }
        }
        for (place, interface) in there {
            if self.tenants.contains_key(&place) {
                continue;
            }
            let index = interface.index;
            match self.attach_tenant(place, interface) {
                Ok(()) => changes.push(Change::Came(index, place)),
                Err(error) => {
                    let why = format!("{error:#}");
                    if self.failed.insert(place, why.clone()).as_ref() != Some(&why) {
                        tracing::error!("{why}");
                    }
                }
            }
        }
        // Once all interfaces are attached, `last` removes attachments of an earlier process that this one did not
        // renew.
        if !changes.is_empty()
            && let Err(error) = self.program.last()
        {
            tracing::error!("cannot pin attachments, or cannot remove those of an earlier process: {error:#}");
        }
        changes
    }

    fn attach_tenant(&mut self, place: usize, interface: Interface) -> Result<()> {
        let name = &interface.name;
        ensure!(interface.link_header == 14, "interface {name} has no Ethernet header, so no tenant can be behind it");
        let tenant = &self.settings.tenants[place];
        self.program
            .attach_tenant(&interface, tenant.tenant.vni, tenant.id)
            .with_context(|| format!("cannot attach the tenant behind {name}"))?;
        tracing::info!(interface = name, network = tenant.tenant.network, id = tenant.id.0, "tenant attached");
        self.failed.remove(&place);
        self.tenants.insert(place, interface);
        Ok(())
    }

    /// Reopens the buffers for packets if other cores are online than before, because the kernel no longer delivers
    /// packets through the buffer of a core that went offline.
    pub fn follow_cores(&mut self) -> Result<()> {
        // Without /sys, the buffers are opened only once.
        let online = read_to_string(ONLINE).unwrap_or_default();
        if self.reader.is_some() && online == self.online {
            return Ok(());
        }
        // Drop the old reader first: until it has ended, its entries in the map are not free for the new reader.
        self.reader = None;
        self.reader = Some(Reader::start(&self.program, &self.inlet)?);
        self.online = online;
        Ok(())
    }

    /// Sets the programs' clock to the current time.
    pub fn set_clock(&self) -> Result<()> {
        self.program.proofs.set_clock(coarse_to_unix())
    }

    /// Removes withdrawals that affect only expired segments, and keys of epochs before the previous one.
    pub fn sweep(&self) -> Result<()> {
        self.program.proofs.sweep(now().saturating_sub(u64::from(engine::verifier::CLOCK_SKEW_MAX)) as u32)
    }

    /// Pins the attachments, so that they outlive this process. Removes attachments of an earlier process that this
    /// process did not take over.
    pub fn last(&self) -> Result<()> {
        self.program.last()
    }

    /// Detaches from every interface and removes all pins. This also removes the tables.
    pub fn end(&mut self) -> Result<()> {
        self.reader = None;
        self.program.detach();
        self.pins.remove()
    }
}

fn config(state: &State) -> ProofsConfig {
    ProofsConfig { epoch_length: state.config.epoch_length, max_lifetime: state.config.max_lifetime }
}

fn load(settings: &Settings, proofs: ProofsConfig, pins: &Pins) -> Result<(Svtep, Interface, u32)> {
    let underlay = Interface::named(&settings.underlay).context("cannot use the underlay")?;
    let mtu = settings
        .mtu
        .or_else(|| underlay.mtu())
        .with_context(|| format!("cannot determine the MTU of the underlay {}: set `mtu`", underlay.name))?;
    let Settings { remembered, reports, .. } = *settings;
    let program = Svtep::load(&underlay, &svtep::Config { proofs, remembered, mtu, reports }, Some(pins.clone()))?;
    Ok((program, underlay, mtu))
}

/// The thread that reads packets; dropping it waits for the thread to end.
struct Reader {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Reader {
    fn start(program: &Svtep, inlet: &Inlet) -> Result<Self> {
        let Inlet { packets, lost } = inlet.clone();
        let overflow = lost.clone();
        let each = move |unsent| {
            // With a full channel the packet is lost, as any packet may be.
            if packets.try_send(unsent).is_err() {
                overflow.fetch_add(1, Ordering::Relaxed);
            }
        };
        let buffer = program.unsent(each, move |count| {
            lost.fetch_add(count, Ordering::Relaxed);
        })?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let read = move || {
            while !stopped.load(Ordering::Relaxed) {
                // A signal may interrupt the poll; the loop polls again in any case.
                if let Err(error) = buffer.poll(POLL) {
                    tracing::debug!("cannot read unsent packets: {error}");
                }
            }
        };
        let thread = std::thread::Builder::new()
            .name("unsent".into())
            .spawn(read)
            .context("cannot start the thread that reads tenants' packets")?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
