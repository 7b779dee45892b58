//! Cores that run scripts of jobs, in every order of their operations, and the properties that must hold in every
//! order.

use crate::memory::{Memory, Operation, Place, Shape, TableId, kind};
use crate::program::{Entry, Program, Ran};
use anyhow::Result;
use stateright::{Checker, Model, Property};
use std::fmt;
use std::io::Write;
use std::time::Instant;
use wire::map::{AccountUse, Flow, FlowKey, FlowKey4, GrantUse, ReplayBucket, RevokedKey, counter, stage};
use wire::packet::Packet;
use zerocopy::{FromBytes, IntoBytes};

/// A job of a core. A core runs its jobs in order.
#[derive(Clone, Debug)]
pub enum Job {
    /// Processes an incoming frame.
    Frame(Vec<u8>),
    /// Runs the sweep, as user space does.
    Sweep,
    /// Writes a value into a table, as user space does.
    Put(TableId, Vec<u8>, Vec<u8>),
    /// Advances the clock by this many seconds.
    Tick(u32),
}

/// The tables of the verifier's program to which the properties refer.
#[derive(Clone, Copy, Debug)]
pub struct Tables {
    /// Flows over IPv4.
    pub flows: TableId,
    /// Grants in use.
    pub grants: TableId,
    /// Each account's use of shared tables.
    pub accounts: TableId,
    /// The table of revoked grants.
    pub revoked: TableId,
    /// The table of ended sessions.
    pub ended: TableId,
    /// Tokens that have been used.
    pub replays: TableId,
}

impl Tables {
    /// Looks up the tables of this program.
    ///
    /// # Errors
    /// Fails if the program lacks one of these tables.
    pub fn of(program: &Program) -> Result<Self> {
        fn shape<K, V>(kind: u32) -> Shape {
            Shape { kind, key: size_of::<K>(), value: size_of::<V>(), room: 0 }
        }
        Ok(Self {
            flows: program.table("flows4", shape::<FlowKey4, Flow>(kind::HASH))?,
            grants: program.table("grants", shape::<u64, GrantUse>(kind::HASH))?,
            accounts: program.table("accounts", shape::<u32, AccountUse>(kind::HASH))?,
            revoked: program.table("revoked", shape::<u64, u32>(kind::HASH))?,
            ended: program.table("revoked_holders", shape::<RevokedKey, u32>(kind::HASH))?,
            replays: program.table("replays", shape::<u32, ReplayBucket>(kind::ARRAY))?,
        })
    }
}

/// A token, and the frames that carry it.
#[derive(Clone, Debug)]
pub struct Token {
    /// The frames, each as the index of a core and the index of a job in that core's script.
    pub frames: Vec<(usize, usize)>,
    /// Whether one of the frames must be admitted, because the token is new, its grant has budget left, and no table is
    /// full.
    pub must: bool,
}

/// A point in a core's script after which a grant must have no live flow.
#[derive(Clone, Copy, Debug)]
pub struct Cut {
    /// Index of the core.
    pub core: usize,
    /// Index of the job in the core's script: a sweep after the grant was revoked or its session ended.
    pub job: usize,
    /// Handle of the grant.
    pub handle: u64,
}

/// A program, its initial state, and the scripts of several cores.
pub struct World {
    /// Name of the scene that the cores play.
    pub name: &'static str,
    /// The verifier's program, compiled for this machine.
    pub program: Program,
    /// The initial tables.
    pub memory: Memory,
    /// The script of each core.
    pub scripts: Vec<Vec<Job>>,
    /// The tokens in the scripts.
    pub tokens: Vec<Token>,
    /// The points after which a grant must have no live flow.
    pub cuts: Vec<Cut>,
    /// Maximum number of flows that the table of flows is allowed to have at any time.
    pub flows_max: usize,
}

/// State of a core.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Core {
    job: u8,
    performed: u16,
    answers: Vec<u8>,
    next: Option<Operation>,
    outcomes: Vec<u8>,
}

/// A state of the model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// The shared tables.
    pub memory: Memory,
    /// The cores.
    pub cores: Vec<Core>,
    /// The open flows with their grants and holders. A flow leaves this list when the client closes it.
    open: Vec<(Vec<u8>, u64, u32)>,
    /// Whether an open flow has disappeared or changed its holder, although its grant was not revoked, no session was
    /// ended, and the client did not close the flow.
    pub taken_over: bool,
}

impl State {
    /// Reports whether every core has finished its jobs.
    pub fn is_quiet(&self) -> bool {
        self.cores.iter().all(|core| core.next.is_none())
    }
}

