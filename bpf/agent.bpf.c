/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The agent's hooks: tc egress puts tokens into first packets, tc ingress notices which UDP flows were answered. A third program
 * turns the segments of some connections into datagrams.
 *
 * They touch only TCP SYNs and UDP datagrams to protected destinations from sockets whose owner has logged in (wire.md
 * §4.1, §4.2). Without a grant, the packet goes to user space, which sends it again once the grant has arrived. */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "layout.h"
#include "skb.h"
#include "parse.h"
#include "mac.h"
#include "checksum.h"
#include "ls_token.h"
#include "key_transfer.h"
#include "handed.h"
#include "ladder.h"
#include "steer.h"
#include "datagrams.h"
#include "sender.h"
#include "append.h"
#include "as_datagram.h"
#include "conversations.h"

/* Bytes of a token (§3), which follows the magic number in a block. */
enum { TOKEN_LEN = TAIL_LEN - 4 };

const volatile struct agent_config config SEC(".rodata.config") = {};

enum { LOOPBACK = 1 };

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, AGENT_COUNTERS);
	__type(key, __u32);
	__type(value, __u64);
} counters SEC(".maps");

/* Offset from the boot clock to Unix time by this machine's clock, in nanoseconds. Each grant holds the difference from
 * its authority's clock. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} clock SEC(".maps");

/* Next nonce. Values never repeat within a second, across all senders on this machine (wire.md §3.8). */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} nonces SEC(".maps");

/* Number of nonces of a pair that were used, which is also the next one, keyed by the pair's handle (wire.md §5.7). */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, __u64);
	__type(value, __u32);
} ls_nonces SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct grant_slot);
	__type(value, struct grant_entry);
} grants SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct work);
} works SEC(".maps");

static __always_inline int leave(__u32 counter)
{
	__u64 *count = bpf_map_lookup_elem(&counters, &counter);

	if (count)
		*count += 1;
	return TC_ACT_UNSPEC;
}

static __always_inline int refuse(__u32 counter)
{
	leave(counter);
	return TC_ACT_SHOT;
}

static __always_inline __u32 now(void)
{
	__u32 zero = 0;
	__u64 *offset = bpf_map_lookup_elem(&clock, &zero);

	return (__u32)((bpf_ktime_get_boot_ns() + (offset ? *offset : 0)) / 1000000000);
}

static __noinline int queue(context *ctx, const struct grant_slot *slot, __u32 way)
{
	struct queued_header header = {
		.slot = *slot,
		.interface = ctx->ifindex,
		.length = ctx->len,
		.segment = ctx->gso_segs > 1 ? ctx->gso_size : 0,
		.wish = way & ~STEERED,
	};
	__u64 length = ctx->len;

	/* With hardware VLAN offload, the tag is in the metadata, outside the packet's bytes. */
	if (ctx->vlan_present) {
		header.vlan_proto = ctx->vlan_proto;
		header.vlan_tci = ctx->vlan_tci;
	}
	if (length > QUEUED_MAX)
		length = QUEUED_MAX;
	if (bpf_perf_event_output(ctx, &queued, BPF_F_CURRENT_CPU | length << 32, &header, sizeof(header)))
		return refuse(AGENT_QUEUE_FAILED);
	leave(AGENT_QUEUED);
	if (!config.tcx)
		return TC_ACT_STOLEN;
	/* TCX does not support TC_ACT_STOLEN: the packet is redirected to the loopback interface, which drops packets
	 * for other hosts. */
	return config.link_header ? bpf_redirect(LOOPBACK, 0) : TC_ACT_SHOT;
}

static __noinline int make_block(const struct packet *p, const struct grant_entry *grant, struct work *work)
{
	__u64 *message = work->message, *tag = work->tag, service = p->flow.protocol | (__u64)p->flow.server_port << 16;
	__u32 zero = 0, words, *nonce = bpf_map_lookup_elem(&nonces, &zero);
	struct block *block = &work->block;

	if (!nonce)
		return -1;
	block->magic = MAGIC;
	block->header[0] = (__u32)grant->header[0];
	block->header[1] = (__u32)(grant->header[0] >> 32);
	block->header[2] = (__u32)grant->header[1];
	block->header[3] = (__u32)(grant->header[1] >> 32);
	block->time = bpf_htonl(now() + grant->skew);
	block->nonce = bpf_htonl(__sync_fetch_and_add(nonce, 1));
	message[0] = block->time | (__u64)block->nonce << 32;
	if (p->flow.family == 4) {
		message[1] = *(__u32 *)p->flow.server | service << 32;
		words = 2;
	} else {
		__builtin_memcpy(message + 1, p->flow.server, 16);
		message[3] = service;
		words = 4;
	}
	mac(grant->suite, grant->key, message, words, 0, tag);
	block->tag[0] = (__u32)tag[0];
	block->tag[1] = (__u32)(tag[0] >> 32);
	block->tag[2] = (__u32)tag[1];
	return 0;
}

