/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Admission as wire.md §6 defines it: admit (strip the token and pass), pass untouched what is not ours, or drop with a
 * reason. Only a packet with a valid tag, or one of an admitted flow, writes to a table (§6.6). The programs keep
 * working without user space: keys, receivers and clock are in pinned maps.
 *
 * The XDP and tc programs share this decision. Include xdp.h or skb.h before this file. */
#pragma once
#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "counters.h"
#include "layout.h"
#include "parse.h"
#include "token.h"
#include "tail.h"
#include "shim.h"
#include "admission.h"
#include "chain.h"
#include "fragments.h"
#include "optional.h"
#include "outbound.h"
#include "samples.h"
#include "clock.h"
#include "sweep.h"
#include "take_over.h"

/* Passes an ICMP error if the packet that it quotes is an answer on an admitted flow (wire.md §6.5). */
__noinline int decide_icmp_error(context *ctx, struct packet *p, const struct services *services)
{
	struct flow_key quoted = {};
	const struct services *quoted_services;
	__u32 at, ports_at;
	__be16 ports[2];
	int transport_at;

	if (!p || !services)
		return DROP_MALFORMED;
	at = p->payload;
	if (p->flow.family == 4) {
		struct ipv4 ip;

		if (at + sizeof(ip) > p->end || load(ctx, at, &ip, sizeof(ip)))
			return DROP_MALFORMED;
		if ((ip.version_ihl & 15) < 5 || ip.fragment & bpf_htons(0x1fff))
			return DROP_MALFORMED;
		__builtin_memcpy(quoted.server, ip.source, 4);
		__builtin_memcpy(quoted.client, ip.destination, 4);
		quoted.protocol = ip.protocol;
		ports_at = at + (ip.version_ihl & 15) * 4;
	} else {
		struct ipv6 ip;

		if (at + sizeof(ip) > p->end || load(ctx, at, &ip, sizeof(ip)))
			return DROP_MALFORMED;
		__builtin_memcpy(quoted.server, ip.source, 16);
		__builtin_memcpy(quoted.client, ip.destination, 16);
		quoted.protocol = ip.next;
		ports_at = transport_at = parse_quoted_extensions(ctx, p, &quoted);
		if (transport_at < 0)
			return DROP_MALFORMED;
	}
	quoted.family = p->flow.family;
	quoted.tunnel = p->flow.tunnel;
	if (quoted.protocol != IP_TCP && quoted.protocol != IP_UDP)
		ports[0] = ports[1] = 0;
	else if (ports_at + 4 > p->end || load(ctx, ports_at, ports, 4))
		return DROP_MALFORMED;
	quoted.server_port = ports[0];
	quoted.client_port = ports[1];
	quoted_services = services_of(quoted.family, quoted.server);
	if (!covers(services, p->flow.protocol, 0) &&
	    !(quoted_services && covers(quoted_services, quoted.protocol, bpf_ntohs(quoted.server_port))))
		return PASS_NOT_OURS;
	if (live_flow(&quoted, p->time))
		return PASS_ICMP_ERROR;
	return is_optional(&quoted) ? PASS_STRANGER : DROP_NO_FLOW;
}

__noinline int decide_fragment(struct packet *p, const struct services *services)
{
	struct flow *flow;
	struct flow_key key;
	__u32 time;

	if (!p || !services)
		return DROP_FRAGMENT;
	key = p->flow;
	/* A fragmented ICMP error could quote anything. Without the first fragment, no stack reassembles the others. */
	if (p->flow.protocol == (p->flow.family == 4 ? IP_ICMP : IP_ICMPV6))
		return covers(services, p->flow.protocol, 0) || icmp_error(p) ? DROP_FRAGMENT : PASS_NOT_OURS;
	time = p->time;
	if (p->fragment == FRAGMENT_LATER) {
		to_fragment_key(&key, p);
		return covers_some(services, p->flow.protocol) ? follow_fragment(&key, time) : PASS_NOT_OURS;
	}
	if (!covers(services, p->flow.protocol, bpf_ntohs(p->flow.server_port))) {
		to_fragment_key(&key, p);
		if (covers_some(services, p->flow.protocol))
			bpf_map_update_elem(&open_fragments, &key, &time, BPF_ANY);
		return PASS_NOT_OURS;
	}
	/* A fragmented SYN would need no token. TCP discovers the path MTU and needs no fragments. */
	if (p->flow.protocol == IP_TCP)
		return DROP_FRAGMENT;
	flow = live_flow(&key, p->time);
	if (!flow)
		return DROP_FRAGMENT;
	to_fragment_key(&key, p);
	bpf_map_update_elem(&fragments, &key, &time, BPF_ANY);
	refresh(flow, p, time);
	return PASS_FLOW;
}

