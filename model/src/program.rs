//! The kernel program, compiled for this machine. It runs up to its next operation on shared memory.

use crate::memory::{ELEMENTS_MAX, Operation, Place, Shape, TableId, kind};
use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::{fs, mem, ptr, slice};
use wire::map::{Flow, VerifierConfig, counter};
use zerocopy::IntoBytes;

const ELEMENT_LENGTH: usize = 1 << 14;
const TABLE_LENGTH: usize = ELEMENT_LENGTH * ELEMENTS_MAX;
const TABLES_MAX: usize = 64;
const FRAME_ROOM: usize = 2048;
/// File name of the compiled program.
const LIBRARY: &str = "program.so";

/// A change to the program's source before compilation, by which a test restores an earlier bug.
#[derive(Clone, Copy, Debug)]
pub struct Edit {
    /// The file, relative to `bpf/`.
    pub file: &'static str,
    /// The text to replace, which must occur exactly once.
    pub from: &'static str,
    /// The text that replaces `from`.
    pub to: &'static str,
}

/// Layout of `struct operation` in c/operations.h.
#[repr(C)]
struct RawOperation {
    kind: u32,
    size: u32,
    table: *const c_void,
    map_kind: u32,
    key_size: u32,
    value_size: u32,
    address: *mut u8,
    key: *const u8,
    value: *mut u8,
    argument: u64,
    expected: u64,
    result: u64,
}

type Admit = unsafe extern "C" fn(*mut c_void, Operate, *mut u8, u32, u32) -> c_int;
type Sweep = unsafe extern "C" fn(*mut c_void, Operate, *mut c_void) -> c_int;
type Begin = unsafe extern "C" fn(*mut c_void, u64);
type Configure = unsafe extern "C" fn(*mut c_void, *const u8, u64) -> c_int;
type Operate = unsafe extern "C" fn(*mut c_void, *mut RawOperation) -> c_int;

#[derive(Clone, Debug)]
struct Table {
    address: usize,
    name: String,
    shape: Shape,
    constant: bool,
}

/// Contents of tables that no core changes, by the table's name. User space would have filled these tables before.
pub type Constants = BTreeMap<&'static str, Vec<(Vec<u8>, Vec<u8>)>>;

/// A compiled program, loaded into this process.
pub struct Program {
    library: *mut c_void,
    admit: Admit,
    sweep: Sweep,
    begin: Begin,
    tables: Mutex<Vec<Table>>,
    constants: Constants,
    room: BTreeMap<&'static str, usize>,
}

// SAFETY: the library's state is thread-local, except for the settings, which never change after loading.
unsafe impl Send for Program {}
// SAFETY: besides the state that makes it `Send`, threads share the list of tables, which is behind a lock.
unsafe impl Sync for Program {}

/// An entry point of the program, with its input.
#[derive(Clone, Copy, Debug)]
pub enum Entry<'a> {
    /// Admission of a frame.
    Admit(&'a [u8]),
    /// The sweep at this time, in Unix seconds.
    Sweep(u32),
}

/// How a run ended.
#[derive(Clone, Debug)]
pub enum Ran {
    /// The run stopped at this operation, which has no answer yet.
    Stopped(Operation),
    /// The run finished. For a frame, the number is that of its outcome's counter.
    Done(u8),
}

