//! Translates the authority's state into entries of the kernel's tables. This module does no IO: the time is an
//! argument.

use engine::model::protected::{self, Protected, TooManySpans};
use engine::model::{Receiver, Service};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use std::collections::BTreeMap;
use std::net::IpAddr;
use wire::map::{EpochKey, Prefix4, Prefix6, SecretEntry, Services, VerifierConfig};
use wire::{Epoch, ServerSecret, VerifierKey};

pub use engine::verifier::keys_until;

/// Number of slots for keys: one for each value of the epoch field on the wire.
pub const KEY_SLOTS: u32 = 256;
const CLOCK_SKEW_MAX: u64 = engine::verifier::CLOCK_SKEW_MAX as u64;

/// Returns the configuration with which the kernel program is loaded. It consists of `set`, which comes from the
/// settings, and of three more values: the replay seed, and the epoch length and the maximum lifetime from the
/// authority's `config`.
pub fn kernel_config(set: VerifierConfig, replay_seed: u64, config: &api::VerifierConfig) -> VerifierConfig {
    VerifierConfig { replay_seed, epoch_length: config.epoch_length, max_lifetime: config.max_lifetime, ..set }
}

/// Error: the authority sent a malformed key.
#[derive(Debug, PartialEq, Eq)]
pub struct BrokenKey {
    /// The epoch of the key.
    pub epoch: u64,
}

/// Returns the verifier keys that the kernel's table has to contain at `now` (Unix seconds), by slot. These are the
/// keys of the previous, the current and later epochs. The caller has to clear all other slots.
///
/// # Errors
///
/// Fails if a key is malformed.
pub fn keys(keys: &[api::EpochKey], now: u64, epoch_length: u32) -> Result<Vec<(u32, EpochKey)>, BrokenKey> {
    let first = Epoch::at(now, epoch_length).0.saturating_sub(1);
    let wanted = keys.iter().filter(|key| (first..first + u64::from(KEY_SLOTS)).contains(&key.epoch));
    wanted
        .map(|key| {
            let mut bytes = [0; 32];
            hex::decode_to_slice(&key.key, &mut bytes).map_err(|_| BrokenKey { epoch: key.epoch })?;
            let epoch = Epoch(key.epoch);
            Ok((u32::from(epoch.on_wire()), datapath::verifier::epoch_key(epoch, &VerifierKey::new(bytes))))
        })
        .collect()
}

/// Returns the application server secrets (wire.md §5.6) that derive from `keys`, by slot. Leaves out the secrets for
/// epochs that are not in `kept`.
pub fn secrets(keys: &[api::EpochKey], kept: &[(u32, EpochKey)]) -> Vec<(u32, SecretEntry)> {
    let read = |key: &api::EpochKey| {
        let (slot, _) = kept.iter().find(|(_, kept)| kept.epoch == key.epoch)?;
        let mut bytes = [0; 32];
        hex::decode_to_slice(&key.key, &mut bytes).ok()?;
        Some((*slot, SecretEntry::new(key.epoch, &ServerSecret::of(&VerifierKey::new(bytes))?)))
    };
    keys.iter().filter_map(read).collect()
}

/// Returns the entries that protect every service at every address outside the networks `open`. In these networks, only
/// the services that receivers name are protected.
///
/// # Errors
///
/// Fails if a prefix needs more spans of ports than an entry has room for.
pub fn everything_but(receivers: &[Receiver], open: &[IpNet]) -> Result<Vec<Protected>, TooManySpans> {
    let named = protected::entries(receivers)?;
    let whole = |prefix| Receiver { name: "everything".into(), prefix, services: vec![Service::ALL] };
    let everything = [IpNet::V4(Ipv4Net::default()), IpNet::V6(Ipv6Net::default())].map(whole);
    let mut entries: BTreeMap<IpNet, Services> = BTreeMap::new();
    for entry in protected::entries(&everything)?.iter().chain(&named) {
        let is_open = open.iter().any(|open| open.contains(&entry.prefix));
        let all = protected::services_of(&[Service::ALL]);
        entries.insert(entry.prefix, if is_open { entry.services } else { all });
    }
    for open in open {
        let around = named.iter().filter(|entry| entry.prefix.contains(open));
        let services = around.max_by_key(|entry| entry.prefix.prefix_len()).map(|entry| entry.services);
        entries.insert(open.trunc(), services.unwrap_or(protected::services_of(&[])));
    }
    Ok(entries.into_iter().map(|(prefix, services)| Protected { prefix, services }).collect())
}

