//! `vouchsafe svtep check`: checks the settings and this host, and compares both with the authority's configuration.

mod places;

use crate::directory::Directory;
use crate::now;
use crate::session;
use crate::settings::Settings;
use anyhow::{Context, Result, anyhow};
use api::{EpochKeys, ServiceKey};
use client::{Authority, Error};
use datapath::interface::Interface;
use follower::{Enrolment, State};
use serde::Serialize;
use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::path::Path;

/// Result of checking one thing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Found {
    /// Name of the checked thing, such as `tenant tap0`.
    pub subject: String,
    /// Description of the fault, and advice; `None` if there is no fault.
    pub fault: Option<String>,
}

impl Found {
    fn new(subject: impl Into<String>, checked: Result<()>) -> Self {
        Self { subject: subject.into(), fault: checked.err().map(|error| format!("{error:#}")) }
    }
}

/// Checks the enrolment, the interfaces, the key files and the service accounts, and compares them with the authority's
/// configuration.
pub async fn check(settings: &Settings) -> Vec<Found> {
    let directory = Directory::at(&settings.dir);
    let enrolment = directory.enrolment().and_then(|enrolment| {
        enrolment.with_context(|| format!("no enrolment in {}: run `vouchsafe svtep enrol`", settings.dir.display()))
    });
    let (enrolment, enrolled) = match enrolment {
        Ok(enrolment) => (Some(enrolment), Ok(())),
        Err(error) => (None, Err(error)),
    };
    let mut found = vec![Found::new("enrolment", enrolled)];
    found.push(Found::new(format!("underlay {}", settings.underlay), Interface::named(&settings.underlay).map(drop)));
    for address in &settings.addresses {
        let bound = UdpSocket::bind((*address, 0))
            .map(drop)
            .context("the address does not belong to this host (see `ip address`)");
        found.push(Found::new(format!("address {address}"), bound));
    }
    for tenant in &settings.tenants {
        found.push(Found::new(format!("tenant {}", tenant.interface), Interface::named(&tenant.interface).map(drop)));
    }
    let keys = service_keys(settings, &mut found);
    if let Some(enrolment) = enrolment {
        at_authority(settings, &directory, &enrolment, &keys, &mut found).await;
    }
    found
}

/// Reads the key file of each service account and adds a result for each file to `found`. Returns the keys that could
/// be read.
fn service_keys<'s>(settings: &'s Settings, found: &mut Vec<Found>) -> BTreeMap<&'s Path, ServiceKey> {
    let mut tenants: BTreeMap<&Path, Vec<&str>> = BTreeMap::new();
    for tenant in &settings.tenants {
        tenants.entry(&tenant.service_key).or_default().push(&tenant.interface);
    }
    let mut keys = BTreeMap::new();
    for (file, interfaces) in tenants {
        let read = session::read(file).map(|key| _ = keys.insert(file, key));
        found.push(Found::new(format!("service account of {}", interfaces.join(", ")), read));
    }
    keys
}

/// Compares the settings with the authority's, and adds the results to `found`.
async fn at_authority(
    settings: &Settings,
    directory: &Directory,
    enrolment: &Enrolment,
    keys: &BTreeMap<&Path, ServiceKey>,
    found: &mut Vec<Found>,
) {
    let subject = format!("authority {}", enrolment.authority);
    let said = async {
        let caller = enrolment.caller()?;
        let cached = State::load(directory.folder(), &enrolment.verifier);
        cached.iter().for_each(|cached| caller.learn(&cached.config.authorities));
        tokio::try_join!(caller.keys(0), caller.places()).map_err(explained)
    };
    let (epoch_keys, places) = match said.await {
        Ok(said) => said,
        // The service accounts are at the same authority.
        Err(error) => return found.push(Found::new(subject, Err(error))),
    };
    found.push(Found::new(subject, Ok(())));
    found.push(Found::new("keys for proofs", has_keys(&epoch_keys, settings, &enrolment.verifier)));
    match places {
        Some(places) => {
            let services = keys.iter().map(|(file, key)| (*file, key.service.as_str())).collect();
            found.extend(places::compare(settings, &enrolment.verifier, &services, &places));
        }
        None => found.push(Found::new(
            "places of tenants",
            Err(anyhow!(
                "this authority is too old to list places, so the tenants were not compared with them: upgrade the \
                 authority, then check again"
            )),
        )),
    }
    for key in keys.values() {
        let logged_in = log_in(key, directory, enrolment).await;
        found.push(Found::new(format!("login of service account {}", key.service), logged_in));
    }
}

