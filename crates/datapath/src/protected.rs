//! Protected prefixes in the kernel programs' look-up tables, and the classes of addresses that need no look-up.

use crate::attachments::Pins;
use crate::object::Loaded;
use crate::table::Table;
use anyhow::{Context, Result};
use libbpf_rs::MapHandle;
use std::collections::HashMap;
use std::hash::Hash;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use wire::map::{ClassSet, Prefix4, Prefix6, Services};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The maps of protected prefixes.
pub struct Protected {
    /// IPv4 prefixes.
    pub four: Table<Prefix4, Services>,
    /// IPv6 prefixes.
    pub six: Table<Prefix6, Services>,
    open4: Table<u32, ClassSet>,
    open6: Table<u32, ClassSet>,
}

/// A prefix that covers more classes of addresses than this leaves no class open.
const CLASSES_MAX: u32 = 1 << 14;
/// Limit on the classes that all prefixes cover together: beyond it, hardly a class would stay open, and finding those
/// takes time, so none does.
const WORK_MAX: u64 = 1 << 20;

impl Protected {
    pub(crate) fn new(object: &Loaded) -> Result<Self> {
        Ok(Self {
            four: object.table("protected4")?,
            six: object.table("protected6")?,
            open4: object.table("open4")?,
            open6: object.table("open6")?,
        })
    }

    /// Opens the maps that an earlier process, or another one, has pinned.
    pub fn pinned(pins: &Pins) -> Result<Self> {
        let map = |name: &str| {
            MapHandle::from_pinned_path(pins.map(name)).with_context(|| format!("cannot open the pinned map {name}"))
        };
        Ok(Self {
            four: Table::new(map("protected4")?)?,
            six: Table::new(map("protected6")?)?,
            open4: Table::new(map("open4")?)?,
            open6: Table::new(map("open6")?)?,
        })
    }

    /// Returns the services that are protected at an address.
    pub fn services_of(&self, address: IpAddr) -> Option<Services> {
        match address {
            IpAddr::V4(address) => self.four.get(&Prefix4 { length: 32, address: address.octets() }).ok()?,
            IpAddr::V6(address) => self.six.get(&Prefix6 { length: 128, address: address.octets() }).ok()?,
        }
    }

    /// Makes exactly these prefixes (address, length, services) the protected ones. New prefixes are added before old
    /// ones are removed, so that no prefix is unprotected in between. A prefix that can't be written does not keep the
    /// others from being updated.
    pub(crate) fn replace(&self, entries: &[(IpAddr, u8, Services)]) -> Result<()> {
        // While prefixes change, every packet is looked up.
        self.open4.set(&0, &ClassSet::NOTHING)?;
        self.open6.set(&0, &ClassSet::NOTHING)?;
        let (mut four, mut six) = (HashMap::new(), HashMap::new());
        for (address, length, services) in entries {
            let length = u32::from(*length);
            match address {
                IpAddr::V4(address) => drop(four.insert(Prefix4 { length, address: address.octets() }, services)),
                IpAddr::V6(address) => drop(six.insert(Prefix6 { length, address: address.octets() }, services)),
            }
        }
        let outcome = renew(&self.four, &four).and(renew(&self.six, &six));
        let (open4, open6) = open_sets(entries);
        self.open4.set(&0, &open4)?;
        self.open6.set(&0, &open6)?;
        outcome
    }
}

/// Writes the entries that differ, then removes unwanted ones. Entries that did not fit are tried once more after that.
/// Returns the first of the remaining errors.
fn renew<K>(table: &Table<K, Services>, wanted: &HashMap<K, &Services>) -> Result<()>
where
    K: Copy + Eq + Hash + IntoBytes + FromBytes + Immutable,
{
    let present: HashMap<K, Services> = table.entries().into_iter().collect();
    let missing: Vec<_> = wanted.iter().filter(|(key, services)| present.get(key) != Some(services)).collect();
    let failed: Vec<_> = missing.into_iter().filter(|(key, services)| table.set(key, services).is_err()).collect();
    let gone = present.keys().filter(|key| !wanted.contains_key(key)).map(|key| table.remove(key));
    let outcomes: Vec<_> = gone.collect();
    let retried = failed.into_iter().map(|(key, services)| table.set(key, services));
    let errors: Vec<_> = outcomes.into_iter().chain(retried).filter_map(Result::err).collect();
    let count = errors.len();
    match errors.into_iter().next() {
        Some(error) => Err(error.context(format!("{count} prefixes could not be changed"))),
        None => Ok(()),
    }
}

