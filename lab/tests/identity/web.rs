//! nginx in front of an application that says which identity it was given.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lab::{Namespace, Process, poll};
use tempfile::TempDir;

/// The port of nginx.
pub const HTTP: u16 = 80;
/// The user id of nginx' workers (`www-data`).
pub const WORKER: u32 = 33;
const SOON: Duration = Duration::from_secs(20);
/// Where the documented configuration has the verifier's socket and the log.
const PATHS: [(&str, &str); 2] =
    [("/run/vouchsafe/identity.sock", "identity.sock"), ("/var/log/nginx/vouchsafe.log", "visits.log")];

/// The application: it answers with the identity in the headers that reach it.
const APPLICATION: &str = r#"
    server {
        listen 127.0.0.1:8080;
        access_log off;
        default_type text/plain;
        location / { return 200 "$http_x_vouchsafe_person|$http_x_vouchsafe_device|$http_x_vouchsafe_rule"; }
    }
"#;

/// A folder that nginx' workers can enter.
pub struct Room(TempDir);

impl Room {
    pub fn new() -> Result<Self> {
        let room = TempDir::with_prefix("vouchsafe-identity-")?;
        fs::set_permissions(room.path(), fs::Permissions::from_mode(0o755))?;
        Ok(Self(room))
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The path of the verifier's identity socket.
    pub fn socket(&self) -> PathBuf {
        self.path("identity.sock")
    }

    /// Flags of a verifier whose socket nginx may use.
    pub fn flags(&self) -> Result<[String; 4]> {
        let socket = self.socket().to_str().context("a path in UTF-8")?.to_owned();
        Ok(["--identity-socket".into(), socket, "--whois-users".into(), "www-data".into()])
    }

    /// Returns a snippet of docs/identity.md, by the line with which it begins, with paths in this room.
    pub fn documented(&self, begins: &str) -> Result<String> {
        let (_, rest) =
            include_str!("../../../docs/identity.md").split_once(begins).with_context(|| format!("no {begins:?}"))?;
        let (text, _) = rest.split_once("```").context("the snippet has no end")?;
        let here = |text: String, (from, to): &(&str, &str)| text.replace(from, &self.path(to).to_string_lossy());
        Ok(PATHS.iter().fold(text.to_owned(), here))
    }
}

/// A running nginx.
pub struct Nginx {
    _process: Process,
    log: PathBuf,
}

impl Nginx {
    /// Starts nginx with these servers, and the application behind it.
    pub fn start(namespace: &Namespace, room: &Room, servers: &str) -> Result<Self> {
        let home = |name: &str| room.path(name).display().to_string();
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .iter()
            .map(|kind| format!("{kind}_temp_path {};\n", home(kind)))
            .collect();
        let text = format!(
            "user www-data;\ndaemon off;\nworker_processes 1;\nerror_log stderr info;\npid {};\nevents {{}}\nhttp {{\n\
             access_log off;\n{temporary}\n{APPLICATION}\n{servers}\n}}\n",
            home("nginx.pid")
        );
        let file = room.path("nginx.conf");
        fs::write(&file, text)?;
        let process = namespace.spawn([Path::new("/usr/sbin/nginx"), Path::new("-c"), &file])?;
        let answers = || namespace.run(["curl", "-sf", "--max-time", "1", "http://127.0.0.1:8080/"]).is_ok();
        ensure!(poll(SOON, answers), "nginx does not start:\n{}", process.log());
        Ok(Self { _process: process, log: room.path("visits.log") })
    }

    /// Waits until the log has at least `count` lines whose first field is this client, or any client if it is empty.
    /// Returns these lines, or those that came in time. nginx writes a line after it has sent the answer.
    pub fn visits(&self, client: &str, count: usize) -> Result<Vec<String>> {
        let mut lines = Vec::new();
        let _ = poll(SOON, || {
            let text = fs::read_to_string(&self.log).unwrap_or_default();
            let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
            lines = whole.lines().filter(|line| line.starts_with(client)).map(without_place).collect();
            lines.len() >= count
        });
        Ok(lines)
    }
}

/// The answer to a request: status and body.
#[derive(Debug, PartialEq, Eq)]
pub struct Page(pub u16, pub String);

/// Gets a page by curl, with further arguments of curl. Fails if there is no answer.
pub fn get(client: &Namespace, url: &str, arguments: &[&str]) -> Result<Page> {
    page(client.run(curl(url, arguments))?)
}

/// Asks the verifier as this user, with these headers.
pub fn ask(host: &Namespace, room: &Room, user: u32, path: &str, headers: &[String]) -> Result<Page> {
    asked(host, room, user, path, headers, &[])
}

fn asked(host: &Namespace, room: &Room, user: u32, path: &str, headers: &[String], more: &[&str]) -> Result<Page> {
    let (id, socket) = (user.to_string(), room.socket().to_string_lossy().into_owned());
    let mut words: Vec<String> = ["setpriv", "--reuid", &id, "--clear-groups", "--"].map(str::to_owned).to_vec();
    let mut arguments = vec!["--unix-socket", &socket, "-i"];
    arguments.extend(more);
    headers.iter().for_each(|header| arguments.extend(["-H", header]));
    words.extend(curl(&format!("http://verifier{path}"), &arguments));
    let Page(status, text) = page(host.run(words)?)?;
    let (head, body) = text.split_once("\r\n\r\n").context("curl printed no head")?;
    let said: Vec<_> = head.lines().filter_map(|line| line.strip_prefix("x-vouchsafe-")).collect();
    Ok(Page(status, if status == 200 { said.join("\n") } else { body.to_owned() }))
}

/// Complains about the person behind a connection, as this user, with these headers.
pub fn complain(host: &Namespace, room: &Room, user: u32, headers: &[String]) -> Result<Page> {
    let post = ["-X", "POST"];
    asked(host, room, user, "/v1/complaint", headers, &post)
}

fn curl(url: &str, arguments: &[&str]) -> Vec<String> {
    let fixed = ["curl", "-s", "-g", "--max-time", "20", "-w", "\n%{http_code}"];
    fixed.iter().chain(arguments).chain(&[url]).map(|word| (*word).to_owned()).collect()
}

fn page(output: String) -> Result<Page> {
    let (body, status) = output.rsplit_once('\n').context("curl printed no status")?;
    Ok(Page(status.parse()?, without_place(body)))
}

/// Removes the place of a rule (`policy.toml:17 `), which the authority puts before the rule's name.
pub fn without_place(text: &str) -> String {
    let mut parts = text.split("policy.toml:");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |all, part| all + part.trim_start_matches(|c: char| c.is_ascii_digit()).trim_start_matches(' '))
}
