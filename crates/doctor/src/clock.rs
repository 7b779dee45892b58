//! Whether the clock is right: a token is good for 30 seconds around the verifier's time.

use crate::Check;

const REMEDY: &str = "run a time service (systemd-timesyncd, chrony); tokens need a clock within 30 s";

/// How far off the kernel thinks that its clock may be.
pub(crate) fn synchronised() -> Check {
    // SAFETY: an all-zero timex is a valid value of this plain C structure; it asks and changes nothing.
    let mut state: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: the structure lives through the call.
    let result = unsafe { libc::adjtimex(&raw mut state) };
    judge(result, state.maxerror)
}

/// What adjtimex(2) returned, and its bound of the error in microseconds.
fn judge(result: i32, bound: libc::c_long) -> Check {
    match result {
        -1 => Check::warn("clock", "the kernel does not say whether it is synchronised", REMEDY),
        // chrony leaves the kernel in this state unless told otherwise.
        libc::TIME_ERROR => Check::warn(
            "clock",
            "not synchronised, as far as the kernel knows",
            format!("{REMEDY}; chrony tells the kernel with `rtcsync`"),
        ),
        _ => Check::ok("clock", format!("synchronised within {} ms", bound / 1000)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::State;

    #[test]
    fn an_unsynchronised_clock_is_a_warning() {
        assert_eq!(judge(libc::TIME_OK, 12_500).found, "synchronised within 12 ms");
        assert_eq!(judge(libc::TIME_ERROR, 16_000_000).state, State::Warn);
        assert_eq!(judge(-1, 0).state, State::Warn);
    }
}
