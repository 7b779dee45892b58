/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Frame parsing, by the rules that crates/wire/src/packet.rs states; the case table and the differential fuzzer keep
 * the two in agreement.
 *
 * Include xdp.h or skb.h before this file: they define `context` and how to read it. */
#pragma once
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "layout.h"
#include "services.h"

enum { ETHER_LEN = 14, VLAN_TAGS_MAX = 2, IPV4_LEN = 20, IPV6_LEN = 40, EXTENSION_HEADERS_MAX = 8, ROUTE_MAX = 9 };
enum { IP_ICMP = 1, IP_TCP = 6, IP_UDP = 17, IP_ICMPV6 = 58 };
enum { IP_HOP_BY_HOP = 0, IP_ROUTING = 43, IP_FRAGMENT = 44, IP_AUTHENTICATION = 51, IP_DESTINATION_OPTIONS = 60 };
enum { TCP_FIN = 1, TCP_SYN = 2, TCP_RST = 4, TCP_ACK = 16 };

enum form { FORM_BROKEN = 0, FORM_NOT_IP = 1, FORM_WHOLE = 2 };
enum fragment { FRAGMENT_WHOLE = 0, FRAGMENT_FIRST = 1, FRAGMENT_LATER = 2 };

struct packet {
	struct flow_key flow; /* client = source, server = destination; family 0 while the addresses are unknown */
	__u64 handle; /* of its token's grant, once the token was read */
	__u32 time; /* of arrival, Unix seconds */
	__u32 network;
	__u32 transport;
	__u32 payload;
	__u32 end;
	/* No packet needs both fields of a union; a program's stack has no room for all of them. */
	union {
		__u32 fragment_id;
		__u32 sequence; /* TCP, not a fragment */
	};
	union {
		__u32 fragment_at; /* IPv6: offset of the fragment header */
		__u32 acknowledgement; /* TCP, not a fragment */
		__u32 holder; /* account and session of the grant, once verified (wire.md §3.9); 0 if unknown */
	};
	__u8 fragment;
	__u8 tcp_flags;
	__u8 hop_limit;
	__u8 icmp_type;
	union {
		__u8 routed; /* a source route leads, or may lead, to a protected address */
		__u8 owners; /* of a packet without such a route: bits of enum owners, at the first verifier of a chain */
	};
	__u8 fills_ip; /* the transport reaches the end of the IP packet; UDP may be shorter (RFC 9868) */
	__u8 from_pair; /* its token is of the LS scheme: the nonce2 is valid once, not the tag */
	__u8 opens_flow; /* the token's grant is charged one more flow */
	__u16 nonce2;
	__u8 in_stream; /* its token is in the bytes of its stream: if it passed unchanged, the application would read them */
	__u8 atomic; /* IPv6: it has a fragment header and is whole (RFC 6946) */
};

static __always_inline int icmp_error(const struct packet *p)
{
	if (p->flow.protocol == IP_ICMP)
		return p->flow.family == 4 && (p->icmp_type == 3 || p->icmp_type == 11 || p->icmp_type == 12);
	return p->flow.protocol == IP_ICMPV6 && p->flow.family == 6 && p->icmp_type >= 1 && p->icmp_type <= 4;
}

struct ipv4 {
	__u8 version_ihl, tos;
	__be16 total_len, id, fragment;
	__u8 ttl, protocol;
	__be16 checksum;
	__u8 source[4], destination[4];
};

struct ipv6 {
	__u8 version_class, class_label[3];
	__be16 payload_len;
	__u8 next, hop_limit;
	__u8 source[16], destination[16];
};

struct tcp {
	__be16 source, destination;
	__be32 sequence, acknowledgement;
	__u8 offset, flags;
	__be16 window, checksum, urgent;
};

struct udp {
	__be16 source, destination, len, checksum;
};

/* Reports whether this is a super-packet too long for the length field in its IP header, which is then 0 (BIG TCP). */
static __always_inline int is_big(context *ctx, __u32 length)
{
	return length > 0xffff && segment_length(ctx);
}

