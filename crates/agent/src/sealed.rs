//! The agent's part in sealed tunnels (wire.md §9). This module knows the receivers whose packets the kernel steers
//! into the tunnels' device. It chooses the tunnel for each packet, and keeps the grants that open tunnels.

mod wanted;

use crate::key_export::KeyFile;
use crate::now;
use crate::wishes::Wished;
use anyhow::{Context, Result};
use datapath::agent::Agent as Maps;
use datapath::interface::Interface;
use engine::agent::{Clock, Subject};
use engine::model::protected;
use engine::model::{Grant, Receiver, Sealing, Secret, Service};
use engine::tunnel::Dropped;
use ipnet::IpNet;
use reach::protocol::{Tunnel, TunnelQueue};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tunnel::{AgentDrops as Drops, AgentEnd, Device, Key, Leg, Pump, Shown, Socket, route, times};
use wanted::Wanted;
use wire::map::{FlowKey, GrantEntry, GrantSlot, Services};
use wire::seal::Refusal;
use wire::{Destination, Flags, GrantHeader, Handle};

/// Name of the device through which packets enter and leave the tunnels. Because the name is fixed, only one agent in a
/// network namespace can have tunnels.
pub const DEVICE: &str = "vs-seal";
/// MTU of the tunnels' device in bytes. Super-packets are longer.
const MTU: u32 = 1500;
/// Address of the tunnels' device, from the range of RFC 7600. If the device had no address, a loose reverse-path
/// filter would drop all packets that come out of the device.
const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 0, 8));
/// Interval at which ended grants are looked for.
const PRUNE_EVERY: Duration = Duration::from_secs(5);

/// The agent's state for sealed tunnels.
#[derive(Default)]
pub struct Sealed {
    running: Option<Pump<AgentEnd>>,
    /// Why the tunnels' thread has ended and could not be started again.
    trouble: Option<String>,
    /// The clock of each subject's authority.
    clocks: BTreeMap<Subject, Clock>,
    /// For each subject, the receivers to which the subject is allowed to send only sealed packets.
    demanded: BTreeMap<Subject, Vec<Receiver>>,
    /// Destinations whose grant admits packets only in a tunnel, but which are not in the authority's list yet, because
    /// the rule has just changed.
    unlisted: BTreeSet<(Subject, Destination)>,
    /// Receivers that an earlier process steered into tunnels. `None` until they are read from the kernel's table.
    /// Empty once the authorities' lists of receivers are known for all sessions.
    inherited: Option<Vec<Receiver>>,
    /// Grants for receivers behind a tunnel, by handle.
    grants: BTreeMap<(Subject, Handle), TunnelGrant>,
    /// For each destination, the handle of its grant.
    places: BTreeMap<(Subject, Destination), Handle>,
    services: BTreeMap<(Subject, SocketAddr), Wanted>,
    /// For each subject, the tunnels that the policy lets the subject reach. There is no entry for a subject until the
    /// authority has named these tunnels.
    reachable: BTreeMap<Subject, Vec<SocketAddr>>,
    /// Whether any sender asks for a treatment.
    has_wishes: bool,
    pruned: Duration,
    /// Addresses that this machine has lost, but keeps for flows in tunnels.
    kept: BTreeSet<IpAddr>,
    /// Number of queues of the tunnels; `None` for the usual number.
    queues: Option<u32>,
    /// The file to which the tunnels' threads write keys. It stays the same after a restart of the threads.
    export: Option<Arc<Mutex<KeyFile>>>,
}

/// A grant for a receiver behind a tunnel.
struct TunnelGrant {
    subject: Subject,
    sealing: Sealing,
    /// Whether the grant admits packets inside a tunnel only.
    only: bool,
    tunnels: Vec<SocketAddr>,
    expires: u32,
}