/* Returns the handle of the entry's pair. */
static __always_inline __u64 pair_of(const struct grant_entry *grant)
{
	return bpf_be64_to_cpu(grant->header[0]) >> 8;
}

/* Reports whether the entry's pair has no nonce left: the packet then waits for the pair's successor (wire.md §5.5). */
static __noinline int is_used_up(const struct grant_entry *grant)
{
	__u64 handle = pair_of(grant);
	__u32 *used = bpf_map_lookup_elem(&ls_nonces, &handle);

	return used && *used >= LS_NONCES;
}

/* Makes the token of a pair, at its place in the shim. */
static __noinline int make_ls_token(struct grant_entry *grant, struct work *work)
{
	__u64 handle = pair_of(grant);
	__u32 zero = 0, none = 0, nonce2, *used = bpf_map_lookup_elem(&ls_nonces, &handle);
	struct sha224 *sha = bpf_map_lookup_elem(&ls_hashes, &zero);
	struct ls_token *token = &work->wrapping.ls;
	__u32 *tag = (__u32 *)token->tag;

	if (!used) {
		bpf_map_update_elem(&ls_nonces, &handle, &none, BPF_NOEXIST);
		used = bpf_map_lookup_elem(&ls_nonces, &handle);
	}
	if (!used || !sha)
		return -1;
	nonce2 = __sync_fetch_and_add(used, 1);
	if (nonce2 >= LS_NONCES)
		return -1;
	grant->spent = nonce2 + 1;
	__builtin_memcpy(token, grant->header, LS_PAIR_LEN);
	token->nonce2[0] = nonce2 >> 8;
	token->nonce2[1] = nonce2;
	__builtin_memcpy(sha->hash, grant->key, sizeof(sha->hash));
	hash_tag(sha, grant->header[0] & 0xffffffffff, nonce2);
#pragma unroll
	for (int i = 0; i < SHA224_LEN / 4; i++)
		tag[i] = sha->hash_words[i];
	work->wrapping.kind = SHIM_LS_TOKEN;
	return 0;
}

/* Turns the copy of a datagram into one that holds the block alone (wire.md §4.2) or, with a shim, has no payload
 * (§4.3.3). */
static __noinline int go_ahead(context *ctx, const struct packet *p, struct work *work)
{
	const struct block *block = &work->block;
	__u32 length = work->carrier == CARRIER_SHIM ? 0 : TAIL_LEN;
	__u32 end = p->payload + length, field = p->transport + 6;
	struct udp udp;
	__u16 before, probed;

	if (load(ctx, p->transport, &udp, sizeof(udp)))
		return -1;
	/* A probe: if the network card completes the checksum, this call, which reports a change outside the
	 * pseudo-header, leaves the field as it is. */
	before = udp.checksum;
	if (bpf_l4_csum_replace(ctx, field, 0, 1, 0) || load(ctx, field, &probed, 2))
		return -1;
	if (bpf_skb_change_tail(ctx, end, 0) || (length && bpf_skb_store_bytes(ctx, p->payload, block, TAIL_LEN, 0)))
		return -1;
	udp.len = bpf_htons(sizeof(udp) + length);
	if (before) {
		__u32 sum = pseudo_header(p, sizeof(udp) + length);

		if (probed != before) {
			sum += udp.source + udp.destination + udp.len;
			if (length)
				sum += fold(bpf_csum_diff(0, 0, (__u32 *)block, TAIL_LEN, 0));
			udp.checksum = ~fold(sum);
			if (!udp.checksum)
				udp.checksum = 0xffff;
		} else {
			udp.checksum = fold(sum);
		}
	}
	if (bpf_skb_store_bytes(ctx, p->transport, &udp, sizeof(udp), 0))
		return -1;
	if (p->fragment == FRAGMENT_FIRST && p->flow.family == 4) {
		__be16 old, whole;

		if (load(ctx, p->network + 6, &old, 2))
			return -1;
		whole = old & bpf_htons(0xc000);
		if (bpf_l3_csum_replace(ctx, p->network + 10, old, whole, 2) ||
		    bpf_skb_store_bytes(ctx, p->network + 6, &whole, 2, 0))
			return -1;
	} else if (p->fragment == FRAGMENT_FIRST) {
		__be16 whole = 0;

		if (bpf_skb_store_bytes(ctx, p->fragment_at + 2, &whole, 2, 0))
			return -1;
	}
	if (set_ip_length(ctx, p, end))
		return -1;
	return length ? 0 : wrap(ctx, p, &work->wrapping, end);
}

