//! Attachment of programs to interfaces. This module chooses between XDP and tc, between driver mode and generic mode,
//! and between links and filters. It takes over, replaces, pins and detaches attachments.

mod attached;
pub(crate) mod link;
mod pins;
mod spot;

use crate::hook::{Choice, Hook, Mode, favours_tc};
use crate::interface::Interface;
use crate::tc::{Attachment, supported_attachment};
use anyhow::{Context, Result};
use attached::{Attached, Filter};
use libbpf_rs::Program;
use std::collections::HashMap;
use std::fs;
use std::os::fd::{AsFd, BorrowedFd};

pub use pins::{Pins, bpf_file_system_is_mounted};
pub use spot::Spot;

/// The attachments of one process, by the names of their pins. Without a directory for pins, BPF links end with the
/// process.
pub(crate) struct Attachments {
    pins: Option<Pins>,
    tc: Attachment,
    attached: HashMap<String, Attached>,
}

impl Attachments {
    /// Creates an empty set of attachments.
    pub(crate) fn new(pins: Option<Pins>) -> Self {
        Self::by(supported_attachment(), pins)
    }

    /// Creates an empty set of attachments. At tc, it will attach programs by the mechanism `tc`.
    pub(crate) fn by(tc: Attachment, pins: Option<Pins>) -> Self {
        Self { pins, tc, attached: HashMap::new() }
    }

    /// Attaches a program, or replaces the program of an attachment that an earlier process pinned. If that attachment
    /// is at another hook, it is removed after the new attachment was pinned. In between, each packet passes both
    /// programs. The first program removes a SYN's token, so the second program drops the SYN. The client then sends
    /// the SYN again.
    pub(crate) fn attach(&mut self, program: BorrowedFd<'_>, interface: &Interface, spot: Spot) -> Result<Mode> {
        let attached = match self.pinned(interface, spot) {
            Some(mut old) if old.is_at(spot.hook()) => {
                old.update(program)?;
                old
            }
            old => self.replace(old, Attached::new(program, interface, spot, self.tc)?, interface, spot)?,
        };
        self.keep(attached, interface, spot)
    }

