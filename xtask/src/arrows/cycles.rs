//! Finds import cycles between the files of a crate. A module and its children may use each other. Other files may not,
//! so that a crate can be read bottom up.
//!
//! The check reads the text: `use` declarations, and paths that begin with `crate`, `super` or `self`. A path belongs
//! to the file of the innermost module that it names. Modules of tests are left out.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// A module's path from the crate's root.
type Module = Vec<String>;
/// The modules that each module's file uses.
pub type Uses = BTreeMap<Module, BTreeSet<Module>>;

/// Returns the import cycles below the folder `source`. For each cycle, returns its modules, each with the other
/// modules of the cycle that it uses.
pub fn find(source: &Path) -> Result<Vec<Uses>> {
    let mut texts = BTreeMap::new();
    read(source, &Module::new(), &mut texts)?;
    let uses: Uses = texts.iter().map(|(module, text)| (module.clone(), used(module, text, &texts))).collect();
    Ok(cycles(&uses))
}

/// Returns one line for each file of a cycle.
pub fn lines(cycle: &Uses) -> String {
    let name = |module: &Module| module.join("::");
    let line = |(module, used): (&Module, &BTreeSet<Module>)| {
        format!("    {} uses {}", name(module), used.iter().map(name).collect::<Vec<_>>().join(", "))
    };
    cycle.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn read(folder: &Path, parent: &Module, texts: &mut BTreeMap<Module, String>) -> Result<()> {
    let entries = fs::read_dir(folder).with_context(|| format!("could not list {}", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        let mut module = parent.clone();
        if path.is_dir() {
            module.push(name);
            read(&path, &module, texts)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let is_root = parent.is_empty() && (name == "lib" || name == "main");
            if !is_root && name != "mod" {
                module.push(name);
            }
            let text = fs::read_to_string(&path).with_context(|| format!("could not read {}", path.display()))?;
            texts.entry(module).or_default().push_str(&text);
        }
    }
    Ok(())
}

/// Returns the modules that a module's file uses, except the modules above this module and the modules inside it.
fn used(module: &Module, text: &str, texts: &BTreeMap<Module, String>) -> BTreeSet<Module> {
    let mut found = BTreeSet::new();
    for path in paths(&without_tests(text)) {
        let Some(mut target) = absolute(module, &path, texts) else { continue };
        while !texts.contains_key(&target) && target.pop().is_some() {}
        if !module.starts_with(&target) && !target.starts_with(module) {
            found.insert(target);
        }
    }
    found
}

/// Returns the text without comments, and without the test module at its end.
fn without_tests(text: &str) -> String {
    let code = |line: &str| line.split("//").next().unwrap_or_default().to_owned() + "\n";
    let text: String = text.lines().map(code).collect();
    let tests =
        text.match_indices("#[cfg(test)]").map(|(at, attribute)| (at, text[at + attribute.len()..].trim_start()));
    let end = tests.filter(|(_, after)| after.starts_with("mod ")).map(|(at, _)| at).next();
    text[..end.unwrap_or(text.len())].to_owned()
}

/// Returns every path in the text, in `use` declarations and elsewhere.
fn paths(text: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for (at, _) in text.match_indices("use ") {
        let begins = text[..at].chars().next_back().is_none_or(char::is_whitespace);
        if let Some(end) = text[at..].find(';').filter(|_| begins) {
            tree(&[], &text[at + 4..at + end], &mut found);
        }
    }
    for (at, _) in text.match_indices("::") {
        let before = text[..at].rsplit(|c: char| !is_word(c)).next().unwrap_or_default();
        let is_first = !text[..at - before.len()].ends_with("::");
        if is_first && ["crate", "super", "self"].contains(&before) {
            let path: String = text[at..].chars().take_while(|c| is_word(*c) || *c == ':').collect();
            found.push(names(&format!("{before}{path}")));
        }
    }
    found
}

/// Collects the paths of a `use` declaration's tree. `before` is the path up to the tree.
fn tree(before: &[String], text: &str, found: &mut Vec<Vec<String>>) {
    let (mut depth, mut start) = (0, 0);
    let mut parts = Vec::new();
    for (at, character) in text.char_indices() {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    for part in parts.into_iter().map(str::trim).filter(|part| !part.is_empty()) {
        match part.split_once('{') {
            Some((prefix, inner)) => {
                let inner = inner.trim_end();
                tree(&[before, &names(prefix)].concat(), inner.strip_suffix('}').unwrap_or(inner), found);
            }
            None => found.push([before, &names(part.split(" as ").next().unwrap_or_default())].concat()),
        }
    }
}

fn names(path: &str) -> Vec<String> {
    path.split("::").map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

fn is_word(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

/// Returns a path from the crate's root; `None` if the path leads out of the crate.
fn absolute(module: &Module, path: &[String], texts: &BTreeMap<Module, String>) -> Option<Module> {
    let first = path.first()?;
    if first == "crate" {
        return Some(path[1..].to_vec());
    }
    let mut base = module.clone();
    let steps = path.iter().take_while(|step| *step == "super" || *step == "self").count();
    for _ in path[..steps].iter().filter(|step| *step == "super") {
        base.pop();
    }
    let target = [base, path[steps..].to_vec()].concat();
    let is_child = || texts.contains_key(&[module.clone(), vec![first.clone()]].concat());
    (steps > 0 || is_child()).then_some(target)
}

/// Returns the strongly connected components with more than one module. Each module has only its uses within the
/// component.
fn cycles(uses: &Uses) -> Vec<Uses> {
    let reached: BTreeMap<_, _> = uses.keys().map(|module| (module, reach(module, uses))).collect();
    let mut found: Vec<Uses> = Vec::new();
    for (module, far) in &reached {
        let part: BTreeSet<_> = far.iter().filter(|other| reached[other].contains(*module)).cloned().collect();
        if !part.contains(*module) || found.iter().any(|cycle| cycle.contains_key(*module)) {
            continue;
        }
        let within = |module: &Module| (module.clone(), uses[module].intersection(&part).cloned().collect());
        found.push(part.iter().map(within).collect());
    }
    found
}

/// Returns the modules that can be reached from `from` by one or more uses.
fn reach(from: &Module, uses: &Uses) -> BTreeSet<Module> {
    let mut found = BTreeSet::new();
    let mut next: Vec<_> = uses[from].iter().cloned().collect();
    while let Some(module) = next.pop() {
        if found.insert(module.clone()) {
            next.extend(uses[&module].iter().cloned());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<Vec<String>> {
        let room =
            std::env::temp_dir().join(format!("cycles-{}-{:?}", std::process::id(), std::thread::current().id()));
        for (name, text) in files {
            let path = room.join(name);
            fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            fs::write(path, text).expect("a file");
        }
        let cycles = find(&room).expect("files");
        fs::remove_dir_all(&room).expect("the folder goes");
        cycles.iter().map(|cycle| cycle.keys().map(|module| module.join("::")).collect()).collect()
    }

    #[test]
    fn two_files_that_use_each_other_are_a_cycle_however_they_say_it() {
        let files = [
            ("lib.rs", "mod a; mod b;"),
            ("a.rs", "use crate::{b::{B, C}, c};"),
            ("b.rs", "fn f() -> super::a::A { crate::a::A }"),
        ];
        assert_eq!(found(&files), [["a", "b"]]);
    }

    #[test]
    fn a_longer_way_round_is_one_cycle() {
        let files = [
            ("lib.rs", ""),
            ("a.rs", "use crate::b::B;"),
            ("b.rs", "pub use crate::c;"),
            ("c.rs", "use super::a as other;"),
        ];
        assert_eq!(found(&files), [["a", "b", "c"]]);
    }

    #[test]
    fn a_module_and_its_children_may_use_each_other() {
        let files = [("lib.rs", "use a::A;"), ("a.rs", "mod b; use b::B; use crate::X;"), ("a/b.rs", "use super::A;")];
        assert!(found(&files).is_empty());
    }

    #[test]
    fn comments_and_tests_are_left_out() {
        let a = "// use crate::b::B;\n#[cfg(test)]\nmod tests { use crate::b::B; }";
        assert!(found(&[("lib.rs", ""), ("a.rs", a), ("b.rs", "use crate::a::A;")]).is_empty());
    }
}
