//! Huge pages for memory that is read at random. With pages of 4 KiB, most accesses miss the TLB, and the processor
//! first has to read the page tables from memory.

use std::fs;
use std::io;

/// Minimum size of a region to convert, in bytes: more than a thread's stack, and less than a thread's heap, which has
/// almost 64 MiB.
const LEAST: usize = 16 << 20;
/// Number of bytes per call of madvise(2), during which other threads that change the process's address space wait.
const STEP: usize = 32 << 20;
/// Size of a huge page in bytes, if the kernel doesn't report it.
const USUAL: usize = 2 << 20;

/// `MADV_COLLAPSE` (Linux 6.1), which `libc` has for glibc only.
const COLLAPSE: libc::c_int = 25;

/// A memory region of the process: its addresses, and how many bytes are resident.
#[derive(Debug, PartialEq, Eq)]
struct Region {
    start: usize,
    end: usize,
    resident: usize,
}

/// Asks the kernel to move this process's large, private memory into huge pages: as much as possible now, and the rest
/// later in the background.
///
/// Returns the number of bytes moved now. The result is 0 in four cases: the kernel can't move memory (it is older than
/// Linux 6.1, or was built without huge pages); `/sys/kernel/mm/transparent_hugepage/enabled` is `never`; the machine
/// has no free huge pages; or the process has no region of at least 16 MiB of which at least three quarters are
/// resident. Regions that the process maps later get huge pages only if that setting is `always`.
///
/// # Errors
///
/// Fails if `/proc/self/smaps` can't be read.
pub fn into_huge_pages() -> io::Result<usize> {
    if fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").is_ok_and(|text| text.contains("[never]")) {
        return Ok(0);
    }
    let page = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size");
    let page = page.ok().and_then(|size| size.trim().parse().ok()).unwrap_or(USUAL);
    let mut put = 0;
    for region in regions(&fs::read_to_string("/proc/self/smaps")?) {
        // Huge pages would fill a region that is mostly empty.
        if region.end - region.start < LEAST || region.resident < (region.end - region.start) / 4 * 3 {
            continue;
        }
        let (start, end) = (region.start.next_multiple_of(page), region.end / page * page);
        for step in (start..end).step_by(STEP.max(page)) {
            let length = STEP.max(page).min(end - step);
            if !advise(step, length, libc::MADV_HUGEPAGE) {
                break;
            }
            put += if advise(step, length, COLLAPSE) { length } else { 0 };
        }
    }
    Ok(put)
}

/// Returns the private anonymous regions that are readable and writable: heaps, and threads' stacks.
fn regions(smaps: &str) -> Vec<Region> {
    let mut regions = Vec::new();
    let mut is_ours = false;
    for line in smaps.lines() {
        if let Some((start, end, is_heap)) = header(line) {
            is_ours = is_heap;
            if is_ours {
                regions.push(Region { start, end, resident: 0 });
            }
        } else if let (true, Some(last), Some(size)) = (is_ours, regions.last_mut(), line.strip_prefix("Rss:")) {
            let kilobytes = size.trim().trim_end_matches(" kB").parse::<usize>();
            last.resident = kilobytes.unwrap_or(0).saturating_mul(1024);
        }
    }
    regions
}

/// Parses a region's first line (proc_pid_maps(5)): its addresses, and whether [`regions`] includes it.
fn header(line: &str) -> Option<(usize, usize, bool)> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let [start, end] = [start, end].map(|address| usize::from_str_radix(address, 16).ok());
    let rest: Vec<&str> = words.collect();
    let is_ours = matches!(rest[..], ["rw-p", _, _, "0"] | ["rw-p", _, _, "0", "[heap]"]);
    Some((start?, end?, is_ours))
}

/// Calls madvise(2); returns whether it succeeded.
fn advise(start: usize, length: usize, advice: libc::c_int) -> bool {
    let start = std::ptr::without_provenance_mut(start);
    #[expect(unsafe_code)]
    // SAFETY: both kinds of advice affect how memory is backed, and never its contents, even if another mapping is
    // there by now.
    unsafe {
        libc::madvise(start, length, advice) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heaps_are_found_and_what_is_of_files_is_not() {
        let smaps = "\
            00400000-00500000 r-xp 00000000 fe:00 77 /usr/bin/authority\nRss: 4 kB\n\
            01000000-05000000 rw-p 00000000 00:00 0 [heap]\nSize: 65536 kB\nRss:               65000 kB\nVmFlags: rd \
            wr\n \
            7f0000000000-7f0000100000 ---p 00000000 00:00 0 \nRss: 8 kB\n\
            7f0000100000-7f0008000000 rw-p 00000000 00:00 0 \nRss: 12 kB\n\
            7fff00000000-7fff00100000 rw-p 00000000 00:00 0 [stack]\nRss: 16 kB\n";
        let found = regions(smaps);
        let region = |start, end, kilobytes: usize| Region { start, end, resident: kilobytes * 1024 };
        assert_eq!(found, [region(0x0100_0000, 0x0500_0000, 65_000), region(0x7f00_0010_0000, 0x7f00_0800_0000, 12)]);
    }

    /// Uses memory as a policy that comes into force does: many small pieces, allocated by a thread.
    #[test]
    fn what_memory_holds_stays() {
        let pieces = |each: u64| (0..each).map(|number| vec![number; 1000].into_boxed_slice()).collect::<Vec<_>>();
        let held = std::thread::spawn(move || pieces(32_000)).join().expect("pieces");
        let put = into_huge_pages().expect("its own memory");
        assert!(held.iter().zip(0..).all(|(piece, number)| piece.iter().all(|held| *held == number)));
        let setting = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").expect("a release");
        let version: Vec<u32> = kernel.split(['.', '-']).take(2).filter_map(|part| part.parse().ok()).collect();
        // The kernel decides how much: fragmented memory may yield few huge pages.
        if !setting.is_empty() && !setting.contains("[never]") && version >= vec![6, 1] {
            println!("{put} bytes of some 256 MB were put into huge pages");
            assert!(put > 0, "nothing was put into huge pages");
        }
    }
}