/* Reports whether the packet already carries a block: VLANs, bonds and bridges pass a packet to the program again on
 * the interface below, and a process may send a token in its stream. */
static __always_inline int has_block(context *ctx, const struct packet *p)
{
	__u32 magic = 0;

	if (p->end - p->payload < TAIL_LEN || load(ctx, p->end - TAIL_LEN, &magic, 4))
		return 0;
	if (magic == MAGIC || p->flow.protocol != IP_TCP)
		return magic == MAGIC;
	return magic == TCP_IN_UDP_MAGIC ||
	       ((magic == STREAM_MAGIC || magic == FAST_OPEN_MAGIC) && p->payload + TAIL_LEN == p->end);
}

static __always_inline int has_no_room(const context *ctx, const struct packet *p, __u32 more)
{
	return ctx->gso_segs > 1 || p->fragment == FRAGMENT_FIRST || p->payload == p->end || !p->fills_ip ||
	       p->end - p->network + more > SAFE_MTU;
}

/* Makes a grant's token and stores it where its carrier picks it up. */
static __always_inline int make_token(const struct packet *p, struct grant_entry *grant, struct work *work)
{
	if (grant->suite == SUITE_SHA224)
		return make_ls_token(grant, work);
	if (make_block(p, grant, work))
		return -1;
	if (grant->carrier == CARRIER_SHIM) {
		work->wrapping.kind = SHIM_TOKEN;
		__builtin_memcpy(work->wrapping.data, work->block.header, TOKEN_LEN);
		work->wrapping.data[TOKEN_LEN] = 0;
	}
	return 0;
}

/* `by`: the carrier that the ladder chose, if it did. */
static __noinline int send_token(context *ctx, const struct packet *p, struct grant_entry *grant, __u32 by)
{
	__u32 zero = 0;
	struct work *work = bpf_map_lookup_elem(&works, &zero);
	int shim = grant->carrier == CARRIER_SHIM;

	/* The kernel does not find the IP header behind a VLAN tag in the frame. */
	if (shim && (p->flow.family != 4 || p->network != config.link_header || p->transport != p->network + IPV4_LEN))
		return refuse(AGENT_FAILED);
	if (!work || make_token(p, grant, work) || (by & BY_DATAGRAM && shim))
		return refuse(AGENT_FAILED);
	work->carrier = grant->carrier;
	if (by & BY_DATAGRAM)
		work->block.magic = TCP_IN_UDP_MAGIC;
	/* A SYN without room goes by `tail`. */
	if (by & BY_FAST_OPEN && !shim && has_option_room(p))
		return append_with_option(ctx, p, work) ? refuse(AGENT_FAILED) : leave(AGENT_TOKENS);
	if (p->flow.protocol == IP_TCP || !has_no_room(ctx, p, shim ? SHIM_LEN : TAIL_LEN)) {
		if (shim)
			return wrap(ctx, p, &work->wrapping, p->end) ? refuse(AGENT_FAILED) : leave(AGENT_TOKENS);
		return append(ctx, p, &work->block) ? refuse(AGENT_FAILED) : leave(AGENT_TOKENS);
	}
	work->ahead = 1;
	bpf_clone_redirect(ctx, ctx->ifindex, 0);
	work->ahead = 0;
	return leave(AGENT_ALONE);
}

/* Fast path for most traffic: 1 if the packet can't be a first packet. */
static __always_inline int is_other(context *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct ipv4 *ip;
	struct prefix4 key = { .length = 32 };

	if (config.link_header != ETHER_LEN || ctx->protocol != bpf_htons(0x0800))
		return 0;
	ip = data + ETHER_LEN;
	if (data + ETHER_LEN + IPV4_LEN + sizeof(struct tcp) > end || ip->version_ihl != 0x45)
		return 0;
	if (ip->protocol == IP_TCP && !(ip->fragment & bpf_htons(0x1fff))) {
		struct tcp *tcp = data + ETHER_LEN + IPV4_LEN;

		if ((tcp->flags & (TCP_SYN | TCP_ACK)) != TCP_SYN)
			return 1;
		if (transfers_keys(*(__be32 *)ip->destination, tcp->destination))
			return 0;
	}
	__builtin_memcpy(key.address, ip->destination, 4);
	return is_open4(*(__be32 *)ip->destination) || !bpf_map_lookup_elem(&protected4, &key);
}

