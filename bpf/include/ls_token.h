/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Tokens of the LS scheme (wire.md §5.3): layout, and the hash that makes their tag. */
#pragma once
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "sha224.h"

enum { SUITE_SHA224 = 1, LS_PAIR_LEN = 7 };

/* A token. In a shim, its tag is aligned to 32-bit words. */
struct ls_token {
	__u8 unique_id[5], nonce1[2], nonce2[2], tag[SHA224_LEN];
};

/* Scratch space for a token's hash. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct sha224);
} ls_hashes SEC(".maps");

/* Blocks are assembled from whole words: clang would keep single bytes on the stack, which has no room for so many. */

/* Hashes unique id | nonce2 | the previous hash, which is the client key. */
static __always_inline void hash_tag(struct sha224 *sha, __u64 unique_id, __u16 nonce2)
{
	sha->block[0] = unique_id | (__u64)bpf_htons(nonce2) << 40 | sha->hash[0] << 56;
	sha->block[1] = sha->hash[0] >> 8 | sha->hash[1] << 56;
	sha->block[2] = sha->hash[1] >> 8 | sha->hash[2] << 56;
	sha->block[3] = sha->hash[2] >> 8 | sha->hash[3] << 56;
	sha->block[4] = sha->hash[3] >> 8 | 0x80ULL << 24; /* the bit after the message */
	sha->block[5] = 0;
	sha->block[6] = 0;
	sha->block[7] = bpf_cpu_to_be64((LS_PAIR_LEN + SHA224_LEN) * 8);
	sha224(sha);
}
