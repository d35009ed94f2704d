/* One TCP connection after the other, a byte each way. Run outside, against its own server over loopback, it is the floor;
 * run inside a sandbox, against the same server somewhere outside, it is what is held against it.
 *
 *   connect serve                                      says its port, and serves until it is killed
 *   connect ITERATIONS PAUSE_MS connect ADDRESS PORT   times the connect alone
 *   connect ITERATIONS PAUSE_MS exchange ADDRESS PORT  times the connect, a byte there and back, and the close */
#include "rhythm.h"
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <unistd.h>

struct what {
	struct sockaddr_in to;
	bool whole;
};

static int64_t once(void *with)
{
	struct what *what = with;
	char byte = 'x';
	int on = 1;
	int64_t start = now_ns();
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	if (fd < 0 || connect(fd, (struct sockaddr *)&what->to, sizeof what->to))
		fail("connect");
	int64_t connected = now_ns();
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
	if (write(fd, &byte, 1) != 1 || read(fd, &byte, 1) != 1)
		fail("a byte there and back");
	close(fd);
	return (what->whole ? now_ns() : connected) - start;
}

static void serve(void)
{
	struct sockaddr_in at = { .sin_family = AF_INET };
	socklen_t length = sizeof at;
	int on = 1;
	int listener = socket(AF_INET, SOCK_STREAM, 0);
	if (listener < 0 || bind(listener, (struct sockaddr *)&at, sizeof at) || listen(listener, 128) ||
	    getsockname(listener, (struct sockaddr *)&at, &length))
		fail("listen");
	printf("%d\n", ntohs(at.sin_port));
	fflush(stdout);
	for (;;) {
		char byte;
		int fd = accept(listener, NULL, NULL);
		if (fd < 0)
			fail("accept");
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
		while (read(fd, &byte, 1) == 1 && write(fd, &byte, 1) == 1)
			;
		close(fd);
	}
}

int main(int argc, char **argv)
{
	if (argc == 2 && !strcmp(argv[1], "serve"))
		serve();
	struct rhythm rhythm = rhythm_of(argc, argv, 6, "connect|exchange ADDRESS PORT");
	struct what what = { .to.sin_family = AF_INET, .to.sin_port = htons(atoi(argv[5])) };
	what.whole = !strcmp(argv[3], "exchange");
	if (inet_pton(AF_INET, argv[4], &what.to.sin_addr) != 1)
		fail(argv[4]);
	beat(rhythm, once, &what);
	return 0;
}
