/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Checks whether a transport checksum is complete by summing the packet. */
#pragma once
#include "checksum.h"
#include "parse.h"

enum { SUM_CHUNK = 64, SUM_CHUNKS = 1024 };

struct summing {
	context *ctx;
	__u32 at;
	__u32 end;
	__u32 sum;
	__u32 failed;
};

static long sum_chunk(__u32 index, struct summing *summing)
{
	__u32 buffer[SUM_CHUNK / 4] = {}, last = summing->end - summing->at - 1;

	if (summing->at >= summing->end)
		return 1;
	if (last >= SUM_CHUNK)
		last = SUM_CHUNK - 1;
	/* In assembly, because clang would drop the bound that the kernel requires: a length of 1 to SUM_CHUNK. */
	asm volatile("%0 &= 63" : "+r"(last));
	if (load(summing->ctx, summing->at, buffer, last + 1)) {
		summing->failed = 1;
		return 1;
	}
	summing->sum += fold(bpf_csum_diff(0, 0, buffer, SUM_CHUNK, 0));
	summing->at += last + 1;
	return 0;
}

/* Reports whether the sum of the transport, header to end, and the pseudo-header is all ones. */
__noinline int checksum_is_whole(context *ctx, const struct packet *p)
{
	struct summing summing = { .ctx = ctx };

	if (!p)
		return 0;
	summing.at = p->transport;
	summing.end = p->end;
	summing.sum = pseudo_header(p, p->end - p->transport);
	bpf_loop(SUM_CHUNKS, sum_chunk, &summing, 0);
	return !summing.failed && fold(summing.sum) == 0xffff;
}
