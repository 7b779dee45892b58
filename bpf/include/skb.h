/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Packet access for tc programs: a socket buffer, perhaps a super-packet (GSO, GRO). Its data need not be linear, and
 * its outer VLAN tag may be in the metadata. */
#pragma once
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define NEXT next_tc

typedef struct __sk_buff context;

static __always_inline __u32 frame_length(context *ctx)
{
	return ctx->len;
}

static __always_inline long load(context *ctx, __u32 at, void *to, __u32 len)
{
	return bpf_skb_load_bytes(ctx, at, to, len);
}

/* Writes to the packet, and updates a checksum that the network card may have computed over the whole packet
 * (CHECKSUM_COMPLETE). */
static __always_inline long store(context *ctx, __u32 at, const void *from, __u32 len)
{
	return bpf_skb_store_bytes(ctx, at, from, len, BPF_F_RECOMPUTE_CSUM);
}

/* Overwrites two bytes at the offset `at`, and updates the sum of the packet that the network card may have computed.
 * Pointers into the packet are void afterwards. */
static __always_inline long overwrite(context *ctx, __u32 at, __u16 *place, __u16 value)
{
	return store(ctx, at, &value, sizeof(value));
}

/* Returns 0: tc programs do not read beyond the headers directly, which would require linearising the packet. */
static __always_inline void *near(context *ctx, __u32 at, __u32 len)
{
	return 0;
}

/* Truncates the frame at `end`. The kernel discards a checksum over the whole packet, and the GSO state. */
static __always_inline long cut_tail(context *ctx, __u32 end)
{
	return bpf_skb_change_tail(ctx, end, 0);
}

/* Reports whether cut_behind can cut at this offset: after Ethernet and an IPv4 header. The kernel finds that offset by
 * itself, and only without a VLAN tag in front; it removes one tag before it runs programs. */
static __always_inline int cuts_behind(__u32 at)
{
	return at == 34;
}

/* Cuts out `length` bytes after the first `at`. */
static __always_inline long cut_behind(context *ctx, __u32 at, __u32 length)
{
	return cuts_behind(at) ? bpf_skb_adjust_room(ctx, -(int)length, BPF_ADJ_ROOM_NET, 0) : -1;
}

/* Reports whether the frame certainly has this length. */
static __always_inline int reaches(context *ctx, __u32 length)
{
	return length <= ctx->len;
}

/* Returns the payload bytes per segment of a super-packet, 0 for any other packet. Not based on gso_segs, which is 0
 * for super-packets from virtual machines. */
static __always_inline __u32 segment_length(context *ctx)
{
	return ctx->gso_size;
}

static __always_inline __u32 interface_of(context *ctx)
{
	return ctx->ifindex;
}

/* Makes the headers of Ethernet, IP and TCP without options, or as much of them as the frame has, readable without a
 * helper call. No more than is read: data that stack and sender share would be copied. */
static __always_inline void bring_headers_near(context *ctx)
{
	__u32 length = ctx->protocol == bpf_htons(0x0800) ? 14 + 20 + 20 : 14 + 40 + 20;

	if (length > ctx->len)
		length = ctx->len;
	if ((long)ctx->data_end - (long)ctx->data < length)
		bpf_skb_pull_data(ctx, length);
}