/* The carriers of tokens that are taken here. */
#define CARRIERS (IN_TUNNEL ? CARRIER_TAIL : config.carriers)

static __always_inline int neighbour_discovery(const struct packet *p)
{
	return p->flow.protocol == IP_ICMPV6 && p->flow.family == 6 && p->icmp_type >= 133 && p->icmp_type <= 137 &&
	       p->hop_limit == 255;
}

static __always_inline int opens(const struct packet *p)
{
	return p->flow.protocol == IP_TCP && (p->tcp_flags & (TCP_SYN | TCP_ACK)) == TCP_SYN;
}

/* If the packet consists of several datagrams that were merged into a super-packet, leaves only the first in `p` and
 * returns 1. No token can be removed from the middle of a super-packet: the first datagram's token admits the flow,
 * the verifier drops all of them, as a network may, and the sender sends them again. */
static __always_inline int keep_first_datagram(context *ctx, struct packet *p)
{
	__u32 segment = p->flow.protocol == IP_UDP ? segment_length(ctx) : 0;

	if (!segment || p->payload + segment >= p->end)
		return 0;
	p->end = p->payload + segment;
	return 1;
}

/* Decides on packets that the flow and service look-ups did not settle: first packets, and everything unusual. */
__noinline int decide_rest(context *ctx, struct packet *p, __u32 admitted)
{
	__u32 zero = 0;
	struct token *token = bpf_map_lookup_elem(&tokens, &zero);
	enum carrier carrier;
	int outcome, several;

	if (!p || !token)
		return DROP_NO_TOKEN;
	if (p->flow.protocol != IP_UDP && !opens(p)) {
		if (p->flow.protocol == IP_TCP)
			return is_welcome(p) ? PASS_STRANGER : DROP_NO_FLOW;
		return answers_echo(ctx, p) ? PASS_FLOW : DROP_NO_TOKEN;
	}
	several = keep_first_datagram(ctx, p);
	carrier = find_token(ctx, p, token);
	p->in_stream = carrier == CARRIER_STREAM;
	if (!(CARRIERS & carrier)) {
		if (admitted)
			return PASS_FLOW;
		/* Without a token, not with one that is not accepted here: the application would read it. */
		return !carrier && is_welcome(p) ? PASS_STRANGER : DROP_NO_TOKEN;
	}
	if (is_foreign(p))
		return DROP_NO_TOKEN;
	outcome = verify_token(p, token);
	/* On an admitted flow, data that fails a token's format checks is payload that happens to look like one. */
	if (admitted && outcome <= DROP_UNKNOWN_SUITE && outcome != CONTINUE)
		return PASS_FLOW;
	if (p->in_stream)
		p->sequence += TAIL_LEN;
	if (outcome == CONTINUE)
		outcome = admit_flow(p, token);
	if (outcome != CONTINUE)
		return outcome;
	if (several || (p->flow.protocol == IP_UDP && p->payload + TAIL_LEN == p->end))
		return CONSUMED;
	return strip_tail(ctx, p, token) ? DROP_MALFORMED : PASS_TOKEN;
}

/* Reads the token (wire.md §3) out of a shim into a block, with the four bytes before it in place of the block's magic,
 * and verifies it. */
__noinline int verify_shim_token(context *ctx, struct packet *p, struct token *token)
{
	if (!p || !token || load(ctx, p->network + SHIM_TOKEN_AT - sizeof(__u32), &token->block, TAIL_LEN))
		return DROP_MALFORMED;
	return verify_token(p, token);
}

enum { NO_SHIM = -1 };

/* Checks a packet that carries a shim: CONTINUE if its token is valid, NO_SHIM if there is no shim, or another
 * outcome. */
