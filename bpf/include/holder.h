/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Whose a grant is: the account and session that its handle names to its verifier and to nobody else (wire.md §3.9). */
#pragma once
#include <bpf/bpf_endian.h>
#include "layout.h"
#include "mac.h"

#define HOLDER_LABEL 0x646c6f68 /* "hold" as it lies in memory */

/* The holder in a handle as it travels: means something only where the grant's tag is right. `message` and `out` are room to
 * work in: one word and two. */
static __always_inline __u32 holder_of(const __be32 *handle, const struct epoch_key *key, __u64 *message, __u64 *out)
{
	message[0] = HOLDER_LABEL | (__u64)handle[1] << 32;
	/* Compared with anything, the second word of the MAC, which nobody needs, is not made. */
	siphash128(key->siphash, message, 1, message, out);
	return bpf_ntohl(handle[0] ^ (__u32)out[0]);
}
