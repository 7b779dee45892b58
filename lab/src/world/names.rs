//! The authority's name server, and programs that query it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use super::{AUTHORITY, Authority, FRONT4, FRONT6, OPEN4, SOON};
use crate::net::Namespace;
use crate::process::Process;

/// The domain of the standard world.
pub const DOMAIN: &str = "example.org";
/// The authority's host name.
pub const AUTHORITY_NAME: &str = "vouchsafe.example.org";
/// The host name of the server's protected addresses.
pub const FRONT_NAME: &str = "git.example.org";
/// The host name of an address that is not protected.
pub const OPEN_NAME: &str = "www.example.org";
/// A name under which DNS lists the authority. The authority's certificate does not contain the name.
const MEMBER_NAME: &str = "one.example.org";
/// The name server's address.
pub const NAME_SERVER: &str = "198.51.100.10:53";

/// The name server `vouchsafe authority dns` for [`DOMAIN`], on the authority's host.
pub struct NameServer {
    _process: Process,
}

impl NameServer {
    /// Configures and starts the name server.
    pub fn start(namespace: &Namespace, authority: &Authority) -> Result<Self> {
        let dir = authority.dir();
        let (file, zone) = (dir.join("authority.toml"), dir.join("zone"));
        let settings = format!(
            "\n[dns]\ndomain = \"{DOMAIN}\"\nauthority = \"https://{AUTHORITY_NAME}:8443\"\nzone = \"zone\"\n\
             listen = \"{NAME_SERVER}\"\nservers = [\"https://{AUTHORITY_NAME}:8443\"]\n"
        );
        fs::write(&file, fs::read_to_string(&file)? + &settings)?;
        let lines = [
            format!("{DOMAIN}. 60 IN SOA ns.{DOMAIN}. admin.{DOMAIN}. 1 7200 900 1209600 60"),
            format!("{DOMAIN}. 60 IN NS ns.{DOMAIN}."),
            format!("ns.{DOMAIN}. 60 IN A {AUTHORITY}"),
            format!("{AUTHORITY_NAME}. 60 IN A {AUTHORITY}"),
            format!("{FRONT_NAME}. 60 IN A {FRONT4}"),
            format!("{FRONT_NAME}. 60 IN AAAA {FRONT6}"),
            format!("{OPEN_NAME}. 60 IN A {OPEN4}"),
            // No authority answers at the first server for the authority's name.
            format!("_vouchsafe._tcp.{AUTHORITY_NAME}. 60 IN SRV 5 1 8443 {OPEN_NAME}."),
            format!("_vouchsafe._tcp.{AUTHORITY_NAME}. 60 IN SRV 10 1 8443 {MEMBER_NAME}."),
            format!("{MEMBER_NAME}. 60 IN A {AUTHORITY}"),
        ];
        fs::write(zone, lines.join("\n") + "\n")?;
        let mut command = namespace.command(crate::vouchsafe());
        command.args(["authority", "dns", "--dir"]).arg(dir);
        let mut process = namespace.start(command)?;
        process.wait_for("answering for", SOON)?;
        Ok(Self { _process: process })
    }
}

/// Runs `dig` with these arguments in a namespace, and returns its output.
pub fn dig(from: &Namespace, words: &[&str]) -> Result<String> {
    let (address, port) = NAME_SERVER.split_once(':').unwrap_or((NAME_SERVER, "53"));
    let server = format!("@{address}");
    let fixed = ["dig", &server, "-p", port, "+tries=5", "+time=4"];
    from.run(fixed.iter().chain(words).copied())
}

/// Prepares a command on a machine that resolves names at the authority's [name server](NameServer). The caller appends
/// the program and its arguments.
pub fn on_resolving(namespace: &Namespace) -> Result<Command> {
    Ok(resolving(namespace.command("env"), &resolver_file(namespace.dir())?))
}

/// Writes a resolv.conf and an nsswitch.conf for [`resolving`]; returns the path of the resolv.conf.
pub(super) fn resolver_file(dir: &Path) -> Result<PathBuf> {
    let (address, _) = NAME_SERVER.split_once(':').unwrap_or((NAME_SERVER, "53"));
    let file = dir.join("resolv.conf");
    fs::write(&file, format!("nameserver {address}\n"))?;
    fs::write(dir.join("nsswitch.conf"), "hosts: files dns\n")?;
    Ok(file)
}

/// Changes a command so that it and its children use `resolver`, and the nsswitch.conf beside it, in place of the
/// system's files.
pub(super) fn resolving(mut command: Command, resolver: &Path) -> Command {
    let script = "for file in resolv.conf nsswitch.conf; do [ ! -e /etc/$file ] || mount --bind \"$0/$file\" /etc/$file; done; \
                  exec \"$@\"";
    command.args(["unshare", "--mount", "--", "sh", "-c", script]);
    command.arg(resolver.parent().unwrap_or(resolver));
    command
}
