//! Sessions of the service accounts that request segments for tenants. The daemon logs in if an account has no session,
//! renews sessions before they end, and keeps sessions across restarts.

use crate::directory::{Directory, Kept};
use crate::now;
use anyhow::{Context, Result, ensure};
use api::{Event, ServiceKey, Withdrawal};
use client::{Asker, Authority, Error};
use follower::Backoff;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use zeroize::Zeroizing;

/// Maximum length of a key file, in bytes.
const LONGEST_KEY: usize = 16 << 10;
/// The pauses between attempts to log in.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(30));
/// A session that lasted at least this long ended normally, so that the next login is not delayed.
const LASTED: Duration = Duration::from_secs(30);
/// Number of seconds before the end of a session at which the next session begins. It is the lifetime of the segments
/// that were issued in the ending session.
const AHEAD: u64 = 300;

/// An event from the authority that concerns a session.
pub enum News {
    /// Statements of withdrawn consent, which void segments.
    Withdrawn(Vec<Withdrawal>),
    /// Something changed, so that the authority possibly grants a request that it refused before.
    Changed,
}

/// The current state of a session.
#[derive(Clone, Default)]
pub struct Standing {
    /// The client with which the account sends requests; `None` if the account is not logged in.
    pub asker: Option<Asker>,
    /// Expiry of the session, Unix seconds.
    pub expires: u64,
    /// The present error of the login or of the connection to the authority; `None` if there is none.
    pub trouble: Option<String>,
}

/// The session of a service account. It is renewed until this value is dropped.
pub struct Session {
    /// The account's name.
    pub service: String,
    standing: watch::Receiver<Standing>,
    task: JoinHandle<()>,
}

impl Session {
    /// Logs in with the service account's key in the file `key`, and keeps a session until the returned value is
    /// dropped. Sends each event to the channel in `tell`, together with the number in `tell`.
    pub fn start(
        key: &Path,
        authority: &str,
        device: &str,
        directory: &Directory,
        tell: (usize, mpsc::Sender<(usize, News)>),
    ) -> Result<Self> {
        let key = read(key)?;
        let service = key.service.clone();
        // The key is sent only to the server that the certificates in the key file authenticate.
        let caller = Authority::new(authority, Some(key.ca.as_bytes()))?;
        let (changes, standing) = watch::channel(Standing::default());
        let keeper = Keeper {
            key,
            caller,
            url: authority.to_owned(),
            device: device.to_owned(),
            directory: directory.clone(),
            changes,
            tell,
        };
        Ok(Self { service, standing, task: tokio::spawn(keeper.keep()) })
    }

