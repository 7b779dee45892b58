//! Chains of verifiers: the verifiers of several authorities decide about a packet one after the other. Each verifier
//! has programs and tables of its own. Only the first verifier is attached to interfaces. By a tail call, each verifier
//! hands over to the next verifier the packets that it refuses.

use super::{Verifier, admission};
use crate::hook::Hook;
use anyhow::{Context, Result};
use libbpf_rs::{ErrorKind, MapCore, MapFlags, MapHandle};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// Names of the tables with the next programs, one for each hook. They are pinned, because the kernel empties such a
/// table when the last process that has opened it ends.
pub(super) const NEXT: [&str; 2] = ["next_xdp", "next_tc"];

/// A verifier's place in a chain of verifiers: its programs, and the tables with the programs of the next verifier.
pub struct Link(Vec<Stage>);

/// The program for one hook.
struct Stage {
    hook: Hook,
    program: OwnedFd,
    next: MapHandle,
}

impl Verifier {
    /// Returns the programs and tables with which this verifier takes part in a chain of verifiers.
    ///
    /// # Errors
    ///
    /// Fails if a program's file descriptor can't be duplicated.
    pub fn link(&self) -> Result<Link> {
        let hooks = if self.at_tc.is_some() { vec![Hook::Xdp, Hook::Tc] } else { vec![self.hook] };
        let stage = |hook| {
            let program = admission(&self.object, self.at_tc.as_ref(), hook)?;
            let program = program.as_fd().try_clone_to_owned().context("cannot duplicate a file descriptor")?;
            let object = self.at_tc.as_ref().filter(|_| hook == Hook::Tc).unwrap_or(&self.object);
            Ok(Stage { hook, program, next: object.map(next(hook))? })
        };
        hooks.into_iter().map(stage).collect::<Result<Vec<_>>>().map(Link)
    }
}

impl Link {
    /// Makes the programs hand over to the programs of `next` the packets that they refuse. With `None`, the programs
    /// drop these packets.
    ///
    /// # Errors
    ///
    /// Fails if `next` has no program for a hook of this link, or if the kernel refuses access to a table.
    pub fn lead_to(&self, next: Option<&Self>) -> Result<()> {
        self.0.iter().try_for_each(|stage| stage.lead_to(next))
    }
}

impl Stage {
    fn lead_to(&self, next: Option<&Link>) -> Result<()> {
        let slot = 0_u32.to_ne_bytes();
        let Some(Link(stages)) = next else {
            return match self.next.delete(&slot) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    Err(error).context("cannot end a chain of programs")
                }
                _ => Ok(()),
            };
        };
        let next = stages.iter().find(|stage| stage.hook == self.hook);
        let next = next.context("the next verifier of the chain has no program for this hook")?;
        let program = next.program.as_raw_fd().to_ne_bytes();
        self.next.update(&slot, &program, MapFlags::ANY).context("cannot append programs to a chain")
    }
}

fn next(hook: Hook) -> &'static str {
    match hook {
        Hook::Xdp => NEXT[0],
        Hook::Tc => NEXT[1],
    }
}
