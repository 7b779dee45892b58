//! The verifier's ends of all tunnels. Decides which packets are allowed to come out of the tunnels, and into which
//! tunnel an answer goes.

use crate::agent_end::mode;
use crate::cut::Cut;
use crate::end::{End, How, Message, Sealed, Times, Way, note, seal_each};
use crate::flows::{Flow, Flows};
use crate::inside::{Client, Inside};
use crate::packet::{Layout, UDP, Virtio};
use crate::random::Random;
use crate::translate::{Side, translate};
use engine::model::{Compress, Sealing};
use engine::tunnel::{Dropped, Limits, Millis, NotTaken, Outgoing, Received, Responder, TunnelId, TunnelInfo};
use engine::verifier::Tables;
use seal::{Batch, Mode};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use wire::map::FlowKey;
use wire::seal::{Compression, Part, Suites, Treatment};
use wire::tail::{BLOCK_LEN, MAGIC};
use wire::{Destination, DropReason, Epoch, GrantHeader, Handle, Holder};

/// The source from which a [`VerifierEnd`] learns about grants and flows.
pub trait Knowledge: Send {
    /// Calls `work` with the verifier's tables.
    fn with_tables(&self, work: &mut dyn FnMut(&dyn Tables));

    /// Returns the demand of a rule for the packets of `flow`. It is the rule of the grant that has admitted the flow.
    /// If no grant has admitted the flow, it is the rule of the grant whose handle is `token`. The token with this
    /// handle is not verified yet, but the handle belongs to `account`, which is also the account of the flow's tunnel.
    /// Returns `None` if there is neither grant nor handle, or if the verifier does not know the rule yet.
    fn demanded(&self, flow: &FlowKey, token: Option<Handle>, account: u32) -> Option<Sealing>;
}

impl Flow {
    /// Returns how answers are sealed: like the client's packets. If the rule leaves compression to the sender, answers
    /// are compressed if the client's packets are.
    fn how(&self) -> How {
        let by_client = self.compresses.then_some(Compress::Auto);
        let compress = mode(self.demand.and_then(|demand| demand.compress).or(by_client));
        let Sealed { treatment, suite, .. } = self.sealed;
        How { treatment, suites: Suites::default().with(suite), compress }
    }
}

/// Numbers of packets that were dropped, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drops {
    /// Numbers of dropped records, one for each reason, in the order of [`Dropped::ALL`].
    pub records: [u64; Dropped::ALL.len()],
    /// Numbers of dropped initiations, one for each reason; the index is the number of the drop reason.
    pub initiations: [u64; 16],
    /// Number of packets whose records are sealed more weakly than the rule demands.
    pub weak: u64,
    /// Number of packets of clients for which no inside address is free.
    pub no_address: u64,
}

/// The verifier's ends of all its tunnels.
pub struct VerifierEnd<K> {
    responder: Responder,
    knowledge: K,
    /// The service at which the verifier accepts tunnels.
    service: SocketAddr,
    inside: Arc<Mutex<Inside>>,
    flows: Flows,
    /// The flow of the frame that was routed or admitted last.
    latest: Option<FlowKey>,
    drops: Drops,
    outgoing: Vec<Outgoing>,
    admitted: Option<Admitted>,
}

/// The packet that was admitted last. Packets like it that arrive within the same millisecond are admitted without
/// another look at the tables.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Admitted {
    tunnel: TunnelId,
    addresses: (IpAddr, IpAddr),
    ports: (u16, u16),
    protocol: u8,
    sealed: Sealed,
    at: Millis,
    /// The client's inside address.
    inside: IpAddr,
}

impl<K: Knowledge> VerifierEnd<K> {
    /// Creates the ends for a service at this address. Clients get their inside addresses from the table `inside`.
    pub fn new(knowledge: K, service: SocketAddr, inside: Arc<Mutex<Inside>>, limits: Limits) -> Self {
        Self {
            responder: Responder::new(limits, (Suites::ALL, seal::suites::helped())),
            knowledge,
            service,
            inside,
            flows: Flows::default(),
            latest: None,
            drops: Drops::default(),
            outgoing: Vec::new(),
            admitted: None,
        }
    }

    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of tunnels.
    pub fn count(&self) -> usize {
        self.responder.len()
    }

    /// Reports whether there are no tunnels, no flows and no assigned inside addresses.
    pub fn is_empty(&self) -> bool {
        self.responder.is_empty() && self.flows.is_empty() && self.inside().list().next().is_none()
    }

    /// Returns every client that has an inside address, with this address and the client's tunnel. The tunnel is `None`
    /// if the client has no tunnel now.
    pub fn clients(&self) -> Vec<(IpAddr, Client, Option<TunnelInfo>)> {
        let info = |client: &Client| self.responder.info(self.responder.of(client.holder)?);
        self.inside().list().map(|(address, client)| (address, client, info(&client))).collect()
    }

