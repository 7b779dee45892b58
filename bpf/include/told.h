/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Gateways that stand side by side: user space hears of each flow that begins here, and brings in those that began there
 * (wire.md §6.10). */
#pragma once
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "config.h"

/* Flows that begin. What finds no room is told of when user space next looks through the tables. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 256 * 1024);
} flow_news SEC(".maps");

static __always_inline void tell_flow(const struct flow_key *key)
{
	struct flow_news *room = bpf_ringbuf_reserve(&flow_news, sizeof(*room), 0);

	if (!room)
		return;
	room->key = *key;
	room->time = bpf_ktime_get_boot_ns();
	bpf_ringbuf_submit(room, 0);
}
