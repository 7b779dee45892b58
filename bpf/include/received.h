/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Peer gateways: user space learns of each flow that begins here, and takes over those that began on a peer (wire.md
 * §6.10). */
#pragma once
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "config.h"

/* Flows that begin. If the buffer is full, user space finds the flow when it next walks the tables. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 256 * 1024);
} flow_news SEC(".maps");

static __always_inline void advertise_flow(const struct flow_key *key)
{
	struct flow_news *room = bpf_ringbuf_reserve(&flow_news, sizeof(*room), 0);

	if (!room)
		return;
	room->key = *key;
	room->time = bpf_ktime_get_boot_ns();
	bpf_ringbuf_submit(room, 0);
}