__noinline int decide_shim(context *ctx, struct packet *p, const struct services *services)
{
	__u32 zero = 0;
	struct token *token = bpf_map_lookup_elem(&tokens, &zero);
	struct shim *shim = bpf_map_lookup_elem(&shims, &zero);
	int kind;

	if (!p || !services || !token || !shim)
		return DROP_NO_TOKEN;
	kind = open_shim(ctx, p, shim);
	if (kind == SHIM_NONE)
		return NO_SHIM;
	if (kind == SHIM_BROKEN)
		return DROP_MALFORMED;
	if (!covers(services, p->flow.protocol, bpf_ntohs(p->flow.server_port)))
		return PASS_NOT_OURS;
	note_owners(p, services);
	if (is_foreign(p))
		return DROP_NO_TOKEN;
	/* Checked before the token is used up: a shim that can't be removed would be dropped afterwards. */
	if (!cuts_behind(p->network + IPV4_LEN))
		return DROP_MALFORMED;
	if (p->flow.protocol == IP_UDP) {
		struct flow_key4 key = short_key(&p->flow);
		struct flow *flow = bpf_map_lookup_elem(&flows4, &key);

		if (flow && flow_is_live(IP_UDP, flow, p->time) && is_proved(IP_UDP, flow, p->time))
			refresh(flow, p, p->time);
	} else if (!opens(p)) {
		return p->flow.protocol == IP_TCP ? DROP_NO_FLOW : DROP_NO_TOKEN;
	}
	if (kind == SHIM_TOKEN)
		return verify_shim_token(ctx, p, token);
	if (kind == SHIM_LS_TOKEN)
		return verify_ls(p, &shim->ls, token);
	return DROP_NO_TOKEN;
}

/* Admits a packet whose shim holds a valid token. A function of its own, as its stack and decide_shim's together would
 * exceed the limit for programs. */
__noinline int admit_shim(context *ctx, struct packet *p)
{
	__u32 zero = 0;
	struct token *token = bpf_map_lookup_elem(&tokens, &zero);
	int outcome;

	if (!p || !token)
		return DROP_FLOW_LIMIT;
	outcome = admit_flow(p, token);
	if (outcome != CONTINUE)
		return outcome;
	if (p->flow.protocol == IP_UDP && p->payload == p->end)
		return CONSUMED;
	return strip_shim(ctx, p) ? DROP_MALFORMED : PASS_TOKEN;
}

static __always_inline int decide_parsed(context *ctx, struct packet *p, int form)
{
	const struct services *services;
	struct flow *flow;

	if (form == FORM_NOT_IP)
		return PASS_NOT_OURS;
	/* Before the first drop: the limit on samples is per second. */
	p->time = now();
	if (!p->flow.family)
		return DROP_MALFORMED;
	services = services_of(p->flow.family, p->flow.server);
	if (p->routed)
		return DROP_MALFORMED;
	if (!services)
		return PASS_NOT_OURS;
	if (form == FORM_BROKEN)
		return DROP_MALFORMED;
	/* Packets that don't show their port, or quote another packet, may be any authority's. */
	if (config.chain & CHAIN_FIRST)
		p->owners = FOREIGN;
	if (p->fragment)
		return decide_fragment(p, services);
	if (CARRIERS & CARRIER_SHIM && p->flow.protocol == IP_IPIP && p->flow.family == 4) {
		int outcome = decide_shim(ctx, p, services);

		if (outcome != NO_SHIM)
			return outcome == CONTINUE ? admit_shim(ctx, p) : outcome;
	}
	if (icmp_error(p))
		return decide_icmp_error(ctx, p, services);
	if (neighbour_discovery(p) || !covers(services, p->flow.protocol, bpf_ntohs(p->flow.server_port)))
		return PASS_NOT_OURS;
	note_owners(p, services);
	/* Routing rules don't see the ports behind any fragment header: the packet would go around a gateway's relay. */
	if (p->atomic && p->flow.protocol == IP_TCP)
		return DROP_FRAGMENT;
	flow = opens(p) ? 0 : live_flow(&p->flow, p->time);
	if (flow)
		refresh(flow, p, p->time);
	if (flow && p->flow.protocol == IP_TCP) {
		if (!goes_on(flow, p->tcp_flags, p->sequence, p->end - p->payload))
			follow(ctx, p, flow);
		return PASS_FLOW;
	}
	return decide_rest(ctx, p, !!flow);
}

/* Settles a segment of an open TCP connection, whose IP packet is `total_len` bytes long: the fast path's outcome. Counts
 * the segment if it passes. */
