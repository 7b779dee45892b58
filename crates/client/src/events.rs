//! The authority's event stream (server-sent events). A task reads the stream, and reconnects after pauses that grow
//! and vary at random. In a cluster, the task reads the stream of the authority that the client uses for its calls. If
//! this authority fails, the task tries all others before the first pause. If the client changes to another authority
//! for another reason, the task opens the new stream before it closes the old stream.
//!
//! Each stream has a connection of HTTP/1.1 of its own, which takes less of the authority's memory than one of HTTP/2.

use crate::call::Call;
use crate::{Authority, CONNECT_TIME, Error};
use api::{Confirm, Event};
use reqwest::{Response, Url};
use std::time::Duration;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, interval, sleep, sleep_until, timeout};

/// Silence after which the client considers a stream dead; the authority sends something every 10 s.
const SILENCE: Duration = Duration::from_secs(25);
/// The first and the longest pause before the next attempt to connect.
const PAUSES: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(30));
/// Minimum duration of a stream that counts as a success. A shorter stream counts as a failure.
const LASTED: Duration = Duration::from_secs(10);
/// Interval at which the client looks whether authorities of the cluster have to be measured.
const TEND: Duration = Duration::from_secs(1);
/// Maximum number of events that wait for the caller; beyond that the authority has to wait, and in the end
/// disconnects.
const QUEUE: usize = 64;
/// Maximum length of an event, in bytes.
const MOST_EVENT: usize = 1024 * 1024;

/// The events and marks that the authority is to send on a stream.
#[derive(Clone, Copy)]
pub(crate) struct Wanted {
    pub confirms: Confirm,
    pub marks: bool,
}

/// A stream of events that continues after a lost connection. The first event of each connection is [`Event::Hello`].
/// The caller has possibly missed events before `Hello`, so it has to read its configuration or its destinations again.
/// Dropping the `EventStream` closes the connection.
pub struct EventStream {
    events: Receiver<Result<Event, Error>>,
    trouble: watch::Receiver<Option<String>>,
    task: JoinHandle<()>,
}

impl EventStream {
    pub(crate) fn start(authority: Authority, wanted: Wanted) -> Self {
        let (sender, events) = channel(QUEUE);
        let (lost, trouble) = watch::channel(None);
        Self { events, trouble, task: tokio::spawn(follow(authority, wanted, sender, lost)) }
    }

    /// Returns a receiver that shows the reason why there is no connection at the moment. It shows `None` while there
    /// is a connection, and until the first attempt has failed.
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

/// An open stream, and the authority at which it is.
struct Connection {
    url: Url,
    response: Response,
}

/// The reason why the task stops reading a connection.
enum End {
    /// The receiver of the events was dropped.
    Unheard,
    /// The client now uses another authority.
    Moved,
    /// The connection broke, or the authority closed it. The text is the reason.
    Lost(String),
}

async fn follow(
    authority: Authority,
    wanted: Wanted,
    events: Sender<Result<Event, Error>>,
    lost: watch::Sender<Option<String>>,
) {
    let mut pause = PAUSES.0;
    let mut next = None;
    let mut losses = 0;
    while !events.is_closed() {
        let opened = match next.take() {
            Some(connection) => Ok(connection),
            None => open(&authority, wanted).await,
        };
        let (why, goes_on) = match opened {
            Err(error @ (Error::NotLoggedIn | Error::Denied(_))) => {
                let _ = events.send(Err(error)).await;
                return;
            }
            Err(error) => (error.to_string(), false),
            Ok(mut connection) => {
                let since = Instant::now();
                let end = read(&authority, &mut connection, &events, &mut pause, &lost).await;
                losses = if since.elapsed() >= LASTED { 0 } else { losses + 1 };
                match end {
                    End::Unheard => return,
                    End::Moved => {
                        next = open(&authority, wanted).await.ok();
                        continue;
                    }
                    End::Lost(why) => (why, losses < note_loss(&authority, &connection.url)),
                }
            }
        };
        tracing::debug!("the event stream has no connection: {why}");
        if !goes_on {
            lost.send_replace(Some(why));
            rest(&authority, jittered(pause)).await;
            pause = (pause * 2).min(PAUSES.1);
            losses = 0;
        }
    }
}

/// Opens a stream at an authority that answers, and uses this authority from then on.
async fn open(authority: &Authority, wanted: Wanted) -> Result<Connection, Error> {
    // Authorities of earlier releases ignore the second parameter.
    let marks = if wanted.marks { "&marks=true" } else { "" };
    let call = Call::get(format!("v1/events?confirm={}{marks}", wanted.confirms.name())).endless();
    let call = call.with_token(authority.token.as_ref())?;
    let opened = timeout(CONNECT_TIME * 2, authority.cluster.send(&call)).await;
    let (url, response) = opened.map_err(|_| Error::Unreachable("the event stream timed out".into()))??;
    authority.cluster.change(|choice, _| choice.adopt(&url));
    Ok(Connection { url, response })
}

/// Notes that the stream at an authority ended. Returns how many streams may end early, one after the other, before the
/// task makes a pause: in a cluster, each authority has its turn first.
fn note_loss(authority: &Authority, url: &Url) -> usize {
    authority.cluster.change(|choice, now| {
        if !choice.are_several() {
            return 0;
        }
        choice.failed(url, now, now);
        choice.urls().count()
    })
}

/// Makes a pause, which ends early if an authority of a silent cluster answers a call.
async fn rest(authority: &Authority, pause: Duration) {
    let mut used = authority.cluster.watch();
    if used.borrow_and_update().is_alive {
        return sleep(pause).await;
    }
    let _ = timeout(pause, used.wait_for(|used| used.is_alive)).await;
}

/// Reads events from a connection until it ends. Each event resets the pause, and withdraws the report that there is no
/// connection.
async fn read(
    authority: &Authority,
    connection: &mut Connection,
    events: &Sender<Result<Event, Error>>,
    pause: &mut Duration,
    lost: &watch::Sender<Option<String>>,
) -> End {
    let Connection { url, response } = connection;
    let cluster = &authority.cluster;
    let mut used = cluster.watch();
    let mut ticks = interval(TEND);
    let mut lines = Lines::default();
    let mut heard = Instant::now();
    loop {
        if used.borrow_and_update().url != *url {
            return End::Moved;
        }
        let chunk = tokio::select! {
            _ = used.changed() => continue,
            _ = ticks.tick() => {
                cluster.tend();
                continue;
            }
            () = sleep_until(heard + SILENCE) => return End::Lost("the event stream timed out".into()),
            chunk = response.chunk() => chunk,
        };
        let data = match chunk {
            Ok(Some(chunk)) => lines.feed(&chunk),
            Ok(None) => return End::Lost("the authority has closed the connection".into()),
            Err(error) => Err(error.into()),
        };
        let data = match data {
            Ok(data) => data,
            Err(error) => return End::Lost(error.to_string()),
        };
        heard = Instant::now();
        if cluster.are_several() {
            cluster.change(|choice, now| choice.answered(url, now, now));
        }
        for data in data {
            match serde_json::from_str(&data) {
                Ok(Event::RoleChange { next }) => {
                    tracing::info!("the authority at {url} is about to stop");
                    cluster.end(url, next.as_deref());
                }
                Ok(event) => {
                    *pause = PAUSES.0;
                    lost.send_if_modified(|trouble| trouble.take().is_some());
                    if events.send(Ok(event)).await.is_err() {
                        return End::Unheard;
                    }
                }
                // A newer authority may send events that this client doesn't know.
                Err(error) => tracing::warn!("ignoring an unknown event from the authority: {error}"),
            }
        }
    }
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
