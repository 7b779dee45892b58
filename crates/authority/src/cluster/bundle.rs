//! Creates a cluster from one authority, invites other hosts, joins a cluster, and leaves it. An invitation is a tar
//! file with the files of the new member's directory. The new member copies the database from etcd.

use super::config::{self, ClusterConfig, ETCD_FILES};
use super::contact;
use super::files::{self, MASTER_KEYS, NETWORKS};
use super::membership::{KNOWN, KnownMember, Members};
use super::start::take_files;
use super::status::NO_MEMBER;
use crate::directory::OF_THE_SERVER;
use crate::policy::candidate::Candidate;
use crate::storage::{AuditEvent, ClusterId, ClusterKey, Database, Operator, PolicyChange};
use crate::{Directory, now, tls};
use anyhow::{Context, Result, bail, ensure};
use etcd::{Compare, Op, Txn};
use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// Files of a directory that an invitation leaves out in addition to [`OF_THE_SERVER`], because they belong to one
/// member.
const LEFT_OUT: &[&str] =
    &["tls.pem", "tls.key", config::FILE, contact::FILE, "policy.toml.not-applied", "networks.toml.not-applied"];
/// Files that an invitation must contain, apart from the policy, which is in the database.
const REQUIRED: &[&str] =
    &["authority.toml", "master.key", "ca.pem", "tls.pem", "tls.key", config::FILE, config::KEY_FILE, AT_LEAST];

/// File in an invitation: the number of the last entry that the inviting member had.
const AT_LEAST: &str = "cluster.at-least";

/// The addresses and TLS files by which the first member reaches etcd.
pub struct Etcd {
    /// The URLs of etcd.
    pub endpoints: Vec<String>,
    /// The file with the CA certificates with which members verify etcd's certificate; `None` for those of the system.
    pub ca: Option<PathBuf>,
    /// The file with the certificate that members show to etcd; `None` if they show none.
    pub certificate: Option<PathBuf>,
    /// The file with the key of the certificate that members show to etcd.
    pub key: Option<PathBuf>,
}

/// Makes the authority of `directory` the first member of a new cluster. The authority's server must not be running.
/// Returns the cluster's id.
///
/// # Errors
/// Fails if the name or a URL is not valid, the authority is a member already, its server is running, etcd does not
/// answer, or a file cannot be read or written. After an error, an authority that was in no cluster still is in none,
/// but its audit trail may contain entries about the attempt, and its list of policy versions may contain a new one. If
/// the process is killed, the next call begins from the start.
pub fn init(directory: &Directory, etcd: &Etcd, name: &str, url: &str) -> Result<ClusterId> {
    config::check_name(name)?;
    config::check_url(url)?;
    etcd.endpoints.iter().try_for_each(|url| config::check_endpoint(url))?;
    let earlier = ClusterConfig::read(directory.path())?;
    if let Some(config) = &earlier
        && Database::open(&directory.database()).is_err()
    {
        bail!(
            "this authority is already member {} of cluster {}: `vouchsafe authority cluster status` shows it",
            config.name,
            config.id
        );
    }
    let _lock = stopped(directory)?;
    if let Some(config) = earlier {
        clear(directory, &config)?;
    }
    let (id, key) = (ClusterId::new()?, ClusterKey::new()?);
    let copied = [&etcd.ca, &etcd.certificate, &etcd.key];
    let [ca, certificate, private] =
        std::array::from_fn(|at| copied[at].as_ref().map(|_| PathBuf::from(ETCD_FILES[at])));
    let (name, url, endpoints) = (name.to_owned(), url.to_owned(), etcd.endpoints.clone());
    let config = ClusterConfig { id, name, url, endpoints, ca, certificate, key: private };
    let made = || {
        for (from, to) in copied.into_iter().zip(ETCD_FILES) {
            if let Some(from) = from {
                let bytes = Zeroizing::new(fs::read(from).with_context(|| format!("cannot read {}", from.display()))?);
                directory.write_file(to, &bytes)?;
            }
        }
        directory.write_file(config::KEY_FILE, key.bytes())?;
        let mut database = Database::open(&directory.database())?;
        share(directory, &mut database, &config)?;
        // If this process is killed, the next `cluster init` finds these files.
        directory.write_file(config::FILE, config.text().as_bytes())?;
        let log = config.log(directory.path())?;
        log.create(&mut database).context("cannot begin the cluster in etcd")
    };
    if let Err(error) = made() {
        if let Ok(mut database) = Database::open(&directory.database()) {
            let _ = database.forget_cluster();
        }
        let _ = directory.remove_cluster_files();
        return Err(error.context("no cluster was made; this authority is still in no cluster"));
    }
    Ok(id)
}