/// A step: the core with this index performs its next operation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Step(u8);

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "core {}", self.0)
    }
}

/// The result of exploring all orders of steps.
#[derive(Debug)]
pub struct Report {
    /// Number of distinct states.
    pub states: usize,
    /// For each broken property, the steps that break it.
    pub broken: Vec<(&'static str, String)>,
}

/// Property: a token never admits a second packet.
pub const ONCE: &str = "each token admits at most once";
/// Property: a token that has not been used yet admits its packet, if its grant has budget left.
pub const FRESH: &str = "a fresh token within budget is admitted";
/// Property: the sweep that follows a revocation or the end of a session removes the flows of the affected grant. After
/// this sweep, the table never has a flow of the grant while all cores are between two jobs.
pub const REVOKED: &str = "a revoked grant's flow is never live again";
/// Property: a flow does not change its owner.
pub const OWNER: &str = "an open flow keeps its owner";
/// Property: the sweep does not remove a flow that admission has just inserted.
pub const KEPT: &str = "the flow of an admitted packet is in the table";
/// Property: the counts of grants and accounts are correct.
pub const COUNTS: &str =
    "a grant's count is that of its flows, and an account's counts are those of its flows and grants";
/// Property: the table of flows never has more flows than [`World::flows_max`].
pub const LIMIT: &str = "no more flows than there may be";
const ENDS: &str = "every script ends";

impl World {
    /// Runs frames one after another before the cores start, to set up the initial state. Returns the outcome of each
    /// frame.
    pub fn before(&mut self, frames: &[Vec<u8>]) -> Vec<u8> {
        let scripts = std::mem::replace(&mut self.scripts, vec![frames.iter().cloned().map(Job::Frame).collect()]);
        let mut state = self.initial();
        while !state.is_quiet() {
            state = self.step(&state, 0);
        }
        self.scripts = scripts;
        self.memory = state.memory;
        state.cores.swap_remove(0).outcomes
    }

    /// Explores every order of steps. Prints the number of states, and returns the properties that are violated.
    pub fn check(self) -> Report {
        let began = Instant::now();
        let name = self.name;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let checker = self.checker().threads(cores).spawn_bfs().join();
        let states = checker.unique_state_count();
        // Use standard error itself, because the test harness hides the output of `println!` when a test passes.
        let _ = writeln!(
            std::io::stderr(),
            "{name}: {states} states, {} steps, {:.1?}",
            checker.state_count(),
            began.elapsed()
        );
        let broken = checker.discoveries().into_iter().filter(|(promise, _)| *promise != ENDS);
        let mut broken: Vec<_> = broken.map(|(promise, path)| (promise, tell(checker.model(), path))).collect();
        broken.sort();
        assert!(checker.discovery(ENDS).is_some() || !broken.is_empty(), "{name}: no script ended");
        Report { states, broken }
    }

    fn initial(&self) -> State {
        let cores = vec![
            Core { job: 0, performed: 0, answers: Vec::new(), next: None, outcomes: Vec::new() };
            self.scripts.len()
        ];
        let mut state = State { memory: self.memory.clone(), cores, open: Vec::new(), taken_over: false };
        self.look_at_owners(&mut state);
        for core in 0..state.cores.len() {
            self.go_on(&mut state, core);
        }
        state
    }

    fn step(&self, before: &State, core: usize) -> State {
        let mut state = before.clone();
        let Some(operation) = state.cores[core].next.take() else { return state };
        let place = &mut state.cores[core];
        state.memory.perform(&operation, |table| self.program.shape(table), &mut place.answers);
        place.performed += 1;
        self.go_on(&mut state, core);
        if touches(&operation) {
            self.look_at_owners(&mut state);
        }
        state
    }

    /// Runs a core up to its next operation on shared memory.
    fn go_on(&self, state: &mut State, core: usize) {
        let State { memory, cores, .. } = state;
        let core_state = &mut cores[core];
        while let Some(job) = self.scripts[core].get(usize::from(core_state.job)) {
            let entry = match job {
                Job::Put(table, key, value) if core_state.performed == 0 => {
                    core_state.next = Some(Operation::Update(*table, key.clone(), value.clone(), 0));
                    return;
                }
                Job::Tick(seconds) if core_state.performed == 0 => {
                    core_state.next = Some(Operation::Tick(*seconds));
                    return;
                }
                Job::Sweep if core_state.performed == 0 => {
                    core_state.next = Some(Operation::Clock);
                    return;
                }
                Job::Put(..) | Job::Tick(_) => None,
                Job::Sweep => {
                    let now = core_state.answers.first_chunk().expect("the clock's answer");
                    Some((Entry::Sweep(u32::from_ne_bytes(*now)), 1, 4))
                }
                Job::Frame(frame) => Some((Entry::Admit(frame), 0, 0)),
            };
            let mut outcome = 0;
            if let Some((entry, performed, answers)) = entry {
                let (ran, written) =
                    self.program.run(entry, core_state.performed - performed, &core_state.answers[answers..]);
                if let Some((place, bytes)) = written {
                    memory.write(place, self.program.shape(place.table), &bytes);
                }
                match ran {
                    Ran::Stopped(operation) => {
                        core_state.next = Some(operation);
                        return;
                    }
                    Ran::Done(counter) => outcome = counter,
                }
            }
            core_state.outcomes.push(outcome);
            core_state.job += 1;
            core_state.performed = 0;
            core_state.answers.clear();
        }
    }

