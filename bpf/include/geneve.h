/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Encapsulates tenants' packets in Geneve under their segments, and decapsulates such packets for tenants (wire.md §8).
 *
 * A super-packet goes in or out in one piece: the kernel or the network card copies the headers when it segments the
 * packet. A proof covers no payload, so it is valid for every segment. */
#pragma once
#include "mss.h"
#include "tenants.h"

const volatile struct svtep_config svtep_config SEC(".rodata.svtep") = {};

/* Segments for tenants' packets. Written by user space. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, struct segment_key);
	__type(value, struct segment_entry);
} segments SEC(".maps");

/* Segments that arrived with a valid proof and may be answered, under the keys that the answers' segments will have.
 * User space shows such a segment to the authority when an answer is waiting. Delivery does not depend on this
 * table. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct segment_key);
	__type(value, struct consent);
} consents SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct consent);
} consenting SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERF_EVENT_ARRAY);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(__u32));
} unsent SEC(".maps");

/* A perf record holds less than 64 KiB. An ICMP error quotes the beginning of a packet that is too long. */
enum { REPORT_MAX = 32768, QUOTE_MAX = 1280 };
/* Control packets for one tenant and second that are passed to user space, and the longest of them with its Ethernet
 * header. */
enum { CONTROLS_MAX = 256, CONTROL_FRAME_MAX = 512 };
#define UNSENT_CONTROL 0xffffffff
enum { DECAP_IPV4 = 1 << 7, DECAP_IPV6 = 1 << 8 /* BPF_F_ADJ_ROOM_DECAP_L3_*, missing from 6.1's headers */ };

/* Passes a copy of a tenant's packet to user space and drops the packet. */
static __noinline int report(context *ctx, struct tenant *tenant, __u32 time, __u32 limit)
{
	struct unsent header = { .interface = ctx->ifindex, .length = ctx->len, .segment = ctx->gso_size, .limit = limit };
	__u64 length = ctx->len;

	if (tenant->second != time) {
		tenant->second = time;
		tenant->reported = tenant->controls = 0;
	}
	/* Concurrent increments may be lost: the limit only serves to spare user space. */
	if (tenant->reported >= svtep_config.reports)
		return leave(SVTEP_UNREPORTED, TC_ACT_SHOT);
	tenant->reported++;
	if (length > (limit ? QUOTE_MAX : REPORT_MAX))
		length = limit ? QUOTE_MAX : REPORT_MAX;
	if (bpf_perf_event_output(ctx, &unsent, BPF_F_CURRENT_CPU | length << 32, &header, sizeof(header)))
		return leave(SVTEP_UNREPORTED, TC_ACT_SHOT);
	return leave(limit ? SVTEP_TOO_LONG : SVTEP_UNKNOWN, TC_ACT_SHOT);
}

static __always_inline struct segment_entry *look_up(struct segment_key *key, __be16 port, __be16 other_port, __u8 back)
{
	struct segment_entry *entry;

	key->port = port;
	key->other_port = 0;
	key->back = back;
	entry = bpf_map_lookup_elem(&segments, key);
	if (!entry || entry->state != SEGMENT_BY_FLOW)
		return entry;
	key->other_port = other_port;
	return bpf_map_lookup_elem(&segments, key);
}

static __always_inline int is_given(const struct segment_entry *entry, __u32 time)
{
	return entry && entry->state == SEGMENT_GIVEN && entry->until > time;
}

/* Returns the segment for a packet: one for its service before one for all services, one that opens a flow before one
 * that answers. If none is usable, returns an entry that records a refusal, if there is one. */
