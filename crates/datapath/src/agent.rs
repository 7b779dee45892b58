//! The agent's programs: insertion at tc egress, and the notice of answers at tc ingress.

use crate::handed;
use crate::interface::Interface;
use crate::link::{Link, Place};
use crate::object::{self, Loaded, Opened, Pins};
use crate::protected::Protected;
use crate::run::{self, Ran};
use crate::table::Table;
use crate::tc::Attachment;
use anyhow::{Context, Result};
use libbpf_rs::{MapHandle, PerfBuffer, TC_EGRESS, TC_INGRESS, TcAttachPoint, TcHook, TcHookBuilder};
use std::fs;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use wire::map::{
    AgentConfig, AuthorityEnd, Conversation, FlowKey, GrantEntry, GrantSlot, HeldHeader, Owner, Services, TakenKey,
    agent_counter,
};

static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/agent.bpf.o"));
const PINNED: [&str; 15] = [
    "protected4",
    "protected6",
    "open4",
    "open6",
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
];
/// Where the filter stands among those of others on a kernel without TCX.
const CLSACT_PRIORITY: u32 = 0x5653;
const CLSACT_HANDLE: u32 = 1;

/// A packet that waits for its grant.
#[derive(Clone, Debug)]
pub struct Held {
    /// Whose it is, where to, and how long it was.
    pub header: HeldHeader,
    /// The frame; shorter than `header.length` if it did not fit.
    pub frame: Vec<u8>,
}

/// The programs of one interface, and the maps that all interfaces share through their pins.
pub struct Agent {
    object: Loaded,
    pins: Option<Pins>,
    attachment: Attachment,
    links: Vec<(Interface, &'static str, Link)>,
    filters: Vec<(Interface, TcHook)>,
    /// Grants ready for use.
    pub grants: Table<GrantSlot, GrantEntry>,
    /// Whose sockets are whose.
    pub owners: Table<Owner, u32>,
    /// What is protected.
    pub protected: Protected,
    /// UDP flows.
    pub conversations: Table<FlowKey, Conversation>,
    /// How many nonces of pairs were used, by the pairs' handles.
    pub ls_nonces: Table<u64, u32>,
    /// Authorities that transfer keys in band.
    pub key_authorities: Table<AuthorityEnd, u32>,
    /// Flows on which keys are taken, and when they were opened, seconds since boot.
    pub key_flows: Table<FlowKey, u32>,
    clock: Table<u32, u64>,
    nonces: Table<u32, u32>,
    injector: Table<u32, u64>,
    counters: Table<u32, u64>,
    held: MapHandle,
}

impl Agent {
    /// Loads the programs for links with this header; `cgroups` if some owner is a cgroup. With `pins`, the maps are
    /// shared with every other load and taken over from an earlier process.
    pub fn load(link_header: u32, cgroups: bool, attachment: Attachment, pins: Option<Pins>) -> Result<Self> {
        Self::load_hearing(link_header, cgroups, false, attachment, pins)
    }

    /// The same with programs that `hear`: they hand over copies of name servers' answers, too, as held packets of subject 0.
    pub fn load_hearing(
        link_header: u32,
        cgroups: bool,
        hear: bool,
        attachment: Attachment,
        pins: Option<Pins>,
    ) -> Result<Self> {
        object::log_through_tracing();
        let mut opened = Opened::new("agent", OBJECT)?;
        opened.configure(&AgentConfig {
            link_header,
            tcx: (attachment == Attachment::Tcx).into(),
            match_cgroups: cgroups.into(),
            hear: hear.into(),
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
            clock: object.table("clock")?,
            ls_nonces: object.table("ls_nonces")?,
            key_authorities: object.table("key_authorities")?,
            key_flows: object.table("key_flows")?,
            nonces: object.table("nonces")?,
            injector: object.table("injector")?,
            counters: object.table("counters")?,
            held: object.map("held")?,
            object,
            pins,
            attachment,
            links: Vec::new(),
            filters: Vec::new(),
        })
    }

    /// Attaches to `interface`; takes over what an earlier process attached.
    pub fn attach(&mut self, interface: &Interface) -> Result<()> {
        match self.attachment {
            Attachment::Tcx => {
                self.attach_tcx(interface, "insert", Place::TcxEgress, "egress")?;
                self.attach_tcx(interface, "notice", Place::TcxIngress, "ingress")
            }
            Attachment::Clsact => self.attach_clsact(interface),
        }
    }

    fn attach_tcx(&mut self, interface: &Interface, program: &str, place: Place, side: &'static str) -> Result<()> {
        let program = self.object.program(program)?;
        let pinned = self.pins.as_ref().map(|pins| pin_of(pins, interface, side));
        let link = match pinned.as_ref().and_then(|path| Link::open(path, interface.index)) {
            Some(link) => {
                link.update(program.as_fd())?;
                link
            }
            None => {
                let link = Link::attach(program.as_fd(), interface.index, place, 0)
                    .with_context(|| format!("cannot attach to {}", interface.name))?;
                if let Some(path) = &pinned {
                    // A pin of a link whose interface is gone.
                    let _ = fs::remove_file(path);
                    link.pin(path)?;
                }
                link
            }
        };
        self.links.push((interface.clone(), side, link));
        Ok(())
    }

