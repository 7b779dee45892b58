//! The protocol between people's commands and the agent over its UNIX socket. A user's own session answers the same
//! calls ([`crate::own`]).
//!
//! Each side writes one JSON object per line. A client sends a [`Request`], gets one [`Reply`], and can then send the
//! next request. The kernel tells the daemon which user makes the call (`SO_PEERCRED`). A call concerns this user's own
//! session. Root can name another user in `uid`.
//!
//! ```text
//! → {"call":"status"}
//! ← {"reply":"status","uid":1000,"session":{…},…}
//! → {"call":"rule","target":"203.0.113.0/24:22","consent":"deny"}
//! ← {"reply":"done","text":"…"}
//! → {"call":"explain","address":"203.0.113.10","protocol":6,"port":22}
//! ← {"reply":"standing","standing":"granted","asked":true,"grant":{…}}
//! ```

use crate::organisation::{DEFAULT_ORGANISATION, OrganisationName};
use api::{AccessList, Callback, LoginMethods, ServiceKey};
use engine::agent::{Consent, GrantView, consent::ConsentRule};
use engine::model::{Receiver, Target};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

/// A call, and the user whose session it concerns.
#[derive(Serialize, Deserialize)]
pub struct Request {
    /// The user whose session the call concerns; the calling user if absent. Only root may name another user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// The organisation at which the user logs in or out; the user's default organisation if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub organisation: Option<OrganisationName>,
    /// At a login: the only networks for which the organisation's authority may speak. If empty, these networks stay as
    /// they are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub networks: Vec<IpNet>,
    /// The call.
    #[serde(flatten)]
    pub call: Call,
}

impl Request {
    /// Returns a request that concerns the calling user.
    pub const fn own(call: Call) -> Self {
        Self { uid: None, organisation: None, networks: Vec::new(), call }
    }
}

/// A call to the daemon. Has no `Debug` because a login contains a password.
#[derive(Serialize, Deserialize)]
#[serde(tag = "call", rename_all = "snake_case")]
pub enum Call {
    /// Log in to an authority; replaces an earlier session.
    Login {
        /// The authority's URL, `https://…`.
        authority: String,
        /// The certificates to trust, PEM. The client reads the file, because the daemon must not.
        ca: Option<String>,
        /// The person's name.
        person: String,
        /// The person's password.
        password: String,
        /// The six digits of the person's second factor.
        totp: Option<String>,
        /// The person's name for this device.
        device: String,
    },
    /// List the ways to log in that an authority offers.
    LoginMethods {
        /// The authority's URL, `https://…`.
        authority: String,
        /// The certificates to trust, PEM.
        ca: Option<String>,
    },
    /// Start a login with the authority's identity provider, replacing a login that was started earlier.
    StartLogin {
        /// The authority's URL, `https://…`.
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
        /// The browser's callback; absent in a login with a device code, and in a call that only asks whether a login
        /// in a browser has failed.
        callback: Option<Callback>,
    },
    /// Log in as a service account.
    ServiceLogin {
        /// The authority's URL, `https://…`.
        authority: String,
        /// The certificates to trust, PEM.
        ca: Option<String>,
        /// The service account's key and the data that belongs to it.
        key: ServiceKey,
        /// The name for this device.
        device: String,
    },
    /// End the session, also at the authority.
    Logout {
        /// Also forget the organisation, so that another organisation can have its networks.
        #[serde(default)]
        forget: bool,
    },
    /// Return the state of the agent and of the user's session.
    Status,
    /// Return the authority that a domain names. If the daemon has no record of the domain, it queries name servers.
    Discover {
        /// The domain; all known domains if absent.
        domain: Option<String>,
    },
    /// List the user's grants and rules.
    Grants,
    /// Add a rule about a destination, or remove the rule.
    Rule {
        /// The destination.
        target: Target,
        /// Whether tokens are allowed to go to the destination; if absent, the rule is removed.
        consent: Option<Consent>,
    },
    /// Seal all packets to protected destinations that a process of the user, or any process that it starts, sends.
    Treat {
        /// Id of the process.
        process: u32,
        /// The treatment, such as `encrypt,compress`.
        treatment: String,
    },
    /// Return what would happen to a first packet; the daemon requests the grant if it is missing.
    Explain {
        /// The destination.
        address: IpAddr,
        /// The IP protocol number.
        protocol: u8,
        /// The destination port.
        port: u16,
    },
    /// Return the state of each way in which a first packet to a destination can travel.
    Rungs {
        /// The destination.
        address: IpAddr,
        /// The IP protocol number.
        protocol: u8,
        /// The destination port.
        port: u16,
    },
    /// Ask for access to a receiver, list the requests for access, or withdraw one.
    Access(AccessCall),
}

