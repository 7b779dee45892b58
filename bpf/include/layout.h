/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Layouts of the maps, byte for byte as crates/wire/src/map/ has them; datapath checks that they agree. */
#pragma once
#include <linux/bpf.h>
#include <linux/types.h>

#define SERVICES_MAX 32

/* The block of the tail carrier (wire.md §4.1). */
enum { TAIL_LEN = 40, MAGIC = 0x31465356 /* "VSF1" as it lies in memory */ };

/* The shim (wire.md §4.3, §4.4): the inner IPv4 header, its option. */
enum { IP_IPIP = 4, SHIM_OPTION_LEN = 40, SHIM_LEN = 20 + SHIM_OPTION_LEN, SHIM_OPTION = 0x9e };
enum { KEY_TRANSFER_LEN = 35 };
enum shim_kind { SHIM_NONE = 0, SHIM_SUPPORT = 1, SHIM_KEY_TRANSFER = 2, SHIM_LS_TOKEN = 3, SHIM_TOKEN = 4, SHIM_BROKEN = 5 };

struct verifier_config {
	__u64 replay_seed; /* picks the bucket, so that holders of grants can't aim at one */
	__u32 replay_mask; /* buckets less one; a power of two */
	__u32 epoch_length;
	__u32 max_lifetime;
	__u32 flows_per_grant;
	__u32 tcp_idle;
	__u32 udp_idle;
	__u32 closing_idle;
	__u32 samples_per_second;
	__u32 observe;
	__u16 carriers; /* bits of enum carrier */
	__u16 suites; /* a bit at each one's number */
	__u32 max_outbound; /* flows that the inside may have opened; 0 if this is no gateway */
	__u32 tells_flows; /* one of enum tells_flows */
	__u32 mark; /* what of a packet's mark says that it is admitted */
	__u32 mark_mask; /* which bits of it are the verifier's; 0 if its verdict is to drop */
	__u32 udp_renewal; /* seconds after which a client's UDP flow needs another token */
	__u32 flows_per_account;
};

/* When user space, which tells the gateways beside this one, is told of flows. */
enum tells_flows { TELLS_NOTHING = 0, TELLS_ADMITTED = 1, TELLS_BOUND = 2 /* once they have an inside address */ };

/* Who opened a flow. */
enum origin { BY_TOKEN = 0, ADOPTED = 1, FROM_INSIDE = 2, ENDED = 3 /* on a gateway: by a token, and it is over */ };

enum carrier { CARRIER_TAIL = 1, CARRIER_SHIM = 2 };

struct agent_config {
	__u32 link_header; /* bytes: 14, or 0 on links without one */
	__u32 tcx;
	__u32 match_cgroups;
	__u32 hear; /* name servers' answers go to user space, too */
};

struct flow_key {
	__u8 client[16];
	__u8 server[16];
	__be16 client_port;
	__be16 server_port;
	__u8 protocol;
	__u8 family;
	__u8 reserved[2];
};

struct flow_key4 {
	__be32 client;
	__be32 server;
	__be16 client_port;
	__be16 server_port;
	__u8 protocol;
	__u8 reserved[3];
};

struct flow {
	__u64 handle;
	__u64 bytes;
	__u64 packets;
	__u32 since;
	__u32 seen;
	union {
		__u32 state; /* changes by compare and swap: whoever takes a flow out or over has it first */
		struct {
			__u8 stage;
			__u8 origin;
			__be16 inside_port; /* as the inside sees the client's */
		};
	};
	__u32 inside; /* the slot of its inside address and one more; 0 if it has none */
	__u32 holder; /* whose grant admitted it: account and session (wire.md §3.9); 0 if nobody is known */
	__u32 next; /* TCP: the client's expected sequence number */
	__u32 answer; /* TCP, on gateways: the number behind the server's first one */
	union {
		__u32 proved; /* UDP: when its last token came, Unix seconds */
		__u32 fin; /* TCP: where a FIN is that came before the data in front of it; 0 if none did */
	};
};

/* Where numbers lie in the kernel's structures for sockets, in bytes; 0 if nobody knows. */
struct stack_layout {
	__u32 rcv_nxt; /* in struct tcp_sock */
	__u32 snt_isn; /* in struct tcp_request_sock */
};

/* Somebody's flow has begun. */
struct flow_news {
	struct flow_key key;
	__u64 time; /* nanoseconds since boot */
};

/* A flow that a gateway beside this one told of, in this one's time. */
struct told_flow {
	struct flow_key key;
	struct flow flow;
	__u32 expires; /* when its grant ends, Unix seconds */
	__u32 begins; /* 1: it is to be made if it is not there */
};

