/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* For benches only: the verifier's decision on first packets, each of a grant of its own, in turn. What one leaves in the
 * tables is perhaps taken out again, outside of the time measured, so that it can come again. */
#include "xdp.h"
#include "admit.h"

enum { FED_FRAMES = 8192, FED_LENGTH = 114 /* a SYN over IPv4 with 20 bytes of options, and the token */ };

struct fed_frame {
	__u8 bytes[FED_LENGTH];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, FED_FRAMES);
	__type(key, __u32);
	__type(value, struct fed_frame);
} fed_frames SEC(".maps");

struct feed {
	__u32 frames; /* so many of the frames are taken in turn */
	__u32 forgets;
	__u32 next;
	__u32 admitted;
	__u64 nanoseconds;
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

	if (!frame || bpf_xdp_adjust_tail(ctx, FED_LENGTH - (int)frame_length(ctx)))
		return -1;
	return bpf_xdp_store_bytes(ctx, 0, frame->bytes, FED_LENGTH);
}

/* Takes out what the latest token and the flow of this packet left. */
static __always_inline void forget(context *ctx)
{
	struct flow_key4 key = { .protocol = IP_TCP };
	__u32 zero = 0;
	struct token *token = bpf_map_lookup_elem(&tokens, &zero);
	struct replay_bucket *bucket;
	__u64 handle;

	if (!token)
		return;
	load(ctx, ETHER_LEN + 12, &key.client, 8);
	load(ctx, ETHER_LEN + IPV4_LEN, &key.client_port, 4);
	bpf_map_delete_elem(&flows4, &key);
	handle = bpf_be64_to_cpu(pair(token, PAIR_HANDLE));
	bpf_map_delete_elem(&grants, &handle);
	bucket = bucket_of(token);
	if (bucket)
		*bucket = (struct replay_bucket){};
}

static __always_inline int turn(context *ctx, int decides)
{
	__u32 zero = 0;
	struct feed *feed = bpf_map_lookup_elem(&feeds, &zero);
	__u64 began;

	if (!feed || take(ctx, feed))
		return XDP_ABORTED;
	began = bpf_ktime_get_ns();
	if (decides)
		feed->admitted += decide(ctx);
	feed->nanoseconds += bpf_ktime_get_ns() - began;
	if (decides && feed->forgets)
		forget(ctx);
	return XDP_PASS;
}

SEC("xdp.frags")
int admit(struct xdp_md *ctx)
{
	return turn(ctx, 1);
}

/* The same without the decision: what the clock takes. */
SEC("xdp.frags")
int idle(struct xdp_md *ctx)
{
	return turn(ctx, 0);
}

char LICENSE[] SEC("license") = "GPL";