impl Sealed {
    /// Processes an authority's list of receivers for a person, and the names of those receivers that accept only
    /// sealed packets from the person. `tunnels` are the tunnels that the person may reach, or `None` if the list was
    /// saved by an earlier process. If packets are likely to need a tunnel, opens it in advance. `sessions` is the
    /// number of sessions on this machine. Receivers that an earlier process sealed stay sealed until the lists of all
    /// sessions are known.
    pub fn destinations(
        &mut self,
        maps: &Maps,
        subject: Subject,
        (receivers, sealed): (&[Receiver], &BTreeSet<String>),
        tunnels: Option<&[SocketAddr]>,
        sessions: usize,
    ) -> Result<()> {
        let demanded = receivers.iter().filter(|receiver| sealed.contains(&receiver.name)).cloned();
        self.demanded.insert(subject, demanded.collect());
        // Tunnels open before the first packet needs one.
        let early = !sealed.is_empty() || self.has_wishes;
        if let Some(tunnels) = tunnels {
            self.reachable.insert(subject, tunnels.to_vec());
            self.reached(subject);
        }
        for tunnel in tunnels.into_iter().flatten().filter(|_| early) {
            self.want(subject, *tunnel, &Sealing::NONE);
        }
        // Until every session's list is known, entries of an earlier process stay, too.
        if self.demanded.len() >= sessions {
            self.inherited = Some(Vec::new());
        }
        self.seal(maps)
    }

    /// Removes a person who has logged out, and ends the person's tunnels and the flows in them.
    pub fn forget(&mut self, maps: &Maps, subject: Subject) -> Result<()> {
        self.demanded.remove(&subject);
        self.places.retain(|(of, _), _| *of != subject);
        self.services.retain(|(of, _), _| *of != subject);
        self.reachable.remove(&subject);
        self.clocks.remove(&subject);
        if let Some(pump) = &self.running {
            pump.end().forget((subject.number(), subject.organisation()), times());
            pump.wake();
        }
        self.seal(maps)
    }

    /// Makes the kernel's table `wishes` contain exactly `wishes`: the senders who ask for a treatment (authentication
    /// or encryption in a sealed tunnel). `asks` are the bits of `Steering::asks`. Adds new entries before it removes
    /// old ones, so that no sender's entry is missing in between.
    pub fn ask(&mut self, maps: &Maps, wishes: &[Wished], asks: u32) -> Result<()> {
        for (asker, bits) in wishes {
            maps.wishes.set(asker, bits)?;
        }
        self.has_wishes = !wishes.is_empty();
        if self.has_wishes {
            self.start(maps)?;
        }
        if asks | maps.steering()?.asks != 0 {
            maps.set_asks(asks | wire::map::KEEPS_FLOWS)?;
        }
        let gone = maps.wishes.keys().into_iter().filter(|known| !wishes.iter().any(|(asker, _)| asker == known));
        gone.collect::<Vec<_>>().iter().try_for_each(|asker| maps.wishes.remove(asker))
    }

    fn unlisted(&self) -> BTreeSet<(Subject, Destination)> {
        let only = |subject, grant| self.grants.get(&(subject, grant)).is_some_and(|held| held.only);
        let is_unlisted = |((subject, to), grant): &(&(Subject, Destination), &Handle)| {
            only(*subject, **grant) && !self.is_listed(*subject, to)
        };
        let unlisted = self.places.iter().filter(is_unlisted);
        unlisted.map(|(place, _)| *place).collect()
    }

    /// Writes the sealed prefixes to the kernel's table. Flows in a tunnel stay there, even if their receiver is no
    /// longer sealed.
    fn seal(&mut self, maps: &Maps) -> Result<()> {
        self.unlisted = self.unlisted();
        let of_grant = |(_, to): &(Subject, Destination)| Receiver {
            name: "granted".into(),
            prefix: IpNet::from(to.address),
            services: vec![Service { protocol: to.protocol, first_port: to.port, last_port: to.port }],
        };
        let inherited = self.inherited.get_or_insert_with(|| maps.sealed().iter().filter_map(inherited).collect());
        let listed = self.demanded.values().flatten().chain(&*inherited).cloned();
        let receivers: Vec<_> = listed.chain(self.unlisted.iter().map(of_grant)).collect();
        let entries: Vec<(IpAddr, u8, Services)> = protected::widened(receivers.iter())
            .into_iter()
            .map(|entry| (entry.prefix.addr(), entry.prefix.prefix_len(), entry.services))
            .collect();
        if !entries.is_empty() && maps.steering()?.asks == 0 {
            maps.set_asks(wire::map::KEEPS_FLOWS)?;
        }
        maps.seal(&entries)
    }

