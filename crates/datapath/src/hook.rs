//! Where admission hooks in, and the attachments there.

use crate::interface::Interface;
use crate::link::{Link, Place};
use crate::tc::{Attachment, supported_attachment};
use anyhow::{Context, Result};
use libbpf_rs::{TC_EGRESS, TC_INGRESS, TcHook, TcHookBuilder};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// linux/pkt_cls.h: the next program decides.
const TC_ACT_UNSPEC: u32 = u32::MAX;
const TC_ACT_SHOT: u32 = 2;

/// Where in a packet's way the verifier decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// Before the kernel makes a socket buffer: for network cards.
    Xdp,
    /// At tc ingress, on the socket buffer: for virtual interfaces, which would copy every packet for XDP.
    Tc,
}

impl Hook {
    /// Every hook.
    pub const ALL: [Self; 2] = [Self::Xdp, Self::Tc];

    /// The name used in settings and output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Xdp => "xdp",
            Self::Tc => "tc",
        }
    }

    /// What its program returns for a packet that passes, or else is dropped.
    pub const fn code(self, passes: bool) -> u32 {
        match (self, passes) {
            (Self::Xdp, true) => libbpf_sys::XDP_PASS,
            (Self::Xdp, false) => libbpf_sys::XDP_DROP,
            (Self::Tc, true) => TC_ACT_UNSPEC,
            (Self::Tc, false) => TC_ACT_SHOT,
        }
    }

    /// Whether an attachment ends with the process that made it, unless it is pinned. A tc filter does not.
    pub fn ends_with_process(self) -> bool {
        self == Self::Xdp || supported_attachment() == Attachment::Tcx
    }
}

/// Which hook an interface gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// XDP where the driver runs it and the interface is no virtual one, else tc.
    #[default]
    Auto,
    /// One hook on every interface. XDP runs in the kernel's generic form where the driver does not support it.
    Only(Hook),
}

impl Choice {
    /// Every choice.
    pub const ALL: [Self; 3] = [Self::Auto, Self::Only(Hook::Xdp), Self::Only(Hook::Tc)];

    /// The name used in settings.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Only(hook) => hook.name(),
        }
    }

    /// Whether every attachment ends with the process that made it, unless it is pinned.
    pub fn ends_with_process(self) -> bool {
        match self {
            Self::Auto => Hook::Tc.ends_with_process(),
            Self::Only(hook) => hook.ends_with_process(),
        }
    }
}

/// Drivers of virtual machines that have XDP: it would copy every packet, or take merging of packets from the host.
const PARAVIRTUAL: [&str; 4] = ["virtio_net", "vmxnet3", "hv_netvsc", "vif"];

/// Why an interface is better judged at tc, whatever its driver says of XDP; none for network cards.
pub fn favours_tc(interface: &Interface) -> Option<String> {
    let layers = crate::interface::layers().unwrap_or_default();
    let kind = layers.iter().find(|layer| layer.index == interface.index).map_or("", |layer| &layer.kind);
    let mut above = layers.iter().filter(|layer| layer.link == Some(interface.index) && layer.meets_siblings);
    virtual_kind(kind, interface.driver().as_deref())
        .or_else(|| above.next().map(|child| format!("below {}, whose siblings' frames XDP would not see", child.name)))
}

fn virtual_kind(kind: &str, driver: Option<&str>) -> Option<String> {
    match driver {
        _ if !kind.is_empty() => Some(format!("virtual ({kind})")),
        Some(driver) if PARAVIRTUAL.contains(&driver) => Some(format!("paravirtual ({driver})")),
        _ => None,
    }
}

/// Which of the verifier's programs, or of those on an authority's host, is attached where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spot {
    /// Admission.
    Admission(Hook),
    /// A gateway's, at tc ingress of an inside interface.
    Outward,
    /// A gateway's, at tc egress of an outside interface.
    Own,
    /// A gateway's with a pool, at tc ingress of an outside interface, after admission.
    Inward,
    /// A verifier of proofs, at XDP.
    Proving,
    /// An authority's, at tc ingress: who takes keys in band.
    Greeting,
    /// An authority's, at tc egress: keys.
    HandingOver,
    /// A tunnel endpoint's, at tc ingress of a tenant's interface.
    Tenant,
    /// A tunnel endpoint's, at tc ingress of the underlay's interface.
    Underlay,
}

