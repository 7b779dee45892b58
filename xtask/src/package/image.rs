//! The OCI image: one layer with the program, the libraries that it loads and nothing else, as an archive in OCI image
//! layout. Neither a base image nor a container engine is needed.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::tree::Tree;
use super::{Job, program, sbom, sha256};
use crate::run::{command, output, run};

/// Makes the OCI image and returns the path of its archive.
pub fn make(job: &Job, source: &Path) -> Result<PathBuf> {
    let root = Tree::new(job.out.join("image-root"))?;
    fill(job, source, &root)?;
    let layout = Tree::new(job.out.join("image"))?;
    let layer = job.out.join("layer.tar");
    pack(job, root.path(), &layer)?;
    let unpacked = sha256(&layer)?;
    run(command("gzip").args(["--no-name", "--force", if job.quick { "-1" } else { "-9" }]).arg(&layer))?;
    let layer = layer.with_extension("tar.gz");
    let architecture = job.arch.debian();
    let created = output(command("date").args(["--utc", "+%Y-%m-%dT%H:%M:%SZ", "--date", &format!("@{}", job.epoch)]))?;
    let config = json!({
        "created": created.trim(),
        "architecture": architecture,
        "os": "linux",
        "config": {
            "Entrypoint": ["/usr/bin/vouchsafe"],
            "Cmd": ["--help"],
            "WorkingDir": "/",
            "Labels": { "org.opencontainers.image.licenses": "Apache-2.0" },
        },
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{unpacked}")] },
        "history": [{ "created": created.trim(), "created_by": "cargo xtask package image" }],
    });
    let layer = blob(&layout, "application/vnd.oci.image.layer.v1.tar+gzip", Content::File(&layer))?;
    let config = blob(&layout, "application/vnd.oci.image.config.v1+json", Content::Json(&config))?;
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": config,
        "layers": [layer],
    });
    let mut manifest = blob(&layout, "application/vnd.oci.image.manifest.v1+json", Content::Json(&manifest))?;
    manifest["platform"] = json!({ "architecture": architecture, "os": "linux" });
    manifest["annotations"] = json!({ "org.opencontainers.image.ref.name": job.version });
    let index = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [manifest],
    });
    layout.put("index.json", 0o644, serde_json::to_vec(&index)?)?;
    layout.put("oci-layout", 0o644, serde_json::to_vec(&json!({ "imageLayoutVersion": "1.0.0" }))?)?;
    let archive = job.out.join(format!("vouchsafe_{}_{architecture}.oci.tar", job.version));
    pack(job, layout.path(), &archive)?;
    Ok(archive)
}

/// Puts the program, its libraries and the folders that it needs into the image's root.
fn fill(job: &Job, source: &Path, root: &Tree) -> Result<()> {
    root.copy(&job.program, "usr/bin/vouchsafe", 0o755)?;
    // With merged /usr, as on the systems that the libraries are from.
    for name in ["lib", "lib64", "bin", "sbin"] {
        root.folder(&format!("usr/{name}"), 0o755)?;
        root.link(name, &format!("usr/{name}"))?;
    }
    for program::Library { path, file } in program::libraries(job.arch, &job.program)? {
        let name = path.strip_prefix("/usr").or(path.strip_prefix("/")).unwrap_or(&path).display().to_string();
        root.copy(&file, &format!("usr/{name}"), 0o755)?;
    }
    // Without this file, glibc looks up host names only in files, and not in DNS.
    root.put("etc/nsswitch.conf", 0o644, "passwd: files\ngroup: files\nhosts: files dns\n")?;
    root.put("etc/passwd", 0o644, "root:x:0:0:root:/:/sbin/nologin\nvouchsafe:x:999:999::/:/sbin/nologin\n")?;
    root.put("etc/group", 0o644, "root:x:0:\nvouchsafe:x:999:\n")?;
    root.folder("etc/vouchsafe", 0o755)?;
    root.folder("run/vouchsafe", 0o755)?;
    root.folder("var/lib/vouchsafe", 0o755)?;
    root.folder("tmp", 0o1777)?;
    root.put("usr/share/doc/vouchsafe/sbom.cdx.json", 0o644, sbom::text(job, source)?)?;
    root.copy(&source.join("LICENSE"), "usr/share/doc/vouchsafe/LICENSE", 0o644)
}

enum Content<'a> {
    File(&'a Path),
    Json(&'a Value),
}

/// Puts a blob into the layout under its hash, and returns its descriptor.
fn blob(layout: &Tree, kind: &str, content: Content) -> Result<Value> {
    let path = layout.folder("blobs/sha256", 0o755)?.join("new");
    match content {
        Content::File(from) => {
            fs::copy(from, &path).with_context(|| from.display().to_string())?;
            fs::remove_file(from)?;
        }
        Content::Json(value) => fs::write(&path, serde_json::to_vec(value)?)?,
    }
    let (hash, size) = (sha256(&path)?, fs::metadata(&path)?.len());
    fs::rename(&path, path.with_file_name(&hash))?;
    Ok(json!({ "mediaType": kind, "digest": format!("sha256:{hash}"), "size": size }))
}

/// Packs a folder's content, sorted by name. In the archive, every file belongs to root and has the same time.
fn pack(job: &Job, folder: &Path, to: &Path) -> Result<()> {
    let mut tar = command("tar");
    tar.args(["--sort=name", "--format=gnu", "--owner=0", "--group=0", "--numeric-owner"]);
    tar.arg(format!("--mtime=@{}", job.epoch)).arg("--create").arg("--file").arg(to).arg("--directory").arg(folder);
    let mut names = fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name())).collect::<std::io::Result<Vec<_>>>()?;
    names.sort();
    run(tar.args(names))
}