/* The kernel verifies functions that are not static once, on their own, rather than in every state that a caller may be
 * in; it assumes that their pointers may be null. */

/* Reports whether an option's source route leads to a protected address (RFC 791): pointers count from 1, the first is
 * at 4. */
__noinline int parse_ipv4_route(context *ctx, __u32 at, __u32 len)
{
	__u8 pointer = 0;

	if (len < 3 || load(ctx, at + 2, &pointer, 1) || pointer < 4)
		return 1;
	if (pointer > len)
		return 0;
	for (__u32 i = 0; i < ROUTE_MAX; i++) {
		__u8 hop[4];

		if (3 + 4 * i + 4 > len)
			break;
		if (load(ctx, at + 3 + 4 * i, hop, 4) || services_of(4, hop))
			return 1;
	}
	return 0;
}

struct options {
	context *ctx;
	__u32 at;
	__u32 end;
	__u32 form;
	__u32 routed;
};

static long parse_ipv4_option(__u32 index, struct options *options)
{
	__u8 kind, len;

	if (options->at >= options->end) {
		options->form = FORM_WHOLE;
		return 1;
	}
	if (load(options->ctx, options->at, &kind, 1))
		return 1;
	if (kind == 0) {
		options->form = FORM_WHOLE;
		return 1;
	}
	if (kind == 1) {
		options->at++;
		return 0;
	}
	if (options->at + 1 >= options->end || load(options->ctx, options->at + 1, &len, 1))
		return 1;
	if (len < 2 || options->at + len > options->end)
		return 1;
	if (kind == 131 || kind == 137)
		options->routed |= parse_ipv4_route(options->ctx, options->at, len);
	options->at += len;
	return 0;
}

/* Parses IPv4 options: checks their form and looks for source routes to protected addresses. */
__noinline int parse_ipv4_options(context *ctx, struct packet *p, __u32 options_end)
{
	struct options options = { .ctx = ctx, .end = options_end, .form = FORM_BROKEN };

	if (!p)
		return FORM_BROKEN;
	options.at = p->network + IPV4_LEN;
	bpf_loop(41, parse_ipv4_option, &options, 0);
	if (options.routed)
		p->routed = 1;
	return options.form;
}

/* Checks a routing header. Type 4 lists whole addresses after the first eight bytes. Any other type is refused whatever it
 * lists: hosts answer types 0 and 2 with an error, so that silence for some addresses would tell that they are protected. */
__noinline int parse_ipv6_route(context *ctx, struct packet *p, __u32 at, __u32 len, __u32 kind)
{
	__u32 count = len / 2;

	if (!p)
		return 0;
	if (kind != 4 || count > ROUTE_MAX) {
		p->routed = 1;
		return 0;
	}
	for (__u32 i = 0; i < ROUTE_MAX; i++) {
		__u8 hop[16];

		if (i >= count)
			break;
		if (at + 8 + 16 * i + 16 > p->end || load(ctx, at + 8 + 16 * i, hop, 16) || services_of(6, hop))
			p->routed = 1;
	}
	return 0;
}

