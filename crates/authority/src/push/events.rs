//! The listeners of the push channel, and the events that the authority sends to them. The authority disconnects a
//! listener that does not read its events in time. The listener misses nothing, because it reads the full state after
//! it has reconnected. `sync.rs` and `policy/enforcer.rs` announce what has ended; `http/handlers.rs` writes the events
//! to the streams.

use crate::push::marks::Marks;
use crate::push::queue::{EventQueue, Sender, queue};
use crate::storage::TokenHash;
use api::{Confirm, Event, RevokedGrant, RevokedSession, Withdrawal};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// Maximum number of events that wait to be read by one listener's stream.
const QUEUE: usize = 256;
/// Maximum number of streams per listener; a new stream closes the oldest.
const MOST_STREAMS: usize = 4;
/// Maximum number of revoked grants or sessions in one event: about 32 KiB.
const REVOKED_PER_EVENT: usize = 512;
/// Maximum number of withdrawals in one event: about 32 KiB.
const WITHDRAWN_PER_EVENT: usize = 256;

/// A listener on the push channel: a session or a verifier.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Listener {
    /// A session, by the hash of its token.
    Session(TokenHash),
    /// A verifier, by id.
    Verifier(String),
}

/// An open stream, and the kinds of events that its listener confirms.
pub struct Stream {
    /// The number of the stream. A stream that was opened later has a greater number.
    pub(super) id: u64,
    sender: Sender,
    confirms: Confirm,
    /// The marks; `None` if the listener confirms none.
    pub(super) marks: Option<Box<Marks>>,
}

impl Stream {
    /// Sends events together. If `is_marked` is set, a mark follows, unless one is still open.
    fn send(&mut self, events: &[Arc<str>], is_marked: bool) -> bool {
        match self.marks.as_mut().filter(|_| is_marked).and_then(|marks| marks.announce()) {
            Some(mark) => self.sender.send(&[events, &[text(&Event::Mark { mark })]].concat()),
            None => self.sender.send(events),
        }
    }

    /// Reports whether the connection of the stream has ended.
    pub(super) fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }
}

type Streams = HashMap<Listener, Vec<Stream>>;

/// The open streams of all listeners.
#[derive(Default)]
pub struct Push {
    streams: Mutex<Streams>,
    /// The number of the last stream that was opened.
    opened: AtomicU64,
    /// Notified after a verifier has confirmed a mark.
    pub(super) confirmations: Notify,
}

impl Push {
    /// Opens a stream of events in JSON, which begins with the event `Hello`. `confirms` states which events the
    /// listener confirms. If the listener has too many streams, the oldest is closed.
    pub fn open(&self, listener: Listener, confirms: Confirm) -> EventQueue {
        self.open_with(listener, confirms, None)
    }

    /// Opens a stream as [`Self::open`] does, for a verifier that confirms marks. A mark is an event with a number. The
    /// verifier confirms the mark when it has carried out all earlier events of the stream.
    pub fn open_marked(&self, listener: Listener, confirms: Confirm) -> EventQueue {
        self.open_with(listener, confirms, Some(Box::default()))
    }

    fn open_with(&self, listener: Listener, confirms: Confirm, marks: Option<Box<Marks>>) -> EventQueue {
        let (sender, events) = queue(QUEUE);
        let mut streams = self.lock();
        let id = self.opened.fetch_add(1, Ordering::Relaxed) + 1;
        let mut stream = Stream { id, sender, confirms, marks };
        stream.send(&[text(&Event::Hello)], true);
        let open_streams = streams.entry(listener).or_default();
        open_streams.retain(|stream| !stream.is_closed());
        if open_streams.len() >= MOST_STREAMS {
            open_streams.remove(0);
        }
        open_streams.push(stream);
        events
    }

    /// Records that a verifier has confirmed a mark, and sends the next one if there were announcements meanwhile.
    /// Reports whether the mark is known. A mark of a stream that has ended is not known.
    pub fn confirm(&self, verifier: &str, mark: u64) -> bool {
        let mut streams = self.lock();
        let listener = Listener::Verifier(verifier.to_owned());
        let Some(open_streams) = streams.get_mut(&listener) else { return false };
        let mut is_known = false;
        open_streams.retain_mut(|stream| {
            let Some(marks) = &mut stream.marks else { return true };
            if !marks.confirm(mark) {
                return true;
            }
            is_known = true;
            marks.next().is_none_or(|mark| stream.sender.send(&[text(&Event::Mark { mark })]))
        });
        if open_streams.is_empty() {
            streams.remove(&listener);
        }
        drop(streams);
        if is_known {
            self.confirmations.notify_waiters();
        }
        is_known
    }

