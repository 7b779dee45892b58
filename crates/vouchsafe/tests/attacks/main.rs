//! Attacks on the authority's API by unauthenticated senders and by people with another person's token: none gets in,
//! none ends the process, and its memory stays bounded.

mod console;
mod described;
mod policy;
mod redirect;
mod stage;

use serde_json::json;
use sha2::{Digest, Sha256};
use stage::{Answer, PASSWORD, PATIENCE, Stage, answer, closes};
use std::io::Write;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

const HERE: Ipv4Addr = Ipv4Addr::LOCALHOST;
const HOME: Ipv4Addr = Ipv4Addr::new(127, 0, 7, 7);

fn grant(stage: &Stage, token: &str) -> Answer {
    let git = json!({ "address": "203.0.113.10", "protocol": 6, "port": 22 });
    stage.call(HERE, "POST /v1/grants", Some(token), Some(&git))
}

#[test]
fn guessing_is_slowed_and_never_locks_the_owner_out() {
    let mut stage = Stage::start();
    stage.token(HOME, "alice");
    // Under load the authority may close connections; no answer counts as a refusal.
    let status = &|from, password: &str| stage.try_login(from, "alice", password).map_or(0, |answer| answer.status);
    let guess = &|from, n: usize| status(from, &format!("guess number {n}"));
    let results: Vec<_> = (0..40).map(|n| guess(HERE, n)).collect();
    assert!(results.iter().all(|status| [401, 429].contains(status)), "{results:?}");
    assert!(results.iter().filter(|status| **status == 401).count() < 10, "{results:?}");
    assert_eq!(stage.login(HERE, "alice", PASSWORD).status, 429, "whoever guessed there has to wait");

    // From many addresses of one network, and of many networks: the guesses of all together are limited, too.
    let network: Vec<_> = (1..=250).map(|host| Ipv4Addr::new(127, 1, 1, host)).collect();
    let world: Vec<_> = (0..500).map(|n| Ipv4Addr::new(127, 2, (n % 250) as u8, 1)).collect();
    let guess_from = |sources: &[Ipv4Addr]| -> Vec<u16> {
        std::thread::scope(|scope| {
            let part = |sources: Vec<Ipv4Addr>| {
                scope.spawn(move || sources.into_iter().enumerate().map(|(n, from)| guess(from, n)).collect::<Vec<_>>())
            };
            let parts: Vec<_> = sources.chunks(64).map(|sources| part(sources.to_vec())).collect();
            parts.into_iter().flat_map(|part| part.join().unwrap()).collect()
        })
    };
    let results = [guess_from(&network), guess_from(&world)];
    assert!(results.iter().flatten().all(|status| [0, 401, 429, 503].contains(status)), "{results:?}");
    assert!(results[0].iter().filter(|status| **status == 401).count() < 150, "{results:?}");
    let began = Instant::now();
    stage.token(HOME, "alice");
    assert!(began.elapsed() < Duration::from_secs(10), "the owner had to wait {:?}", began.elapsed());
    // The owner gets in at a new address, too, after a delay that does not grow with the guessing.
    let (began, new) = (Instant::now(), Ipv4Addr::new(127, 9, 9, 9));
    guess_from(&world);
    while status(new, PASSWORD) != 200 {
        assert!(began.elapsed() < 3 * PATIENCE, "the owner waits for {:?}", began.elapsed());
        guess_from(&world[..50]);
    }
    stage.is_well();
}

#[test]
fn a_claimed_address_is_no_other_source() {
    let mut stage = Stage::start();
    let body = json!({ "person": "alice", "password": "wrong horse", "device": "x" }).to_string();
    let results: Vec<_> = (0..30)
        .map(|n| {
            let claims = format!(
                "x-forwarded-for: 198.51.100.{n}\r\nforwarded: for=198.51.100.{n}\r\nx-real-ip: 198.51.100.{n}"
            );
            let head =
                format!("POST /v1/login HTTP/1.1\r\nhost: localhost\r\n{claims}\r\ncontent-length: {}", body.len());
            stage.say(HERE, format!("{head}\r\n\r\n{body}").as_bytes()).unwrap().status
        })
        .collect();
    assert!(results.iter().filter(|status| **status == 401).count() < 10, "{results:?}");
    assert!(results.contains(&429), "{results:?}");
    stage.is_well();
}