__noinline int parse_transport(context *ctx, struct packet *p, __u32 at)
{
	__u8 protocol;

	if (!p)
		return FORM_BROKEN;
	protocol = p->flow.protocol;
	p->transport = at;
	p->payload = at;
	p->fills_ip = 1;
	if (p->fragment == FRAGMENT_LATER)
		return FORM_WHOLE;
	if (p->fragment == FRAGMENT_FIRST && (protocol == IP_TCP || protocol == IP_UDP)) {
		__be16 ports[2];

		if (at + 4 > p->end || load(ctx, at, ports, 4))
			return FORM_BROKEN;
		p->flow.client_port = ports[0];
		p->flow.server_port = ports[1];
		p->fills_ip = 0;
		p->payload = at + 8;
	} else if (protocol == IP_TCP) {
		struct tcp tcp;
		__u32 header_len;

		if (at + sizeof(tcp) > p->end || load(ctx, at, &tcp, sizeof(tcp)))
			return FORM_BROKEN;
		header_len = (tcp.offset >> 4) * 4;
		if (header_len < sizeof(tcp) || at + header_len > p->end)
			return FORM_BROKEN;
		p->flow.client_port = tcp.source;
		p->flow.server_port = tcp.destination;
		p->tcp_flags = tcp.flags;
		p->sequence = bpf_ntohl(tcp.sequence);
		p->acknowledgement = bpf_ntohl(tcp.acknowledgement);
		p->payload = at + header_len;
	} else if (protocol == IP_UDP) {
		struct udp udp;
		__u32 len;

		if (at + sizeof(udp) > p->end || load(ctx, at, &udp, sizeof(udp)))
			return FORM_BROKEN;
		len = bpf_ntohs(udp.len);
		if (len < sizeof(udp) || at + len > p->end)
			return FORM_BROKEN;
		p->flow.client_port = udp.source;
		p->flow.server_port = udp.destination;
		p->fills_ip = at + len == p->end;
		p->payload = at + sizeof(udp);
	} else if (protocol == IP_ICMP || protocol == IP_ICMPV6) {
		if (at + 8 > p->end || load(ctx, at, &p->icmp_type, 1))
			return FORM_BROKEN;
		p->payload = at + 8;
	}
	return FORM_WHOLE;
}

/* Walks extension headers (and AH, which IPv4 has too), then parses the transport header. */
__noinline int parse_after_ip(context *ctx, struct packet *p, __u32 at, __u32 next)
{
	if (!p)
		return FORM_BROKEN;
	for (int i = 0; i <= EXTENSION_HEADERS_MAX; i++) {
		__u8 header[8];
		__u32 len;

		if (p->fragment == FRAGMENT_LATER)
			break;
		if (next != IP_AUTHENTICATION &&
		    (p->flow.family != 6 || (next != IP_HOP_BY_HOP && next != IP_ROUTING && next != IP_FRAGMENT &&
					     next != IP_DESTINATION_OPTIONS)))
			break;
		if (i == EXTENSION_HEADERS_MAX || at + 8 > p->end || load(ctx, at, header, 8))
			return FORM_BROKEN;
		len = (header[1] + 1) * 8;
		if (next == IP_FRAGMENT) {
			__u32 field = header[2] << 8 | header[3];

			len = 8;
			if (field & 0xfff8)
				p->fragment = FRAGMENT_LATER;
			else if (field & 1)
				p->fragment = FRAGMENT_FIRST;
			if (!(field & 0xfff9)) {
				p->atomic = 1;
			} else {
				p->fragment_at = at;
				p->fragment_id =
					(__u32)header[4] << 24 | header[5] << 16 | header[6] << 8 | header[7];
			}
		} else if (next == IP_AUTHENTICATION) {
			len = (header[1] + 2) * 4;
		} else if (next == IP_ROUTING && header[3]) {
			parse_ipv6_route(ctx, p, at, header[1], header[2]);
		}
		next = header[0];
		at += len;
		if (at > p->end)
			return FORM_BROKEN;
	}
	p->flow.protocol = next;
	return parse_transport(ctx, p, at);
}

/* Returns the offset of the transport header in an IPv6 packet that an ICMPv6 error quotes, or -1 if the quote does not
 * reach it. On entry, `quoted` holds the protocol in the IPv6 header; on return, the transport's. */
__noinline int parse_quoted_extensions(context *ctx, const struct packet *p, struct flow_key *quoted)
{
	__u32 at, len;

	if (!p || !quoted)
		return -1;
	at = p->payload + IPV6_LEN;
	for (int i = 0; i <= EXTENSION_HEADERS_MAX; i++) {
		__u8 header[8], next = quoted->protocol;

		if (next != IP_HOP_BY_HOP && next != IP_ROUTING && next != IP_FRAGMENT && next != IP_AUTHENTICATION &&
		    next != IP_DESTINATION_OPTIONS)
			return at;
		if (i == EXTENSION_HEADERS_MAX || at + 8 > p->end || load(ctx, at, header, 8))
			return -1;
		len = (header[1] + 1) * 8;
		if (next == IP_FRAGMENT) {
			if ((header[2] << 8 | header[3]) & 0xfff8)
				return -1;
			len = 8;
		} else if (next == IP_AUTHENTICATION) {
			len = (header[1] + 2) * 4;
		}
		quoted->protocol = header[0];
		at += len;
		if (at > p->end)
			return -1;
	}
	return -1;
}