    /// Stores a grant. Assigns the grant's tunnel to packets for the grant's destination, if these packets have to
    /// travel in a tunnel, or if any sender asks for a treatment.
    pub fn granted(&mut self, maps: &Maps, subject: Subject, to: Destination, grant: &Grant) -> Result<()> {
        let Secret::Grant(header, _) = &grant.secret else { return Ok(()) };
        if grant.tunnels.is_empty() && !grant.sealing.is_sealed() {
            return Ok(());
        }
        self.reached(subject);
        let held = TunnelGrant {
            subject,
            sealing: grant.sealing,
            only: header.flags.has(Flags::SEALED),
            tunnels: grant.tunnels.clone(),
            expires: header.expires,
        };
        self.grants.insert((subject, header.handle), held);
        self.lead(maps, subject, to, header.handle, false)
    }

    /// Assigns the tunnel of the grant in `entry` to packets for the destination in `slot`, if these packets have to
    /// travel in a tunnel, or if any sender asks for a treatment. Call this method when the kernel begins to use a
    /// grant for another of the destinations that the grant covers.
    pub fn placed(&mut self, maps: &Maps, subject: Subject, slot: &GrantSlot, entry: &GrantEntry) -> Result<()> {
        let Ok(header) = GrantHeader::decode(&entry.header) else { return Ok(()) };
        if entry.plain != 0 || entry.suite == wire::ls::SUITE {
            return Ok(());
        }
        self.lead(maps, subject, slot.destination(), header.handle, false)
    }

    /// Assigns the tunnel of a grant to packets for a destination, if the packets have to travel in a tunnel, if any
    /// sender asks for a treatment, or if `anyway` is true.
    fn lead(&mut self, maps: &Maps, subject: Subject, to: Destination, grant: Handle, anyway: bool) -> Result<()> {
        let Some(TunnelGrant { sealing, only, tunnels, .. }) = self.grants.get(&(subject, grant)) else {
            return Ok(());
        };
        let (sealing, only) = (*sealing, *only);
        let same = |tunnel: &&SocketAddr| tunnel.is_ipv4() == to.address.is_ipv4();
        let tunnel = tunnels.iter().find(same).or(tunnels.first()).copied();
        self.places.insert((subject, to), grant);
        if (only && !self.is_listed(subject, &to)) != self.unlisted.contains(&(subject, to)) {
            self.seal(maps)?;
        }
        if !only && !self.has_wishes && !anyway {
            return Ok(());
        }
        let service = tunnel.context(
            "packets to the destination need a sealed tunnel, but the policy names no tunnel for its verifier",
        )?;
        self.want(subject, service, &sealing);
        let key = key_of(subject, service);
        self.start(maps)?.end().set_leg(to, Leg { tunnel: key, demand: sealing });
        Ok(())
    }

    /// Returns the tunnel through which packets to a destination can travel although no rule demands a tunnel. Returns
    /// `None` if there is no such tunnel, or if a rule demands a tunnel.
    pub fn alternative(&self, subject: Subject, to: Destination) -> Option<SocketAddr> {
        let held = self.grants.get(&(subject, *self.places.get(&(subject, to))?))?;
        let same = |tunnel: &&SocketAddr| tunnel.is_ipv4() == to.address.is_ipv4();
        let tunnel = held.tunnels.iter().find(same).or(held.tunnels.first());
        tunnel.copied().filter(|_| !held.only)
    }

    /// Assigns the tunnel of a destination's grant to packets for the destination, because no answer came to packets
    /// outside the tunnel.
    pub fn take(&mut self, maps: &Maps, subject: Subject, to: Destination) -> Result<()> {
        let grant = self.places.get(&(subject, to)).copied().context("the agent has no grant for the destination")?;
        self.lead(maps, subject, to, grant, true)?;
        let asks = maps.steering()?.asks;
        if asks & wire::map::KEEPS_FLOWS == 0 {
            maps.set_asks(asks | wire::map::KEEPS_FLOWS)?;
        }
        Ok(())
    }

