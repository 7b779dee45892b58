/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Removal of the carriers `tail`, `stream` and `fast_open` (wire.md §4.5 to §4.7): restores the lengths and checksums that the
 * packet was sent with, moves the sequence number of a stream behind the block, and takes an added option out of the header.
 *
 * crates/wire/src/tail.rs has the same rules. A packet from a local sender may carry only the pseudo-header's sum in
 * its checksum field, for the network card to complete; then only the length in that sum changes. */
#pragma once
#include "checksum.h"
#include "parse.h"
#include "summing.h"
#include "token.h"

static __always_inline long load_field(context *ctx, __u32 at, __u16 *field)
{
	__u16 *place = near(ctx, at, sizeof(*field));

	if (!place)
		return load(ctx, at, field, sizeof(*field));
	*field = *place;
	return 0;
}

static __always_inline long store_field(context *ctx, __u32 at, __u16 field)
{
	__u16 *place = near(ctx, at, sizeof(field));

	if (!place)
		return store(ctx, at, &field, sizeof(field));
	*place = field;
	return 0;
}

/* Returns the folded sum of the block. */
static __always_inline __u16 block_sum(const struct token *token)
{
	__u64 sum = 0;

#pragma unroll
	for (int i = 0; i < TAIL_LEN / 8; i++)
		sum += (token->words[i] & 0xffffffff) + (token->words[i] >> 32);
	sum = (sum & 0xffffffff) + (sum >> 32);
	return fold((sum & 0xffff) + (sum >> 16));
}

/* Moves a SYN's sequence number behind the block, and updates its checksum if that covers the number. */
static __always_inline int skip_block(context *ctx, const struct packet *p, __u16 *checksum, int covered)
{
	__be32 before, after;

	if (load(ctx, p->transport + 4, &before, sizeof(before)))
		return -1;
	after = bpf_htonl(bpf_ntohl(before) + TAIL_LEN);
	if (covered) {
		*checksum = replace(*checksum, (__u16)before, (__u16)after);
		*checksum = replace(*checksum, before >> 16, after >> 16);
	}
	return store(ctx, p->transport + 4, &after, sizeof(after)) ? -1 : 0;
}

/* Shortens a SYN's header by the option that `fast_open` added: it is the last one, and directly before the block. Updates the
 * checksum if that covers it. */
static __always_inline int shorten_header(context *ctx, const struct packet *p, __u16 *checksum, int covered)
{
	__u16 before, after;
	__u32 option[FAST_OPEN_LEN / 4], sum = 0;

	if (load(ctx, p->transport + 12, &before, sizeof(before)) || load(ctx, p->payload - FAST_OPEN_LEN, option, FAST_OPEN_LEN))
		return -1;
	/* The header's length in words is in the upper half of the first byte. */
	after = before - (FAST_OPEN_LEN / 4 << 4);
	if (covered) {
#pragma unroll
		for (int i = 0; i < FAST_OPEN_LEN / 4; i++)
			sum += (option[i] & 0xffff) + (option[i] >> 16);
		*checksum = replace(*checksum, before, after);
		*checksum = replace(*checksum, fold(sum), 0);
	}
	return store(ctx, p->transport + 12, &after, sizeof(after)) ? -1 : 0;
}

__noinline int strip_tail(context *ctx, const struct packet *p, const struct token *token)
{
	__u32 end, start, field;
	__u16 old_len, new_len, old, new, ip_len;
	int covered;

	if (!p || !token)
		return -1;
	start = p->end - TAIL_LEN;
	end = token->block.magic == FAST_OPEN_MAGIC ? start - FAST_OPEN_LEN : start;
	old_len = p->end - p->transport;
	new_len = end - p->transport;
	field = p->transport + (p->flow.protocol == IP_TCP ? 16 : 6);
	if (load_field(ctx, field, &old))
		return -1;
	if (p->flow.protocol == IP_TCP || old) {
		covered = old != fold(pseudo_header(p, old_len)) || checksum_is_whole(ctx, p);
		if (!covered) {
			new = fold(pseudo_header(p, new_len));
		} else {
			new = replace(old, bpf_htons(old_len), bpf_htons(new_len));
			if (p->flow.protocol == IP_UDP)
				new = replace(new, bpf_htons(old_len), bpf_htons(new_len));
			new = replace(new, shift(block_sum(token), (start - p->transport) & 1), 0);
			if (p->flow.protocol == IP_UDP && !new)
				new = 0xffff;
		}
		if (token->block.magic == STREAM_MAGIC && skip_block(ctx, p, &new, covered))
			return -1;
		if (token->block.magic == FAST_OPEN_MAGIC && shorten_header(ctx, p, &new, covered))
			return -1;
		if (store_field(ctx, field, new))
			return -1;
	}
	if (p->flow.protocol == IP_UDP && store_field(ctx, p->transport + 4, bpf_htons(new_len)))
		return -1;
	if (p->flow.family == 6) {
		if (store_field(ctx, p->network + 4, bpf_htons(end - p->network - IPV6_LEN)))
			return -1;
	} else {
		__u16 length = bpf_htons(end - p->network);

		if (load_field(ctx, p->network + 2, &ip_len) || load_field(ctx, p->network + 10, &old))
			return -1;
		if (store_field(ctx, p->network + 10, replace(old, ip_len, length)) ||
		    store_field(ctx, p->network + 2, length))
			return -1;
	}
	return cut_tail(ctx, end) ? -1 : 0;
}
