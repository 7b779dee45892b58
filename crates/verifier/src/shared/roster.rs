//! The verifier's other organisations, and the answers that concern all organisations.

use super::Shared;
use crate::kernel::Kernel;
use crate::{now, view};
use anyhow::{Context, Result};
use std::sync::{Arc, Mutex, PoisonError};
use wire::map::{Flow, FlowKey};

/// An organisation with a name, and its state once its kernel programs are loaded.
pub struct Member {
    /// Position of the organisation in the verifier's chain of organisations. The default organisation has position 0.
    pub number: usize,
    /// Name of the organisation.
    pub name: String,
    /// The verifier's id at the organisation's authority.
    pub verifier: String,
    /// The URL of the authority.
    pub url: String,
    shared: Mutex<Option<Arc<Shared>>>,
    /// The reason why the programs are not loaded.
    trouble: Mutex<Option<String>>,
}

impl Member {
    /// Creates an organisation whose programs are not loaded.
    pub fn new(number: usize, name: String, verifier: String, url: String) -> Self {
        Self { number, name, verifier, url, shared: Mutex::default(), trouble: Mutex::default() }
    }

    /// Sets the organisation's state, after its programs were loaded.
    pub fn set(&self, shared: Arc<Shared>) {
        *self.shared.lock().unwrap_or_else(PoisonError::into_inner) = Some(shared);
    }

    /// Sets the reason why the programs are not loaded.
    pub fn fail(&self, error: String) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
    }

    fn shared(&self) -> Option<Arc<Shared>> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Shared {
    /// Sets the verifier's other organisations. The daemon sets them only in the state of the default organisation.
    pub fn set_roster(&self, members: Vec<Arc<Member>>) {
        let _ = self.roster.set(members);
    }

    fn roster(&self) -> &[Arc<Member>] {
        self.roster.get().map_or(&[], Vec::as_slice)
    }

    /// Returns the states of this organisation and of the others whose programs are loaded.
    pub(super) fn everyone(self: &Arc<Self>) -> Vec<Arc<Self>> {
        let others = self.roster().iter().filter_map(|member| member.shared());
        std::iter::once(self.clone()).chain(others).collect()
    }

    /// Returns the state of the organisation with this name. Without a name, returns the state of the first
    /// organisation that may speak for the destination.
    pub(super) fn of_organisation(
        self: &Arc<Self>,
        name: Option<&str>,
        (address, protocol, port): (std::net::IpAddr, u8, u16),
    ) -> Result<Arc<Self>> {
        let mut all = self.everyone().into_iter();
        match name {
            Some(name) => {
                let one = all.find(|one| one.kernel().position().name() == Some(name));
                one.with_context(|| format!("the verifier has no organisation {name:?} whose programs are loaded"))
            }
            None => {
                let one = all.find(|one| one.kernel().position().limits().covers(address, protocol, port));
                Ok(one.unwrap_or_else(|| self.clone()))
            }
        }
    }

    /// Reads flows of all organisations, and adds their owners. `read` reads the flows of one organisation.
    pub(super) async fn flows_of_all(
        self: &Arc<Self>,
        read: impl Fn(&Kernel) -> Vec<(FlowKey, Flow)> + Clone + Send + 'static,
    ) -> Result<Vec<view::Flow>> {
        let mut all = Vec::new();
        for shared in self.everyone() {
            let read = read.clone();
            let flows = shared.clone().read(move |shared| Ok(read(&shared.kernel()))).await?;
            all.extend(shared.named(flows).await);
        }
        Ok(all)
    }

    /// Returns the counters of all organisations' programs. Each packet is counted once: by the programs that let it
    /// pass, or by the last ones that refused it.
    pub(super) fn counts(&self) -> Result<view::Drops> {
        let mut sum = self.kernel().counts()?;
        for shared in self.roster().iter().filter_map(|member| member.shared()) {
            let more = shared.kernel().counts()?;
            for (all, more) in [(&mut sum.reasons, more.reasons), (&mut sum.passed, more.passed)] {
                all.iter_mut().zip(more).for_each(|(all, more)| all.packets += more.packets);
            }
            sum.samples_lost += more.samples_lost;
        }
        Ok(sum)
    }

    /// Asks the programs of one organisation after the other about a packet, until one lets it pass. If none does,
    /// returns the verdict that rests on the most checks.
    pub(super) fn verdict(&self, explain: impl Fn(&Kernel) -> Result<view::Verdict>) -> Result<view::Verdict> {
        let mut best = self.as_done(explain(&self.kernel())?);
        for shared in self.roster().iter().filter_map(|member| member.shared()) {
            if best.passes {
                break;
            }
            let verdict = shared.as_done(explain(&shared.kernel())?);
            if verdict.passes || verdict.checks.len() > best.checks.len() {
                best = verdict;
            }
        }
        Ok(best)
    }

    /// Returns the overview of all organisations; empty if there is only one.
    pub(super) fn organisations(&self) -> Vec<view::Organisation> {
        if self.roster().is_empty() {
            return Vec::new();
        }
        let others = self.roster().iter().map(|member| match member.shared() {
            Some(shared) => shared.organisation(),
            None => self.missing(member),
        });
        std::iter::once(self.organisation()).chain(others).collect()
    }

    fn organisation(&self) -> view::Organisation {
        let health = self.health.borrow().clone();
        let (in_use, _) = self.authority.members().shown();
        let kernel = self.kernel();
        let (position, limits) = (kernel.position(), kernel.position().limits());
        view::Organisation {
            name: position.name().unwrap_or_default().to_owned(),
            verifier: self.verifier.clone(),
            authority: in_use.unwrap_or_else(|| self.url.clone()),
            loaded: true,
            connected: health.connected,
            trouble: health.trouble,
            read: health.read,
            keys_until: kernel.keys_until(now()),
            closed: kernel.is_closed(),
            networks: limits.networks.iter().flatten().map(ToString::to_string).collect(),
            services: limits.services.clone(),
            protected: kernel.named().len() as u64,
            refused: position.chain.refused(position.number),
            tables: kernel.tables(),
        }
    }

    /// Returns the overview of an organisation whose programs are not loaded.
    fn missing(&self, member: &Member) -> view::Organisation {
        let kernel = self.kernel();
        let limits = &kernel.position().chain.organisations()[member.number].limits;
        let trouble = member.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone();
        view::Organisation {
            name: member.name.clone(),
            verifier: member.verifier.clone(),
            authority: member.url.clone(),
            loaded: false,
            connected: false,
            trouble: Some(trouble.unwrap_or_else(|| "waiting for the authority".into())),
            read: None,
            keys_until: None,
            closed: false,
            networks: limits.networks.iter().flatten().map(ToString::to_string).collect(),
            services: limits.services.clone(),
            protected: 0,
            refused: Vec::new(),
            tables: Vec::new(),
        }
    }
}
