/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Tokens of the LS scheme (wire.md §5): verification up to the tag, and single use of their nonces.
 *
 * Pairs come from the authority only: nothing that a sender does creates one. */
#pragma once
#include "layout.h"
#include "ls_token.h"
#include "token.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 256);
	__type(key, __u32);
	__type(value, struct secret_entry);
} ls_secrets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, __u64);
	__type(value, struct ls_grant);
} ls_grants SEC(".maps");

/* When the table of pairs was created, for user space: the nonces that earlier pairs had used by then are unknown. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} ls_since SEC(".maps");

/* Hashes unique id | nonce1 | secret; `ids` are the first seven bytes in memory order. */
static __always_inline void hash_client_key(struct sha224 *sha, const struct secret_entry *secret, __u64 ids)
{
	sha->block[0] = secret->block[0] | ids;
#pragma unroll
	for (int i = 1; i < 8; i++)
		sha->block[i] = secret->block[i];
	sha224(sha);
}

/* Reports whether the token's tag differs from the one that this secret yields. */
static __always_inline int tag_differs(struct sha224 *sha, const struct ls_token *token, const struct secret_entry *secret,
				       __u64 handle, __u16 nonce2)
{
	const __u32 *tag = (const __u32 *)token->tag;
	__u32 differ = 0;

	hash_client_key(sha, secret, bpf_cpu_to_be64(handle << 8));
	hash_tag(sha, bpf_cpu_to_be64(handle << 8) & 0xffffffffff, nonce2);
#pragma unroll
	for (int i = 0; i < SHA224_LEN / 4; i++)
		differ |= sha->hash_words[i] ^ tag[i];
	return differ != 0;
}

/* Checks a token whose pair this verifier was not told of, as the published scheme does (wire.md §6.4.7): the token is
 * right if one of the secrets of now yields its tag. The pair ends with that secret. */
__noinline int verify_unannounced(struct packet *p, const struct ls_token *token, struct token *claim)
{
	__u32 zero = 0, reason = DROP_UNKNOWN_EPOCH;
	struct sha224 *sha = bpf_map_lookup_elem(&ls_hashes, &zero);
	__u64 epoch_length = config.epoch_length ?: 1, current, epoch;

	if (!p || !token || !claim || !sha)
		return DROP_UNKNOWN_EPOCH;
	current = p->time / epoch_length;
	for (int i = 0; i < 3; i++) {
		struct secret_entry *secret;
		__u32 slot;

		epoch = i == 0 ? current : i == 1 ? current - 1 : current + 1;
		slot = epoch & 0xff;
		secret = bpf_map_lookup_elem(&ls_secrets, &slot);
		if (!secret || secret->epoch != epoch)
			continue;
		reason = DROP_BAD_TAG;
		if (tag_differs(sha, token, secret, p->handle, p->nonce2))
			continue;
		claim->expires = (epoch + 2) * epoch_length;
		claim->block.flags = 0;
		p->holder = 0;
		return was_forgotten(claim->expires) ? DROP_EXPIRED : CONTINUE;
	}
	return reason;
}

/* Checks suite, pair, expiry and tag, in this order: CONTINUE, or the reason of the first check that fails. Stores the
 * fields that admission needs in `claim`. */
__noinline int verify_ls(struct packet *p, const struct ls_token *token, struct token *claim)
{
	const __u8 *bytes = (const __u8 *)token;
	__u32 zero = 0, slot;
	struct sha224 *sha = bpf_map_lookup_elem(&ls_hashes, &zero);
	struct secret_entry *secret;
	struct ls_grant *pair;
	__u64 handle = 0;

	if (!p || !token || !claim || !sha || !(config.suites & 1 << SUITE_SHA224))
		return DROP_UNKNOWN_SUITE;
#pragma unroll
	for (int i = 0; i < LS_PAIR_LEN; i++)
		handle = handle << 8 | bytes[i];
	p->handle = handle;
	p->nonce2 = token->nonce2[0] << 8 | token->nonce2[1];
	p->from_pair = 1;
	pair = bpf_map_lookup_elem(&ls_grants, &handle);
	if (!pair)
		return config.ls_stateless ? verify_unannounced(p, token, claim) : DROP_UNKNOWN_EPOCH;
	slot = pair->epoch & 0xff;
	secret = bpf_map_lookup_elem(&ls_secrets, &slot);
	if (!secret || secret->epoch != pair->epoch)
		return DROP_UNKNOWN_EPOCH;
	if (pair->expires <= p->time || was_forgotten(pair->expires))
		return DROP_EXPIRED;
	claim->expires = pair->expires;
	p->holder = pair->holder;
	claim->block.flags = 0;
	return tag_differs(sha, token, secret, handle, p->nonce2) ? DROP_BAD_TAG : CONTINUE;
}

/* Reports whether a pair's nonce2 was used, without recording anything. */
static __always_inline int nonce_was_used(__u64 handle, __u32 nonce2)
{
	struct ls_grant *pair = bpf_map_lookup_elem(&ls_grants, &handle);

	if (!pair)
		return !config.ls_stateless;
	return pair->used[nonce2 >> 6 & (LS_NONCE_WORDS - 1)] >> (nonce2 & 63) & 1;
}

/* Records a pair's nonce2: CONTINUE if it is used for the first time. */
__noinline int first_nonce(__u64 handle, __u32 nonce2)
{
	struct ls_grant *pair = bpf_map_lookup_elem(&ls_grants, &handle);
	__u64 bit = 1ULL << (nonce2 & 63);

	if (!pair)
		return config.ls_stateless ? CONTINUE : DROP_REPLAYED;
	return __sync_fetch_and_or(&pair->used[nonce2 >> 6 & (LS_NONCE_WORDS - 1)], bit) & bit ? DROP_REPLAYED : CONTINUE;
}
