//! The daemon's OpenFlow controller. Switches connect to it, send packets to it, and get these packets back.

pub mod tls;

use crate::packet_queue::QueuedPacket;
use crate::settings::Settings;
use anyhow::{Context, Result};
use engine::agent::insertion::Used;
use engine::agent::{Frame, Output, Subject};
use engine::discovery::{Overheard, message};
use engine::openflow::fate::{Fate, Origin};
use engine::openflow::logins::Realm;
use engine::openflow::plane::Plane;
use engine::openflow::switch::{Event, Switch};
use reach::protocol;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use wire::map::{GrantSlot, owner};

/// Maximum number of connected switches.
const SWITCHES_MAX: usize = 64;
/// Maximum number of messages queued for a switch. When the queue is full, the daemon drops the connection.
const QUEUE: usize = 4096;
/// Maximum number of name servers' answers that are parsed per second. A normal network does not send more.
const ANSWERS_PER_SECOND: u32 = 64;
const CHUNK: usize = 64 * 1024;

/// A message from the task of a switch's connection to the daemon's loop. The number in the message identifies the
/// connection.
pub enum News {
    /// A switch connected.
    Connected(TcpStream, SocketAddr),
    /// A switch sent bytes.
    Received(u64, Vec<u8>),
    /// A switch's connection has ended or could not be set up. Contains the reason.
    Ended(u64, Result<()>),
}

/// All connected switches.
pub struct Switches {
    plane: Plane,
    connections: BTreeMap<u64, Connection>,
    next: u64,
    news: mpsc::Sender<News>,
    listening: JoinHandle<()>,
    tls: Option<TlsAcceptor>,
    /// Difference between Unix time and the boot clock, in nanoseconds.
    clock: u64,
    generation: u16,
    queued: Vec<QueuedPacket>,
    overheard: Vec<Overheard>,
    /// Whether to look for records in the answers of name servers.
    overhears: bool,
    /// The current second, and the number of name servers' answers that were parsed in this second.
    overhearing: (u64, u32),
}

struct Connection {
    switch: Switch,
    from: SocketAddr,
    to: mpsc::Sender<Vec<u8>>,
    reading: JoinHandle<()>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.reading.abort();
    }
}

impl Drop for Switches {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

impl Switches {
    /// If the settings contain an address for switches, listens for switches at this address. Otherwise returns `None`.
    /// Connections send their messages to `news`.
    ///
    /// # Errors
    ///
    /// Fails if the address can't be bound, or a file for TLS can't be read.
    pub async fn listen(settings: &Settings, news: mpsc::Sender<News>) -> Result<Option<Self>> {
        let Some(address) = settings.switches else { return Ok(None) };
        let listener = TcpListener::bind(address).await;
        let listener = listener.with_context(|| format!("cannot listen for switches on {address}"))?;
        let tls = settings.switches_tls.as_ref().map(tls::Files::acceptor).transpose()?;
        tracing::info!(%address, tls = tls.is_some(), "listening for switches");
        let sender = news.clone();
        let listening = tokio::spawn(async move {
            loop {
                match listener.accept().await {
                    Ok((stream, from)) => {
                        if sender.send(News::Connected(stream, from)).await.is_err() {
                            return;
                        }
                    }
                    Err(error) => {
                        tracing::warn!("cannot accept a switch's connection on {address}: {error}");
                        tokio::time::sleep(Duration::from_millis(100)).await;
                    }
                }
            }
        });
        let nonce = getrandom::u32().context("cannot get random numbers")?;
        Ok(Some(Self {
            plane: Plane::new(settings.household.clone(), nonce, settings.pro_forma),
            connections: BTreeMap::new(),
            next: 0,
            news,
            listening,
            tls,
            clock: 0,
            generation: nonce as u16,
            queued: Vec::new(),
            overheard: Vec::new(),
            overhears: settings.overhears,
            overhearing: (0, 0),
        }))
    }

    /// Carries out the part of a state machine's output that concerns switches. Returns `true` if nothing else has to
    /// be done for this output.
    pub fn perform(&mut self, output: &Output, now: Duration) -> bool {
        match output {
            Output::SetOwner(owner, subject) if owner.kind == owner::USER => self.plane.log_in(*subject),
            Output::RemoveOwner(owner) if owner.kind == owner::USER => {
                if let Ok(uid) = u32::try_from(owner.id) {
                    self.plane.log_out(Subject::of_user(uid));
                }
            }
            Output::Write(slot, entry) => self.plane.write(*slot, entry),
            Output::Remove(slot) => self.plane.remove(slot),
            Output::Protect(entries) => {
                self.plane.protect(entries.clone());
                self.protect(now);
            }
            Output::SetClock(offset) => self.clock = *offset,
            Output::Send(subject, frame) if Plane::is_from_switch(frame) => {
                self.again(*subject, frame, now);
                return true;
            }
            _ => {}
        }
        false
    }

