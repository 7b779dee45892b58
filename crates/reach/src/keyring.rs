//! The user's persistent keyring (keyrings(7)): kernel memory that outlives the user's processes by some days and is
//! never written to disk. Containers and small kernels often have no keyrings; the caller then uses a file.

use libc::{c_char, c_long, c_ulong};
use std::ffi::CString;
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
    let (Some(keyring), Ok(name)) = (persistent(), CString::new(name)) else { return false };
    // SAFETY: the kernel reads the two texts, which are NUL-terminated, and `secret.len()` bytes of the secret.
    let key = unsafe {
        libc::syscall(libc::SYS_add_key, TYPE.as_ptr(), name.as_ptr(), secret.as_ptr(), secret.len(), keyring)
    };
    if key < 0 {
        return false;
    }
    let is_own = call(SETPERM, key as c_ulong, OWN, 0, 0).is_some();
    let ends = call(SET_TIMEOUT, key as c_ulong, seconds.max(1) as c_ulong, 0, 0).is_some();
    is_own && ends
}

/// Returns a secret, or `None` if the keyring does not have it.
pub fn read(name: &str) -> Option<Zeroizing<String>> {
    let key = find(name)?;
    let mut bytes = Zeroizing::new(vec![0_u8; SECRET_MAX]);
    let size = call(READ, key as c_ulong, bytes.as_mut_ptr() as c_ulong, SECRET_MAX as c_ulong, 0)?;
    let secret = bytes.get(..usize::try_from(size).ok()?)?;
    String::from_utf8(secret.to_vec()).ok().map(Zeroizing::new)
}

/// Removes a secret, if the keyring has it.
pub fn remove(name: &str) {
    if let (Some(key), Some(keyring)) = (find(name), persistent()) {
        call(UNLINK, key as c_ulong, keyring as c_ulong, 0, 0);
    }
}

fn find(name: &str) -> Option<Serial> {
    let (keyring, name) = (persistent()?, CString::new(name).ok()?);
    call(SEARCH, keyring as c_ulong, TYPE.as_ptr() as c_ulong, name.as_ptr() as c_ulong, 0)
}

/// Returns the user's persistent keyring. Links it to this process, which thereby possesses it.
fn persistent() -> Option<Serial> {
    call(GET_PERSISTENT, c_ulong::MAX, PROCESS_KEYRING as c_ulong, 0, 0)
}

fn call(operation: c_long, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> Option<c_long> {
    // SAFETY: of the operations above, SEARCH takes two NUL-terminated texts as `b` and `c`, READ takes room for `c`
    // bytes as `b`, and the others take numbers only. The callers keep texts and room alive.
    let answer = unsafe { libc::syscall(libc::SYS_keyctl, operation, a, b, c, d) };
    (answer >= 0).then_some(answer)
}

const _: () = assert!(size_of::<*const c_char>() == size_of::<c_ulong>());
