//! The limit on open files and sockets. Connections must not use up the file descriptors that the rest of the process
//! needs.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Number of file descriptors reserved for other uses: the database and its readers, the identity provider, sockets,
/// logs.
const RESERVED: u64 = 128;

/// Raises the process's soft limit on open files to its hard limit. Returns the number of connections that this limit
/// allows, at most `wanted`.
pub fn connections(wanted: u32) -> u32 {
    let (soft, hard) = match getrlimit(Resource::RLIMIT_NOFILE) {
        Ok(limits) => limits,
        Err(error) => {
            tracing::warn!("cannot read the limit of open files: {error}");
            return wanted;
        }
    };
    let limit = match setrlimit(Resource::RLIMIT_NOFILE, hard, hard) {
        Ok(()) => hard,
        Err(_) => soft,
    };
    let most = within(wanted, limit);
    if most < wanted {
        tracing::warn!(
            most,
            "max_connections is {wanted}, but this process may open only {limit} files, so fewer connections are \
             possible: raise `ulimit -n` or `LimitNOFILE`"
        );
    }
    most
}

/// Returns the number of connections that fit within a limit on open files; at least `LEAST_CONNECTIONS`.
fn within(wanted: u32, limit: u64) -> u32 {
    wanted
        .min(u32::try_from(limit.saturating_sub(RESERVED)).unwrap_or(u32::MAX).max(crate::settings::LEAST_CONNECTIONS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_files_for_everything_else() {
        assert_eq!([65_536, 1024, 200, 10].map(|limit| within(4096, limit)), [4096, 896, 72, 16]);
        assert_eq!(within(100, u64::MAX), 100);
    }
}