    fn is_listed(&self, subject: Subject, to: &Destination) -> bool {
        self.demanded.get(&subject).into_iter().flatten().any(|receiver| {
            let covers = |service: &Service| service.covers(to.protocol, to.port);
            receiver.prefix.contains(&to.address) && receiver.services.iter().any(covers)
        })
    }

    /// Records that a tunnel is wanted whose keys are at least as strict as `sealing` demands.
    fn want(&mut self, subject: Subject, service: SocketAddr, sealing: &Sealing) {
        let wanted = self.services.entry((subject, service)).or_insert_with(|| Wanted::new(*sealing));
        if wanted.demand(sealing)
            && let (Some(pump), Some(terms)) = (&self.running, wanted.terms(service))
        {
            pump.end().set_tunnel(key_of(subject, service), terms, times());
        }
    }

    /// Sets the clock of a subject's authority. Grants of the subject end by this clock.
    pub fn set_clock(&mut self, subject: Subject, clock: Clock) {
        if self.clocks.insert(subject, clock) != Some(clock)
            && let Some(pump) = &self.running
        {
            pump.end().set_clock((subject.number(), subject.organisation()), clock);
        }
    }

    /// Returns Unix seconds by the clock of the subject's authority.
    fn unix(&self, subject: Subject) -> u32 {
        self.clocks.get(&subject).map_or_else(|| times().1, |clock| wanted::unix(clock, now()))
    }

    /// Returns the tunnels for which the caller has to request a grant now. Each tunnel is given by its subject and the
    /// destination of its UDP packets. The caller has to call [`Self::opened`] or [`Self::failed`] for each of them.
    pub fn due(&mut self) -> Vec<(Subject, Destination)> {
        // A verifier that has refused a tunnel also refuses another handshake with the same grant. So the tunnel needs
        // another grant.
        let shown = self.running.as_ref().map(|pump| pump.end().show(times())).unwrap_or_default();
        for refused in shown.iter().filter(|shown| shown.refused == Some(Refusal::Revoked)).map(|shown| shown.key) {
            let is_it = |(subject, service): &(Subject, SocketAddr)| key_of(*subject, *service) == refused;
            self.services.iter_mut().filter(|(of, _)| is_it(of)).for_each(|(_, wanted)| wanted.refuse());
        }
        let (now, local, clocks) = (now(), times().1, &self.clocks);
        let unix = |subject: &Subject| clocks.get(subject).map_or(local, |clock| wanted::unix(clock, now));
        let due = self.services.iter_mut().filter_map(|((subject, service), wanted)| {
            wanted.request(now, unix(subject)).then(|| (*subject, wanted::destination(*service)))
        });
        due.collect()
    }

    /// Stores the grant that opens the tunnel to `to`, and opens or renews the tunnel with it.
    pub fn opened(&mut self, maps: &Maps, subject: Subject, to: Destination, grant: &Grant) -> Result<()> {
        let (service, unix) = (SocketAddr::new(to.address, to.port), self.unix(subject));
        let Some(wanted) = self.services.get_mut(&(subject, service)) else { return Ok(()) };
        let Secret::Grant(header, key) = &grant.secret else {
            wanted.failed(now(), false);
            anyhow::bail!("the grant's suite is for first packets only: a tunnel needs a grant of another suite");
        };
        wanted.granted(now(), unix, (*header, key.clone()));
        let terms = wanted.terms(service).context("INVARIANT: the tunnel has just got a grant")?;
        let pump = self.start(maps)?;
        pump.end().set_tunnel(key_of(subject, service), terms, times());
        pump.wake();
        Ok(())
    }

    /// Schedules another request for the grant of the tunnel to `to`, after a request that brought no grant.
    /// `is_unreached` says whether the authority could not be reached.
    pub fn failed(&mut self, subject: Subject, to: Destination, is_unreached: bool) {
        if let Some(wanted) = self.services.get_mut(&(subject, SocketAddr::new(to.address, to.port))) {
            wanted.failed(now(), is_unreached);
        }
    }

