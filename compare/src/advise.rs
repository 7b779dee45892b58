//! Recommends a kind of remote access for a person's goals, and gives reasons. The questions are those that Bollinger
//! asked about media in 2004: which protection does the medium need, and what does this protection cost?
//!
//! The advice can be to use Vouchsafe, a tunnel, or both. With the results of a run, the advice also names the tunnel
//! that ranks first for these goals.

use std::fmt;

use crate::claims::Feature;
use crate::quantity::Quantity;
use crate::rank::{self, Must, Weights, rounded};
use crate::record::Property;
use crate::results::Results;

macro_rules! choices {
    ($(#[$about:meta])* $name:ident: $($(#[$doc:meta])* $variant:ident $text:literal),* $(,)?) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
        pub enum $name { $($(#[$doc])* $variant),* }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Self::$variant => $text),* })
            }
        }
    };
}

choices! {
    /// Trust in the path between client and server.
    Path:
    /// You trust nobody on the path.
    Untrusted "you trust nobody on the path",
    /// The path is your own, such as a campus or a data centre.
    Own "the path is your own",
}

choices! {
    /// The applications that protect their data themselves, by TLS, SSH, QUIC and the like.
    Encryption:
    /// All applications encrypt by themselves.
    All "all applications encrypt by themselves",
    /// Some applications do not encrypt by themselves.
    Some "some applications do not encrypt by themselves",
    /// No application encrypts by itself.
    Nothing "no application encrypts by itself",
}

choices! {
    /// The destinations that clients need.
    Reach:
    /// Clients need certain services.
    Services "people need certain services",
    /// Clients need a whole network, with an address in it.
    Network "people need an address in the inside network",
    /// Whole sites have to be joined.
    Sites "whole sites are to be joined",
}

choices! {
    /// The administrator of the clients' devices.
    Devices:
    /// You administer the devices, and can install programs with privileges.
    Ours "you administer the devices",
    /// Their users administer the devices.
    Theirs "their users administer the devices",
    /// Nobody administers the devices: nothing can be installed on them.
    Nobody "nothing can be installed on the devices",
}

choices! {
    /// The system of the clients' devices.
    Platform:
    /// The devices run Linux.
    Linux "Linux",
    /// The devices run Windows.
    Windows "Windows",
    /// The devices run macOS.
    MacOs "macOS",
    /// The devices run Android.
    Android "Android",
    /// The devices run iOS.
    Ios "iOS",
}

choices! {
    /// The use that suffers first when remote access is slow.
    Slow:
    /// Large transfers suffer first.
    Transfers "large transfers must not take long",
    /// Calls, remote desktops and controllers suffer first.
    Delay "delay and jitter must be low",
    /// The processors of the server or of small devices suffer first.
    Processors "processors are scarce",
    /// Nothing suffers: users can wait for a moment.
    Nothing "speed hardly matters",
}

choices! {
    /// The consequence if somebody changes a packet on its way.
    Tampering:
    /// The application notices the change.
    Noticed "applications notice a changed packet",
    /// The change does harm, and nobody notices it.
    Harmful "a changed packet does harm and nobody notices",
}

/// A person's answers to the questions of `advise`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answers {
    /// Confidentiality: the trust in the path between client and server.
    pub path: Path,
    /// Confidentiality: whether applications encrypt by themselves.
    pub encryption: Encryption,
    /// Confidentiality: whether observers must not learn with which server a client talks.
    pub secret_addresses: bool,
    /// Integrity: what happens if somebody changes a packet on its way.
    pub tampering: Tampering,
    /// Non-repudiation: whether each access must be attributable to a person.
    pub attributable: bool,
    /// The destinations that clients need to reach.
    pub reach: Reach,
    /// The administrator of the clients' devices.
    pub devices: Devices,
    /// The operating systems of the clients' devices.
    pub platforms: Vec<Platform>,
    /// The use that suffers first when remote access is slow.
    pub slow: Slow,
}

/// The kind of access to use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recommendation {
    /// Use Vouchsafe and no tunnel.
    Vouchsafe,
    /// A tunnel. The text is the name of the tunnel that ranks first in the run; `None` if there is no run, or if no
    /// tunnel of the run meets all musts.
    Tunnel(Option<String>),
    /// Vouchsafe for applications that encrypt by themselves, and a tunnel for the others. The text is as in
    /// [`Self::Tunnel`].
    Both(Option<String>),
    /// Neither Vouchsafe nor a tunnel, but a gateway that browsers use.
    Browser,
}

