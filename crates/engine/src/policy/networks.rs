//! Virtual networks as `networks.toml` describes them: their numbers, the places of their addresses, and the verifiers
//! on the path from one endpoint to another (wire.md §8.1). This module does not decide which senders are allowed: the
//! policy does.

use crate::document::{Faults, Fields, Reader, hint, texts};
use crate::model::Place;
use crate::model::prefixes::Prefixes;
use crate::policy::{Who, name_is_valid};
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr};
use std::ops::Range;
use toml::Spanned;
use wire::ask::PATH_MAX;
use wire::grant::mask;
use wire::key::VERIFIER_ID_MAX;
use wire::segment::PROOFS_MAX;
use wire::{InterfaceId, Suite, Vni};

/// Maximum length of `networks.toml`, in bytes.
pub const MOST_TEXT: usize = 16 << 20;

/// The virtual networks, places and paths.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Networks {
    authority: Option<IpAddr>,
    vnis: BTreeMap<String, Vni>,
    names: BTreeMap<Vni, String>,
    /// Places of each network's addresses.
    places: BTreeMap<Vni, Prefixes<Located>>,
    /// Paths to each receiving endpoint, by the sending endpoint's address: the first one, then its alternatives.
    paths: BTreeMap<IpAddr, Prefixes<Vec<Path>>>,
}

/// The place of an address, and the accounts that are allowed to request segments with this address as the sender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Located {
    /// Endpoint and interface of the address.
    pub place: Place,
    /// The accounts that are allowed to request segments with this address as the sender; `None` if every logged-in
    /// person is.
    pub asked_by: Option<Vec<Who>>,
}

/// A path to a receiving endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    /// Ids of the verifiers, in the order in which packets meet them. The last verifier stands directly before the
    /// receiving endpoint.
    pub verifiers: Vec<String>,
    /// Suite of the proofs that the verifiers check.
    pub suite: Suite,
    /// If the path is fixed, one address for each verifier, in order; the last address is that of the receiving
    /// endpoint. Empty if the path is not fixed.
    pub hops: Vec<Ipv6Addr>,
}

impl Networks {
    /// Parses the text of `networks.toml`.
    ///
    /// # Errors
    ///
    /// Returns the faults of the text, at most 100.
    pub fn parse(text: &str) -> Result<Self, Faults> {
        if text.len() > MOST_TEXT {
            return Err(Faults::whole(format!("the text is {} bytes long; the maximum is {MOST_TEXT}", text.len())));
        }
        Reader::read(text, &["authority", "networks", "places", "paths"], |reader, root| {
            let mut networks = Self::default();
            networks.read_networks(reader, root);
            networks.authority = root.text(reader, "authority").and_then(|text| address(reader, &text));
            if networks.authority.is_none() && !networks.vnis.is_empty() {
                root.required(reader, "authority");
            }
            networks.read_places(reader, root);
            networks.read_paths(reader, root);
            Some(networks)
        })
    }

    /// Returns the address that identifies the authority in segments; `None` is possible only if there is no network.
    pub fn authority(&self) -> Option<IpAddr> {
        self.authority
    }

    /// Returns the number of a network.
    pub fn vni(&self, name: &str) -> Option<Vni> {
        self.vnis.get(name).copied()
    }

    /// Returns the name of the network with the number `vni`.
    pub fn name(&self, vni: Vni) -> Option<&str> {
        self.names.get(&vni).map(String::as_str)
    }

    /// Returns the place of an address in a network.
    pub fn place(&self, vni: Vni, address: IpAddr) -> Option<Place> {
        self.located(vni, address).map(|located| located.place)
    }

    /// Returns the place of an address in a network, and the accounts that are allowed to request segments with this
    /// address as the sender.
    pub fn located(&self, vni: Vni, address: IpAddr) -> Option<&Located> {
        self.places.get(&vni)?.around(address.into()).next()
    }

    /// Returns the first path from one endpoint to another.
    pub fn path(&self, sending: IpAddr, receiving: IpAddr) -> Option<&Path> {
        self.paths(sending, receiving).first()
    }

    /// Returns the paths from one endpoint to another: the first one, then its alternatives. A path's position is its
    /// number (wire.md §8.16). The result is empty if there is no path.
    pub fn paths(&self, sending: IpAddr, receiving: IpAddr) -> &[Path] {
        let paths = self.paths.get(&receiving).and_then(|paths| paths.around(sending.into()).next());
        paths.map(Vec::as_slice).unwrap_or_default()
    }

