//! The stages of a login that an agent started, until the person has answered in a browser.
//!
//! An attacker may have started the login and led the person's browser here, and a provider that remembers the person
//! asks nothing. So a page describes the request and asks the person, and no code exists before the person has
//! approved. The first browser that opens the address owns the login: other browsers cannot see it.

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

/// Path of an agent's login in the console, to which its name is appended.
pub const PAGE: &str = "/console/login/agent";
/// Time limit for a browser to bring the code to the agent's port.
const CODE_TIME: Duration = Duration::from_secs(60);

/// The origin of an agent's login. The authority observed source and time itself; the names are unverified claims of
/// the agent.
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
    /// Describes the agent's claims on one line, for the audit trail.
    pub fn claims(&self) -> String {
        format!("claims to be {} on {}", shown(&self.user), shown(&self.host))
    }
}

/// Escapes untrusted text: invisible characters and those that change the text direction are spelled out.
pub fn shown(text: &str) -> String {
    let spelled = |letter: char| match letter {
        '\'' | '"' | '\\' => letter.to_string(),
        other => other.escape_debug().to_string(),
    };
    text.chars().map(spelled).collect()
}

/// A person who has authenticated at the provider. No `Debug`: it holds a secret.
pub struct Proven {
    /// The person's name.
    pub person: String,
    /// The proof on which a session is based.
    pub proof: Proof,
}

/// Reason why a login ended without a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The person denied it.
    Denied,
    /// The provider refused the person, or its answer did not pass verification; with a one-line message for the
    /// person.
    Refused(String),
}

/// An agent's login in a browser. No `Debug`: it holds secrets.
pub struct AgentLogin {
    /// The origin of the login.
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
    /// The person is being asked.
    Asked(Proven),
    /// The person has approved; with the hash of the code.
    Approved(TokenHash, Proven),
    /// The login was denied or refused.
    Over(Ending),
}

/// Contents of the page that asks for approval.
pub struct Question {
    /// The origin of the login.
    pub requester: Requester,
    /// The person as whom the agent would be logged in.
    pub person: String,
    /// The code that the command has to show as well.
    pub comparison: String,
}

/// Result of a person's answer. No `Debug`: it holds secrets.
pub struct Answered {
    /// The origin of the login.
    pub requester: Requester,
    /// The person as whom the agent would be logged in.
    pub person: String,
    /// The address to which the browser continues, if the person approved. Secret.
    pub onward: Option<Zeroizing<String>>,
    /// The refresh token to revoke at the provider, if the person denied.
    pub refresh_token: Option<Zeroizing<String>>,
}

impl AgentLogin {
    /// Creates a login that no browser has opened yet. At the end, the browser must bring `state` to `port`.
    pub fn new(requester: Requester, port: u16, state: String) -> Self {
        Self { requester, port, state, browser: None, stage: Stage::Begun }
    }

    /// Returns why the login was denied or refused, if it was.
    pub fn ending(&self) -> Option<Problem> {
        match &self.stage {
            Stage::Over(Ending::Denied) => Some(Problem::LoginDenied),
            Stage::Over(Ending::Refused(why)) => Some(Problem::ProviderRefused(why.clone())),
            _ => None,
        }
    }

    /// Redeems the code that the browser brought to the agent. An attempt uses the code up, whatever the result.
    ///
    /// # Errors
    /// The person has not approved, or the code or the state is wrong.
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
    /// Checks whether the browser with this secret may open an agent's login: only the first browser may, and it may do
    /// so again.
    ///
    /// # Errors
    /// There is no such login in progress, or it belongs to another browser.
    pub fn may_open(&self, name: &str, secret: &str) -> Result<(), Problem> {
        self.of_agent(name, |UnderWay { agent, .. }| agent.may_open(&token_hash(secret)).then_some(()))
    }

    /// Records that this browser was sent to the provider for an agent's login. From now on, the login belongs to this
    /// browser.
    ///
    /// # Errors
    /// There is no such login in progress, or it belongs to another browser.
    pub fn open(&self, name: &str, secret: &str, departure: Departure) -> Result<(), Problem> {
        self.of_agent(name, |UnderWay { agent, .. }| {
            let browser = token_hash(secret);
            agent.may_open(&browser).then(|| {
                agent.browser = Some(browser);
                agent.stage = Stage::Away(departure);
            })
        })
    }

    /// Takes the departure of the browser that comes back with the same state. Succeeds only once.
    ///
    /// # Errors
    /// There is no such login in progress, or it belongs to another browser, or the parameters do not match its
    /// departure.
    pub fn arrive(&self, name: &str, secret: &str, brought: &Brought, issuer: &str) -> Result<Departure, Problem> {
        self.of_browser(name, secret, |UnderWay { agent, .. }| match std::mem::replace(&mut agent.stage, Stage::Back) {
            Stage::Away(departure) if brought.belongs_to(&departure, issuer) => Some(departure),
            other => {
                agent.stage = other;
                None
            }
        })
    }

    /// Records the provider's answer for the browser that came back.
    ///
    /// # Errors
    /// There is no such login in progress, or it belongs to another browser.
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

    /// Returns the question for the person in front of this browser.
    ///
    /// # Errors
    /// There is no such login in progress, or it belongs to another browser.
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

    /// Records the person's answer, once. After an approval, the browser gets a code to bring to the agent.
    ///
    /// # Errors
    /// The person was not asked in this browser, or has already answered; or the system provides no randomness.
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

    /// Removes agents' logins of a person whom the provider logs out.
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

/// A view of an agent's login in progress.
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
