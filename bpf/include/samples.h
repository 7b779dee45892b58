/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Samples of dropped packets: up to the number per second that user space has set.
 *
 * Include xdp.h or skb.h before this file. */
#pragma once
#include "config.h"
#include "counters.h"
#include "parse.h"

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 256 * 1024);
} samples SEC(".maps");

struct sample_rate {
	__u32 second;
	__u32 count;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct sample_rate);
} sample_rates SEC(".maps");

/* Reports whether one more drop may be sampled in this second, and counts it. */
static __always_inline int has_sample_left(__u32 time)
{
	__u32 zero = 0;
	struct sample_rate *rate = bpf_map_lookup_elem(&sample_rates, &zero);

	if (!rate)
		return 0;
	if (rate->second != time) {
		rate->second = time;
		rate->count = 0;
	}
	if (rate->count >= config.samples_per_second) {
		count(SAMPLES_LOST);
		return 0;
	}
	rate->count++;
	return 1;
}

__noinline int sample(context *ctx, const struct packet *p, __u32 reason)
{
	struct drop_sample *room;
	__u32 length;

	if (!p)
		return 0;
	room = bpf_ringbuf_reserve(&samples, sizeof(*room), 0);
	if (!room) {
		count(SAMPLES_LOST);
		return 0;
	}
	length = frame_length(ctx);
	room->handle = p->handle;
	room->flow = p->flow;
	room->interface = interface_of(ctx);
	room->length = length < 0xffff ? length : 0xffff;
	room->reason = reason;
	room->observed = !IN_TUNNEL && config.observe && !p->in_stream && p->flow.tunnel != SIDE_DATAGRAMS;
	bpf_ringbuf_submit(room, 0);
	return 0;
}
