//! Emulates an unreliable path for the TCP SYNs that leave a namespace: some are lost, some arrive twice, and some
//! arrive late, after packets that were sent later.
//!
//! A rule of nftables sends every IPv4 SYN of the namespace into a tun device. This process sends the SYNs on from
//! there, with a mark that exempts them from the rule.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::socket::{MsgFlags, SockaddrIn, sendto, setsockopt, sockopt};

use crate::net::Namespace;

const TUN: &str = "rough0";
/// Mark of packets on their way to the tun device.
const MARK_IN: u32 = 0x71;
/// Mark of packets that come from the tun device.
const MARK_OUT: u32 = 0x72;
/// Longest delay of a late packet.
const LATE: Duration = Duration::from_millis(120);

/// A running emulator of an unreliable path. Dropping it ends the emulation.
pub struct Rough {
    counts: Arc<Counts>,
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Numbers of SYNs that the emulator has handled.
#[derive(Default)]
pub struct Counts {
    /// All SYNs.
    pub seen: AtomicU64,
    /// SYNs that were lost.
    pub lost: AtomicU64,
    /// SYNs that were sent twice.
    pub doubled: AtomicU64,
    /// SYNs that were sent late.
    pub late: AtomicU64,
}

impl Rough {
    /// Starts the emulator. Of the namespace's SYNs, `percent` % are lost, as many arrive twice, and as many arrive
    /// late; no SYN is treated in two of these ways. `percent` must be 1 to 33.
    pub fn start(namespace: &Namespace, percent: u64) -> Result<Self> {
        let rules = format!(
            "table ip rough {{
                chain output {{
                    type route hook output priority mangle; policy accept;
                    meta mark {MARK_OUT} accept
                    oifname != \"lo\" tcp flags & (syn | ack) == syn meta mark set {MARK_IN}
                }}
            }}"
        );
        let tun = namespace.enter(|| tun(TUN))?;
        namespace.ip(&format!("link set {TUN} up"))?;
        namespace.ip(&format!("route add default dev {TUN} table {MARK_IN}"))?;
        namespace.ip(&format!("rule add fwmark {MARK_IN} table {MARK_IN}"))?;
        let file = namespace.dir().join("rough.nft");
        std::fs::write(&file, rules)?;
        namespace.run(["nft".as_ref(), "-f".as_ref(), file.as_os_str()])?;
        let out = namespace.enter(|| raw(MARK_OUT))?;
        let (counts, end) = (Arc::<Counts>::default(), Arc::new(AtomicBool::new(false)));
        let thread = std::thread::spawn({
            let (counts, end) = (counts.clone(), end.clone());
            move || forward(tun, &out, percent, &counts, &end)
        });
        Ok(Self { counts, end, thread: Some(thread) })
    }

    /// Returns the numbers of SYNs handled so far.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }
}

impl Drop for Rough {
    fn drop(&mut self) {
        self.end.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Opens a socket for IPv4 packets whose headers the sender writes. They have this mark.
pub(crate) fn raw(mark: u32) -> Result<OwnedFd> {
    // SAFETY: the arguments are numbers, so the call accesses no memory.
    let raw = unsafe { libc::socket(libc::AF_INET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::IPPROTO_RAW) };
    nix::errno::Errno::result(raw)?;
    // SAFETY: the kernel has just created the descriptor, and nothing else owns it.
    let out = unsafe { OwnedFd::from_raw_fd(raw) };
    setsockopt(&out, sockopt::Mark, &mark)?;
    Ok(out)
}

/// Creates a tun device with this name, for packets without a further header.
pub(crate) fn tun(name: &str) -> Result<File> {
    let tun = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open("/dev/net/tun");
    let tun = tun.context("/dev/net/tun")?;
    // Fill in a struct ifreq: the name, and the flags IFF_TUN and IFF_NO_PI.
    let mut request = [0_u8; 40];
    request[..name.len()].copy_from_slice(name.as_bytes());
    request[16..18].copy_from_slice(&0x1001_u16.to_ne_bytes());
    // SAFETY: TUNSETIFF reads and writes an ifreq, which has this size.
    let set = unsafe { libc::ioctl(tun.as_raw_fd(), 0x4004_54ca, request.as_mut_ptr()) };
    ensure!(set == 0, "TUNSETIFF: {}", std::io::Error::last_os_error());
    Ok(tun)
}

fn forward(mut tun: File, out: &OwnedFd, percent: u64, counts: &Counts, end: &AtomicBool) {
    let (mut packet, mut late, mut chance) = ([0; 2048], VecDeque::<(Instant, Vec<u8>)>::new(), 0x5eed_u64);
    // Use a fixed seed, so that a failure can be reproduced.
    let mut draw = |below: u64| {
        chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (chance >> 33) % below
    };
    while !end.load(Relaxed) {
        late.retain(|(at, packet)| {
            let waits = *at > Instant::now();
            if !waits {
                send(out, packet);
            }
            waits
        });
        let Ok(size) = tun.read(&mut packet) else {
            std::thread::sleep(Duration::from_micros(200));
            continue;
        };
        let packet = &packet[..size];
        // Skip IPv6 packets, some of which the device itself sends.
        if packet.first().is_none_or(|first| first >> 4 != 4) {
            continue;
        }
        counts.seen.fetch_add(1, Relaxed);
        let at = Instant::now() + LATE.mul_f64(draw(1000) as f64 / 1000.0);
        match draw(100) / percent {
            0 => drop(counts.lost.fetch_add(1, Relaxed)),
            1 => {
                counts.doubled.fetch_add(1, Relaxed);
                send(out, packet);
                late.push_back((at, packet.to_vec()));
            }
            2 => {
                counts.late.fetch_add(1, Relaxed);
                late.push_back((at, packet.to_vec()));
            }
            _ => send(out, packet),
        }
    }
}

fn send(out: &OwnedFd, packet: &[u8]) {
    let Some(to) = packet.get(16..20) else { return };
    let to = SockaddrIn::new(to[0], to[1], to[2], to[3], 0);
    if let Err(error) = sendto(out.as_raw_fd(), packet, &to, MsgFlags::empty()) {
        eprintln!("lab: rough way: {error}");
    }
}
