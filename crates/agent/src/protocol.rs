//! What the command line and the daemon say to each other over the UNIX socket.
//!
//! Each side writes one JSON object per line. A caller sends a [`Request`] and gets one [`Reply`]; then it may send the
//! next. The kernel tells the daemon who calls (`SO_PEERCRED`): every user acts on their own session, root with `uid` on
//! anybody's.
//!
//! ```text
//! → {"call":"status"}
//! ← {"reply":"status","uid":1000,"session":{…},…}
//! → {"call":"rule","target":"203.0.113.0/24:22","consent":"deny"}
//! ← {"reply":"done","text":"…"}
//! → {"call":"explain","address":"203.0.113.10","protocol":6,"port":22}
//! ← {"reply":"standing","standing":"granted","asked":true,"grant":{…}}
//! ```

use engine::agent::{Consent, GrantView, Target, consent::ConsentRule};
use engine::api::{Callback, LoginMethods, Receiver, ServiceKey};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// A call, and for whom.
#[derive(Serialize, Deserialize)]
pub struct Request {
    /// The user acted for; the caller where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// The call.
    #[serde(flatten)]
    pub call: Call,
}

/// What the daemon is to do. No `Debug`: a login holds a password.
#[derive(Serialize, Deserialize)]
#[serde(tag = "call", rename_all = "snake_case")]
pub enum Call {
    /// Log in to an authority; takes the place of an earlier session.
    Login {
        /// `https://…`
        authority: String,
        /// The certificates to trust, PEM: the caller reads the file, not the daemon.
        ca: Option<String>,
        /// The person's name.
        person: String,
        /// The password.
        password: String,
        /// The second factor's six digits.
        totp: Option<String>,
        /// What the person calls this device.
        device: String,
    },
    /// Which ways to log in an authority has.
    LoginMethods {
        /// `https://…`
        authority: String,
        /// The certificates to trust, PEM.
        ca: Option<String>,
    },
    /// Start a login with the authority's identity provider; takes the place of one that was started before.
    StartLogin {
        /// `https://…`
        authority: String,
        /// The certificates to trust, PEM.
        ca: Option<String>,
        /// What the person calls this device.
        device: String,
        /// How.
        way: LoginWay,
    },
    /// Finish the login that was started; takes the place of an earlier session.
    FinishLogin {
        /// What the browser brought; absent for a device code, and to hear whether a login in a browser came to nothing.
        callback: Option<Callback>,
    },
    /// Log in as a service account.
    ServiceLogin {
        /// `https://…`
        authority: String,
        /// The certificates to trust, PEM.
        ca: Option<String>,
        /// The key, with what belongs to it.
        key: ServiceKey,
        /// What this device is called.
        device: String,
    },
    /// End the session; the authority is told.
    Logout,
    /// How things are.
    Status,
    /// Which authority a domain names; asks name servers where that is not known.
    Discover {
        /// The domain; all that are known where absent.
        domain: Option<String>,
    },
    /// The grants held, and the person's rules.
    Grants,
    /// Make a rule, or forget it.
    Rule {
        /// The destination.
        target: Target,
        /// What it says; absent, the rule is forgotten.
        consent: Option<Consent>,
    },
    /// What would happen to a first packet; asks for the grant if it is missing.
    Explain {
        /// The destination.
        address: IpAddr,
        /// The IP protocol number.
        protocol: u8,
        /// The destination port.
        port: u16,
    },
}

/// How a person logs in with an identity provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "way", rename_all = "snake_case")]
pub enum LoginWay {
    /// In a browser on this machine, which comes back to the caller at this port of 127.0.0.1.
    Browser {
        /// The port.
        port: u16,
    },
    /// In a browser anywhere, with a code that the person types there.
    DeviceCode,
}

/// A login that was started.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "started", rename_all = "snake_case")]
pub enum LoginStarted {
    /// By [`LoginWay::Browser`].
    Browser {
        /// What to open.
        url: String,
        /// What the browser must bring.
        state: String,
        /// What the page that asks the person has to show, too.
        comparison: String,
        /// Seconds until the login is forgotten.
        expires_in: u64,
    },
    /// By [`LoginWay::DeviceCode`].
    DeviceCode {
        /// What the person types.
        user_code: String,
        /// Where.
        url: String,
        /// The same with the code in it.
        url_with_code: Option<String>,
        /// Seconds to wait between two [`Call::FinishLogin`].
        interval: u64,
        /// Seconds until the login is forgotten.
        expires_in: u64,
    },
}

