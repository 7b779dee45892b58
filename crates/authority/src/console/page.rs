//! The frame of every page (head, skip link, navigation, and the line that reports the last action), and parts that
//! several pages use: times and action buttons.

use super::ROOT;
use super::assets::{SCRIPT, STYLE};
use super::format;
use super::visitor::Visitor;
use crate::now;
use api::Problem;
use axum::response::Redirect;
use maud::{DOCTYPE, Markup, html};
use openidconnect::url::form_urlencoded::byte_serialize;
use shell::table::utc;

/// A part of the console with its own navigation.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Area {
    /// The visitor's own devices, grants and logins.
    Account,
    /// The devices, grants and logins of all users, for administrators only.
    Administration,
}

impl Area {
    /// Returns the area of a page, given its path below the console's root.
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

    /// Returns the paths of the area's pages, below the console's root, with the names of the pages. The first entry is
    /// the front page of the area.
    const fn pages(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Account => &[
                ("", "Overview"),
                ("/devices", "Devices"),
                ("/network", "This device"),
                ("/grants", "Grants"),
                ("/access", "Access"),
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

/// The messages that report the last action, by the word in the URL. An unknown word shows no message.
const DONE: &[(&str, &str)] = &[
    ("logged-out", "You are logged out."),
    ("applied", "The policy is in force. Flows that it no longer allows are being cut."),
    ("revoked", "Revoked. Flows are being cut."),
    ("device-revoked", "The device is logged out, and its grants have ended. Its flows are being cut."),
    ("grant-revoked", "The grant has ended. Its flows are being cut."),
    ("session-ended", "That session and its grants have ended."),
    ("chosen", "Your choice is in force. Grants that it excludes have ended."),
    ("factor-added", "Your second factor is set up. From now on each login requires its code, too."),
    ("factor-removed", "Your second factor is removed: your password alone is enough to log in."),
    ("passkey-added", "The passkey is added. You can log in to this console with it."),
    (
        "passkey-removed",
        "The passkey is removed and can no longer be used to log in. Delete it from its device as well.",
    ),
    ("access-asked", "The request is made. You see here what was decided."),
    ("access-withdrawn", "Withdrawn. If you had access by it, the access has ended."),
    ("access-allowed", "Allowed. The person's agents learn of it at once."),
    ("access-refused", "Refused."),
    ("access-given", "Given. The agents of everybody concerned learn of it at once."),
    ("consent-withdrawn", "The consent is withdrawn. Flows that rested on it are being cut."),
    ("device-in", "The key is on its way to your network's switch."),
    ("device-out", "This device is logged out, and its grants have ended."),
    ("device-renewed", "Another key is on its way to your network's switch."),
    (
        "device-not-renewed",
        "No key can be sent on this connection: close the other pages of this site, and try again in a minute.",
    ),
    ("sessions-ended", "All your other sessions and their grants have ended."),
];

/// The parts from which a page is rendered, such as its title and its visitor.
pub struct Page<'a> {
    title: &'a str,
    here: &'a str,
    done: Option<&'static str>,
    onward: Option<&'a str>,
    visitor: Option<&'a Visitor>,
}

impl<'a> Page<'a> {
    /// Creates a page with this title.
    pub fn new(title: &'a str) -> Self {
        Self { title, here: "-", done: None, onward: None, visitor: None }
    }

    /// Sets the visitor for whom the page is rendered; `None` if nobody is logged in.
    pub fn of(self, visitor: Option<&'a Visitor>) -> Self {
        Self { visitor, ..self }
    }

    /// Marks a navigation entry as the current one. `here` is the entry's path below the console's root.
    pub fn at(self, here: &'a str) -> Self {
        Self { here, ..self }
    }

    /// Sets the address to which the browser continues automatically.
    pub fn onward(self, address: &'a str) -> Self {
        Self { onward: Some(address), ..self }
    }

    /// Sets the message that reports the last action: the message that [`DONE`] contains for `word`. An unknown word
    /// sets no message.
    pub fn done(self, word: Option<&str>) -> Self {
        let said = word.and_then(|word| DONE.iter().find(|(known, _)| *known == word));
        Self { done: said.map(|(_, text)| *text), ..self }
    }

    /// Renders the whole page.
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

    /// Renders the links to the areas.
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

    /// Renders the navigation of the current area: beside the page where the screen is wide enough, otherwise as a menu
    /// that opens without a script. The style sheet shows one of the two.
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

    /// Renders an error page for `problem`.
    pub fn problem(&self, problem: &Problem) -> Markup {
        self.show(&html! {
            p.wrong role="alert" data-problem=(problem.r#type) { (format::sentence(&problem.title)) }
            @if let Some(detail) = &problem.detail { p { (detail) } }
            p { a href=(ROOT) { "To the overview" } }
        })
    }
}

/// Returns a redirect to a page that reports the last action. `path` is relative to the console's root; `word` must be
/// a key of [`DONE`].
pub fn done(path: &str, word: &'static str) -> Redirect {
    debug_assert!(DONE.iter().any(|(known, _)| *known == word), "{word} says nothing");
    Redirect::to(&format!("{ROOT}{path}?done={word}"))
}

/// Encodes a text for use in a URL, as browsers encode form fields.
pub fn encoded(text: &str) -> String {
    byte_serialize(text.as_bytes()).collect()
}

/// Renders a time, given in Unix seconds, relative to now. The attribute `title` contains the exact time, which the
/// script converts to the browser's time zone.
pub fn time(time: u64) -> Markup {
    html! { time datetime=(utc(time)) title=(format::exact(time)) { (format::relative(time, now())) } }
}

/// Renders an exact time, given in Unix seconds, which the script converts to the browser's time zone.
pub fn exact_time(time: u64) -> Markup {
    html! { time datetime=(utc(time)) data-exact { (format::exact(time)) } }
}

/// Renders a form that consists of a button with the label `name`, and of the hidden fields that it posts to `action`.
/// `what` completes the label for screen readers, whose users do not see the row around the button.
pub fn act(visitor: &Visitor, action: &str, fields: &[(&str, &str)], name: &str, what: &str) -> Markup {
    html! {
        form.act method="post" action={ (ROOT) (action) } {
            (visitor.token())
            @for (name, value) in fields { input type="hidden" name=(name) value=(value); }
            button type="submit" { (name) @if !what.is_empty() { span.unseen { " " (what) } } }
        }
    }
}