static __always_inline struct segment_entry *segment_for(struct segment_key *key, const struct proving *v, __u32 time)
{
	struct segment_entry *entry, *refused = 0;

	if (v->shown == PORTS_SHOWN) {
		key->protocol = v->inner_protocol;
		entry = look_up(key, v->ports[1], v->ports[0], 0);
		if (is_given(entry, time))
			return entry;
		refused = entry;
		entry = look_up(key, v->ports[0], v->ports[1], 1);
		if (is_given(entry, time))
			return entry;
		refused = refused ?: entry;
	}
	key->protocol = 0;
	entry = look_up(key, 0, 0, 0);
	if (is_given(entry, time))
		return entry;
	refused = refused ?: entry;
	entry = look_up(key, 0, 0, 1);
	return is_given(entry, time) ? entry : refused;
}

/* Returns the length of the longest packet that enters the tunnel: for a super-packet, of its longest segment. */
static __always_inline __u32 longest(context *ctx, const struct proving *v, __u32 transport)
{
	__u32 header = sizeof(struct udp);
	__u8 offset = 0;

	if (!ctx->gso_size)
		return ctx->len - ETHER_LEN;
	if (v->inner_protocol == IP_TCP) {
		if (load(ctx, transport + 12, &offset, 1))
			return 0xffff;
		header = (offset >> 4) * 4;
	}
	return transport - ETHER_LEN + header + ctx->gso_size;
}

/* Returns the offset of the transport header in a tenant's packet: only a fragment header can be in front of it. */
static __always_inline __u32 transport_of(context *ctx, const struct proving *v)
{
	__u8 next = 0;

	if (v->inner_family == 4)
		return ETHER_LEN + IPV4_LEN;
	load(ctx, ETHER_LEN + 6, &next, 1);
	return ETHER_LEN + IPV6_LEN + (next == IP_FRAGMENT ? 8 : 0);
}

/* Returns a length of 1 to GENEVE_MAX. In assembly, and at the point of use, because clang would drop the bound that
 * the kernel requires. */
static __always_inline __u32 geneve_length(__u32 length)
{
	length -= 1;
	asm volatile("%0 &= 127" : "+r"(length));
	return length + 1;
}

static __always_inline long store_geneve(context *ctx, __u32 at, const struct segment_entry *entry)
{
	return bpf_skb_store_bytes(ctx, at, entry->geneve, geneve_length(entry->length), 0);
}

/* Prepends the headers: IP, UDP with a source port that keeps flows apart for load balancing, Geneve. */
static __noinline int push_headers(context *ctx, const struct segment_entry *entry)
{
	struct {
		struct ipv4 ip;
		struct udp udp;
	} four;
	struct {
		struct ipv6 ip;
		struct udp udp;
	} six;
	__u32 grows = (entry->family == 4 ? sizeof(four) : sizeof(six)) + geneve_length(entry->length), total;
	__be16 port = bpf_htons(0xc000 | (bpf_get_hash_recalc(ctx) & 0x3fff)), type;
	long failed;

	total = ctx->len - ETHER_LEN + grows;
	if (total > 0xffff)
		return -1;
	if (entry->family == 4) {
		if (bpf_skb_adjust_room(ctx, grows, BPF_ADJ_ROOM_MAC,
					BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_ENCAP_L3_IPV4 |
						BPF_F_ADJ_ROOM_ENCAP_L4_UDP))
			return -1;
		__builtin_memcpy(&four, entry->outer, sizeof(four));
		four.ip.total_len = bpf_htons(total);
		four.ip.checksum = replace(four.ip.checksum, 0, four.ip.total_len);
		four.udp.source = port;
		four.udp.len = bpf_htons(total - sizeof(four.ip));
		type = bpf_htons(0x0800);
		failed = bpf_skb_store_bytes(ctx, ETHER_LEN, &four, sizeof(four), 0) ?:
			 store_geneve(ctx, ETHER_LEN + sizeof(four), entry);
	} else {
		if (bpf_skb_adjust_room(ctx, grows, BPF_ADJ_ROOM_MAC,
					BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_ENCAP_L3_IPV6 |
						BPF_F_ADJ_ROOM_ENCAP_L4_UDP))
			return -1;
		__builtin_memcpy(&six, entry->outer, sizeof(six));
		six.ip.payload_len = bpf_htons(total - sizeof(six.ip));
		six.udp.source = port;
		six.udp.len = six.ip.payload_len;
		type = bpf_htons(0x86dd);
		failed = bpf_skb_store_bytes(ctx, ETHER_LEN, &six, sizeof(six), 0) ?:
			 store_geneve(ctx, ETHER_LEN + sizeof(six), entry);
	}
	return failed ?: bpf_skb_store_bytes(ctx, 2 * MAC_LEN, &type, 2, 0);
}

