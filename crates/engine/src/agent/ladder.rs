//! The ladder of carriers: the ways (*rungs*) in which the first packet of a connection can travel. On some network
//! paths, only some of these ways work.
//!
//! The agent watches the first packets of connections. If a first packet gets no answer, the agent sends it again by
//! the next rung, with a new token, and uses the first answer that arrives. The agent remembers the result for each
//! path, so that the next connection need not wait. The ladder never changes what a verifier checks: each rung carries
//! a token of the same grant.
//!
//! Each subject has separate results, so nobody can fill or spoil the results of another subject.

mod kept;
mod memory;
#[cfg(test)]
mod tests;

pub use kept::{KeptPath, KeptRung};

use super::Subject;
use memory::Memory;
use std::net::SocketAddr;
use std::time::Duration;

/// Shortest wait for an answer before the next rung is tried.
pub const WAIT_MIN: Duration = Duration::from_millis(250);
/// Longest wait for an answer before the next rung is tried.
const WAIT_MAX: Duration = Duration::from_secs(3);
/// Time after which a connection is no longer watched.
const GIVE_UP: Duration = Duration::from_secs(10);
/// Interval at which the agent looks for an answer to a first packet that it sent by several rungs.
const LOOK: Duration = Duration::from_millis(20);
/// One in this many connections begins with the best rung even if the best rung is bad, to find out whether this rung
/// works again.
pub const TRY_AGAIN: u32 = 50;
/// Maximum number of connections of a subject that are watched at a time. Further connections begin with the rung that
/// [`Ladder::first_rung`] returns, and the agent tries no other rung for them.
const WATCHED_MAX: usize = 64;

/// A way in which the first packet of a connection travels. The agent tries the rungs in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rung {
    /// In the packet itself, by the carrier of the grant.
    Packet = 0,
    /// In the packet itself, with a TCP Fast Open option: by the carrier `fast_open`.
    FastOpen = 1,
    /// As a UDP datagram, by the carrier `tcp_in_udp`. All other segments of the connection also travel as datagrams.
    TcpInUdp = 2,
    /// In the sealed tunnel to the verifier, which travels by UDP.
    Tunnel = 3,
}

impl Rung {
    /// All rungs, in order.
    pub const ALL: [Self; 4] = [Self::Packet, Self::FastOpen, Self::TcpInUdp, Self::Tunnel];

    /// Returns the rung's name in output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Packet => "packet",
            Self::FastOpen => "fast_open",
            Self::TcpInUdp => "tcp_in_udp",
            Self::Tunnel => "tunnel",
        }
    }

    /// Returns the side on which the answer to a first packet arrives.
    pub const fn side(self) -> Side {
        match self {
            Self::Packet | Self::FastOpen => Side::Outside,
            Self::TcpInUdp => Side::Datagrams,
            Self::Tunnel => Side::Inside,
        }
    }
}

/// The form in which an answer arrives. Rungs with the same side send the packet in the same form, so an answer does
/// not show to which of these rungs it belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Side {
    /// Outside of the tunnel, in the usual form.
    Outside,
    /// Outside of the tunnel, as a UDP datagram.
    Datagrams,
    /// The answer arrives in the tunnel.
    Inside,
}

impl Side {
    const ALL: [Self; 3] = [Self::Outside, Self::Datagrams, Self::Inside];
}

/// Identifies a network in which this machine is or was. The number can be, for example, a hash of the gateway's
/// hardware address and of the prefix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Network(pub u64);

/// The connections of a subject to a verifier, from one network and in one address family. The agent keeps separate
/// results for each path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Path {
    /// The subject whose connections these are.
    pub subject: Subject,
    /// The network in which this machine is.
    pub network: Network,
    /// The verifier, identified by the address of its tunnel. If it has no tunnel, the server's address with port 0.
    pub verifier: SocketAddr,
    /// Whether the connections use IPv6.
    pub ipv6: bool,
}

impl Path {
    /// Returns the rungs of the path, in order. `tcp_in_udp` says whether [`Rung::TcpInUdp`] may be among them.
    fn rungs(&self, tcp_in_udp: bool) -> impl Iterator<Item = Rung> + use<> {
        let has_tunnel = self.verifier.port() != 0;
        let is_there = move |rung: &Rung| match rung {
            Rung::Packet | Rung::FastOpen => true,
            Rung::TcpInUdp => tcp_in_udp,
            Rung::Tunnel => has_tunnel,
        };
        Rung::ALL.into_iter().filter(is_there)
    }
}

/// The rung with which the next connection begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirstRung {
    /// The rung with which the connection begins.
    pub rung: Rung,
    /// If it is not 0, one in this many connections begins with the best rung instead, to find out whether the best
    /// rung works again.
    pub every: u32,
}

/// The state of a rung on a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The latest first packet by this rung was answered.
    Works,
    /// The latest first packets by this rung were not answered, although another rung's packet was. The duration is the
    /// time for which connections still begin with another rung. It is zero if the next connection begins with this
    /// rung.
    Blocked(Duration),
    /// There are no results for this rung.
    NotTried,
}

