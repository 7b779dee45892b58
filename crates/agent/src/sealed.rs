//! Sealed tunnels (wire.md §9) of the agent: which receivers' packets the kernel steers into the tunnel's device, which
//! tunnel takes them, and the grants that open tunnels.

use crate::now;
use anyhow::{Context, Result};
use datapath::agent::Agent as Maps;
use datapath::interface::Interface;
use engine::agent::Subject;
use engine::model::protected;
use engine::model::{Grant, Receiver, Sealing, Secret, Service};
use engine::tunnel::Terms;
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;
use tunnel::{AgentEnd, Device, Key, Leg, Pump, Socket, route, times};
use wire::map::{GrantEntry, GrantSlot, Services};
use wire::packet::UDP;
use wire::{Destination, Flags, GrantHeader, Handle};

/// Name of the device: one agent of a network namespace can have tunnels.
pub const DEVICE: &str = "vs-seal";
/// Longest packet that the device takes; super-packets are longer. TCP that is too long for the path is cut.
const MTU: u32 = 1500;
/// The address for a device that only has to have one (RFC 7600): without any, a loose reverse-path filter drops all that
/// comes out of it.
const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 0, 8));
/// Seconds before its end at which the grant for a tunnel is renewed.
const RENEW_BEFORE: u32 = 60;
/// Interval between requests for such a grant.
const ASK_EVERY: Duration = Duration::from_secs(2);
/// Assumed longest datagram to the verifier, for initiations with a packet behind.
const ROOM: usize = 1280 - 48;

/// The agent's part of sealed tunnels.
#[derive(Default)]
pub struct Sealed {
    running: Option<Pump<AgentEnd>>,
    /// By subject: the receivers that may get sealed packets only.
    demanded: BTreeMap<Subject, Vec<Receiver>>,
    /// Destinations whose grant demands sealed packets, also those that the authority's list did not show yet.
    granted: BTreeSet<Destination>,
    /// Receivers that an earlier process steered, until every session's list is known.
    inherited: Option<Vec<Receiver>>,
    /// Grants that demand a tunnel, by handle.
    grants: BTreeMap<Handle, Held>,
    services: BTreeMap<(Subject, SocketAddr), Wanted>,
}

/// A grant that demands a tunnel.
struct Held {
    sealing: Sealing,
    tunnels: Vec<SocketAddr>,
    expires: u32,
}

/// A tunnel that flows want.
struct Wanted {
    sealing: Sealing,
    /// End of its grant, Unix seconds; 0 without one.
    expires: u32,
    requested: Option<Duration>,
}

impl Sealed {
    /// Takes the authority's list of receivers, and the names of those that a person may send sealed packets to only. Gives up
    /// receivers that are not demanded any more once the lists of all `sessions` are known.
    pub fn destinations(
        &mut self,
        maps: &Maps,
        subject: Subject,
        (receivers, sealed): (&[Receiver], &BTreeSet<String>),
        tunnels: &[SocketAddr],
        sessions: usize,
    ) -> Result<()> {
        let demanded = receivers.iter().filter(|receiver| sealed.contains(&receiver.name)).cloned();
        self.demanded.insert(subject, demanded.collect());
        // Tunnels open before the first packet needs one.
        for tunnel in tunnels.iter().filter(|_| !sealed.is_empty()) {
            let wanted = Wanted { sealing: Sealing::NONE, expires: 0, requested: None };
            self.services.entry((subject, *tunnel)).or_insert(wanted);
        }
        // Until every session's list is known, entries of an earlier process stay, too.
        if self.demanded.len() >= sessions {
            self.inherited = Some(Vec::new());
        }
        self.seal(maps)
    }

    /// Forgets a person's list, after a logout.
    pub fn forget(&mut self, maps: &Maps, subject: Subject) -> Result<()> {
        self.demanded.remove(&subject);
        self.services.retain(|(of, _), _| *of != subject);
        self.seal(maps)
    }

    fn seal(&mut self, maps: &Maps) -> Result<()> {
        let of_grant = |to: &Destination| Receiver {
            name: "granted".into(),
            prefix: IpNet::from(to.address),
            services: vec![Service { protocol: to.protocol, first_port: to.port, last_port: to.port }],
        };
        let inherited = self.inherited.get_or_insert_with(|| maps.sealed().iter().filter_map(inherited).collect());
        let listed = self.demanded.values().flatten().chain(&*inherited).cloned();
        let receivers: Vec<_> = listed.chain(self.granted.iter().map(of_grant)).collect();
        let entries: Vec<(IpAddr, u8, Services)> = protected::widened(receivers.iter())
            .into_iter()
            .map(|entry| (entry.prefix.addr(), entry.prefix.prefix_len(), entry.services))
            .collect();
        maps.seal(&entries)
    }

    /// Takes a grant whose rule demands a tunnel: from now on packets to its destination have a way.
    pub fn granted(&mut self, maps: &Maps, subject: Subject, to: Destination, grant: &Grant) -> Result<()> {
        let Secret::Grant(header, _) = &grant.secret else { return Ok(()) };
        let unix = times().1;
        self.grants.retain(|_, held| held.expires > unix);
        let held = Held { sealing: grant.sealing, tunnels: grant.tunnels.clone(), expires: header.expires };
        self.grants.insert(header.handle, held);
        self.lead(maps, subject, to, header.handle)
    }

