/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The verifier's hook at tc ingress: the same decision on a socket buffer, whose data nobody has to copy. For virtual
 * interfaces, where XDP would copy every packet and take super-packets apart. */
#include "skb.h"
#include "admit.h"

SEC("tc")
int admit(struct __sk_buff *ctx)
{
	/* No more than is read: what stack and sender share would be copied for it. */
	__u32 ip_len = ctx->protocol == bpf_htons(0x0800) ? IPV4_LEN : IPV6_LEN;

	linearize(ctx, ETHER_LEN + ip_len + sizeof(struct tcp));
	return decide(ctx) ? TC_ACT_UNSPEC : TC_ACT_SHOT;
}

char LICENSE[] SEC("license") = "GPL";
