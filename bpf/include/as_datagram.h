/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* TCP in UDP (wire.md §4.8), on the way out: segments become datagrams. Include skb.h before this file. */
#pragma once
#include "mss.h"
#include "tcp_in_udp.h"

/* Longest packet of a connection in datagrams. No box on the way lowers the segment size of a connection that it does not see,
 * and ICMP errors about its datagrams reach no TCP stack. */
enum { DATAGRAM_MTU = 1280 };

/* Turns a segment into a datagram. Its checksum must be complete. */
static __noinline int to_udp(context *ctx, const struct segment *s)
{
	union turned udp = {};
	__u16 sum = s->header.tcp.checksum, length = bpf_htons(s->end - s->transport);
	__u16 old = bpf_htons(s->header.tcp.offset << 8 | s->header.tcp.flags), new = old & ~bpf_htons(TCP_URG);

	sum = replace(sum, s->header.tcp.urgent, length);
	sum = replace(sum, old, new);
	sum = replace(sum, bpf_htons(IP_TCP), bpf_htons(IP_UDP));
	udp.words[0] = s->header.words[0];
	udp.words[2] = s->header.words[3];
	udp.words[3] = s->header.words[1];
	udp.words[4] = s->header.words[2];
	udp.udp.len = length;
	udp.udp.checksum = sum ?: 0xffff;
	udp.udp.flags &= ~TCP_URG;
	return store_turned(ctx, s, &udp, IP_UDP);
}

/* Sends a segment that has come through the helping devices, which have cut super-packets and completed checksums, as a
 * datagram by this interface. */
static __always_inline int send_turned(context *ctx, struct segment *s, __u32 interface)
{
	if (segment_length(ctx) || s->end != frame_length(ctx) || s->end < s->transport + TURNED_LEN)
		return TC_ACT_SHOT;
	if (s->header.tcp.flags & TCP_SYN) {
		clamp_mss(ctx, s->transport, ETHER_LEN + DATAGRAM_MTU - s->transport - sizeof(struct tcp));
		if (load(ctx, s->transport, &s->header, TURNED_LEN))
			return TC_ACT_SHOT;
	}
	return to_udp(ctx, s) ? TC_ACT_SHOT : bpf_redirect(interface, 0);
}
