/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* SHA-224 (FIPS 180-4) of messages of one block, all that the LS scheme needs (wire.md §5). */
#pragma once
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

enum { SHA224_LEN = 28, SHA224_ROUNDS = 64 };

struct sha224 {
	union {
		__u64 block[8];
		__u32 words[16]; /* overwritten by the hash function */
	};
	union {
		__u64 hash[4];
		__be32 hash_words[8]; /* seven words, then zero */
	};
};

/* FIPS 180-4, 4.2.2 */
static const __u32 sha224_constants[SHA224_ROUNDS] = {
	0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
	0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
	0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
	0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
	0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
	0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
	0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
	0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

#define ROTR32(x, b) (((x) >> (b)) | ((x) << (32 - (b))))

/* Hashes the block, which holds message and padding. Not unrolled: it would exceed the limit on a program's length. */
__noinline int sha224(struct sha224 *sha)
{
	__u32 a = 0xc1059ed8, b = 0x367cd507, c = 0x3070dd17, d = 0xf70e5939;
	__u32 e = 0xffc00b31, f = 0x68581511, g = 0x64f98fa7, h = 0xbefa4fa4;

	if (!sha)
		return 0;
#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < SHA224_ROUNDS; i++) {
		__u32 word, one, two;

		if (i < 16) {
			word = bpf_ntohl(sha->words[i & 15]);
		} else {
			__u32 x = sha->words[(i + 1) & 15], y = sha->words[(i + 14) & 15];

			word = sha->words[i & 15] + sha->words[(i + 9) & 15] +
			       (ROTR32(x, 7) ^ ROTR32(x, 18) ^ x >> 3) + (ROTR32(y, 17) ^ ROTR32(y, 19) ^ y >> 10);
		}
		sha->words[i & 15] = word;
		one = h + (ROTR32(e, 6) ^ ROTR32(e, 11) ^ ROTR32(e, 25)) + (g ^ (e & (f ^ g))) + sha224_constants[i] + word;
		two = (ROTR32(a, 2) ^ ROTR32(a, 13) ^ ROTR32(a, 22)) + ((a & b) | (c & (a | b)));
		h = g;
		g = f;
		f = e;
		e = d + one;
		d = c;
		c = b;
		b = a;
		a = one + two;
	}
	sha->hash_words[0] = bpf_htonl(a + 0xc1059ed8);
	sha->hash_words[1] = bpf_htonl(b + 0x367cd507);
	sha->hash_words[2] = bpf_htonl(c + 0x3070dd17);
	sha->hash_words[3] = bpf_htonl(d + 0xf70e5939);
	sha->hash_words[4] = bpf_htonl(e + 0xffc00b31);
	sha->hash_words[5] = bpf_htonl(f + 0x68581511);
	sha->hash_words[6] = bpf_htonl(g + 0x64f98fa7);
	sha->hash_words[7] = 0;
	return 0;
}