/* What becomes of it. */
enum taken { TAKEN_NEW = 1, TAKEN_KNOWN = 2, REFUSED_REVOKED = 3, REFUSED_OLDER = 4, REFUSED_GONE = 5, REFUSED_FULL = 6 };

/* An address as the maps hold it: IPv4 in the first four bytes, the rest zero. */
struct address {
	__u64 words[2];
};

/* A gateway's pool of inside addresses: how many there are of each family. */
struct nat_config {
	__u32 pool4;
	__u32 pool6;
};

struct pool_slot {
	struct address address;
	__u64 last; /* when a flow came or went last, nanoseconds since boot; 0 if none ever did */
	__u32 person; /* whose it was last */
	__u32 flows;
	__u32 since; /* since when it is theirs, Unix seconds */
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

/* The inside address of a flow that a gateway beside this one told of. */
struct told_address {
	struct flow_key key;
	struct address inside;
	__u32 person;
	__u32 now; /* Unix seconds */
	__u32 slot; /* its slot here and one more; 0 if the flow can't have it */
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

/* What user space is told: whose grant is this?; an address is somebody else's; no flow is left on it. */
enum nat_news_kind { NEWS_UNKNOWN = 1, NEWS_GIVEN = 2, NEWS_IDLE = 3 };

struct grant_use {
	__u32 flows;
	__u32 expires;
	__u32 tokens; /* taken in this window */
	__u32 window;
	struct flow_key first;
};

/* What an account uses of the tables that all share. */
struct account_use {
	__u32 flows;
	__u32 tokens; /* taken in this window */
	__u32 window;
	__u32 reserved;
};

/* Flows that one address of a gateway's inside has opened. */
struct inside_use {
	__u32 flows;
	__u32 counted; /* by the sweep that runs */
};

/* What the verifier has forgotten because its clock jumped (wire.md §6.4.6). User space writes it. */
enum { FORGOTTEN_SPANS = 4 };

struct forgotten {
	struct {
		__u32 from, until;
	} spans[FORGOTTEN_SPANS];
	__u32 since, leapt_from, reached, reserved; /* user space's own */
};

struct epoch_key {
	__u64 epoch;
	__u64 siphash[2];
	__u64 aes[2];
};

struct secret_entry {
	__u64 epoch;
	__u64 block[8]; /* what client keys are hashes of, but for the first seven bytes, which are zero */
};

#define LS_NONCE_WORDS 1024
/* Those of a pair that are the kernel program's; the others are the controller's of switches (wire.md §5.8). */
enum { LS_NONCES = 32768 };

struct ls_grant {
	__u64 epoch;
	__u32 expires;
	__u32 holder; /* whose it is; 0 if the authority names nobody */
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

struct service {
	__u8 protocol;
	__u8 reserved;
	__u16 first_port;
	__u16 last_port;
};

struct services {
	__u32 count;
	struct service spans[SERVICES_MAX];
};

/* A session that ended, or with `whole` an account that lost all its sessions. */
struct revoked_key {
	__u32 number; /* the holder's, or the account's */
	__u32 whole;
};

enum { CLASSES_OF_HANDLES = 0, CLASSES_OF_ACCOUNTS = 1 };

/* The account of a holder (wire.md §3.9). */
static __always_inline __u32 account_of(__u32 holder)
{
	return holder >> 8;
}

/* A bit for each of 65 536 classes. */
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

enum owner_kind { OWNER_USER = 1, OWNER_CGROUP = 2, OWNER_FORWARDED = 3 };

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
	__u64 header[2]; /* of a pair: unique id, nonce1, and what only user space reads */
	__u64 key[4]; /* zeros behind a key that is shorter */
	__u32 spent; /* nonces of its pair that were used when it was used last */
	__u32 reserved2;
};

struct conversation {
	__u32 token;
	__u32 answered;
	__u32 subject;
	__u32 seen;
};

/* An authority that transfers keys in band. */
struct authority_end {
	__be32 address;
	__be16 port;
	__u16 reserved;
};

struct client_key {
	__u64 words[4]; /* zeros behind the 28 bytes */
};

/* A key transfer that waits for a packet of its flow. */
struct transfer {
	__u64 until; /* nanoseconds since boot */
	__u8 data[40]; /* as it goes into the option, and zeros */
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

struct held_header {
	struct grant_slot slot;
	__u32 interface;
	__u32 length;
	__u32 segment;
	__be16 vlan_proto;
	__u16 vlan_tci;
};

/* A verifier of proofs: its settings, fixed when it is loaded. */
struct proofs_config {
	__u32 epoch_length;
	__u32 max_lifetime;
};

/* Whose key for proofs it is. */
struct proof_key_slot {
	struct address authority;
	__u32 family;
	__u32 epoch; /* the low 8 bits */
};

/* Withdrawn consent. */
struct withdrawal {
	__u32 vni; /* as it travels, behind a zero byte */
	__u16 family;
	__u16 from_all; /* 1: the sender is zero */
	struct address receiver;
	struct address sender;
};

#define PROOF_WORDS_MAX 10
/* With a fixed path of five hops. */
#define ROUTED_WORDS_MAX 18

/* What a proof that was right stood beside. */
struct remembered {
	__u64 proof[2];
	__u64 message[PROOF_WORDS_MAX];
	struct address authority;
	__u32 words; /* of the message */
	__u32 epoch; /* the low 8 bits */
	__u32 until;
	__u32 generation;
};

/* A tunnel endpoint: its settings, fixed when it is loaded. */
struct svtep_config {
	__u32 underlay; /* the interface's index */
	__u32 mtu; /* the longest packet there, without its link header */
	__u32 turns; /* 1: the kernel takes a header of one family off a packet of the other (Linux 6.3) */
	__u32 reports; /* packets of one tenant that are handed over in a second */
};

/* An interface behind which a tenant is. */
struct tenant {
	__u32 id;
	__u32 second;
	__u32 reported; /* in that second */
	__u32 reserved;
};

/* Where packets for an interface id go. */
struct delivery {
	__u32 interface; /* 0: nowhere */
	__u32 vni; /* as it travels, behind a zero byte */
	__u8 mac[6];
	__u8 peer; /* 1: a cable's end is in a namespace of its own, and takes packets there */
	__u8 reserved;
};

/* Which packets of a tenant a segment is for. */
struct segment_key {
	__u32 interface;
	__u8 family;
	__u8 protocol; /* with both ports 0: for all services */
	__be16 port;
	__be16 other_port; /* of who opened the flow, if it is for one flow */
	__u8 back; /* 1: for answers: the port is the packet's source port */
	__u8 reserved[5];
	struct address sender;
	struct address receiver;
};

enum { OUTER_MAX = 48, ROUTING_MAX = 88, GENEVE_MAX = 128, HOPS_MAX = 5 };

/* What is put before those packets. */
struct segment_entry {
	__u32 until; /* Unix seconds */
	__u32 used; /* when it was used last */
	__u8 state; /* one of enum segment_state */
	__u8 family; /* the underlay's */
	__u8 local; /* 1: the receiving endpoint is this one */
	__u8 length; /* of Geneve's header */
	__u8 hops; /* of a fixed path */
	__u8 reserved[3];
	__u8 outer[OUTER_MAX]; /* IP with no length, UDP */
	__u8 route[ROUTING_MAX]; /* the routing header between them, if the path is fixed */
	__u8 geneve[GENEVE_MAX];
};

enum segment_state { SEGMENT_REFUSED = 0, SEGMENT_GIVEN = 1, SEGMENT_BY_FLOW = 2 /* look for one flow's */ };

/* A segment that came in and may be answered (wire.md §8.11). */
struct consent {
	struct address sending;
	struct address receiving;
	__u32 expires;
	__u8 family; /* the underlay's */
	__u8 length; /* of Geneve's header */
	__u8 hops; /* of a fixed path */
	__u8 reserved;
	__u8 geneve[GENEVE_MAX];
	struct address route[HOPS_MAX]; /* as the routing header lists them */
};

/* A tenant's packet that user space gets. */
struct unsent {
	__u32 interface;
	__u32 length;
	__u32 segment; /* payload bytes per segment, if it is several */
	__u32 limit; /* the longest packet that would get through; 0: no segment is there for it */
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
	SVTEP_COUNTERS = 16,
};

enum agent_counter {
	AGENT_OTHER = 0,
	AGENT_TOKENS = 1,
	AGENT_ALONE = 2,
	AGENT_HELD = 3,
	AGENT_HOLD_FAILED = 4,
	AGENT_PLAIN = 5,
	AGENT_CONVERSATION = 6,
	AGENT_FAILED = 7,
	AGENT_RIDER = 8,
	AGENT_SUPPORT = 9,
	AGENT_KEYS = 10,
	AGENT_COUNTERS = 16,
};
