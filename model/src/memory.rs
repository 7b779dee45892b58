//! Memory shared between cores: tables of elements, changed by one operation at a time.

use std::fmt;

/// Maximum number of elements that a table can have in a run of the checker, deleted ones included.
pub const ELEMENTS_MAX: usize = 16;

/// Id of a table, in the order in which the program first used it.
pub type TableId = u8;

/// Kinds of tables: `BPF_MAP_TYPE_…` of linux/bpf.h.
pub mod kind {
    #![allow(missing_docs, reason = "linux/bpf.h names them")]
    pub const HASH: u32 = 1;
    pub const ARRAY: u32 = 2;
    pub const PERCPU_ARRAY: u32 = 6;
    pub const LRU_HASH: u32 = 9;
    pub const LPM_TRIE: u32 = 11;
}

/// A byte range of one element.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Place {
    /// Id of the table.
    pub table: TableId,
    /// Number of the element; in an array, its index.
    pub element: u8,
    /// Offset in the element's value, in bytes.
    pub offset: u16,
    /// Length in bytes.
    pub size: u16,
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}]+{}..{}", self.table, self.element, self.offset, self.offset + self.size)
    }
}

/// One step of a core: an operation on shared memory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Looks a key up.
    Lookup(TableId, Vec<u8>),
    /// Stores a value if the flags (`BPF_ANY`, `BPF_NOEXIST`, `BPF_EXIST`) permit it and the table is not full.
    Update(TableId, Vec<u8>, Vec<u8>, u64),
    /// Deletes a key.
    Delete(TableId, Vec<u8>),
    /// Finds the first live element whose number is at least the given one.
    Next(TableId, u8),
    /// Reads the bytes at a place.
    Read(Place),
    /// Writes to a place. The value becomes known only when the program continues.
    Write(Place),
    /// Adds a number to the value at a place, and returns the previous value.
    Add(Place, u64),
    /// Writes the second number if the value equals the first number. Returns the previous value.
    SwapIf(Place, u64, u64),
    /// Writes a number, and returns the previous value.
    Exchange(Place, u64),
    /// Clears all bits except those set in the number, and returns the previous value.
    And(Place, u64),
    /// Sets the bits that are set in the number, and returns the previous value.
    Or(Place, u64),
    /// Reads the clock.
    Clock,
    /// Advances the clock by this many seconds.
    Tick(u32),
}

/// The kind of a table, and its sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Kind of the table: a constant of [`kind`].
    pub kind: u32,
    /// Length of a key in bytes.
    pub key: usize,
    /// Length of a value in bytes.
    pub value: usize,
    /// Maximum number of live elements.
    pub room: usize,
}

/// An element of a table. When it is deleted or replaced, it remains for cores that still hold it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Element {
    /// Key of the element.
    pub key: Vec<u8>,
    /// Value of the element.
    pub value: Vec<u8>,
    /// Whether a look-up finds the element, which is not the case once it has been deleted or replaced.
    pub live: bool,
}

/// All shared tables, and the clock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Memory {
    /// The time, in Unix seconds.
    pub clock: u32,
    tables: Vec<Vec<Element>>,
}

impl Memory {
    /// Returns the live elements of a table.
    pub fn entries(&self, table: TableId) -> impl Iterator<Item = &Element> {
        self.tables.get(usize::from(table)).into_iter().flatten().filter(|element| element.live)
    }

    /// Stores a value before the run, as user space would. Panics if the table has no room.
    pub fn put(&mut self, table: TableId, shape: Shape, key: &[u8], value: &[u8]) {
        assert_eq!(self.update(table, shape, key, value, 0), 0, "the table has room");
    }

