//! Opens an embedded object file, sets its configuration, and pins its maps.

use crate::attachments::Pins;
use crate::table::{Table, distinct};
use anyhow::{Context, Result};
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType, Object, ObjectBuilder, OpenObject, Program, ProgramMut};
use std::os::fd::AsFd;
use std::sync::{Mutex, PoisonError};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// An object file that is open but not loaded.
pub(crate) struct Opened {
    object: OpenObject,
    /// Pinned maps whose size or shape differs from that of the new maps. They are replaced after the programs are
    /// loaded.
    outgrown: Vec<Outgrown>,
    /// Names of maps whose content the caller copies itself.
    carried: &'static [&'static str],
}

/// A pinned map of another size or shape.
struct Outgrown {
    name: String,
    old: MapHandle,
    pins: Pins,
    /// Whether the pinned map's entries have the layout of the new map's entries.
    same_shape: bool,
}

impl Opened {
    pub(crate) fn new(name: &str, bytes: &[u8]) -> Result<Self> {
        let open = ObjectBuilder::default().name(name)?.open_memory(bytes);
        let object = open.with_context(|| format!("cannot open the embedded {name} program"))?;
        Ok(Self { object, outgrown: Vec::new(), carried: &[] })
    }

    pub(crate) fn configure<C: IntoBytes + Immutable>(&mut self, config: &C) -> Result<()> {
        self.set_constant(".rodata.config", config)
    }

    /// Sets the constants in the section with this name.
    pub(crate) fn set_constant<C: IntoBytes + Immutable>(&mut self, section: &str, config: &C) -> Result<()> {
        let mut map = self.object.maps_mut().find(|map| map.name().to_string_lossy().ends_with(section));
        let map = map.as_mut().context("the embedded program has no configuration section")?;
        map.set_initial_value(config.as_bytes()).context("cannot set the program's configuration")
    }

    pub(crate) fn resize(&mut self, name: &str, entries: u32) -> Result<()> {
        let mut map = self.object.maps_mut().find(|map| map.name() == name);
        let map = map.as_mut().with_context(|| format!("the embedded program has no map {name}"))?;
        map.set_max_entries(entries)
            .with_context(|| format!("cannot set the size of the map {name} to {entries} entries"))
    }

    /// Uses the pinned maps with these names, or pins new maps. After the programs are loaded, a pinned hash map of
    /// another size is replaced and its content is copied. A pinned map of another shape, from another version, is also
    /// replaced, but its content is lost.
    pub(crate) fn pin(&mut self, pins: &Pins, names: &[&str]) -> Result<()> {
        for mut map in self.object.maps_mut() {
            let name = map.name().to_string_lossy().into_owned();
            if !names.contains(&name.as_str()) {
                continue;
            }
            let path = pins.map(&name);
            if let Ok(old) = MapHandle::from_pinned_path(&path) {
                let same_entries = old.key_size() == map.key_size() && old.value_size() == map.value_size();
                let flags = old
                    .info()
                    .with_context(|| format!("cannot read the properties of pinned map {name}"))?
                    .info
                    .map_flags;
                let same_kind = old.map_type() == map.map_type() && flags == map.map_flags();
                if !same_entries || !same_kind || old.max_entries() != map.max_entries() {
                    let same_shape = same_entries && old.map_type() == MapType::Hash && map.map_type() == MapType::Hash;
                    self.outgrown.push(Outgrown { name, old, pins: pins.clone(), same_shape });
                    continue;
                }
            }
            map.set_pin_path(&path).with_context(|| format!("cannot pin map {name}"))?;
        }
        Ok(())
    }

