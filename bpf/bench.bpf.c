/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* For benches only: the verifier's decision on a different first packet at every run of a batch, and the same without the
 * decision, so that a batch measures first packets as a queue of them comes in. */
#include "xdp.h"
#include "admit.h"

enum { FED_FRAMES = 512, FED_LENGTH = 114 /* a SYN over IPv4 with 20 bytes of options, and the token */ };

struct fed_frame {
	__u8 bytes[FED_LENGTH];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, FED_FRAMES);
	__type(key, __u32);
	__type(value, struct fed_frame);
} fed_frames SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} fed_next SEC(".maps");

static __always_inline long feed(context *ctx)
{
	__u32 zero = 0, *next = bpf_map_lookup_elem(&fed_next, &zero), index;
	struct fed_frame *frame;

	if (!next)
		return -1;
	index = (*next)++ % FED_FRAMES;
	frame = bpf_map_lookup_elem(&fed_frames, &index);
	if (!frame || bpf_xdp_adjust_tail(ctx, FED_LENGTH - (int)frame_length(ctx)))
		return -1;
	return bpf_xdp_store_bytes(ctx, 0, frame->bytes, FED_LENGTH);
}

SEC("xdp.frags")
int admit(struct xdp_md *ctx)
{
	if (feed(ctx))
		return XDP_ABORTED;
	return decide(ctx) ? XDP_PASS : XDP_DROP;
}

SEC("xdp.frags")
int fed(struct xdp_md *ctx)
{
	return feed(ctx) ? XDP_ABORTED : XDP_PASS;
}

char LICENSE[] SEC("license") = "GPL";
