//! Holds the entries of all lists in memory, and follows the file of lists.

use super::entry::{Group, Terms};
use super::store::Store;
use crate::Directory;
use anyhow::{Context, Result};
use engine::policy::Action;
use engine::policy::lists::{Entry, List, Lists, Names, sender};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

/// Follows the file of lists.
pub struct Follower {
    directory: Directory,
    store: Option<Store>,
    /// The value of `Store::version` when the file was last read; `None` if it was not read yet.
    version: Option<i64>,
    state: State,
}

/// The content that was read from the file.
#[derive(Clone, Default)]
struct State {
    names: Arc<Names>,
    /// The highest number that any name has.
    last_name: u32,
    /// The number of sweeps, each of which has deleted names.
    sweeps: i64,
    lists: Lists,
    generations: BTreeMap<String, i64>,
    /// The number of the last change.
    revision: i64,
}

/// The people whose access a change of the lists possibly ends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Touched {
    /// The people about whom entries changed.
    pub persons: BTreeSet<String>,
    /// Whether other people can be concerned, too.
    pub all: bool,
}

impl Follower {
    /// Creates a follower that has read nothing yet.
    pub fn new(directory: Directory) -> Self {
        Self { directory, store: None, version: None, state: State::default() }
    }

    /// Returns all lists, and the people whom the changes since the last call possibly concern. Returns `None` if
    /// nothing changed.
    ///
    /// # Errors
    /// Fails if the file cannot be read or is damaged. The next call tries again.
    pub fn follow(&mut self) -> Result<Option<(Lists, Touched)>> {
        if self.store.is_none() {
            self.store = Store::open(&self.directory)?;
        }
        let Some(store) = &self.store else { return Ok(None) };
        let version = store.version()?;
        if self.version == Some(version) {
            return Ok(None);
        }
        // All that follows reads the same state of the file.
        let snapshot = store.connection.unchecked_transaction()?;
        let (state, touched) = self.state.next(store)?;
        drop(snapshot);
        let lists = state.lists.clone();
        (self.state, self.version) = (state, Some(version));
        Ok(Some((lists, touched)))
    }

    /// Returns the number of names in memory.
    #[cfg(test)]
    pub(super) fn names(&self) -> usize {
        self.state.names.count()
    }

    /// If there are many changes, merges them into the rows of their addresses. Stops at the time `until`.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn fold(&mut self, until: Instant) -> Result<()> {
        let through = self.state.revision;
        self.store.as_mut().map_or(Ok(()), |store| store.fold(through, until))
    }

    /// Reports whether the audit trail lacks changes of the lists.
    ///
    /// # Errors
    /// Fails if the file cannot be read.
    pub fn is_unaudited(&self) -> Result<bool> {
        self.store.as_ref().map_or(Ok(false), Store::is_unaudited)
    }

    /// Reads all lists, but only those of their entries that apply to `addresses`. These suffice to decide requests for
    /// these addresses.
    ///
    /// # Errors
    /// Fails if the file cannot be read.
    pub fn about(directory: &Directory, addresses: impl IntoIterator<Item = IpAddr>) -> Result<Lists> {
        let mut lists = Lists::default();
        let Some(store) = Store::open(directory)? else { return Ok(lists) };
        let _snapshot = store.connection.unchecked_transaction()?;
        let names = Arc::<Names>::default();
        for (list, _) in store.generations()? {
            lists.insert(list, List::new(names.clone()));
        }
        let mut known = BTreeSet::new();
        for address in addresses.into_iter().collect::<BTreeSet<_>>() {
            for (list, generation, net) in store.around(address)? {
                if !known.insert((generation, net)) {
                    continue;
                }
                let groups = store.groups(generation, &super::entry::key(net), i64::MAX)?;
                for number in groups.iter().flat_map(|group| &group.senders).filter(|number| **number > 0) {
                    names.insert(known_sender(*number)?, &store.name(*number)?);
                }
                let list = lists.get_mut(&list).context("the list exists")?;
                list.load(net, &entries(&groups)?)?;
            }
        }
        Ok(lists)
    }
}

impl State {
    /// Returns the state of the file, and what differs from this state.
    fn next(&self, store: &Store) -> Result<(Self, Touched)> {
        let mut next = self.clone();
        let mut touched = Touched::default();
        let sweeps = store.sweeps()?;
        if sweeps != self.sweeps {
            // The former names stay in memory until nobody has the former lists any more.
            (next.names, next.last_name, next.sweeps) = (Arc::default(), 0, sweeps);
            next.lists.set_names(&next.names);
        }
        store.names(next.last_name, |number, name| {
            // A number that is too high is an error as soon as an entry has it.
            if let Some(sender) = sender(number) {
                next.names.insert(sender, name);
            }
            next.last_name = next.last_name.max(number);
        })?;
        next.generations = store.generations()?.into_iter().collect();
        next.revision = store.revision()?;
        let mut loaded = BTreeSet::new();
        for (name, generation) in &next.generations {
            if self.generations.get(name) == Some(generation) {
                continue;
            }
            let mut list = List::new(next.names.clone());
            store.all(*generation, |to, groups| Ok(list.load(to, &entries(&groups)?)?))?;
            tracing::info!(list = %name, entries = list.len(), "read a list");
            next.lists.insert(name.clone(), list);
            loaded.insert(*generation);
            touched.all = true;
        }
        if self.generations.keys().any(|name| !next.generations.contains_key(name)) {
            next.lists.retain(|name| next.generations.contains_key(name));
            touched.all = true;
        }
        // Lists that were just loaded contain their changes already.
        let after = if loaded.len() == next.generations.len() { next.revision } else { self.revision };
        let by_generation: HashMap<i64, &String> =
            next.generations.iter().map(|(name, generation)| (*generation, name)).collect();
        let (lists, mut senders) = (&mut next.lists, BTreeSet::new());
        store.changes(after, |change| {
            let name = by_generation.get(&change.generation).filter(|_| !loaded.contains(&change.generation));
            let Some(name) = name else { return Ok(()) };
            let list = lists.get_mut(name).context("INVARIANT: the list was read")?;
            match change.terms {
                Some(terms) => list.put(change.receiver, &entry(change.sender, &terms)?)?,
                None => {
                    list.remove(change.receiver, known_sender(change.sender)?);
                }
            }
            senders.insert(change.sender);
            Ok(())
        })?;
        for sender in senders {
            let name = store.name(sender)?;
            if let Some(person) = name.strip_prefix("person:") {
                touched.persons.insert(person.to_owned());
            } else {
                touched.all = true;
            }
        }
        Ok((next, touched))
    }
}

fn entries(groups: &[Group]) -> Result<Vec<Entry>> {
    let all = groups.iter().flat_map(|group| group.senders.iter().map(|sender| entry(*sender, &group.terms)));
    all.collect()
}

fn entry(sender: u32, terms: &Terms) -> Result<Entry> {
    let action = if terms.deny { Action::Deny } else { Action::Allow };
    let Terms { priority, revision, .. } = *terms;
    Ok(Entry { sender: known_sender(sender)?, action, priority, revision, until: terms.until() })
}

fn known_sender(number: u32) -> Result<engine::policy::rulebook::Sender> {
    sender(number).context("the file of lists has a sender with a number that is too high")
}
