//! The user's own sessions, one with each organisation. They answer the same calls as the agent ([`crate::protocol`]),
//! so that commands need not know which of the two answers.

use crate::folder::{Places, Store};
use crate::joining::{self, Known, Refusal, Wanted};
use crate::kept::{KeptNetworks, KeptSession, Territory};
use crate::login::{self, LoggedIn, Pending, refused, refused_by};
use crate::organisation::{OrganisationName, shown};
use crate::protocol::{
    AccessCall, Call, Discovered, Finding, Grant, Organisation, Reply, Request, Rung, RungState, Standing, Status,
};
use crate::{Error, Session, access, protocol, resolver};
use api::{Callback, LoginOutcome};
use client::{Authority, convert};
use engine::agent::{Clock, Consent, Subject};
use engine::discovery::{Answer, Domain};
use ipnet::IpNet;
use nix::unistd::Uid;
use shell::clock::{since_boot, unix};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;

/// Maximum time that `status` waits for the authority to say whether the session lives.
const STATUS_TIME: Duration = Duration::from_secs(4);
/// Maximum time that a logout waits for the authority to name the identity provider's own session.
const LOGOUT_TIME: Duration = Duration::from_secs(4);

/// The user's own sessions. If a login has been started in one clone, all clones can finish it.
#[derive(Clone)]
pub struct OwnSession {
    dir: PathBuf,
    started: Arc<Mutex<Option<Started>>>,
}

struct Started {
    at: At,
    pending: Pending,
}

/// The authority at which the user logs in, and its organisation.
#[derive(Clone)]
struct At {
    url: String,
    ca: Option<String>,
    organisation: Option<OrganisationName>,
    /// The networks that the user lets the organisation speak for. If empty, the organisation's networks stay as they
    /// are.
    networks: Vec<IpNet>,
}

impl At {
    fn authority(&self) -> Result<Authority, client::Error> {
        Authority::new(&self.url, self.ca.as_deref().map(str::as_bytes))
    }

    /// Returns the networks for which the organisation may speak after the login.
    fn plan(&self, store: &Store, networks: &KeptNetworks) -> Result<Option<Vec<IpNet>>, Refusal> {
        let territory = networks.territory();
        let sessions = networks.all().map(|(subject, name, _)| {
            let mut session = store.of(name).load().ok().flatten()?;
            // Claims that are ignored must not prevent a login to the organisation to which the addresses belong.
            session.receivers = territory.claims(subject, std::mem::take(&mut session.receivers)).0;
            Some(session)
        });
        let sessions: Vec<_> = sessions.collect();
        let known = networks.all().zip(&sessions);
        let known = known.map(|((_, name, networks), session)| Known { name, networks, session: session.as_ref() });
        let Self { url, organisation, networks, .. } = self;
        let wanted = Wanted { organisation: organisation.as_ref(), networks, authority: url };
        joining::plan(&wanted, &known.collect::<Vec<_>>(), &BTreeMap::new())
    }
}

impl OwnSession {
    /// Returns the sessions in the folder `dir`.
    pub fn at(dir: PathBuf) -> Self {
        Self { dir, started: Arc::default() }
    }