impl Program {
    /// Compiles `bpf/verifier.bpf.c` with these edits, and loads it. `room` limits the number of live elements of the
    /// tables that it names.
    ///
    /// # Errors
    ///
    /// Fails if an edit does not apply, or if clang fails.
    pub fn new(
        edits: &[Edit],
        config: VerifierConfig,
        constants: Constants,
        room: BTreeMap<&'static str, usize>,
    ) -> Result<Self> {
        let folder = tempfile::tempdir().context("cannot make a folder")?;
        // A library that is loaded twice from one file would have its settings only once.
        let path = folder.path().join(LIBRARY);
        fs::write(&path, compiled(edits)?)?;
        let path = CString::new(path.into_os_string().into_encoded_bytes())?;
        // SAFETY: this process has compiled the library, which runs no code when it is loaded.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        ensure!(!handle.is_null(), "cannot load the compiled program: {}", dl_error());
        let program = Self {
            library: handle,
            // SAFETY: c/runtime.c defines `model_admit` with this type.
            admit: unsafe { mem::transmute::<*mut c_void, Admit>(symbol(handle, "model_admit")?) },
            // SAFETY: c/runtime.c defines `model_sweep` with this type.
            sweep: unsafe { mem::transmute::<*mut c_void, Sweep>(symbol(handle, "model_sweep")?) },
            // SAFETY: c/runtime.c defines `model_begin` with this type.
            begin: unsafe { mem::transmute::<*mut c_void, Begin>(symbol(handle, "model_begin")?) },
            tables: Mutex::default(),
            constants,
            room,
        };
        // SAFETY: c/runtime.c defines `model_configure` with this type.
        let configure = unsafe { mem::transmute::<*mut c_void, Configure>(symbol(handle, "model_configure")?) };
        let bytes = config.as_bytes();
        // SAFETY: `config` in bpf/include/config.h has the layout of `VerifierConfig`.
        let done = unsafe { configure(symbol(handle, "config")?, bytes.as_ptr(), bytes.len() as u64) };
        ensure!(done == 0, "cannot set the program's settings");
        Ok(program)
    }

    /// Returns the id of the table that has this name in the C code.
    ///
    /// # Errors
    ///
    /// Fails if the C code has no table with this name.
    pub fn table(&self, name: &str, shape: Shape) -> Result<TableId> {
        let address = symbol(self.library, name)?;
        Ok(self.note(address, shape))
    }

    /// Returns a table's shape.
    pub fn shape(&self, table: TableId) -> Shape {
        self.with(table, |table| table.shape)
    }

    /// Returns a table's name.
    pub fn name(&self, table: TableId) -> String {
        self.with(table, |table| table.name.clone())
    }

    /// Runs the program from its beginning. Repeats the first `performed` operations with their earlier results,
    /// `answers`, and stops at the next operation or at the program's end. If the last repeated operation was a write,
    /// also returns the written bytes.
    pub fn run(&self, entry: Entry<'_>, performed: u16, answers: &[u8]) -> (Ran, Option<(Place, Vec<u8>)>) {
        GROUND.with(|ground| {
            // SAFETY: the memory is this thread's, for as long as the thread lives.
            unsafe { (self.begin)(ground.elements.cast(), (TABLE_LENGTH * TABLES_MAX) as u64) };
            let mut run = Run {
                program: self,
                ground,
                left: performed,
                answers,
                at: 0,
                stopped: None,
                written: None,
                own: Vec::new(),
            };
            let context = ptr::from_mut(&mut run).cast();
            let code = match entry {
                Entry::Admit(frame) => {
                    assert!(frame.len() <= FRAME_ROOM);
                    // SAFETY: the frame's memory is this thread's and long enough.
                    unsafe { ptr::copy_nonoverlapping(frame.as_ptr(), ground.frame, frame.len()) };
                    // SAFETY: `context` and the frame outlive the call.
                    unsafe { (self.admit)(context, operate, ground.frame, frame.len() as u32, FRAME_ROOM as u32) }
                }
                Entry::Sweep(now) => {
                    let mut pass = [0u32; 16];
                    // The clock does not jump, so everything that has expired by now may be removed.
                    (pass[0], pass[1]) = (now, now);
                    // SAFETY: `context` outlives the call, and the pass is longer than the program's structure.
                    unsafe { (self.sweep)(context, operate, pass.as_mut_ptr().cast()) }
                }
            };
            let written = run.written.map(|place| (place, run.ground.element_bytes(place).to_vec()));
            let ran = match run.stopped {
                Some(operation) => Ran::Stopped(operation),
                None if matches!(entry, Entry::Sweep(_)) => Ran::Done(0),
                None => Ran::Done(run.outcome().unwrap_or_else(|| panic!("no counter moved; the program gave {code}"))),
            };
            (ran, written)
        })
    }

