/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The agent's half of key transfer in band (wire.md §5.4): it offers to take keys, and takes them from the flows on
 * which it did so.
 *
 * User space decides whether a key is the right one: it looks for the pair that the authority named under TLS, and for
 * no other. */
#pragma once
#include "shim.h"
#include "wrap.h"

/* A first packet that is sent again within this time goes without a shim: a middlebox may drop shims. */
enum { REQUEST_LIFETIME = 60 /* seconds */ };

enum key_outcome { KEY_NONE = 0, KEY_TAKEN = 1, KEY_FAILED = 2 };

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__type(key, struct authority_end);
	__type(value, __u32);
} key_authorities SEC(".maps");

/* Flows on which keys are accepted, with the time when they were opened, in seconds since boot. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct flow_key);
	__type(value, __u32);
} key_flows SEC(".maps");

/* Client keys that arrived in band, by the pair's handle. A flood of transfers evicts keys that user space has not
 * fetched yet; user space then gets them by HTTPS. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, __u64);
	__type(value, struct client_key);
} keys_taken SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct wrapping);
} offers SEC(".maps");

static __always_inline __u32 uptime(void)
{
	return (__u32)(bpf_ktime_get_boot_ns() / 1000000000);
}

static __always_inline int transfers_keys(__be32 address, __be16 port)
{
	struct authority_end end = { .address = address, .port = port };

	return bpf_map_lookup_elem(&key_authorities, &end) != 0;
}

/* Reports whether the packet, which opens a flow, goes to an authority that transfers keys in band, and can carry a
 * shim. */
static __always_inline int asks_for_key(const struct packet *p)
{
	return p->flow.protocol == IP_TCP && p->flow.family == 4 && p->network == ETHER_LEN &&
	       p->transport == ETHER_LEN + IPV4_LEN && transfers_keys(*(__be32 *)p->flow.server, p->flow.server_port);
}

/* Reports whether an earlier first packet of the flow had the option within REQUEST_LIFETIME. If not, records that this
 * packet has it. */
static __always_inline int has_asked(const struct flow_key *flow)
{
	__u32 time = uptime(), *requested = bpf_map_lookup_elem(&key_flows, flow);

	if (requested && time - *requested < REQUEST_LIFETIME)
		return 1;
	bpf_map_update_elem(&key_flows, flow, &time, BPF_ANY);
	return 0;
}

static __noinline int offer(context *ctx, const struct packet *p)
{
	__u32 zero = 0;
	struct wrapping *wrapping = bpf_map_lookup_elem(&offers, &zero);

	if (!wrapping)
		return -1;
	__builtin_memset(wrapping, 0, sizeof(*wrapping));
	wrapping->kind = SHIM_SUPPORT;
	return wrap(ctx, p, wrapping, p->end);
}

static __noinline int take_key(context *ctx, struct packet *p)
{
	__u32 zero = 0;
	struct shim *shim = bpf_map_lookup_elem(&shims, &zero);
	struct flow_key flow = { .protocol = IP_TCP, .family = 4 };
	struct client_key key = {};
	__u64 handle = 0;

	if (!shim || open_shim(ctx, p, shim) != SHIM_KEY_TRANSFER || p->flow.protocol != IP_TCP)
		return KEY_NONE;
	*(__be32 *)flow.client = *(__be32 *)p->flow.server;
	*(__be32 *)flow.server = *(__be32 *)p->flow.client;
	flow.client_port = p->flow.server_port;
	flow.server_port = p->flow.client_port;
	if (!bpf_map_lookup_elem(&key_flows, &flow))
		return KEY_NONE;
	__builtin_memcpy(&key, shim->data, SHA224_LEN);
#pragma unroll
	for (int i = 0; i < LS_PAIR_LEN; i++)
		handle = handle << 8 | shim->data[SHA224_LEN + i];
	bpf_map_update_elem(&keys_taken, &handle, &key, BPF_ANY);
	return strip_shim(ctx, p) ? KEY_FAILED : KEY_TAKEN;
}
