//! The pages for administrators: current activity, access rights, and the actions that change them. An action has the
//! same effect as the matching command, and the audit trail records it under the administrator's name.

mod audit;
mod cluster;
mod drops;
mod evaluation;
mod flows;
mod grants;
mod health;
mod overview;
mod people;
mod picture;
mod policy;
mod revoke;
mod traffic;

use super::overview::Said;
use crate::Directory;
use crate::http::problems::Problem;
use crate::state::Authority;
use crate::storage::Database;
use axum::Router;
use axum::routing::{get, post};
use engine::model::Service;
use engine::policy::service;
use std::sync::Arc;
use tokio::sync::{Semaphore, SemaphorePermit};

/// Limits the number of long database reads that run concurrently.
static LOOKS: Semaphore = Semaphore::const_new(2);

/// Returns the routes of all pages for administrators.
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

/// Runs `look` on a new database connection in a separate thread, so that long searches do not delay the issuing of
/// grants. Waits while too many such reads are running.
async fn read<T: Send + 'static>(
    directory: &Directory,
    look: impl FnOnce(&mut Database) -> anyhow::Result<T> + Send + 'static,
) -> Result<T, Problem> {
    Ok(Turn::wait(&LOOKS).await?.read(directory, look).await?)
}

/// A permit for one long database read, which counts against [`LOOKS`].
struct Turn(SemaphorePermit<'static>);

impl Turn {
    async fn wait(turns: &'static Semaphore) -> anyhow::Result<Self> {
        Ok(Self(turns.acquire().await?))
    }

    /// Runs `look` on a new database connection; see [`read`].
    async fn read<T: Send + 'static>(
        self,
        directory: &Directory,
        look: impl FnOnce(&mut Database) -> anyhow::Result<T> + Send + 'static,
    ) -> anyhow::Result<T> {
        let path = directory.database();
        self.take(move || look(&mut Database::open_to_read(&path)?)).await
    }

    /// Runs `work` in a separate thread. The permit is released when the work ends, not when the caller is dropped.
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

/// Formats a list of services in the notation of a policy.
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
            let mut waiting = pin!(turn.take(move || Ok(finished.recv()?)));
            assert!(waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        }
        assert_eq!(TURNS.available_permits(), 0, "the work goes on");
        finish.send(()).unwrap();
        Turn::wait(&TURNS).await.unwrap();
    }
}