__noinline int parse_ipv4(context *ctx, struct packet *p)
{
	struct ipv4 ip;
	__u32 at, length = frame_length(ctx), header_len, total_len, fragment;
	int form;

	if (!p)
		return FORM_BROKEN;
	at = p->network;
	if (load(ctx, at, &ip, sizeof(ip)))
		return FORM_BROKEN;
	p->flow.family = 4;
	__builtin_memcpy(p->flow.client, ip.source, 4);
	__builtin_memcpy(p->flow.server, ip.destination, 4);
	p->hop_limit = ip.ttl;
	header_len = (ip.version_ihl & 15) * 4;
	total_len = bpf_ntohs(ip.total_len);
	if (!total_len && is_big(ctx, length))
		total_len = length - at;
	if (ip.version_ihl >> 4 != 4 || header_len < IPV4_LEN || total_len < header_len || at + total_len > length)
		return FORM_BROKEN;
	p->end = at + total_len;
	if (header_len > IPV4_LEN) {
		form = parse_ipv4_options(ctx, p, at + header_len);
		if (form != FORM_WHOLE)
			return form;
	}
	fragment = bpf_ntohs(ip.fragment);
	p->fragment_id = bpf_ntohs(ip.id);
	if (fragment & 0x1fff)
		p->fragment = FRAGMENT_LATER;
	else if (fragment & 0x2000)
		p->fragment = FRAGMENT_FIRST;
	return parse_after_ip(ctx, p, at + header_len, ip.protocol);
}

__noinline int parse_ipv6(context *ctx, struct packet *p)
{
	struct ipv6 ip;
	__u32 at, length = frame_length(ctx), payload_len;

	if (!p)
		return FORM_BROKEN;
	at = p->network;
	if (load(ctx, at, &ip, sizeof(ip)))
		return FORM_BROKEN;
	p->flow.family = 6;
	__builtin_memcpy(p->flow.client, ip.source, 16);
	__builtin_memcpy(p->flow.server, ip.destination, 16);
	p->hop_limit = ip.hop_limit;
	payload_len = bpf_ntohs(ip.payload_len);
	if (!payload_len && is_big(ctx, length))
		payload_len = length - at - IPV6_LEN;
	if (ip.version_class >> 4 != 6 || at + IPV6_LEN + payload_len > length)
		return FORM_BROKEN;
	p->end = at + IPV6_LEN + payload_len;
	return parse_after_ip(ctx, p, at + IPV6_LEN, ip.next);
}

/* Parses a frame. `link` is the length of the link header: ETHER_LEN, or 0 on a link without one. The caller zeroes
 * `p`. */
__noinline int parse(context *ctx, struct packet *p, __u32 link, __u32 link_protocol)
{
	__be16 type[2], protocol = link_protocol;

	if (!p)
		return FORM_BROKEN;
	p->network = link;
	if (link) {
		if (load(ctx, 12, &protocol, 2))
			return FORM_NOT_IP;
		for (int i = 0; i <= VLAN_TAGS_MAX; i++) {
			if (protocol != bpf_htons(0x8100) && protocol != bpf_htons(0x88a8))
				break;
			if (i == VLAN_TAGS_MAX || load(ctx, p->network, type, 4))
				return FORM_BROKEN;
			p->network += 4;
			protocol = type[1];
		}
	}
	if (protocol == bpf_htons(0x0800))
		return parse_ipv4(ctx, p);
	if (protocol == bpf_htons(0x86dd))
		return parse_ipv6(ctx, p);
	return FORM_NOT_IP;
}
