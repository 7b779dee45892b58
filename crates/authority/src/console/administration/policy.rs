//! The pages of the policy: the version in force, drafts and their effects, and earlier versions.
//!
//! The page puts in force exactly the text that the administrator has seen. It does so only if the version with which
//! the page compared this text is still in force. If another version came into force after the comparison, nothing
//! changes, and the page compares the draft with the other version.

use super::Said;
use super::evaluation::{Evaluation, Evaluator};
use crate::Directory;
use crate::console::ROOT;
use crate::console::form::{Fault, State as FieldState, fault};
use crate::console::format::count;
use crate::console::page::{Page, done, exact_time};
use crate::console::table::{table, text as column};
use crate::console::visitor::{Administrator, Fields, Form, Visitor};
use crate::http::extractors::Part;
use crate::http::problems::Problem;
use crate::policy::{Enforcer, PolicyInForce};
use crate::storage::{Outdated, PolicyVersion, Storage};
use axum::extract::{Path, Query};
use axum::http::StatusCode;
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use maud::{Markup, html};
use serde::Deserialize;
use std::sync::Arc;

/// Maximum number of receivers and versions in a table.
const MOST_SHOWN: usize = 500;
/// Maximum number of bytes of a policy that a page shows. The download contains the whole text.
const MOST_TEXT_SHOWN: usize = 256 << 10;

/// Shows the policy in force.
pub async fn show(
    Part(storage): Part<Storage>,
    Part(directory): Part<Directory>,
    Part(policy): Part<PolicyInForce>,
    Administrator(visitor): Administrator,
    Query(said): Query<Said>,
) -> Result<Markup, Problem> {
    let (versions, (version, text)) =
        storage.call(|database| Ok((database.policies()?, database.policy_in_force()?))).await?;
    let file = directory.policy();
    let on_disk = tokio::task::spawn_blocking(move || crate::policy::candidate::read_text(&file)).await;
    let is_edited = on_disk.map_err(anyhow::Error::from)?.is_ok_and(|on_disk| on_disk != text);
    let (receivers, tests) = policy
        .with(|policy| {
            let receivers = policy.receivers().iter().map(|receiver| {
                let addresses: Vec<_> = receiver.prefixes.iter().map(ToString::to_string).collect();
                vec![
                    html! { (receiver.name) },
                    html! { (addresses.join(", ")) },
                    html! { (super::services(&receiver.services)) },
                    html! { (receiver.verifier) },
                ]
            });
            (receivers.take(MOST_SHOWN).collect::<Vec<_>>(), policy.expectations().len())
        })
        .await;
    let said = said.done.as_deref();
    Ok(Page::new("Policy").of(Some(&visitor)).at("/admin/policy").done(said).show(&html! {
        @if let Some(entry) = versions.first() {
            p { "Version " (version) " has been in force since " (exact_time(entry.time)) ", by "
                (entry.operator.as_deref().unwrap_or("an unknown operator")) " (" (entry.note) "). It has " (count(tests, "test")) " of its own." }
        }
        @if is_edited {
            p.wrong { "The file " code { "policy.toml" } " was edited since and is not in force. A policy applied here replaces it." }
        }
        p.acts {
            a href={ (ROOT) "/admin/policy/draft" } { "Write a draft" }
            a href={ (ROOT) "/admin/policy/versions" } { "Versions" }
            a href={ (ROOT) "/admin/policy/versions/" (version) "/policy.toml" } { "Download" }
        }
        h2 { "Receivers" }
        @if receivers.is_empty() { p { "There are no receivers: nothing is protected." } } @else {
            (table("Protected receivers", &["Receiver", "Addresses", "Services", "Verifier"].map(column), receivers))
        }
        h2 { "Text" }
        (listing(&text))
    }))
}

/// Renders a text with line numbers.
fn listing(text: &str) -> Markup {
    let shown = &text[..text.floor_char_boundary(MOST_TEXT_SHOWN)];
    html! {
        pre.listing tabindex="0" role="region" aria-label="Text of the policy" {
            @for (nth, line) in shown.lines().enumerate() { span.line-number aria-hidden="true" { (format!("{:>4}  ", nth + 1)) } (line) "\n" }
        }
        @if shown.len() < text.len() { p { "The download contains the rest." } }
    }
}

#[derive(Deserialize)]
pub struct From {
    /// The version from which the draft starts.
    from: Option<i64>,
}

/// Shows the page on which an administrator edits a draft of the policy.
pub async fn draft(
    Part(storage): Part<Storage>,
    Administrator(visitor): Administrator,
    Query(From { from }): Query<From>,
) -> Result<Markup, Problem> {
    let ((in_force, mut text), versions) =
        storage.call(|database| Ok((database.policy_in_force()?, database.policies()?))).await?;
    if let Some(version) = from {
        known(&versions, version)?;
        text = storage.call(move |database| database.policy_text(version)).await?;
    }
    let begun = from.unwrap_or(in_force);
    Ok(Page::new("Draft of a policy").of(Some(&visitor)).at("/admin/policy").show(&html! {
        p { "The draft starts from version " (begun) ". Nothing changes until you have seen its effects and put it in force." }
        (editor(&visitor, &text, in_force, &[]))
    }))
}

