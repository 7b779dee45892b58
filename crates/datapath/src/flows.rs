//! The table of admitted flows, which consists of one kernel map for each address family.

use crate::table::Table;
use anyhow::Result;
use wire::map::{Flow, FlowKey, FlowKey4};

/// The table of admitted flows.
pub struct Flows {
    four: Table<FlowKey4, Flow>,
    six: Table<FlowKey, Flow>,
}

impl Flows {
    pub(crate) fn new(four: Table<FlowKey4, Flow>, six: Table<FlowKey, Flow>) -> Self {
        Self { four, six }
    }

    /// Returns the flow at `key`, if there is one.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses access to a map.
    pub fn get(&self, key: &FlowKey) -> Result<Option<Flow>> {
        match FlowKey4::of(key) {
            Some(short) => self.four.get(&short),
            None => self.six.get(key),
        }
    }

    /// Writes `flow` at `key` unless the table has a flow there. Returns whether `flow` was written.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses access to a map, or if the table is full.
    pub fn insert(&self, key: &FlowKey, flow: &Flow) -> Result<bool> {
        match FlowKey4::of(key) {
            Some(short) => self.four.insert(&short, flow),
            None => self.six.insert(key, flow),
        }
    }

    /// Removes the inside addresses from all flows. This is necessary when they belong to another pool.
    pub(crate) fn forget_inside(&self) -> Result<()> {
        for (key, flow) in self.entries().into_iter().filter(|(_, flow)| flow.inside != 0) {
            let flow = Flow { inside: 0, inside_port: [0; 2], ..flow };
            match FlowKey4::of(&key) {
                Some(short) => self.four.set(&short, &flow)?,
                None => self.six.set(&key, &flow)?,
            }
        }
        Ok(())
    }

    /// Ends `flow` at `key`, but leaves the entry [`Flow::over`] in its place. On a gateway, this entry keeps answers
    /// from the inside from opening the flow again.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses access to a map.
    pub fn end(&self, key: &FlowKey, flow: Flow, now: u32) -> Result<()> {
        match FlowKey4::of(key) {
            Some(short) => self.four.set(&short, &flow.over(now)),
            None => self.six.set(key, &flow.over(now)),
        }
    }

    /// Removes the flow at `key`, if there is one.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses access to a map.
    pub fn remove(&self, key: &FlowKey) -> Result<()> {
        match FlowKey4::of(key) {
            Some(short) => self.four.remove(&short),
            None => self.six.remove(key),
        }
    }

    /// Returns the keys of all flows. The result may lack the key of a flow that begins or ends during the call.
    pub fn keys(&self) -> Vec<FlowKey> {
        let mut keys: Vec<_> = self.four.keys().iter().map(FlowKey4::long).collect();
        keys.extend(self.six.keys());
        keys
    }

    /// Returns all flows with their keys. The result may lack a flow that begins or ends during the call.
    pub fn entries(&self) -> Vec<(FlowKey, Flow)> {
        let mut entries: Vec<_> = self.four.entries().iter().map(|(key, flow)| (key.long(), *flow)).collect();
        entries.extend(self.six.entries());
        entries
    }

    /// Returns the maximum number of flows. It applies to each address family separately.
    pub fn capacity(&self) -> u32 {
        self.four.capacity()
    }
}
