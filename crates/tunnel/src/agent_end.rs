//! The agent's ends of its tunnels, one tunnel for each subject and verifier. Decides which packets go into which
//! tunnel, and which packets are allowed to come out.

use crate::cut::Cut;
use crate::end::{End, How, Message, Sealed, Times, Way, note, seal_each};
use crate::legs::{Key, Leg, Legs, Opener};
use crate::packet::{Layout, Virtio};
use crate::random::Random;
use crate::waiting_frames::WaitingFrames;
use engine::agent::Clock;
use engine::model::Compress;
use engine::tunnel::{Chance, Dropped, Initiator, Millis, Opens, Received, Terms};
use seal::{Batch, Mode};
use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use wire::seal::{Close, Compression, Part, Refusal, Suites, Treatment};
use wire::{Destination, Token, tail};

/// Maximum interval, in milliseconds, between tokens in the tunnel's UDP flow (wire.md §4.1).
const TOKEN_EVERY: Millis = 15_000;
/// Interval, in milliseconds, between tokens while the verifier does not answer. The first token may have been lost, or
/// a NAT may have given the flow another port.
const TOKEN_AGAIN: Millis = 250;
/// Time after a move, in milliseconds, for which the agent sends messages that tell the verifier its new address.
const GREETS: Millis = 10_000;
/// Milliseconds since the verifier's last record after which the verifier counts as not answering, if the agent has
/// sent a record since then.
const SILENCE: Millis = 1_000;
/// The state of a tunnel in the form that is shown to users.
#[derive(Clone, Debug)]
pub struct Shown {
    /// Subject, organisation and service, which identify the tunnel.
    pub key: Key,
    /// Whether the tunnel is open.
    pub is_open: bool,
    /// Number of the phase in which packets are sealed.
    pub phase: u32,
    /// Why the verifier refused the tunnel, if it refused the tunnel recently.
    pub refused: Option<Refusal>,
}

struct Tunnel {
    initiator: Initiator,
    terms: Terms,
    /// The clock of the authority whose grant opens the tunnel; `None` if this machine's clock is used.
    clock: Option<Clock>,
    token: Option<Millis>,
    sent: Millis,
    received: Millis,
    /// Time at which this machine changed its address; `None` after the verifier has answered.
    moved: Option<Millis>,
    greeted: Millis,
}

/// Maximum number of exported secrets that are remembered. Beyond it, secrets are exported twice, which does no harm.
const EXPORTED_MAX: usize = 16_384;

/// A function that takes a line with a secret (wire.md §9.14).
pub type SecretsWriter = Box<dyn FnMut(&str) + Send>;

/// The export of secrets for debugging.
struct Export {
    write: SecretsWriter,
    written: HashSet<(Opens, u32)>,
}

impl Export {
    /// Writes the secrets of a tunnel that are not written yet.
    fn update(&mut self, initiator: &Initiator) {
        initiator.danger_secrets(|opens, index, secret| {
            if self.written.len() >= EXPORTED_MAX {
                self.written.clear();
            }
            if self.written.insert((opens, index.get())) {
                let mut line = format!("{} {:08x} ", opens.name(), index.get());
                line.extend(secret.danger_bytes().iter().map(|byte| format!("{byte:02x}")));
                (self.write)(&line);
            }
        });
    }
}

/// The agent's ends of all its tunnels.
#[derive(Default)]
pub struct AgentEnd {
    tunnels: HashMap<Key, Tunnel>,
    /// The tunnel to which the latest datagram belongs.
    latest: Option<Key>,
    legs: Legs,
    /// By subject and organisation: the clock of the organisation's authority.
    clocks: HashMap<(u32, u16), Clock>,
    waiting_frames: WaitingFrames,
    /// Messages to the other ends of tunnels that were closed.
    closing: Vec<Message>,
    drops: Drops,
    /// The export of the tunnels' secrets, for debugging only; `None` if nothing is exported.
    export: Option<Export>,
}

/// Numbers of dropped packets, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drops {
    /// Numbers of dropped records, one for each reason, in the order of [`Dropped::ALL`].
    pub records: [u64; Dropped::ALL.len()],
    /// Number of packets and super-packets that were dropped because no leg was found for them, or because there was no
    /// room to wait for their tunnel, or the tunnel did not open within 10 s.
    pub no_leg: u64,
    /// Number of packets of flows whose opener is not known, or whose opener already has the maximum number of flows.
    pub no_opener: u64,
    /// Number of packets that came out of a tunnel and were refused, because the tunnel is not for their sender, or
    /// because their records were sealed more weakly than the rule demands.
    pub refused: u64,
}

