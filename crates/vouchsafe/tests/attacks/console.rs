//! Attacks on the console's forms and cookies from outside a browser.

use crate::HERE;
use crate::stage::{PASSWORD, Stage};

#[test]
fn the_consoles_forms_are_bounded_and_nothing_in_them_lets_in() {
    let mut stage = Stage::start();
    let token = stage.token(HERE, "alice");
    let visit = "ab".repeat(32);
    let post = |path: &str, cookies: &str, origin: &str, body: &str| {
        let kind = "content-type: application/x-www-form-urlencoded";
        let head =
            format!("POST {path} HTTP/1.1\r\nhost: localhost\r\norigin: {origin}\r\ncookie: {cookies}\r\n{kind}");
        stage.say(HERE, format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).as_bytes()).map(|a| a.status)
    };
    let visits = format!("__Host-vouchsafe-visit={visit}");
    let login = format!("person=alice&password={}", PASSWORD.replace(' ', "+"));
    for (path, cookies, origin, body, status) in [
        ("/console/login", visits.as_str(), "https://localhost", "x".repeat(1 << 20).as_str(), 413),
        ("/console/login", &visits, "https://localhost", &login, 400),
        ("/console/login", &visits, "https://localhost", &format!("{login}&form={visit}"), 403),
        ("/console/login", &visits, "https://evil.example.org", &login, 403),
        ("/console/login", "", "https://localhost", &login, 403),
        // Bearer tokens, their hashes and invented names do not identify a session.
        ("/console/logout", &format!("__Host-vouchsafe={token}"), "https://localhost", "form=x", 403),
        ("/console/admin", &format!("__Host-vouchsafe={token}"), "https://localhost", "form=x", 403),
        ("/console/logout", &"a=b; ".repeat(500), "https://localhost", "form=x", 403),
    ] {
        let seen = post(path, cookies, origin, body);
        // If the body is too large, the connection may be closed before the answer is read.
        assert!(
            seen == Some(status) || seen.is_none() && status == 413,
            "{path} {cookies:.60}: {seen:?}, not {status}"
        );
    }
    for path in ["/console", "/console/admin", "/console/devices", "/console/security"] {
        for cookie in [format!("__Host-vouchsafe={token}"), format!("__Host-vouchsafe={visit}"), visits.clone()] {
            let head = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\ncookie: {cookie}\r\n\r\n");
            assert_eq!(stage.say(HERE, head.as_bytes()).unwrap().status, 303, "{path}: to the login page");
        }
    }
    stage.is_well();
}
