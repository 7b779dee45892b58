//! The image: its archive is consistent, and its content alone runs a verifier with the manifest's capabilities.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use lab::package::package;
use lab::service::call;
use lab::{Rootfs, process, test};
use serde_json::Value;
use tempfile::TempDir;

use lab::world::SOON;

use super::{echo, is_protected, world};

fn read(path: &Path) -> Result<Value> {
    serde_json::from_slice(&fs::read(path).with_context(|| path.display().to_string())?).context("no JSON")
}

/// Returns the path of a blob, whose size and hash are those of its descriptor.
fn blob(layout: &Path, descriptor: &Value) -> Result<PathBuf> {
    let digest = descriptor["digest"].as_str().and_then(|digest| digest.strip_prefix("sha256:"));
    let digest = digest.with_context(|| format!("no digest: {descriptor}"))?;
    let path = layout.join("blobs/sha256").join(digest);
    ensure!(descriptor["size"].as_u64() == Some(fs::metadata(&path)?.len()), "{descriptor}");
    let hash = process::output(Command::new("sha256sum").arg(&path))?;
    ensure!(hash.starts_with(digest), "{descriptor}: {hash}");
    Ok(path)
}

/// Unpacks an image's archive and returns the path of its only layer, and its configuration.
pub(super) fn layer(archive: &Path, to: &Path) -> Result<(PathBuf, Value)> {
    process::output(Command::new("tar").arg("-xf").arg(archive).arg("-C").arg(to))?;
    ensure!(read(&to.join("oci-layout"))?["imageLayoutVersion"] == "1.0.0", "no OCI layout");
    let manifest = read(&blob(to, &read(&to.join("index.json"))?["manifests"][0])?)?;
    let config = read(&blob(to, &manifest["config"])?)?;
    ensure!(config["config"]["Entrypoint"][0] == "/usr/bin/vouchsafe", "{config}");
    ensure!(manifest["layers"].as_array().map(Vec::len) == Some(1), "{manifest}");
    let layer = blob(to, &manifest["layers"][0])?;
    let unpacked = process::output(Command::new("sh").args(["-c", "gzip -dc \"$0\" | sha256sum"]).arg(&layer))?;
    let unpacked = format!("sha256:{}", unpacked.split(' ').next().unwrap_or_default());
    ensure!(config["rootfs"]["diff_ids"][0] == unpacked.as_str(), "{config}");
    Ok((layer, config))
}

/// Returns the capabilities of a role's systemd unit, in lower case and without `CAP_`.
fn capabilities(role: &str) -> Result<BTreeSet<String>> {
    let unit = format!("{}/../packaging/systemd/vouchsafe-{role}.service", env!("CARGO_MANIFEST_DIR"));
    let text = fs::read_to_string(&unit).context(unit)?;
    let line = text.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet="));
    let names = line.context("the unit limits no capabilities")?.split(' ');
    Ok(names.map(|name| name.trim_start_matches("CAP_").to_lowercase()).collect())
}

#[test]
fn an_image_has_all_that_a_verifier_needs_and_is_made_alike_twice() {
    test(|| {
        let (one, other) = (TempDir::new()?, TempDir::new()?);
        let (first, second) = (package("image", 1, one.path())?, package("image", 1, other.path())?);
        ensure!(fs::read(&first)? == fs::read(&second)?, "two images of the same program differ");
        let layout = TempDir::new()?;
        let (layer, _) = layer(&first, layout.path())?;
        let root = Rootfs::image(&layer)?;
        ensure!(!root.path().join("bin/sh").exists(), "there is a shell in the image");
        let program = |role: &str| root.program_with(role, "/usr/bin/vouchsafe", &capabilities(role)?);
        let world = world(program("verifier")?, program("agent")?)?;
        call(&world.network.alice, echo(), SOON)?;
        ensure!(is_protected(&world), "mallory got in");
        Ok(())
    });
}
