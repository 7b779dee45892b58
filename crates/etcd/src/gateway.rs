//! Calls to the members' JSON gateways. A call is tried at several members within a time limit, and no change is ever
//! sent twice.

use crate::failure::{self, Failure};
use crate::messages;
use crate::tls;
use crate::types::{MemberStatus, Settings};
use anyhow::{Context, Result, ensure};
use reqwest::header::CONTENT_TYPE;
use reqwest::{RequestBuilder, Response, Url};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::time::{sleep, timeout};

/// Maximum time of a call, including the attempts at all members.
pub const CALL_TIME: Duration = Duration::from_secs(3);
/// Maximum time to connect to a member. Also the maximum time to wait for the beginning of a member's answer to a read,
/// before the next member is asked.
pub const ATTEMPT_TIME: Duration = Duration::from_millis(700);
/// Maximum time to wait for the beginning of the answer to a change. If etcd's leader ends while the change is under
/// way, the answer may never come. The caller then looks up whether the change was made.
pub const CHANGE_TIME: Duration = Duration::from_millis(1500);
/// Pause after all members failed, before the first one is asked again.
const PAUSE: Duration = Duration::from_millis(50);
/// Maximum length of an answer, in bytes. By etcd's default, a value has at most 1.5 MiB. Such a value takes 2 MiB in
/// base64, and one event of a watch takes up to 2.7 MiB.
pub const MOST_ANSWER: usize = 3 * 1024 * 1024;
/// Maximum number of endpoints.
const MOST_ENDPOINTS: usize = 16;
/// Time of silence after which the kernel probes a connection. If no answer comes, the kernel repeats the probe at half
/// this interval.
const TCP_PROBE: Duration = Duration::from_secs(2);

/// Names of two metrics of etcd: the quota of its database, and the revision up to which it has removed old values.
const QUOTA: &str = "etcd_server_quota_backend_bytes";
const COMPACTED: &str = "etcd_debugging_mvcc_compact_revision";

/// A call to send.
pub struct Call {
    /// The path of the gateway's method.
    pub path: &'static str,
    /// The request, in JSON.
    pub body: Vec<u8>,
    /// Whether it would do harm to carry out the call twice. Such a call is sent to another member only if the previous
    /// member has certainly not carried it out.
    pub once: bool,
    /// Maximum time to wait for the beginning of a member's answer.
    pub patience: Duration,
    /// Whether the answer is a stream of which only the first line is needed.
    pub first_line: bool,
    /// Time at which the call fails.
    pub deadline: Instant,
}

/// The members, and the connections to them.
pub struct Gateway {
    http: reqwest::Client,
    endpoints: Vec<String>,
    /// Index of the member that answered last.
    good: AtomicUsize,
}