/// A first packet that was sent.
#[derive(Clone, Copy, Debug)]
struct Try {
    rung: Rung,
    at: Duration,
}

/// A connection that is watched.
struct Watch<C> {
    path: Path,
    connection: C,
    tries: Vec<Try>,
    /// Time at which the packet has to be sent by the next rung.
    next: Duration,
    wait: Duration,
    is_answered: bool,
}

/// The ladder. `C` is what the caller needs to send a connection's first packet again.
pub struct Ladder<C> {
    network: Network,
    memory: Memory,
    watches: Vec<Watch<C>>,
    /// Time of the latest [`Ladder::tick`].
    looked: Duration,
    /// Whether [`Rung::TcpInUdp`] may be tried.
    tcp_in_udp: bool,
}

impl<C> Default for Ladder<C> {
    fn default() -> Self {
        Self {
            network: Network::default(),
            memory: Memory::default(),
            watches: Vec::new(),
            looked: Duration::ZERO,
            tcp_in_udp: false,
        }
    }
}

impl<C: Clone> Ladder<C> {
    /// Sets whether TCP connections may travel as datagrams. The default is that they may not.
    pub fn allow_tcp_in_udp(&mut self, allow: bool) {
        self.tcp_in_udp = allow;
    }

    /// Returns the network in which this machine is.
    pub fn network(&self) -> Network {
        self.network
    }

    /// Sets the network in which this machine is. If the network has changed, no rung counts as bad any more, and
    /// connections that began in the earlier network are no longer watched. Returns whether the network has changed.
    pub fn moved(&mut self, network: Network) -> bool {
        if std::mem::replace(&mut self.network, network) == network {
            return false;
        }
        self.memory.forgive();
        self.watches.clear();
        true
    }

    /// Returns the rung with which the next connection on the path begins.
    pub fn first_rung(&self, now: Duration, path: &Path) -> FirstRung {
        let is_good = |rung: &Rung| !self.memory.is_bad(now, path, *rung);
        // Even a bad rung: it may have been the one that was answered.
        if let Some(rung) = self.memory.unclear(path).filter(|rung| path.rungs(self.tcp_in_udp).any(|one| one == *rung))
        {
            return FirstRung { rung, every: 0 };
        }
        match path.rungs(self.tcp_in_udp).find(is_good) {
            Some(Rung::Packet) | None => FirstRung { rung: Rung::Packet, every: 0 },
            Some(rung) => FirstRung { rung, every: TRY_AGAIN },
        }
    }

    /// Returns the state of each rung, including rungs that the path does not have.
    pub fn states(&self, now: Duration, path: &Path) -> [(Rung, State); Rung::ALL.len()] {
        Rung::ALL.map(|rung| (rung, self.memory.state(now, path, rung)))
    }

    /// Returns the rungs of a path, in order.
    pub fn rungs(&self, path: &Path) -> impl Iterator<Item = Rung> + use<C> {
        path.rungs(self.tcp_in_udp)
    }

    /// Begins to watch a connection whose first packet has just been sent by `rung`. Does nothing if too many
    /// connections of the subject are watched already.
    pub fn watch(&mut self, now: Duration, path: Path, rung: Rung, connection: C) {
        if self.watches.iter().filter(|watch| watch.path.subject == path.subject).count() >= WATCHED_MAX {
            return;
        }
        self.memory.began(&path, rung);
        let wait = wait(self.memory.round_trip(&path));
        let tries = vec![Try { rung, at: now }];
        self.watches.push(Watch { path, connection, tries, next: now + wait, wait, is_answered: false });
    }

    /// Forgets the results and connections of a subject who has logged out.
    pub fn forget(&mut self, subject: Subject) {
        self.memory.forget(subject);
        self.watches.retain(|watch| watch.path.subject != subject);
    }

    /// Stops watching connections whose answers the caller can't see any more. `is_lost` returns true for such a
    /// connection.
    pub fn lose(&mut self, is_lost: impl Fn(&C) -> bool) {
        self.watches.retain(|watch| !is_lost(&watch.connection));
    }

    /// Returns the rungs other than `rung` by which the first packet of a connection was sent. The caller calls this
    /// method when the operating system sends the packet again by `rung`, and then sends the packet again by these
    /// rungs, too. Returns `None` if the connection is not watched.
    pub fn repeated(&self, rung: Rung, is_it: impl Fn(&C) -> bool) -> Option<Vec<Rung>> {
        let watch = self.watches.iter().find(|watch| is_it(&watch.connection))?;
        let tried = |other: &Rung| watch.tries.iter().any(|one| one.rung == *other);
        Some(Rung::ALL.into_iter().filter(|other| *other != rung && tried(other)).collect())
    }

