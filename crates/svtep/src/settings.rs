//! The daemon's settings: `svtep.toml`, and flags of the same names, which take precedence. There are no flags for the
//! settings of tenants.

use anyhow::{Context, Result};
use clap::Args;
use engine::document::{Faults, Fields, Reader, texts};
use engine::endpoint::Tenant;
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use wire::{InterfaceId, Vni};

/// Default path of the settings file.
pub const DEFAULT_CONFIG: &str = "/etc/vouchsafe/svtep.toml";
const DEFAULT_DIR: &str = "/var/lib/vouchsafe/svtep";
/// Name of the instance if none is given.
pub const DEFAULT_INSTANCE: &str = "main";
const KEYS: &[&str] = &[
    "dir",
    "socket",
    "instance",
    "underlay",
    "address",
    "mtu",
    "service_key",
    "remembered",
    "reports",
    "metrics",
    "tenants",
];
const TENANT_KEYS: &[&str] = &["interface", "network", "vni", "id", "address", "service_key"];
/// Range of MTUs: from the minimum that IPv6 requires of every link to the maximum length of a packet.
const MTU: std::ops::RangeInclusive<u32> = 1280..=65_535;
/// Default maximum number of packets per second of one tenant that the kernel passes to user space.
const REPORTS: u32 = 100;
/// Maximum number of tenants: the size of the kernel program's table.
const TENANTS_MAX: usize = 4096;

/// A template of the settings file with every key.
pub const TEMPLATE: &str = include_str!("settings/template.toml");

/// Settings of the daemon, as flags
#[derive(Args, Clone, Debug, Default)]
pub struct Flags {
    /// Directory of the enrolment and the sessions [default: /var/lib/vouchsafe/svtep, or svtep-NAME for another
    /// instance]
    #[arg(long, value_name = "DIR", env = "VOUCHSAFE_SVTEP_DIR")]
    pub dir: Option<PathBuf>,
    /// Path of the control socket [default: /run/vouchsafe/svtep.sock, or svtep-NAME.sock for another instance]
    #[arg(long, value_name = "PATH", env = "VOUCHSAFE_SVTEP_SOCKET")]
    pub socket: Option<PathBuf>,
    /// Name that distinguishes this tunnel endpoint, if there are several on this host [default: main]
    #[arg(long, value_name = "NAME", env = "VOUCHSAFE_SVTEP_INSTANCE")]
    pub instance: Option<String>,
    /// The interface by which tunnelled packets arrive and leave
    #[arg(long, value_name = "IF", env = "VOUCHSAFE_SVTEP_UNDERLAY")]
    pub underlay: Option<String>,
    /// Address of this endpoint on the underlay, as in networks.toml; may be repeated; packets are sent from the first
    /// address
    #[arg(long, value_name = "ADDR", env = "VOUCHSAFE_SVTEP_ADDRESS", value_delimiter = ',')]
    pub address: Vec<IpAddr>,
    /// MTU of the underlay [default: the interface's]
    #[arg(long, value_name = "BYTES", env = "VOUCHSAFE_SVTEP_MTU", value_parser = clap::value_parser!(u32).range(1280..=65_535))]
    pub mtu: Option<u32>,
    /// Key file of the service account that requests segments for tenants without a key file of their own
    #[arg(long, value_name = "FILE", env = "VOUCHSAFE_SVTEP_SERVICE_KEY")]
    pub service_key: Option<PathBuf>,
    /// Number of verified proofs to remember, 128 bytes each [default: 65536]
    #[arg(long, value_name = "N", env = "VOUCHSAFE_SVTEP_REMEMBERED", value_parser = clap::value_parser!(u32).range(16..=1 << 24))]
    pub remembered: Option<u32>,
    /// Maximum number of packets without a segment that the daemon examines per second, for each tenant [default: 100]
    #[arg(long, value_name = "N", env = "VOUCHSAFE_SVTEP_REPORTS", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub reports: Option<u32>,
    /// Address at which to serve metrics for Prometheus, in plain HTTP [default: not served]
    #[arg(long, value_name = "ADDR:PORT", env = "VOUCHSAFE_SVTEP_METRICS")]
    pub metrics: Option<SocketAddr>,
}

