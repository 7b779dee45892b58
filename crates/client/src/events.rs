//! The push channel: server-sent events, read by a task that reconnects with growing, jittered pauses.

use crate::{Authority, CONNECT_TIME, Error, send};
use api::{Confirm, Event};
use reqwest::{Method, Response};
use std::time::Duration;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Silence after which the client considers a stream dead; the authority sends something every 10 s.
const SILENCE: Duration = Duration::from_secs(25);
/// The first and the longest pause before the next attempt to connect.
const PAUSES: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(30));
/// Maximum number of events that wait for the caller; beyond that the authority has to wait, and in the end
/// disconnects.
const QUEUE: usize = 64;
/// Maximum length of an event, in bytes.
const MOST_EVENT: usize = 1024 * 1024;

/// A stream of events that continues across connections. The first event of each connection is [`Event::Hello`]. The
/// caller has possibly missed events before `Hello`, so it has to read its configuration or destinations again.
/// Dropping the stream closes the connection.
pub struct EventStream {
    events: Receiver<Result<Event, Error>>,
    trouble: watch::Receiver<Option<String>>,
    task: JoinHandle<()>,
}

impl EventStream {
    pub(crate) fn start(authority: Authority, confirms: Confirm) -> Self {
        let (sender, events) = channel(QUEUE);
        let (lost, trouble) = watch::channel(None);
        Self { events, trouble, task: tokio::spawn(follow(authority, confirms, sender, lost)) }
    }

    /// Returns a receiver that shows why there is no connection at the moment. It shows `None` while there is a
    /// connection, and before the first attempt has failed.
    pub fn trouble(&self) -> watch::Receiver<Option<String>> {
        self.trouble.clone()
    }

    /// Returns the next event; safe to cancel. The stream re-establishes lost connections by itself.
    ///
    /// # Errors
    ///
    /// Fails with the error, usually [`Error::NotLoggedIn`], that ended the stream for good.
    pub async fn next(&mut self) -> Result<Event, Error> {
        self.events.recv().await.unwrap_or_else(|| Err(Error::Other("the event stream has ended".into())))
    }
}

impl Drop for EventStream {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn follow(
    authority: Authority,
    confirms: Confirm,
    events: Sender<Result<Event, Error>>,
    lost: watch::Sender<Option<String>>,
) {
    let mut pause = PAUSES.0;
    while !events.is_closed() {
        let came = || {
            lost.send_if_modified(|trouble| trouble.take().is_some());
        };
        let why = match connection(&authority, confirms, &events, &mut pause, came).await {
            Err(error @ (Error::NotLoggedIn | Error::Denied(_))) => {
                let _ = events.send(Err(error)).await;
                return;
            }
            Err(error) => error.to_string(),
            Ok(()) => "the authority has closed the connection".to_owned(),
        };
        tracing::debug!("event stream: {why}");
        lost.send_replace(Some(why));
        tokio::time::sleep(jittered(pause)).await;
        pause = (pause * 2).min(PAUSES.1);
    }
}

/// Reads events from one connection until it ends. Each event resets the pause and calls `came`.
async fn connection(
    authority: &Authority,
    confirms: Confirm,
    events: &Sender<Result<Event, Error>>,
    pause: &mut Duration,
    came: impl Fn(),
) -> Result<(), Error> {
    let path = format!("v1/events?confirm={}", confirms.name());
    let request = authority.authorized(authority.request(Method::GET, &path)?)?;
    let silent = |_| Error::Unreachable("the event stream timed out".into());
    let mut response = timeout(CONNECT_TIME * 2, send(request)).await.map_err(silent)??;
    let mut lines = Lines::default();
    while let Some(chunk) = timeout(SILENCE, chunk(&mut response)).await.map_err(silent)?? {
        for data in lines.feed(&chunk)? {
            match serde_json::from_str(&data) {
                Ok(event) => {
                    *pause = PAUSES.0;
                    came();
                    if events.send(Ok(event)).await.is_err() {
                        return Ok(());
                    }
                }
                // A newer authority may send events that this client doesn't know.
                Err(error) => tracing::warn!("ignoring an unknown event from the authority: {error}"),
            }
        }
    }
    Ok(())
}

async fn chunk(response: &mut Response) -> Result<Option<Vec<u8>>, Error> {
    Ok(response.chunk().await?.map(|bytes| bytes.to_vec()))
}

/// Returns between half of a pause and all of it, so that the clients of a restarted authority don't all reconnect at
/// once.
fn jittered(pause: Duration) -> Duration {
    let chance = getrandom::u32().unwrap_or(u32::MAX);
    pause / 2 + (pause / 2).mul_f64(f64::from(chance) / f64::from(u32::MAX))
}

/// Extracts the `data` lines from a server-sent event stream.
#[derive(Default)]
struct Lines {
    buffer: Vec<u8>,
}

impl Lines {
    fn feed(&mut self, chunk: &[u8]) -> Result<Vec<String>, Error> {
        self.buffer.extend_from_slice(chunk);
        let mut data = Vec::new();
        while let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.buffer.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line);
            if let Some(text) = line.trim_end().strip_prefix("data:") {
                data.push(text.trim_start().to_owned());
            }
        }
        if self.buffer.len() > MOST_EVENT {
            return Err(Error::Other(format!("the authority sent an event of more than {MOST_EVENT} bytes")));
        }
        Ok(data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_found_however_they_are_cut() {
        let stream = b"data: {\"event\":\"hello\"}\n\n: comment\r\nevent: x\ndata:{\"event\":\"alive\"}\r\n\r\n";
        for size in 1..stream.len() {
            let mut lines = Lines::default();
            let data: Vec<_> = stream.chunks(size).flat_map(|chunk| lines.feed(chunk).unwrap()).collect();
            assert_eq!(data, ["{\"event\":\"hello\"}", "{\"event\":\"alive\"}"]);
        }
    }

    #[test]
    fn an_endless_event_is_refused() {
        let mut lines = Lines::default();
        assert!(lines.feed(&vec![b'x'; MOST_EVENT + 1]).is_err());
    }
}