impl Spot {
    /// The program there.
    pub(crate) const fn program(self) -> &'static str {
        match self {
            Self::Admission(_) => "admit",
            Self::Outward => "outward",
            Self::Own => "own",
            Self::Inward => "inward",
            Self::Proving => "prove",
            Self::Greeting => "greet",
            Self::HandingOver => "hand_over",
            Self::Tenant => "encapsulate",
            Self::Underlay => "decapsulate",
        }
    }

    /// What its attachment to an interface is pinned as. No interface has a blank in its name.
    pub(crate) fn pin(self, interface: &str) -> String {
        match self {
            Self::Admission(_) | Self::Proving => interface.to_owned(),
            _ => format!("{interface} {}", self.program()),
        }
    }

    /// The interface that a pin is about, and which filter's it is if it is one.
    fn of_pin(pin: &str) -> (&str, Self) {
        let spots = [Self::Outward, Self::Own, Self::Inward, Self::Tenant, Self::Underlay].into_iter();
        let named = |spot: Self| Some((pin.strip_suffix(spot.program())?.strip_suffix(' ')?, spot));
        spots.filter_map(named).next().unwrap_or((pin, Self::Admission(Hook::Tc)))
    }

    fn place(self) -> Place {
        match self {
            Self::Admission(Hook::Xdp) | Self::Proving => Place::Xdp,
            Self::Admission(Hook::Tc)
            | Self::Outward
            | Self::Inward
            | Self::Greeting
            | Self::Tenant
            | Self::Underlay => Place::TcxIngress,
            Self::Own | Self::HandingOver => Place::TcxEgress,
        }
    }

    /// A filter's: before those of others, whose word could keep the packet from it.
    const fn priority(self) -> u32 {
        match self {
            Self::Inward => 2,
            Self::Greeting | Self::HandingOver => 3,
            Self::Tenant | Self::Underlay => 4,
            _ => 1,
        }
    }

    /// Admission goes before programs of others, whose word could keep the packet from it.
    const fn flags(self) -> u32 {
        if matches!(self, Self::Admission(Hook::Tc)) { libbpf_sys::BPF_F_BEFORE } else { 0 }
    }
}

/// How a program is attached at its hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// XDP in the driver, before the kernel allocates anything.
    Native,
    /// XDP in the kernel's receive path, for drivers without it.
    Generic,
    /// XDP on the network card.
    Offloaded,
    /// tc by TCX, Linux 6.6.
    Tcx,
    /// tc by a filter of the clsact qdisc.
    Clsact,
}

impl Mode {
    /// The name used in output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Generic => "generic",
            Self::Offloaded => "offloaded",
            Self::Tcx => Attachment::Tcx.name(),
            Self::Clsact => Attachment::Clsact.name(),
        }
    }

    /// The hook that it belongs to.
    pub const fn hook(self) -> Hook {
        match self {
            Self::Native | Self::Generic | Self::Offloaded => Hook::Xdp,
            Self::Tcx | Self::Clsact => Hook::Tc,
        }
    }
}

/// How XDP is attached to `interface`.
pub fn mode(interface: &Interface) -> Result<Mode> {
    match u32::from(query(interface)?.attach_mode) {
        libbpf_sys::XDP_ATTACHED_DRV => Ok(Mode::Native),
        libbpf_sys::XDP_ATTACHED_SKB => Ok(Mode::Generic),
        libbpf_sys::XDP_ATTACHED_HW => Ok(Mode::Offloaded),
        _ => anyhow::bail!("no XDP program, or several, on {}", interface.name),
    }
}

/// What the kernel says about XDP on `interface`: how it is attached, the programs' numbers, what the driver has.
pub(crate) fn query(interface: &Interface) -> Result<libbpf_sys::bpf_xdp_query_opts> {
    let mut options =
        libbpf_sys::bpf_xdp_query_opts { sz: size_of::<libbpf_sys::bpf_xdp_query_opts>() as _, ..Default::default() };
    // SAFETY: the options live through the call.
    let result = unsafe { libbpf_sys::bpf_xdp_query(interface.index as i32, 0, std::ptr::from_mut(&mut options)) };
    anyhow::ensure!(result == 0, "cannot ask how XDP is attached to {}", interface.name);
    Ok(options)
}

/// The admitting program on an interface.
pub(crate) enum Attached {
    Link(Link),
    Filter(Filter),
}

impl Attached {
    pub(crate) fn new(program: BorrowedFd<'_>, interface: &Interface, spot: Spot) -> Result<Self> {
        let attach = |flags| Link::attach(program, interface.index, spot.place(), flags).map(Self::Link);
        let name = &interface.name;
        match (spot, supported_attachment()) {
            // Without flags the kernel takes the driver's XDP if there is one, else its own. A driver may still refuse
            // (MTU, queues): then the kernel's own.
            (Spot::Admission(Hook::Xdp) | Spot::Proving, _) => {
                attach(0).or_else(|error| attach(libbpf_sys::XDP_FLAGS_SKB_MODE).map_err(|_| error)).with_context(
                    || format!("cannot attach XDP to {name} (another XDP program may be there: `ip link show {name}`)"),
                )
            }
            (_, Attachment::Tcx) => attach(spot.flags()).with_context(|| format!("cannot attach to tc of {name}")),
            (_, Attachment::Clsact) => Filter::attach(program, interface.index, spot)
                .map(Self::Filter)
                .with_context(|| format!("cannot attach to tc of {name}")),
        }
    }

