/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* A gateway's hooks in addition to admission. They record the flows that the inside opens, so that their answers get
 * in, and map admitted clients to inside addresses if there is a pool.
 *
 * Only packets that enter through an inside interface, or that come from this host itself, may record anything: an
 * outside sender can't, whatever source address it forges and however its packets are routed. */
#include "skb.h"
#include "clock.h"
#include "counters.h"
#include "nat.h"
#include "outbound.h"
#include "samples.h"
#include "received.h"

/* Returns the flow from the answers' point of view: the outside peer is the client. */
static __always_inline struct flow_key flow_of_answers(const struct packet *p)
{
	struct flow_key key = p->flow;

	__builtin_memcpy(key.client, p->flow.server, 16);
	__builtin_memcpy(key.server, p->flow.client, 16);
	key.client_port = p->flow.server_port;
	key.server_port = p->flow.client_port;
	return key;
}

static __always_inline int opens(const struct packet *p)
{
	return (p->tcp_flags & (TCP_SYN | TCP_ACK)) == TCP_SYN;
}

/* Records that the inside opens a connection: the peer must acknowledge this number to prove that it answers, and its
 * SYN shows its own. */
static __always_inline void begin_outbound(struct flow *flow, const struct packet *p)
{
	set_stage(flow, STAGE_OPENING);
	flow->answer = p->sequence + 1;
	flow->next = 0;
}

/* Updates a flow that the inside opened, on another of its packets. */
static __always_inline void note_again(struct flow *flow, const struct packet *p)
{
	if (p->flow.protocol == IP_TCP && opens(p))
		begin_outbound(flow, p);
	else if (p->flow.protocol == IP_TCP && p->tcp_flags & TCP_RST)
		set_stage(flow, STAGE_RESET); /* an answer may never come */
	flow->seen = p->time;
}

/* Records the server's answer to a client's SYN: the client must know this number to open the connection. */
static __always_inline void note_answer(struct flow *flow, const struct packet *p)
{
	__u8 both = TCP_SYN | TCP_ACK;

	if (p->flow.protocol == IP_TCP && flow->stage == STAGE_OPENING && (p->tcp_flags & both) == both)
		flow->answer = p->sequence + 1;
}

/* Records the same for a client whose segments come as datagrams (wire.md §4.8). If the client has sent its SYN in both ways, the
 * answer is to both. */
__noinline int note_answer_in_datagrams(const struct flow_key *answers, const struct packet *p)
{
	struct flow_key key;
	struct flow *flow;

	if (!answers || !p)
		return 0;
	key = *answers;
	key.tunnel = SIDE_DATAGRAMS;
	flow = find_flow(&key);
	if (flow && flow->origin == BY_TOKEN)
		note_answer(flow, p);
	return 0;
}

__noinline int note_opened(const struct flow_key *answers, const struct packet *p)
{
	struct flow new_flow = { .origin = FROM_INSIDE };
	__u32 zero = 0, *used = bpf_map_lookup_elem(&outbound, &zero);
	struct flow_key key;

	if (!answers || !p || !used)
		return 0;
	key = *answers;
	new_flow.since = p->time;
	new_flow.seen = p->time;
	if (p->flow.protocol == IP_TCP)
		begin_outbound(&new_flow, p);
	if (!take_share(&key)) {
		count(OUTBOUND_FULL);
		return 0;
	}
	if (__sync_fetch_and_add(used, 1) < config.max_outbound && !put_flow(&key, &new_flow, BPF_NOEXIST)) {
		count(OUTBOUND);
		if (config.advertises_flows)
			advertise_flow(&key);
		return 0;
	}
	__sync_fetch_and_sub(used, 1);
	give_share_back(&key);
	/* Another core may have recorded the same flow; otherwise the table is full, and no answer gets in. */
	if (!find_flow(&key))
		count(OUTBOUND_FULL);
	return 0;
}

