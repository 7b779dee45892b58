//! One webhook: its URL and secrets, the messages that wait, and their delivery.
//!
//! The authority connects to the configured URL only, with TLS unless the URL is on loopback. It follows no redirects
//! and uses no proxy. It reads the status of an answer, and not the body.

use super::message::{Message, Secrets};
use super::queue::{Queue, Waiting};
use super::settings::WebhookSettings;
use crate::login::http_client;
use crate::{Directory, now};
use anyhow::{Context, Result, bail};
use reqwest::header::{CONTENT_TYPE, USER_AGENT};
use reqwest::{StatusCode, Url};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;
use tokio::time::Instant;
use zeroize::Zeroizing;

/// Maximum number of characters of the reason why an attempt failed. Parts of it may come from the program, such as
/// the names in its certificate.
const MOST_REASON: usize = 300;

/// A webhook.
pub struct Endpoint {
    name: String,
    delegations: Option<Vec<String>>,
    url: Url,
    secrets: Secrets,
    http: reqwest::Client,
    state: Mutex<State>,
    /// Wakes the delivery when a message comes.
    news: Notify,
}

#[derive(Default)]
struct State {
    queue: Queue,
    /// Whether an attempt to deliver a message is running.
    is_sending: bool,
    delivered: u64,
    failed: u64,
    lost: u64,
    trouble: Option<String>,
}

/// The state of a webhook, for operators.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WebhookState {
    /// Name of the webhook.
    pub name: String,
    /// The host to which messages go.
    pub host: String,
    /// Number of messages that the program has accepted since the authority started.
    pub delivered: u64,
    /// Number of attempts that have failed since the authority started.
    pub failed: u64,
    /// Number of messages that were lost since the authority started.
    pub lost: u64,
    /// Number of messages that are not delivered yet: those that wait, and one that is being sent.
    pub waiting: usize,
    /// The reason why the latest attempt failed; `None` if it succeeded, or if there was no attempt yet.
    pub trouble: Option<String>,
}

/// A message that will not be delivered.
pub struct Lost {
    /// The message.
    pub message: Message,
    /// The reason.
    pub why: String,
}

/// The reason why an attempt failed.
struct Failure {
    why: String,
    /// Whether the program says that it will never accept messages again.
    is_final: bool,
}

/// The next step of the delivery.
enum Step {
    Send(Waiting),
    SleepUntil(Instant),
    Wait,
}

impl Endpoint {
    /// Reads the secret and the CA certificates that the settings name. Makes no connection.
    ///
    /// # Errors
    /// Fails if a file cannot be read, or a secret or certificate is malformed.
    pub fn new(settings: &WebhookSettings, directory: &Directory) -> Result<Self> {
        let read = |file: &Path| {
            let path = directory.path().join(file);
            let text = std::fs::read_to_string(&path).map(Zeroizing::new);
            text.with_context(|| format!("cannot read {}", path.display()))
        };
        let secrets = Secrets::parse(&read(&settings.secret_file)?);
        let secrets = secrets.with_context(|| format!("cannot use {}", settings.secret_file.display()))?;
        let ca = settings.ca_file.as_deref().map(read).transpose()?;
        let http = http_client(ca.as_ref().map(|text| text.as_bytes())).context("cannot use the CA certificates")?;
        let (name, delegations) = (settings.name.clone(), settings.delegations.clone());
        let url = Url::parse(&settings.url)?;
        Ok(Self { name, delegations, url, secrets, http, state: Mutex::default(), news: Notify::new() })
    }

    /// Returns the name of the webhook.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the delegations whose requests the webhook learns of; `None` for all.
    pub fn delegations(&self) -> Option<&[String]> {
        self.delegations.as_deref()
    }

    /// Returns the host to which messages go. The rest of the URL may be a secret.
    pub fn host(&self) -> &str {
        self.url.host_str().unwrap_or_default()
    }