/// Converts the entries of the kernel's tables into protected prefixes.
pub fn protected(table4: Vec<(Prefix4, Services)>, table6: Vec<(Prefix6, Services)>) -> Vec<Protected> {
    let four = table4.into_iter().map(|(key, services)| (IpAddr::V4(key.address.into()), key.length, services));
    let six = table6.into_iter().map(|(key, services)| (IpAddr::V6(key.address.into()), key.length, services));
    let entry = |(address, length, services): (IpAddr, u32, Services)| {
        let prefix = IpNet::new(address, u8::try_from(length).ok()?).ok()?;
        Some(Protected { prefix, services })
    };
    let mut all: Vec<_> = four.chain(six).filter_map(entry).collect();
    all.sort_by_key(|entry| entry.prefix);
    all
}

/// Returns the entry that the kernel program finds for an address: the entry with the longest matching prefix.
pub fn services_of(protected: &[Protected], address: IpAddr) -> Option<&Protected> {
    protected.iter().filter(|entry| entry.prefix.contains(&address)).max_by_key(|entry| entry.prefix.prefix_len())
}

/// Reports whether `services` include the port `port` of `protocol`.
pub fn covers(services: &Services, protocol: u8, port: u16) -> bool {
    services.spans.iter().take(services.count as usize).any(|span| {
        let span = Service { protocol: span.protocol, first_port: span.first_port, last_port: span.last_port };
        span.covers(protocol, port)
    })
}

/// Reports whether a destination is protected.
pub fn is_protected(protected: &[Protected], address: IpAddr, protocol: u8, port: u16) -> bool {
    services_of(protected, address).is_some_and(|entry| covers(&entry.services, protocol, port))
}