    /// Returns the receiving endpoints of those paths on which `verifier` is the last verifier.
    pub fn endpoints_of(&self, verifier: &str) -> BTreeSet<IpAddr> {
        let is_last = |path: &Path| path.verifiers.last().is_some_and(|last| last == verifier);
        let of = |(to, paths): (&IpAddr, &Prefixes<Vec<Path>>)| paths.values().flatten().any(is_last).then_some(*to);
        self.paths.iter().filter_map(of).collect()
    }

    /// Returns the prefixes whose addresses are behind these endpoints, each with its place. A prefix with `None` is an
    /// exception. It lies inside one of the other prefixes, but its addresses are behind an endpoint that is not in
    /// `endpoints`.
    pub fn places_behind(&self, endpoints: &BTreeSet<IpAddr>) -> Vec<(Vni, IpNet, Option<&Located>)> {
        let mut found = Vec::new();
        for (vni, places) in &self.places {
            // Prefixes are sorted so that a prefix comes before the longer ones in it.
            let mut outermost: Option<IpNet> = None;
            for (prefix, located) in places.iter() {
                let is_own = endpoints.contains(&located.place.endpoint);
                let is_within = outermost.is_some_and(|outer| outer.contains(&prefix));
                if is_own && !is_within {
                    outermost = Some(prefix);
                }
                if is_own || is_within {
                    found.push((*vni, prefix, is_own.then_some(located)));
                }
            }
        }
        found
    }

