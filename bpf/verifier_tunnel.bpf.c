/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The verifier's hook at tc ingress of the device where the packets of sealed tunnels come out (wire.md §6.11): the same
 * decision in the same tables, but nothing is unprotected there, and nothing that would be dropped passes.
 *
 * The device has no link header. */
#define IN_TUNNEL 1
#include "skb.h"
#include "admit.h"
#include "mark.h"

/* Bytes of the link header: 0, but for runs on a single frame, which the kernel allows with Ethernet only. */
const volatile __u32 link_header SEC(".rodata.link") = 0;

SEC("tc")
int admit_sealed(struct __sk_buff *ctx)
{
	__u32 bits = 0;
	struct packet p;
	int outcome;

	__builtin_memset(&p, 0, sizeof(p));
	outcome = parse(ctx, &p, link_header, ctx->protocol);
	p.flow.tunnel = 1;
	outcome = decide_parsed(ctx, &p, outcome);
	/* The tunnel leads to what is protected, and to nothing else. */
	if (outcome == PASS_NOT_OURS)
		outcome = DROP_NO_TOKEN;
	report(ctx, &p, outcome);
	if (outcome < PASS_NOT_OURS || outcome == CONSUMED)
		return TC_ACT_SHOT;
	if (config.mark_mask) {
		bits = config.mark | class_bits(&p);
		ctx->mark = (ctx->mark & ~config.mark_mask) | bits;
	}
	return TC_ACT_UNSPEC;
}

char LICENSE[] SEC("license") = "GPL";
