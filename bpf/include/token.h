/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Tokens (wire.md §3): reading them from a packet, and verifying them up to the tag (§6.4). */
#pragma once
#include "config.h"
#include "drop_reason.h"
#include "holder.h"
#include "layout.h"
#include "mac.h"
#include "parse.h"

enum { FLAG_PORT = 1, FLAG_SOURCE = 2, FLAG_SINGLE = 8, FLAG_BEARER = 16, FLAG_IPV6 = 32, FLAG_SEALED = 64,
       FLAGS_RESERVED = 0x80 };
enum { CLOCK_SKEW_MAX = 30 };

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 256);
	__type(key, __u32);
	__type(value, struct epoch_key);
} epoch_keys SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct forgotten);
} forgotten SEC(".maps");

/* Reports whether the verifier may no longer know that a token was used, or a grant ended, at this time, because its
 * clock jumped. */
static __always_inline int was_forgotten(__u32 time)
{
	__u32 zero = 0, found = 0;
	const struct forgotten *times = bpf_map_lookup_elem(&forgotten, &zero);

	if (!times)
		return 1;
#pragma unroll
	for (int i = 0; i < FORGOTTEN_SPANS; i++)
		found |= time - times->spans[i].from < times->spans[i].until - times->spans[i].from;
	return found;
}

/* Made of words of at most 32 bits: clang would read a packed structure byte by byte. */
struct token_block {
	__u32 magic;
	__u8 version_suite, flags, epoch, prefix_length;
	__be32 expires;
	__be32 handle[2];
	__be32 time, nonce;
	__u32 tag[3];
};

struct token {
	union {
		struct token_block block;
		__u64 words[TAIL_LEN / 8];
	};
	__u32 expires;
	/* Inputs and outputs of the MACs. */
	__u64 message[MAC_WORDS_MAX + 1];
	__u64 grant_key[2];
	__u64 tag[2];
	__u64 expected; /* the first word of the received tag */
};

/* Scratch space for a token under verification: too large for the stack. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct token);
} tokens SEC(".maps");

/* Reports whether a TCP header ends with the option that the carrier `fast_open` adds (wire.md §4.7). */
__noinline int ends_with_option(context *ctx, const struct packet *p)
{
	__u32 option[FAST_OPEN_LEN / 4];

	if (!p || p->payload < p->transport + sizeof(struct tcp) + FAST_OPEN_LEN ||
	    load(ctx, p->payload - FAST_OPEN_LEN, option, FAST_OPEN_LEN))
		return 0;
	return (__u16)option[0] == (34 | 10 << 8) && option[2] >> 16 == 0x0101;
}

/* Reports whether a word is the magic number of some block: they differ in one byte. */
static __always_inline int may_be_magic(__u32 word)
{
	return (word & 0xff00ffff) == (MAGIC & 0xff00ffff);
}

/* Returns the carrier of a block that begins with this word, 0 if there is no block. The payload must be long enough
 * for a block. */
static __always_inline enum carrier carrier_of(context *ctx, const struct packet *p, __u32 magic)
{
	if (magic == MAGIC)
		return CARRIER_TAIL;
	if (magic == TCP_IN_UDP_MAGIC)
		return p->flow.tunnel == SIDE_DATAGRAMS ? CARRIER_TCP_IN_UDP : 0;
	if (p->flow.protocol != IP_TCP || p->payload + TAIL_LEN != p->end)
		return 0;
	if (magic == STREAM_MAGIC)
		return CARRIER_STREAM;
	return magic == FAST_OPEN_MAGIC && ends_with_option(ctx, p) ? CARRIER_FAST_OPEN : 0;
}

/* Returns the carrier of the block with which the packet's payload ends, and reads the block; returns 0 if there is
 * none. The caller passes TCP segments only if they open a connection. */
static __always_inline enum carrier find_token(context *ctx, const struct packet *p, struct token *token)
{
	const __u64 *block;

	if (!p->fills_ip || p->payload + TAIL_LEN > p->end)
		return 0;
	block = near(ctx, p->end - TAIL_LEN, TAIL_LEN);
	if (!block)
		return load(ctx, p->end - TAIL_LEN, &token->block, TAIL_LEN) ? 0 : carrier_of(ctx, p, token->block.magic);
	if (!may_be_magic(*(__u32 *)block))
		return 0;
#pragma unroll
	for (int i = 0; i < TAIL_LEN / 8; i++)
		token->words[i] = block[i];
	return carrier_of(ctx, p, token->block.magic);
}

/* Clears the bits of an address beyond the prefix. */
static __always_inline void mask_words(__u64 *words, __u32 count, __u32 prefix_length)
{
	for (__u32 i = 0; i < count; i++) {
		__u32 keep = prefix_length > 64 * i ? prefix_length - 64 * i : 0;

		if (keep == 0)
			words[i] = 0;
		else if (keep < 64)
			words[i] &= bpf_cpu_to_be64(~0ULL << (64 - keep));
	}
}

