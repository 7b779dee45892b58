//! Actions that end sessions and grants and then notify the affected verifiers and agents. An action runs to completion
//! even if the browser disconnects. If it ended nothing, no notification is sent.

use crate::http::problems::Problem;
use crate::storage::{Database, Storage};
use crate::sync::Synchroniser;
use std::sync::Arc;

/// Runs `work` in this person's queue. If `work` returns a value, something has ended, and the authority sends
/// notifications.
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
            sync.run().await?;
        }
        Ok::<_, anyhow::Error>(ended)
    };
    Ok(tokio::spawn(act).await.map_err(anyhow::Error::from)??)
}