    /// Returns the treatment, suite and compression of the latest packet from the client of `flow`. Also returns the
    /// compression ratio in hundredths, if packets were compressed. Returns `None` if the flow is not known.
    pub fn sealed(&self, flow: &FlowKey, times: Times) -> Option<(Sealed, Option<u32>)> {
        self.flows.get(flow, times.0).map(|flow| (flow.sealed, flow.ratio()))
    }

    /// Returns the numbers of dropped packets.
    pub fn drops(&self) -> Drops {
        self.drops
    }

    /// Reports whether a record was sealed as well as its packet's rule demands. If it was, remembers how it was
    /// sealed, and creates the flow if it is not known. If it was not, creates no flow.
    fn is_enough(
        &mut self,
        key: FlowKey,
        (tunnel, account): (TunnelId, u32),
        packet: &[u8],
        sealed: Sealed,
        (now, wall): Times,
    ) -> bool {
        let token = token_header(packet);
        let (mut demand, is_due) = self.flows.demand(&key, account, token.is_some(), now);
        if is_due {
            let own = token.and_then(|header| self.own_handle(&header, account, wall));
            if let Some(told) = self.knowledge.demanded(&key, own, account) {
                demand = Some(told);
                self.responder.demand_rekey(tunnel, Millis::from(told.rekey) * 1000, now);
            }
        }
        let is_enough = demand.unwrap_or(Sealing::UNKNOWN).allows(sealed.treatment, sealed.suite);
        if is_enough {
            self.flows.note((key, account), demand, (sealed, token.is_some()), now);
            let is_confirmed = self.responder.info(tunnel).is_some_and(|info| info.confirmed);
            self.flows.came_through(&key, tunnel, is_confirmed);
        } else {
            self.flows.refused(&key, account, demand);
        }
        is_enough
    }

    /// Returns the handle in a token that has not been verified, if the handle is one of this account. Nobody without a
    /// verifier's key can make another account's handle, or an invented handle, look like a handle of this account.
    fn own_handle(&self, header: &GrantHeader, account: u32, wall: u32) -> Option<Handle> {
        let mut is_own = false;
        self.knowledge.with_tables(&mut |tables| {
            let current = Epoch::at(wall.into(), tables.config().epoch_length.max(1));
            let key = current.from_wire(header.epoch).and_then(|epoch| tables.key(epoch));
            is_own = key.is_some_and(|key| Holder::of(header.handle, &key).account() == account);
        });
        is_own.then_some(header.handle)
    }

    fn reply(&mut self, source: Option<IpAddr>, replies: &mut Vec<Message>) {
        let outgoing = self.outgoing.drain(..);
        replies.extend(outgoing.map(|Outgoing { to, datagram }| Message { to, source, datagram }));
    }
}

/// Returns the grant's header in the token at the end of a packet. The token has not been verified.
fn token_header(packet: &[u8]) -> Option<GrantHeader> {
    let block = packet.last_chunk::<BLOCK_LEN>().filter(|block| block.starts_with(&MAGIC))?;
    GrantHeader::decode(block.get(4..)?.first_chunk()?).ok()
}

impl<K: Knowledge> End for VerifierEnd<K> {
    type Tunnel = TunnelId;

    fn route(
        &mut self,
        packet: &mut [u8],
        layout: &Layout,
        virtio: Virtio,
        (now, _): Times,
    ) -> Option<(Way<TunnelId>, How)> {
        let inside = layout.destination(packet);
        let client = self.inside().client(inside)?;
        let (server_port, client_port) = layout.ports(packet);
        let key = FlowKey::new(inside, client_port, layout.source(packet), server_port, layout.protocol).within(true);
        self.latest = Some(key);
        let flow = self.flows.get(&key, now);
        let how =
            flow.map_or(How { treatment: Treatment::Encrypt, suites: Suites::ALL, compress: Mode::Never }, Flow::how);
        // A client whose latest packet came behind the initiation of a newer tunnel probably lacks the older tunnel.
        let is_theirs =
            |tunnel: &TunnelId| self.responder.info(*tunnel).is_some_and(|info| info.holder == client.holder);
        let newest = self.responder.of(client.holder);
        let newer = flow.and_then(|flow| flow.tunnel).filter(|last| Some(*last) > newest).filter(is_theirs);
        let tunnel = newer.or(newest)?;
        translate(packet, layout, Side::Destination, client.address, virtio.partial)?;
        let to = self.responder.info(tunnel)?.address;
        let source = (!self.service.ip().is_unspecified()).then_some(self.service.ip());
        Some((Way { tunnel, to, source }, how))
    }

