/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Map layouts, byte for byte the same as in crates/wire/src/map/; datapath checks that they agree. */
#pragma once
#include <linux/bpf.h>
#include <linux/types.h>

#define SERVICES_MAX 32

/* The block of the tail carrier (wire.md §4.1). */
enum { TAIL_LEN = 40, MAGIC = 0x31465356 /* "VSF1" in memory order */ };
/* The block as the whole payload of a SYN: the stream carrier (§4.6). */
enum { STREAM_MAGIC = 0x31535356 /* "VSS1" in memory order */ };
/* The block of a SYN to whose header the sender has added a Fast Open option, and that option with its padding (§4.7). */
enum { FAST_OPEN_MAGIC = 0x314f5356 /* "VSO1" in memory order */, FAST_OPEN_LEN = 12 };
enum { TCP_IN_UDP_MAGIC = 0x31555356 /* "VSU1": of a SYN that travels as a datagram (§4.8) */ };

/* The shim (wire.md §4.3, §4.4): the inner IPv4 header, its option. */
enum { IP_IPIP = 4, SHIM_OPTION_LEN = 40, SHIM_LEN = 20 + SHIM_OPTION_LEN, SHIM_OPTION = 0x9e };
enum { KEY_TRANSFER_LEN = 35 };
enum shim_kind { SHIM_NONE = 0, SHIM_SUPPORT = 1, SHIM_KEY_TRANSFER = 2, SHIM_LS_TOKEN = 3, SHIM_TOKEN = 4, SHIM_BROKEN = 5 };

struct verifier_config {
	__u64 replay_seed; /* picks the bucket, so that grant holders can't target one */
	__u32 replay_mask; /* number of buckets minus one; the number is a power of two */
	__u32 epoch_length;
	__u32 max_lifetime;
	__u32 flows_per_grant;
	__u32 tcp_idle;
	__u32 udp_idle;
	__u32 closing_idle;
	__u32 samples_per_second;
	__u32 observe;
	__u16 carriers; /* bits of enum carrier */
	__u16 suites; /* bit n: suite number n */
	__u32 max_outbound; /* limit on flows opened from inside; 0 if this is no gateway */
	__u32 advertises_flows; /* one of enum tells_flows */
	__u32 mark; /* bits in the packet's mark that show it is admitted */
	__u32 mark_mask; /* bits of the mark that belong to the verifier; 0 if its verdict is to drop */
	__u32 udp_renewal; /* seconds after which a client's UDP flow needs another token */
	__u32 flows_per_account;
	__u32 grants_per_account;
	__u16 ls_stateless; /* 1 to take tokens of the LS scheme whose pair is not in the table */
	__u8 optional, chain; /* 1 if there are optional receivers; bits of enum chain (chain.h), 0 with one authority */
};

/* When the programs report flows to user space, which shares them with peer gateways. */
enum advertises_flows { ADVERTISES_NOTHING = 0, ADVERTISES_ADMITTED = 1, ADVERTISES_BOUND = 2 /* once they have an inside address */ };

/* How a flow was opened. */
enum origin { BY_TOKEN = 0, ADOPTED = 1, FROM_INSIDE = 2, ENDED = 3 /* on a gateway: by a token, and over */ };

enum carrier { CARRIER_TAIL = 1, CARRIER_SHIM = 2, CARRIER_STREAM = 4, CARRIER_FAST_OPEN = 8, CARRIER_TCP_IN_UDP = 16 };

struct agent_config {
	__u32 link_header; /* bytes: 14, or 0 on links without one */
	__u32 tcx;
	__u32 match_cgroups;
	__u32 overhear; /* 1: copy name servers' answers to user space */
};

/* The agent's part of steering. */
struct steering {
	__u64 cookie; /* of the tunnel's own socket */
	__u32 device; /* the tunnel's device */
	__u32 seals; /* 1 if something is sealed, or was */
	__u32 asks; /* bits of enum asks */
	__u32 reserved;
};

enum asks { ASKS = 1, ASKS_BY_CGROUP = 2, KEEPS_FLOWS = 4 /* look for a flow that began in the tunnel */ };

/* A flow in the tunnel: who opened it, and what they asked for. */
struct steered {
	__u32 subject;
	__u32 wish; /* a treatment, its number in records, and bits for user space */
};

