//! The C interface of [`reach`] and, in `identity`, of [`whois`]; `include/vouchsafe.h` describes it.
//!
//! Callers have to pass valid pointers, as the header explains. If the Rust code panics, the function catches the
//! panic, so that it does not reach the caller's code.

mod identity;

use reach::{Datagrams, Error, Places, Session, Timeouts};
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, IntoRawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::ptr::null_mut;
use std::time::Duration;

thread_local! {
    /// The reason for the last failure on this thread.
    static REASON: RefCell<CString> = RefCell::default();
}

/// Opens the user's session. `dir` is the folder of the user's own session; null means the usual folder. Returns null
/// if this fails.
///
/// # Safety
///
/// `dir` must be null, or a NUL-terminated text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vouchsafe_open(dir: *const c_char) -> *mut Session {
    // SAFETY: the caller keeps the contract.
    let dir = unsafe { text(dir) };
    let open = || {
        let mut places = Places::of_user();
        if let Some(dir) = dir {
            places = Ok(Places {
                socket: places.as_ref().ok().and_then(|places| places.socket.clone()),
                dir: PathBuf::from(dir?),
            });
        }
        Session::open(&places?)
    };
    guarded(open).map_or(null_mut(), |session| Box::into_raw(Box::new(session)))
}

/// Connects to a host by TCP. Waits at most `timeout_ms` milliseconds for each address of the host; 0 stands for 10 s.
/// Returns the connected socket, or -1 if this fails.
///
/// # Safety
///
/// `session` must come from [`vouchsafe_open`] and must not be closed; `host` must be a NUL-terminated text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vouchsafe_connect(
    session: *mut Session,
    host: *const c_char,
    port: u16,
    timeout_ms: c_uint,
) -> c_int {
    // SAFETY: the caller keeps the contract.
    let (session, host) = unsafe { (session.as_ref(), text(host)) };
    let connect = || {
        let (session, host) = (session.ok_or_else(missing)?, host.ok_or_else(missing)??);
        let timeouts = match timeout_ms {
            0 => Timeouts::default(),
            time => Timeouts { connect: Duration::from_millis(time.into()) },
        };
        session.connect(host, port, timeouts)
    };
    guarded(connect).map_or(-1, IntoRawFd::into_raw_fd)
}

/// Opens a UDP flow. Returns null if this fails.
///
/// # Safety
///
/// As for [`vouchsafe_connect`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vouchsafe_udp(session: *mut Session, address: *const c_char, port: u16) -> *mut Datagrams {
    // SAFETY: the caller keeps the contract.
    let (session, address) = unsafe { (session.as_ref(), text(address)) };
    let open = || {
        let (session, address) = (session.ok_or_else(missing)?, address.ok_or_else(missing)??);
        let parsed = address.parse::<IpAddr>();
        let parsed = parsed.map_err(|error| Error::NoAddress { host: address.to_owned(), why: error.to_string() })?;
        session.datagrams(SocketAddr::new(parsed, port))
    };
    guarded(open).map_or(null_mut(), |flow| Box::into_raw(Box::new(flow)))
}

/// Returns a flow's socket, or -1 if `flow` is null.
///
/// # Safety
///
/// `flow` must be null, or come from [`vouchsafe_udp`] and not be closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vouchsafe_udp_socket(flow: *const Datagrams) -> c_int {
    // SAFETY: the caller keeps the contract.
    unsafe { flow.as_ref() }.map_or(-1, |flow| flow.socket().as_raw_fd())
}

/// Sends a datagram. Returns 0, or -1 if this fails.
///
/// # Safety
///
/// `flow` must come from [`vouchsafe_udp`] and must not be closed; `bytes` must point to `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vouchsafe_udp_send(flow: *mut Datagrams, bytes: *const c_void, length: usize) -> c_int {
    let send = || {
        // SAFETY: the caller keeps the contract.
        let flow = unsafe { flow.as_ref() }.ok_or_else(missing)?;
        // SAFETY: the caller keeps the contract; the pointer is not used if there are no bytes.
        let payload = if length == 0 { &[] } else { unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), length) } };
        flow.send(payload)
    };
    guarded(send).map_or(-1, |()| 0)
}