    fn attach_clsact(&mut self, interface: &Interface) -> Result<()> {
        for (program, side) in [("insert", TC_EGRESS), ("notice", TC_INGRESS)] {
            let program = self.object.program(program)?;
            let mut hook = filter(program.as_fd(), interface, side);
            // The qdisc may be there already, ours or somebody else's.
            let _ = hook.create();
            let hook = hook.attach().with_context(|| format!("cannot attach to {}", interface.name))?;
            self.filters.push((interface.clone(), hook));
        }
        Ok(())
    }

    /// Detaches from every interface.
    pub fn detach(&mut self) {
        self.detach_from(|_| true);
    }

    /// Forgets an interface that is gone, or has another name now.
    pub fn forget(&mut self, interface: &Interface) {
        self.detach_from(|known| known == interface);
    }

    /// What is gone fails to be detached, which is what was wanted.
    fn detach_from(&mut self, chosen: impl Fn(&Interface) -> bool) {
        for (interface, side, link) in self.links.extract_if(.., |(interface, ..)| chosen(interface)) {
            link.detach();
            if let Some(pins) = &self.pins {
                let _ = fs::remove_file(pin_of(pins, &interface, side));
            }
        }
        for (_, mut filter) in self.filters.extract_if(.., |(interface, _)| chosen(interface)) {
            let _ = filter.detach();
        }
    }

    /// Makes these prefixes (address, length, services) the protected ones, and no others.
    pub fn protect(&self, entries: &[(IpAddr, u8, Services)]) -> Result<()> {
        self.protected.replace(entries)
    }

    /// Tells the programs what to add to their clock for Unix time, in nanoseconds (see [`crate::clock`]).
    pub fn set_clock(&self, offset: u64) -> Result<()> {
        self.clock.set(&0, &offset)
    }

    /// What the programs add to their clock; 0 if nobody has told them.
    pub fn clock(&self) -> Result<u64> {
        Ok(self.clock.get(&0)?.unwrap_or_default())
    }

    /// Where the nonces go on. Random at first load, so that a restart within a second repeats none.
    pub fn set_nonce(&self, nonce: u32) -> Result<()> {
        self.nonces.set(&0, &nonce)
    }

    /// The next nonce.
    pub fn nonce(&self) -> Result<u32> {
        Ok(self.nonces.get(&0)?.unwrap_or_default())
    }

    /// Lets the socket with this cookie send packets on behalf of the subject in their mark.
    pub fn set_injector(&self, cookie: u64) -> Result<()> {
        self.injector.set(&0, &cookie)
    }

    /// Packets counted so far under one of [`agent_counter`].
    pub fn count(&self, index: u32) -> Result<u64> {
        self.counters.sum_at(index)
    }

    /// Every counter, by its index.
    pub fn counts(&self) -> Result<Vec<u64>> {
        (0..agent_counter::COUNT).map(|index| self.count(index)).collect()
    }

    /// Where the packets come out that wait for a grant.
    pub fn held(&self) -> Result<HeldPackets> {
        MapHandle::try_from(&self.held).map(HeldPackets).context("cannot share the buffer of held packets")
    }

    /// The keys that came in band, by their pairs' handles.
    pub fn keys_taken(&self) -> Result<Table<u64, TakenKey>> {
        self.object.table("keys_taken")
    }

    /// What the egress program does with one frame.
    pub fn run(&self, frame: &[u8], repeat: u32) -> Result<Ran> {
        run::run(&self.object.runnable("insert")?, frame, repeat)
    }

    /// What the ingress program does with one frame.
    pub fn run_answer(&self, frame: &[u8], repeat: u32) -> Result<Ran> {
        run::run(&self.object.runnable("notice")?, frame, repeat)
    }
}

/// Where the packets of one load's programs come out that wait for a grant.
pub struct HeldPackets(MapHandle);

impl HeldPackets {
    /// Calls `each` with every packet, and `lost` with the number of those that found no room, whenever the result is
    /// polled. It covers the cores that are on: drop it and open another after that has changed.
    pub fn open(
        &self,
        mut each: impl FnMut(Held) + Send + 'static,
        lost: impl FnMut(u64) + Send + 'static,
    ) -> Result<PerfBuffer<'static>> {
        let each = move |header, frame| each(Held { header, frame });
        handed::open(&self.0, |header: &HeldHeader| header.length as usize, each, lost)
    }
}

/// Where the link of an interface's side is pinned.
fn pin_of(pins: &Pins, interface: &Interface, side: &str) -> PathBuf {
    pins.link(&format!("{}-{side}", interface.name))
}

fn filter(program: BorrowedFd<'_>, interface: &Interface, side: TcAttachPoint) -> TcHook {
    let mut builder = TcHookBuilder::new(program);
    builder.ifindex(interface.index as i32).replace(true).handle(CLSACT_HANDLE).priority(CLSACT_PRIORITY);
    builder.hook(side)
}

/// Removes the clsact filters from an interface, whichever process attached them: there is nothing of them to pin, and
/// they outlive processes by themselves.
pub fn remove_filters(interface: &Interface) -> Result<()> {
    object::log_through_tracing();
    // Neither question nor removal looks at the program.
    let nothing = std::io::stdin();
    for side in [TC_EGRESS, TC_INGRESS] {
        let mut filter = filter(nothing.as_fd(), interface, side);
        if filter.query().is_ok() {
            filter.detach().with_context(|| format!("cannot detach from {}", interface.name))?;
        }
    }
    Ok(())
}
