//! The bodies of the gateway's requests and answers. In its JSON, 64-bit numbers are strings, keys and values are in
//! base64, and fields with default values are left out.

use crate::failure::{self, Failure};
use crate::types::{Compare, KeyValue, MemberStatus, Op, Txn, TxnReply, WatchEvent};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

/// Returns the body that reads keys from `key` up to `end`, or only `key` if `end` is empty, in the state of
/// `revision`. A `revision` of 0 stands for the current state.
pub fn range(key: &[u8], end: &[u8], limit: usize, revision: i64) -> Value {
    json!({
        "key": encode(key),
        "range_end": encode(end),
        "limit": limit.to_string(),
        "revision": revision.to_string(),
    })
}

/// Returns the body of a transaction.
pub fn txn(txn: &Txn) -> Value {
    json!({
        "compare": txn.compare.iter().map(compare).collect::<Vec<_>>(),
        "success": txn.success.iter().map(op).collect::<Vec<_>>(),
        "failure": txn.failure.iter().map(op).collect::<Vec<_>>(),
    })
}

fn compare(compare: &Compare) -> Value {
    match compare {
        Compare::ValueIs(key, value) => {
            json!({"key": encode(key), "target": "VALUE", "result": "EQUAL", "value": encode(value)})
        }
        Compare::CreateRevisionIs(key, revision) => {
            json!({"key": encode(key), "target": "CREATE", "result": "EQUAL", "create_revision": revision.to_string()})
        }
        Compare::ModRevisionIs(key, revision) => {
            json!({"key": encode(key), "target": "MOD", "result": "EQUAL", "mod_revision": revision.to_string()})
        }
    }
}

fn op(op: &Op) -> Value {
    match op {
        Op::Put { key, value, lease } => json!({
            "request_put": {"key": encode(key), "value": encode(value), "lease": lease.unwrap_or(0).to_string()}
        }),
        Op::Get { key } => json!({"request_range": {"key": encode(key)}}),
        Op::Delete { key } => json!({"request_delete_range": {"key": encode(key)}}),
        Op::DeleteRange { key, end } => {
            json!({"request_delete_range": {"key": encode(key), "range_end": encode(end)}})
        }
    }
}

/// Returns the body that opens a watch. etcd divides long events (`fragment`), because its gateway breaks the stream at
/// a message of 4 MiB.
pub fn watch(prefix: &str, from_revision: Option<i64>) -> Value {
    let (key, end) = span(prefix);
    json!({"create_request": {
        "key": encode(key),
        "range_end": encode(end),
        "start_revision": from_revision.unwrap_or(0).to_string(),
        "fragment": true,
    }})
}

/// Returns the first key that begins with `prefix`, and the first key after all keys that begin with it.
pub fn span(prefix: &str) -> (Vec<u8>, Vec<u8>) {
    let mut end = prefix.as_bytes().to_vec();
    match end.last_mut() {
        // No byte of UTF-8 is 255.
        Some(last) => *last += 1,
        // All keys.
        None => return (vec![0], vec![0]),
    }
    (prefix.as_bytes().to_vec(), end)
}

/// The answer to the request of [`range`]: keys with their values.
#[derive(Debug)]
pub struct Range {
    /// The keys, in order.
    pub keys: Vec<KeyValue>,
    /// etcd's revision at the time of the answer.
    pub revision: i64,
    /// Whether there are more keys than the limit.
    pub more: bool,
}

/// Parses the answer to [`range`].
pub fn read_range(answer: &[u8]) -> Result<Range, Failure> {
    let answer: RangeAnswer = parse(answer)?;
    Ok(Range { keys: key_values(answer.kvs)?, revision: answer.header.revision, more: answer.more })
}

/// Parses the answer to [`txn`].
pub fn read_txn(answer: &[u8]) -> Result<TxnReply, Failure> {
    let answer: TxnAnswer = parse(answer)?;
    let got = answer.responses.into_iter().map(|op| key_values(op.response_range.unwrap_or_default().kvs));
    Ok(TxnReply { succeeded: answer.succeeded, revision: answer.header.revision, got: got.collect::<Result<_, _>>()? })
}

/// Returns the remaining time of a lease, in seconds, from the stream that answers a keep-alive; 0 if the lease has
/// ended.
pub fn read_keep_alive(answer: &[u8]) -> Result<i64, Failure> {
    #[derive(Deserialize)]
    struct KeepAlive {
        #[serde(rename = "TTL", default, deserialize_with = "number")]
        ttl: i64,
    }
    Ok(parse_streamed::<KeepAlive>(answer)?.ttl)
}

/// Parses the status of a member.
pub fn read_status(endpoint: &str, answer: &[u8]) -> Result<MemberStatus, Failure> {
    let answer: StatusAnswer = parse(answer)?;
    Ok(MemberStatus {
        endpoint: endpoint.to_owned(),
        error: None,
        version: answer.version,
        id: answer.header.member_id,
        leader: answer.leader,
        raft_term: answer.raft_term,
        revision: answer.header.revision,
        db_size: answer.db_size,
        db_size_in_use: answer.db_size_in_use,
        problems: answer.errors.iter().map(|reported| failure::problem(reported)).collect(),
        is_full: answer.errors.iter().any(|reported| reported.contains("NOSPACE")),
        quota: None,
        compacted: None,
    })
}