    fn tables(&self) -> Tables {
        Tables::of(&self.program).expect("the program has its tables")
    }

    fn flows(&self, memory: &Memory) -> Vec<(Vec<u8>, Flow)> {
        let flow = |value: &[u8]| Flow::read_from_bytes(value).expect("a flow");
        memory.entries(self.tables().flows).map(|entry| (entry.key.clone(), flow(&entry.value))).collect()
    }

    /// Records the owners of open flows. Sets `taken_over` if an open flow has disappeared or changed its holder,
    /// although its grant was not revoked, no session was ended, and the client did not close the flow. In no scene
    /// does an open flow end by silence.
    fn look_at_owners(&self, state: &mut State) {
        let flows = self.flows(&state.memory);
        let revoked: Vec<_> = state.memory.entries(self.tables().revoked).map(|entry| entry.key.clone()).collect();
        let has_ended = state.memory.entries(self.tables().ended).next().is_some();
        for (key, handle, holder) in &state.open {
            let flow = flows.iter().find(|(other, _)| other == key);
            let has_owner = flow.is_some_and(|(_, flow)| flow.holder == *holder);
            let is_revoked = has_ended || revoked.contains(&handle.to_ne_bytes().to_vec());
            state.taken_over |= !has_owner && !is_revoked;
        }
        let open = flows.into_iter().filter(|(key, flow)| match flow.stage {
            stage::OPEN => flow.by_grant(),
            // A core has claimed the flow. The flow counts as open if it was open before.
            stage::CHANGING | stage::LEAVING => state.open.iter().any(|(other, ..)| other == key),
            _ => false,
        });
        state.open = open.map(|(key, flow)| (key, flow.handle, flow.holder)).collect();
    }

    /// Reports whether the flow of every admitted packet is in the table; always true if something was revoked.
    fn admitted_are_there(&self, state: &State) -> bool {
        let flows = self.flows(&state.memory);
        let is_there = |frame: &[u8]| {
            let key = FlowKey::to_server(&Packet::parse(frame)).and_then(|key| FlowKey4::of(&key));
            key.is_some_and(|key| flows.iter().any(|(other, _)| other == key.as_bytes()))
        };
        let mut jobs =
            state.cores.iter().zip(&self.scripts).flat_map(|(core, script)| core.outcomes.iter().zip(script));
        let Tables { revoked, ended, .. } = self.tables();
        [revoked, ended].iter().any(|table| state.memory.entries(*table).next().is_some())
            || jobs.all(|(outcome, job)| match job {
                Job::Frame(frame) if admits(*outcome) => is_there(frame),
                _ => true,
            })
    }

    fn admitted(&self, state: &State, token: &Token) -> usize {
        let of = |(core, job): &(usize, usize)| {
            state.cores[*core].outcomes.get(*job).is_some_and(|outcome| admits(*outcome))
        };
        token.frames.iter().filter(|at| of(at)).count()
    }

    fn counts_are_right(&self, state: &State) -> bool {
        let flows = self.flows(&state.memory);
        let accounts_right = state.memory.entries(self.tables().accounts).all(|entry| {
            let used = AccountUse::read_from_bytes(&entry.value).expect("an account's use");
            let account = u32::from_ne_bytes(entry.key[..].try_into().expect("an account"));
            let of_account = |(_, flow): &&(Vec<u8>, Flow)| flow.holder >> 8 == account && flow.has_grant();
            let grants = state.memory.entries(self.tables().grants).filter(|entry| {
                let grant = GrantUse::read_from_bytes(&entry.value).expect("a grant's use");
                grant.holder != 0 && grant.holder >> 8 == account
            });
            flows.iter().filter(of_account).count() as u32 == used.flows && grants.count() as u32 == used.grants
        });
        let mut grants = state.memory.entries(self.tables().grants);
        accounts_right
            && grants.all(|entry| {
                let used = GrantUse::read_from_bytes(&entry.value).expect("a grant's use");
                let handle = u64::from_ne_bytes(entry.key[..].try_into().expect("a handle"));
                let of_grant = |(_, flow): &&(Vec<u8>, Flow)| flow.handle == handle && flow.has_grant();
                flows.iter().filter(of_grant).count() as u32 == used.flows
            })
    }

