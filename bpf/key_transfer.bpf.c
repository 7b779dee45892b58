/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The authority's half of key transfer in band (wire.md §5.4): tc ingress records flows that open with the support
 * option, and removes it; tc egress puts a client key into one packet of such a flow.
 *
 * The programs touch only first packets in such a shim and flows for which user space has a key. Unauthenticated
 * senders can add entries to one table of fixed size, which evicts the oldest. */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "layout.h"
#include "skb.h"
#include "parse.h"
#include "shim.h"
#include "wrap.h"

const volatile struct transfer_config config SEC(".rodata.config") = {};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, TRANSFER_COUNTERS);
	__type(key, __u32);
	__type(value, __u64);
} counters SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct flow_key);
	__type(value, __u32);
} supporters SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct flow_key);
	__type(value, struct transfer);
} transfers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct wrapping);
} wrappings SEC(".maps");

static __always_inline int leave(__u32 counter, int code)
{
	__u64 *count = bpf_map_lookup_elem(&counters, &counter);

	if (count)
		*count += 1;
	return code;
}

SEC("tc")
int greet(struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	__u32 zero = 0, time;
	struct shim *shim = bpf_map_lookup_elem(&shims, &zero);
	struct packet p = {};

	if (!shim || skb->protocol != bpf_htons(0x0800))
		return TC_ACT_UNSPEC;
	if (data + ETHER_LEN + IPV4_LEN <= end && ((struct ipv4 *)(data + ETHER_LEN))->protocol != IP_IPIP)
		return TC_ACT_UNSPEC;
	if (parse(skb, &p, ETHER_LEN, skb->protocol) != FORM_WHOLE || p.fragment || p.network != ETHER_LEN ||
	    p.flow.protocol != IP_IPIP || open_shim(skb, &p, shim) != SHIM_SUPPORT)
		return TC_ACT_UNSPEC;
	if (p.flow.protocol != IP_TCP || (p.tcp_flags & (TCP_SYN | TCP_ACK)) != TCP_SYN ||
	    bpf_ntohs(p.flow.server_port) != config.port)
		return TC_ACT_UNSPEC;
	time = (__u32)(bpf_ktime_get_boot_ns() / 1000000000);
	bpf_map_update_elem(&supporters, &p.flow, &time, BPF_ANY);
	return strip_shim(skb, &p) ? leave(TRANSFER_FAILED, TC_ACT_SHOT) : leave(TRANSFER_SUPPORT, TC_ACT_UNSPEC);
}

/* Puts the key into the packet, exactly once: of two cores that send on the flow, only one succeeds in deleting the
 * entry. */
static __noinline int hand_over_key(context *ctx, const struct packet *p, const struct transfer *transfer)
{
	struct flow_key flow = { .protocol = IP_TCP, .family = 4 };
	__u32 zero = 0;
	struct wrapping *wrapping = bpf_map_lookup_elem(&wrappings, &zero);
	int late = bpf_ktime_get_boot_ns() >= transfer->until;

	*(__be32 *)flow.client = *(__be32 *)p->flow.server;
	*(__be32 *)flow.server = *(__be32 *)p->flow.client;
	flow.client_port = p->flow.server_port;
	flow.server_port = p->flow.client_port;
	if (!wrapping)
		return TC_ACT_UNSPEC;
	__builtin_memcpy(wrapping->data, transfer->data, sizeof(wrapping->data));
	wrapping->kind = SHIM_KEY_TRANSFER;
	if (bpf_map_delete_elem(&transfers, &flow) || late)
		return TC_ACT_UNSPEC;
	/* TCP retransmits the packet, without the key. */
	if (wrap(ctx, p, wrapping, p->end))
		return leave(TRANSFER_FAILED, TC_ACT_SHOT);
	return leave(TRANSFER_HANDED, TC_ACT_UNSPEC);
}

SEC("tc")
int hand_over(struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct flow_key flow = { .protocol = IP_TCP, .family = 4 };
	struct ipv4 *ip = data + ETHER_LEN;
	struct tcp *tcp = data + ETHER_LEN + IPV4_LEN;
	struct transfer *transfer;
	struct packet p = {};

	/* Packets that the kernel sends have linear headers. */
	if (skb->protocol != bpf_htons(0x0800) || (void *)(tcp + 1) > end || ip->version_ihl != 0x45 || ip->protocol != IP_TCP ||
	    bpf_ntohs(tcp->source) != config.port || (tcp->flags & (TCP_SYN | TCP_RST | TCP_FIN | TCP_ACK)) != TCP_ACK)
		return TC_ACT_UNSPEC;
	*(__be32 *)flow.client = *(__be32 *)ip->destination;
	*(__be32 *)flow.server = *(__be32 *)ip->source;
	flow.client_port = tcp->destination;
	flow.server_port = tcp->source;
	transfer = bpf_map_lookup_elem(&transfers, &flow);
	if (!transfer)
		return TC_ACT_UNSPEC;
	/* Super-packets, and packets too long for a shim, leave the key to a later packet. */
	if (skb->gso_segs > 1 || parse(skb, &p, ETHER_LEN, skb->protocol) != FORM_WHOLE || p.fragment || p.network != ETHER_LEN ||
	    p.transport != ETHER_LEN + IPV4_LEN || p.end - p.network + SHIM_LEN > SAFE_MTU)
		return TC_ACT_UNSPEC;
	return hand_over_key(skb, &p, transfer);
}

char LICENSE[] SEC("license") = "GPL";
