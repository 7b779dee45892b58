//! Connections to authorities, and the events that authorities push.

use super::{Connection, Daemon, Message};
use crate::now;
use client::{Authority, Error, convert};
use engine::agent::{Event, Subject};
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A report from the task that follows an authority's events. The task sends the next report only after the daemon's
/// loop has handled this one. So an authority that sends events without end has at most one report in the queue.
pub(super) struct Report {
    update: Update,
    _turn: OwnedSemaphorePermit,
}

enum Update {
    /// The authority sent an event; `None` if the event does not concern agents.
    Event(Option<Event>),
    /// The authority closed the event stream. Contains the reason.
    Ended(Error),
    /// The connection broke. The text is the reason.
    Lost(String),
}

impl Daemon {
    pub(super) fn connect(&mut self, subject: Subject, authority: Authority) {
        self.logins += 1;
        let login = self.logins;
        let (mut stream, messages) = (authority.events(), self.messages.clone());
        let mut trouble = stream.trouble();
        let events = tokio::spawn(async move {
            let turns = Arc::new(Semaphore::new(1));
            loop {
                let updates = tokio::select! {
                    event = stream.next() => match event {
                        Ok(event) => {
                            tracing::debug!(uid = subject.user(), ?event, "event");
                            match convert::event(&event) {
                                Some(event) => event.parts().into_iter().map(|part| Update::Event(Some(part))).collect(),
                                None => vec![Update::Event(None)],
                            }
                        }
                        Err(error) => vec![Update::Ended(error)],
                    },
                    Ok(()) = trouble.changed() => match trouble.borrow_and_update().clone() {
                        Some(why) => vec![Update::Lost(why)],
                        None => continue,
                    },
                };
                for update in updates {
                    let last = matches!(update, Update::Ended(_));
                    let Ok(turn) = turns.clone().acquire_owned().await else { return };
                    let report = Report { update, _turn: turn };
                    if messages.send(Message::Reported(subject, login, report)).await.is_err() || last {
                        return;
                    }
                }
            }
        });
        self.connections.insert(subject, Connection { authority, login, events, trouble: None, refused: Vec::new() });
    }

    pub(super) fn reported(&mut self, subject: Subject, report: Report) {
        match report.update {
            Update::Event(event) => {
                self.note(subject, &Ok(()));
                if let Some(event) = event {
                    self.agent.event(now(), subject, &event);
                }
            }
            Update::Ended(Error::NotLoggedIn | Error::Denied(_)) => self.agent.end(subject),
            Update::Ended(error) => tracing::warn!(
                uid = subject.user(),
                "the authority's event stream ended, and the agent does not open it again before the next login or \
                 start: {error}"
            ),
            Update::Lost(why) => self.lost(subject, why),
        }
    }

    fn lost(&mut self, subject: Subject, why: String) {
        let Some(connection) = self.connections.get_mut(&subject) else { return };
        if connection.trouble.is_none() {
            let uid = subject.user();
            tracing::warn!(
                uid,
                "lost the connection to the authority: current grants stay valid until they expire, but the agent \
                 can't request new grants: {why}"
            );
        }
        connection.trouble = Some(why);
    }
}
