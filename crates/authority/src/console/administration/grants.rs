//! The table of live grants.

use crate::console::ROOT;
use crate::console::format::number;
use crate::console::grants::covers;
use crate::console::page::time;
use crate::console::table::{self, actions, text};
use crate::storage::GrantEntry;
use maud::{Markup, html};

/// Maximum number of grants in one table.
const MOST_SHOWN: usize = 500;

/// Renders a table of grants. If `acts` is true, each row has a link to the page that revokes the grant.
pub fn table(grants: &[GrantEntry], acts: bool) -> Markup {
    let mut columns = ["Grant", "Device", "For", "Receiver", "From", "Issued", "Ends"].map(text).to_vec();
    if acts {
        columns.push(actions());
    }
    let row = |grant: &GrantEntry| {
        let mut cells = vec![
            html! { code { (grant.handle) } },
            html! { (grant.person) " · " (grant.device) },
            html! { (covers(grant)) },
            html! { (grant.receiver) " " span.quiet { "by " (grant.rule) } },
            html! { (grant.source) },
            time(grant.issued),
            time(grant.expires),
        ];
        if acts {
            cells.push(html! {
                a href={ (ROOT) "/admin/revoke?grant=" (grant.handle) } {
                    "Revoke…" span.unseen { " the grant " (grant.handle) }
                }
            });
        }
        cells
    };
    html! {
        (table::table("Grants", &columns, grants.iter().take(MOST_SHOWN).map(row)))
        @if grants.len() > MOST_SHOWN { p { "Showing the latest " (MOST_SHOWN) " of " (number(grants.len() as u64)) "." } }
    }
}