/// The settings of one tenant, from the table [[tenants]].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantSettings {
    /// Name of the interface behind which the tenant is.
    pub interface: String,
    /// The interface's id, as in networks.toml.
    pub id: InterfaceId,
    /// The tenant's network and addresses.
    pub tenant: Tenant,
    /// The key file of the service account that requests segments for the tenant.
    pub service_key: PathBuf,
}

/// The daemon's settings.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Directory of the enrolment and the sessions.
    pub dir: PathBuf,
    /// Path of the control socket.
    pub socket: PathBuf,
    /// Name that distinguishes the kernel state of several endpoints.
    pub instance: String,
    /// The underlay's interface.
    pub underlay: String,
    /// The endpoint's own addresses on the underlay.
    pub addresses: Vec<IpAddr>,
    /// MTU of the underlay; if `None`, it is the MTU of the underlay's interface.
    pub mtu: Option<u32>,
    /// Maximum number of verified proofs that are remembered.
    pub remembered: u32,
    /// Maximum number of a tenant's packets without a segment that the kernel passes to user space per second.
    pub reports: u32,
    /// Address at which metrics are served; `None` if they are not served.
    pub metrics: Option<SocketAddr>,
    /// The settings of each tenant.
    pub tenants: Vec<TenantSettings>,
}

/// The content of a settings file, before flags override it.
#[derive(Default)]
struct File {
    flags: Flags,
    tenants: Vec<Described>,
}

/// A tenant as described in the file.
struct Described {
    interface: String,
    id: InterfaceId,
    tenant: Tenant,
    service_key: Option<PathBuf>,
}

/// Returns the default directory of an instance's enrolment.
pub fn default_dir(instance: &str) -> PathBuf {
    if instance == DEFAULT_INSTANCE { DEFAULT_DIR.into() } else { format!("{DEFAULT_DIR}-{instance}").into() }
}

/// Returns the default path of an instance's control socket.
pub fn default_socket(instance: &str) -> PathBuf {
    let name = if instance == DEFAULT_INSTANCE { "svtep.sock".into() } else { format!("svtep-{instance}.sock") };
    Path::new("/run/vouchsafe").join(name)
}

/// Parses an instance's name. Names are restricted because they become part of paths.
///
/// # Errors
///
/// Fails if the name is empty, too long, or contains other characters than letters, digits, `-` and `_`.
pub fn instance(text: &str) -> Result<String, String> {
    let fine = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if (1..=32).contains(&text.len()) && text.chars().all(fine) {
        Ok(text.to_owned())
    } else {
        Err("1 to 32 letters, digits, `-` or `_`".to_owned())
    }
}

impl Settings {
    /// Reads the settings from the file `config`; `flags` override them.
    ///
    /// # Errors
    ///
    /// Fails if the file can't be read, or if the settings are invalid.
    pub fn load(flags: Flags, config: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(config).with_context(|| {
            format!("cannot read {} (`vouchsafe svtep template` prints a template for it)", config.display())
        })?;
        let file = read(&text).map_err(|faults| anyhow::anyhow!("{}", faults.in_file(&config.to_string_lossy())))?;
        Self::resolve(flags, file).with_context(|| format!("invalid settings in {} or the flags", config.display()))
    }