    /// Ends the pauses of requests that failed because the subject's authority could not be reached. The caller calls
    /// this method when the authority has answered again.
    fn reached(&mut self, subject: Subject) {
        self.services.iter_mut().filter(|((of, _), _)| *of == subject).for_each(|(_, wanted)| wanted.reached());
    }

    /// Processes the subjects and destinations whose packets the kernel dropped because they had no tunnel. If the
    /// agent has a grant for them, assigns the grant's tunnel to their next packets. Returns the subjects and
    /// destinations without a grant.
    pub fn unknown(&mut self, maps: &Maps, holder: impl Fn(&GrantSlot) -> Option<Subject>) -> Vec<GrantSlot> {
        let Some(pump) = &self.running else { return Vec::new() };
        let mut end = pump.end();
        let all: Vec<_> = std::iter::from_fn(|| end.unknown()).collect();
        drop(end);
        let mut unknown = Vec::new();
        for (number, to) in all {
            let slot = GrantSlot::new(number, &to);
            let held = holder(&slot).and_then(|subject| Some((subject, *self.places.get(&(subject, to))?)));
            match held.filter(|held| self.grants.contains_key(held)) {
                Some((subject, grant)) => {
                    if let Err(error) = self.lead(maps, subject, to, grant, true) {
                        tracing::error!(?to, "cannot find a sealed tunnel, so packets are dropped: {error:#}");
                    }
                }
                None => unknown.push(slot),
            }
        }
        unknown
    }

    /// Removes grants that have expired, and the destinations and sealed prefixes that no other grant needs. Flows stay
    /// in their tunnels.
    pub fn prune(&mut self, maps: &Maps) -> Result<()> {
        let (now, local) = (now(), times().1);
        if now.saturating_sub(self.pruned) < PRUNE_EVERY {
            return Ok(());
        }
        self.pruned = now;
        let Self { grants, places, services, clocks, reachable, .. } = self;
        let unix = |subject: &Subject| clocks.get(subject).map_or(local, |clock| wanted::unix(clock, now));
        grants.retain(|_, held| held.expires > unix(&held.subject));
        places.retain(|(subject, _), grant| grants.contains_key(&(*subject, *grant)));
        // The agent needs no grant for a tunnel that the policy no longer has and that no grant names.
        let named: BTreeSet<(Subject, SocketAddr)> =
            grants.values().flat_map(|held| held.tunnels.iter().map(|tunnel| (held.subject, *tunnel))).collect();
        services.retain(|(subject, service), _| {
            let is_reachable = reachable.get(subject).is_none_or(|reachable| reachable.contains(service));
            is_reachable || named.contains(&(*subject, *service))
        });
        if let Some(pump) = &self.running {
            let held: BTreeSet<_> = self.places.keys().map(|(subject, to)| (subject.number(), *to)).collect();
            let wanted: HashSet<_> = self.services.keys().map(|(subject, to)| key_of(*subject, *to)).collect();
            let mut end = pump.end();
            end.retain_legs(|subject, to| held.contains(&(subject, *to)));
            end.retain_tunnels(|key| wanted.contains(key), times());
        }
        if self.unlisted() == self.unlisted { Ok(()) } else { self.seal(maps) }
    }

    /// Removes the assignment of a grant to the destination in `slot`. The caller calls this method when the kernel no
    /// longer has a grant for this destination.
    pub fn removed(&mut self, subject: Subject, slot: &GrantSlot) {
        self.places.remove(&(subject, slot.destination()));
    }

    /// Returns a person's tunnels as the agent displays them.
    pub fn tunnels_of(&self, subject: Subject) -> Vec<Tunnel> {
        let shown = self.running.as_ref().map(|pump| pump.end().show(times())).unwrap_or_default();
        let keys_exported = self.running.as_ref().is_some_and(|pump| pump.end().is_exporting());
        let own = shown.into_iter().filter(|shown| key_of(subject, shown.key.service) == shown.key);
        let tunnel = |Shown { key, is_open, phase, refused }: Shown| Tunnel {
            service: key.service,
            open: is_open,
            phase,
            refused: refused.map(|why| why.name().to_owned()),
            keys_exported,
        };
        own.map(tunnel).collect()
    }

