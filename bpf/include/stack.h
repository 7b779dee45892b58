/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* This host's own TCP connection state (wire.md §6.3.4).
 *
 * The kernel's BTF gives the offsets of the two sequence numbers in its structures. Without BTF, the stack is not
 * consulted. On gateways and in front of containers, it holds no connection. */
#pragma once
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "layout.h"

const volatile struct stack_layout stack_layout SEC(".rodata.stack") = {};

/* Socket states, as the kernel numbers them. */
enum { SOCKET_SYN_SENT = 2, SOCKET_TIME_WAIT = 6, SOCKET_CLOSE = 7, SOCKET_LISTEN = 10, SOCKET_REQUEST = 12 };

/* How much the stack knows about a connection, in ascending order. */
enum knows { KNOWS_NOTHING = 0, KNOWS_ANSWER = 1, KNOWS_NEXT = 2 };

struct stack_view {
	__u32 knows;
	__u32 number; /* KNOWS_ANSWER: own initial number plus one; KNOWS_NEXT: expected from the client */
};

static __always_inline __u32 number_in(const void *structure, __u32 at)
{
	return *(const volatile __u32 *)(structure + at);
}

static __always_inline void read_socket(struct bpf_sock *socket, struct stack_view *view)
{
	const void *structure;
	__u32 state = socket->state;

	if (state == SOCKET_REQUEST) {
		structure = bpf_skc_to_tcp_request_sock(socket);
		if (!structure)
			return;
		view->knows = KNOWS_ANSWER;
		view->number = number_in(structure, stack_layout.snt_isn) + 1;
		return;
	}
	if (state == SOCKET_SYN_SENT || state == SOCKET_TIME_WAIT || state == SOCKET_CLOSE || state == SOCKET_LISTEN)
		return;
	structure = bpf_skc_to_tcp_sock(socket);
	if (!structure)
		return;
	view->knows = KNOWS_NEXT;
	view->number = number_in(structure, stack_layout.rcv_nxt);
}

/* Fills in what the stack knows about a connection. A listener alone says nothing: a container's connections may bypass
 * it (docker-proxy). */
__noinline int ask_stack(context *ctx, const struct flow_key *key, struct stack_view *view)
{
	struct bpf_sock_tuple tuple = {};
	__u32 length = sizeof(tuple.ipv6);
	struct bpf_sock *socket;

	if (!key || !view || !stack_layout.rcv_nxt || !stack_layout.snt_isn)
		return 0;
	if (key->family == 4) {
		tuple.ipv4.saddr = *(const __be32 *)key->client;
		tuple.ipv4.daddr = *(const __be32 *)key->server;
		tuple.ipv4.sport = key->client_port;
		tuple.ipv4.dport = key->server_port;
		length = sizeof(tuple.ipv4);
	} else {
		__builtin_memcpy(tuple.ipv6.saddr, key->client, 16);
		__builtin_memcpy(tuple.ipv6.daddr, key->server, 16);
		tuple.ipv6.sport = key->client_port;
		tuple.ipv6.dport = key->server_port;
	}
	socket = bpf_skc_lookup_tcp(ctx, &tuple, length, BPF_F_CURRENT_NETNS, 0);
	if (!socket)
		return 0;
	read_socket(socket, view);
	bpf_sk_release(socket);
	return 0;
}
