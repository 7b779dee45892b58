/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* A packet as an XDP program has it: the frame as it came in. */
#pragma once
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

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

/* Where `len` bytes of the frame's first piece are, or 0. */
static __always_inline void *near(context *ctx, __u32 at, __u32 len)
{
	__u32 bounded = at;
	void *place;

	/* In assembly, or clang drops the bound that the kernel asks for. */
	asm volatile("%0 &= 0x7fff" : "+r"(bounded));
	place = (void *)(long)ctx->data + bounded;
	return bounded == at && place + len <= (void *)(long)ctx->data_end ? place : 0;
}

/* Ends the frame at `end`. */
static __always_inline long cut_tail(context *ctx, __u32 end)
{
	return bpf_xdp_adjust_tail(ctx, (int)end - (int)frame_length(ctx));
}

/* Whether cut_behind can cut there: behind Ethernet, at most two VLAN tags, and an IPv4 header. */
static __always_inline int cuts_behind(__u32 at)
{
	return at == 34 || at == 38 || at == 42;
}

/* Cuts `length` bytes out behind the first `at`. */
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

/* Whether the frame is surely this long. */
static __always_inline int reaches(context *ctx, __u32 length)
{
	/* A difference: Linux 6.1 adds nothing to a packet's pointer whose bound it lost sight of. */
	return (long)ctx->data_end - (long)ctx->data >= length;
}

/* Payload bytes per segment of a super-packet; 0 for any other. */
static __always_inline __u32 segment_length(context *ctx)
{
	return 0;
}

static __always_inline __u32 interface_of(context *ctx)
{
	return ctx->ingress_ifindex;
}
