//! Compares the configured tenants with the places that the authority assigns to this endpoint.

use super::Found;
use crate::settings::{Settings, TenantSettings};
use anyhow::{Context, Result, anyhow, ensure};
use api::{Behind, EndpointPlace, EndpointPlaces};
use engine::document::hint;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;

/// Maximum number of places without a tenant that are reported one by one.
const MOST_MISSING: usize = 50;

/// Checks that the authority knows the endpoint's addresses and the places of its tenants, and that the endpoint has a
/// tenant for each place that the authority assigns to this endpoint. `services` maps each key file to the name of its
/// service account.
pub fn compare(
    settings: &Settings,
    verifier: &str,
    services: &BTreeMap<&Path, &str>,
    said: &EndpointPlaces,
) -> Vec<Found> {
    let places = Places::new(said);
    let endpoints: Vec<_> = settings.addresses.iter().map(IpAddr::to_canonical).collect();
    let mut found = Vec::new();
    for endpoint in &endpoints {
        found.push(Found::new(format!("path to {endpoint}"), has_path(*endpoint, verifier, said)));
    }
    if !endpoints.iter().any(|endpoint| said.endpoints.contains(endpoint)) {
        // In this case, the authority has listed no places behind these addresses.
        return found;
    }
    let mut used = BTreeSet::new();
    for tenant in &settings.tenants {
        let service = services.get(tenant.service_key.as_path()).copied();
        for address in &tenant.tenant.addresses {
            let subject = format!("{address} of network {}, tenant {}", tenant.tenant.network, tenant.interface);
            let place = places.around(&tenant.tenant.network, address.to_canonical());
            used.extend(place.map(|(number, _)| number));
            let checked = has_place(tenant, &endpoints, service, place.map(|(_, place)| place), &places);
            found.push(Found::new(subject, checked));
        }
    }
    let missing =
        said.places.iter().enumerate().filter(|(number, place)| place.behind.is_some() && !used.contains(number));
    let missing: Vec<_> = missing.map(|(_, place)| missing_tenant(place, &endpoints)).collect();
    let more = missing.len().saturating_sub(MOST_MISSING);
    found.extend(missing.into_iter().take(MOST_MISSING));
    if more > 0 {
        found.push(Found::new(
            format!("{more} more places"),
            Err(anyhow!("there is no tenant for these places, either")),
        ));
    }
    found
}

