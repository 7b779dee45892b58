//! All webhooks. This module passes changes on to them, and records lost messages in the log and in the audit trail.

use super::endpoint::{Endpoint, Lost, WebhookState};
use super::message::{Message, Notice};
use super::settings::WebhookSettings;
use crate::storage::{AuditEvent, AuditLog};
use crate::{Directory, now};
use anyhow::{Context, Result};
use engine::policy::Policy;
use futures_util::future::join_all;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Time for which the stopping authority waits until messages are delivered.
const FAREWELL: Duration = Duration::from_secs(2);
/// Interval at which the stopping authority looks whether messages still wait.
const LOOK: Duration = Duration::from_millis(20);

/// The webhooks of the running authority.
pub struct Webhooks {
    endpoints: Vec<Endpoint>,
    /// URL of the console, to which messages lead.
    console: Option<String>,
    audit: Arc<AuditLog>,
}

impl Webhooks {
    /// Reads the secrets and the CA certificates that the settings name. Makes no connection.
    ///
    /// # Errors
    /// Fails if a file cannot be read, or a secret or certificate is malformed.
    pub fn new(
        settings: &[WebhookSettings],
        directory: &Directory,
        console: Option<String>,
        audit: Arc<AuditLog>,
    ) -> Result<Self> {
        let endpoints = settings.iter().map(|of| endpoint(of, directory)).collect::<Result<_>>()?;
        Ok(Self { endpoints, console, audit })
    }

    /// Queues the messages about a change that was recorded. Does not wait until they are delivered.
    pub async fn announce(&self, notice: &Notice) {
        let mut lost = Vec::new();
        for endpoint in &self.endpoints {
            match notice.message(endpoint.delegations(), self.console.as_deref(), now()) {
                Ok(Some(message)) => lost.extend(endpoint.queue(message).map(|lost| (endpoint, lost))),
                Ok(None) => {}
                Err(error) => tracing::error!("cannot make a message for the webhook {}: {error:#}", endpoint.name()),
            }
        }
        for (endpoint, lost) in lost {
            self.lose(endpoint, lost).await;
        }
    }

    /// Delivers messages until the future is dropped.
    ///
    /// # Errors
    /// Never fails. The method returns a `Result` because all tasks of the server do.
    pub async fn run(&self) -> Result<()> {
        join_all(self.endpoints.iter().map(|endpoint| self.run_one(endpoint))).await;
        std::future::pending().await
    }

    async fn run_one(&self, endpoint: &Endpoint) {
        loop {
            let lost = endpoint.deliver().await;
            self.lose(endpoint, lost).await;
        }
    }

    /// Waits at most two seconds until all messages for webhooks that work are delivered. Logs how many messages are
    /// lost because the authority stops.
    pub async fn finish(&self) {
        let begun = Instant::now();
        let is_busy = |state: &WebhookState| state.waiting > 0 && state.trouble.is_none();
        while begun.elapsed() < FAREWELL && self.states().iter().any(is_busy) {
            sleep(LOOK).await;
        }
        for state in self.states().into_iter().filter(|state| state.waiting > 0) {
            let WebhookState { name, waiting, .. } = state;
            tracing::error!("messages to the webhook {name} are lost because the authority stops: {waiting}");
            let detail = format!("{name}: {waiting}: the authority stops");
            self.record(AuditEvent::new("webhook_lost").detail(detail)).await;
        }
    }

    /// Returns the state of each webhook.
    pub fn states(&self) -> Vec<WebhookState> {
        self.endpoints.iter().map(Endpoint::state).collect()
    }

    async fn lose(&self, endpoint: &Endpoint, lost: Lost) {
        let Lost { message: Message { name, person, receiver, .. }, why } = lost;
        tracing::error!("a message to the webhook {} is lost: {name}: {why}", endpoint.name());
        let event = AuditEvent::new("webhook_lost").person(&person).receiver(&receiver);
        self.record(event.detail(format!("{}: {name}: {why}", endpoint.name()))).await;
    }

    async fn record(&self, event: AuditEvent) {
        if let Err(error) = self.audit.write(event).await {
            tracing::error!("cannot record the loss of a message to a webhook: {error:#}");
        }
    }
}

fn endpoint(settings: &WebhookSettings, directory: &Directory) -> Result<Endpoint> {
    Endpoint::new(settings, directory)
        .with_context(|| format!("cannot use the webhook {} of authority.toml", settings.name))
}

/// Sends a test message to a webhook, once, and returns the host that has accepted it.
///
/// # Errors
/// Fails if the secret or the CA certificates cannot be used, or the program does not accept the message.
pub async fn test(settings: &WebhookSettings, directory: &Directory) -> Result<String> {
    let endpoint = endpoint(settings, directory)?;
    Ok(endpoint.send(&Message::test(now())?).await?.to_owned())
}

/// Returns a warning for each delegation that a webhook names and the policy does not have. Such a name is allowed,
/// because the policy may get the delegation later.
pub fn unknown_delegations<'w>(webhooks: &'w [WebhookSettings], policy: &Policy) -> Vec<String> {
    let names = |webhook: &'w WebhookSettings| webhook.delegations.iter().flatten().map(move |name| (webhook, name));
    let named = webhooks.iter().flat_map(names);
    let unknown = named.filter(|(_, name)| !policy.delegations().iter().any(|known| known.name == **name));
    let warning = |(webhook, name): (&WebhookSettings, &String)| {
        format!("the webhook {} names the delegation {}, which the policy lacks", webhook.name, name.escape_debug())
    };
    unknown.map(warning).collect()
}
