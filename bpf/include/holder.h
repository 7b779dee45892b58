/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Holder of a grant: the account and session that only the grant's verifier can read from its handle (wire.md §3.9). */
#pragma once
#include <bpf/bpf_endian.h>
#include "layout.h"
#include "mac.h"

#define HOLDER_LABEL 0x646c6f68 /* "hold" in memory order */

/* Decrypts the holder in a handle as it travels. The result is meaningful only if the grant's tag is valid. `message`
 * and `out` are scratch space of one and two words. */
static __always_inline __u32 holder_of(const __be32 *handle, const struct epoch_key *key, __u64 *message, __u64 *out)
{
	message[0] = HOLDER_LABEL | (__u64)handle[1] << 32;
	/* Passing any `expected` value makes siphash128 skip the MAC's second word, which is not needed here. */
	siphash128(key->siphash, message, 1, message, out);
	return bpf_ntohl(handle[0] ^ (__u32)out[0]);
}
