//! The console: web pages for users and administrators, served on the same port as the API. The server renders every
//! page. Only the pages for passkeys need a script, because a plain form cannot use passkeys.
//!
//! Every request passes through [`guard`], so no page needs its own protection against forms from other sites. [`page`]
//! renders the frame of every page.

mod access;
mod administration;
mod assets;
mod browser;
mod cookie;
mod devices;
mod ending;
mod form;
mod format;
mod grants;
mod guard;
mod identity;
mod login;
mod network;
mod overview;
mod page;
mod qr;
mod security;
mod sessions;
pub(crate) mod settings;
mod table;
mod visitor;

use crate::http::problems::Problem;
use crate::state::Authority;
use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::response::Redirect;
use axum::routing::get;
use std::sync::Arc;

/// Root path of the console.
const ROOT: &str = "/console";

/// Returns the routes of all pages of the console.
pub fn router(authority: Arc<Authority>) -> Router<Arc<Authority>> {
    let pages = Router::new()
        .route("/", get(overview::show))
        .merge(assets::routes())
        .merge(login::routes())
        .merge(access::routes())
        .merge(devices::routes())
        .merge(grants::routes())
        .merge(identity::routes())
        .merge(network::routes())
        .merge(sessions::routes())
        .merge(security::routes())
        .nest("/admin", administration::routes())
        .fallback(async || Problem::NotFound("page"))
        .method_not_allowed_fallback(async || Problem::WrongMethod)
        .layer(from_fn_with_state(authority, guard::guard));
    Router::new().route("/", get(async || Redirect::to(ROOT))).nest(ROOT, pages)
}
