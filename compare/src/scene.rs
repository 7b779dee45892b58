//! A running solution: its network, its files and its processes.

use std::any::Any;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use lab::{Namespace, Process, poll};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::measure::inside::Inside;
use crate::measure::way::Way;
use crate::site::{Path, SERVER, Site, processes};
use crate::workshop::{Steps, Workshop, client};

/// Time within which a daemon must have started, stopped or reached an expected state.
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
}

/// A running solution. Fields are declared in the order in which they are dropped.
pub struct Scene {
    running: [Vec<Process>; 2],
    held: [Vec<Box<dyn Any + Send + Sync>>; 2],
    steps: [Steps; 2],
    /// Number of the client that [`End::Client`] means, from 1.
    number: usize,
    /// Path at which the solution's broker passes sockets to measurements, see [`Way`]; `None` if every socket in the
    /// client's namespace reaches the server.
    pub broker: Option<PathBuf>,
    /// The solution's files and keys, and the count of the administrator's steps.
    pub shop: Workshop,
    /// Namespaces and cables.
    pub site: Site,
}

impl Scene {
    /// Builds the network, in which nothing runs yet.
    ///
    /// # Errors
    ///
    /// Fails if the network can't be made.
    pub fn new(path: Path, shop: Workshop) -> Result<Self> {
        let site = Site::new(path)?;
        let (running, held, steps) = Default::default();
        Ok(Self { running, held, steps, number: 1, broker: None, shop, site })
    }

    /// Returns the number of the client that [`End::Client`] means, from 1.
    pub const fn number(&self) -> usize {
        self.number
    }

    /// Selects a client: from now on, [`End::Client`] means the client `number`. If this client has no host on the path
    /// yet, makes one.
    ///
    /// # Errors
    /// Fails if the host can't be made.
    pub fn turn_to(&mut self, number: usize) -> Result<()> {
        while self.site.others.len() + 1 < number {
            self.site.add_client()?;
        }
        self.number = number;
        Ok(())
    }

    /// Returns the way in which measurements get sockets of the client.
    pub fn way(&self) -> Way {
        Way::new(Inside::of(self.namespace(End::Client)), self.broker.clone())
    }

    /// Returns the namespace of an end.
    pub fn namespace(&self, end: End) -> &Namespace {
        match end {
            End::Client if self.number > 1 => &self.site.others[self.number - 2],
            End::Client => &self.site.client,
            End::Server => &self.site.gateway,
        }
    }

    /// Returns the path of the file `name` in an end's folder.
    pub fn path(&self, end: End, name: &str) -> PathBuf {
        self.shop.path(&self.machine(end), name)
    }

    /// Returns the name of an end's folder.
    pub fn machine(&self, end: End) -> String {
        match end {
            End::Client => client(self.number),
            End::Server => "server".to_owned(),
        }
    }

    /// Runs the command `line` at an end and returns its standard output. White space separates the words of `line`.
    ///
    /// # Errors
    ///
    /// Fails if the program fails; the error contains the program's output.
    pub fn run(&mut self, end: End, line: &str) -> Result<String> {
        self.steps[end.index()].commands += 1;
        self.namespace(end).run(line.split_whitespace())
    }

    /// Runs `ip WORDS…` at an end.
    ///
    /// # Errors
    ///
    /// Fails if `ip` fails.
    pub fn ip(&mut self, end: End, words: &str) -> Result<()> {
        self.steps[end.index()].commands += 1;
        self.namespace(end).ip(words).map(drop)
    }

    /// Starts a daemon at an end. [`Scene::stop`] ends it.
    ///
    /// # Errors
    ///
    /// Fails if the daemon can't be started.
    pub fn daemon(&mut self, end: End, line: &str) -> Result<()> {
        self.daemon_words(end, line.split_whitespace())
    }

    /// Starts a daemon, like [`Self::daemon`], for arguments that contain spaces.
    ///
    /// # Errors
    ///
    /// Fails if the daemon can't be started.
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

