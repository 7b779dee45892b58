//! Installs packages by purpose. The lists are in `xtask/setup.sh`: plain sh, because this crate cannot be linked
//! before gcc is installed.

use anyhow::Result;

use crate::run::{command, run as run_command};

/// The purposes for which packages are installed.
pub const PURPOSES: [&str; 8] = ["build", "lint", "package", "package-arm64", "demo", "bench", "test", "compare"];

/// Installs the packages for `purpose`.
pub fn run(purpose: &str) -> Result<()> {
    run_command(command("sh").args(["xtask/setup.sh", purpose]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::output;

    fn packages(purpose: &str) -> Vec<String> {
        let list = output(command("sh").args(["xtask/setup.sh", "--list", purpose])).unwrap();
        list.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn each_purpose_needs_what_a_smaller_one_does_and_more() {
        let pairs = [
            ["build", "demo"],
            ["build", "package"],
            ["package", "package-arm64"],
            ["package-arm64", "test"],
            ["demo", "bench"],
            ["bench", "test"],
            ["demo", "compare"],
        ];
        for pair in pairs {
            let (fewer, more) = (packages(pair[0]), packages(pair[1]));
            assert!(fewer.iter().all(|package| more.contains(package)), "{pair:?}");
            assert!(more.len() > fewer.len(), "{pair:?}");
        }
    }

    #[test]
    fn checks_need_no_more_packages_than_a_build() {
        assert_eq!(packages("lint"), packages("build"));
    }

    #[test]
    fn a_demonstration_needs_no_browser_and_no_emulator() {
        let demo = packages("demo");
        for needless in ["chromium", "nodejs", "python3", "qemu-system-x86", "tshark", "openvswitch-switch"] {
            assert!(!demo.iter().any(|package| package.starts_with(needless)), "{needless}");
        }
    }

    #[test]
    fn no_package_is_listed_twice() {
        for purpose in PURPOSES {
            let all = packages(purpose);
            let mut once = all.clone();
            once.sort();
            once.dedup();
            assert_eq!(once.len(), all.len(), "{all:?}");
        }
    }

    #[test]
    fn an_unknown_purpose_is_refused() {
        assert!(output(command("sh").args(["xtask/setup.sh", "--list", "dance"])).is_err());
    }
}
