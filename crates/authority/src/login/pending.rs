//! Logins in progress. Unauthenticated senders can start them, so their number and duration are limited. If there is
//! no room for a new login, a login of the network or source with the most logins is removed.

pub mod agent;

use super::provider::{Departure, Refusal, Verified};
use crate::http::problems::Problem;
use crate::http::throttle::Key;
use crate::login::credentials::{self, token_hash};
use agent::{AgentLogin, Proven};
use anyhow::Result;
use api::Callback;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use subtle::ConstantTimeEq;
use tokio::sync::{Notify, oneshot};
use tokio::task::AbortHandle;

/// Time limit for a person to log in at the provider in a browser.
pub const BROWSER_TIME: Duration = Duration::from_secs(600);
/// Maximum number of concurrent logins in browsers, counted separately for the console and for agents: about 4 MB each.
const MOST_BROWSER: usize = 4096;
/// Maximum number of concurrent logins in browsers from one source. The throttle lets a source start 230 within
/// [`BROWSER_TIME`], so an attacker cannot push out the login of a person behind the same address.
const MOST_OF_SOURCE: usize = 256;
/// Maximum number of concurrent logins by device code. For each, the authority polls the provider, but only as often as
/// the agent asks for the result. The throttle lets all networks together start ten a second, so an attacker who
/// controls as many networks needs minutes to reach this number.
const MOST_DEVICE: usize = 4096;
/// Maximum number of concurrent logins by device code from one network.
const MOST_DEVICE_OF_NETWORK: usize = 512;
/// Maximum number of outstanding challenges for machines.
const MOST_CHALLENGES: usize = 4096;
/// Lifetime of a challenge for a service account.
pub const CHALLENGE_TIME: Duration = Duration::from_secs(60);

/// The kind of a login in progress, with its state.
pub enum Way {
    /// A login at the console, for which a browser was sent to the provider. The text is the path of the page that
    /// follows the login.
    Console(Departure, String),
    /// A login of an agent that a person approves in a browser.
    Agent(Box<AgentLogin>),
    /// A login of an agent by device code: a person enters a code at the provider.
    Code(CodeLogin),
    /// A login of a service account: a machine signs a challenge.
    Challenge,
}

/// An agent's login by device code.
pub struct CodeLogin {
    /// The device name that the agent gave.
    pub device: String,
    /// Receives the provider's verified answer.
    pub outcome: oneshot::Receiver<Result<Verified, Refusal>>,
    /// Notified when the agent asks for the result. The provider is polled only then.
    pub wanted: Arc<Notify>,
    /// The task that polls the provider.
    pub task: Abort,
}

/// The handle of a task. When the handle is dropped, the task is aborted.
pub struct Abort(pub AbortHandle);

