//! The verifier's settings. Each setting has the same name as a flag, as an environment variable and as a key of
//! `verifier.toml`. The settings in the section `[proofs]` exist only in the file. A flag takes precedence over the
//! environment, and the environment over the file.

use clap::Args;
use clap::builder::FalseyValueParser;
use datapath::hook::{Choice, Hook};
use datapath::verifier::Sizes;
use engine::model::Service;
use engine::policy::GrantSuite;
use ipnet::IpNet;
use std::net::SocketAddr;
use std::path::PathBuf;
use wire::Carrier;
use wire::map::advertises_flows;

mod file;
mod proofs;
mod values;

pub use file::{StoredEnrolment, TEMPLATE, parse};
pub use proofs::{Engine, ProofsSettings};
pub(crate) use values::network;
pub use values::{Complainant, Mark, Verdict, duration};
use values::{
    FLOWS, MARK, MAX_FLOWS, MAX_PAIRS, SAMPLES, TUNNEL_QUEUES, carrier, complainant, hook, idle, mark, peer, renewal,
    replay_buckets, service, suite, verdict,
};

/// Settings from one source. Settings that the source does not contain are `None`, empty or false.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// An interface to protect; may be repeated [default: every Ethernet interface, including those that appear later]
    #[arg(long, value_name = "IF", env = "VOUCHSAFE_INTERFACE", value_delimiter = ',')]
    pub interface: Vec<String>,
    /// The hook at which packets are checked: xdp or tc; auto uses xdp on network cards whose driver supports it, else
    /// tc [default: auto]
    #[arg(long, value_name = "auto|xdp|tc", env = "VOUCHSAFE_HOOK", value_parser = hook)]
    pub hook: Option<Choice>,
    /// Shadow mode: count and log the packets that would be dropped, but let them pass (with few exceptions, such as
    /// packets in sealed tunnels)
    #[arg(long, env = "VOUCHSAFE_OBSERVE", value_parser = FalseyValueParser::new())]
    pub observe: bool,
    /// Protect ports only at the addresses that the policy names, and not at this host's other addresses
    #[arg(long, env = "VOUCHSAFE_ONLY_NAMED", value_parser = FalseyValueParser::new())]
    pub only_named: bool,
    /// Cut connections that are established when protection starts, instead of adopting them
    #[arg(long, env = "VOUCHSAFE_NO_ADOPT", value_parser = FalseyValueParser::new())]
    pub no_adopt: bool,
    /// A user besides root who is allowed to run `whois` and to use the identity socket, by name or number; may be
    /// repeated
    #[arg(long, value_name = "USER", env = "VOUCHSAFE_WHOIS_USERS", value_delimiter = ',')]
    pub whois_users: Vec<String>,
    /// USER=ADDR:PORT: a user of the identity socket who may complain about the people behind connections to this
    /// service; may be repeated [default: none]
    #[arg(long, value_name = "USER=ADDR:PORT", env = "VOUCHSAFE_COMPLAINANTS", value_delimiter = ',', value_parser = complainant)]
    pub complainants: Vec<Complainant>,
    /// UNIX socket at which to tell applications, over HTTP, who is behind a connection [default: none]
    #[arg(long, value_name = "PATH", env = "VOUCHSAFE_IDENTITY_SOCKET")]
    pub identity_socket: Option<PathBuf>,
    /// Address at which to serve metrics for Prometheus, in plain HTTP [default: not served]
    #[arg(long, value_name = "ADDR:PORT", env = "VOUCHSAFE_METRICS")]
    pub metrics: Option<SocketAddr>,
    /// Maximum number of admitted flows of each address family; an IPv4 flow takes 120 bytes, an IPv6 flow 144
    /// [default: 262144]
    #[arg(long, value_name = "N", env = "VOUCHSAFE_MAX_FLOWS", value_parser = clap::value_parser!(u32).range(MAX_FLOWS))]
    pub max_flows: Option<u32>,
    /// Maximum number of grants in use, 120 bytes each [default: 65536]
    #[arg(long, value_name = "N", env = "VOUCHSAFE_MAX_GRANTS", value_parser = clap::value_parser!(u32).range(MAX_FLOWS))]
    pub max_grants: Option<u32>,
    /// Maximum number of accounts that have flows or tokens, 72 bytes each [default: 65536]
    #[arg(long, value_name = "N", env = "VOUCHSAFE_MAX_ACCOUNTS", value_parser = clap::value_parser!(u32).range(MAX_FLOWS))]
    pub max_accounts: Option<u32>,
    /// Maximum number of revoked grants, and the same number of ended sessions; 64 bytes each [default: 65536]
    #[arg(long, value_name = "N", env = "VOUCHSAFE_MAX_REVOKED", value_parser = clap::value_parser!(u32).range(MAX_FLOWS))]
    pub max_revoked: Option<u32>,
    /// Number of buckets in which the verifier remembers used tokens, a power of two; a bucket has room for eight
    /// tokens and takes 64 bytes [default: 65536]
    #[arg(long, value_name = "N", env = "VOUCHSAFE_REPLAY_BUCKETS", value_parser = replay_buckets)]
    pub replay_buckets: Option<u32>,
    /// Maximum number of flows under one grant [default: 1024]
    #[arg(long, value_name = "N", env = "VOUCHSAFE_FLOWS_PER_GRANT", value_parser = clap::value_parser!(u32).range(FLOWS))]
    pub flows_per_grant: Option<u32>,
    /// Maximum number of flows of one account, under all of its grants together; in 64 s, the account can use eight
    /// times as many tokens [default: 4096]
    #[arg(long, value_name = "N", env = "VOUCHSAFE_FLOWS_PER_ACCOUNT", value_parser = clap::value_parser!(u32).range(FLOWS))]
    pub flows_per_account: Option<u32>,
    /// Maximum number of grants that one account uses at the same time [default: 1024]
    #[arg(long, value_name = "N", env = "VOUCHSAFE_GRANTS_PER_ACCOUNT", value_parser = clap::value_parser!(u32).range(FLOWS))]
    pub grants_per_account: Option<u32>,
    /// Idle time after which a TCP flow is forgotten [default: 1d]
    #[arg(long, value_name = "TIME", env = "VOUCHSAFE_TCP_IDLE", value_parser = idle)]
    pub tcp_idle: Option<u32>,
    /// Idle time after which a flow of UDP or another protocol is forgotten [default: 60s]
    #[arg(long, value_name = "TIME", env = "VOUCHSAFE_UDP_IDLE", value_parser = idle)]
    pub udp_idle: Option<u32>,
    /// Time after which a UDP flow that a client opened needs another token; agents send one every 15 s [default: 60s]
    #[arg(long, value_name = "TIME", env = "VOUCHSAFE_UDP_RENEWAL", value_parser = renewal)]
    pub udp_renewal: Option<u32>,
    /// Idle time after which a TCP flow is forgotten if its client has closed it, or has not opened it completely yet
    /// [default: 30s]
    #[arg(long, value_name = "TIME", env = "VOUCHSAFE_CLOSING_IDLE", value_parser = idle)]
    pub closing_idle: Option<u32>,
    /// Maximum number of dropped packets that are reported, per core and second; all dropped packets are counted
    /// [default: 100]
    #[arg(long, value_name = "N", env = "VOUCHSAFE_SAMPLES_PER_SECOND", value_parser = clap::value_parser!(u32).range(SAMPLES))]
    pub samples_per_second: Option<u32>,
    /// A carrier from which tokens are accepted: tail, shim, stream, fast_open or tcp_in_udp; may be repeated [default:
    /// tail, stream, fast_open]
    #[arg(long, value_name = "CARRIER", env = "VOUCHSAFE_CARRIERS", value_delimiter = ',', value_parser = carrier)]
    pub carriers: Vec<Carrier>,
    /// An interface behind which the protected hosts are; makes this verifier a gateway; replies to flows opened from
    /// inside need no token; may be repeated [default: none]
    #[arg(long, value_name = "IF", env = "VOUCHSAFE_INSIDE", value_delimiter = ',')]
    pub inside: Vec<String>,
    /// On a gateway: protect every address, including those that the policy doesn't name
    #[arg(long, env = "VOUCHSAFE_EVERYTHING", value_parser = FalseyValueParser::new())]
    pub everything: bool,
    /// A network or address to which `everything` does not apply: only the services that the policy names are protected
    /// there; may be repeated
    #[arg(long, value_name = "NET", env = "VOUCHSAFE_OPEN", value_delimiter = ',', value_parser = network)]
    pub open: Vec<IpNet>,
    /// A TCP service that everybody may reach, with or without a token; the verifier knows the people who send one; may
    /// be repeated [default: none]
    #[arg(long, value_name = "ADDR:PORT", env = "VOUCHSAFE_OPTIONAL", value_delimiter = ',', value_parser = service)]
    pub optional: Vec<SocketAddr>,
    /// On a gateway: a service behind the gateway to which connections are relayed, with a header of the PROXY protocol
    /// that names the person; may be repeated [default: none]
    #[arg(long, value_name = "ADDR:PORT", env = "VOUCHSAFE_PROXY_PROTOCOL", value_delimiter = ',', value_parser = service)]
    pub proxy_protocol: Vec<SocketAddr>,
    /// Maximum number of flows opened from inside [default: 131072]
    #[arg(long, value_name = "N", env = "VOUCHSAFE_MAX_OUTBOUND", value_parser = clap::value_parser!(u32).range(MAX_FLOWS))]
    pub max_outbound: Option<u32>,
    /// On a gateway: a network of inside addresses; each person gets one inside address, and the inside sees it as the
    /// address of the person's clients; may be repeated [default: clients' own addresses]
    #[arg(long, value_name = "NET", env = "VOUCHSAFE_POOL", value_delimiter = ',', value_parser = network)]
    pub pool: Vec<IpNet>,
    /// A network of inside addresses for clients in sealed tunnels, used for nothing else; may be repeated [default:
    /// none, and no tunnels]
    #[arg(long, value_name = "NET", env = "VOUCHSAFE_TUNNEL_POOL", value_delimiter = ',', value_parser = network)]
    pub tunnel_pool: Vec<IpNet>,
    /// Number of queues of sealed tunnels, each with a thread of its own, 1 to 8 [default: half the number of
    /// processors, 1 to 8]
    #[arg(long, value_name = "N", env = "VOUCHSAFE_TUNNEL_QUEUES", value_parser = clap::value_parser!(u32).range(TUNNEL_QUEUES))]
    pub tunnel_queues: Option<u32>,
    /// A suite whose tokens are accepted: siphash, aes-cmac or sha224; may be repeated [default: siphash, aes-cmac]
    #[arg(long, value_name = "SUITE", env = "VOUCHSAFE_SUITES", value_delimiter = ',', value_parser = suite)]
    pub suites: Vec<GrantSuite>,
    /// Maximum number of pairs (which identify client keys) of the suite sha224, 8 KiB each, if that suite is accepted
    /// [default: 1024]
    #[arg(long, value_name = "N", env = "VOUCHSAFE_MAX_PAIRS", value_parser = clap::value_parser!(u32).range(MAX_PAIRS))]
    pub max_pairs: Option<u32>,
    /// Accept every token of the suite sha224 that a current secret yields, as the published scheme does: also if the
    /// verifier does not know the token's pair, and also if the token was used before
    #[arg(long, env = "VOUCHSAFE_LS_STATELESS", value_parser = FalseyValueParser::new())]
    pub ls_stateless: bool,
    /// On a gateway: another gateway of this verifier, to which this gateway advertises its flows, so that they pass at
    /// that gateway, too; may be repeated
    #[arg(long, value_name = "HOST:PORT", env = "VOUCHSAFE_PEERS", value_delimiter = ',', value_parser = peer)]
    pub peers: Vec<String>,
    /// On a gateway: the address at which to listen for other gateways [default: none]
    #[arg(long, value_name = "ADDR:PORT", env = "VOUCHSAFE_PEER_LISTEN")]
    pub peer_listen: Option<SocketAddr>,
    /// The verdict on packets: `drop` drops packets that are not admitted; `mark` drops none and marks admitted
    /// packets, so that rules of nftables can match them [default: drop]
    #[arg(long, value_name = "drop|mark", env = "VOUCHSAFE_VERDICT", value_parser = verdict)]
    pub verdict: Option<Verdict>,
    /// The mark of admitted packets, and the bits of a packet's mark that the verifier uses [default:
    /// 0x56000000/0xffff0000]
    #[arg(long, value_name = "MARK/MASK", env = "VOUCHSAFE_MARK", value_parser = mark)]
    pub mark: Option<Mark>,
    /// The section `[proofs]` of `verifier.toml`. There are no flags for its settings.
    #[arg(skip)]
    pub proofs: Option<ProofsSettings>,
    /// The networks for which the organisation's authority may speak; only in the file.
    #[arg(skip)]
    pub networks: Vec<IpNet>,
    /// The services for which the organisation's authority may speak; only in the file.
    #[arg(skip)]
    pub services: Vec<Service>,
}