    /// Returns the counters of packets that the tunnels dropped, by name.
    pub fn counters(&self) -> Vec<(String, u64)> {
        let Some(pump) = &self.running else { return Vec::new() };
        let Drops { records, no_leg, no_opener, refused } = pump.end().drops();
        let counts = pump.counts();
        let records = Dropped::ALL.iter().zip(records).map(|(why, count)| (why.name(), count));
        let others = [
            ("no_leg", no_leg),
            ("no_opener", no_opener),
            ("refused", refused),
            ("not_sealed", counts.not_sealed.load(Relaxed)),
            ("too_long", counts.too_long.load(Relaxed)),
        ];
        records.chain(others).map(|(name, count)| (format!("tunnel_{name}"), count)).collect()
    }

    /// Keeps addresses that this machine has lost as long as flows in tunnels send from them. Releases a kept address
    /// when this machine has the address again, or when no flow uses it any more.
    pub fn keep_addresses(&mut self) -> Result<()> {
        let Some(pump) = &self.running else { return Ok(()) };
        let sources = pump.end().sources(times());
        let index = Interface::named(DEVICE)?.index;
        let here = addresses();
        for gone in self.kept.extract_if(.., |kept| here.contains(kept) || !sources.contains(kept)) {
            route::release_address(index, gone)?;
        }
        for lost in sources.iter().filter(|source| !here.contains(source) && **source != ADDRESS) {
            if !self.kept.contains(lost) {
                route::keep_address(index, DEVICE, *lost)?;
                self.kept.insert(*lost);
                tracing::info!(address = %lost, "this machine has lost the address; the tunnels' flows from this \
                                                 address continue");
            }
        }
        Ok(())
    }

    /// Makes every tunnel send a packet at once, because this machine's addresses have changed. From the packet, the
    /// verifier learns the new address.
    pub fn moved(&self) {
        if let Some(pump) = &self.running {
            pump.end().moved(times());
            pump.wake();
        }
    }

    /// Writes the keys of all tunnels to a file, for debugging. Must be called before the first tunnel opens.
    pub fn danger_export(&mut self, file: KeyFile) {
        self.export = Some(Arc::new(Mutex::new(file)));
    }

    /// Sets the number of queues of the tunnels; `None` stands for half the number of processors, 1 to 8. Must be
    /// called before the first tunnel opens.
    pub fn set_queues(&mut self, queues: Option<u32>) {
        self.queues = queues;
    }

    /// Returns the load of each queue as the agent displays it.
    pub fn queues(&self) -> Vec<TunnelQueue> {
        let loads = self.running.as_ref().map(Pump::loads).unwrap_or_default();
        loads.iter().map(|load| TunnelQueue { sealed: load.sealed, opened: load.opened }).collect()
    }

    /// Starts the tunnels' thread again if it has ended, for instance because somebody removed its device. Without the
    /// device, the kernel drops the packets that have to travel in tunnels.
    pub fn revive(&mut self, maps: &Maps) {
        if self.running.as_ref().is_some_and(|pump| !pump.is_running()) {
            tracing::error!(
                device = DEVICE,
                "the tunnels' thread has ended, and packets that have to travel in tunnels are dropped: starting it \
                 again"
            );
            (self.running, self.trouble) = (None, Some("the tunnels' thread has ended".to_owned()));
            self.kept.clear();
        }
        if self.trouble.is_none() {
            return;
        }
        let trouble =
            self.restart(maps).err().map(|error| format!("cannot start the tunnels' thread again: {error:#}"));
        if trouble != self.trouble
            && let Some(text) = &trouble
        {
            tracing::error!(device = DEVICE, "{text}");
        }
        self.trouble = trouble;
    }