    /// Keeps a value alive until the end is stopped.
    pub fn hold(&mut self, end: End, part: impl Any + Send + Sync) {
        self.held[end.index()].push(Box::new(part));
    }

    /// Returns the value of the type `T` that an end keeps alive, if there is one.
    pub fn held<T: Any>(&mut self, end: End) -> Option<&mut T> {
        self.held[end.index()].iter_mut().find_map(|part| part.downcast_mut())
    }

    /// Adds steps of the administrator that [`Self::run`], [`Self::ip`] and [`Self::daemon`] do not count.
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

    /// Waits until the device exists at an end.
    ///
    /// # Errors
    ///
    /// Fails if the device does not appear; the error contains the daemons' logs.
    pub fn wait_for_device(&self, end: End, device: &str) -> Result<()> {
        let there = poll(SOON, || self.namespace(end).ip(&format!("link show dev {device}")).is_ok());
        ensure!(there, "the device {device} did not appear at {}:\n{}", self.machine(end), self.logs(end));
        Ok(())
    }

    /// Waits until `condition` returns true.
    ///
    /// # Errors
    ///
    /// Fails if `condition` does not return true within [`SOON`]. The error names `what` and contains the daemons'
    /// logs.
    pub fn wait(&self, end: End, what: &str, condition: impl FnMut() -> bool) -> Result<()> {
        ensure!(poll(SOON, condition), "waited in vain for {what} at {}:\n{}", self.machine(end), self.logs(end));
        Ok(())
    }

    /// Waits until a process of an end listens on the TCP port.
    ///
    /// # Errors
    ///
    /// Fails if no process listens on the port in time.
    pub fn wait_for_listener(&self, end: End, port: u16) -> Result<()> {
        let namespace = self.namespace(end);
        self.wait(end, &format!("a listener on port {port}"), || {
            namespace.run(["ss", "-Hltn", &format!("sport = :{port}")]).is_ok_and(|lines| !lines.is_empty())
        })
    }

    /// Returns the whole logs of an end's daemons.
    pub fn whole_logs(&self, end: End) -> String {
        let logs = self.running[end.index()].iter().map(Process::log);
        logs.collect::<Vec<_>>().join("\n")
    }

    /// Returns the last 3000 bytes or so of [`Self::whole_logs`].
    pub fn logs(&self, end: End) -> String {
        let all = self.whole_logs(end);
        // The end of a log says why.
        let from = all.len().saturating_sub(3000);
        all.char_indices().find(|(at, _)| *at >= from).map_or_else(String::new, |(at, _)| all[at..].to_owned())
    }

    /// Stops all processes at one end of the path, and drops the values that this end keeps alive.
    ///
    /// # Errors
    ///
    /// Fails if a process does not end.
    pub fn stop(&mut self, end: End) -> Result<()> {
        let stopped = self.stop_processes(end);
        self.held[end.index()].clear();
        stopped
    }

    /// Stops all processes at one end of the path, including those that have detached themselves. Unlike
    /// [`Self::stop`], it does not drop the values that this end keeps alive.
    ///
    /// # Errors
    ///
    /// Fails if a process does not end.
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
        ensure!(gone, "processes at {} do not end", self.machine(end));
        Ok(())
    }

    /// Returns the address of the services.
    pub fn server(&self) -> Ipv4Addr {
        SERVER.parse().expect("INVARIANT: a constant address")
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        for number in (1..=self.site.others.len() + 1).rev() {
            self.number = number;
            // The values that clients keep alive are dropped after the processes of all clients have ended.
            if let Err(error) = self.stop_processes(End::Client) {
                eprintln!("compare: {error:#}");
            }
        }
        for end in [End::Client, End::Server] {
            if let Err(error) = self.stop(end) {
                eprintln!("compare: {error:#}");
            }
        }
    }
}
