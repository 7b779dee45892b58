//! What a person with an account logs in with, besides the password: a second factor, and passkeys. Whoever changes it shows
//! the password again: a browser that was left alone is not enough.

use super::ROOT;
use super::overview::Said;
use super::page::{self, Page, table, time};
use super::qr;
use super::visitor::{Fields, Form, Visitor};
use crate::credentials;
use crate::login::Attempt;
use crate::now;
use crate::peer::Peer;
use crate::problem::Problem;
use crate::state::Authority;
use crate::storage::Passkey;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use maud::{Markup, html};
use serde_json::Value;
use std::sync::Arc;
use zeroize::Zeroizing;

type Shared = State<Arc<Authority>>;

/// The pages.
pub fn routes() -> Router<Arc<Authority>> {
    Router::new()
        .route("/security", get(show))
        .route("/security/factor", get(offer_factor).post(add_factor))
        .route("/security/factor/remove", post(remove_factor))
        .route("/security/passkeys/begin", post(begin_passkey))
        .route("/security/passkeys", post(add_passkey))
        .route("/security/passkeys/remove", post(remove_passkey))
}

async fn show(State(authority): Shared, visitor: Visitor, Query(said): Query<Said>) -> Result<Markup, Problem> {
    let person = visitor.person().to_owned();
    let found = authority.storage.call(move |database| Ok((database.account(&person)?, database.passkeys(&person)?)));
    let (account, passkeys) = found.await?;
    let page = Page::new("Security").of(Some(&visitor)).at("/security").done(said.done.as_deref());
    let Some(account) = account else {
        return Ok(page.show(&html! {
            p { "You log in with your organisation's identity provider. What you log in with is changed there." }
        }));
    };
    let has_factor = account.totp.is_some();
    Ok(page.show(&html! {
        h2 { "Second factor" }
        @if has_factor {
            p { "Your password alone is not enough to log in: an app on your phone has to give a code as well." }
            details {
                summary { "Remove the second factor" }
                form method="post" action={ (ROOT) "/security/factor/remove" } {
                    (visitor.token())
                    (proof("factor", true))
                    button type="submit" { "Remove it" }
                }
            }
        } @else {
            p { "Whoever learns your password can log in as you. A second factor is a code that an app on your phone gives." }
            p { a href={ (ROOT) "/security/factor" } { "Set up a second factor" } }
        }
        h2 { "Passkeys" }
        p { "A passkey is kept by your phone, your computer or a security key. With one you log in to this console without password \
             and code. Agents don't use passkeys." }
        (list(&visitor, &passkeys, has_factor))
        @if authority.passkeys.is_some() { (add_form(&visitor, has_factor)) }
        @else { p.quiet { "Passkeys are bound to the authority's name, and its administrator has not set one (" code { "url" } ")." } }
    }))
}

fn list(visitor: &Visitor, passkeys: &[Passkey], has_factor: bool) -> Markup {
    let rows: Vec<_> = passkeys
        .iter()
        .enumerate()
        .map(|(number, passkey)| {
            html! {
                th scope="row" { (passkey.name) }
                td { (time(passkey.created)) }
                td { @match passkey.used { Some(used) => (time(used)), None => "never" } }
                td {
                    details {
                        summary { "Remove" span.unseen { " " (passkey.name) } }
                        form method="post" action={ (ROOT) "/security/passkeys/remove" } {
                            (visitor.token())
                            input type="hidden" name="passkey" value=(hex::encode(&passkey.id));
                            (proof(&format!("remove-{number}"), has_factor))
                            button type="submit" { "Remove it" }
                        }
                    }
                }
            }
        })
        .collect();
    html! {
        @if rows.is_empty() { p { "You have none." } }
        @else { (table("Your passkeys", &["Name", "Added", "Used", "Act"], &rows)) }
    }
}