/// A call about requests for access to receivers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "access", rename_all = "snake_case")]
pub enum AccessCall {
    /// Ask for access.
    Ask {
        /// Name of the receiver.
        receiver: String,
        /// The services, such as `tcp/22`. If empty, the request is for all services for which the person may ask.
        #[serde(default)]
        services: Vec<String>,
        /// The number of seconds for which the person wants access.
        lifetime: Option<u32>,
        /// The reason, for the person who decides.
        #[serde(default)]
        reason: String,
    },
    /// List the person's requests, and the receivers for which the person can ask.
    List {
        /// The value of `next` in the previous answer, to get older requests; absent to get the latest requests.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        before: Option<String>,
    },
    /// Withdraw a request, or the consent that answered it.
    Withdraw {
        /// The number of the request.
        id: String,
    },
}

/// How a person logs in with an identity provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "way", rename_all = "snake_case")]
pub enum LoginWay {
    /// In a browser on this machine. The authority redirects the browser to the client, at the port `port` of
    /// 127.0.0.1.
    Browser {
        /// The port at which the client waits for the browser.
        port: u16,
    },
    /// In a browser on any machine, with a code that the person enters there.
    DeviceCode,
}

/// The data with which the client continues a login that has been started.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "started", rename_all = "snake_case")]
pub enum LoginStarted {
    /// A login by [`LoginWay::Browser`].
    Browser {
        /// The URL to open.
        url: String,
        /// The value of `state` that the browser's callback must have.
        state: String,
        /// A text to show to the person, who compares it with the text on the page that asks for approval.
        comparison: String,
        /// Seconds until the daemon forgets the login.
        expires_in: u64,
    },
    /// A login by [`LoginWay::DeviceCode`].
    DeviceCode {
        /// The code to enter.
        user_code: String,
        /// The URL of the page at which to enter the code.
        url: String,
        /// The URL of the page at which to enter the code, with the code filled in.
        url_with_code: Option<String>,
        /// Seconds to wait between two calls with [`Call::FinishLogin`].
        interval: u64,
        /// Seconds until the daemon forgets the login.
        expires_in: u64,
    },
}

/// The daemon's answer to a call.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub enum Reply {
    /// Success, with one line for people.
    Done {
        /// The line for people.
        text: String,
    },
    /// A negative answer.
    Refused {
        /// A stable name such as `wrong_password`, `second_factor_required`, `not_logged_in`.
        kind: String,
        /// A sentence for people.
        text: String,
    },
    /// Answer to [`Call::Logout`] if the identity provider's own session continues.
    LoggedOut {
        /// A sentence for people.
        text: String,
        /// The URL at which a browser ends the identity provider's session.
        provider: String,
    },
    /// Answer to [`Call::LoginMethods`].
    LoginMethods(LoginMethods),
    /// Answer to [`Call::StartLogin`].
    LoginStarted(LoginStarted),
    /// Answer to [`Call::FinishLogin`] if the person has not yet entered the code, or has not yet answered in the
    /// browser.
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
        /// Whether a packet may carry a token if the user has no rule for its destination.
        default: Consent,
        /// The authority's time, Unix seconds.
        now: u64,
    },
    /// Answer to [`AccessCall::List`].
    Access(AccessList),
    /// Answer to [`Call::Explain`]: the outcome for the first packet.
    Standing(Standing),
    /// Answer to [`Call::Rungs`].
    Rungs {
        /// The ways in which the first packet can travel (*rungs*), in the order in which the agent tries them.
        rungs: Vec<Rung>,
    },
}

