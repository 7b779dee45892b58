//! Rings that kernel and process share (AF_XDP): one writes, the other reads.

use anyhow::{Context, Result};
use std::ffi::c_void;
use std::marker::PhantomData;
use std::num::NonZeroUsize;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// Memory that was mapped, until it is dropped.
pub struct Mapping {
    start: NonNull<c_void>,
    length: usize,
}

impl Mapping {
    /// A socket's ring, or new memory.
    pub fn new(length: usize, ring: Option<(BorrowedFd<'_>, i64)>) -> Result<Self> {
        use nix::sys::mman::{MapFlags, ProtFlags, mmap, mmap_anonymous};
        let size = NonZeroUsize::new(length).context("nothing to map")?;
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: the kernel picks a place where nothing is.
        let start = unsafe {
            match ring {
                Some((fd, at)) => mmap(None, size, access, MapFlags::MAP_SHARED | MapFlags::MAP_POPULATE, fd, at),
                None => mmap_anonymous(None, size, access, MapFlags::MAP_PRIVATE | MapFlags::MAP_POPULATE),
            }
        };
        Ok(Self { start: start.context("cannot map memory for frames")?, length })
    }

    /// Where it begins.
    pub fn start(&self) -> NonNull<u8> {
        self.start.cast()
    }

    /// Bytes of it.
    pub fn len(&self) -> usize {
        self.length
    }

    /// What is at this distance from the start.
    fn at<T>(&self, offset: u64) -> Result<NonNull<T>> {
        let offset = usize::try_from(offset)?;
        let fits = offset.checked_add(size_of::<T>()).is_some_and(|end| end <= self.length);
        anyhow::ensure!(fits && offset % align_of::<T>() == 0, "the kernel's ring is not where it says");
        // SAFETY: it is inside what is mapped.
        Ok(unsafe { self.start.cast::<u8>().add(offset) }.cast())
    }
}

// SAFETY: it owns the memory, which is no thread's own.
unsafe impl Send for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: it was mapped so, and what points into it is dropped by then.
        let _ = unsafe { nix::sys::mman::munmap(self.start, self.length) };
    }
}

/// What is in rings: an address in the memory for frames, or that and a length.
pub trait Entry: Copy {}
impl Entry for u64 {}
impl Entry for libc::xdp_desc {}

/// A ring of `T`, of which this process writes one end.
pub struct Ring<T> {
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    entries: NonNull<T>,
    /// Their number, a power of two, less one.
    mask: u32,
    /// Of our own end: nobody else writes it.
    own: u32,
    _mapping: Mapping,
    types: PhantomData<T>,
}

// SAFETY: it points into memory that it owns, and changes its own end only where it is borrowed for that.
unsafe impl<T: Entry> Send for Ring<T> {}

impl<T: Entry> Ring<T> {
    /// Maps a socket's ring of `size` entries, a power of two.
    pub fn new(fd: BorrowedFd<'_>, at: i64, size: u32, offsets: &libc::xdp_ring_offset) -> Result<Self> {
        let length = usize::try_from(offsets.desc)? + size as usize * size_of::<T>();
        let mapping = Mapping::new(length, Some((fd, at)))?;
        let (producer, consumer) = (mapping.at(offsets.producer)?, mapping.at(offsets.consumer)?);
        let entries = mapping.at(offsets.desc)?;
        Ok(Self { producer, consumer, entries, mask: size - 1, own: 0, _mapping: mapping, types: PhantomData })
    }

    fn ends(&self) -> (&AtomicU32, &AtomicU32) {
        // SAFETY: both are aligned in what is mapped as long as this lives; both sides use them as atomics only.
        unsafe { (self.producer.as_ref(), self.consumer.as_ref()) }
    }

    /// How many more the kernel would find room for, of a ring that we write.
    pub fn room(&self) -> u32 {
        let (_, consumer) = self.ends();
        self.mask + 1 - self.own.wrapping_sub(consumer.load(Ordering::Acquire))
    }

    /// How many the kernel has not yet read, of a ring that we write.
    pub fn unread(&self) -> u32 {
        self.mask + 1 - self.room()
    }

    /// Writes entries; there has to be room. The kernel sees them together.
    pub fn put(&mut self, entries: impl IntoIterator<Item = T>) {
        for entry in entries {
            assert!(self.room() > 0, "a ring is never filled beyond its room");
            // SAFETY: masked, it is one of the ring's entries, and the kernel does not read it before the producer moves.
            unsafe { self.entries.add((self.own & self.mask) as usize).write(entry) };
            self.own = self.own.wrapping_add(1);
        }
        let (producer, _) = self.ends();
        producer.store(self.own, Ordering::Release);
    }

    /// Reads up to `most` entries of a ring that the kernel writes.
    pub fn take(&mut self, most: u32, mut each: impl FnMut(T)) {
        let (producer, _) = self.ends();
        let count = producer.load(Ordering::Acquire).wrapping_sub(self.own).min(most).min(self.mask + 1);
        for _ in 0..count {
            // SAFETY: masked, it is one of the ring's entries, and the kernel does not write it before the consumer moves.
            each(unsafe { self.entries.add((self.own & self.mask) as usize).read() });
            self.own = self.own.wrapping_add(1);
        }
        let (_, consumer) = self.ends();
        consumer.store(self.own, Ordering::Release);
    }
}