    fn resolve(flags: Flags, File { flags: file, tenants }: File) -> Result<Self> {
        let text = flags.instance.or(file.instance).unwrap_or_else(|| DEFAULT_INSTANCE.to_owned());
        let instance = instance(&text).map_err(|why| anyhow::anyhow!("instance: {text:?} is not {why}"))?;
        let addresses = if flags.address.is_empty() { file.address } else { flags.address };
        let first =
            *addresses.first().context("`address` is not set: give the endpoint's own address on the underlay")?;
        let one_family = addresses.iter().all(|address| address.is_ipv4() == first.is_ipv4());
        anyhow::ensure!(
            one_family,
            "address: the addresses of an endpoint must be of one family; run a second --instance for the other family"
        );
        let service_key = flags.service_key.or(file.service_key);
        let keyed = |it: Described| {
            let key = it.service_key.or_else(|| service_key.clone());
            let key = key.with_context(|| {
                format!(
                    "tenant behind {}: `service_key` is not set, so no account can request its segments",
                    it.interface
                )
            })?;
            let Described { interface, id, tenant, .. } = it;
            Ok(TenantSettings { interface, id, tenant, service_key: key })
        };
        let underlay = flags
            .underlay
            .or(file.underlay)
            .context("`underlay` is not set: name the interface towards the other tunnel endpoints")?;
        let tenants: Vec<_> = tenants.into_iter().map(keyed).collect::<Result<_>>()?;
        anyhow::ensure!(
            tenants.iter().all(|tenant| tenant.interface != underlay),
            "{underlay} cannot be both the underlay and the interface of a tenant"
        );
        Ok(Self {
            dir: flags.dir.or(file.dir).unwrap_or_else(|| default_dir(&instance)),
            socket: flags.socket.or(file.socket).unwrap_or_else(|| default_socket(&instance)),
            instance,
            underlay,
            addresses,
            mtu: flags.mtu.or(file.mtu),
            remembered: flags.remembered.or(file.remembered).unwrap_or(datapath::proofs::REMEMBERED),
            reports: flags.reports.or(file.reports).unwrap_or(REPORTS),
            metrics: flags.metrics.or(file.metrics),
            tenants,
        })
    }
}

fn read(text: &str) -> Result<File, Faults> {
    Reader::read(text, KEYS, |reader, root| {
        let mut text = |key| root.text(reader, key).map(|text| (*text.get_ref()).to_owned());
        let [dir, socket, instance, underlay, service_key] =
            ["dir", "socket", "instance", "underlay", "service_key"].map(&mut text);
        let [dir, socket, service_key] = [dir, socket, service_key].map(|path| path.map(PathBuf::from));
        let address = addresses(reader, root);
        let mut number = |key: &str, least: u32, most: u32| {
            root.value(key)?;
            Some(root.number(reader, key, least, least, most))
        };
        let mtu = number("mtu", *MTU.start(), *MTU.end());
        let (remembered, reports) = (number("remembered", 16, 1 << 24), number("reports", 1, 100_000));
        let metrics = root.address(reader, "metrics", "127.0.0.1:9467");
        let flags = Flags { dir, socket, instance, underlay, address, mtu, service_key, remembered, reports, metrics };
        Some(File { flags, tenants: tenants(reader, root) })
    })
}

fn tenants(reader: &mut Reader<'_>, root: &Fields<'_, '_>) -> Vec<Described> {
    let (mut interfaces, mut ids) = (BTreeSet::new(), BTreeSet::new());
    let mut all = Vec::new();
    let tables = root.tables(reader, "tenants", "a tenant", TENANT_KEYS);
    if tables.len() > TENANTS_MAX {
        reader.fault(root.span(), format!("too many tenants: {}; the maximum is {TENANTS_MAX}", tables.len()));
        return all;
    }
    for fields in tables {
        let interface = fields.required_text(reader, "interface");
        let network = fields.required_text(reader, "network");
        for key in ["vni", "id", "address"] {
            fields.required(reader, key);
        }
        let vni = Vni::new(fields.number(reader, "vni", 0, 0, (1 << 24) - 1));
        let id = fields.number(reader, "id", 0, 0, u16::MAX.into());
        let service_key = fields.text(reader, "service_key").map(|path| PathBuf::from(*path.get_ref()));
        let addresses = addresses(reader, &fields);
        let (Some(interface), Some(network), Some(vni)) = (interface, network, vni) else { continue };
        if !interfaces.insert((*interface.get_ref()).to_owned()) {
            reader.fault(
                interface.span(),
                format!("interface {} already belongs to another tenant", interface.get_ref()),
            );
        }
        if !ids.insert(id) {
            reader.fault(fields.span(), format!("interface id {id} already belongs to another tenant"));
        }
        if addresses.is_empty() && fields.value("address").is_some() {
            reader.fault(fields.span(), "`address` of a tenant is empty, so the tenant could send nothing");
        }
        let tenant = Tenant { network: (*network.get_ref()).to_owned(), vni, addresses };
        let (interface, id) = ((*interface.get_ref()).to_owned(), InterfaceId(id as u16));
        all.push(Described { interface, id, tenant, service_key });
    }
    all
}

