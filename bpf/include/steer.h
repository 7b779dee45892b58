/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Steering of sealed flows on the agent's machine (wire.md §6.11.6): packets to a receiver whose rule demands a
 * treatment, and those of senders who ask for one, go to the tunnel's device or nowhere. Packets from such a receiver come
 * from that device or not at all. */
#pragma once
#include <linux/pkt_cls.h>
#include "skb.h"
#include "parse.h"
#include "services.h"
#include "sender.h"
#include "ladder.h"

enum { GRANT_SEALED = 64 /* flag in the second byte of a grant's header (wire.md §3.2) */ };

/* User space's part. The device is gone when the agent is killed: packets that are sent there are dropped then. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct steering);
} steering SEC(".maps");

/* Services at which only sealed packets may arrive. Each is among the protected ones. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 16384);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct prefix4);
	__type(value, struct services);
} sealed4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 16384);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct prefix6);
	__type(value, struct services);
} sealed6 SEC(".maps");

/* Senders who ask for a treatment, with the number of the wish in user space; never 0. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, struct owner);
	__type(value, __u32);
} wishes SEC(".maps");

/* Flows whose first packets went to the tunnel's device. Only senders with a grant for a receiver add entries. An entry that
 * is evicted costs its flow, which user space then knows no owner of, and not its secrecy: packets are steered by their
 * receiver and sender, too. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct flow_key);
	__type(value, struct steered);
} steered_flows SEC(".maps");

/* A packet whose way is to be told. The stack has no room for it: Linux 6.1 adds up the frames of all functions that are
 * called in one another. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct packet);
} steered_packets SEC(".maps");

/* Records that a connection's first packet was answered outside of the tunnel. */
static __noinline int note_answer(context *ctx, __u32 link)
{
	__u32 zero = 0;
	struct packet *p = bpf_map_lookup_elem(&steered_packets, &zero);
	struct first_packet *first;

	if (!p)
		return 0;
	__builtin_memset(p, 0, sizeof(*p));
	if (parse(ctx, p, link, ctx->protocol) != FORM_WHOLE || p->fragment)
		return 0;
	first = first_packet_of(p);
	if (first && !first->outside)
		first->outside = bpf_ktime_get_boot_ns();
	return 0;
}

static __always_inline struct steering *steers(void)
{
	__u32 zero = 0;
	struct steering *found = bpf_map_lookup_elem(&steering, &zero);

	return found && found->seals ? found : 0;
}

/* Reports whether a packet has been steered before, or is one of the tunnel's own, whose tokens user space makes. */
static __always_inline int is_tunnels_own(context *ctx, const struct steering *steering)
{
	if (ctx->ifindex == steering->device)
		return 1;
	return ctx->sk && steering->cookie && bpf_get_socket_cookie(ctx) == steering->cookie;
}

/* Returns what is sealed at an address. */
static __noinline struct services *sealed_at(const struct packet *p, __u32 from)
{
	if (p->flow.family == 4) {
		struct prefix4 key = { .length = 32 };

		__builtin_memcpy(key.address, from ? p->flow.client : p->flow.server, 4);
		return bpf_map_lookup_elem(&sealed4, &key);
	}
	struct prefix6 key = { .length = 128 };

	__builtin_memcpy(key.address, from ? p->flow.client : p->flow.server, 16);
	return bpf_map_lookup_elem(&sealed6, &key);
}

/* Reports whether no packet between this machine and the packet's other end is steered: most packets, cheaply. */
static __noinline int is_native(context *ctx, __u32 link, __u32 from, __u32 asks)
{
	__be16 type = ctx->protocol;

	if (link && load(ctx, 12, &type, 2))
		return 1;
	if (type == bpf_htons(0x0800)) {
		struct prefix4 key = { .length = 32 };

		if (load(ctx, link + (from ? 12 : 16), key.address, 4))
			return 0;
		return !bpf_map_lookup_elem(&sealed4, &key) && !(asks && services_of(4, key.address));
	}
	if (type == bpf_htons(0x86dd)) {
		struct prefix6 key = { .length = 128 };

		if (load(ctx, link + (from ? 8 : 24), key.address, 16))
			return 0;
		return !bpf_map_lookup_elem(&sealed6, &key) && !(asks && services_of(6, key.address));
	}
	return 0;
}

