//! The messages, and their signatures, both as in the Standard Webhooks specification 1.0.
//!
//! A message contains the names that delegates see at the console, and the link to the page on which they decide. It
//! does not contain the reason: people who ask could otherwise put text and links of their own into a team's chat.

use crate::login::credentials;
use anyhow::{Context, Result, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use engine::policy::delegation::RequestId;
use ring::hmac;
use serde::Serialize;
use shell::table::utc;
use zeroize::Zeroizing;

/// The beginning of a secret in text.
const PREFIX: &str = "whsec_";
/// Minimum and maximum length of a secret, in bytes.
const SECRET: std::ops::RangeInclusive<usize> = 24..=64;
/// Maximum number of secrets of a webhook: while an operator replaces a secret, the old and the new one.
const MOST_SECRETS: usize = 2;

/// A change that webhooks announce.
#[derive(Clone, Debug)]
pub struct Notice {
    /// The kind of change, as the audit trail names it.
    pub event: &'static str,
    /// The number of the request.
    pub request: RequestId,
    /// The person who asks. For a consent without a request, the person, or `group:NAME` or `tag:NAME`.
    pub person: String,
    /// Name of the receiver (the protected destination) to which the person asks for access.
    pub receiver: String,
    /// The services in the notation of the policy file: those of the consent if there is one, otherwise those that the
    /// person asks for.
    pub services: Vec<String>,
    /// The number of seconds for which the person wants access, if they said so.
    pub lifetime: Option<u32>,
    /// Time at which the consent ends, in Unix seconds, if there is one.
    pub until: Option<u64>,
    /// Names of the delegations whose delegates decide about the request.
    pub delegations: Vec<String>,
}

/// A message about a change. All attempts to deliver it have the same id and body.
#[derive(Clone, Debug)]
pub struct Message {
    /// A random id, by which the program notices that a message arrives again.
    pub id: String,
    /// The body, in JSON.
    pub body: String,
    /// The person whom the message is about; empty in a test message.
    pub person: String,
    /// The policy's receiver that the message is about; empty in a test message.
    pub receiver: String,
    /// The kind of change and the number of the request, for logs.
    pub name: String,
}

#[derive(Serialize)]
struct Body<D> {
    r#type: &'static str,
    timestamp: String,
    data: D,
}

#[derive(Serialize)]
struct Data<'a> {
    request: String,
    person: &'a str,
    receiver: &'a str,
    services: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    lifetime: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<String>,
    delegations: Vec<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    console: Option<String>,
}

#[derive(Serialize)]
struct Nothing {}

impl Notice {
    /// Returns the delegations of the notice that a webhook with the setting `delegations` learns of. Returns `None` if
    /// the notice is not for this webhook.
    fn delegations_for(&self, delegations: Option<&[String]>) -> Option<Vec<&str>> {
        let all = self.delegations.iter().map(String::as_str);
        let Some(own) = delegations else { return Some(all.collect()) };
        let known: Vec<_> = all.filter(|name| own.iter().any(|own| own == name)).collect();
        (!known.is_empty()).then_some(known)
    }

