//! The daemon's configuration: `agent.toml`, and flags of the same names, which take precedence.

use crate::owners::{cgroup, user};
use crate::switches::tls::Files;
use crate::wishes::{self, Wished};
use anyhow::{Context, Result, bail};
use clap::Args;
use engine::agent::{self, Consent};
use engine::discovery::{Domain, servers};
use engine::document::{Faults, Reader, texts};
use engine::openflow::plane::Household;
use ipnet::IpNet;
use reach::agent::DEFAULT_SOCKET;
use reach::organisation::OrganisationName;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use wire::map::{Owner, owner};
use wire::seal::record::LANES;

/// Default path of the configuration file.
pub const DEFAULT_CONFIG: &str = "/etc/vouchsafe/agent.toml";
const DEFAULT_DIR: &str = "/var/lib/vouchsafe/agent";
/// Name of the instance if none is configured. It is part of the path of the agent's pins.
pub const DEFAULT_INSTANCE: &str = "default";
const KEYS: &[&str] = &[
    "dir",
    "socket",
    "instance",
    "interface",
    "forwarded_as",
    "cgroup",
    "default",
    "authority",
    "discover",
    "resolver",
    "no_discovery",
    "key_transfer",
    "metrics",
    "switches",
    "switches_certificate",
    "switches_key",
    "switches_ca",
    "device",
    "device_logins",
    "pro_forma",
    "treatment",
    "tunnel_queues",
    "tcp_in_udp",
    "danger_export_keys",
    "organisation",
];

