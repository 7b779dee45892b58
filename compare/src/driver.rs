//! The interface that every solution implements, in one short file in `drivers/`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;

use crate::claims::Claims;
use crate::measure::emulator::Seen;
use crate::scene::{End, Scene};
use crate::secrecy::Attempt;
use crate::workshop::Workshop;

/// A program that a solution needs, and how to get it: a package, or a command that builds the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// The program's name or path.
    pub program: &'static str,
    /// The Debian package that contains the program, or the command in this repository that builds the program.
    pub package: &'static str,
}

impl Need {
    /// Creates the need for a program. `package` is the Debian package that contains the program, or the command in
    /// this repository that builds it.
    pub const fn new(program: &'static str, package: &'static str) -> Self {
        Self { program, package }
    }

    /// Returns the program's path, if it is installed.
    pub fn found(&self) -> Option<PathBuf> {
        find(self.program)
    }
}

fn find(program: &str) -> Option<PathBuf> {
    if program.contains('/') {
        return Some(PathBuf::from(program)).filter(|path| path.is_file());
    }
    let path = std::env::var("PATH").unwrap_or_default();
    // Daemons are in sbin, which is not in the PATH of ordinary users.
    let dirs = path.split(':').chain(["/usr/sbin", "/sbin", "/usr/local/bin"]);
    dirs.map(|dir| PathBuf::from(dir).join(program)).find(|file| file.is_file())
}

/// The target of a stranger's attack: the solution's outer port or, if it has none, the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    /// A UDP port of the gateway.
    Udp(u16),
    /// A TCP port of the gateway.
    Tcp(u16),
    /// The solution has no port. The stranger attacks the server itself.
    Inside,
}

/// A solution to compare.
///
/// The solution's client runs on the host [`site::CLIENT`](crate::site::CLIENT), and the solution's server on the
/// gateway, [`site::GATEWAY`](crate::site::GATEWAY). Once [`Driver::start_client`] has taken effect, packets must pass
/// in both directions between the client's host and the host of the services behind the gateway,
/// [`site::SERVER`](crate::site::SERVER).
pub trait Driver: Send + Sync {
    /// Returns the name on the command line and in files.
    fn name(&self) -> String;

    /// Returns the description of the solution.
    fn claims(&self) -> Claims;

    /// Returns the programs that must be installed for the solution.
    fn needs(&self) -> Vec<Need>;

    /// Returns a command line that prints the solution's version.
    fn version(&self) -> String;

    /// Makes all files and keys of the server and of `clients` clients, each in the folder of its machine. The steps
    /// are counted, so everything that an administrator would do must be done here, in [`Self::start_server`] or in
    /// [`Self::start_client`].
    ///
    /// # Errors
    ///
    /// Fails if a key can't be made or a file can't be written.
    fn prepare(&self, shop: &mut Workshop, clients: usize) -> Result<()>;

    /// Starts the server and waits until it would accept a client.
    ///
    /// # Errors
    ///
    /// Fails if it does not start.
    fn start_server(&self, scene: &mut Scene) -> Result<()>;

    /// Starts the first client. Does not have to wait until the client is connected, because the caller measures the
    /// time until then.
    ///
    /// # Errors
    ///
    /// Fails if it does not start.
    fn start_client(&self, scene: &mut Scene) -> Result<()>;

    /// Stops the server.
    ///
    /// # Errors
    ///
    /// Fails if it does not stop.
    fn stop_server(&self, scene: &mut Scene) -> Result<()> {
        scene.stop(End::Server)
    }

    /// Returns the port that a stranger can attack.
    fn door(&self) -> Door;

    /// Tries to open recorded frames of the solution's session with the long-term keys of both ends, which an observer
    /// has stolen after the session. Returns `None` if the driver has no such attempt; forward secrecy is then claimed,
    /// but not tested.
    ///
    /// # Errors
    /// Fails if the frames do not contain what the attempt needs, such as the handshake.
    fn open_with_stolen_keys(&self, _: &Scene, _: &[Seen]) -> Result<Option<Attempt>> {
        Ok(None)
    }

    /// Returns the time that the solution needs, after its first answer, to reach its final speed and path.
    fn warm_up(&self) -> Duration {
        Duration::ZERO
    }

    /// Returns the name of another variant of the same programs that differs from this one only by its cipher. The
    /// cipher does not change how a solution recovers from a restart of the server or from a change of the client's
    /// address. So a run that contains the other variant measures these two recoveries for the other variant only.
    fn differs_by_cipher_from(&self) -> Option<&'static str> {
        None
    }

    /// Returns the reason why the solution can't run on this machine although its programs are installed; `None` if it
    /// can run.
    fn impossible(&self) -> Option<String> {
        None
    }

    /// Reports whether the solution exists only to test the method. A solution for tests runs only if the user names
    /// it.
    fn is_for_tests(&self) -> bool {
        false
    }
}

/// Returns the reason why a solution can't run here: the missing programs with their packages, or another reason.
/// Returns `None` if the solution can run.
pub fn obstacle(driver: &dyn Driver) -> Option<String> {
    let missing: Vec<_> = driver.needs().into_iter().filter(|need| need.found().is_none()).collect();
    if missing.is_empty() {
        return driver.impossible();
    }
    let named: Vec<_> = missing.iter().map(|need| format!("{} ({})", need.program, need.package)).collect();
    Some(format!("not installed: {}", named.join(", ")))
}

/// Returns the first line of the version command's output that contains a digit, or "unknown".
pub fn version(driver: &dyn Driver) -> String {
    let line = driver.version();
    let mut args = line.split_whitespace();
    let Some(program) = args.next() else { return "unknown".to_owned() };
    let program = find(program).unwrap_or_else(|| PathBuf::from(program));
    let output = std::process::Command::new(program).args(args).stdin(std::process::Stdio::null()).output();
    let text = output.map(|output| {
        let both = [output.stdout, output.stderr].concat();
        String::from_utf8_lossy(&both).into_owned()
    });
    let text = text.unwrap_or_default();
    let line = text.lines().find(|line| line.chars().any(|c| c.is_ascii_digit())).unwrap_or("unknown");
    line.trim().chars().take(80).collect()
}
