//! The interface of a solution: one short file in `drivers/` implements it.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;

use crate::claims::Claims;
use crate::scene::{End, Scene};
use crate::workshop::Workshop;

/// A program that a solution needs, and what brings it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// The program's name or path.
    pub program: &'static str,
    /// The package that brings it.
    pub package: &'static str,
}

impl Need {
    /// Names a program of a Debian package.
    pub const fn new(program: &'static str, package: &'static str) -> Self {
        Self { program, package }
    }

    /// Returns where the program is, if it is installed.
    pub fn found(&self) -> Option<PathBuf> {
        find(self.program)
    }
}

fn find(program: &str) -> Option<PathBuf> {
    if program.contains('/') {
        return Some(PathBuf::from(program)).filter(|path| path.is_file());
    }
    let path = std::env::var("PATH").unwrap_or_default();
    // Daemons are in sbin, which ordinary users' PATH lacks.
    let dirs = path.split(':').chain(["/usr/sbin", "/sbin", "/usr/local/bin"]);
    dirs.map(|dir| PathBuf::from(dir).join(program)).find(|file| file.is_file())
}

/// Where strangers may knock: the solution's outer port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    /// A UDP port of the gateway.
    Udp(u16),
    /// A TCP port of the gateway.
    Tcp(u16),
    /// None: strangers call the server itself.
    Inside,
}

/// A solution.
///
/// The client is [`site::CLIENT`](crate::site::CLIENT), the server runs on the gateway,
/// [`site::GATEWAY`](crate::site::GATEWAY). Once [`Driver::start_client`] has taken effect, the client must reach
/// [`site::SERVER`](crate::site::SERVER) behind the gateway, and packets from there must reach the client.
pub trait Driver: Send + Sync {
    /// Returns the name on the command line and in files.
    fn name(&self) -> String;

    /// Returns what the solution is and says about itself.
    fn claims(&self) -> Claims;

    /// Returns the programs that must be installed.
    fn needs(&self) -> Vec<Need>;

    /// Returns a command line that prints the version.
    fn version(&self) -> String;

    /// Makes all files and keys of the server and of `clients` clients, each in the folder of its machine. The steps are
    /// counted, so everything that an administrator would do must be done here or when starting.
    ///
    /// # Errors
    /// If a key can't be made or a file can't be written.
    fn prepare(&self, shop: &mut Workshop, clients: usize) -> Result<()>;

    /// Starts the server and waits until it would accept a client.
    ///
    /// # Errors
    /// If it does not start.
    fn start_server(&self, scene: &mut Scene) -> Result<()>;

    /// Starts the first client. It need not wait until the client is connected: that is measured.
    ///
    /// # Errors
    /// If it does not start.
    fn start_client(&self, scene: &mut Scene) -> Result<()>;

    /// Stops the server.
    ///
    /// # Errors
    /// If it does not stop.
    fn stop_server(&self, scene: &mut Scene) -> Result<()> {
        scene.stop(End::Server)
    }

    /// Returns where strangers may knock.
    fn door(&self) -> Door;

    /// Returns how long the solution needs, after its first answer, until it works as it does later.
    fn warm_up(&self) -> Duration {
        Duration::ZERO
    }

    /// Returns why the solution can't run on this machine although its programs are there, if so.
    fn impossible(&self) -> Option<String> {
        None
    }

    /// Reports whether the solution exists only to test the method; such ones run only when named.
    fn is_for_tests(&self) -> bool {
        false
    }
}

/// Returns what keeps a solution from running here: missing programs with the packages that bring them, or another
/// reason.
pub fn obstacle(driver: &dyn Driver) -> Option<String> {
    let missing: Vec<_> = driver.needs().into_iter().filter(|need| need.found().is_none()).collect();
    if missing.is_empty() {
        return driver.impossible();
    }
    let named: Vec<_> = missing.iter().map(|need| format!("{} ({})", need.program, need.package)).collect();
    Some(format!("not installed: {}", named.join(", ")))
}

/// Returns the first line that the version command prints and that has a digit, or "unknown".
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
