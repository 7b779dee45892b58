//! Connections to authorities, and the events that authorities push.

use super::{Daemon, Message};
use crate::now;
use api::Grant;
use client::{Asker, Authority, Error, Way, convert};
use engine::agent::{Event, Subject};
use ipnet::IpNet;
use reach::login::Timed;
use reach::protocol::GrantWays;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;

/// A session's connection to its authority.
pub(super) struct Connection {
    pub authority: Authority,
    /// Requests grants from the authority.
    pub asker: Asker,
    /// Number of this login. It distinguishes answers to requests of this login from answers to requests of an earlier
    /// one.
    pub login: u64,
    events: JoinHandle<()>,
    /// Why the latest call failed, or why the event stream is down; `None` if the call succeeded and the stream is up.
    pub trouble: Option<String>,
    /// Networks that the authority claims, and for which it may not speak.
    pub refused: Vec<IpNet>,
    /// Number of this login's grants that came by UDP, and number of those that came by HTTPS.
    pub ways: GrantWays,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.events.abort();
    }
}

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
        let (asker, refused, ways) = (Asker::new(authority.clone()), Vec::new(), GrantWays::default());
        let connection = Connection { authority, asker, login, events, trouble: None, refused, ways };
        self.connections.insert(subject, connection);
    }

    /// Counts the grant in an answer: as one that came by UDP, or as one that came by HTTPS.
    pub(super) fn note_way(
        &mut self,
        subject: Subject,
        answer: Timed<Result<(Grant, Way), Error>>,
    ) -> Timed<Result<Grant, Error>> {
        if let (Ok((_, way)), Some(connection)) = (&answer.value, self.connections.get_mut(&subject)) {
            match way {
                Way::Udp => connection.ways.udp += 1,
                Way::Https => connection.ways.https += 1,
            }
        }
        answer.map_ok(|(grant, _)| grant)
    }

    pub(super) fn reported(&mut self, subject: Subject, report: Report) {
        match report.update {
            Update::Event(event) => {
                self.note(subject, &Ok(()));
                if let Some(event) = event {
                    // The stream is new: the authority was restarted, or it is another one.
                    if let (Event::Hello, Some(connection)) = (&event, self.connections.get(&subject)) {
                        connection.asker.renew_line();
                    }
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
