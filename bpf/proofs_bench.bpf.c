/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* For benches only: runs the decision on one packet with proofs again and again. Its changes to the packet are undone,
 * so that the packet can be used again. */
#include "xdp.h"
#include "proofs.h"
#include "timed.h"

struct proof_feed {
	__u64 nanoseconds;
	__u32 passed;
	__u32 reserved;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct proof_feed);
} proof_feeds SEC(".maps");

/* The interface on which forwarded packets leave. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} forward_to SEC(".maps");

/* Restores the pointer of a packet without options in its outer headers. */
static __always_inline void put_back(context *ctx)
{
	__u8 *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;

	if (data + 75 <= end)
		data[data[12] == 0x86 ? 74 : 54] -= 1;
}

/* Runs the decision on a steady flow, whose proof is remembered. */
static __always_inline int again(context *ctx)
{
	int outcome = verify_proof(ctx);

	count(outcome);
	if (outcome < PASS_NOT_OURS)
		return XDP_ABORTED;
	put_back(ctx);
	return XDP_PASS;
}

SEC("xdp.frags")
int prove_again(struct xdp_md *ctx)
{
	return again(ctx);
}

static __always_inline int forward(void)
{
	__u32 zero = 0, *to = bpf_map_lookup_elem(&forward_to, &zero);

	return to ? bpf_redirect(*to, 0) : XDP_ABORTED;
}

/* Runs the decision on a steady flow, and forwards packets that pass. */
SEC("xdp.frags")
int prove_on(struct xdp_md *ctx)
{
	int code = again(ctx);

	return code == XDP_PASS ? forward() : code;
}

/* Forwards every packet. */
SEC("xdp.frags")
int send_on(struct xdp_md *ctx)
{
	return forward();
}

static __always_inline int turn(context *ctx, int proves)
{
	__u32 zero = 0, *current = bpf_map_lookup_elem(&generation, &zero);
	struct proof_feed *feed = bpf_map_lookup_elem(&proof_feeds, &zero);
	int outcome = PASS_NOT_OURS;

	if (!feed || !current)
		return XDP_ABORTED;
	outcome = timed(ctx, proves ? verify_proof : 0, &feed->nanoseconds);
	if (!proves)
		return XDP_PASS;
	if (outcome != PASS_TOKEN)
		return XDP_ABORTED;
	feed->passed++;
	put_back(ctx);
	*current += 1;
	return XDP_PASS;
}

/* Runs the decision on a proof not seen before: the program computes and remembers it, and forgets it outside of the
 * measured time. */
SEC("xdp.frags")
int prove_first(struct xdp_md *ctx)
{
	return turn(ctx, 1);
}

/* Runs without the decision, to measure the cost of reading the clock. */
SEC("xdp.frags")
int prove_idle(struct xdp_md *ctx)
{
	return turn(ctx, 0);
}

char LICENSE[] SEC("license") = "GPL";
