//! Parser of `verifier.toml`: the enrolment, and every setting by its name.

use super::values::{
    FLOWS, IDLE, MAX_FLOWS, MAX_PAIRS, RENEWAL, SAMPLES, TUNNEL_QUEUES, carrier, complainant, hook, mark, network,
    organisation_service, peer, service, suite, verdict,
};
use super::{Flags, ProofsSettings};
use engine::document::{self, Faults, Fields, Reader};
use ipnet::IpNet;
use std::path::PathBuf;
use zeroize::Zeroizing;

pub(super) const KEYS: &[&str] = &[
    "authority",
    "ca",
    "verifier",
    "token",
    "interface",
    "hook",
    "observe",
    "only_named",
    "no_adopt",
    "whois_users",
    "complainants",
    "identity_socket",
    "metrics",
    "max_flows",
    "max_grants",
    "max_accounts",
    "max_revoked",
    "replay_buckets",
    "flows_per_grant",
    "flows_per_account",
    "grants_per_account",
    "tcp_idle",
    "udp_idle",
    "udp_renewal",
    "closing_idle",
    "samples_per_second",
    "carriers",
    "inside",
    "everything",
    "open",
    "optional",
    "proxy_protocol",
    "max_outbound",
    "pool",
    "tunnel_pool",
    "tunnel_queues",
    "suites",
    "max_pairs",
    "ls_stateless",
    "peers",
    "peer_listen",
    "verdict",
    "mark",
    "networks",
    "services",
    "proofs",
];

/// The enrolment, as it is in `verifier.toml`. It is secret.
#[derive(Clone)]
pub struct StoredEnrolment {
    /// The authority's URL.
    pub authority: String,
    /// The path of the file with the CA certificates to trust, relative to the verifier's directory. `None` stands for
    /// the system's certificates.
    pub ca: Option<PathBuf>,
    /// The verifier's id.
    pub verifier: String,
    /// The bearer token with which the verifier authenticates to the authority.
    pub token: Zeroizing<String>,
}

/// Parses `verifier.toml`: the enrolment, if the verifier is enrolled, and the settings.
///
/// # Errors
///
/// Fails with all faults in the text, each with its position.
pub fn parse(text: &str) -> Result<(Option<StoredEnrolment>, Flags), Faults> {
    Reader::read(text, KEYS, |reader, fields| {
        let enrolment = enrolment(reader, fields);
        let flags = Flags {
            interface: texts(reader, fields, "interface"),
            hook: fields.text(reader, "hook").and_then(|text| {
                let known = hook(text.get_ref()).ok();
                if known.is_none() {
                    reader.fault(text.span(), "`hook` must be \"auto\", \"xdp\" or \"tc\"");
                }
                known
            }),
            observe: fields.yes(reader, "observe"),
            only_named: fields.yes(reader, "only_named"),
            no_adopt: fields.yes(reader, "no_adopt"),
            whois_users: texts(reader, fields, "whois_users"),
            complainants: named(reader, fields, "complainants", complainant),
            identity_socket: fields.text(reader, "identity_socket").map(|path| PathBuf::from(path.get_ref())),
            metrics: fields.address(reader, "metrics", "127.0.0.1:9465"),
            max_flows: number(reader, fields, "max_flows", &MAX_FLOWS),
            max_grants: number(reader, fields, "max_grants", &MAX_FLOWS),
            max_accounts: number(reader, fields, "max_accounts", &MAX_FLOWS),
            max_revoked: number(reader, fields, "max_revoked", &MAX_FLOWS),
            replay_buckets: number(reader, fields, "replay_buckets", &(64..=1 << 24)).inspect(|buckets| {
                if !buckets.is_power_of_two() {
                    let at = fields.value("replay_buckets").map_or(0..0, |value| value.span());
                    reader.fault(at, "`replay_buckets` must be a power of two");
                }
            }),
            flows_per_grant: number(reader, fields, "flows_per_grant", &FLOWS),
            flows_per_account: number(reader, fields, "flows_per_account", &FLOWS),
            grants_per_account: number(reader, fields, "grants_per_account", &FLOWS),
            tcp_idle: seconds(reader, fields, "tcp_idle", &IDLE),
            udp_idle: seconds(reader, fields, "udp_idle", &IDLE),
            udp_renewal: seconds(reader, fields, "udp_renewal", &RENEWAL),
            closing_idle: seconds(reader, fields, "closing_idle", &IDLE),
            samples_per_second: number(reader, fields, "samples_per_second", &SAMPLES),
            carriers: named(reader, fields, "carriers", carrier),
            inside: texts(reader, fields, "inside"),
            everything: fields.yes(reader, "everything"),
            open: networks(reader, fields, "open"),
            optional: named(reader, fields, "optional", service),
            proxy_protocol: named(reader, fields, "proxy_protocol", service),
            max_outbound: number(reader, fields, "max_outbound", &MAX_FLOWS),
            pool: networks(reader, fields, "pool"),
            tunnel_pool: networks(reader, fields, "tunnel_pool"),
            tunnel_queues: number(reader, fields, "tunnel_queues", &TUNNEL_QUEUES),
            suites: named(reader, fields, "suites", suite),
            max_pairs: number(reader, fields, "max_pairs", &MAX_PAIRS),
            ls_stateless: fields.yes(reader, "ls_stateless"),
            peers: named(reader, fields, "peers", peer),
            peer_listen: fields.address(reader, "peer_listen", "192.0.2.1:8446"),
            verdict: word(reader, fields, "verdict", verdict),
            mark: word(reader, fields, "mark", mark),
            proofs: ProofsSettings::read(reader, fields),
            networks: networks(reader, fields, "networks").iter().map(IpNet::trunc).collect(),
            services: named(reader, fields, "services", organisation_service),
        };
        Some((enrolment, flags))
    })
}