/* Returns the length of the routing header. In assembly for the same reason as geneve_length: a read beyond `route`
 * ends in `geneve`, never outside the entry. */
static __always_inline __u32 route_length(const struct segment_entry *entry)
{
	__u32 hops = entry->hops;

	asm volatile("%0 &= 7" : "+r"(hops));
	return 8 + 16 * hops;
}

/* Prepends the headers for a fixed path (wire.md §8.12.1), with a routing header between IP and UDP. */
static __noinline int push_routed_headers(context *ctx, const struct segment_entry *entry)
{
	struct {
		struct ipv6 ip;
		struct udp udp;
	} six;
	__u32 route = route_length(entry), at = ETHER_LEN + sizeof(six.ip);
	__u32 grows = sizeof(six) + route + geneve_length(entry->length), total = ctx->len - ETHER_LEN + grows;
	__be16 type = bpf_htons(0x86dd);

	__builtin_memcpy(&six, entry->outer, sizeof(six));
	six.udp.source = bpf_htons(0xc000 | (bpf_get_hash_recalc(ctx) & 0x3fff));
	if (total > 0xffff || bpf_skb_adjust_room(ctx, grows, BPF_ADJ_ROOM_MAC,
						  BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_ENCAP_L3_IPV6 |
							  BPF_F_ADJ_ROOM_ENCAP_L4_UDP))
		return -1;
	six.ip.payload_len = bpf_htons(total - sizeof(six.ip));
	six.udp.len = bpf_htons(total - sizeof(six.ip) - route);
	return bpf_skb_store_bytes(ctx, ETHER_LEN, &six.ip, sizeof(six.ip), 0) ?:
	       bpf_skb_store_bytes(ctx, at, entry->route, route_length(entry), 0) ?:
	       bpf_skb_store_bytes(ctx, at + route, &six.udp, sizeof(six.udp), 0) ?:
	       store_geneve(ctx, at + route + sizeof(six.udp), entry) ?:
	       bpf_skb_store_bytes(ctx, 2 * MAC_LEN, &type, 2, 0);
}

/* Sends a tenant's packet, which `v` describes. */
static __always_inline int send(context *ctx, struct tenant *tenant, struct proving *v)
{
	struct segment_key key = { .interface = ctx->ifindex };
	struct segment_entry *entry;
	__u32 time = now(), room, transport;
	__u8 flags = 0;

	if (v->shown == PORTS_CUT)
		return leave(SVTEP_MALFORMED, TC_ACT_SHOT);
	key.family = v->inner_family;
	key.sender = v->sender;
	key.receiver = v->receiver;
	entry = segment_for(&key, v, time);
	if (!is_given(entry, time)) {
		if (entry && entry->state == SEGMENT_REFUSED && entry->until > time)
			return leave(SVTEP_REFUSED, TC_ACT_SHOT);
		/* Later fragments need a segment for all services. User space has learned from the first fragment
		 * that one is needed. */
		if (v->shown == PORTS_HIDDEN)
			return leave(SVTEP_FRAGMENT, TC_ACT_SHOT);
		return report(ctx, tenant, time, 0);
	}
	if (entry->used != time)
		entry->used = time;
	room = (entry->family == 4 ? IPV4_LEN : IPV6_LEN) + sizeof(struct udp) + entry->length;
	if (entry->hops)
		room += route_length(entry);
	transport = transport_of(ctx, v);
	if (longest(ctx, v, transport) + room > svtep_config.mtu)
		return report(ctx, tenant, time, svtep_config.mtu - room);
	if (v->inner_protocol == IP_TCP && v->shown == PORTS_SHOWN && !load(ctx, transport + 13, &flags, 1) && flags & TCP_SYN)
		clamp_mss(ctx, transport, svtep_config.mtu - room - (transport - ETHER_LEN) - sizeof(struct tcp));
	if (entry->hops ? push_routed_headers(ctx, entry) : push_headers(ctx, entry))
		return leave(SVTEP_FAILED, TC_ACT_SHOT);
	leave(SVTEP_SENT, 0);
	if (entry->local)
		return bpf_redirect(svtep_config.underlay, BPF_F_INGRESS);
	return bpf_redirect_neigh(svtep_config.underlay, 0, 0, 0);
}