impl Drop for Abort {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A login in progress.
pub struct Started {
    /// The hash of a secret. The caller or browser that began the login must present this secret to finish the login.
    /// Zeros for a service account's login, which has no such secret.
    pub challenge: [u8; 32],
    /// The source from which the login was started: an address that [`Key::source`] has returned.
    pub source: IpAddr,
    /// Time at which the login is forgotten.
    pub until: Instant,
    /// The throttle keys that were charged for the start. They are refunded after a successful login.
    pub charged: Vec<Key>,
    /// The kind of the login, with its state.
    pub way: Way,
}

/// Parameters that a browser brings back from the provider.
pub struct Brought {
    /// The authorization code, unless the provider issued none. Secret.
    pub code: Option<String>,
    /// The state that the provider returned.
    pub state: String,
    /// The issuer of the response (RFC 9207), if the provider adds it.
    pub iss: Option<String>,
}

impl Brought {
    /// Reports whether these parameters belong to `departure`: the state must be equal, and so must the issuer if the
    /// parameters contain one. The authority must not send another provider's code to the provider `issuer` (mix-up
    /// attack, RFC 9207).
    pub fn belongs_to(&self, departure: &Departure, issuer: &str) -> bool {
        let same_state = bool::from(self.state.as_bytes().ct_eq(departure.state.as_bytes()));
        same_state && self.iss.as_ref().is_none_or(|from| from == issuer)
    }
}

/// The result of an attempt to finish an agent's login.
pub enum Finish {
    /// The person has not logged in at the provider yet, or has not answered yet.
    Pending,
    /// The person has approved the login in a browser.
    Approved(Proven, Rest),
    /// The provider has answered the login by device code.
    Verified(Result<Verified, Refusal>, Rest),
}

/// Data about a finished login that the caller needs besides the result.
pub struct Rest {
    /// The device name that the agent gave.
    pub device: String,
    /// The throttle keys that were charged for the start.
    pub charged: Vec<Key>,
}

/// The logins in progress, by their random names.
#[derive(Default)]
pub struct Logins(Mutex<HashMap<String, Started>>);

impl Logins {
    /// Records a login and returns its name. If there is no room, removes another login of the same kind, which
    /// [`greediest`] chooses. If the source has its full share of logins, `greediest` chooses among the logins of this
    /// source. If not, but the network of the source has its full share, it chooses among the logins of this network.
    /// Otherwise, it chooses among all logins.
    ///
    /// # Errors
    /// Fails if the system provides no randomness.
    pub fn begin(&self, started: Started) -> Result<String> {
        let name = hex::encode(credentials::random::<16>()?);
        let mut all = self.lock();
        let now = Instant::now();
        all.retain(|_, login| login.until > now);
        let (kind, room) = (std::mem::discriminant(&started.way), started.way.room());
        let network = Key::origin(started.source);
        let same = || all.iter().filter(|(_, login)| std::mem::discriminant(&login.way) == kind);
        let of_network = || same().filter(|(_, login)| Key::origin(login.source) == network);
        let of_source = || same().filter(|(_, login)| login.source == started.source);
        let gives_way = if of_source().count() >= room.of_source {
            greediest(of_source)
        } else if of_network().count() >= room.of_network {
            greediest(of_network)
        } else if same().count() >= room.all {
            greediest(same)
        } else {
            None
        };
        gives_way.and_then(|name| all.remove(&name));
        all.insert(name.clone(), started);
        Ok(name)
    }

    /// Finishes an agent's login. The caller has to know the login's `name`, and its code verifier `verifier`, whose hash
    /// is [`Started::challenge`]. A login in a browser is finished only with the `callback` that the browser brought to
    /// the agent. Without `callback`, a login in a browser yields [`Finish::Pending`], or an error if the login was
    /// denied or refused.
    ///
    /// # Errors
    /// Fails if no such login is in progress, it belongs to another caller, or it was denied or refused.
    pub fn finish(&self, name: &str, verifier: &str, callback: Option<&Callback>) -> Result<Finish, Problem> {
        let mut all = self.lock();
        let login = all.get_mut(name).filter(|login| login.until > Instant::now()).ok_or(Problem::WrongLogin)?;
        if !bool::from(token_hash(verifier).ct_eq(&login.challenge)) {
            return Err(Problem::WrongLogin);
        }
        let ended = match (&mut login.way, callback) {
            (Way::Agent(agent), None) => match agent.ending() {
                None => return Ok(Finish::Pending),
                Some(why) => Err(why),
            },
            (Way::Agent(agent), Some(callback)) => agent.redeem(callback).map(Ended::Approved),
            (Way::Code(code), None) => match code.outcome.try_recv() {
                Err(oneshot::error::TryRecvError::Empty) => {
                    code.wanted.notify_one();
                    return Ok(Finish::Pending);
                }
                Err(oneshot::error::TryRecvError::Closed) => Err(Problem::WrongLogin),
                Ok(outcome) => Ok(Ended::Verified(outcome)),
            },
            _ => Err(Problem::WrongLogin),
        };
        // The login cannot be used again, whatever the result.
        let Some(Started { way, charged, .. }) = all.remove(name) else { return Err(Problem::WrongLogin) };
        let device = match way {
            Way::Agent(agent) => agent.requester.device,
            Way::Code(code) => code.device,
            Way::Console(..) | Way::Challenge => return Err(Problem::WrongLogin),
        };
        let rest = Rest { device, charged };
        ended.map(|ended| match ended {
            Ended::Approved(proven) => Finish::Approved(proven, rest),
            Ended::Verified(outcome) => Finish::Verified(outcome, rest),
        })
    }

