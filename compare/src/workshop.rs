//! The files and keys of a solution, with a count of the administrator's steps.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use lab::process::output;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use tempfile::TempDir;

/// An administrator's steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Steps {
    /// Number of configuration files written or changed. A file counts on each machine that has it.
    pub files: usize,
    /// Number of keys and certificates copied to a machine.
    pub keys: usize,
    /// Number of commands run.
    pub commands: usize,
}

impl Steps {
    /// Returns the number of all steps together.
    pub const fn total(self) -> usize {
        self.files + self.keys + self.commands
    }
}

/// A folder that contains one folder for each machine. Dropping this value removes the folder.
pub struct Workshop {
    dir: TempDir,
    steps: Steps,
    /// Lines of each configuration file, by machine and name.
    lines: BTreeMap<(String, String), usize>,
}

impl Workshop {
    /// Makes an empty workshop.
    ///
    /// # Errors
    ///
    /// Fails if the folder can't be made.
    pub fn new() -> Result<Self> {
        let dir = TempDir::with_prefix("vouchsafe-compare-").context("cannot create a folder for files")?;
        Ok(Self { dir, steps: Steps::default(), lines: BTreeMap::new() })
    }

    /// Returns the numbers of steps taken so far.
    pub const fn steps(&self) -> Steps {
        self.steps
    }

    /// Returns the steps that this workshop needed in addition to the steps of `fewer`, a workshop with one client
    /// less. These are the additional keys and commands, the new files, and the files that have a different number of
    /// lines. A file in which only a random key differs does not count.
    pub fn steps_since(&self, fewer: &Self) -> Steps {
        let edited = self.lines.iter().filter(|(file, lines)| fewer.lines.get(*file) != Some(*lines)).count();
        Steps {
            files: edited,
            keys: self.steps.keys.saturating_sub(fewer.steps.keys),
            commands: self.steps.commands.saturating_sub(fewer.steps.commands),
        }
    }

    /// Returns the path of the file `name` in the folder of a machine, such as `server` or `client-1`.
    pub fn path(&self, machine: &str, name: &str) -> PathBuf {
        self.dir.path().join(machine).join(name)
    }

    /// Returns the content of a machine's file, without the white space at its ends.
    ///
    /// # Errors
    ///
    /// Fails if there is no such file.
    pub fn text(&self, machine: &str, name: &str) -> Result<String> {
        let path = self.path(machine, name);
        Ok(fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?.trim().to_owned())
    }

    /// Writes a configuration file; only its owner can read it.
    ///
    /// # Errors
    ///
    /// Fails if the file can't be written.
    pub fn file(&mut self, machine: &str, name: &str, text: &str) -> Result<PathBuf> {
        self.edited(machine, name, text);
        self.write(machine, name, text, 0o600)
    }

    /// Writes a script for a daemon to run.
    ///
    /// # Errors
    ///
    /// Fails if the script can't be written.
    pub fn script(&mut self, machine: &str, name: &str, text: &str) -> Result<PathBuf> {
        self.edited(machine, name, text);
        self.write(machine, name, &format!("#!/bin/sh\n{text}"), 0o700)
    }

    /// Copies a key or certificate to a machine.
    ///
    /// # Errors
    ///
    /// Fails if the key or certificate can't be written.
    pub fn key(&mut self, machine: &str, name: &str, text: &str) -> Result<PathBuf> {
        self.steps.keys += 1;
        self.write(machine, name, text, 0o600)
    }

    /// Runs `[program, args…]`, for instance to make a key, and returns its standard output.
    ///
    /// # Errors
    ///
    /// Fails if the program fails; the error contains the program's output.
    pub fn run<A: AsRef<std::ffi::OsStr>>(&mut self, words: impl IntoIterator<Item = A>) -> Result<String> {
        self.steps.commands += 1;
        let mut words = words.into_iter();
        let mut command = Command::new(words.next().context("there is no command to run")?);
        output(command.args(words).current_dir(self.dir.path()))
    }

    /// Makes the folder of a machine and returns its path.
    ///
    /// # Errors
    ///
    /// Fails if the folder can't be made.
    pub fn machine(&self, machine: &str) -> Result<PathBuf> {
        let dir = self.dir.path().join(machine);
        fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
        Ok(dir)
    }

