//! The syntax of individual settings. It is the same in flags and in `verifier.toml`.

use datapath::hook::Choice;
use engine::document;
use engine::model::Service;
use engine::policy::{GrantSuite, parse_service};
use ipnet::IpNet;
use std::net::{IpAddr, SocketAddr};
use wire::Carrier;

pub(super) const MAX_PAIRS: std::ops::RangeInclusive<i64> = 16..=65_536;
/// Range of `tunnel_queues`. A sealed tunnel has one lane for each queue.
pub(super) const TUNNEL_QUEUES: std::ops::RangeInclusive<i64> = 1..=wire::seal::record::LANES as i64;
pub(super) const MAX_FLOWS: std::ops::RangeInclusive<i64> = 16..=1 << 26;
pub(super) const FLOWS: std::ops::RangeInclusive<i64> = 1..=1 << 26;
pub(super) const SAMPLES: std::ops::RangeInclusive<i64> = 0..=100_000;
pub(super) const IDLE: std::ops::RangeInclusive<u32> = 5..=30 * 86_400;
/// Range of `udp_renewal` in seconds. Within the minimum, an agent sends two tokens.
pub(super) const RENEWAL: std::ops::RangeInclusive<u32> = 30..=30 * 86_400;

pub(super) fn hook(text: &str) -> Result<Choice, String> {
    Choice::ALL.into_iter().find(|choice| choice.name() == text).ok_or_else(|| "auto, xdp or tc".to_owned())
}

pub(super) fn carrier(text: &str) -> Result<Carrier, String> {
    Carrier::from_name(text).ok_or_else(|| "tail, shim, stream, fast_open or tcp_in_udp".to_owned())
}

pub(crate) fn network(text: &str) -> Result<IpNet, String> {
    let address = || text.parse::<IpAddr>().map(IpNet::from);
    text.parse().or_else(|_| address()).map_err(|_| "a network or an address".to_owned())
}

/// How the verifier's verdict on a packet takes effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verdict {
    /// Drop packets that are not admitted.
    #[default]
    Drop,
    /// Mark packets that are admitted, and drop none.
    Mark,
}

pub(super) fn verdict(text: &str) -> Result<Verdict, String> {
    let known = [("drop", Verdict::Drop), ("mark", Verdict::Mark)].into_iter().find(|(name, _)| *name == text);
    known.map(|(_, verdict)| verdict).ok_or_else(|| "drop or mark".to_owned())
}

/// The mark of admitted packets, and the bits of a packet's mark that the verifier uses. The lowest eight of these bits
/// hold the class of the packet's grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The mark of packets whose class is 0.
    pub value: u32,
    /// The bits that the verifier uses.
    pub mask: u32,
}

pub(super) const MARK: Mark = Mark { value: 0x5600_0000, mask: 0xffff_0000 };

impl std::fmt::Display for Mark {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#010x}/{:#010x}", self.value, self.mask)
    }
}

pub(super) fn mark(text: &str) -> Result<Mark, String> {
    const WANTED: &str = "MARK/MASK, such as 0x56000000/0xffff0000: the mask is nine or more bits in a row, and the \
                          mark has zeros in the lowest eight of these bits";
    let number = |text: &str| match text.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    };
    let (value, mask) = text.split_once('/').ok_or(WANTED)?;
    let (value, mask) = (number(value).ok_or(WANTED)?, number(mask).ok_or(WANTED)?);
    let low = mask.trailing_zeros();
    let row = mask.checked_shr(low).unwrap_or_default();
    let fits = row & row.wrapping_add(1) == 0 && row > 0xff;
    if fits && value & !mask == 0 && (value >> low) & 0xff == 0 && value != 0 {
        Ok(Mark { value, mask })
    } else {
        Err(WANTED.to_owned())
    }
}

pub(super) fn service(text: &str) -> Result<SocketAddr, String> {
    let known = text.parse().ok().filter(|service: &SocketAddr| service.port() != 0 && !service.ip().is_unspecified());
    known.ok_or_else(|| "ADDR:PORT, such as 192.0.2.20:443 or [2001:db8::20]:443".to_owned())
}

pub(super) fn organisation_service(text: &str) -> Result<Service, String> {
    parse_service(text).map_err(|_| "services such as tcp/22, udp/5000-6000, icmp or all".to_owned())
}

/// A user of the identity socket who may complain about the people behind connections to a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Complainant {
    /// The user, by name or number.
    pub user: String,
    /// The service about whose connections the user may complain.
    pub service: SocketAddr,
}

pub(super) fn complainant(text: &str) -> Result<Complainant, String> {
    let known = text.split_once('=').filter(|(user, _)| (1..=64).contains(&user.len()));
    let known = known.and_then(|(user, at)| Some(Complainant { user: user.to_owned(), service: service(at).ok()? }));
    known.ok_or_else(|| "USER=ADDR:PORT, such as www-data=192.0.2.20:443".to_owned())
}

pub(super) fn peer(text: &str) -> Result<String, String> {
    let port = text.rsplit_once(':').filter(|(host, _)| !host.is_empty()).map(|(_, port)| port.parse::<u16>());
    if matches!(port, Some(Ok(1..))) { Ok(text.to_owned()) } else { Err("HOST:PORT".to_owned()) }
}

pub(super) fn suite(text: &str) -> Result<GrantSuite, String> {
    let known = GrantSuite::ALL.into_iter().find(|suite| suite.name() == text);
    known.ok_or_else(|| "siphash, aes-cmac or sha224".to_owned())
}

pub(super) fn replay_buckets(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|n: &u32| n.is_power_of_two() && (64..=1 << 24).contains(n));
    number.ok_or_else(|| "a power of two from 64 to 16777216".to_owned())
}

pub(super) fn idle(text: &str) -> Result<u32, String> {
    let seconds = duration(text)?;
    if IDLE.contains(&seconds) { Ok(seconds) } else { Err("from 5s to 30d".to_owned()) }
}

pub(super) fn renewal(text: &str) -> Result<u32, String> {
    let seconds = duration(text)?;
    if RENEWAL.contains(&seconds) { Ok(seconds) } else { Err("from 30s to 30d".to_owned()) }
}

/// Parses a duration on the command line, such as `5m`, and returns its number of seconds.
///
/// # Errors
///
/// Fails with a description of the notation if the text is not a duration.
pub fn duration(text: &str) -> Result<u32, String> {
    document::seconds(text).ok_or_else(|| "a time such as 90s, 5m, 1h or 7d".to_owned())
}
