/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Address and port rewriting in a packet, and in the packet that an ICMP error quotes. Checksums stay complete or
 * partial as they were: the kernel's helpers know which. */
#pragma once
#include "checksum.h"
#include "parse.h"

static __always_inline int same_address(const struct address *one, const struct address *other)
{
	return one->words[0] == other->words[0] && one->words[1] == other->words[1];
}

enum end { SOURCE_END = 0, DESTINATION_END = 1 };

struct rewriting {
	struct address from, to;
	__be16 old_port, port;
	__u32 end; /* one of enum end */
};

static __always_inline __u32 address_at(__u8 family, __u32 network, __u32 end)
{
	return network + (family == 4 ? 12 + 4 * end : 8 + 16 * end);
}

static __always_inline long store_address(context *ctx, __u8 family, __u32 network, const struct rewriting *w)
{
	__u32 at = address_at(family, network, w->end);

	if (family != 4)
		return bpf_skb_store_bytes(ctx, at, &w->to, 16, 0);
	return bpf_l3_csum_replace(ctx, network + 10, (__u32)w->from.words[0], (__u32)w->to.words[0], 4) ?:
	       bpf_skb_store_bytes(ctx, at, &w->to, 4, 0);
}

static __always_inline long replace_in_sum(context *ctx, __u32 at, __u8 family, const struct rewriting *w, __u64 flags)
{
	if (family == 4)
		return bpf_l4_csum_replace(ctx, at, (__u32)w->from.words[0], (__u32)w->to.words[0], flags | 4);
	return bpf_l4_csum_replace(ctx, at, 0, bpf_csum_diff((__be32 *)&w->from, 16, (__be32 *)&w->to, 16, 0), flags);
}

/* Rewrites the source or destination of a TCP or UDP packet. In a later fragment, which has no ports, only the
 * address. */
__noinline int rewrite(context *ctx, const struct packet *p, const struct rewriting *w)
{
	__u64 zero_is_none;
	__u32 sum_at;

	if (!p || !w)
		return -1;
	if (p->fragment != FRAGMENT_LATER) {
		sum_at = p->transport + (p->flow.protocol == IP_TCP ? 16 : 6);
		zero_is_none = p->flow.protocol == IP_UDP ? BPF_F_MARK_MANGLED_0 : 0;
		if (replace_in_sum(ctx, sum_at, p->flow.family, w, BPF_F_PSEUDO_HDR | zero_is_none))
			return -1;
		if (w->port != w->old_port &&
		    (bpf_l4_csum_replace(ctx, sum_at, w->old_port, w->port, zero_is_none | 2) ||
		     bpf_skb_store_bytes(ctx, p->transport + 2 * w->end, &w->port, 2, 0)))
			return -1;
	}
	return store_address(ctx, p->flow.family, p->network, w) ? -1 : 0;
}

/* Rewrites the opposite end of the packet that an ICMP error quotes and, if the error itself goes to or comes from that
 * address, the error's own end as well. In IPv4 the quoted header's own checksum compensates for its address, so the
 * error's checksum does not change. */
__noinline int rewrite_error(context *ctx, const struct packet *p, const struct rewriting *w, __u32 quoted_transport)
{
	__u32 sum_at, quoted_end, outer;
	struct rewriting turned;

	if (!p || !w)
		return -1;
	sum_at = p->transport + 2;
	/* The quoted packet went in the opposite direction. */
	turned = *w;
	turned.end = !w->end;
	quoted_end = turned.end;
	outer = same_address((const struct address *)(w->end == SOURCE_END ? p->flow.client : p->flow.server), &w->from);
	if (p->flow.family == 6 && replace_in_sum(ctx, sum_at, 6, w, 0))
		return -1;
	if (store_address(ctx, p->flow.family, p->payload, &turned))
		return -1;
	if (w->port != w->old_port && (bpf_l4_csum_replace(ctx, sum_at, w->old_port, w->port, 2) ||
				       bpf_skb_store_bytes(ctx, quoted_transport + 2 * quoted_end, &w->port, 2, 0)))
		return -1;
	if (!outer)
		return 0;
	if (p->flow.family == 6 && replace_in_sum(ctx, sum_at, 6, w, BPF_F_PSEUDO_HDR))
		return -1;
	return store_address(ctx, p->flow.family, p->network, w) ? -1 : 0;
}
