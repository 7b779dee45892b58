/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Tenants of a tunnel endpoint: their interfaces, and the neighbour requests on their links.
 *
 * ARP and neighbour discovery don't travel through the tunnel (wire.md §8.7): the endpoint answers for every other
 * address. */
#pragma once
#include "checksum.h"
#include "parse.h"

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, struct tenant);
} tenants SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 65536);
	__type(key, __u32);
	__type(value, struct delivery);
} deliveries SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, SVTEP_COUNTERS);
	__type(key, __u32);
	__type(value, __u64);
} tunnel_counters SEC(".maps");

static __always_inline int leave(__u32 counter, int code)
{
	__u64 *count = bpf_map_lookup_elem(&tunnel_counters, &counter);

	if (count)
		*count += 1;
	return code;
}

enum { MAC_LEN = 6, ARP_LEN = 28, SOLICITATION_LEN = 24, LINK_OPTION_LEN = 8 };
enum { ND_FIRST = 133, ND_SOLICITATION = 135, ND_ADVERTISEMENT = 136, ND_LAST = 137, ND_ANSWERS = 0x60 /* solicited, override */ };

/* Writes the hardware address, locally administered, that every endpoint has on the links of its tenants. It is used
 * nowhere else. */
static __always_inline void write_mac(__u8 *mac)
{
	static const __u8 ours[MAC_LEN] = { 0x02, 0x56, 0x53, 0, 0, 1 };

#pragma unroll
	for (int i = 0; i < MAC_LEN; i++)
		mac[i] = ours[i];
}

/* Records a tenant's hardware address, which deliveries to interfaces other than veth pairs need. */
static __always_inline void learn_mac(const struct tenant *tenant, const __u8 *mac)
{
	__u32 id = tenant->id;
	struct delivery *delivery = bpf_map_lookup_elem(&deliveries, &id);

	if (delivery)
		__builtin_memcpy(delivery->mac, mac, MAC_LEN);
}

/* Sends the modified packet back to the interface that it came from. */
static __always_inline int send_back(context *ctx, const __u8 *mac)
{
	__u8 link[2 * MAC_LEN];

	__builtin_memcpy(link, mac, MAC_LEN);
	write_mac(link + MAC_LEN);
	if (bpf_skb_store_bytes(ctx, 0, link, sizeof(link), 0))
		return leave(SVTEP_FAILED, TC_ACT_SHOT);
	leave(SVTEP_NEIGHBOUR, 0);
	return bpf_redirect(ctx->ifindex, 0);
}

struct arp {
	__be16 hardware, protocol;
	__u8 hardware_len, protocol_len;
	__be16 operation;
	__u8 sender_mac[MAC_LEN], sender[4], target_mac[MAC_LEN], target[4];
};

/* Answers for every address but the tenant's own, which a tenant probes to detect a duplicate. */
static __noinline int answer_arp(context *ctx, const struct tenant *tenant)
{
	struct arp arp;
	__u8 target[4];

	if (load(ctx, ETHER_LEN, &arp, ARP_LEN) || arp.hardware != bpf_htons(1) || arp.protocol != bpf_htons(0x0800) ||
	    arp.hardware_len != MAC_LEN || arp.protocol_len != 4)
		return leave(SVTEP_MALFORMED, TC_ACT_SHOT);
	if (arp.operation != bpf_htons(1) || !*(__u32 *)arp.sender || *(__u32 *)arp.sender == *(__u32 *)arp.target)
		return leave(SVTEP_OTHER, TC_ACT_SHOT);
	learn_mac(tenant, arp.sender_mac);
	arp.operation = bpf_htons(2);
	__builtin_memcpy(target, arp.target, 4);
	__builtin_memcpy(arp.target, arp.sender, 4);
	__builtin_memcpy(arp.target_mac, arp.sender_mac, MAC_LEN);
	__builtin_memcpy(arp.sender, target, 4);
	write_mac(arp.sender_mac);
	if (bpf_skb_store_bytes(ctx, ETHER_LEN, &arp, ARP_LEN, 0))
		return leave(SVTEP_FAILED, TC_ACT_SHOT);
	return send_back(ctx, arp.target_mac);
}

struct solicitation {
	__u8 type, code;
	__be16 checksum;
	__u32 flags;
	__u8 target[16];
	__u8 option, option_len, mac[MAC_LEN]; /* the option may be missing */
};

/* Answers neighbour solicitations (RFC 4861) for every address but the tenant's own. */
static __noinline int answer_solicitation(context *ctx, const struct tenant *tenant)
{
	enum { SOLICITATION_AT = ETHER_LEN + IPV6_LEN };
	struct solicitation ask = {};
	struct ipv6 ip;
	__u32 length, sum;
	__u8 mac[MAC_LEN];

	if (load(ctx, ETHER_LEN, &ip, sizeof(ip)))
		return leave(SVTEP_MALFORMED, TC_ACT_SHOT);
	length = bpf_ntohs(ip.payload_len);
	/* A solicitation from the unspecified address is duplicate address detection. */
	if (!(*(__u64 *)ip.source | *(__u64 *)(ip.source + 8)))
		return leave(SVTEP_OTHER, TC_ACT_SHOT);
	if (ip.hop_limit != 255 || (length != SOLICITATION_LEN && length != SOLICITATION_LEN + LINK_OPTION_LEN) ||
	    load(ctx, SOLICITATION_AT, &ask, SOLICITATION_LEN) ||
	    (length != SOLICITATION_LEN && load(ctx, SOLICITATION_AT + SOLICITATION_LEN, &ask.option, LINK_OPTION_LEN)) ||
	    (length != SOLICITATION_LEN && (ask.option != 1 || ask.option_len != 1)) || load(ctx, MAC_LEN, mac, MAC_LEN))
		return leave(SVTEP_MALFORMED, TC_ACT_SHOT);
	learn_mac(tenant, mac);
	ask.type = ND_ADVERTISEMENT;
	ask.checksum = 0;
	ask.flags = ND_ANSWERS;
	if (length != SOLICITATION_LEN) {
		ask.option = 2;
		write_mac(ask.mac);
	}
	__builtin_memcpy(ip.destination, ip.source, 16);
	__builtin_memcpy(ip.source, ask.target, 16);
	sum = bpf_csum_diff(0, 0, (__u32 *)ip.source, 32, bpf_htons(length) + bpf_htons(IP_ICMPV6));
	sum = bpf_csum_diff(0, 0, (__u32 *)&ask, sizeof(ask), sum);
	ask.checksum = ~fold(sum);
	if (bpf_skb_store_bytes(ctx, ETHER_LEN, &ip, sizeof(ip), 0) ||
	    bpf_skb_store_bytes(ctx, SOLICITATION_AT, &ask, SOLICITATION_LEN, 0) ||
	    (length != SOLICITATION_LEN &&
	     bpf_skb_store_bytes(ctx, SOLICITATION_AT + SOLICITATION_LEN, &ask.option, LINK_OPTION_LEN, 0)))
		return leave(SVTEP_FAILED, TC_ACT_SHOT);
	return send_back(ctx, mac);
}
