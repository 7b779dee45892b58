/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* MAC suites (wire.md §1): SipHash-2-4 with 128-bit output and AES-128-CMAC (RFC 4493). Messages have one to seven
 * 64-bit words, enough for grants and tokens, or up to eighteen for proofs.
 *
 * AES works on 32-bit words with one 256-byte table. Its look-ups depend on the key, which leaks to an attacker who can
 * measure this machine's cache: docs/threats.md explains why siphash is the default. */
#pragma once
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "layout.h"

#ifndef MAC_WORDS_MAX
#define MAC_WORDS_MAX 7
#endif

enum suite { SUITE_AES_CMAC = 2, SUITE_SIPHASH = 3 };

#define ROTL64(x, b) (((x) << (b)) | ((x) >> (64 - (b))))

#define SIP_ROUND(v0, v1, v2, v3)                                                                                      \
	do {                                                                                                           \
		v0 += v1;                                                                                              \
		v1 = ROTL64(v1, 13);                                                                                   \
		v1 ^= v0;                                                                                              \
		v0 = ROTL64(v0, 32);                                                                                   \
		v2 += v3;                                                                                              \
		v3 = ROTL64(v3, 16);                                                                                   \
		v3 ^= v2;                                                                                              \
		v0 += v3;                                                                                              \
		v3 = ROTL64(v3, 21);                                                                                   \
		v3 ^= v0;                                                                                              \
		v2 += v1;                                                                                              \
		v1 = ROTL64(v1, 17);                                                                                   \
		v1 ^= v2;                                                                                              \
		v2 = ROTL64(v2, 32);                                                                                   \
	} while (0)

/* If `expected` is not null and the first word differs from it, the second word is not computed: each forged tag in
 * a flood then costs four rounds less. The time taken reveals only whether 64 bits are right at once
 * (docs/threats.md). */
static __noinline int siphash128(const __u64 *key, const __u64 *message, __u32 words, const __u64 *expected, __u64 *out)
{
	__u64 v0 = 0x736f6d6570736575ULL ^ key[0], v1 = 0x646f72616e646f6dULL ^ key[1] ^ 0xee;
	__u64 v2 = 0x6c7967656e657261ULL ^ key[0], v3 = 0x7465646279746573ULL ^ key[1];
	__u64 m;

	for (__u32 i = 0; i < MAC_WORDS_MAX; i++) {
		if (i >= words)
			break;
		m = message[i];
		v3 ^= m;
		SIP_ROUND(v0, v1, v2, v3);
		SIP_ROUND(v0, v1, v2, v3);
		v0 ^= m;
	}
	m = (__u64)words << 59; /* the message's length in bytes, in the top byte */
	v3 ^= m;
	SIP_ROUND(v0, v1, v2, v3);
	SIP_ROUND(v0, v1, v2, v3);
	v0 ^= m;
	v2 ^= 0xee;
	SIP_ROUND(v0, v1, v2, v3);
	SIP_ROUND(v0, v1, v2, v3);
	SIP_ROUND(v0, v1, v2, v3);
	SIP_ROUND(v0, v1, v2, v3);
	out[0] = v0 ^ v1 ^ v2 ^ v3;
	if (expected && *expected != out[0])
		return 0;
	v1 ^= 0xdd;
	SIP_ROUND(v0, v1, v2, v3);
	SIP_ROUND(v0, v1, v2, v3);
	SIP_ROUND(v0, v1, v2, v3);
	SIP_ROUND(v0, v1, v2, v3);
	out[1] = v0 ^ v1 ^ v2 ^ v3;
	return 0;
}

