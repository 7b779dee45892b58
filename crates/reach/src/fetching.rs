//! Calls to the authority for callers that block. A thread with a runtime of its own makes the calls; the first call
//! starts it.

use crate::kept::KeptSession;
use crate::login::{Timed, timed};
use client::{Authority, Error};
use engine::agent::Event;
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::Duration;
use tokio::runtime::Builder;

/// A piece of work for the thread that makes the calls.
type Work = Box<dyn FnOnce(&Authority) + Send>;

/// Maximum time that a caller waits for an answer: a little more than a call may take.
const WAIT: Duration = Duration::from_secs(20);

/// A message from the authority.
pub enum News {
    /// The authority pushed this event.
    Event(Event),
    /// The session has ended.
    Ended,
}

/// The thread that makes a session's calls to the authority; `None` until the first call.
#[derive(Default)]
pub struct Fetcher(Mutex<Option<tokio::sync::mpsc::UnboundedSender<Work>>>);

impl Fetcher {
    /// Makes a call to the session's authority and waits for the answer.
    ///
    /// # Errors
    ///
    /// Fails if the thread can't be started, if the call fails, or if the authority does not answer within 20 s.
    pub fn call<T, F>(
        &self,
        kept: &KeptSession,
        work: impl FnOnce(Authority) -> F + Send + 'static,
    ) -> Result<Timed<T>, Error>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let (answer, answered) = mpsc::sync_channel(1);
        self.send(
            kept,
            Box::new(move |authority| {
                let work = work(authority.clone());
                tokio::spawn(async move {
                    let Timed { value, requested, answered } = timed(work).await;
                    let _ = answer.send(value.map(|value| Timed { value, requested, answered }));
                });
            }),
        )?;
        let late = |_| Error::Unreachable(format!("the authority did not answer within {} s", WAIT.as_secs()));
        answered.recv_timeout(WAIT).map_err(late)?
    }

    /// Calls `hear` with each event that the authority pushes, and with [`News::Ended`] once the session has ended. The
    /// first event of every connection is [`Event::Hello`].
    ///
    /// # Errors
    ///
    /// Fails if the thread can't be started.
    pub fn follow(&self, kept: &KeptSession, hear: impl Fn(News) + Send + Sync + 'static) -> Result<(), Error> {
        self.send(
            kept,
            Box::new(move |authority| {
                let mut events = authority.events();
                tokio::spawn(async move {
                    loop {
                        match events.next().await {
                            Ok(event) => {
                                for event in client::convert::event(&event).into_iter().flat_map(Event::parts) {
                                    hear(News::Event(event));
                                }
                            }
                            Err(_) => return hear(News::Ended),
                        }
                    }
                });
            }),
        )
    }

    fn send(&self, kept: &KeptSession, work: Work) -> Result<(), Error> {
        let mut thread = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let sender = match &*thread {
            Some(sender) => sender,
            None => thread.insert(start(kept)?),
        };
        sender.send(work).map_err(|_| Error::Other("the thread for calls to the authority has ended".to_owned()))
    }
}

fn start(kept: &KeptSession) -> Result<tokio::sync::mpsc::UnboundedSender<Work>, Error> {
    let authority = kept.caller()?;
    let failed = |error: std::io::Error| Error::Other(format!("cannot start a thread: {error}"));
    let runtime = Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let (sender, mut works) = tokio::sync::mpsc::unbounded_channel::<Work>();
    let run = move || {
        runtime.block_on(async {
            while let Some(work) = works.recv().await {
                work(&authority);
            }
        });
    };
    std::thread::Builder::new().name("authority".to_owned()).spawn(run).map_err(failed)?;
    Ok(sender)
}
