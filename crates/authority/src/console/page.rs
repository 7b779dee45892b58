//! What every page has around it: head, skip link, navigation, the line that says what was done. And the small parts that
//! pages share: times, tables, buttons that act.

use super::ROOT;
use super::assets::{SCRIPT, STYLE};
use super::visitor::Visitor;
use super::words;
use crate::now;
use axum::response::Redirect;
use engine::api::Problem;
use maud::{DOCTYPE, Markup, html};
use openidconnect::url::form_urlencoded::byte_serialize;
use shell::table::utc;

/// A part of the console that has a navigation of its own.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Area {
    /// The visitor's own devices, grants and logins.
    Account,
    /// Everybody's, for administrators only.
    Administration,
}

impl Area {
    /// The area of a page, by its path below the console's root.
    fn of(path: &str) -> Self {
        let is_administration =
            path.strip_prefix("/admin").is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        if is_administration { Self::Administration } else { Self::Account }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Account => "My account",
            Self::Administration => "Administration",
        }
    }

    /// Paths below the console's root, with their names; the first is the area's front page.
    const fn pages(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Account => &[
                ("", "Overview"),
                ("/devices", "Devices"),
                ("/grants", "Grants"),
                ("/identity", "Destinations"),
                ("/sessions", "Sessions"),
                ("/security", "Security"),
            ],
            Self::Administration => &[
                ("/admin", "Overview"),
                ("/admin/flows", "Live flows"),
                ("/admin/drops", "Drops"),
                ("/admin/policy", "Policy"),
                ("/admin/people", "People"),
                ("/admin/audit", "Audit"),
            ],
        }
    }
}

/// What was done, by the word that an address carries; other words say nothing.
const DONE: &[(&str, &str)] = &[
    ("logged-out", "You are logged out."),
    ("applied", "The policy is in force. What it no longer allows is being cut."),
    ("revoked", "Revoked. Flows are being cut."),
    ("device-revoked", "The device is logged out, and its grants are over. Its flows are being cut."),
    ("grant-revoked", "The grant is over. Its flows are being cut."),
    ("session-ended", "That session is over, with its grants."),
    ("chosen", "So it is from now on. Grants that it withholds have ended."),
    ("factor-added", "Your second factor is set up. From now on a login takes its code, too."),
    ("factor-removed", "Your second factor is gone: your password alone is enough to log in."),
    ("passkey-added", "The passkey is added. You can log in to this console with it."),
    (
        "passkey-removed",
        "The passkey is removed: nobody logs in with it any more. Delete it from the device that keeps it, too.",
    ),
    ("sessions-ended", "All your other sessions are over, with their grants."),
];

/// A page to be.
pub struct Page<'a> {
    title: &'a str,
    here: &'a str,
    done: Option<&'static str>,
    onward: Option<&'a str>,
    visitor: Option<&'a Visitor>,
}

impl<'a> Page<'a> {
    /// A page of this title.
    pub fn new(title: &'a str) -> Self {
        Self { title, here: "-", done: None, onward: None, visitor: None }
    }

    /// Who looks at it, if anybody is known.
    pub fn of(self, visitor: Option<&'a Visitor>) -> Self {
        Self { visitor, ..self }
    }

    /// Which entry of the navigation it is, as a path below the console's root.
    pub fn at(self, here: &'a str) -> Self {
        Self { here, ..self }
    }

    /// Where a browser goes on to by itself.
    pub fn onward(self, address: &'a str) -> Self {
        Self { onward: Some(address), ..self }
    }

    /// What was done, by its word (see [`done`]).
    pub fn done(self, word: Option<&str>) -> Self {
        let said = word.and_then(|word| DONE.iter().find(|(known, _)| *known == word));
        Self { done: said.map(|(_, text)| *text), ..self }
    }