fn editor(visitor: &Visitor, text: &str, in_force: i64, faults: &[Fault]) -> Markup {
    let state = FieldState::of("text", faults);
    html! {
        form method="post" action={ (ROOT) "/admin/policy/draft" } {
            (visitor.token())
            input type="hidden" name="seen" value=(in_force);
            label for="text" { "Text" }
            (fault("text", faults))
            // Browsers remove one line feed at the beginning.
            textarea #text name="text" rows="24" spellcheck="false" autocapitalize="none" data-file="Load from a file"
                aria-describedby=[state.described] aria-invalid=[state.invalid] autofocus[state.is_first] {
                "\n" (text)
            }
            p.acts { button type="submit" { "Show its effects" } }
        }
    }
}

/// Shows the effects of a draft, and the form that puts it in force.
pub async fn preview(
    evaluator: Evaluator,
    Administrator(visitor): Administrator,
    Form(fields): Form,
) -> Result<Response, Problem> {
    let (text, seen) = (text(&fields)?, version(&fields, "seen")?);
    let evaluation = evaluator.evaluate(&text).await?;
    let status = if evaluation.is_good() { StatusCode::OK } else { StatusCode::UNPROCESSABLE_ENTITY };
    let newer = (evaluation.in_force != seen).then_some(evaluation.in_force);
    Ok((status, evaluated(&visitor, &text, &evaluation, newer)).into_response())
}

fn evaluated(visitor: &Visitor, text: &str, evaluation: &Evaluation, newer: Option<i64>) -> Markup {
    Page::new("Effects of the draft").of(Some(visitor)).at("/admin/policy").show(&html! {
        @if let Some(version) = newer {
            p.wrong role="alert" { "Version " (version) " was put in force meanwhile; nothing was changed. This is the comparison with it." }
        }
        (evaluation.show())
        @if evaluation.is_good() {
            form method="post" action={ (ROOT) "/admin/policy/apply" } {
                (visitor.token())
                input type="hidden" name="seen" value=(evaluation.in_force);
                textarea.unseen name="text" hidden aria-label="Text" { "\n" (text) }
                p.acts { button type="submit" { "Put it in force instead of version " (evaluation.in_force) } }
            }
        }
        h2 { "Continue editing" }
        (editor(visitor, text, evaluation.in_force, &evaluation.faults("text")))
    })
}

/// Puts a draft of the policy in force.
pub async fn apply(
    evaluator: Evaluator,
    Part(enforcer): Part<Enforcer>,
    Administrator(visitor): Administrator,
    Form(fields): Form,
) -> Result<Response, Problem> {
    let (text, seen) = (text(&fields)?, version(&fields, "seen")?);
    let evaluation = evaluator.evaluate(&text).await?;
    if !evaluation.is_good() {
        return Ok((StatusCode::UNPROCESSABLE_ENTITY, evaluated(&visitor, &text, &evaluation, None)).into_response());
    }
    if put_in_force(enforcer, &visitor, text.clone(), "console".into(), seen).await? {
        return Ok(done("/admin/policy", "applied").into_response());
    }
    let evaluation = evaluator.evaluate(&text).await?;
    let newer = Some(evaluation.in_force);
    Ok((StatusCode::CONFLICT, evaluated(&visitor, &text, &evaluation, newer)).into_response())
}