static __always_inline int settle_segment(struct flow *flow, const struct tcp *tcp, __u32 ip_len, __u32 total_len)
{
	__u32 header_len = (tcp->offset >> 4) * 4;
	struct core *core;

	if (unlikely(!flow || flow->stage != STAGE_OPEN || header_len < sizeof(*tcp) || ip_len + header_len > total_len))
		return CONTINUE;
	core = this_core();
	if (unlikely(!core || !flow_is_live(IP_TCP, flow, core->second) ||
		     !goes_on(flow, tcp->flags, bpf_ntohl(tcp->sequence), total_len - ip_len - header_len)))
		return CONTINUE;
	count_packet(flow, core->second, total_len);
	core->settled += 1;
	return PASS_FLOW;
}

static __always_inline int settle_fast4(context *ctx, void *data, void *end, enum side side)
{
	struct ipv4 *ip = data + ETHER_LEN;
	struct tcp *tcp = (void *)(ip + 1);
	/* Client and server, and then their ports, as they stand in the packet: each is read and stored as one word. */
	union {
		struct flow_key4 key;
		__u64 words[2];
	} flow;
	__u32 total_len;

	if (unlikely((void *)(tcp + 1) > end || ip->version_ihl != 0x45))
		return CONTINUE;
	flow.words[0] = *(__u64 *)(data + ETHER_LEN + __builtin_offsetof(struct ipv4, source));
	flow.words[1] = *(__u32 *)(data + ETHER_LEN + IPV4_LEN) | (__u64)(IP_TCP | side << 8) << 32;
	if (is_open4(flow.key.server))
		return PASS_NOT_OURS;
	total_len = bpf_ntohs(ip->total_len);
	if (unlikely(ip->protocol != IP_TCP || ip->fragment & bpf_htons(0x3fff) ||
		     (tcp->flags & (TCP_SYN | TCP_ACK)) == TCP_SYN || !reaches(ctx, ETHER_LEN + total_len)))
		return CONTINUE;
	return settle_segment(bpf_map_lookup_elem(&flows4, &flow.key), tcp, IPV4_LEN, total_len);
}

/* The fast path for IPv6. Only for packets without extension headers, one of which could be a source route to a
 * protected address. */
static __always_inline int settle_fast6(context *ctx, void *data, void *end, enum side side)
{
	struct ipv6 *ip = data + ETHER_LEN;
	struct tcp *tcp = (void *)(ip + 1);
	__u64 *addresses = data + ETHER_LEN + __builtin_offsetof(struct ipv6, source);
	union {
		struct flow_key key;
		__u64 words[5];
	} flow;
	__u32 total_len;

	if (unlikely((void *)(tcp + 1) > end || ip->version_class >> 4 != 6))
		return CONTINUE;
	if (is_open6(addresses[2], addresses[3]))
		return ip->next == IP_TCP || ip->next == IP_UDP ? PASS_NOT_OURS : CONTINUE;
	total_len = IPV6_LEN + bpf_ntohs(ip->payload_len);
	if (unlikely(ip->next != IP_TCP || (tcp->flags & (TCP_SYN | TCP_ACK)) == TCP_SYN ||
		     !reaches(ctx, ETHER_LEN + total_len)))
		return CONTINUE;
	flow.words[0] = addresses[0];
	flow.words[1] = addresses[1];
	flow.words[2] = addresses[2];
	flow.words[3] = addresses[3];
	flow.words[4] = *(__u32 *)(data + ETHER_LEN + IPV6_LEN) | (__u64)(IP_TCP | 6 << 8 | side << 16) << 32;
	return settle_segment(bpf_map_lookup_elem(&flows6, &flow.key), tcp, IPV6_LEN, total_len);
}

/* Fast path for most traffic: packets to addresses that are certainly unprotected, and segments of open TCP flows.
 * Returns the outcome of the full path, or CONTINUE if the full path has to decide. */
static __always_inline int settle_fast(context *ctx, enum side side)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;

	if (data + ETHER_LEN > end)
		return CONTINUE;
	if (likely(*(__be16 *)(data + 12) == bpf_htons(0x0800)))
		return settle_fast4(ctx, data, end, side);
	return *(__be16 *)(data + 12) == bpf_htons(0x86dd) ? settle_fast6(ctx, data, end, side) : CONTINUE;
}

