//! The spots at which programs are attached to interfaces: the hook, the name of the pin, and the order among other
//! programs.

use super::link::AttachPoint;
use crate::hook::Hook;

/// A program and the point at which it is attached to an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spot {
    /// The verifier's admission, at this hook.
    Admission(Hook),
    /// Admission of packets out of sealed tunnels, at tc ingress of the tunnel's device.
    Sealed,
    /// A gateway's program at tc ingress of an inside interface.
    Outward,
    /// A gateway's program at tc egress of an outside interface.
    Own,
    /// The program of a gateway with a pool, at tc ingress of an outside interface, after admission.
    Inward,
    /// A verifier of proofs, at XDP.
    Proving,
    /// An authority's program at tc ingress: records flows that take keys in band.
    Greeting,
    /// An authority's program at tc egress: sends keys.
    HandingOver,
    /// A tunnel endpoint's program at tc ingress of a tenant's interface.
    Tenant,
    /// A tunnel endpoint's program at tc ingress of the underlay's interface.
    Underlay,
    /// The verifier's program at tc egress. If a client's segments arrived as datagrams, sends the answers to this
    /// client into a helping device.
    Answers,
    /// A program of the agent or the verifier at tc ingress of a helping device: turns segments into datagrams.
    Reordering,
    /// An agent's program at tc egress: inserts tokens.
    Insertion,
    /// An agent's program at tc ingress: records answers.
    Notice,
}

impl Spot {
    /// Returns the name of the program at this spot.
    pub(crate) const fn program(self) -> &'static str {
        match self {
            Self::Admission(_) => "admit",
            Self::Sealed => "admit_sealed",
            Self::Outward => "outward",
            Self::Own => "own",
            Self::Inward => "inward",
            Self::Proving => "prove",
            Self::Greeting => "greet",
            Self::HandingOver => "hand_over",
            Self::Tenant => "encapsulate",
            Self::Underlay => "decapsulate",
            Self::Answers => "answer",
            Self::Reordering => "reorder",
            Self::Insertion => "insert",
            Self::Notice => "notice",
        }
    }

    /// Returns the name under which the attachment to an interface is pinned. In this name, a blank may follow the
    /// interface's name, because no interface has a blank in its name.
    pub(crate) fn pin(self, interface: &str) -> String {
        match self {
            Self::Admission(_) | Self::Proving => interface.to_owned(),
            Self::Insertion => format!("{interface}-egress"),
            Self::Notice => format!("{interface}-ingress"),
            _ => format!("{interface} {}", self.program()),
        }
    }

    /// Reports whether the program of a filter at this spot is pinned. A later process finds the filter by this pin. An
    /// agent's program is not pinned: a later agent replaces the filter without looking for it.
    pub(super) const fn pins_filter(self) -> bool {
        !matches!(self, Self::Insertion | Self::Notice)
    }

    /// Returns the interface to which a pin belongs. Also returns the spot, if the pin belongs to a filter.
    pub(super) fn of_pin(pin: &str) -> (&str, Self) {
        let spots = [
            Self::Sealed,
            Self::Outward,
            Self::Own,
            Self::Inward,
            Self::Tenant,
            Self::Underlay,
            Self::Answers,
            Self::Reordering,
        ]
        .into_iter();
        let named = |spot: Self| Some((pin.strip_suffix(spot.program())?.strip_suffix(' ')?, spot));
        spots.filter_map(named).next().unwrap_or((pin, Self::Admission(Hook::Tc)))
    }

    /// Returns the hook of the program.
    pub(super) fn hook(self) -> Hook {
        if self.attach_point() == AttachPoint::Xdp { Hook::Xdp } else { Hook::Tc }
    }

    pub(super) fn attach_point(self) -> AttachPoint {
        match self {
            Self::Admission(Hook::Xdp) | Self::Proving => AttachPoint::Xdp,
            Self::Admission(Hook::Tc)
            | Self::Sealed
            | Self::Outward
            | Self::Inward
            | Self::Greeting
            | Self::Tenant
            | Self::Underlay
            | Self::Reordering
            | Self::Notice => AttachPoint::TcxIngress,
            Self::Own | Self::HandingOver | Self::Answers | Self::Insertion => AttachPoint::TcxEgress,
        }
    }

    /// Returns the handle of a filter at this spot.
    pub(super) const fn handle(self) -> u32 {
        match self {
            Self::Insertion | Self::Notice => 1,
            _ => 0x5653,
        }
    }

    /// Returns the priority of a filter at this spot. An agent's filters run after the filters of other programs. All
    /// other filters of Vouchsafe run before the filters of other programs, because another program's verdict could
    /// keep a packet from them.
    pub(super) const fn priority(self) -> u32 {
        match self {
            Self::Insertion | Self::Notice => 0x5653,
            Self::Inward => 2,
            Self::Greeting | Self::HandingOver => 3,
            Self::Tenant | Self::Underlay => 4,
            _ => 1,
        }
    }

    /// Returns the flags for an attachment at this spot. The programs for admission run first, because the verdict of
    /// an earlier program could keep a packet from them.
    pub(super) const fn flags(self) -> u32 {
        if matches!(self, Self::Admission(Hook::Tc) | Self::Sealed) { libbpf_sys::BPF_F_BEFORE } else { 0 }
    }
}