impl Gateway {
    /// Reads the files that `settings` names. Makes no connections.
    pub fn new(settings: &Settings) -> Result<Self> {
        let count = settings.endpoints.len();
        ensure!(count > 0, "etcd's settings name no endpoint: give at least one URL, such as https://HOST:2379");
        ensure!(
            count <= MOST_ENDPOINTS,
            "etcd's settings name {count} endpoints, but at most {MOST_ENDPOINTS} are possible"
        );
        let endpoints = settings.endpoints.iter().map(|url| endpoint(url)).collect::<Result<Vec<_>>>()?;
        ensure!(
            settings.ca.is_none() && settings.certificate.is_none()
                || endpoints.iter().any(|endpoint| endpoint.starts_with("https:")),
            "etcd's settings have certificates, but no endpoint uses TLS: write https:// in place of http://"
        );
        let http = reqwest::Client::builder()
            .tls_backend_preconfigured(tls::config(settings)?)
            .http1_only()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never())
            .connect_timeout(ATTEMPT_TIME)
            .pool_max_idle_per_host(8)
            .tcp_keepalive(TCP_PROBE)
            .tcp_keepalive_interval(TCP_PROBE / 2)
            .tcp_keepalive_retries(3)
            .user_agent(concat!("vouchsafe/", env!("CARGO_PKG_VERSION")))
            .build()
            .context("cannot prepare connections to etcd")?;
        Ok(Self { http, endpoints, good: AtomicUsize::new(0) })
    }

    /// Returns the members' indices and URLs, in the order in which to try them. The first one is the member that
    /// answered last. If a member has left a change unanswered since then, the first one is the member after it.
    pub fn in_order(&self) -> impl Iterator<Item = (usize, &str)> {
        let good = self.good.load(Ordering::Relaxed);
        (0..self.endpoints.len()).map(move |turn| {
            let index = (good + turn) % self.endpoints.len();
            (index, self.endpoints[index].as_str())
        })
    }

    /// Records that a member has answered.
    pub fn prefer(&self, index: usize) {
        self.good.store(index, Ordering::Relaxed);
    }

    /// Records that a member did not answer. If `first` is still the member that is asked first, the member after the
    /// silent one takes its place.
    fn avoid(&self, silent: usize, first: usize) {
        let next = (silent + 1) % self.endpoints.len();
        let _ = self.good.compare_exchange(first, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Sends a call to the members until one of them has answered or the time limit is reached.
    ///
    /// # Errors
    ///
    /// Fails with [`Failure::NotApplied`] if no member has carried out the call or, for a call that may be sent twice,
    /// if none has answered it. Fails with [`Failure::Unclear`] if a call that must not be sent twice got no answer,
    /// although a member may have received it. Otherwise, fails as the member's answer says.
    pub async fn call(&self, call: &Call) -> Result<Vec<u8>, Failure> {
        let mut failures: Vec<String> = vec![String::new(); self.endpoints.len()];
        let mut sent = false;
        while !call.deadline.saturating_duration_since(Instant::now()).is_zero() {
            let first = self.good.load(Ordering::Relaxed);
            for (index, endpoint) in self.in_order().map(|(index, endpoint)| (index, endpoint.to_owned())) {
                let left = call.deadline.saturating_duration_since(Instant::now());
                // A change is only sent if there is time enough to connect. Otherwise, when the time is over, nobody
                // would know whether it was sent.
                if call.once && left <= ATTEMPT_TIME {
                    break;
                }
                sent = true;
                let attempt = timeout(left, self.attempt(&endpoint, call)).await;
                let failure = match attempt.unwrap_or_else(|_| Err(late(left))) {
                    Ok(answer) => {
                        self.prefer(index);
                        return Ok(answer);
                    }
                    Err(failure) => failure,
                };
                let why = match failure {
                    Failure::NotApplied(why) => why,
                    Failure::Unclear(why) if !call.once => why,
                    Failure::Unclear(why) => {
                        self.avoid(index, first);
                        return Err(Failure::Unclear(format!("{endpoint}: {why}")));
                    }
                    Failure::Refused(why) => return Err(Failure::Refused(format!("{endpoint}: {why}"))),
                    Failure::Full | Failure::TooLong => return Err(failure),
                };
                failures[index] = format!("{endpoint}: {why}");
            }
            if call.deadline.saturating_duration_since(Instant::now()) <= ATTEMPT_TIME && call.once {
                break;
            }
            sleep(PAUSE).await;
        }
        if !sent {
            return Err(Failure::NotApplied("too many calls wait for etcd".into()));
        }
        failures.retain(|why| !why.is_empty());
        Err(Failure::NotApplied(failures.join("; ")))
    }

    /// Sends a call to one member.
    async fn attempt(&self, endpoint: &str, call: &Call) -> Result<Vec<u8>, Failure> {
        let request = self.request(endpoint, call.path).body(call.body.clone());
        let sent = timeout(call.patience, request.send()).await.map_err(|_| late(call.patience))?;
        let response = sent.map_err(|error| failure::of_connection(&error))?;
        let status = response.status();
        // A long answer has the rest of the call's time.
        let body = read(response, call.first_line).await?;
        if status.is_success() { Ok(body) } else { Err(failure::of_answer(status, &body)) }
    }

    /// Opens a watch at one member.
    pub async fn open(&self, endpoint: &str, body: Vec<u8>) -> Result<Response, Failure> {
        let request = self.request(endpoint, "/v3/watch").body(body);
        let response = request.send().await.map_err(|error| failure::of_connection(&error))?;
        let status = response.status();
        if status.is_success() { Ok(response) } else { Err(failure::of_answer(status, &read(response, false).await?)) }
    }

    /// Asks one member for its status. A member without a leader also answers.
    pub async fn status(&self, endpoint: &str, patience: Duration) -> Result<MemberStatus, Failure> {
        let asked = async {
            let request = self.http.post(format!("{endpoint}/v3/maintenance/status"));
            let request = request.header(CONTENT_TYPE, "application/json").body("{}");
            let response = request.send().await.map_err(|error| failure::of_connection(&error))?;
            let status = response.status();
            let body = read(response, false).await?;
            if !status.is_success() {
                return Err(failure::of_answer(status, &body));
            }
            messages::read_status(endpoint, &body)
        };
        timeout(patience, asked).await.map_err(|_| late(patience))?
    }

    /// Completes a member's status with those figures that only the member's page of metrics has. They stay absent if
    /// the member does not serve this page at its endpoint.
    pub async fn measure(&self, status: &mut MemberStatus, patience: Duration) {
        let asked = async {
            let response = self.http.get(format!("{}/metrics", status.endpoint)).send().await.ok()?;
            let is_there = response.status().is_success();
            let body = read(response, false).await.ok()?;
            is_there.then_some(body)
        };
        let Ok(Some(body)) = timeout(patience, asked).await else { return };
        let page = String::from_utf8_lossy(&body);
        status.quota = messages::read_metric(&page, QUOTA);
        status.compacted = messages::read_metric(&page, COMPACTED);
    }

    /// Returns a request that a member without a leader refuses at once. If such a member has begun a stream as the
    /// answer, it ends the stream. The gateway forwards the header for this as gRPC's metadata `hasleader`.
    fn request(&self, endpoint: &str, path: &str) -> RequestBuilder {
        self.http
            .post(format!("{endpoint}{path}"))
            .header(CONTENT_TYPE, "application/json")
            .header("Grpc-Metadata-hasleader", "true")
    }
}

fn late(patience: Duration) -> Failure {
    Failure::Unclear(format!("no answer within {} ms", patience.as_millis()))
}

/// Checks an endpoint, and returns it without a slash at its end.
fn endpoint(text: &str) -> Result<String> {
    let url = Url::parse(text).with_context(|| format!("etcd's endpoint `{text}` is not a URL"))?;
    let is_plain = matches!(url.scheme(), "http" | "https")
        && url.host().is_some()
        && url.path() == "/"
        && url.query().is_none()
        && url.fragment().is_none()
        && url.username().is_empty()
        && url.password().is_none();
    ensure!(is_plain, "etcd's endpoint `{text}` must have the form https://HOST:PORT");
    Ok(url.as_str().trim_end_matches('/').to_owned())
}

/// Reads an answer, or its first line.
async fn read(mut response: Response, first_line: bool) -> Result<Vec<u8>, Failure> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|error| Failure::Unclear(failure::chain(&error)))? {
        body.extend_from_slice(&chunk);
        if body.len() > MOST_ANSWER {
            return Err(Failure::TooLong);
        }
        if first_line && let Some(end) = body.iter().position(|byte| *byte == b'\n') {
            body.truncate(end);
            break;
        }
    }
    Ok(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gateway(endpoints: &[&str], ca: Option<&str>) -> Result<Gateway> {
        let endpoints = endpoints.iter().map(|url| (*url).to_owned()).collect();
        Gateway::new(&Settings { endpoints, ca: ca.map(Into::into), ..Settings::default() })
    }

    #[test]
    fn faulty_settings_are_refused_with_the_way_out() {
        let says = |endpoints: &[&str], ca| format!("{:#}", gateway(endpoints, ca).err().expect("an error"));
        assert!(says(&[], None).contains("https://HOST:2379"));
        assert!(says(&["127.0.0.1:2379"], None).contains("127.0.0.1:2379"));
        assert!(says(&["ftp://h"], None).contains("https://HOST:PORT"));
        assert!(says(&["https://h:1/v3"], None).contains("https://HOST:PORT"));
        assert!(says(&["https://user:secret@h:1"], None).contains("https://HOST:PORT"));
        assert!(says(&["http://h:1"], Some("/nowhere/ca.pem")).contains("https://"));
        assert!(says(&["https://h:1"], Some("/nowhere/ca.pem")).contains("/nowhere/ca.pem"));
        assert!(gateway(&["http://h:1/"], None).is_ok());
    }

    #[test]
    fn the_member_that_answered_last_is_asked_first() {
        let gateway = gateway(&["http://a:1", "http://b:1", "http://c:1"], None).expect("a gateway");
        gateway.prefer(2);
        let order: Vec<_> = gateway.in_order().map(|(_, endpoint)| endpoint.to_owned()).collect();
        assert_eq!(order, ["http://c:1", "http://a:1", "http://b:1"]);
        let first = || gateway.in_order().map(|(index, _)| index).next();
        gateway.avoid(1, 1);
        assert_eq!(first(), Some(2), "another one has answered since");
        gateway.avoid(0, 2);
        assert_eq!(first(), Some(1), "the first one was not there, and the next one was silent");
    }
}