/// A recommendation with its argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advice {
    /// The kind of access to use.
    pub recommendation: Recommendation,
    /// The reasons: one sentence for each answer that matters.
    pub argument: Vec<String>,
}

impl Advice {
    /// Returns the recommendation in one sentence.
    pub fn sentence(&self) -> String {
        let named = |candidate: &Option<String>| {
            candidate.as_ref().map_or_else(|| "a VPN".to_owned(), |name| format!("a VPN (first in this run: {name})"))
        };
        match &self.recommendation {
            Recommendation::Vouchsafe => {
                "Use Vouchsafe: access is decided in the first packet, and nothing is tunnelled.".to_owned()
            }
            Recommendation::Tunnel(candidate) => format!("Do not use Vouchsafe here. Use {}.", named(candidate)),
            Recommendation::Both(candidate) => {
                format!(
                    "Use Vouchsafe for applications that encrypt by themselves. For the others, use {}.",
                    named(candidate)
                )
            }
            Recommendation::Browser => {
                "Do not use Vouchsafe here. Put the services behind a gateway that authenticates browsers.".to_owned()
            }
        }
    }
}

/// Recommends the kind of access that fits the answers. If this is a tunnel, and there are `results`, names the tunnel
/// that ranks first, unless none meets all musts. With `results`, the argument can have figures of the run.
pub fn advise(answers: &Answers, results: Option<&Results>) -> Advice {
    let mut argument = Vec::new();
    let against = reasons_against(answers);
    let exposed = exposes(answers);
    let recommendation = if answers.devices == Devices::Nobody {
        argument.push(format!("Since {}, neither an agent nor a VPN client can run there.", answers.devices));
        Recommendation::Browser
    } else if !against.is_empty() {
        argument.extend(against);
        argument.extend(exposed);
        Recommendation::Tunnel(candidate(answers, results, &mut argument))
    } else if !exposed.is_empty() {
        argument.extend(exposed);
        match answers.encryption {
            Encryption::Some => Recommendation::Both(candidate(answers, results, &mut argument)),
            _ => Recommendation::Tunnel(candidate(answers, results, &mut argument)),
        }
    } else {
        argument.push(in_favour(answers));
        Recommendation::Vouchsafe
    };
    argument.extend(cost(answers, &recommendation, results));
    if answers.attributable {
        argument.push(
            "Each access must be attributable: give every person an account or key of their own. A key that several share \
             proves nothing about one of them, and no network protocol proves to a third party who sent a packet."
                .to_owned(),
        );
    }
    Advice { recommendation, argument }
}

/// Returns the needs that Vouchsafe does not meet.
fn reasons_against(answers: &Answers) -> Vec<String> {
    let mut reasons = Vec::new();
    if answers.secret_addresses {
        reasons.push(
            "Observers must not learn whom clients talk with: Vouchsafe leaves addresses as they are, a tunnel hides \
             them."
                .to_owned(),
        );
    }
    if answers.reach != Reach::Services {
        reasons.push(format!(
            "Packets must travel between networks, because {}: Vouchsafe's agent only opens flows to services.",
            answers.reach
        ));
    }
    let others: Vec<_> = answers.platforms.iter().filter(|platform| **platform != Platform::Linux).collect();
    if !others.is_empty() {
        let names: Vec<_> = others.iter().map(ToString::to_string).collect();
        reasons.push(format!(
            "Clients run {}, but Vouchsafe's agent runs on Linux only. For these clients, a Linux router in front of \
             them would have to run the agent.",
            names.join(", ")
        ));
    }
    reasons
}

/// Returns the goals that admission alone leaves open.
fn exposes(answers: &Answers) -> Vec<String> {
    let mut open = Vec::new();
    if answers.path == Path::Untrusted && answers.encryption != Encryption::All {
        open.push(format!(
            "Confidentiality: {} and {}, so payload would be readable on the path.",
            answers.path, answers.encryption
        ));
    }
    if answers.tampering == Tampering::Harmful && answers.encryption != Encryption::All {
        open.push(format!(
            "Integrity: {}, and a token in the first packet does not protect later ones: an attacker on the path can change \
             them.",
            answers.tampering
        ));
    }
    open
}

fn in_favour(answers: &Answers) -> String {
    let why = match (answers.encryption, answers.path) {
        (Encryption::All, _) => "all applications encrypt by themselves, so that a tunnel would encrypt a second time",
        (_, Path::Own) => {
            "the path is your own, and a changed packet is noticed, so that only access has to be decided"
        }
        (_, Path::Untrusted) => "nothing on the path needs more than a decision about access",
    };
    format!(
        "Confidentiality and integrity: {why}. The remaining task of a VPN is to decide who may reach what, and \
         Vouchsafe does this."
    )
}