fn addresses(reader: &mut Reader<'_>, fields: &Fields<'_, '_>) -> Vec<IpAddr> {
    let list = fields.value("address").map(|value| texts(reader, value)).unwrap_or_default();
    let read = list.into_iter().filter_map(|text| {
        let address = text.get_ref().parse::<IpAddr>().ok();
        if address.is_none() {
            reader.fault(
                text.span(),
                "`address` must be a list of addresses without prefix lengths, such as \"192.0.2.1\"",
            );
        }
        address
    });
    read.collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const TEXT: &str = "underlay = \"eth0\"\naddress = \"192.0.2.1\"\nservice_key = \"all.key\"\n";
    const BLUE: &str =
        "[[tenants]]\ninterface = \"t1\"\nnetwork = \"blue\"\nvni = 100\nid = 1\naddress = \"10.0.0.1\"\n";

    /// Returns the settings in `text`, without flags.
    pub fn of(text: &str) -> Result<Settings> {
        Settings::resolve(Flags::default(), read(text).map_err(|faults| anyhow::anyhow!("{faults}"))?)
    }

    fn fault(text: &str) -> String {
        format!("{:#}", of(text).expect_err("a fault"))
    }

    #[test]
    fn every_key_of_the_template_is_known_and_a_default_or_an_example() {
        let text = TEMPLATE.replace("\n#", "\n");
        let lines: Vec<_> = text.lines().filter(|line| line.contains(" = ") || line.starts_with("[[")).collect();
        assert_eq!(lines.len(), KEYS.len() + TENANT_KEYS.len());
        let all = of(&lines.join("\n")).unwrap();
        let least = of(TEXT).unwrap();
        assert_eq!((all.remembered, all.reports, &all.dir), (least.remembered, least.reports, &least.dir));
        assert_eq!((&all.socket, &all.instance, all.tenants.len()), (&least.socket, &least.instance, 1));
        // The settings that are not commented out are valid examples, which the administrator has to change.
        assert!(of(TEMPLATE).is_ok());
    }

    #[test]
    fn a_tenant_asks_by_its_own_key_or_by_everybodys() {
        let red = BLUE.replace("t1", "t2").replace("id = 1", "id = 2\nservice_key = \"red.key\"");
        let settings = of(&[TEXT, BLUE, &red].concat()).unwrap();
        let keys: Vec<_> = settings.tenants.iter().map(|tenant| tenant.service_key.to_str().unwrap()).collect();
        assert_eq!(keys, ["all.key", "red.key"]);
        assert!(
            fault(&[&TEXT.replace("service_key", "#"), BLUE].concat())
                .contains("tenant behind t1: `service_key` is not set")
        );
    }

    #[test]
    fn a_flag_goes_before_the_file() {
        let flags = Flags { underlay: Some("eth9".into()), instance: Some("two".into()), ..Flags::default() };
        let settings = Settings::resolve(flags, read(TEXT).unwrap_or_default()).unwrap();
        assert_eq!((settings.underlay.as_str(), settings.socket), ("eth9", "/run/vouchsafe/svtep-two.sock".into()));
    }

    #[test]
    fn what_is_wrong_is_told_with_the_way_out() {
        assert!(fault("").contains("`address` is not set"));
        assert!(fault(&TEXT.replace("underlay", "underley")).contains("did you mean `underlay`?"));
        assert!(fault(&TEXT.replace("192.0.2.1", "192.0.2.0/24")).contains("without prefix lengths"));
        assert!(fault(&TEXT.replace("\"192.0.2.1\"", "[\"192.0.2.1\", \"2001:db8::1\"]")).contains("one family"));
        assert!(fault(&[TEXT, BLUE, BLUE].concat()).contains("t1 already belongs to another tenant"));
        assert!(fault(&[TEXT, BLUE, &BLUE.replace("t1", "t2")].concat()).contains("interface id 1"));
        assert!(fault(&[TEXT, &BLUE.replace("t1", "eth0")].concat()).contains("eth0 cannot be both"));
        assert!(fault(&[TEXT, &BLUE.replace("\"10.0.0.1\"", "[]")].concat()).contains("could send nothing"));
        assert!(fault(&[TEXT, &BLUE.replace("vni = 100", "vni = 16777216")].concat()).contains("vni"));
        assert!(fault(&format!("{TEXT}instance = \"../x\"")).contains("letters, digits"));
    }
}
