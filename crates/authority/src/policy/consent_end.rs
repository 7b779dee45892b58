//! The end of consents: when its time is over, when it is withdrawn, or when its receiver's name is given to another
//! receiver. Then the grants that rested on the consent end, too.
//!
//! The transaction that ends a consent records the consent's holder (a person, a group or a tag) as unexamined. A
//! member of the cluster then examines the person's grants or, for a group or a tag, all grants. It revokes those that
//! are no longer allowed. If several members do this, the result is the same. Each examination is a task of its own, so
//! people do not wait for each other.

use super::access::AccessRequests;
use super::examinations::{Examinations, NextEnd};
use crate::now;
use crate::push::events::Listener;
use crate::storage::{Database, Session, Unavailable, Unexamined};
use anyhow::Result;
use api::Event;
use engine::policy::Subject;
use engine::policy::holder::Holder;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};

/// Maximum number of consents that one transaction ends.
const PIECE: usize = 500;
/// The reason for revocations in the audit trail.
const ENDED: &str = "the consent ended";

/// A running examination. Dropping this value makes room for another examination.
struct Running {
    requests: AccessRequests,
    of: Unexamined,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.requests.examinations().running.remove(&self.of.person);
    }
}

impl AccessRequests {
    /// Ends the consents whose time is over, and begins to examine the grants of people whose consent has ended. Does
    /// not wait for the examinations. The server calls this every second.
    ///
    /// # Errors
    /// Fails if the database cannot be read or written.
    pub async fn follow_time(&self) -> Result<()> {
        let (made, consents, time) = (self.consents.made(), self.consents.current(), now());
        let basis = (made, self.enforcer.version.load(Ordering::SeqCst));
        let next = self.examinations().next;
        let mut people = Vec::new();
        if next.is_none_or(|next| next.basis != basis || next.at <= time) {
            while self.storage.call(|database| database.end_outdated_access(now())).await? {}
            let (ended, next) = self.policy.with(|policy| policy.ended_consents(&consents, time)).await;
            for piece in ended.chunks(PIECE) {
                let piece = piece.to_vec();
                people.extend(self.storage.call(move |database| database.expire_consents(&piece, now())).await?);
            }
            self.examinations().next = Some(NextEnd { at: next.unwrap_or(u64::MAX), basis });
        }
        let waiting = self.storage.call(|database| database.unexamined()).await?;
        let begun = self.examinations().begin(waiting, &people);
        for of in begun {
            let running = Running { requests: self.clone(), of };
            tokio::spawn(async move { running.requests.follow_end(&running.of).await });
        }
        Ok(())
    }

    async fn follow_end(&self, of: &Unexamined) {
        match self.examine(of).await {
            Ok(()) => self.tell_later(&of.person),
            // A member without contact can't record anything, which the follower logs.
            Err(error) if error.is::<Unavailable>() => tracing::debug!("cannot examine grants: {error:#}"),
            Err(error) => tracing::error!("cannot examine the grants of {}; trying again: {error:#}", of.person),
        }
    }

    /// Revokes the grants of a person that are no longer allowed, after a consent was withdrawn. If this fails,
    /// [`Self::follow_time`] tries again, here or at another member of the cluster.
    pub(super) async fn cut(&self, person: &str) -> Result<()> {
        let whose = person.to_owned();
        let found = self.storage.revoke_for(person, move |database| database.unexamined_of(&whose)).await?;
        if let Some(of) = found {
            self.examine(&of).await?;
        }
        self.sync.run_everywhere().await?;
        self.tell_agents(person).await;
        Ok(())
    }

    async fn examine(&self, of: &Unexamined) -> Result<()> {
        let person = of.person.as_str();
        self.sync.run().await?;
        if let Ok(Holder::Group(_) | Holder::Tag(_)) = person.parse() {
            return self.examine_all(of).await;
        }
        // The consent allows nothing any more. A grant that it allowed before this line is not recorded afterwards, but
        // decided again. So the revocation need not wait for the person's requests, which the person could prolong.
        self.storage.end_basis_of(person);
        let forbidden = self.grants.forbidden_of(person, now()).await?;
        let (count, done) = (forbidden.len(), of.clone());
        let revoke = move |database: &mut Database| {
            database.revoke_forbidden(&forbidden, ENDED, now())?;
            database.examined(&done)
        };
        self.storage.revoke_for(person, revoke).await?;
        tracing::info!(person, revoked = count, "a consent ended");
        self.sync.run().await
    }

    /// Revokes the grants of all people that are no longer allowed, after a consent of a group or a tag has ended. A
    /// delegate can cause this only as often as they give such consents.
    async fn examine_all(&self, of: &Unexamined) -> Result<()> {
        // A grant that the consent allowed before this line is decided again before it is recorded.
        self.storage.end_basis();
        let revoked = self.enforcer.revoke_forbidden(&*self.policy.read().await, ENDED).await?;
        let done = of.clone();
        self.storage.call(move |database| database.examined(&done)).await?;
        tracing::info!(holder = of.person, revoked, "a consent ended");
        self.sync.run().await
    }

    /// Tells the person's agents, as soon as the other members of the cluster have followed. A single task waits for
    /// the members. It then tells the agents of all people for whom this function was called meanwhile.
    fn tell_later(&self, person: &str) {
        {
            let mut examinations = self.examinations();
            examinations.untold.insert(person.to_owned());
            if std::mem::replace(&mut examinations.is_telling, true) {
                return;
            }
        }
        let requests = self.clone();
        tokio::spawn(async move {
            while let Some(people) = requests.take_untold() {
                if let Err(error) = requests.sync.run_everywhere().await {
                    tracing::debug!("cannot wait for the other members: {error:#}");
                }
                for person in &people {
                    requests.tell_agents(person).await;
                }
            }
        });
    }

    fn take_untold(&self) -> Option<BTreeSet<String>> {
        let mut examinations = self.examinations();
        let people = std::mem::take(&mut examinations.untold);
        examinations.is_telling = !people.is_empty();
        examinations.is_telling.then_some(people)
    }

    /// Makes the agents of a person, a group or a tag read their destinations again, if these agents listen at this
    /// member.
    pub(super) async fn tell_agents(&self, holder: &str) {
        let tokens = match holder.parse() {
            Ok(Holder::Group(group)) => {
                let policy = self.policy.read().await;
                let is_in = |session: &Session| {
                    let subject = Subject { groups: &session.groups, ..Subject::person(&session.person) };
                    policy.policy().is_in(&subject, &group)
                };
                self.sessions.tokens_where(is_in)
            }
            Ok(Holder::Tag(tag)) => self.sessions.tokens_where(|session| session.tags.contains(&tag)),
            _ => self.sessions.tokens_of(holder),
        };
        for token in tokens {
            self.push.send(&Listener::Session(token), &Event::Policy);
        }
    }

    fn examinations(&self) -> MutexGuard<'_, Examinations> {
        self.examinations.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