    fn restart(&mut self, maps: &Maps) -> Result<()> {
        self.start(maps)?;
        if let Some(pump) = &self.running {
            let mut end = pump.end();
            for ((subject, service), wanted) in &self.services {
                if let Some(terms) = wanted.terms(*service) {
                    end.set_tunnel(key_of(*subject, *service), terms, times());
                }
            }
        }
        let places: Vec<_> = self.places.iter().map(|((subject, to), grant)| (*subject, *to, *grant)).collect();
        for (subject, to, grant) in places {
            if let Err(error) = self.lead(maps, subject, to, grant, false) {
                tracing::error!(?to, "cannot find a sealed tunnel, so packets are dropped: {error:#}");
            }
        }
        Ok(())
    }

    /// If the thread of the tunnels' device has ended and could not be started again, returns the device as the agent
    /// displays it.
    pub fn broken_device(&self) -> Option<reach::protocol::Interface> {
        let trouble = Some(self.trouble.clone()?);
        Some(reach::protocol::Interface { name: DEVICE.to_owned(), attachment: "tunnels".to_owned(), trouble })
    }

    /// Creates the tunnels' device and starts their thread, unless an earlier call has done so.
    pub fn start(&mut self, maps: &Maps) -> Result<&Pump<AgentEnd>> {
        if self.running.is_none() {
            let queues = self.queues.map_or_else(tunnel::default_queues, |queues| queues as usize);
            let device = Device::with_queues(DEVICE, MTU, queues)?;
            let interface = Interface::named(DEVICE)?;
            let any = UdpSocket::bind("[::]:0").or_else(|_| UdpSocket::bind("0.0.0.0:0"));
            let socket = Socket::new(any.context("cannot open the tunnels' UDP socket")?)?;
            // This happens before the device is up, because the programs must not take the tunnel's own packets for a
            // person's.
            maps.set_tunnel(interface.index, socket.cookie()?)?;
            route::add_address(interface.index, ADDRESS)?;
            let filter = format!("/proc/sys/net/ipv4/conf/{DEVICE}/rp_filter");
            if let Err(error) = std::fs::write(&filter, "0") {
                tracing::debug!("cannot write {filter}: {error}");
            }
            device.first().context("INVARIANT: a tunnel has at least one queue")?.turn_on()?;
            let flows = maps.steered_flows()?;
            let opener = move |flow: &FlowKey| flows.get(flow).ok().flatten();
            let mut end = AgentEnd::asking(Box::new(opener));
            if let Some(file) = self.export.clone() {
                end.danger_export(Box::new(move |line| {
                    file.lock().unwrap_or_else(PoisonError::into_inner).write(line);
                }));
            }
            self.clocks
                .iter()
                .for_each(|(subject, clock)| end.set_clock((subject.number(), subject.organisation()), *clock));
            self.running = Some(Pump::start(device, vec![socket], end)?);
            tracing::info!(device = DEVICE, "packets to sealed receivers go through tunnels");
        }
        self.running.as_ref().context("the tunnels' thread does not run, although it was started")
    }
}

/// Returns the key of a subject's tunnel to a service.
fn key_of(subject: Subject, service: SocketAddr) -> Key {
    Key { subject: subject.number(), organisation: subject.organisation(), service }
}

/// Returns this machine's addresses, without those of the tunnel's device.
fn addresses() -> BTreeSet<IpAddr> {
    let all = nix::ifaddrs::getifaddrs().into_iter().flatten().filter(|entry| entry.interface_name != DEVICE);
    let addresses = all.filter_map(|entry| {
        let address = entry.address?;
        let four = address.as_sockaddr_in().map(|four| IpAddr::from(four.ip()));
        four.or_else(|| address.as_sockaddr_in6().map(|six| IpAddr::from(six.ip())))
    });
    addresses.collect()
}

/// Returns an entry of the kernel's table as a receiver.
fn inherited((address, length, services): &(IpAddr, u8, Services)) -> Option<Receiver> {
    let spans = services.spans.iter().take(services.count as usize);
    let service = |span: &wire::map::Service| Service {
        protocol: span.protocol,
        first_port: span.first_port,
        last_port: span.last_port,
    };
    let prefix = IpNet::new(*address, *length).ok()?;
    Some(Receiver { name: "inherited".into(), prefix, services: spans.map(service).collect() })
}