enum { WISH_TREATMENT = 0xff, STEERED = 1 << 30, ASKER_LEVELS = 8 };

/* Bits of a wish that the agent's ladder sets. LADDER: the flow is in the tunnel because the ladder chose so; until its client
 * has answered in the tunnel (ANSWERED), an answer from outside takes it out again. OUTSIDE: this packet goes outside.
 * FAST_OPEN: it goes outside by the carrier `fast_open`. DATAGRAM: it goes outside by the carrier `tcp_in_udp`. */
enum { WISH_LADDER = 1 << 10, WISH_OUTSIDE = 1 << 11, WISH_ANSWERED = 1 << 12, WISH_FAST_OPEN = 1 << 13,
       WISH_DATAGRAM = 1 << 14 };

/* Treatment of flows that the ladder leads into a tunnel: `authenticate`, the weakest that records have. */
enum { LADDER_TREATMENT = 1 };

enum rung { RUNG_PACKET = 0, RUNG_FAST_OPEN = 1, RUNG_TCP_IN_UDP = 2, RUNG_TUNNEL = 3 };

/* By which rung a subject's connections to a destination begin. User space writes it. */
struct ladder {
	__u32 rung;
	__u32 every; /* one SYN in this number takes RUNG_PACKET instead; 0: none */
	__u32 count; /* of SYNs, by the program */
	__u32 reserved;
};

/* When a connection's first packet was sent and answered, in nanoseconds since boot; 0: not yet. */
struct first_packet {
	__u64 sent;
	__u64 outside; /* answered outside of the tunnel */
	__u64 inside;
	__u32 subject; /* who sent it */
	__u32 sequence; /* the SYN's number, which an answer acknowledges */
	__u64 datagram; /* answered in a datagram */
};

struct flow_key {
	__u8 client[16];
	__u8 server[16];
	__be16 client_port;
	__be16 server_port;
	__u8 protocol;
	__u8 family;
	__u8 tunnel; /* one of enum side; no packet of another side belongs to the flow (wire.md §6.11.2) */
	__u8 reserved;
};

/* SIDE_TUNNEL: inside a sealed tunnel. SIDE_DATAGRAMS: TCP whose segments are datagrams on the way (wire.md §4.8). */
enum side { SIDE_OUTSIDE = 0, SIDE_TUNNEL = 1, SIDE_DATAGRAMS = 2 };

struct flow_key4 {
	__be32 client;
	__be32 server;
	__be16 client_port;
	__be16 server_port;
	__u8 protocol;
	__u8 tunnel;
	__u8 reserved[2];
};

struct flow {
	__u64 handle;
	__u64 bytes;
	__u64 packets;
	__u32 since;
	__u32 seen;
	union {
		__u32 state; /* changed by compare and swap: a core claims a flow before it removes or replaces it */
		struct {
			__u8 stage;
			__u8 origin;
			__be16 inside_port; /* the client's port as the inside sees it; see ask_for_person */
		};
	};
	__u32 inside; /* slot of the inside address, plus one; 0 if the flow has none */
	__u32 holder; /* account and session whose grant admitted the flow (wire.md §3.9); 0 if unknown */
	__u32 next; /* TCP: the client's expected sequence number */
	__u32 answer; /* TCP, on gateways: the server's initial sequence number plus one */
	union {
		__u32 proved; /* UDP: time of the client's last token, Unix seconds */
		__u32 fin; /* TCP: position of a FIN that arrived before the data in front of it; 0 if none */
	};
};

/* Offsets of sequence numbers in the kernel's socket structures, in bytes; 0 if unknown. */
struct stack_layout {
	__u32 rcv_nxt; /* in struct tcp_sock */
	__u32 snt_isn; /* in struct tcp_request_sock */
};

/* Message to user space: a flow has begun. */
struct flow_news {
	struct flow_key key;
	__u64 time; /* nanoseconds since boot */
};

/* A flow that a peer gateway reported, converted to this gateway's time. */
struct received_flow {
	struct flow_key key;
	struct flow flow;
	__u32 expires; /* when the flow's grant ends, Unix seconds */
	__u32 begins; /* 1: create the flow if it does not exist */
};

