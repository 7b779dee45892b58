/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* For benches only: measures the duration of a decision. */
#pragma once

/* Adds the duration of `decides` to `nanoseconds` or, if it is null, the cost of reading the clock. */
static __always_inline int timed(context *ctx, int (*decides)(context *ctx), __u64 *nanoseconds)
{
	__u64 began = bpf_ktime_get_ns();
	int outcome = decides ? decides(ctx) : 0;

	*nanoseconds += bpf_ktime_get_ns() - began;
	return outcome;
}