    /// Returns the state of the session.
    pub fn standing(&self) -> Standing {
        self.standing.borrow().clone()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Reads a service account's key file.
pub fn read(path: &Path) -> Result<ServiceKey> {
    let shown = path.display();
    let cant = || format!("cannot read the service account's key {shown}");
    let file = File::open(path).with_context(cant)?;
    let mode = file.metadata().with_context(cant)?.mode();
    ensure!(mode & 0o077 == 0, "{shown} is accessible to other users (mode {:03o}): run chmod 600 on it", mode & 0o777);
    let mut text = Zeroizing::new(String::with_capacity(LONGEST_KEY));
    file.take(LONGEST_KEY as u64).read_to_string(&mut text).with_context(cant)?;
    serde_json::from_str(&text)
        .ok()
        .with_context(|| format!("{shown} is not a key file written by `vouchsafe authority service add`"))
}

/// The reason why a task stops reading a session's events.
enum End {
    /// The session has ended. The text is the reason.
    Over(String),
    /// The session ends soon, so the daemon has to begin another.
    Due,
}

struct Keeper {
    key: ServiceKey,
    caller: Authority,
    url: String,
    device: String,
    directory: Directory,
    changes: watch::Sender<Standing>,
    tell: (usize, mpsc::Sender<(usize, News)>),
}

impl Keeper {
    async fn keep(self) {
        let service = self.key.service.clone();
        let before = self.directory.session(&service);
        let mut kept = before.filter(|kept| kept.authority == self.url && !is_due(kept, now()));
        kept.iter().for_each(|kept| self.caller.learn(&kept.authorities));
        let mut backoff = BACKOFF;
        loop {
            let mut session = match kept.take() {
                Some(session) => session,
                None => match self.enter().await {
                    Ok(session) => session,
                    Err(error) => {
                        tracing::warn!(service, "cannot log in with this service account; trying again: {error}");
                        self.changes.send_modify(|standing| standing.trouble = Some(error.to_string()));
                        sleep(backoff.pause()).await;
                        continue;
                    }
                },
            };
            let authority = self.caller.with_token(&session.token);
            let asker = Some(asker(&authority));
            self.changes.send_replace(Standing { asker, expires: session.lasts.1, trouble: None });
            tracing::info!(service, until = session.lasts.1, "logged in");
            let began = Instant::now();
            match self.follow(&authority, &mut session).await {
                // The next session takes over. This session expires later, along with the segments issued in it.
                End::Due => backoff.reset(),
                End::Over(why) => {
                    tracing::info!(service, "the session has ended: {why}");
                    let _ = self.directory.set_session(&service, None);
                    self.changes.send_replace(Standing { trouble: Some(why), ..Standing::default() });
                    if began.elapsed() < LASTED {
                        sleep(backoff.pause()).await;
                    } else {
                        backoff.reset();
                    }
                }
            }
        }
    }

    async fn enter(&self) -> Result<Kept, Error> {
        let session = self.caller.login_by_key(&self.key, &self.device).await?;
        // Times are by this machine's clock, regardless of the authority's.
        let (began, lasts) = (now(), session.expires.saturating_sub(session.now));
        let (authority, authorities) = (self.url.clone(), self.caller.members().all);
        let kept = Kept { authority, authorities, token: session.token, lasts: (began, began + lasts) };
        self.save(&kept);
        Ok(kept)
    }

    fn save(&self, kept: &Kept) {
        if let Err(error) = self.directory.set_session(&self.key.service, Some(kept)) {
            tracing::warn!(
                service = self.key.service,
                "cannot save the session, so the next start logs in again: {error:#}"
            );
        }
    }

    /// Saves the URLs of the authorities of the cluster with the session, if they have changed.
    fn save_members(&self, authority: &Authority, session: &mut Kept) {
        let authorities = authority.members().all;
        if session.authorities != authorities {
            session.authorities = authorities;
            self.save(session);
        }
    }

    async fn follow(&self, authority: &Authority, session: &mut Kept) -> End {
        let mut events = authority.events();
        let mut trouble = events.trouble();
        let due = due(session).saturating_sub(now());
        let due = sleep(Duration::from_secs(due));
        tokio::pin!(due);
        let mut has_begun = false;
        loop {
            let event = tokio::select! {
                event = events.next() => event,
                Ok(()) = trouble.changed() => {
                    let why = trouble.borrow_and_update().clone();
                    self.changes.send_modify(|standing| standing.trouble = why);
                    continue;
                }
                () = &mut due => return End::Due,
            };
            self.save_members(authority, session);
            let news = match event {
                Ok(Event::Withdrawn { withdrawn }) => News::Withdrawn(withdrawn),
                Ok(Event::Policy) => News::Changed,
                Ok(Event::Hello) => {
                    learn(authority);
                    // A restarted authority, or another one, does not know the lines that it issued before.
                    if std::mem::replace(&mut has_begun, true) {
                        self.changes.send_modify(|standing| standing.asker = Some(asker(authority)));
                    }
                    News::Changed
                }
                Ok(Event::LoggedOut) => return End::Over("logged out by the authority".to_owned()),
                Ok(_) => continue,
                Err(error) => return End::Over(error.to_string()),
            };
            let _ = self.tell.1.send((self.tell.0, news)).await;
        }
    }
}

/// Returns a client for requests, which requests a new line at once.
fn asker(authority: &Authority) -> Asker {
    let asker = Asker::new(authority.clone());
    let line = asker.clone();
    tokio::spawn(async move { line.ready().await });
    asker
}

/// Asks which authorities are in the cluster, in a task of its own: withdrawals must not wait for the answer.
fn learn(authority: &Authority) {
    let authority = authority.clone();
    tokio::spawn(async move {
        if let Err(error) = authority.authorities().await {
            tracing::debug!("cannot ask for the authorities of the cluster: {error}");
        }
    });
}

/// Returns the time (Unix seconds) at which the next session has to begin.
fn due(session: &Kept) -> u64 {
    let (began, ends) = session.lasts;
    ends.saturating_sub(AHEAD.min(ends.saturating_sub(began) / 4))
}

fn is_due(session: &Kept, now: u64) -> bool {
    due(session) <= now
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_session_begins_as_long_before_the_end_as_segments_last() {
        let session = |lasts| Kept { authority: String::new(), authorities: Vec::new(), token: String::new(), lasts };
        assert_eq!(due(&session((1000, 1000 + 43_200))), 1000 + 43_200 - 300);
        assert_eq!(due(&session((1000, 1120))), 1090);
        assert!(is_due(&session((1000, 1120)), 1090) && !is_due(&session((1000, 1120)), 1089));
    }

    #[test]
    fn a_key_that_others_can_read_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let room = tempfile::tempdir().unwrap();
        let file = room.path().join("key");
        std::fs::write(&file, "{}").unwrap();
        let mode = |mode| std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
        mode(0o644);
        assert!(read(&file).err().unwrap().to_string().contains("chmod 600"));
        mode(0o600);
        assert!(read(&file).err().unwrap().to_string().contains("authority service add"));
    }
}
