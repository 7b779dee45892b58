//! Changes persons' choices about where their identity may go. A choice takes effect at once, also for grants that were
//! issued before.

use super::preference_table::PreferenceTable;
use crate::http::problems::Problem;
use crate::login::Sessions;
use crate::now;
use crate::push::events::{Listener, Push};
use crate::storage::{Database, Operator, Storage, Walk};
use crate::sync::Synchroniser;
use api::Event;
use engine::model::Target;
use engine::policy::preference::Choice;
use std::sync::Arc;

/// Puts persons' choices into effect.
pub struct Choices {
    pub(crate) storage: Arc<Storage>,
    pub(crate) preferences: Arc<PreferenceTable>,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) push: Arc<Push>,
    pub(crate) sync: Arc<Synchroniser>,
}

impl Choices {
    /// Stores a person's choice about `target`, or deletes it if `choice` is `None`. Then revokes the grants that the
    /// choices forbid, and makes the person's agents read their destinations again. Returns the number of revoked
    /// grants.
    ///
    /// # Errors
    /// Fails if the person has made the maximum number of choices, or the database cannot be read or written.
    pub async fn choose(
        &self,
        person: &str,
        target: Target,
        choice: Option<Choice>,
        by: Operator,
    ) -> Result<usize, Problem> {
        let whose = person.to_owned();
        let set = move |database: &mut Database| database.set_preference(&whose, &target, choice, &by, now());
        if !self.storage.call_for(person, set).await? {
            return Err(Problem::Malformed("too many destinations: remove some first".into()));
        }
        self.sync.run().await?;
        // The new choice decides the person's requests. A grant that was decided before this line is not recorded
        // afterwards, but decided again.
        self.storage.end_basis_of(person);
        let (preferences, time) = (self.preferences.of(person), now());
        let (mut revoked, mut from) = (0, Some(Walk::from_unexpired(time)));
        while let Some(at) = from {
            let (whose, preferences) = (person.to_owned(), preferences.clone());
            let revoke = move |database: &mut Database| database.revoke_some_withheld(&whose, &preferences, at, time);
            let (some, next) = self.storage.call_for(person, revoke).await?;
            (revoked, from) = (revoked + some, next);
        }
        tracing::info!(person, revoked, %target, "the person changed where their identity may go");
        self.sync.run_everywhere().await?;
        for token in self.sessions.tokens_of(person) {
            self.push.send(&Listener::Session(token), &Event::Policy);
        }
        Ok(revoked)
    }
}
