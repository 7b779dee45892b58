//! Route netlink: queries about the kernel's network, and notifications (linux/netlink.h, linux/rtnetlink.h).

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, send, socket,
};
use std::os::fd::{AsRawFd, OwnedFd};

const HEADER: usize = 16;
/// SOL_NETLINK and NETLINK_GET_STRICT_CHK: the kernel filters its answer by the request's fields (Linux 4.20).
const STRICT: (i32, i32) = (270, 12);

/// A flag of a message. It says that the list changed while the kernel sent it, so entries may be missing.
const INTERRUPTED: u16 = libc::NLM_F_DUMP_INTR as u16;
/// Maximum number of requests for a list that changes while the kernel sends it.
const ATTEMPTS: usize = 32;

/// The type and the body of each message of an answer.
type Messages = Vec<(u16, Vec<u8>)>;

/// Sends a dump request with this type and body. Returns the messages of the answer. If the kernel's list changes while
/// the kernel sends it, requests the list again.
pub(crate) fn dump(kind: u16, body: &[u8]) -> Result<Messages> {
    for _ in 0..ATTEMPTS {
        if let Some(messages) = dump_once(kind, body)? {
            return Ok(messages);
        }
    }
    bail!("the kernel's list changes too fast to be read (netlink): try again when the network is at rest")
}

/// Requests a list once. Returns `None` if it changed meanwhile.
fn dump_once(kind: u16, body: &[u8]) -> Result<Option<Messages>> {
    let socket = open()?;
    let on = 1i32;
    // SAFETY: the option's value is an int that lives through the call. Without the option, the answer has more
    // messages than requested.
    unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            STRICT.0,
            STRICT.1,
            std::ptr::from_ref(&on).cast(),
            size_of::<i32>() as u32,
        )
    };
    let mut request = vec![0; HEADER];
    request[..4].copy_from_slice(&((HEADER + body.len()) as u32).to_ne_bytes());
    request[4..6].copy_from_slice(&kind.to_ne_bytes());
    request[6..8].copy_from_slice(&((libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16).to_ne_bytes());
    request.extend_from_slice(body);
    send(socket.as_raw_fd(), &request, MsgFlags::empty())?;
    gather(|room| Ok(recv(socket.as_raw_fd(), room, MsgFlags::empty())?))
}

/// Collects the messages of a list, which `receive` reads into its buffer. Returns `None` if one of them says that the
/// list changed meanwhile.
fn gather(mut receive: impl FnMut(&mut [u8]) -> Result<usize>) -> Result<Option<Messages>> {
    let (mut messages, mut room, mut is_whole) = (Vec::new(), vec![0; 64 * 1024], true);
    loop {
        let length = receive(&mut room)?;
        let mut rest = &room[..length];
        while let Some((kind, flags, body)) = message(&mut rest) {
            is_whole &= flags & INTERRUPTED == 0;
            match i32::from(kind) {
                libc::NLMSG_DONE => return Ok(is_whole.then_some(messages)),
                libc::NLMSG_ERROR => bail!("the kernel rejected the request for a list (netlink)"),
                _ => messages.push((kind, body.to_vec())),
            }
        }
    }
}

/// Sends a request that changes something, and waits for the kernel's answer. `flags` are added to the flags that every
/// request has.
///
/// # Errors
///
/// Fails with the kernel's error if it refuses.
pub(crate) fn change(kind: u16, flags: i32, body: &[u8]) -> Result<()> {
    let socket = open()?;
    let flags = libc::NLM_F_REQUEST | libc::NLM_F_ACK | flags;
    let mut request = vec![0; HEADER];
    request[..4].copy_from_slice(&((HEADER + body.len()) as u32).to_ne_bytes());
    request[4..6].copy_from_slice(&kind.to_ne_bytes());
    request[6..8].copy_from_slice(&(flags as u16).to_ne_bytes());
    request.extend_from_slice(body);
    send(socket.as_raw_fd(), &request, MsgFlags::empty())?;
    let mut room = [0; 4096];
    let length = recv(socket.as_raw_fd(), &mut room, MsgFlags::empty())?;
    let code = room[..length].get(HEADER..HEADER + 4).and_then(|code| code.try_into().ok());
    match code.map(i32::from_ne_bytes) {
        Some(0) => Ok(()),
        Some(error) => Err(std::io::Error::from_raw_os_error(-error).into()),
        None => bail!("the kernel's answer is too short (netlink)"),
    }
}

