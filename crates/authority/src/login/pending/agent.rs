//! A login that an agent started. It lasts until the person has answered in a browser.
//!
//! An attacker may have started the login and led the person's browser here, and a provider that remembers the person
//! asks no question. So a page describes the login and asks the person for approval, and the authority creates a code
//! only after the approval. The login belongs to the first browser that opens its address: other browsers cannot see
//! the login.

use super::super::provider::Departure;
use super::{Brought, Logins, Started, Way};
use crate::http::problems::Problem;
use crate::login::credentials::{self, token_hash};
use crate::storage::{Proof, TokenHash};
use api::{Callback, comparison};
use std::net::IpAddr;
use std::time::{Duration, Instant};
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

/// The path of agents' logins at the console. The login's name is appended to it.
pub const PAGE: &str = "/console/login/agent";
/// Time limit for a browser to bring the code to the agent's port.
const CODE_TIME: Duration = Duration::from_secs(60);

/// The device, local user, machine and address from which an agent requested a login, and the time. The authority
/// observed the source address and the time itself. The names are claims of the agent, which the authority cannot
/// verify.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requester {
    /// The name that the agent gives the device.
    pub device: String,
    /// The local user that the agent claims to run as.
    pub user: String,
    /// The machine that the agent claims to run on.
    pub host: String,
    /// The source address of the agent's request.
    pub source: IpAddr,
    /// Time of the request, in Unix seconds.
    pub since: u64,
}

impl Requester {
    /// Describes the agent's claims in one line, for the audit trail.
    pub fn claims(&self) -> String {
        format!("claims to be {} on {}", shown(&self.user), shown(&self.host))
    }
}

/// Escapes untrusted text: invisible characters, and characters that change the direction of text, are written as
/// escape sequences.
pub fn shown(text: &str) -> String {
    let spelled = |letter: char| match letter {
        '\'' | '"' | '\\' => letter.to_string(),
        other => other.escape_debug().to_string(),
    };
    text.chars().map(spelled).collect()
}

/// A person who has authenticated at the provider. Has no `Debug`, because it holds a secret.
pub struct Proven {
    /// The person's name.
    pub person: String,
    /// The proof on which a session is based.
    pub proof: Proof,
}

/// The reason why a login ended without a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The person denied the login.
    Denied,
    /// The provider refused the person, or its answer failed verification. The text is a one-line message for the
    /// person.
    Refused(String),
}

/// An agent's login in a browser. Has no `Debug`, because it holds secrets.
pub struct AgentLogin {
    /// The device, local user, machine and address from which the agent requested the login, and the time.
    pub requester: Requester,
    port: u16,
    state: String,
    browser: Option<TokenHash>,
    stage: Stage,
}

enum Stage {
    /// No browser has opened the address.
    Begun,
    /// The browser is at the provider.
    Away(Departure),
    /// The browser is back, and the authority is exchanging the code at the provider.
    Back,
    /// The page asks the person for approval.
    Asked(Proven),
    /// The login was approved. Contains the hash of the code that the browser carries to the agent.
    Approved(TokenHash, Proven),
    /// The login was denied or refused.
    Over(Ending),
}

/// The contents of the page that asks for approval.
pub struct Question {
    /// The device, local user, machine and address from which the agent requested the login, and the time.
    pub requester: Requester,
    /// The person in whose name the agent would be logged in.
    pub person: String,
    /// The digits that the agent's command shows as well.
    pub comparison: String,
}

/// The result of a person's answer. Has no `Debug`, because it holds secrets.
pub struct Answered {
    /// The device, local user, machine and address from which the agent requested the login, and the time.
    pub requester: Requester,
    /// The person in whose name the agent would be logged in.
    pub person: String,
    /// The URL to which the browser continues, if the person approved. Secret.
    pub onward: Option<Zeroizing<String>>,
    /// The refresh token to revoke at the provider, if the person denied.
    pub refresh_token: Option<Zeroizing<String>>,
}

impl AgentLogin {
    /// Creates a login that no browser has opened yet. After an approval, the browser brings `state` and a code to
    /// `port` on its own machine.
    pub fn new(requester: Requester, port: u16, state: String) -> Self {
        Self { requester, port, state, browser: None, stage: Stage::Begun }
    }

    /// Returns the problem with which the login ended if it was denied or refused, else `None`.
    pub fn ending(&self) -> Option<Problem> {
        match &self.stage {
            Stage::Over(Ending::Denied) => Some(Problem::LoginDenied),
            Stage::Over(Ending::Refused(why)) => Some(Problem::ProviderRefused(why.clone())),
            _ => None,
        }
    }

