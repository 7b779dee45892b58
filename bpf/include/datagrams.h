/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The agent's connections that travel as datagrams (wire.md §4.8): which ones do, and who may use their ports.
 *
 * Include skb.h before this file. */
#pragma once
#include "ladder.h"
#include "layout.h"
#include "steer.h"
#include "from_datagram.h"

/* Time for which the ports of a connection that may be over are kept from applications' datagrams. The verifier still takes
 * these ports' datagrams for segments. */
enum { PORTS_KEPT = 90 /* seconds */ };

/* The pair of devices through which segments pass before they become datagrams, by index; 0: there is none. */
struct helping_devices {
	__u32 out; /* segments go in here */
	__u32 back; /* and come out here */
};

/* A connection of which a SYN has left in a datagram. */
struct datagram_flow {
	__u32 interface; /* by which its datagrams leave */
	__u32 subject; /* whose it is */
	__u32 sequence; /* the SYN's number */
	__u32 seen; /* time of its last datagram, Unix seconds */
	__u32 state; /* one of enum datagram_state */
	__u32 reserved;
};

enum datagram_state {
	DATAGRAM_WAITING = 0, /* no answer yet */
	DATAGRAM_CHOSEN = 1, /* the first answer came in a datagram */
	DATAGRAM_LOST = 2, /* the first answer came another way */
	DATAGRAM_CLOSING = 3, /* an end has sent FIN or RST */
};

/* User space's part: 0 unless the agent's settings allow such connections. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct helping_devices);
} helping SEC(".maps");

/* Only senders with a grant add entries, but all users share the table. An entry that is evicted costs its connection: the
 * segments then leave as segments, and the verifier drops them. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct flow_key);
	__type(value, struct datagram_flow);
} datagram_flows SEC(".maps");

static __always_inline struct helping_devices *helpers(void)
{
	__u32 zero = 0;
	struct helping_devices *found = bpf_map_lookup_elem(&helping, &zero);

	return found && found->out ? found : 0;
}

static __always_inline int goes_on_as_datagrams(const struct datagram_flow *known)
{
	return known->state == DATAGRAM_CHOSEN || known->state == DATAGRAM_CLOSING;
}

static __always_inline void note_datagram(struct datagram_flow *known, __u8 flags, __u32 time)
{
	if (known->seen != time)
		known->seen = time;
	if (flags & (TCP_FIN | TCP_RST) && known->state == DATAGRAM_CHOSEN)
		known->state = DATAGRAM_CLOSING;
}

/* Records that a SYN leaves in a datagram. */
static __noinline int begin_in_datagrams(const struct packet *p, __u32 subject, __u32 interface, __u32 time)
{
	struct datagram_flow fresh = { .interface = interface, .subject = subject, .sequence = p->sequence, .seen = time };
	struct flow_key key = p->flow;
	struct datagram_flow *known = bpf_map_lookup_elem(&datagram_flows, &key);

	if (known && known->subject == subject && known->sequence == p->sequence) {
		known->seen = time;
		return 0;
	}
	return bpf_map_update_elem(&datagram_flows, &key, &fresh, BPF_ANY) ? -1 : 0;
}

/* Forgets the connection that had the ports of a SYN before. */
static __noinline int end_in_datagrams(const struct packet *p)
{
	struct flow_key key = p->flow;
	struct datagram_flow *known = bpf_map_lookup_elem(&datagram_flows, &key);

	return known && known->sequence != p->sequence ? bpf_map_delete_elem(&datagram_flows, &key) : 0;
}

enum departure { DEPARTS_OTHERWISE = 0, DEPARTS_AS_DATAGRAM = 1, MAY_NOT_DEPART = 2 };

/* Reports how a packet leaves that opens no connection. */
static __noinline int departure_of(context *ctx, __u32 time)
{
	struct segment s = {};
	struct datagram_flow *known;
	struct flow_key key;
	int is_datagram = 0;

	if (read_segment(ctx, &s, IP_TCP)) {
		__builtin_memset(&s, 0, sizeof(s));
		if (read_segment(ctx, &s, IP_UDP))
			return DEPARTS_OTHERWISE;
		is_datagram = 1;
	}
	key = s.flow;
	key.protocol = IP_TCP;
	known = bpf_map_lookup_elem(&datagram_flows, &key);
	if (!known)
		return DEPARTS_OTHERWISE;
	if (is_datagram) {
		/* An application's: the verifier would take it for a segment. */
		if (known->state == DATAGRAM_CHOSEN || time - known->seen <= PORTS_KEPT)
			return MAY_NOT_DEPART;
		bpf_map_delete_elem(&datagram_flows, &key);
		return DEPARTS_OTHERWISE;
	}
	if (!goes_on_as_datagrams(known) || (s.header.tcp.flags & (TCP_SYN | TCP_ACK)) == TCP_SYN)
		return DEPARTS_OTHERWISE;
	note_datagram(known, s.header.tcp.flags, time);
	return DEPARTS_AS_DATAGRAM;
}

/* Reports whether a SYN with ACK is the first answer to a connection's SYN, and records that the connection goes on in
 * datagrams, or that it does not. */
static __noinline int answers_first(const struct segment *s, struct datagram_flow *known)
{
	struct flow_key key = key_of_answer(s);
	struct first_packet *first = bpf_map_lookup_elem(&first_packets, &key);
	struct steered *steered = bpf_map_lookup_elem(&steered_flows, &key);

	if (bpf_ntohl(s->header.udp.acknowledgement) - (known->sequence + 1) > SYN_LENGTH_MAX)
		return 0;
	if (!first || first->sequence != known->sequence || first->outside || first->inside ||
	    (steered && steered->wish & WISH_ANSWERED)) {
		known->state = DATAGRAM_LOST;
		return 0;
	}
	first->datagram = bpf_ktime_get_boot_ns();
	known->state = DATAGRAM_CHOSEN;
	/* The tunnel was tried, too. */
	if (steered && steered->wish & WISH_LADDER)
		bpf_map_delete_elem(&steered_flows, &key);
	return 1;
}

enum arrival { ARRIVES_OTHERWISE = 0, ARRIVED_AS_DATAGRAM = 1, MAY_NOT_ARRIVE = 2 };

/* Turns a datagram that carries a segment of such a connection back into the segment. */
static __noinline int arrive(context *ctx, __u32 time)
{
	struct segment s = {};
	struct datagram_flow *known;
	struct flow_key key;
	__u8 flags;

	if (read_segment(ctx, &s, IP_UDP))
		return ARRIVES_OTHERWISE;
	key = key_of_answer(&s);
	known = bpf_map_lookup_elem(&datagram_flows, &key);
	if (!known)
		return ARRIVES_OTHERWISE;
	if (known->state == DATAGRAM_LOST)
		return time - known->seen > PORTS_KEPT ? ARRIVES_OTHERWISE : MAY_NOT_ARRIVE;
	/* Datagrams that the kernel has merged are several segments. */
	if (!is_turned(&s) || segment_length(ctx))
		return MAY_NOT_ARRIVE;
	flags = s.header.udp.flags & (TCP_SYN | TCP_ACK | TCP_RST);
	/* A reset answers nothing, but the client's stack may see it. */
	if (known->state == DATAGRAM_WAITING && !(flags & TCP_RST) &&
	    (flags != (TCP_SYN | TCP_ACK) || !answers_first(&s, known)))
		return MAY_NOT_ARRIVE;
	note_datagram(known, s.header.udp.flags, time);
	return to_tcp(ctx, &s) ? MAY_NOT_ARRIVE : ARRIVED_AS_DATAGRAM;
}
