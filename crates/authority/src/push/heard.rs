//! Waits until the connected verifiers have confirmed what was announced to them, so that a command returns only when a
//! revocation is in force at their kernels.

use super::events::{Listener, Push, Stream};
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout_at};

/// Maximum time to wait for verifiers. A verifier needs a tenth of a second, and up to two seconds if a packet is lost
/// twice or the verifier's table of flows is long. If a verifier does not confirm within this time, later commands do
/// not wait for it. Once it has confirmed, commands wait for it again. So a verifier that hangs delays one command, not
/// all of them.
pub const PATIENCE: Duration = Duration::from_secs(3);
/// Interval at which [`Push::heard`] checks whether streams have closed.
const LOOK: Duration = Duration::from_millis(100);
/// Number of streams above which [`Push::heard`] pauses between two checks. Each check looks at all streams.
const MANY: usize = 64;
/// Pause between two checks of many streams.
const PAUSE: Duration = Duration::from_millis(5);
/// Maximum number of names that a message lists.
const NAMES: usize = 10;

/// The enrolled verifiers and tunnel endpoints that have not confirmed. If `unknown` is empty, all others are
/// connected, and have carried out everything that was announced to them. This does not hold if etcd did not answer:
/// nothing is known then about verifiers that are connected to other members.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heard {
    /// The connected verifiers that have not confirmed within the time limit.
    pub late: Vec<String>,
    /// The connected verifiers that do not confirm, because they run an earlier release.
    pub unable: Vec<String>,
    /// The verifiers that are not connected. They get the announcements when they connect.
    pub absent: Vec<String>,
    /// The members of the cluster that do not say which verifiers are connected to them, or what these verifiers have
    /// confirmed. If there are such members, `absent` is empty.
    pub unknown: Vec<String>,
}

impl Heard {
    /// Reports whether every enrolled verifier has confirmed.
    pub fn is_complete(&self) -> bool {
        self == &Self::default()
    }
}

impl fmt::Display for Heard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { late, unable, absent, unknown } = self;
        for (names, says) in [
            (late, "connected, but has NOT confirmed within the time limit: flows may go on there"),
            (unable, "does not confirm, because it runs an earlier release: it should have cut the flows by now"),
            (absent, "not connected: it hears of this when it connects; until then flows go on there"),
            (unknown, "a member that does not report what its verifiers have confirmed"),
        ] {
            if !names.is_empty() {
                write!(f, "; {}: {says}", listed(names))?;
            }
        }
        Ok(())
    }
}

fn listed(names: &[String]) -> String {
    match names.split_at_checked(NAMES) {
        Some((first, rest)) if !rest.is_empty() => format!("{} and {} more", first.join(", "), rest.len()),
        _ => names.join(", "),
    }
}

/// A stream, and the last announcement that its verifier had not confirmed.
struct Owed {
    listener: Listener,
    stream: u64,
    number: u64,
}

impl Push {
    /// Waits until the connected verifiers among `enrolled` have confirmed everything that was announced to them before
    /// this call, for [`PATIENCE`] at most. Does not wait for verifiers that are overdue already.
    pub async fn heard(&self, enrolled: &HashSet<Arc<str>>) -> Heard {
        let (begun, last) = (Instant::now(), self.last_stream());
        let owed = self.owed(enrolled);
        let mut waiting: Vec<_> = owed.iter().collect();
        loop {
            let mut news = std::pin::pin!(self.confirmations.notified());
            news.as_mut().enable();
            self.keep_waiting(&mut waiting);
            if waiting.is_empty() || begun.elapsed() >= PATIENCE {
                break;
            }
            let _ = timeout_at((Instant::now() + LOOK).min(begun + PATIENCE), news).await;
            if waiting.len() > MANY {
                sleep(PAUSE).await;
            }
        }
        self.summary(enrolled, &owed, last)
    }

