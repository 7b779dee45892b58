//! The authority's configuration, `authority.toml`, which is parsed once into a valid type.

use crate::console::settings::ConsoleSettings;
use crate::dns::DnsSettings;
use crate::login::ProviderSettings;
use crate::policy::score_settings;
use crate::storage::ScoreTerms;
use crate::webhook::WebhookSettings;
use engine::document::{Faults, Fields, Reader};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

/// Default listen address of the API.
pub const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 8443);

/// Minimum length of an epoch, in seconds. A grant that lives for half an epoch can then still be renewed in time.
const LEAST_EPOCH: u32 = 20;

/// Minimum value of `max_connections`.
pub(crate) const LEAST_CONNECTIONS: u32 = 16;

const KEYS: &[&str] = &[
    "listen",
    "metrics",
    "epoch_length",
    "max_lifetime",
    "session_lifetime",
    "max_connections",
    "grants_kept",
    "audit_lifetime",
    "key_transfer",
    "key_transfer_for",
    "segments",
    "cluster",
    "console",
    "scores",
    "dns",
    "oidc",
    "webhooks",
];

/// The authority's configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Listen address of the API. Default `[::]:8443`.
    pub listen: SocketAddr,
    /// Address where metrics are served over plain HTTP. Default none.
    pub metrics: Option<SocketAddr>,
    /// Length of an epoch in seconds; at least `max_lifetime`, because a verifier keeps only the key of the previous
    /// epoch. The clocks of authority and verifiers are allowed to differ by 30 s, or by half of `max_lifetime` if that
    /// is less. Default one hour.
    pub epoch_length: u32,
    /// Maximum lifetime of a grant, in seconds. Default one hour, or `epoch_length` if that is less.
    pub max_lifetime: u32,
    /// Seconds after which a person must log in again. Default 12 hours.
    pub session_lifetime: u32,
    /// Maximum number of concurrent connections; one source may have at most a quarter of them. Default 8192.
    pub max_connections: u32,
    /// Number of seconds for which grants are kept after their end. Verifiers cut flows that outlive this period.
    /// Default 30 days.
    pub grants_kept: u32,
    /// Number of seconds for which audit entries are kept. Default 365 days.
    pub audit_lifetime: u32,
    /// Socket of `vouchsafe transfer`, which sends client keys in band. Default none: clients get their keys over
    /// HTTPS.
    pub key_transfer: Option<PathBuf>,
    /// Id of a verifier. From the console, people may send their client keys for this verifier to their network's
    /// switch. Default none.
    pub key_transfer_for: Option<String>,
    /// Address that receives requests for grants and for segments of virtual networks by UDP. Default none: sessions
    /// send their requests over HTTPS.
    pub segments: Option<SocketAddr>,
    /// Number of seconds for which a member of a cluster renews leases after it has lost contact with a majority of
    /// etcd. Default 15 minutes.
    pub grace: u32,
    /// The terms by which people's scores change. Default none: the authority keeps no scores.
    pub scores: Option<ScoreTerms>,
    /// Settings of the console.
    pub console: ConsoleSettings,
    /// Settings of discovery. Default none.
    pub dns: Option<DnsSettings>,
    /// Settings of the identity provider. Default none: people can log in only with the authority's own accounts.
    pub provider: Option<ProviderSettings>,
    /// The programs that learn of requests for access. Default none.
    pub webhooks: Vec<WebhookSettings>,
}

impl Settings {
    /// Parses the text of a configuration file.
    ///
    /// # Errors
    /// Fails if the text is not valid; the error contains all faults.
    pub fn parse(text: &str) -> Result<Self, Faults> {
        Reader::read(text, KEYS, |reader, fields| {
            let listen = fields.address(reader, "listen", "[::]:8443");
            let metrics = fields.address(reader, "metrics", "127.0.0.1:9464");
            let epoch_length = fields.seconds(reader, "epoch_length", 3600, LEAST_EPOCH, 86_400);
            let max_lifetime = fields.seconds(reader, "max_lifetime", epoch_length.min(3600), LEAST_EPOCH, 86_400);
            if max_lifetime > epoch_length {
                let at = fields.value("max_lifetime").map_or(0..0, |value| value.span());
                reader.fault(
                    at,
                    "`max_lifetime` must not exceed `epoch_length`, because a grant must not outlive its key",
                );
            }
            Some(Self {
                listen: listen.unwrap_or(DEFAULT_LISTEN),
                metrics,
                epoch_length,
                max_lifetime,
                session_lifetime: fields.seconds(reader, "session_lifetime", 12 * 3600, 60, 90 * 86_400),
                max_connections: fields.number(reader, "max_connections", 8192, LEAST_CONNECTIONS, 1 << 20),
                grants_kept: fields.seconds(reader, "grants_kept", 30 * 86_400, 86_400, 3650 * 86_400),
                audit_lifetime: fields.seconds(reader, "audit_lifetime", 365 * 86_400, 86_400, 3650 * 86_400),
                key_transfer: fields.text(reader, "key_transfer").map(|path| PathBuf::from(*path.get_ref())),
                key_transfer_for: fields.text(reader, "key_transfer_for").map(|id| (*id.get_ref()).to_owned()),
                segments: fields.address(reader, "segments", "[::]:8443"),
                grace: grace(reader, fields),
                scores: score_settings::read(reader, fields),
                console: ConsoleSettings::read(reader, fields),
                dns: DnsSettings::read(reader, fields),
                provider: ProviderSettings::read(reader, fields),
                webhooks: WebhookSettings::read(reader, fields),
            })
        })
    }

