//! One attached program: a BPF link, or a filter of the clsact qdisc on kernels without TCX.

use super::link::{AttachPoint, Link};
use super::spot::Spot;
use crate::hook::{self, Hook, Mode};
use crate::interface::Interface;
use crate::tc::Attachment;
use anyhow::{Context, Result};
use libbpf_rs::{TC_EGRESS, TC_INGRESS, TcHook, TcHookBuilder};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// An attached program.
pub(super) enum Attached {
    Link(Link),
    Filter(Filter),
}

impl Attached {
    /// Attaches a program. If the spot is at tc, `tc` is the mechanism.
    pub(super) fn new(program: BorrowedFd<'_>, interface: &Interface, spot: Spot, tc: Attachment) -> Result<Self> {
        let name = &interface.name;
        let attached = match (spot.attach_point(), tc) {
            (AttachPoint::Xdp, _) => {
                return Link::attach_xdp(program, interface).map(|(link, _)| Self::Link(link)).with_context(|| {
                    format!("cannot attach to {name} at XDP (another XDP program may be there: `ip link show {name}`)")
                });
            }
            (place, Attachment::Tcx) => Link::attach(program, interface.index, place, spot.flags()).map(Self::Link),
            (_, Attachment::Clsact) => Filter::attach(program, interface.index, spot).map(Self::Filter),
        };
        attached.with_context(|| format!("cannot attach to {name} at tc"))
    }

    /// Attaches at XDP in the driver, without a fallback.
    pub(super) fn natively(program: BorrowedFd<'_>, interface: &Interface) -> Result<Self> {
        Link::attach(program, interface.index, AttachPoint::Xdp, libbpf_sys::XDP_FLAGS_DRV_MODE).map(Self::Link)
    }

    /// Opens the attachment that is pinned at `path` under the name `pin`, whichever interface it is on. For a filter,
    /// the name of the pin contains the interface and the spot.
    pub(super) fn open(path: &Path, pin: &str) -> Option<Self> {
        let link = Link::open_any(path)?;
        if link.is_link() {
            return Some(Self::Link(link));
        }
        let (name, spot) = Spot::of_pin(pin);
        let interface = nix::net::if_::if_nametoindex(name).ok()?;
        Some(Self::Filter(Filter::of(link.into(), interface, spot)))
    }

    /// Opens the attachment pinned at `path` under the name `pin`, if it is still on this interface.
    pub(super) fn open_on(path: &Path, pin: &str, interface: &Interface) -> Option<Self> {
        match Self::open(path, pin)? {
            Self::Link(_) => Link::open(path, interface.index).map(Self::Link),
            Self::Filter(filter) => filter.is_there().then_some(Self::Filter(filter)),
        }
    }

    /// Reports whether the interface no longer exists.
    pub(super) fn is_gone(&self) -> bool {
        match self {
            Self::Link(link) => link.is_gone(),
            Self::Filter(filter) => !filter.is_there(),
        }
    }

    /// Reports whether a program for this hook can replace the attached one.
    pub(super) fn is_at(&self, hook: Hook) -> bool {
        match self {
            Self::Link(link) => link.is_xdp() == (hook == Hook::Xdp),
            Self::Filter(_) => hook == Hook::Tc,
        }
    }

    /// Replaces the attached program in place, so that no packet passes unchecked.
    pub(super) fn update(&mut self, program: BorrowedFd<'_>) -> Result<()> {
        match self {
            Self::Link(link) => link.update(program)?,
            Self::Filter(filter) => *filter = Filter::attach(program, filter.interface, filter.spot)?,
        }
        Ok(())
    }

    pub(super) fn mode(&self, interface: &Interface) -> Result<Mode> {
        match self {
            Self::Link(link) if link.is_xdp() => hook::mode(interface),
            Self::Link(_) => Ok(Mode::Tcx),
            Self::Filter(_) => Ok(Mode::Clsact),
        }
    }

    /// Returns the descriptor to pin. With the pin, [`Self::open`] later finds the attachment. A filter can't be
    /// pinned, and remains when the process ends. If [`Spot::pins_filter`] returns true, the filter's program is pinned
    /// instead.
    pub(super) fn to_pin(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Link(link) => Some(link.as_fd()),
            Self::Filter(filter) => filter.spot.pins_filter().then(|| filter.program.as_fd()),
        }
    }

    /// Detaches from the interface at once.
    pub(super) fn detach(&self) {
        match self {
            Self::Link(link) => link.detach(),
            Self::Filter(filter) => filter.detach(),
        }
    }
}

/// A filter of the clsact qdisc.
pub(super) struct Filter {
    program: OwnedFd,
    interface: u32,
    spot: Spot,
}

impl Filter {
    /// Attaches a filter, or replaces the program of an existing one.
    fn attach(program: BorrowedFd<'_>, interface: u32, spot: Spot) -> Result<Self> {
        let filter =
            Self::of(program.try_clone_to_owned().context("cannot duplicate a file descriptor")?, interface, spot);
        let mut hook = filter.hook();
        // The qdisc may exist already: we or another program may have created it.
        let _ = hook.create();
        hook.attach().context("cannot add a tc filter")?;
        Ok(filter)
    }

    /// Removes the filter at this spot of an interface, whichever process attached it.
    pub(super) fn remove(interface: &Interface, spot: Spot) -> Result<()> {
        // Neither the query nor the removal uses the program's descriptor, so any descriptor will do.
        let nothing = std::io::stdin().as_fd().try_clone_to_owned().context("cannot duplicate a file descriptor")?;
        let filter = Self::of(nothing, interface.index, spot);
        if filter.is_there() {
            filter.hook().detach().with_context(|| format!("cannot detach from {}", interface.name))?;
        }
        Ok(())
    }

    fn of(program: OwnedFd, interface: u32, spot: Spot) -> Self {
        Self { program, interface, spot }
    }

    fn hook(&self) -> TcHook {
        let mut builder = TcHookBuilder::new(self.program.as_fd());
        builder.ifindex(self.interface as i32).replace(true).handle(self.spot.handle()).priority(self.spot.priority());
        builder.hook(if self.spot.attach_point() == AttachPoint::TcxEgress { TC_EGRESS } else { TC_INGRESS })
    }

    fn is_there(&self) -> bool {
        self.hook().query().is_ok()
    }

    fn detach(&self) {
        // Detaching fails if the interface is gone, which is fine.
        let _ = self.hook().detach();
    }
}
