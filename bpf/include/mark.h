/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The verdict as a mark: nothing is dropped, and what is admitted carries a mark that a packet filter matches, with the class
 * of its grant. Whoever includes this includes skb.h and admit.h before. */
#pragma once
#include "admission.h"

/* The classes of grants. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, __u64);
	__type(value, struct grant_class);
} classes SEC(".maps");

/* The class of what a flow's grant admits, at its place in the mark; 0 if nobody has told it. */
__noinline __u32 class_bits(const struct packet *p)
{
	struct grant_class *known;
	struct flow_key key;
	struct flow *flow;
	__u64 handle;

	if (!p)
		return 0;
	key = p->flow;
	flow = find_flow(&key);
	if (!flow || flow->origin != BY_TOKEN)
		return 0;
	handle = flow->handle;
	known = bpf_map_lookup_elem(&classes, &handle);
	/* The lowest bits of the mask hold it. */
	return known ? (known->class & 0xff) * (config.mark_mask & -config.mark_mask) : 0;
}

/* Whatever the outcome, no mark of another's making stays. It is written at one place: the kernel refuses accesses to its
 * context through a pointer that clang has moved. */
static __always_inline int mark(context *ctx)
{
	__u32 bits = 0;
	struct packet p;
	int outcome;

	__builtin_memset(&p, 0, sizeof(p));
	outcome = judge_whole(ctx, &p);
	if (outcome == CONSUMED)
		return TC_ACT_SHOT;
	if (outcome == PASS_FLOW || outcome == PASS_TOKEN || outcome == PASS_ICMP_ERROR)
		bits = config.mark | class_bits(&p);
	ctx->mark = (ctx->mark & ~config.mark_mask) | bits;
	return TC_ACT_UNSPEC;
}
