//! Live grants as a table.

use crate::console::ROOT;
use crate::console::grants::covers;
use crate::console::page::{self, time};
use crate::console::words::number;
use crate::storage::GrantEntry;
use maud::{Markup, html};

/// Grants in one table at most.
const MOST_SHOWN: usize = 500;

/// The grants; with a link to revoke each if wanted.
pub fn table(grants: &[GrantEntry], acts: bool) -> Markup {
    let mut head = vec!["Grant", "Device", "For", "Receiver", "From", "Given", "Ends"];
    if acts {
        head.push("Act");
    }
    let row = |grant: &GrantEntry| {
        html! {
            th scope="row" { code { (grant.handle) } }
            td { (grant.person) " · " (grant.device) }
            td { (covers(grant)) }
            td { (grant.receiver) " " span.quiet { "by " (grant.rule) } }
            td { (grant.source) }
            td { (time(grant.issued)) }
            td { (time(grant.expires)) }
            @if acts {
                td { a href={ (ROOT) "/admin/revoke?grant=" (grant.handle) } {
                    "Revoke…" span.unseen { " the grant " (grant.handle) }
                } }
            }
        }
    };
    let rows: Vec<_> = grants.iter().take(MOST_SHOWN).map(row).collect();
    html! {
        (page::table("Grants", &head, &rows))
        @if grants.len() > MOST_SHOWN { p { "The latest " (MOST_SHOWN) " of " (number(grants.len() as u64)) " are shown." } }
    }
}