    /// Sends an event to all streams of one listener, and closes the streams whose queue is full. Returns the number of
    /// confirmations to expect.
    pub fn send(&self, listener: &Listener, event: &Event) -> usize {
        let mut streams = self.lock();
        let Some(open_streams) = streams.get_mut(listener) else { return 0 };
        let events = [text(event)];
        open_streams.retain_mut(|stream| stream.send(&events, event.is_marked()));
        let wanted = event.confirm();
        let confirming =
            open_streams.iter().filter(|stream| wanted != Confirm::Nothing && stream.confirms >= wanted).count();
        if open_streams.is_empty() {
            streams.remove(listener);
        }
        confirming
    }

    /// Reports whether a stream of a listener confirms events about grants.
    pub fn confirms_grants(&self, listener: &Listener) -> bool {
        let streams = self.lock();
        let open_streams = streams.get(listener).map(Vec::as_slice).unwrap_or_default();
        open_streams.iter().any(|stream| stream.confirms >= Confirm::Grants)
    }

    /// Sends an event to all listeners.
    pub fn broadcast(&self, event: &Event) {
        let events = [text(event)];
        self.lock().retain(|_, open_streams| {
            open_streams.retain_mut(|stream| stream.send(&events, event.is_marked()));
            !open_streams.is_empty()
        });
    }

    /// Tells verifiers which sessions ended. One message announces the end of a session, whatever the number of its
    /// grants.
    pub fn announce_ended(&self, ended: Vec<(String, RevokedSession)>) {
        let mut of_verifiers: HashMap<String, Vec<RevokedSession>> = HashMap::new();
        for (verifier, session) in ended {
            of_verifiers.entry(verifier).or_default().push(session);
        }
        for (verifier, sessions) in of_verifiers {
            tracing::info!(verifier, sessions = sessions.len(), "announcing ended sessions");
            let listener = Listener::Verifier(verifier);
            for sessions in sessions.chunks(REVOKED_PER_EVENT) {
                self.send(&listener, &Event::SessionsRevoked { sessions: sessions.to_vec() });
            }
        }
    }

    /// Tells each listener which of its grants were revoked.
    pub fn announce_revoked(&self, revoked: impl IntoIterator<Item = (Listener, RevokedGrant)>) {
        for (listener, events) in revocations(revoked) {
            let mut streams = self.lock();
            let Some(open_streams) = streams.get_mut(&listener) else { continue };
            open_streams.retain_mut(|stream| stream.send(&events, true));
            if open_streams.is_empty() {
                streams.remove(&listener);
            }
        }
    }

    /// Tells all listeners that the policy changed, and each listener which of its grants were revoked. The event about
    /// the policy comes first. The configuration that a verifier reads because of this event contains both the new
    /// policy's receivers and the revocations. A listener gets all its events at once, because a second message would
    /// cost as much as the first.
    pub fn announce_policy(&self, revoked: impl IntoIterator<Item = (Listener, RevokedGrant)>) {
        let (policy, mut revoked) = (text(&Event::Policy), revocations(revoked));
        self.lock().retain(|listener, open_streams| {
            let mut events = vec![policy.clone()];
            events.append(&mut revoked.remove(listener).unwrap_or_default());
            open_streams.retain_mut(|stream| stream.send(&events, true));
            !open_streams.is_empty()
        });
    }

    /// Tells a listener which consent to segments was withdrawn.
    pub fn announce_withdrawn(&self, listener: &Listener, withdrawn: &[Withdrawal]) {
        for withdrawn in withdrawn.chunks(WITHDRAWN_PER_EVENT) {
            self.send(listener, &Event::Withdrawn { withdrawn: withdrawn.to_vec() });
        }
    }