/* FIPS 197, 5.1.1 */
static const __u8 aes_sbox[256] = {
	0x63, 0x7c, 0x77, 0x7b, 0xf2, 0x6b, 0x6f, 0xc5, 0x30, 0x01, 0x67, 0x2b, 0xfe, 0xd7, 0xab, 0x76,
	0xca, 0x82, 0xc9, 0x7d, 0xfa, 0x59, 0x47, 0xf0, 0xad, 0xd4, 0xa2, 0xaf, 0x9c, 0xa4, 0x72, 0xc0,
	0xb7, 0xfd, 0x93, 0x26, 0x36, 0x3f, 0xf7, 0xcc, 0x34, 0xa5, 0xe5, 0xf1, 0x71, 0xd8, 0x31, 0x15,
	0x04, 0xc7, 0x23, 0xc3, 0x18, 0x96, 0x05, 0x9a, 0x07, 0x12, 0x80, 0xe2, 0xeb, 0x27, 0xb2, 0x75,
	0x09, 0x83, 0x2c, 0x1a, 0x1b, 0x6e, 0x5a, 0xa0, 0x52, 0x3b, 0xd6, 0xb3, 0x29, 0xe3, 0x2f, 0x84,
	0x53, 0xd1, 0x00, 0xed, 0x20, 0xfc, 0xb1, 0x5b, 0x6a, 0xcb, 0xbe, 0x39, 0x4a, 0x4c, 0x58, 0xcf,
	0xd0, 0xef, 0xaa, 0xfb, 0x43, 0x4d, 0x33, 0x85, 0x45, 0xf9, 0x02, 0x7f, 0x50, 0x3c, 0x9f, 0xa8,
	0x51, 0xa3, 0x40, 0x8f, 0x92, 0x9d, 0x38, 0xf5, 0xbc, 0xb6, 0xda, 0x21, 0x10, 0xff, 0xf3, 0xd2,
	0xcd, 0x0c, 0x13, 0xec, 0x5f, 0x97, 0x44, 0x17, 0xc4, 0xa7, 0x7e, 0x3d, 0x64, 0x5d, 0x19, 0x73,
	0x60, 0x81, 0x4f, 0xdc, 0x22, 0x2a, 0x90, 0x88, 0x46, 0xee, 0xb8, 0x14, 0xde, 0x5e, 0x0b, 0xdb,
	0xe0, 0x32, 0x3a, 0x0a, 0x49, 0x06, 0x24, 0x5c, 0xc2, 0xd3, 0xac, 0x62, 0x91, 0x95, 0xe4, 0x79,
	0xe7, 0xc8, 0x37, 0x6d, 0x8d, 0xd5, 0x4e, 0xa9, 0x6c, 0x56, 0xf4, 0xea, 0x65, 0x7a, 0xae, 0x08,
	0xba, 0x78, 0x25, 0x2e, 0x1c, 0xa6, 0xb4, 0xc6, 0xe8, 0xdd, 0x74, 0x1f, 0x4b, 0xbd, 0x8b, 0x8a,
	0x70, 0x3e, 0xb5, 0x66, 0x48, 0x03, 0xf6, 0x0e, 0x61, 0x35, 0x57, 0xb9, 0x86, 0xc1, 0x1d, 0x9e,
	0xe1, 0xf8, 0x98, 0x11, 0x69, 0xd9, 0x8e, 0x94, 0x9b, 0x1e, 0x87, 0xe9, 0xce, 0x55, 0x28, 0xdf,
	0x8c, 0xa1, 0x89, 0x0d, 0xbf, 0xe6, 0x42, 0x68, 0x41, 0x99, 0x2d, 0x0f, 0xb0, 0x54, 0xbb, 0x16,
};

#define SUB(x) ((__u32)aes_sbox[(x) & 0xff])
#define ROTL32(x, b) (((x) << (b)) | ((x) >> (32 - (b))))

/* Doubles four field elements at once. */
static __always_inline __u32 aes_double(__u32 x)
{
	return ((x & 0x7f7f7f7f) << 1) ^ (((x >> 7) & 0x01010101) * 0x1b);
}

static __always_inline __u32 aes_mix(__u32 x)
{
	__u32 doubled = aes_double(x);

	return doubled ^ ROTL32(doubled ^ x, 8) ^ ROTL32(x, 16) ^ ROTL32(x, 24);
}

struct aes_words {
	__u32 word[4];
};

/* Encrypts one block in place. Key and block are big-endian words. The round keys are computed on the fly. It
 * is a global function, which the kernel checks once (docs/decisions/0155). The kernel lets its pointers be null. */