    /// Returns the result of [`Self::heard`]; `None` if that method would have to wait for a verifier.
    pub fn heard_now(&self, enrolled: &HashSet<Arc<str>>) -> Option<Heard> {
        let (last, owed) = (self.last_stream(), self.owed(enrolled));
        let mut waiting: Vec<_> = owed.iter().collect();
        self.keep_waiting(&mut waiting);
        waiting.is_empty().then(|| self.summary(enrolled, &owed, last))
    }

    /// Returns the announcements that the verifiers have not confirmed.
    fn owed(&self, enrolled: &HashSet<Arc<str>>) -> Vec<Owed> {
        let streams = self.lock();
        let mut owed = Vec::new();
        for id in enrolled {
            let listener = Listener::Verifier(id.to_string());
            for stream in streams.get(&listener).into_iter().flatten() {
                if let Some(number) = stream.marks.as_ref().and_then(|marks| marks.owed()) {
                    owed.push(Owed { listener: listener.clone(), stream: stream.id, number });
                }
            }
        }
        owed
    }

    /// Removes the announcements from `waiting` that the caller need not wait for: confirmed ones, ones that are
    /// overdue, and ones whose stream has closed.
    fn keep_waiting(&self, waiting: &mut Vec<&Owed>) {
        let streams = self.lock();
        waiting.retain(|owed| {
            let stream = streams.get(&owed.listener).and_then(|open| open.iter().find(|open| open.id == owed.stream));
            let marks = stream.filter(|stream| !stream.is_closed()).and_then(|stream| stream.marks.as_ref());
            marks.is_some_and(|marks| !marks.has_confirmed(owed.number) && !marks.is_overdue(PATIENCE))
        });
    }

