//! Attacks on the redirects of a login at an identity provider: browsers are only sent to that provider, back to the
//! authority, and to their own machine; and logins begun without being finished take hardly any memory.

use crate::HERE;
use crate::stage::{Answer, Stage};
use serde_json::json;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The authority's URL for browsers.
const CONSOLE: &str = "https://authority.example.org:8443";

/// An identity provider with valid metadata and no accounts.
struct Provider {
    issuer: String,
    /// Number of requests for tokens.
    exchanges: Arc<AtomicUsize>,
}

impl Provider {
    fn start() -> Self {
        let listener = TcpListener::bind((HERE, 0)).unwrap();
        let issuer = format!("http://{}", listener.local_addr().unwrap());
        let about = json!({
            "issuer": issuer,
            "authorization_endpoint": format!("{issuer}/auth"),
            "token_endpoint": format!("{issuer}/token"),
            "jwks_uri": format!("{issuer}/jwks"),
            "response_types_supported": ["code"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["EdDSA"],
        });
        let exchanges = Arc::new(AtomicUsize::new(0));
        let counted = exchanges.clone();
        // The thread ends with the test's process.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let mut reader = BufReader::new(stream);
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") && reader.read_until(b'\n', &mut head).is_ok_and(|read| read > 0) {}
                let body = match String::from_utf8_lossy(&head).split(' ').nth(1) {
                    Some("/.well-known/openid-configuration") => about.to_string(),
                    Some("/jwks") => json!({ "keys": [] }).to_string(),
                    _ => {
                        counted.fetch_add(1, Ordering::Relaxed);
                        "{}".into()
                    }
                };
                let length = body.len();
                let head = format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}");
                let _ = reader.get_mut().write_all(format!("{head}\r\nconnection: close\r\n\r\n{body}").as_bytes());
            }
        });
        Self { issuer, exchanges }
    }

    fn stage(&self) -> Stage {
        let oidc = format!("oidc = {{ issuer = \"{}\", client_id = \"vouchsafe\" }}\n", self.issuer);
        Stage::start_with(&format!("console = {{ url = \"{CONSOLE}\" }}\n{oidc}"))
    }
}

fn begin(stage: &Stage, from: Ipv4Addr) -> Option<Answer> {
    let login = json!({ "device": "x", "challenge": "0".repeat(64), "port": 4000, "user": "x", "host": "x" });
    stage.try_call(from, "POST /v1/login/browser", None, Some(&login))
}

