//! The kernel's questions about system calls, and the answers (seccomp_unotify(2)).

use nix::errno::Errno;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

const RECEIVE: libc::c_ulong = 0xc050_2100;
const ANSWER: libc::c_ulong = 0xc018_2101;
const IS_VALID: libc::c_ulong = 0x4008_2102;
const SET_FLAGS: libc::c_ulong = 0x4008_2104;
/// Flag that wakes the supervisor on the command's processor (Linux 6.6).
const SYNC_WAKE_UP: u64 = 1;

/// A system call about which the kernel asks.
#[derive(Clone, Copy, Debug)]
pub struct Question {
    id: u64,
    /// Id of the thread that makes the call.
    pub thread: i32,
    /// The number of the call.
    pub number: i64,
    /// The arguments of the call.
    pub arguments: [u64; 6],
}

/// The supervisor's answer to a question about a system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The kernel carries out the call.
    Continue,
    /// The call returns 0 without being carried out.
    Done,
    /// The call fails with this error number.
    Fails(i32),
}

/// Makes the kernel wake the supervisor on the processor on which the command runs, which makes questions cheaper. Does
/// nothing if the kernel does not support this.
pub fn prefer_one_processor(listener: BorrowedFd<'_>) {
    // SAFETY: the call takes numbers only; the flags are its argument, and no pointer.
    unsafe { libc::ioctl(listener.as_raw_fd(), SET_FLAGS as _, SYNC_WAKE_UP) };
}

/// Waits for a question. Returns `None` if a signal interrupted the waiting, or interrupted the call about which the
/// kernel asked.
///
/// # Errors
///
/// Fails with the system's error.
pub fn receive(listener: BorrowedFd<'_>) -> io::Result<Option<Question>> {
    // The room is larger than the structure, in case the kernel's structure has grown.
    let mut room = [0_u64; 32];
    // SAFETY: the kernel writes a `seccomp_notif`, which fits into the room.
    let got = unsafe { libc::ioctl(listener.as_raw_fd(), RECEIVE as _, room.as_mut_ptr()) };
    if got != 0 {
        return match Errno::last() {
            Errno::EINTR | Errno::ENOENT => Ok(None),
            error => Err(error.into()),
        };
    }
    // SAFETY: the room is large enough and aligned, and any bytes are a `seccomp_notif`.
    let asked = unsafe { room.as_ptr().cast::<libc::seccomp_notif>().read() };
    Ok(Some(Question {
        id: asked.id,
        thread: asked.pid.cast_signed(),
        number: asked.data.nr.into(),
        arguments: asked.data.args,
    }))
}

impl Question {
    /// Reports whether the thread still waits for the answer. If it does, everything that the supervisor has read since
    /// the question came from the memory of this thread, and not from the memory of a later thread with the same id.
    pub fn is_valid(&self, listener: BorrowedFd<'_>) -> bool {
        // SAFETY: the kernel reads the number.
        unsafe { libc::ioctl(listener.as_raw_fd(), IS_VALID as _, &raw const self.id) == 0 }
    }

    /// Answers the question. Does nothing if the thread no longer waits.
    pub fn answer(&self, listener: BorrowedFd<'_>, answer: Answer) {
        let (error, flags) = match answer {
            Answer::Continue => (0, libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32),
            Answer::Done => (0, 0),
            Answer::Fails(number) => (-number, 0),
        };
        let response = libc::seccomp_notif_resp { id: self.id, val: 0, error, flags };
        // SAFETY: the kernel reads the structure.
        let sent = unsafe { libc::ioctl(listener.as_raw_fd(), ANSWER as _, &raw const response) };
        if sent != 0 && Errno::last() != Errno::ENOENT {
            tracing::debug!("cannot answer: {}", Errno::last());
        }
    }
}