/* Parses the common case without a copy: Ethernet, IP without options, TCP or UDP. Returns -1 for everything else. */
static __always_inline int parse_fast(context *ctx, struct packet *p)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u8 *ether = data;
	void *transport;
	__u8 protocol;

	if (data + ETHER_LEN + IPV4_LEN + sizeof(struct tcp) > end)
		return -1;
	if (*(__be16 *)(ether + 12) == bpf_htons(0x0800)) {
		struct ipv4 *ip = data + ETHER_LEN;

		p->end = ETHER_LEN + bpf_ntohs(ip->total_len);
		if (ip->version_ihl != 0x45 || ip->fragment & bpf_htons(0x3fff))
			return -1;
		protocol = ip->protocol;
		transport = data + ETHER_LEN + IPV4_LEN;
		p->transport = ETHER_LEN + IPV4_LEN;
		p->flow.family = 4;
		*(__u32 *)p->flow.client = *(__u32 *)ip->source;
		*(__u32 *)p->flow.server = *(__u32 *)ip->destination;
	} else if (*(__be16 *)(ether + 12) == bpf_htons(0x86dd)) {
		struct ipv6 *ip = data + ETHER_LEN;

		if (data + ETHER_LEN + IPV6_LEN + sizeof(struct tcp) > end)
			return -1;
		p->end = ETHER_LEN + IPV6_LEN + bpf_ntohs(ip->payload_len);
		if (ip->version_class >> 4 != 6)
			return -1;
		protocol = ip->next;
		transport = data + ETHER_LEN + IPV6_LEN;
		p->transport = ETHER_LEN + IPV6_LEN;
		p->flow.family = 6;
		__builtin_memcpy(p->flow.client, ip->source, 16);
		__builtin_memcpy(p->flow.server, ip->destination, 16);
	} else {
		return -1;
	}
	if (!reaches(ctx, p->end) && p->end > frame_length(ctx))
		goto unusual;
	if (protocol == IP_TCP) {
		struct tcp *tcp = transport;
		__u32 header_len = (tcp->offset >> 4) * 4;

		if (header_len < sizeof(*tcp) || p->transport + header_len > p->end)
			goto unusual;
		p->tcp_flags = tcp->flags;
		p->sequence = bpf_ntohl(tcp->sequence);
		p->acknowledgement = bpf_ntohl(tcp->acknowledgement);
		p->payload = p->transport + header_len;
	} else if (protocol == IP_UDP) {
		struct udp *udp = transport;

		if (p->transport + bpf_ntohs(udp->len) != p->end || bpf_ntohs(udp->len) < sizeof(*udp))
			goto unusual;
		p->payload = p->transport + sizeof(*udp);
	} else {
		goto unusual;
	}
	p->network = ETHER_LEN;
	p->fills_ip = 1;
	p->flow.protocol = protocol;
	p->flow.client_port = *(__be16 *)transport;
	p->flow.server_port = *(__be16 *)(transport + 2);
	return FORM_WHOLE;
unusual:
	__builtin_memset(p, 0, sizeof(*p));
	return -1;
}

/* Counts the outcome. If the packet is to be dropped, may record a sample. */
static __always_inline void report(context *ctx, const struct packet *p, int outcome)
{
	count(outcome);
	if (outcome < PASS_NOT_OURS && has_sample_left(p->time))
		sample(ctx, p, outcome);
}

/* Decides on a packet, and reports the outcome. */
static __always_inline int decide_counted(context *ctx, struct packet *p, enum side side)
{
	int form = parse_fast(ctx, p), outcome;

	if (form < 0)
		form = parse(ctx, p, ETHER_LEN, 0);
	p->flow.tunnel = side;
	outcome = hand_over(ctx, p, decide_parsed(ctx, p, form));
	report(ctx, p, outcome);
	return outcome;
}

/* Reports whether the packet passes. A segment that came as a datagram never passes unless it is admitted: without the verifier,
 * it would be none. */
static __always_inline int decide(context *ctx, enum side side)
{
	int outcome = settle_fast(ctx, side);
	struct packet p;

	/* Earlier programs of the chain have refused the packet. */
	if (config.chain & CHAIN_LATER && outcome == PASS_NOT_OURS)
		outcome = CONTINUE;
	if (likely(outcome != CONTINUE)) {
		if (outcome != PASS_FLOW)
			count(outcome);
		return 1;
	}
	__builtin_memset(&p, 0, sizeof(p));
	outcome = decide_counted(ctx, &p, side);
	if (outcome == CONSUMED)
		return 0;
	return outcome >= PASS_NOT_OURS || (config.observe && !p.in_stream && side == SIDE_OUTSIDE);
}
