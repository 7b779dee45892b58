/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* TCP connection state as the client's segments show it (wire.md §6.3.1 to §6.3.4). A segment that the server's stack
 * would reject changes nothing: an attacker who can forge a client's address but does not see its packets can end no
 * connection. */
#pragma once
#include "flows.h"
#include "parse.h"
#include "stack.h"

enum { NEAR = 1 << 18 };

static __always_inline int is_near(__u32 sequence, __u32 next)
{
	return sequence - next + NEAR < 2 * NEAR;
}

/* Reports whether a segment of this length at `sequence`, which ends a connection, is the one that the server
 * expects. */
static __always_inline int ends_at(__u8 flags, __u32 sequence, __u32 length, __u32 next)
{
	if (flags & TCP_RST)
		return sequence == next;
	return flags & TCP_ACK && (sequence == next || sequence + length == next);
}

/* Records the client's expected sequence number; 0 stands for unknown. */
static __always_inline void move_to(struct flow *flow, __u32 end)
{
	flow->next = end ?: 1;
}

/* Handles a client's SYN. If it carries payload, either the payload is sent again or the next segment shows where it
 * ended. */
static __always_inline void begin_connection(struct flow *flow, __u32 sequence)
{
	set_stage(flow, STAGE_OPENING);
	flow->fin = 0;
	move_to(flow, sequence + 1);
}

/* Reports whether this is an ordinary segment of an open connection, the bulk of all traffic, and follows it. */
static __always_inline int goes_on(struct flow *flow, __u8 flags, __u32 sequence, __u32 length)
{
	__u32 end = sequence + length, next = flow->next;

	if (flow->stage != STAGE_OPEN || flags & (TCP_FIN | TCP_SYN | TCP_RST) || !next || flow->fin || !is_near(sequence, next))
		return 0;
	if ((__s32)(end - next) > 0)
		move_to(flow, end);
	return 1;
}

/* Reports whether the server has answered the client's SYN, as far as the verifier can tell. A gateway that shares
 * flows may not have seen the answer. */
static __always_inline int was_answered(context *ctx, const struct packet *p, const struct flow *flow)
{
	struct flow_key key = p->flow;
	struct stack_view view = {};

	if (flow->answer)
		return p->acknowledgement - flow->answer < NEAR;
	if (config.max_outbound)
		return !!config.advertises_flows;
	ask_stack(ctx, &key, &view);
	return view.knows != KNOWS_ANSWER || p->acknowledgement == view.number;
}

/* Handles a segment of a connection of which only the SYN has arrived so far. */
static __always_inline void open_connection(context *ctx, const struct packet *p, struct flow *flow)
{
	__u32 length = p->end - p->payload, end = p->sequence + length + !!(p->tcp_flags & TCP_SYN), next = flow->next;
	int ends;

	/* A RST may belong to an earlier connection that the server still holds. */
	if (p->tcp_flags & TCP_RST || !(p->tcp_flags & TCP_ACK) || (next && !is_near(p->sequence, next)) ||
	    !was_answered(ctx, p, flow))
		return;
	ends = p->tcp_flags & TCP_FIN && next && ends_at(p->tcp_flags, p->sequence, length, next);
	set_stage(flow, ends ? STAGE_CLOSING : STAGE_OPEN);
	if (!next || (__s32)(end - next) > 0)
		move_to(flow, end);
}

/* Updates the flow on a segment from the client other than a SYN without ACK. */
__noinline int follow(context *ctx, const struct packet *p, struct flow *flow)
{
	__u32 sequence, length, end, next;
	struct stack_view view = {};
	struct flow_key key;
	int ends, fits;

	if (!p || !flow)
		return 0;
	if (flow->stage == STAGE_OPENING) {
		open_connection(ctx, p, flow);
		return 0;
	}
	key = p->flow;
	sequence = p->sequence;
	length = p->end - p->payload;
	end = sequence + length;
	next = flow->next;
	ends = p->tcp_flags & (TCP_FIN | TCP_RST);
	fits = next && ends_at(p->tcp_flags, sequence, length, next);
	if (!next || !is_near(sequence, next) || (ends && !fits)) {
		ask_stack(ctx, &key, &view);
		if (view.knows == KNOWS_NEXT) {
			fits = ends_at(p->tcp_flags, sequence, length, view.number);
			if (!next || !is_near(sequence, next)) {
				next = view.number;
				move_to(flow, next);
			}
		}
	}
	if (!next || !is_near(sequence, next))
		return 0;
	if (ends && fits)
		set_stage(flow, p->tcp_flags & TCP_RST ? STAGE_RESET : STAGE_CLOSING);
	if (p->tcp_flags & TCP_RST)
		return 0;
	if (ends && !fits && p->tcp_flags & TCP_ACK && (__s32)(sequence - next) > 0) {
		/* The segments before the FIN were lost and will be sent again. */
		flow->fin = sequence;
		return 0;
	}
	if ((__s32)(end - next) <= 0)
		return 0;
	move_to(flow, end);
	if (length && !(ends && fits))
		set_stage(flow, flow->fin && end == flow->fin ? STAGE_CLOSING : STAGE_OPEN);
	if (flow->fin && (__s32)(end - flow->fin) >= 0)
		flow->fin = 0;
	return 0;
}
