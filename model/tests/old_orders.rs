//! Tests that the checker finds earlier bugs, which edits restore.

#[allow(dead_code, reason = "the other test is its other user")]
mod setting;

use model::program::Edit;
use model::world::{FRESH, Job, KEPT, ONCE, OWNER, REVOKED, World};
use setting::{NOW, Scene, grant, greedy, refunded, segment};
use wire::map::VerifierConfig;

fn breaks(world: World, promise: &str) {
    let report = world.check();
    let found = report.broken.iter().find(|(broken, _)| *broken == promise);
    let (_, path) = found.unwrap_or_else(|| panic!("the checker finds nothing against \"{promise}\""));
    println!("{promise} is broken by\n{path}");
}

/// The bug reads each slot twice. Between the two reads, another core takes the slot that both cores aim at.
const TWO_LOOKS: &[Edit] = &[Edit {
    file: "include/replays.h",
    from: "\t\t\t__u64 there = entries[i];\n\n\t\t\tif (there == entry)\n\t\t\t\treturn DROP_REPLAYED;\n",
    to: "\t\t\tif (entries[i] == entry)\n\t\t\t\treturn DROP_REPLAYED;\n\t\t}\n\t\tfor (__u32 i = 0; i < REPLAY_ENTRIES; i++) {\n\t\t\t__u64 there = entries[i];\n\n",
}];

#[test]
fn two_looks_at_a_place_refuse_both_copies() {
    let syn = |port| grant(1, NOW).syn(port, NOW, 7);
    let scene = Scene::new("two looks at each place", vec![vec![syn(40000)], vec![syn(40001)]]);
    breaks(Scene { edits: TWO_LOOKS, ..scene }.token(&[(0, 0), (1, 0)]).world(), FRESH);
}

/// The bug does not look for other copies of the token once the token has its slot.
const NO_LOOK_BACK: &[Edit] =
    &[Edit { file: "include/replays.h", from: "if (entries[i] == entry && i != place)", to: "if (0)" }];

#[test]
fn without_a_look_back_a_token_admits_twice() {
    // The token in the first slot expires between the two cores' readings of the clock.
    let syn = |port| grant(1, NOW + 30).syn(port, NOW + 30, 9);
    let scripts = vec![vec![syn(40000)], vec![syn(40001)], vec![Job::Tick(1)]];
    let scene = Scene::new("no look back", scripts);
    let before = vec![grant(2, NOW).syn(40002, NOW, 7)];
    let mut world = Scene { edits: NO_LOOK_BACK, before, ..scene }.used_token(&[(0, 0), (1, 0)]).world();
    world.memory.clock += 30;
    breaks(world, ONCE);
}

/// The bug checks for revocation only before the flow is in the table.
const ASKED_ONCE: &[Edit] = &[Edit {
    file: "include/admission.h",
    from: "\tif (!is_revoked(handle, holder)) {\n\t\tif (config.advertises",
    to: "\tif (1) {\n\t\tif (config.advertises",
}];

#[test]
fn a_revocation_that_is_asked_for_once_is_outrun() {
    let scene = Scene::new("revoked, asked for once", vec![vec![grant(1, NOW).syn(40000, NOW, 7)], vec![]]);
    let revokes = vec![(1, grant(1, NOW).handle, NOW + 3000)];
    breaks(Scene { edits: ASKED_ONCE, revokes, ..scene }.world(), REVOKED);
}

#[test]
fn the_end_of_a_session_that_is_asked_for_once_is_outrun() {
    let scene = Scene::new("ended, asked for once", vec![vec![grant(1, NOW).syn(40000, NOW, 7)], vec![]]);
    let ends = vec![(1, grant(1, NOW), NOW + 3000)];
    breaks(Scene { edits: ASKED_ONCE, ends, ..scene }.world(), REVOKED);
}

/// The bug charges tokens before it looks for replays.
const CHARGED_FIRST: &[Edit] = &[
    Edit {
        file: "include/admission.h",
        from: "\tif (p->from_pair ? nonce_was_used(handle, p->nonce2) : was_used(bucket, replay_entry(token)))\n\t\treturn DROP_REPLAYED;\n\tflow = find_flow",
        to: "\tflow = find_flow",
    },
    Edit {
        file: "include/admission.h",
        from: "flags))\n\t\treturn 1;\n\t__sync_fetch_and_sub(&use->tokens, 1);\n",
        to: "flags))\n\t\treturn 1;\n",
    },
    Edit {
        file: "include/admission.h",
        from: "\t\tgive_back(handle, p->holder, opens_flow);\n\t\treturn outcome;",
        to: "\t\tif (opens_flow)\n\t\t\trelease_flow(handle, p->holder);\n\t\treturn outcome;",
    },
];