    /// Sets the authorities at which people behind switches log in with a browser. Each comes with its networks.
    pub fn set_realms(&mut self, realms: Vec<Realm>, now: Duration) {
        self.plane.set_realms(realms);
        self.protect(now);
    }

    /// Gives all switches the rules for the prefixes that are protected now.
    fn protect(&mut self, now: Duration) {
        let authorities = self.plane.authorities();
        for connection in self.connections.values_mut() {
            connection.switch.protect(self.plane.protected(), &authorities);
        }
        self.write(now);
    }

    /// Processes a message from a connection. Returns the packets in the message that have to wait for a grant.
    pub fn receive(&mut self, news: News, now: Duration) -> Vec<QueuedPacket> {
        match news {
            News::Connected(stream, from) => self.connected(stream, from, now),
            News::Received(id, bytes) => {
                let Some(connection) = self.connections.get_mut(&id) else { return Vec::new() };
                if let Err(lost) = connection.switch.received(now, &bytes) {
                    tracing::warn!(from = %connection.from, "disconnecting the switch: {lost}");
                    self.connections.remove(&id);
                }
                self.events(id, now);
            }
            News::Ended(id, why) => {
                if let Some(connection) = self.connections.remove(&id) {
                    match why {
                        Ok(()) => tracing::info!(from = %connection.from, "switch disconnected"),
                        Err(why) => tracing::warn!(from = %connection.from, "connection to the switch failed: {why:#}"),
                    }
                }
            }
        }
        std::mem::take(&mut self.queued)
    }

    /// Removes and returns the records that were overheard since the last call.
    pub fn overheard(&mut self) -> Vec<Overheard> {
        std::mem::take(&mut self.overheard)
    }

    /// Ends connections that have timed out.
    pub fn tick(&mut self, now: Duration) {
        for (_, connection) in self.connections.extract_if(.., |_, connection| connection.switch.tick(now).is_err()) {
            tracing::warn!(from = %connection.from, "disconnecting the switch: it does not answer");
        }
        self.write(now);
    }

    /// Returns the time when the controller last made a token from an entry, and the number of nonces used by then.
    pub fn used(&self, slot: &GrantSlot) -> Used {
        self.plane.used(slot)
    }

    /// Returns the controller's counters by name.
    pub fn counters(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let logins = self.plane.logins().counts();
        let of_logins = [("support", logins.support), ("keys_in_band", logins.keys), ("keys_refused", logins.refused)];
        self.plane.counts().named().into_iter().chain(of_logins)
    }

    /// Returns the switches as the agent displays them.
    pub fn shown(&self) -> Vec<protocol::Interface> {
        let shown = self.connections.values().map(|connection| protocol::Interface {
            name: match connection.switch.datapath() {
                Some(datapath) => format!("switch {datapath:016x}"),
                None => format!("switch at {}", connection.from),
            },
            attachment: "OpenFlow".to_owned(),
            trouble: (!connection.switch.is_ready()).then(|| "the switch's rules are not installed yet".to_owned()),
        });
        shown.collect()
    }

    fn connected(&mut self, stream: TcpStream, from: SocketAddr, now: Duration) {
        if self.connections.len() >= SWITCHES_MAX {
            return tracing::warn!(%from, "refusing the switch: {SWITCHES_MAX} are connected already");
        }
        tracing::info!(%from, "switch connected");
        self.next += 1;
        let (id, news, tls) = (self.next, self.news.clone(), self.tls.clone());
        let (to, waiting) = mpsc::channel::<Vec<u8>>(QUEUE);
        // Nagle's algorithm would delay packets.
        let _ = stream.set_nodelay(true);
        let reading = tokio::spawn(async move {
            let ended = match tls {
                None => {
                    converse(stream, id, &news, waiting).await;
                    Ok(())
                }
                Some(acceptor) => match tls::accept(&acceptor, stream).await {
                    Ok(stream) => {
                        converse(stream, id, &news, waiting).await;
                        Ok(())
                    }
                    Err(why) => Err(why),
                },
            };
            let _ = news.send(News::Ended(id, ended)).await;
        });
        self.generation = self.generation.wrapping_add(1);
        let switch = Switch::new(now, self.plane.protected().to_vec(), self.generation);
        let switch = switch.with_authorities(self.plane.authorities());
        let switch = if self.overhears { switch } else { switch.without_overhearing() };
        self.connections.insert(id, Connection { switch, from, to, reading });
        self.events(id, now);
    }