    /// Makes a certificate authority and certificates: `ca.crt`, `this.crt`, `this.key`, and `this.pem` with
    /// certificate and key, on the server and on every client. The server's certificate is for the name `server`, and
    /// the first client's certificate is for [`IDENTITY`].
    ///
    /// # Errors
    ///
    /// Fails if a certificate can't be made or written.
    pub fn certificates(&mut self, clients: usize) -> Result<()> {
        let mut params = CertificateParams::new(Vec::<String>::new())?;
        params.distinguished_name.push(DnType::CommonName, "comparison");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate()?;
        let root = params.self_signed(&key)?.pem();
        let issuer = Issuer::new(params, key);
        self.steps.commands += 1;
        for number in 0..=clients {
            let machine = if number == 0 { "server".to_owned() } else { client(number) };
            let name = if number == 0 { "server".to_owned() } else { identity(number) };
            let mut params = CertificateParams::new(if number == 0 {
                vec!["server".to_owned(), crate::site::GATEWAY.to_owned()]
            } else {
                Vec::new()
            })?;
            params.distinguished_name.push(DnType::CommonName, name);
            params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyAgreement];
            let usage =
                if number == 0 { ExtendedKeyUsagePurpose::ServerAuth } else { ExtendedKeyUsagePurpose::ClientAuth };
            params.extended_key_usages = vec![usage];
            let key = KeyPair::generate()?;
            let certificate = params.signed_by(&key, &issuer)?.pem();
            self.steps.commands += 1;
            self.key(&machine, "ca.crt", &root)?;
            self.key(&machine, "this.crt", &certificate)?;
            self.key(&machine, "this.key", &key.serialize_pem())?;
            self.write(&machine, "this.pem", &(certificate + &key.serialize_pem()), 0o600)?;
        }
        Ok(())
    }

    fn edited(&mut self, machine: &str, name: &str, text: &str) {
        self.steps.files += 1;
        self.lines.insert((machine.to_owned(), name.to_owned()), text.lines().count());
    }

    fn write(&self, machine: &str, name: &str, text: &str, mode: u32) -> Result<PathBuf> {
        let path = self.machine(machine)?.join(name);
        let parent = path.parent().unwrap_or(Path::new("/"));
        fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))?;
        let mut options = fs::OpenOptions::new();
        let file = options.write(true).create(true).truncate(true).mode(mode).open(&path);
        file.and_then(|mut file| file.write_all(text.as_bytes()))
            .with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }
}

/// The name in the first client's certificate or account. Captures are searched for this name.
pub const IDENTITY: &str = "wilhelmina-1";

/// Returns the name in a client's certificate or account.
pub fn identity(number: usize) -> String {
    format!("{}{number}", IDENTITY.trim_end_matches('1'))
}

/// Returns the name of the folder of the client with this number.
pub fn client(number: usize) -> String {
    format!("client-{number}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_administrator_does_is_counted() {
        let mut shop = Workshop::new().unwrap();
        shop.file("server", "a.conf", "x").unwrap();
        shop.key("client-1", "a.key", "y").unwrap();
        shop.run(["true"]).unwrap();
        assert_eq!(shop.steps(), Steps { files: 1, keys: 1, commands: 1 });
        assert_eq!(shop.text("client-1", "a.key").unwrap(), "y");
    }

    #[test]
    fn each_client_more_costs_its_own_certificate_only() {
        let steps = |clients| {
            let mut shop = Workshop::new().unwrap();
            shop.certificates(clients).unwrap();
            shop.steps()
        };
        let (ten, eleven) = (steps(10), steps(11));
        assert_eq!((eleven.keys - ten.keys, eleven.commands - ten.commands), (3, 1));
    }

    #[test]
    fn a_file_that_grows_with_the_clients_is_edited_for_one_more() {
        let shop = |clients: usize| {
            let mut shop = Workshop::new().unwrap();
            shop.file("server", "peers", &"peer\n".repeat(clients)).unwrap();
            shop.file("server", "settings", "port 1\n").unwrap();
            for number in 1..=clients {
                shop.file(&client(number), "own", "x").unwrap();
            }
            shop
        };
        assert_eq!(shop(3).steps_since(&shop(2)), Steps { files: 2, keys: 0, commands: 0 });
    }

    #[test]
    fn the_first_client_is_the_one_that_captures_are_searched_for() {
        assert_eq!(identity(1), IDENTITY);
    }
}
