/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The hooks of a gateway, beside admission: they note the flows that the inside opens, so that their answers come in.
 *
 * Only what comes in from an inside interface, or from this host itself, may note anything: whoever sends from outside
 * can't, whatever source address they write and wherever it is routed. */
#include "skb.h"
#include "clock.h"
#include "counters.h"
#include "outbound.h"

/* A flow as its answers show it: whom the inside calls is the client. */
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

/* What the inside's packet means to a flow that it opened before. */
static __always_inline void note_again(struct flow *flow, const struct packet *p)
{
	/* Where it resets a connection, nothing may ever come back. */
	if (p->flow.protocol == IP_TCP)
		flow->stage = p->tcp_flags & TCP_RST ? STAGE_RESET : opens(p) ? STAGE_OPENING : flow->stage;
	flow->seen = p->time;
}

/* Whether a client opened the flow, and the inside has answered it without a pause ever since it ended. */
static __always_inline int answers_ended(const struct flow_key *key, __u32 time)
{
	__u32 *last = bpf_map_lookup_elem(&ended, key);

	if (!last || (__s32)(time - *last) > (__s32)config.udp_idle)
		return 0;
	*last = time;
	return 1;
}

__noinline int note_opened(const struct flow_key *answers, const struct packet *p)
{
	struct flow fresh = { .origin = FROM_INSIDE };
	__u32 zero = 0, *used = bpf_map_lookup_elem(&outbound, &zero);
	struct flow_key key;

	if (!answers || !p || !used)
		return 0;
	key = *answers;
	fresh.since = p->time;
	fresh.seen = p->time;
	fresh.stage = p->flow.protocol == IP_TCP ? STAGE_OPENING : STAGE_OPEN;
	if (__sync_fetch_and_add(used, 1) < config.max_outbound && !put_flow(&key, &fresh, BPF_NOEXIST)) {
		count(OUTBOUND);
		return 0;
	}
	__sync_fetch_and_sub(used, 1);
	/* Another core may have noted the same flow; else there is no room, and no answer comes in. */
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
	/* What is not protected gets its answers anyway; who else it could be that writes here, only the outside. */
	if (!services || !covers(services, key.protocol, is_icmp(p, ICMP_ECHO, ICMPV6_ECHO) ? 0 : bpf_ntohs(key.server_port)))
		return 0;
	p->time = now();
	flow = find_flow(&key);
	if (flow) {
		if (flow->origin == FROM_INSIDE)
			note_again(flow, p);
		return 0;
	}
	if (p->flow.protocol == IP_TCP ? !opens(p) : answers_ended(&key, p->time))
		return 0;
	return note_opened(&key, p);
}

/* Most packets of connections tell nothing: they are passed over with a glance. */
static __always_inline int tells_nothing(context *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct ipv4 *ip = data + ETHER_LEN;
	struct ipv6 *ip6 = data + ETHER_LEN;
	struct tcp *tcp;

	if (data + ETHER_LEN + IPV6_LEN + sizeof(*tcp) > end)
		return 0;
	if (*(__be16 *)(data + 12) == bpf_htons(0x0800)) {
		if (ip->version_ihl != 0x45 || ip->protocol != IP_TCP || ip->fragment & bpf_htons(0x3fff))
			return 0;
		tcp = (void *)(ip + 1);
	} else if (*(__be16 *)(data + 12) == bpf_htons(0x86dd) && ip6->next == IP_TCP) {
		tcp = (void *)(ip6 + 1);
	} else {
		return 0;
	}
	return !(tcp->flags & (TCP_SYN | TCP_RST));
}

static __always_inline int look(context *ctx)
{
	struct packet p;

	linearize(ctx, ETHER_LEN + IPV6_LEN + sizeof(struct tcp));
	if (tells_nothing(ctx))
		return TC_ACT_UNSPEC;
	__builtin_memset(&p, 0, sizeof(p));
	if (parse(ctx, &p, ETHER_LEN, 0) != FORM_WHOLE)
		return TC_ACT_UNSPEC;
	if (is_icmp(&p, ICMP_ECHO, ICMPV6_ECHO))
		load(ctx, p.transport + ECHO_ID_AT, &p.flow.client_port, sizeof(p.flow.client_port));
	else if (p.flow.protocol != IP_TCP && p.flow.protocol != IP_UDP)
		return TC_ACT_UNSPEC;
	note(ctx, &p);
	return TC_ACT_UNSPEC;
}

/* At tc ingress of an inside interface. */
SEC("tc")
int outward(struct __sk_buff *ctx)
{
	return look(ctx);
}

/* At tc egress of an outside interface: what this host itself sends. What it forwards was seen where it came in. */
SEC("tc")
int own(struct __sk_buff *ctx)
{
	return ctx->ingress_ifindex ? TC_ACT_UNSPEC : look(ctx);
}

char LICENSE[] SEC("license") = "GPL";