    /// Carries out a call and returns the reply.
    pub async fn answer(&self, Request { organisation, networks, call, .. }: Request) -> Reply {
        let name = organisation.clone();
        let at = |url, ca| At { url, ca, organisation, networks };
        match call {
            Call::Login { authority: url, ca, person, password, totp, device } => {
                let login = api::Login { person, password, totp, device };
                let log_in = async |authority: Authority| authority.login(&login).await.map(LoginOutcome::LoggedIn);
                self.enter(at(url, ca), log_in).await
            }
            Call::LoginMethods { authority: url, ca } => {
                let methods = async { at(url, ca).authority()?.login_methods().await };
                methods.await.map_or_else(|error| refused_by(&error), Reply::LoginMethods)
            }
            Call::StartLogin { authority: url, ca, device, way } => {
                let at = at(url, ca);
                if let Err((kind, text)) = self.permit(&at) {
                    return refused(kind, text);
                }
                let start = async { login::start(&at.authority()?, Uid::current().as_raw(), device, way).await };
                match start.await {
                    Ok((pending, started)) => {
                        *self.started.lock().await = Some(Started { at, pending });
                        Reply::LoginStarted(started)
                    }
                    Err(error) => refused_by(&error),
                }
            }
            Call::FinishLogin { callback } => self.finish(callback).await,
            Call::ServiceLogin { authority: url, ca, key, device } => {
                let log_in = async |authority: Authority| {
                    authority.login_by_key(&key, &device).await.map(LoginOutcome::LoggedIn)
                };
                self.enter(at(url, ca), log_in).await
            }
            Call::Logout { forget } => self.logout(name.as_ref(), forget).await,
            Call::Status => self.status().await,
            Call::Discover { domain } => discover(domain.as_deref()).await,
            Call::Grants => self.grants(),
            Call::Access(call) => self.access(name.as_ref(), call).await,
            Call::Explain { address, protocol, port } => self.explain(address, protocol, port).await,
            // A client without root has no other way than the packet itself.
            Call::Rungs { .. } => Reply::Rungs {
                rungs: vec![Rung { name: "packet".to_owned(), state: RungState::NotTried, begins_again: None }],
            },
            Call::Treat { .. } => refused(
                "needs_agent",
                "a session of your own has no sealed tunnels: only the agent has them, and no agent runs \
                here"
                    .to_owned(),
            ),
            Call::Rule { .. } => refused(
                "needs_agent",
                "only the agent has rules, because it puts tokens into the packets of all programs, and no agent runs \
                here. Your own session sends tokens only for `vouchsafe connect`, `run` and `proxy`"
                    .to_owned(),
            ),
        }
    }

    fn store(&self) -> Store {
        Store::at(&self.dir)
    }

    /// Checks that the organisation of a login takes no addresses from another organisation.
    fn permit(&self, at: &At) -> Result<(), Refusal> {
        let store = self.store();
        let networks = store.networks().map_err(|error| ("broken", error.to_string()))?;
        at.plan(&store, &networks).map(drop)
    }

    async fn enter(&self, at: At, log_in: impl AsyncFnOnce(Authority) -> Result<LoginOutcome, client::Error>) -> Reply {
        if let Err((kind, text)) = self.permit(&at) {
            return refused(kind, text);
        }
        let outcome = async {
            let authority = at.authority()?;
            login::enter(&authority, at.url.clone(), at.ca.clone(), log_in(authority.clone())).await
        };
        match outcome.await {
            Ok(Some(done)) => self.logged_in(&at, done).await,
            Ok(None) => Reply::LoginPending,
            Err(error) => refused_by(&error),
        }
    }

    async fn finish(&self, callback: Option<Callback>) -> Reply {
        let (at, finish) = match &*self.started.lock().await {
            Some(Started { at, pending }) => (at.clone(), pending.finish(callback)),
            None => return refused("wrong_login", "no login is in progress: run `vouchsafe login`".to_owned()),
        };
        self.enter(at, async |authority: Authority| authority.finish_login(&finish).await).await
    }

    async fn logged_in(&self, at: &At, done: LoggedIn) -> Reply {
        let LoggedIn { authority, mut kept, time } = done;
        self.started.lock().await.take();
        // Another process may have logged in to another organisation meanwhile.
        let store = self.store();
        let planned = store.change_networks::<Refusal>(|networks| {
            let own = at.plan(&store, networks)?;
            networks.set(at.organisation.as_ref(), own);
            Ok(())
        });
        let planned = planned.unwrap_or_else(|error| Err(("other", error.to_string())));
        if let Err((kind, text)) = planned {
            let _ = tokio::time::timeout(LOGOUT_TIME, authority.logout()).await;
            return refused(kind, text);
        }
        let store = store.of(at.organisation.as_ref());
        let local = Clock::at(unix(), since_boot());
        let mut clock = local;
        clock.sync(time.value, time.requested, time.answered);
        kept.skew = clock.skew(&local);
        let before = store.load().ok().flatten();
        let place = match store.save(&kept, time.value) {
            Ok(place) => place,
            Err(error) => return refused("other", error.to_string()),
        };
        // Also end the earlier session at the authority.
        if let Some(before) = before.and_then(|before| before.caller().ok()) {
            let _ = tokio::time::timeout(LOGOUT_TIME, before.logout()).await;
        }
        Reply::Done {
            text: format!(
                "logged in to {} as {}\nThe session is your own: no agent runs here. Its secret is {place}. Use the \
                 session with `vouchsafe connect`, `vouchsafe run` and `vouchsafe proxy`",
                kept.authority, kept.person
            ),
        }
    }

