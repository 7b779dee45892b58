/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Takes over flows that a peer gateway reported. Runs in the kernel so that a flow and its grant's count change
 * together. */
#pragma once
#include "admission.h"
#include "outbound.h"
#include "revoked.h"

/* Updates a flow here from the peer's report of the same flow: the later packet wins. A packet of the same second does
 * not reopen a flow that is closing here, because the order of the two is unknown. */
static __always_inline void note_received(const struct flow_key *key, struct flow *flow, const struct flow *received)
{
	__s32 later = received->seen - flow->seen;
	__u32 state = read_state(flow);

	if (key->protocol != IP_TCP && (__s32)(received->proved - flow->proved) > 0)
		flow->proved = received->proved;
	if (later < 0 || (later == 0 && (__u8)state >= STAGE_CLOSING))
		return;
	flow->seen = received->seen;
	set_stage(flow, received->stage);
	if (key->protocol != IP_TCP)
		return;
	flow->next = received->next ?: flow->next;
	flow->answer = received->answer ?: flow->answer;
}

/* Reports whether a flow here is open and keeps its owner (wire.md §6.4.5): the peer gateway had not learned of it in
 * time. */
static __always_inline int keeps_owner(const struct flow_key *key, const struct flow *here, const struct flow *there)
{
	return here->stage == STAGE_OPEN && here->origin == BY_TOKEN && there->origin == BY_TOKEN &&
	       (!here->holder || here->holder != there->holder) && flow_is_live(key->protocol, here, there->seen);
}

/* Counts one more flow of the grant, without a limit: the peer gateway admitted it, and refusing it here would cut the
 * flow when routing changes. Returns 1 if the grant is new here, -1 if the table has no room for it. */
static __always_inline int count_received(const struct flow_key *key, __u64 handle, __u32 holder, __u32 expires)
{
	struct grant_use first = { .flows = 1, .expires = expires, .first = *key, .holder = holder }, *use;

	if (!bpf_map_update_elem(&grants, &handle, &first, BPF_NOEXIST))
		return 1;
	use = bpf_map_lookup_elem(&grants, &handle);
	if (!use)
		return -1;
	__sync_fetch_and_add(&use->flows, 1);
	return 0;
}

static __always_inline int take_room(const struct flow_key *key, const struct received_flow *received, __u32 *outbound)
{
	int is_new;

	if (received->flow.origin != FROM_INSIDE) {
		is_new = count_received(key, received->flow.handle, received->flow.holder, received->expires);
		if (is_new < 0)
			return -1;
		note_account(received->flow.holder, is_new);
		return 0;
	}
	if (__sync_fetch_and_add(outbound, 1) < config.max_outbound)
		return 0;
	__sync_fetch_and_sub(outbound, 1);
	return -1;
}

static __always_inline void give_room_back(__u8 origin, __u64 handle, __u32 holder, __u32 *outbound)
{
	if (origin == FROM_INSIDE)
		__sync_fetch_and_sub(outbound, 1);
	else if (has_grant(origin))
		release_flow(handle, holder);
}

/* Reports whether the peer's flow consists only of the inside's answers, which don't open a client's flow (wire.md
 * §6.9.2): they may leave through a gateway that has not learned of that flow yet. */
static __always_inline int only_answers(const struct flow_key *key, const struct flow *here, const struct flow *there)
{
	if (there->origin != FROM_INSIDE || key->protocol == IP_TCP)
		return 0;
	return here && (here->origin == BY_TOKEN || only_ended(here, there->seen));
}

/* Reports whether a flow here that the inside seemed to open is a client's: its answer arrived before the peer's
 * report. */
static __always_inline int was_the_clients(const struct flow_key *key, const struct flow *here, const struct flow *there)
{
	return key->protocol != IP_TCP && there->origin == BY_TOKEN && here->origin == FROM_INSIDE;
}

SEC("syscall")
int take_over(struct received_flow *received)
{
	struct received_flow own = *received;
	struct flow_key key = own.key;
	__u32 zero = 0, *used = bpf_map_lookup_elem(&outbound, &zero);
	struct flow *flow;
	__u32 state = 0;
	__u64 handle = 0;
	__u32 holder = 0;
	__u8 origin = 0;

	if (!used)
		return REFUSED_FULL;
	if (key.protocol == IP_TCP)
		own.flow.fin = 0;
	if (own.flow.handle && is_revoked(own.flow.handle, own.flow.holder))
		return REFUSED_REVOKED;
	flow = find_flow(&key);
	if (flow && flow->handle == own.flow.handle && flow->origin == own.flow.origin) {
		note_received(&key, flow, &own.flow);
		return TAKEN_KNOWN;
	}
	if (!own.begins)
		return REFUSED_GONE;
	if (only_answers(&key, flow, &own.flow))
		return REFUSED_OLDER;
	if (flow) {
		if (keeps_owner(&key, flow, &own.flow))
			return REFUSED_OLDER;
		if (flow->origin != ENDED && !was_the_clients(&key, flow, &own.flow) && (__s32)(own.flow.since - flow->since) <= 0)
			return REFUSED_OLDER;
	}
	if (take_room(&key, &own, used))
		return REFUSED_FULL;
	if (flow) {
		state = read_state(flow);
		/* If a core here has claimed the flow, the peer gateway reports its own again. */
		if ((__u8)state >= STAGE_CHANGING || !take_alone(flow, state, STAGE_CHANGING)) {
			give_room_back(own.flow.origin, own.flow.handle, own.flow.holder, used);
			return REFUSED_FULL;
		}
		origin = flow->origin;
		handle = flow->handle;
		holder = flow->holder;
	}
	if (put_flow(&key, &own.flow, flow ? BPF_EXIST : BPF_NOEXIST)) {
		if (flow)
			flow->state = state;
		give_room_back(own.flow.origin, own.flow.handle, own.flow.holder, used);
		return REFUSED_FULL;
	}
	if (flow)
		give_room_back(origin, handle, holder, used);
	return TAKEN_NEW;
}