/* Result for a flow that a peer gateway reported. */
enum taken { TAKEN_NEW = 1, TAKEN_KNOWN = 2, REFUSED_REVOKED = 3, REFUSED_OLDER = 4, REFUSED_GONE = 5, REFUSED_FULL = 6 };

/* An address in the maps' form: IPv4 in the first four bytes, the rest zero. */
struct address {
	__u64 words[2];
};

/* Sizes of a gateway's pool of inside addresses, per family. */
struct nat_config {
	__u32 pool4;
	__u32 pool6;
};

struct pool_slot {
	struct address address;
	__u64 last; /* time of the latest flow that began or ended, nanoseconds since boot; 0 if never */
	__u32 person; /* latest person to have the address */
	__u32 flows;
	__u32 since; /* when that person got the address, Unix seconds */
	__u32 reserved;
};

struct lease_key {
	__u32 person;
	__u32 family;
};

struct bearer {
	__u32 person;
	__u32 expires;
};

/* The class of a grant, for rules of a packet filter. */
struct grant_class {
	__u32 class;
	__u32 expires;
};

struct person_name {
	__u8 bytes[64];
};

struct way_back {
	struct address client;
	__be16 client_port;
	__u16 reserved;
	__u32 slot;
	__u32 since;
	__u32 reserved2;
};

struct member {
	struct address address;
	__u32 family;
	__u32 reserved;
};

/* The inside address of a flow that a peer gateway reported. */
struct received_address {
	struct flow_key key;
	struct address inside;
	__u32 person;
	__u32 now; /* Unix seconds */
	__u32 slot; /* this gateway's slot plus one; 0 if the flow can't have the address */
	__be16 port;
	__u16 reserved;
};

struct nat_news {
	__u64 handle;
	__u32 kind;
	__u32 person;
	__u32 slot;
	__u32 time;
};

/* Messages to user space. In order: the person behind a grant is unknown; an address has gone to another person; an
 * address has no flow left. */
enum nat_news_kind { NEWS_UNKNOWN = 1, NEWS_GIVEN = 2, NEWS_IDLE = 3 };

struct grant_use {
	__u32 flows;
	__u32 expires;
	__u32 tokens; /* used in this window */
	__u32 window;
	struct flow_key first;
	__u32 holder; /* whose account counts this entry */
	__u32 reserved;
};

/* An account's use of the shared tables. */
struct account_use {
	__u32 flows;
	__u32 tokens; /* used in this window */
	__u32 window;
	__u32 grants; /* entries in the table of grants in use */
};

/* Number of flows that one address inside a gateway has opened. */
struct inside_use {
	__u32 flows;
	__u32 counted; /* by the sweep in progress */
};

/* Spans of time of which the verifier no longer knows, because its clock jumped, which tokens were used and which
 * grants were revoked (wire.md §6.4.6). User space writes them. */
enum { FORGOTTEN_SPANS = 4 };

struct forgotten {
	struct {
		__u32 from, until;
	} spans[FORGOTTEN_SPANS];
	__u32 since, leapt_from, reached, reserved; /* for user space only */
};

struct epoch_key {
	__u64 epoch;
	__u64 siphash[2];
	__u64 aes[2];
};

struct secret_entry {
	__u64 epoch;
	__u64 block[8]; /* the input that client keys are hashed from; its first seven bytes are zero */
};

#define LS_NONCE_WORDS 1024
/* Nonces of a pair that are for the kernel program; the others are for the switches' controller (wire.md §5.8). */
enum { LS_NONCES = 32768 };

struct ls_grant {
	__u64 epoch;
	__u32 expires;
	__u32 holder; /* account and session; 0 if the authority names none */
	__u64 used[LS_NONCE_WORDS];
};

struct prefix4 {
	__u32 length;
	__u8 address[4];
};

struct prefix6 {
	__u32 length;
	__u8 address[16];
};

/* A TCP service that everybody may reach (wire.md §6.12). */
struct optional_service {
	__u8 address[16];
	__be16 port;
	__u8 family;
	__u8 reserved;
};

struct service {
	__u8 protocol;
	__u8 foreign; /* 1: another authority's, at a verifier with several */
	__u16 first_port;
	__u16 last_port;
};