/// Returns the value of the metric `name` on a page of metrics in Prometheus' text format. The metric has no labels.
pub fn read_metric(page: &str, name: &str) -> Option<u64> {
    let value = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
    let value: f64 = value.trim().parse().ok()?;
    // etcd writes whole numbers that a float represents exactly, such as 2.147483648e+09, and -1 for "never".
    (!value.is_nan()).then_some(value as u64)
}

/// A message of a watch.
#[derive(Debug, PartialEq, Eq)]
pub enum WatchMessage {
    /// The watch has begun, or etcd reports progress without a change.
    Alive,
    /// An event for the caller. Every event except [`WatchEvent::Changed`] is the last event of the watch.
    Event(WatchEvent),
}

/// Parses one line of a watch's stream.
pub fn read_watch(line: &[u8]) -> Result<WatchMessage, Failure> {
    let answer: WatchAnswer = parse_streamed(line)?;
    if answer.compact_revision != 0 {
        return Ok(WatchMessage::Event(WatchEvent::Compacted));
    }
    if answer.canceled {
        return Err(Failure::Unclear(format!("etcd has cancelled the watch: {}", answer.cancel_reason)));
    }
    let Some(last) = answer.events.last() else { return Ok(WatchMessage::Alive) };
    // The revision in the header can be ahead of the events: a watch that catches up gets them in several messages. A
    // fragment may end within a revision.
    let revision = last.kv.mod_revision - i64::from(answer.fragment);
    let (mut puts, mut deleted) = (Vec::new(), Vec::new());
    for event in answer.events {
        let kv = key_value(event.kv)?;
        if event.kind == "DELETE" { deleted.push(kv.key) } else { puts.push(kv) }
    }
    Ok(WatchMessage::Event(WatchEvent::Changed { revision, puts, deleted }))
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Header {
    #[serde(deserialize_with = "number")]
    revision: i64,
    #[serde(deserialize_with = "number")]
    member_id: u64,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireKeyValue {
    key: String,
    value: String,
    #[serde(deserialize_with = "number")]
    create_revision: i64,
    #[serde(deserialize_with = "number")]
    mod_revision: i64,
    #[serde(deserialize_with = "number")]
    lease: i64,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RangeAnswer {
    header: Header,
    kvs: Vec<WireKeyValue>,
    more: bool,
}

#[derive(Deserialize)]
struct TxnAnswer {
    // Every answer has a header. Without this demand, any JSON object would pass as a failed transaction.
    header: Header,
    #[serde(default)]
    succeeded: bool,
    #[serde(default)]
    responses: Vec<TxnOpAnswer>,
}

#[derive(Deserialize)]
struct TxnOpAnswer {
    response_range: Option<RangeAnswer>,
}

#[derive(Deserialize)]
struct StatusAnswer {
    header: Header,
    #[serde(default)]
    version: String,
    #[serde(rename = "dbSize", default, deserialize_with = "number")]
    db_size: i64,
    #[serde(rename = "dbSizeInUse", default, deserialize_with = "number")]
    db_size_in_use: i64,
    #[serde(default, deserialize_with = "number")]
    leader: u64,
    #[serde(rename = "raftTerm", default, deserialize_with = "number")]
    raft_term: u64,
    #[serde(default)]
    errors: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WatchAnswer {
    canceled: bool,
    #[serde(deserialize_with = "number")]
    compact_revision: i64,
    cancel_reason: String,
    fragment: bool,
    events: Vec<WatchedEvent>,
}

#[derive(Deserialize)]
struct WatchedEvent {
    #[serde(rename = "type", default)]
    kind: String,
    kv: WireKeyValue,
}

#[derive(Deserialize)]
struct Streamed<T> {
    result: T,
}

fn parse<T: DeserializeOwned>(answer: &[u8]) -> Result<T, Failure> {
    serde_json::from_slice(answer).map_err(|error| Failure::Unclear(format!("the answer is malformed: {error}")))
}

/// Parses a message of a stream, in which errors have the HTTP status of success.
fn parse_streamed<T: DeserializeOwned>(line: &[u8]) -> Result<T, Failure> {
    let value: Value = parse(line)?;
    if value.get("error").is_some()
        && let Some((code, message)) = failure::grpc_error(&value)
    {
        return Err(failure::of_grpc(code, message));
    }
    let streamed: Result<Streamed<T>, _> = serde_json::from_value(value);
    Ok(streamed.map_err(|error| Failure::Unclear(format!("the answer is malformed: {error}")))?.result)
}

fn key_values(kvs: Vec<WireKeyValue>) -> Result<Vec<KeyValue>, Failure> {
    kvs.into_iter().map(key_value).collect()
}

fn key_value(kv: WireKeyValue) -> Result<KeyValue, Failure> {
    let decode = |text: &str| {
        BASE64_STANDARD.decode(text).map_err(|error| Failure::Unclear(format!("the answer is malformed: {error}")))
    };
    let key = String::from_utf8(decode(&kv.key)?)
        .map_err(|error| Failure::Refused(format!("the key {:?} is not text: delete it", error.as_bytes())))?;
    Ok(KeyValue {
        key,
        value: decode(&kv.value)?,
        create_revision: kv.create_revision,
        mod_revision: kv.mod_revision,
        lease: kv.lease,
    })
}

fn encode(bytes: impl AsRef<[u8]>) -> String {
    BASE64_STANDARD.encode(bytes)
}

/// Reads a number that is a string or a number in JSON.
fn number<'d, D, N>(deserializer: D) -> Result<N, D::Error>
where
    D: Deserializer<'d>,
    N: std::str::FromStr + Deserialize<'d>,
    N::Err: std::fmt::Display,
{
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Form<N> {
        Number(N),
        Text(String),
    }
    match Form::deserialize(deserializer)? {
        Form::Number(number) => Ok(number),
        Form::Text(text) => text.parse().map_err(D::Error::custom),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_spans_exactly_the_keys_that_begin_with_it() {
        assert_eq!(span("a/"), (b"a/".to_vec(), b"a0".to_vec()));
        assert_eq!(span(""), (vec![0], vec![0]));
    }

    #[test]
    fn numbers_are_strings_or_numbers() {
        let range = read_range(
            br#"{"header":{"revision":"7"},"kvs":[{"key":"YQ==","mod_revision":6,"lease":"-1"}],"more":true}"#,
        );
        let range = range.expect("a range");
        assert_eq!((range.revision, range.more), (7, true));
        let expected = KeyValue { key: "a".into(), value: Vec::new(), create_revision: 0, mod_revision: 6, lease: -1 };
        assert_eq!(range.keys, [expected]);
        assert!(read_range(br#"{"header":{"revision":"x"}}"#).is_err());
    }

    #[test]
    fn an_object_without_a_header_is_no_answer_to_a_transaction() {
        assert!(matches!(read_txn(b"{}"), Err(Failure::Unclear(_))));
        let reply = read_txn(br#"{"header":{"revision":"9"},"responses":[{"response_put":{}},{"response_range":{"kvs":[{"key":"YQ==","value":"Yg=="}]}}]}"#);
        let reply = reply.expect("a reply");
        assert_eq!((reply.succeeded, reply.revision), (false, 9));
        assert_eq!(reply.got.iter().map(Vec::len).collect::<Vec<_>>(), [0, 1]);
        assert_eq!(reply.got[1][0].value, b"b");
    }

    #[test]
    fn a_metric_is_found_by_its_whole_name() {
        let page = "# TYPE quota gauge\nquota_bytes 5\nquota 2.147483648e+09\nempty\nnone NaN\nnegative -1\n";
        assert_eq!(read_metric(page, "quota"), Some(2_147_483_648));
        assert_eq!(read_metric(page, "negative"), Some(0));
        for name in ["quot", "empty", "none", "other"] {
            assert_eq!(read_metric(page, name), None, "{name}");
        }
    }

    #[test]
    fn a_lease_without_remaining_time_is_gone() {
        assert_eq!(read_keep_alive(br#"{"result":{"header":{},"ID":"12","TTL":"5"}}"#), Ok(5));
        assert_eq!(read_keep_alive(br#"{"result":{"header":{},"ID":"12"}}"#), Ok(0));
        let error = read_keep_alive(br#"{"error":{"grpc_code":14,"message":"etcdserver: no leader"}}"#);
        assert_eq!(error, Err(Failure::NotApplied("etcdserver: no leader".into())));
        assert!(read_keep_alive(b"").is_err());
    }

    #[test]
    fn events_of_a_watch_are_told_apart() {
        assert_eq!(read_watch(br#"{"result":{"header":{"revision":"3"},"created":true}}"#), Ok(WatchMessage::Alive));
        let events = br#"{"result":{"header":{"revision":"90"},"events":[
            {"kv":{"key":"YQ==","value":"Yg==","create_revision":"4","mod_revision":"4"}},
            {"type":"DELETE","kv":{"key":"Yw==","mod_revision":"5"}}]}}"#;
        let Ok(WatchMessage::Event(WatchEvent::Changed { revision, puts, deleted })) = read_watch(events) else {
            panic!("no change");
        };
        // The header's revision is ahead of the events.
        assert_eq!((revision, puts[0].key.as_str(), deleted), (5, "a", vec!["c".to_owned()]));
        let fragment = br#"{"result":{"fragment":true,"events":[{"kv":{"key":"YQ==","mod_revision":"4"}}]}}"#;
        assert!(matches!(read_watch(fragment), Ok(WatchMessage::Event(WatchEvent::Changed { revision: 3, .. }))));
        let compacted = br#"{"result":{"canceled":true,"compact_revision":"8"}}"#;
        assert_eq!(read_watch(compacted), Ok(WatchMessage::Event(WatchEvent::Compacted)));
        let cancelled = br#"{"result":{"created":true,"canceled":true,"cancel_reason":"denied"}}"#;
        assert!(matches!(read_watch(cancelled), Err(Failure::Unclear(why)) if why.contains("denied")));
    }
}
