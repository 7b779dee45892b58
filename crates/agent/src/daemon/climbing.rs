//! The ladder in the daemon's loop. The kernel program passes a copy of each first packet to the daemon. If the first
//! packet gets no answer in time, the daemon sends the copy in another way (by the next *rung*).

use super::Daemon;
use engine::agent::Subject;
use reach::protocol::{Rung as Shown, RungState};
use wire::Destination;

#[cfg(feature = "seal")]
pub(super) use with_tunnels::Climbing;

#[cfg(feature = "seal")]
mod with_tunnels {
    use super::*;
    use crate::ladder_file::{self, Kept, Pace};
    use crate::network::{Follower, Gateway};
    use crate::packet_queue::QueuedPacket;
    use crate::{now, unix};
    use engine::agent::Frame;
    use engine::agent::ladder::{FirstRung, Ladder, Network, Path, Rung, Side, State};
    use shell::folder::Folder;
    use std::collections::{BTreeMap, BTreeSet};
    use std::net::SocketAddr;
    use std::time::Duration;
    use tokio::task::{JoinHandle, spawn_blocking};
    use wire::map::{self, FirstPacket, FlowKey, GrantEntry, GrantSlot, Steered};
    use wire::packet::{Packet, TCP};
    use wire::{Carrier, Flags, GrantHeader};

    /// The daemon's state for the ladder.
    #[derive(Default)]
    pub struct Climbing {
        ladder: Ladder<First>,
        network: Follower,
        /// The gateway in the ladder's file.
        stored: Option<Gateway>,
        pace: Pace,
        /// The latest write to the file.
        writing: Option<JoinHandle<()>>,
        /// Destinations for which an earlier process of the agent had more than one rung.
        inherited: BTreeSet<GrantSlot>,
        /// Destinations with more than one rung.
        placed: BTreeMap<GrantSlot, Placed>,
    }

    impl Climbing {
        /// Reports whether the file lacks results that the agent has learned.
        fn has_news(&self) -> bool {
            self.ladder.has_news() || self.network.gateway() != self.stored.as_ref()
        }

        /// Returns the new content of the file. From then on, this content counts as written.
        fn keep(&mut self) -> Kept {
            self.stored = self.network.gateway().cloned();
            let paths = self.ladder.keep(now(), unix());
            Kept { gateway: self.stored.clone(), network: self.ladder.network().0, paths }
        }
    }

    /// The first packet of a connection.
    #[derive(Clone)]
    struct First {
        slot: GrantSlot,
        flow: FlowKey,
        /// The SYN's sequence number.
        sequence: u32,
        frame: Frame,
    }

    impl First {
        /// Reports whether the kernel's entry is about this packet. The entry may belong to a connection of another
        /// subject that has the same ports now.
        fn is(&self, known: &FirstPacket) -> bool {
            (known.subject, known.sequence) == (self.slot.subject, self.sequence)
        }
    }

    /// A destination with more than one rung.
    struct Placed {
        verifier: SocketAddr,
        /// The rung in the kernel's table with which connections to the destination begin.
        written: Option<FirstRung>,
    }

    impl Daemon {
        /// Determines which rungs a destination has. Called when the kernel has a grant for the destination.
        pub(in crate::daemon) fn note_rungs(&mut self, slot: &GrantSlot, entry: &GrantEntry) {
            let Some(subject) = self.agent.holder(slot) else { return };
            let tunnel = self.sealing.sealed().alternative(subject, slot.destination());
            let verifier = tunnel.or_else(|| self.without_tunnel(slot, entry));
            match verifier.filter(|_| has_rungs(slot, entry)) {
                Some(verifier) => {
                    let written = self.climbing.placed.get(slot).and_then(|placed| placed.written);
                    self.climbing.placed.insert(*slot, Placed { verifier, written });
                    self.write_rung(slot);
                }
                None => self.forget_rungs(slot),
            }
        }

