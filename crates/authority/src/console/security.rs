//! The page for a person's second factor and passkeys. Every change requires the password again, because the browser
//! may have been left unattended.

use super::ROOT;
use super::form::{Fault, Input, summary};
use super::overview::Said;
use super::page::{self, Page, time};
use super::qr;
use super::table::{actions, table, text};
use super::visitor::{Fields, Form, Visitor};
use crate::http::extractors::Part;
use crate::http::peer::Peer;
use crate::http::problems::{NO_PASSKEYS, Problem};
use crate::login::{Attempt, Passkeys, PasswordCheck, credentials};
use crate::now;
use crate::state::Authority;
use crate::storage::{Passkey, Storage};
use axum::extract::Query;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use maud::{Markup, html};
use serde_json::Value;
use std::sync::Arc;
use zeroize::Zeroizing;

/// Returns the routes of the security pages.
pub fn routes() -> Router<Arc<Authority>> {
    Router::new()
        .route("/security", get(show))
        .route("/security/factor", get(offer_factor).post(add_factor))
        .route("/security/factor/remove", post(remove_factor))
        .route("/security/passkeys/begin", post(begin_passkey))
        .route("/security/passkeys", post(add_passkey))
        .route("/security/passkeys/remove", post(remove_passkey))
}

async fn show(
    Part(storage): Part<Storage>,
    Part(passkeys): Part<Option<Passkeys>>,
    visitor: Visitor,
    Query(said): Query<Said>,
) -> Result<Markup, Problem> {
    overview(&storage, &passkeys, &visitor, said.done.as_deref(), &Attempted::default()).await
}

/// A form that was submitted with errors, and is shown again with them.
#[derive(Default)]
struct Attempted<'a> {
    /// The name that the person typed for a passkey.
    name: Option<&'a str>,
    faults: Vec<Fault>,
}

impl<'a> Attempted<'a> {
    /// Returns the form named `name`, with the problem as the error of its password or code field. Returns the problem
    /// itself if it is about neither.
    fn proof(name: &str, problem: Problem) -> Result<Self, Problem> {
        let field = match problem {
            Problem::WrongPassword => "password",
            Problem::SecondFactorRequired | Problem::WrongSecondFactor => "code",
            _ => return Err(problem),
        };
        let faults = vec![Fault::at(format!("{name}-{field}"), &problem.said().title)];
        Ok(Self { name: None, faults })
    }

    /// Renders the page again, with the errors of the form.
    async fn again(
        self,
        storage: &Storage,
        passkeys: &Option<Passkeys>,
        visitor: &'a Visitor,
        status: StatusCode,
    ) -> Result<Response, Problem> {
        Ok((status, overview(storage, passkeys, visitor, None, &self).await?).into_response())
    }

    /// Reports whether the form named `name` has an error.
    fn is_of(&self, name: &str) -> bool {
        self.faults.iter().any(|fault| fault.is_of(name))
    }
}

async fn overview(
    storage: &Storage,
    ceremonies: &Option<Passkeys>,
    visitor: &Visitor,
    done: Option<&str>,
    attempted: &Attempted<'_>,
) -> Result<Markup, Problem> {
    let faults = &attempted.faults;
    let person = visitor.person().to_owned();
    let found = storage
        .call_for(visitor.person(), move |database| Ok((database.account(&person)?, database.passkeys(&person)?)));
    let (account, passkeys) = found.await?;
    let page = Page::new("Security").of(Some(visitor)).at("/security").done(done);
    let Some(account) = account else {
        return Ok(page.show(&html! {
            p { "You log in with your organisation's identity provider. Change your password and second factor there." }
        }));
    };
    let has_factor = account.totp.is_some();
    Ok(page.show(&html! {
        (summary(faults))
        h2 { "Second factor" }
        @if has_factor {
            p { "Your password alone is not enough to log in: you also need a code from an app on your phone." }
            details open[attempted.is_of("factor")] {
                summary { "Remove the second factor" }
                form method="post" action={ (ROOT) "/security/factor/remove" } {
                    (visitor.token())
                    (proof("factor", true, faults))
                    button type="submit" { "Remove it" }
                }
            }
        } @else {
            p { "Anyone who learns your password can log in as you. A second factor requires an additional code from an app on your phone." }
            p { a href={ (ROOT) "/security/factor" } { "Set up a second factor" } }
        }
        h2 { "Passkeys" }
        p { "Your phone, your computer or a security key keeps a passkey. With it you log in to this console without password \
             and code. Agents don't use passkeys." }
        (list(visitor, &passkeys, has_factor, attempted))
        @if ceremonies.is_some() { (add_form(visitor, has_factor, attempted)) }
        @else { p.quiet { "Passkeys are bound to the authority's name, and its administrator has not set one (" code { "url" } ")." } }
    }))
}

