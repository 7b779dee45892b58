//! A solution at work: its network, its files, and its running processes.

use std::any::Any;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use lab::{Namespace, Process, poll};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::site::{Path, SERVER, Site, processes};
use crate::workshop::{Steps, Workshop};

/// Time in which a daemon must do what is expected of it.
pub const SOON: Duration = Duration::from_secs(20);

/// One of the two ends of a solution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The client.
    Client,
    /// The gateway, where the solution's server runs.
    Server,
}

impl End {
    const fn index(self) -> usize {
        match self {
            Self::Client => 0,
            Self::Server => 1,
        }
    }

    /// Returns the end's folder in the workshop.
    pub const fn machine(self) -> &'static str {
        match self {
            Self::Client => "client-1",
            Self::Server => "server",
        }
    }
}

/// A solution at work. Fields are declared in the order in which they are dropped.
pub struct Scene {
    running: [Vec<Process>; 2],
    held: [Vec<Box<dyn Any + Send + Sync>>; 2],
    steps: [Steps; 2],
    /// Files and keys.
    pub shop: Workshop,
    /// Namespaces and cables.
    pub site: Site,
}

impl Scene {
    /// Builds the network; nothing runs in it.
    ///
    /// # Errors
    /// If the network or the folder can't be made.
    pub fn new(path: Path, shop: Workshop) -> Result<Self> {
        let site = Site::new(path)?;
        Ok(Self { running: Default::default(), held: Default::default(), steps: Default::default(), shop, site })
    }

    /// Returns the namespace of an end.
    pub const fn namespace(&self, end: End) -> &Namespace {
        match end {
            End::Client => &self.site.client,
            End::Server => &self.site.gateway,
        }
    }

    /// Returns the path of a file of an end.
    pub fn path(&self, end: End, name: &str) -> PathBuf {
        self.shop.path(end.machine(), name)
    }

    /// Runs `[program, args…]` at an end and returns its standard output.
    ///
    /// # Errors
    /// If the program fails; the error has its output.
    pub fn run(&mut self, end: End, line: &str) -> Result<String> {
        self.steps[end.index()].commands += 1;
        self.namespace(end).run(line.split_whitespace())
    }

    /// Runs `ip WORDS…` at an end.
    ///
    /// # Errors
    /// If `ip` fails.
    pub fn ip(&mut self, end: End, words: &str) -> Result<()> {
        self.steps[end.index()].commands += 1;
        self.namespace(end).ip(words).map(drop)
    }

    /// Starts a daemon at an end; it ends with [`Scene::stop`].
    ///
    /// # Errors
    /// If it can't be started.
    pub fn daemon(&mut self, end: End, line: &str) -> Result<()> {
        self.daemon_words(end, line.split_whitespace())
    }

    /// Starts a daemon whose words contain spaces.
    ///
    /// # Errors
    /// If it can't be started.
    pub fn daemon_words<A: AsRef<std::ffi::OsStr>>(
        &mut self,
        end: End,
        words: impl IntoIterator<Item = A>,
    ) -> Result<()> {
        self.steps[end.index()].commands += 1;
        let process = self.namespace(end).spawn(words)?;
        self.running[end.index()].push(process);
        Ok(())
    }

    /// Keeps something that an end needs while it runs.
    pub fn hold(&mut self, end: End, part: impl Any + Send + Sync) {
        self.held[end.index()].push(Box::new(part));
    }

    /// Returns what an end keeps, if it keeps something of this type.
    pub fn held<T: Any>(&mut self, end: End) -> Option<&mut T> {
        self.held[end.index()].iter_mut().find_map(|part| part.downcast_mut())
    }

    /// Counts steps that were not run by this scene.
    pub fn count(&mut self, end: End, steps: Steps) {
        let sum = &mut self.steps[end.index()];
        *sum = Steps {
            files: sum.files + steps.files,
            keys: sum.keys + steps.keys,
            commands: sum.commands + steps.commands,
        };
    }

    /// Returns the steps at an end since the scene was made.
    pub const fn steps(&self, end: End) -> Steps {
        self.steps[end.index()]
    }

    /// Waits until an end has the device.
    ///
    /// # Errors
    /// If the device does not appear; the error has the daemons' logs.
    pub fn wait_for_device(&self, end: End, device: &str) -> Result<()> {
        let there = poll(SOON, || self.namespace(end).ip(&format!("link show dev {device}")).is_ok());
        ensure!(there, "no device {device} at {}:\n{}", end.machine(), self.logs(end));
        Ok(())
    }

    /// Waits until the condition holds.
    ///
    /// # Errors
    /// If it does not; the error says `what` was waited for and has the daemons' logs.
    pub fn wait(&self, end: End, what: &str, condition: impl FnMut() -> bool) -> Result<()> {
        ensure!(poll(SOON, condition), "waited in vain for {what} at {}:\n{}", end.machine(), self.logs(end));
        Ok(())
    }

    /// Waits until a process of an end listens on the TCP port.
    ///
    /// # Errors
    /// If none does.
    pub fn wait_for_listener(&self, end: End, port: u16) -> Result<()> {
        let namespace = self.namespace(end);
        self.wait(end, &format!("a listener on port {port}"), || {
            namespace.run(["ss", "-Hltn", &format!("sport = :{port}")]).is_ok_and(|lines| !lines.is_empty())
        })
    }

    /// Returns the logs of an end's daemons.
    pub fn logs(&self, end: End) -> String {
        let logs = self.running[end.index()].iter().map(Process::log);
        let all = logs.collect::<Vec<_>>().join("\n");
        // The end of a log says why.
        let from = all.len().saturating_sub(3000);
        all.char_indices().find(|(at, _)| *at >= from).map_or_else(String::new, |(at, _)| all[at..].to_owned())
    }

    /// Ends all processes of an end and drops what it keeps.
    ///
    /// # Errors
    /// If a process does not end.
    pub fn stop(&mut self, end: End) -> Result<()> {
        let stopped = self.stop_processes(end);
        self.held[end.index()].clear();
        stopped
    }

    /// Ends all processes of an end, also those that detached themselves; what the end keeps stays.
    ///
    /// # Errors
    /// If a process does not end.
    pub fn stop_processes(&mut self, end: End) -> Result<()> {
        for process in &mut self.running[end.index()] {
            let _ = process.signal(Signal::SIGTERM);
        }
        self.running[end.index()].clear();
        let namespace = self.namespace(end);
        let gone = poll(Duration::from_secs(5), || {
            let left = processes(namespace);
            for pid in &left {
                let _ = kill(Pid::from_raw(*pid), Signal::SIGKILL);
            }
            left.is_empty()
        });
        ensure!(gone, "processes at {} do not end", end.machine());
        Ok(())
    }

    /// Returns the address of the services.
    pub fn server(&self) -> Ipv4Addr {
        SERVER.parse().expect("INVARIANT: a constant address")
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        for end in [End::Client, End::Server] {
            if let Err(error) = self.stop(end) {
                eprintln!("compare: {error:#}");
            }
        }
    }
}