/* `chosen`: what way_of said; the ladder may choose otherwise. */
static __always_inline int insert_token(struct __sk_buff *skb, __u32 *chosen)
{
	__u32 way = *chosen;
	struct packet p = {};
	struct grant_slot slot = {};
	struct conversation *conversation = 0;
	struct grant_entry *grant;
	struct services *services;
	__u32 zero = 0, time, by = 0;
	struct work *work;

	if (is_other(skb))
		return leave(AGENT_OTHER);
	if (parse(skb, &p, config.link_header, skb->protocol) != FORM_WHOLE || p.fragment == FRAGMENT_LATER)
		return leave(AGENT_OTHER);
	if (p.flow.protocol != IP_UDP &&
	    (p.flow.protocol != IP_TCP || (p.tcp_flags & (TCP_SYN | TCP_ACK)) != TCP_SYN || p.fragment))
		return leave(AGENT_OTHER);
	if (asks_for_key(&p)) {
		if (has_asked(&p.flow))
			return leave(AGENT_OTHER);
		return offer(skb, &p) ? refuse(AGENT_FAILED) : leave(AGENT_SUPPORT);
	}
	services = services_of(p.flow.family, p.flow.server);
	if (!services || !covers(services, p.flow.protocol, bpf_ntohs(p.flow.server_port)))
		return leave(AGENT_OTHER);
	work = bpf_map_lookup_elem(&works, &zero);
	if (work && work->ahead) {
		work->ahead = 0;
		return go_ahead(skb, &p, work) ? refuse(AGENT_FAILED) : leave(AGENT_TOKENS);
	}
	slot.subject = subject_of(skb, config.match_cgroups);
	time = now();
	if (p.flow.protocol == IP_UDP)
		conversation = bpf_map_lookup_elem(&conversations, &p.flow);
	/* Checked before has_block: on an admitted flow, the verifier also passes a payload that only looks like a
	 * block. */
	if (conversation && is_rider(conversation, slot.subject, time))
		return refuse(AGENT_RIDER);
	if (has_block(skb, &p))
		return leave(AGENT_OTHER);
	if (!slot.subject)
		return leave(AGENT_PLAIN);
	slot.port = p.flow.server_port;
	slot.protocol = p.flow.protocol;
	slot.family = p.flow.family;
	__builtin_memcpy(slot.address, p.flow.server, 16);
	grant = bpf_map_lookup_elem(&grants, &slot);
	if (!grant || grant->until <= time)
		return queue(skb, &slot, way);
	if (grant->plain)
		return leave(AGENT_PLAIN);
	/* A second guard, beside the table of sealed services. */
	if (!way && grant->suite != SUITE_SHA224 && ((__u8 *)grant->header)[1] & GRANT_SEALED)
		return refuse(AGENT_NO_TUNNEL);
	if (grant->suite == SUITE_SHA224 && is_used_up(grant))
		return queue(skb, &slot, way);
	/* Only now: nobody without a grant, and no rider, takes the place of others' flows. */
	if (!way && p.flow.protocol == IP_TCP) {
		way = climb(skb, &p, &slot);
		if (way & CLIMBED)
			leave(AGENT_WATCHED);
		by = way & (BY_FAST_OPEN | BY_DATAGRAM);
		way &= ~(CLIMBED | BY_FAST_OPEN | BY_DATAGRAM);
		*chosen = way | (by & BY_DATAGRAM);
	}
	if (by & BY_DATAGRAM) {
		if (has_conversation(&p, time))
			return refuse(AGENT_RIDER);
		if (begin_in_datagrams(&p, slot.subject, skb->ifindex, time))
			return refuse(AGENT_FAILED);
	} else if (p.flow.protocol == IP_TCP && helpers()) {
		end_in_datagrams(&p);
	}
	if (way)
		note_steered(&p, slot.subject, way & ~STEERED);
	/* Asked only now: the program that sees the answer records it first, and then looks for the flow. */
	if (way & WISH_LADDER && is_answered_outside(&p, slot.subject)) {
		forget_steered(&p);
		return refuse(AGENT_LATE);
	}
	if (p.flow.protocol == IP_UDP && !udp_needs_token(&p, conversation, slot.subject, time))
		return leave(AGENT_CONVERSATION);
	grant->used = time + grant->skew;
	return send_token(skb, &p, grant, by);
}