        /// Returns the address that stands for the verifier of a destination to which no tunnel leads: the
        /// destination's own address, with port 0. Returns `None` if the destination has no second rung.
        fn without_tunnel(&self, slot: &GrantSlot, entry: &GrantEntry) -> Option<SocketAddr> {
            let header = GrantHeader::decode(&entry.header).ok()?;
            let may = self.kernel.turns_segments() && !header.flags.has(Flags::SEALED);
            may.then(|| SocketAddr::new(slot.destination().address, 0))
        }

        pub(in crate::daemon) fn forget_rungs(&mut self, slot: &GrantSlot) {
            if self.climbing.placed.remove(slot).is_some()
                && let Err(error) = self.kernel.maps().ladders.remove(slot)
            {
                tracing::error!("cannot remove a destination from the kernel's ladder: {error:#}");
            }
        }

        pub(in crate::daemon) fn forget_ladder(&mut self, subject: Subject) {
            // The organisations of a user share the ladder's memory.
            let is_other = |other: &Subject| other.number() == subject.number() && *other != subject;
            if !self.connections.keys().any(is_other) {
                self.climbing.ladder.forget(subject.in_organisation(0));
            }
        }

        fn path(&self, slot: &GrantSlot) -> Option<Path> {
            let verifier = self.climbing.placed.get(slot)?.verifier;
            let (subject, network) = (subject_of(slot)?, self.climbing.ladder.network());
            Some(Path { subject, network, verifier, ipv6: slot.family == 6 })
        }

        /// Tells the kernel program the rung by which connections to a destination begin.
        fn write_rung(&mut self, slot: &GrantSlot) {
            let Some(path) = self.path(slot) else { return };
            let choice = self.climbing.ladder.first_rung(now(), &path);
            if self.climbing.placed.get(slot).is_none_or(|placed| placed.written == Some(choice)) {
                return;
            }
            let entry = map::Ladder { rung: choice.rung as u32, every: choice.every, ..map::Ladder::default() };
            let ready = if choice.rung == Rung::Tunnel { self.open_way(slot) } else { Ok(()) };
            match ready.and_then(|()| self.kernel.maps().ladders.set(slot, &entry)) {
                Ok(()) => {
                    self.climbing.placed.entry(*slot).and_modify(|placed| placed.written = Some(choice));
                }
                Err(error) => {
                    tracing::error!(to = ?slot.destination(), "cannot store in the kernel the rung with which \
                                                               connections begin: {error:#}");
                }
            }
        }

        fn write_rungs(&mut self) {
            for slot in self.climbing.placed.keys().copied().collect::<Vec<_>>() {
                self.write_rung(&slot);
            }
        }

        /// Prepares the tunnel for packets to a destination.
        fn open_way(&mut self, slot: &GrantSlot) -> anyhow::Result<()> {
            let Some(subject) = self.agent.holder(slot) else { return Ok(()) };
            self.sealing.sealed_mut().take(self.kernel.maps(), subject, slot.destination())?;
            self.request_tunnels();
            Ok(())
        }

        /// Handles the copy of a first packet that the kernel program has sent. Returns the packet if it is not such a
        /// copy.
        pub(in crate::daemon) fn sent(&mut self, packet: QueuedPacket) -> Option<QueuedPacket> {
            let Some(frame) = packet.frame.as_ref().filter(|frame| u32::from(frame.wish()) & Steered::LADDER != 0)
            else {
                return Some(packet);
            };
            let rung = match u32::from(frame.wish()) {
                wish if wish & Steered::TREATMENT != 0 => Rung::Tunnel,
                wish if wish & Steered::FAST_OPEN != 0 => Rung::FastOpen,
                wish if wish & Steered::DATAGRAM != 0 => Rung::TcpInUdp,
                _ => Rung::Packet,
            };
            let parsed = Packet::parse(frame.bytes());
            let (flow, sequence) = (FlowKey::to_server(&parsed)?, parsed.sequence);
            let first = First { slot: packet.slot, flow, sequence, frame: frame.clone() };
            let same = |other: &First| {
                (other.flow, other.sequence, other.slot.subject) == (flow, sequence, first.slot.subject)
            };
            match self.climbing.ladder.repeated(rung, same) {
                Some(rungs) => rungs.into_iter().for_each(|rung| self.send_by(rung, &first)),
                None => {
                    if let Some(path) = self.path(&first.slot) {
                        self.climbing.ladder.watch(now(), path, rung, first);
                        self.write_rung(&packet.slot);
                    }
                }
            }
            None
        }