    fn seal(
        &mut self,
        tunnel: TunnelId,
        how: (How, u8),
        cut: Cut<'_>,
        times: Times,
        out: &mut Batch,
    ) -> (usize, usize) {
        seal_each(how, cut, |packet| self.responder.seal(tunnel, packet, times, out).is_ok())
    }

    fn seal_block<'p>(
        &mut self,
        tunnel: TunnelId,
        (how, compression, lane): (How, Compression, u8),
        parts: impl Iterator<Item = (Part, &'p [u8])>,
        times: Times,
        out: &mut Batch,
    ) -> bool {
        let how = ((how.treatment, compression), (how.suites, lane));
        self.responder.seal_block(tunnel, how.0, how.1, parts, times, out).is_ok()
    }

    fn receive<'d>(
        &mut self,
        from: SocketAddr,
        to: Option<IpAddr>,
        datagram: &'d mut [u8],
        times: Times,
        replies: &mut Vec<Message>,
    ) -> Option<(TunnelId, Received<'d>)> {
        let address = to.unwrap_or(self.service.ip());
        let service = Destination { address, protocol: UDP, port: self.service.port() };
        let (responder, outgoing) = (&mut self.responder, &mut self.outgoing);
        let mut received = Err(NotTaken::Record(Dropped::Malformed));
        if wire::seal::Message::begins_tunnel(datagram) {
            let mut datagram = Some(datagram);
            self.knowledge.with_tables(&mut |tables| {
                if let Some(datagram) = datagram.take() {
                    received = responder.receive(datagram, from, &service, times, tables, &mut Random, outgoing);
                }
            });
        } else {
            received = responder.receive_record(datagram, from, times.0, &mut Random, outgoing);
        }
        self.reply(Some(address), replies);
        match received {
            Ok(received) => return Some(received),
            Err(NotTaken::Record(dropped)) => note(&mut self.drops.records, dropped),
            Err(NotTaken::Initiation(reason)) => {
                if let Some(counter) = self.drops.initiations.get_mut(reason as usize) {
                    *counter += 1;
                }
            }
        }
        None
    }

    fn admit(
        &mut self,
        tunnel: TunnelId,
        packet: &mut [u8],
        layout: &Layout,
        partial: bool,
        sealed: Sealed,
        times: Times,
    ) -> bool {
        let addresses = (layout.source(packet), layout.destination(packet));
        let (ports, protocol, at) = (layout.ports(packet), layout.protocol, times.0);
        let same =
            |last: &Admitted| *last == Admitted { tunnel, addresses, ports, protocol, sealed, at, inside: last.inside };
        if let Some(Admitted { inside, .. }) = self.admitted.filter(same)
            && token_header(packet).is_none()
        {
            self.latest = Some(FlowKey::new(inside, ports.0, addresses.1, ports.1, protocol).within(true));
            return translate(packet, layout, Side::Source, inside, partial).is_some();
        }
        (self.admitted, self.latest) = (None, None);
        let Some(holder) = self.responder.info(tunnel).map(|info| info.holder) else { return false };
        let client = Client { holder, address: addresses.0 };
        let inside = self.inside().of(client, at);
        let Some(inside) = inside else {
            self.drops.no_address += 1;
            return false;
        };
        if translate(packet, layout, Side::Source, inside, partial).is_none() {
            return false;
        }
        let key = FlowKey::new(inside, ports.0, addresses.1, ports.1, protocol).within(true);
        let is_enough = self.is_enough(key, (tunnel, holder.account()), packet, sealed, times);
        if is_enough {
            self.latest = Some(key);
            self.admitted = Some(Admitted { tunnel, addresses, ports, protocol, sealed, at, inside });
        } else {
            self.drops.weak += 1;
        }
        is_enough
    }

    fn latest(&self) -> Option<FlowKey> {
        self.latest
    }

    fn compressed(&mut self, flow: FlowKey, before: usize, after: usize) {
        if let Some(flow) = self.flows.get_mut(&flow) {
            flow.compressed[0] += before as u64;
            flow.compressed[1] += after as u64;
        }
    }

    fn woken(&mut self) {
        self.responder.recheck();
    }

    fn poll(&mut self, times: Times, replies: &mut Vec<Message>) {
        let (responder, outgoing) = (&mut self.responder, &mut self.outgoing);
        self.knowledge.with_tables(&mut |tables| responder.poll(times, tables, &mut Random, outgoing));
        self.reply((!self.service.ip().is_unspecified()).then_some(self.service.ip()), replies);
        self.flows.sweep(times.0);
    }
}

/// Reasons for dropping an initiation have numbers below 16.
const _: () = assert!((DropReason::NoAddress as usize) < 16);
