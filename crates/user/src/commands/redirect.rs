//! The redirect target of a login in a browser: a port of this machine's loopback address (RFC 8252, §7.3) that accepts
//! one callback. Other pages and programs can also connect to the port, so the listener rejects requests that lack the
//! login's state.

use anyhow::{Context, Result};
use api::Callback;
use openidconnect::url::{Url, form_urlencoded};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

/// Maximum length of a request, in bytes.
const MOST: usize = 16 * 1024;
/// Maximum time for a client to send its request, and to receive the answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// A listener that waits for the browser's callback.
pub struct Redirect {
    listener: TcpListener,
    port: u16,
}

/// A browser's connection, which waits for the result of the login.
pub struct Page(TcpStream);

impl Redirect {
    /// Listens on any free port.
    ///
    /// # Errors
    ///
    /// Fails if no port can be bound.
    pub async fn listen() -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await;
        let listener = listener.context("cannot listen for the browser on 127.0.0.1")?;
        let port = listener.local_addr()?.port();
        Ok(Self { listener, port })
    }

    /// Returns the port on which the listener waits.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Waits for a browser that presents `state` and a code. Returns both, and the browser's connection.
    ///
    /// # Errors
    ///
    /// Fails if no connection can be accepted.
    pub async fn callback(&self, state: &str) -> Result<(Callback, Page)> {
        let (came, mut comes) = tokio::sync::mpsc::channel(1);
        loop {
            tokio::select! {
                Some(answer) = comes.recv() => return Ok(answer),
                accepted = self.listener.accept() => {
                    // Each connection has a task of its own, so that a slow client does not delay others.
                    let (stream, _) = accepted.context("cannot accept the browser's connection")?;
                    let (came, state, port) = (came.clone(), state.to_owned(), self.port);
                    tokio::spawn(async move {
                        if let Ok(Ok(Some(answer))) = timeout(PATIENCE, visit(stream, &state, port)).await {
                            let _ = came.send(answer).await;
                        }
                    });
                }
            }
        }
    }
}

impl Page {
    /// Tells the browser that the login has succeeded.
    pub async fn welcome(self, text: &str) {
        self.answer("200 OK", &format!("You are {text}. You can close this window.")).await;
    }

    /// Tells the browser that the login has failed, and why.
    pub async fn refuse(self, why: &str) {
        self.answer("403 Forbidden", &format!("You are not logged in: {why}")).await;
    }

    async fn answer(mut self, status: &str, text: &str) {
        let text = text.replace('&', "&amp;").replace('<', "&lt;");
        let body = format!(
            "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>Vouchsafe</title><p>{text}</p></html>\n"
        );
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: {}\r\n\
             Cache-Control: no-store\r\nReferrer-Policy: no-referrer\r\nX-Content-Type-Options: nosniff\r\n\
             Content-Security-Policy: default-src 'none'; frame-ancestors 'none'\r\nConnection: close\r\n\r\n",
            body.len()
        );
        let _ = timeout(PATIENCE, async {
            self.0.write_all(head.as_bytes()).await?;
            self.0.write_all(body.as_bytes()).await?;
            self.0.shutdown().await
        })
        .await;
    }
}

async fn visit(mut stream: TcpStream, state: &str, port: u16) -> Result<Option<(Callback, Page)>> {
    let mut head = Vec::new();
    while !head.windows(4).any(|window| window == b"\r\n\r\n") {
        let mut chunk = [0; 2048];
        let size = stream.read(&mut chunk).await?;
        if size == 0 || head.len() + size > MOST {
            return Ok(None);
        }
        head.extend_from_slice(&chunk[..size]);
    }
    let page = Page(stream);
    match read_callback(&String::from_utf8_lossy(&head), state, port) {
        Some(answer) => Ok(Some((answer, page))),
        None => {
            page.answer("404 Not Found", "There is nothing here.").await;
            Ok(None)
        }
    }
}

/// Returns the callback in a request, if the request belongs to this login.
fn read_callback(head: &str, state: &str, port: u16) -> Option<Callback> {
    let mut lines = head.split("\r\n");
    let target = lines.next()?.strip_prefix("GET ")?.strip_suffix(" HTTP/1.1")?;
    // Protects against DNS rebinding: a request for a host name other than 127.0.0.1 is refused.
    let mut hosts = lines.filter_map(|line| line.split_once(':')).filter(|(name, _)| name.eq_ignore_ascii_case("host"));
    let host = hosts.next()?.1.trim();
    if hosts.next().is_some() || host != format!("127.0.0.1:{port}") {
        return None;
    }
    let url = Url::parse(&format!("http://{host}")).ok()?.join(target).ok()?;
    if url.path() != "/callback" || url.port() != Some(port) {
        return None;
    }
    let mut parameters = BTreeMap::new();
    for (name, value) in form_urlencoded::parse(url.query()?.as_bytes()) {
        if parameters.insert(name.into_owned(), value.into_owned()).is_some() {
            return None;
        }
    }
    if parameters.remove("state")? != state {
        return None;
    }
    parameters.remove("code").map(|code| Callback { code, state: state.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(target: &str, host: &str) -> Option<Callback> {
        read_callback(&format!("GET {target} HTTP/1.1\r\nAccept: */*\r\nHost: {host}\r\n\r\n"), "s t", 4000)
    }

    #[test]
    fn what_the_authority_sent_is_taken() {
        let callback = request("/callback?code=a%2Bb&state=s+t", "127.0.0.1:4000").unwrap();
        assert_eq!((callback.code.as_str(), callback.state.as_str()), ("a+b", "s t"));
    }

    #[test]
    fn what_anybody_else_sends_is_turned_away() {
        for (target, host) in [
            ("/callback?code=a&state=other", "127.0.0.1:4000"),
            ("/callback?code=a", "127.0.0.1:4000"),
            ("/callback?code=a&state=s+t", "rebound.example.org:4000"),
            ("/callback?code=a&state=s+t", "127.0.0.1"),
            ("/callback?code=a&code=b&state=s+t", "127.0.0.1:4000"),
            ("/callback?code=a&state=other&state=s+t", "127.0.0.1:4000"),
            ("/callback?error=x&state=s+t", "127.0.0.1:4000"),
            ("/callback/x?code=a&state=s+t", "127.0.0.1:4000"),
            ("http://elsewhere.example.org/callback?code=a&state=s+t", "127.0.0.1:4000"),
            ("/", "127.0.0.1:4000"),
        ] {
            assert!(request(target, host).is_none(), "{target} {host}");
        }
    }
}
