//! Checks a name, a password and a second factor. The throttle limits the rate of attempts. The response to a wrong
//! name is the same as the response to a wrong password.

use super::credentials::{self, MOST_PASSWORD, Scratch};
use crate::http::peer::Peer;
use crate::http::problems::Problem;
use crate::http::throttle::{Key, Throttle};
use crate::now;
use crate::storage::{AuditEvent, AuditLog, Proof, Storage};
use engine::policy::name_is_valid;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use zeroize::Zeroizing;

/// Maximum number of passwords verified concurrently. Each takes 19 MiB, which are kept for the next one, and about 20
/// ms of a core.
const SLOTS: usize = 2;
/// Maximum time that a login waits for a password slot.
const PASSWORD_WAIT: Duration = Duration::from_secs(5);

/// The credentials of a login attempt. Has no `Debug`, because it holds secrets.
pub struct Attempt {
    /// The account's name.
    pub person: String,
    /// The password that the caller sent.
    pub password: Zeroizing<String>,
    /// The six digits of the second factor, if the caller sent them.
    pub code: Option<String>,
}

/// Limits how many passwords are checked concurrently, and keeps the memory of finished checks for the next.
struct PasswordSlots {
    free: Arc<Semaphore>,
    idle: Mutex<Vec<Scratch>>,
}

/// The permit and the memory for one password check.
struct Slot {
    scratch: Scratch,
    slots: Arc<PasswordSlots>,
    _permit: OwnedSemaphorePermit,
}

impl PasswordSlots {
    /// Creates `most` slots.
    fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { free: Arc::new(Semaphore::new(most)), idle: Mutex::default() })
    }

    /// Waits until another password may be checked.
    async fn take(self: &Arc<Self>) -> anyhow::Result<Slot> {
        let permit = self.free.clone().acquire_owned().await?;
        let scratch = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default();
        Ok(Slot { scratch, slots: self.clone(), _permit: permit })
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // This runs before the permit is released, so that the next holder finds the memory.
        let scratch = std::mem::take(&mut self.scratch);
        self.slots.idle.lock().unwrap_or_else(PoisonError::into_inner).push(scratch);
    }
}

/// Checks passwords and second factors.
pub struct PasswordCheck {
    storage: Arc<Storage>,
    audit: Arc<AuditLog>,
    throttle: Arc<Throttle>,
    slots: Arc<PasswordSlots>,
    /// The password hash that is verified for an unknown person, so that response times do not reveal which names
    /// exist.
    nobodys_password: String,
}

impl PasswordCheck {
    /// Creates a check against the accounts in `storage`.
    ///
    /// # Errors
    /// Fails if the system provides no randomness.
    pub fn new(storage: Arc<Storage>, audit: Arc<AuditLog>, throttle: Arc<Throttle>) -> anyhow::Result<Self> {
        let nobodys_password = credentials::hash_password(&hex::encode(credentials::random::<16>()?))?;
        Ok(Self { storage, audit, throttle, slots: PasswordSlots::new(SLOTS), nobodys_password })
    }

    /// Checks a login attempt, and records a failed one in the audit trail. Returns the person's name and the proof for
    /// the session.
    ///
    /// # Errors
    /// Fails if name, password or second factor is wrong, the second factor is missing, the throttle makes the caller
    /// wait, too many passwords are being checked, or the database fails.
    pub async fn check(&self, attempt: Attempt, peer: &Peer) -> Result<(String, Proof), Problem> {
        let Attempt { person, password, code } = attempt;
        // A name that no account can have gets the same response as a wrong one, and is never stored.
        let known_form = name_is_valid(&person) && password.len() <= MOST_PASSWORD;
        let charged = self.throttle.login(known_form.then_some(person.as_str()), peer.address, Instant::now());
        let keys = match charged {
            Ok(keys) => keys,
            Err(wait) => {
                let early = self.early_factor(&person, code.as_deref(), peer.address).await?;
                early.ok_or(Problem::TooMany(wait))?
            }
        };
        let failed = |why: &str| {
            let event = AuditEvent::new("login_failed").source(peer.address).detail(why);
            if known_form { event.person(&person) } else { event }
        };
        if !known_form {
            self.audit.write_refusal(failed("no such account")).await?;
            return Err(Problem::WrongPassword);
        }

        let wanted = person.clone();
        let account = self.storage.call(move |database| database.account(&wanted)).await?;
        let hash = account.as_ref().map_or(&self.nobodys_password, |account| &account.password).clone();
        let slot = tokio::time::timeout(PASSWORD_WAIT, self.slots.take()).await;
        let mut slot = slot.map_err(|_| Problem::Busy("logins"))??;
        // The slot stays taken until the check has finished: a client that disconnects does not free it for another
        // check.
        let checked =
            tokio::task::spawn_blocking(move || credentials::password_matches(&password, &hash, &mut slot.scratch));
        let matches = checked.await.map_err(anyhow::Error::from)??;
        let Some(account) = account.filter(|_| matches) else {
            self.audit.write_refusal(failed("wrong name or password")).await?;
            return Err(Problem::WrongPassword);
        };
        if let Some(secret) = &account.totp {
            let code = code.ok_or(Problem::SecondFactorRequired)?;
            let factor = [self.throttle.second_factor(&person, peer.address)];
            self.throttle.charge(&factor, Instant::now()).map_err(Problem::TooMany)?;
            let is_new = match credentials::totp_step(secret, &code, now())? {
                None => false,
                Some(step) => {
                    let person = person.clone();
                    self.storage.call(move |database| database.use_totp_step(&person, step)).await?
                }
            };
            if !is_new {
                self.audit.write_refusal(failed("wrong or used code")).await?;
                return Err(Problem::WrongSecondFactor);
            }
            self.throttle.refund(&factor);
        }
        self.throttle.refund(&keys);
        Ok((person, Proof::Password(account.password)))
    }

    /// Checks the second factor of a caller whose attempt the throttle delays. An attacker who only guesses passwords
    /// cannot present a valid second factor. If the factor is valid, returns the throttle keys that were charged, and
    /// the login proceeds. The response does not reveal whether such an account exists.
    async fn early_factor(
        &self,
        person: &str,
        code: Option<&str>,
        source: IpAddr,
    ) -> Result<Option<Vec<Key>>, Problem> {
        let Some(code) = code else { return Ok(None) };
        let Some(keys) = self.throttle.early_factor(source, Instant::now()) else { return Ok(None) };
        let wanted = person.to_owned();
        let account = self.storage.call(move |database| database.account(&wanted)).await?;
        let Some(secret) = account.and_then(|account| account.totp) else { return Ok(None) };
        Ok(credentials::totp_step(&secret, code, now())?.map(|_| keys))
    }
}
