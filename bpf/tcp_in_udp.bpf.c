/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The verifier's hooks for answers to clients whose segments came as datagrams (wire.md §4.8): tc egress of a protected interface
 * leads the answers to a pair of devices that cuts super-packets and completes checksums, and tc ingress of the pair's other end
 * turns them into datagrams. */
#include "skb.h"
#include "as_datagram.h"
#include "flows.h"

/* Index of the device into which answers go. */
const volatile __u32 helping_device SEC(".rodata.helping") = 0;

/* The interface by which a flow's answers leave. A flow whose entry is evicted gets a new one with its next answer. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct flow_key);
	__type(value, __u32);
} ways SEC(".maps");

static __always_inline struct flow_key key_in_datagrams(const struct segment *s)
{
	struct flow_key key = key_of_answer(s);

	key.tunnel = SIDE_DATAGRAMS;
	return key;
}

SEC("tc")
int answer(struct __sk_buff *ctx)
{
	struct segment s = {};
	struct flow_key key;
	struct flow *flow;
	__u32 interface = ctx->ifindex, *way;

	if (read_segment(ctx, &s, IP_TCP))
		return TC_ACT_UNSPEC;
	/* A SYN without ACK is no answer, but begins a connection. The flow's client may have forged the address to which it goes. */
	if ((s.header.tcp.flags & (TCP_SYN | TCP_ACK)) == TCP_SYN)
		return TC_ACT_UNSPEC;
	key = key_in_datagrams(&s);
	flow = find_flow(&key);
	if (!flow)
		return TC_ACT_UNSPEC;
	if (flow->stage == STAGE_OPENING) {
		/* The client has sent SYNs in both ways, and goes on as it has begun. */
		key.tunnel = SIDE_OUTSIDE;
		flow = find_flow(&key);
		if (flow && flow->stage == STAGE_OPEN)
			return TC_ACT_UNSPEC;
		key.tunnel = SIDE_DATAGRAMS;
	}
	way = bpf_map_lookup_elem(&ways, &key);
	if (!way || *way != interface)
		bpf_map_update_elem(&ways, &key, &interface, BPF_ANY);
	return bpf_redirect(helping_device, 0);
}

SEC("tc")
int reorder(struct __sk_buff *ctx)
{
	struct segment s = {};
	struct flow_key key;
	__u32 *way;

	if (read_segment(ctx, &s, IP_TCP))
		return TC_ACT_SHOT;
	key = key_in_datagrams(&s);
	way = bpf_map_lookup_elem(&ways, &key);
	return way ? send_turned(ctx, &s, *way) : TC_ACT_SHOT;
}

char LICENSE[] SEC("license") = "GPL";