#[test]
fn a_token_is_good_for_what_it_was_given_for_only() {
    let mut stage = Stage::start();
    let (alice, bob) = (stage.token(HERE, "alice"), stage.token(HERE, "bob"));
    let (verifier, code) = stage.verifier("edge");
    let owned = grant(&stage, &alice);
    assert_eq!(owned.status, 200);
    assert_eq!(grant(&stage, &bob).status, 403, "bob's token is bob's");
    let handle = &owned.body["header"].as_str().unwrap()[16..];

    let owner = format!("GET /v1/verifier/grants/{handle}");
    for call in ["GET /v1/verifier/keys", "GET /v1/verifier/config", "GET /v1/verifier/places", &owner] {
        let answer = stage.call(HERE, call, Some(&alice), None);
        assert_eq!((answer.status, answer.body["type"].as_str()), (403, Some("wrong_caller")), "{call}");
        assert_eq!(stage.call(HERE, call, Some(&verifier), None).status, 200, "{call}");
    }
    for call in ["GET /v1/destinations", "POST /v1/logout"] {
        assert_eq!(stage.call(HERE, call, Some(&verifier), None).status, 403, "{call}");
    }
    assert_eq!(grant(&stage, &verifier).status, 403);
    let (other, _) = stage.verifier("other");
    let asked = format!("GET /v1/verifier/grants/{handle}");
    assert_eq!(stage.call(HERE, &asked, Some(&other), None).status, 404, "another verifier's grant");

    // The stored hash of a token, near misses of the token, and other secrets.
    let stored = hex(&Sha256::digest(alice.as_bytes()));
    let flipped = format!("{}{}", if alice.starts_with('0') { '1' } else { '0' }, &alice[1..]);
    let key = owned.body["key"].as_str().unwrap();
    let upper = alice.to_ascii_uppercase();
    let longer = format!("{alice}0");
    for wrong in
        [&stored, &flipped, &upper, &longer, &alice[..63], &code, key, handle, PASSWORD, "", "null", "' OR 1=1 --"]
    {
        let answer = grant(&stage, wrong);
        assert_eq!((answer.status, answer.body["type"].as_str()), (401, Some("not_logged_in")), "{wrong}");
    }
    for wrong in [&code, &alice, &verifier, &stored, ""] {
        let answer = stage.call(HERE, "POST /v1/verifiers/enrol", None, Some(&json!({ "code": wrong })));
        assert_eq!(answer.status, 401, "a code works once, and only a code works");
    }
    assert_eq!(stage.call(HERE, "POST /v1/logout", Some(&alice), None).status, 204);
    assert_eq!(grant(&stage, &alice).status, 401, "an ended session's token");
    assert!(stage.authority(&["audit", "verify"]).starts_with("complete and unchanged"));
    stage.is_well();
}

