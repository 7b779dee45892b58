/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The verifier's hook at XDP, before the kernel allocates a socket buffer. For network cards. */
#include "xdp.h"
#include "admit.h"

SEC("xdp.frags")
int admit(struct xdp_md *ctx)
{
	return decide(ctx, SIDE_OUTSIDE) ? XDP_PASS : XDP_DROP;
}

char LICENSE[] SEC("license") = "GPL";