fn enrolment(reader: &mut Reader<'_>, fields: &Fields<'_, '_>) -> Option<StoredEnrolment> {
    const ALL: [&str; 3] = ["authority", "verifier", "token"];
    let ca = fields.text(reader, "ca").map(|ca| PathBuf::from(ca.get_ref()));
    if ALL.iter().all(|key| fields.value(key).is_none()) {
        return None;
    }
    let [authority, verifier, token] =
        ALL.map(|key| fields.required_text(reader, key).map(|text| (*text.get_ref()).to_owned()));
    Some(StoredEnrolment { authority: authority?, ca, verifier: verifier?, token: Zeroizing::new(token?) })
}

pub(super) fn texts(reader: &mut Reader<'_>, fields: &Fields<'_, '_>, key: &str) -> Vec<String> {
    let Some(value) = fields.value(key) else { return Vec::new() };
    document::texts(reader, value).into_iter().map(|text| (*text.get_ref()).to_owned()).collect()
}

/// Parses the value of a key with `read`. Reports a fault if `read` fails.
pub(super) fn word<T>(
    reader: &mut Reader<'_>,
    fields: &Fields<'_, '_>,
    key: &str,
    read: impl Fn(&str) -> Result<T, String>,
) -> Option<T> {
    let text = fields.text(reader, key)?;
    match read(text.get_ref()) {
        Ok(word) => Some(word),
        Err(wanted) => {
            reader.fault(text.span(), format!("`{key}` must be {wanted}"));
            None
        }
    }
}

/// Parses a list of names with `read`. Reports a fault for each name for which `read` fails.
fn named<T>(
    reader: &mut Reader<'_>,
    fields: &Fields<'_, '_>,
    key: &str,
    read: impl Fn(&str) -> Result<T, String>,
) -> Vec<T> {
    let Some(value) = fields.value(key) else { return Vec::new() };
    let mut known = Vec::new();
    for text in document::texts(reader, value) {
        match read(text.get_ref()) {
            Ok(one) => known.push(one),
            Err(names) => reader.fault(text.span(), format!("`{key}` accepts only {names}")),
        }
    }
    known
}

pub(super) fn networks(reader: &mut Reader<'_>, fields: &Fields<'_, '_>, key: &str) -> Vec<IpNet> {
    let Some(value) = fields.value(key) else { return Vec::new() };
    let read = document::texts(reader, value).into_iter().filter_map(|text| {
        let known = network(text.get_ref()).ok();
        if known.is_none() {
            reader.fault(
                text.span(),
                format!("`{key}` must be a list of networks and addresses, such as \"192.0.2.0/24\""),
            );
        }
        known
    });
    read.collect()
}

fn number(
    reader: &mut Reader<'_>,
    fields: &Fields<'_, '_>,
    key: &str,
    range: &std::ops::RangeInclusive<i64>,
) -> Option<u32> {
    fields.value(key)?;
    let (least, most) = (*range.start() as u32, *range.end() as u32);
    Some(fields.number(reader, key, least, least, most))
}

fn seconds(
    reader: &mut Reader<'_>,
    fields: &Fields<'_, '_>,
    key: &str,
    range: &std::ops::RangeInclusive<u32>,
) -> Option<u32> {
    fields.value(key)?;
    Some(fields.seconds(reader, key, *range.start(), *range.start(), *range.end()))
}

/// The text of a new `verifier.toml`, in which every setting has its default.
pub const TEMPLATE: &str = include_str!("template.toml");
