/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* For benches only: runs the verifier's decision on first packets, each with its own grant, in turn. Optionally removes
 * the state that a packet leaves in the tables, outside of the measured time, so that the same packet can be used
 * again. */
#include "xdp.h"
#include "admit.h"
#include "timed.h"

enum { FED_FRAMES = 8192 };
/* Length of a SYN over IPv4 with 20 bytes of options and the token, in the tail and in a shim. */
enum { FED_TAIL = 114, FED_SHIM = 134 };

struct fed_frame {
	__u8 bytes[FED_SHIM];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, FED_FRAMES);
	__type(key, __u32);
	__type(value, struct fed_frame);
} fed_frames SEC(".maps");

struct feed {
	__u32 frames; /* how many of the frames are used in turn */
	__u32 forgets;
	__u32 next;
	__u32 admitted;
	__u64 nanoseconds;
	__u64 pair; /* pair of the tokens, which are in shims; 0 for tokens of §3, in tails */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct feed);
} feeds SEC(".maps");

static __always_inline long take(context *ctx, struct feed *feed)
{
	__u32 index = feed->next++ % (feed->frames ?: 1);
	struct fed_frame *frame = bpf_map_lookup_elem(&fed_frames, &index);

	if (!frame)
		return -1;
	if (!feed->pair)
		return bpf_xdp_adjust_tail(ctx, FED_TAIL - (int)frame_length(ctx)) ?:
		       bpf_xdp_store_bytes(ctx, 0, frame->bytes, FED_TAIL);
	/* Stripping a shim shortens the head, which is restored: the next shim would not fit otherwise. */
	if (frame_length(ctx) == FED_SHIM - SHIM_LEN && bpf_xdp_adjust_head(ctx, -SHIM_LEN))
		return -1;
	return bpf_xdp_adjust_tail(ctx, FED_SHIM - (int)frame_length(ctx)) ?:
	       bpf_xdp_store_bytes(ctx, 0, frame->bytes, FED_SHIM);
}

/* Removes the state that the latest token and the flow of this packet left. */
static __always_inline void forget(context *ctx, const struct feed *feed)
{
	struct flow_key4 key = { .protocol = IP_TCP };
	__u64 pair_handle = feed->pair;
	__u32 zero = 0, used;
	struct ls_grant *known;
	struct token *token = bpf_map_lookup_elem(&tokens, &zero);
	struct replay_bucket *bucket;
	__u64 handle;

	if (!token)
		return;
	load(ctx, ETHER_LEN + 12, &key.client, 8);
	load(ctx, ETHER_LEN + IPV4_LEN, &key.client_port, 4);
	bpf_map_delete_elem(&flows4, &key);
	if (pair_handle) {
		/* The frames' nonces are numbered in the order of the frames. */
		used = (feed->next - 1) % (feed->frames ?: 1) >> 6;
		known = bpf_map_lookup_elem(&ls_grants, &pair_handle);
		if (known)
			known->used[used & (LS_NONCE_WORDS - 1)] = 0;
		bpf_map_delete_elem(&grants, &pair_handle);
		return;
	}
	handle = bpf_be64_to_cpu(pair(token, PAIR_HANDLE));
	bpf_map_delete_elem(&grants, &handle);
	bucket = bucket_of(token);
	if (bucket)
		*bucket = (struct replay_bucket){};
}

static __always_inline int decide_outside(context *ctx)
{
	return decide(ctx, SIDE_OUTSIDE);
}

static __always_inline int turn(context *ctx, int decides)
{
	__u32 zero = 0;
	struct feed *feed = bpf_map_lookup_elem(&feeds, &zero);

	if (!feed || take(ctx, feed))
		return XDP_ABORTED;
	feed->admitted += timed(ctx, decides ? decide_outside : 0, &feed->nanoseconds);
	if (decides && feed->forgets)
		forget(ctx, feed);
	return XDP_PASS;
}

SEC("xdp.frags")
int admit(struct xdp_md *ctx)
{
	return turn(ctx, 1);
}

/* Runs without the decision, to measure the cost of reading the clock. */
SEC("xdp.frags")
int idle(struct xdp_md *ctx)
{
	return turn(ctx, 0);
}

char LICENSE[] SEC("license") = "GPL";
