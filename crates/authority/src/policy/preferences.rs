//! Persons' choices about where their identity may go. A choice applies from the moment it is made, including to grants
//! that were issued before.

use crate::http::problems::Problem;
use crate::now;
use crate::push::events::Listener;
use crate::state::Authority;
use crate::storage::{Database, Operator, Walk};
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
        let set = move |database: &mut Database| database.set_preference(&whose, &target, choice, &by, now());
        if !self.storage.call_for(person, set).await? {
            return Err(Problem::Malformed("these are too many destinations: forget some first".into()));
        }
        // From here on, requests are decided by the new choice. Those that were decided before are recorded when the
        // person's requests under way are done, or are queued before the revocation.
        self.sync().await?;
        self.requests_done(person).await;
        let (preferences, time) = (self.preferences_of(person), now());
        let (mut revoked, mut from) = (0, Some(Walk::from_unexpired(time)));
        while let Some(at) = from {
            let (whose, preferences) = (person.to_owned(), preferences.clone());
            let revoke = move |database: &mut Database| database.revoke_some_withheld(&whose, &preferences, at, time);
            let (some, next) = self.storage.call_for(person, revoke).await?;
            (revoked, from) = (revoked + some, next);
        }
        tracing::info!(person, revoked, %target, "another choice of where an identity may go");
        self.sync().await?;
        for token in self.tokens_of(person) {
            self.push.tell(&Listener::Session(token), &Event::Policy);
        }
        Ok(())
    }
}
