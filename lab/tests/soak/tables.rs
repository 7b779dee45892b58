//! Counts the entries in a verifier's tables in the kernel.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};

/// Tables that do not count: they hold no state per sender, and may change at any time.
const NOT_MEMORY: [&str; 2] = ["counters", "clock"];

/// Number of entries per table. An array's entry counts if it is not zero.
pub type Tables = BTreeMap<String, usize>;

/// Reads the tables that are pinned in the folder `folder`.
pub fn read(folder: &Path) -> Result<Tables> {
    let names = std::fs::read_dir(folder).with_context(|| format!("{}", folder.display()))?;
    let mut tables = Tables::new();
    for name in names.flatten() {
        let map = MapHandle::from_pinned_path(name.path()).with_context(|| format!("{}", name.path().display()))?;
        let name = name.file_name().to_string_lossy().into_owned();
        let is_array = matches!(map.map_type(), MapType::Array);
        let is_hash = matches!(map.map_type(), MapType::Hash | MapType::LruHash);
        if (!is_array && !is_hash) || NOT_MEMORY.contains(&name.as_str()) {
            continue;
        }
        let holds = |key: &Vec<u8>| {
            let value = map.lookup(key, MapFlags::ANY).ok().flatten();
            value.is_some_and(|value| is_hash || value.iter().any(|byte| *byte != 0))
        };
        tables.insert(name, map.keys().filter(holds).count());
    }
    Ok(tables)
}