fn list(visitor: &Visitor, passkeys: &[Passkey], has_factor: bool, attempted: &Attempted<'_>) -> Markup {
    let rows: Vec<_> = passkeys
        .iter()
        .map(|passkey| {
            let (form, id) = (removal(&passkey.id), hex::encode(&passkey.id));
            vec![
                html! { (passkey.name) },
                time(passkey.created),
                html! { @match passkey.used { Some(used) => (time(used)), None => "never" } },
                html! {
                    details open[attempted.is_of(&form)] {
                        summary { "Remove" span.unseen { " " (passkey.name) } }
                        form method="post" action={ (ROOT) "/security/passkeys/remove" } {
                            (visitor.token())
                            input type="hidden" name="passkey" value=(id);
                            (proof(&form, has_factor, &attempted.faults))
                            button type="submit" { "Remove it" }
                        }
                    }
                },
            ]
        })
        .collect();
    let columns = [text("Name"), text("Added"), text("Used"), actions()];
    html! {
        @if rows.is_empty() { p { "You have no passkeys." } }
        @else { (table("Your passkeys", &columns, rows)) }
    }
}

/// Returns the name of the form that removes the passkey with this id.
fn removal(id: &[u8]) -> String {
    let end = id.len().min(8);
    format!("remove-{}", hex::encode(&id[..end]))
}

fn add_form(visitor: &Visitor, has_factor: bool, attempted: &Attempted<'_>) -> Markup {
    let name = Input {
        id: "passkey-name",
        name: "name",
        label: "Name",
        hint: Some("For example, the device that keeps it."),
        value: attempted.name,
        autocomplete: Some("off"),
        maxlength: Some(64),
        required: true,
        ..Input::default()
    };
    html! {
        form #add-passkey method="post" action={ (ROOT) "/security/passkeys" }
            data-begin={ (ROOT) "/security/passkeys/begin" } data-passkey="create" {
            h3 { "Add a passkey" }
            (visitor.token())
            input type="hidden" name="answer";
            (name.show(&attempted.faults))
            (proof("passkey", has_factor, &attempted.faults))
            button type="submit" { "Add a passkey" }
            p.wrong role="alert" hidden {}
            noscript { p { "Passkeys require JavaScript: browsers offer no other way to create one." } }
        }
    }
}

/// Renders the fields that ask for the password and, if the account has a second factor, for its code. `name`
/// distinguishes the fields of several forms on one page.
fn proof(name: &str, has_factor: bool, faults: &[Fault]) -> Markup {
    let password = Input {
        id: &format!("{name}-password"),
        name: "password",
        label: "Your password",
        kind: "password",
        autocomplete: Some("current-password"),
        required: true,
        problems: Some("wrong_password"),
        ..Input::default()
    };
    let code = Input {
        id: &format!("{name}-code"),
        name: "code",
        label: "Code of your second factor",
        inputmode: Some("numeric"),
        autocomplete: Some("one-time-code"),
        required: true,
        problems: Some("second_factor_required wrong_second_factor"),
        ..Input::default()
    };
    html! {
        (password.show(faults))
        @if has_factor { (code.show(faults)) }
    }
}