/// A way in which a first packet can travel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rung {
    /// `packet`: the packet itself carries the token. `fast_open`: the packet carries the token by the carrier
    /// `fast_open`. `tcp_in_udp`: the packet travels as a datagram, by the carrier `tcp_in_udp`. `tunnel`: the packet
    /// travels in the sealed tunnel to the verifier.
    pub name: String,
    /// The state of the rung in this network.
    pub state: RungState,
    /// Number of seconds until connections begin with this rung again; absent if the rung is not blocked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begins_again: Option<u64>,
}

/// The state of a rung.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RungState {
    /// The latest first packet by this rung was answered.
    Works,
    /// The latest first packets by this rung were not answered, although a packet by another rung was answered.
    Blocked,
    /// There are no results for this rung.
    NotTried,
}

/// The state of the agent, as one user sees it.
#[derive(Debug, Serialize, Deserialize)]
pub struct Status {
    /// The id of the user whom the other fields concern.
    pub uid: u32,
    /// The user's session with the default organisation; absent if the user is not logged in there.
    pub session: Option<Session>,
    /// The user's organisations, the default one first. Empty for a session of the user's own if the user has only the
    /// default organisation.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub organisations: Vec<Organisation>,
    /// The agent's interfaces.
    pub interfaces: Vec<Interface>,
    /// Counters of the kernel program, by name.
    pub counters: BTreeMap<String, u64>,
    /// Whether a packet may carry a token if the user has no rule for its destination.
    pub default: Consent,
    /// Domains whose records name an authority.
    pub discovered: Vec<Discovered>,
    /// The authority's time, Unix seconds.
    pub now: u64,
    /// The folder of the session, if the session is the user's own and not an agent's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own: Option<PathBuf>,
    /// The user's sealed tunnels.
    #[serde(default)]
    pub tunnels: Vec<Tunnel>,
    /// The queues of the agent's sealed tunnels; empty before a tunnel was needed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tunnel_queues: Vec<TunnelQueue>,
}

impl Status {
    /// Returns all sessions of the user, with the names of their organisations.
    pub fn sessions(&self) -> impl Iterator<Item = (&str, &Session)> {
        let named = self.organisations.iter().filter_map(|one| Some((one.name.as_str(), one.session.as_ref()?)));
        let default = self.session.as_ref().filter(|_| self.organisations.is_empty());
        default.map(|session| (DEFAULT_ORGANISATION, session)).into_iter().chain(named)
    }
}

/// An organisation of the user.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Organisation {
    /// The organisation's name.
    pub name: String,
    /// The only networks for which the organisation's authority may speak. Absent for a default organisation that may
    /// speak for every address that no other organisation has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub networks: Option<Vec<IpNet>>,
    /// The session; absent if the user is not logged in there.
    pub session: Option<Session>,
    /// Networks that the organisation's authority lists as its own, although it is not allowed to speak for them. The
    /// agent ignores these networks, and so do the user's own sessions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<IpNet>,
    /// The reasons why the agent does not connect to some members of the authority's cluster.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused_members: Vec<String>,
}

/// Numbers of bytes that the thread of one queue of the sealed tunnels has moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TunnelQueue {
    /// Number of bytes of packets that entered tunnels.
    pub sealed: u64,
    /// Number of bytes of packets that left tunnels.
    pub opened: u64,
}

/// A sealed tunnel of the user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tunnel {
    /// Address and UDP port of the verifier's end of the tunnel.
    pub service: SocketAddr,
    /// Whether the tunnel is open.
    pub open: bool,
    /// Number of the tunnel's current phase; 0 before the first phase.
    pub phase: u32,
    /// Reason why the verifier refused the tunnel, if it did so recently.
    pub refused: Option<String>,
    /// Whether the agent writes the tunnel's keys to a file, for debugging. Everybody who has this file can read what
    /// the tunnel carries.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keys_exported: bool,
}