/* Reports whether a receiver takes such a packet from the tunnel only. A packet whose ports can't be told counts if any port
 * of its protocol does: nothing of a sealed flow leaks as a fragment. */
static __noinline int is_demanded(const struct packet *p, __u32 form, __u32 from)
{
	struct services *services = sealed_at(p, from);

	if (!services)
		return 0;
	if (form != FORM_WHOLE)
		return 1;
	/* An ICMP error quotes a packet, perhaps a sealed one. */
	if (!from && ((p->flow.protocol == IP_ICMP && p->flow.family == 4 &&
		       (p->icmp_type == 3 || p->icmp_type == 11 || p->icmp_type == 12)) ||
		      (p->flow.protocol == IP_ICMPV6 && p->flow.family == 6 && p->icmp_type < 128)))
		return 1;
	if ((p->flow.protocol != IP_TCP && p->flow.protocol != IP_UDP) || p->fragment == FRAGMENT_LATER)
		return covers_some(services, p->flow.protocol);
	return covers(services, p->flow.protocol, bpf_ntohs(from ? p->flow.client_port : p->flow.server_port));
}

static __always_inline __u32 stronger(__u32 wish, const __u32 *other)
{
	__u32 treatment;

	if (!other)
		return wish;
	treatment = (*other & WISH_TREATMENT) > (wish & WISH_TREATMENT) ? *other & WISH_TREATMENT : wish & WISH_TREATMENT;
	return ((wish | *other) & ~WISH_TREATMENT) | treatment;
}

/* Returns what the sender of a packet asks for; 0 if nothing. */
static __noinline __u32 wish_of(context *ctx, const struct packet *p, __u32 asks)
{
	struct owner asker = {};
	__u32 wish = 0;
	__u8 class[2];

	if (!load(ctx, p->network, class, 2)) {
		asker.kind = OWNER_DSCP;
		asker.id = p->flow.family == 4 ? class[1] >> 2 : (class[0] & 15) << 2 | class[1] >> 6;
		wish = stronger(wish, bpf_map_lookup_elem(&wishes, &asker));
	}
	if (!ctx->sk)
		return wish;
	asker.kind = OWNER_USER;
	asker.id = bpf_get_socket_uid(ctx);
	wish = stronger(wish, bpf_map_lookup_elem(&wishes, &asker));
	if (!(asks & ASKS_BY_CGROUP))
		return wish;
	asker.kind = OWNER_CGROUP;
	for (int level = ASKER_LEVELS; level > 0; level--) {
		asker.id = bpf_skb_ancestor_cgroup_id(ctx, level);
		if (asker.id)
			wish = stronger(wish, bpf_map_lookup_elem(&wishes, &asker));
	}
	return wish;
}

/* Returns the entry of a packet's flow; `from`: the packet comes from the receiver. */
static __noinline struct steered *steered_of(const struct packet *p, __u32 from)
{
	struct flow_key key = {};

	if (!from)
		return bpf_map_lookup_elem(&steered_flows, &p->flow);
	__builtin_memcpy(key.client, p->flow.server, 16);
	__builtin_memcpy(key.server, p->flow.client, 16);
	key.client_port = p->flow.server_port;
	key.server_port = p->flow.client_port;
	key.protocol = p->flow.protocol;
	key.family = p->flow.family;
	return bpf_map_lookup_elem(&steered_flows, &key);
}

/* Takes a flow out of the tunnel because its answer came from outside, if the ladder alone had led it there and no answer has
 * come in the tunnel. `p` is the answer; it was recorded before. Returns 1 if it did. If the first packet's entry was evicted, the
 * answer cannot be told from another's: the flow stays in the tunnel, and this answer is dropped. The connection then waits for
 * an answer in the tunnel. */
static __noinline int leaves_tunnel(const struct packet *p, const struct steered *known)
{
	struct flow_key key = {};
	struct first_packet *first;

	if (p->flow.protocol != IP_TCP || (known->wish & (WISH_LADDER | WISH_ANSWERED)) != WISH_LADDER ||
	    (p->tcp_flags & (TCP_SYN | TCP_ACK | TCP_RST)) != (TCP_SYN | TCP_ACK))
		return 0;
	first = first_packet_of(p);
	if (!first || first->subject != known->subject)
		return 0;
	__builtin_memcpy(key.client, p->flow.server, 16);
	__builtin_memcpy(key.server, p->flow.client, 16);
	key.client_port = p->flow.server_port;
	key.server_port = p->flow.client_port;
	key.protocol = p->flow.protocol;
	key.family = p->flow.family;
	bpf_map_delete_elem(&steered_flows, &key);
	return 1;
}