/// Splits the grants whose flows the verifier has to cut into two lists: first the grants that have ended, then the
/// others. A grant that has ended can't admit packets any more. `kept` returns the expiry that a grant's tokens state.
/// The authority possibly does not know this expiry.
pub fn ended(
    grants: &[api::RevokedGrant],
    kept: impl Fn(u64) -> Option<u32>,
    now: u64,
) -> (Vec<api::RevokedGrant>, Vec<api::RevokedGrant>) {
    let grants = grants.iter().map(|grant| {
        let expires = grant.expires.max(kept(grant.handle).unwrap_or(0));
        api::RevokedGrant { expires, ..*grant }
    });
    grants.partition(|grant| u64::from(grant.expires) + CLOCK_SKEW_MAX < now)
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::RevokedGrant;

    fn key(epoch: u64) -> api::EpochKey {
        api::EpochKey { epoch, key: hex::encode([epoch as u8; 32]) }
    }

    #[test]
    fn keys_of_the_previous_epoch_and_later_are_held() {
        let all: Vec<_> = (990..1030).map(key).collect();
        let kept = keys(&all, 1000 * 3600, 3600).unwrap_or_default();
        let epochs: Vec<_> = kept.iter().map(|(_, key)| key.epoch).collect();
        assert_eq!(epochs, (999..1030).collect::<Vec<_>>());
        assert!(kept.iter().all(|(slot, key)| *slot == key.epoch as u32 & 0xff && key.aes[0] == key.epoch as u8));
    }

    #[test]
    fn secrets_are_those_of_the_keys_that_are_held() {
        let all: Vec<_> = (990..1003).map(key).collect();
        let kept = keys(&all, 1000 * 3600, 3600).unwrap_or_default();
        let secrets = secrets(&all, &kept);
        assert_eq!(secrets.iter().map(|(_, secret)| secret.epoch).collect::<Vec<_>>(), [999, 1000, 1001, 1002]);
        assert!(secrets.iter().all(|(slot, secret)| *slot == secret.epoch as u32 & 0xff));
        let of = ServerSecret::of(&VerifierKey::new([(1000 % 256) as u8; 32])).expect("a length that fits");
        assert_eq!(secrets[1].1.block, SecretEntry::new(1000, &of).block);
    }

    #[test]
    fn a_broken_key_is_named() {
        let broken = api::EpochKey { epoch: 1000, key: "00".into() };
        assert_eq!(keys(&[broken], 1000 * 3600, 3600).err(), Some(BrokenKey { epoch: 1000 }));
    }

    #[test]
    fn keys_last_until_the_first_gap() {
        let until = |epochs: &[u64]| keys_until(epochs.iter().copied(), 1000 * 60, 60);
        assert_eq!(until(&[999, 1000, 1001, 0, 1003]), Some(1002 * 60));
        assert_eq!(until(&[1001, 1000, 999]), Some(1002 * 60));
        assert_eq!(until(&[999, 1001]), None);
        assert_eq!(until(&[]), None);
    }

    #[test]
    fn the_longest_prefix_decides() {
        let service = |port| vec![Service { protocol: 6, first_port: port, last_port: port }];
        let receiver = |prefix: &str, port| Receiver {
            name: prefix.into(),
            prefix: prefix.parse().expect("a prefix"),
            services: service(port),
        };
        let entries = engine::model::protected::entries(&[receiver("192.0.2.0/24", 22), receiver("192.0.2.7/32", 443)]);
        let entries = entries.expect("fits");
        let is = |address: &str, port| is_protected(&entries, address.parse().expect("an address"), 6, port);
        assert!(is("192.0.2.7", 443) && is("192.0.2.7", 22) && is("192.0.2.8", 22));
        assert!(!is("192.0.2.8", 443) && !is("192.0.3.8", 22));
        assert!(!is_protected(&entries, "192.0.2.7".parse().expect("an address"), 17, 22));
    }

    #[test]
    fn everything_is_protected_but_what_is_open() {
        let receiver = |prefix: &str| Receiver {
            name: prefix.into(),
            prefix: prefix.parse().expect("a prefix"),
            services: vec![Service { protocol: 6, first_port: 22, last_port: 22 }],
        };
        let open = ["192.0.2.0/24", "2001:db8::1/128"].map(|text| text.parse().expect("a prefix"));
        let receivers = ["192.0.2.7/32", "198.51.100.0/24", "2001:db8::/64"].map(receiver);
        let entries = everything_but(&receivers, &open).expect("fits");
        let is = |address: &str, port| is_protected(&entries, address.parse().expect("an address"), 6, port);
        assert!(is("203.0.113.1", 80) && is("2001:db8:9::1", 80), "named by nobody");
        assert!(is("198.51.100.1", 22) && is("198.51.100.1", 80), "all of a receiver");
        assert!(!is("192.0.2.1", 22) && !is("192.0.2.7", 80), "open");
        assert!(is("192.0.2.7", 22) && is("2001:db8::1", 22), "open, but named");
        assert!(!is("2001:db8::1", 80) && is("2001:db8::2", 80));
    }

    #[test]
    fn a_grant_has_ended_when_the_authority_and_its_tokens_say_so() {
        let grant = |handle, expires| RevokedGrant { handle, expires, holder: 0 };
        let kept = |handle| (handle == 3).then_some(250);
        let all = [grant(1, 100), grant(2, 180), grant(3, 0), grant(4, 0)];
        assert_eq!(ended(&all, kept, 200), (vec![grant(1, 100), grant(4, 0)], vec![grant(2, 180), grant(3, 250)]));
    }
}
