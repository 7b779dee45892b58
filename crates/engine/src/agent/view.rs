//! Grants as people see them.

use super::known::Known;
use ipnet::IpNet;
use wire::Handle;

/// A grant, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantView {
    /// Its identifier.
    pub handle: Handle,
    /// The destinations it covers.
    pub prefix: IpNet,
    /// The protocol and port, if it is for one.
    pub service: Option<(u8, u16)>,
    /// The MAC suite's name.
    pub suite: &'static str,
    /// The carrier's name.
    pub carrier: &'static str,
    /// The receiver's name.
    pub receiver: String,
    /// The rule that allowed it; empty if an earlier process asked for it.
    pub rule: String,
    /// When it ends, Unix seconds.
    pub expires: u32,
    /// When a token was last made from it, Unix seconds; 0 if never.
    pub used: u32,
    /// Whether it is for a single flow.
    pub single: bool,
}

impl GrantView {
    /// What people see of a grant.
    pub(super) fn of(known: &Known) -> Self {
        Self {
            handle: known.handle(),
            prefix: known.prefix,
            service: known.service,
            suite: known.suite(),
            carrier: known.carrier.name(),
            receiver: known.receiver.clone(),
            rule: known.rule.clone(),
            expires: known.expires,
            used: known.used,
            single: known.is_single(),
        }
    }
}