SEC("tc")
int insert(struct __sk_buff *skb)
{
	struct helping_devices *devices = config.link_header == ETHER_LEN ? helpers() : 0;
	struct steering *steering = steers();
	__u32 way = 0;
	int verdict;

	if (devices) {
		/* It is a datagram already. */
		if (skb->ingress_ifindex == devices->back)
			return TC_ACT_UNSPEC;
		verdict = departure_of(skb, now());
		if (verdict == MAY_NOT_DEPART)
			return refuse(AGENT_RIDER);
		if (verdict == DEPARTS_AS_DATAGRAM)
			return bpf_redirect(devices->out, 0);
	}
	if (steering) {
		if (is_tunnels_own(skb, steering))
			return TC_ACT_UNSPEC;
		/* Decided before a shim hides the packet's ports. */
		way = way_of(skb, config.link_header, 0, steering->asks);
	}
	verdict = insert_token(skb, &way);
	if (!way || verdict != TC_ACT_UNSPEC)
		return verdict;
	if (way & BY_DATAGRAM) {
		devices = helpers();
		return devices ? bpf_redirect(devices->out, 0) : refuse(AGENT_FAILED);
	}
	steering = steers();
	if (!steering || !steering->device)
		return refuse(AGENT_NO_TUNNEL);
	leave(AGENT_STEERED);
	/* If the device is gone, the kernel drops the packet. */
	return bpf_redirect(steering->device, 0);
}

/* Handles a datagram from a protected service to this machine: the verifier knows its flow. Also handles a packet from
 * an authority that carries a client key. */
SEC("tc")
int notice(struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct conversation *conversation;
	struct packet p = {};
	struct flow_key key = {};
	struct steering *steering = steers();

	if (config.link_header == ETHER_LEN && helpers()) {
		switch (arrive(skb, now())) {
		case ARRIVED_AS_DATAGRAM:
			return TC_ACT_UNSPEC;
		case MAY_NOT_ARRIVE:
			return refuse(AGENT_FAILED);
		}
	}
	/* A packet out of the tunnel is no answer from outside. */
	if (!(steering && skb->ifindex == steering->device) && may_answer(skb, config.link_header))
		note_answer(skb, config.link_header);
	if (steering && skb->ifindex != steering->device && way_of(skb, config.link_header, 1, steering->asks))
		return refuse(AGENT_UNSEALED);
	if (config.link_header == ETHER_LEN && skb->protocol == bpf_htons(0x0800) && data + ETHER_LEN + IPV4_LEN <= end &&
	    ((struct ipv4 *)(data + ETHER_LEN))->protocol != IP_UDP && ((struct ipv4 *)(data + ETHER_LEN))->protocol != IP_IPIP)
		return TC_ACT_UNSPEC;
	if (parse(skb, &p, config.link_header, skb->protocol) != FORM_WHOLE || p.fragment)
		return TC_ACT_UNSPEC;
	if (p.flow.protocol == IP_IPIP && config.link_header == ETHER_LEN && p.network == ETHER_LEN) {
		switch (take_key(skb, &p)) {
		case KEY_NONE:
			return TC_ACT_UNSPEC;
		case KEY_TAKEN:
			return leave(AGENT_KEYS);
		default:
			return refuse(AGENT_FAILED);
		}
	}
	if (p.flow.protocol != IP_UDP)
		return TC_ACT_UNSPEC;
	__builtin_memcpy(key.client, p.flow.server, 16);
	__builtin_memcpy(key.server, p.flow.client, 16);
	key.client_port = p.flow.server_port;
	key.server_port = p.flow.client_port;
	key.protocol = IP_UDP;
	key.family = p.flow.family;
	conversation = bpf_map_lookup_elem(&conversations, &key);
	if (conversation)
		conversation->answered = 1;
	if (config.overhear && p.flow.client_port == bpf_htons(DNS_PORT))
		overhear(skb, &p);
	return TC_ACT_UNSPEC;
}

/* Runs at the end of the helping devices where segments come out: turns them into datagrams. */
SEC("tc")
int reorder(struct __sk_buff *skb)
{
	struct segment s = {};
	struct datagram_flow *known;
	struct flow_key key;

	if (read_segment(skb, &s, IP_TCP))
		return TC_ACT_SHOT;
	key = s.flow;
	known = bpf_map_lookup_elem(&datagram_flows, &key);
	return known ? send_turned(skb, &s, known->interface) : TC_ACT_SHOT;
}

char LICENSE[] SEC("license") = "GPL";
