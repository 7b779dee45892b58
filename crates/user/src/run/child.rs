//! Starts the command under the filter, and passes the filter's descriptor to the supervisor.

use super::filter;
use anyhow::{Context, Result};
use libc::{c_long, c_ulong};
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Flag of the filter (Linux 5.19): once the supervisor has a call, only fatal signals interrupt the call. Without the
/// flag, a program that constantly signals itself, as Go's scheduler does, may repeat the call again and again.
const WAIT_KILLABLE: c_ulong = 1 << 5;

/// A command that has been started.
pub struct Started {
    /// The command's process id.
    pub pid: i32,
    /// The filter's descriptor, through which the kernel asks about system calls.
    pub listener: OwnedFd,
}

/// Starts the command under the filter.
///
/// # Errors
///
/// Fails if a pipe can't be made, or the filter's descriptor can't be taken. The inner result is an error if the
/// program can't be executed, or if the filter can't be installed: `EBUSY`, `ENOSYS` or `EPERM`.
pub fn start(command: &mut Command, tcp_only: bool) -> Result<io::Result<Started>> {
    let program = filter::program(tcp_only);
    let (mut numbers, mut from_child) = io::pipe()?;
    let (mut go_on, acknowledge) = io::pipe()?;
    let in_child = move || -> io::Result<()> {
        let listener = install(&program).map_err(explain)?;
        hand_over(listener, &mut from_child, &mut go_on)
    };
    // SAFETY: the closure makes system calls only, on memory that exists already.
    unsafe { command.pre_exec(in_child) };
    // The child waits until the supervisor has its descriptor, and `spawn` waits for the child.
    let taking = std::thread::spawn(move || take(&mut numbers, acknowledge));
    let spawned = command.spawn();
    match spawned {
        Ok(child) => {
            let listener = taking.join().ok().context("the thread that takes the filter's descriptor panicked")??;
            Ok(Ok(Started { pid: child.id().cast_signed(), listener }))
        }
        Err(error) => Ok(Err(error)),
    }
}

fn install(program: &[libc::sock_filter]) -> io::Result<RawFd> {
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    // SAFETY: these are numbers.
    if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    for flags in [libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | WAIT_KILLABLE, libc::SECCOMP_FILTER_FLAG_NEW_LISTENER] {
        // SAFETY: the program lives through the call, and its length is right; the kernel copies it.
        let listener = unsafe {
            libc::syscall(libc::SYS_seccomp, c_long::from(libc::SECCOMP_SET_MODE_FILTER), flags, &raw const program)
        };
        let error = io::Error::last_os_error();
        if listener >= 0 {
            return Ok(listener as RawFd);
        }
        if error.raw_os_error() != Some(libc::EINVAL) {
            return Err(error);
        }
    }
    Err(io::Error::from_raw_os_error(libc::ENOSYS))
}

/// Marks an error of the filter, so that it is not mistaken for an error of the program's file.
fn explain(error: io::Error) -> io::Error {
    let number = error.raw_os_error().unwrap_or(libc::EIO);
    io::Error::from_raw_os_error(match number {
        libc::EBUSY => libc::EBUSY,
        libc::ENOSYS | libc::EINVAL => libc::ENOSYS,
        _ => libc::EPERM,
    })
}

fn hand_over(listener: RawFd, to_parent: &mut PipeWriter, go_on: &mut PipeReader) -> io::Result<()> {
    // SAFETY: the call has no arguments.
    let pid = unsafe { libc::getpid() };
    let mut message = [0; 8];
    message[..4].copy_from_slice(&pid.to_ne_bytes());
    message[4..].copy_from_slice(&listener.to_ne_bytes());
    to_parent.write_all(&message)?;
    go_on.read_exact(&mut [0])
}

fn take(numbers: &mut PipeReader, mut acknowledge: PipeWriter) -> Result<OwnedFd> {
    let mut message = [0; 8];
    numbers.read_exact(&mut message).context("the new process ended before it started the command")?;
    let [pid, descriptor] =
        [0, 4].map(|at| i32::from_ne_bytes([message[at], message[at + 1], message[at + 2], message[at + 3]]));
    let process = pidfd(pid, 0).context("cannot watch the command: pidfd_open(2) needs Linux 5.3")?;
    let listener = take_fd(&process, descriptor).context(
        "cannot take the filter's descriptor: pidfd_getfd(2) needs Linux 5.6, and a container's seccomp profile has to \
         allow it",
    )?;
    acknowledge.write_all(&[1])?;
    Ok(listener)
}

/// Opens a descriptor for a process or, with `O_EXCL` (Linux 6.9), for a thread.
///
/// # Errors
///
/// Fails with the system's error.
pub fn pidfd(pid: i32, flags: i32) -> io::Result<OwnedFd> {
    // SAFETY: these are numbers.
    let descriptor = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, flags) };
    owned(descriptor)
}

/// Returns a copy of a process's descriptor.
///
/// # Errors
///
/// Fails with the system's error, for instance if ptrace rules forbid it.
pub fn take_fd(process: &OwnedFd, descriptor: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: these are numbers.
    let taken = unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), descriptor, 0) };
    owned(taken)
}

fn owned(descriptor: c_long) -> io::Result<OwnedFd> {
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor for this process, and it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor as RawFd) })
}