fn add_form(visitor: &Visitor, has_factor: bool) -> Markup {
    html! {
        form #add-passkey method="post" action={ (ROOT) "/security/passkeys" }
            data-begin={ (ROOT) "/security/passkeys/begin" } data-passkey="create" {
            h3 { "Add a passkey" }
            (visitor.token())
            input type="hidden" name="answer";
            label for="passkey-name" { "Name" }
            input #passkey-name name="name" type="text" maxlength="64" autocomplete="off" required;
            p.quiet { "Such as the device that keeps it." }
            (proof("passkey", has_factor))
            button type="submit" { "Add a passkey" }
            p.wrong role="alert" hidden {}
            noscript { p { "Making a passkey takes script: browsers have no other way." } }
        }
    }
}

/// What shows that it is still the same person. `name` tells the fields of several forms on a page apart.
fn proof(name: &str, has_factor: bool) -> Markup {
    html! {
        label for={ (name) "-password" } { "Your password" }
        input id={ (name) "-password" } name="password" type="password" autocomplete="current-password" required;
        @if has_factor {
            label for={ (name) "-code" } { "Code of your second factor" }
            input id={ (name) "-code" } name="code" type="text" inputmode="numeric" autocomplete="one-time-code" required;
        }
    }
}

/// Checks what [`proof`] asks for.
async fn check(authority: &Authority, visitor: &Visitor, peer: &Peer, fields: &Fields) -> Result<(), Problem> {
    let attempt = Attempt {
        person: visitor.person().to_owned(),
        password: Zeroizing::new(fields.text("password")?.to_owned()),
        code: fields.filled("code").map(str::to_owned),
    };
    authority.check_password(attempt, peer).await.map(drop)
}

async fn offer_factor(State(authority): Shared, visitor: Visitor) -> Result<Response, Problem> {
    let person = visitor.person().to_owned();
    let account = authority.storage.call(move |database| database.account(&person)).await?;
    match account {
        None => Err(Problem::NotFound("account of yours: your identity provider has one")),
        Some(account) if account.totp.is_some() => Ok(Redirect::to(&format!("{ROOT}/security")).into_response()),
        Some(_) => {
            let secret = Zeroizing::new(credentials::random::<20>()?.to_vec());
            factor_form(&visitor, &secret, None).map(IntoResponse::into_response)
        }
    }
}

fn factor_form(visitor: &Visitor, secret: &[u8], wrong: Option<&Problem>) -> Result<Markup, Problem> {
    let (text, address) = credentials::totp_address(visitor.person(), secret);
    let spaced: Vec<_> = text.as_bytes().chunks(4).map(|four| String::from_utf8_lossy(four)).collect();
    Ok(Page::new("Set up a second factor").of(Some(visitor)).at("/security").show(&html! {
        @if let Some(problem) = wrong { p.wrong role="alert" { (problem.said().title) } }
        ol.steps {
            li { "Have an authenticator app read this picture, or type the secret into it." }
            li { "Type the code that it shows." }
        }
        (qr::drawing(&address, "The secret, to be read by an authenticator app")?)
        dl { dt { "Secret" } dd { code { (spaced.join(" ")) } } dt { "On this phone" } dd { a href=(*address) { "Open the app" } } }
        form method="post" action={ (ROOT) "/security/factor" } {
            (visitor.token())
            input type="hidden" name="secret" value=(hex::encode(secret));
            label for="new-code" { "Code that the app shows" }
            input #new-code name="new-code" type="text" inputmode="numeric" autocomplete="one-time-code" pattern="[0-9]{6}" required;
            (proof("factor", false))
            button type="submit" { "Set it up" }
        }
    }))
}

