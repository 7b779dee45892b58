/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* MSS clamping: lowers the MSS option of a SYN to fit the tunnel through which the answers come. */
#pragma once
#include "parse.h"

enum { TCP_OPTIONS_MAX = 40, OPTION_END = 0, OPTION_NOTHING = 1, OPTION_MSS = 2, TCP_CHECKSUM_AT = 16 };

struct clamping {
	context *ctx;
	__u32 transport, at, end;
	__u32 limit;
};

static long clamp_option(__u32 index, struct clamping *c)
{
	__u8 head[2];
	__be16 old, new;
	int odd;

	if (c->at >= c->end || load(c->ctx, c->at, head, 1) || head[0] == OPTION_END)
		return 1;
	if (head[0] == OPTION_NOTHING) {
		c->at++;
		return 0;
	}
	if (load(c->ctx, c->at, head, 2) || head[1] < 2)
		return 1;
	if (head[0] != OPTION_MSS) {
		c->at += head[1];
		return 0;
	}
	if (head[1] != 4 || load(c->ctx, c->at + 2, &old, 2) || bpf_ntohs(old) <= c->limit)
		return 1;
	new = bpf_htons(c->limit);
	if (bpf_skb_store_bytes(c->ctx, c->at + 2, &new, 2, 0))
		return 1;
	odd = (c->at - c->transport) & 1;
	bpf_l4_csum_replace(c->ctx, c->transport + TCP_CHECKSUM_AT, odd ? __builtin_bswap16(old) : old,
			    odd ? __builtin_bswap16(new) : new, 2);
	return 1;
}

/* Lowers the MSS option of the SYN whose TCP header is at `transport` to at most `limit` bytes. */
static __noinline int clamp_mss(context *ctx, __u32 transport, __u32 limit)
{
	struct clamping clamping = { .ctx = ctx, .transport = transport, .at = transport + sizeof(struct tcp), .limit = limit };
	__u8 offset;

	if (load(ctx, transport + 12, &offset, 1))
		return 0;
	clamping.end = transport + (offset >> 4) * 4;
	bpf_loop(TCP_OPTIONS_MAX, clamp_option, &clamping, 0);
	return 0;
}