    /// Returns the message for a webhook with the setting `delegations`; `None` if the webhook does not learn of this
    /// change. `console` is the URL of the console, and `now` the time of the change.
    ///
    /// # Errors
    /// Fails if the system has no random numbers.
    pub fn message(&self, delegations: Option<&[String]>, console: Option<&str>, now: u64) -> Result<Option<Message>> {
        let Some(delegations) = self.delegations_for(delegations) else { return Ok(None) };
        let data = Data {
            request: self.request.to_string(),
            person: &self.person,
            receiver: &self.receiver,
            services: &self.services,
            lifetime: self.lifetime,
            until: self.until.map(utc),
            delegations,
            console: console.map(|url| format!("{url}/console/access/requests/{}", self.request)),
        };
        let body = Body { r#type: self.event, timestamp: utc(now), data };
        let name = format!("{} {}", self.event, self.request);
        let (person, receiver) = (self.person.clone(), self.receiver.clone());
        Ok(Some(Message { id: id()?, body: serde_json::to_string(&body)?, person, receiver, name }))
    }
}

impl Message {
    /// Returns a message with which an operator tests a webhook. `now` is the time in Unix seconds.
    ///
    /// # Errors
    /// Fails if the system has no random numbers.
    pub fn test(now: u64) -> Result<Self> {
        let body = serde_json::to_string(&Body { r#type: "test", timestamp: utc(now), data: Nothing {} })?;
        Ok(Self { id: id()?, body, person: String::new(), receiver: String::new(), name: "test".into() })
    }
}

/// Draws the id of a message. The id contains no dot, because dots separate the parts of the signed text.
fn id() -> Result<String> {
    Ok(format!("msg_{}", hex::encode(credentials::random::<16>()?)))
}

/// The secrets with which the authority signs the messages to a webhook.
pub struct Secrets(Vec<hmac::Key>);

impl Secrets {
    /// Reads secrets in the form `whsec_…`, one on each line.
    ///
    /// # Errors
    /// Fails if a secret is malformed, there is none, or there are more than two. The error does not contain the text.
    pub fn parse(text: &str) -> Result<Self> {
        let lines: Vec<_> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        ensure!(!lines.is_empty(), "the file is empty: write a line `{PREFIX}` and 32 random bytes in Base64");
        ensure!(lines.len() <= MOST_SECRETS, "the file has more than {MOST_SECRETS} lines: remove former secrets");
        let read = |line: &&str| {
            let bytes = line.strip_prefix(PREFIX).and_then(|text| STANDARD.decode(text).ok()).map(Zeroizing::new);
            let bytes = bytes.filter(|bytes| SECRET.contains(&bytes.len()));
            let bytes = bytes.with_context(|| {
                format!("a secret is `{PREFIX}` and {} to {} bytes in Base64", SECRET.start(), SECRET.end())
            })?;
            anyhow::Ok(hmac::Key::new(hmac::HMAC_SHA256, &bytes))
        };
        Ok(Self(lines.iter().map(read).collect::<Result<_>>()?))
    }

    /// Returns the value of the header `webhook-signature`, with one signature for each secret. `time` is the time of
    /// the attempt, in Unix seconds.
    pub fn sign(&self, id: &str, time: u64, body: &str) -> String {
        let text = format!("{id}.{time}.{body}");
        let signature = |key: &hmac::Key| format!("v1,{}", STANDARD.encode(hmac::sign(key, text.as_bytes())));
        self.0.iter().map(signature).collect::<Vec<_>>().join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

    fn notice() -> Notice {
        Notice {
            event: "access_asked",
            request: "0a1b2c3d".parse().unwrap(),
            person: "alice".into(),
            receiver: "db-1".into(),
            services: vec!["tcp/5432".into()],
            lifetime: None,
            until: None,
            delegations: vec!["dba".into(), "guests".into()],
        }
    }

    /// The values are those of a public example of the specification. Python's `hmac` computes the same signature.
    #[test]
    fn a_signature_is_that_of_the_specification() {
        let secrets = Secrets::parse(&format!("\n  {ONE}\r\n")).unwrap();
        let body = "{\"test\": 2432232314}";
        let signature = secrets.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, body);
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
        for (id, time, other) in [("msg_q", 1_614_265_330, body), ("msg_p5jXN8AQM9LWM0D4loKWxJek", 1, body)] {
            assert_ne!(secrets.sign(id, time, other), signature);
        }
        let two = Secrets::parse(&format!("whsec_{}\n{ONE}", STANDARD.encode([7; 32]))).unwrap();
        let both = two.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, body);
        assert_eq!(both.split_once(' ').map(|(_, second)| second), Some(signature.as_str()));
    }

    #[test]
    fn a_malformed_secret_is_refused_without_being_shown() {
        let short = format!("whsec_{}", STANDARD.encode([7; 23]));
        let long = format!("whsec_{}", STANDARD.encode([7; 65]));
        for text in ["", "\n", "secret", &ONE[6..], "whsec_", "whsec_!!!!", &short, &long, &[ONE; 3].join("\n")] {
            let error = format!("{:#}", Secrets::parse(text).err().expect(text));
            assert!(!error.contains("MfKQ9") && !error.contains("BwcH"), "{error}");
        }
    }

    #[test]
    fn a_message_says_what_delegates_need_and_no_more() {
        let notice = Notice { lifetime: Some(28800), ..notice() };
        let console = Some("https://a.example.org:8443");
        let message = notice.message(None, console, 1_709_210_096).unwrap().unwrap();
        assert_eq!(
            message.body,
            "{\"type\":\"access_asked\",\"timestamp\":\"2024-02-29T12:34:56Z\",\"data\":{\"request\":\"0a1b2c3d\",\
             \"person\":\"alice\",\"receiver\":\"db-1\",\"services\":[\"tcp/5432\"],\"lifetime\":28800,\
             \"delegations\":[\"dba\",\"guests\"],\
             \"console\":\"https://a.example.org:8443/console/access/requests/0a1b2c3d\"}}"
        );
        assert!(message.id.starts_with("msg_") && message.id.len() == 36 && !message.id.contains('.'));
        assert_ne!(message.id, notice.message(None, None, 0).unwrap().unwrap().id);
    }

    #[test]
    fn a_webhook_learns_of_its_own_delegations_only() {
        let message = |own: &[&str]| {
            let own: Vec<_> = own.iter().map(|name| (*name).to_owned()).collect();
            notice().message(Some(&own), None, 0).unwrap()
        };
        assert!(message(&["dba"]).unwrap().body.contains("\"delegations\":[\"dba\"]"));
        assert!(message(&["other"]).is_none());
    }
}
