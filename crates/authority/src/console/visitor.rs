//! Extractors for handlers behind the guard: the visitor who requests a page, and the fields of a submitted form.

use crate::http::problems::Problem;
use crate::storage::{Operator, Session, TokenHash};
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use maud::{Markup, html};
use openidconnect::url::form_urlencoded;
use std::net::IpAddr;
use std::sync::Arc;
use zeroize::Zeroizing;

/// The browser that sent a request, logged in or not. Has no `Debug`, because it holds secrets.
#[derive(Clone)]
pub struct Visit {
    /// The value of the cookie that identifies the session or, if nobody is logged in, the browser.
    pub secret: Zeroizing<String>,
    /// The token that forms for this browser contain.
    pub form: Arc<str>,
    /// Whether the request came without a cookie.
    pub is_new: bool,
    /// The logged-in person, if any.
    pub visitor: Option<Visitor>,
}

impl Visit {
    /// Renders the hidden field that binds a form to this browser. Every form contains it.
    pub fn token(&self) -> Markup {
        token(&self.form)
    }
}

/// A logged-in person. Has no `Debug`, because it holds a secret.
#[derive(Clone)]
pub struct Visitor {
    /// The person's session at the console.
    pub session: Arc<Session>,
    /// The hash of the session's token.
    pub token: TokenHash,
    /// The source address of the request.
    pub source: IpAddr,
    /// Whether the person may see the pages for administrators.
    pub is_administrator: bool,
    /// The token that forms for this session contain.
    pub form: Arc<str>,
}

impl Visitor {
    /// Returns the person's name.
    pub fn person(&self) -> &str {
        &self.session.person
    }

    /// Renders the hidden field that binds a form to this session. Every form contains it.
    pub fn token(&self) -> Markup {
        token(&self.form)
    }

    /// Returns the name under which the audit trail records the visitor's actions.
    pub fn operator(&self) -> Operator {
        Operator::at_console(self.person())
    }
}

fn token(form: &str) -> Markup {
    html! { input type="hidden" name="form" value=(form); }
}

impl<S: Sync> FromRequestParts<S> for Visit {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        parts.extensions.get().cloned().ok_or_else(|| anyhow::anyhow!("a page was served without its guard").into())
    }
}

impl<S: Sync> FromRequestParts<S> for Visitor {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        Visit::from_request_parts(parts, state).await?.visitor.ok_or(Problem::NotLoggedIn)
    }
}

/// A visitor who is an administrator. A handler with an argument of this type rejects all other visitors.
#[derive(Clone)]
pub struct Administrator(pub Visitor);

impl<S: Sync> FromRequestParts<S> for Administrator {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let visitor = Visitor::from_request_parts(parts, state).await?;
        if visitor.is_administrator { Ok(Self(visitor)) } else { Err(Problem::NotAdministrator) }
    }
}

/// Maximum number of form fields that are read. No form of the console has as many.
const MOST_FIELDS: usize = 64;

/// The fields of a submitted form. Has no `Debug`, because it may hold passwords.
pub struct Fields(Vec<(Zeroizing<String>, Zeroizing<String>)>);

impl Fields {
    /// Parses the first [`MOST_FIELDS`] fields of a form.
    pub fn read(bytes: &[u8]) -> Self {
        let own = |text: std::borrow::Cow<'_, str>| Zeroizing::new(text.into_owned());
        Self(form_urlencoded::parse(bytes).take(MOST_FIELDS).map(|(name, value)| (own(name), own(value))).collect())
    }

    /// Returns the value of a field that must occur exactly once.
    ///
    /// # Errors
    /// Fails if the field is missing or repeated.
    pub fn text(&self, name: &str) -> Result<&str, Problem> {
        match self.all(name)[..] {
            [value] => Ok(value),
            _ => Err(Problem::Malformed(format!("the form must have exactly one field `{name}`"))),
        }
    }

    /// Returns the value of a field unless it is missing, repeated or empty.
    pub fn filled(&self, name: &str) -> Option<&str> {
        self.text(name).ok().filter(|value| !value.is_empty())
    }

    /// Returns every value of a field.
    pub fn all(&self, name: &str) -> Vec<&str> {
        self.0.iter().filter(|(own, _)| own.as_str() == name).map(|(_, value)| value.as_str()).collect()
    }
}

/// The form of a request. A handler with an argument of this type rejects requests whose form the guard has not
/// accepted.
pub struct Form(pub Arc<Fields>);

impl<S: Sync> FromRequestParts<S> for Form {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        parts.extensions.get().cloned().map(Self).ok_or(Problem::WrongForm)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_of_countless_fields_is_read_no_further() {
        let fields = Fields::read(&b"a=1&".repeat(10_000));
        assert_eq!(fields.all("a").len(), MOST_FIELDS);
    }
}
