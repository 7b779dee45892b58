/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The sweep, which user space starts: removes flows that are idle or whose grant is revoked, then grants and
 * revocations that have expired. Runs in the kernel so that a flow and its grant's count change together. */
#pragma once
#include "admission.h"
#include "outbound.h"
#include "revoked.h"

struct bpf_map;

struct sweep {
	__u32 now; /* Unix seconds, from user space: this kind of program can't read the coarse clock */
	__u32 ended; /* expiries before this may be removed; earlier than `now` after a clock jump */
	__u32 flows; /* number of flows that were removed */
	__u32 outbound; /* number of flows left that the inside opened */
};

static __always_inline int sweep_keeps(__u8 protocol, const struct flow *flow, const struct sweep *sweep)
{
	return flow_is_live(protocol, flow, sweep->now) && !(flow->handle && is_revoked(flow->handle, flow->holder));
}

/* Reports whether a flow leaves an ENDED entry. On a gateway, a client's flow without a handshake keeps its entry for a
 * while after its end; otherwise the inside's next answer would open the flow again. */
static __always_inline int leaves_trace(__u8 protocol, __u8 origin)
{
	return config.max_outbound && origin == BY_TOKEN && protocol != IP_TCP;
}

/* Claims a flow before removing it: admission may be handing its entry to another flow. */
static __always_inline void sweep_flow(const struct flow_key *key, struct flow *flow, struct sweep *sweep)
{
	struct flow trace = { .stage = STAGE_OVER, .origin = ENDED };
	__u32 state = read_state(flow);
	__u8 origin = flow->origin;

	if ((__u8)state >= STAGE_CHANGING)
		return;
	if (origin == ENDED ? only_ended(flow, sweep->now) : sweep_keeps(key->protocol, flow, sweep)) {
		sweep->outbound += origin == FROM_INSIDE;
		return;
	}
	if (!take_alone(flow, state, STAGE_LEAVING))
		return;
	if (leaves_trace(key->protocol, origin)) {
		flow->inside = 0;
		flow->seen = sweep->now;
		flow->state = trace.state;
		sweep->flows++;
	} else if (!remove_taken(key, flow, state)) {
		sweep->flows += origin != ENDED;
	}
}

/* Counts a flow that the inside opened towards the inside address that opened it. */
static __always_inline void count_inside(const struct flow_key *key, const struct flow *flow, const struct sweep *sweep)
{
	struct member inside = inside_of(key);
	struct inside_use *use;

	if (flow->origin != FROM_INSIDE || !sweep_keeps(key->protocol, flow, sweep))
		return;
	use = bpf_map_lookup_elem(&outbound_of, &inside);
	if (use)
		use->counted++;
}

static long sweep_flow4(struct bpf_map *map, const struct flow_key4 *key, struct flow *flow, struct sweep *sweep)
{
	struct flow_key long_key = { .protocol = key->protocol, .family = 4, .tunnel = key->tunnel };

	*(__be32 *)long_key.client = key->client;
	*(__be32 *)long_key.server = key->server;
	long_key.client_port = key->client_port;
	long_key.server_port = key->server_port;
	count_inside(&long_key, flow, sweep);
	sweep_flow(&long_key, flow, sweep);
	return 0;
}

static long sweep_flow6(struct bpf_map *map, const struct flow_key *key, struct flow *flow, struct sweep *sweep)
{
	struct flow_key copy = *key; /* Linux 6.1 takes keys from the stack */

	count_inside(&copy, flow, sweep);
	sweep_flow(&copy, flow, sweep);
	return 0;
}

static long sweep_grant(struct bpf_map *map, const __u64 *handle, struct grant_use *use, struct sweep *sweep)
{
	__u32 holder = use->holder;

	if (use->expires + CLOCK_SKEW_MAX < sweep->ended && (__s32)use->flows <= 0 && !bpf_map_delete_elem(map, handle))
		refund_account(holder, 0, 0, 1);
	return 0;
}

static long sweep_account(struct bpf_map *map, const __u32 *account, struct account_use *use, struct sweep *sweep)
{
	if ((__s32)use->flows <= 0 && (__s32)use->grants <= 0 && use->window != sweep->now >> TOKEN_WINDOW_SHIFT)
		bpf_map_delete_elem(map, account);
	return 0;
}

static long sweep_inside(struct bpf_map *map, const struct member *inside, struct inside_use *use, struct sweep *sweep)
{
	use->flows = use->counted;
	use->counted = 0;
	if (!use->flows)
		bpf_map_delete_elem(map, inside);
	return 0;
}

static long sweep_revocation(struct bpf_map *map, const __u64 *handle, __u32 *expires, struct sweep *sweep)
{
	if (*expires + CLOCK_SKEW_MAX < sweep->ended)
		bpf_map_delete_elem(map, handle);
	return 0;
}

static long sweep_holder(struct bpf_map *map, const struct revoked_key *key, __u32 *expires, struct sweep *sweep)
{
	if (*expires + CLOCK_SKEW_MAX < sweep->ended)
		bpf_map_delete_elem(map, key);
	return 0;
}

static long sweep_pair(struct bpf_map *map, const __u64 *handle, struct ls_grant *pair, struct sweep *sweep)
{
	if (pair->expires + CLOCK_SKEW_MAX < sweep->ended)
		bpf_map_delete_elem(map, handle);
	return 0;
}

SEC("syscall")
int sweep(struct sweep *pass)
{
	struct sweep sweep = { .now = pass->now, .ended = pass->ended };
	__u32 zero = 0, *left = bpf_map_lookup_elem(&outbound, &zero);

	bpf_for_each_map_elem(&flows4, sweep_flow4, &sweep, 0);
	bpf_for_each_map_elem(&flows6, sweep_flow6, &sweep, 0);
	bpf_for_each_map_elem(&grants, sweep_grant, &sweep, 0);
	bpf_for_each_map_elem(&outbound_of, sweep_inside, &sweep, 0);
	bpf_for_each_map_elem(&accounts, sweep_account, &sweep, 0);
	bpf_for_each_map_elem(&revoked, sweep_revocation, &sweep, 0);
	bpf_for_each_map_elem(&revoked_holders, sweep_holder, &sweep, 0);
	bpf_for_each_map_elem(&ls_grants, sweep_pair, &sweep, 0);
	if (left)
		*left = sweep.outbound;
	pass->flows = sweep.flows;
	pass->outbound = sweep.outbound;
	return 0;
}