    /// The whole page.
    pub fn show(&self, body: &Markup) -> Markup {
        html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="color-scheme" content="light dark";
                    @if let Some(address) = self.onward { meta http-equiv="refresh" content={ "0;url=" (address) }; }
                    title { (self.title) " · Vouchsafe" }
                    link rel="stylesheet" href=(STYLE.path());
                    script src=(SCRIPT.path()) defer {}
                }
                body {
                    a.skip href="#main" { "Skip to the content" }
                    header.top {
                        a.name href=(ROOT) { "Vouchsafe" }
                        @if let Some(visitor) = self.visitor {
                            @if visitor.is_administrator { nav.areas aria-label="Areas" { (self.areas()) } }
                            form.leave method="post" action={ (ROOT) "/logout" } {
                                (visitor.token())
                                span { (visitor.person()) }
                                button type="submit" { "Log out" }
                            }
                        }
                    }
                    @if let Some(visitor) = self.visitor { (self.navigation(visitor)) }
                    main #main tabindex="-1" {
                        h1 { (self.title) }
                        @if let Some(done) = self.done { p.done role="status" { (done) } }
                        (body)
                    }
                }
            }
        }
    }

    /// Links to the areas.
    fn areas(&self) -> Markup {
        let here = Area::of(self.here);
        let areas = [Area::Account, Area::Administration];
        html! {
            ul {
                @for area in areas {
                    li { a href={ (ROOT) (area.pages()[0].0) } aria-current=[(area == here).then_some("true")] { (area.name()) } }
                }
            }
        }
    }

    /// The pages of this page's area: beside the page where there is room, else in a menu that opens without script. The
    /// style sheet shows one of the two.
    fn navigation(&self, visitor: &Visitor) -> Markup {
        let area = if visitor.is_administrator { Area::of(self.here) } else { Area::Account };
        let (name, pages) = (area.name(), area.pages());
        let here = pages.iter().find(|(path, _)| *path == self.here).map(|(_, name)| *name);
        let list = html! {
            ul {
                @for (path, name) in pages {
                    li { a href={ (ROOT) (path) } aria-current=[(*path == self.here).then_some("page")] { (name) } }
                }
            }
        };
        html! {
            nav.side aria-label=(name) { (list) }
            details.menu {
                summary { span.unseen { "Menu: " } (name) @if let Some(here) = here { " › " (here) } }
                nav aria-label=(name) { (list) }
                @if visitor.is_administrator { nav.areas-below aria-label="Areas" { (self.areas()) } }
            }
        }
    }

    /// The page that says what went wrong.
    pub fn problem(&self, problem: &Problem) -> Markup {
        self.show(&html! {
            p.wrong role="alert" { (problem.title) }
            @if let Some(detail) = &problem.detail { p { (detail) } }
            p { a href=(ROOT) { "To the overview" } }
        })
    }
}

/// Goes on to a page that says what was done; `path` is below the console's root, `word` one of the words that are known.
pub fn done(path: &str, word: &'static str) -> Redirect {
    debug_assert!(DONE.iter().any(|(known, _)| *known == word), "{word} says nothing");
    Redirect::to(&format!("{ROOT}{path}?done={word}"))
}

/// A text as a part of an address.
pub fn encoded(text: &str) -> String {
    byte_serialize(text.as_bytes()).collect()
}

/// A time as it is seen from now; its title says it exactly, by the browser's clock where there is script.
pub fn time(time: u64) -> Markup {
    html! { time datetime=(utc(time)) title=(words::exact(time)) { (words::relative(time, now())) } }
}

/// A time as it is, which script shows by the browser's clock.
pub fn exact_time(time: u64) -> Markup {
    html! { time datetime=(utc(time)) data-exact { (words::exact(time)) } }
}

/// A table that scrolls by itself on narrow screens. Cells of rows are `td`s or `th`s with `scope="row"`.
pub fn table(caption: &str, head: &[&str], rows: &[Markup]) -> Markup {
    html! {
        div.table tabindex="0" role="region" aria-label=(caption) {
            table {
                caption { (caption) }
                thead { tr { @for cell in head { th scope="col" { (cell) } } } }
                tbody { @for row in rows { tr { (row) } } }
            }
        }
    }
}

/// A button that acts, in a form of its own with these hidden fields. `what` completes the name for whoever does not see
/// the row that it stands in.
pub fn act(visitor: &Visitor, action: &str, fields: &[(&str, &str)], name: &str, what: &str) -> Markup {
    html! {
        form.act method="post" action={ (ROOT) (action) } {
            (visitor.token())
            @for (name, value) in fields { input type="hidden" name=(name) value=(value); }
            button type="submit" { (name) @if !what.is_empty() { span.unseen { " " (what) } } }
        }
    }
}