fn open() -> Result<OwnedFd> {
    let cloexec = SockFlag::SOCK_CLOEXEC;
    let opened = socket(AddressFamily::Netlink, SockType::Raw, cloexec, SockProtocol::NetlinkRoute);
    opened.context("cannot open a netlink socket")
}

/// Starts a thread that calls `each` whenever an address of this network namespace is added or removed. The thread
/// lasts as long as the process.
///
/// # Errors
///
/// Fails if the kernel does not accept the subscription to these changes, or if the thread can't be started.
pub fn follow_addresses(mut each: impl FnMut() + Send + 'static) -> Result<()> {
    let socket = open()?;
    let groups = (libc::RTMGRP_IPV4_IFADDR | libc::RTMGRP_IPV6_IFADDR) as u32;
    bind(socket.as_raw_fd(), &NetlinkAddr::new(0, groups)).context("cannot subscribe to changes of addresses")?;
    let follow = move || {
        let mut room = [0; 8192];
        // An overflow (ENOBUFS) also means that addresses have changed.
        while matches!(
            recv(socket.as_raw_fd(), &mut room, MsgFlags::empty()),
            Ok(_) | Err(Errno::ENOBUFS | Errno::EINTR)
        ) {
            each();
        }
    };
    std::thread::Builder::new()
        .name("addresses".into())
        .spawn(follow)
        .context("cannot start the thread that follows addresses")?;
    Ok(())
}

/// Removes a message from the front of `rest`. Returns its type, its flags and its body.
fn message<'a>(rest: &mut &'a [u8]) -> Option<(u16, u16, &'a [u8])> {
    let length = u32::from_ne_bytes(rest.get(..4)?.try_into().ok()?) as usize;
    let kind = u16::from_ne_bytes(rest.get(4..6)?.try_into().ok()?);
    let flags = u16::from_ne_bytes(rest.get(6..8)?.try_into().ok()?);
    let body = rest.get(HEADER..length)?;
    *rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    Some((kind, flags, body))
}

/// Removes an attribute from the front of `rest`. Returns its type and its value.
pub(crate) fn attribute<'a>(rest: &mut &'a [u8]) -> Option<(u16, &'a [u8])> {
    let length = u16::from_ne_bytes(rest.get(..2)?.try_into().ok()?) as usize;
    let kind = u16::from_ne_bytes(rest.get(2..4)?.try_into().ok()?);
    let value = rest.get(4..length)?;
    *rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    Some((kind, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a message with this type and these flags, and an empty body.
    fn header(kind: i32, flags: u16) -> Vec<u8> {
        let mut message = (HEADER as u32).to_ne_bytes().to_vec();
        message.extend((kind as u16).to_ne_bytes());
        message.extend(flags.to_ne_bytes());
        message.resize(HEADER, 0);
        message
    }

    fn gathered(parts: &[Vec<u8>]) -> Option<Messages> {
        let mut parts = parts.iter();
        let receive = |room: &mut [u8]| {
            let part = parts.next().expect("another part");
            room[..part.len()].copy_from_slice(part);
            Ok(part.len())
        };
        gather(receive).expect("a list")
    }

    #[test]
    fn a_list_that_changed_while_it_was_sent_is_not_used() {
        let (route, done) = (i32::from(libc::RTM_NEWROUTE), libc::NLMSG_DONE);
        let one = header(route, 0);
        let whole = gathered(&[[one.clone(), one.clone()].concat(), header(done, 0)]);
        assert_eq!(whole.map(|messages| messages.len()), Some(2));
        let broken = header(route, INTERRUPTED);
        assert_eq!(gathered(&[[one.clone(), broken].concat(), one.clone(), header(done, 0)]), None);
        assert_eq!(gathered(&[one, header(done, INTERRUPTED)]), None, "it changed at the end");
    }
}
