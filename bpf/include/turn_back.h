/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* TCP in UDP at the verifier (wire.md §4.8): turns datagrams that carry segments back into these, before the decision. The
 * decision is then the same as about a segment that came as such, but on a side of its own.
 *
 * Include skb.h and admit.h before this file. */
#pragma once
#include "from_datagram.h"

enum { TURNED = -3 };

/* Reports whether a SYN ends in a block of this carrier. */
static __always_inline int ends_in_block(context *ctx, const struct segment *s)
{
	__u32 magic = 0, header_len = (s->header.udp.offset >> 4) * 4;

	return s->transport + header_len + TAIL_LEN <= s->end && !load(ctx, s->end - TAIL_LEN, &magic, sizeof(magic)) &&
	       magic == TCP_IN_UDP_MAGIC;
}

/* TURNED: the packet is a segment now. CONTINUE: it is none, and stays as it is. A drop reason: it must not reach an
 * application as a datagram. */
__noinline int turn_back(context *ctx)
{
	struct segment s = {};
	const struct services *services;
	struct flow_key key;
	struct flow *flow;
	__u32 time, opens;
	__u16 port;
	int fits;

	if (read_segment(ctx, &s, IP_UDP))
		return CONTINUE;
	services = services_of(s.flow.family, s.flow.server);
	port = bpf_ntohs(s.flow.server_port);
	if (!services || !covers(services, IP_TCP, port))
		return CONTINUE;
	time = now();
	key = s.flow;
	key.protocol = IP_TCP;
	key.tunnel = SIDE_DATAGRAMS;
	flow = live_flow(&key, time);
	fits = is_turned(&s);
	opens = fits && (s.header.udp.flags & (TCP_SYN | TCP_ACK)) == TCP_SYN;
	if (opens && ends_in_block(ctx, &s)) {
		/* The ports of a flow of datagrams are that flow's. */
		key = s.flow;
		if (live_flow(&key, time))
			return DROP_NO_TOKEN;
	} else if (opens || !fits || !flow) {
		return flow || !covers(services, IP_UDP, port) ? DROP_NO_TOKEN : CONTINUE;
	}
	/* Datagrams that the kernel has merged are several segments. */
	return segment_length(ctx) || to_tcp(ctx, &s) ? DROP_MALFORMED : TURNED;
}
