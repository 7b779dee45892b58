//! Who looks at a page, and what they fill into its forms: what handlers get out of a request that passed the guard.

use crate::problem::Problem;
use crate::storage::{Operator, Session, TokenHash};
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use maud::{Markup, html};
use openidconnect::url::form_urlencoded;
use std::net::IpAddr;
use std::sync::Arc;
use zeroize::Zeroizing;

/// A browser, whether somebody is logged in with it or not. No `Debug`: it holds secrets.
#[derive(Clone)]
pub struct Visit {
    /// The value of its cookie.
    pub secret: Zeroizing<String>,
    /// The token of its forms.
    pub form: Arc<str>,
    /// Whether it brought no cookie.
    pub is_new: bool,
    /// Who is logged in.
    pub visitor: Option<Visitor>,
}

impl Visit {
    /// What makes a form one of this browser's; every form holds it.
    pub fn token(&self) -> Markup {
        token(&self.form)
    }
}

/// A person who is logged in. No `Debug`: it holds a secret.
#[derive(Clone)]
pub struct Visitor {
    /// The session.
    pub session: Arc<Session>,
    /// The hash of what it is known by.
    pub token: TokenHash,
    /// Where the request comes from.
    pub source: IpAddr,
    /// Whether the pages for administrators are shown.
    pub is_administrator: bool,
    /// The token of the session's forms.
    pub form: Arc<str>,
}

impl Visitor {
    /// The person's name.
    pub fn person(&self) -> &str {
        &self.session.person
    }

    /// What makes a form one of this session's; every form holds it.
    pub fn token(&self) -> Markup {
        token(&self.form)
    }

    /// Whose act it is, for the audit trail.
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
        parts.extensions.get().cloned().ok_or_else(|| anyhow::anyhow!("a page without guard").into())
    }
}

impl<S: Sync> FromRequestParts<S> for Visitor {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        Visit::from_request_parts(parts, state).await?.visitor.ok_or(Problem::NotLoggedIn)
    }
}

/// A person who may see the pages for administrators.
#[derive(Clone)]
pub struct Administrator(pub Visitor);

impl<S: Sync> FromRequestParts<S> for Administrator {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let visitor = Visitor::from_request_parts(parts, state).await?;
        if visitor.is_administrator { Ok(Self(visitor)) } else { Err(Problem::NotAdministrator) }
    }
}

/// Fields of a form that are read: more than any form of ours has.
const MOST_FIELDS: usize = 64;

/// What a form says. No `Debug`: it may hold passwords.
pub struct Fields(Vec<(Zeroizing<String>, Zeroizing<String>)>);

impl Fields {
    /// Reads a form, up to [`MOST_FIELDS`].
    pub fn read(bytes: &[u8]) -> Self {
        let own = |text: std::borrow::Cow<'_, str>| Zeroizing::new(text.into_owned());
        Self(form_urlencoded::parse(bytes).take(MOST_FIELDS).map(|(name, value)| (own(name), own(value))).collect())
    }

    /// A field that has to be there once.
    pub fn text(&self, name: &str) -> Result<&str, Problem> {
        match self.all(name)[..] {
            [value] => Ok(value),
            _ => Err(Problem::Malformed(format!("the form lacks `{name}`, or has it twice"))),
        }
    }

    /// A field that has something in it.
    pub fn filled(&self, name: &str) -> Option<&str> {
        self.text(name).ok().filter(|value| !value.is_empty())
    }

    /// Every value of a field.
    pub fn all(&self, name: &str) -> Vec<&str> {
        self.0.iter().filter(|(own, _)| own.as_str() == name).map(|(_, value)| value.as_str()).collect()
    }
}

/// What the form of a request says. Only requests that passed the guard as a form of ours have one.
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
