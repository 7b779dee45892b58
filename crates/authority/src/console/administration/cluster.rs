//! The table of the cluster's members on the front page for administrators.

use crate::cluster::contact::{Contact, Standing};
use crate::cluster::membership::{KNOWN, Members};
use crate::console::format::number;
use crate::console::page::time;
use crate::console::table::{figures, table, text};
use crate::now;
use crate::storage::Storage;
use anyhow::Result;
use maud::{Markup, html};

/// Renders the members of the cluster with their state. Renders nothing for an authority in no cluster.
///
/// # Errors
/// Fails if the database cannot be read.
pub async fn show(storage: &Storage, members: &Members, contact: &Contact) -> Result<Markup> {
    let Some(cluster) = members.cluster() else { return Ok(html! {}) };
    let known = storage.call(|database| database.shared_below(KNOWN)).await?;
    let live = cluster.live();
    let standing = contact.standing();
    let is_current = standing == Standing::Member;
    let latest = live.iter().map(|member| member.followed).max().unwrap_or(0);
    let absent = known.into_iter().map(|(name, _)| name).filter(|name| live.iter().all(|member| member.name != *name));
    let columns = [
        text("Member"),
        text("State"),
        text("Address"),
        text("Version"),
        figures("Policy"),
        figures("Changes behind"),
        text("Since"),
    ];
    let there = live.iter().map(|member| {
        let (class, words) = match is_current {
            true => ("good", "there"),
            false => ("quiet", "not known: no contact"),
        };
        vec![
            html! { (member.name) },
            html! { span.state.(class) { (words) } },
            html! { (member.url) },
            html! { (member.version) },
            html! { (member.policy) },
            html! { (number(latest - member.followed)) },
            time(member.since),
        ]
    });
    let absent = absent.map(|name| {
        let dash = || html! { "-" };
        vec![html! { (name) }, html! { span.state.bad { "not there" } }, dash(), dash(), dash(), dash(), dash()]
    });
    Ok(html! {
        h2 { "Members of the cluster" }
        @if !is_current { p.wrong { (standing.sentence(now())) "." } }
        (table("Members of the cluster", &columns, there.chain(absent)))
    })
}
