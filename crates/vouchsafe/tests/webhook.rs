//! The commands about webhooks, with a real HTTP server.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output};

fn run(directory: &Path, arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vouchsafe"));
    command.arg("authority").args(arguments).arg("--dir").arg(directory);
    let Output { status, stdout, stderr } = command.output().unwrap();
    (status.code(), String::from_utf8(stdout).unwrap() + &String::from_utf8(stderr).unwrap())
}

#[test]
fn an_operator_tests_a_webhook_before_the_authority_uses_it() {
    let room = tempfile::tempdir().unwrap();
    let directory = &room.path().join("authority");
    let said = |arguments: &[&str], code: i32, text: &str| {
        let (ended, output) = run(directory, arguments);
        assert!(ended == Some(code) && output.contains(text), "{arguments:?}: {ended:?}: {output}");
    };
    said(&["init", "--name", "localhost"], 0, "created");
    said(&["webhook", "test"], 2, "authority.toml has no table [[webhooks]]");
    said(&["webhook", "status"], 2, "the authority is not running");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut read = Vec::new();
        while !read.ends_with(b"\"data\":{}}") {
            let mut bytes = [0; 1024];
            let length = stream.read(&mut bytes).unwrap();
            assert!(length > 0, "{}", String::from_utf8_lossy(&read));
            read.extend(&bytes[..length]);
        }
        stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap();
        String::from_utf8(read).unwrap()
    });
    let config = directory.join("authority.toml");
    let before = std::fs::read_to_string(&config).unwrap();
    let tables = format!(
        "{before}\n[[webhooks]]\nname = \"team\"\nurl = \"http://{address}/hook?key=abc\"\n\
         secret_file = \"team.secret\"\ndelegations = [\"dab\"]\n"
    );
    std::fs::write(&config, tables).unwrap();
    said(&["webhook", "test"], 1, "team: cannot use the webhook team of authority.toml: cannot read");
    std::fs::write(directory.join("team.secret"), "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n").unwrap();
    said(&["webhook", "test", "other"], 2, "its webhooks are team");
    said(&["webhook", "test"], 0, "team: 127.0.0.1 accepted the test message");
    let request = server.join().unwrap();
    assert!(request.starts_with("POST /hook?key=abc HTTP/1.1\r\n"), "{request}");
    for header in ["webhook-id: msg_", "webhook-timestamp: ", "webhook-signature: v1,", "{\"type\":\"test\","] {
        assert!(request.contains(header), "{header}: {request}");
    }
    // Nobody listens any more. The error does not contain the URL, which may be a secret.
    let (code, text) = run(directory, &["webhook", "test", "team"]);
    assert!(code == Some(1) && text.contains("Connection refused") && !text.contains("abc"), "{text}");
    assert!(text.contains("names the delegation dab, which the policy lacks"), "{text}");
    said(&["audit"], 0, "team: accepted");
    said(&["audit"], 0, "team: failed");
}
