//! Attachment of programs to tc; the mechanism depends on the kernel's version.

/// The kernel mechanism by which programs are attached to tc.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attachment {
    /// TCX, since Linux 6.6.
    Tcx,
    /// A filter of the clsact qdisc.
    Clsact,
}

impl Attachment {
    /// Returns the name used in output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcx => "tcx",
            Self::Clsact => "clsact",
        }
    }
}

/// Returns the mechanism that this kernel has: TCX since Linux 6.6.
pub fn supported_attachment() -> Attachment {
    if kernel_version() >= (6, 6) { Attachment::Tcx } else { Attachment::Clsact }
}

/// Returns the kernel's version: major and minor.
pub fn kernel_version() -> (u32, u32) {
    let name = nix::sys::utsname::uname();
    version(&name.map(|name| name.release().to_string_lossy().into_owned()).unwrap_or_default())
}

fn version(release: &str) -> (u32, u32) {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_begins_with_its_version() {
        assert_eq!(version("6.1.0-56-cloud-amd64"), (6, 1));
        assert_eq!(version("6.18+"), (6, 18));
        assert_eq!(version("7"), (7, 0));
        assert_eq!(version(""), (0, 0));
    }
}
