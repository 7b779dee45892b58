//! A login that an agent began, from its start until the person in front of a browser has answered.
//!
//! Somebody else may have begun it and brought the person's browser here, and a provider that knows the person asks nothing.
//! So the person is asked on a page that says who asks, and there is no code before the person has approved. The browser
//! that opened the address has the login for itself: another one finds nothing.

use super::super::provider::Departure;
use super::{Brought, Logins, Started, Way};
use crate::credentials::{self, token_hash};
use crate::problem::Problem;
use crate::storage::{Proof, TokenHash};
use engine::api::{Callback, comparison};
use std::net::IpAddr;
use std::time::{Duration, Instant};
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

/// Where a browser opens an agent's login by its name, below the console's address.
pub const PAGE: &str = "/console/login/agent";
/// How long a browser has to bring the code to the agent's port.
const CODE_TIME: Duration = Duration::from_secs(60);

/// Who asks. The authority saw source and time by itself; somebody unknown gave the names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requester {
    /// What it calls the device.
    pub device: String,
    /// The local user that it says it is.
    pub user: String,
    /// The machine that it says it is on.
    pub host: String,
    /// Where it called from.
    pub source: IpAddr,
    /// When, Unix seconds.
    pub since: u64,
}

impl Requester {
    /// What it says of itself, on one line, for the audit trail.
    pub fn claims(&self) -> String {
        format!("says it is {} on {}", shown(&self.user), shown(&self.host))
    }
}

/// A text of somebody unknown: what can't be seen, or turns the order of letters round, is spelled out.
pub fn shown(text: &str) -> String {
    let spelled = |letter: char| match letter {
        '\'' | '"' | '\\' => letter.to_string(),
        other => other.escape_debug().to_string(),
    };
    text.chars().map(spelled).collect()
}

/// Who logged in at the provider. No `Debug`: it holds a secret.
pub struct Proven {
    /// The person's name.
    pub person: String,
    /// What a session rests on.
    pub proof: Proof,
}

/// How a login came to nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The person denied it.
    Denied,
    /// The provider, or what it said, did not let the person in; one line for them.
    Refused(String),
}

/// The login. No `Debug`: it holds secrets.
pub struct AgentLogin {
    /// Who asks.
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
    /// The browser is back, and the provider is asked who it is.
    Back,
    /// The person is asked.
    Asked(Proven),
    /// The person has approved; the code's hash.
    Approved(TokenHash, Proven),
    /// It has come to nothing.
    Over(Ending),
}

/// What a person is asked.
pub struct Question {
    /// Who asks.
    pub requester: Requester,
    /// As whom.
    pub person: String,
    /// What the command has to show, too.
    pub comparison: String,
}

/// What a person has answered. No `Debug`: it holds secrets.
pub struct Answered {
    /// Who asked.
    pub requester: Requester,
    /// As whom.
    pub person: String,
    /// Where the browser goes on to, if the person approved. Secret.
    pub onward: Option<Zeroizing<String>>,
    /// What has to be told to the provider that it is not needed any more.
    pub refresh_token: Option<Zeroizing<String>>,
}

impl AgentLogin {
    /// A login that nobody's browser has opened yet. The browser must bring `state` to `port` at the end.
    pub fn new(requester: Requester, port: u16, state: String) -> Self {
        Self { requester, port, state, browser: None, stage: Stage::Begun }
    }

    /// Why it came to nothing, if it did.
    pub fn ending(&self) -> Option<Problem> {
        match &self.stage {
            Stage::Over(Ending::Denied) => Some(Problem::LoginDenied),
            Stage::Over(Ending::Refused(why)) => Some(Problem::ProviderRefused(why.clone())),
            _ => None,
        }
    }

    /// Takes the code that the browser brought to the agent. Nothing is left afterwards.
    ///
    /// # Errors
    /// Nobody has approved, or the browser brought something else.
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
    /// Whether the browser of this secret may open an agent's login: the first one may, and that one again.
    ///
    /// # Errors
    /// There is no such login under way, or not in this browser.
    pub fn may_open(&self, name: &str, secret: &str) -> Result<(), Problem> {
        self.of_agent(name, |UnderWay { agent, .. }| agent.may_open(&token_hash(secret)).then_some(()))
    }

    /// Notes that this browser was sent away for an agent's login, which is its own from now on.
    ///
    /// # Errors
    /// There is no such login under way, or not in this browser.
    pub fn open(&self, name: &str, secret: &str, departure: Departure) -> Result<(), Problem> {
        self.of_agent(name, |UnderWay { agent, .. }| {
            let browser = token_hash(secret);
            agent.may_open(&browser).then(|| {
                agent.browser = Some(browser);
                agent.stage = Stage::Away(departure);
            })
        })
    }

    /// Takes what the browser was sent away with, for the one that comes back with the same state; once.
    ///
    /// # Errors
    /// There is no such login under way, or not in this browser, or it was not sent away with this.
    pub fn arrive(&self, name: &str, secret: &str, brought: &Brought, issuer: &str) -> Result<Departure, Problem> {
        self.of_browser(name, secret, |UnderWay { agent, .. }| match std::mem::replace(&mut agent.stage, Stage::Back) {
            Stage::Away(departure) if brought.belongs_to(&departure, issuer) => Some(departure),
            other => {
                agent.stage = other;
                None
            }
        })
    }

    /// Notes what the provider said to the browser that is back.
    ///
    /// # Errors
    /// There is no such login under way, or not in this browser.
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

    /// What the person in front of this browser is asked.
    ///
    /// # Errors
    /// There is no such login under way, or not in this browser.
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

    /// Takes the person's answer, once. If it is yes, the browser has a code to bring to the agent.
    ///
    /// # Errors
    /// The person was not asked in this browser, or has answered; or the system gives no randomness.
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

    /// Forgets the agents' logins of somebody whom the provider logs out.
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

/// An agent's login that is under way.
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

    /// A login whose person is asked in the browser with the secret `browser`.
    fn asked(logins: &Logins) -> String {
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
        let in_time = asked(&logins);
        let onward = approve(&in_time).onward.unwrap();
        assert!(logins.lock()[&in_time].until <= Instant::now() + CODE_TIME);
        assert!(finish(&logins, &in_time, &onward));
        let late = asked(&logins);
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
