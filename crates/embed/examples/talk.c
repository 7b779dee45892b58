/* HOST PORT WORDS: sends the words by TCP and by UDP, prints the answers. Build: cc talk.c -lvouchsafe */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "vouchsafe.h"

int main(int argc, char **argv)
{
	vouchsafe_session *session = vouchsafe_open(NULL);
	vouchsafe_flow *flow;
	struct timeval patience = {5, 0};
	char answer[1000];
	long size;
	int stream;

	if (argc != 4 || !session) {
		fprintf(stderr, "%s\n", session ? "give HOST PORT WORDS" : vouchsafe_error());
		return 1;
	}
	stream = vouchsafe_connect(session, argv[1], (uint16_t)atoi(argv[2]), 0);
	if (stream < 0) {
		fprintf(stderr, "%s\n", vouchsafe_error());
		return 1;
	}
	if (write(stream, argv[3], strlen(argv[3])) < 0 || (size = read(stream, answer, sizeof answer)) < 0) {
		perror("stream");
		return 1;
	}
	printf("%.*s\n", (int)size, answer);
	close(stream);

	flow = vouchsafe_udp(session, argv[1], (uint16_t)atoi(argv[2]));
	if (!flow || vouchsafe_udp_send(flow, argv[3], strlen(argv[3]))) {
		fprintf(stderr, "%s\n", vouchsafe_error());
		return 1;
	}
	setsockopt(vouchsafe_udp_socket(flow), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
	size = vouchsafe_udp_receive(flow, answer, sizeof answer);
	if (size < 0) {
		fprintf(stderr, "%s\n", vouchsafe_error());
		return 1;
	}
	printf("%.*s\n", (int)size, answer);
	vouchsafe_udp_close(flow);
	vouchsafe_close(session);
	return 0;
}