/// Removes the data that an interrupted [`init`] has left in etcd and in the directory. At that time, the database does
/// not belong to the cluster yet. The log in etcd has no head, because `init` writes the head last.
fn clear(directory: &Directory, config: &ClusterConfig) -> Result<()> {
    let below = format!("/vouchsafe/{}/", config.id);
    // '0' is the character after '/'.
    let all = Op::DeleteRange { key: below.clone(), end: format!("/vouchsafe/{}0", config.id) };
    let compare = vec![Compare::CreateRevisionIs(below + "head", 0)];
    let cleared = config.connect(directory.path())?.txn(&Txn { compare, success: vec![all], failure: Vec::new() })?;
    ensure!(
        cleared.succeeded,
        "{} names the cluster {}, which exists, but the database does not belong to this cluster: run `vouchsafe \
         authority cluster leave --without-etcd`, so that this authority is in no cluster",
        directory.path().join(config::FILE).display(),
        config.id
    );
    directory.remove_cluster_files()
}

/// Records in the database the data that the members share and that an authority alone has in files.
fn share(directory: &Directory, database: &mut Database, config: &ClusterConfig) -> Result<()> {
    let settings = directory.settings()?;
    let candidate = Candidate::read(directory, None)?;
    let (summary, text) = (candidate.summary(), candidate.text);
    let by = Some(Operator::current());
    let change = PolicyChange { text, note: "cluster init".into(), by, summary, after: None };
    database.note_policy(&change, now(), &|name| candidate.policy.policy().prefixes_of(name))?;
    directory.read_networks()?;
    let (keys, networks) = (directory.read_master_keys()?.encode().to_vec(), directory.networks_text()?);
    database.change_shared(MASTER_KEYS, |_| Ok(Some(keys)))?;
    database.change_shared(NETWORKS, |_| Ok(Some(networks.into_bytes())))?;
    files::note_grace(database, settings.grace)?;
    // Members of an earlier cluster of this authority are no members of this one.
    for (name, _) in database.shared_below(KNOWN)? {
        database.change_shared(&format!("{KNOWN}{name}"), |_| Ok(None))?;
    }
    add_member(database, &config.name, &config.url)?;
    let event = AuditEvent::new("cluster").detail(format!("cluster {} with member {}", config.id, config.name));
    database.audit(&event.by(&Operator::current()), now())
}

fn add_member(database: &mut Database, name: &str, url: &str) -> Result<()> {
    let format = Some(database.cluster_format()?);
    let known = serde_json::to_vec(&KnownMember { url: url.to_owned(), format })?;
    database.change_shared(&format!("{KNOWN}{name}"), |_| Ok(Some(known)))
}