/* Returns the way of a packet of a flow that the ladder has led into the tunnel. */
static __noinline __u32 way_of_ladder(const struct packet *p, struct steered *known)
{
	if ((p->tcp_flags & (TCP_SYN | TCP_ACK)) == TCP_SYN) {
		struct flow_key key = p->flow;

		/* A new connection begins anew. A SYN that is sent again takes the way that the ladder chooses. */
		if (known->wish & WISH_ANSWERED)
			bpf_map_delete_elem(&steered_flows, &key);
		return 0;
	}
	if (!(known->wish & WISH_ANSWERED)) {
		known->wish |= WISH_ANSWERED;
		note_inside(p, known->subject);
	}
	return STEERED;
}

/* Reports whether a packet goes to a protected service, so that its sender may ask for a treatment. */
static __noinline int may_ask(const struct packet *p)
{
	struct services *services;

	if (p->flow.protocol != IP_TCP && p->flow.protocol != IP_UDP)
		return 0;
	services = services_of(p->flow.family, p->flow.server);
	if (!services)
		return 0;
	return p->fragment == FRAGMENT_LATER ? covers_some(services, p->flow.protocol) :
					       covers(services, p->flow.protocol, bpf_ntohs(p->flow.server_port));
}

/* Returns 0 if a packet may travel outside of the tunnel, else STEERED and what its sender asks for. `from`: the packet
 * comes from the receiver. */
static __noinline __u32 way_of(context *ctx, __u32 link, __u32 from, __u32 asks)
{
	__u32 zero = 0, form, wish;
	struct packet *p = bpf_map_lookup_elem(&steered_packets, &zero);
	struct steered *known;
	int demanded;

	if (!p)
		return STEERED;
	if (is_native(ctx, link, from, asks))
		return 0;
	__builtin_memset(p, 0, sizeof(*p));
	form = parse(ctx, p, link, ctx->protocol);
	if (form == FORM_NOT_IP)
		return 0;
	demanded = is_demanded(p, form, from);
	if (!asks)
		return demanded ? STEERED : 0;
	if (from) {
		known = demanded ? 0 : steered_of(p, from);
		return demanded || (known && !leaves_tunnel(p, known)) ? STEERED : 0;
	}
	if (!demanded && !may_ask(p))
		return 0;
	/* The sender's socket does not show in a packet that user space sends again. */
	wish = is_injected(ctx) ? ctx->priority & (STEERED - 1) : asks & ASKS ? wish_of(ctx, p, asks) : 0;
	if (demanded)
		return STEERED | (wish & ~(WISH_LADDER | WISH_OUTSIDE | WISH_FAST_OPEN | WISH_DATAGRAM));
	if (wish & WISH_OUTSIDE)
		return 0;
	known = steered_of(p, from);
	if (known && !wish && known->wish & WISH_LADDER && p->flow.protocol == IP_TCP)
		return way_of_ladder(p, known);
	/* A flow that only a rule had sent into the tunnel is over, and so is the rule. */
	if (known && !wish && !known->wish && p->flow.protocol == IP_TCP && (p->tcp_flags & (TCP_SYN | TCP_ACK)) == TCP_SYN) {
		bpf_map_delete_elem(&steered_flows, &p->flow);
		return 0;
	}
	return wish || known ? STEERED | wish : 0;
}

/* Takes a flow out of the tunnel. */
static __noinline int forget_steered(const struct packet *p)
{
	struct flow_key key = p->flow;

	return bpf_map_delete_elem(&steered_flows, &key);
}

/* Writes down who opens a flow, for user space, which then knows whose tunnel takes its packets. */
static __noinline void note_steered(const struct packet *p, __u32 subject, __u32 wish)
{
	struct steered entry = { .subject = subject, .wish = wish }, *known = bpf_map_lookup_elem(&steered_flows, &p->flow);

	if (known && known->subject == subject) {
		if (known->wish != wish)
			known->wish = wish;
		return;
	}
	bpf_map_update_elem(&steered_flows, &p->flow, &entry, BPF_ANY);
}