struct services {
	__u32 count;
	struct service spans[SERVICES_MAX];
};

/* A session that ended or, with `whole`, an account of which all sessions ended. */
struct revoked_key {
	__u32 number; /* of the holder or the account */
	__u32 whole;
};

enum { CLASSES_OF_HANDLES = 0, CLASSES_OF_ACCOUNTS = 1 };

/* Returns the account of a holder (wire.md §3.9). */
static __always_inline __u32 account_of(__u32 holder)
{
	return holder >> 8;
}

/* One bit for each of 65 536 classes. */
struct class_set {
	__u64 bits[1024];
};

struct drop_sample {
	__u64 handle;
	struct flow_key flow;
	__u32 interface;
	__u16 length;
	__u8 reason;
	__u8 observed;
};

struct owner {
	__u32 kind;
	__u32 reserved;
	__u64 id;
};

enum owner_kind { OWNER_USER = 1, OWNER_CGROUP = 2, OWNER_FORWARDED = 3, OWNER_DSCP = 4 /* of wishes only */ };

struct grant_slot {
	__u32 subject;
	__be16 port;
	__u8 protocol;
	__u8 family;
	__u8 address[16];
};

struct grant_entry {
	__u32 until;
	__u32 used;
	__u8 plain;
	__u8 suite;
	__u8 carrier; /* one of enum carrier */
	__u8 reserved;
	__s32 skew;
	__u64 header[2]; /* of a pair: unique id, nonce1, and fields for user space only */
	__u64 key[4]; /* shorter keys are padded with zeros */
	__u32 spent; /* number of the pair's nonces spent at its last use */
	__u32 reserved2;
};

struct conversation {
	__u32 token;
	__u16 answered;
	__u16 sent; /* stops at 65 535 */
	__u32 subject;
	__u32 seen;
};

/* Address and port of an authority that transfers keys in band. */
struct authority_end {
	__be32 address;
	__be16 port;
	__u16 reserved;
};

struct client_key {
	__u64 words[4]; /* the 28 bytes, padded with zeros */
};

/* A key transfer that is waiting for a packet of its flow. */
struct transfer {
	__u64 until; /* nanoseconds since boot */
	__u8 data[40]; /* the option's data, padded with zeros */
};

struct transfer_config {
	__u32 port; /* the authority's */
	__u32 reserved;
};

enum transfer_counter {
	TRANSFER_SUPPORT = 0, /* flows whose sender takes keys in band */
	TRANSFER_HANDED = 1, /* keys sent */
	TRANSFER_FAILED = 2, /* packets that could not be changed, and were dropped */
	TRANSFER_COUNTERS = 4,
};

struct queued_header {
	struct grant_slot slot;
	__u32 interface;
	__u32 length;
	__u16 segment;
	__u16 wish; /* of the packet's sender; user space gives it back as the priority of the packet */
	__be16 vlan_proto;
	__u16 vlan_tci;
};

/* Settings of a verifier of proofs, fixed when the program is loaded. */
struct proofs_config {
	__u32 epoch_length;
	__u32 max_lifetime;
};

/* Authority and epoch of a key for proofs. */
struct proof_key_slot {
	struct address authority;
	__u32 family;
	__u32 epoch; /* the low 8 bits */
};

/* Withdrawn consent. */
struct withdrawal {
	__u32 vni; /* as on the wire, preceded by a zero byte */
	__u16 family;
	__u16 from_all; /* 1: the sender is zero */
	struct address receiver;
	struct address sender;
};

#define PROOF_WORDS_MAX 10
/* Words of the longest message, with a fixed path of five hops. */
#define ROUTED_WORDS_MAX 18

/* A valid proof and the message that it covers. */
struct remembered {
	__u64 proof[2];
	__u64 message[PROOF_WORDS_MAX];
	struct address authority;
	__u32 words; /* of the message */
	__u32 epoch; /* the low 8 bits */
	__u32 until;
	__u32 generation;
};

/* Settings of a tunnel endpoint, fixed when the programs are loaded. */
struct svtep_config {
	__u32 underlay; /* the interface's index */
	__u32 mtu; /* the longest packet there, without its link header */
	__u32 turns; /* 1: the kernel can decapsulate one family from the other (Linux 6.3) */
	__u32 reports; /* packets per tenant and second that are passed to user space */
};

