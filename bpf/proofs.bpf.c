/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* A verifier of proofs (wire.md §8) at XDP. */
#include "xdp.h"
#include "proofs.h"

SEC("xdp.frags")
int prove(struct xdp_md *ctx)
{
	int outcome = verify_proof(ctx);

	count(outcome);
	return outcome >= PASS_NOT_OURS ? XDP_PASS : XDP_DROP;
}

char LICENSE[] SEC("license") = "GPL";
