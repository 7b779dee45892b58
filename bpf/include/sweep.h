/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Upkeep that user space starts: forgets flows that are idle or whose grant is revoked, then grants and revocations that
 * have ended. Runs in the kernel so that a flow and its grant's count change together. */
#pragma once
#include "admission.h"
#include "revoked.h"

struct bpf_map;

struct sweep {
	__u32 now; /* Unix seconds, from user space: this kind of program can't read the coarse clock */
	__u32 flows; /* how many flows were forgotten */
};

static __always_inline void sweep_flow(struct bpf_map *map, const void *key, __u8 protocol, struct flow *flow,
				       struct sweep *sweep)
{
	__u64 handle = flow->handle;
	int counted;

	if (flow_is_live(protocol, flow, sweep->now) && !(handle && is_revoked(handle)))
		return;
	counted = !flow->adopted;
	if (bpf_map_delete_elem(map, key))
		return;
	if (counted)
		release_grant(handle);
	sweep->flows++;
}

static long sweep_flow4(struct bpf_map *map, const struct flow_key4 *key, struct flow *flow, struct sweep *sweep)
{
	sweep_flow(map, key, key->protocol, flow, sweep);
	return 0;
}

static long sweep_flow6(struct bpf_map *map, const struct flow_key *key, struct flow *flow, struct sweep *sweep)
{
	sweep_flow(map, key, key->protocol, flow, sweep);
	return 0;
}

static long sweep_grant(struct bpf_map *map, const __u64 *handle, struct grant_use *use, struct sweep *sweep)
{
	if (use->expires + CLOCK_SKEW_MAX < sweep->now && (__s32)use->flows <= 0)
		bpf_map_delete_elem(map, handle);
	return 0;
}

static long sweep_revocation(struct bpf_map *map, const __u64 *handle, __u32 *expires, struct sweep *sweep)
{
	if (*expires + CLOCK_SKEW_MAX < sweep->now)
		bpf_map_delete_elem(map, handle);
	return 0;
}

static long sweep_pair(struct bpf_map *map, const __u64 *handle, struct ls_grant *pair, struct sweep *sweep)
{
	if (pair->expires + CLOCK_SKEW_MAX < sweep->now)
		bpf_map_delete_elem(map, handle);
	return 0;
}

SEC("syscall")
int sweep(struct sweep *pass)
{
	struct sweep sweep = { .now = pass->now };

	bpf_for_each_map_elem(&flows4, sweep_flow4, &sweep, 0);
	bpf_for_each_map_elem(&flows6, sweep_flow6, &sweep, 0);
	bpf_for_each_map_elem(&grants, sweep_grant, &sweep, 0);
	bpf_for_each_map_elem(&revoked, sweep_revocation, &sweep, 0);
	bpf_for_each_map_elem(&ls_grants, sweep_pair, &sweep, 0);
	pass->flows = sweep.flows;
	return 0;
}