#[test]
fn a_browser_is_sent_to_the_provider_and_back_to_its_own_machine_only() {
    let provider = Provider::start();
    let mut stage = provider.stage();
    let good = begin(&stage, HERE).unwrap();
    assert_eq!(good.status, 200, "{good:?}");
    let is_good = |answer: &Answer| {
        let name = answer.body["login"].as_str().unwrap_or_default();
        name.len() == 32 && answer.body["url"] == format!("{CONSOLE}/console/login/agent/{name}")
    };
    assert!(is_good(&good), "{good:?}");

    let challenge = "0".repeat(64);
    let who = r#""user":"x","host":"x""#;
    for body in [
        format!(r#"{{"device":"x",{who},"challenge":"{challenge}","port":80}}"#),
        format!(r#"{{"device":"x",{who},"challenge":"{challenge}","port":65536}}"#),
        format!(r#"{{"device":"x",{who},"challenge":"{challenge}","port":-1}}"#),
        format!(r#"{{"device":"x",{who},"challenge":"{challenge}","port":"4000@evil.example"}}"#),
        format!(
            r#"{{"device":"x",{who},"challenge":"{challenge}","port":4000,"redirect_uri":"https://evil.example/"}}"#
        ),
        format!(r#"{{"device":"x",{who},"challenge":"{challenge}","port":4000,"address":"evil.example"}}"#),
        format!(r#"{{"device":"x",{who},"challenge":"{challenge}","port":4000,"port":4001}}"#),
        format!(r#"{{"device":"x",{who},"challenge":"","port":4000}}"#),
    ] {
        let length = body.len();
        let head = format!("POST /v1/login/browser HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}");
        let answer = stage.say(HERE, format!("{head}\r\n\r\n{body}").as_bytes()).unwrap();
        assert!((400..500).contains(&answer.status), "{body}: {answer:?}");
    }
    // Misleading addresses in the head.
    let body = format!(r#"{{"device":"x",{who},"challenge":"{challenge}","port":4000}}"#);
    for (path, lines) in [
        ("/v1/login/browser", "host: evil.example"),
        ("/v1/login/browser", "host: localhost\r\nx-forwarded-host: evil.example\r\nx-forwarded-proto: http"),
        ("/v1/login/browser", "host: localhost\r\norigin: https://evil.example\r\nreferer: https://evil.example/"),
        ("/v1/login/browser?redirect_uri=https://evil.example/&port=1", "host: localhost"),
    ] {
        let length = body.len();
        let head = format!("POST {path} HTTP/1.1\r\n{lines}\r\ncontent-length: {length}");
        let answer = stage.say(HERE, format!("{head}\r\n\r\n{body}").as_bytes()).unwrap();
        assert!((400..500).contains(&answer.status) || is_good(&answer), "{path} {lines}: {answer:?}");
    }
    // The page sends the browser to the provider, and from there to the authority's configured URL, whatever the head
    // says.
    for lines in ["host: localhost", "host: evil.example", "host: localhost\r\nx-forwarded-host: evil.example"] {
        let login = begin(&stage, HERE).unwrap().body["login"].as_str().unwrap().to_owned();
        let head = format!("GET /console/login/agent/{login}?to=https://evil.example/ HTTP/1.1\r\n{lines}\r\n\r\n");
        let answer = stage.say(HERE, head.as_bytes()).unwrap();
        let page = answer.body.as_str().unwrap_or_default();
        let way =
            page.split("0;url=").nth(1).and_then(|rest| rest.split('"').next()).unwrap_or_else(|| panic!("{page}"));
        assert!(way.starts_with(&format!("{}/auth?", provider.issuer)), "{way}");
        let back = "redirect_uri=https%3A%2F%2Fauthority.example.org%3A8443%2Fconsole%2Flogin%2Fcallback&";
        assert!(way.contains(back) && !page.contains("evil"), "{page}");
    }
    // No other path redirects a browser.
    for path in [
        "//evil.example",
        "/https://evil.example",
        "/v1/login?next=//evil.example",
        "/callback?code=x",
        "/%2f/evil",
        "/console/login/agent/evil",
        "/console/login/callback?code=x&state=evil.x",
    ] {
        let answer = stage.say(HERE, format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n").as_bytes()).unwrap();
        assert!(!(300..400).contains(&answer.status), "{path}: {answer:?}");
    }

    // Callbacks from another browser, and invented ones.
    let callback = json!({ "code": "stolen", "state": good.body["state"] });
    for (verifier, callback) in [
        ("a guess", callback.clone()),
        ("", callback.clone()),
        (challenge.as_str(), callback),
        ("a guess", json!({ "code": "x", "state": "x" })),
    ] {
        let finish = json!({ "login": good.body["login"], "verifier": verifier, "callback": callback });
        let answer = stage.call(HERE, "POST /v1/login/finish", None, Some(&finish));
        assert_eq!((answer.status, answer.body["type"].as_str()), (401, Some("wrong_login")), "{finish}");
    }
    assert_eq!(provider.exchanges.load(Ordering::Relaxed), 0, "no code was shown to the provider");
    stage.is_well();
}

#[test]
fn logins_that_are_begun_for_nothing_take_no_memory_and_keep_nobody_out() {
    let provider = Provider::start();
    let mut stage = provider.stage();
    let crowd: Vec<_> = (0..2000_u32).map(|n| Ipv4Addr::new(127, 4, (n % 200) as u8, (n / 200) as u8 + 1)).collect();
    let statuses: Vec<_> = std::thread::scope(|scope| {
        let stage = &stage;
        let begin_all = |from: Vec<Ipv4Addr>| {
            // Under load the authority may close connections; no answer counts as a refusal.
            let status = |from| begin(stage, from).map_or(0, |answer| answer.status);
            scope.spawn(move || from.into_iter().map(status).collect::<Vec<_>>())
        };
        let parts: Vec<_> = crowd.chunks(250).map(|part| begin_all(part.to_vec())).collect();
        parts.into_iter().flat_map(|part| part.join().unwrap()).collect()
    });
    assert!(statuses.iter().all(|status| [0, 200, 429, 503].contains(status)), "{statuses:?}");
    assert!(statuses.contains(&429), "nobody was slowed");
    let began = std::time::Instant::now();
    while begin(&stage, Ipv4Addr::new(127, 9, 9, 9)).is_none_or(|answer| answer.status != 200) {
        assert!(began.elapsed() < crate::stage::PATIENCE, "whoever comes from elsewhere waits {:?}", began.elapsed());
    }
    stage.is_well();
}
