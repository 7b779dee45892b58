/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The Internet checksum (RFC 1071, RFC 1624). Words are read in memory order: one's complement sums do not depend on
 * the byte order as long as all summands share it. */
#pragma once
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "parse.h"

static __always_inline __u16 fold(__u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	return (sum & 0xffff) + (sum >> 16);
}

/* Updates a checksum after one word changed from `old` to `new`. */
static __always_inline __u16 replace(__u16 checksum, __u16 old, __u16 new)
{
	return ~fold((__u32)(__u16)~checksum + (__u16)~old + new);
}

/* Adjusts the folded sum of bytes that begin at an odd offset. */
static __always_inline __u16 shift(__u16 sum, int odd)
{
	return odd ? (__u16)(sum << 8 | sum >> 8) : sum;
}

/* Sums the pseudo-header (RFC 9293, RFC 8200) with this transport length. */
static __always_inline __u32 pseudo_header(const struct packet *p, __u16 len)
{
	__u32 sum = bpf_htons(p->flow.protocol) + bpf_htons(len);
	const __u16 *source = (const __u16 *)p->flow.client, *destination = (const __u16 *)p->flow.server;

#pragma unroll
	for (int i = 0; i < 8; i++) /* an IPv4 address is followed by zeros */
		sum += source[i] + destination[i];
	return sum;
}
