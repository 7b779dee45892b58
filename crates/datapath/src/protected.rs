//! The protected prefixes in the look-up tables of the kernel programs, and the sets of address classes (see
//! [`ClassSet`]) for which the programs need no look-up.

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
    /// The protected IPv4 prefixes.
    pub four: Table<Prefix4, Services>,
    /// The protected IPv6 prefixes.
    pub six: Table<Prefix6, Services>,
    open4: Table<u32, ClassSet>,
    open6_networks: Table<u32, ClassSet>,
    open6_addresses: Table<u32, ClassSet>,
}

/// Maximum number of classes that one prefix may cover; a prefix that covers more leaves no class open.
const CLASSES_MAX: u32 = 1 << 14;
/// Maximum number of classes that all prefixes together may cover. If they cover more, hardly any class would be open
/// and the search for it would take long, so no class counts as open.
const WORK_MAX: u64 = 1 << 20;

impl Protected {
    pub(crate) fn new(object: &Loaded) -> Result<Self> {
        Ok(Self {
            four: object.table("protected4")?,
            six: object.table("protected6")?,
            open4: object.table("open4")?,
            open6_networks: object.table("open6_networks")?,
            open6_addresses: object.table("open6_addresses")?,
        })
    }

    /// Opens the maps that a process has pinned. This process may still run, or may have ended.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses access to a map.
    pub fn pinned(pins: &Pins) -> Result<Self> {
        let map = |name: &str| {
            MapHandle::from_pinned_path(pins.map(name)).with_context(|| format!("cannot open the pinned map {name}"))
        };
        Ok(Self {
            four: Table::new(map("protected4")?)?,
            six: Table::new(map("protected6")?)?,
            open4: Table::new(map("open4")?)?,
            open6_networks: Table::new(map("open6_networks")?)?,
            open6_addresses: Table::new(map("open6_addresses")?)?,
        })
    }

    /// Returns the protected services at an address; `None` if there are none.
    pub fn services_of(&self, address: IpAddr) -> Option<Services> {
        match address {
            IpAddr::V4(address) => self.four.get(&Prefix4 { length: 32, address: address.octets() }).ok()?,
            IpAddr::V6(address) => self.six.get(&Prefix6 { length: 128, address: address.octets() }).ok()?,
        }
    }

    /// Makes exactly these prefixes (address, length, services) the protected prefixes. Adds new prefixes before it
    /// removes old ones, so that no prefix is unprotected meanwhile. If one prefix can't be written, still updates the
    /// others.
    pub(crate) fn replace(&self, entries: &[(IpAddr, u8, Services)]) -> Result<()> {
        // While prefixes change, no class is open, so the programs look up every packet.
        for open in [&self.open4, &self.open6_networks, &self.open6_addresses] {
            open.set(&0, &ClassSet::NOTHING)?;
        }
        let (four, six) = by_family(entries);
        let outcome = renew(&self.four, &four).and(renew(&self.six, &six));
        let open = open_sets(entries);
        self.open4.set(&0, &open.four)?;
        self.open6_networks.set(&0, &open.six_networks)?;
        self.open6_addresses.set(&0, &open.six_addresses)?;
        outcome
    }
}

/// An agent's maps of the prefixes whose packets travel only in a tunnel.
pub(crate) struct Sealed {
    four: Table<Prefix4, Services>,
    six: Table<Prefix6, Services>,
}

impl Sealed {
    pub(crate) fn new(object: &Loaded) -> Result<Self> {
        Ok(Self { four: object.table("sealed4")?, six: object.table("sealed6")? })
    }

    /// Returns the sealed prefixes.
    pub(crate) fn entries(&self) -> Vec<(IpAddr, u8, Services)> {
        let four = self.four.entries().into_iter();
        let four = four.map(|(key, services)| (IpAddr::from(key.address), key.length as u8, services));
        let six = self.six.entries().into_iter();
        let six = six.map(|(key, services)| (IpAddr::from(key.address), key.length as u8, services));
        four.chain(six).collect()
    }

    /// Makes exactly these prefixes (address, length, services) the sealed prefixes. Adds new prefixes before it
    /// removes old ones.
    pub(crate) fn replace(&self, entries: &[(IpAddr, u8, Services)]) -> Result<()> {
        let (four, six) = by_family(entries);
        renew(&self.four, &four).and(renew(&self.six, &six))
    }
}

/// Splits entries by address family.
fn by_family(entries: &[(IpAddr, u8, Services)]) -> (HashMap<Prefix4, &Services>, HashMap<Prefix6, &Services>) {
    let (mut four, mut six) = (HashMap::new(), HashMap::new());
    for (address, length, services) in entries {
        let length = u32::from(*length);
        match address {
            IpAddr::V4(address) => drop(four.insert(Prefix4 { length, address: address.octets() }, services)),
            IpAddr::V6(address) => drop(six.insert(Prefix6 { length, address: address.octets() }, services)),
        }
    }
    (four, six)
}

/// Writes the entries that differ, removes unwanted entries, and tries again to write those that did not fit. Returns
/// the first error that remains.
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
        Some(error) => Err(error.context(format!("cannot change {count} destination prefixes in the kernel's table"))),
        None => Ok(()),
    }
}

/// The open classes of addresses, to which no protected prefix extends. An IPv6 address needs no look-up if both of its
/// classes are open.
struct OpenSets {
    four: ClassSet,
    six_networks: ClassSet,
    six_addresses: ClassSet,
}

