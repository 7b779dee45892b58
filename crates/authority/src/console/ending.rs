//! Actions that end sessions and grants and then notify the affected verifiers and agents. An action runs to completion
//! even if the browser disconnects. If it ended nothing, no notification is sent.

use crate::http::problems::Problem;
use crate::state::Authority;
use crate::storage::Database;
use std::sync::Arc;

/// Runs `work` in this person's queue. If `work` returns a value, something has ended, and the authority sends
/// notifications.
pub async fn end<T: Send + 'static>(
    authority: &Arc<Authority>,
    person: &str,
    work: impl FnOnce(&mut Database) -> anyhow::Result<Option<T>> + Send + 'static,
) -> Result<Option<T>, Problem> {
    let (authority, person) = (authority.clone(), person.to_owned());
    let act = async move {
        let ended = authority.storage.call_for(&person, work).await?;
        if ended.is_some() {
            authority.sync().await?;
        }
        Ok::<_, anyhow::Error>(ended)
    };
    Ok(tokio::spawn(act).await.map_err(anyhow::Error::from)??)
}
