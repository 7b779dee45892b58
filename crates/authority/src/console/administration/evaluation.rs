//! Evaluation of a draft of the policy. It finds the draft's errors and runs its tests. It shows who gains and who
//! loses access, which grants would end, and how the draft would decide recent requests. The commands for policies call
//! the same functions.

use super::{LOOKS, Turn};
use crate::grants::GrantIssuer;
use crate::http::problems::Problem;
use crate::policy::PolicyInForce;
use crate::policy::candidate::MOST_LISTED;
use crate::policy::replay::{Case, Replay};
use crate::state::Authority;
use crate::storage::Storage;
use crate::{Directory, Settings, admin, now};
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use engine::document::Fault;
use engine::policy::diff::{Change, FieldChange, Kind, TableChange, TooLarge, compare, compare_tables};
use engine::policy::{Compiled, Policy};
use maud::{Markup, html};
use std::convert::Infallible;
use std::sync::Arc;

use crate::console::form;
use crate::console::format::{count, number, sentence};
use crate::console::page::time;
use crate::console::table::{figures, table, text};

/// Period of past requests that the draft decides again, in hours.
const HOURS: u64 = 24;

/// The result of evaluating a draft.
pub struct Evaluation {
    /// The number of the version in force with which the draft was compared.
    pub in_force: i64,
    /// The effects of the draft, or its errors by line.
    found: Result<Effects, Vec<Fault>>,
}

struct Effects {
    receivers: usize,
    rules: usize,
    tests: usize,
    /// The first failing tests, as faults at their lines.
    failures: Vec<Fault>,
    /// Number of failing tests.
    failing: usize,
    /// Warnings about names in the draft that do not exist.
    unknown: Vec<String>,
    changes: Result<Vec<Change>, TooLarge>,
    /// The delegations and lists that differ between the policy in force and the draft.
    tables: Vec<TableChange>,
    replay: Replay,
    /// Number of live grants that would end.
    ending: usize,
}

/// Evaluates drafts of the policy.
pub struct Evaluator {
    settings: Arc<Settings>,
    directory: Arc<Directory>,
    storage: Arc<Storage>,
    policy: Arc<PolicyInForce>,
    grants: Arc<GrantIssuer>,
}

impl FromRequestParts<Arc<Authority>> for Evaluator {
    type Rejection = Infallible;

    async fn from_request_parts(_: &mut Parts, authority: &Arc<Authority>) -> Result<Self, Infallible> {
        Ok(Self {
            settings: authority.settings.clone(),
            directory: authority.directory.clone(),
            storage: authority.storage.clone(),
            policy: authority.policy.clone(),
            grants: authority.grants.clone(),
        })
    }
}

impl Evaluator {
    /// Evaluates the draft with this text. An invalid draft is not an error: the evaluation then contains the draft's
    /// faults.
    ///
    /// # Errors
    /// Fails if the database or `networks.toml` cannot be read.
    pub async fn evaluate(&self, text: &str) -> Result<Evaluation, Problem> {
        // Wait for the permit first, so that a waiting request holds no copy of the policy.
        let turn = Turn::wait(&LOOKS).await?;
        let (in_force, _) = self.storage.call(|database| database.policy_in_force()).await?;
        let (old, lists) = {
            let policy = self.policy.read().await;
            (policy.policy().clone(), policy.lists().clone())
        };
        let (text, max_lifetime) = (text.to_owned(), self.settings.max_lifetime);
        let directory = self.directory.clone();
        let evaluated = turn
            .read(&self.directory, move |database| {
                let draft = match Policy::parse(&text, max_lifetime) {
                    Ok(draft) => draft,
                    Err(faults) => return Ok(Err(faults.all().to_vec())),
                };
                let mut compiled = match Compiled::new(draft) {
                    Ok(compiled) => compiled,
                    Err(too_large) => {
                        return Ok(Err(vec![Fault { line: 1, column: 1, message: too_large.to_string() }]));
                    }
                };
                let failures = compiled.failures();
                compiled.set_lists(lists);
                let draft = compiled.policy();
                let failing = failures.len();
                let failures = failures.into_iter().take(MOST_LISTED);
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
                    tables: compare_tables(&old, draft),
                    replay: Replay::of(&compiled, database, now().saturating_sub(HOURS * 3600))?,
                    ending: 0,
                };
                Ok(Ok((effects, compiled)))
            })
            .await?;
        let found = match evaluated {
            Err(faults) => Err(faults),
            Ok((effects, draft)) => {
                Ok(Effects { ending: self.grants.forbidden(&draft, now()).await?.len(), ..effects })
            }
        };
        Ok(Evaluation { in_force, found })
    }
}

impl Evaluation {
    /// Reports whether the draft is valid and passes its own tests, so that it can be put in force.
    pub fn is_good(&self) -> bool {
        self.found.as_ref().is_ok_and(|effects| effects.failing == 0)
    }