    fn with<T>(&self, table: TableId, read: impl FnOnce(&Table) -> T) -> T {
        read(&self.tables.lock().expect("no run panics while it holds this")[usize::from(table)])
    }

    fn note(&self, address: *const c_void, mut shape: Shape) -> TableId {
        let mut tables = self.tables.lock().expect("no run panics while it holds this");
        let address = address as usize;
        if let Some(known) = tables.iter().position(|table| table.address == address) {
            return known as TableId;
        }
        let name = name_of(address).expect("a table has a symbol");
        let constant = self.constants.contains_key(name.as_str());
        shape.room = self.room.get(name.as_str()).copied().unwrap_or(ELEMENTS_MAX);
        tables.push(Table { address, name, shape, constant });
        assert!(tables.len() <= TABLES_MAX);
        (tables.len() - 1) as TableId
    }
}

/// Memory that one thread needs to run programs.
struct Ground {
    /// Elements of shared tables, as seen by the current run.
    elements: *mut u8,
    /// Elements of per-core tables.
    own: *mut u8,
    /// The frame. It is below 2^32, because the fields of a program's context have 32 bits.
    frame: *mut u8,
}

thread_local! {
    static GROUND: Ground = Ground {
        elements: map(TABLE_LENGTH * TABLES_MAX, 0),
        own: map(TABLE_LENGTH * TABLES_MAX, 0),
        frame: map(FRAME_ROOM, libc::MAP_32BIT),
    };
}

impl Ground {
    fn element_bytes(&self, place: Place) -> &[u8] {
        // SAFETY: a place is inside the thread's elements.
        unsafe { slice::from_raw_parts(self.elements.add(offset_of(place)), place.size.into()) }
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        // SAFETY: the three were mapped with these lengths, and the thread is ending.
        unsafe {
            libc::munmap(self.elements.cast(), TABLE_LENGTH * TABLES_MAX);
            libc::munmap(self.own.cast(), TABLE_LENGTH * TABLES_MAX);
            libc::munmap(self.frame.cast(), FRAME_ROOM);
        }
    }
}

fn map(length: usize, flags: c_int) -> *mut u8 {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | flags;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let place = unsafe { libc::mmap(ptr::null_mut(), length, protection, flags, -1, 0) };
    assert!(place != libc::MAP_FAILED, "no memory for the model");
    place.cast()
}

fn offset_of(place: Place) -> usize {
    usize::from(place.table) * TABLE_LENGTH + usize::from(place.element) * ELEMENT_LENGTH + usize::from(place.offset)
}

struct Run<'a> {
    program: &'a Program,
    ground: &'a Ground,
    /// Number of operations whose answers remain to be replayed.
    left: u16,
    answers: &'a [u8],
    at: usize,
    stopped: Option<Operation>,
    written: Option<Place>,
    /// The per-core tables that the run has looked up.
    own: Vec<TableId>,
}