/// Adds advice to an error of the authority.
fn explained(error: Error) -> anyhow::Error {
    let way_out = match error {
        Error::NotLoggedIn => {
            return anyhow!(
                "the authority does not know this endpoint (any more): run `vouchsafe svtep enrol --again`"
            );
        }
        Error::Unreachable(_) => {
            "nothing was compared with the authority's configuration. An endpoint that ran before can start without \
             the authority, and delivers as long as it has keys"
        }
        _ => "nothing was compared with the authority's configuration",
    };
    anyhow!("{error}; {way_out}")
}

/// Checks whether the authority has keys for this endpoint's proofs.
fn has_keys(keys: &EpochKeys, settings: &Settings, verifier: &str) -> Result<()> {
    if keys.proofs.as_ref().is_some_and(|proofs| !proofs.keys.is_empty()) {
        return Ok(());
    }
    let addresses: Vec<_> = settings.addresses.iter().map(|address| format!("\"{address}\"")).collect();
    Err(anyhow!(
        "the authority has no keys for this endpoint, because no path in its networks.toml has the verifier \
        {verifier}, so nothing is delivered here: add a path there, `[[paths]]` with `to = [{}]` and `verifiers = \
        [\"{verifier}\"]`, then `vouchsafe authority policy reload`",
        addresses.join(", ")
    ))
}

/// Checks that a service account may log in: uses the daemon's stored session, or else logs in and out again.
async fn log_in(key: &ServiceKey, directory: &Directory, enrolment: &Enrolment) -> Result<()> {
    let caller = Authority::new(&enrolment.authority, Some(key.ca.as_bytes()))?;
    let kept = directory.session(&key.service);
    let kept = kept.filter(|kept| kept.authority == enrolment.authority && kept.lasts.1 > now());
    kept.iter().for_each(|kept| caller.learn(&kept.authorities));
    if let Some(kept) = kept
        && caller.with_token(&kept.token).destinations().await.is_ok()
    {
        return Ok(());
    }
    let session = caller.login_by_key(key, &enrolment.verifier).await.with_context(|| {
        let service = &key.service;
        format!(
            "the account cannot log in: see in `vouchsafe authority service list` whether there is a service account \
             {service}"
        )
    })?;
    // A session that stays lasts until it expires, and does no harm.
    let _ = caller.with_token(&session.token).logout().await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::tests::of;
    use api::{EpochKey, ProofKeys};

    #[test]
    fn an_endpoint_on_no_path_has_no_keys_yet() {
        let settings = of("underlay = \"eth0\"\naddress = \"192.0.2.1\"\n").unwrap();
        let keys = |proofs| EpochKeys { keys: vec![], proofs, now: 0 };
        let key = EpochKey { epoch: 0, key: "00".repeat(32) };
        let proofs = ProofKeys { authority: [198, 51, 100, 1].into(), keys: vec![key] };
        assert!(has_keys(&keys(Some(proofs)), &settings, "host-1").is_ok());
        let fault = has_keys(&keys(None), &settings, "host-1").unwrap_err().to_string();
        assert!(fault.contains("`to = [\"192.0.2.1\"]` and `verifiers = [\"host-1\"]`"), "{fault}");
    }

    #[test]
    fn errors_of_the_authority_name_the_way_out() {
        let unreachable = explained(Error::Unreachable("connection refused".into())).to_string();
        assert!(unreachable.contains("connection refused") && unreachable.contains("nothing was compared"));
        assert!(explained(Error::NotLoggedIn).to_string().contains("enrol --again"));
    }
}