/// Puts a text in force. Returns false, and changes nothing, if a version other than `seen` is in force by now.
async fn put_in_force(
    enforcer: Arc<Enforcer>,
    visitor: &Visitor,
    text: String,
    note: String,
    seen: i64,
) -> Result<bool, Problem> {
    let by = visitor.operator();
    // The change runs in a task of its own, so that it completes even if the browser disconnects.
    let apply = async move { enforcer.apply(Some(text), note, Some(by), Some(seen)).await };
    match tokio::spawn(apply).await.map_err(anyhow::Error::from)? {
        Ok(_) => Ok(true),
        Err(error) if error.is::<Outdated>() => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Lists the versions of the policy.
pub async fn versions(Part(storage): Part<Storage>, Administrator(visitor): Administrator) -> Result<Markup, Problem> {
    let versions = storage.call(|database| database.policies()).await?;
    let row = |entry: &PolicyVersion| {
        vec![
            html! { a href={ (ROOT) "/admin/policy/versions/" (entry.version) } { "Version " (entry.version) } },
            exact_time(entry.time),
            html! { (entry.operator.as_deref().unwrap_or("")) },
            html! { (entry.note) },
            html! { code { (entry.sha256[..16]) } },
        ]
    };
    let columns = ["Version", "In force from", "By", "How", "SHA-256"].map(column);
    Ok(Page::new("Versions of the policy").of(Some(&visitor)).at("/admin/policy").show(&html! {
        (table("Latest first", &columns, versions.iter().take(MOST_SHOWN).map(row)))
    }))
}

/// Shows a version of the policy, and the effects that putting it in force again would have.
pub async fn one_version(
    evaluator: Evaluator,
    Part(storage): Part<Storage>,
    Administrator(visitor): Administrator,
    Path(number): Path<i64>,
) -> Result<Markup, Problem> {
    let text = text_of(&storage, number).await?;
    let (in_force, _) = storage.call(|database| database.policy_in_force()).await?;
    // A comparison of the version in force with itself would show nothing.
    let evaluation = if number == in_force { None } else { Some(evaluator.evaluate(&text).await?) };
    Ok(version_page(&visitor, number, &text, evaluation.as_ref(), false))
}

/// Renders the page of a version. `evaluation` is `None` for the version in force.
fn version_page(
    visitor: &Visitor,
    number: i64,
    text: &str,
    evaluation: Option<&Evaluation>,
    is_outdated: bool,
) -> Markup {
    let title = format!("Version {number} of the policy");
    let evaluation = evaluation.filter(|evaluation| evaluation.in_force != number);
    let in_force = evaluation.map_or(number, |evaluation| evaluation.in_force);
    Page::new(&title).of(Some(visitor)).at("/admin/policy").show(&html! {
        @if is_outdated {
            p.wrong role="alert" { "Version " (in_force) " was put in force meanwhile; nothing was changed. This is the comparison with it." }
        }
        p.acts {
            a href={ (ROOT) "/admin/policy/versions/" (number) "/policy.toml" } { "Download" }
            a href={ (ROOT) "/admin/policy/draft?from=" (number) } { "Start a draft from it" }
        }
        @match evaluation { None => p { "This version is in force." }, Some(evaluation) => {
            h2 { "Effects of replacing version " (in_force) }
            (evaluation.show())
            @if evaluation.is_good() {
                form method="post" action={ (ROOT) "/admin/policy/rollback" } {
                    (visitor.token())
                    input type="hidden" name="seen" value=(in_force);
                    input type="hidden" name="version" value=(number);
                    p.acts { button type="submit" { "Put version " (number) " in force again" } }
                }
            }
        } }
        h2 { "Text" }
        (listing(text))
    })
}

/// Puts an earlier version of the policy in force again, as a new version.
pub async fn roll_back(
    evaluator: Evaluator,
    Part(enforcer): Part<Enforcer>,
    Part(storage): Part<Storage>,
    Administrator(visitor): Administrator,
    Form(fields): Form,
) -> Result<Response, Problem> {
    let (number, seen) = (version(&fields, "version")?, version(&fields, "seen")?);
    let text = text_of(&storage, number).await?;
    let evaluation = evaluator.evaluate(&text).await?;
    if !evaluation.is_good() {
        let page = version_page(&visitor, number, &text, Some(&evaluation), false);
        return Ok((StatusCode::UNPROCESSABLE_ENTITY, page).into_response());
    }
    if put_in_force(enforcer, &visitor, text.clone(), format!("rollback to {number}"), seen).await? {
        return Ok(done("/admin/policy", "applied").into_response());
    }
    let evaluation = evaluator.evaluate(&text).await?;
    Ok((StatusCode::CONFLICT, version_page(&visitor, number, &text, Some(&evaluation), true)).into_response())
}

/// Serves the text of a version of the policy as a file.
pub async fn download(
    Part(storage): Part<Storage>,
    _: Administrator,
    Path(number): Path<i64>,
) -> Result<Response, Problem> {
    let text = text_of(&storage, number).await?;
    let headers = [
        (CONTENT_TYPE, "application/toml".to_owned()),
        (CONTENT_DISPOSITION, format!("attachment; filename=\"policy-{number}.toml\"")),
    ];
    Ok((headers, text).into_response())
}

async fn text_of(storage: &Storage, version: i64) -> Result<String, Problem> {
    let versions = storage.call(|database| database.policies()).await?;
    known(&versions, version)?;
    Ok(storage.call(move |database| database.policy_text(version)).await?)
}

fn known(versions: &[PolicyVersion], version: i64) -> Result<(), Problem> {
    let is_there = versions.iter().any(|entry| entry.version == version);
    if is_there { Ok(()) } else { Err(Problem::NotFound("version of the policy")) }
}

/// Returns the text of a form with LF line ends; browsers send CRLF.
fn text(fields: &Fields) -> Result<String, Problem> {
    Ok(fields.text("text")?.replace("\r\n", "\n"))
}

fn version(fields: &Fields, name: &str) -> Result<i64, Problem> {
    fields.text(name)?.parse().map_err(|_| Problem::Malformed(format!("`{name}` must be the number of a version")))
}