    /// Excludes these maps from copying when they are replaced, because the caller copies their content.
    pub(crate) fn carry(&mut self, names: &'static [&'static str]) {
        self.carried = names;
    }

    /// Uses the maps with these names of the object `other`, instead of maps of its own.
    pub(crate) fn share(&mut self, other: &Loaded, names: &[&str]) -> Result<()> {
        for mut map in self.object.maps_mut() {
            let name = map.name().to_string_lossy().into_owned();
            if names.contains(&name.as_str()) {
                let shared = other.map(&name)?;
                map.reuse_fd(shared.as_fd()).with_context(|| format!("cannot reuse map {name}"))?;
            }
        }
        Ok(())
    }

    pub(crate) fn load(self, name: &str) -> Result<Loaded> {
        let object = self.object.load().with_context(|| {
            let kernel = WARNINGS.lock().unwrap_or_else(PoisonError::into_inner);
            let help = "needs Linux 6.1 or later and root; see `vouchsafe doctor`";
            format!("the kernel rejected the {name} program ({help})\n{}", kernel.trim_end())
        })?;
        let loaded = Loaded(object);
        for Outgrown { name, old, pins, same_shape } in &self.outgrown {
            let new = loaded.map(name)?;
            if *same_shape {
                copy(name, old, &new)?;
            } else if !self.carried.contains(&name.as_str()) {
                tracing::warn!(
                    map = name,
                    "the pinned map is from a version with another layout, so its entries are lost"
                );
            }
            pins.put_map(name, new.as_fd())?;
        }
        Ok(loaded)
    }
}

/// Copies as many entries of `old` into `new` as `new` has room for.
fn copy(name: &str, old: &MapHandle, new: &MapHandle) -> Result<()> {
    let (mut copied, mut lost) = (0, 0);
    for key in distinct(old.keys(), old.max_entries() as usize) {
        let Some(value) = old.lookup(&key, MapFlags::ANY).with_context(|| format!("cannot read the old map {name}"))?
        else {
            continue;
        };
        match new.update(&key, &value, MapFlags::ANY) {
            Ok(()) => copied += 1,
            Err(_) => lost += 1,
        }
    }
    let (before, after) = (old.max_entries(), new.max_entries());
    if lost > 0 {
        tracing::warn!(map = name, before, after, copied, lost, "resized the map; entries that did not fit are lost");
    } else {
        tracing::info!(map = name, before, after, copied, "resized");
    }
    Ok(())
}

/// A loaded object file.
pub(crate) struct Loaded(Object);

impl Loaded {
    pub(crate) fn table<K, V>(&self, name: &str) -> Result<Table<K, V>>
    where
        K: IntoBytes + FromBytes + Immutable,
        V: IntoBytes + FromBytes + Immutable,
    {
        Table::new(self.map(name)?)
    }

    pub(crate) fn map(&self, name: &str) -> Result<MapHandle> {
        let map = self.0.maps().find(|map| libbpf_rs::MapCore::name(map) == name);
        let map = map.with_context(|| format!("the embedded program has no map {name}"))?;
        MapHandle::try_from(&map).with_context(|| format!("cannot open map {name}"))
    }

    /// Returns the program in the form in which it can be run on one packet.
    pub(crate) fn runnable(&self, name: &str) -> Result<ProgramMut<'_>> {
        self.0.progs_mut().find(|program| program.name() == name).with_context(|| format!("no program {name}"))
    }

    pub(crate) fn program(&self, name: &str) -> Result<Program<'_>> {
        self.0.progs().find(|program| program.name() == name).with_context(|| format!("no program {name}"))
    }
}

/// libbpf's latest warnings, which explain a failed load.
static WARNINGS: Mutex<String> = Mutex::new(String::new());
const WARNINGS_KEPT: usize = 4096;

/// Sends libbpf's messages to the log, and keeps the latest warnings for the error of a failed load.
pub(crate) fn log_through_tracing() {
    libbpf_rs::set_print(Some((libbpf_rs::PrintLevel::Debug, |level, text| match level {
        libbpf_rs::PrintLevel::Warn => {
            tracing::debug!(target: "libbpf", "{}", text.trim_end());
            let mut kept = WARNINGS.lock().unwrap_or_else(PoisonError::into_inner);
            kept.push_str(&text);
            let mut cut = kept.len().saturating_sub(WARNINGS_KEPT);
            while !kept.is_char_boundary(cut) {
                cut += 1;
            }
            kept.drain(..cut);
        }
        _ => tracing::trace!(target: "libbpf", "{}", text.trim_end()),
    })));
}
