//! The C interface of [`whois`]; `include/vouchsafe.h` describes it.

use crate::{Reason, guarded, text};
use std::ffi::{CString, c_char, c_int};
use std::io;
use std::mem::ManuallyDrop;
use std::net::TcpStream;
use std::os::fd::FromRawFd;
use std::ptr::null_mut;
use whois::{Connection, Error, Identity, Verifier};

/// An identity in the form of C: `vouchsafe_identity`.
#[repr(C)]
pub struct Names {
    person: *mut c_char,
    device: *mut c_char,
    receiver: *mut c_char,
    rule: *mut c_char,
    grant: *mut c_char,
}

impl Names {
    /// Returns the identity, whose texts [`vouchsafe_whois_free`] frees. Fails if a text has a zero byte. C would end
    /// the text there, and so read a different name.
    fn new(identity: Identity) -> Result<Self, Error> {
        let Identity { person, device, receiver, rule, grant } = identity;
        let own = |text: String| CString::new(text).map_err(|_| Error::Malformed("a name has a zero byte"));
        let texts = [own(person)?, own(device)?, own(receiver)?, own(rule)?, own(grant)?];
        let [person, device, receiver, rule, grant] = texts.map(CString::into_raw);
        Ok(Self { person, device, receiver, rule, grant })
    }
}

impl Reason for Error {
    fn number(&self) -> c_int {
        match self {
            Self::Socket(error) | Self::Unreachable { error, .. } => error.raw_os_error().unwrap_or(libc::ETIMEDOUT),
            Self::Refused { status: 403, .. } | Self::NotAGateway(_) => libc::EACCES,
            Self::Refused { .. } | Self::Malformed(_) => libc::EPROTO,
        }
    }
}

/// Asks the verifier on this host for the person behind a connection. `verifier` is the path of the verifier's identity
/// socket; null means the usual path. Returns 1 and the identity, 0 if nobody is known, or -1 if the function fails.
///
/// # Safety
///
/// `verifier` must be null, or a NUL-terminated text; `who` must point to a pointer. `socket` must not be closed during
/// the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vouchsafe_whois(socket: c_int, verifier: *const c_char, who: *mut *mut Names) -> c_int {
    if !who.is_null() {
        // SAFETY: the caller keeps the contract.
        unsafe { *who = null_mut() };
    }
    // SAFETY: the caller keeps the contract.
    let verifier = unsafe { text(verifier) };
    let ask = || {
        if socket < 0 || who.is_null() {
            return Err(Error::Socket(io::Error::from_raw_os_error(libc::EBADF)));
        }
        let verifier = match verifier {
            None => Verifier::default(),
            Some(Ok(path)) => Verifier::at(path),
            Some(Err(_)) => return Err(Error::Malformed("the path of the verifier's socket is not UTF-8")),
        };
        // SAFETY: the descriptor stays open during the call, and is not closed here.
        let stream = ManuallyDrop::new(unsafe { TcpStream::from_raw_fd(socket) });
        verifier.who(&Connection::accepted(&stream)?)?.map(Names::new).transpose()
    };
    match guarded(ask) {
        None => -1,
        Some(None) => 0,
        Some(Some(names)) => {
            // SAFETY: the caller keeps the contract; if the pointer were null, the question would have failed.
            unsafe { *who = Box::into_raw(Box::new(names)) };
            1
        }
    }
}

/// Frees an identity.
///
/// # Safety
///
/// `who` must be null, or come from [`vouchsafe_whois`] and not be freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vouchsafe_whois_free(who: *mut Names) {
    if who.is_null() {
        return;
    }
    // SAFETY: the caller keeps the contract; the pointer comes from a box.
    let Names { person, device, receiver, rule, grant } = *unsafe { Box::from_raw(who) };
    for text in [person, device, receiver, rule, grant] {
        // SAFETY: the text comes from `CString::into_raw`.
        drop(unsafe { CString::from_raw(text) });
    }
}
