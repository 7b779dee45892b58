//! Watches. A watch reads the stream of a member, divides it into messages, and checks that the member still answers.

use crate::failure::{self, Failure};
use crate::gateway::{ATTEMPT_TIME, Gateway, MOST_ANSWER};
use crate::messages::{self, WatchMessage};
use crate::types::WatchEvent;
use crate::worker::Worker;
use reqwest::Response;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Maximum number of events that wait for the caller. While they wait, nothing is read from the member.
const MOST_EVENTS: usize = 8;
/// Time without an event after which the member is asked whether it still lives and has a leader.
const SILENCE: Duration = Duration::from_secs(2);
/// The time that the member has for its answer, and the time that it has when it is asked again.
const PATIENCE: [Duration; 2] = [ATTEMPT_TIME, Duration::from_millis(1500)];

/// A watch over the keys with a prefix. The watch ends with [`WatchEvent::Compacted`] or [`WatchEvent::Lost`].
///
/// If no first revision is given, the watch begins at a revision after the call. A caller that must not miss a change
/// lists the keys, and then watches from the list's revision plus one.
pub struct Watch {
    events: mpsc::Receiver<WatchEvent>,
    // Keeps the thread alive.
    _worker: Worker,
}

impl Watch {
    /// Opens a watch, in the background.
    pub(crate) fn open(worker: &Worker, prefix: &str, from_revision: Option<i64>) -> Self {
        let (sender, events) = mpsc::channel(MOST_EVENTS);
        let body = messages::watch(prefix, from_revision).to_string().into_bytes();
        let follower = sender.clone();
        let started = worker.run(move |gateway| async move {
            // The watch goes on beside the calls, and does not count among them.
            tokio::spawn(follow(gateway, body, follower));
        });
        if let Err(why) = started {
            let _ = sender.try_send(WatchEvent::Lost(why.into()));
        }
        Self { events, _worker: worker.clone() }
    }

    /// Waits for the next event, for at most `timeout`. Blocks the thread.
    pub fn next(&mut self, timeout: Duration) -> WatchEvent {
        match wait(self.events.recv(), timeout) {
            Some(event) => event.unwrap_or_else(over),
            None => WatchEvent::Quiet,
        }
    }

    /// Waits for the next event without a time limit. If the future is dropped, no event is lost.
    pub async fn next_async(&mut self) -> WatchEvent {
        self.events.recv().await.unwrap_or_else(over)
    }
}

fn over() -> WatchEvent {
    WatchEvent::Lost("the watch is over".into())
}

/// Waits for a future without a runtime. The function may also be called inside of one, where tokio's own blocking
/// functions panic.
fn wait<F: Future>(future: F, timeout: Duration) -> Option<F::Output> {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let end = Instant::now() + timeout;
    let waker: Waker = Arc::new(Unpark(std::thread::current())).into();
    let mut context = Context::from_waker(&waker);
    // Within a task of tokio, a future that has used up the task's budget would be pending for ever.
    let mut future = pin!(tokio::task::unconstrained(future));
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return Some(output);
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        std::thread::park_timeout(left);
    }
}

/// Opens a stream at the first member that accepts the watch, and passes on the stream's events until the stream ends.
async fn follow(gateway: Arc<Gateway>, body: Vec<u8>, events: mpsc::Sender<WatchEvent>) {
    let mut failures = Vec::new();
    let order: Vec<_> = gateway.in_order().map(|(index, endpoint)| (index, endpoint.to_owned())).collect();
    for (index, endpoint) in order {
        // The caller may have dropped the watch.
        if events.is_closed() {
            return;
        }
        let opened = timeout(ATTEMPT_TIME * 2, gateway.open(&endpoint, body.clone())).await;
        match opened.unwrap_or_else(|_| Err(Failure::Unclear("no answer".into()))) {
            Ok(stream) => {
                gateway.prefer(index);
                let last = tokio::select! {
                    () = events.closed() => return,
                    last = read(&gateway, &endpoint, stream, &events) => last,
                };
                let _ = events.send(last).await;
                return;
            }
            Err(failure) => failures.push(format!("{endpoint}: {}", text(failure))),
        }
    }
    let _ = events.send(WatchEvent::Lost(failures.join("; "))).await;
}