/// Checks the values of the fields that [`proof`] renders.
async fn check(password_check: &PasswordCheck, visitor: &Visitor, peer: &Peer, fields: &Fields) -> Result<(), Problem> {
    let attempt = Attempt {
        person: visitor.person().to_owned(),
        password: Zeroizing::new(fields.text("password")?.to_owned()),
        code: fields.filled("code").map(str::to_owned),
    };
    password_check.check(attempt, peer).await.map(drop)
}

async fn offer_factor(Part(storage): Part<Storage>, visitor: Visitor) -> Result<Response, Problem> {
    let person = visitor.person().to_owned();
    let account = storage.call_for(visitor.person(), move |database| database.account(&person)).await?;
    match account {
        None => Err(Problem::NotFound("account: your identity provider manages yours")),
        Some(account) if account.totp.is_some() => Ok(Redirect::to(&format!("{ROOT}/security")).into_response()),
        Some(_) => {
            let secret = Zeroizing::new(credentials::random::<20>()?.to_vec());
            factor_form(&visitor, &secret, &[]).map(IntoResponse::into_response)
        }
    }
}

fn factor_form(visitor: &Visitor, secret: &[u8], faults: &[Fault]) -> Result<Markup, Problem> {
    let code = Input {
        id: "new-code",
        name: "new-code",
        label: "Code that the app shows",
        inputmode: Some("numeric"),
        autocomplete: Some("one-time-code"),
        pattern: Some("[0-9]{6}"),
        required: true,
        ..Input::default()
    };
    let (text, address) = credentials::totp_address(visitor.person(), secret);
    let spaced: Vec<_> = text.as_bytes().chunks(4).map(|four| String::from_utf8_lossy(four)).collect();
    Ok(Page::new("Set up a second factor").of(Some(visitor)).at("/security").show(&html! {
        (summary(faults))
        ol.steps {
            li { "Scan this picture with an authenticator app, or type the secret into the app." }
            li { "Type the code that it shows." }
        }
        (qr::drawing(&address, "The secret, to be read by an authenticator app")?)
        dl { dt { "Secret" } dd { code { (spaced.join(" ")) } } dt { "On this phone" } dd { a href=(*address) { "Open the app" } } }
        form method="post" action={ (ROOT) "/security/factor" } {
            (visitor.token())
            input type="hidden" name="secret" value=(hex::encode(secret));
            (code.show(faults))
            (proof("factor", false, faults))
            button type="submit" { "Set it up" }
        }
    }))
}

async fn add_factor(
    Part(password_check): Part<PasswordCheck>,
    Part(storage): Part<Storage>,
    visitor: Visitor,
    peer: Peer,
    Form(fields): Form,
) -> Result<Response, Problem> {
    let secret = hex::decode(fields.text("secret")?).ok().filter(|secret| secret.len() == 20).map(Zeroizing::new);
    let secret = secret.ok_or(Problem::WrongForm)?;
    let again = |field: &str, problem: Problem| {
        let faults = [Fault::at(field, &problem.said().title)];
        let page = factor_form(&visitor, &secret, &faults)?;
        Ok((StatusCode::UNAUTHORIZED, page).into_response())
    };
    match check(&password_check, &visitor, &peer, &fields).await {
        Err(problem @ Problem::WrongPassword) => return again("factor-password", problem),
        checked => checked?,
    }
    let code = fields.text("new-code")?.replace(' ', "");
    let Some(step) = credentials::totp_step(&secret, &code, now())? else {
        return again("new-code", Problem::WrongSecondFactor);
    };
    let (person, by, kept) = (visitor.person().to_owned(), visitor.operator(), secret.clone());
    let added =
        storage.call_for(visitor.person(), move |database| database.add_totp(&person, &kept, step, &by, now())).await?;
    if !added {
        return Err(Problem::Malformed("a second factor is set up already".into()));
    }
    Ok(page::done("/security", "factor-added").into_response())
}

