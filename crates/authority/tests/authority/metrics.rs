//! The authority's metrics, as a scraper reads them.

use crate::stage::{PASSWORD, Stage, events, git, login, problem, to};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

pub async fn page(stage: &Stage) -> String {
    page_at(stage.server.as_ref().unwrap().metrics().unwrap()).await
}

pub async fn page_at(address: std::net::SocketAddr) -> String {
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn what_happens_is_counted() {
    let stage = Stage::start_with("metrics = \"127.0.0.1:0\"\n").await;
    let alice = stage.login("alice").await;
    let _listening = events(&alice).await;
    alice.grant(&git()).await.unwrap();
    alice.grant(&git()).await.unwrap();
    problem(alice.grant(&to("203.0.113.10", 6, 80)).await);
    problem(stage.client().login(&login("alice", &PASSWORD.replace('h', "x"), None)).await);
    let head = stage.database().audit_heads().unwrap()[0];
    let page = page(&stage).await;
    let first = u64::from_be_bytes(head.hash[..8].try_into().unwrap()) >> 16;
    for line in [
        "vouchsafe_authority_calls_total{call=\"/v1/grants\",result=\"ok\"} 2",
        "vouchsafe_authority_calls_total{call=\"/v1/grants\",result=\"no_receiver\"} 1",
        "vouchsafe_authority_calls_total{call=\"/v1/login\",result=\"wrong_password\"} 1",
        "vouchsafe_authority_call_seconds_count{call=\"/v1/login\"} 2",
        "vouchsafe_authority_sessions 1.0",
        "vouchsafe_authority_listeners{of=\"session\"} 1.0",
        &format!("vouchsafe_authority_audit_head_id{{trail=\"acts\"}} {}.0", head.id),
        &format!("vouchsafe_authority_audit_head_hash{{trail=\"acts\"}} {first}.0"),
    ] {
        assert!(page.contains(line), "{line}\n{page}");
    }
    let noted = format!("acts:{}:{first:012x}", head.id).parse().unwrap();
    let verdict = authority::admin::verify_audit(&stage.directory, &[noted]).unwrap();
    assert!(matches!(verdict, authority::storage::Verdict::Whole(_)), "{verdict:?}");
}

#[tokio::test]
async fn strangers_make_no_metrics() {
    let stage = Stage::start_with("metrics = \"127.0.0.1:0\"\n").await;
    let raw = stage.raw();
    for path in ["/v1/verifier/grants/0123456789abcdef", "/x", "/y", "/metrics"] {
        raw.get(format!("https://{}{path}", stage.address)).send().await.unwrap();
    }
    let page = page(&stage).await;
    assert!(page.contains("calls_total{call=\"other\",result=\"not_found\"} 3"), "{page}");
    assert!(page.contains("calls_total{call=\"/v1/verifier/grants/{handle}\",result=\"not_logged_in\"} 1"), "{page}");
}
