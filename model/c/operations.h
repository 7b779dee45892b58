/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Operations of a program on memory shared between cores. Each operation is one step that the checker schedules. */
#pragma once
#include <linux/types.h>
#include <bpf/bpf_helpers.h>

enum kind {
	LOOKUP = 0,
	UPDATE = 1,
	DELETE = 2,
	NEXT = 3, /* the next live element of a table, from this number on */
	READ = 4,
	WRITE = 5,
	ADD = 6,
	SWAP_IF = 7, /* compare and swap */
	EXCHANGE = 8,
	AND = 9,
	OR = 10,
	CLOCK = 11,
};

struct operation {
	__u32 kind;
	__u32 size; /* bytes at `address` */
	struct shape shape;
	void *address;
	const void *key;
	const void *value;
	__u64 argument;
	__u64 expected;
	__u64 result;
};

/* Returns 0 if the operation was performed; otherwise the run ends here. */
typedef int (*operate)(void *run, struct operation *operation);