    /// Closes the streams of the listeners for which `known` returns false. A session first receives the event
    /// `LoggedOut`.
    pub fn close_unless(&self, known: impl Fn(&Listener) -> bool) {
        self.lock().retain(|listener, open_streams| {
            let stays = known(listener);
            if !stays && matches!(listener, Listener::Session(_)) {
                let events = [text(&Event::LoggedOut)];
                for stream in open_streams.iter_mut() {
                    stream.send(&events, false);
                }
            }
            stays
        });
    }

    /// Returns the numbers of open streams: those of sessions, then those of verifiers.
    pub fn count(&self) -> (usize, usize) {
        self.lock().iter().fold((0, 0), |(sessions, verifiers), (listener, open_streams)| {
            let open = open_streams.iter().filter(|stream| !stream.is_closed()).count();
            match listener {
                Listener::Session(_) => (sessions + open, verifiers),
                Listener::Verifier(_) => (sessions, verifiers + open),
            }
        })
    }

    /// Returns the number of the last stream that was opened.
    pub(super) fn last_stream(&self) -> u64 {
        self.opened.load(Ordering::Relaxed)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Streams> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the events that tell each listener of its revoked grants.
fn revocations(revoked: impl IntoIterator<Item = (Listener, RevokedGrant)>) -> HashMap<Listener, Vec<Arc<str>>> {
    let mut of_listeners: HashMap<Listener, Vec<RevokedGrant>> = HashMap::new();
    for (listener, grant) in revoked {
        of_listeners.entry(listener).or_default().push(grant);
    }
    if !of_listeners.is_empty() {
        tracing::info!(listeners = of_listeners.len(), "announcing revoked grants");
    }
    let event = |grants: &[RevokedGrant]| text(&Event::Revoked { grants: grants.to_vec() });
    let events = |grants: Vec<RevokedGrant>| grants.chunks(REVOKED_PER_EVENT).map(event).collect();
    of_listeners.into_iter().map(|(listener, grants)| (listener, events(grants))).collect()
}

fn text(event: &Event) -> Arc<str> {
    serde_json::to_string(event).expect("INVARIANT: events are plain data, which always has a JSON form").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_that_lags_is_disconnected() {
        let push = Push::default();
        let listener = Listener::Verifier("edge".into());
        let stream = push.open(listener.clone(), Confirm::Nothing);
        for _ in 0..QUEUE + 1 {
            push.send(&listener, &Event::Policy);
        }
        let mut received = 0;
        while let Some(text) = stream.take() {
            assert_eq!(text.contains("hello"), received == 0);
            received += 1;
        }
        assert_eq!(received, QUEUE);
        assert!(stream.is_closed());
    }

    #[test]
    fn a_listener_hears_of_the_policy_and_then_of_its_own_grants() {
        let push = Push::default();
        let listeners = [Listener::Session([1; 32]), Listener::Session([2; 32]), Listener::Verifier("edge".into())];
        let streams = listeners.clone().map(|listener| push.open(listener, Confirm::Nothing));
        let grant = |handle| RevokedGrant { handle, expires: 0, holder: 0 };
        let of_edge = (0..=REVOKED_PER_EVENT as u64).map(|handle| (listeners[2].clone(), grant(handle)));
        push.announce_policy(of_edge.chain([(listeners[0].clone(), grant(7))]));
        let kinds = |stream: &EventQueue| {
            let events = std::iter::from_fn(|| stream.take());
            let kinds = events.map(|event| event.split('"').nth(3).map(str::to_owned).unwrap_or_default());
            kinds.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(
            streams.each_ref().map(kinds),
            ["hello policy revoked", "hello policy", "hello policy revoked revoked"]
        );
        push.announce_revoked([(listeners[1].clone(), grant(8)), (Listener::Session([3; 32]), grant(9))]);
        assert_eq!(streams.each_ref().map(kinds), ["", "revoked", ""]);
    }

    #[test]
    fn a_session_that_is_gone_hears_so_and_its_stream_ends() {
        let push = Push::default();
        let stream = push.open(Listener::Session([1; 32]), Confirm::Nothing);
        let other = push.open(Listener::Session([2; 32]), Confirm::Nothing);
        push.close_unless(|listener| *listener == Listener::Session([2; 32]));
        let texts: Vec<_> = std::iter::from_fn(|| stream.take()).collect();
        assert!(texts[1].contains("logged_out"));
        assert!(stream.is_closed());
        assert!(other.take().is_some() && !other.is_closed());
    }
}