/// The places that the authority listed, by network; each with its number in that list.
struct Places<'s>(BTreeMap<&'s str, Vec<(usize, &'s EndpointPlace)>>);

impl<'s> Places<'s> {
    fn new(said: &'s EndpointPlaces) -> Self {
        let mut networks: BTreeMap<&str, Vec<_>> = BTreeMap::new();
        for (number, place) in said.places.iter().enumerate() {
            networks.entry(&place.network).or_default().push((number, place));
        }
        Self(networks)
    }

    /// Returns the place with the longest prefix that contains the address, with its number.
    fn around(&self, network: &str, address: IpAddr) -> Option<(usize, &'s EndpointPlace)> {
        let around = self.0.get(network)?.iter().filter(|(_, place)| place.prefix.contains(&address));
        around.max_by_key(|(_, place)| place.prefix.prefix_len()).copied()
    }
}

fn has_path(endpoint: IpAddr, verifier: &str, said: &EndpointPlaces) -> Result<()> {
    if said.endpoints.contains(&endpoint) {
        return Ok(());
    }
    let others: Vec<_> = said.endpoints.iter().map(ToString::to_string).collect();
    let others = match others.as_slice() {
        [] => String::new(),
        others => format!(" (paths to {} do)", others.join(", ")),
    };
    Err(anyhow!(
        "in the authority's networks.toml, no path to this address ends with the verifier {verifier}{others}. So \
        nothing is delivered to this address, and tenants can't be compared with the authority's places: correct \
        `address` in svtep.toml, or `to` and `verifiers` of a [[paths]] table in networks.toml"
    ))
}

/// Checks that the authority places one address of a tenant here, behind the tenant's interface. Also checks that the
/// service account of the tenant may request segments for this address.
fn has_place(
    tenant: &TenantSettings,
    endpoints: &[IpAddr],
    service: Option<&str>,
    place: Option<&EndpointPlace>,
    places: &Places<'_>,
) -> Result<()> {
    let (network, vni) = (&tenant.tenant.network, tenant.tenant.vni.number());
    let known = places.0.get(network.as_str()).and_then(|places| places.first()).with_context(|| {
        format!(
            "the authority has no network of this name, or places no address of the network behind this endpoint{}. \
             Correct `network` in svtep.toml, or add a [[places]] table to the authority's networks.toml",
            hint(network, places.0.keys().copied())
        )
    })?;
    ensure!(
        known.1.vni == vni,
        "the network's number is {} at the authority and {vni} here: correct `vni` in svtep.toml",
        known.1.vni
    );
    let place = place.with_context(|| {
        format!(
            "the authority does not place it behind this endpoint: correct `address` in svtep.toml, or add a \
             [[places]] table with `interface = {}` to the authority's networks.toml",
            tenant.id.0
        )
    })?;
    let Some(Behind { endpoint, interface, asked_by }) = &place.behind else {
        return Err(anyhow!(
            "the authority places {} behind another endpoint: correct `address` in svtep.toml, or `endpoint` in the \
             authority's networks.toml",
            place.prefix
        ));
    };
    ensure!(endpoints.contains(endpoint), elsewhere(*endpoint));
    ensure!(
        *interface == tenant.id.0,
        "its interface id is {interface} at the authority and {} here: correct `id` in svtep.toml, or \
        `interface` in the authority's networks.toml",
        tenant.id.0
    );
    let Some((service, asked_by)) = service.zip(asked_by.as_ref()) else { return Ok(()) };
    // Only the authority knows which groups and tags an account has.
    let may_ask = asked_by.iter().any(|who| who.strip_prefix("person:").is_none_or(|person| person == service));
    ensure!(
        may_ask,
        "the authority lets only {} request segments for this address, but `service_key` is the key of {service}: use \
         another key, or correct `asked_by` in the authority's networks.toml",
        asked_by.join(", ")
    );
    Ok(())
}

/// Returns the message about a place behind an endpoint whose address is not in the settings.
fn elsewhere(endpoint: IpAddr) -> String {
    format!(
        "the authority places it behind {endpoint}, which is no `address` of this endpoint: add {endpoint} to \
         `address` in svtep.toml, or correct `endpoint` in the authority's networks.toml"
    )
}

/// Reports a place behind this endpoint to which no tenant belongs.
fn missing_tenant(EndpointPlace { network, prefix, behind, .. }: &EndpointPlace, endpoints: &[IpAddr]) -> Found {
    let behind = behind.as_ref().map(|behind| (behind.endpoint, behind.interface));
    let fault = match behind {
        Some((endpoint, _)) if !endpoints.contains(&endpoint) => elsewhere(endpoint),
        Some((_, interface)) => format!(
            "the authority places it behind interface id {interface} of this endpoint, but no tenant here has this id, \
             so packets to {prefix} are dropped: add a [[tenants]] table with this id to svtep.toml, or remove the place \
             from the authority's networks.toml"
        ),
        None => String::new(),
    };
    Found::new(format!("place {prefix} of network {network}"), Err(anyhow!(fault)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::tests::of;

    const HERE: &str = r#"
underlay = "eth0"
address = "192.0.2.1"
service_key = "all.key"

[[tenants]]
interface = "t1"
network = "blue"
vni = 100
id = 1
address = "10.0.0.5"
"#;

    fn place(prefix: &str, behind: Option<(&str, u16)>) -> EndpointPlace {
        let behind = behind.map(|(endpoint, interface)| Behind {
            endpoint: endpoint.parse().unwrap(),
            interface,
            asked_by: Some(vec!["person:host-1".into()]),
        });
        EndpointPlace { network: "blue".into(), vni: 100, prefix: prefix.parse().unwrap(), behind }
    }

    /// Returns the faults that the settings `here` have at an authority with these places for its endpoint 192.0.2.1.
    fn faults(here: &str, places: Vec<EndpointPlace>) -> Vec<String> {
        faults_of(here, "host-1", places)
    }

    fn faults_of(here: &str, service: &str, places: Vec<EndpointPlace>) -> Vec<String> {
        let said = EndpointPlaces { endpoints: vec!["192.0.2.1".parse().unwrap()], places, now: 0 };
        let services = BTreeMap::from([(Path::new("all.key"), service)]);
        let found = compare(&of(here).unwrap(), "host-1", &services, &said);
        found.into_iter().filter_map(|one| Some(format!("{}: {}", one.subject, one.fault?))).collect()
    }

    /// Checks that there is exactly one fault, and that it contains these texts.
    fn is_one(faults: &[String], texts: &[&str]) {
        let [fault] = faults else { panic!("{faults:?}") };
        assert!(texts.iter().all(|text| fault.contains(text)), "{fault}");
    }

    fn own() -> EndpointPlace {
        place("10.0.0.5/32", Some(("192.0.2.1", 1)))
    }

    #[test]
    fn tenants_where_the_authority_places_them_are_right() {
        assert_eq!(faults(HERE, vec![own()]), [""; 0]);
        let around = vec![place("10.0.0.0/24", Some(("192.0.2.1", 1))), place("10.0.0.7/32", None)];
        assert_eq!(faults(HERE, around), [""; 0]);
    }

    #[test]
    fn a_network_that_the_authority_does_not_have_is_reported_with_the_like() {
        let wrong = faults(&HERE.replace("blue", "blu"), vec![own()]);
        assert_eq!(wrong.len(), 2, "the place has no tenant, either: {wrong:?}");
        is_one(&wrong[..1], &["10.0.0.5 of network blu, tenant t1", "did you mean `blue`?", "[[places]]"]);
        is_one(&faults(&HERE.replace("100", "101"), vec![own()]), &["is 100 at the authority and 101 here"]);
    }

    #[test]
    fn an_address_behind_another_endpoint_is_reported() {
        let around = vec![place("10.0.0.0/24", Some(("192.0.2.1", 1))), place("10.0.0.5/32", None)];
        let wrong = faults(HERE, around);
        is_one(&wrong[..1], &["10.0.0.5/32 behind another endpoint"]);
        let wrong = faults(HERE, vec![place("10.0.0.6/32", Some(("192.0.2.1", 1)))]);
        is_one(&wrong[..1], &["does not place it behind this endpoint", "`interface = 1`"]);
        is_one(&faults(HERE, vec![place("10.0.0.5/32", Some(("192.0.2.9", 1)))]), &["behind 192.0.2.9, which is no"]);
        is_one(
            &faults(HERE, vec![place("10.0.0.5/32", Some(("192.0.2.1", 7)))]),
            &["id is 7 at the authority and 1 here"],
        );
    }

    #[test]
    fn a_place_without_a_tenant_is_reported_and_many_are_counted() {
        let missing = faults(HERE, vec![own(), place("10.0.0.9/32", Some(("192.0.2.1", 4)))]);
        is_one(&missing, &["place 10.0.0.9/32 of network blue", "interface id 4", "[[tenants]]"]);
        let more = (0..60).map(|last| place(&format!("10.0.1.{last}/32"), Some(("192.0.2.1", 4))));
        let missing = faults(HERE, [own()].into_iter().chain(more).collect());
        assert_eq!(missing.len(), MOST_MISSING + 1);
        assert!(missing[MOST_MISSING].starts_with("10 more places: "), "{missing:?}");
    }

    #[test]
    fn an_account_that_may_not_ask_is_reported_as_far_as_it_can_be_known() {
        is_one(&faults_of(HERE, "host-2", vec![own()]), &["only person:host-1 request", "the key of host-2"]);
        let mut of_group = own();
        of_group.behind.as_mut().unwrap().asked_by.as_mut().unwrap().push("group:hosts".into());
        assert_eq!(faults_of(HERE, "host-2", vec![of_group]), [""; 0]);
    }

    #[test]
    fn an_address_without_a_path_is_reported() {
        let elsewhere = faults(&HERE.replace("192.0.2.1", "192.0.2.2"), vec![]);
        is_one(&elsewhere, &["path to 192.0.2.2", "ends with the verifier host-1 (paths to 192.0.2.1 do)"]);
    }
}