static __always_inline int note(context *ctx, struct packet *p)
{
	const struct services *services;
	struct flow_key key;
	struct flow *flow;

	if (p->fragment == FRAGMENT_LATER || p->flow.client_port == 0)
		return 0;
	key = flow_of_answers(p);
	services = services_of(key.family, key.server);
	/* Answers to unprotected services get in without a flow. */
	if (!services || !covers(services, key.protocol, is_icmp(p, ICMP_ECHO, ICMPV6_ECHO) ? 0 : bpf_ntohs(key.server_port)))
		return 0;
	p->time = now();
	if (config.carriers & CARRIER_TCP_IN_UDP && key.protocol == IP_TCP)
		note_answer_in_datagrams(&key, p);
	flow = find_flow(&key);
	if (flow) {
		if (flow->origin == FROM_INSIDE)
			note_again(flow, p);
		else if (only_ended(flow, p->time))
			flow->seen = p->time;
		else
			note_answer(flow, p);
		return 0;
	}
	if (p->flow.protocol == IP_TCP && !opens(p))
		return 0;
	return note_opened(&key, p);
}

/* Fast path: reports whether this is one of the TCP packets, the majority, that change nothing about a flow. */
static __always_inline int changes_nothing(context *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct ipv4 *ip = data + ETHER_LEN;
	struct ipv6 *ip6 = data + ETHER_LEN;
	struct tcp *tcp;

	if (data + ETHER_LEN + IPV4_LEN + sizeof(*tcp) > end)
		return 0;
	if (*(__be16 *)(data + 12) == bpf_htons(0x0800)) {
		if (ip->version_ihl != 0x45 || ip->protocol != IP_TCP || ip->fragment & bpf_htons(0x3fff))
			return 0;
		tcp = (void *)(ip + 1);
	} else if (*(__be16 *)(data + 12) == bpf_htons(0x86dd) && (void *)(ip6 + 1) + sizeof(*tcp) <= end &&
		   ip6->next == IP_TCP) {
		tcp = (void *)(ip6 + 1);
	} else {
		return 0;
	}
	return !(tcp->flags & (TCP_SYN | TCP_RST));
}

/* Records the flow that the inside's packet opens, if any. */
static __always_inline void look(context *ctx, struct packet *p)
{
	if (is_icmp(p, ICMP_ECHO, ICMPV6_ECHO))
		load(ctx, p->transport + ECHO_ID_AT, &p->flow.client_port, sizeof(p->flow.client_port));
	else if (p->flow.protocol != IP_TCP && p->flow.protocol != IP_UDP)
		return;
	note(ctx, p);
}

static __always_inline int is_member(const struct flow_key *key)
{
	struct member member = { .family = key->family };

	__builtin_memcpy(&member.address, key->server, 16);
	return !!bpf_map_lookup_elem(&members, &member);
}

static __always_inline struct flow_key piece_key(const struct packet *p)
{
	struct flow_key key = p->flow;

	key.client_port = (__be16)(p->fragment_id >> 16);
	key.server_port = (__be16)p->fragment_id;
	return key;
}

/* Rewrites a packet. For a first fragment, also records how the later ones are to be rewritten. */
__noinline int translate(context *ctx, const struct packet *p, const struct rewriting *w)
{
	struct flow_key piece;
	struct address to;

	if (!p || !w)
		return -1;
	if (p->fragment == FRAGMENT_FIRST) {
		piece = piece_key(p);
		to = w->to;
		bpf_map_update_elem(&pieces, &piece, &to, BPF_ANY);
	}
	return rewrite(ctx, p, w);
}

/* Rewrites a later fragment as its first one was. Returns -1 if the first one was not rewritten. */
__noinline int translate_piece(context *ctx, const struct packet *p, __u32 end)
{
	struct rewriting w = { .end = end };
	struct flow_key piece;
	struct address *to;

	if (!p)
		return -1;
	piece = piece_key(p);
	to = bpf_map_lookup_elem(&pieces, &piece);
	if (!to)
		return -1;
	__builtin_memcpy(&w.from, end == SOURCE_END ? p->flow.client : p->flow.server, 16);
	w.to = *to;
	return rewrite(ctx, p, &w);
}

/* Reads the packet that an ICMP error quotes as a flow: the sender of the quoted packet is its server. Returns the
 * offset of the ports, or 0. */
