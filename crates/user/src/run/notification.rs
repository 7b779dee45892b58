//! Questions of the kernel about a system call, and answers (seccomp_unotify(2)).

use nix::errno::Errno;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

const RECEIVE: libc::c_ulong = 0xc050_2100;
const ANSWER: libc::c_ulong = 0xc018_2101;
const IS_VALID: libc::c_ulong = 0x4008_2102;
const SET_FLAGS: libc::c_ulong = 0x4008_2104;
/// Wake the supervisor on the command's processor (Linux 6.6).
const SYNC_WAKE_UP: u64 = 1;

/// A system call about which the kernel asks.
#[derive(Clone, Copy, Debug)]
pub struct Question {
    id: u64,
    /// The thread that makes it.
    pub thread: i32,
    /// The call's number.
    pub number: i64,
    /// The call's arguments.
    pub arguments: [u64; 6],
}

/// The answer to a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The kernel carries the call out.
    Continue,
    /// The call returns 0.
    Done,
    /// The call fails with this number.
    Fails(i32),
}

/// Makes questions cheaper, where the kernel can.
pub fn prefer_one_processor(listener: BorrowedFd<'_>) {
    // SAFETY: the call takes numbers only; the flags are its argument, and no pointer.
    unsafe { libc::ioctl(listener.as_raw_fd(), SET_FLAGS as _, SYNC_WAKE_UP) };
}

/// Waits for a question; `None` if the call was interrupted meanwhile.
///
/// # Errors
///
/// Fails if there is nobody left to ask for.
pub fn receive(listener: BorrowedFd<'_>) -> io::Result<Option<Question>> {
    // Larger than the structure, in case the kernel's has grown.
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
    /// Reports whether the thread still waits, so that what was read of it was its own.
    pub fn is_valid(&self, listener: BorrowedFd<'_>) -> bool {
        // SAFETY: the kernel reads the number.
        unsafe { libc::ioctl(listener.as_raw_fd(), IS_VALID as _, &raw const self.id) == 0 }
    }

    /// Answers. A thread that no longer waits is left alone.
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
