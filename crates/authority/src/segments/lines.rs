//! Lines. With the number and the key of a line, a session requests segments and grants by UDP (wire.md §8.13, §8.14).

use crate::http::problems::Problem;
use crate::login::{Sessions, credentials};
use crate::now;
use crate::storage::TokenHash;
use api::Line;
use engine::issuing::lines::Lines;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;
use wire::ask::{LineKey, LineNumber};

/// The lines of all sessions. A line is a number and a key with which a session requests segments and grants by UDP.
pub struct RequestLines {
    sessions: Arc<Sessions>,
    lines: Mutex<Lines<TokenHash>>,
    /// When the clock of the lines was 0.
    started: Instant,
    /// The port of the UDP service; set when the service starts.
    pub(super) port: OnceLock<u16>,
}

impl RequestLines {
    /// Creates a table with no line in it.
    pub fn new(sessions: Arc<Sessions>) -> Self {
        Self { sessions, lines: Mutex::default(), started: Instant::now(), port: OnceLock::new() }
    }

    /// Opens a line for the session with this token. The new line replaces the session's earlier line. `expires` is the
    /// end of the session, in Unix seconds, and `opener` is the address from which the session called.
    ///
    /// # Errors
    /// Fails if the authority serves no requests by UDP, the session has ended, or the system provides no randomness.
    pub fn open(&self, token: TokenHash, expires: u64, opener: IpAddr) -> Result<Line, Problem> {
        let port =
            *self.port.get().ok_or(Problem::NotFound("line: this authority accepts requests over HTTPS only"))?;
        let key = credentials::random::<32>()?;
        let mut line = u64::from_be_bytes(credentials::random()?);
        while !self.lock().give(token, LineNumber(line), LineKey::new(key), opener, self.clock()) {
            line = u64::from_be_bytes(credentials::random()?);
        }
        // The session may have ended before its line existed and could be removed.
        if self.sessions.get(&token).is_none() {
            self.keep(|holder| *holder != token);
            return Err(Problem::NotLoggedIn);
        }
        Ok(Line { port, line, key: hex::encode(key), grants: true, answers: true, paths: true, expires, now: now() })
    }

    /// Removes the lines of the sessions for which `is_kept` returns false.
    pub fn keep(&self, is_kept: impl Fn(&TokenHash) -> bool) {
        self.lock().keep(is_kept);
    }

    /// Returns the present time by the clock of the lines, in microseconds.
    pub(super) fn clock(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Lines<TokenHash>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