/// Returns the tunnel that ranks first for the answers in the run, and adds the reason to `argument`.
fn candidate(answers: &Answers, results: Option<&Results>, argument: &mut Vec<String>) -> Option<String> {
    let Some(results) = results else {
        argument.push("No run is at hand to name the best candidate: `vouchsafe-compare run` makes one.".to_owned());
        return None;
    };
    let ranking = rank::rank(results, &needs(answers));
    let Some(first) = ranking.places.first() else {
        argument.push("No solution of this run meets all conditions (musts).".to_owned());
        return None;
    };
    let ties: Vec<_> =
        ranking.places[1..].iter().filter(|place| place.place == 1).map(|place| place.name.as_str()).collect();
    let tie = if ties.is_empty() { String::new() } else { format!("; in this run, it ties with {}", ties.join(", ")) };
    argument.push(format!("{} ranks first for these needs{tie}: {}.", first.name, first.reasons.join("; ")));
    Some(first.name.clone())
}

/// Returns the weights and musts by which tunnels are ranked for a person with these answers.
pub fn needs(answers: &Answers) -> Weights {
    let mut weights = Weights::default();
    let mut set = |name: &str, weight: f64| {
        let criterion = name.parse().expect("INVARIANT: constant names");
        weights.set(criterion, weight).expect("INVARIANT: constant weights");
    };
    for attribute in ["throughput", "latency", "cpu", "effort", "resilience"] {
        set(attribute, 1.0);
    }
    match answers.slow {
        Slow::Transfers => set("throughput", 5.0),
        Slow::Delay => set("latency", 5.0),
        Slow::Processors => set("cpu", 5.0),
        Slow::Nothing => set("effort", 4.0),
    }
    // These properties are only welcome. Those that an answer asks for are musts, which are added below.
    for property in ["replay_refused", "silent_to_strangers", "identity_hidden"] {
        set(property, 1.0);
    }
    weights.require(Must::Feature(Feature::InsideAddress));
    if answers.path == Path::Untrusted || answers.secret_addresses {
        weights.require(Must::Property(Property::PayloadHidden));
    }
    if answers.secret_addresses {
        weights.require(Must::Property(Property::AddressHidden));
    }
    if answers.tampering == Tampering::Harmful || answers.path == Path::Untrusted {
        weights.require(Must::Property(Property::FlippedBitNoticed));
    }
    if answers.reach == Reach::Sites {
        let criterion = "mesh".parse().expect("INVARIANT: a constant name");
        weights.set(criterion, 2.0).expect("INVARIANT: a constant weight");
    }
    for platform in &answers.platforms {
        match platform {
            Platform::Linux => {}
            Platform::Windows => weights.require(Must::Feature(Feature::Windows)),
            Platform::MacOs => weights.require(Must::Feature(Feature::MacOs)),
            Platform::Android => weights.require(Must::Feature(Feature::Android)),
            Platform::Ios => weights.require(Must::Feature(Feature::Ios)),
        }
    }
    weights
}

/// Returns what the recommendation costs or saves in the quantity that matters to the person, compared with the plain
/// path of the run.
fn cost(answers: &Answers, recommendation: &Recommendation, results: Option<&Results>) -> Option<String> {
    let quantity = match answers.slow {
        Slow::Transfers => Quantity::TcpUp,
        Slow::Delay => Quantity::RttLoad,
        Slow::Processors => Quantity::CpuMachine,
        Slow::Nothing => return None,
    };
    let results = results?;
    let named = match recommendation {
        Recommendation::Vouchsafe => {
            let ours = results.solutions.iter().find(|solution| solution.claims.family == "Vouchsafe");
            ours.map(|solution| solution.name.clone())
        }
        Recommendation::Tunnel(name) | Recommendation::Both(name) => name.clone(),
        Recommendation::Browser => None,
    }?;
    let figure = |name: &str| Some(results.solution(name)?.summary(quantity)?.median);
    let (own, plain) = (figure(&named)?, figure("plain")?);
    Some(format!(
        "Cost: {}. In this run, {}: {} {} with {named}, and {} on the plain path.",
        answers.slow,
        quantity.title(),
        rounded(own),
        quantity.unit(),
        rounded(plain)
    ))
}