    /// Returns the numbers of networks, places and paths, each with its noun in the singular.
    pub fn counts(&self) -> [(usize, &'static str); 3] {
        let places = self.places.values().map(|places| places.values().count()).sum();
        let paths = self.paths.values().flat_map(Prefixes::values).map(Vec::len).sum();
        [(self.vnis.len(), "network"), (places, "place"), (paths, "path")]
    }

    /// Returns the groups whose members are allowed to request segments for at least one sender.
    pub fn groups(&self) -> BTreeSet<&str> {
        let places = self.places.values().flat_map(Prefixes::values);
        let named = places.flat_map(|located| located.asked_by.iter().flatten()).filter_map(|who| match who {
            Who::Group(group) => Some(group.as_str()),
            _ => None,
        });
        named.collect()
    }

    /// Returns the ids of the verifiers that are on at least one path.
    pub fn verifiers(&self) -> BTreeSet<&str> {
        let paths = self.paths.values().flat_map(Prefixes::values).flatten();
        paths.flat_map(|path| &path.verifiers).map(String::as_str).collect()
    }

    fn read_networks(&mut self, reader: &mut Reader<'_>, root: &Fields<'_, '_>) {
        for fields in root.tables(reader, "networks", "a network", &["name", "vni"]) {
            let name = fields.required_text(reader, "name");
            fields.required(reader, "vni");
            let vni = Vni::new(fields.number(reader, "vni", 0, 0, (1 << 24) - 1));
            let (Some(name), Some(vni)) = (name, vni) else { continue };
            if !name_is_valid(name.get_ref()) {
                reader.fault(
                    name.span(),
                    format!(
                        "`{}` is not a valid name: write 1 to 64 letters, digits, `.`, `_`, `@`, `+` or `-`, the first \
                         of them a letter or digit",
                        name.get_ref().escape_debug()
                    ),
                );
            }
            if self.vnis.insert(name.get_ref().to_string(), vni).is_some() {
                reader.fault(name.span(), format!("there is already a network `{}`", name.get_ref().escape_debug()));
            } else if let Some(other) = self.names.insert(vni, name.get_ref().to_string()) {
                reader.fault(fields.span(), format!("network `{}` has the same number", other.escape_debug()));
            }
        }
    }

    fn read_places(&mut self, reader: &mut Reader<'_>, root: &Fields<'_, '_>) {
        let keys = ["network", "address", "endpoint", "interface", "asked_by"];
        for fields in root.tables(reader, "places", "a place", &keys) {
            if reader.is_full() {
                return;
            }
            let network = fields.required_text(reader, "network").and_then(|name| self.known(reader, &name));
            let addresses = fields.required_texts(reader, "address");
            let endpoint = fields.required_text(reader, "endpoint").and_then(|text| address(reader, &text));
            fields.required(reader, "interface");
            let interface = fields.number(reader, "interface", 0, 0, u16::MAX.into());
            let asked_by = fields.value("asked_by").map(|_| read_askers(reader, &fields));
            for text in addresses {
                let Some(prefix) = prefix(reader, &text) else { continue };
                let (Some(vni), Some(endpoint)) = (network, endpoint) else { continue };
                let place = Place { endpoint, interface: InterfaceId(interface as u16) };
                if !self.places.entry(vni).or_default().insert(&prefix, Located { place, asked_by: asked_by.clone() }) {
                    reader
                        .fault(text.span(), format!("{prefix} of this network already has an endpoint and interface"));
                }
            }
        }
    }

    fn read_paths(&mut self, reader: &mut Reader<'_>, root: &Fields<'_, '_>) {
        let keys = ["to", "from", "verifiers", "suite", "fixed", "hops", "alternatives"];
        for fields in root.tables(reader, "paths", "a path", &keys) {
            if reader.is_full() {
                return;
            }
            let to = fields.required_texts(reader, "to");
            let to: Vec<_> = to.iter().filter_map(|text| Some((address(reader, text)?, text.span()))).collect();
            let from = fields.value("from").map(|_| fields.required_texts(reader, "from"));
            let from = from.map(|from| from.iter().filter_map(|text| prefix(reader, text)).collect::<Vec<_>>());
            let ways = read_ways(reader, &fields);
            let suites = [Suite::AesCmac, Suite::Siphash];
            let suite = fields.text(reader, "suite").and_then(|word| {
                let suite = suites.into_iter().find(|suite| suite.name() == *word.get_ref());
                if suite.is_none() {
                    let names = suites.map(Suite::name).join(" or ");
                    reader.fault(word.span(), format!("`suite` of a path must be {names}"));
                }
                suite
            });
            let suite = suite.unwrap_or(Suite::AesCmac);
            for (to, span) in to {
                let path = |Way { verifiers, hops }: &Way| {
                    let hops = hops.as_ref().and_then(|hops| lead(reader, hops, to, &span)).unwrap_or_default();
                    Path { verifiers: verifiers.clone(), suite, hops }
                };
                let paths: Vec<_> = ways.iter().map(path).collect();
                let everywhere = IpNet::new(mask(to, 0), 0).into_iter().collect();
                for from in from.clone().unwrap_or(everywhere) {
                    if from.addr().is_ipv4() != to.is_ipv4() {
                        reader.fault(
                            span.clone(),
                            format!("a path must not connect two address families: {from} to {to}"),
                        );
                    } else if !self.paths.entry(to).or_default().insert(&from, paths.clone()) {
                        let way_out = "write other paths as [[paths.alternatives]] below it";
                        reader.fault(span.clone(), format!("there is a path from {from} to {to} already: {way_out}"));
                    }
                }
            }
        }
    }

    fn known(&self, reader: &mut Reader<'_>, name: &Spanned<&str>) -> Option<Vni> {
        let found = self.vni(name.get_ref());
        if found.is_none() {
            let hint = hint(name.get_ref(), self.vnis.keys().map(String::as_str));
            reader.fault(name.span(), format!("no network `{}`{hint}", name.get_ref().escape_debug()));
        }
        found
    }
}

fn read_askers(reader: &mut Reader<'_>, fields: &Fields<'_, '_>) -> Vec<Who> {
    let words = fields.required_texts(reader, "asked_by");
    let who = words.iter().filter_map(|word| {
        let who = word.get_ref().split_once(':').filter(|(_, name)| name_is_valid(name));
        let who = who.and_then(|(kind, name)| match kind {
            "person" => Some(Who::Person(name.to_string())),
            "group" => Some(Who::Group(name.to_string())),
            "tag" => Some(Who::Tag(name.to_string())),
            _ => None,
        });
        if who.is_none() {
            let kinds = "\"person:NAME\", \"group:NAME\", \"tag:NAME\"";
            reader.fault(word.span(), format!("`{}` is not one of {kinds}", word.get_ref().escape_debug()));
        }
        who
    });
    who.collect()
}

fn read_verifiers(reader: &mut Reader<'_>, fields: &Fields<'_, '_>) -> Vec<String> {
    let names = fields.required_texts(reader, "verifiers");
    let most = usize::from(PROOFS_MAX);
    if let Some(fault) = [names.is_empty(), names.len() > most].iter().position(|wrong| *wrong) {
        let span: Range<usize> = fields.span();
        let why = ["with none, nothing would check a proof", "an option has no room for more proofs"][fault];
        reader.fault(span, format!("a path must have 1 to {most} verifiers: {why}"));
    }
    let mut seen = BTreeSet::new();
    for name in &names {
        if !name_is_valid(name.get_ref()) || name.get_ref().len() > VERIFIER_ID_MAX {
            reader.fault(
                name.span(),
                format!(
                    "`{}` is not a valid verifier id: write 1 to 64 letters, digits, `.`, `_`, `@`, `+` or `-`, the \
                     first of them a letter or digit",
                    name.get_ref().escape_debug()
                ),
            );
        } else if !seen.insert(*name.get_ref()) {
            reader.fault(name.span(), format!("`{}` is on this path already", name.get_ref()));
        }
    }
    names.iter().map(|name| name.get_ref().to_string()).collect()
}

/// The way of a path or of an alternative: its verifiers, and the hops of a fixed path except the last.
#[derive(PartialEq)]
struct Way {
    verifiers: Vec<String>,
    hops: Option<Vec<Ipv6Addr>>,
}

/// Returns the way of a path, followed by the ways of its alternatives.
fn read_ways(reader: &mut Reader<'_>, fields: &Fields<'_, '_>) -> Vec<Way> {
    let is_fixed = fields.yes(reader, "fixed");
    let way_out = "write each alternative as [[paths.alternatives]] below its path, with `verifiers` of its own, and \
                   with `hops` if the path is fixed";
    let alternatives =
        fields.inner_tables(reader, "alternatives", "an alternative path", &["verifiers", "hops"], way_out);
    if alternatives.len() > usize::from(PATH_MAX) {
        let text = format!("a path can have up to {PATH_MAX} alternatives: found {}", alternatives.len());
        reader.fault(fields.span(), text);
    }
    let mut ways = vec![read_way(reader, fields, is_fixed)];
    for fields in &alternatives {
        let way = read_way(reader, fields, is_fixed);
        if ways.contains(&way) {
            let text = "this alternative repeats the path itself, or another alternative: give it other verifiers";
            reader.fault(fields.span(), text);
        }
        ways.push(way);
    }
    ways
}

fn read_way(reader: &mut Reader<'_>, fields: &Fields<'_, '_>, is_fixed: bool) -> Way {
    let verifiers = read_verifiers(reader, fields);
    let hops = read_hops(reader, fields, verifiers.len(), is_fixed);
    Way { verifiers, hops }
}

/// Returns the hops of a fixed path except the last, which is the receiving endpoint.
fn read_hops(
    reader: &mut Reader<'_>,
    fields: &Fields<'_, '_>,
    verifiers: usize,
    is_fixed: bool,
) -> Option<Vec<Ipv6Addr>> {
    let value = fields.value("hops");
    let listed = value.map(|value| texts(reader, value)).unwrap_or_default();
    if !is_fixed {
        if let Some(value) = value {
            reader.fault(value.span(), "`hops` requires `fixed = true` on the path");
        }
        return None;
    }
    let mut hops = Vec::new();
    for text in &listed {
        match text.get_ref().parse::<Ipv6Addr>() {
            Ok(hop) if hops.contains(&hop) => {
                reader.fault(text.span(), format!("`{hop}` is a hop of this path already"));
            }
            Ok(hop) => hops.push(hop),
            Err(_) => {
                reader
                    .fault(text.span(), format!("the hop `{}` is not an IPv6 address", text.get_ref().escape_debug()));
            }
        }
    }
    if listed.len() + 1 != verifiers {
        let span: Range<usize> = value.map_or_else(|| fields.span(), Spanned::span);
        let why = "a fixed path needs one hop for each verifier except the last, which has the receiving endpoint's \
                   address";
        reader.fault(span, format!("{why} (hops: {}, verifiers: {verifiers})", listed.len()));
    }
    Some(hops)
}

/// Returns these hops, followed by the endpoint `to`.
fn lead(reader: &mut Reader<'_>, hops: &[Ipv6Addr], to: IpAddr, span: &Range<usize>) -> Option<Vec<Ipv6Addr>> {
    match to {
        IpAddr::V6(to) if !hops.contains(&to) => Some(hops.iter().copied().chain([to]).collect()),
        IpAddr::V6(_) => {
            reader.fault(span.clone(), format!("the path's end {to} must not also be one of its hops"));
            None
        }
        IpAddr::V4(_) => {
            reader.fault(span.clone(), format!("a fixed path can lead to IPv6 endpoints only, not to {to}"));
            None
        }
    }
}

fn address(reader: &mut Reader<'_>, text: &Spanned<&str>) -> Option<IpAddr> {
    let read = text.get_ref().parse::<IpAddr>().ok().map(|address| address.to_canonical());
    if read.is_none() {
        reader.fault(text.span(), format!("`{}` is not an address", text.get_ref().escape_debug()));
    }
    read
}

fn prefix(reader: &mut Reader<'_>, text: &Spanned<&str>) -> Option<IpNet> {
    let read = text.get_ref().parse::<IpNet>().ok().or_else(|| text.get_ref().parse::<IpAddr>().ok().map(IpNet::from));
    if read.is_none() {
        reader.fault(text.span(), format!("`{}` is not an address or network", text.get_ref().escape_debug()));
    }
    read.map(|prefix| prefix.trunc())
}

#[cfg(test)]
mod tests;