    /// Performs a step, and appends its result to `answers`.
    pub fn perform(&mut self, operation: &Operation, shape: impl Fn(TableId) -> Shape, answers: &mut Vec<u8>) {
        match operation {
            Operation::Lookup(table, key) => answers.push(self.find(*table, key).map_or(0, |element| element + 1)),
            Operation::Update(table, key, value, flags) => {
                answers.push(self.update(*table, shape(*table), key, value, *flags))
            }
            Operation::Delete(table, key) => match self.find(*table, key) {
                Some(element) => {
                    self.element(*table, element).live = false;
                    answers.push(0);
                }
                None => answers.push(1),
            },
            Operation::Next(table, after) => {
                let elements = self.tables.get(usize::from(*table)).map_or(&[][..], Vec::as_slice);
                let next = (usize::from(*after)..elements.len()).find(|element| elements[*element].live);
                answers.push(next.map_or(0, |element| element as u8 + 1));
                if let Some(element) = next {
                    answers.extend(&elements[element].key);
                }
            }
            Operation::Read(place) => answers.extend(self.bytes(*place, &shape)),
            Operation::Write(_) => {}
            Operation::Add(place, by) => self.change(*place, &shape, answers, |was| was.wrapping_add(*by)),
            Operation::SwapIf(place, expected, with) => self
                .change(*place, &shape, answers, |was| if was == masked(*expected, place.size) { *with } else { was }),
            Operation::Exchange(place, with) => self.change(*place, &shape, answers, |_| *with),
            Operation::And(place, with) => self.change(*place, &shape, answers, |was| was & with),
            Operation::Or(place, with) => self.change(*place, &shape, answers, |was| was | with),
            Operation::Clock => answers.extend(self.clock.to_ne_bytes()),
            Operation::Tick(seconds) => self.clock += seconds,
        }
    }

    /// Writes bytes to a place. With this the caller completes an [`Operation::Write`], for which [`Self::perform`]
    /// does nothing.
    pub fn write(&mut self, place: Place, shape: Shape, bytes: &[u8]) {
        self.ensure(place, shape);
        let at = usize::from(place.offset);
        self.element(place.table, place.element).value[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn change(
        &mut self,
        place: Place,
        shape: &impl Fn(TableId) -> Shape,
        answers: &mut Vec<u8>,
        to: impl Fn(u64) -> u64,
    ) {
        let mut word = [0; 8];
        let before = self.bytes(place, shape);
        word[..before.len()].copy_from_slice(&before);
        let after = to(u64::from_ne_bytes(word)).to_ne_bytes();
        self.write(place, shape(place.table), &after[..before.len()]);
        answers.extend(before);
    }

    fn bytes(&self, place: Place, shape: &impl Fn(TableId) -> Shape) -> Vec<u8> {
        let element = self.tables.get(usize::from(place.table)).and_then(|table| table.get(usize::from(place.element)));
        let (from, size) = (usize::from(place.offset), usize::from(place.size));
        match element {
            Some(element) => element.value[from..from + size].to_vec(),
            None => {
                assert_eq!(
                    shape(place.table).kind,
                    kind::ARRAY,
                    "elements of a hash table are put before they are read"
                );
                vec![0; size]
            }
        }
    }

    fn find(&self, table: TableId, key: &[u8]) -> Option<u8> {
        let elements = self.tables.get(usize::from(table))?;
        elements.iter().position(|element| element.live && element.key == key).map(|element| element as u8)
    }

    fn update(&mut self, table: TableId, shape: Shape, key: &[u8], value: &[u8], flags: u64) -> u8 {
        const NOEXIST: u64 = 1;
        const EXIST: u64 = 2;
        if shape.kind == kind::ARRAY {
            let index = u32::from_ne_bytes(key.try_into().expect("an array's key is a number")) as u8;
            self.write(Place { table, element: index, offset: 0, size: value.len() as u16 }, shape, value);
            return 0;
        }
        let old = self.find(table, key);
        if (flags == NOEXIST && old.is_some()) || (flags == EXIST && old.is_none()) {
            return 1;
        }
        if old.is_none() && self.entries(table).count() >= shape.room {
            return 2;
        }
        if let Some(old) = old {
            self.element(table, old).live = false;
        }
        let elements = self.table(table);
        elements.push(Element { key: key.to_vec(), value: value.to_vec(), live: true });
        assert!(elements.len() <= ELEMENTS_MAX, "a run of the checker makes few elements");
        0
    }

    fn ensure(&mut self, place: Place, shape: Shape) {
        if shape.kind == kind::ARRAY {
            let elements = self.table(place.table);
            while elements.len() <= usize::from(place.element) {
                let key = (elements.len() as u32).to_ne_bytes().to_vec();
                elements.push(Element { key, value: vec![0; shape.value], live: true });
            }
        }
    }

    fn table(&mut self, table: TableId) -> &mut Vec<Element> {
        let index = usize::from(table);
        if self.tables.len() <= index {
            self.tables.resize_with(index + 1, Vec::new);
        }
        &mut self.tables[index]
    }

    fn element(&mut self, table: TableId, element: u8) -> &mut Element {
        &mut self.tables[usize::from(table)][usize::from(element)]
    }
}

fn masked(value: u64, size: u16) -> u64 {
    if size >= 8 { value } else { value & ((1 << (8 * size)) - 1) }
}