/// Settings of the daemon, as flags
#[derive(Args, Clone, Debug, Default)]
pub struct Flags {
    /// Read settings from this file [default: /etc/vouchsafe/agent.toml, if it is there]
    #[arg(long, value_name = "FILE", env = "VOUCHSAFE_AGENT_CONFIG")]
    pub config: Option<PathBuf>,
    /// Directory for sessions and rules [default: /var/lib/vouchsafe/agent]
    #[arg(long, value_name = "DIR", env = "VOUCHSAFE_AGENT_DIR")]
    pub dir: Option<PathBuf>,
    /// Socket on which to accept commands [default: /run/vouchsafe/agent.sock]
    #[arg(long, value_name = "PATH", env = "VOUCHSAFE_AGENT_SOCKET")]
    pub socket: Option<PathBuf>,
    /// Name that keeps the kernel state of several agents on one host apart [default: default]
    #[arg(long, value_name = "NAME", env = "VOUCHSAFE_AGENT_INSTANCE")]
    pub instance: Option<String>,
    /// Use only this interface; may be repeated [default: all except loopback, including interfaces that appear later]
    #[arg(long, value_name = "IF", env = "VOUCHSAFE_AGENT_INTERFACE", value_delimiter = ',')]
    pub interface: Vec<String>,
    /// Let packets without a local socket (forwarded packets, packets of containers) carry this user's tokens [default:
    /// none]
    #[arg(long, value_name = "USER", env = "VOUCHSAFE_AGENT_FORWARDED_AS")]
    pub forwarded_as: Option<String>,
    /// Let packets from this cgroup and the cgroups below it carry this user's tokens, whichever user sends them; may
    /// be repeated
    #[arg(long, value_name = "PATH=USER", env = "VOUCHSAFE_AGENT_CGROUP", value_delimiter = ',')]
    pub cgroup: Vec<String>,
    /// Whether a packet carries a token if its user has no rule for its destination: allow or deny [default: allow]
    #[arg(long, value_name = "CONSENT", env = "VOUCHSAFE_AGENT_DEFAULT")]
    pub default: Option<String>,
    /// Permit logins to this authority only; may be repeated [default: any]
    #[arg(long, value_name = "URL", env = "VOUCHSAFE_AGENT_AUTHORITY", value_delimiter = ',')]
    pub authority: Vec<String>,
    /// Watch this domain's record; `vouchsafe status` shows its authority; may be repeated [default: none]
    #[arg(long, value_name = "DOMAIN", env = "VOUCHSAFE_AGENT_DISCOVER", value_delimiter = ',')]
    pub discover: Vec<String>,
    /// Ask this name server for domains' records; may be repeated [default: those of /etc/resolv.conf]
    #[arg(long, value_name = "ADDR:PORT", env = "VOUCHSAFE_AGENT_RESOLVER", value_delimiter = ',')]
    pub resolver: Vec<String>,
    /// Don't look for domains' records in the answers of name servers [default: look]
    #[arg(long, env = "VOUCHSAFE_AGENT_NO_DISCOVERY")]
    pub no_discovery: bool,
    /// Accept client keys in band from this authority, given by its URL as at login; may be repeated [default: none]
    #[arg(long, value_name = "URL", env = "VOUCHSAFE_AGENT_KEY_TRANSFER", value_delimiter = ',')]
    pub key_transfer: Vec<String>,
    /// Address at which to serve metrics for Prometheus, in plain HTTP [default: not served]
    #[arg(long, value_name = "ADDR:PORT", env = "VOUCHSAFE_AGENT_METRICS")]
    pub metrics: Option<SocketAddr>,
    /// Listen at this address as the controller of OpenFlow 1.3 switches; only interfaces named with --interface are
    /// then used [default: do not listen]
    #[arg(long, value_name = "ADDR:PORT", env = "VOUCHSAFE_AGENT_SWITCHES")]
    pub switches: Option<SocketAddr>,
    /// Use TLS with switches, with this certificate [default: no TLS]
    #[arg(long, value_name = "FILE", env = "VOUCHSAFE_AGENT_SWITCHES_CERTIFICATE")]
    pub switches_certificate: Option<PathBuf>,
    /// The private key for the certificate
    #[arg(long, value_name = "FILE", env = "VOUCHSAFE_AGENT_SWITCHES_KEY")]
    pub switches_key: Option<PathBuf>,
    /// The CA that has signed switches' certificates
    #[arg(long, value_name = "FILE", env = "VOUCHSAFE_AGENT_SWITCHES_CA")]
    pub switches_ca: Option<PathBuf>,
    /// A device behind a switch, and the user whose tokens the device's packets carry; may be repeated [default: the
    /// user of forwarded_as]
    #[arg(long, value_name = "MAC=USER", env = "VOUCHSAFE_AGENT_DEVICE", value_delimiter = ',')]
    pub device: Vec<String>,
    /// Let people behind switches log their devices in with a browser at this authority; its client keys are valid for
    /// this network; may be repeated [default: none]
    #[arg(long, value_name = "URL=NETWORK", env = "VOUCHSAFE_AGENT_DEVICE_LOGINS", value_delimiter = ',')]
    pub device_logins: Vec<String>,
    /// Seal the packets of this sender to protected destinations, even if the rule does not demand it:
    /// dscp:N=TREATMENT, user:NAME=TREATMENT or cgroup:PATH=TREATMENT; may be repeated [default: none]
    #[arg(long, value_name = "KIND:NAME=TREATMENT", env = "VOUCHSAFE_AGENT_TREATMENT")]
    pub treatment: Vec<String>,
    /// Number of queues of sealed tunnels, each with a thread of its own, 1 to 8 [default: half the number of
    /// processors, 1 to 8]
    #[arg(long, value_name = "N", env = "VOUCHSAFE_AGENT_TUNNEL_QUEUES", value_parser = clap::value_parser!(u32).range(1..=i64::from(LANES)))]
    pub tunnel_queues: Option<u32>,
    /// Send TCP connections as UDP datagrams to verifiers that accept them, if SYNs with tokens do not get through
    /// [default: don't]
    #[arg(long, env = "VOUCHSAFE_AGENT_TCP_IN_UDP")]
    pub tcp_in_udp: bool,
    /// Let only the authority of the organisation with this name speak for the addresses of this network; may be
    /// repeated. Users can't change the networks of this organisation [default: users choose the networks]
    #[arg(long, value_name = "NAME=NETWORK", env = "VOUCHSAFE_AGENT_ORGANISATION", value_delimiter = ',')]
    pub organisation: Vec<String>,
    /// For debugging only: write the keys of all sealed tunnels to this file, so that `vouchsafe inspect --keys` can
    /// open their records in a capture. Everybody who has the file can read what the tunnels carry [default: don't]
    #[arg(long, value_name = "FILE", env = "VOUCHSAFE_AGENT_DANGER_EXPORT_KEYS")]
    pub danger_export_keys: Option<PathBuf>,
    /// Add no tokens to packets from switches, to measure the cost of the controller alone [default: add tokens]
    #[arg(long, env = "VOUCHSAFE_AGENT_PRO_FORMA")]
    pub pro_forma: bool,
}