    /// Returns the time at which the caller has to call [`Self::tick`]; `None` if no connection is watched.
    pub fn timeout(&self) -> Option<Duration> {
        // Until a second packet is due, nobody needs to know whether the first one was answered.
        let due = |watch: &Watch<C>| match watch.tries.len() {
            1 => watch.next,
            _ if watch.is_answered => self.looked + LOOK,
            _ => (self.looked + LOOK).min(watch.next),
        };
        self.watches.iter().map(due).min()
    }

    /// Does the work that is due. Returns the first packets to send now, each with its rung. `answered_at` returns the
    /// time at which the first answer arrived in the form [`Side`], if one has arrived.
    pub fn tick(&mut self, now: Duration, answered_at: impl Fn(&C, Side) -> Option<Duration>) -> Vec<(Rung, C)> {
        self.looked = now;
        let (mut due, memory, tcp_in_udp) = (Vec::new(), &mut self.memory, self.tcp_in_udp);
        self.watches.retain_mut(|watch| {
            let answers: Vec<_> =
                Side::ALL.into_iter().filter_map(|side| Some((side, answered_at(&watch.connection, side)?))).collect();
            let first = answers.iter().min_by_key(|(_, at)| *at).copied();
            if let Some((side, at)) = first {
                if !std::mem::replace(&mut watch.is_answered, true) {
                    watch.credit(now, side, at, memory);
                }
                return !settle(now, watch, &answers, memory);
            }
            let [begun, ..] = watch.tries[..] else { return false };
            if now.saturating_sub(begun.at) >= GIVE_UP {
                // No rung was answered: the host may be down. That says nothing about any rung.
                return false;
            }
            if now >= watch.next {
                watch.next = now + watch.wait;
                due.extend(
                    watch.climb(now, memory, tcp_in_udp).into_iter().map(|rung| (rung, watch.connection.clone())),
                );
            }
            true
        });
        due
    }
}

impl<C> Watch<C> {
    /// Returns the rungs by which to send the first packet now: the next rung that is not bad, and the rung before it
    /// once more, because one packet may just have been lost.
    fn climb(&mut self, now: Duration, memory: &Memory, tcp_in_udp: bool) -> Vec<Rung> {
        let again = self.tries.last().map(|one| one.rung);
        let untried = |rung: &Rung| self.tries.iter().all(|one| one.rung != *rung);
        // If all others are bad, none is left out: the bad one may work again.
        let is_good = |rung: &Rung| !memory.is_bad(now, &self.path, *rung);
        let rest: Vec<_> = self.path.rungs(tcp_in_udp).filter(untried).collect();
        let next = rest.iter().copied().find(is_good).or(rest.first().copied());
        let rungs: Vec<_> = again.into_iter().filter(|_| next.is_some()).chain(next).collect();
        self.tries.extend(rungs.iter().map(|rung| Try { rung: *rung, at: now }));
        rungs
    }

    /// Records for which rung the first answer came, if the answer shows this.
    fn credit(&self, now: Duration, side: Side, at: Duration, memory: &mut Memory) {
        // The answer to the first packet may have come before the ladder began to watch the connection.
        let is_before = |(index, one): &(usize, &Try)| *index == 0 || one.at <= at;
        let tries = self.tries.iter().enumerate().filter(is_before).map(|(_, one)| one);
        let before: Vec<_> = tries.filter(|one| one.rung.side() == side).collect();
        match before[..] {
            [] => {}
            [only] => {
                memory.worked(now, &self.path, only.rung, at);
                memory.note_round_trip(now, &self.path, at.saturating_sub(only.at));
            }
            // The answer does not show to which of several packets it belongs (Karn's algorithm).
            [first, .., last] if first.rung == last.rung => memory.worked(now, &self.path, first.rung, at),
            [first, .., last] => {
                memory.doubted(now, &self.path, (first.rung, first.at), last.rung);
                // Too long rather than too short: on a slow path, no rung would ever be given its time.
                if memory.round_trip(&self.path).is_none() {
                    memory.note_round_trip(now, &self.path, at.saturating_sub(first.at));
                }
            }
        }
    }
}

/// Counts the rungs of an answered connection that got no answer as failed. Does so only when the waiting time for the
/// latest of their packets is over. Returns whether it is over.
fn settle<C>(now: Duration, watch: &Watch<C>, answers: &[(Side, Duration)], memory: &mut Memory) -> bool {
    let is_answered = |one: &&Try| answers.iter().any(|(side, _)| *side == one.rung.side());
    let mut silent = watch.tries.iter().filter(|one| !is_answered(one));
    if silent.clone().any(|one| now < one.at + watch.wait) {
        return false;
    }
    silent.all(|one| {
        memory.failed(now, &watch.path, one.rung, one.at);
        true
    })
}

/// Returns how long to wait for an answer.
fn wait(round_trip: Option<Duration>) -> Duration {
    round_trip.map_or(WAIT_MIN, |time| (time * 2).clamp(WAIT_MIN, WAIT_MAX))
}