    /// Attaches the programs for admission at the hook that `choice` gives this interface. Also returns the reason for
    /// that hook.
    pub(crate) fn admit<'a>(
        &mut self,
        choice: Choice,
        program: impl Fn(Hook) -> Result<Program<'a>>,
        interface: &Interface,
    ) -> Result<(Mode, String)> {
        let (hook, why) = match choice {
            Choice::Only(hook) => (hook, "chosen in the settings".to_owned()),
            Choice::Auto => match favours_tc(interface) {
                Some(why) => (Hook::Tc, why),
                None => match self.attach_natively(program(Hook::Xdp)?.as_fd(), interface)? {
                    Ok(mode) => return Ok((mode, "its driver runs XDP".to_owned())),
                    Err(why) => (Hook::Tc, why),
                },
            },
        };
        Ok((self.attach(program(hook)?.as_fd(), interface, Spot::Admission(hook))?, why))
    }

    /// Attaches admission at XDP in the driver. If the driver does not run the program, returns the reason as the inner
    /// error.
    fn attach_natively(&mut self, program: BorrowedFd<'_>, interface: &Interface) -> Result<Result<Mode, String>> {
        let spot = Spot::Admission(Hook::Xdp);
        let is_native = |old: &Attached| old.mode(interface).is_ok_and(|mode| mode == Mode::Native);
        let attached = match self.pinned(interface, spot).filter(is_native) {
            Some(mut old) => {
                old.update(program)?;
                old
            }
            None => match Attached::natively(program, interface) {
                Ok(native) => self.replace(self.pinned(interface, spot), native, interface, spot)?,
                Err(error) => return Ok(Err(why_not_native(&error))),
            },
        };
        self.keep(attached, interface, spot).map(Ok)
    }

    /// Opens the attachment that an earlier process pinned, if it is still on this interface.
    fn pinned(&self, interface: &Interface, spot: Spot) -> Option<Attached> {
        let (pins, pin) = (self.pins.as_ref()?, spot.pin(&interface.name));
        Attached::open_on(&pins.link(&pin), &pin, interface)
    }

    /// Pins a new attachment in place of an old one, and detaches the old one.
    fn replace(&self, old: Option<Attached>, new: Attached, interface: &Interface, spot: Spot) -> Result<Attached> {
        let Some(pins) = &self.pins else { return Ok(new) };
        let pin = spot.pin(&interface.name);
        match (old, new.to_pin()) {
            (Some(old), Some(to_pin)) => {
                pins.put_link(&pin, to_pin)?;
                old.detach();
            }
            // The pin is of a link whose interface no longer exists.
            _ => drop(fs::remove_file(pins.link(&pin))),
        }
        Ok(new)
    }

    fn keep(&mut self, attached: Attached, interface: &Interface, spot: Spot) -> Result<Mode> {
        let pin = spot.pin(&interface.name);
        if let Some(pins) = &self.pins {
            pins.remove_unfinished(&pin);
        }
        let mode = attached.mode(interface)?;
        self.attached.insert(pin, attached);
        Ok(mode)
    }

    /// Pins the attachments, so that they outlive this process.
    pub(crate) fn pin(&self) -> Result<()> {
        let Some(pins) = &self.pins else { return Ok(()) };
        for (name, attached) in &self.attached {
            if let Some(to_pin) = attached.to_pin()
                && !pins.link(name).exists()
            {
                pins.put_link(name, to_pin)?;
            }
        }
        Ok(())
    }

    /// Removes the pinned attachments that this process does not have.
    pub(crate) fn remove_others(&self) -> Result<()> {
        let Some(pins) = &self.pins else { return Ok(()) };
        pins.links()
            .iter()
            .filter(|name| !self.attached.contains_key(*name))
            .try_for_each(|name| pins.remove_link(name))
    }

    /// Reports whether there are attachments, and all of them are at tc.
    pub(crate) fn are_at_tc(&self) -> bool {
        !self.attached.is_empty() && self.attached.values().all(|attached| attached.is_at(Hook::Tc))
    }

    /// Takes over all attachments of `old`, whether they are pinned or not. `program` returns the program for a hook.
    /// The returned program replaces the old program in place, so that no packet passes unchecked. Drops attachments
    /// whose interface no longer exists.
    pub(crate) fn succeed<'a>(&mut self, old: &mut Self, program: impl Fn(Hook) -> Result<Program<'a>>) -> Result<()> {
        let mut gone = Vec::new();
        for (pin, attached) in &mut old.attached {
            let program = program(if attached.is_at(Hook::Xdp) { Hook::Xdp } else { Hook::Tc })?;
            match attached.update(program.as_fd()) {
                Err(_) if attached.is_gone() => gone.push(pin.clone()),
                done => done.with_context(|| format!("cannot take over the attachment {pin:?}"))?,
            }
        }
        gone.iter().for_each(|pin| old.remove(pin));
        self.attached.extend(old.attached.drain());
        Ok(())
    }

    /// Detaches from one interface, which need not exist any more, and removes the pin.
    pub(crate) fn forget(&mut self, interface: &str, spot: Spot) {
        self.remove(&spot.pin(interface));
    }

    /// Detaches from every interface, and removes the pins.
    pub(crate) fn detach(&mut self) {
        for pin in self.attached.keys().cloned().collect::<Vec<_>>() {
            self.remove(&pin);
        }
    }

    fn remove(&mut self, pin: &str) {
        if let Some(attached) = self.attached.remove(pin) {
            attached.detach();
        }
        if let Some(pins) = &self.pins {
            let _ = fs::remove_file(pins.link(pin));
        }
    }
}

/// Removes the filter at one spot of an interface, whichever process attached it.
pub(crate) fn remove_filter(interface: &Interface, spot: Spot) -> Result<()> {
    Filter::remove(interface, spot)
}

/// Returns why a driver did not accept an XDP program, from the error.
fn why_not_native(error: &anyhow::Error) -> String {
    match error.downcast_ref::<std::io::Error>().and_then(std::io::Error::raw_os_error) {
        Some(libc::EOPNOTSUPP) => "its driver does not support XDP".to_owned(),
        Some(libc::EBUSY | libc::EEXIST) => "another XDP program is attached to it".to_owned(),
        _ => format!("cannot attach at XDP in its driver: {}", error.root_cause()),
    }
}