#[test]
fn tricks_with_heads_and_paths_open_nothing() {
    let mut stage = Stage::start();
    let token = stage.token(HERE, "alice");
    let git = r#"{"address":"203.0.113.10","protocol":6,"port":22}"#;
    let length = git.len();
    let mut heads = Vec::new();
    for path in [
        "/v1/../v1/destinations",
        "/v1/./destinations",
        "//v1/destinations",
        "/v1//destinations",
        "/v1/destinations/",
        "/V1/destinations",
        "/v1/%64estinations%00",
        "/v1/destinations%2f..%2fdestinations",
        "/v1/destinations;a=b",
        "/v1/destinations%0d%0ax: y",
        "/v1/verifier/grants/..%2f..%2fkeys",
        "/v1/verifier/grants/0000000000000000",
        "/v1/verifier/grants/%00",
        "/v1/verifier/grants/+000000000000000",
        "/../../etc/passwd",
        "/.git/config",
        "*",
    ] {
        heads.push(format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}"));
    }
    // No request without a token is accepted, whatever the rest of its head contains.
    for lines in [
        "authorization: bearer nonsense",
        "authorization: Basic YWxpY2U6Y29ycmVjdCBob3JzZQ==",
        "authorization: Bearer",
        "x-original-url: /v1/health\r\nx-rewrite-url: /v1/health",
        "x-http-method-override: GET\r\nx-user: alice\r\nx-remote-user: alice\r\nremote-user: alice",
        "cookie: token=alice\r\nx-forwarded-client-cert: alice",
        "authorization : Bearer x",
        "authorization: Bearer x\r\n y",
    ] {
        heads.push(format!("GET /v1/destinations HTTP/1.1\r\nhost: localhost\r\n{lines}"));
    }
    heads.push(format!("GET /v1/destinations?token={token} HTTP/1.1\r\nhost: localhost"));
    heads.push(format!(
        "GET /v1/destinations HTTP/1.1\r\nhost: localhost\r\nauthorization: bearer x\r\nauthorization: Bearer {token}"
    ));
    heads.push(format!("GET /v1/destinations HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\0"));
    for method in ["TRACE", "CONNECT", "PUT", "DELETE", "PATCH", "get", "GET\t"] {
        heads.push(format!("{method} /v1/destinations HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}"));
    }
    // Contradictory statements about the length of the body.
    for lines in [
        format!("content-length: {length}\r\ncontent-length: 0"),
        format!("content-length: {length}\r\ntransfer-encoding: chunked"),
        "transfer-encoding: chunked, identity\r\ncontent-length: 4".to_owned(),
        "content-length: -1".to_owned(),
        "content-length: 99999999999999999999999".to_owned(),
    ] {
        heads.push(format!("POST /v1/grants HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n{lines}"));
    }
    for head in heads {
        let answer = stage.say(HERE, format!("{head}\r\nconnection: close\r\n\r\n{git}").as_bytes());
        let is_no = answer.as_ref().is_none_or(|answer| (400..500).contains(&answer.status));
        assert!(is_no, "{head:?}: {answer:?}");
    }
    let sane = format!("GET /v1/destinations HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n\r\n");
    assert_eq!(stage.say(HERE, sane.as_bytes()).unwrap().status, 200, "the same without tricks");
    stage.is_well();
}

#[test]
fn what_is_too_long_is_cut_off() {
    let mut stage = Stage::start();
    stage.token(HOME, "alice");
    let long = "x".repeat(1 << 20);
    let chunk = format!("10000\r\n{}\r\n", "x".repeat(0x10000));
    for (what, bytes) in [
        ("a body", format!("POST /v1/login HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n{long}", long.len())),
        (
            "a body that claims more",
            "POST /v1/login HTTP/1.1\r\nhost: a\r\ncontent-length: 1099511627776\r\n\r\nx".into(),
        ),
        (
            "chunks",
            format!("POST /v1/login HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n{}", chunk.repeat(16)),
        ),
        (
            "chunk extensions",
            format!("POST /v1/login HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n1;{long}"),
        ),
        ("a field", format!("GET /v1/health HTTP/1.1\r\nhost: a\r\nx: {long}\r\n\r\n")),
        ("fields", format!("GET /v1/health HTTP/1.1\r\nhost: a\r\n{}\r\n", "x: y\r\n".repeat(100_000))),
        ("a path", format!("GET /{long} HTTP/1.1\r\nhost: a\r\n\r\n")),
        ("a query", format!("GET /v1/verifier/keys?ahead={long} HTTP/1.1\r\nhost: a\r\n\r\n")),
        ("a method", format!("{long} / HTTP/1.1\r\nhost: a\r\n\r\n")),
        ("a token", format!("GET /v1/destinations HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {long}\r\n\r\n")),
        ("depth", {
            let deep = "[".repeat(16_000);
            format!("POST /v1/login HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n{deep}", deep.len())
        }),
    ] {
        for _ in 0..3 {
            let answer = stage.say(HERE, bytes.as_bytes());
            let is_no = answer.as_ref().is_none_or(|answer| (400..500).contains(&answer.status));
            assert!(is_no, "{what}: {answer:?}");
        }
    }
    stage.is_well();
}

