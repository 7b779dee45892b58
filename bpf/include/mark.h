/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The verdict as a mark: the verifier drops only consumed tokens and refused SYNs with a token in the stream. It marks
 * admitted packets, with the class of their grant, for a packet filter to match. Include skb.h and admit.h before this
 * file. */
#pragma once
#include "admission.h"

/* Classes of grants. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, __u64);
	__type(value, struct grant_class);
} classes SEC(".maps");

/* Returns the class of the grant that admitted the packet's flow, shifted to its place in the mark; 0 if user space has
 * not set one. */
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
	/* The class is in the lowest bits of the mask. */
	return known ? (known->class & 0xff) * (config.mark_mask & -config.mark_mask) : 0;
}

/* Sets the verdict in the mark. Bits that others set under the mask are cleared, whatever the outcome. The mark is
 * written in one place only: the kernel rejects accesses to the context through a pointer that clang has moved. */
static __always_inline int mark(context *ctx)
{
	__u32 bits = 0;
	struct packet p;
	int outcome;

	__builtin_memset(&p, 0, sizeof(p));
	outcome = decide_counted(ctx, &p, SIDE_OUTSIDE);
	/* A refused token in a stream would reach the application if the rules let the packet pass without the mark. */
	if (outcome == CONSUMED || (outcome < PASS_NOT_OURS && p.in_stream))
		return TC_ACT_SHOT;
	if (outcome == PASS_FLOW || outcome == PASS_TOKEN || outcome == PASS_ICMP_ERROR ||
	    outcome == PASS_STRANGER)
		bits = config.mark | (outcome == PASS_STRANGER ? 0 : class_bits(&p));
	ctx->mark = (ctx->mark & ~config.mark_mask) | bits;
	return TC_ACT_UNSPEC;
}