/// Writes an invitation for a new member to the new file `out` of mode 0600. The member's certificate is for `hosts`.
/// The server may be running.
///
/// # Errors
/// Fails if the authority is not a member of a cluster, the name or the URL is not valid, there is a member with this
/// name, a host is neither a DNS name nor an address, the CA's key is not in the directory, etcd does not answer, or
/// the file cannot be written.
pub fn invite(directory: &Directory, name: &str, hosts: &[String], url: &str, out: &Path) -> Result<()> {
    config::check_name(name)?;
    config::check_url(url)?;
    let own = ClusterConfig::read(directory.path())?.context(NO_MEMBER)?;
    let mut database = directory.open_database()?;
    let known = database.shared_below(KNOWN)?;
    ensure!(
        !known.iter().any(|(there, _)| there == name),
        "there is already a member {name}: choose another name, or run `vouchsafe authority cluster remove {name}` first \
         if that member will never come back"
    );
    let names = if hosts.is_empty() { vec![host_of(url).to_owned()] } else { hosts.to_vec() };
    let (certificate, key) = tls::member_certificate(directory.path(), &names, now())?;
    let config = ClusterConfig { name: name.to_owned(), url: url.to_owned(), ..own };
    let out = std::path::absolute(out)?;
    ensure!(!out.exists(), "{} already exists: name a new file", out.display());
    let parent = out.parent().context("the invitation's path must name a file")?;
    let aside = tempfile::NamedTempFile::new_in(parent);
    let aside = aside.with_context(|| format!("cannot write to {}", parent.display()))?;
    let mut archive = tar::Builder::new(aside.as_file());
    for entry in
        fs::read_dir(directory.path()).with_context(|| format!("cannot read {}", directory.path().display()))?
    {
        let entry = entry?;
        let file = entry.file_name();
        let is_hidden = file.as_encoded_bytes().starts_with(b".");
        if is_hidden
            || OF_THE_SERVER.iter().chain(LEFT_OUT).any(|left_out| file == *left_out)
            || !entry.file_type()?.is_file()
        {
            continue;
        }
        archive.append_path_with_name(entry.path(), &file)?;
    }
    let texts = [(config::FILE, config.text()), ("tls.pem", certificate), ("tls.key", key.to_string())];
    let at_least = format!("{}\n", database.applied()?);
    let texts = texts.into_iter().chain([(AT_LEAST, at_least)]);
    for (file, text) in texts.map(|(file, text)| (file, Zeroizing::new(text))) {
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o600);
        archive.append_data(&mut header, file, text.as_bytes())?;
    }
    archive.into_inner()?.flush()?;
    aside.as_file().sync_all()?;
    add_member(&mut database, name, url)?;
    let event = AuditEvent::new("cluster").detail(format!("invited member {name} at {url}"));
    database.audit(&event.by(&Operator::current()), now())?;
    aside.persist_noclobber(&out).with_context(|| format!("cannot create {}", out.display()))?;
    Ok(())
}

/// Returns the host in a URL of an authority.
fn host_of(url: &str) -> &str {
    let host = url.strip_prefix("https://").unwrap_or(url);
    match host.strip_prefix('[').and_then(|host| host.split_once(']')) {
        Some((address, _)) => address,
        None => host.split_once(':').map_or(host, |(host, _)| host),
    }
}

/// Creates the directory of a new member from an invitation, and copies the cluster's state from etcd. `listen`
/// replaces the listen address in `authority.toml`, and `endpoints` replaces the URLs of etcd. Returns the content of
/// `cluster.toml`.
///
/// # Errors
/// Fails if a URL in `endpoints` is not valid, the directory exists and is not empty, the invitation is damaged or
/// incomplete, etcd does not answer, or etcd lacks log entries that the inviting member had. Nothing is created then.
pub fn join(
    directory: &Directory,
    invitation: &Path,
    listen: Option<SocketAddr>,
    endpoints: &[String],
) -> Result<ClusterConfig> {
    endpoints.iter().try_for_each(|url| config::check_endpoint(url))?;
    let shown = invitation.display();
    let bytes = fs::File::open(invitation).with_context(|| format!("cannot read {shown}"))?;
    directory.make(|aside| {
        unpack(aside, bytes, &shown.to_string())?;
        let mut config = ClusterConfig::read(aside.path())?.with_context(|| format!("{shown} is incomplete"))?;
        if !endpoints.is_empty() {
            config.endpoints = endpoints.to_vec();
            aside.write_file(config::FILE, config.text().as_bytes())?;
        }
        if let Some(listen) = listen {
            let path = aside.path().join("authority.toml");
            let text = fs::read_to_string(&path).with_context(|| format!("{shown} is incomplete"))?;
            aside.write_file("authority.toml", with_listen(&text, listen).as_bytes())?;
        }
        aside.settings()?;
        aside.read_master_keys()?;
        tls::server_config(&aside.certificate(), &aside.certificate_key())?;
        let log = config.log(aside.path())?;
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(aside.database());
        file.context("cannot create the database")?;
        Database::create(&aside.database(), &aside.identity()?)?;
        log.fetch_snapshot(&aside.database()).context("cannot copy the cluster's state from etcd")?;
        let mut database = aside.open_database()?;
        database.catch_up().context("cannot copy the cluster's latest changes from etcd")?;
        let at_least: u64 = fs::read_to_string(aside.path().join(AT_LEAST))?.trim().parse()?;
        let applied = database.applied()?;
        ensure!(
            applied >= at_least,
            "etcd has only {applied} entries of the cluster's log, but the inviting member had {at_least}: etcd was \
             restored from an old backup. Make a new cluster from the member that has the most entries: docs/cluster.md"
        );
        fs::remove_file(aside.path().join(AT_LEAST))?;
        // The policy and networks.toml in the invitation may be drafts of the inviting member's operator.
        for draft in [aside.policy(), aside.networks()] {
            let _ = fs::remove_file(draft);
        }
        take_files(aside, &database)?;
        let event = AuditEvent::new("cluster").detail(format!("joined cluster {} as {}", config.id, config.name));
        database.audit(&event.by(&Operator::current()), now())?;
        Ok(config)
    })
}