    /// Returns the state of the webhook.
    pub fn state(&self) -> WebhookState {
        let state = self.lock();
        WebhookState {
            name: self.name.clone(),
            host: self.host().to_owned(),
            delivered: state.delivered,
            failed: state.failed,
            lost: state.lost,
            waiting: state.queue.len() + usize::from(state.is_sending),
            trouble: state.trouble.clone(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a message. If the queue is full, returns the message that gives way.
    pub fn queue(&self, message: Message) -> Option<Lost> {
        let mut state = self.lock();
        let displaced = add(&mut state, Waiting::new(message, Instant::now()));
        drop(state);
        self.news.notify_one();
        displaced
    }

    /// Delivers messages until one is lost, and returns that message.
    pub async fn deliver(&self) -> Lost {
        loop {
            match self.step() {
                Step::Send(waiting) => {
                    let result = self.attempt(&waiting.message).await;
                    if let Some(lost) = self.settle(waiting, result) {
                        return lost;
                    }
                }
                Step::SleepUntil(due) => tokio::select! {
                    () = tokio::time::sleep_until(due) => {}
                    () = self.news.notified() => {}
                },
                Step::Wait => self.news.notified().await,
            }
        }
    }

    fn step(&self) -> Step {
        let mut state = self.lock();
        match state.queue.take(Instant::now()) {
            Some(waiting) => {
                state.is_sending = true;
                Step::Send(waiting)
            }
            None => state.queue.next().map_or(Step::Wait, Step::SleepUntil),
        }
    }

    /// Notes the result of an attempt. Queues the message again if it was not delivered. If a message is lost, returns
    /// it: this one, or one that gives way to it.
    fn settle(&self, mut waiting: Waiting, result: Result<(), Failure>) -> Option<Lost> {
        let mut state = self.lock();
        state.is_sending = false;
        let Err(Failure { why, is_final }) = result else {
            state.delivered += 1;
            if state.trouble.take().is_some() {
                tracing::info!("the webhook {} accepts messages again", self.name);
            }
            return None;
        };
        state.failed += 1;
        let again = waiting.postpone(Instant::now()) && !is_final;
        if state.trouble.replace(why.clone()).is_none() {
            let next = if again { "trying again" } else { "this message is lost" };
            tracing::warn!("the webhook {} does not accept messages; {next}: {why}", self.name);
        }
        if again {
            return add(&mut state, waiting);
        }
        state.lost += 1;
        Some(Lost { message: waiting.message, why })
    }

    /// Sends a message once, and returns the host that has accepted it.
    ///
    /// # Errors
    /// Fails if the program cannot be reached or does not accept the message.
    pub async fn send(&self, message: &Message) -> Result<&str> {
        match self.attempt(message).await {
            Ok(()) => Ok(self.host()),
            Err(Failure { why, .. }) => bail!("{} does not accept the message: {why}", self.host()),
        }
    }

    async fn attempt(&self, message: &Message) -> Result<(), Failure> {
        let Message { id, body, .. } = message;
        // The time of the attempt, not of the change: programs refuse old messages, because somebody may replay them.
        let time = now();
        let request = self.http.post(self.url.clone()).header(CONTENT_TYPE, "application/json");
        let request = request.header(USER_AGENT, "vouchsafe");
        let request = request.header("webhook-id", id).header("webhook-timestamp", time);
        let request = request.header("webhook-signature", self.secrets.sign(id, time, body)).body(body.clone());
        let failure = |why: String| {
            let why = why.replace(char::is_control, "?").chars().take(MOST_REASON).collect();
            Failure { why, is_final: false }
        };
        match request.send().await.map(|response| response.status()) {
            Ok(status) if status.is_success() => Ok(()),
            Ok(StatusCode::GONE) => {
                let why = "it answers 410 Gone: remove it from authority.toml if it no longer exists".to_owned();
                Err(Failure { why, is_final: true })
            }
            Ok(status) if status.is_redirection() => {
                Err(failure(format!("it answers {status}, and redirects are not followed: change `url`")))
            }
            Ok(status) => Err(failure(format!("it answers {status}"))),
            // The URL may contain a secret, and the error's causes are informative enough.
            Err(error) => Err(failure(format!("{:#}", anyhow::Error::from(error.without_url())))),
        }
    }
}

/// Adds a message to the queue. If the queue is full, returns the message that gives way.
fn add(state: &mut State, waiting: Waiting) -> Option<Lost> {
    let message = state.queue.add(waiting)?;
    state.lost += 1;
    Some(Lost { message, why: "too many messages wait".into() })
}