unsafe extern "C" fn operate(run: *mut c_void, operation: *mut RawOperation) -> c_int {
    // SAFETY: `Program::run` passes both pointers, and outlives this call.
    let (run, raw) = unsafe { (&mut *run.cast::<Run<'_>>(), &mut *operation) };
    c_int::from(run.operate(raw).is_none())
}

impl Run<'_> {
    /// Performs an operation; `None` if the run stops here.
    fn operate(&mut self, raw: &mut RawOperation) -> Option<()> {
        let operation = match self.operation(raw) {
            Ok(operation) => operation,
            Err(()) => return Some(()),
        };
        if self.left == 0 {
            self.stopped = Some(operation);
            return None;
        }
        self.left -= 1;
        match operation {
            Operation::Lookup(table, _) => {
                let found = self.take(1)[0];
                raw.address = if found == 0 { ptr::null_mut() } else { self.element(table, found - 1) };
            }
            Operation::Update(..) | Operation::Delete(..) => raw.result = self.take(1)[0].into(),
            Operation::Next(table, _) => {
                let found = self.take(1)[0];
                raw.result = found.into();
                raw.address = ptr::null_mut();
                if found != 0 {
                    let key = self.take(self.program.shape(table).key).to_vec();
                    // SAFETY: c/runtime.c provides room for the longest key.
                    unsafe { ptr::copy_nonoverlapping(key.as_ptr(), raw.value, key.len()) };
                    raw.address = self.element(table, found - 1);
                }
            }
            Operation::Read(place) => {
                let bytes = self.take(place.size.into());
                // SAFETY: the place is inside this thread's elements.
                unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), raw.address, bytes.len()) };
            }
            Operation::Write(place) => self.written = (self.left == 0).then_some(place),
            Operation::Clock => {
                raw.result = u32::from_ne_bytes(self.take(4).try_into().expect("four bytes")).into();
            }
            _ => {
                let mut word = [0; 8];
                let bytes = self.take(raw.size as usize);
                word[..bytes.len()].copy_from_slice(bytes);
                raw.result = u64::from_ne_bytes(word);
            }
        }
        Some(())
    }

    /// Returns the operation that the program requests. Returns an error if the operation was performed at once,
    /// because it concerns nothing that cores share.
    fn operation(&mut self, raw: &mut RawOperation) -> Result<Operation, ()> {
        let shape = Shape {
            kind: raw.map_kind,
            key: raw.key_size as usize,
            value: raw.value_size as usize,
            room: ELEMENTS_MAX,
        };
        if raw.kind <= 3 {
            let table = self.program.note(raw.table, shape);
            let shape = self.program.shape(table);
            // SAFETY: the program passes a key of the table's length, or none when it iterates over all elements.
            let key = if raw.key.is_null() { &[] } else { unsafe { slice::from_raw_parts(raw.key, shape.key) } };
            return match raw.kind {
                0 => self.lookup(table, shape, key, raw),
                1 => {
                    // SAFETY: the program passes a value of the table's length.
                    let value = unsafe { slice::from_raw_parts(raw.value, shape.value) };
                    Ok(Operation::Update(table, key.to_vec(), value.to_vec(), raw.argument))
                }
                2 => Ok(Operation::Delete(table, key.to_vec())),
                _ => Ok(Operation::Next(table, raw.argument as u8)),
            };
        }
        if raw.kind == 11 {
            return Ok(Operation::Clock);
        }
        let at = raw.address as usize - self.ground.elements as usize;
        let place = Place {
            table: (at / TABLE_LENGTH) as TableId,
            element: (at % TABLE_LENGTH / ELEMENT_LENGTH) as u8,
            offset: (at % ELEMENT_LENGTH) as u16,
            size: raw.size as u16,
        };
        if self.program.with(place.table, |table| table.name.starts_with("flows")) && is_statistics(place.offset) {
            return Err(());
        }
        Ok(match raw.kind {
            4 => Operation::Read(place),
            5 => Operation::Write(place),
            6 => Operation::Add(place, raw.argument),
            7 => Operation::SwapIf(place, raw.expected, raw.argument),
            8 => Operation::Exchange(place, raw.argument),
            9 => Operation::And(place, raw.argument),
            _ => Operation::Or(place, raw.argument),
        })
    }

    fn lookup(&mut self, table: TableId, shape: Shape, key: &[u8], raw: &mut RawOperation) -> Result<Operation, ()> {
        let index = || u32::from_ne_bytes(key.try_into().expect("an array's key is a number")) as usize;
        if self.program.with(table, |table| table.constant) {
            let name = self.program.name(table);
            raw.address = self.program.constants[name.as_str()]
                .iter()
                .filter(|(known, _)| if shape.kind == kind::LPM_TRIE { is_around(known, key) } else { known == key })
                .max_by_key(|(known, _)| known.first_chunk().map(|length| u32::from_ne_bytes(*length)))
                .map_or(ptr::null_mut(), |(_, value)| value.as_ptr().cast_mut());
            return Err(());
        }
        match shape.kind {
            kind::PERCPU_ARRAY => {
                // SAFETY: each table has its part of the thread's own memory, which is longer than the few per-core
                // tables.
                let own = unsafe { self.ground.own.add(usize::from(table) * TABLE_LENGTH) };
                if !self.own.contains(&table) {
                    self.own.push(table);
                    // SAFETY: the write stays inside the table's part.
                    unsafe { ptr::write_bytes(own, 0, shape.value * counter::COUNT as usize) };
                }
                // SAFETY: the entry is inside the table's part.
                raw.address = unsafe { own.add(index() * shape.value) };
                Err(())
            }
            kind::ARRAY => {
                assert!(index() < ELEMENTS_MAX, "{}: element {}", self.program.name(table), index());
                raw.address = self.element(table, index() as u8);
                Err(())
            }
            _ => Ok(Operation::Lookup(table, key.to_vec())),
        }
    }

    fn take(&mut self, count: usize) -> &[u8] {
        self.at += count;
        &self.answers[self.at - count..self.at]
    }

    fn element(&self, table: TableId, element: u8) -> *mut u8 {
        // SAFETY: there is room for that many elements and tables.
        unsafe { self.ground.elements.add(offset_of(Place { table, element, offset: 0, size: 0 })) }
    }

    /// Returns the counter that the run increased.
    fn outcome(&self) -> Option<u8> {
        let of = |name: &str| self.own.iter().find(|table| self.program.name(**table) == name);
        if let Some(cores) = of("cores") {
            // SAFETY: the table was looked up in this run, so its first number exists: packets that the fast path
            // settled.
            let settled = unsafe { *self.ground.own.add(usize::from(*cores) * TABLE_LENGTH).cast::<u64>() };
            if settled != 0 {
                return Some(counter::FLOW as u8);
            }
        }
        let table = of("counters")?;
        // SAFETY: the table was looked up in this run, so its counters exist.
        let counters = unsafe {
            let own = self.ground.own.add(usize::from(*table) * TABLE_LENGTH).cast::<u64>();
            slice::from_raw_parts(own, counter::COUNT as usize)
        };
        let moved = |index: &u32| *index != counter::SAMPLES_LOST && counters[*index as usize] != 0;
        (0..counter::COUNT).find(moved).map(|index| index as u8)
    }
}