/// Reads a stream to its end, and returns the last event.
async fn read(
    gateway: &Gateway,
    endpoint: &str,
    mut stream: Response,
    events: &mpsc::Sender<WatchEvent>,
) -> WatchEvent {
    let lost = |why: String| WatchEvent::Lost(format!("{endpoint}: {why}"));
    let mut lines = Lines::default();
    loop {
        let chunk = match timeout(SILENCE, stream.chunk()).await {
            Ok(Ok(Some(chunk))) => chunk,
            Ok(Ok(None)) => return lost("the member has ended the watch".into()),
            Ok(Err(error)) => return lost(failure::chain(&error)),
            Err(_) => match check(gateway, endpoint).await {
                Ok(()) => continue,
                Err(why) => return lost(why),
            },
        };
        lines.push(&chunk);
        while let Some(line) = lines.next() {
            match messages::read_watch(&line) {
                Ok(WatchMessage::Alive) => {}
                Ok(WatchMessage::Event(event @ WatchEvent::Changed { .. })) => {
                    if events.send(event).await.is_err() {
                        return over();
                    }
                }
                Ok(WatchMessage::Event(last)) => return last,
                Err(failure) => return lost(text(failure)),
            }
        }
        if lines.is_too_long() {
            return lost("a message of the watch is too long".into());
        }
    }
}

/// Checks that a silent member still lives and has a leader. The kernel's probes of the connection say nothing about a
/// process that hangs.
async fn check(gateway: &Gateway, endpoint: &str) -> Result<(), String> {
    let mut why = String::new();
    for patience in PATIENCE {
        match gateway.status(endpoint, patience).await {
            Ok(status) if status.leader != 0 => return Ok(()),
            Ok(_) => why = "the member has no leader".into(),
            Err(failure) => why = text(failure),
        }
        // The members may be about to elect a leader.
        tokio::time::sleep(ATTEMPT_TIME).await;
    }
    Err(why)
}

fn text(failure: Failure) -> String {
    match failure {
        Failure::NotApplied(why) | Failure::Unclear(why) | Failure::Refused(why) => why,
        Failure::Full => failure::NO_SPACE.into(),
        Failure::TooLong => "the answer is too long".into(),
    }
}

/// Cuts a stream into lines, however its pieces arrive.
#[derive(Default)]
struct Lines {
    buffer: Vec<u8>,
    /// Number of bytes at the beginning of `buffer` that contain no end of a line.
    searched: usize,
}

impl Lines {
    fn push(&mut self, chunk: &[u8]) {
        self.buffer.extend_from_slice(chunk);
    }

    /// Returns the next line that is complete and not empty.
    fn next(&mut self) -> Option<Vec<u8>> {
        loop {
            let Some(at) = self.buffer[self.searched..].iter().position(|byte| *byte == b'\n') else {
                self.searched = self.buffer.len();
                return None;
            };
            let rest = self.buffer.split_off(self.searched + at + 1);
            let mut line = std::mem::replace(&mut self.buffer, rest);
            self.searched = 0;
            line.pop();
            if !line.iter().all(u8::is_ascii_whitespace) {
                return Some(line);
            }
        }
    }

    fn is_too_long(&self) -> bool {
        self.buffer.len() > MOST_ANSWER
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_the_same_however_the_stream_is_cut() {
        let stream = b"{\"a\":1}\n\n{\"b\":2}\n{\"c\"";
        for size in 1..=stream.len() {
            let mut lines = Lines::default();
            let mut found = Vec::new();
            for chunk in stream.chunks(size) {
                lines.push(chunk);
                found.extend(std::iter::from_fn(|| lines.next()));
            }
            assert_eq!(found, [b"{\"a\":1}".to_vec(), b"{\"b\":2}".to_vec()], "in pieces of {size}");
            assert_eq!(lines.buffer, b"{\"c\"");
        }
    }

    #[test]
    fn a_line_without_an_end_is_bounded() {
        let mut lines = Lines::default();
        lines.push(&vec![b'a'; MOST_ANSWER + 1]);
        assert_eq!(lines.next(), None);
        assert!(lines.is_too_long());
    }

    #[test]
    fn waiting_ends_with_the_event_or_with_the_time_also_within_a_runtime() {
        let waits = || {
            let (sender, mut receiver) = mpsc::channel::<u8>(1);
            assert_eq!(wait(receiver.recv(), Duration::from_millis(1)), None);
            let thread = std::thread::spawn(move || sender.blocking_send(7));
            assert_eq!(wait(receiver.recv(), Duration::from_secs(60)), Some(Some(7)));
            assert_eq!(wait(receiver.recv(), Duration::from_secs(60)), Some(None));
            thread.join().expect("a thread").expect("sent");
        };
        waits();
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async { waits() });
    }
}
