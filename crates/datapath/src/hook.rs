//! Hooks to which the programs for admission can be attached, and the modes of attachment.

use crate::interface::Interface;
use crate::tc::{Attachment, supported_attachment};
use anyhow::Result;

/// linux/pkt_cls.h: the next program decides.
const TC_ACT_UNSPEC: u32 = u32::MAX;
const TC_ACT_SHOT: u32 = 2;

/// The point in the kernel's receive path at which the verifier decides about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// XDP, before the kernel allocates a socket buffer: for network cards.
    Xdp,
    /// tc ingress, on the socket buffer: for virtual interfaces, which would copy every packet for XDP.
    Tc,
}

impl Hook {
    /// Every hook: XDP and tc.
    pub const ALL: [Self; 2] = [Self::Xdp, Self::Tc];

    /// Returns the hook's name in settings and output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Xdp => "xdp",
            Self::Tc => "tc",
        }
    }

    /// Returns the return code with which a program at this hook lets a packet pass if `passes` is true, or drops the
    /// packet if it is false.
    pub const fn code(self, passes: bool) -> u32 {
        match (self, passes) {
            (Self::Xdp, true) => libbpf_sys::XDP_PASS,
            (Self::Xdp, false) => libbpf_sys::XDP_DROP,
            (Self::Tc, true) => TC_ACT_UNSPEC,
            (Self::Tc, false) => TC_ACT_SHOT,
        }
    }

    /// Reports whether the kernel ends an unpinned attachment when the process that made it ends. The kernel does not
    /// end the attachment of a tc filter.
    pub fn ends_with_process(self) -> bool {
        self == Self::Xdp || supported_attachment() == Attachment::Tcx
    }
}

/// The setting that determines the hook of each interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// XDP if the driver runs it and the interface is not virtual, otherwise tc.
    #[default]
    Auto,
    /// Use this hook on every interface. XDP runs in generic mode if the driver does not support it.
    Only(Hook),
}

impl Choice {
    /// Every choice that the setting allows.
    pub const ALL: [Self; 3] = [Self::Auto, Self::Only(Hook::Xdp), Self::Only(Hook::Tc)];

    /// Returns the choice's name in settings.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Only(hook) => hook.name(),
        }
    }

    /// Reports whether an unpinned attachment ends together with the process that made it, at every hook that this
    /// setting permits.
    pub fn ends_with_process(self) -> bool {
        match self {
            Self::Auto => Hook::Tc.ends_with_process(),
            Self::Only(hook) => hook.ends_with_process(),
        }
    }
}

/// Drivers inside virtual machines that support XDP, but would copy every packet for XDP or turn off packet merging by
/// the host.
const PARAVIRTUAL: [&str; 4] = ["virtio_net", "vmxnet3", "hv_netvsc", "vif"];

/// Returns the reason why tc is better than XDP for an interface, even if the interface's driver supports XDP. Returns
/// `None` if tc is not better, as for most network cards.
pub fn favours_tc(interface: &Interface) -> Option<String> {
    let layers = crate::interface::layers().unwrap_or_default();
    let kind = layers.iter().find(|layer| layer.index == interface.index).map_or("", |layer| &layer.kind);
    let mut above = layers.iter().filter(|layer| layer.link == Some(interface.index) && layer.meets_siblings);
    virtual_kind(kind, interface.driver().as_deref()).or_else(|| {
        above.next().map(|child| format!("XDP would not see frames between {} and its sibling interfaces", child.name))
    })
}

fn virtual_kind(kind: &str, driver: Option<&str>) -> Option<String> {
    match driver {
        _ if !kind.is_empty() => Some(format!("virtual ({kind})")),
        Some(driver) if PARAVIRTUAL.contains(&driver) => Some(format!("paravirtual ({driver})")),
        _ => None,
    }
}

/// The way in which a program is attached at its hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// XDP in the driver, before the kernel allocates anything.
    Native,
    /// XDP in the kernel's receive path, for drivers without support.
    Generic,
    /// XDP on the network card.
    Offloaded,
    /// tc through TCX, since Linux 6.6.
    Tcx,
    /// tc through a filter of the clsact qdisc.
    Clsact,
}

impl Mode {
    /// Returns the name used in output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Generic => "generic",
            Self::Offloaded => "offloaded",
            Self::Tcx => Attachment::Tcx.name(),
            Self::Clsact => Attachment::Clsact.name(),
        }
    }

    /// Returns the mode's hook.
    pub const fn hook(self) -> Hook {
        match self {
            Self::Native | Self::Generic | Self::Offloaded => Hook::Xdp,
            Self::Tcx | Self::Clsact => Hook::Tc,
        }
    }
}

/// Returns the mode in which XDP is attached to `interface`.
///
/// # Errors
///
/// Fails if the kernel does not answer the query, or if not exactly one XDP program is attached to `interface`.
pub fn mode(interface: &Interface) -> Result<Mode> {
    match u32::from(query(interface)?.attach_mode) {
        libbpf_sys::XDP_ATTACHED_DRV => Ok(Mode::Native),
        libbpf_sys::XDP_ATTACHED_SKB => Ok(Mode::Generic),
        libbpf_sys::XDP_ATTACHED_HW => Ok(Mode::Offloaded),
        _ => anyhow::bail!("no single XDP program is attached to {}", interface.name),
    }
}

/// Queries the kernel about XDP on `interface`: the mode, the programs' ids, the driver's features.
pub(crate) fn query(interface: &Interface) -> Result<libbpf_sys::bpf_xdp_query_opts> {
    let mut options =
        libbpf_sys::bpf_xdp_query_opts { sz: size_of::<libbpf_sys::bpf_xdp_query_opts>() as _, ..Default::default() };
    // SAFETY: the options live through the call.
    let result = unsafe { libbpf_sys::bpf_xdp_query(interface.index as i32, 0, std::ptr::from_mut(&mut options)) };
    anyhow::ensure!(result == 0, "cannot read how XDP is attached to {}", interface.name);
    Ok(options)
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