    /// Returns the text of a new configuration file, in which all settings but `listen` are comments.
    pub fn template(listen: SocketAddr) -> String {
        format!(
            "# The authority's configuration. Times are written like \"90s\", \"5m\", \"12h\", \"30d\".\n\n\
             # Where the HTTPS API listens.\nlisten = \"{listen}\"\n\n\
             # Where metrics for Prometheus are served, in plain HTTP; not served if this key is absent.\n\
             #metrics = \"127.0.0.1:9464\"\n\n\
             # How long verifier keys last.\n#epoch_length = \"1h\"\n\n\
             # The longest lifetime that a rule of policy.toml may set; at most epoch_length.\n\
             #max_lifetime = \"1h\"\n\n\
             # After this time, a person has to log in again.\n#session_lifetime = \"12h\"\n\n\
             # Maximum number of connections at a time; one source may have a quarter of them.\n\
             #max_connections = 8192\n\n\
             # How long the authority remembers grants after their end; then verifiers cut their last flows.\n\
             #grants_kept = \"30d\"\n\n\
             # How long audit entries are kept.\n#audit_lifetime = \"365d\"\n\n\
             # Where `vouchsafe transfer` listens, for client keys in band; see docs/threats.md.\n\
             #key_transfer = \"/run/vouchsafe-transfer/socket\"\n\n\
             # The verifier whose client keys people may send to their network's switch: docs/openflow.md.\n\
             #key_transfer_for = \"edge\"\n\n\
             # Where to accept requests for grants and segments by UDP. Without this key, they come only over HTTPS.\n\
             #segments = \"[::]:8443\"\n\n\
             # Several authorities over one etcd: docs/cluster.md.\n#[cluster]\n\
             # How long this authority renews leases after it has lost contact with a majority of etcd.\n\
             #grace = \"15m\"\n\n\
             # Pages for people and administrators: docs/console.md.\n#[console]\n\
             # The authority's URL in browsers; for passkeys and logins with an identity provider.\n\
             #url = \"https://authority.example.org:8443\"\n#administrators = [\"person:alice\", \"group:operators\"]\n\
             #idle = \"30m\"\n#lifetime = \"12h\"\n\n\
             # Scores of people, which applications lower by complaints: docs/identity.md.\n#[scores]\n\
             # In this time, half of the missing points come back.\n#half_life = \"1d\"\n\
             # A person whose score is below this number has the tag low-score.\n#low = 50\n\
             # Points that one application may take off in an hour, counted over all people.\n\
             #per_application = 200\n\n\
             # How agents find this authority: docs/discovery.md.\n#[dns]\n#domain = \"example.org\"\n\
             #authority = \"https://authority.example.org:8443\"\n#protects = [\"203.0.113.0/28\"]\n#ttl = \"5m\"\n\
             #zone = \"example.org.zone\"\n\n\
             # Log in with an identity provider (OpenID Connect): docs/configuration.md has the other keys.\n\
             #[oidc]\n#issuer = \"https://id.example.org\"\n#client_id = \"vouchsafe\"\n\
             #client_secret_file = \"oidc.secret\"\n\n\
             # A program that learns of requests for access: docs/consent.md.\n#[[webhooks]]\n#name = \"team\"\n\
             #url = \"https://hooks.example.org/vouchsafe\"\n#secret_file = \"team.secret\"\n\
             #delegations = [\"dba\"]\n"
        )
    }
}

/// Default of `grace` in the table `[cluster]`: 15 minutes, in seconds.
const DEFAULT_GRACE: u32 = 900;

/// Reads the table `[cluster]`.
fn grace(reader: &mut Reader<'_>, fields: &Fields<'_, '_>) -> u32 {
    let Some(value) = fields.value("cluster") else { return DEFAULT_GRACE };
    let Some(table) = value.get_ref().as_table() else {
        reader.fault(value.span(), "`cluster` must be a table: write it as `[cluster]`");
        return DEFAULT_GRACE;
    };
    let fields = Fields::new(reader, table, value.span(), "the table of the cluster", &["grace"]);
    fields.seconds(reader, "grace", DEFAULT_GRACE, 0, 86_400)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_template_is_the_default() {
        let written = Settings::parse(&Settings::template(DEFAULT_LISTEN)).unwrap();
        assert_eq!(written, Settings::parse("").unwrap());
        assert_eq!((written.epoch_length, written.max_lifetime), (3600, 3600));
    }

    #[test]
    fn every_commented_key_of_the_template_is_known() {
        let text = Settings::template(DEFAULT_LISTEN).replace("\n#", "\n").replace("\n ", "\n#");
        let lines = text.lines().filter(|line| line.contains(" = ") || line.starts_with('['));
        let text = lines.collect::<Vec<_>>().join("\n");
        assert_eq!(KEYS.iter().filter(|key| !text.contains(*key)).count(), 0);
        let settings = Settings::parse(&text).unwrap();
        assert!(settings.provider.is_some() && settings.console.url.is_some() && settings.webhooks.len() == 1);
    }

    #[test]
    fn grants_cant_outlive_their_key() {
        let faults = Settings::parse("epoch_length = \"10m\"\nmax_lifetime = \"1h\"").unwrap_err();
        assert_eq!(faults.all()[0].line, 2);
        assert!(
            Settings::parse("epoch_length = \"19s\"").is_err() && Settings::parse("epoch_length = \"20s\"").is_ok()
        );
        assert!(Settings::parse("listne = \"x\"").unwrap_err().to_string().contains("did you mean `listen`?"));
    }

    #[test]
    fn all_faults_are_told_at_once() {
        let faults = Settings::parse("listen = \"8443\"\nmetrics = \"x\"\nmax_connections = 1\n[oidc]\nissuer = \"x\"")
            .unwrap_err();
        let lines: Vec<_> = faults.all().iter().map(|fault| fault.line).collect();
        assert_eq!(lines, [1, 2, 3, 4, 5], "{faults}");
    }
}