__noinline __u32 quoted_flow(context *ctx, const struct packet *p, struct flow_key *quoted)
{
	__be16 ports[2];
	int transport_at;
	__u32 at;

	if (!p || !quoted)
		return 0;
	if (p->flow.family == 4) {
		struct ipv4 ip;

		if (p->payload + sizeof(ip) > p->end || load(ctx, p->payload, &ip, sizeof(ip)) ||
		    (ip.version_ihl & 15) < 5 || ip.fragment & bpf_htons(0x1fff))
			return 0;
		__builtin_memcpy(quoted->server, ip.source, 4);
		__builtin_memcpy(quoted->client, ip.destination, 4);
		quoted->protocol = ip.protocol;
		at = p->payload + (ip.version_ihl & 15) * 4;
	} else {
		struct ipv6 ip;

		if (p->payload + sizeof(ip) > p->end || load(ctx, p->payload, &ip, sizeof(ip)))
			return 0;
		__builtin_memcpy(quoted->server, ip.source, 16);
		__builtin_memcpy(quoted->client, ip.destination, 16);
		quoted->protocol = ip.next;
		transport_at = parse_quoted_extensions(ctx, p, quoted);
		if (transport_at < 0)
			return 0;
		at = transport_at;
	}
	quoted->family = p->flow.family;
	if ((quoted->protocol != IP_TCP && quoted->protocol != IP_UDP) || at + 4 > p->end || load(ctx, at, ports, 4))
		return 0;
	quoted->server_port = ports[0];
	quoted->client_port = ports[1];
	return at;
}

/* Fills in the rewriting of the client's end of a flow to its inside address. Returns 0, or -1 if the flow has none. */
static __always_inline int to_inside(struct rewriting *w, const struct flow_key *key, const struct flow *flow)
{
	__u32 index = flow->inside - 1;
	struct pool_slot *slot = flow->inside ? bpf_map_lookup_elem(&pool, &index) : 0;

	if (!slot)
		return -1;
	__builtin_memcpy(&w->from, key->client, 16);
	w->to = slot->address;
	w->old_port = key->client_port;
	w->port = flow->inside_port;
	return 0;
}

/* Fills in the rewriting of an inside address back to its client. Returns 0 if there is such a client and its flow is
 * live. `answer` is the packet that is rewritten, or 0 if it is quoted by an ICMP error. */
__noinline int to_outside(struct rewriting *w, const struct flow_key *inside, const struct packet *answer)
{
	struct way_back *back;
	struct flow_key key;
	struct flow *flow;

	if (!w || !inside)
		return -1;
	key = *inside;
	back = bpf_map_lookup_elem(&ways_back, &key);
	if (!back)
		return -1;
	__builtin_memcpy(&w->from, key.client, 16);
	w->old_port = key.client_port;
	w->to = back->client;
	w->port = back->client_port;
	__builtin_memcpy(key.client, &back->client, 16);
	key.client_port = back->client_port;
	flow = find_flow(&key);
	if (!flow || flow->inside != back->slot + 1 || flow->inside_port != w->old_port)
		return -1;
	if (answer)
		note_answer(flow, answer);
	return 0;
}

__noinline int error_inward(context *ctx, const struct packet *p)
{
	struct rewriting w = { .end = SOURCE_END };
	struct flow_key quoted = {};
	__u32 ports_at = quoted_flow(ctx, p, &quoted);
	struct flow *flow = ports_at ? find_flow(&quoted) : 0;

	return flow && !to_inside(&w, &quoted, flow) ? rewrite_error(ctx, p, &w, ports_at) : 0;
}

__noinline int error_outward(context *ctx, const struct packet *p)
{
	struct rewriting w = { .end = DESTINATION_END };
	struct flow_key quoted = {}, turned;
	__u32 ports_at = quoted_flow(ctx, p, &quoted);

	if (!ports_at)
		return -1;
	/* The client sent the quoted packet. */
	turned = quoted;
	__builtin_memcpy(turned.client, quoted.server, 16);
	__builtin_memcpy(turned.server, quoted.client, 16);
	turned.client_port = quoted.server_port;
	turned.server_port = quoted.client_port;
	return to_outside(&w, &turned, 0) ? -1 : rewrite_error(ctx, p, &w, ports_at);
}

