//! Descriptions, for users, of the grants that the agent has and of what would happen to a packet.

use super::FetchId;
use super::held_grant::HeldGrant;
use crate::model::{Target, Treatment};
use ipnet::IpNet;
use wire::Handle;

/// A grant in the form that is shown to users. Contains no secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantView {
    /// Identifier of the grant.
    pub handle: Handle,
    /// Addresses that the grant covers.
    pub prefix: IpNet,
    /// The protocol and port if the grant covers one service only, otherwise `None`.
    pub service: Option<(u8, u16)>,
    /// Name of the suite of the grant's tokens.
    pub suite: &'static str,
    /// Name of the carrier of the grant's tokens.
    pub carrier: &'static str,
    /// Name of the receiver to which the grant's packets go.
    pub receiver: String,
    /// Name of the rule that allowed the grant; empty if an earlier process requested the grant.
    pub rule: String,
    /// End of the grant, Unix seconds.
    pub expires: u32,
    /// Time at which a token was last made from the grant, Unix seconds; 0 if never.
    pub used: u32,
    /// Whether the grant is for a single flow.
    pub single: bool,
    /// The weakest treatment that packets are allowed to have in a sealed tunnel; `none` if no tunnel is required.
    pub treatment: Treatment,
}

/// The fate of a first packet to a destination, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The user is not logged in.
    NotLoggedIn,
    /// None of the person's receivers contains the destination.
    NotProtected,
    /// The person's own rule for this target denies consent. The target is `None` if no rule matches and the default
    /// denies consent.
    Withheld(Option<Target>),
    /// The policy denies the request. The text is the reason.
    Denied(String),
    /// The packet gets a token made from this grant.
    Granted(Box<GrantView>),
    /// The agent has no grant and has not requested one. The kernel would queue the packet, and the agent would request
    /// the grant.
    Missing,
    /// The agent has requested the grant and waits for the answer.
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