/// Settings of the daemon.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Directory in which sessions and rules are stored.
    pub dir: PathBuf,
    /// Path of the socket on which commands arrive.
    pub socket: PathBuf,
    /// Name that keeps the kernel state of several agents apart.
    pub instance: String,
    /// Names of the interfaces to use. If empty, the agent uses all except loopback, or none if `switches` is set.
    pub interfaces: Vec<String>,
    /// The authorities at which users are allowed to log in; empty for any.
    pub authorities: Vec<String>,
    /// Domains whose records the agent keeps up to date.
    pub discover: Vec<Domain>,
    /// The name servers that the agent asks for records; empty for the system's name servers.
    pub resolvers: Vec<SocketAddr>,
    /// Whether the agent looks for domains' records (wire.md §7.1) in the answers that name servers send to other
    /// programs.
    pub overhears: bool,
    /// The authorities from which the agent accepts client keys in band.
    pub key_transfer: Vec<String>,
    /// Address at which metrics are served; `None` if they are not served.
    pub metrics: Option<SocketAddr>,
    /// Address at which the agent waits for connections from switches; `None` if it does not wait for any.
    pub switches: Option<SocketAddr>,
    /// The files for TLS with switches; `None` for connections without TLS.
    pub switches_tls: Option<Files>,
    /// The users whose tokens the packets of devices behind switches carry.
    pub household: Household,
    /// The authorities at which people behind switches log their devices in with a browser. The key is the authority's
    /// URL, and the value is the list of networks in which its client keys are valid.
    pub device_logins: BTreeMap<String, Vec<IpNet>>,
    /// Whether the controller adds no tokens to packets from switches, to measure the cost of the controller alone.
    pub pro_forma: bool,
    /// Senders who ask for a treatment in a sealed tunnel, and the treatments that they ask for.
    pub wishes: Vec<Wished>,
    /// Number of queues of sealed tunnels; `None` for the usual number.
    pub tunnel_queues: Option<u32>,
    /// Whether TCP connections may travel as UDP datagrams (wire.md §4.8).
    pub tcp_in_udp: bool,
    /// File to which the agent writes the keys of sealed tunnels, for debugging; `None` if it does not write them.
    pub danger_export_keys: Option<PathBuf>,
    /// For each organisation, the networks for which only its authority may speak. They apply to all users.
    pub organisations: BTreeMap<OrganisationName, Vec<IpNet>>,
    /// Settings of the state machine in `engine::agent`.
    pub agent: agent::Config,
}

impl Settings {
    /// Combines the flags with the configuration file; flags take precedence.
    ///
    /// # Errors
    ///
    /// Fails if the file can't be read, or a setting is invalid.
    pub fn load(flags: Flags) -> Result<Self> {
        let path = flags.config.clone().unwrap_or_else(|| PathBuf::from(DEFAULT_CONFIG));
        let file = match std::fs::read_to_string(&path) {
            Ok(text) => read(&text).map_err(|faults| anyhow::anyhow!("{}", faults.in_file(&path.to_string_lossy())))?,
            Err(error) if flags.config.is_none() && error.kind() == std::io::ErrorKind::NotFound => Flags::default(),
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
        };
        Self::resolve(flags, file)
    }

    /// Reports whether the configuration permits logins to this authority.
    pub fn may_log_in_to(&self, url: &str) -> bool {
        self.authorities.is_empty() || self.authorities.iter().any(|only| servers::name_the_same(only, url))
    }

