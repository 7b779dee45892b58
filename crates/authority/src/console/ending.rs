//! Acts that end sessions and grants, told to those who have to know. What was begun is done to its end, also where the
//! browser goes away; where nothing ended, nobody is told.

use crate::problem::Problem;
use crate::state::Authority;
use crate::storage::Database;
use std::sync::Arc;

/// Does `work` in this person's line, which gives something if it ended anything, and tells of it.
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