/// Returns the classes of addresses that none of these prefixes touches.
fn open_sets(entries: &[(IpAddr, u8, Services)]) -> (ClassSet, ClassSet) {
    let (mut open4, mut open6) = (ClassSet::EVERYTHING, ClassSet::EVERYTHING);
    let (mut work4, mut work6) = (0, 0);
    for (address, length, _) in entries {
        let (set, work) = if address.is_ipv4() { (&mut open4, &mut work4) } else { (&mut open6, &mut work6) };
        // Number of leading bits that distinguish classes.
        let telling = match (ClassSet::one_class(*address), address) {
            (Some(range), _) if *length >= range => 8u32,
            (_, IpAddr::V4(_)) => 32,
            (_, IpAddr::V6(_)) => 64,
        };
        let free_bits = telling - u32::from(*length).min(telling);
        let classes = 1u64 << free_bits.min(63);
        *work += classes.min(WORK_MAX);
        if classes > u64::from(CLASSES_MAX) || *work > WORK_MAX {
            *set = ClassSet::NOTHING;
            continue;
        }
        for index in 0..1u32 << free_bits {
            let member = match address {
                IpAddr::V4(a) => IpAddr::V4(Ipv4Addr::from_bits(a.to_bits() | index << (32 - telling))),
                IpAddr::V6(a) => IpAddr::V6(Ipv6Addr::from_bits(a.to_bits() | u128::from(index) << (128 - telling))),
            };
            set.remove(ClassSet::class_of_destination(member));
        }
    }
    (open4, open6)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Services = Services {
        count: 0,
        spans: [wire::map::Service { protocol: 0, reserved: 0, first_port: 0, last_port: 0 }; wire::map::SERVICES_MAX],
    };

    fn is_open(set: &ClassSet, address: &str) -> bool {
        set.contains(ClassSet::class_of_destination(address.parse().expect("an address")))
    }

    #[test]
    fn no_address_of_a_protected_prefix_is_open() {
        let prefix = |text: &str, length| (text.parse().expect("an address"), length, NONE);
        let (open4, open6) = open_sets(&[
            prefix("203.0.113.128", 25),
            prefix("192.0.2.1", 32),
            prefix("2001:db8::", 62),
            prefix("2001:db8:1::7", 128),
        ]);
        for host in 128..=255 {
            assert!(!is_open(&open4, &format!("203.0.113.{host}")));
        }
        assert!(!is_open(&open4, "192.0.2.1"));
        assert!(is_open(&open4, "198.51.100.1"));
        for net in 0..4 {
            assert!(!is_open(&open6, &format!("2001:db8:0:{net}::99")));
        }
        assert!(!is_open(&open6, "2001:db8:1::8"), "the second half does not count");
        assert!(is_open(&open6, "2001:db8:2::1"));
    }

    #[test]
    fn a_wide_prefix_makes_nothing_open() {
        let (open4, open6) =
            open_sets(&[(Ipv4Addr::UNSPECIFIED.into(), 0, NONE), (Ipv6Addr::UNSPECIFIED.into(), 0, NONE)]);
        assert!(open4 == ClassSet::NOTHING && open6 == ClassSet::NOTHING);
    }

    #[test]
    fn what_a_host_protects_in_wide_prefixes_leaves_the_rest_open() {
        let prefix = |text: &str, length| (text.parse().expect("an address"), length, NONE);
        let (open4, open6) = open_sets(&[
            prefix("127.0.0.0", 8),
            prefix("169.254.0.0", 16),
            prefix("224.0.0.0", 4),
            prefix("255.255.255.255", 32),
            prefix("fe80::", 10),
            prefix("ff00::", 8),
        ]);
        for address in ["127.0.0.1", "169.254.169.254", "224.0.0.251", "239.255.255.250", "255.255.255.255"] {
            assert!(!is_open(&open4, address), "{address}");
        }
        assert!(!is_open(&open6, "fe80::1") && !is_open(&open6, "febf::1") && !is_open(&open6, "ff02::fb"));
        assert!(open4.len() >= (1 << 16) - 19 && open6.len() == (1 << 16) - 2);
        // A prefix wider than the link-local range also covers other classes.
        assert!(open_sets(&[prefix("169.254.0.0", 15)]).0 == ClassSet::NOTHING);
    }
}
