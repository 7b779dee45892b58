//! A login of this user, with which a process makes connections.

use crate::datagrams::Datagrams;
use crate::fetching::{Fetcher, News};
use crate::folder::{KeptGrant, Places, Store};
use crate::kept::{KeptNetworks, KeptSession, Territory};
use crate::login::Timed;
use crate::organisation::OrganisationName;
use crate::stream::{self, Block, Plan};
use crate::{Error, agent};
use client::convert;
use engine::agent::wallet::Standing;
use engine::agent::{Clock, Event, GrantView, Subject, Wallet};
use engine::model::GrantRequest;
use nix::sys::socket::SockaddrStorage;
use shell::clock::{since_boot, unix};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use wire::Destination;
use wire::packet::TCP;
use wire::tail;

/// Number of unanswered SYNs after which the grant is replaced, because the authority may have revoked it.
const SUSPECT: u32 = 2;
/// Age, in seconds, from which the stored list of receivers is fetched again if a destination is not in it.
const OLD: u64 = 30;
/// Maximum number of addresses whose round-trip time is remembered.
const TIMES_MAX: usize = 1024;

/// Time limits for making a connection.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// Maximum time to connect to one address.
    pub connect: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self { connect: Duration::from_secs(10) }
    }
}

/// The program that puts tokens into first packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The agent of this machine, at which the user is logged in. This process makes ordinary connections.
    Agent,
    /// This process, with the user's own session.
    Own,
}

/// The sessions of this user, with one or several organisations. Clones, also those in other threads, share these
/// sessions.
#[derive(Clone)]
pub struct Session(Arc<Inner>);

enum Inner {
    Agent,
    /// The user's own sessions, one with each organisation.
    Own(Arc<Territory>, Vec<Own>),
}

impl Inner {
    fn all(&self) -> &[Own] {
        match self {
            Self::Agent => &[],
            Self::Own(_, all) => all,
        }
    }

    /// Returns the session of the organisation that may speak for an address. Packets to addresses without such a
    /// session carry no token.
    fn at(&self, address: IpAddr) -> Option<&Own> {
        let Self::Own(territory, all) = self else { return None };
        let subject = territory.at(address)?;
        all.iter().find(|own| own.subject == subject)
    }
}

/// A user's own session with one organisation.
struct Own {
    organisation: Option<OrganisationName>,
    subject: Subject,
    territory: Arc<Territory>,
    store: Store,
    kept: KeptSession,
    fetcher: Fetcher,
    /// Whether the person, and not a program, chooses the destinations of this session (see [`Session::consent`]).
    consents: AtomicBool,
    state: Mutex<State>,
    /// A lock for each destination whose grant is being fetched. Other threads wait for this lock, and so don't request
    /// the same grant.
    asking: Mutex<BTreeMap<Destination, Arc<Mutex<()>>>>,
}

struct State {
    wallet: Wallet,
    clock: Clock,
    /// The next nonce. It begins with a random number, because other processes may use the same grant.
    nonce: u32,
    has_ended: bool,
    /// The URLs of the authorities of the cluster, as they are stored.
    authorities: Vec<String>,
    /// Time since boot at which the receivers were fetched.
    listed: Option<Duration>,
    round_trips: BTreeMap<IpAddr, Duration>,
}

impl Session {
    /// Opens this user's sessions: those at the agent, if the agent runs and the user is logged in there, otherwise
    /// those in the user's own folder.
    ///
    /// # Errors
    ///
    /// Fails with [`Error::NotLoggedIn`] if there is no session, and with another error if the agent's answer or the
    /// folder's files can't be read.
    pub fn open(places: &Places) -> Result<Self, Error> {
        if let Some(socket) = &places.socket
            && is_logged_in_at(socket)?
        {
            return Ok(Self(Arc::new(Inner::Agent)));
        }
        let store = Store::at(&places.dir);
        let networks = store.networks()?;
        let territory = Arc::new(networks.territory());
        let all = Own::open_all(&store, &networks, &territory)?;
        if all.is_empty() { Err(Error::NotLoggedIn) } else { Ok(Self(Arc::new(Inner::Own(territory, all)))) }
    }

    /// Returns which program puts tokens into first packets.
    pub fn way(&self) -> Way {
        match *self.0 {
            Inner::Agent => Way::Agent,
            Inner::Own(..) => Way::Own,
        }
    }

