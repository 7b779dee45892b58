/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Steering of sealed flows on the agent's machine (wire.md §6.11.6): packets to a receiver whose rule demands a
 * treatment go to the tunnel's device or nowhere, and packets from it come from that device or not at all. */
#pragma once
#include <linux/pkt_cls.h>
#include "skb.h"
#include "parse.h"
#include "services.h"

/* User space's part. The device is gone when the agent is killed: packets that are sent there are dropped then. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct steering);
} steering SEC(".maps");

/* Services at which only sealed packets may arrive. Each is among the protected ones. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 16384);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct prefix4);
	__type(value, struct services);
} sealed4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 16384);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct prefix6);
	__type(value, struct services);
} sealed6 SEC(".maps");

/* Returns what is sealed at an address. */
static __always_inline struct services *sealed_at(__u8 family, const __u8 *address)
{
	if (family == 4) {
		struct prefix4 key = { .length = 32 };

		__builtin_memcpy(key.address, address, 4);
		return bpf_map_lookup_elem(&sealed4, &key);
	}
	struct prefix6 key = { .length = 128 };

	__builtin_memcpy(key.address, address, 16);
	return bpf_map_lookup_elem(&sealed6, &key);
}

/* Reports whether a packet may travel in the tunnel only. A packet whose ports can't be told counts as sealed if
 * any port of its protocol is: nothing of a sealed flow leaks as a fragment. `from`: the packet comes from the
 * receiver. */
static __noinline int is_sealed(context *ctx, __u32 link_header, __u32 from)
{
	struct packet p = {};
	struct services *services;
	__u16 port;

	if (parse(ctx, &p, link_header, ctx->protocol) == FORM_NOT_IP)
		return 0;
	services = sealed_at(p.flow.family, from ? p.flow.client : p.flow.server);
	if (!services)
		return 0;
	/* An ICMP error quotes a packet, perhaps a sealed one. */
	if (!from && ((p.flow.protocol == IP_ICMP && p.flow.family == 4 && (p.icmp_type == 3 || p.icmp_type == 11 || p.icmp_type == 12)) ||
		      (p.flow.protocol == IP_ICMPV6 && p.flow.family == 6 && p.icmp_type < 128)))
		return 1;
	if ((p.flow.protocol != IP_TCP && p.flow.protocol != IP_UDP) || p.fragment == FRAGMENT_LATER)
		return covers_some(services, p.flow.protocol);
	port = bpf_ntohs(from ? p.flow.client_port : p.flow.server_port);
	return covers(services, p.flow.protocol, port);
}

static __always_inline struct steering *steers(void)
{
	__u32 zero = 0;
	struct steering *found = bpf_map_lookup_elem(&steering, &zero);

	return found && found->seals ? found : 0;
}

/* Reports whether a packet has been steered before, or is one of the tunnel's own, whose tokens user space makes. */
static __always_inline int is_tunnels_own(context *ctx, const struct steering *steering)
{
	if (ctx->ifindex == steering->device)
		return 1;
	return ctx->sk && steering->cookie && bpf_get_socket_cookie(ctx) == steering->cookie;
}