/* Pairs of neighbouring 32-bit words of the block, counted from behind the magic number. `pair` returns them as one
 * 64-bit word, because data that was stored as 64-bit words is fastest to load as such. */
enum pair { PAIR_SCOPE = 0, PAIR_HANDLE = 1, PAIR_TIME_NONCE = 2, PAIR_TAG = 3 };

static __always_inline __u64 pair(const struct token *token, enum pair at)
{
	return token->words[at] >> 32 | token->words[at + 1] << 32;
}

/* Reports whether the tag is the one that the verifier's key yields (wire.md §3.5, §3.7). */
static __always_inline int tag_is_right(const struct packet *p, struct token *token, const struct epoch_key *key)
{
	const struct token_block *block = &token->block;
	__u64 *message, *tag, service;
	__u32 words;
	__u8 suite;

	message = token->message;
	tag = token->tag;
	suite = block->version_suite & 15;
	service = p->flow.protocol | (__u64)p->flow.server_port << 16;
	message[0] = pair(token, PAIR_SCOPE);
	message[1] = pair(token, PAIR_HANDLE);
	if (p->flow.family == 4) {
		__u32 address = *(__u32 *)p->flow.server, masked = address;

		if (block->prefix_length < 32)
			masked = block->prefix_length ? address & bpf_htonl(~0U << (32 - block->prefix_length)) : 0;
		message[2] = masked | (block->flags & FLAG_PORT ? service << 32 : 0);
		words = 3;
		if (block->flags & FLAG_SOURCE)
			message[words++] = *(__u32 *)p->flow.client;
	} else {
		__builtin_memcpy(message + 2, p->flow.server, 16);
		mask_words(message + 2, 2, block->prefix_length);
		message[4] = block->flags & FLAG_PORT ? service : 0;
		words = 5;
		if (block->flags & FLAG_SOURCE) {
			__builtin_memcpy(message + 5, p->flow.client, 16);
			words = 7;
		}
	}
	mac(suite, suite == SUITE_AES_CMAC ? key->aes : key->siphash, message, words, 0, token->grant_key);

	message[0] = pair(token, PAIR_TIME_NONCE);
	if (p->flow.family == 4) {
		message[1] = *(__u32 *)p->flow.server | service << 32;
		words = 2;
	} else {
		__builtin_memcpy(message + 1, p->flow.server, 16);
		message[3] = service;
		words = 4;
	}
	token->expected = pair(token, PAIR_TAG);
	mac(suite, token->grant_key, message, words, &token->expected, tag);
	return ((tag[0] ^ token->expected) | ((__u32)tag[1] ^ block->tag[2])) == 0;
}

/* Checks form, suite, epoch, expiry, clock and tag, in this order: CONTINUE, or the reason of the first check that
 * fails. */
static __always_inline int verify_token(struct packet *p, struct token *token)
{
	const struct token_block *block = &token->block;
	__u32 slot, suite, time;
	struct epoch_key *key;
	__u64 epoch_length;
	__u8 ipv6;

	slot = block->epoch;
	suite = block->version_suite & 15;
	time = bpf_ntohl(block->time);
	ipv6 = p->flow.family == 6;
	token->expires = bpf_ntohl(block->expires);
	p->handle = bpf_be64_to_cpu(pair(token, PAIR_HANDLE));
	if (block->version_suite >> 4 != 1 || block->flags & (FLAGS_RESERVED | FLAG_BEARER) ||
	    (block->flags & FLAG_IPV6 ? 1 : 0) != ipv6 || block->prefix_length > (ipv6 ? 128 : 32))
		return DROP_MALFORMED;
	if ((suite != SUITE_AES_CMAC && suite != SUITE_SIPHASH) || !(config.suites >> suite & 1))
		return DROP_UNKNOWN_SUITE;
	key = bpf_map_lookup_elem(&epoch_keys, &slot);
	/* By multiplication, because a division would cost as much as all checks before it: the previous epoch, this
	 * one or the next. */
	epoch_length = config.epoch_length ?: 1;
	if (!key || !key->epoch || (key->epoch + 2) * epoch_length <= p->time ||
	    (key->epoch - 1) * epoch_length > p->time)
		return DROP_UNKNOWN_EPOCH;
	if (token->expires <= p->time || was_forgotten(token->expires))
		return DROP_EXPIRED;
	if (token->expires - p->time > config.max_lifetime)
		return DROP_LIFETIME_TOO_LONG;
	if ((time > p->time ? time - p->time : p->time - time) > CLOCK_SKEW_MAX || was_forgotten(time))
		return DROP_CLOCK_SKEW;
	if (!tag_is_right(p, token, key))
		return DROP_BAD_TAG;
	p->holder = holder_of(block->handle, key, token->message, token->grant_key);
	return CONTINUE;
}
