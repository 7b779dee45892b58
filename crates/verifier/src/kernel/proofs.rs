//! The verification of proofs, as part of [`Kernel`].

use super::Kernel;
use crate::view;
use anyhow::Result;
use api::{VerifierConfig, Withdrawal};
use follower::State;

impl Kernel {
    /// Writes the authority's state to the tables for proofs, if proofs are checked.
    pub fn write_proofs(&self, state: &State) -> Result<()> {
        self.proving.as_ref().map_or(Ok(()), |proving| proving.write(&state.config, &state.keys))
    }

    /// Voids the path segments that these withdrawals cover, if proofs are checked.
    pub fn withdraw(&self, withdrawn: &[Withdrawal]) {
        if let Some(proving) = &self.proving {
            proving.withdraw(withdrawn);
        }
    }

    /// Returns the state of the engine that checks proofs; `None` if proofs are not checked.
    pub fn proving(&self) -> Option<Result<view::Proofs>> {
        self.proving.as_ref().map(|proving| proving.view())
    }

    /// Reports whether the verifier accepts no proof any more, because there was no room for a withdrawal.
    pub fn proofs_are_closed(&self) -> bool {
        self.proving.as_ref().is_some_and(|proving| proving.is_closed())
    }

    pub(super) fn proofs_are_loaded_for(&self, config: &VerifierConfig) -> bool {
        self.proving.as_ref().is_none_or(|proving| proving.is_loaded_for(config))
    }

    pub(super) fn sweep_proofs(&self) {
        if let Some(Err(error)) = self.proving.as_ref().map(|proving| proving.sweep()) {
            tracing::error!("cannot remove expired withdrawals of consent, and keys of past epochs: {error:#}");
        }
    }
}
