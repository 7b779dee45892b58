//! Rings that the kernel and this process share (AF_XDP). One of the two writes entries, and the other reads them.

use anyhow::{Context, Result};
use std::ffi::c_void;
use std::marker::PhantomData;
use std::num::NonZeroUsize;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// Mapped memory. It is unmapped when this value is dropped.
pub struct Mapping {
    start: NonNull<c_void>,
    length: usize,
}

impl Mapping {
    /// Maps a socket's ring if `ring` is given, otherwise new memory.
    ///
    /// # Errors
    ///
    /// Fails if the kernel does not map the memory.
    pub fn new(length: usize, ring: Option<(BorrowedFd<'_>, i64)>) -> Result<Self> {
        use nix::sys::mman::{MapFlags, ProtFlags, mmap, mmap_anonymous};
        let size = NonZeroUsize::new(length).context("cannot map zero bytes")?;
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: the kernel picks an unused address range.
        let start = unsafe {
            match ring {
                Some((fd, at)) => mmap(None, size, access, MapFlags::MAP_SHARED | MapFlags::MAP_POPULATE, fd, at),
                None => mmap_anonymous(None, size, access, MapFlags::MAP_PRIVATE | MapFlags::MAP_POPULATE),
            }
        };
        Ok(Self { start: start.context("cannot map memory for frames")?, length })
    }

    /// Returns the address at which the mapped memory starts.
    pub fn start(&self) -> NonNull<u8> {
        self.start.cast()
    }

    /// Returns the length of the memory in bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Returns a pointer at this offset from the start.
    fn at<T>(&self, offset: u64) -> Result<NonNull<T>> {
        let offset = usize::try_from(offset)?;
        let fits = offset.checked_add(size_of::<T>()).is_some_and(|end| end <= self.length);
        anyhow::ensure!(fits && offset % align_of::<T>() == 0, "the kernel reported an invalid ring offset");
        // SAFETY: the pointer is inside the mapping.
        Ok(unsafe { self.start.cast::<u8>().add(offset) }.cast())
    }
}

// SAFETY: a `Mapping` owns its memory, which is not tied to a thread.
unsafe impl Send for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the memory was mapped with this address and length, and all pointers into it are dropped by now.
        let _ = unsafe { nix::sys::mman::munmap(self.start, self.length) };
    }
}

/// A type that the entries of a ring can have. An entry is an address in the memory for frames, or an address and a
/// length.
pub trait Entry: Copy {}
impl Entry for u64 {}
impl Entry for libc::xdp_desc {}

/// A ring with entries of type `T`. This process writes one of the ring's two positions, the kernel the other.
pub struct Ring<T> {
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    entries: NonNull<T>,
    /// Number of entries minus one. The number of entries is a power of two.
    mask: u32,
    /// This process's position in the ring. It is a copy, which suffices because only this process changes the
    /// position.
    own: u32,
    _mapping: Mapping,
    types: PhantomData<T>,
}

// SAFETY: a `Ring` points into memory that it owns, and moves its own end only under a mutable borrow.
unsafe impl<T: Entry> Send for Ring<T> {}

impl<T: Entry> Ring<T> {
    /// Maps a socket's ring of `size` entries, a power of two.
    ///
    /// # Errors
    ///
    /// Fails if the kernel does not map the ring.
    pub fn new(fd: BorrowedFd<'_>, at: i64, size: u32, offsets: &libc::xdp_ring_offset) -> Result<Self> {
        let length = usize::try_from(offsets.desc)? + size as usize * size_of::<T>();
        let mapping = Mapping::new(length, Some((fd, at)))?;
        let (producer, consumer) = (mapping.at(offsets.producer)?, mapping.at(offsets.consumer)?);
        let entries = mapping.at(offsets.desc)?;
        Ok(Self { producer, consumer, entries, mask: size - 1, own: 0, _mapping: mapping, types: PhantomData })
    }

    fn ends(&self) -> (&AtomicU32, &AtomicU32) {
        // SAFETY: both counters are aligned and inside the mapping, which lives as long as `self`; both sides access
        // them only as atomics.
        unsafe { (self.producer.as_ref(), self.consumer.as_ref()) }
    }

    /// Returns the number of free entries. Use this function only for a ring into which this process writes entries.
    pub fn room(&self) -> u32 {
        let (_, consumer) = self.ends();
        self.mask + 1 - self.own.wrapping_sub(consumer.load(Ordering::Acquire))
    }

    /// Returns the number of entries that the kernel has not read yet. Use this function only for a ring into which
    /// this process writes entries.
    pub fn unread(&self) -> u32 {
        self.mask + 1 - self.room()
    }

    /// Writes entries into the ring, which must have room for them. The kernel sees all of them at once.
    pub fn put(&mut self, entries: impl IntoIterator<Item = T>) {
        for entry in entries {
            assert!(self.room() > 0, "a ring is never filled beyond its room");
            // SAFETY: the masked index is one of the ring's entries, and the kernel does not read it before the
            // producer moves.
            unsafe { self.entries.add((self.own & self.mask) as usize).write(entry) };
            self.own = self.own.wrapping_add(1);
        }
        let (producer, _) = self.ends();
        producer.store(self.own, Ordering::Release);
    }

    /// Reads up to `most` entries of a ring into which the kernel writes entries, and calls `each` with every one.
    pub fn take(&mut self, most: u32, mut each: impl FnMut(T)) {
        let (producer, _) = self.ends();
        let count = producer.load(Ordering::Acquire).wrapping_sub(self.own).min(most).min(self.mask + 1);
        for _ in 0..count {
            // SAFETY: the masked index is one of the ring's entries, and the kernel does not write it before the
            // consumer moves.
            each(unsafe { self.entries.add((self.own & self.mask) as usize).read() });
            self.own = self.own.wrapping_add(1);
        }
        let (_, consumer) = self.ends();
        consumer.store(self.own, Ordering::Release);
    }
}