/* Records a segment that arrived and may be answered. Looks up the packet at hand by itself: Linux 6.1 does not write a
 * map from memory that it knows only through an argument. */
static __noinline int note_consent(context *ctx, __u32 at, __u32 interface)
{
	struct segment_key key = { .interface = interface, .back = 1 };
	__u32 zero = 0, length;
	struct proving *v = bpf_map_lookup_elem(&provings, &zero);
	struct consent *consent = bpf_map_lookup_elem(&consenting, &zero), *known;
	__u8 words = 0;

	if (!v || !consent || load(ctx, at, &words, 1))
		return 0;
	key.family = v->inner_family;
	key.protocol = v->segment.protocol;
	key.port = v->segment.port;
	key.other_port = v->segment.sender_port;
	key.sender = v->receiver;
	key.receiver = v->sender;
	known = bpf_map_lookup_elem(&consents, &key);
	if (known && known->expires == bpf_ntohl(v->segment.expires) &&
	    known->sending.words[0] == *(__u64 *)v->packet.flow.client &&
	    known->sending.words[1] == *(__u64 *)(v->packet.flow.client + 8))
		return 0;
	length = GENEVE_LEN + 4 * (words & 63);
	__builtin_memset(consent, 0, sizeof(*consent));
	__builtin_memcpy(&consent->sending, v->packet.flow.client, 16);
	__builtin_memcpy(&consent->receiving, v->packet.flow.server, 16);
	consent->expires = bpf_ntohl(v->segment.expires);
	consent->family = v->packet.flow.family;
	consent->length = length;
	if (load(ctx, at, consent->geneve, geneve_length(length)))
		return 0;
	consent->geneve[GENEVE_LEN + OPTION_LEN] &= ~7; /* as it was sent, before any verifier checked it */
	if (v->segment.flags & SEGMENT_ROUTED) {
		consent->hops = v->segment.place >> 3 & 7;
		__builtin_memcpy(consent->route, &v->route[4], sizeof(consent->route));
	}
	bpf_map_update_elem(&consents, &key, consent, BPF_ANY);
	return leave(SVTEP_CONSENTS, 0);
}

/* Passes a control packet to user space (wire.md §8.15), decapsulated. It has a limit of its own, so that nobody who
 * sends to a tenant can use up the tenant's reports. */
static __noinline int report_control(context *ctx, __u32 interface)
{
	struct unsent header = { .interface = interface, .length = ctx->len, .limit = UNSENT_CONTROL };
	struct tenant *tenant = bpf_map_lookup_elem(&tenants, &interface);
	__u64 length = ctx->len;
	__u32 time = now();

	if (!tenant || length > CONTROL_FRAME_MAX)
		return leave(SVTEP_UNDELIVERED, TC_ACT_SHOT);
	if (tenant->second != time) {
		tenant->second = time;
		tenant->reported = tenant->controls = 0;
	}
	if (tenant->controls >= CONTROLS_MAX)
		return leave(SVTEP_UNREPORTED, TC_ACT_SHOT);
	tenant->controls++;
	if (bpf_perf_event_output(ctx, &unsent, BPF_F_CURRENT_CPU | length << 32, &header, sizeof(header)))
		return leave(SVTEP_UNREPORTED, TC_ACT_SHOT);
	return leave(SVTEP_CONTROL, TC_ACT_SHOT);
}

