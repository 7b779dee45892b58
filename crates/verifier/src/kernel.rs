//! The kernel programs and their tables, as the daemon uses them. This module decides nothing about packets.

use crate::drops::Ring;
use crate::gateway::Gateway;
use crate::lessees::Lessees;
use crate::proving::{self, Proving};
use crate::settings::Settings;
use crate::{addresses, adoption, now, plan, sampler};
use anyhow::{Context, Result};
use datapath::Pins;
use datapath::clock::coarse_to_unix;
use datapath::coverage::OpenWay;
use datapath::hook::Mode;
use datapath::interface::Interface;
use datapath::ring::Listener;
use datapath::tcp_in_udp::Answers;
use datapath::verifier::Verifier;

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use tokio::sync::mpsc;
use wire::map::{EpochKey, FlowKey, SecretEntry, VerifierConfig};

mod attach;
mod chained;
mod cut;
mod datagrams;
mod exposed;
mod grant_room;
mod marked;
mod optional;
mod pairs;
mod peer_flows;
mod proofs;
mod tables;

pub use chained::ChainPosition;
pub use cut::Cut;

/// Largest number of adopted connections that one log message names; `verifier flows` lists all.
const ADOPTED_NAMED: usize = 64;

/// The kernel programs: loaded, and possibly attached to interfaces.
pub struct Kernel {
    verifier: Verifier,
    gateway: Option<Gateway>,
    /// The programs for answers to clients whose segments come as datagrams.
    answers: Option<Answers>,
    /// Clients in sealed tunnels and their inside addresses.
    lessees: Option<Arc<dyn Lessees>>,
    proving: Option<Box<dyn Proving>>,
    position: ChainPosition,
    pins: Pins,
    settings: Settings,
    config: VerifierConfig,
    attached: BTreeMap<String, (Interface, Mode)>,
    /// Interfaces that the verifier can't protect, with the reasons. The map is kept so that each reason is logged only
    /// once.
    failed: BTreeMap<String, (u32, String)>,
    /// Interfaces to which the verifier deliberately does not attach, with the reasons. The map is kept so that each
    /// reason is logged only once.
    passed_over: BTreeMap<String, String>,
    /// Ways into this host that no program checks. The list is kept so that each way is logged only once.
    open: Vec<OpenWay>,
    /// Whether attachments are to outlive this process.
    lasting: bool,
    /// Whether the verifier is closed: its table had no room for a revocation, so all keys are cleared and no new flow
    /// is admitted.
    closed: AtomicBool,
    written: Mutex<exposed::Written>,
    pair_room: Mutex<pairs::Room>,
    unannounced: Mutex<pairs::Holders>,
    grant_room: Mutex<grant_room::GrantRoom>,
    /// Lock that a sweep holds. Two concurrent sweeps would count the flows from inside twice, and one of them could
    /// remove revocations that the other one still needs.
    sweeping: Mutex<()>,
    drops: Arc<Mutex<Ring>>,
    _sampler: Listener,
}

impl Kernel {
    /// Loads the programs and takes over pinned tables, but attaches nothing. If the kernel program needs to know the
    /// owner of a grant, it sends the grant's handle to `unknown`.
    pub fn load(
        position: ChainPosition,
        pins: Pins,
        settings: Settings,
        seed: u64,
        config: &api::VerifierConfig,
        drops: Arc<Mutex<Ring>>,
        unknown: mpsc::Sender<u64>,
    ) -> Result<Self> {
        marked::check(&settings)?;
        datagrams::check(&settings)?;
        let kernel_config = plan::kernel_config(settings.kernel, seed, config);
        let proving = proving::load(&settings, config, &pins)?;
        let verifier = Verifier::load_for(settings.hook, kernel_config, settings.sizes, Some(pins.clone()))?;
        let sampler = sampler::start(&verifier, drops.clone(), settings.observe)?;
        let pool = addresses::pool(&settings.pool)?;
        let pair_room = Mutex::new(pairs::Room::new(settings.sizes.pairs));
        let grant_room = Mutex::new(grant_room::GrantRoom::new(kernel_config.grants_per_account));
        let gateway = Gateway::load(&verifier, &kernel_config, &settings, &pool, &pins, unknown)?;
        let answers = datagrams::load(&verifier, &settings, &pins)?;
        let kernel = Self {
            verifier,
            gateway,
            answers,
            lessees: None,
            proving,
            position,
            pins,
            settings,
            config: kernel_config,
            attached: BTreeMap::new(),
            failed: BTreeMap::new(),
            passed_over: BTreeMap::new(),
            open: Vec::new(),
            lasting: false,
            closed: AtomicBool::new(false),
            written: Mutex::default(),
            pair_room,
            unannounced: Mutex::default(),
            grant_room,
            sweeping: Mutex::default(),
            drops,
            _sampler: sampler,
        };
        kernel.write_optional()?;
        Ok(kernel)
    }

