//! The agent's kernel programs. At tc egress, one program puts tokens into packets; at tc ingress, another records
//! answers.

use crate::attachments::{Attachments, Pins, Spot, remove_filter};
use crate::handed;
use crate::interface::Interface;
use crate::object::{self, Loaded, Opened};
use crate::protected::{Protected, Sealed};
use crate::run::{self, Ran};
use crate::table::Table;
use crate::tc::Attachment;
use crate::tcp_in_udp::Devices;
use anyhow::{Context, Result};
use libbpf_rs::{MapHandle, PerfBuffer};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use wire::map::{
    AgentConfig, AuthorityEnd, Conversation, DatagramFlow, FirstPacket, FlowKey, GrantEntry, GrantSlot, HelpingDevices,
    Ladder, Owner, QueuedHeader, Services, Steered, Steering, TakenKey, agent_counter,
};

static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/agent.bpf.o"));
const PINNED: [&str; 25] = [
    "protected4",
    "protected6",
    "open4",
    "open6_networks",
    "open6_addresses",
    "clock",
    "nonces",
    "ls_nonces",
    "owners",
    "grants",
    "conversations",
    "injector",
    "counters",
    "key_authorities",
    "key_flows",
    "keys_taken",
    "steering",
    "sealed4",
    "sealed6",
    "wishes",
    "steered_flows",
    "ladders",
    "first_packets",
    "helping",
    "datagram_flows",
];
const SPOTS: [Spot; 2] = [Spot::Insertion, Spot::Notice];

/// A packet that is queued until its grant arrives.
#[derive(Clone, Debug)]
pub struct Queued {
    /// Subject and destination of the packet, and its original length in bytes.
    pub header: QueuedHeader,
    /// The frame. It is shorter than `header.length` if it did not fit into the buffer.
    pub frame: Vec<u8>,
}

/// The programs of one interface, and the maps that all interfaces share through their pins.
pub struct Agent {
    object: Loaded,
    attachments: Attachments,
    /// The entries for grants that can be used now, by subject and destination.
    pub grants: Table<GrantSlot, GrantEntry>,
    /// Numbers of subjects, by the owner of a packet's socket.
    pub owners: Table<Owner, u32>,
    /// The maps of the protected prefixes.
    pub protected: Protected,
    /// The agent's state of UDP flows, by flow.
    pub conversations: Table<FlowKey, Conversation>,
    /// The number of used nonces of each pair, by the handle of the pair.
    pub ls_nonces: Table<u64, u32>,
    /// The addresses and ports of authorities that transfer keys in band. The values have no meaning.
    pub key_authorities: Table<AuthorityEnd, u32>,
    /// Flows in which the agent accepts keys in band. The value is the time when the flow was opened, in seconds since
    /// boot.
    pub key_flows: Table<FlowKey, u32>,
    /// For each sender, the treatment for which the sender asks, in the form of [`Steered::wish`].
    pub wishes: Table<Owner, u32>,
    /// The rungs by which connections begin, by subject and destination.
    pub ladders: Table<GrantSlot, Ladder>,
    /// The times at which first packets of connections were sent and answered, by flow.
    pub first_packets: Table<FlowKey, FirstPacket>,
    /// TCP connections whose SYN has left in a UDP datagram.
    pub datagram_flows: Table<FlowKey, DatagramFlow>,
    helping: Table<u32, HelpingDevices>,
    sealed: Sealed,
    steering: Table<u32, Steering>,
    clock: Table<u32, u64>,
    nonces: Table<u32, u32>,
    injector: Table<u32, u64>,
    counters: Table<u32, u64>,
    queued: MapHandle,
}

impl Agent {
    /// Loads the programs for links whose header has `link_header` bytes. `cgroups` states whether any owner in the
    /// table of owners is a cgroup. With `pins`, the programs use the pinned maps, and thus share them with the
    /// programs for other links and with earlier processes.
    ///
    /// # Errors
    ///
    /// Fails if the kernel rejects a program, or a map can't be made or taken over.
    pub fn load(link_header: u32, cgroups: bool, attachment: Attachment, pins: Option<Pins>) -> Result<Self> {
        Self::load_overhearing(link_header, cgroups, false, attachment, pins)
    }