    /// Called when a grant gets another destination of those that it covers.
    pub fn placed(&mut self, maps: &Maps, slot: &GrantSlot, entry: &GrantEntry) -> Result<()> {
        let Ok(header) = GrantHeader::decode(&entry.header) else { return Ok(()) };
        if !header.flags.has(Flags::SEALED) || entry.plain != 0 {
            return Ok(());
        }
        // A slot has the number of a user's subject, which is not 0.
        let Some(user) = slot.subject.checked_sub(1) else { return Ok(()) };
        self.lead(maps, Subject::of_user(user), slot.destination(), header.handle)
    }

    /// Leads packets to a destination into the tunnel of a grant.
    fn lead(&mut self, maps: &Maps, subject: Subject, to: Destination, grant: Handle) -> Result<()> {
        let Some(Held { sealing, tunnels, .. }) = self.grants.get(&grant) else { return Ok(()) };
        let sealing = *sealing;
        let same = |tunnel: &&SocketAddr| tunnel.is_ipv4() == to.address.is_ipv4();
        let tunnel = tunnels.iter().find(same).or(tunnels.first());
        let service =
            *tunnel.context("its rule demands a sealed tunnel, but the policy names none for its verifier")?;
        if self.granted.insert(to) {
            self.seal(maps)?;
        }
        self.services.entry((subject, service)).or_insert(Wanted { sealing, expires: 0, requested: None });
        let key = Key { subject: subject.number(), service };
        self.start(maps)?.end().set_leg(to, Leg { tunnel: key, demand: sealing });
        Ok(())
    }

    /// Returns the tunnels for which a grant is to be requested now.
    pub fn due(&mut self) -> Vec<(Subject, Destination)> {
        let (now, unix) = (now(), times().1);
        let due = self.services.iter_mut().filter(|(_, wanted)| {
            wanted.expires.saturating_sub(RENEW_BEFORE) <= unix
                && wanted.requested.is_none_or(|asked| now.saturating_sub(asked) >= ASK_EVERY)
        });
        due.map(|((subject, service), wanted)| {
            wanted.requested = Some(now);
            (*subject, Destination { address: service.ip(), protocol: UDP, port: service.port() })
        })
        .collect()
    }

    /// Takes the grant for a tunnel.
    pub fn opened(&mut self, maps: &Maps, subject: Subject, to: Destination, grant: &Grant) -> Result<()> {
        let service = SocketAddr::new(to.address, to.port);
        let Some(wanted) = self.services.get_mut(&(subject, service)) else { return Ok(()) };
        let Secret::Grant(header, key) = &grant.secret else {
            anyhow::bail!("its suite is for first packets only: a tunnel needs a grant of another one");
        };
        wanted.expires = header.expires;
        let terms = Terms {
            grant: *header,
            key: key.clone(),
            to,
            forward: wanted.sealing.forward_secrecy,
            suites: tunnel::suites(),
            rekey_after: u64::from(wanted.sealing.rekey) * 1000,
            room: ROOM,
        };
        let pump = self.start(maps)?;
        pump.end().set_tunnel(Key { subject: subject.number(), service }, terms);
        pump.wake();
        Ok(())
    }

    /// Returns destinations whose packets are dropped because nobody said which tunnel takes them.
    pub fn unknown(&self) -> Vec<Destination> {
        let Some(pump) = &self.running else { return Vec::new() };
        let mut end = pump.end();
        std::iter::from_fn(|| end.unknown()).collect()
    }

    /// Has every tunnel introduce itself again: this machine has other addresses.
    pub fn moved(&self) {
        if let Some(pump) = &self.running {
            pump.end().moved();
            pump.wake();
        }
    }

    /// Starts the device and the tunnels' thread, unless that is done.
    pub fn start(&mut self, maps: &Maps) -> Result<&Pump<AgentEnd>> {
        if self.running.is_none() {
            let device = Device::new(DEVICE, MTU)?;
            let interface = Interface::named(DEVICE)?;
            let any = UdpSocket::bind("[::]:0").or_else(|_| UdpSocket::bind("0.0.0.0:0"));
            let socket = Socket::new(any.context("cannot open the tunnels' UDP socket")?)?;
            // Before the device is up: the programs must not take the tunnel's own packets for a person's.
            maps.set_tunnel(interface.index, socket.cookie()?)?;
            route::add_address(interface.index, ADDRESS)?;
            let filter = format!("/proc/sys/net/ipv4/conf/{DEVICE}/rp_filter");
            if let Err(error) = std::fs::write(&filter, "0") {
                tracing::debug!("cannot write {filter}: {error}");
            }
            device.turn_on()?;
            self.running = Some(Pump::start(device, socket, AgentEnd::default())?);
            tracing::info!(device = DEVICE, "packets to sealed receivers go through tunnels");
        }
        self.running.as_ref().context("the tunnels' thread has just been started")
    }
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
