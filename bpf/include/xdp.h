/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Packet access for XDP programs: the frame as it arrived. */
#pragma once
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

/* The name of the table with the next programs of a chain: such a table can't serve both hooks. */
#define NEXT next_xdp

typedef struct xdp_md context;

static __always_inline __u32 frame_length(context *ctx)
{
	return bpf_xdp_get_buff_len(ctx);
}

static __always_inline long load(context *ctx, __u32 at, void *to, __u32 len)
{
	return bpf_xdp_load_bytes(ctx, at, to, len);
}

static __always_inline long store(context *ctx, __u32 at, const void *from, __u32 len)
{
	return bpf_xdp_store_bytes(ctx, at, (void *)from, len);
}

/* Overwrites two bytes at the offset `at`, which `place` points to. */
static __always_inline long overwrite(context *ctx, __u32 at, __u16 *place, __u16 value)
{
	*place = value;
	return 0;
}

/* Returns a pointer to `len` bytes in the frame's first fragment, or 0. */
static __always_inline void *near(context *ctx, __u32 at, __u32 len)
{
	__u32 bounded = at;
	void *place;

	/* In assembly, because clang would drop the bound that the kernel requires. */
	asm volatile("%0 &= 0x7fff" : "+r"(bounded));
	place = (void *)(long)ctx->data + bounded;
	return bounded == at && place + len <= (void *)(long)ctx->data_end ? place : 0;
}

/* Truncates the frame at `end`. */
static __always_inline long cut_tail(context *ctx, __u32 end)
{
	return bpf_xdp_adjust_tail(ctx, (int)end - (int)frame_length(ctx));
}

/* Reports whether cut_behind can cut at this offset: after Ethernet, at most two VLAN tags, and an IPv4 header. */
static __always_inline int cuts_behind(__u32 at)
{
	return at == 34 || at == 38 || at == 42;
}

/* Cuts out `length` bytes after the first `at`. */
static __always_inline long cut_behind(context *ctx, __u32 at, __u32 length)
{
	__u8 head[42];

	if (at == 34)
		return load(ctx, 0, head, 34) ?: bpf_xdp_adjust_head(ctx, length) ?: store(ctx, 0, head, 34);
	if (at == 38)
		return load(ctx, 0, head, 38) ?: bpf_xdp_adjust_head(ctx, length) ?: store(ctx, 0, head, 38);
	if (at == 42)
		return load(ctx, 0, head, 42) ?: bpf_xdp_adjust_head(ctx, length) ?: store(ctx, 0, head, 42);
	return -1;
}

/* Reports whether the frame certainly has this length. */
static __always_inline int reaches(context *ctx, __u32 length)
{
	/* As a difference: Linux 6.1 rejects adding a value with an unknown bound to a packet pointer. */
	return (long)ctx->data_end - (long)ctx->data >= length;
}

/* Returns 0: no frame is a super-packet at XDP. */
static __always_inline __u32 segment_length(context *ctx)
{
	return 0;
}

static __always_inline __u32 interface_of(context *ctx)
{
	return ctx->ingress_ifindex;
}
