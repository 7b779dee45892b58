//! Sends forged packets as fast as the kernel can. Each packet differs from all others. The soak test uses this module.

use crate::interface::Interface;
use crate::object::{self, Loaded, Opened};
use crate::run;
use anyhow::{Context, Result, ensure};
use zerocopy::{FromBytes, Immutable, IntoBytes};

static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/forger.bpf.o"));
/// Maximum number of fields in one kind of frame.
const FIELDS: usize = 24;
/// Largest offset in a frame that the program can reach.
const LAST_OFFSET: usize = 254;

/// Two bytes of a frame that get random content in each variant of the frame.
#[derive(Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes)]
#[repr(C)]
pub struct Field {
    /// Offset from the start of the Ethernet header.
    pub at: u16,
    /// The bits that become random; the bytes are in the order of the frame.
    pub mask: [u8; 2],
    /// The number of an earlier field whose content this field repeats, counted from 1; 0 for none.
    pub twin: u16,
    /// Offsets of the checksums that cover this field; 0 for none.
    pub checksums: [u16; 2],
}

#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes)]
#[repr(C)]
struct Plan {
    interface: u32,
    fields: u32,
    sent: u64,
    field: [Field; FIELDS],
}

/// The loaded program that sends forged packets.
pub struct Forger(Loaded);

impl Forger {
    /// Loads the program that sends forged packets.
    ///
    /// # Errors
    ///
    /// Fails if the kernel rejects the program.
    pub fn load() -> Result<Self> {
        object::log_through_tracing();
        Opened::new("forger", OBJECT)?.load("forger").map(Self)
    }

    /// Sends `count` variants of `frame` through `interface`, which must be in the caller's network namespace. Returns
    /// the number of frames that were passed to the interface. If the interface is a veth interface, the other end may
    /// have dropped some of the frames, because its queue was full.
    ///
    /// # Errors
    ///
    /// Fails if there are too many fields, if a field is outside of the frame, or if the kernel does not run the
    /// program.
    pub fn send(&self, interface: &Interface, frame: &[u8], fields: &[Field], count: u32) -> Result<u64> {
        ensure!(fields.len() <= FIELDS, "a forged frame has at most {FIELDS} random fields, not {}", fields.len());
        for field in fields {
            let last = field.checksums.iter().chain([&field.at]).map(|at| usize::from(*at) + 2).max().unwrap_or(0);
            ensure!(last <= frame.len().min(LAST_OFFSET + 2), "a field ends at {last}, outside the frame");
        }
        let mut plan = Plan {
            interface: interface.index,
            fields: fields.len().try_into().context("few fields")?,
            sent: 0,
            field: [Field::default(); FIELDS],
        };
        plan.field[..fields.len()].copy_from_slice(fields);
        let plans = self.0.table::<u32, Plan>("plans")?;
        plans.set(&0, &plan)?;
        run::run_live(&self.0.runnable("forge")?, frame, count)?;
        Ok(plans.get(&0)?.context("the kernel map of the forger has no entry")?.sent)
    }
}