/* Passes a packet from the inside to an address of the pool on to the client that has the address, or drops it. */
static __always_inline int to_pool(context *ctx, const struct packet *p)
{
	struct rewriting w = { .end = DESTINATION_END };
	struct flow_key key = flow_of_answers(p);
	int failed;

	if (icmp_error(p))
		failed = error_outward(ctx, p);
	else if (p->fragment == FRAGMENT_LATER)
		failed = translate_piece(ctx, p, DESTINATION_END);
	else
		failed = to_outside(&w, &key, p) || translate(ctx, p, &w);
	if (!failed)
		return TC_ACT_UNSPEC;
	count(UNCLAIMED);
	return TC_ACT_SHOT;
}

/* Runs at tc ingress of an inside interface. */
SEC("tc")
int outward(struct __sk_buff *ctx)
{
	struct packet p;

	bring_headers_near(ctx);
	if (!has_pool() && changes_nothing(ctx))
		return TC_ACT_UNSPEC;
	__builtin_memset(&p, 0, sizeof(p));
	if (parse(ctx, &p, ETHER_LEN, 0) != FORM_WHOLE)
		return TC_ACT_UNSPEC;
	if (has_pool() && is_member(&p.flow))
		return to_pool(ctx, &p);
	look(ctx, &p);
	return TC_ACT_UNSPEC;
}

/* Runs at tc egress of an outside interface, for packets that this host itself sends. Forwarded packets were seen at
 * ingress. */
SEC("tc")
int own(struct __sk_buff *ctx)
{
	struct packet p;

	if (ctx->ingress_ifindex)
		return TC_ACT_UNSPEC;
	bring_headers_near(ctx);
	if (changes_nothing(ctx))
		return TC_ACT_UNSPEC;
	__builtin_memset(&p, 0, sizeof(p));
	if (parse(ctx, &p, ETHER_LEN, 0) == FORM_WHOLE)
		look(ctx, &p);
	return TC_ACT_UNSPEC;
}

/* Rewrites an admitted packet for the inside. Returns CONTINUE, or the reason to drop it. */
static __always_inline int come_in(context *ctx, struct packet *p)
{
	struct rewriting w = { .end = SOURCE_END };
	struct flow_key key = p->flow;
	struct flow *flow;
	int outcome;

	if (icmp_error(p))
		return error_inward(ctx, p) ? DROP_NO_ADDRESS : CONTINUE;
	if (p->fragment == FRAGMENT_LATER) {
		translate_piece(ctx, p, SOURCE_END);
		return CONTINUE;
	}
	flow = find_flow(&key);
	if (!flow || flow->origin != BY_TOKEN)
		return CONTINUE;
	p->handle = flow->handle;
	if (!flow->inside) {
		outcome = bind_flow(p, flow);
		if (outcome != CONTINUE)
			return outcome;
	}
	return to_inside(&w, &key, flow) || translate(ctx, p, &w) ? DROP_NO_ADDRESS : CONTINUE;
}

/* Reports whether a packet uses an address of the pool without belonging to a flow that a token opened. No outside host
 * has such an address: to the inside, an attacker who forged one would look like the person who has it. */
__noinline int poses(const struct packet *p)
{
	struct flow_key key, turned;
	struct flow *flow;

	if (!p)
		return 0;
	key = p->flow;
	turned = key;
	__builtin_memcpy(turned.server, key.client, 16);
	if (!is_member(&key) && !is_member(&turned))
		return 0;
	flow = find_flow(&key);
	return !flow || flow->origin != BY_TOKEN;
}

/* Runs at tc ingress of an outside interface, after admission. */
SEC("tc")
int inward(struct __sk_buff *ctx)
{
	struct packet p;
	int outcome, form;

	bring_headers_near(ctx);
	__builtin_memset(&p, 0, sizeof(p));
	form = parse(ctx, &p, ETHER_LEN, 0);
	if (has_pool() && poses(&p)) {
		count(UNCLAIMED);
		return TC_ACT_SHOT;
	}
	if (form != FORM_WHOLE)
		return TC_ACT_UNSPEC;
	p.time = now();
	outcome = come_in(ctx, &p);
	if (outcome == CONTINUE)
		return TC_ACT_UNSPEC;
	count(outcome);
	if (has_sample_left(p.time))
		sample(ctx, &p, outcome);
	return TC_ACT_SHOT;
}

char LICENSE[] SEC("license") = "GPL";