    /// Declares that the person, and not a program, chooses the destinations of this session. So the person consents to
    /// destinations for which their choice at the console is `ask`. Without this call, the authority denies grants for
    /// these destinations, because a program or a web page may have chosen them.
    pub fn consent(&self) {
        self.0.all().iter().for_each(|own| own.consents.store(true, Ordering::Relaxed));
    }

    /// Starts to follow the authorities' events, which keep receivers and grants up to date. A process that runs for a
    /// long time needs this.
    ///
    /// # Errors
    ///
    /// Fails if the thread that follows the events can't be started.
    pub fn follow(&self) -> Result<(), Error> {
        for (index, own) in self.0.all().iter().enumerate() {
            let weak = Arc::downgrade(&self.0);
            let hear = move |news| {
                if let Some(inner) = weak.upgrade() {
                    // The thread that reports the event must be free for the calls that the event causes.
                    std::thread::spawn(move || inner.all()[index].hear(&news));
                }
            };
            own.fetcher.follow(&own.kept, hear).map_err(|error| Error::Folder(error.to_string()))?;
        }
        Ok(())
    }

    /// Connects to a host by TCP. Tries its addresses one after the other until one answers.
    ///
    /// # Errors
    ///
    /// Fails if the host's name has no address. If no connection can be made to any address, fails with the error for
    /// the last one. If the session has ended, fails without trying the remaining addresses.
    pub fn connect(&self, host: &str, port: u16, timeouts: Timeouts) -> Result<TcpStream, Error> {
        let mut last = None;
        for to in resolve(host, port)? {
            match self.connect_to(to, timeouts) {
                Ok(stream) => return Ok(stream),
                Err(error @ Error::NotLoggedIn) => return Err(error),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| Error::NoAddress {
            host: host.to_owned(),
            why: "the resolver returned none".to_owned(),
        }))
    }

    /// Connects to an address by TCP. The SYN has a token if the address is protected, and none otherwise.
    ///
    /// # Errors
    ///
    /// Returns the reason why the connection could not be made.
    pub fn connect_to(&self, to: SocketAddr, timeouts: Timeouts) -> Result<TcpStream, Error> {
        let to = SocketAddr::new(to.ip().to_canonical(), to.port());
        let deadline = Instant::now() + timeouts.connect;
        let own = match self.0.at(to.ip()) {
            Some(own) if own.needs_token(&destination(to, TCP))? => own,
            _ => {
                let stream = TcpStream::connect_timeout(&to, timeouts.connect);
                return stream.map_err(|source| Error::Io { to, source });
            }
        };
        let plan = own.plan(to, deadline);
        let (socket, round_trip) = stream::connect(&plan, |number| own.block(to, number))?;
        own.note_round_trip(to.ip(), round_trip);
        Ok(socket.into())
    }

    /// Connects a socket of another program to the address `to`. `address` is the same address in the form in which the
    /// program wrote it. Returns `false` if the address needs no token. The socket is then unchanged, and the program
    /// can connect it itself.
    ///
    /// # Errors
    ///
    /// Returns the reason why the connection could not be made. The socket is then unconnected, unless it was connected
    /// or connecting before the call: in this case it stays unchanged.
    pub fn connect_socket(
        &self,
        socket: BorrowedFd<'_>,
        address: &SockaddrStorage,
        to: SocketAddr,
        timeouts: Timeouts,
    ) -> Result<bool, Error> {
        let to = SocketAddr::new(to.ip().to_canonical(), to.port());
        let Some(own) = self.0.at(to.ip()) else { return Ok(false) };
        if !own.needs_token(&destination(to, TCP))? {
            return Ok(false);
        }
        let plan = own.plan(to, Instant::now() + timeouts.connect);
        let round_trip = stream::connect_on(socket, address, &plan, |number| own.block(to, number))?;
        own.note_round_trip(to.ip(), round_trip);
        if !stream::is_nonblocking(socket) {
            stream::complete(socket, address);
        }
        Ok(true)
    }

    /// Opens a UDP flow to an address.
    ///
    /// # Errors
    ///
    /// Fails if there is no grant, or if no socket can be opened.
    pub fn datagrams(&self, to: SocketAddr) -> Result<Datagrams, Error> {
        Datagrams::open(self.clone(), SocketAddr::new(to.ip().to_canonical(), to.port()))
    }