__noinline int aes_encrypt(const struct aes_words *key, struct aes_words *block)
{
	if (!key || !block)
		return 0;

	__u32 k0 = key->word[0], k1 = key->word[1], k2 = key->word[2], k3 = key->word[3];
	__u32 s0 = block->word[0] ^ k0, s1 = block->word[1] ^ k1, s2 = block->word[2] ^ k2, s3 = block->word[3] ^ k3;
	__u32 constant = 1;

#pragma clang loop unroll(disable)
	for (int round = 1; round <= 10; round++) {
		__u32 t0 = SUB(s0 >> 24) << 24 | SUB(s1 >> 16) << 16 | SUB(s2 >> 8) << 8 | SUB(s3);
		__u32 t1 = SUB(s1 >> 24) << 24 | SUB(s2 >> 16) << 16 | SUB(s3 >> 8) << 8 | SUB(s0);
		__u32 t2 = SUB(s2 >> 24) << 24 | SUB(s3 >> 16) << 16 | SUB(s0 >> 8) << 8 | SUB(s1);
		__u32 t3 = SUB(s3 >> 24) << 24 | SUB(s0 >> 16) << 16 | SUB(s1 >> 8) << 8 | SUB(s2);

		k0 ^= SUB(k3 >> 16) << 24 | SUB(k3 >> 8) << 16 | SUB(k3) << 8 | SUB(k3 >> 24);
		k0 ^= constant << 24;
		k1 ^= k0;
		k2 ^= k1;
		k3 ^= k2;
		constant = aes_double(constant) & 0xff;
		if (round < 10) {
			t0 = aes_mix(t0);
			t1 = aes_mix(t1);
			t2 = aes_mix(t2);
			t3 = aes_mix(t3);
		}
		s0 = t0 ^ k0;
		s1 = t1 ^ k1;
		s2 = t2 ^ k2;
		s3 = t3 ^ k3;
	}
	block->word[0] = s0;
	block->word[1] = s1;
	block->word[2] = s2;
	block->word[3] = s3;
	return 0;
}

/* Doubles a 128-bit value for the subkeys (RFC 4493, 2.3). */
static __always_inline void cmac_double(__u32 *x)
{
	__u32 carry = x[0] >> 31;

	x[0] = x[0] << 1 | x[1] >> 31;
	x[1] = x[1] << 1 | x[2] >> 31;
	x[2] = x[2] << 1 | x[3] >> 31;
	x[3] = x[3] << 1 ^ carry * 0x87;
}

/* Processes the block that begins at word `at`, if the message reaches that far. */
static __always_inline void cmac_block(const struct aes_words *key, const struct aes_words *subkey,
				       struct aes_words *block, const __u64 *message, __u32 words, __u32 at)
{
	__u32 *state = block->word;

	if (at >= words)
		return;
	state[0] ^= bpf_htonl((__u32)message[at]);
	state[1] ^= bpf_htonl((__u32)(message[at] >> 32));
	if (at + 1 < words) {
		state[2] ^= bpf_htonl((__u32)message[at + 1]);
		state[3] ^= bpf_htonl((__u32)(message[at + 1] >> 32));
	} else {
		state[2] ^= 0x80000000; /* padding of a short last block */
	}
	if (at + 2 >= words) {
		state[0] ^= subkey->word[0];
		state[1] ^= subkey->word[1];
		state[2] ^= subkey->word[2];
		state[3] ^= subkey->word[3];
	}
	aes_encrypt(key, block);
}

static __noinline int aes_cmac(const __u64 *key, const __u64 *message, __u32 words, __u64 *out)
{
	struct aes_words k = { { bpf_htonl((__u32)key[0]), bpf_htonl((__u32)(key[0] >> 32)), bpf_htonl((__u32)key[1]),
				 bpf_htonl((__u32)(key[1] >> 32)) } };
	struct aes_words subkey = {}, state = {};

	aes_encrypt(&k, &subkey);
	cmac_double(subkey.word);
	if (words & 1)
		cmac_double(subkey.word);
	/* Unrolled by hand: clang makes a loop here that Linux 6.1 rejects, entered by falling through from its own
	 * end. */
	cmac_block(&k, &subkey, &state, message, words, 0);
	cmac_block(&k, &subkey, &state, message, words, 2);
	cmac_block(&k, &subkey, &state, message, words, 4);
	cmac_block(&k, &subkey, &state, message, words, 6);
#if MAC_WORDS_MAX > 8
	cmac_block(&k, &subkey, &state, message, words, 8);
	cmac_block(&k, &subkey, &state, message, words, 10);
	cmac_block(&k, &subkey, &state, message, words, 12);
	cmac_block(&k, &subkey, &state, message, words, 14);
	cmac_block(&k, &subkey, &state, message, words, 16);
#endif
	out[0] = (__u64)bpf_htonl(state.word[1]) << 32 | bpf_htonl(state.word[0]);
	out[1] = (__u64)bpf_htonl(state.word[3]) << 32 | bpf_htonl(state.word[2]);
	return 0;
}

static __always_inline void mac(__u8 suite, const __u64 *key, const __u64 *message, __u32 words,
				const __u64 *expected, __u64 *out)
{
	if (suite == SUITE_AES_CMAC)
		aes_cmac(key, message, words, out);
	else
		siphash128(key, message, words, expected, out);
}
