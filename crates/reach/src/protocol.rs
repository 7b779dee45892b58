//! The protocol between people's commands and the agent over its UNIX socket. A user's own session answers the same
//! calls ([`crate::own`]).
//!
//! Each side writes one JSON object per line. A client sends a [`Request`] and gets one [`Reply`]; then it may send the
//! next. The kernel tells the daemon which user calls (`SO_PEERCRED`): every user acts on their own session, and root,
//! with `uid`, on any user's.
//!
//! ```text
//! → {"call":"status"}
//! ← {"reply":"status","uid":1000,"session":{…},…}
//! → {"call":"rule","target":"203.0.113.0/24:22","consent":"deny"}
//! ← {"reply":"done","text":"…"}
//! → {"call":"explain","address":"203.0.113.10","protocol":6,"port":22}
//! ← {"reply":"standing","standing":"granted","asked":true,"grant":{…}}
//! ```

use api::{Callback, LoginMethods, ServiceKey};
use engine::agent::{Consent, GrantView, consent::ConsentRule};
use engine::model::{Receiver, Target};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

/// A call, and the user to act for.
#[derive(Serialize, Deserialize)]
pub struct Request {
    /// The user to act for; the calling user if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// The call.
    #[serde(flatten)]
    pub call: Call,
}

/// A call to the daemon. No `Debug`: a login contains a password.
#[derive(Serialize, Deserialize)]
#[serde(tag = "call", rename_all = "snake_case")]
pub enum Call {
    /// Log in to an authority; replaces an earlier session.
    Login {
        /// `https://…`
        authority: String,
        /// The certificates to trust, PEM: the client reads the file, not the daemon.
        ca: Option<String>,
        /// The person's name.
        person: String,
        /// The password.
        password: String,
        /// The second factor's six digits.
        totp: Option<String>,
        /// The person's name for this device.
        device: String,
    },
    /// List the ways to log in that an authority offers.
    LoginMethods {
        /// `https://…`
        authority: String,
        /// The certificates to trust, PEM.
        ca: Option<String>,
    },
    /// Start a login with the authority's identity provider; replaces one that was started before.
    StartLogin {
        /// `https://…`
        authority: String,
        /// The certificates to trust, PEM.
        ca: Option<String>,
        /// The person's name for this device.
        device: String,
        /// The way to log in.
        way: LoginWay,
    },
    /// Finish the login that was started; replaces an earlier session.
    FinishLogin {
        /// The browser's callback; absent for a device code, and to ask whether a login in a browser has failed.
        callback: Option<Callback>,
    },
    /// Log in as a service account.
    ServiceLogin {
        /// `https://…`
        authority: String,
        /// The certificates to trust, PEM.
        ca: Option<String>,
        /// The key, with its accompanying data.
        key: ServiceKey,
        /// The name for this device.
        device: String,
    },
    /// End the session, also at the authority.
    Logout,
    /// Show the state of the agent.
    Status,
    /// Find the authority that a domain names; asks name servers if it is not known.
    Discover {
        /// The domain; all known domains if absent.
        domain: Option<String>,
    },
    /// List the user's grants and rules.
    Grants,
    /// Add a rule, or remove it.
    Rule {
        /// The destination.
        target: Target,
        /// Whether tokens may go to the destination; if absent, the rule is removed.
        consent: Option<Consent>,
    },
    /// Explain what would happen to a first packet; requests the grant if it is missing.
    Explain {
        /// The destination.
        address: IpAddr,
        /// The IP protocol number.
        protocol: u8,
        /// The destination port.
        port: u16,
    },
}

/// The way that a person logs in with an identity provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "way", rename_all = "snake_case")]
pub enum LoginWay {
    /// In a browser on this machine, which is redirected to the client at this port of 127.0.0.1.
    Browser {
        /// The port.
        port: u16,
    },
    /// In a browser anywhere, with a code that the person enters there.
    DeviceCode,
}