    /// Carries out the pending events of a switch's connection.
    fn events(&mut self, id: u64, now: Duration) {
        while let Some(connection) = self.connections.get_mut(&id) {
            let Some(event) = connection.switch.poll() else { return };
            match event {
                Event::Write(bytes) => {
                    if connection.to.try_send(bytes).is_err() {
                        tracing::warn!(
                            from = %connection.from,
                            "disconnecting the switch: it no longer reads the agent's messages"
                        );
                        self.connections.remove(&id);
                    }
                }
                Event::Ready(datapath) => {
                    tracing::info!(from = %connection.from, datapath = format!("{datapath:016x}"), "switch ready");
                }
                Event::Refused { class, code } => {
                    tracing::warn!(from = %connection.from, "{}", Event::explain(class, code));
                }
                Event::Answer(frame) => self.overhear(&frame, now),
                Event::Elevated { in_port, frame } => {
                    let Some(datapath) = connection.switch.datapath() else { continue };
                    let origin = Origin { datapath, port: in_port };
                    let fate = self.plane.elevated(origin, &frame, self.unix(now));
                    self.fulfil(origin, fate);
                }
            }
        }
    }

    fn overhear(&mut self, frame: &[u8], now: Duration) {
        if self.overhearing.0 != now.as_secs() {
            self.overhearing = (now.as_secs(), 0);
        }
        self.overhearing.1 += 1;
        if self.overhearing.1 <= ANSWERS_PER_SECOND {
            self.overheard.extend(message::overhear_frame(frame));
        }
    }

    fn again(&mut self, subject: Subject, frame: &Frame, now: Duration) {
        if let Some((origin, fate)) = self.plane.again(subject, frame, self.unix(now)) {
            self.fulfil(origin, fate);
            self.write(now);
        }
    }

    fn fulfil(&mut self, origin: Origin, fate: Fate) {
        match fate {
            Fate::Forward { rules, frames } => {
                let mut there = self.connections.values_mut();
                // A switch that has reconnected may be in the list twice for some time; the later connection is the
                // current one.
                let switch = there.rfind(|connection| connection.switch.datapath() == Some(origin.datapath));
                if let Some(connection) = switch {
                    connection.switch.forward(origin.port, rules, frames);
                }
            }
            Fate::Queue(slot, frame) => self.queued.push(QueuedPacket { slot, frame: Some(frame) }),
            Fate::Drop => tracing::debug!(?origin, "dropping a packet that the switch sent up"),
        }
    }

    /// Carries out the pending events of all connections.
    fn write(&mut self, now: Duration) {
        let ids: Vec<u64> = self.connections.keys().copied().collect();
        for id in ids {
            self.events(id, now);
        }
    }

    /// Returns Unix time by this machine's clock.
    fn unix(&self, now: Duration) -> u32 {
        (Duration::from_nanos(self.clock) + now).as_secs() as u32
    }
}

/// Copies a switch's bytes to the loop, and queued messages to the switch, until either side ends.
async fn converse(
    stream: impl AsyncRead + AsyncWrite,
    id: u64,
    news: &mpsc::Sender<News>,
    mut waiting: mpsc::Receiver<Vec<u8>>,
) {
    let (mut reader, mut writer) = tokio::io::split(stream);
    let read = async {
        let mut chunk = vec![0; CHUNK];
        while let Ok(len @ 1..) = reader.read(&mut chunk).await {
            if news.send(News::Received(id, chunk[..len].to_vec())).await.is_err() {
                break;
            }
        }
    };
    let write = async {
        while let Some(mut bytes) = waiting.recv().await {
            // Send the rules and the packet that follows them in one segment.
            while let Ok(more) = waiting.try_recv() {
                bytes.extend(more);
            }
            if writer.write_all(&bytes).await.is_err() || writer.flush().await.is_err() {
                break;
            }
        }
    };
    tokio::select! { () = read => {}, () = write => {} }
}