    /// Writes the authority's state to the tables. Writes revocations first, so that they are in force even if the rest
    /// can't be written. Protects the services even if a key is malformed.
    pub fn write(&self, config: &api::VerifierConfig, keys: &[api::EpochKey], now: u64) -> Result<()> {
        self.set_clock()?;
        // Keys for epochs of another length would replace those that the loaded programs can use.
        let keys_fit = config.epoch_length == self.config.epoch_length;
        let revoked = self.revoke(&config.revoked, now).complete;
        let mut written = Ok(());
        if self.end_sessions(&config.revoked_sessions, now).complete && revoked && keys_fit {
            written = self.write_keys(keys, now);
            if written.is_ok() && self.closed.swap(false, Ordering::Relaxed) {
                tracing::info!(
                    "the tables have room again for all revoked grants and ended sessions: new flows are admitted"
                );
            }
        }
        let paired = self.note_pairs(&config.pairs, config.now.max(now));
        if config.receivers.is_empty() && self.settings.everything_but.is_none() {
            tracing::warn!(
                verifier = config.verifier,
                "nothing is protected: the policy has no receiver behind this verifier"
            );
        }
        self.protect(&config.receivers).and(written).and(paired)
    }

    /// Reports whether the programs were loaded with the epoch length and the maximum lifetime in `config`.
    pub fn is_loaded_for(&self, config: &api::VerifierConfig) -> bool {
        self.config == plan::kernel_config(self.settings.kernel, self.config.replay_seed, config)
            && self.proofs_are_loaded_for(config)
    }

    /// Reloads the programs after the authority's epoch length or maximum lifetime has changed, because both values are
    /// fixed when a program is loaded. The new programs take over the attachments.
    pub fn reload(&mut self, config: &api::VerifierConfig) -> Result<()> {
        if let Some(proving) = &mut self.proving {
            proving.reload(config)?;
        }
        let kernel_config = plan::kernel_config(self.settings.kernel, self.config.replay_seed, config);
        let mut verifier =
            Verifier::load_for(self.settings.hook, kernel_config, self.settings.sizes, Some(self.pins.clone()))?;
        let sampler = sampler::start(&verifier, self.drops.clone(), self.settings.observe)?;
        verifier.succeed(&mut self.verifier)?;
        (self.verifier, self.config, self._sampler) = (verifier, kernel_config, sampler);
        self.link()?;
        let (epoch_length, max_lifetime) = (kernel_config.epoch_length, kernel_config.max_lifetime);
        tracing::info!(
            epoch_length,
            max_lifetime,
            "epoch length or maximum lifetime changed at the authority: replaced the programs"
        );
        Ok(())
    }

    fn write_keys(&self, keys: &[api::EpochKey], now: u64) -> Result<()> {
        let usable = plan::keys(keys, now, self.config.epoch_length);
        let usable =
            usable.map_err(|key| anyhow::anyhow!("the authority's key of epoch {} is malformed", key.epoch))?;
        let slots: HashSet<u32> = usable.iter().map(|(slot, _)| *slot).collect();
        for (slot, key) in &usable {
            self.verifier.epoch_keys.set(slot, key)?;
        }
        if self.takes_pairs() {
            for (slot, secret) in plan::secrets(keys, &usable) {
                self.verifier.ls_secrets.set(&slot, &secret)?;
            }
        }
        self.clear_keys(|slot| !slots.contains(&slot))
    }

    fn clear_keys(&self, which: impl Fn(u32) -> bool) -> Result<()> {
        const NONE: EpochKey = EpochKey { epoch: 0, siphash: [0; 16], aes: [0; 16] };
        const NO_SECRET: SecretEntry = SecretEntry { epoch: 0, block: [0; 64] };
        for slot in (0..plan::KEY_SLOTS).filter(|slot| which(*slot)) {
            self.verifier.epoch_keys.set(&slot, &NONE)?;
            self.verifier.ls_secrets.set(&slot, &NO_SECRET)?;
        }
        Ok(())
    }

    /// Sets the clock of the programs to the current time.
    pub fn set_clock(&self) -> Result<()> {
        self.proving.as_ref().map_or(Ok(()), |proving| proving.set_clock())?;
        self.verifier.set_clock(coarse_to_unix())
    }

    /// Adds established connections to protected ports to the table of flows, if the table lacks them. Leaves out
    /// connections to optional receivers, which need no flow, connections whose segments travel as datagrams, and
    /// connections for which `is_known` is true. Returns the number of adopted connections.
    pub fn adopt(&self, is_known: impl Fn(&FlowKey) -> bool) -> Result<usize> {
        let sockets = adoption::sockets().context("cannot list this host's sockets")?;
        let now = now() as u32;
        let mut count = 0;
        let adopts = |socket: &adoption::Socket| !self.is_optional(socket.local) && !self.is_in_datagrams(socket);
        for socket in adoption::protected_sockets(&sockets, &self.protected()).into_iter().filter(adopts) {
            let (key, flow) = adoption::flow(&socket, now);
            if !is_known(&key) && self.verifier.flows.insert(&key, &flow)? {
                if count < ADOPTED_NAMED {
                    let (client, server) = (socket.peer, socket.local);
                    tracing::warn!(
                        %client,
                        %server,
                        "adopted a connection that was established before protection began, so it has no grant"
                    );
                }
                count += 1;
            }
        }
        Ok(count)
    }

    /// Reports whether the verifier has a flow of this connection whose segments travel as datagrams.
    fn is_in_datagrams(&self, socket: &adoption::Socket) -> bool {
        let (key, _) = adoption::flow(socket, 0);
        self.flow(&key.in_datagrams()).is_some()
    }
}