    /// Loads the programs like [`Self::load`]. If `overhear`, the programs also pass copies of name servers' answers to
    /// user space, as queued packets of subject 0.
    ///
    /// # Errors
    ///
    /// Fails if the kernel rejects a program, or a map can't be made or taken over.
    pub fn load_overhearing(
        link_header: u32,
        cgroups: bool,
        overhear: bool,
        attachment: Attachment,
        pins: Option<Pins>,
    ) -> Result<Self> {
        object::log_through_tracing();
        let mut opened = Opened::new("agent", OBJECT)?;
        opened.configure(&AgentConfig {
            link_header,
            tcx: (attachment == Attachment::Tcx).into(),
            match_cgroups: cgroups.into(),
            overhear: overhear.into(),
        })?;
        if let Some(pins) = &pins {
            opened.pin(pins, &PINNED)?;
        }
        let object = opened.load("agent")?;
        Ok(Self {
            grants: object.table("grants")?,
            owners: object.table("owners")?,
            protected: Protected::new(&object)?,
            conversations: object.table("conversations")?,
            wishes: object.table("wishes")?,
            ladders: object.table("ladders")?,
            first_packets: object.table("first_packets")?,
            datagram_flows: object.table("datagram_flows")?,
            helping: object.table("helping")?,
            sealed: Sealed::new(&object)?,
            steering: object.table("steering")?,
            clock: object.table("clock")?,
            ls_nonces: object.table("ls_nonces")?,
            key_authorities: object.table("key_authorities")?,
            key_flows: object.table("key_flows")?,
            nonces: object.table("nonces")?,
            injector: object.table("injector")?,
            counters: object.table("counters")?,
            queued: object.map("queued")?,
            object,
            attachments: Attachments::by(attachment, pins),
        })
    }

    /// Attaches to `interface`, or takes over the attachment of an earlier process.
    ///
    /// # Errors
    ///
    /// Fails if the kernel does not attach a program, or if the attachment can't be pinned.
    pub fn attach(&mut self, interface: &Interface) -> Result<()> {
        for spot in SPOTS {
            let program = self.object.program(spot.program())?;
            self.attachments.attach(program.as_fd(), interface, spot)?;
            self.attachments.pin()?;
        }
        Ok(())
    }

    /// Attaches the program that turns TCP segments from these devices into UDP datagrams, and lets TCP connections
    /// travel as datagrams.
    ///
    /// # Errors
    ///
    /// Fails if the kernel does not attach the program, or refuses access to a map.
    pub fn turn_segments(&mut self, devices: &Devices) -> Result<()> {
        let program = self.object.program(Spot::Reordering.program())?;
        self.attachments.attach(program.as_fd(), &devices.back, Spot::Reordering)?;
        self.attachments.pin()?;
        self.set_helping_devices(&HelpingDevices { out: devices.out.index, back: devices.back.index })
    }

    /// Sets the devices through which TCP segments pass before they become UDP datagrams. If the indices in `devices`
    /// are 0, no connection travels as datagrams.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses access to a map.
    pub fn set_helping_devices(&self, devices: &HelpingDevices) -> Result<()> {
        self.helping.set(&0, devices)
    }

    /// Detaches from every interface.
    pub fn detach(&mut self) {
        self.attachments.detach();
    }

    /// Detaches from an interface that was renamed or no longer exists.
    pub fn forget(&mut self, interface: &Interface) {
        SPOTS.iter().for_each(|spot| self.attachments.forget(&interface.name, *spot));
    }

    /// Protects exactly these prefixes, in place of the prefixes protected before. An entry consists of address, prefix
    /// length and services.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses access to a map.
    pub fn protect(&self, entries: &[(IpAddr, u8, Services)]) -> Result<()> {
        self.protected.replace(entries)
    }