        fn send_by(&mut self, rung: Rung, first: &First) {
            let Some(subject) = subject_of(&first.slot) else { return };
            let wish = match rung {
                Rung::Packet => Steered::OUTSIDE,
                Rung::FastOpen => Steered::OUTSIDE | Steered::FAST_OPEN,
                Rung::TcpInUdp => Steered::OUTSIDE | Steered::DATAGRAM,
                Rung::Tunnel => Steered::LADDER | Steered::LADDER_TREATMENT,
            };
            if rung == Rung::Tunnel
                && let Err(error) = self.open_way(&first.slot)
            {
                tracing::warn!(to = ?first.slot.destination(), "cannot send the first packet again through the \
                                                                tunnel: {error:#}");
                return;
            }
            tracing::debug!(to = ?first.slot.destination(), rung = rung.name(), "no answer yet: sent the first packet again");
            self.kernel.send(subject, &first.frame.clone().asking(wish as u16));
        }

        /// Removes the ladder entries that an earlier process left in the kernel, because the tunnels of that process
        /// are gone and no process watches its connections. Loads what that process has learned about paths.
        pub(in crate::daemon) fn restore_ladder(&mut self) {
            let mut inherited = BTreeSet::new();
            let ladders = &self.kernel.maps().ladders;
            for slot in ladders.keys() {
                if let Err(error) = ladders.remove(&slot) {
                    tracing::error!("cannot remove a destination from the kernel's ladder: {error:#}");
                }
                inherited.insert(slot);
            }
            let Kept { gateway, network, paths } = ladder_file::load(self.sessions.folder());
            let network = Network(network);
            let is_user = |uid| self.kept.get(&uid).is_some_and(|kept| kept.has_session());
            self.climbing.ladder.take_over((now(), unix()), network, &paths, is_user);
            self.climbing.ladder.allow_tcp_in_udp(self.kernel.turns_segments());
            self.climbing.network = Follower::resume(gateway.clone(), network);
            self.climbing.stored = gateway;
            self.climbing.inherited = inherited;
            self.follow_network();
        }

        /// Renews the grants of destinations for which an earlier process had several rungs. The renewal is necessary
        /// because only an answer of the authority names the tunnel of such a destination.
        pub(in crate::daemon) fn renew_for_ladder(&mut self, entries: &[(GrantSlot, GrantEntry)]) {
            let (mut renewed, climbed) = (BTreeSet::new(), std::mem::take(&mut self.climbing.inherited));
            for (slot, entry) in entries.iter().filter(|(slot, _)| climbed.contains(slot)) {
                if let Some(subject) = self.agent.holder(slot)
                    && renewed.insert((slot.subject, entry.header))
                {
                    self.agent.renew_early(subject, slot.destination());
                }
            }
        }

        /// Writes the ladder's results to the file, unless the file was written too often recently. The caller calls
        /// this method every second. A separate thread writes to the disk, so that no packet waits for it.
        pub(in crate::daemon) fn store_ladder(&mut self) {
            let climbing = &mut self.climbing;
            let is_writing = climbing.writing.as_ref().is_some_and(|writing| !writing.is_finished());
            if is_writing || !climbing.has_news() || !climbing.pace.may_write(now()) {
                return;
            }
            let (folder, kept) = (self.sessions.folder().clone(), climbing.keep());
            climbing.writing = Some(spawn_blocking(move || save(&folder, &kept)));
        }

