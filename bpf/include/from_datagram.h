/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* TCP in UDP (wire.md §4.8), on the way in: datagrams become the segments that they carry. Include skb.h before this file. */
#pragma once
#include "tcp_in_udp.h"

/* Reports whether a datagram has the form of a segment. */
static __always_inline int is_turned(const struct segment *s)
{
	__u32 header_len = (s->header.udp.offset >> 4) * 4;

	return s->transport + bpf_ntohs(s->header.udp.len) == s->end && s->transport + TURNED_LEN <= s->end &&
	       header_len >= TURNED_LEN && s->transport + header_len <= s->end && s->header.udp.checksum &&
	       !(s->header.udp.flags & TCP_URG);
}

/* Turns a datagram into the segment that it carries. */
static __noinline int to_tcp(context *ctx, const struct segment *s)
{
	union turned tcp = {};
	__u16 sum = s->header.udp.checksum;

	sum = replace(sum, s->header.udp.len, 0);
	sum = replace(sum, bpf_htons(IP_UDP), bpf_htons(IP_TCP));
	tcp.words[0] = s->header.words[0];
	tcp.words[1] = s->header.words[3];
	tcp.words[2] = s->header.words[4];
	tcp.words[3] = s->header.words[2];
	tcp.tcp.checksum = sum;
	return store_turned(ctx, s, &tcp, IP_TCP);
}