/// The daemon's answer.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub enum Reply {
    /// Done, with one line for people.
    Done {
        /// The line.
        text: String,
    },
    /// The answer is no.
    Refused {
        /// A stable name such as `wrong_password`, `second_factor_required`, `not_logged_in`.
        kind: String,
        /// One line for people.
        text: String,
    },
    /// To [`Call::Logout`], where the identity provider's own session goes on.
    LoggedOut {
        /// One line for people.
        text: String,
        /// Where a browser ends that.
        provider: String,
    },
    /// To [`Call::LoginMethods`].
    LoginMethods(LoginMethods),
    /// To [`Call::StartLogin`].
    LoginStarted(LoginStarted),
    /// To [`Call::FinishLogin`]: the person has not entered the code yet, or not answered in the browser.
    LoginPending,
    /// To [`Call::Status`].
    Status(Box<Status>),
    /// To [`Call::Discover`].
    Discovered {
        /// The domains that name an authority.
        domains: Vec<Discovered>,
    },
    /// To [`Call::Grants`].
    Grants {
        /// The grants held.
        grants: Vec<Grant>,
        /// The person's rules.
        rules: Vec<ConsentRule>,
        /// What holds where no rule does.
        default: Consent,
        /// The authority's time, Unix seconds.
        now: u64,
    },
    /// To [`Call::Explain`].
    Standing(Standing),
}

/// How things are.
#[derive(Debug, Serialize, Deserialize)]
pub struct Status {
    /// The user.
    pub uid: u32,
    /// Their session.
    pub session: Option<Session>,
    /// The interfaces.
    pub interfaces: Vec<Interface>,
    /// What the kernel program counted, by name.
    pub counters: BTreeMap<String, u64>,
    /// What holds where a person has no rule.
    pub default: Consent,
    /// Domains that say they are protected.
    pub discovered: Vec<Discovered>,
    /// The authority's time, Unix seconds.
    pub now: u64,
}

/// What a domain says about who protects it. A hint (wire.md §7.2).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Discovered {
    /// The domain.
    pub domain: String,
    /// The authority's address.
    pub authority: String,
    /// What it says is protected.
    pub protects: Vec<IpNet>,
    /// Where that is known from.
    pub finding: Finding,
    /// Whether the authority has a name of the domain, so that its certificate shows that it is the domain's.
    pub at_home: bool,
    /// Whether this machine's agent logs in there.
    pub allowed: bool,
}

/// Where a domain's record is known from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Finding {
    /// A name server was asked.
    Asked,
    /// It came along with another answer.
    Overheard,
}

/// A session.
#[derive(Debug, Serialize, Deserialize)]
pub struct Session {
    /// The person's name.
    pub person: String,
    /// The device's name.
    pub device: String,
    /// The authority's address.
    pub authority: String,
    /// Why it can't be reached, if it can't.
    pub trouble: Option<String>,
    /// When the session ends, Unix seconds.
    pub expires: u64,
    /// What the person may reach.
    pub destinations: Vec<Receiver>,
}

/// An interface.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// How the programs hang on it: `tcx` or `clsact`.
    pub attachment: String,
    /// Why they don't, if they don't.
    pub trouble: Option<String>,
}

/// A grant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// Its identifier, hex.
    pub handle: String,
    /// The destinations it covers.
    pub prefix: String,
    /// Its protocol, if it is for one.
    pub protocol: Option<u8>,
    /// Its port, if it is for one.
    pub port: Option<u16>,
    /// The MAC suite.
    pub suite: String,
    /// How its tokens travel.
    pub carrier: String,
    /// The receiver's name.
    pub receiver: String,
    /// The rule that allowed it; empty where an earlier daemon asked for it.
    pub rule: String,
    /// When it ends, Unix seconds.
    pub expires: u32,
    /// When a token was last made from it, Unix seconds; 0 if never.
    pub used: u32,
    /// Whether it is for a single flow.
    pub single: bool,
}

impl From<&GrantView> for Grant {
    fn from(view: &GrantView) -> Self {
        Self {
            handle: view.handle.to_string(),
            prefix: view.prefix.to_string(),
            protocol: view.service.map(|(protocol, _)| protocol),
            port: view.service.map(|(_, port)| port),
            suite: view.suite.to_owned(),
            carrier: view.carrier.to_owned(),
            receiver: view.receiver.clone(),
            rule: view.rule.clone(),
            expires: view.expires,
            used: view.used,
            single: view.single,
        }
    }
}

/// What would happen to a first packet.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "standing", rename_all = "snake_case")]
pub enum Standing {
    /// None of this person's receivers: it is sent as it is.
    NotProtected,
    /// The person's rule, or the default, says that it goes without identity.
    Withheld {
        /// The rule; absent where it is the default.
        rule: Option<Target>,
    },
    /// The policy says no.
    Denied {
        /// Why.
        why: String,
    },
    /// It gets a token.
    Granted {
        /// Whether the authority was asked just now.
        asked: bool,
        /// The grant.
        grant: Grant,
        /// The authority's time, Unix seconds.
        now: u64,
    },
    /// The authority gave no usable answer; the packet waits.
    Failed {
        /// What went wrong.
        why: String,
    },
}