/* Delivers a packet with a valid proof. Geneve's header is at `at`. `computed` says that the proof was not
 * remembered: this is the first packet under its segment, or the proof was forgotten. */
static __always_inline int deliver(context *ctx, __u32 at, int computed)
{
	struct {
		__u8 words, flags;
		__be16 kind;
		__u8 vni[4];
		__u32 option;
		__u8 place, segment_flags, protocol, epoch;
		__be32 expires;
		__be16 interface, port;
	} head;
	struct {
		__u8 to[MAC_LEN], from[MAC_LEN];
		__be16 type;
	} link;
	struct delivery *delivery;
	__u32 id, cut, vni;
	__u64 flags = BPF_F_ADJ_ROOM_FIXED_GSO;
	__u8 version = 0;
	int turned;

	if (load(ctx, at, &head, sizeof(head)))
		return leave(SVTEP_UNDELIVERED, TC_ACT_SHOT);
	id = bpf_ntohs(head.interface);
	__builtin_memcpy(&vni, head.vni, 4);
	delivery = bpf_map_lookup_elem(&deliveries, &id);
	/* The receiving endpoint is the last verifier (wire.md §8.9). */
	if (!delivery || !delivery->interface || delivery->vni != vni << 8 || (head.place & 7) != (head.place >> 3 & 7))
		return leave(SVTEP_UNDELIVERED, TC_ACT_SHOT);
	if ((computed || head.flags & GENEVE_CONTROL) && head.segment_flags & SEGMENT_REPLY)
		note_consent(ctx, at, delivery->interface);
	cut = at + GENEVE_LEN + 4 * (head.words & 63) - ETHER_LEN;
	if (head.kind == bpf_htons(0x6558))
		cut += ETHER_LEN;
	if (load(ctx, ETHER_LEN + cut, &version, 1))
		return leave(SVTEP_UNDELIVERED, TC_ACT_SHOT);
	link.type = bpf_htons(version >> 4 == 4 ? 0x0800 : 0x86dd);
	turned = link.type != ctx->protocol;
	if (turned && svtep_config.turns)
		flags |= version >> 4 == 4 ? DECAP_IPV4 : DECAP_IPV6;
	/* Before 6.3 the kernel requires room for a header of the family that it removes. The added bytes belong to no
	 * packet. */
	else if (turned && ctx->len < ETHER_LEN + cut + IPV6_LEN && bpf_skb_change_tail(ctx, ETHER_LEN + cut + IPV6_LEN, 0))
		return leave(SVTEP_FAILED, TC_ACT_SHOT);
	__builtin_memcpy(link.to, delivery->mac, MAC_LEN);
	write_mac(link.from);
	if (bpf_skb_adjust_room(ctx, -(__s32)cut, BPF_ADJ_ROOM_MAC, flags) || bpf_skb_store_bytes(ctx, 0, &link, sizeof(link), 0))
		return leave(SVTEP_FAILED, TC_ACT_SHOT);
	if (head.flags & GENEVE_CONTROL)
		return report_control(ctx, delivery->interface);
	leave(SVTEP_DELIVERED, 0);
	/* Beyond the link, the family of the removed header no longer matters. */
	if (delivery->peer && (!turned || svtep_config.turns)) {
		bpf_skb_change_type(ctx, 0 /* PACKET_HOST */);
		return bpf_redirect_peer(delivery->interface, 0);
	}
	return bpf_redirect(delivery->interface, 0);
}