#[test]
fn whoever_is_slow_is_cut_off() {
    let mut stage = Stage::start();
    let head = "POST /v1/login HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n\r\n";
    std::thread::scope(|scope| {
        let stage = &stage;
        // No bytes at all, and a handshake without a request.
        scope.spawn(move || assert!(closes(&mut stage.tcp(HERE), Instant::now()) < PATIENCE));
        scope.spawn(move || {
            let mut stream = stage.tls(HERE);
            stream.flush().unwrap();
            assert!(closes(&mut stream, Instant::now()) < PATIENCE);
        });
        // A body that is cut off.
        scope.spawn(move || {
            let answer = stage.say(HERE, format!("{head}{{\"per").as_bytes());
            assert!(answer.as_ref().is_none_or(|answer| answer.status == 408), "{answer:?}");
        });
        // A byte now and then, of a head or a body: the connection still ends after a fixed time.
        for start in ["GET /v1/health HTTP/1.1\r\n", head] {
            scope.spawn(move || {
                let began = Instant::now();
                let mut stream = stage.tls(HERE);
                stream.write_all(start.as_bytes()).unwrap();
                stream.sock.set_read_timeout(Some(Duration::from_millis(250))).unwrap();
                loop {
                    let mut part = [0; 64];
                    let alive = stream.write_all(b"x").and_then(|()| stream.flush()).is_ok();
                    let read = std::io::Read::read(&mut stream, &mut part);
                    let waits = read.as_ref().is_err_and(|error| {
                        matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut)
                    });
                    if !alive || !waits {
                        let text = read.map(|read| String::from_utf8_lossy(&part[..read]).into_owned());
                        assert!(!text.unwrap_or_default().starts_with("HTTP/1.1 2"));
                        break;
                    }
                    assert!(began.elapsed() < PATIENCE, "still open");
                }
            });
        }
    });
    stage.is_well();
}

#[test]
fn a_crowd_that_says_nothing_takes_neither_all_seats_nor_memory() {
    let mut stage = Stage::start_with("max_connections = 64\n");
    let token = stage.token(HOME, "alice");
    // The connection of an existing session is up before the crowd connects, and stays up.
    let known = format!("GET /v1/destinations HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {token}\r\n\r\n");
    let mut member = stage.tls(HOME);
    member.write_all(known.as_bytes()).unwrap();
    assert_eq!(answer(&mut member).unwrap().status, 200);
    let half = format!("POST /v1/login HTTP/1.1\r\nhost: a\r\ncontent-length: 16000\r\n\r\n{}", "x".repeat(15_000));
    let mut crowd = Vec::new();
    for n in 0..600_u16 {
        let mut stream = stage.tls(Ipv4Addr::new(127, 3, (n % 5) as u8, (n % 250) as u8 + 1));
        let _ = stream.write_all(half.as_bytes()).and_then(|()| stream.flush());
        crowd.push(stream);
        if n % 100 == 99 {
            stage.is_well();
        }
    }
    member.write_all(known.as_bytes()).unwrap();
    assert_eq!(answer(&mut member).unwrap().status, 200, "whoever has shown a credential keeps the seat");
    drop(crowd);
    stage.is_well();
}

#[test]
fn streams_that_are_reset_and_heads_without_end_cost_no_memory() {
    let mut stage = Stage::start();
    stage.token(HOME, "alice");
    let frame = |kind: u8, flags: u8, stream: u32, payload: &[u8]| {
        let length = payload.len() as u32;
        [&length.to_be_bytes()[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
    };
    let preface = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), frame(4, 0, 0, &[])].concat();
    // GET / over https from localhost: three entries of HPACK's static table and a literal authority.
    let head = [&[0x82, 0x84, 0x87, 0x41, 9][..], b"localhost"].concat();
    // Streams opened and reset at once, again and again (CVE-2023-44487).
    let resets = (0..20_000_u32).flat_map(|n| {
        let stream = 2 * n + 1;
        [frame(1, 0x5, stream, &head), frame(3, 0, stream, &8_u32.to_be_bytes())].concat()
    });
    // Headers without end (CVE-2024-27316); requests whose answers can't be sent because the window is never opened.
    let endless = [frame(1, 0, 1, &head), frame(9, 0, 1, &[0; 16_000]).repeat(2000)].concat();
    let settings = frame(4, 0, 0, &[]).repeat(200_000);
    let pings = frame(6, 0, 0, &[0; 8]).repeat(200_000);
    for attack in [resets.collect(), endless, settings, pings] {
        let mut stream = stage.tls_for(HERE, &[b"h2"]);
        stream.sock.set_write_timeout(Some(Duration::from_secs(5))).unwrap();
        let _ = stream.write_all(&preface).and_then(|()| stream.write_all(&attack));
        stage.is_well();
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