impl AgentEnd {
    /// Sets the terms of a tunnel. Creates the tunnel if it does not exist.
    pub fn set_tunnel(&mut self, key: Key, terms: Terms, times: Times) {
        match self.tunnels.get_mut(&key) {
            Some(tunnel) => {
                tunnel.initiator.renew(terms.clone(), times.0);
                tunnel.terms = terms;
            }
            None => {
                let (initiator, clock) = (Initiator::new(terms.clone()), self.clocks.get(&owner(&key)).copied());
                self.tunnels.insert(
                    key,
                    Tunnel { initiator, terms, clock, token: None, sent: 0, received: 0, moved: None, greeted: 0 },
                );
            }
        }
    }

    /// Sets the clock of the authority for the tunnels of a subject in one organisation. The tunnels use this clock to
    /// decide whether a grant has ended, and for the times in tokens and initiations, so a wrong clock on this machine
    /// does no harm. `of` contains the numbers of the subject and the organisation.
    pub fn set_clock(&mut self, of: (u32, u16), clock: Clock) {
        if self.clocks.insert(of, clock) != Some(clock) {
            let own = self.tunnels.iter_mut().filter(|(key, _)| owner(key) == of);
            own.for_each(|(_, tunnel)| tunnel.clock = Some(clock));
        }
    }

    /// Closes all tunnels except those for which `is_wanted` returns true and those that a [`Leg`] uses. The next
    /// [`End::poll`] tells the verifiers that the tunnels have ended.
    pub fn retain_tunnels(&mut self, is_wanted: impl Fn(&Key) -> bool, times: Times) {
        let used = self.legs.tunnels();
        let gone = self.tunnels.extract_if(|key, _| !is_wanted(key) && !used.contains(key));
        self.closing.extend(gone.filter_map(|tunnel| goodbye(tunnel, times.0)));
    }

    /// Makes a tunnel re-key each time it has sealed about `bytes` bytes. This applies from the tunnel's next handshake
    /// on.
    pub fn rekey_after_bytes(&mut self, key: Key, bytes: u64) {
        if let Some(tunnel) = self.tunnels.get_mut(&key) {
            tunnel.initiator.rekey_after_bytes(bytes);
        }
    }

    /// From now on, sends the packets to destination `to` into the tunnel of `leg`, if they are of this tunnel's
    /// subject.
    pub fn set_leg(&mut self, to: Destination, leg: Leg) {
        self.legs.set(to, leg);
    }

    /// Creates ends. They call `opener` to learn which subject has opened a flow.
    pub fn asking(opener: Opener) -> Self {
        Self { legs: Legs::asking(opener), ..Self::default() }
    }

    /// Passes the secrets of all tunnels to `write`, one line for each secret (wire.md §9.14). Everybody who has these
    /// lines can read all packets of the tunnels. Must be called only for debugging, and only if the administrator has
    /// configured it.
    pub fn danger_export(&mut self, write: SecretsWriter) {
        self.export = Some(Export { write, written: HashSet::new() });
    }

    /// Reports whether the tunnels' secrets are exported.
    pub fn is_exporting(&self) -> bool {
        self.export.is_some()
    }

    /// Removes all legs except those for which `is_wanted` returns true and those that a flow uses. `is_wanted` gets
    /// the subject and the destination of a leg.
    pub fn retain_legs(&mut self, is_wanted: impl Fn(u32, &Destination) -> bool) {
        self.legs.retain(is_wanted);
    }

    /// Removes the legs, flows and tunnels of a subject in one organisation. The next [`End::poll`] tells the verifiers
    /// that the tunnels have ended. `of` contains the numbers of the subject and the organisation.
    pub fn forget(&mut self, of: (u32, u16), times: Times) {
        self.legs.forget(of.0, of.1);
        self.clocks.remove(&of);
        self.waiting_frames.forget(|key| owner(key) == of);
        let gone = self.tunnels.extract_if(|key, _| owner(key) == of);
        self.closing.extend(gone.filter_map(|tunnel| goodbye(tunnel, times.0)));
    }

    /// Makes every tunnel send a token and a record, so that the verifiers learn this machine's new addresses. A tunnel
    /// repeats both until its verifier answers, but for at most 10 s. The caller calls this when the addresses have
    /// changed. Otherwise, a verifier learns the new addresses only from the next packet into its tunnel.
    pub fn moved(&mut self, times: Times) {
        for tunnel in self.tunnels.values_mut() {
            (tunnel.token, tunnel.moved, tunnel.greeted) = (None, Some(times.0), 0);
        }
    }

    /// Returns the addresses of this machine that are the source addresses of flows in use.
    pub fn sources(&self, times: Times) -> HashSet<IpAddr> {
        self.legs.sources(times.0)
    }

