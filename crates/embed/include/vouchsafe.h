/* SPDX-License-Identifier: Apache-2.0
 *
 * Connects to destinations that Vouchsafe protects, without privileges, with the session that `vouchsafe login` began.
 * Also tells servers who is behind a connection. Link with -lvouchsafe.
 *
 * A connection is an ordinary socket in blocking mode: the stream holds what both sides write and nothing else. Where
 * the agent runs and the user is logged in there, it puts the tokens into packets, and so it does for every socket.
 *
 * Every function may be called from every thread, also for the same session at the same time.
 */
#ifndef VOUCHSAFE_H
#define VOUCHSAFE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A session; keep it for as long as the program connects, since it has grants and what it has learnt of paths. */
typedef struct vouchsafe_session vouchsafe_session;

/* A UDP flow to one address. */
typedef struct vouchsafe_flow vouchsafe_flow;

/* Opens the user's session: at the agent where it runs, else in the folder `dir`, or with NULL in
 * $VOUCHSAFE_SESSION_DIR or ~/.config/vouchsafe. Returns NULL if there is none; vouchsafe_error() says why. */
vouchsafe_session *vouchsafe_open(const char *dir);

/* Connects by TCP to a host, given by name or address. Waits at most `timeout_ms` for each of its addresses; 0 stands
 * for 10 s. Returns a socket, which the caller closes, or -1: then errno is set, and vouchsafe_error() says why in
 * words that name the way out. */
int vouchsafe_connect(vouchsafe_session *session, const char *host, uint16_t port, unsigned int timeout_ms);

/* Opens a UDP flow to an address. Returns NULL if that fails. */
vouchsafe_flow *vouchsafe_udp(vouchsafe_session *session, const char *address, uint16_t port);

/* The flow's socket, to wait on and for timeouts. Datagrams that are sent on it directly carry no token. It belongs to
 * the flow. */
int vouchsafe_udp_socket(const vouchsafe_flow *flow);

/* Sends a datagram. Returns 0, or -1 with errno set. */
int vouchsafe_udp_send(vouchsafe_flow *flow, const void *bytes, size_t length);

/* Receives a datagram. Returns its length, cut to `length`, or -1 with errno set. */
int64_t vouchsafe_udp_receive(vouchsafe_flow *flow, void *bytes, size_t length);

/* Closes a flow; NULL is allowed. */
void vouchsafe_udp_close(vouchsafe_flow *flow);

/* An identity, for servers: the person behind a connection and the device, and the receiver, the rule and the grant by
 * which the verifier admitted the connection. The texts may contain any character but 0. */
typedef struct vouchsafe_identity {
	const char *person, *device, *receiver, *rule, *grant;
} vouchsafe_identity;

/* Asks the verifier on this host who is behind a TCP connection, right after the program has accepted it. `verifier` is
 * the path of the verifier's `identity_socket`, or with NULL $VOUCHSAFE_IDENTITY_SOCKET or
 * /run/vouchsafe/identity.sock. Waits at most 5 s. Returns 1 and sets *who, which the caller frees; or 0 if nobody is
 * known; or -1 with errno set. In the last two cases *who is NULL. No session is needed. */
int vouchsafe_whois(int socket, const char *verifier, vouchsafe_identity **who);

/* Frees an identity; NULL is allowed. */
void vouchsafe_whois_free(vouchsafe_identity *who);

/* The reason for which the last call on this thread failed, valid until the next one. Never NULL. */
const char *vouchsafe_error(void);

/* Frees a session; NULL is allowed. Connections stay as they are. No other thread may be using it. */
void vouchsafe_close(vouchsafe_session *session);

#ifdef __cplusplus
}
#endif

#endif
