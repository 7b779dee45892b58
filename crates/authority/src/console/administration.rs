//! The pages for administrators: what goes on, who may go where, and the acts that change it. Acts are what commands do,
//! with the administrator's name in the audit trail.

mod audit;
mod drops;
mod flows;
mod grants;
mod judgement;
mod overview;
mod people;
mod picture;
mod policy;
mod revoke;

use super::overview::Said;
use crate::problem::Problem;
use crate::state::Authority;
use crate::storage::Database;
use axum::Router;
use axum::routing::{get, post};
use engine::api::Service;
use engine::policy::service;
use std::sync::Arc;
use tokio::sync::{Semaphore, SemaphorePermit};

/// Long looks into the database at a time.
static LOOKS: Semaphore = Semaphore::const_new(2);

/// Every page for administrators.
pub fn routes() -> Router<Arc<Authority>> {
    Router::new()
        .route("/", get(overview::show))
        .route("/drops", get(drops::show))
        .route("/flows", get(flows::show))
        .route("/revoke", get(revoke::ask).post(revoke::act))
        .route("/people", get(people::list))
        .route("/people/{name}", get(people::one))
        .route("/audit", get(audit::show))
        .route("/audit.jsonl", get(audit::export))
        .route("/audit/verify", post(audit::verify))
        .route("/policy", get(policy::show))
        .route("/policy/draft", get(policy::draft).post(policy::preview))
        .route("/policy/apply", post(policy::apply))
        .route("/policy/rollback", post(policy::roll_back))
        .route("/policy/versions", get(policy::versions))
        .route("/policy/versions/{version}", get(policy::one_version))
        .route("/policy/versions/{version}/policy.toml", get(policy::download))
}

/// Looks into the database on a thread and a connection of its own: grants don't wait for those who search.
async fn read<T: Send + 'static>(
    authority: &Authority,
    look: impl FnOnce(&mut Database) -> anyhow::Result<T> + Send + 'static,
) -> Result<T, Problem> {
    Ok(Turn::wait(&LOOKS).await?.read(authority, look).await?)
}

/// A turn at a long look.
struct Turn(SemaphorePermit<'static>);

impl Turn {
    async fn wait(turns: &'static Semaphore) -> anyhow::Result<Self> {
        Ok(Self(turns.acquire().await?))
    }

    /// Looks; see [`read`].
    async fn read<T: Send + 'static>(
        self,
        authority: &Authority,
        look: impl FnOnce(&mut Database) -> anyhow::Result<T> + Send + 'static,
    ) -> anyhow::Result<T> {
        let path = authority.directory.database();
        self.take(move || look(&mut Database::open(&path)?)).await
    }

    /// Works on a thread of its own. The turn is over when the work is, not when whoever asked goes away.
    async fn take<T: Send + 'static>(
        self,
        work: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
    ) -> anyhow::Result<T> {
        let turn = self.0;
        let work = move || {
            let _turn = turn;
            work()
        };
        tokio::task::spawn_blocking(work).await?
    }
}

/// Services as a policy has them.
fn services(services: &[Service]) -> String {
    services.iter().map(service).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::pin;
    use std::sync::mpsc;
    use std::task::{Context, Waker};

    #[tokio::test]
    async fn a_turn_lasts_as_long_as_its_work_also_when_nobody_waits_for_it() {
        static TURNS: Semaphore = Semaphore::const_new(1);
        let (finish, finished) = mpsc::channel::<()>();
        {
            let turn = Turn::wait(&TURNS).await.unwrap();
            let mut asked = pin!(turn.take(move || Ok(finished.recv()?)));
            assert!(asked.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        }
        assert_eq!(TURNS.available_permits(), 0, "the work goes on");
        finish.send(()).unwrap();
        Turn::wait(&TURNS).await.unwrap();
    }
}
