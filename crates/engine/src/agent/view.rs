//! Grants, and what would happen to a packet, in the form that is shown to users.

use super::FetchId;
use super::held_grant::HeldGrant;
use crate::model::{Target, Treatment};
use ipnet::IpNet;
use wire::Handle;

/// A grant in the form that is shown to users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantView {
    /// Identifier of the grant.
    pub handle: Handle,
    /// Destinations that the grant covers.
    pub prefix: IpNet,
    /// The protocol and port, if the grant is for one.
    pub service: Option<(u8, u16)>,
    /// Name of the MAC suite.
    pub suite: &'static str,
    /// Name of the carrier.
    pub carrier: &'static str,
    /// Name of the receiver.
    pub receiver: String,
    /// The rule that allowed the grant; empty if an earlier process requested it.
    pub rule: String,
    /// End of the grant, Unix seconds.
    pub expires: u32,
    /// Time at which a token was last made from the grant, Unix seconds; 0 if never.
    pub used: u32,
    /// Whether the grant is for a single flow.
    pub single: bool,
    /// The least treatment in a sealed tunnel.
    pub treatment: Treatment,
}

/// Outcome for a first packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The user is not logged in.
    NotLoggedIn,
    /// The destination is none of the person's receivers.
    NotProtected,
    /// The person's own rule denies it; without a rule, the default does.
    Withheld(Option<Target>),
    /// The policy denies it, with the reason.
    Denied(String),
    /// The packet gets a token of this grant.
    Granted(Box<GrantView>),
    /// The kernel would queue the packet, and the agent would request its grant.
    Missing,
    /// The agent has asked the authority.
    Requested(FetchId),
}

impl GrantView {
    /// Creates the view of a grant.
    pub(super) fn of(held: &HeldGrant) -> Self {
        Self {
            handle: held.handle(),
            prefix: held.prefix,
            service: held.service,
            suite: held.suite(),
            carrier: held.carrier.name(),
            receiver: held.receiver.clone(),
            rule: held.rule.clone(),
            expires: held.expires,
            used: held.used,
            single: held.is_single(),
            treatment: held.sealing.treatment,
        }
    }
}