async fn add_factor(
    State(authority): Shared,
    visitor: Visitor,
    peer: Peer,
    Form(fields): Form,
) -> Result<Response, Problem> {
    let secret = hex::decode(fields.text("secret")?).ok().filter(|secret| secret.len() == 20).map(Zeroizing::new);
    let secret = secret.ok_or(Problem::WrongForm)?;
    let again = |problem: Problem| {
        let page = factor_form(&visitor, &secret, Some(&problem))?;
        Ok((StatusCode::UNAUTHORIZED, page).into_response())
    };
    match check(&authority, &visitor, &peer, &fields).await {
        Err(problem @ Problem::WrongPassword) => return again(problem),
        checked => checked?,
    }
    let code = fields.text("new-code")?.replace(' ', "");
    let Some(step) = credentials::totp_step(&secret, &code, now())? else { return again(Problem::WrongSecondFactor) };
    let (person, by, kept) = (visitor.person().to_owned(), visitor.operator(), secret.clone());
    let added = authority.storage.call(move |database| database.add_totp(&person, &kept, step, &by, now())).await?;
    if !added {
        return Err(Problem::Malformed("there is a second factor already".into()));
    }
    Ok(page::done("/security", "factor-added").into_response())
}

async fn remove_factor(
    State(authority): Shared,
    visitor: Visitor,
    peer: Peer,
    Form(fields): Form,
) -> Result<Redirect, Problem> {
    check(&authority, &visitor, &peer, &fields).await?;
    let (person, by) = (visitor.person().to_owned(), visitor.operator());
    authority.storage.call(move |database| database.remove_totp(&person, &by, now())).await?;
    Ok(page::done("/security", "factor-removed"))
}

async fn begin_passkey(
    State(authority): Shared,
    visitor: Visitor,
    peer: Peer,
    Form(fields): Form,
) -> Result<Json<Value>, Problem> {
    let ceremonies = authority.passkeys.as_ref().ok_or(Problem::NotFound("passkey here"))?;
    check(&authority, &visitor, &peer, &fields).await?;
    let (person, fresh) = (visitor.person().to_owned(), credentials::random::<64>()?);
    let known = authority
        .storage
        .call(move |database| Ok((database.passkey_handle(&person, fresh)?, database.passkeys(&person)?)));
    let (handle, known) = known.await?;
    Ok(Json(ceremonies.begin_registration(visitor.person(), handle, &known)?))
}

/// The answer to what [`begin_passkey`] asked, for which the password was shown.
async fn add_passkey(State(authority): Shared, visitor: Visitor, Form(fields): Form) -> Result<Redirect, Problem> {
    let ceremonies = authority.passkeys.as_ref().ok_or(Problem::NotFound("passkey here"))?;
    let name = fields.text("name")?.trim();
    if name.is_empty() || name.chars().count() > 64 || name.contains(char::is_control) {
        return Err(Problem::Malformed("a passkey's name is 1 to 64 printable characters".into()));
    }
    let (person, fresh) = (visitor.person().to_owned(), credentials::random::<64>()?);
    let handle = authority.storage.call(move |database| database.passkey_handle(&person, fresh)).await?;
    let passkey = ceremonies.finish_registration(fields.text("answer")?, handle, name, now())?;
    let (person, by) = (visitor.person().to_owned(), visitor.operator());
    let added = authority.storage.call(move |database| database.add_passkey(&person, &passkey, &by, now())).await?;
    if !added {
        return Err(Problem::Malformed(
            "this passkey is there already, or there are too many: remove one first".into(),
        ));
    }
    Ok(page::done("/security", "passkey-added"))
}

async fn remove_passkey(
    State(authority): Shared,
    visitor: Visitor,
    peer: Peer,
    Form(fields): Form,
) -> Result<Redirect, Problem> {
    check(&authority, &visitor, &peer, &fields).await?;
    let not_yours = Problem::NotFound("passkey of yours");
    let Ok(id) = hex::decode(fields.text("passkey")?) else { return Err(not_yours) };
    let (person, by) = (visitor.person().to_owned(), visitor.operator());
    let removed = authority.storage.call(move |database| database.remove_passkey(&person, &id, &by, now())).await?;
    if removed { Ok(page::done("/security", "passkey-removed")) } else { Err(not_yours) }
}