    /// Removes and returns a subject and a destination whose packets were dropped because no leg was set for them.
    pub fn unknown(&mut self) -> Option<(u32, Destination)> {
        self.legs.unknown()
    }

    /// Returns the state of every tunnel in the form that is shown to users.
    pub fn show(&self, times: Times) -> Vec<Shown> {
        let shown = self.tunnels.iter().map(|(key, tunnel)| Shown {
            key: *key,
            is_open: tunnel.initiator.is_open(times.0),
            phase: tunnel.initiator.phase(),
            refused: tunnel.initiator.refused(),
        });
        shown.collect()
    }

    /// Returns the numbers of dropped packets.
    pub fn drops(&self) -> Drops {
        Drops { no_opener: self.legs.no_opener, ..self.drops }
    }
}

impl Tunnel {
    /// Returns the times with Unix time by the authority's clock.
    fn times(&self, (now, wall): Times) -> Times {
        let wall = self.clock.map_or(wall, |clock| clock.unix(Duration::from_millis(now)) as u32);
        (now, wall)
    }

    /// After a move, sends a token and a record again and again until the verifier answers or [`GREETS`] is over.
    fn greet(&mut self, now: Millis) {
        let Some(moved) = self.moved else { return };
        if self.received > moved || now.saturating_sub(moved) >= GREETS {
            self.moved = None;
        } else if now.saturating_sub(self.greeted) >= TOKEN_AGAIN {
            self.greeted = now;
            self.token = None;
            self.initiator.greet(now);
        }
    }

    /// Prepares a batch for a record: a token goes before it, if one is due.
    fn prepare(&mut self, times: Times, out: &mut Batch) {
        self.sent = times.0;
        if let Some(token) = self.token(times) {
            out.push(&[&token]);
        }
    }

    /// Returns a token for the tunnel's UDP flow if one is due.
    fn token(&mut self, (now, wall): Times) -> Option<Vec<u8>> {
        let is_silent = self.sent > self.received && now.saturating_sub(self.received) >= SILENCE;
        let pause = if is_silent { TOKEN_AGAIN } else { TOKEN_EVERY };
        if self.token.is_some_and(|last| now.saturating_sub(last) < pause) {
            return None;
        }
        self.token = Some(now);
        let [a, b, c, d, ..] = Random.bytes();
        let Terms { grant, key, to, .. } = &self.terms;
        let token = Token::new(*grant, key, wall, u32::from_be_bytes([a, b, c, d]), to);
        Some(tail::block(&token.encode()).to_vec())
    }
}

/// Returns the subject and the organisation of a tunnel.
const fn owner(key: &Key) -> (u32, u16) {
    (key.subject, key.organisation)
}

impl End for AgentEnd {
    type Tunnel = Key;

    const SENDS_TOKENS: bool = true;

    fn route(&mut self, packet: &mut [u8], layout: &Layout, virtio: Virtio, times: Times) -> Option<(Way<Key>, How)> {
        let Some((key, demand)) = self.legs.route(packet, layout, times.0) else {
            self.drops.no_leg += 1;
            return None;
        };
        let length = if virtio.segment > 0 { layout.payload + usize::from(virtio.segment) } else { packet.len() };
        let takes = |tunnel: &Tunnel| tunnel.initiator.takes(length, tunnel.times(times));
        if !self.tunnels.get(&key).is_some_and(takes) {
            let frame = [&virtio.encode(layout)[..], packet].concat();
            self.drops.no_leg += u64::from(!self.waiting_frames.push(key, frame, length, times.0));
            return None;
        }
        let how = How {
            // A flow that is in the tunnel by choice is at least authenticated.
            treatment: demand.treatment.of_records().unwrap_or(Treatment::Authenticate),
            suites: demand.suites,
            compress: mode(demand.compress),
        };
        Some((Way { tunnel: key, to: key.service, source: None }, how))
    }

    fn seal(&mut self, key: Key, how: (How, u8), cut: Cut<'_>, times: Times, out: &mut Batch) -> (usize, usize) {
        let Some(tunnel) = self.tunnels.get_mut(&key) else { return seal_each(how, cut, |_| false) };
        let times = tunnel.times(times);
        tunnel.prepare(times, out);
        let initiator = &mut tunnel.initiator;
        let sealed = seal_each(how, cut, |packet| initiator.seal(packet, times, &mut Random, out).is_ok());
        self.export.iter_mut().for_each(|export| export.update(&tunnel.initiator));
        sealed
    }