/// Receives a datagram. Returns the datagram's length, at most `length`, or -1 if this fails.
///
/// # Safety
///
/// `flow` must come from [`vouchsafe_udp`] and must not be closed; `bytes` must point to at least `length` writable
/// bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vouchsafe_udp_receive(flow: *mut Datagrams, bytes: *mut c_void, length: usize) -> i64 {
    let receive = || {
        // SAFETY: the caller keeps the contract.
        let flow = unsafe { flow.as_ref() }.ok_or_else(missing)?;
        let room =
            // SAFETY: the caller keeps the contract; the pointer is not used if there are no bytes.
            if length == 0 { &mut [] } else { unsafe { std::slice::from_raw_parts_mut(bytes.cast::<u8>(), length) } };
        flow.receive(room)
    };
    guarded(receive).map_or(-1, |size| i64::try_from(size).unwrap_or(i64::MAX))
}

/// Closes a flow.
///
/// # Safety
///
/// `flow` must be null, or come from [`vouchsafe_udp`] and not be closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vouchsafe_udp_close(flow: *mut Datagrams) {
    if !flow.is_null() {
        // SAFETY: the caller keeps the contract; the pointer comes from a box.
        drop(unsafe { Box::from_raw(flow) });
    }
}

/// Returns the reason for the last failure on this thread; an empty text if no call on this thread has failed. The text
/// is valid until the next call on this thread.
#[unsafe(no_mangle)]
pub extern "C" fn vouchsafe_error() -> *const c_char {
    REASON.with_borrow(|reason| reason.as_ptr())
}

/// Frees a session.
///
/// # Safety
///
/// `session` must be null, or come from [`vouchsafe_open`] and not be closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vouchsafe_close(session: *mut Session) {
    if !session.is_null() {
        // SAFETY: the caller keeps the contract; the pointer comes from a box.
        drop(unsafe { Box::from_raw(session) });
    }
}

/// The reason of a failure, as the caller gets it.
trait Reason: std::fmt::Display {
    /// Returns the value of `errno`.
    fn number(&self) -> c_int;
}

impl Reason for Error {
    fn number(&self) -> c_int {
        self.errno()
    }
}

/// Runs the work of a call. On failure, records the reason and sets `errno`.
fn guarded<T, E: Reason>(work: impl FnOnce() -> Result<T, E>) -> Option<T> {
    let (why, number) = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(value)) => return Some(value),
        Ok(Err(error)) => (error.to_string(), error.number()),
        Err(_) => ("the library has a fault, which it has printed on standard error".to_owned(), libc::EFAULT),
    };
    REASON.set(CString::new(why.replace('\0', "?")).unwrap_or_default());
    set_errno(number);
    None
}

fn set_errno(number: c_int) {
    #[cfg(target_os = "linux")]
    // SAFETY: the pointer is this thread's own errno.
    unsafe {
        *libc::__errno_location() = number;
    }
    #[cfg(target_os = "macos")]
    // SAFETY: the pointer is this thread's own errno.
    unsafe {
        *libc::__error() = number;
    }
}

fn missing() -> Error {
    Error::Folder("a pointer that must not be NULL is NULL: see vouchsafe.h".to_owned())
}

/// Reads a text from the caller; returns `None` for null.
///
/// # Safety
///
/// `text` must be null, or a NUL-terminated text that lives for as long as the result.
unsafe fn text<'a>(text: *const c_char) -> Option<Result<&'a str, Error>> {
    if text.is_null() {
        return None;
    }
    // SAFETY: the caller keeps the contract.
    let text = unsafe { CStr::from_ptr(text) };
    Some(text.to_str().map_err(|_| Error::Folder("a text is not UTF-8".to_owned())))
}