    /// Returns the block to append to a datagram to `to` (carrier `tail`); `None` if the address needs no token.
    ///
    /// # Errors
    ///
    /// Fails if there is no grant.
    pub fn datagram_block(&self, to: SocketAddr) -> Result<Option<Block>, Error> {
        let to = SocketAddr::new(to.ip().to_canonical(), to.port());
        let Some(own) = self.0.at(to.ip()) else { return Ok(None) };
        if !own.needs_token(&destination(to, wire::packet::UDP))? {
            return Ok(None);
        }
        own.token(to, wire::packet::UDP, false).map(|token| Some(tail::block(&token)))
    }

    /// Reports whether the last known list of the person's receivers includes this address and port. If the session is
    /// at the agent, only the agent has the list, and this function returns `false` for every address.
    pub fn is_protected(&self, to: SocketAddr, protocol: u8) -> bool {
        self.0.at(to.ip()).is_some_and(|own| own.state().wallet.receiver(&destination(to, protocol)).is_some())
    }

    /// Returns the grant for a destination, for a command that explains what would happen to a packet. Fetches the
    /// grant if there is none. The boolean says whether the grant was fetched.
    ///
    /// # Errors
    ///
    /// Fails if there is no grant and none can be fetched, or if the session is at the agent.
    pub fn grant(&self, to: SocketAddr, protocol: u8) -> Result<(GrantView, bool), Error> {
        let own = self.0.at(to.ip()).ok_or(Error::NotLoggedIn)?;
        let place = destination(to, protocol);
        let had = own.view(&place).is_some();
        own.ensure(to, protocol)?;
        let view = own.view(&place);
        view.map(|view| (view, !had)).ok_or_else(|| no_grant(to, "the grant ended at once"))
    }

    /// Returns the grants, each with the organisation that gave it; `None` stands for the default organisation. Returns
    /// none if the session is at the agent.
    pub fn grants(&self) -> Vec<(Option<OrganisationName>, GrantView)> {
        let views = |own: &Own| {
            let (name, views) = (own.organisation.clone(), own.state().wallet.views());
            views.into_iter().map(move |view| (name.clone(), view))
        };
        self.0.all().iter().flat_map(views).collect()
    }
}

impl Own {
    /// Opens the sessions that have not ended. Fails because of a full keyring only if it can open none.
    fn open_all(store: &Store, networks: &KeptNetworks, territory: &Arc<Territory>) -> Result<Vec<Self>, Error> {
        let (mut all, mut unread) = (Vec::new(), None);
        for (subject, name, _) in networks.all() {
            let store = store.of(name);
            match store.load() {
                Ok(Some(kept)) => all.extend(Self::open(store, kept, (name.cloned(), subject), territory)?),
                Ok(None) => {}
                // The secret of another organisation's session may be in a file.
                Err(Error::KeyringFull) => unread = Some(Error::KeyringFull),
                Err(error) => return Err(error),
            }
        }
        unread.filter(|_| all.is_empty()).map_or(Ok(all), Err)
    }