    /// Returns the first error of the draft, if it has any, as an error of the form field with the id `field`.
    pub fn faults(&self, field: &str) -> Vec<form::Fault> {
        let faults = match &self.found {
            Err(faults) => faults,
            Ok(effects) => &effects.failures,
        };
        let text = |fault: &Fault| format!("line {}: {}", fault.line, fault.message);
        faults.first().map(|fault| form::Fault::at(field, &text(fault))).into_iter().collect()
    }

    /// Renders the result of the evaluation.
    pub fn show(&self) -> Markup {
        let effects = match &self.found {
            Err(faults) => {
                return html! {
                    p.wrong role="alert" { "This is not a valid policy; nothing was changed." }
                    (places("Errors", faults))
                };
            }
            Ok(effects) => effects,
        };
        let Effects { receivers, rules, tests, failures, failing, unknown, changes, tables, replay, ending } = effects;
        html! {
            @if *failing == 0 {
                p.done role="status" { "Valid: " (count(*receivers, "receiver")) ", " (count(*rules, "rule")) "; " (count(*tests, "test")) " passed." }
            } @else {
                p.wrong role="alert" {
                    "Of " (count(*tests, "test")) " of its own, " (number(*failing as u64))
                    (if *failing == 1 { " fails" } else { " fail" }) ", so it cannot be put in force."
                }
                (places("Failed tests", failures))
                @if *failing > failures.len() {
                    p { "And " (failing - failures.len()) " more: " code { "vouchsafe authority policy test" } " shows all." }
                }
            }
            @if !unknown.is_empty() {
                h2 { "Unknown names" }
                ul { @for name in unknown { li { (name) } } }
            }
            h2 { "Changes of access" }
            @match changes {
                Err(error) => p.wrong { (error) },
                Ok(changes) if changes.is_empty() => p { "Access does not change for anyone." },
                Ok(changes) => (differences(changes)),
            }
            @if !tables.is_empty() {
                h2 { "Changes of delegations and lists" }
                (table_differences(tables))
            }
            h2 { "Immediate effect" }
            p { (sentence(&count(*ending, "live grant"))) " would end" @if *ending > 0 { ", and the verifiers would cut the flows" } "." }
            h2 { "Requests of the last " (HOURS) " hours" }
            p {
                "The authority decided " (count(replay.grants, "grant")) " and " (count(replay.refusals, "refusal"))
                " again, by the draft."
            }
            @if [&replay.refused, &replay.allowed, &replay.treated].iter().all(|cases| cases.is_empty()) { p { "All of them would be answered as before." } }
            @if !replay.refused.is_empty() { (cases("Granted, but would be refused", &replay.refused)) }
            @if !replay.allowed.is_empty() { (cases("Refused, but would be granted", &replay.allowed)) }
            @if !replay.treated.is_empty() { (cases("Granted, but would get another treatment", &replay.treated)) }
        }
    }
}

fn places(caption: &str, faults: &[Fault]) -> Markup {
    let row = |fault: &Fault| vec![html! { "Line " (fault.line) ":" (fault.column) }, html! { (fault.message) }];
    table(caption, &[text("Where"), text("What")], faults.iter().map(row))
}

fn differences(changes: &[Change]) -> Markup {
    let kind = |kind| match kind {
        Kind::Gains => "gain",
        Kind::Loses => "lose",
        Kind::Terms => "changed terms",
        Kind::Stays => "unchanged",
    };
    let row = |change: &Change| {
        vec![
            html! { (kind(change.kind)) },
            html! { (change.who.join("; ")) },
            html! { ul.plain { @for place in &change.to { li {
                (place.receivers.join(", ")) ": " (place.prefixes.join(", ")) ": " (place.services.join(", "))
            } } } },
            html! { @if change.at.is_empty() { "always" } @else { "times such as " (change.at.join(", ")) } },
            html! { (change.old) },
            html! { (change.new) },
        ]
    };
    let columns = ["Change", "Who", "Where", "When", "Policy in force", "Draft"].map(text);
    table("Differences", &columns, changes.iter().map(row))
}

fn table_differences(changes: &[TableChange]) -> Markup {
    let rows = changes.iter().flat_map(|change| {
        let row = move |field: &FieldChange| {
            let [old, new] = [&field.old, &field.new].map(|value| value.as_deref().unwrap_or("-"));
            vec![
                html! { (change.kind.name()) },
                html! { code { "[[" (change.table) "]]" } " " (change.name) },
                html! { (field.field) },
                html! { (old) },
                html! { (new) },
            ]
        };
        change.fields.iter().map(row)
    });
    let columns = ["Change", "Of", "Field", "Policy in force", "Draft"].map(text);
    table("Differences of delegations and lists", &columns, rows)
}

fn cases(caption: &str, cases: &[Case]) -> Markup {
    let row = |case: &Case| {
        vec![
            html! { (case.person) " · " (case.device) },
            html! { (case.to) },
            html! { (number(case.times as u64)) },
            time(case.last),
            html! { (case.why) },
        ]
    };
    let columns = [text("Who"), text("Destination"), figures("Times"), text("Last"), text("Why")];
    table(caption, &columns, cases.iter().map(row))
}
