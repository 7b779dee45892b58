/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Drop reasons, and the counters next to them (wire.md §6.7). crates/wire/src/drop_reason.rs has the same list; a test
 * compares the two. */
#pragma once

enum outcome {
	CONTINUE = 0,

	DROP_NO_TOKEN = 1,
	DROP_MALFORMED = 2,
	DROP_UNKNOWN_SUITE = 3,
	DROP_UNKNOWN_EPOCH = 4,
	DROP_EXPIRED = 5,
	DROP_LIFETIME_TOO_LONG = 6,
	DROP_CLOCK_SKEW = 7,
	DROP_BAD_TAG = 8,
	DROP_REVOKED = 9,
	DROP_REPLAYED = 10,
	DROP_FLOW_LIMIT = 11,
	DROP_FRAGMENT = 12,
	DROP_NO_FLOW = 13,
	DROP_NO_ADDRESS = 14,
	DROP_UNSEALED = 15,

	PASS_NOT_OURS = 16,
	PASS_FLOW = 17,
	PASS_TOKEN = 18,
	CONSUMED = 19,
	PASS_ICMP_ERROR = 20,
	SAMPLES_LOST = 21,
	OUTBOUND = 22,
	OUTBOUND_FULL = 23,
	UNCLAIMED = 24,
	PASS_STRANGER = 25,
	OUTCOMES = 32,
};
