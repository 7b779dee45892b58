//! Persistent keyrings (keyrings(7)) of the users that tests run programs as. The kernel limits the number and size of
//! a user's keys, and keeps them for days. So tests have to remove the keys that their programs have stored.

use libc::{c_long, c_ulong};

const PROCESS_KEYRING: c_long = -2;
const DESCRIBE: c_long = 6;
const UNLINK: c_long = 9;
const READ: c_long = 11;
const GET_PERSISTENT: c_long = 22;
/// Room for the description of a key. Longer descriptions are not those of a test's keys.
const DESCRIPTION_MAX: usize = 4096;

/// Removes the keys in the user's persistent keyring whose descriptions contain `text`. Needs root. Does nothing if the
/// kernel has no keyrings.
pub fn forget(user: u32, text: &str) {
    // The link to the process keyring gives this process the rights of the user.
    let Some(keyring) = call(GET_PERSISTENT, user.into(), PROCESS_KEYRING as c_ulong, 0) else { return };
    for key in keys(keyring) {
        if description(key).contains(text) {
            call(UNLINK, key as c_ulong, keyring as c_ulong, 0);
        }
    }
}

/// Returns the numbers of the keys in a keyring.
fn keys(keyring: c_long) -> Vec<i32> {
    let size = call(READ, keyring as c_ulong, 0, 0).unwrap_or(0) as usize;
    let mut keys = vec![0_i32; size / size_of::<i32>()];
    let room = size_of_val(keys.as_slice());
    let read = call(READ, keyring as c_ulong, keys.as_mut_ptr() as c_ulong, room as c_ulong).unwrap_or(0) as usize;
    keys.truncate(read.min(room) / size_of::<i32>());
    keys
}

fn description(key: i32) -> String {
    let mut text = vec![0_u8; DESCRIPTION_MAX];
    let size = call(DESCRIBE, key as c_ulong, text.as_mut_ptr() as c_ulong, text.len() as c_ulong);
    text.truncate(size.map_or(0, |size| size as usize).min(DESCRIPTION_MAX));
    String::from_utf8_lossy(&text).into_owned()
}

fn call(operation: c_long, a: c_ulong, b: c_ulong, c: c_ulong) -> Option<c_long> {
    // SAFETY: READ and DESCRIBE write at most `c` bytes to the room at `b`, which the callers keep alive, and nothing if
    // `c` is 0. The other operations take numbers only.
    let answer = unsafe { libc::syscall(libc::SYS_keyctl, operation, a, b, c, 0) };
    (answer >= 0).then_some(answer)
}