    /// Ends the session with an organisation. If `forget` is true, also forgets the organisation's networks.
    async fn logout(&self, organisation: Option<&OrganisationName>, forget: bool) -> Reply {
        let store = self.store();
        let known = store.networks().map(|networks| networks.subject(organisation).is_some());
        let kept = match (known, store.of(organisation).load()) {
            (Ok(false), _) => {
                let text = format!("you have no organisation {:?}", shown(organisation));
                return refused("no_organisation", text);
            }
            (Ok(true), Ok(kept)) => kept,
            (Err(error), _) | (_, Err(error)) => return refused("other", error.to_string()),
        };
        store.of(organisation).remove();
        if forget {
            let forgotten = store.change_networks::<Refusal>(|networks| {
                networks.forget(organisation);
                Ok(())
            });
            if let Err(error) = forgotten {
                return refused("other", error.to_string());
            }
            if let Some(name) = organisation {
                store.remove_organisation(name);
            }
        }
        let Some(kept) = kept else {
            return match forget {
                true => Reply::Done { text: format!("forgot {}", shown(organisation)) },
                false => refused("not_logged_in", "not logged in".to_owned()),
            };
        };
        let text = format!("logged out of {}", kept.authority);
        let told = async { kept.caller()?.logout().await };
        match tokio::time::timeout(LOGOUT_TIME, told).await {
            Ok(Ok(Some(api::LoggedOut { provider }))) => Reply::LoggedOut { text, provider },
            Ok(Ok(None)) => Reply::Done { text },
            Ok(Err(client::Error::NotLoggedIn)) => Reply::Done { text },
            Ok(Err(error)) => Reply::Done {
                text: format!(
                    "{text} on this machine, but the authority could not be told, so the session may stay valid there \
                     until it expires: {error}"
                ),
            },
            Err(_) => Reply::Done {
                text: format!(
                    "{text} on this machine, but the authority did not answer, so the session may stay valid there \
                     until it expires"
                ),
            },
        }
    }

    /// Returns the state of the sessions. Asks the authorities, because only they know whether a session was revoked.
    async fn status(&self) -> Reply {
        let networks = match self.store().networks() {
            Ok(networks) => networks,
            Err(error) => return refused("broken", error.to_string()),
        };
        let territory = Arc::new(networks.territory());
        let mut lookups = Vec::new();
        for (subject, name, own) in networks.all() {
            let kept = match self.store().of(name).load() {
                Ok(kept) => kept,
                Err(error) => return refused("broken", error.to_string()),
            };
            let one = Organisation {
                name: shown(name).to_owned(),
                networks: own.map(<[IpNet]>::to_vec),
                session: None,
                refused: Vec::new(),
                refused_members: Vec::new(),
            };
            lookups.push((
                kept.as_ref().map_or(0, |kept| kept.skew),
                tokio::spawn(look(one, kept, subject, territory.clone())),
            ));
        }
        let skew = lookups.first().map_or(0, |(skew, _)| *skew);
        let mut organisations = Vec::new();
        for (_, lookup) in lookups {
            match lookup.await {
                Ok(one) => organisations.push(one),
                Err(error) => return refused("other", error.to_string()),
            }
        }
        let session = organisations.first().and_then(|default| default.session.clone());
        Reply::Status(Box::new(Status {
            tunnels: Vec::new(),
            tunnel_queues: Vec::new(),
            uid: Uid::current().as_raw(),
            session,
            organisations: if networks.are_default() { Vec::new() } else { organisations },
            interfaces: Vec::new(),
            counters: Default::default(),
            default: Consent::Allow,
            discovered: Vec::new(),
            now: Clock::at(unix(), since_boot()).shifted(skew).unix(since_boot()),
            own: Some(self.dir.clone()),
        }))
    }

    async fn access(&self, organisation: Option<&OrganisationName>, call: AccessCall) -> Reply {
        let kept = match self.store().of(organisation).load() {
            Ok(Some(kept)) => kept,
            Ok(None) => return refused("not_logged_in", "not logged in: run `vouchsafe login`".to_owned()),
            Err(error) => return refused("broken", error.to_string()),
        };
        match kept.caller() {
            Ok(authority) => access::call(&authority, call).await,
            Err(error) => refused_by(&error),
        }
    }

