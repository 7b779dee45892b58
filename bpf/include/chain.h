/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The chain of a verifier with several authorities (wire.md §6.13). Each authority has programs and tables of its own. The
 * first programs of the chain hand packets that they refuse over to the next ones, and these to the ones after them. A packet
 * that has no next program is dropped.
 *
 * Include xdp.h or skb.h before this file. */
#pragma once
#include <bpf/bpf_helpers.h>
#include "config.h"
#include "drop_reason.h"
#include "parse.h"

/* The place of these programs in a chain: the programs of a verifier with several authorities, one set for each. FIRST: the
 * programs are attached to interfaces, and their protected services include those of the other authorities. LATER: they get
 * the packets that earlier programs of the chain have refused. */
enum chain { CHAIN_FIRST = 1, CHAIN_LATER = 2 };

/* The services that include a packet's destination are those of these programs' authority, of another one, or of both. */
enum owners { OWN = 1, FOREIGN = 2 };

#if !IN_TUNNEL
/* The next programs. User space empties the slot if there are none. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} NEXT SEC(".maps");
#endif

__noinline int owners_of(const struct services *services, __u32 protocol, __u32 port)
{
	int owners = 0;

	if (!services)
		return 0;
	for (__u32 i = 0; i < SERVICES_MAX; i++) {
		if (i >= services->count)
			break;
		const struct service *span = &services->spans[i];

		if (span->protocol == 0 ||
		    (span->protocol == protocol && span->first_port <= port && port <= span->last_port))
			owners |= span->foreign ? FOREIGN : OWN;
	}
	return owners;
}

/* Records whose services include the destination of the packet, which is protected. */
static __always_inline void note_owners(struct packet *p, const struct services *services)
{
	if (config.chain & CHAIN_FIRST)
		p->owners = owners_of(services, p->flow.protocol, bpf_ntohs(p->flow.server_port));
}

/* Reports whether only other authorities may admit the packet. */
static __always_inline int is_foreign(const struct packet *p)
{
	return config.chain & CHAIN_FIRST && !(p->owners & OWN);
}

/* Hands a refused packet over to the next programs, and does not return if there are any. If the tag of the packet's token was
 * right, no other authority issued its grant, so the refusal is final. A packet that is not ours has been refused by earlier
 * programs of the chain. Returns the outcome. */
static __always_inline int hand_over(context *ctx, const struct packet *p, int outcome)
{
	if (config.chain & CHAIN_LATER && outcome == PASS_NOT_OURS)
		outcome = DROP_NO_TOKEN;
	if (!config.chain || outcome >= PASS_NOT_OURS || outcome == DROP_REVOKED || outcome == DROP_REPLAYED ||
	    outcome == DROP_FLOW_LIMIT || outcome == DROP_UNSEALED)
		return outcome;
#if !IN_TUNNEL
	if (config.chain & CHAIN_LATER || p->owners & FOREIGN)
		bpf_tail_call(ctx, &NEXT, 0);
#endif
	return outcome;
}