const DEFAULT_PAIRS: u32 = 1024;
/// Default limit of flows opened by the inside of a gateway: half of the default room for flows.
const OUTBOUND: u32 = 131_072;

/// Returns the bits that stand for these suites in the kernel program's configuration; 0 for an empty list.
fn suite_bits(suites: &[GrantSuite]) -> u16 {
    suites.iter().fold(0, |all, suite| all | 1 << suite.number())
}

/// All settings. A setting that no source contains has its default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Names of the interfaces to protect; empty for all.
    pub interfaces: Vec<String>,
    /// The setting for the hook at which packets are checked.
    pub hook: Choice,
    /// Whether to only observe: to let refused packets pass, except packets in sealed tunnels, and packets that wire.md
    /// §4.6.3 excludes.
    pub observe: bool,
    /// Whether to protect ports only at the addresses that the policy names.
    pub only_named: bool,
    /// Whether to adopt established connections when protection starts.
    pub adopt: bool,
    /// Users besides root who are allowed to make `whois` requests and to use the identity socket.
    pub whois_users: Vec<String>,
    /// Users of the identity socket who may complain, and the services about whose connections they may complain.
    pub complainants: Vec<Complainant>,
    /// Path of the identity socket; `None` if there is none.
    pub identity_socket: Option<PathBuf>,
    /// Address at which metrics are served; `None` if they are not served.
    pub metrics: Option<SocketAddr>,
    /// Sizes of the tables.
    pub sizes: Sizes,
    /// Interfaces behind which the protected hosts are; empty if this verifier is not a gateway.
    pub inside: Vec<String>,
    /// Optional receivers: TCP services that everybody may reach.
    pub optional: Vec<SocketAddr>,
    /// Services behind this gateway to which connections are relayed with a header of the PROXY protocol.
    pub proxy_protocol: Vec<SocketAddr>,
    /// Networks of inside addresses; empty if the inside sees the clients' own addresses.
    pub pool: Vec<IpNet>,
    /// Networks of inside addresses for clients in sealed tunnels.
    pub tunnel_pool: Vec<IpNet>,
    /// Number of queues of sealed tunnels; `None` for half the number of processors, but at least 1 and at most 8.
    pub tunnel_queues: Option<u32>,
    /// The mark of admitted packets; `None` if packets are dropped rather than marked.
    pub mark: Option<Mark>,
    /// Addresses of the other gateways of this verifier.
    pub peers: Vec<String>,
    /// Address at which this gateway listens for the other gateways of this verifier; `None` if it does not listen.
    pub peer_listen: Option<SocketAddr>,
    /// If `None`, the verifier protects only services that the policy names. Otherwise, it protects every service at
    /// every address outside these networks; in these networks, it protects only the services that the policy names.
    pub everything_but: Option<Vec<IpNet>>,
    /// Settings for checking proofs; `None` if proofs are not checked.
    pub proofs: Option<ProofsSettings>,
    /// The networks for which the default organisation's authority may speak. If the list is empty, the authority may
    /// speak for every network that no other organisation has.
    pub networks: Vec<IpNet>,
    /// The services for which the default organisation's authority may speak; empty for all.
    pub services: Vec<Service>,
    /// The kernel program's configuration. It lacks the parts that come from the authority and from the verifier's
    /// directory.
    pub kernel: wire::map::VerifierConfig,
}

