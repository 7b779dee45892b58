//! HTML tables. On narrow screens, the style sheet turns every row into a card that shows each value beside the name of
//! its column.

use maud::{Markup, html};

/// A column of a table.
#[derive(Clone, Copy)]
pub struct Column<'a> {
    name: &'a str,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Long,
    Number,
    Actions,
}

/// Returns a column of texts.
pub const fn text(name: &str) -> Column<'_> {
    Column { name, kind: Kind::Text }
}

/// Returns a column of long names, addresses or sentences. Their lines can break at any character, so that the table
/// stays narrow.
pub const fn long(name: &str) -> Column<'_> {
    Column { name, kind: Kind::Long }
}

/// Returns a column of numbers, which are right-aligned.
pub const fn figures(name: &str) -> Column<'_> {
    Column { name, kind: Kind::Number }
}

/// Returns the column for links and buttons that act on the row.
pub const fn actions() -> Column<'static> {
    Column { name: "Action", kind: Kind::Actions }
}

impl Column<'_> {
    const fn class(&self) -> Option<&'static str> {
        match self.kind {
            Kind::Text => None,
            Kind::Long => Some("long"),
            Kind::Number => Some("number"),
            Kind::Actions => Some("actions"),
        }
    }

    /// Returns the name that a card shows beside the value. Links and buttons need none.
    fn label(&self) -> Option<&str> {
        (self.kind != Kind::Actions).then_some(self.name)
    }
}

/// Renders a table. Each row has one cell per column; the first cell is the heading of the row. If even a wide screen
/// is too narrow, the table scrolls separately from the page.
///
/// The `role` attributes repeat the meaning of the elements, because some browsers drop the meaning of a table whose
/// layout the style sheet changes.
pub fn table(caption: &str, columns: &[Column<'_>], rows: impl IntoIterator<Item = Vec<Markup>>) -> Markup {
    let cell = |nth: usize, content: &Markup| {
        let column = columns.get(nth).copied().unwrap_or_else(|| text(""));
        if nth == 0 {
            html! { th scope="row" role="rowheader" { (content) } }
        } else {
            html! { td role="cell" class=[column.class()] data-label=[column.label()] { (content) } }
        }
    };
    html! {
        div.table tabindex="0" role="region" aria-label=(caption) {
            table role="table" {
                caption { (caption) }
                thead role="rowgroup" { tr role="row" {
                    @for column in columns { th scope="col" role="columnheader" class=[column.class()] { (column.name) } }
                } }
                tbody role="rowgroup" {
                    @for row in rows {
                        tr role="row" { @for (nth, content) in row.iter().enumerate() { (cell(nth, content)) } }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_stands_beside_the_name_of_its_column() {
        let row = vec![html! { "edge-1" }, html! { "7" }, html! { a href="#" { "Revoke" } }];
        let page = table("Verifiers", &[text("Verifier"), figures("Flows"), actions()], [row]).into_string();
        assert!(page.contains("<th scope=\"row\" role=\"rowheader\">edge-1</th>"), "{page}");
        assert!(page.contains("<td role=\"cell\" class=\"number\" data-label=\"Flows\">7</td>"), "{page}");
        assert!(page.contains("<td role=\"cell\" class=\"actions\"><a"), "{page}");
    }
}