async fn remove_factor(
    Part(password_check): Part<PasswordCheck>,
    Part(storage): Part<Storage>,
    Part(passkeys): Part<Option<Passkeys>>,
    visitor: Visitor,
    peer: Peer,
    Form(fields): Form,
) -> Result<Response, Problem> {
    if let Err(problem) = check(&password_check, &visitor, &peer, &fields).await {
        let attempted = Attempted::proof("factor", problem)?;
        return attempted.again(&storage, &passkeys, &visitor, StatusCode::UNAUTHORIZED).await;
    }
    let (person, by) = (visitor.person().to_owned(), visitor.operator());
    storage.call_for(visitor.person(), move |database| database.remove_totp(&person, &by, now())).await?;
    Ok(page::done("/security", "factor-removed").into_response())
}

async fn begin_passkey(
    Part(password_check): Part<PasswordCheck>,
    Part(storage): Part<Storage>,
    Part(passkeys): Part<Option<Passkeys>>,
    visitor: Visitor,
    peer: Peer,
    Form(fields): Form,
) -> Result<Json<Value>, Problem> {
    let ceremonies = Option::as_ref(&passkeys).ok_or(Problem::NotFound(NO_PASSKEYS))?;
    check(&password_check, &visitor, &peer, &fields).await?;
    let (person, candidate) = (visitor.person().to_owned(), credentials::random::<64>()?);
    let known = storage.call_for(visitor.person(), move |database| {
        Ok((database.passkey_handle(&person, candidate)?, database.passkeys(&person)?))
    });
    let (handle, known) = known.await?;
    Ok(Json(ceremonies.begin_registration(visitor.person(), handle, &known)?))
}

/// Stores the passkey from the browser's response to [`begin_passkey`], which has already checked the password.
async fn add_passkey(
    Part(storage): Part<Storage>,
    Part(passkeys): Part<Option<Passkeys>>,
    visitor: Visitor,
    Form(fields): Form,
) -> Result<Response, Problem> {
    let ceremonies = Option::as_ref(&passkeys).ok_or(Problem::NotFound(NO_PASSKEYS))?;
    let name = fields.text("name")?.trim();
    if name.is_empty() || name.chars().count() > 64 || name.contains(char::is_control) {
        let faults = vec![Fault::at("passkey-name", "a passkey's name has 1 to 64 printable characters")];
        let attempted = Attempted { name: Some(name), faults };
        return attempted.again(&storage, &passkeys, &visitor, StatusCode::BAD_REQUEST).await;
    }
    let (person, candidate) = (visitor.person().to_owned(), credentials::random::<64>()?);
    let handle =
        storage.call_for(visitor.person(), move |database| database.passkey_handle(&person, candidate)).await?;
    let passkey = ceremonies.finish_registration(fields.text("answer")?, handle, name, now())?;
    let (person, by) = (visitor.person().to_owned(), visitor.operator());
    let added =
        storage.call_for(visitor.person(), move |database| database.add_passkey(&person, &passkey, &by, now())).await?;
    if !added {
        return Err(Problem::Malformed(
            "this passkey is registered already, or you have the maximum number: remove one first".into(),
        ));
    }
    Ok(page::done("/security", "passkey-added").into_response())
}

async fn remove_passkey(
    Part(password_check): Part<PasswordCheck>,
    Part(storage): Part<Storage>,
    Part(passkeys): Part<Option<Passkeys>>,
    visitor: Visitor,
    peer: Peer,
    Form(fields): Form,
) -> Result<Response, Problem> {
    let not_yours = Problem::NotFound("passkey of yours");
    let Ok(id) = hex::decode(fields.text("passkey")?) else { return Err(not_yours) };
    if let Err(problem) = check(&password_check, &visitor, &peer, &fields).await {
        let attempted = Attempted::proof(&removal(&id), problem)?;
        return attempted.again(&storage, &passkeys, &visitor, StatusCode::UNAUTHORIZED).await;
    }
    let (person, by) = (visitor.person().to_owned(), visitor.operator());
    let removed =
        storage.call_for(visitor.person(), move |database| database.remove_passkey(&person, &id, &by, now())).await?;
    if removed { Ok(page::done("/security", "passkey-removed").into_response()) } else { Err(not_yours) }
}