impl Flags {
    /// Returns these settings, completed from `other`: each setting that is missing here is taken from `other`.
    pub fn or(self, other: Self) -> Self {
        let list = |first: Vec<String>, second| if first.is_empty() { second } else { first };
        Self {
            interface: list(self.interface, other.interface),
            hook: self.hook.or(other.hook),
            observe: self.observe || other.observe,
            only_named: self.only_named || other.only_named,
            no_adopt: self.no_adopt || other.no_adopt,
            whois_users: list(self.whois_users, other.whois_users),
            complainants: if self.complainants.is_empty() { other.complainants } else { self.complainants },
            identity_socket: self.identity_socket.or(other.identity_socket),
            metrics: self.metrics.or(other.metrics),
            max_flows: self.max_flows.or(other.max_flows),
            max_grants: self.max_grants.or(other.max_grants),
            max_accounts: self.max_accounts.or(other.max_accounts),
            max_revoked: self.max_revoked.or(other.max_revoked),
            replay_buckets: self.replay_buckets.or(other.replay_buckets),
            flows_per_grant: self.flows_per_grant.or(other.flows_per_grant),
            flows_per_account: self.flows_per_account.or(other.flows_per_account),
            grants_per_account: self.grants_per_account.or(other.grants_per_account),
            tcp_idle: self.tcp_idle.or(other.tcp_idle),
            udp_idle: self.udp_idle.or(other.udp_idle),
            udp_renewal: self.udp_renewal.or(other.udp_renewal),
            closing_idle: self.closing_idle.or(other.closing_idle),
            samples_per_second: self.samples_per_second.or(other.samples_per_second),
            carriers: if self.carriers.is_empty() { other.carriers } else { self.carriers },
            inside: list(self.inside, other.inside),
            everything: self.everything || other.everything,
            open: if self.open.is_empty() { other.open } else { self.open },
            optional: if self.optional.is_empty() { other.optional } else { self.optional },
            proxy_protocol: if self.proxy_protocol.is_empty() { other.proxy_protocol } else { self.proxy_protocol },
            max_outbound: self.max_outbound.or(other.max_outbound),
            pool: if self.pool.is_empty() { other.pool } else { self.pool },
            tunnel_pool: if self.tunnel_pool.is_empty() { other.tunnel_pool } else { self.tunnel_pool },
            tunnel_queues: self.tunnel_queues.or(other.tunnel_queues),
            suites: if self.suites.is_empty() { other.suites } else { self.suites },
            max_pairs: self.max_pairs.or(other.max_pairs),
            ls_stateless: self.ls_stateless || other.ls_stateless,
            peers: list(self.peers, other.peers),
            peer_listen: self.peer_listen.or(other.peer_listen),
            verdict: self.verdict.or(other.verdict),
            mark: self.mark.or(other.mark),
            proofs: self.proofs.or(other.proofs),
            networks: if self.networks.is_empty() { other.networks } else { self.networks },
            services: if self.services.is_empty() { other.services } else { self.services },
        }
    }