    fn resolve(flags: Flags, file: Flags) -> Result<Self> {
        let either = |flag: Vec<String>, file: Vec<String>| if flag.is_empty() { file } else { flag };
        let default = match flags.default.or(file.default) {
            Some(text) => text.parse().ok().with_context(|| format!("default: {text:?} must be allow or deny"))?,
            None => Consent::default(),
        };
        let mut owners = Vec::new();
        let mut household = Household::default();
        if let Some(name) = flags.forwarded_as.or(file.forwarded_as) {
            let owner = Owner { kind: owner::FORWARDED, reserved: 0, id: 0 };
            let subject = user(&name).context("forwarded_as")?;
            owners.push((owner, subject));
            household.others = Some(subject);
        }
        for setting in either(flags.device, file.device) {
            let (mac, name) =
                setting.rsplit_once('=').with_context(|| format!("device: {setting:?} is invalid: write MAC=USER"))?;
            let mac = hardware_address(mac)
                .with_context(|| format!("device: {mac:?} is not a hardware address such as 02:00:00:00:00:01"))?;
            household.devices.insert(mac, user(name).context("device")?);
        }
        for setting in either(flags.cgroup, file.cgroup) {
            let (path, name) =
                setting.rsplit_once('=').with_context(|| format!("cgroup: {setting:?} is invalid: write PATH=USER"))?;
            owners.push((cgroup(path)?, user(name).context("cgroup")?));
        }
        let instance = flags.instance.or(file.instance).unwrap_or_else(|| DEFAULT_INSTANCE.to_owned());
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if instance.is_empty() || !instance.chars().all(plain) {
            bail!("instance: {instance:?} is invalid: write a name of letters, digits, - and _");
        }
        let switches = flags.switches.or(file.switches);
        if switches.is_none() && !household.devices.is_empty() {
            bail!(
                "device: `switches` is not set, so there are no switches with devices behind them: set the address on \
                 which to listen for switches"
            );
        }
        let switches_tls = Files::all(
            flags.switches_certificate.or(file.switches_certificate),
            flags.switches_key.or(file.switches_key),
            flags.switches_ca.or(file.switches_ca),
        )?;
        let authorities = either(flags.authority, file.authority);
        let is_authority = |text: &str| text.starts_with("https://") || text.parse::<Domain>().is_ok();
        if let Some(wrong) = authorities.iter().find(|text| !is_authority(text)) {
            bail!(
                "authority: {wrong:?} names no authority: write https://HOST:PORT, or the name for which DNS lists the \
                 authority's servers"
            );
        }
        let discover = either(flags.discover, file.discover);
        let discover = discover.iter().map(|name| name.parse().map_err(|why| anyhow::anyhow!("discover: {why}")));
        let resolvers = either(flags.resolver, file.resolver);
        let resolvers = resolvers.iter().map(|text| {
            let address = text.parse().ok();
            address.with_context(|| format!("resolver: {text:?} is not an address and port such as 192.0.2.53:53"))
        });
        let key_transfer = either(flags.key_transfer, file.key_transfer);
        for url in &key_transfer {
            client::endpoint(url).with_context(|| format!("key_transfer: {url:?}"))?;
        }
        let mut device_logins: BTreeMap<String, Vec<IpNet>> = BTreeMap::new();
        for setting in either(flags.device_logins, file.device_logins) {
            let (url, network) = setting.rsplit_once('=').with_context(|| {
                format!(
                    "device_logins: {setting:?} is invalid: write URL=NETWORK, such as https://HOST:PORT=192.0.2.0/24"
                )
            })?;
            client::endpoint(url).with_context(|| format!("device_logins: {url:?}"))?;
            let network: IpNet = network
                .parse()
                .with_context(|| format!("device_logins: {network:?} is not a network such as 192.0.2.0/24"))?;
            device_logins.entry(url.to_owned()).or_default().push(network);
        }
        if switches.is_none() && !device_logins.is_empty() {
            bail!("device_logins: `switches` is not set: set the address on which to listen for switches");
        }
        let wishes = either(flags.treatment, file.treatment);
        if !wishes.is_empty() && !cfg!(feature = "seal") {
            bail!("treatment: this program was built without sealed tunnels: build it with the feature `seal`");
        }
        let danger_export_keys = flags.danger_export_keys.or(file.danger_export_keys);
        if danger_export_keys.is_some() && !cfg!(feature = "seal") {
            bail!("danger_export_keys: this program was built without sealed tunnels, so there are no keys");
        }
        let tunnel_queues = flags.tunnel_queues.or(file.tunnel_queues);
        if tunnel_queues.is_some() && !cfg!(feature = "seal") {
            bail!("tunnel_queues: this program was built without sealed tunnels: build it with the feature `seal`");
        }
        let tcp_in_udp = flags.tcp_in_udp || file.tcp_in_udp;
        if tcp_in_udp && !cfg!(feature = "seal") {
            bail!(
                "tcp_in_udp: this program was built without the ladder of carriers: build it with the feature `seal`"
            );
        }
        let organisations = organisations(&either(flags.organisation, file.organisation))?;
        let reserved = organisations.values().flatten().copied().collect();
        let wishes = wishes.iter().map(|text| wishes::setting(text)).collect::<Result<_>>()?;
        Ok(Self {
            wishes,
            tunnel_queues,
            tcp_in_udp,
            danger_export_keys,
            discover: discover.collect::<Result<_>>()?,
            resolvers: resolvers.collect::<Result<_>>()?,
            overhears: !(flags.no_discovery || file.no_discovery),
            dir: flags.dir.or(file.dir).unwrap_or_else(|| DEFAULT_DIR.into()),
            socket: flags.socket.or(file.socket).unwrap_or_else(|| DEFAULT_SOCKET.into()),
            instance,
            interfaces: either(flags.interface, file.interface),
            authorities,
            key_transfer,
            metrics: flags.metrics.or(file.metrics),
            switches,
            switches_tls,
            household,
            device_logins,
            pro_forma: flags.pro_forma || file.pro_forma,
            organisations,
            agent: agent::Config {
                default,
                owners,
                forgets_pairs: switches.is_some(),
                seals: cfg!(feature = "seal"),
                reserved,
            },
        })
    }
}

