//! The console: pages for people and for administrators, on the API's port. Written on the server; what script there is
//! only adds comfort, but for passkeys, which no form can do.
//!
//! Every request passes [`guard`], so that no page has to think of foreign forms, and every page is made by [`page`].

mod administration;
mod assets;
pub(crate) mod config;
mod cookie;
mod devices;
mod ending;
mod grants;
mod guard;
mod identity;
mod login;
mod overview;
mod page;
mod qr;
mod security;
mod sessions;
mod visitor;
mod words;

use crate::problem::Problem;
use crate::state::Authority;
use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::response::Redirect;
use axum::routing::get;
use std::sync::Arc;

/// Where the console is.
const ROOT: &str = "/console";

/// Every page.
pub fn router(authority: Arc<Authority>) -> Router<Arc<Authority>> {
    let pages = Router::new()
        .route("/", get(overview::show))
        .merge(assets::routes())
        .merge(login::routes())
        .merge(devices::routes())
        .merge(grants::routes())
        .merge(identity::routes())
        .merge(sessions::routes())
        .merge(security::routes())
        .nest("/admin", administration::routes())
        .fallback(async || Problem::NotFound("page"))
        .method_not_allowed_fallback(async || Problem::WrongMethod)
        .layer(from_fn_with_state(authority, guard::guard));
    Router::new().route("/", get(async || Redirect::to(ROOT))).nest(ROOT, pages)
}
