//! The persons' choices about where their identity may go, which they make at the console.

use super::{AuditEvent, Database, Operator, Walk, reach, revocation};
use anyhow::Result;
use engine::model::Target;
use engine::policy::preference::{Choice, Preference, Preferences};
use rusqlite::{Transaction, params};
use std::collections::HashMap;

/// Maximum number of choices per person.
const MOST_PER_PERSON: i64 = 256;

pub(super) const SCHEMA: &str = "
CREATE TABLE preferences (
    person TEXT NOT NULL, target TEXT NOT NULL, choice TEXT NOT NULL, PRIMARY KEY (person, target)
) STRICT;
";

impl Database {
    /// Stores a person's choice about a target in place of the earlier one, or deletes the earlier one if `choice` is
    /// `None`. Returns false, and stores nothing, if the person already has the maximum number of choices.
    ///
    /// # Errors
    /// Fails if the database cannot be written.
    pub fn set_preference(
        &mut self,
        person: &str,
        target: &Target,
        choice: Option<Choice>,
        by: &Operator,
        now: u64,
    ) -> Result<bool> {
        self.write(|transaction| {
            let text = target.to_string();
            transaction.execute("DELETE FROM preferences WHERE person = ?1 AND target = ?2", [person, &text])?;
            let said = choice.map_or("forgotten", Choice::name);
            if let Some(choice) = choice {
                let count: i64 =
                    transaction
                        .query_row("SELECT count(*) FROM preferences WHERE person = ?1", [person], |row| row.get(0))?;
                if count >= MOST_PER_PERSON {
                    return Ok(false);
                }
                let add = "INSERT INTO preferences (person, target, choice) VALUES (?1, ?2, ?3)";
                transaction.execute(add, [person, &text, choice.name()])?;
            }
            let event = AuditEvent::new("preference").person(person).by(by);
            event.detail(format!("{text}: {said}")).write(transaction, now)?;
            Ok(true)
        })
    }

    /// Returns the choices of all persons. A choice that this version cannot read counts as `never`: it allows no
    /// grant.
    ///
    /// # Errors
    /// Fails if the database cannot be read, or the target of a choice is malformed.
    pub fn preferences(&self) -> Result<HashMap<String, Preferences>> {
        let mut statement =
            self.connection.prepare_cached("SELECT person, target, choice FROM preferences ORDER BY person, target")?;
        let rows = statement
            .query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?, row.get::<_, String>(2)?)))?;
        let mut all: HashMap<String, Vec<Preference>> = HashMap::new();
        for row in rows {
            let (person, target, choice) = row?;
            let choice = choice.parse().unwrap_or(Choice::Never);
            all.entry(person).or_default().push(Preference { target: target.parse()?, choice });
        }
        Ok(all.into_iter().map(|(person, all)| (person, Preferences::new(all))).collect())
    }

    /// Examines a limited number of a person's unexpired grants after the position `from`, and revokes those that the
    /// choices forbid. Returns the number of revoked grants, and the position at which the next call continues. The
    /// position is `None` if no grants are left to examine. The number of expired grants is unlimited, so this method
    /// does not examine them. Instead, the first call makes verifiers ask which flows of expired grants they have to
    /// cut.
    ///
    /// # Errors
    /// Fails if the database cannot be written.
    pub fn revoke_some_withheld(
        &mut self,
        person: &str,
        preferences: &Preferences,
        from: Walk,
        now: u64,
    ) -> Result<(usize, Option<Walk>)> {
        if preferences.all().iter().all(|one| one.choice == Choice::Allow) {
            return Ok((0, None));
        }
        self.write(|transaction| {
            if from == Walk::from_unexpired(now) {
                revocation::recheck_of_person(transaction, person)?;
            }
            let (held, next) = reach::held_from(transaction, person, from)?;
            let forbidden = held.iter().filter(|grant| preferences.forbids(&grant.scope, &grant.to));
            let forbidden: Vec<_> = forbidden.map(|grant| (grant.handle, person.to_owned())).collect();
            let why = "the person chose that their identity must not go there";
            revocation::revoke_forbidden(transaction, &forbidden, why, now)?;
            Ok((forbidden.len(), next))
        })
    }
}

/// Deletes a person's choices.
pub(super) fn forget(transaction: &Transaction<'_>, person: &str) -> Result<()> {
    transaction.execute("DELETE FROM preferences WHERE person = ?1", params![person])?;
    Ok(())
}
