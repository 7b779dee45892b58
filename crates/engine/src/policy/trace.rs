//! The reasons for a decision: the rule that decided, the matching rules over which it takes precedence, and rules that
//! almost match.

use super::explain::DestinationText;
use super::window::written;
use super::{Action, Compiled, Decision, Granularity, Policy, Request, Rule, Who};
use crate::document::duration;
use serde::Serialize;
use wire::Carrier;

/// A decision with its reasons, for people and for programs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Trace {
    /// Whether the authority would issue a grant.
    pub allowed: bool,
    /// Name of the receiver to which the destination belongs, if any.
    pub receiver: Option<String>,
    /// The rule, list or consent that decided; `None` if none matched.
    pub rule: Option<Reason>,
    /// One sentence that states the decision.
    pub text: String,
    /// Description of the grant, if the decision allows one.
    pub grant: Option<String>,
    /// Other matching rules, the strongest first.
    pub beaten: Vec<Reason>,
    /// Rules that do not match for only one reason: the subject, the service, or the time.
    pub near: Vec<Reason>,
}

/// A rule, and the reason why it decides or does not decide.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Reason {
    /// Label of the rule.
    pub rule: String,
    /// `allow` or `deny`.
    pub action: &'static str,
    /// Priority of the rule.
    pub priority: u16,
    /// Reason why the rule decides or does not decide.
    pub why: String,
}

impl Compiled {
    /// Decides about a request and returns the reasons.
    pub fn trace(&self, request: &Request<'_>) -> Trace {
        let request = &request.normal();
        self.policy().reasons(request, &self.decide(request))
    }
}

impl Policy {
    /// Returns the reasons for the decision about a request.
    pub(super) fn reasons(&self, request: &Request<'_>, decision: &Decision<'_>) -> Trace {
        let explained = decision.explain(request);
        let deciding = decision.rule();
        let misses: Vec<_> = self.rules.iter().filter_map(|rule| Some((rule, self.miss(rule, request)?))).collect();
        let mut matching: Vec<_> =
            misses.iter().filter(|(_, missed)| missed.is_empty()).map(|(rule, _)| *rule).collect();
        matching.sort_by_key(|rule| std::cmp::Reverse(rule.order()));
        let beaten = deciding.into_iter().flat_map(|winner| {
            let others = matching.iter().filter(|rule| rule.number != winner.number);
            others.map(|rule| {
                let why = if rule.priority < winner.priority {
                    format!("the higher priority {} takes precedence", winner.priority)
                } else {
                    format!("at equal priority the last rule decides, which is on line {}", winner.line)
                };
                reason(rule, why)
            })
        });
        let near = misses.iter().filter_map(|(rule, missed)| match missed.as_slice() {
            [one] => Some(reason(rule, one.clone())),
            _ => None,
        });
        let grant = match decision {
            Decision::Allowed(permit) => Some(grant(permit)),
            _ => None,
        };
        Trace {
            allowed: explained.allowed,
            receiver: explained.receiver,
            rule: decision.reason(),
            text: explained.text,
            grant,
            beaten: beaten.collect(),
            near: near.collect(),
        }
    }

    /// Returns the reasons why a rule doesn't match; `None` if the rule is for other addresses.
    fn miss(&self, rule: &Rule, request: &Request<'_>) -> Option<Vec<String>> {
        let receivers = || rule.to.iter().map(|index| &self.receivers[*index]);
        let there = || receivers().filter(|receiver| receiver.prefix_of(&request.to).is_some());
        there().next()?;
        let mut misses = Vec::new();
        if !there().any(|receiver| receiver.serves(&request.to)) {
            let names: Vec<_> = there().map(|receiver| receiver.name.as_str()).collect();
            misses.push(format!("{} is not a service of {}", DestinationText(&request.to), names.join(", ")));
        }
        if !self.is_about(rule, &request.subject) {
            let who: Vec<_> = rule.who.iter().take(4).map(ToString::to_string).collect();
            let more = if rule.who.len() > 4 { ", …" } else { "" };
            misses.push(format!("it applies to {}{more}", who.join(", ")));
        }
        if !rule.when.covers(request.now) {
            let next = rule.when.next_change(request.now);
            let next = next.map_or_else(|| "never again".into(), |at| format!("again from {}", written(at)));
            misses.push(format!("it is not in effect at {}; {next}", written(request.now)));
        }
        Some(misses)
    }
}

impl<'p> Decision<'p> {
    /// Returns the rule or consent that decided, as a reason.
    fn reason(&self) -> Option<Reason> {
        if let Self::Allowed(permit) = self
            && let Some(consent) = &permit.consent
        {
            let why = format!("no rule matches, and {} has consented", consent.by);
            return Some(Reason { rule: permit.label().to_string(), ..reason(permit.rule, why) });
        }
        // An entry that denies has the label of its list, which is no rule that denies.
        let action = if matches!(self, Self::Denied { .. }) { Action::Deny } else { Action::Allow };
        self.rule().map(|rule| Reason { action: action.name(), ..reason(rule, "it decides".into()) })
    }

    /// Returns the rule that decided. If a consent or an entry of a list decided, returns the rule of its delegation or
    /// list. Returns `None` if nothing matched, or if the destination belongs to no receiver.
    pub fn rule(&self) -> Option<&'p Rule> {
        match self {
            Self::NoReceiver | Self::DefaultDeny { .. } => None,
            Self::Denied { rule, .. } => Some(rule),
            Self::Allowed(permit) => Some(permit.rule),
        }
    }
}

impl Action {
    /// Returns the word for the action in the policy file.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
        }
    }
}

impl std::fmt::Display for Who {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Everyone => f.write_str("everyone"),
            Self::Group(name) => write!(f, "group:{name}"),
            Self::Person(name) => write!(f, "person:{name}"),
            Self::Tag(name) => write!(f, "tag:{name}"),
            Self::Address(prefix) => write!(f, "address:{prefix}"),
        }
    }
}

fn reason(rule: &Rule, why: String) -> Reason {
    Reason { rule: rule.label().to_string(), action: rule.action.name(), priority: rule.priority, why }
}

fn grant(permit: &super::Permit<'_>) -> String {
    let terms = permit.terms;
    let wanted = match terms.granularity {
        Granularity::Network => "network",
        Granularity::Host => "host",
        Granularity::Application => "application",
    };
    let scope = match permit.scope.service {
        None => format!("{} with all services", permit.scope.prefix),
        Some((protocol, port)) => {
            let place = wire::Destination { address: permit.scope.prefix.addr(), protocol, port };
            let narrowed =
                if wanted == "application" { "" } else { ", narrowed because a rule decides otherwise for a part" };
            format!("{}{narrowed}", DestinationText(&place))
        }
    };
    let mut text = format!("{scope}, for {}", duration(terms.lifetime));
    for (set, word) in [
        (terms.single, "for one flow"),
        (terms.reply, "with consent to packets from the receiver"),
        (terms.bind_source, "bound to the source address"),
        (terms.carrier == Carrier::Shim, "its tokens by shim"),
    ] {
        if set {
            text += ", ";
            text += word;
        }
    }
    if terms.class != 0 {
        text += &format!(", class {}", terms.class);
    }
    if terms.sealing.is_sealed() {
        text += &format!(", in a sealed tunnel: {}", terms.sealing.words());
    }
    if let Some(until) = permit.until {
        text += &format!(", at most until {}", written(until));
    }
    text
}
