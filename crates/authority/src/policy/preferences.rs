//! Persons' choices about where their identity may go. A choice applies from the moment it is made, including to grants
//! that were issued before.

use crate::http::problems::Problem;
use crate::now;
use crate::push::events::Listener;
use crate::state::Authority;
use crate::storage::Operator;
use api::Event;
use engine::model::Target;
use engine::policy::preference::{Choice, Preferences};
use std::sync::{Arc, PoisonError};

impl Authority {
    /// Returns a person's choices.
    pub(crate) fn preferences_of(&self, person: &str) -> Arc<Preferences> {
        let all = self.preferences.read().unwrap_or_else(PoisonError::into_inner);
        all.get(person).cloned().unwrap_or_default()
    }

    /// Stores or deletes a choice, revokes the grants that it withholds, and makes the person's agents request again.
    pub(crate) async fn prefer(
        &self,
        person: &str,
        target: Target,
        choice: Option<Choice>,
        by: Operator,
    ) -> Result<(), Problem> {
        let whose = person.to_owned();
        let set =
            move |database: &mut crate::storage::Database| database.set_preference(&whose, &target, choice, &by, now());
        if !self.storage.call_for(person, set).await? {
            return Err(Problem::Malformed("these are too many destinations: forget some first".into()));
        }
        self.sync().await?;
        // With the write lock, no grant that was decided under the earlier choice can be recorded afterwards.
        let policy = self.policy.write().await;
        let (whose, preferences) = (person.to_owned(), self.preferences_of(person));
        let revoke =
            move |database: &mut crate::storage::Database| database.revoke_withheld(&whose, &preferences, now());
        let revoked = self.storage.call_for(person, revoke).await?;
        drop(policy);
        tracing::info!(person, revoked, %target, "another choice of where an identity may go");
        self.sync().await?;
        for token in self.tokens_of(person) {
            self.push.tell(&Listener::Session(token), &Event::Policy);
        }
        Ok(())
    }
}