    /// Attaches at XDP in the driver, or not at all.
    pub(crate) fn natively(program: BorrowedFd<'_>, interface: &Interface) -> Result<Self> {
        Link::attach(program, interface.index, Place::Xdp, libbpf_sys::XDP_FLAGS_DRV_MODE).map(Self::Link)
    }

    /// The attachment pinned at `path` as `pin`, to whatever interface; a filter's is the one that the pin names.
    pub(crate) fn open(path: &Path, pin: &str) -> Option<Self> {
        let link = Link::open_any(path)?;
        if link.is_link() {
            return Some(Self::Link(link));
        }
        let (name, spot) = Spot::of_pin(pin);
        let interface = nix::net::if_::if_nametoindex(name).ok()?;
        Some(Self::Filter(Filter::of(link.into(), interface, spot)))
    }

    /// The attachment pinned at `path` as `pin`, if it is still on this interface.
    pub(crate) fn open_on(path: &Path, pin: &str, interface: &Interface) -> Option<Self> {
        match Self::open(path, pin)? {
            Self::Link(_) => Link::open(path, interface.index).map(Self::Link),
            Self::Filter(filter) => filter.is_there().then_some(Self::Filter(filter)),
        }
    }

    /// Whether its interface is gone.
    pub(crate) fn is_gone(&self) -> bool {
        match self {
            Self::Link(link) => link.is_gone(),
            Self::Filter(filter) => !filter.is_there(),
        }
    }

    /// Whether a program for this hook can take its place.
    pub(crate) fn is_at(&self, hook: Hook) -> bool {
        match self {
            Self::Link(link) => link.is_xdp() == (hook == Hook::Xdp),
            Self::Filter(_) => hook == Hook::Tc,
        }
    }

    /// Puts another program in the place of the attached one, without a packet between them.
    pub(crate) fn update(&mut self, program: BorrowedFd<'_>) -> Result<()> {
        match self {
            Self::Link(link) => link.update(program)?,
            Self::Filter(filter) => *filter = Filter::attach(program, filter.interface, filter.spot)?,
        }
        Ok(())
    }

    pub(crate) fn mode(&self, interface: &Interface) -> Result<Mode> {
        match self {
            Self::Link(link) if link.is_xdp() => mode(interface),
            Self::Link(_) => Ok(Mode::Tcx),
            Self::Filter(_) => Ok(Mode::Clsact),
        }
    }

    /// What to pin so that [`Self::open`] finds it. A filter can't be pinned and lasts by itself: its program stands for
    /// it.
    pub(crate) fn to_pin(&self) -> BorrowedFd<'_> {
        match self {
            Self::Link(link) => link.as_fd(),
            Self::Filter(filter) => filter.program.as_fd(),
        }
    }

    /// Lets go of the interface at once.
    pub(crate) fn detach(&self) {
        match self {
            Self::Link(link) => link.detach(),
            Self::Filter(filter) => filter.detach(),
        }
    }
}

/// A filter of the clsact qdisc.
pub(crate) struct Filter {
    program: OwnedFd,
    interface: u32,
    spot: Spot,
}

impl Filter {
    const HANDLE: u32 = 0x5653;

    /// Attaches, or replaces the program of the filter that is there.
    fn attach(program: BorrowedFd<'_>, interface: u32, spot: Spot) -> Result<Self> {
        let filter = Self::of(program.try_clone_to_owned().context("cannot copy a descriptor")?, interface, spot);
        let mut hook = filter.hook();
        // The qdisc may be there already, ours or somebody else's.
        let _ = hook.create();
        hook.attach().context("cannot add a tc filter")?;
        Ok(filter)
    }

    fn of(program: OwnedFd, interface: u32, spot: Spot) -> Self {
        Self { program, interface, spot }
    }

    fn hook(&self) -> TcHook {
        let mut builder = TcHookBuilder::new(self.program.as_fd());
        builder.ifindex(self.interface as i32).replace(true).handle(Self::HANDLE).priority(self.spot.priority());
        builder.hook(if self.spot.place() == Place::TcxEgress { TC_EGRESS } else { TC_INGRESS })
    }

    fn is_there(&self) -> bool {
        self.hook().query().is_ok()
    }

    fn detach(&self) {
        // One whose interface is gone fails, which is what was wanted.
        let _ = self.hook().detach();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn virtual_interfaces_are_better_judged_at_tc() {
        assert_eq!(virtual_kind("veth", Some("veth")).as_deref(), Some("virtual (veth)"));
        assert_eq!(virtual_kind("bridge", None).as_deref(), Some("virtual (bridge)"));
        assert_eq!(virtual_kind("", Some("virtio_net")).as_deref(), Some("paravirtual (virtio_net)"));
        assert_eq!(virtual_kind("", Some("ixgbe")), None);
        assert_eq!(virtual_kind("", None), None);
    }
}
