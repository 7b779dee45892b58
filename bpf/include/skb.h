/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* A packet as a tc program has it: a socket buffer, perhaps of many segments that travel as one (GSO, GRO). Its data
 * need not be in one piece, and its outer VLAN tag may be beside it. */
#pragma once
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

typedef struct __sk_buff context;

static __always_inline __u32 frame_length(context *ctx)
{
	return ctx->len;
}

static __always_inline long load(context *ctx, __u32 at, void *to, __u32 len)
{
	return bpf_skb_load_bytes(ctx, at, to, len);
}

/* Keeps the sum right that a network card may have made of the whole packet (CHECKSUM_COMPLETE). */
static __always_inline long store(context *ctx, __u32 at, const void *from, __u32 len)
{
	return bpf_skb_store_bytes(ctx, at, from, len, BPF_F_RECOMPUTE_CSUM);
}

/* The program asks for no direct reading behind the headers: it would have to bring them into one piece. */
static __always_inline void *near(context *ctx, __u32 at, __u32 len)
{
	return 0;
}

/* Ends the frame at `end`. The kernel forgets a sum of the whole packet, and that it was a super-packet. */
static __always_inline long cut_tail(context *ctx, __u32 end)
{
	return bpf_skb_change_tail(ctx, end, 0);
}

/* Whether cut_behind can cut there: behind Ethernet and an IPv4 header. The kernel finds that place by itself, and only
 * where no VLAN tag is before it; it takes one off before it asks programs. */
static __always_inline int cuts_behind(__u32 at)
{
	return at == 34;
}

/* Cuts `length` bytes out behind the first `at`. */
static __always_inline long cut_behind(context *ctx, __u32 at, __u32 length)
{
	return cuts_behind(at) ? bpf_skb_adjust_room(ctx, -(int)length, BPF_ADJ_ROOM_NET, 0) : -1;
}

/* Whether the frame is surely this long. */
static __always_inline int reaches(context *ctx, __u32 length)
{
	return length <= ctx->len;
}

/* Payload bytes per segment of a super-packet; 0 for any other. Not by gso_segs, which is 0 for those of virtual
 * machines. */
static __always_inline __u32 segment_length(context *ctx)
{
	return ctx->gso_size;
}

static __always_inline __u32 interface_of(context *ctx)
{
	return ctx->ifindex;
}

/* Brings the headers of Ethernet, IP and TCP without options, or all there is, to where programs read them without a call.
 * No more than is read: what stack and sender share would be copied for it. */
static __always_inline void bring_headers_near(context *ctx)
{
	__u32 length = ctx->protocol == bpf_htons(0x0800) ? 14 + 20 + 20 : 14 + 40 + 20;

	if (length > ctx->len)
		length = ctx->len;
	if ((long)ctx->data_end - (long)ctx->data < length)
		bpf_skb_pull_data(ctx, length);
}