/// A domain's discovery record, which names the authority that protects the domain. The record is only a hint (wire.md
/// §7.2).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Discovered {
    /// The domain to which the record belongs.
    pub domain: String,
    /// The authority's address.
    pub authority: String,
    /// The networks that are protected according to the record.
    pub protects: Vec<IpNet>,
    /// How the agent learned of the record.
    pub finding: Finding,
    /// Whether the authority's name belongs to the domain. If so, the authority's certificate proves that the authority
    /// is the domain's own.
    pub at_home: bool,
    /// Whether the configuration permits logins to the authority.
    pub allowed: bool,
}

/// How the agent learned of a domain's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Finding {
    /// The agent asked a name server.
    Asked,
    /// The agent overheard the answer to another program's query.
    Overheard,
}

/// A person's login, as a user sees it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Session {
    /// The person's name.
    pub person: String,
    /// The device's name.
    pub device: String,
    /// The address of the authority at which the person logged in.
    pub authority: String,
    /// The address of the authority in use; absent if `authority` is in no cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_use: Option<String>,
    /// The addresses of all authorities of the cluster; empty if `authority` is in no cluster.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub authorities: Vec<String>,
    /// Reason why the authority can't be reached; absent if it can be reached.
    pub trouble: Option<String>,
    /// End of the session, Unix seconds.
    pub expires: u64,
    /// The numbers of grants that the agent got for the session.
    #[serde(default)]
    pub grants_by: GrantWays,
    /// The receivers that the person may reach.
    pub destinations: Vec<Receiver>,
}

/// Numbers of the grants that came by UDP and over HTTPS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantWays {
    /// Grants that came by UDP.
    pub udp: u64,
    /// Grants that came over HTTPS.
    pub https: u64,
}

/// A network interface to which the agent attaches its kernel programs, or a switch that has connected to the agent.
/// Also the device of the sealed tunnels, if its thread has ended.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Interface {
    /// Name of the interface or switch.
    pub name: String,
    /// The way in which the programs are attached: `tcx` or `clsact`. `OpenFlow` for a switch, and `tunnels` for the
    /// device of the sealed tunnels.
    pub attachment: String,
    /// Reason why the programs are not attached, the switch's rules are not installed, or the thread of the tunnels has
    /// ended; absent if there is no such trouble.
    pub trouble: Option<String>,
}

/// A grant of the user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// The grant's handle in hexadecimal.
    pub handle: String,
    /// The network of destinations that the grant covers.
    pub prefix: String,
    /// The protocol number if the grant covers one service only; otherwise `None`.
    pub protocol: Option<u8>,
    /// The port if the grant covers one service only; otherwise `None`.
    pub port: Option<u16>,
    /// The name of the suite of the grant's tokens.
    pub suite: String,
    /// The carrier of the grant's tokens.
    pub carrier: String,
    /// The receiver's name.
    pub receiver: String,
    /// The rule that allowed the grant; empty if an earlier run of the daemon requested the grant.
    pub rule: String,
    /// End of the grant, Unix seconds.
    pub expires: u32,
    /// Time at which a token was last made from the grant, Unix seconds; 0 if never.
    pub used: u32,
    /// Whether the grant is for a single flow.
    pub single: bool,
    /// The least treatment that the rule demands in a sealed tunnel: `none`, `authenticate` or `encrypt`.
    #[serde(default)]
    pub treatment: String,
    /// The organisation whose authority gave the grant; absent for the default organisation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub organisation: Option<OrganisationName>,
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
            organisation: None,
        }
    }
}

/// The outcome for a first packet to a destination.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "standing", rename_all = "snake_case")]
pub enum Standing {
    /// None of the person's receivers contains the destination: the packet is sent unchanged.
    NotProtected,
    /// The user's rule, or the default, does not allow tokens to the destination.
    Withheld {
        /// The destination of the rule; absent for the default.
        rule: Option<Target>,
    },
    /// The policy denies the grant.
    Denied {
        /// The authority's reason for the denial.
        why: String,
    },
    /// The packet gets a token.
    Granted {
        /// Whether the agent has requested the grant just now.
        asked: bool,
        /// The grant that the next token is made from.
        grant: Grant,
        /// The authority's time, Unix seconds.
        now: u64,
    },
    /// The authority gave no usable answer, and the packet is queued.
    Failed {
        /// The error message.
        why: String,
    },
}