fn unpack(aside: &Directory, invitation: impl Read, shown: &str) -> Result<()> {
    let mut archive = tar::Archive::new(invitation);
    for entry in archive.entries().with_context(|| format!("{shown} is not an invitation"))? {
        // The tar error is dropped, because it would quote the beginning of the file, which may be a secret.
        let mut entry = entry.ok().with_context(|| format!("{shown} is not an invitation, or is damaged"))?;
        let name = entry.path()?.into_owned();
        let is_plain = name.file_name() == Some(name.as_os_str()) && entry.header().entry_type().is_file();
        let is_wanted = is_plain && name.as_os_str() != "authority.db";
        ensure!(is_wanted, "{shown} is not an invitation: it contains {}", name.display());
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(aside.path().join(name))?;
        std::io::copy(&mut entry, &mut file).with_context(|| format!("{shown} is damaged"))?;
        file.sync_all()?;
    }
    for name in REQUIRED {
        ensure!(aside.path().join(name).is_file(), "{shown} is not an invitation: it does not contain {name}");
    }
    Ok(())
}

/// Returns the text of `authority.toml` with another listen address.
fn with_listen(text: &str, listen: SocketAddr) -> String {
    let new = format!("listen = \"{listen}\"");
    let is_listen =
        |line: &str| line.trim_start().strip_prefix("listen").is_some_and(|rest| rest.trim_start().starts_with('='));
    // The key is at the top of the file: below the first table, the name means something else.
    let end = text.lines().position(|line| line.trim_start().starts_with('[')).unwrap_or(usize::MAX);
    match text.lines().take(end).position(is_listen) {
        Some(at) => {
            let lines = text.lines().enumerate().map(|(line, text)| if line == at { new.as_str() } else { text });
            lines.collect::<Vec<_>>().join("\n") + "\n"
        }
        None => format!("{new}\n{text}"),
    }
}

/// The result of [`leave`].
pub struct Left {
    /// The name under which the authority was a member.
    pub name: String,
    /// The error of etcd if it did not answer. The other members then do not know that this member has left.
    pub unknown: Option<String>,
}