        /// Writes the ladder's results to the file. The caller calls this method when the process ends.
        pub(in crate::daemon) async fn store_ladder_at_end(&mut self) {
            // An earlier write must not replace the file after this one.
            if let Some(writing) = self.climbing.writing.take() {
                let _ = writing.await;
            }
            if self.climbing.has_news() {
                let kept = self.climbing.keep();
                save(self.sessions.folder(), &kept);
            }
        }

        /// Returns the time at which the caller has to call [`Self::climb`]; `None` if no call is needed.
        pub(in crate::daemon) fn climbs_at(&self) -> Option<Duration> {
            self.climbing.ladder.timeout()
        }

        /// Sends each first packet whose time has come by its next rung, and records which first packets were answered.
        /// Does nothing before the time that [`Self::climbs_at`] returns.
        pub(in crate::daemon) fn climb(&mut self) {
            if self.climbs_at().is_some_and(|at| at <= now()) {
                self.climb_now();
            }
        }

        fn climb_now(&mut self) {
            let table = &self.kernel.maps().first_packets;
            // Connections of other users may have pushed an answered connection out of the table. The packets of the
            // answered connection must not be sent again.
            self.climbing.ladder.lose(|first| !matches!(table.get(&first.flow), Ok(Some(known)) if first.is(&known)));
            let heard = |first: &First, side: Side| {
                let known = table.get(&first.flow).ok().flatten().filter(|known| first.is(known))?;
                let at = match side {
                    Side::Outside => known.outside,
                    Side::Datagrams => known.datagram,
                    Side::Inside => known.inside,
                };
                (at != 0).then(|| Duration::from_nanos(at))
            };
            let due = self.climbing.ladder.tick(now(), heard);
            due.iter().for_each(|(rung, first)| self.send_by(*rung, first));
            self.write_rungs();
        }

        /// Follows changes of the network. The caller calls this method every second.
        pub(in crate::daemon) fn follow_network(&mut self) {
            let network = self.climbing.network.look();
            if self.climbing.ladder.moved(network) {
                tracing::debug!("the network has changed: connections begin with the first rung again");
            }
            self.write_rungs();
        }

        pub(in crate::daemon) fn rungs(&mut self, subject: Subject, to: Destination) -> Vec<Shown> {
            self.climb_now();
            let Some(path) = self.path(&subject.slot(&to)) else { return only() };
            let shown = |(rung, state): (Rung, State)| {
                let (state, begins_again) = match state {
                    State::Works => (RungState::Works, None),
                    State::Blocked(left) => (RungState::Blocked, Some(left.as_secs())),
                    State::NotTried => (RungState::NotTried, None),
                };
                Shown { name: rung.name().to_owned(), state, begins_again }
            };
            let ladder = &self.climbing.ladder;
            let has = |rung: Rung| ladder.rungs(&path).any(|one| one == rung);
            ladder.states(now(), &path).into_iter().filter(|(rung, _)| has(*rung)).map(shown).collect()
        }
    }

    fn save(folder: &Folder, kept: &Kept) {
        if let Err(error) = ladder_file::save(folder, kept) {
            tracing::warn!("cannot save the ladder's results for the next start: {error:#}");
        }
    }

    /// Reports whether first packets to a destination can travel by several rungs. In a tunnel, verifiers take tokens
    /// by the carrier `tail` only (wire.md §6.11.1).
    fn has_rungs(slot: &GrantSlot, entry: &GrantEntry) -> bool {
        entry.plain == 0 && entry.carrier == Carrier::Tail as u8 && slot.protocol == TCP
    }

    fn subject_of(slot: &GrantSlot) -> Option<Subject> {
        slot.subject.checked_sub(1).map(Subject::of_user)
    }
}

/// Returns the rungs of a destination that has only one: the first packet itself.
fn only() -> Vec<Shown> {
    vec![Shown { name: "packet".to_owned(), state: RungState::NotTried, begins_again: None }]
}

#[cfg(not(feature = "seal"))]
#[allow(clippy::unused_self)]
impl Daemon {
    pub(super) fn rungs(&mut self, _: Subject, _: Destination) -> Vec<Shown> {
        only()
    }
}
