//! What a draft of a policy would do: its faults, its tests, who gains and who loses what, which grants would end, and what it
//! says about what was asked for of late. By the same functions as the commands.

use super::{LOOKS, Turn};
use crate::policies::candidate::MOST_TOLD;
use crate::problem::Problem;
use crate::replay::{Case, Replay};
use crate::state::Authority;
use crate::{admin, now};
use engine::document::Fault;
use engine::policy::diff::{Change, Kind, TooLarge, compare};
use engine::policy::{Compiled, Policy};
use maud::{Markup, html};
use std::sync::Arc;

use crate::console::page::{table, time};
use crate::console::words::{count, number, sentence};

/// How far back requests are judged anew, in hours.
const HOURS: u64 = 24;

/// What a draft comes to.
pub struct Judgement {
    /// The version in force that it is compared with.
    pub in_force: i64,
    /// What is wrong with it, by line; or what it would do.
    found: Result<Effects, Vec<Fault>>,
}

struct Effects {
    receivers: usize,
    rules: usize,
    tests: usize,
    /// The first tests that fail, as faults of their line.
    failures: Vec<Fault>,
    /// How many fail.
    failing: usize,
    /// Names that nobody has.
    unknown: Vec<String>,
    changes: Result<Vec<Change>, TooLarge>,
    replay: Replay,
    /// Live grants that would end.
    ending: usize,
}

impl Judgement {
    /// Judges a text.
    pub async fn of(authority: &Arc<Authority>, text: &str) -> Result<Self, Problem> {
        // First: those who wait hold no copy of the policy.
        let turn = Turn::wait(&LOOKS).await?;
        let (in_force, _) = authority.storage.call(|database| database.policy_in_force()).await?;
        let old = authority.with_policy(Policy::clone).await;
        let (text, max_lifetime) = (text.to_owned(), authority.config.max_lifetime);
        let directory = authority.directory.clone();
        let judged = turn
            .read(authority, move |database| {
                let draft = match Policy::parse(&text, max_lifetime) {
                    Ok(draft) => draft,
                    Err(faults) => return Ok(Err(faults.all().to_vec())),
                };
                let compiled = match Compiled::new(draft) {
                    Ok(compiled) => compiled,
                    Err(too_large) => {
                        return Ok(Err(vec![Fault { line: 1, column: 1, message: too_large.to_string() }]));
                    }
                };
                let draft = compiled.policy();
                let failures = compiled.failures();
                let failing = failures.len();
                let failures = failures.into_iter().take(MOST_TOLD);
                let failures =
                    failures.map(|failure| Fault { line: failure.line, column: 1, message: failure.message });
                let effects = Effects {
                    receivers: draft.receivers().len(),
                    rules: draft.rules().len(),
                    tests: draft.expectations().len(),
                    failures: failures.collect(),
                    failing,
                    unknown: admin::unknown_names(&directory, draft, &directory.read_networks()?)?,
                    changes: compare(&old, draft, now()),
                    replay: Replay::of(&compiled, database, now().saturating_sub(HOURS * 3600))?,
                    ending: 0,
                };
                Ok(Ok((effects, compiled)))
            })
            .await?;
        let found = match judged {
            Err(faults) => Err(faults),
            Ok((effects, draft)) => Ok(Effects { ending: authority.forbidden(&draft, now()).await?.len(), ..effects }),
        };
        Ok(Self { in_force, found })
    }

    /// Whether it may be put in force.
    pub fn is_good(&self) -> bool {
        self.found.as_ref().is_ok_and(|effects| effects.failing == 0)
    }

    /// All of it, for people.
    pub fn show(&self) -> Markup {
        let effects = match &self.found {
            Err(faults) => {
                return html! {
                    p.wrong role="alert" { "This is no valid policy; nothing was changed." }
                    (places("What is wrong", faults))
                };
            }
            Ok(effects) => effects,
        };
        let Effects { receivers, rules, tests, failures, failing, unknown, changes, replay, ending } = effects;
        html! {
            @if *failing == 0 {
                p.done role="status" { "Valid: " (count(*receivers, "receiver")) ", " (count(*rules, "rule")) "; " (count(*tests, "test")) " passed." }
            } @else {
                p.wrong role="alert" { "Of " (count(*tests, "test")) " of its own, " (number(*failing as u64)) (if *failing == 1 { " fails" } else { " fail" }) ", so it can't be put in force." }
                (places("Tests that fail", failures))
                @if *failing > failures.len() {
                    p { "And " (failing - failures.len()) " more: " code { "vouchsafe authority policy test" } " shows them." }
                }
            }
            @if !unknown.is_empty() {
                h2 { "Names that nobody has" }
                ul { @for name in unknown { li { (name) } } }
            }
            h2 { "Who gains and who loses what" }
            @match changes {
                Err(error) => p.wrong { (error) },
                Ok(changes) if changes.is_empty() => p { "Nobody gains or loses anything." },
                Ok(changes) => (differences(changes)),
            }
            h2 { "At once" }
            p { (sentence(&count(*ending, "live grant"))) " would end" @if *ending > 0 { ", and the verifiers would cut the flows" } "." }
            h2 { "What was asked for in the last " (HOURS) " hours" }
            p { "The draft decided " (count(replay.grants, "grant")) " and " (count(replay.refusals, "refusal")) " again." }
            @if replay.refused.is_empty() && replay.allowed.is_empty() { p { "All would be answered the same." } }
            @if !replay.refused.is_empty() { (cases("Was given and would be refused", &replay.refused)) }
            @if !replay.allowed.is_empty() { (cases("Was refused and would be given", &replay.allowed)) }
        }
    }
}

fn places(caption: &str, faults: &[Fault]) -> Markup {
    let row =
        |fault: &Fault| html! { th scope="row" { "Line " (fault.line) ":" (fault.column) } td { (fault.message) } };
    table(caption, &["Where", "What"], &faults.iter().map(row).collect::<Vec<_>>())
}

fn differences(changes: &[Change]) -> Markup {
    let kind = |kind| match kind {
        Kind::Gains => "gain",
        Kind::Loses => "lose",
        Kind::Terms => "other terms",
        Kind::Stays => "as before",
    };
    let row = |change: &Change| {
        html! {
            th scope="row" { (kind(change.kind)) }
            td { (change.who.join("; ")) }
            td { ul.plain { @for place in &change.to { li {
                (place.receivers.join(", ")) ": " (place.prefixes.join(", ")) ": " (place.services.join(", "))
            } } } }
            td { @if change.at.is_empty() { "always" } @else { "times like " (change.at.join(", ")) } }
            td { (change.old) }
            td { (change.new) }
        }
    };
    let rows: Vec<_> = changes.iter().map(row).collect();
    table("Differences", &["They", "Who", "Where", "When", "Policy in force", "This one"], &rows)
}

fn cases(caption: &str, cases: &[Case]) -> Markup {
    let row = |case: &Case| {
        html! {
            th scope="row" { (case.person) " · " (case.device) }
            td { (case.to) }
            td.number { (number(case.times as u64)) }
            td { (time(case.last)) }
            td { (case.why) }
        }
    };
    table(caption, &["Who", "Where to", "Times", "Last", "Why"], &cases.iter().map(row).collect::<Vec<_>>())
}