fn open_sets(entries: &[(IpAddr, u8, Services)]) -> OpenSets {
    let (four, six): (Vec<_>, Vec<_>) =
        entries.iter().map(|(address, length, _)| (*address, *length)).partition(|(address, _)| address.is_ipv4());
    let (single, wide): (Vec<_>, Vec<_>) = six.into_iter().partition(|(address, length)| {
        ClassSet::one_class(*address).is_none() && 128 - u32::from(*length) <= CLASSES_MAX.ilog2()
    });
    OpenSets {
        four: open_set(&four, 32, ClassSet::class_of_destination),
        six_networks: open_set(&wide, 64, ClassSet::class_of_destination),
        six_addresses: open_set(&single, 128, |address| match address {
            IpAddr::V4(_) => ClassSet::class_of_destination(address),
            IpAddr::V6(address) => ClassSet::class_of_address6(address),
        }),
    }
}

/// Returns the classes to which none of these prefixes extends. All prefixes are of one family, in which the first
/// `telling` bits of an address determine its class.
fn open_set(prefixes: &[(IpAddr, u8)], telling: u32, class_of: impl Fn(IpAddr) -> u16) -> ClassSet {
    let mut set = ClassSet::EVERYTHING;
    let mut work = 0;
    for (address, length) in prefixes {
        let telling = match ClassSet::one_class(*address) {
            Some(range) if *length >= range => 8,
            _ => telling,
        };
        let free_bits = telling - u32::from(*length).min(telling);
        let classes = 1u64 << free_bits.min(63);
        work += classes.min(WORK_MAX);
        if classes > u64::from(CLASSES_MAX) || work > WORK_MAX {
            return ClassSet::NOTHING;
        }
        for index in 0..1u32 << free_bits {
            set.remove(class_of(match address {
                IpAddr::V4(a) => IpAddr::V4(Ipv4Addr::from_bits(a.to_bits() | index << (32 - telling))),
                IpAddr::V6(a) => IpAddr::V6(Ipv6Addr::from_bits(a.to_bits() | u128::from(index) << (128 - telling))),
            }));
        }
    }
    set
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Services = Services {
        count: 0,
        spans: [wire::map::Service { protocol: 0, foreign: 0, first_port: 0, last_port: 0 }; wire::map::SERVICES_MAX],
    };

    fn is_open(open: &OpenSets, address: &str) -> bool {
        let address = address.parse().expect("an address");
        let class = ClassSet::class_of_destination(address);
        match address {
            IpAddr::V4(_) => open.four.contains(class),
            IpAddr::V6(six) => {
                open.six_networks.contains(class) && open.six_addresses.contains(ClassSet::class_of_address6(six))
            }
        }
    }

    fn open_beside(prefixes: &[(&str, u8)]) -> OpenSets {
        let entries: Vec<_> =
            prefixes.iter().map(|(text, length)| (text.parse().expect("an address"), *length, NONE)).collect();
        open_sets(&entries)
    }

    #[test]
    fn no_address_of_a_protected_prefix_is_open() {
        let open = open_beside(&[
            ("203.0.113.128", 25),
            ("192.0.2.1", 32),
            ("2001:db8::", 62),
            ("2001:db8:1::7", 128),
            ("2001:db8:1::100", 120),
        ]);
        for host in 128..=255 {
            assert!(!is_open(&open, &format!("203.0.113.{host}")));
        }
        assert!(!is_open(&open, "192.0.2.1"));
        assert!(is_open(&open, "198.51.100.1"));
        for net in 0..4 {
            assert!(!is_open(&open, &format!("2001:db8:0:{net}::99")));
        }
        assert!(!is_open(&open, "2001:db8:1::7"));
        for host in 0..=255 {
            assert!(!is_open(&open, &format!("2001:db8:1::1{host:02x}")));
        }
        assert!(is_open(&open, "2001:db8:1::8"), "the neighbour of a protected address");
        assert!(is_open(&open, "2001:db8:2::1"));
    }

    #[test]
    fn a_prefix_between_a_network_and_a_short_range_counts_as_its_network() {
        let open = open_beside(&[("2001:db8::", 96)]);
        assert!(!is_open(&open, "2001:db8::1") && !is_open(&open, "2001:db8::8:0:0:1"));
        assert!(is_open(&open, "2001:db8:1::1"));
    }

    #[test]
    fn a_wide_prefix_makes_nothing_open() {
        let open = open_beside(&[("0.0.0.0", 0), ("::", 0)]);
        assert!(open.four == ClassSet::NOTHING && open.six_networks == ClassSet::NOTHING);
    }

    #[test]
    fn what_a_host_protects_in_wide_prefixes_leaves_the_rest_open() {
        let open = open_beside(&[
            ("127.0.0.0", 8),
            ("169.254.0.0", 16),
            ("224.0.0.0", 4),
            ("255.255.255.255", 32),
            ("fe80::", 10),
            ("ff00::", 8),
        ]);
        for address in ["127.0.0.1", "169.254.169.254", "224.0.0.251", "239.255.255.250", "255.255.255.255"] {
            assert!(!is_open(&open, address), "{address}");
        }
        assert!(!is_open(&open, "fe80::1") && !is_open(&open, "febf::1") && !is_open(&open, "ff02::fb"));
        assert!(open.four.len() >= (1 << 16) - 19 && open.six_networks.len() == (1 << 16) - 2);
        assert!(open.six_addresses == ClassSet::EVERYTHING);
        // A prefix wider than the link-local range also covers other classes.
        assert!(open_beside(&[("169.254.0.0", 15)]).four == ClassSet::NOTHING);
    }
}
