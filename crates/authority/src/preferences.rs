//! What persons want their identity to be used for, at the authority: a choice counts from the moment it is made, for grants
//! that were given before, too.

use crate::now;
use crate::problem::Problem;
use crate::push::Listener;
use crate::state::Authority;
use crate::storage::Operator;
use engine::agent::Target;
use engine::api::Event;
use engine::preference::{Choice, Preferences};
use std::sync::{Arc, PoisonError};

impl Authority {
    /// A person's choices.
    pub(crate) fn preferences_of(&self, person: &str) -> Arc<Preferences> {
        let all = self.preferences.read().unwrap_or_else(PoisonError::into_inner);
        all.get(person).cloned().unwrap_or_default()
    }

    /// Makes a choice, or forgets one; ends the grants that are withheld by it, and has the person's agents ask anew.
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
        // For writing: no grant that was decided before is recorded after.
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