/// Reports whether no decision depends on this field of a flow. Such a field would only give the model more states.
fn is_statistics(offset: u16) -> bool {
    let of = |from: usize, length: usize| (from..from + length).contains(&usize::from(offset));
    of(mem::offset_of!(Flow, bytes), 8) || of(mem::offset_of!(Flow, packets), 8) || of(mem::offset_of!(Flow, since), 4)
}

/// Reports whether a prefix, given as length and address, covers the address of `key`.
fn is_around(prefix: &[u8], key: &[u8]) -> bool {
    let length = prefix.first_chunk().map_or(0, |length| u32::from_ne_bytes(*length));
    let bit = |bytes: &[u8], bit: u32| bytes[4 + bit as usize / 8] >> (7 - bit % 8) & 1;
    (0..length).all(|index| bit(prefix, index) == bit(key, index))
}

/// Returns the compiled program, a shared library. The program without edits, which most tests need, is compiled once.
fn compiled(edits: &[Edit]) -> Result<Vec<u8>> {
    static UNEDITED: Mutex<Option<Vec<u8>>> = Mutex::new(None);
    if !edits.is_empty() {
        return compile(edits);
    }
    let mut unedited = UNEDITED.lock().unwrap_or_else(PoisonError::into_inner);
    match &*unedited {
        Some(library) => Ok(library.clone()),
        None => Ok(unedited.insert(compile(edits)?).clone()),
    }
}