/// Turns a member into an authority that is in no cluster. The authority keeps its copy of the database. The
/// authority's server must not be running. With `without_etcd`, the member also leaves if etcd does not answer. With
/// `keep_state`, it also leaves if there are other members.
///
/// # Errors
/// Fails if the authority is not a member, there are other members, its server is running, etcd does not answer, or a
/// file cannot be written.
pub fn leave(directory: &Directory, without_etcd: bool, keep_state: bool) -> Result<Left> {
    let config = ClusterConfig::read(directory.path())?.context(NO_MEMBER)?;
    let _lock = stopped(directory)?;
    // `cluster init` may have been interrupted before the database became the cluster's.
    let mut database =
        directory.open_database().or_else(|error| Database::open(&directory.database()).map_err(|_| error))?;
    let name = config.name;
    let others = database.shared_below(KNOWN)?.into_iter().map(|(other, _)| other).filter(|other| *other != name);
    let others: Vec<_> = others.collect();
    ensure!(
        others.is_empty() || keep_state,
        "there are other members ({}), which issue grants with the same keys. To take this host out of the cluster, \
         delete its directory, and run `vouchsafe authority cluster remove {name}` at another member. To continue \
         with this host alone, stop the other members for good, and run this command with --keep-state",
        others.join(", ")
    );
    let told =
        database.catch_up().map(drop).and_then(|()| database.change_shared(&format!("{KNOWN}{name}"), |_| Ok(None)));
    let unknown = match told {
        Ok(()) => None,
        Err(error) if without_etcd => Some(format!("{error:#}")),
        Err(error) => {
            return Err(error.context(
                "etcd does not answer, so this copy may lack the latest changes, and the other members would continue \
                 to list this member. Nothing was changed. `vouchsafe authority cluster leave --without-etcd` leaves \
                 the cluster anyway",
            ));
        }
    };
    let event = AuditEvent::new("cluster").detail(format!("left cluster {}", config.id)).by(&Operator::current());
    database.audit(&event, now())?;
    // An authority alone starts with its files.
    take_files(directory, &database)?;
    database.forget_cluster()?;
    directory.remove_cluster_files()?;
    Ok(Left { name, unknown })
}

/// Removes a member that will never come back from the cluster's list of members. With `force`, also removes a member
/// that is running.
///
/// # Errors
/// Fails if the authority is not a member of a cluster, there is no such member, the member is running and `force` is
/// not set, or etcd does not answer.
pub fn remove(directory: &Directory, name: &str, force: bool) -> Result<()> {
    let members = Members::read(directory.path(), None)?;
    let cluster = members.cluster().context(NO_MEMBER)?;
    let mut database = directory.open_database()?;
    let known = database.shared_below(KNOWN)?;
    ensure!(
        known.iter().any(|(there, _)| there == name),
        "there is no member {name}: `vouchsafe authority cluster status` lists the members"
    );
    ensure!(
        force || !cluster.read()?.iter().any(|member| member.name == name),
        "member {name} is running: stop its server first. If you can't, --force removes the member anyway: its server \
         then issues no grants, and renews leases only until its `grace` is over"
    );
    let trails = cluster.read_trails()?.into_iter().find(|trails| trails.name == name);
    database.change_shared(&format!("{KNOWN}{name}"), |_| Ok(None))?;
    // A new member with this name begins other trails.
    let ends = trails.map(|trails| format!("; its audit trails ended with {}", trails.heads.join(" and ")));
    let detail = format!("removed member {name}{}", ends.unwrap_or_default());
    database.audit(&AuditEvent::new("cluster").detail(detail).by(&Operator::current()), now())?;
    cluster.forget_trail(name)
}

/// Takes the lock of the directory's server, so that the server can't run meanwhile.
fn stopped(directory: &Directory) -> Result<fs::File> {
    directory.lock().context("stop the server of this authority first, and start it again afterwards")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_listen_address_is_replaced_where_it_is() {
        let listen = "127.0.0.1:9".parse().unwrap();
        assert_eq!(with_listen("# a\nlisten = \"x\"\nb = 1\n", listen), "# a\nlisten = \"127.0.0.1:9\"\nb = 1\n");
        assert_eq!(
            with_listen("b = 1\n[dns]\nlisten = \"x\"\n", listen),
            "listen = \"127.0.0.1:9\"\nb = 1\n[dns]\nlisten = \"x\"\n"
        );
    }

    #[test]
    fn the_host_of_a_url_needs_no_port() {
        for (url, host) in [
            ("https://a.example.org:8443", "a.example.org"),
            ("https://a.example.org", "a.example.org"),
            ("https://[2001:db8::1]:8443", "2001:db8::1"),
            ("https://192.0.2.1:8443", "192.0.2.1"),
        ] {
            assert_eq!(host_of(url), host);
        }
    }
}
