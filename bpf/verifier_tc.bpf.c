/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The verifier's hook at tc ingress: the same decision as at XDP, on a socket buffer, without copying its data. For
 * virtual interfaces, where XDP would copy every packet and segment super-packets. */
#include "skb.h"
#include "admit.h"
#include "mark.h"
#include "turn_back.h"

SEC("tc")
int admit(struct __sk_buff *ctx)
{
	enum side side = SIDE_OUTSIDE;
	int outcome;

	bring_headers_near(ctx);
	if (config.carriers & CARRIER_TCP_IN_UDP) {
		outcome = turn_back(ctx);
		if (outcome == TURNED) {
			side = SIDE_DATAGRAMS;
		} else if (outcome != CONTINUE) {
			count(outcome);
			return TC_ACT_SHOT;
		}
	}
	if (config.mark_mask)
		return mark(ctx);
	return decide(ctx, side) ? TC_ACT_UNSPEC : TC_ACT_SHOT;
}

char LICENSE[] SEC("license") = "GPL";
