/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The agent's first packets by the carriers `tail` and `fast_open` (wire.md §4.1, §4.7): appends the block, and the option
 * in front of it, and corrects lengths and checksums. */
#pragma once
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "skb.h"
#include "layout.h"
#include "parse.h"
#include "checksum.h"
#include "wrap.h"

/* Longest TCP header. */
enum { TCP_HEADER_MAX = 60 };

/* Made of 32-bit words: clang would write a packed structure byte by byte. */
struct block {
	__u32 magic;
	__u32 header[4];
	__be32 time, nonce;
	__u32 tag[3];
};

/* The block in the making and its inputs: too large for the stack. While `ahead` is set, the block waits for the copy
 * of a packet that will carry the block alone, sent ahead of the packet itself; the copy passes this program on the
 * same core before the call that made it returns. */
struct work {
	__u32 option[FAST_OPEN_LEN / 4]; /* directly before the block: both are written to the packet at once */
	struct block block;
	struct wrapping wrapping;
	__u32 ahead;
	__u32 carrier;
	__u64 message[4];
	__u64 tag[2];
};

/* Sets the length in the IP header and updates the header's checksum. */
static __always_inline long set_ip_length(context *ctx, const struct packet *p, __u32 end)
{
	__be16 old, new;

	if (p->flow.family == 6) {
		new = bpf_htons(end - p->network - IPV6_LEN);
		return bpf_skb_store_bytes(ctx, p->network + 4, &new, 2, 0);
	}
	if (load(ctx, p->network + 2, &old, 2))
		return -1;
	new = bpf_htons(end - p->network);
	return bpf_l3_csum_replace(ctx, p->network + 10, old, new, 2) ?:
	       bpf_skb_store_bytes(ctx, p->network + 2, &new, 2, 0);
}

/* Appends the block to the payload. The helpers handle checksums that the network card completes. */
static __noinline int append(context *ctx, const struct packet *p, const struct block *block)
{
	__u32 udp = p->flow.protocol == IP_UDP, field = p->transport + (udp ? 6 : 16);
	__u64 mangled = udp ? BPF_F_MARK_MANGLED_0 : 0;
	__be16 old_len = bpf_htons(p->end - p->transport), new_len = bpf_htons(p->end - p->transport + TAIL_LEN);
	__u16 added;

	if (bpf_skb_change_tail(ctx, p->end + TAIL_LEN, 0) || bpf_skb_store_bytes(ctx, p->end, block, TAIL_LEN, 0))
		return -1;
	added = shift(fold(bpf_csum_diff(0, 0, (__u32 *)block, TAIL_LEN, 0)), (p->end - p->transport) & 1);
	if (udp && (bpf_skb_store_bytes(ctx, p->transport + 4, &new_len, 2, 0) ||
		    bpf_l4_csum_replace(ctx, field, old_len, new_len, mangled | 2)))
		return -1;
	if (bpf_l4_csum_replace(ctx, field, 0, added, mangled) ||
	    bpf_l4_csum_replace(ctx, field, old_len, new_len, BPF_F_PSEUDO_HDR | mangled | 2))
		return -1;
	return set_ip_length(ctx, p, p->end + TAIL_LEN) ? -1 : 0;
}

/* Reports whether a SYN can go by the carrier `fast_open`: it has no data, and its header has room for the option (wire.md
 * §4.7). */
static __always_inline int has_option_room(const struct packet *p)
{
	return p->flow.protocol == IP_TCP && p->payload == p->end && p->payload - p->transport + FAST_OPEN_LEN <= TCP_HEADER_MAX;
}

/* Appends a Fast Open option to the header of a SYN without data, and a block behind it. */
static __noinline int append_with_option(context *ctx, const struct packet *p, struct work *work)
{
	__u32 field = p->transport + 16, more = FAST_OPEN_LEN + TAIL_LEN;
	__be16 old_len = bpf_htons(p->end - p->transport), new_len = bpf_htons(p->end - p->transport + more);
	struct block *block = &work->block;
	__u16 offset, longer;

	block->magic = FAST_OPEN_MAGIC;
	/* Kind and length; the first bytes of the tag in place of a cookie; padding. */
	work->option[0] = 34 | 10 << 8 | block->tag[0] << 16;
	work->option[1] = block->tag[0] >> 16 | block->tag[1] << 16;
	work->option[2] = block->tag[1] >> 16 | 0x0101 << 16;
	if (load(ctx, p->transport + 12, &offset, 2))
		return -1;
	/* The header's length in words is in the upper half of the first byte. */
	longer = offset + (FAST_OPEN_LEN / 4 << 4);
	if (bpf_skb_change_tail(ctx, p->end + more, 0) || bpf_skb_store_bytes(ctx, p->end, work->option, FAST_OPEN_LEN + TAIL_LEN, 0) ||
	    bpf_skb_store_bytes(ctx, p->transport + 12, &longer, 2, 0))
		return -1;
	if (bpf_l4_csum_replace(ctx, field, 0, fold(bpf_csum_diff(0, 0, work->option, FAST_OPEN_LEN + TAIL_LEN, 0)), 0) ||
	    bpf_l4_csum_replace(ctx, field, offset, longer, 2) ||
	    bpf_l4_csum_replace(ctx, field, old_len, new_len, BPF_F_PSEUDO_HDR | 2))
		return -1;
	return set_ip_length(ctx, p, p->end + more) ? -1 : 0;
}
