//! Memory that is read at random, in huge pages: with pages of 4 KiB the processor has to look most addresses up in memory
//! before it can read there.

use std::fs;
use std::io;

/// Regions smaller than this are left as they are, bytes: threads' stacks are. A thread's heaps have somewhat less than 64 MiB.
const LEAST: usize = 16 << 20;
/// What is asked for at a time: others that change the process's memory wait for so much.
const STEP: usize = 32 << 20;
/// A huge page where the kernel doesn't say, bytes.
const USUAL: usize = 2 << 20;

/// Memory of the process: where it is, and how much of it is there.
#[derive(Debug, PartialEq, Eq)]
struct Region {
    start: usize,
    end: usize,
    resident: usize,
}

/// Asks the kernel to put this process's large, private memory into huge pages: now, and what it could not now, later.
///
/// Gives how many bytes were put there now. It is none where the kernel can't (before Linux 6.1, or built without) or must not
/// (`never` in `/sys/kernel/mm/transparent_hugepage/enabled`), or the process has little memory. What is allocated elsewhere
/// afterwards is as that setting says.
pub fn into_huge_pages() -> io::Result<usize> {
    if fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").is_ok_and(|text| text.contains("[never]")) {
        return Ok(0);
    }
    let page = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size");
    let page = page.ok().and_then(|size| size.trim().parse().ok()).unwrap_or(USUAL);
    let mut put = 0;
    for region in regions(&fs::read_to_string("/proc/self/smaps")?) {
        // One that is mostly empty would be filled.
        if region.end - region.start < LEAST || region.resident < (region.end - region.start) / 4 * 3 {
            continue;
        }
        let (start, end) = (region.start.next_multiple_of(page), region.end / page * page);
        for step in (start..end).step_by(STEP.max(page)) {
            let length = STEP.max(page).min(end - step);
            if !advise(step, length, libc::MADV_HUGEPAGE) {
                break;
            }
            put += if advise(step, length, libc::MADV_COLLAPSE) { length } else { 0 };
        }
    }
    Ok(put)
}

/// The private regions without a file that may be read and written: heaps, and threads' stacks.
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

/// A region's first line (proc_pid_maps(5)): where it is, and whether it is one of those.
fn header(line: &str) -> Option<(usize, usize, bool)> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let [start, end] = [start, end].map(|address| usize::from_str_radix(address, 16).ok());
    let rest: Vec<&str> = words.collect();
    let is_ours = matches!(rest[..], ["rw-p", _, _, "0"] | ["rw-p", _, _, "0", "[heap]"]);
    Some((start?, end?, is_ours))
}

/// Whether the kernel did as it was advised.
fn advise(start: usize, length: usize, advice: libc::c_int) -> bool {
    let start = std::ptr::without_provenance_mut(start);
    #[expect(unsafe_code)]
    // SAFETY: both of these are about how memory is kept, and change nothing that it holds, whosever it is by now.
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
            01000000-05000000 rw-p 00000000 00:00 0 [heap]\nSize: 65536 kB\nRss:               65000 kB\nVmFlags: rd wr\n\
            7f0000000000-7f0000100000 ---p 00000000 00:00 0 \nRss: 8 kB\n\
            7f0000100000-7f0008000000 rw-p 00000000 00:00 0 \nRss: 12 kB\n\
            7fff00000000-7fff00100000 rw-p 00000000 00:00 0 [stack]\nRss: 16 kB\n";
        let found = regions(smaps);
        let region = |start, end, kilobytes: usize| Region { start, end, resident: kilobytes * 1024 };
        assert_eq!(found, [region(0x0100_0000, 0x0500_0000, 65_000), region(0x7f00_0010_0000, 0x7f00_0800_0000, 12)]);
    }

    /// As a policy is that comes into force: many small pieces, allocated by a thread.
    #[test]
    fn what_memory_holds_stays() {
        let pieces = |each: u64| (0..each).map(|number| vec![number; 1000].into_boxed_slice()).collect::<Vec<_>>();
        let held = std::thread::spawn(move || pieces(32_000)).join().expect("pieces");
        let put = into_huge_pages().expect("its own memory");
        assert!(held.iter().zip(0..).all(|(piece, number)| piece.iter().all(|held| *held == number)));
        let setting = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").expect("a release");
        let version: Vec<u32> = kernel.split(['.', '-']).take(2).filter_map(|part| part.parse().ok()).collect();
        // How much is the kernel's to say: where memory is in pieces, there may be few huge pages.
        if !setting.is_empty() && !setting.contains("[never]") && version >= vec![6, 1] {
            println!("{put} bytes of some 256 MB were put into huge pages");
            assert!(put > 0, "nothing was put into huge pages");
        }
    }
}