    fn grants(&self) -> Reply {
        let session = match self.open() {
            Ok(session) => session,
            Err(error) => return refusal(&error),
        };
        let grants = session.grants().into_iter();
        Reply::Grants {
            grants: grants.map(|(organisation, view)| Grant { organisation, ..Grant::from(&view) }).collect(),
            rules: Vec::new(),
            default: Consent::Allow,
            now: shell::clock::now(),
        }
    }

    async fn explain(&self, address: IpAddr, protocol: u8, port: u16) -> Reply {
        let to = SocketAddr::new(address.to_canonical(), port);
        let own = self.clone();
        let asked = tokio::task::spawn_blocking(move || {
            let session = own.open()?;
            session.consent();
            if !session.is_protected(to, protocol) {
                return Ok(None);
            }
            session.grant(to, protocol).map(Some)
        });
        let answer = asked.await.unwrap_or_else(|error| Err(Error::Folder(error.to_string())));
        match answer {
            Ok(None) => Reply::Standing(Standing::NotProtected),
            Ok(Some((view, asked))) => {
                Reply::Standing(Standing::Granted { asked, grant: Grant::from(&view), now: shell::clock::now() })
            }
            Err(Error::Denied { why, .. }) => Reply::Standing(Standing::Denied { why }),
            Err(Error::NoGrant { why, .. }) => Reply::Standing(Standing::Failed { why }),
            Err(error) => refusal(&error),
        }
    }

    fn open(&self) -> Result<Session, Error> {
        Session::open(&Places { socket: None, dir: self.dir.clone() })
    }
}

/// Returns the organisation `one`, with the state of its session added.
async fn look(
    one: Organisation,
    kept: Option<KeptSession>,
    subject: Subject,
    territory: Arc<Territory>,
) -> Organisation {
    let skew = kept.as_ref().map_or(0, |kept| kept.skew);
    let now = Clock::at(unix(), since_boot()).shifted(skew).unix(since_boot());
    let Some(kept) = kept.filter(|kept| kept.expires > now) else { return one };
    let caller = kept.caller();
    let answer = match &caller {
        Ok(authority) => tokio::time::timeout(STATUS_TIME, authority.destinations()).await,
        Err(error) => Ok(Err(client::Error::Other(error.to_string()))),
    };
    let (in_use, authorities) = caller.map(|authority| authority.members()).unwrap_or_default().shown();
    let (trouble, listed) = match answer {
        Ok(Ok(answer)) => (None, convert::receivers(&answer.destinations)),
        Ok(Err(client::Error::NotLoggedIn)) => return one,
        Ok(Err(error)) => (Some(error.to_string()), Vec::new()),
        Err(_) => (Some("the authority does not answer".to_owned()), Vec::new()),
    };
    let mut refused = territory.claims(subject, listed).1;
    refused.truncate(joining::NETWORKS_MAX);
    let (destinations, _) = territory.claims(subject, kept.receivers);
    let session = protocol::Session {
        person: kept.person,
        device: kept.device,
        authority: kept.authority,
        in_use,
        authorities,
        trouble,
        expires: kept.expires,
        grants_by: Default::default(),
        destinations,
    };
    Organisation { session: Some(session), refused, ..one }
}

fn refusal(error: &Error) -> Reply {
    let kind = if matches!(error, Error::NotLoggedIn) { "not_logged_in" } else { "other" };
    refused(kind, error.to_string())
}

/// Queries name servers for a domain's record.
async fn discover(domain: Option<&str>) -> Reply {
    let Some(domain) = domain else { return Reply::Discovered { domains: Vec::new() } };
    let domain: Domain = match domain.parse() {
        Ok(domain) => domain,
        Err(error) => return refused("malformed", format!("{error}")),
    };
    match resolver::ask(&domain, &[]).await {
        Answer::Record(record, _) => Reply::Discovered {
            domains: vec![Discovered {
                domain: domain.to_string(),
                authority: record.authority().to_string(),
                protects: record.protects().to_vec(),
                finding: Finding::Asked,
                at_home: record.is_at_home(&domain),
                allowed: true,
            }],
        },
        Answer::Nothing(_) => refused(
            "no_record",
            format!(
                "{domain} names no authority: there is no record at {}; `--authority URL` needs no record",
                domain.record_name()
            ),
        ),
        Answer::Truncated => refused("unreachable", format!("{domain}: the name server's answer is incomplete")),
        Answer::Failed(why) => refused("unreachable", format!("{domain}: {why}")),
    }
}