    /// Seals exactly these prefixes, in place of the prefixes sealed before: the programs steer packets to these
    /// prefixes into a sealed tunnel, or drop them. An entry consists of address, prefix length and services. All
    /// entries must be protected, too.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses access to a map.
    pub fn seal(&self, entries: &[(IpAddr, u8, Services)]) -> Result<()> {
        if !entries.is_empty() {
            // Before the first entry, so that no packet passes in between.
            let steering = Steering { seals: 1, ..self.steering()? };
            self.steering.set(&0, &steering)?;
        }
        self.sealed.replace(entries)
    }

    /// Returns the sealed prefixes, as [`Self::seal`] set them.
    pub fn sealed(&self) -> Vec<(IpAddr, u8, Services)> {
        self.sealed.entries()
    }

    /// Returns the state by which the programs decide which packets they steer into sealed tunnels.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses access to a map.
    pub fn steering(&self) -> Result<Steering> {
        Ok(self.steering.get(&0)?.unwrap_or_default())
    }

    /// Sets the index of the device through which packets enter sealed tunnels, and the cookie of the socket through
    /// which the tunnels send. As long as no device is set, packets that have to travel in a tunnel are dropped.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses access to a map.
    pub fn set_tunnel(&self, device: u32, cookie: u64) -> Result<()> {
        let steering = Steering { device, cookie, ..self.steering()? };
        self.steering.set(&0, &steering)
    }

    /// Sets [`Steering::asks`], which determines whether the programs look up the treatments that senders ask for.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses access to a map.
    pub fn set_asks(&self, asks: u32) -> Result<()> {
        let steering = Steering { asks, seals: 1, ..self.steering()? };
        self.steering.set(&0, &steering)
    }

    /// Returns the table of flows that the programs steer into sealed tunnels.
    ///
    /// # Errors
    ///
    /// Fails if there is no such map, or if its keys or values do not have the size of the types in the result.
    pub fn steered_flows(&self) -> Result<Table<FlowKey, Steered>> {
        self.object.table("steered_flows")
    }

    /// Sets the offset from the programs' clock to Unix time, in nanoseconds (see [`crate::clock`]).
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses access to a map.
    pub fn set_clock(&self, offset: u64) -> Result<()> {
        self.clock.set(&0, &offset)
    }

    /// Returns the offset that the programs add to their clock; 0 if none was set.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses access to a map.
    pub fn clock(&self) -> Result<u64> {
        Ok(self.clock.get(&0)?.unwrap_or_default())
    }

    /// Sets the nonce for the next token. When the maps are new, the caller sets a random nonce, so that no nonce
    /// repeats after a restart within the same second.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses access to a map.
    pub fn set_nonce(&self, nonce: u32) -> Result<()> {
        self.nonces.set(&0, &nonce)
    }

    /// Returns the nonce for the next token.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses access to a map.
    pub fn nonce(&self) -> Result<u32> {
        Ok(self.nonces.get(&0)?.unwrap_or_default())
    }

    /// Allows the socket with this cookie to send packets on behalf of the subject whose number is in the mark of each
    /// packet.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses access to a map.
    pub fn set_injector(&self, cookie: u64) -> Result<()> {
        self.injector.set(&0, &cookie)
    }

    /// Returns the value of a counter; `index` is one of [`agent_counter`].
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses access to a map.
    pub fn count(&self, index: u32) -> Result<u64> {
        self.counters.sum_at(index)
    }

    /// Returns all counters. The position of a counter is its index in [`agent_counter`].
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses access to a map.
    pub fn counts(&self) -> Result<Vec<u64>> {
        self.counters.sums(agent_counter::COUNT)
    }