    /// Opens a session with its stored grants. Returns `None` if the session has ended.
    fn open(
        store: Store,
        kept: KeptSession,
        (organisation, subject): (Option<OrganisationName>, Subject),
        territory: &Arc<Territory>,
    ) -> Result<Option<Self>, Error> {
        let clock = Clock::at(unix(), since_boot()).shifted(kept.skew);
        let now = clock.unix(since_boot());
        if kept.expires <= now {
            return Ok(None);
        }
        let mut wallet = Wallet::new(territory.claims(subject, kept.receivers.clone()).0);
        for grant in store.grants() {
            if let Ok(read) = convert::grant(&grant.answer) {
                // A stored grant may have ended, which is not an error.
                let _ = wallet.add(&read, &grant.to(), now, since_boot());
            }
        }
        let nonce = getrandom::u32().map_err(|error| Error::Folder(format!("cannot get random numbers: {error}")))?;
        let round_trips = BTreeMap::new();
        let authorities = kept.authorities.clone();
        let state =
            Mutex::new(State { wallet, clock, nonce, has_ended: false, authorities, listed: None, round_trips });
        Ok(Some(Self {
            organisation,
            subject,
            territory: territory.clone(),
            store,
            kept,
            fetcher: Fetcher::default(),
            consents: AtomicBool::new(false),
            state,
            asking: Mutex::default(),
        }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn view(&self, place: &Destination) -> Option<GrantView> {
        let state = self.state();
        state.wallet.view(place, state.clock.unix(since_boot()))
    }

    /// Reports whether a destination is protected. If the list of an earlier command does not include the destination,
    /// fetches the list again, because the destination may have been added since.
    fn needs_token(&self, to: &Destination) -> Result<bool, Error> {
        {
            let state = self.state();
            if state.wallet.receiver(to).is_some() {
                return if state.has_ended { Err(Error::NotLoggedIn) } else { Ok(true) };
            }
            let is_fresh = state.listed.is_some_and(|at| since_boot() < at + Duration::from_secs(OLD));
            if is_fresh || state.has_ended {
                return Ok(false);
            }
        }
        match self.list() {
            Ok(()) => Ok(self.state().wallet.receiver(to).is_some()),
            Err(client::Error::NotLoggedIn) => Err(Error::NotLoggedIn),
            // Without the authority, a destination that is not known to be protected gets no token.
            Err(error) => {
                tracing::debug!("cannot fetch the receivers: {error}");
                self.state().listed = Some(since_boot());
                Ok(false)
            }
        }
    }

    /// Fetches the list of receivers from the authority.
    fn list(&self) -> Result<(), client::Error> {
        let answer = self.fetcher.call(&self.kept, |authority| async move {
            let answer = authority.destinations().await?;
            Ok((answer, authority.members().all))
        });
        let Timed { value, requested, answered } = answer.inspect_err(|error| self.note_end(error))?;
        let (value, authorities) = value;
        let receivers = convert::receivers(&value.destinations);
        engine::agent::check_receivers(&receivers).map_err(|error| client::Error::Other(error.to_string()))?;
        let (receivers, _) = self.territory.claims(self.subject, receivers);
        let (changed, skew) = {
            let mut state = self.state();
            let changed = state.wallet.receivers() != receivers || state.authorities != authorities;
            let told = state.clock.sync(value.now, requested, answered);
            state.wallet.set_receivers(receivers.clone());
            state.authorities.clone_from(&authorities);
            state.listed = Some(answered);
            (changed || told, state.clock.skew(&Clock::at(unix(), since_boot())))
        };
        if changed {
            let kept = self.store.update(&self.kept.token, |kept| {
                kept.receivers = receivers;
                kept.authorities = authorities;
                kept.skew = skew;
            });
            // If the folder can't be written, the next command only has to ask the authority again.
            if let Err(error) = kept {
                tracing::debug!("{error}");
            }
        }
        Ok(())
    }

    fn note_end(&self, error: &client::Error) {
        if matches!(error, client::Error::NotLoggedIn) {
            self.state().has_ended = true;
        }
    }

    fn hear(&self, news: &News) {
        match news {
            News::Event(Event::Hello | Event::Policy) => {
                if let Err(error) = self.list() {
                    tracing::warn!("cannot fetch the receivers: {error}");
                }
            }
            News::Event(Event::Revoked(handles)) => {
                let mut state = self.state();
                handles.iter().for_each(|handle| state.wallet.revoke(*handle));
            }
            News::Event(Event::LoggedOut) | News::Ended => {
                let mut state = self.state();
                state.has_ended = true;
                state.wallet.clear();
            }
        }
    }

    fn plan(&self, to: SocketAddr, deadline: Instant) -> Plan {
        Plan { to, deadline, round_trip: self.state().round_trips.get(&to.ip()).copied() }
    }

    fn note_round_trip(&self, address: IpAddr, time: Option<Duration>) {
        let mut state = self.state();
        if state.round_trips.len() >= TIMES_MAX {
            state.round_trips.clear();
        }
        if let Some(time) = time {
            state.round_trips.insert(address, time);
        }
    }

    /// Makes the block of a SYN to a protected destination.
    fn block(&self, to: SocketAddr, number: u32) -> Result<Block, Error> {
        let token = self.token(to, TCP, number == SUSPECT)?;
        Ok(tail::stream_block(&token))
    }

    fn token(&self, to: SocketAddr, protocol: u8, suspect: bool) -> Result<[u8; wire::token::TOKEN_LEN], Error> {
        let place = destination(to, protocol);
        if suspect {
            let mut state = self.state();
            let now = state.clock.unix(since_boot());
            state.wallet.forget(&place, now);
            drop(state);
            if let Err(error) = self.store.drop_grants(&place) {
                tracing::debug!("{error}");
            }
        }
        // A grant for a single flow is used up by one token, which another thread may have made first.
        for _ in 0..16 {
            {
                let mut state = self.state();
                let now = state.clock.unix(since_boot());
                state.nonce = state.nonce.wrapping_add(1);
                let nonce = state.nonce;
                if !state.has_ended
                    && let Some(token) = state.wallet.token(&place, now, nonce)
                {
                    return Ok(token.encode());
                }
            }
            self.ensure(to, protocol)?;
        }
        Err(no_grant(to, "other connections used up each grant"))
    }

    /// Fetches the grant for a destination, unless there is one.
    fn ensure(&self, to: SocketAddr, protocol: u8) -> Result<(), Error> {
        let place = destination(to, protocol);
        let turn = self.asking.lock().unwrap_or_else(PoisonError::into_inner).entry(place).or_default().clone();
        let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
        let standing = {
            let state = self.state();
            if state.has_ended {
                return Err(Error::NotLoggedIn);
            }
            state.wallet.standing(&place, state.clock.unix(since_boot()))
        };
        let fetched = match standing {
            Standing::Granted => Ok(()),
            Standing::NotProtected => Err(no_grant(to, "the destination no longer belongs to a receiver")),
            Standing::Denied(why) => Err(Error::Denied { to, why }),
            Standing::Missing => self.fetch(to, &place),
        };
        self.asking.lock().unwrap_or_else(PoisonError::into_inner).remove(&place);
        fetched
    }

    fn fetch(&self, to: SocketAddr, place: &Destination) -> Result<(), Error> {
        let consented = self.consents.load(Ordering::Relaxed);
        let request = convert::grant_request(&GrantRequest { to: *place, consented });
        let answer = self.fetcher.call(&self.kept, move |authority| async move { authority.grant(&request).await });
        let Timed { value, requested, answered } = match answer {
            Ok(answer) => answer,
            Err(client::Error::Denied(problem)) => {
                let mut state = self.state();
                let now = state.clock.unix(since_boot());
                state.wallet.deny(*place, now, problem.title.clone());
                return Err(Error::Denied { to, why: problem.title });
            }
            Err(error @ client::Error::NotLoggedIn) => {
                self.note_end(&error);
                return Err(Error::NotLoggedIn);
            }
            Err(error) => return Err(no_grant(to, &error.to_string())),
        };
        let read = convert::grant(&value).map_err(|error| no_grant(to, &error.to_string()))?;
        let now = {
            let mut state = self.state();
            state.clock.sync(value.now, requested, answered);
            let now = state.clock.unix(answered);
            state.wallet.add(&read, place, now, answered).map_err(|error| no_grant(to, &error.to_string()))?;
            now
        };
        let is_single = matches!(&read.secret, engine::model::Secret::Grant(header, _)
            if header.flags.has(wire::Flags::SINGLE));
        if !is_single && let Err(error) = self.store.put_grant(KeptGrant::new(place, value), now) {
            tracing::debug!("{error}");
        }
        Ok(())
    }
}

fn no_grant(to: SocketAddr, why: &str) -> Error {
    Error::NoGrant { to, why: why.to_owned() }
}

fn destination(to: SocketAddr, protocol: u8) -> Destination {
    Destination { address: to.ip().to_canonical(), protocol, port: to.port() }
}

fn resolve(host: &str, port: u16) -> Result<Vec<SocketAddr>, Error> {
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let failed = |why: String| Error::NoAddress { host: host.to_owned(), why };
    let found = (bare, port).to_socket_addrs().map_err(|error| failed(error.to_string()))?;
    let found: Vec<_> = found.collect();
    if found.is_empty() { Err(failed("the host has no address".to_owned())) } else { Ok(found) }
}

/// Reports whether an agent listens at this socket and this user is logged in there.
fn is_logged_in_at(socket: &std::path::Path) -> Result<bool, Error> {
    if !socket.exists() {
        return Ok(false);
    }
    let failed = |error: anyhow::Error| {
        Error::Folder(format!("{error:#}; `--own` uses your own session instead of the agent's"))
    };
    let ask = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(agent::status(socket))
    };
    // The call runs in a thread of its own, because the caller may be inside another runtime.
    let status = std::thread::scope(|scope| scope.spawn(ask).join()).unwrap_or(Ok(None));
    Ok(status.map_err(failed)?.is_some_and(|status| status.sessions().next().is_some()))
}