    /// Redeems the code that the browser brought to the agent. Any attempt uses the code up.
    ///
    /// # Errors
    /// Fails if the person has not approved, or the code or the state is wrong.
    pub fn redeem(&mut self, callback: &Callback) -> Result<Proven, Problem> {
        match std::mem::replace(&mut self.stage, Stage::Begun) {
            Stage::Approved(code, proven)
                if bool::from(token_hash(&callback.code).ct_eq(&code))
                    && bool::from(callback.state.as_bytes().ct_eq(self.state.as_bytes())) =>
            {
                Ok(proven)
            }
            _ => Err(Problem::WrongLogin),
        }
    }

    fn may_open(&self, browser: &TokenHash) -> bool {
        let free = self.browser.is_none() || self.is_of(browser);
        free && matches!(self.stage, Stage::Begun | Stage::Away(_))
    }

    fn is_of(&self, browser: &TokenHash) -> bool {
        self.browser.is_some_and(|own| own.ct_eq(browser).into())
    }

    pub(super) fn is_approved(&self) -> bool {
        matches!(self.stage, Stage::Approved(..))
    }

    fn rests_on(&self, subject: &str) -> bool {
        match &self.stage {
            Stage::Asked(proven) | Stage::Approved(_, proven) => {
                matches!(&proven.proof, Proof::Provider { identity, .. } if identity.subject == subject)
            }
            _ => false,
        }
    }
}

impl Logins {
    /// Checks that the browser with this secret is allowed to open an agent's login. The first browser that opens the
    /// login is allowed to open it again. All other browsers are refused.
    ///
    /// # Errors
    /// Fails if there is no such login in progress, or the login belongs to another browser.
    pub fn may_open(&self, name: &str, secret: &str) -> Result<(), Problem> {
        self.of_agent(name, |UnderWay { agent, .. }| agent.may_open(&token_hash(secret)).then_some(()))
    }

    /// Records that this browser was sent to the provider for an agent's login. From now on, the login belongs to this
    /// browser.
    ///
    /// # Errors
    /// Fails if there is no such login in progress, or it belongs to another browser.
    pub fn open(&self, name: &str, secret: &str, departure: Departure) -> Result<(), Problem> {
        self.of_agent(name, |UnderWay { agent, .. }| {
            let browser = token_hash(secret);
            agent.may_open(&browser).then(|| {
                agent.browser = Some(browser);
                agent.stage = Stage::Away(departure);
            })
        })
    }

    /// Returns the departure that [`Self::open`] recorded when this browser was sent to the provider. The parameters
    /// `brought` must match this departure. Each departure is returned only once; a second call fails.
    ///
    /// # Errors
    /// Fails if there is no such login in progress, or it belongs to another browser, or the parameters do not match
    /// its departure.
    pub fn arrive(&self, name: &str, secret: &str, brought: &Brought, issuer: &str) -> Result<Departure, Problem> {
        self.of_browser(name, secret, |UnderWay { agent, .. }| match std::mem::replace(&mut agent.stage, Stage::Back) {
            Stage::Away(departure) if brought.belongs_to(&departure, issuer) => Some(departure),
            other => {
                agent.stage = other;
                None
            }
        })
    }

    /// Records the provider's answer about the person who came back in this browser.
    ///
    /// # Errors
    /// Fails if there is no such login in progress, or it belongs to another browser.
    pub fn verified(&self, name: &str, secret: &str, said: Result<Proven, Ending>) -> Result<(), Problem> {
        self.of_browser(name, secret, |UnderWay { agent, .. }| {
            matches!(agent.stage, Stage::Back).then(|| {
                agent.stage = match said {
                    Ok(proven) => Stage::Asked(proven),
                    Err(ending) => Stage::Over(ending),
                };
            })
        })
    }

    /// Returns the question for the person whose browser presents this secret.
    ///
    /// # Errors
    /// Fails if there is no such login in progress, or it belongs to another browser.
    pub fn question(&self, name: &str, secret: &str) -> Result<Question, Problem> {
        self.of_browser(name, secret, |UnderWay { agent, challenge, .. }| match &agent.stage {
            Stage::Asked(proven) => Some(Question {
                requester: agent.requester.clone(),
                person: proven.person.clone(),
                comparison: comparison(challenge),
            }),
            _ => None,
        })
    }

