/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* TCP in UDP (wire.md §4.8): a segment whose header is in another order, so that it is a UDP datagram of the same length.
 * crates/wire/src/reorder.rs has the same rules.
 *
 * Only frames without VLAN tag, whose IP header has no options and no extension headers. Include skb.h before this
 * file. */
#pragma once
#include "checksum.h"
#include "parse.h"

enum { TURNED_LEN = 20, TCP_URG = 32 };

/* The header in its two orders. */
union turned {
	struct tcp tcp;
	struct {
		__be16 source, destination, len, checksum;
		__u8 offset, flags;
		__be16 window;
		__be32 sequence, acknowledgement;
	} udp;
	__u32 words[TURNED_LEN / 4];
};

/* A packet, and the first bytes of its transport. */
struct segment {
	struct flow_key flow; /* client = source, server = destination */
	__u32 transport, end;
	union turned header;
};

/* Reads a packet of this protocol. Returns -1 if the frame is none, or has another form. The caller zeroes `s`. */
static __noinline int read_segment(context *ctx, struct segment *s, __u8 protocol)
{
	union {
		struct ipv4 four;
		struct ipv6 six;
	} ip;
	__be16 type;
	__u32 len;

	if (load(ctx, 12, &type, 2))
		return -1;
	if (type == bpf_htons(0x0800)) {
		if (load(ctx, ETHER_LEN, &ip.four, IPV4_LEN) || ip.four.version_ihl != 0x45 ||
		    ip.four.fragment & bpf_htons(0x3fff) || ip.four.protocol != protocol)
			return -1;
		s->flow.family = 4;
		__builtin_memcpy(s->flow.client, ip.four.source, 4);
		__builtin_memcpy(s->flow.server, ip.four.destination, 4);
		s->transport = ETHER_LEN + IPV4_LEN;
		s->end = ETHER_LEN + bpf_ntohs(ip.four.total_len);
	} else if (type == bpf_htons(0x86dd)) {
		if (load(ctx, ETHER_LEN, &ip.six, IPV6_LEN) || ip.six.version_class >> 4 != 6 || ip.six.next != protocol)
			return -1;
		s->flow.family = 6;
		__builtin_memcpy(s->flow.client, ip.six.source, 16);
		__builtin_memcpy(s->flow.server, ip.six.destination, 16);
		s->transport = ETHER_LEN + IPV6_LEN;
		s->end = ETHER_LEN + IPV6_LEN + bpf_ntohs(ip.six.payload_len);
	} else {
		return -1;
	}
	s->flow.protocol = protocol;
	if (load(ctx, s->transport, &s->header, TURNED_LEN) && load(ctx, s->transport, &s->header, sizeof(struct udp)))
		return -1;
	s->flow.client_port = s->header.udp.source;
	s->flow.server_port = s->header.udp.destination;
	/* A super-packet may be too long for the length in its IP header. */
	if (protocol == IP_TCP)
		return 0;
	len = bpf_ntohs(s->header.udp.len);
	return s->end > frame_length(ctx) || len < sizeof(struct udp) || s->transport + len > s->end ? -1 : 0;
}

/* Returns the key of the flow to whose client a packet goes: a TCP flow, whatever the packet's protocol is. */
static __always_inline struct flow_key key_of_answer(const struct segment *s)
{
	struct flow_key key = {};

	__builtin_memcpy(key.client, s->flow.server, 16);
	__builtin_memcpy(key.server, s->flow.client, 16);
	key.client_port = s->flow.server_port;
	key.server_port = s->flow.client_port;
	key.protocol = IP_TCP;
	key.family = s->flow.family;
	return key;
}

/* Writes the header in its other order, and the protocol that goes with it. */
static __noinline int store_turned(context *ctx, const struct segment *s, const union turned *header, __u8 protocol)
{
	__u32 at = ETHER_LEN + (s->flow.family == 4 ? 8 : 6);
	__u16 old, new, checksum;

	if (store(ctx, s->transport, header, TURNED_LEN) || load(ctx, at, &old, 2))
		return -1;
	if (s->flow.family == 4) {
		/* Time to live and protocol. */
		new = (old & bpf_htons(0xff00)) | bpf_htons(protocol);
		if (load(ctx, ETHER_LEN + 10, &checksum, 2))
			return -1;
		checksum = replace(checksum, old, new);
		if (store(ctx, ETHER_LEN + 10, &checksum, 2))
			return -1;
	} else {
		/* Next header and hop limit. */
		new = (old & bpf_htons(0x00ff)) | bpf_htons(protocol << 8);
	}
	return store(ctx, at, &new, 2) ? -1 : 0;
}