    /// Returns these settings, with the default of each setting that is missing.
    pub fn settings(self) -> Settings {
        let (sizes, kernel) = (Sizes::default(), wire::map::VerifierConfig::default());
        let gateway = !self.inside.is_empty();
        let advertises_flows = match (self.peers.is_empty(), self.pool.is_empty()) {
            (true, _) => advertises_flows::NOTHING,
            (false, true) => advertises_flows::ADMITTED,
            (false, false) => advertises_flows::BOUND,
        };
        let mark = (self.verdict == Some(Verdict::Mark)).then(|| self.mark.unwrap_or(MARK));
        let takes_pairs = self.suites.contains(&GrantSuite::Sha224);
        let optional = !self.optional.is_empty();
        // Only at tc, programs see super-packets and answers.
        let at_tc = mark.is_some() || self.carriers.contains(&Carrier::TcpInUdp);
        Settings {
            interfaces: self.interface,
            hook: match self.hook.unwrap_or_default() {
                Choice::Auto if at_tc => Choice::Only(Hook::Tc),
                choice => choice,
            },
            mark,
            observe: self.observe,
            only_named: self.only_named,
            adopt: !self.no_adopt,
            whois_users: self.whois_users,
            complainants: self.complainants,
            identity_socket: self.identity_socket,
            metrics: self.metrics,
            sizes: Sizes {
                flows: self.max_flows.unwrap_or(sizes.flows),
                grants: self.max_grants.unwrap_or(sizes.grants),
                accounts: self.max_accounts.unwrap_or(sizes.accounts),
                replay_buckets: self.replay_buckets.unwrap_or(sizes.replay_buckets),
                revoked: self.max_revoked.unwrap_or(sizes.revoked),
                pairs: if takes_pairs && !self.ls_stateless {
                    self.max_pairs.unwrap_or(DEFAULT_PAIRS)
                } else {
                    sizes.pairs
                },
            },
            inside: self.inside,
            optional: self.optional,
            proxy_protocol: self.proxy_protocol,
            pool: self.pool,
            tunnel_pool: self.tunnel_pool,
            tunnel_queues: self.tunnel_queues,
            peers: self.peers,
            peer_listen: self.peer_listen,
            everything_but: self.everything.then_some(self.open),
            proofs: self.proofs,
            networks: self.networks,
            services: self.services,
            kernel: wire::map::VerifierConfig {
                flows_per_grant: self.flows_per_grant.unwrap_or(kernel.flows_per_grant),
                flows_per_account: self.flows_per_account.unwrap_or(kernel.flows_per_account),
                grants_per_account: self.grants_per_account.unwrap_or(kernel.grants_per_account),
                tcp_idle: self.tcp_idle.unwrap_or(kernel.tcp_idle),
                udp_idle: self.udp_idle.unwrap_or(kernel.udp_idle),
                udp_renewal: self.udp_renewal.unwrap_or(kernel.udp_renewal),
                closing_idle: self.closing_idle.unwrap_or(kernel.closing_idle),
                samples_per_second: self.samples_per_second.unwrap_or(kernel.samples_per_second),
                observe: self.observe.into(),
                carriers: match self.carriers.iter().fold(0, |all, carrier| all | *carrier as u16) {
                    0 => kernel.carriers,
                    named => named,
                },
                advertises_flows,
                mark: mark.map_or(0, |mark| mark.value),
                mark_mask: mark.map_or(0, |mark| mark.mask),
                max_outbound: if gateway { self.max_outbound.unwrap_or(OUTBOUND) } else { 0 },
                suites: match suite_bits(&self.suites) {
                    0 => kernel.suites,
                    named => named,
                },
                ls_stateless: (takes_pairs && self.ls_stateless).into(),
                optional: optional.into(),
                ..kernel
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::file::KEYS;
    use super::*;

    #[test]
    fn every_commented_key_of_the_template_is_known_and_its_default() {
        let text = TEMPLATE.replace("\n#", "\n");
        let wanted = |line: &&str| line.contains(" = ") || *line == "[proofs]";
        let lines: Vec<_> = text.lines().filter(wanted).collect();
        assert_eq!(lines.len(), KEYS.len() - 4 + proofs::KEYS.len());
        let (enrolment, flags) = parse(&lines.join("\n")).expect("valid");
        assert!(enrolment.is_none());
        let sizes = flags.clone().settings();
        let default = Flags::default().settings();
        assert_eq!((sizes.sizes, sizes.kernel.tcp_idle), (default.sizes, default.kernel.tcp_idle));
        let kernel = wire::map::VerifierConfig {
            observe: 1,
            max_outbound: OUTBOUND,
            advertises_flows: advertises_flows::BOUND,
            mark: MARK.value,
            mark_mask: MARK.mask,
            optional: 1,
            ..default.kernel
        };
        assert_eq!(sizes.kernel, kernel);
        assert_eq!(flags.inside, ["eth1"]);
        assert_eq!((flags.interface, flags.hook), (vec!["eth0".to_owned()], Some(default.hook)));
    }

    fn faults(text: &str) -> String {
        parse(text).err().expect("a fault").to_string()
    }

    #[test]
    fn an_unknown_key_names_the_nearest() {
        assert!(faults("interfaces = \"eth0\"").contains("did you mean `interface`?"));
        assert!(faults("tcp_idel = \"1d\"").contains("did you mean `tcp_idle`?"));
    }

    #[test]
    fn numbers_have_bounds() {
        assert!(faults("replay_buckets = 100").contains("power of two"));
        assert!(faults("max_flows = 1").contains("from 16"));
        assert!(faults("udp_idle = \"1s\"").contains("from 5s"));
        // Agents send a token every 15 s, and one may be lost.
        assert!(faults("udp_renewal = \"20s\"").contains("from 30s"));
    }

    #[test]
    fn carriers_are_those_that_are_named() {
        let carriers = |text: &str| parse(text).expect("valid").1.settings().kernel.carriers;
        let all = Carrier::Tail as u16 | Carrier::Stream as u16 | Carrier::FastOpen as u16;
        assert_eq!(carriers(""), all);
        assert_eq!(carriers("carriers = \"shim\""), Carrier::Shim as u16);
        assert_eq!(carriers("carriers = [\"shim\", \"tail\"]"), 3);
        assert!(
            faults("carriers = [\"pigeon\"]")
                .contains("`carriers` accepts only tail, shim, stream, fast_open or tcp_in_udp")
        );
        let at = |text: &str| parse(text).expect("valid").1.settings().hook;
        assert_eq!(at("carriers = [\"tail\", \"tcp_in_udp\"]"), Choice::Only(Hook::Tc));
        assert_eq!(at("carriers = \"tail\""), Choice::Auto);
    }

    #[test]
    fn optional_receivers_are_services_and_turn_their_check_on() {
        let settings = |text: &str| parse(text).expect("valid").1.settings();
        let some = settings("optional = [\"192.0.2.20:443\", \"[2001:db8::20]:443\"]");
        assert_eq!((some.optional.len(), some.kernel.optional, settings("").kernel.optional), (2, 1, 0));
        for wrong in ["192.0.2.20", "192.0.2.20:0", "0.0.0.0:443", "[::]:443", "192.0.2.0/24:443", "host:443"] {
            assert!(faults(&format!("optional = \"{wrong}\"")).contains("ADDR:PORT"), "{wrong}");
        }
    }

    #[test]
    fn a_complainant_is_a_user_and_a_service() {
        let known = |text: &str| parse(text).expect("valid").1.settings().complainants;
        let expected = Complainant { user: "www-data".into(), service: "192.0.2.20:443".parse().expect("an address") };
        assert_eq!(known("complainants = \"www-data=192.0.2.20:443\""), [expected]);
        for wrong in ["www-data", "=192.0.2.20:443", "www-data=192.0.2.20", "www-data=:443", "www-data=0.0.0.0:443"] {
            assert!(faults(&format!("complainants = \"{wrong}\"")).contains("USER=ADDR:PORT"), "{wrong}");
        }
    }

    #[test]
    fn suites_are_those_that_are_named_and_pairs_have_room_where_theirs_is() {
        let settings = |text: &str| parse(text).expect("valid").1.settings();
        let (none, default) = (settings("max_pairs = 99"), Flags::default().settings());
        assert_eq!((none.kernel.suites, none.sizes.pairs), (default.kernel.suites, 1));
        let ls = settings("suites = [\"sha224\", \"siphash\"]");
        assert_eq!((ls.kernel.suites, ls.sizes.pairs), (1 << 1 | 1 << 3, 1024));
        assert_eq!(settings("suites = \"sha224\"\nmax_pairs = 99").sizes.pairs, 99);
        let stateless = settings("suites = \"sha224\"\nls_stateless = true\nmax_pairs = 99");
        assert_eq!((stateless.sizes.pairs, stateless.kernel.ls_stateless), (1, 1));
        assert_eq!((ls.kernel.ls_stateless, settings("ls_stateless = true").kernel.ls_stateless), (0, 0));
        assert!(faults("suites = \"md5\"").contains("siphash, aes-cmac or sha224"));
    }

    #[test]
    fn peers_have_a_host_and_a_port_and_flows_are_advertised_when_they_can_pass() {
        let settings = |text: &str| parse(text).expect("valid").1.settings();
        let advertises = |text: &str| settings(text).kernel.advertises_flows;
        assert_eq!(advertises(""), advertises_flows::NOTHING);
        assert_eq!(advertises("peers = \"gw2.example.org:8446\""), advertises_flows::ADMITTED);
        assert_eq!(advertises("peers = [\"[2001:db8::1]:8446\"]\npool = \"10.9.0.0/24\""), advertises_flows::BOUND);
        let listen = settings("peer_listen = \"192.0.2.1:8446\"").peer_listen;
        assert_eq!(listen.map(|at| at.to_string()).as_deref(), Some("192.0.2.1:8446"));
        assert!(faults("peers = \"gw2\"").contains("HOST:PORT") && faults("peers = \":8446\"").contains("HOST:PORT"));
    }

    #[test]
    fn a_mark_leaves_room_for_a_class_and_takes_tc() {
        let settings = |text: &str| parse(text).expect("valid").1.settings();
        let none = settings("mark = \"0x100/0x1ff\"");
        assert_eq!((none.mark, none.kernel.mark_mask, none.hook), (None, 0, Choice::Auto));
        let set = settings("verdict = \"mark\"\nmark = \"0x100/0x1ff\"");
        assert_eq!((set.kernel.mark, set.kernel.mark_mask, set.hook), (0x100, 0x1ff, Choice::Only(Hook::Tc)));
        assert_eq!(
            settings("verdict = \"mark\"").mark.map(|mark| mark.to_string()).as_deref(),
            Some("0x56000000/0xffff0000")
        );
        for wrong in ["0x100/0xff", "0x101/0x1ff", "0x200/0x1ff", "0/0x1ff", "0x100/0x5ff", "0x1/0x0", "1", "x/y"] {
            assert!(faults(&format!("mark = \"{wrong}\"")).contains("MARK/MASK"), "{wrong}");
        }
        assert!(faults("verdict = \"accept\"").contains("drop or mark"));
    }

    #[test]
    fn a_hook_is_one_of_two_or_chosen() {
        let (_, flags) = parse("hook = \"tc\"").expect("valid");
        assert_eq!(flags.settings().hook, Choice::Only(Hook::Tc));
        assert_eq!(parse("hook = \"auto\"").expect("valid").1.settings().hook, Choice::Auto);
        assert!(faults("hook = \"ebpf\"").contains("\"xdp\" or \"tc\""));
    }

    #[test]
    fn half_an_enrolment_is_a_fault() {
        assert!(faults("authority = \"https://a\"").contains("`token`"));
    }

    #[test]
    fn flags_win_over_the_file() {
        let flags = Flags { tcp_idle: Some(60), interface: vec!["eth1".into()], ..Flags::default() };
        let (_, file) = parse("tcp_idle = \"1h\"\nudp_idle = \"2m\"\ninterface = \"eth0\"").expect("valid");
        let both = flags.or(file);
        assert_eq!((both.tcp_idle, both.udp_idle), (Some(60), Some(120)));
        assert_eq!(both.interface, ["eth1"]);
    }
}