    /// Records the person's answer, which is final. After an approval, the browser gets a code to carry to the agent.
    ///
    /// # Errors
    /// Fails if the person was not asked in this browser, or has already answered; or the system provides no
    /// randomness.
    pub fn answer_for_agent(&self, name: &str, secret: &str, approved: bool) -> Result<Answered, Problem> {
        let (code, hash) = credentials::new_token::<32>()?;
        self.of_browser(name, secret, |UnderWay { agent, until, .. }| {
            let proven = match std::mem::replace(&mut agent.stage, Stage::Over(Ending::Denied)) {
                Stage::Asked(proven) => proven,
                other => {
                    agent.stage = other;
                    return None;
                }
            };
            let (requester, person) = (agent.requester.clone(), proven.person.clone());
            if !approved {
                let refresh_token = match proven.proof {
                    Proof::Provider { refresh_token, .. } => refresh_token,
                    _ => None,
                };
                return Some(Answered { requester, person, onward: None, refresh_token });
            }
            let (port, state) = (agent.port, &agent.state);
            let onward = format!("http://127.0.0.1:{port}/callback?code={}&state={state}", code.as_str());
            agent.stage = Stage::Approved(hash, proven);
            *until = Instant::now() + CODE_TIME;
            Some(Answered { requester, person, onward: Some(onward.into()), refresh_token: None })
        })
    }

    /// Removes the agents' logins that a person has approved or has been asked to approve. `subject` is the provider's
    /// identifier for the person.
    pub fn forget_subject(&self, subject: &str) {
        self.lock().retain(|_, login| !matches!(&login.way, Way::Agent(agent) if agent.rests_on(subject)));
    }

    fn of_browser<T>(
        &self,
        name: &str,
        secret: &str,
        act: impl FnOnce(UnderWay<'_>) -> Option<T>,
    ) -> Result<T, Problem> {
        let browser = token_hash(secret);
        self.of_agent(name, |under_way| if under_way.agent.is_of(&browser) { act(under_way) } else { None })
    }

    fn of_agent<T>(&self, name: &str, act: impl FnOnce(UnderWay<'_>) -> Option<T>) -> Result<T, Problem> {
        match self.lock().get_mut(name) {
            Some(Started { way: Way::Agent(agent), challenge, until, .. }) if *until > Instant::now() => {
                act(UnderWay { agent, challenge, until }).ok_or(Problem::WrongLogin)
            }
            _ => Err(Problem::WrongLogin),
        }
    }
}

/// A mutable view of an agent's login in progress.
struct UnderWay<'l> {
    agent: &'l mut AgentLogin,
    challenge: &'l [u8; 32],
    until: &'l mut Instant,
}

#[cfg(test)]
mod tests {
    use super::super::BROWSER_TIME;
    use super::*;
    use std::net::Ipv4Addr;

    const SOURCE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    /// Adds a login whose person is being asked in the browser with the secret `browser`.
    fn begun(logins: &Logins) -> String {
        let text = || "x".to_owned();
        let requester = Requester { device: text(), user: text(), host: text(), source: SOURCE, since: 0 };
        let mut agent = AgentLogin::new(requester, 4000, "state".into());
        agent.browser = Some(token_hash("browser"));
        agent.stage = Stage::Asked(Proven { person: "carol".into(), proof: Proof::Service("x".into()) });
        let (until, challenge) = (Instant::now() + BROWSER_TIME, token_hash("verifier"));
        let way = Way::Agent(Box::new(agent));
        logins.begin(Started { challenge, source: SOURCE, until, charged: Vec::new(), way }).unwrap()
    }

    fn finish(logins: &Logins, name: &str, onward: &str) -> bool {
        let code = onward.split(['=', '&']).nth(1).unwrap().to_owned();
        logins.finish(name, "verifier", Some(&Callback { code, state: "state".into() })).is_ok()
    }

    #[test]
    fn a_code_is_good_for_a_minute() {
        let logins = Logins::default();
        let approve = |name: &str| logins.answer_for_agent(name, "browser", true).unwrap_or_else(|_| panic!("asked"));
        let in_time = begun(&logins);
        let onward = approve(&in_time).onward.unwrap();
        assert!(logins.lock()[&in_time].until <= Instant::now() + CODE_TIME);
        assert!(finish(&logins, &in_time, &onward));
        let late = begun(&logins);
        let onward = approve(&late).onward.unwrap();
        logins.lock().get_mut(&late).unwrap().until = Instant::now();
        assert!(!finish(&logins, &late, &onward));
    }

    #[test]
    fn a_text_that_turns_letters_round_is_spelled_out() {
        assert_eq!(shown("Zoë's \"desk\" \\ 1"), "Zoë's \"desk\" \\ 1");
        assert_eq!(shown("\u{202e}x\u{feff}\u{2028}"), "\\u{202e}x\\u{feff}\\u{2028}");
    }
}