/// Reads the organisations of the configuration. No two of them may have an address in common.
fn organisations(settings: &[String]) -> Result<BTreeMap<OrganisationName, Vec<IpNet>>> {
    let mut all: BTreeMap<OrganisationName, Vec<IpNet>> = BTreeMap::new();
    for setting in settings {
        let (name, network) = setting.rsplit_once('=').with_context(|| {
            format!("organisation: {setting:?} is invalid: write NAME=NETWORK, such as acme=192.0.2.0/24")
        })?;
        let name: OrganisationName = name.parse().context("organisation")?;
        let network: IpNet = network
            .parse()
            .with_context(|| format!("organisation: {network:?} is not a network such as 192.0.2.0/24"))?;
        let network = network.trunc();
        for (other, networks) in all.iter().filter(|(other, _)| **other != name) {
            if let Some(theirs) = networks.iter().find(|theirs| agent::overlap(theirs, &network)) {
                bail!(
                    "organisation: {name} ({network}) and {other} ({theirs}) have addresses in common: each address \
                     belongs to one organisation"
                );
            }
        }
        all.entry(name).or_default().push(network);
    }
    Ok(all)
}

fn read(text: &str) -> Result<Flags, Faults> {
    Reader::read(text, KEYS, |reader, fields| {
        let mut one = |key| fields.text(reader, key).map(|text| (*text.get_ref()).to_owned());
        let [dir, socket, instance, forwarded_as, default] =
            ["dir", "socket", "instance", "forwarded_as", "default"].map(&mut one);
        let [switches_certificate, switches_key, switches_ca] =
            ["switches_certificate", "switches_key", "switches_ca"].map(&mut one).map(|path| path.map(PathBuf::from));
        let danger_export_keys = one("danger_export_keys").map(PathBuf::from);
        let mut many = |key| {
            let list = fields.value(key).map(|value| texts(reader, value)).unwrap_or_default();
            list.iter().map(|text| (*text.get_ref()).to_owned()).collect()
        };
        let [interface, cgroup, authority, device, device_logins, key_transfer, treatment] =
            ["interface", "cgroup", "authority", "device", "device_logins", "key_transfer", "treatment"].map(&mut many);
        let [discover, resolver, organisation] = ["discover", "resolver", "organisation"].map(&mut many);
        let metrics = fields.address(reader, "metrics", "127.0.0.1:9466");
        let switches = fields.address(reader, "switches", "127.0.0.1:6653");
        let (dir, socket) = (dir.map(PathBuf::from), socket.map(PathBuf::from));
        Some(Flags {
            config: None,
            dir,
            socket,
            instance,
            interface,
            forwarded_as,
            cgroup,
            default,
            authority,
            key_transfer,
            metrics,
            switches,
            switches_certificate,
            switches_key,
            switches_ca,
            device,
            device_logins,
            treatment,
            tunnel_queues: fields
                .value("tunnel_queues")
                .is_some()
                .then(|| fields.number(reader, "tunnel_queues", 1, 1, u32::from(LANES))),
            tcp_in_udp: fields.yes(reader, "tcp_in_udp"),
            danger_export_keys,
            organisation,
            pro_forma: fields.yes(reader, "pro_forma"),
            discover,
            resolver,
            no_discovery: fields.yes(reader, "no_discovery"),
        })
    })
}