    /// Finishes a login at the console for the browser with this secret. If the secret matches, the login cannot be
    /// used again, even if this call then fails. Returns the departure, the page that follows the login, and the
    /// charged throttle keys.
    ///
    /// # Errors
    /// Fails if there is no such login in progress, if it belongs to another browser, or if the parameters do not match
    /// those with which the browser was sent to the provider.
    pub fn come_back(
        &self,
        name: &str,
        secret: &str,
        brought: &Brought,
        issuer: &str,
    ) -> Result<(Departure, String, Vec<Key>), Problem> {
        let mut all = self.lock();
        let own = |login: &Started| {
            let same_browser = bool::from(token_hash(secret).ct_eq(&login.challenge));
            same_browser && login.until > Instant::now() && matches!(login.way, Way::Console(..))
        };
        if !all.get(name).is_some_and(own) {
            return Err(Problem::WrongLogin);
        }
        match all.remove(name) {
            Some(Started { way: Way::Console(departure, to), charged, .. })
                if brought.belongs_to(&departure, issuer) =>
            {
                Ok((departure, to, charged))
            }
            _ => Err(Problem::WrongLogin),
        }
    }

    /// Removes the challenge with this name, so that it cannot be used again. Returns the throttle keys that were
    /// charged for the challenge, or `None` if there is no such challenge.
    pub fn answer(&self, name: &str) -> Option<Vec<Key>> {
        let mut all = self.lock();
        match all.get(name) {
            Some(Started { way: Way::Challenge, .. }) => {
                all.remove(name).filter(|login| login.until > Instant::now()).map(|login| login.charged)
            }
            _ => None,
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, HashMap<String, Started>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The outcome of an agent's login.
enum Ended {
    Approved(Proven),
    Verified(Result<Verified, Refusal>),
}

/// Returns the name of the login to remove. It belongs to the network with the most logins. Among the logins of this
/// network, those that are not answered come first, then those of the source with the most logins, then the oldest. So
/// a network or source with few logins keeps them while another has more.
fn greediest<'l, I: Iterator<Item = (&'l String, &'l Started)>>(logins: impl Fn() -> I) -> Option<String> {
    let (mut networks, mut sources) = (HashMap::<_, usize>::new(), HashMap::<_, usize>::new());
    for (_, login) in logins() {
        *networks.entry(Key::origin(login.source)).or_default() += 1;
        *sources.entry(login.source).or_default() += 1;
    }
    let weight = |login: &Started| {
        (networks[&Key::origin(login.source)], !login.way.is_answered(), sources[&login.source], Reverse(login.until))
    };
    logins().max_by_key(|(_, login)| weight(login)).map(|(name, _)| name.clone())
}

/// The maximum numbers of logins of one kind: in all, of one network, and of one source.
struct Room {
    all: usize,
    of_network: usize,
    of_source: usize,
}

impl Way {
    fn room(&self) -> Room {
        let (all, of_network, of_source) = match self {
            Self::Console(..) | Self::Agent(_) => (MOST_BROWSER, MOST_BROWSER, MOST_OF_SOURCE),
            Self::Code(_) => (MOST_DEVICE, MOST_DEVICE_OF_NETWORK, MOST_OF_SOURCE),
            Self::Challenge => (MOST_CHALLENGES, MOST_CHALLENGES, MOST_CHALLENGES),
        };
        Room { all, of_network, of_source }
    }

    /// Reports whether the person has approved the login, or the provider has answered, so that the agent can finish
    /// it.
    fn is_answered(&self) -> bool {
        match self {
            Self::Agent(agent) => agent.is_approved(),
            Self::Code(code) => !code.outcome.is_empty(),
            Self::Console(..) | Self::Challenge => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::agent::Requester;
    use super::*;

    fn challenge(source: u32) -> Started {
        let until = Instant::now() + CHALLENGE_TIME;
        let source = IpAddr::V4(source.into());
        Started { challenge: [0; 32], source, until, charged: Vec::new(), way: Way::Challenge }
    }

    fn of_agent(source: u32) -> Started {
        let text = || "x".to_owned();
        let requester =
            Requester { device: text(), user: text(), host: text(), source: IpAddr::V4(source.into()), since: 0 };
        let way = Way::Agent(Box::new(AgentLogin::new(requester, 4000, text())));
        Started { way, until: Instant::now() + BROWSER_TIME, ..challenge(source) }
    }

    fn is_pending(logins: &Logins, name: &str) -> bool {
        logins.lock().contains_key(name)
    }

    #[test]
    fn a_challenge_is_good_once() {
        let logins = Logins::default();
        let name = logins.begin(challenge(1)).unwrap();
        assert!(logins.answer(&name).is_some());
        assert!(logins.answer(&name).is_none() && logins.answer("x").is_none());
    }

    #[test]
    fn one_source_takes_nobody_elses_place_and_memory_is_bounded() {
        let logins = Logins::default();
        let honest = logins.begin(challenge(1)).unwrap();
        for _ in 0..MOST_CHALLENGES + 100 {
            logins.begin(challenge(2)).unwrap();
        }
        assert_eq!(logins.lock().len(), MOST_CHALLENGES);
        assert!(logins.answer(&honest).is_some());
    }

    #[test]
    fn a_source_has_no_more_than_its_share_of_logins_in_browsers() {
        let logins = Logins::default();
        let other = logins.begin(of_agent(1)).unwrap();
        let first = logins.begin(of_agent(2)).unwrap();
        for _ in 0..MOST_OF_SOURCE {
            logins.begin(of_agent(2)).unwrap();
        }
        assert_eq!(logins.lock().len(), MOST_OF_SOURCE + 1);
        assert!(is_pending(&logins, &other) && !is_pending(&logins, &first));
    }

    #[test]
    fn a_network_of_many_sources_pushes_out_nobody_elsewhere() {
        let logins = Logins::default();
        // The honest login is older than all others, and no source has more logins than its source.
        let honest = logins.begin(of_agent(0xc000_0201)).unwrap();
        for nth in 0..MOST_BROWSER as u32 {
            logins.begin(of_agent(0x0a00_0000 + nth)).unwrap();
        }
        assert_eq!(logins.lock().len(), MOST_BROWSER);
        assert!(is_pending(&logins, &honest));
    }

    fn by_code(source: u32) -> (Started, oneshot::Sender<Result<Verified, Refusal>>) {
        let (answer, outcome) = oneshot::channel();
        let task = tokio::spawn(std::future::pending::<()>());
        let (device, wanted, task) = ("x".into(), Arc::default(), Abort(task.abort_handle()));
        let way = Way::Code(CodeLogin { device, outcome, wanted, task });
        (Started { way, until: Instant::now() + BROWSER_TIME, ..challenge(source) }, answer)
    }

    /// The address of the nth of many networks.
    fn elsewhere(nth: u32) -> u32 {
        0x0a00_0001 + nth * 256
    }

    #[tokio::test]
    async fn logins_from_a_thousand_networks_push_out_no_login_by_device_code() {
        let logins = Logins::default();
        let honest = logins.begin(by_code(0xc000_0201).0).unwrap();
        for nth in 0..1000 {
            logins.begin(by_code(elsewhere(nth)).0).unwrap();
        }
        assert!(is_pending(&logins, &honest));
    }

    #[tokio::test]
    async fn a_lone_login_by_device_code_stays_while_a_network_is_crowded() {
        let logins = Logins::default();
        let honest = logins.begin(by_code(0xc000_0201).0).unwrap();
        // Two logins from each network are more than there is room for.
        for nth in 0..MOST_DEVICE as u32 + 100 {
            logins.begin(by_code(elsewhere(nth / 2)).0).unwrap();
        }
        assert_eq!(logins.lock().len(), MOST_DEVICE);
        assert!(is_pending(&logins, &honest));
    }

    #[tokio::test]
    async fn a_login_by_device_code_that_the_provider_has_answered_stays_while_its_network_has_another() {
        let logins = Logins::default();
        let (login, answer) = by_code(0xc000_0201);
        let approved = logins.begin(login).unwrap();
        assert!(answer.send(Err(Refusal::No("x".into()))).is_ok());
        // These logins come from the same source and from other sources of its network.
        for nth in 0..2 * MOST_DEVICE_OF_NETWORK as u32 {
            logins.begin(by_code(0xc000_0201 + nth % 200).0).unwrap();
        }
        assert!(is_pending(&logins, &approved));
    }

    #[test]
    fn agents_take_no_room_from_machines() {
        let logins = Logins::default();
        let machine = logins.begin(challenge(1)).unwrap();
        for nth in 0..MOST_BROWSER as u32 + 10 {
            logins.begin(of_agent(nth * 256)).unwrap();
        }
        assert!(is_pending(&logins, &machine));
    }

    #[test]
    fn what_has_ended_is_worth_nothing() {
        let logins = Logins::default();
        let name = logins.begin(Started { until: Instant::now(), ..challenge(1) }).unwrap();
        assert!(logins.answer(&name).is_none());
    }
}
