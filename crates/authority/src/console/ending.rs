//! Actions that end sessions and grants and then notify the affected verifiers and agents. An action completes even if
//! the browser disconnects. If it ended nothing, it notifies nobody.

use crate::http::problems::Problem;
use crate::storage::{Database, Storage};
use crate::sync::Synchroniser;
use std::sync::Arc;

/// Runs `work` with the database, in the queue of `person`. If `work` ended sessions or grants, it must return `Some`,
/// and the authority then notifies verifiers and agents.
///
/// # Errors
/// Fails if `work` fails, or the database cannot be written.
pub async fn end<T: Send + 'static>(
    storage: &Arc<Storage>,
    sync: &Arc<Synchroniser>,
    person: &str,
    work: impl FnOnce(&mut Database) -> anyhow::Result<Option<T>> + Send + 'static,
) -> Result<Option<T>, Problem> {
    let (storage, sync, person) = (storage.clone(), sync.clone(), person.to_owned());
    let act = async move {
        let ended = storage.call_for(&person, work).await?;
        if ended.is_some() {
            sync.run_everywhere().await?;
        }
        Ok::<_, anyhow::Error>(ended)
    };
    Ok(tokio::spawn(act).await.map_err(anyhow::Error::from)??)
}
