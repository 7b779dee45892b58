/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Optional receivers: TCP services that everybody may reach, where the verifier knows the people who bring a token
 * (wire.md §6.12). Looked up only for packets that would otherwise be dropped. */
#pragma once
#include <bpf/bpf_helpers.h>
#include "config.h"
#include "flows.h"
#include "layout.h"
#include "parse.h"

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 256);
	__type(key, struct optional_service);
	__type(value, __u32);
} optional SEC(".maps");

/* Reports whether everybody may send to the server of this flow. */
__noinline int is_optional(const struct flow_key *flow)
{
	struct optional_service service = {};

	if (!flow || !config.optional || IN_TUNNEL || flow->protocol != IP_TCP)
		return 0;
	__builtin_memcpy(service.address, flow->server, 16);
	service.port = flow->server_port;
	service.family = flow->family;
	return !!bpf_map_lookup_elem(&optional, &service);
}

/* Reports whether a TCP packet without a token, which belongs to no flow, passes all the same. A SYN passes only if no
 * flow has its addresses and ports: otherwise its sender's connection would bear the name of the flow's person. A
 * fragment header hides the port from the rules that lead connections to a gateway's relay. No stranger needs any IPv6
 * extension header. */
__noinline int is_welcome(const struct packet *p)
{
	struct flow_key key;

	if (!p || !config.optional)
		return 0;
	key = p->flow;
	if (!is_optional(&key) || (key.family == 6 && p->transport != p->network + IPV6_LEN))
		return 0;
	return (p->tcp_flags & (TCP_SYN | TCP_ACK)) != TCP_SYN || !live_flow(&key, p->time);
}