/// A login that was started.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "started", rename_all = "snake_case")]
pub enum LoginStarted {
    /// A login by [`LoginWay::Browser`].
    Browser {
        /// The URL to open.
        url: String,
        /// The state that the browser must present.
        state: String,
        /// A string that the page that asks for approval must show, too.
        comparison: String,
        /// Seconds until the login is forgotten.
        expires_in: u64,
    },
    /// A login by [`LoginWay::DeviceCode`].
    DeviceCode {
        /// The code to enter.
        user_code: String,
        /// The URL of the page at which to enter the code.
        url: String,
        /// The URL of that page with the code filled in.
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
    /// Success, with one line for people.
    Done {
        /// The line.
        text: String,
    },
    /// A negative answer.
    Refused {
        /// A stable name such as `wrong_password`, `second_factor_required`, `not_logged_in`.
        kind: String,
        /// One line for people.
        text: String,
    },
    /// Answer to [`Call::Logout`] if the identity provider's own session continues.
    LoggedOut {
        /// One line for people.
        text: String,
        /// The URL at which a browser ends that session.
        provider: String,
    },
    /// Answer to [`Call::LoginMethods`].
    LoginMethods(LoginMethods),
    /// Answer to [`Call::StartLogin`].
    LoginStarted(LoginStarted),
    /// Answer to [`Call::FinishLogin`]: the person has not entered the code yet, or not answered in the browser.
    LoginPending,
    /// Answer to [`Call::Status`].
    Status(Box<Status>),
    /// Answer to [`Call::Discover`].
    Discovered {
        /// The domains that name an authority.
        domains: Vec<Discovered>,
    },
    /// Answer to [`Call::Grants`].
    Grants {
        /// The user's grants.
        grants: Vec<Grant>,
        /// The user's rules.
        rules: Vec<ConsentRule>,
        /// The default for destinations without a rule.
        default: Consent,
        /// The authority's time, Unix seconds.
        now: u64,
    },
    /// Answer to [`Call::Explain`].
    Standing(Standing),
}

/// The state of the agent, from one user's point of view.
#[derive(Debug, Serialize, Deserialize)]
pub struct Status {
    /// The user.
    pub uid: u32,
    /// The user's session.
    pub session: Option<Session>,
    /// The interfaces.
    pub interfaces: Vec<Interface>,
    /// Counters of the kernel program, by name.
    pub counters: BTreeMap<String, u64>,
    /// The default for destinations without a rule.
    pub default: Consent,
    /// Domains whose records name an authority.
    pub discovered: Vec<Discovered>,
    /// The authority's time, Unix seconds.
    pub now: u64,
    /// The folder of the session, if it is the user's own and no agent's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own: Option<PathBuf>,
}

/// A domain's statement about the authority that protects it. A hint (wire.md §7.2).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Discovered {
    /// The domain.
    pub domain: String,
    /// The authority's address.
    pub authority: String,
    /// The networks that the record says are protected.
    pub protects: Vec<IpNet>,
    /// The source of the record.
    pub finding: Finding,
    /// Whether the authority's name belongs to the domain, so that its certificate proves that it is the domain's.
    pub at_home: bool,
    /// Whether the configuration permits logins to the authority.
    pub allowed: bool,
}

/// The source of a domain's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Finding {
    /// The agent asked a name server.
    Asked,
    /// The agent overheard the answer to another program's query.
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
    /// Why the authority can't be reached, if it can't.
    pub trouble: Option<String>,
    /// When the session ends, Unix seconds.
    pub expires: u64,
    /// The receivers that the person may reach.
    pub destinations: Vec<Receiver>,
}

/// An interface of the agent.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Interface {
    /// Name of the interface.
    pub name: String,
    /// How the programs are attached: `tcx` or `clsact`.
    pub attachment: String,
    /// Why the programs are not attached, if they are not.
    pub trouble: Option<String>,
}

/// A grant of the user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// The grant's handle, hex.
    pub handle: String,
    /// The destination network.
    pub prefix: String,
    /// The protocol, if the grant is for one.
    pub protocol: Option<u8>,
    /// The port, if the grant is for one.
    pub port: Option<u16>,
    /// The MAC suite.
    pub suite: String,
    /// The carrier of the grant's tokens.
    pub carrier: String,
    /// The receiver's name.
    pub receiver: String,
    /// The rule that allowed the grant; empty if an earlier daemon requested it.
    pub rule: String,
    /// When the grant ends, Unix seconds.
    pub expires: u32,
    /// When the grant was last used for a token, Unix seconds; 0 if never.
    pub used: u32,
    /// Whether the grant is for a single flow.
    pub single: bool,
    /// The least treatment that the rule demands in a sealed tunnel: `none`, `authenticate` or `encrypt`.
    #[serde(default)]
    pub treatment: String,
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
            treatment: view.treatment.name().to_owned(),
        }
    }
}

/// The fate of a first packet.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "standing", rename_all = "snake_case")]
pub enum Standing {
    /// The destination is none of this person's receivers: the packet is sent unchanged.
    NotProtected,
    /// The user's rule, or the default, withholds the token.
    Withheld {
        /// The destination of the rule; absent for the default.
        rule: Option<Target>,
    },
    /// The policy denies the grant.
    Denied {
        /// The reason.
        why: String,
    },
    /// The packet gets a token.
    Granted {
        /// Whether the grant was requested just now.
        asked: bool,
        /// The grant.
        grant: Grant,
        /// The authority's time, Unix seconds.
        now: u64,
    },
    /// The authority gave no usable answer; the packet waits.
    Failed {
        /// The error.
        why: String,
    },
}
