/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The agent's UDP flows: whose they are, and which of their datagrams carry tokens. */
#pragma once
#include <bpf/bpf_helpers.h>
#include "layout.h"
#include "parse.h"

/* Which datagrams carry tokens, wire.md §4.1.3: the first of a flow, and one at these intervals in seconds. */
enum { UDP_FIRST = 4, UDP_TOKEN_EVERY = 15, UDP_TOKEN_UNANSWERED = 1 };
/* Number of seconds in which an answered flow may send without another answer. After that it is unanswered: a translator
 * may have given it another port, which the verifier does not know. */
enum { UDP_PATIENCE = 3 };
/* A verifier may keep a flow for this long after its last datagram. Until then, the flow's ports belong to the
 * subject that used them. */
enum { UDP_OWNED = 90 /* seconds */ };

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct flow_key);
	__type(value, struct conversation);
} conversations SEC(".maps");

/* Reports whether the datagram would ride on another subject's flow, whose port was bound again right after that
 * subject released it. */
static __always_inline int is_rider(struct conversation *conversation, __u32 subject, __u32 time)
{
	/* Another core may already have recorded the next second. */
	__u32 silence = time - conversation->seen + 1;

	if (conversation->subject != subject)
		return silence <= UDP_OWNED;
	if (silence > UDP_TOKEN_EVERY)
		conversation->answered = conversation->sent = 0;
	else if (silence > 1 && conversation->answered)
		conversation->answered = conversation->answered < UDP_PATIENCE ? conversation->answered + 1 : 0;
	conversation->seen = time;
	return 0;
}

/* Reports whether this datagram needs a token (wire.md §4.1.3), and records that it gets one. */
static __always_inline int udp_needs_token(const struct packet *p, struct conversation *conversation, __u32 subject,
					   __u32 time)
{
	__u32 sent;
	__s32 every;

	if (!conversation || conversation->subject != subject) {
		struct conversation new_flow = { .token = time, .sent = 1, .subject = subject, .seen = time };

		bpf_map_update_elem(&conversations, &p->flow, &new_flow, BPF_ANY);
		return 1;
	}
	sent = conversation->sent;
	if (sent < 0xffff)
		conversation->sent = ++sent;
	if (conversation->answered || (sent > UDP_FIRST && sent & (sent - 1))) {
		every = conversation->answered ? UDP_TOKEN_EVERY : UDP_TOKEN_UNANSWERED;
		if ((__s32)(time - conversation->token) < every)
			return 0;
	}
	conversation->token = time;
	return 1;
}

/* Reports whether a flow of datagrams of this machine has the ports of a connection. */
static __noinline int has_conversation(const struct packet *p, __u32 time)
{
	struct flow_key key = p->flow;
	struct conversation *conversation;

	key.protocol = IP_UDP;
	conversation = bpf_map_lookup_elem(&conversations, &key);
	return conversation && time - conversation->seen + 1 <= UDP_OWNED;
}