/// Compiles the program, and returns the contents of the library.
fn compile(edits: &[Edit]) -> Result<Vec<u8>> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let built = tempfile::tempdir().context("cannot make a folder")?;
    let folder = built.path().to_owned();
    let sources = here.join("../bpf");
    let mut edits: Vec<_> = edits.iter().collect();
    for part in ["", "include"] {
        fs::create_dir_all(folder.join(part))?;
        for entry in fs::read_dir(sources.join(part))? {
            let entry = entry?;
            if !entry.file_type()?.is_file() {
                continue;
            }
            let name = Path::new(part).join(entry.file_name());
            let Ok(mut text) = fs::read_to_string(entry.path()) else { continue };
            for edit in edits.extract_if(.., |edit| Path::new(edit.file) == name) {
                ensure!(
                    text.matches(edit.from).count() == 1,
                    "{}: the text to replace must occur exactly once: {}",
                    edit.file,
                    edit.from
                );
                text = text.replace(edit.from, edit.to);
            }
            // Leave out the bounds for the kernel's verifier, which are in its assembly language.
            let lines = text.lines().filter(|line| !line.contains("asm volatile("));
            fs::write(folder.join(&name), lines.collect::<Vec<_>>().join("\n"))?;
        }
    }
    ensure!(edits.is_empty(), "bpf/ and bpf/include have no file for these edits: {edits:?}");
    let clang = |arguments: &[&str]| -> Result<()> {
        let output = Command::new("clang").args(arguments).current_dir(&folder).output();
        let output = output.context("cannot run clang (is it installed?)")?;
        if !output.status.success() {
            bail!("clang {}\n{}", arguments.join(" "), String::from_utf8_lossy(&output.stderr));
        }
        Ok(())
    };
    let runtime = here.join("c");
    let (include, runtime) = (format!("-I{}", runtime.display()), runtime.join("runtime.c").display().to_string());
    let common = ["-O2", "-fPIC", "-fno-vectorize", "-fno-slp-vectorize", &include, "-c"];
    let sanitized = ["-Iinclude", "-fsanitize=thread", "-mllvm", "-tsan-instrument-read-before-write"];
    clang(&[&common[..], &sanitized, &["verifier.bpf.c", "-o", "program.o"]].concat())?;
    clang(&[&common[..], &[&runtime, "-o", "runtime.o"]].concat())?;
    let wrapped = ["-shared", "-Wl,-Bsymbolic", "-Wl,--wrap=memcpy", "-Wl,--wrap=memset", "-Wl,-z,defs"];
    clang(&[&wrapped[..], &["program.o", "runtime.o", "-o", LIBRARY]].concat())?;
    Ok(fs::read(folder.join(LIBRARY))?)
}

fn symbol(library: *mut c_void, name: &str) -> Result<*mut c_void> {
    let text = CString::new(name)?;
    // SAFETY: the library stays loaded.
    let found = unsafe { libc::dlsym(library, text.as_ptr()) };
    ensure!(!found.is_null(), "the program has no {name}: {}", dl_error());
    Ok(found)
}

fn name_of(address: usize) -> Option<String> {
    let mut info = mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: the dynamic linker fills in `info`; a name is a valid string as long as the library is loaded.
    unsafe {
        (libc::dladdr(address as *const c_void, info.as_mut_ptr()) != 0).then_some(())?;
        let name: *const c_char = info.assume_init().dli_sname;
        (!name.is_null()).then(|| CStr::from_ptr(name).to_string_lossy().into_owned())
    }
}

fn dl_error() -> String {
    // SAFETY: the text is valid until the next call of this family on this thread.
    unsafe {
        let text = libc::dlerror();
        if text.is_null() { String::new() } else { CStr::from_ptr(text).to_string_lossy().into_owned() }
    }
}
