/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* A tunnel endpoint's hooks (wire.md §8). At tc ingress of a tenant's interface, packets from the tenant go into the
 * tunnel; at tc ingress of the underlay's interface, packets from the tunnel are checked and delivered.
 *
 * No packet of a tenant reaches this host's own stack. The hooks are at tc because a super-packet is a single packet
 * there. */
#include "skb.h"
#include "proofs.h"
#include "geneve.h"

SEC("tc")
int encapsulate(struct __sk_buff *ctx)
{
	__u32 zero = 0, interface = ctx->ifindex;
	struct tenant *tenant = bpf_map_lookup_elem(&tenants, &interface);
	struct proving *v = bpf_map_lookup_elem(&provings, &zero);
	__u8 type = 0;

	if (!tenant || !v || ctx->vlan_present)
		return leave(SVTEP_MALFORMED, TC_ACT_SHOT);
	if (ctx->protocol == bpf_htons(0x0806))
		return answer_arp(ctx, tenant);
	if (ctx->protocol != bpf_htons(0x0800) && ctx->protocol != bpf_htons(0x86dd))
		return leave(SVTEP_OTHER, TC_ACT_SHOT);
	if (read_inner(ctx, v, bpf_ntohs(ctx->protocol), ETHER_LEN, ctx->len) != CONTINUE)
		return leave(SVTEP_MALFORMED, TC_ACT_SHOT);
	if (v->inner_protocol == IP_ICMPV6 && v->inner_family == 6 && !load(ctx, ETHER_LEN + IPV6_LEN, &type, 1) &&
	    type >= ND_FIRST && type <= ND_LAST)
		return type == ND_SOLICITATION ? answer_solicitation(ctx, tenant) : leave(SVTEP_OTHER, TC_ACT_SHOT);
	return send(ctx, tenant, v);
}

SEC("tc")
int decapsulate(struct __sk_buff *ctx)
{
	/* Length of the longest headers of the plain form. */
	enum { HEADERS_MAX = 62 + GENEVE_LEN + OPTION_LEN + SEGMENT_LEN + 16 + PROOFS_MAX * PROOF_LEN + IPV6_LEN + 4 };
	__u32 zero = 0, near_len = HEADERS_MAX;
	struct proving *v = bpf_map_lookup_elem(&provings, &zero);
	__u32 plain;
	int outcome;

	if (!v)
		return TC_ACT_SHOT;
	if (near_len > ctx->len)
		near_len = ctx->len;
	if ((long)ctx->data_end - (long)ctx->data < near_len)
		bpf_skb_pull_data(ctx, near_len);
	outcome = verify_and_locate(ctx, &plain);
	count(outcome);
	if (outcome == PASS_NOT_OURS)
		return TC_ACT_UNSPEC;
	if (outcome != PASS_TOKEN && outcome != PASS_FLOW)
		return TC_ACT_SHOT;
	if (plain && outcome == PASS_TOKEN && note_plain(ctx, v))
		return TC_ACT_SHOT;
	if (!plain && v->packet.network != ETHER_LEN)
		return leave(SVTEP_UNDELIVERED, TC_ACT_SHOT);
	return deliver(ctx, plain ?: v->packet.payload, outcome == PASS_TOKEN);
}

char LICENSE[] SEC("license") = "GPL";
