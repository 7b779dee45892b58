//! The user's persistent keyring (keyrings(7)): kernel memory that outlives the user's processes by some days and is
//! never written to disk. Containers and small kernels often have no keyrings; the caller then uses a file.

use crate::Error;
use libc::{c_char, c_long, c_ulong};
use std::ffi::CString;
use std::io;
use zeroize::Zeroizing;

type Serial = c_long;

const TYPE: &std::ffi::CStr = c"user";
const PROCESS_KEYRING: c_long = -2;
/// Permissions of a key: everything for the possessor and for the user's other processes, nothing for anybody else.
const OWN: c_ulong = 0x3f3f_0000;
/// Maximum length of a secret, in bytes.
const SECRET_MAX: usize = 4096;

const GET_PERSISTENT: c_long = 22;
const SETPERM: c_long = 5;
const UNLINK: c_long = 9;
const SEARCH: c_long = 10;
const READ: c_long = 11;
const SET_TIMEOUT: c_long = 15;

/// Stores a secret for `seconds`. Returns whether the keyring has stored it.
pub fn write(name: &str, secret: &str, seconds: u64) -> bool {
    let (Ok(Some(keyring)), Ok(name)) = (persistent(), CString::new(name)) else { return false };
    // SAFETY: the kernel reads the two texts, which are NUL-terminated, and `secret.len()` bytes of the secret.
    let key = unsafe {
        libc::syscall(libc::SYS_add_key, TYPE.as_ptr(), name.as_ptr(), secret.as_ptr(), secret.len(), keyring)
    };
    if key < 0 {
        return false;
    }
    let is_own = call(SETPERM, key as c_ulong, OWN, 0, 0).is_ok();
    let ends = call(SET_TIMEOUT, key as c_ulong, seconds.max(1) as c_ulong, 0, 0).is_ok();
    is_own && ends
}

/// Returns a secret, or `None` if the keyring does not have it.
///
/// # Errors
///
/// Fails if the kernel does not let the keyring be read, because the user has as many keys as it allows.
pub fn read(name: &str) -> Result<Option<Zeroizing<String>>, Error> {
    let Some(key) = find(name)? else { return Ok(None) };
    let mut bytes = Zeroizing::new(vec![0_u8; SECRET_MAX]);
    let size = call(READ, key as c_ulong, bytes.as_mut_ptr() as c_ulong, SECRET_MAX as c_ulong, 0);
    let secret = size.ok().and_then(|size| bytes.get(..usize::try_from(size).ok()?));
    Ok(secret.and_then(|secret| String::from_utf8(secret.to_vec()).ok()).map(Zeroizing::new))
}

/// Removes a secret, if the keyring has it.
pub fn remove(name: &str) {
    if let (Ok(Some(key)), Ok(Some(keyring))) = (find(name), persistent()) {
        let _ = call(UNLINK, key as c_ulong, keyring as c_ulong, 0, 0);
    }
}

fn find(name: &str) -> Result<Option<Serial>, Error> {
    let (Some(keyring), Ok(name)) = (persistent()?, CString::new(name)) else { return Ok(None) };
    Ok(call(SEARCH, keyring as c_ulong, TYPE.as_ptr() as c_ulong, name.as_ptr() as c_ulong, 0).ok())
}

/// Returns the user's persistent keyring, or `None` if there are no such keyrings here. Links the keyring to this
/// process, which thereby possesses it. The link takes some of the user's room for keys.
fn persistent() -> Result<Option<Serial>, Error> {
    match call(GET_PERSISTENT, c_ulong::MAX, PROCESS_KEYRING as c_ulong, 0, 0) {
        Ok(keyring) => Ok(Some(keyring)),
        Err(error) if error.raw_os_error() == Some(libc::EDQUOT) => Err(Error::KeyringFull),
        Err(_) => Ok(None),
    }
}

fn call(operation: c_long, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> io::Result<c_long> {
    // SAFETY: of the operations above, SEARCH takes two NUL-terminated texts as `b` and `c`, READ takes room for `c`
    // bytes as `b`, and the others take numbers only. The callers keep texts and room alive.
    let answer = unsafe { libc::syscall(libc::SYS_keyctl, operation, a, b, c, d) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer) }
}

const _: () = assert!(size_of::<*const c_char>() == size_of::<c_ulong>());

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    const THREAD_KEYRING: c_long = -1;
    /// Lengths of keys, of which the test adds as many as fit. The default quota of a user is 20 000 bytes and 200 keys.
    const LENGTHS: [usize; 3] = [4000, 100, 1];
    const KEYS_MAX: usize = 10_000;

    /// Runs `test` in a thread that becomes another user and has no keys yet. Needs root. No two threads become the same
    /// user, because the kernel removes the keys of a thread only some time after its end.
    fn as_other<T: Send + 'static>(test: fn() -> T) -> T {
        static USERS: AtomicU32 = AtomicU32::new(0);
        let user = 60_000 + (std::process::id() * 4 + USERS.fetch_add(1, Ordering::Relaxed)) % 4000;
        let thread = std::thread::spawn(move || {
            // SAFETY: the call takes numbers only. Called directly, it changes the user of this thread alone.
            let changed = unsafe { libc::syscall(libc::SYS_setresuid, user, user, user) };
            assert_eq!(changed, 0, "this test needs root");
            test()
        });
        thread.join().unwrap()
    }

    fn is_missing() -> bool {
        read("vouchsafe-nothing").unwrap().is_none()
    }

    #[test]
    fn a_full_keyring_is_told_from_a_missing_secret() {
        assert!(as_other(is_missing));
        if as_other(|| persistent().unwrap().is_none()) {
            return;
        }
        as_other(|| {
            let secret = [0_u8; LENGTHS[0]];
            let mut numbers = 0..KEYS_MAX;
            for length in LENGTHS {
                let full = numbers.find(|number| {
                    let name = CString::new(number.to_string()).unwrap();
                    // SAFETY: the kernel reads the two texts, which are NUL-terminated, and `length` bytes.
                    let key = unsafe {
                        let (kind, name) = (TYPE.as_ptr(), name.as_ptr());
                        libc::syscall(libc::SYS_add_key, kind, name, secret.as_ptr(), length, THREAD_KEYRING)
                    };
                    key < 0
                });
                assert!(full.is_some(), "the kernel sets no quota");
            }
            assert!(matches!(read("vouchsafe-nothing"), Err(Error::KeyringFull)));
            assert!(!write("vouchsafe-test", "secret", 1));
        });
    }
}