    /// Summarises the wait. `last` is the number of the last stream that was opened before the wait. A verifier that
    /// has connected during the wait has to confirm its new stream's first mark, because it reads its configuration
    /// again.
    fn summary(&self, enrolled: &HashSet<Arc<str>>, owed: &[Owed], last: u64) -> Heard {
        let owed: HashMap<_, _> = owed.iter().map(|owed| (owed.stream, owed.number)).collect();
        let streams = self.lock();
        let mut heard = Heard::default();
        for id in enrolled {
            let listener = Listener::Verifier(id.to_string());
            let open: Vec<_> =
                streams.get(&listener).into_iter().flatten().filter(|stream| !stream.is_closed()).collect();
            let is_late = |stream: &&Stream| {
                let number = owed.get(&stream.id).copied().or((stream.id > last).then_some(1));
                let confirmed = |number| stream.marks.as_ref().is_none_or(|marks| marks.has_confirmed(number));
                number.is_some_and(|number| !confirmed(number))
            };
            if open.is_empty() {
                heard.absent.push(id.to_string());
            } else if open.iter().any(is_late) {
                heard.late.push(id.to_string());
            } else if open.iter().any(|stream| stream.marks.is_none()) {
                heard.unable.push(id.to_string());
            }
        }
        drop(streams);
        for names in [&mut heard.late, &mut heard.unable, &mut heard.absent] {
            names.sort_unstable();
        }
        heard
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::push::queue::EventQueue;
    use api::{Confirm, Event};
    use std::time::Instant as Clock;

    fn names(ids: &[&str]) -> HashSet<Arc<str>> {
        ids.iter().map(|id| Arc::from(*id)).collect()
    }

    fn listener(id: &str) -> Listener {
        Listener::Verifier(id.into())
    }

    /// Takes all events out of a stream, and returns the last mark among them.
    fn mark(stream: &EventQueue) -> Option<u64> {
        let events = std::iter::from_fn(|| stream.take()).collect::<Vec<_>>();
        events.iter().rev().find_map(|event| match serde_json::from_str(event).unwrap() {
            Event::Mark { mark } => Some(mark),
            _ => None,
        })
    }

    #[tokio::test]
    async fn a_command_returns_as_soon_as_the_last_verifier_has_confirmed() {
        let push = Arc::new(Push::default());
        let streams = ["a", "b"].map(|id| push.open_marked(listener(id), Confirm::Nothing));
        for (id, stream) in ["a", "b"].iter().zip(&streams) {
            assert!(push.confirm(id, mark(stream).unwrap()));
        }
        let enrolled = names(&["a", "b"]);
        let begun = Clock::now();
        assert!(push.heard(&enrolled).await.is_complete());
        assert_eq!(push.heard_now(&enrolled), Some(Heard::default()));
        push.send(&listener("a"), &Event::Recheck);
        assert_eq!(push.heard_now(&enrolled), None);
        let waits = tokio::spawn({
            let push = push.clone();
            async move { push.heard(&names(&["a", "b"])).await }
        });
        tokio::task::yield_now().await;
        // Later announcements, which this command does not wait for.
        push.broadcast(&Event::Policy);
        let marks = streams.each_ref().map(mark);
        assert!(!waits.is_finished() && !push.confirm("b", marks[0].unwrap()), "a mark belongs to its verifier");
        assert!(push.confirm("a", marks[0].unwrap()));
        assert!(waits.await.unwrap().is_complete());
        assert!(begun.elapsed() < PATIENCE);
        assert!(mark(&streams[0]).is_some(), "the next mark covers what was announced meanwhile");
    }

    #[tokio::test]
    async fn a_verifier_that_never_confirms_delays_one_command_for_a_bounded_time() {
        let push = Push::default();
        let streams = ["late", "old"].map(|id| match id {
            "late" => push.open_marked(listener(id), Confirm::Nothing),
            _ => push.open(listener(id), Confirm::Grants),
        });
        let enrolled = names(&["late", "old", "gone"]);
        let expected = Heard {
            late: vec!["late".into()],
            unable: vec!["old".into()],
            absent: vec!["gone".into()],
            unknown: Vec::new(),
        };
        let begun = Clock::now();
        assert_eq!(push.heard(&enrolled).await, expected);
        let first = begun.elapsed();
        assert!(first < PATIENCE * 2, "{first:?}");
        for _ in 0..100 {
            push.send(&listener("late"), &Event::Recheck);
            assert_eq!(push.heard(&enrolled).await, expected);
        }
        assert!(begun.elapsed() < first + PATIENCE, "{:?} after {first:?}", begun.elapsed());
        let late = mark(&streams[0]).unwrap();
        assert!(push.confirm("late", late) && push.confirm("late", mark(&streams[0]).unwrap()));
        assert_eq!(push.heard(&enrolled).await.late, Vec::<String>::new());
    }

    #[tokio::test]
    async fn a_verifier_that_disconnects_is_absent_and_confirms_a_new_stream() {
        let push = Push::default();
        let stream = push.open_marked(listener("a"), Confirm::Nothing);
        drop(stream);
        let enrolled = names(&["a"]);
        let begun = Clock::now();
        assert_eq!(push.heard(&enrolled).await.absent, ["a"]);
        let stream = push.open_marked(listener("a"), Confirm::Nothing);
        assert!(push.confirm("a", mark(&stream).unwrap()));
        assert!(push.heard(&enrolled).await.is_complete());
        assert!(begun.elapsed() < PATIENCE);
    }

    #[test]
    fn the_operator_reads_which_verifiers_have_not_confirmed() {
        assert_eq!(Heard::default().to_string(), "");
        let many = (0..12).map(|number| format!("edge-{number}")).collect();
        let heard = Heard { late: vec!["a".into(), "b".into()], absent: many, ..Heard::default() };
        let text = heard.to_string();
        assert!(text.starts_with("; a, b: connected, but has NOT confirmed"), "{text}");
        assert!(text.contains("edge-9 and 2 more: not connected") && !heard.is_complete(), "{text}");
    }
}