    fn seal_block<'p>(
        &mut self,
        key: Key,
        (how, compression, lane): (How, Compression, u8),
        parts: impl Iterator<Item = (Part, &'p [u8])>,
        times: Times,
        out: &mut Batch,
    ) -> bool {
        let Some(tunnel) = self.tunnels.get_mut(&key) else { return false };
        let times = tunnel.times(times);
        tunnel.prepare(times, out);
        let how = ((how.treatment, compression), (how.suites, lane));
        tunnel.initiator.seal_block(how.0, how.1, parts, times, out).is_ok()
    }

    fn receive<'d>(
        &mut self,
        from: SocketAddr,
        _: Option<IpAddr>,
        datagram: &'d mut [u8],
        times: Times,
        replies: &mut Vec<Message>,
    ) -> Option<(Key, Received<'d>)> {
        // Several subjects may have tunnels to one verifier, so the index in the datagram determines the tunnel. Most
        // datagrams are for the same tunnel as the one before.
        let is_its = |(key, tunnel): &(&Key, &Tunnel)| key.service == from && tunnel.initiator.knows(datagram);
        let latest = self.latest.and_then(|key| self.tunnels.get_key_value(&key)).filter(is_its);
        let found = latest.or_else(|| self.tunnels.iter().find(is_its)).map(|(key, _)| *key);
        let Some((key, tunnel)) = found.and_then(|key| Some((key, self.tunnels.get_mut(&key)?))) else {
            note(&mut self.drops.records, Dropped::NoTunnel);
            return None;
        };
        self.latest = Some(key);
        let times = tunnel.times(times);
        let received = tunnel.initiator.receive(datagram, times, &mut Random);
        if received.is_ok() {
            tunnel.received = times.0;
        }
        if !matches!(received, Ok(Received::Packet { .. })) {
            let waiting = tunnel.initiator.poll(times, &mut Random);
            replies.extend(waiting.into_iter().map(|datagram| Message { to: from, source: None, datagram }));
            self.export.iter_mut().for_each(|export| export.update(&tunnel.initiator));
        }
        match received {
            Ok(received) => Some((key, received)),
            Err(why) => {
                note(&mut self.drops.records, why);
                None
            }
        }
    }

    fn admit(&mut self, key: Key, packet: &mut [u8], layout: &Layout, _: bool, sealed: Sealed, times: Times) -> bool {
        let may = self.legs.may_bring(key, packet, layout, (sealed.treatment, sealed.suite), times.0);
        self.drops.refused += u64::from(!may);
        may
    }

    fn poll(&mut self, times: Times, replies: &mut Vec<Message>) {
        self.legs.sweep(times.0);
        self.drops.no_leg += self.waiting_frames.expire(times.0);
        replies.append(&mut self.closing);
        let wanted = self.legs.tunnels();
        for (key, tunnel) in &mut self.tunnels {
            let times = tunnel.times(times);
            tunnel.initiator.want(wanted.contains(key));
            tunnel.greet(times.0);
            let waiting = tunnel.initiator.poll(times, &mut Random);
            self.export.iter_mut().for_each(|export| export.update(&tunnel.initiator));
            if waiting.is_empty() && tunnel.sent + TOKEN_EVERY < times.0 {
                continue;
            }
            if !waiting.is_empty() {
                tunnel.sent = times.0;
            }
            if let Some(datagram) = tunnel.token(times) {
                replies.push(Message { to: key.service, source: None, datagram });
            }
            replies.extend(waiting.into_iter().map(|datagram| Message { to: key.service, source: None, datagram }));
        }
    }

    fn ready(&mut self, times: Times) -> Option<Vec<u8>> {
        let tunnels = &self.tunnels;
        let takes = |tunnel: &Tunnel, length| tunnel.initiator.takes(length, tunnel.times(times));
        self.waiting_frames.take(|key, length| tunnels.get(key).is_some_and(|tunnel| takes(tunnel, length)))
    }
}

/// Ends a tunnel. If it was open, returns the message that tells its verifier so.
fn goodbye((key, mut tunnel): (Key, Tunnel), now: Millis) -> Option<Message> {
    let datagram = tunnel.initiator.close(Close::Ended, now)?;
    Some(Message { to: key.service, source: None, datagram })
}

/// Returns the compressor's mode for the choice of a rule or a sender. If there is no choice, the mode is
/// [`Mode::Never`].
pub(crate) fn mode(choice: Option<Compress>) -> Mode {
    match choice.unwrap_or_default() {
        Compress::Never => Mode::Never,
        Compress::Auto => Mode::Auto,
        Compress::Always => Mode::Always,
    }
}

/// Returns the suites whose records this machine can open, and the suites that its hardware accelerates.
pub fn suites() -> (Suites, Suites) {
    (Suites::ALL, seal::suites::helped())
}