#[test]
fn replays_that_are_charged_burn_tokens() {
    let copy = |port| grant(1, NOW).syn(port, NOW, 7);
    let fresh = grant(1, NOW).syn(40000, NOW, 8);
    let copies = (40001..40009).map(copy).chain([fresh]).collect();
    let scene = Scene::new("replays are charged", vec![copies]);
    let config = VerifierConfig { flows_per_grant: 1, ..scene.config };
    breaks(Scene { edits: CHARGED_FIRST, config, before: vec![copy(40000)], ..scene }.token(&[(0, 8)]).world(), FRESH);
}

/// The bug gives accounts no budget.
const NO_BUDGET: &[Edit] = &[Edit {
    file: "include/admission.h",
    from: "\toutcome = charge_account(p->holder, p->time, opens_flow, !use);\n",
    to: "\toutcome = CONTINUE;\n",
}];

#[test]
fn without_budgets_one_account_takes_the_room_of_another() {
    breaks(Scene { edits: NO_BUDGET, ..greedy("a greedy account without a budget") }.world(), FRESH);
}

/// The bug compares the count of tokens as an unsigned number.
const UNSIGNED: &[Edit] = &[Edit {
    file: "include/accounts.h",
    from: "\treturn (__s32)tokens < (__s32)(flows_max * TOKENS_PER_FLOW);",
    to: "\treturn tokens < flows_max * TOKENS_PER_FLOW;",
}];

#[test]
fn a_refund_after_the_window_has_ended_shuts_the_account_out_of_the_next() {
    let scene = refunded("a refund beside a new window, compared unsigned");
    breaks(Scene { edits: UNSIGNED, ..scene }.world(), FRESH);
}

/// The bug keeps only twelve bits of the time of a replay entry.
const TWELVE_BITS: &[Edit] = &[Edit {
    file: "include/replays.h",
    from: "\treturn clock_now - (__u32)(entry >> 32) + CLOCK_SET_BACK_MAX <= CLOCK_SET_BACK_MAX + CLOCK_SKEW_MAX;",
    to: "\treturn entry && ((clock_now - (__u32)(entry >> 32) + CLOCK_SET_BACK_MAX) & 0xfff) <= CLOCK_SET_BACK_MAX + CLOCK_SKEW_MAX;",
}];

#[test]
fn entries_with_twelve_bits_of_time_come_back() {
    let later = NOW + 3600;
    let fresh = |number, port| vec![grant(number, later).syn(port, later, 7)];
    let scene = Scene::new("an hour after a full bucket", vec![fresh(11, 40011), fresh(12, 40012)]);
    let before = (1..9).map(|number| grant(number, NOW).syn(40000 + number as u16, NOW, 7)).collect();
    let mut world = Scene { edits: TWELVE_BITS, before, ..scene }.token(&[(0, 0)]).token(&[(1, 0)]).world();
    world.memory.clock = later;
    breaks(world, FRESH);
}

/// The bug lets a valid token take over the 5-tuple, whichever flow has it.
const TAKEOVER: &[Edit] = &[Edit {
    file: "include/admission.h",
    from: "\treturn stage == STAGE_CLOSING || stage == STAGE_RESET ? OPENS : PASSES;",
    to: "\treturn OPENS;",
}];

#[test]
fn a_strangers_token_takes_an_open_flow() {
    let scripts = vec![vec![grant(2, NOW).syn(40000, NOW, 8)], vec![segment(40000, 0)]];
    let scene = Scene::new("a stranger's SYN on an open flow", scripts);
    let before = vec![grant(1, NOW).syn(40000, NOW, 7), segment(40000, 0)];
    breaks(Scene { edits: TAKEOVER, before, ..scene }.world(), OWNER);
}

/// The bug lets the sweep remove a flow that it found ended, even if the flow has changed since.
const SWEPT_BY_KEY: &[Edit] =
    &[Edit { file: "include/sweep.h", from: "\tif (!take_alone(flow, state, STAGE_LEAVING))\n\t\treturn;\n", to: "" }];

#[test]
fn a_sweep_by_key_removes_a_flow_that_has_just_begun() {
    let again = grant(2, NOW).syn(40000, NOW + 31, 8);
    let scene = Scene::new("a sweep by key beside a SYN", vec![vec![again], vec![Job::Sweep]]);
    let before = vec![grant(1, NOW).syn(40000, NOW, 7)];
    let mut world = Scene { edits: SWEPT_BY_KEY, before, ..scene }.world();
    world.memory.clock += 31;
    breaks(world, KEPT);
}