fn hardware_address(text: &str) -> Option<[u8; 6]> {
    let mut address = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut address {
        *byte = u8::from_str_radix(parts.next().filter(|part| part.len() == 2)?, 16).ok()?;
    }
    parts.next().is_none().then_some(address)
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::agent::Subject;

    #[test]
    fn a_flag_goes_before_the_file() {
        let file = read("interface = [\"eth0\", \"wlan0\"]\ninstance = \"a\"\ndefault = \"deny\"").unwrap();
        let flags = Flags { interface: vec!["tun0".into()], ..Flags::default() };
        let settings = Settings::resolve(flags, file).unwrap();
        assert_eq!((settings.interfaces, settings.instance.as_str()), (vec!["tun0".to_owned()], "a"));
        assert_eq!(settings.agent.default, Consent::Deny);
    }

    #[test]
    fn an_unknown_key_names_the_nearest() {
        let faults = read("interfaces = \"eth0\"").unwrap_err().to_string();
        assert!(faults.contains("did you mean `interface`?"), "{faults}");
    }

    #[test]
    fn a_household_is_devices_by_hardware_address() {
        let of = |text: &str| Settings::resolve(Flags::default(), read(text).unwrap());
        let switches = "switches = \"127.0.0.1:6653\"\n";
        let household = of(&format!("{switches}device = [\"02:00:00:00:00:0A=0\"]")).unwrap().household;
        assert_eq!(household.devices, [([2, 0, 0, 0, 0, 10], Subject::of_user(0))].into());
        assert_eq!(household.others, None);
        let everybody = of(&format!("{switches}forwarded_as = \"root\"")).unwrap().household;
        assert_eq!(everybody.others, Some(Subject::of_user(0)));
        for wrong in ["02:00:00:00:00=0", "2:0:0:0:0:a=0", "02:00:00:00:00:0a", "02:00:00:00:00:0a=no such user"] {
            assert!(of(&format!("{switches}device = \"{wrong}\"")).is_err(), "{wrong}");
        }
        let half = of(&format!("{switches}switches_key = \"key.pem\"")).unwrap_err().to_string();
        assert!(half.contains("all three or none"), "{half}");
        assert!(of("device = \"02:00:00:00:00:0a=0\"").is_err(), "there are no switches");
    }

    #[test]
    fn whose_packets_are_whose_is_a_setting() {
        let settings = Settings::resolve(Flags::default(), read("forwarded_as = \"root\"").unwrap()).unwrap().agent;
        let whose: Vec<_> = settings.owners.iter().map(|(owner, subject)| (owner.kind, subject.user())).collect();
        assert_eq!(whose, [(owner::FORWARDED, 0)]);
        for wrong in [
            "forwarded_as = \"no such user\"",
            "cgroup = \"/no/such=0\"",
            "default = \"maybe\"",
            "instance = \"/\"",
            "authority = \"a b\"",
            "authority = \"http://foo.example:8443\"",
            "discover = \"a b\"",
            "organisation = \"acme\"",
            "organisation = \"acme=all\"",
            "organisation = \"../acme=192.0.2.0/24\"",
            "organisation = \"default=192.0.2.0/24\"",
            "organisation = [\"acme=192.0.2.0/24\", \"umbrella=192.0.2.128/25\"]",
            "resolver = \"192.0.2.53\"",
            "key_transfer = \"foo\"",
            "device_logins = \"https://192.0.2.1:8443=192.0.2.0/24\"",
            "switches = \"127.0.0.1:6653\"\ndevice_logins = \"https://192.0.2.1:8443\"",
            "switches = \"127.0.0.1:6653\"\ndevice_logins = \"https://192.0.2.1:8443=all\"",
        ] {
            assert!(Settings::resolve(Flags::default(), read(wrong).unwrap()).is_err(), "{wrong}");
        }
    }
}