    /// Returns the buffer of packets that are queued until their grants arrive.
    ///
    /// # Errors
    ///
    /// Fails if the buffer can't be opened.
    pub fn queued(&self) -> Result<QueuedPackets> {
        MapHandle::try_from(&self.queued).map(QueuedPackets).context("cannot open the buffer of queued packets")
    }

    /// Returns the table of client keys that arrived in band, by the handles of their pairs.
    ///
    /// # Errors
    ///
    /// Fails if there is no such map, or if its keys or values do not have the size of the types in the result.
    pub fn keys_taken(&self) -> Result<Table<u64, TakenKey>> {
        self.object.table("keys_taken")
    }

    /// Runs the egress program `repeat` times on one frame, without sending it.
    ///
    /// # Errors
    ///
    /// Fails if the kernel does not run the program.
    pub fn run(&self, frame: &[u8], repeat: u32) -> Result<Ran> {
        run::run(&self.object.runnable(Spot::Insertion.program())?, frame, repeat)
    }

    /// Runs the program that turns TCP segments into UDP datagrams on one frame, without sending it.
    ///
    /// # Errors
    ///
    /// Fails if the kernel does not run the program.
    pub fn run_reordering(&self, frame: &[u8]) -> Result<Ran> {
        run::run(&self.object.runnable(Spot::Reordering.program())?, frame, 1)
    }

    /// Runs the ingress program `repeat` times on one frame, without delivering it.
    ///
    /// # Errors
    ///
    /// Fails if the kernel does not run the program.
    pub fn run_answer(&self, frame: &[u8], repeat: u32) -> Result<Ran> {
        run::run(&self.object.runnable(Spot::Notice.program())?, frame, repeat)
    }
}

/// The buffer of the programs of one [`Agent`]. Through it, the programs pass to user space the packets that have to
/// wait for a grant.
pub struct QueuedPackets(MapHandle);

impl QueuedPackets {
    /// Opens the buffer for reading. Whenever the caller reads it, `each` is called with every packet in the buffer,
    /// and `lost` with the number of packets that did not fit into it. The result covers only the cores that are online
    /// now. When other cores are online, the caller has to drop the result and open the buffer again.
    ///
    /// # Errors
    ///
    /// Fails if the buffer can't be opened.
    pub fn open(
        &self,
        mut each: impl FnMut(Queued) + Send + 'static,
        lost: impl FnMut(u64) + Send + 'static,
    ) -> Result<QueueBuffer> {
        let each = move |header, frame| each(Queued { header, frame });
        handed::open(&self.0, |header: &QueuedHeader| header.length as usize, each, lost).map(QueueBuffer)
    }
}

/// An open buffer of queued packets.
pub struct QueueBuffer(PerfBuffer<'static>);

impl QueueBuffer {
    /// Reads the packets that are in the buffer.
    ///
    /// # Errors
    ///
    /// Fails if the kernel's memory of the buffer is damaged.
    pub fn consume(&self) -> Result<()> {
        self.0.consume().context("cannot read the buffer of queued packets")
    }

    /// Returns a descriptor that becomes readable when a packet comes.
    ///
    /// # Errors
    ///
    /// Fails if the process has too many open files.
    pub fn ready(&self) -> Result<OwnedFd> {
        // SAFETY: the buffer keeps its descriptor open for longer than this call.
        let events = unsafe { BorrowedFd::borrow_raw(self.0.epoll_fd()) };
        events.try_clone_to_owned().context("cannot wait for queued packets")
    }
}

/// Returns the name of the interface to which the pinned link with the name `link` is attached.
pub fn interface_of(link: &str) -> &str {
    link.rsplit_once('-').map_or(link, |(interface, _)| interface)
}

/// Removes the clsact filters of agents from an interface, whichever process attached them. Such filters can't be
/// pinned, and stay when the process that attached them ends.
///
/// # Errors
///
/// Fails if a filter can't be removed.
pub fn remove_filters(interface: &Interface) -> Result<()> {
    object::log_through_tracing();
    SPOTS.iter().try_for_each(|spot| remove_filter(interface, *spot))
}