    fn revocations_hold(&self, state: &State) -> bool {
        if state.cores.iter().any(|core| core.performed != 0) {
            return true;
        }
        let flows = self.flows(&state.memory);
        let mut cuts = self.cuts.iter().filter(|cut| usize::from(state.cores[cut.core].job) > cut.job);
        cuts.all(|cut| flows.iter().all(|(_, flow)| flow.handle != cut.handle))
    }
}

impl Model for World {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![self.initial()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Step>) {
        let ready = state.cores.iter().enumerate().filter(|(_, core)| core.next.is_some());
        actions.extend(ready.map(|(core, _)| Step(core as u8)));
    }

    fn next_state(&self, state: &State, action: Step) -> Option<State> {
        Some(self.step(state, usize::from(action.0)))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ONCE, |world: &Self, state: &State| {
                world.tokens.iter().all(|token| world.admitted(state, token) <= 1)
            }),
            Property::always(FRESH, |world: &Self, state: &State| {
                let must = world.tokens.iter().filter(|token| token.must);
                !state.is_quiet() || must.clone().all(|token| world.admitted(state, token) >= 1)
            }),
            Property::always(REVOKED, |world: &Self, state: &State| world.revocations_hold(state)),
            Property::always(OWNER, |_, state: &State| !state.taken_over),
            Property::always(KEPT, |world: &Self, state: &State| !state.is_quiet() || world.admitted_are_there(state)),
            Property::always(COUNTS, |world: &Self, state: &State| !state.is_quiet() || world.counts_are_right(state)),
            Property::always(LIMIT, |world: &Self, state: &State| world.flows(&state.memory).len() <= world.flows_max),
            Property::sometimes(ENDS, |_, state: &State| state.is_quiet()),
        ]
    }
}

fn admits(outcome: u8) -> bool {
    [counter::TOKEN, counter::CONSUMED].contains(&u32::from(outcome))
}

fn touches(operation: &Operation) -> bool {
    matches!(
        operation,
        Operation::Update(..)
            | Operation::Delete(..)
            | Operation::Write(_)
            | Operation::Exchange(..)
            | Operation::SwapIf(..)
    )
}

/// Returns the steps of a path, one per line.
fn tell(world: &World, path: stateright::Path<State, Step>) -> String {
    let mut text = String::new();
    for (state, step) in path.into_vec() {
        let Some(Step(core)) = step else {
            let outcomes: Vec<_> = state.cores.iter().map(|core| &core.outcomes).collect();
            text += &format!("  outcomes {outcomes:?}, flows {:?}\n", world.flows(&state.memory));
            break;
        };
        let at = &state.cores[usize::from(core)];
        let told = at.next.as_ref().map(|operation| name(world, operation)).unwrap_or_default();
        text += &format!("  core {core} job {}: {told}\n", at.job);
    }
    text
}

fn name(world: &World, operation: &Operation) -> String {
    let place = |place: &Place| {
        format!(
            "{}[{}]+{}..{}",
            world.program.name(place.table),
            place.element,
            place.offset,
            place.offset + place.size
        )
    };
    match operation {
        Operation::Lookup(table, key) => format!("look up {} {key:x?}", world.program.name(*table)),
        Operation::Update(table, key, _, flags) => {
            format!("update {} {key:x?}, flags {flags}", world.program.name(*table))
        }
        Operation::Delete(table, key) => format!("delete {} {key:x?}", world.program.name(*table)),
        Operation::Next(table, after) => format!("next of {} behind {after}", world.program.name(*table)),
        Operation::Read(at) => format!("read {}", place(at)),
        Operation::Write(at) => format!("write {}", place(at)),
        Operation::Add(at, by) => format!("add {} to {}", *by as i64, place(at)),
        Operation::SwapIf(at, was, with) => format!("swap {} from {was:x} to {with:x}", place(at)),
        Operation::Exchange(at, with) => format!("exchange {} for {with:x}", place(at)),
        Operation::And(at, with) => format!("and {} with {with:x}", place(at)),
        Operation::Or(at, with) => format!("or {} with {with:x}", place(at)),
        Operation::Clock => "read the clock".to_owned(),
        Operation::Tick(seconds) => format!("{seconds} s pass"),
    }
}