/* State of the interface that leads to a tenant. */
struct tenant {
	__u32 id;
	__u32 second;
	__u32 reported; /* within that second */
	__u32 controls; /* control packets that were passed to user space within that second */
};

/* Delivery target of packets for an interface id. */
struct delivery {
	__u32 interface; /* 0: undeliverable */
	__u32 vni; /* as on the wire, preceded by a zero byte */
	__u8 mac[6];
	__u8 peer; /* 1: one end of a veth pair whose other end, in another namespace, takes the packets */
	__u8 reserved;
};

/* Key that selects the segment for a tenant's packets. */
struct segment_key {
	__u32 interface;
	__u8 family;
	__u8 protocol; /* 0 with both ports 0: all services */
	__be16 port;
	__be16 other_port; /* port of the side that opened the flow, if the segment is for one flow */
	__u8 back; /* 1: for answers; `port` is then the packet's source port */
	__u8 reserved[5];
	struct address sender;
	struct address receiver;
};

enum { OUTER_MAX = 48, ROUTING_MAX = 88, GENEVE_MAX = 128, HOPS_MAX = 5 };
/* Headers that are put before the packets of a segment. */
struct segment_entry {
	__u32 until; /* Unix seconds */
	__u32 used; /* time of last use */
	__u8 state; /* one of enum segment_state */
	__u8 family; /* the underlay's */
	__u8 local; /* 1: the receiving endpoint is this one */
	__u8 length; /* length of Geneve's header */
	__u8 hops; /* number of hops of a fixed path */
	__u8 reserved[3];
	__u8 outer[OUTER_MAX]; /* IP with the length left zero, and UDP */
	__u8 route[ROUTING_MAX]; /* the routing header between IP and UDP, if the path is fixed */
	__u8 geneve[GENEVE_MAX];
};

enum segment_state { SEGMENT_REFUSED = 0, SEGMENT_GIVEN = 1, SEGMENT_BY_FLOW = 2 /* per flow */ };

/* A segment that arrived and may be answered (wire.md §8.11). */
struct consent {
	struct address sending;
	struct address receiving;
	__u32 expires;
	__u8 family; /* the underlay's */
	__u8 length; /* length of Geneve's header */
	__u8 hops; /* number of hops of a fixed path */
	__u8 reserved;
	__u8 geneve[GENEVE_MAX];
	struct address route[HOPS_MAX]; /* in the order of the routing header */
};

/* A tenant's packet that goes to user space. */
struct unsent {
	__u32 interface;
	__u32 length;
	__u32 segment; /* payload bytes per segment of a super-packet */
	__u32 limit; /* longest packet that would get through; 0: no segment exists; UNSENT_CONTROL: a control packet */
};

enum svtep_counter {
	SVTEP_SENT = 0,
	SVTEP_UNKNOWN = 1,
	SVTEP_UNREPORTED = 2,
	SVTEP_REFUSED = 3,
	SVTEP_TOO_LONG = 4,
	SVTEP_MALFORMED = 5,
	SVTEP_FRAGMENT = 6,
	SVTEP_OTHER = 7,
	SVTEP_NEIGHBOUR = 8,
	SVTEP_FAILED = 9,
	SVTEP_DELIVERED = 10,
	SVTEP_UNDELIVERED = 11,
	SVTEP_CONSENTS = 12,
	SVTEP_CONTROL = 13,
	SVTEP_COUNTERS = 16,
};

enum agent_counter {
	AGENT_OTHER = 0,
	AGENT_TOKENS = 1,
	AGENT_ALONE = 2,
	AGENT_QUEUED = 3,
	AGENT_QUEUE_FAILED = 4,
	AGENT_PLAIN = 5,
	AGENT_CONVERSATION = 6,
	AGENT_FAILED = 7,
	AGENT_RIDER = 8,
	AGENT_SUPPORT = 9,
	AGENT_KEYS = 10,
	AGENT_STEERED = 11,
	AGENT_NO_TUNNEL = 12,
	AGENT_UNSEALED = 13,
	AGENT_WATCHED = 14,
	AGENT_LATE = 15,
	AGENT_COUNTERS = 16,
};
